"""Whether a failed attempt is worth another replica, and whether there is budget for one. Pure.

Asked only while the client has seen nothing. Retries make an overload worse, so they are bounded by a share of what is
active and not by a count for each request, after Envoy's retry budget (20 %, at least 3 at once). Work that an engine
has let go of makes none worse: when one of two replicas dies, half of all requests go to the other one, as they would
have if they had come a moment later.
"""

from __future__ import annotations

from gateway.errors import (
    EngineClosing,
    EngineDead,
    EngineFailure,
    EngineHung,
    EngineReset,
    EngineTimeout,
    EngineUnreachable,
)
from gateway.policy.fleet import Retries


class RetryBudget:
    """Requests that are active, and how many of them are on a second replica or a later one.

    Every ``enter`` has its ``leave``, and every ``take`` that was granted its ``give_back``, when that attempt has
    ended.
    """

    __slots__ = ("active", "retrying")

    def __init__(self) -> None:
        self.active = 0
        self.retrying = 0

    def enter(self) -> None:
        """One more request is active."""
        self.active += 1

    def leave(self) -> None:
        """One less."""
        self.active -= 1

    def take(self, policy: Retries) -> bool:
        """Whether one more attempt may be made now; if so, it is counted until it is given back."""
        if self.retrying < policy.at_least or self.retrying + 1 <= policy.share * self.active:
            self.retrying += 1
            return True
        return False

    def give_back(self) -> None:
        """An attempt that was granted has ended."""
        self.retrying -= 1


def is_charged(error: EngineFailure) -> bool:
    """Whether an attempt after this failure counts against the budget: the engine may still be at work on the first.

    An engine that keeps letting go of work is ejected, which bounds the attempts that are not charged.
    """
    return not isinstance(error, _LET_GO)


_LET_GO = (EngineUnreachable, EngineReset, EngineClosing, EngineDead, EngineHung)


def worth_another(error: EngineFailure, request_bytes: int, policy: Retries, *, saturated: bool = False) -> bool:
    """Whether another replica may do better than the one that failed so.

    | what happened                                        | another        |
    |------------------------------------------------------|----------------|
    | the request is at fault, or may kill the next engine | no             |
    | no replica has room (``saturated``)                  | no             |
    | a deadline passed                                    | a short prompt |
    | anything else                                        | ``elsewhere``  |

    After a deadline the engine may well be computing still. A long prompt's prefill is paid there, and would be paid
    again on another replica that is no less busy (azrtydxb/Fastllm-proxy#21); ``request_bytes`` is the body's size.
    """
    if saturated or not error.retry:
        return False
    if isinstance(error, EngineTimeout):
        return request_bytes < policy.long_prompt
    return error.elsewhere
