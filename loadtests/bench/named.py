"""Rows of a table by their names."""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar


class Named(Protocol):
    """A row."""

    @property
    def name(self) -> str:
        """Its own in the table."""
        ...


N = TypeVar("N", bound=Named)


def named(table: Sequence[N], names: Iterable[str], what: str, unknown: Callable[[str], Exception]) -> tuple[N, ...]:
    """The rows of these names in the table's order. Raises what `unknown` makes of a message, for a name without one.

    `what` says in that message what a row is.
    """
    known, wanted = [row.name for row in table], list(names)
    if strange := [name for name in wanted if name not in known]:
        raise unknown(f"no {what} {strange[0]!r}; there are: {', '.join(known)}")
    return tuple(row for row in table if row.name in wanted)
