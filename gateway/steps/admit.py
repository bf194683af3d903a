"""Step 7: whether a request may be made now, by the limits of who calls; and what it used, once it has ended.

Tokens are taken before an engine sees the request, by an estimate, so that many requests at once cannot slip past a
limit that each alone would keep; what the engine counted takes the estimate's place afterwards.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import NamedTuple, cast

from gateway.limits.estimate import answer_tokens, cut_tokens, prompt_tokens
from gateway.limits.interfaces import Lease, Limiter
from gateway.model import BodyKind, Budget, Endpoint, InferenceRequest
from gateway.policy.access import Estimate
from gateway.telemetry.trace import Trace

_GENERATING = frozenset({Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.RESPONSES, Endpoint.MESSAGES})

_FORM = BodyKind.MULTIPART  # a member of an enumeration takes ten times as long to read as a name
_making = tuple.__new__  # a named tuple's own constructor takes three times as long


class Reservation(NamedTuple):
    """Tokens that a request is taken to use: those of its prompt, and all."""

    prompt: int
    total: int


def reserve(request: InferenceRequest, body_bytes: int, estimate: Estimate) -> Reservation:
    """By the length of the body and the most that each answer may hold. A form's bytes are sound, which has no length
    in tokens that could be told from them; an endpoint that generates nothing reserves no output."""
    text = 0 if request.route.body is _FORM else body_bytes
    prompt = prompt_tokens(text, estimate.bytes_per_token)
    if request.route.endpoint not in _GENERATING:
        return Reservation(prompt, prompt)
    total = prompt + answer_tokens(request.choices, request.max_tokens, estimate.output_tokens)
    return _making(Reservation, (prompt, total))


class Taken:
    """What a request took: a lease, and ``prompt``, the tokens that its prompt was taken for."""

    __slots__ = ("lease", "prompt")

    def __init__(self, lease: Lease, prompt: int) -> None:
        self.lease = lease
        self.prompt = prompt

    def settle(self, trace: Trace, *, gone: bool) -> None:
        """The request has ended: what it used takes the place of what was reserved. ``gone``: its client left."""
        self.lease.settle(used_tokens(trace, self.prompt, served=trace.status == 200 or gone))
        self.lease.close()


def turn_back(limiter: Limiter, budgets: Sequence[Budget]) -> None:
    """Refuse whom the number of requests refuses, before anybody reads what the request says: in a client's loop of
    retries that is most of them. Raises ``LimitReached``."""
    refused = limiter.spent(budgets)
    if refused is not None:
        raise refused


def admit(limiter: Limiter, budgets: Sequence[Budget], reserved: Reservation) -> Taken | Awaitable[Taken]:
    """Take what the request needs of every budget. Raises ``LimitReached``, or what is awaited does."""
    lease = limiter.admit(budgets, reserved.total)
    # Not ``isinstance``: of an abstract class it takes ten times as long.
    if hasattr(lease, "__await__"):
        return _admitted(cast(Awaitable[Lease], lease), reserved.prompt)
    return Taken(lease, reserved.prompt)


async def _admitted(asking: Awaitable[Lease], prompt: int) -> Taken:
    return Taken(await asking, prompt)


def used_tokens(trace: Trace, prompt: int, *, served: bool) -> int:
    """What a request that has ended counts as; ``prompt`` are the tokens its prompt was taken for.

    As the engine said, where it said so. A stream that was cut before its usage came counts by what was sent of it.
    A request that was ``served`` without a word on usage, or whose client left first, counts its prompt; one that no
    engine answered counts nothing.
    """
    usage = trace.usage
    if usage is not None and (trace.finish is not None or not trace.events):
        return usage.prompt + usage.completion
    if trace.events:
        known = prompt if usage is None else usage.prompt
        return cut_tokens(known, trace.events, trace.response_bytes, trace.first_bytes)
    return prompt if served and trace.attempts else 0
