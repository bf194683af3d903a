"""What the request path asks of a limiter, and what it gives."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import NamedTuple, Protocol

from gateway.errors import Refusal
from gateway.model import Budget


class Standing(NamedTuple):
    """What is left to a caller of its tightest request and token limits a minute; ``None`` where it has none.

    ``remaining`` are whole requests and tokens, ``reset`` the seconds until the limit is whole again.
    """

    limit_requests: int | None = None
    remaining_requests: int | None = None
    reset_requests: float = 0.0
    limit_tokens: int | None = None
    remaining_tokens: int | None = None
    reset_tokens: float = 0.0


class LimitReached(Refusal):
    """A limit refuses a request: it names which limit, never whose.

    ``code`` is ``rate_limited``, ``tokens_limited`` or ``concurrency_limited``. ``never`` says that no wait would help:
    the request alone asks for more than the limit.
    """

    def __init__(
        self, code: str, message: str, *, retry_after: int | None, standing: Standing, never: bool = False
    ) -> None:
        super().__init__(code, message, retry_after=retry_after)
        self.standing = standing
        self.never = never
        self.retry = not never


class Lease(Protocol):
    """What a request was granted. Neither method waits, and both may be called from any state."""

    @property
    def standing(self) -> Standing | None:
        """What is left; ``None`` when there is nothing to say."""
        ...

    def settle(self, tokens: int) -> None:
        """Count what was really used in place of what was reserved. Only the first call counts."""
        ...

    def close(self) -> None:
        """Give back the place among concurrent requests; what was reserved and not settled stays used. Idempotent."""
        ...


class Limiter(Protocol):
    """Decides whether a request may be made now. All budgets admit it, or none is charged."""

    def admit(self, budgets: Sequence[Budget], tokens: int) -> Lease | Awaitable[Lease]:
        """Take one request, one place among concurrent ones and ``tokens`` from each budget.

        Raises ``LimitReached``. What is awaitable needs a round trip to a shared store.
        """
        ...

    def spent(self, budgets: Sequence[Budget]) -> LimitReached | None:
        """The refusal of one more request, where their number is known to allow none now, whatever it would ask for.

        What it says is what ``admit`` would for a request of no tokens. ``None``: that is for ``admit`` to say. Takes
        nothing and never waits.
        """
        ...
