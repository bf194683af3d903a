"""Aliases and the instances that serve them, as the admin API and ``--json`` show them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from gateway.admin.aliasorders import MAX_NUMBER
from gateway.admin.schemas import PAGE, Closed, Query, alias_name
from gateway.aliasing.plan import diff
from gateway.model import INSTANCE_TTL, AliasTable, Instance, Revision, Target

_NUMBER = re.compile(r"[1-9][0-9]{0,15}").fullmatch


def alias_reference(text: str) -> str:
    """``name`` or ``name@revision`` as given. Raises ``ValueError``."""
    name, number = split_reference(text)
    return name if number is None else f"{name}@{number}"


def split_reference(text: str) -> tuple[str, int | None]:
    """An alias's name and the revision that is meant; ``None``: the current one. Raises ``ValueError``."""
    name, at, number = text.partition("@")
    if at and _NUMBER(number) is None:
        raise ValueError("a revision is meant by NAME@N, where N counts from 1")
    return alias_name(name), int(number) if at else None


AliasReference = Annotated[str, AfterValidator(alias_reference)]
_Number = Annotated[int, Field(ge=1, le=MAX_NUMBER)]


class TargetView(Closed):
    """A served model and its weight."""

    model: str
    weight: int


class AliasView(Closed):
    """A revision of an alias. ``canary_of`` is the revision that it tries to replace, if it is a trial."""

    name: str
    revision: int
    targets: list[TargetView]
    author: str
    created_at: float
    note: str
    source: str
    canary_of: int | None


class WrittenView(AliasView):
    """What a change has made, or, of a deleted alias, ended.

    An instance whose table has that ``generation``, or a later one, serves by it; ``None``: the store failed just after
    it had taken the change.
    """

    generation: int | None


class AliasList(Closed):
    """All aliases by name, and the generation of the table."""

    generation: int
    aliases: list[AliasView]


class RevisionView(AliasView):
    """One line of a history: whether requests go by it now, and when one last did (Unix seconds)."""

    current: bool
    used_at: float | None


class HistoryPaging(Query):
    """Which revisions: at most ``limit`` with a number below ``before``."""

    before: _Number | None = None
    limit: Annotated[int, Field(ge=1, le=PAGE)] = PAGE


class HistoryPage(Closed):
    """Revisions, newest first. ``next`` is what ``before`` has to be for those that follow; ``None``: no more."""

    revisions: list[RevisionView]
    next: int | None


class DiffPair(Query):
    """Two revisions; without ``new`` the current one, without ``old`` the one before ``new``."""

    old: _Number | None = None
    new: _Number | None = None


class DifferenceView(Closed):
    """What differs (a model, by its share of the traffic, ``canary of`` or ``note``); empty: it was not there."""

    what: str
    before: str
    after: str


class DiffView(Closed):
    """Two revisions, and each thing that differs between them."""

    old: AliasView
    new: AliasView
    differences: list[DifferenceView]


class InstanceView(Closed):
    """A gateway as its last heartbeat told: ``live`` when that was not too long ago. Times are Unix seconds.

    ``lags``: it is live and serves by an older table than the store has. ``table_age`` is for how many seconds it had
    not heard of the store; ``seen_ago`` how many seconds ago the heartbeat was.
    """

    id: str
    name: str
    version: str
    admin_url: str
    started_at: float
    seen_at: float
    seen_ago: float
    generation: int
    table_age: float
    degraded: bool
    live: bool
    lags: bool


class InstanceList(Closed):
    """The gateways that the store has heard of in the last hour, and the generation of its alias table."""

    generation: int
    instances: list[InstanceView]


def alias_list(table: AliasTable) -> AliasList:
    """The table as shown."""
    return AliasList(generation=table.generation, aliases=[alias_view(one) for one in table.current.values()])


def alias_view(revision: Revision) -> AliasView:
    """A revision as shown."""
    return AliasView(**_fields(revision))


def written_view(revision: Revision, generation: int | None) -> WrittenView:
    """A revision just made."""
    return WrittenView(**_fields(revision), generation=generation)


def revision_of(view: AliasView) -> Revision:
    """A shown revision as the rest of the gateway knows it."""
    return Revision(
        alias=view.name,
        number=view.revision,
        targets=tuple(Target(target.model, target.weight) for target in view.targets),
        author=view.author,
        created_at=view.created_at,
        note=view.note,
        source=view.source,
        canary_of=view.canary_of,
    )


def history_page(
    history: Sequence[Revision], current: int, uses: Mapping[int, float], paging: HistoryPaging
) -> HistoryPage:
    """A page of a history that is given oldest first; ``current`` is the number of the revision that is (0: none)."""
    wanted = [one for one in reversed(history) if paging.before is None or one.number < paging.before]
    page = [
        RevisionView(**_fields(one), current=one.number == current, used_at=uses.get(one.number))
        for one in wanted[: paging.limit]
    ]
    return HistoryPage(revisions=page, next=page[-1].revision if len(page) < len(wanted) else None)


def diff_view(old: Revision, new: Revision) -> DiffView:
    """What differs between two revisions."""
    rows = [DifferenceView(what=row.what, before=row.before, after=row.after) for row in diff(old, new)]
    return DiffView(old=alias_view(old), new=alias_view(new), differences=rows)


def instance_view(instance: Instance, generation: int, now: float) -> InstanceView:
    """An instance as shown at ``now``, next to the store's ``generation``."""
    ago = max(0.0, now - instance.seen_at)
    live = ago <= INSTANCE_TTL
    return InstanceView(
        id=instance.id,
        name=instance.name,
        version=instance.version,
        admin_url=instance.admin_url,
        started_at=instance.started_at,
        seen_at=instance.seen_at,
        seen_ago=ago,
        generation=instance.generation,
        table_age=instance.table_age,
        degraded=instance.degraded,
        live=live,
        lags=live and instance.generation < generation,
    )


def _fields(revision: Revision) -> dict[str, Any]:
    return {
        "name": revision.alias,
        "revision": revision.number,
        "targets": [TargetView(model=target.model, weight=target.weight) for target in revision.targets],
        "author": revision.author,
        "created_at": revision.created_at,
        "note": revision.note,
        "source": revision.source,
        "canary_of": revision.canary_of,
    }
