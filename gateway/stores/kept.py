"""The last known alias table on disk: what an instance serves by when it starts while its store is gone."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import orjson

from gateway.model import AliasTable, Revision, Target

FILE = "aliases.json"
_FORMAT = 1
_MAX_BYTES = 64 << 20


def keep_table(folder: Path, table: AliasTable) -> None:
    """Write the table whole or not at all, mode 0600. It blocks. Raises ``OSError``."""
    rows = [_row(revision) for revision in table.current.values()]
    data = orjson.dumps({"format": _FORMAT, "generation": table.generation, "aliases": rows})
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = folder / f".{FILE}.{os.getpid()}"
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(folder / FILE)
    finally:
        draft.unlink(missing_ok=True)


def kept_table(folder: Path) -> AliasTable | None:
    """The table that was kept last; ``None``: none was, or what is there is no whole table. It blocks."""
    try:
        with (folder / FILE).open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
        return _table(orjson.loads(data)) if len(data) <= _MAX_BYTES else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _row(revision: Revision) -> dict[str, object]:
    return {
        "alias": revision.alias,
        "number": revision.number,
        "targets": [[target.model, target.weight] for target in revision.targets],
        "author": revision.author,
        "created_at": revision.created_at,
        "note": revision.note,
        "source": revision.source,
        "canary_of": revision.canary_of,
    }


def _table(held: Mapping[str, Any]) -> AliasTable | None:
    if held["format"] != _FORMAT:
        return None
    revisions = [
        Revision(**{**row, "targets": tuple(Target(str(model), int(weight)) for model, weight in row["targets"])})
        for row in held["aliases"]
    ]
    if not all(revision.targets and isinstance(revision.alias, str) for revision in revisions):
        return None
    current = {revision.alias: revision for revision in revisions}
    return AliasTable(int(held["generation"]), MappingProxyType(current))
