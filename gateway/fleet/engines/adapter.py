"""Which kinds of engines are known, and which of them a replica is."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gateway.fleet.engines.base import Adapter
from gateway.fleet.engines.llamacpp import LLAMACPP
from gateway.fleet.engines.sglang import SGLANG
from gateway.fleet.engines.trtllm import TRTLLM
from gateway.fleet.engines.vllm import VLLM
from gateway.fleet.signals import Source

__all__ = ["ADAPTERS", "GENERIC", "Adapter", "Source", "adapter_for"]

# Any other server of OpenAI's API. Nothing is expected of it; it is given the patience of the slowest kind, since this
# is also how an engine is looked at before it has said what it is.
GENERIC = Adapter(
    name="generic",
    owners=frozenset(),
    signals=MappingProxyType({}),
    expected=frozenset(),
    progress=(),
    health_patience=5.0,
)

ADAPTERS: Mapping[str, Adapter] = MappingProxyType(
    {each.name: each for each in (VLLM, SGLANG, TRTLLM, LLAMACPP, GENERIC)}
)

_BY_OWNER: Mapping[str, Adapter] = MappingProxyType(
    {owner: each for each in ADAPTERS.values() for owner in each.owners}
)


def adapter_for(owner: str | None, declared: str | None = None) -> Adapter:
    """The adapter of a replica whose model list says ``owner``. What the operator has ``declared`` wins.

    What neither names is ``GENERIC``; that a declared name is known is for whoever reads the configuration to check.
    """
    if declared is not None:
        return ADAPTERS.get(declared, GENERIC)
    return _BY_OWNER.get(owner or "", GENERIC)
