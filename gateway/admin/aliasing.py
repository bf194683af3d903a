"""What may be done to an alias, once for the admin API, the command line and whoever imports it.

Each change reads, decides, and writes by compare-and-set: what it was decided on is what it replaces, or it is refused
with who was first. Only a plain assignment replaces whatever is there, unless it says what that has to be. A change
never waits for a replica: to a model that none serves it is refused, unless forced, and that it was forced is in the
audit trail before the change is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from gateway.admin.aliasorders import (
    AbortOrder,
    AliasOrder,
    CanaryOrder,
    ChangeOrder,
    DeleteOrder,
    PromoteOrder,
    RollbackOrder,
    TargetOrder,
)
from gateway.admin.errors import AdminRefusal
from gateway.aliasing import files, plan
from gateway.model import Revision, Target
from gateway.policy.names import is_model
from gateway.stores.interfaces import NotFound, StateStore

IN_USE = 3_600.0
"""An alias that served a request so many seconds ago, or fewer, is not deleted unless forced."""

_NAMED = 20


@dataclass(frozen=True, slots=True)
class Actor:
    """Who changes aliases, when (Unix seconds), and what ready replicas serve then.

    ``served`` ``None``: not known, as where no gateway runs; then nothing is refused for it, and ``force`` is on record
    whether it was needed or not.
    """

    author: str
    now: float
    served: Collection[str] | None = None


class _Write(NamedTuple):
    """What was decided. ``replaces`` is the number of the revision that it was decided on (0: none; ``None``: any)."""

    verb: str
    targets: tuple[Target, ...]
    source: str
    note: str
    replaces: int | None
    canary_of: int | None = None


async def change(store: StateStore, alias: str, order: ChangeOrder, actor: Actor) -> Revision:
    """Do what an order says; the revision that is current now, or, of a deleted alias, was.

    Raises ``AdminRefusal`` (``model_not_served``, ``alias_in_use``), ``PlanFault``, ``NotFound``, ``Conflict``,
    ``StoreUnavailable``.
    """
    return await _ACTS[type(order)](store, alias, order, actor)


async def assign(store: StateStore, alias: str, order: AliasOrder, actor: Actor) -> Revision:
    """Point an alias at models, whatever it is now unless ``expect_revision`` says. Raises what ``change`` raises."""
    write = _Write("set", order.aims(), order.source, order.note, order.expect_revision)
    return await _make(store, alias, order, actor, write)


async def rollback(store: StateStore, alias: str, order: RollbackOrder, actor: Actor) -> Revision:
    """Assign again what an earlier revision was. It also brings a deleted alias back. Raises what ``change`` raises."""
    now = (await store.alias_table()).current.get(alias)
    history = await store.alias_history(alias)
    found = plan.rollback_to(history, await store.alias_uses(alias), order.to, deleted=now is None)
    note = order.note or f"as revision {found.number}"
    return await _make(store, alias, order, actor, _Write("rollback", found.targets, "rollback", note, _number(now)))


async def canary(store: StateStore, alias: str, order: CanaryOrder, actor: Actor) -> Revision:
    """Begin a trial of a model, or give the running one another weight. Raises what ``change`` raises."""
    now = await current(store, alias)
    targets, canary_of = _trial(now, order)
    write = _Write("canary", targets, "canary", order.note, now.number, canary_of)
    return await _make(store, alias, order, actor, write)


async def promote(store: StateStore, alias: str, order: PromoteOrder, actor: Actor) -> Revision:
    """End a trial in favour of the model that was tried. Raises what ``change`` raises."""
    now = await current(store, alias)
    note = order.note or f"canary {now.label} promoted"
    return await _make(store, alias, order, actor, _Write("promote", plan.promoted(now), "canary", note, now.number))


async def abort(store: StateStore, alias: str, order: AbortOrder, actor: Actor) -> Revision:
    """End a trial in favour of what was there before. Raises what ``change`` raises."""
    now = await current(store, alias)
    before = plan.aborted(await store.alias_history(alias))
    note = order.note or f"canary {now.label} aborted, as revision {before.number}"
    return await _make(store, alias, order, actor, _Write("abort", before.targets, "rollback", note, now.number))


async def delete(store: StateStore, alias: str, order: DeleteOrder, actor: Actor) -> Revision:
    """Take an alias out of the table. Raises what ``change`` raises."""
    now = await current(store, alias)
    used = max((await store.alias_uses(alias)).values(), default=None)
    if used is not None and actor.now - used <= IN_USE:
        if not order.force:
            raise AdminRefusal("alias_in_use", _in_use(actor.now - used))
        await _record_force(store, alias, actor, {"verb": "alias.delete", "used_at": used})
    return await store.delete_alias(
        alias, author=actor.author, at=actor.now, note=order.note, expect_revision=_expected(order, now.number)
    )


async def current(store: StateStore, alias: str) -> Revision:
    """The current revision of an alias. Raises ``NotFound``."""
    found = (await store.alias_table()).current.get(alias)
    if found is None:
        raise NotFound("no alias has that name")
    return found


async def show(store: StateStore, alias: str, number: int | None = None) -> Revision:
    """A revision of an alias, the current one unless numbered. Raises ``NotFound``."""
    return await current(store, alias) if number is None else await store.alias_revision(alias, number)


async def pair(store: StateStore, alias: str, one: int | None, other: int | None) -> tuple[Revision, Revision]:
    """Two revisions to be compared, in the order given.

    With neither number: the current one and the one before it. With one number: that one and the current one. Raises
    ``NotFound``; ``AdminRefusal`` when there is none before.
    """
    new = await show(store, alias, other)
    number = new.number - 1 if one is None else one
    if number < 1:
        raise AdminRefusal("no_such_object", "Revision 1 is the first: there is none before it to compare it with.")
    return await store.alias_revision(alias, number), new


async def export(store: StateStore) -> str:
    """The whole table as the document that ``apply`` takes."""
    return files.render(await store.alias_table())


async def apply(store: StateStore, text: str, actor: Actor, *, prune: bool = False, force: bool = False) -> list[str]:
    """Make the table what a document says, step by step; each step that was taken, in words.

    Raises ``PolicyFault`` for the document, ``PlanFault`` before the first step, and what ``change`` raises: the steps
    before that one stand.
    """
    steps = files.steps(files.read(text, "aliases"), await store.alias_table(), prune, force=force)
    for step in steps:
        await change(store, step.alias, order_of(step, force=force), actor)
    return [files.describe(step) for step in steps]


def order_of(step: files.Step, *, force: bool = False) -> ChangeOrder:
    """The order that takes a step of a document: lost if anybody changes that alias first."""
    if step.verb == "delete":
        return DeleteOrder(expect_revision=step.expect_revision, force=force)
    targets = [TargetOrder(model=target.model, weight=target.weight) for target in step.targets]
    return AliasOrder(targets=targets, note=step.note, source="file", expect_revision=step.expect_revision, force=force)


async def _make(store: StateStore, alias: str, order: ChangeOrder, actor: Actor, write: _Write) -> Revision:
    """Write what was decided, if it is permitted. What the caller wants to replace counts for more than what was read:
    it may have looked earlier."""
    await _permit(store, alias, order, actor, write)
    return await store.assign_alias(
        alias,
        write.targets,
        author=actor.author,
        at=actor.now,
        note=write.note,
        source=write.source,
        expect_revision=_expected(order, write.replaces),
        canary_of=write.canary_of,
    )


async def _permit(store: StateStore, alias: str, order: ChangeOrder, actor: Actor, write: _Write) -> None:
    """Refuse models that no replica serves. A force goes into the audit trail first: a change that was lost to another
    one leaves a line of what was tried, and none is made without its line."""
    missing = [one.model for one in write.targets if actor.served is None or one.model not in actor.served]
    if not missing or (actor.served is None and not order.force):
        return
    if not order.force:
        raise AdminRefusal("model_not_served", _not_served(missing, actor.served or ()), param="model")
    await _record_force(store, alias, actor, {"verb": f"alias.{write.verb}", "models": missing})


async def _record_force(store: StateStore, alias: str, actor: Actor, detail: Mapping[str, object]) -> None:
    await store.note(at=actor.now, author=actor.author, verb="alias.force", subject=alias, detail=detail)


def _expected(order: ChangeOrder, replaces: int | None) -> int | None:
    return replaces if order.expect_revision is None else order.expect_revision


def _number(now: Revision | None) -> int:
    return 0 if now is None else now.number


def _trial(now: Revision, order: CanaryOrder) -> tuple[tuple[Target, ...], int]:
    if now.canary_of is not None and now.targets[-1].model == order.model:
        stable = now.targets[0].model
        return (Target(stable, 100 - order.weight), Target(order.model, order.weight)), now.canary_of
    return plan.canary_targets(now, order.model, order.weight), now.number


def _not_served(missing: Sequence[str], served: Collection[str]) -> str:
    """Which models nobody serves: who rolls back has not named any."""
    which = " or ".join(filter(is_model, missing)) or "that model"
    names = ", ".join(sorted(served)[:_NAMED])
    return f"No replica serves {which} now. Served: {names or 'nothing yet'}. force (--force) assigns it all the same."


def _in_use(ago: float) -> str:
    return (
        f"The alias served a request {max(0.0, ago) / 60:.0f} minutes ago: whoever calls it would get model_not_found. "
        "force (--force) deletes it all the same."
    )


_ACTS: Mapping[type[ChangeOrder], Callable[[StateStore, str, Any, Actor], Awaitable[Revision]]] = MappingProxyType(
    {
        AliasOrder: assign,
        RollbackOrder: rollback,
        CanaryOrder: canary,
        PromoteOrder: promote,
        AbortOrder: abort,
        DeleteOrder: delete,
    }
)
