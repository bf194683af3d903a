"""What is read of a store in more than one step, once for the admin API and the command line."""

from __future__ import annotations

from gateway.admin.aliasviews import HistoryPage, HistoryPaging, InstanceList, history_page, instance_view
from gateway.stores.interfaces import StateStore, StoreUnavailable


async def read_history(store: StateStore, name: str, paging: HistoryPaging) -> HistoryPage:
    """A page of an alias's revisions. Raises ``NotFound``."""
    now = (await store.alias_table()).current.get(name)
    history = await store.alias_history(name)
    return history_page(history, 0 if now is None else now.number, await store.alias_uses(name), paging)


async def generation_now(store: StateStore) -> int | None:
    """The generation after a write, at least the one that it made. A store that fails just after it committed does
    not undo the write: then nobody knows (``None``)."""
    try:
        return (await store.versions()).aliases
    except StoreUnavailable:
        return None


async def read_instances(store: StateStore, now: float) -> InstanceList:
    """The instances of the last hour, as they stand at ``now`` (Unix seconds)."""
    heard = await store.instances()
    # Read last: an instance that is ahead of it does not lag.
    generation = (await store.versions()).aliases
    return InstanceList(generation=generation, instances=[instance_view(one, generation, now) for one in heard])
