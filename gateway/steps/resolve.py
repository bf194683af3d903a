"""Step 4: from the name that the caller used to a revision, and from that to one of its targets. Pure."""

from __future__ import annotations

from typing import NamedTuple

from gateway.errors import Refusal
from gateway.model import AliasTable, Revision

_MAX_DIGITS = 9


class Wanted(NamedTuple):
    """What a name asks for: an alias, and the number of the revision that it is pinned to (``None``: the current)."""

    alias: str
    number: int | None = None


def wanted(name: str) -> Wanted:
    """``name`` or ``name@N``. No alias has an ``@`` in its name, so that anything else behind one is no revision and
    makes a name that nobody has."""
    alias, mark, digits = name.rpartition("@")
    if not mark:
        return Wanted(name)
    plain = digits.isascii() and digits.isdecimal() and len(digits) <= _MAX_DIGITS and digits[0] != "0"
    return Wanted(alias, int(digits)) if plain else Wanted(name)


def resolve(alias: str, table: AliasTable) -> Revision:
    """The current revision of an alias. Raises ``Refusal`` (404)."""
    revision = table.current.get(alias)
    if revision is None:
        raise Refusal("model_not_found", param="model")
    return revision


def choose_target(revision: Revision, point: float) -> str:
    """The served model of the revision at a point in [0, 1) on the line of its targets' weights.

    The line keeps the order of the targets: who stands at the same point stays on a canary while its share grows.
    """
    targets = revision.targets
    left = point * sum(target.weight for target in targets)
    for target in targets:
        left -= target.weight
        if left < 0:
            return target.model
    return targets[-1].model
