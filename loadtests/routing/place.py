"""What a target is given and what it gives: values that every kind of target needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class Kind(StrEnum):
    """Whose choice it is."""

    OURS = "ours"
    PEER = "peer"
    ORACLE = "oracle"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a target is put: the engines' URLs, a folder to write to, and the cores that it may use.

    ``oracle`` is the port at which the engines' own oracle listens, ``instances`` how many of the target are wanted.
    """

    engines: Sequence[str]
    folder: Path
    cores: frozenset[int]
    oracle: int = 0
    instances: int = 1


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An instance that serves. ``key`` is empty where none is asked for, ``pid`` ``None`` where it is no process."""

    port: int
    key: str
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """One thing to compare. ``open`` returns when all engines may get requests, and ends it at its exit.

    It gives the instances that were wanted, or a single one where more make no difference. It raises `StartFailed` when
    it cannot, and at its exit when the target has ended meanwhile.
    """

    name: str
    summary: str
    open: Callable[[Place], AbstractContextManager[Sequence[Endpoint]]]
    kind: Kind = Kind.OURS
