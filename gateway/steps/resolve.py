"""Step 3: from the name that the caller used to the revision that is current, and to one of its targets. Pure."""

from __future__ import annotations

from collections.abc import Callable

from gateway.errors import Refusal
from gateway.model import AliasTable, Revision


def resolve(alias: str, table: AliasTable) -> Revision:
    """The current revision of an alias. Raises ``Refusal`` (404)."""
    revision = table.current.get(alias)
    if revision is None:
        raise Refusal("model_not_found", param="model")
    return revision


def choose_target(revision: Revision, random: Callable[[], float]) -> str:
    """A served model of the revision, by weight. ``random`` gives a number in [0, 1)."""
    targets = revision.targets
    if len(targets) == 1:
        return targets[0].model
    point = random() * sum(target.weight for target in targets)
    for target in targets:
        point -= target.weight
        if point < 0:
            return target.model
    return targets[-1].model
