"""How replicas are chosen: the section ``balancing`` of ``routing.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from gateway.policy.document import Document, Option, read_options, word
from gateway.policy.names import is_alias

NAMES = ("estimate", "power-of-two", "least-in-flight", "round-robin", "session")
"""The strategies that there are; what each does is in ``fleet.balance.strategies``."""

_NONE = "none"
_MOST_ALIASES = 1_000


@dataclass(frozen=True, slots=True)
class Balancing:
    """``strategy`` is for all aliases but those in ``aliases``.

    ``dry_run`` is one that is asked beside, and whose choice is only counted; ``None``: none is.
    """

    strategy: str = NAMES[0]
    dry_run: str | None = None
    aliases: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def of(self, alias: str) -> str:
        """The strategy for an alias."""
        return self.aliases.get(alias, self.strategy) if self.aliases else self.strategy


_OPTIONS: Mapping[str, Option] = MappingProxyType(
    {
        "strategy": word(NAMES, NAMES[0]),
        "dry_run": word((_NONE, *NAMES), _NONE),
        "aliases": Option(lambda value: value if isinstance(value, dict) else None, "aliases with a strategy each", {}),
    }
)


def read_balancing(document: Document, value: Any) -> Balancing:
    """The policy that the section says. Faults go to the document."""
    options = read_options(document, value, "balancing", _OPTIONS)
    aliases: dict[str, str] = options["aliases"]
    if len(aliases) > _MOST_ALIASES:
        document.fault("balancing.aliases", f"expected at most {_MOST_ALIASES} aliases")
    for alias, strategy in aliases.items():
        if not is_alias(alias) or strategy not in NAMES:
            document.fault(f"balancing.aliases.{alias}", f"expected an alias, and one of {', '.join(NAMES)}")
    dry_run = options["dry_run"]
    return Balancing(options["strategy"], None if dry_run == _NONE else dry_run, MappingProxyType(dict(aliases)))
