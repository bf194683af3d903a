"""A value that does not print, so that a careless log line, message or traceback cannot give it away."""

from __future__ import annotations

import hmac
from typing import NoReturn

_MASK = "***"


class Secret:
    """Text that only ``reveal`` gives. Prints, formats and interpolates as ``***``; refuses to be pickled or hashed.

    Comparison takes the same time whatever the texts have in common.
    """

    __slots__ = ("_value",)
    __hash__ = None  # type: ignore[assignment]  # a hash of the text in a set or dict would outlive its use

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The text itself. Keep it in a local name no longer than needed."""
        return self._value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._value.encode(), other._value.encode())

    def __len__(self) -> int:
        return len(self._value)

    def __repr__(self) -> str:
        return f"Secret({_MASK!r})"

    def __str__(self) -> str:
        return _MASK

    def __format__(self, spec: str) -> str:
        return format(_MASK, spec)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not pickled")
