"""``guards.yaml``: what a request may hold and which engines may serve it, read once into rules that judge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gateway.model import Endpoint
from gateway.policy.content import ContentLimits
from gateway.policy.document import Document, Fault, Option, PolicyFault, read_options, size, whole, word
from gateway.policy.endpoints import EndpointGuard, EndpointReader
from gateway.policy.engines import Floor, read_floors
from gateway.policy.kinds import Bounds
from gateway.policy.masks import Mask, Masks, read_masks
from gateway.policy.schemas import SchemaLimits

_MIB = 1 << 20
_SECTIONS: Mapping[str, Mapping[str, Option]] = MappingProxyType(
    {
        "bodies": {
            "json": size(1, 256 * _MIB, 8 * _MIB),
            "form": size(1, 1024 * _MIB, 26 * _MIB),
            "depth": whole(2, 64, 16),
            "parts": whole(1, 256, 32),
            "field": size(1, _MIB, 64 << 10),
        },
        "headers": {"bytes": size(256, _MIB, 32 << 10), "count": whole(1, 1024, 64)},
        "content": {"messages": whole(1, 1 << 20, 2048), "parts": whole(1, 1 << 20, 256)},
        "media": {
            "images": word(("none", "data"), "none"),
            "count": whole(1, 256, 4),
            "bytes": size(1, 256 * _MIB, 4 * _MIB),
            "pixels": whole(1, 1 << 31, 16_000_000),
        },
        "schemas": {
            "depth": whole(1, 64, 8),
            "bytes": size(1, _MIB, 16 << 10),
            "properties": whole(1, 10_000, 200),
            "repeats": whole(0, 1 << 31, 10_000),
            "tools": whole(1, 1024, 128),
            "distinct_per_hour": whole(1, 1 << 20, 200),
        },
    }
)
_TOP = (*_SECTIONS, "isolation", "groups", "endpoints", "aliases", "engines")
_ISOLATION = word(("tenant", "none"), "tenant")


@dataclass(frozen=True, slots=True)
class Guards:
    """All of ``guards.yaml``. Sizes are bytes; ``depth`` counts containers, the body's own object included.

    ``schemas_per_hour`` is how many different schemas a tenant may use; ``floors`` are the oldest engines, by name.
    """

    json_bytes: int
    form_bytes: int
    depth: int
    form_parts: int
    field_bytes: int
    header_bytes: int
    header_count: int
    isolation: str
    schemas_per_hour: int
    endpoints: Mapping[Endpoint, EndpointGuard]
    masks: Masks
    floors: Mapping[str, Floor]

    def mask(self, alias: str) -> Mask | None:
        """The narrower rules of ``alias`` (its bare name, without a revision), if it has any."""
        return self.masks.of(alias)


def load_guards(path: Path) -> Guards:
    """The guards of the file at ``path``. Raises ``PolicyFault`` with every fault, or ``OSError``."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise PolicyFault(str(path), [Fault("file", 0, "expected UTF-8")]) from None
    return parse_guards(text, str(path))


def parse_guards(text: str, source: str) -> Guards:
    """The guards that ``text`` says; ``source`` names it in faults. Raises ``PolicyFault`` with every fault."""
    document = Document(text, source)
    top = document.mapping(document.tree, "", _TOP)
    sections = {name: read_options(document, top.get(name, {}), name, spec) for name, spec in _SECTIONS.items()}
    isolation = read_options(
        document, {k: v for k, v in top.items() if k == "isolation"}, "", {"isolation": _ISOLATION}
    )
    reader = EndpointReader(document, _bounds(sections), document.mapping(top.get("groups", {}), "groups"))
    endpoints = reader.endpoints(top.get("endpoints"))
    masks = read_masks(document, top.get("aliases", []), frozenset().union(*(e.rules for e in endpoints.values())))
    floors = read_floors(document, top.get("engines", {}))
    document.finish()
    bodies, headers = sections["bodies"], sections["headers"]
    return Guards(
        json_bytes=bodies["json"],
        form_bytes=bodies["form"],
        depth=bodies["depth"],
        form_parts=bodies["parts"],
        field_bytes=bodies["field"],
        header_bytes=headers["bytes"],
        header_count=headers["count"],
        isolation=isolation["isolation"],
        schemas_per_hour=sections["schemas"]["distinct_per_hour"],
        endpoints=MappingProxyType(endpoints),
        masks=masks,
        floors=floors,
    )


def _bounds(sections: Mapping[str, Mapping[str, Any]]) -> Bounds:
    held, media, schemas = sections["content"], sections["media"], sections["schemas"]
    return Bounds(
        ContentLimits(
            held["messages"], held["parts"], media["images"], media["count"], media["bytes"], media["pixels"]
        ),
        SchemaLimits(schemas["depth"], schemas["bytes"], schemas["properties"], schemas["repeats"], schemas["tools"]),
    )
