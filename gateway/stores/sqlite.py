"""The embedded state store: one SQLite file, shared by every process of one host that opens it.

SQLite calls block, so one worker thread owns the connection and the event loop only awaits it. Write-ahead logging lets
readers go on while another process writes. ``synchronous=NORMAL`` keeps the file sound through a crash of the process;
a power failure may lose the last commits (not the file), a key revoked in the last moments among them.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Self, TypeVar

from gateway.model import AliasTable, EngineOrder, EngineOrders, Instance, Revision, Target
from gateway.stores import alias_queries, audit_queries, engine_queries, instance_queries, key_queries, queries
from gateway.stores.engine_standing import Decide
from gateway.stores.interfaces import AuditEntry, FoundKey, KeyRecord, KeySecret, StoreUnavailable, Versions
from gateway.stores.schema import APPLICATION_ID, MIGRATIONS
from gateway.stores.trail import Change

T = TypeVar("T")

# Primary result codes of SQLite and what an operator can do about them. https://www.sqlite.org/rescode.html
_DAMAGED = "is damaged or is not a SQLite database. Nothing was changed: restore a copy, or move the file away"
_LOCKED = "is locked by another process. Try again; look for a stuck process if it stays so"
_REASONS = MappingProxyType(
    {
        sqlite3.SQLITE_BUSY: _LOCKED,
        sqlite3.SQLITE_LOCKED: _LOCKED,
        sqlite3.SQLITE_FULL: "cannot grow: the disk is full. Nothing was changed; free some space",
        sqlite3.SQLITE_IOERR: "cannot be read or written: the disk reports an error or has no space left",
        sqlite3.SQLITE_CORRUPT: _DAMAGED,
        sqlite3.SQLITE_NOTADB: _DAMAGED,
        sqlite3.SQLITE_READONLY: "cannot be written: check the permissions of the file and its folder, and the mount",
        sqlite3.SQLITE_PERM: "cannot be opened: check the permissions of the file and its folder",
        sqlite3.SQLITE_CONSTRAINT: "refuses the write by a rule of its own. Nothing was changed",
        sqlite3.SQLITE_CANTOPEN: "cannot be opened: check that its folder exists and may be written",
    }
)


class SqliteStore:
    """``StateStore`` over one file. Make it with ``open``; ``close`` releases the file and the thread."""

    def __init__(self, path: Path, connection: sqlite3.Connection, worker: ThreadPoolExecutor) -> None:
        self._path = path
        self._connection = connection
        self._worker = worker
        self._identity = _identity(path)
        self._closed = False

    @classmethod
    async def open(cls, path: Path, *, busy_timeout: float = 2.0) -> Self:
        """Open or create the file. ``busy_timeout`` is how many seconds a call waits for another process's lock.

        Raises ``StoreUnavailable`` when it cannot be opened, is damaged, belongs to something else or to a newer
        version; such a file is left as it is.
        """
        worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="gateway-store")
        try:
            connection = await asyncio.get_running_loop().run_in_executor(worker, _open, path, busy_timeout)
            return cls(path, connection, worker)
        except BaseException:
            worker.shutdown(wait=False)
            raise

    async def close(self) -> None:
        """Release the file and the thread. Idempotent; calls under way finish first."""
        if not self._closed:
            self._closed = True
            await asyncio.get_running_loop().run_in_executor(self._worker, self._connection.close)
            self._worker.shutdown(wait=False)

    async def versions(self) -> Versions:
        """All counters, cheaply."""
        return await self._run(queries.versions)

    async def add_key(self, digest: bytes, record: KeyRecord, *, author: str) -> None:
        """Store a key under the keyed hash of its text; ``Conflict`` as the interface says."""
        await self._write(lambda db: key_queries.add_key(db, digest, record, author))

    async def rotate_key(
        self, key_id: str, digest: bytes, secret: KeySecret, *, overlap_until: float, author: str
    ) -> KeyRecord:
        """Give a key another secret. Raises ``NotFound``, and ``Conflict`` as the interface says."""
        return await self._write(
            lambda db: key_queries.rotate_key(db, key_id, digest, secret, overlap_until=overlap_until, author=author)
        )

    async def find_key(self, digest: bytes) -> FoundKey | None:
        """The key with a secret of that keyed hash, live or not."""
        return await self._run(lambda db: key_queries.find_key(db, digest))

    async def get_key(self, key_id: str) -> KeyRecord:
        """A key by id or by name. Raises ``NotFound``."""
        return await self._run(lambda db: key_queries.named_key(db, key_id))

    async def list_keys(self) -> Sequence[KeyRecord]:
        """All keys, oldest first."""
        return await self._run(key_queries.all_keys)

    async def revoke_key(self, key_id: str, *, at: float, author: str) -> KeyRecord:
        """End a key by id or name; ending an ended one changes nothing. Raises ``NotFound``."""
        return await self._write(lambda db: key_queries.revoke_key(db, key_id, at, author))

    async def alias_table(self) -> AliasTable:
        """All current revisions and the generation, read in one transaction."""
        return await self._run(alias_queries.alias_table)

    async def assign_alias(
        self,
        alias: str,
        targets: Sequence[Target],
        *,
        author: str,
        at: float,
        note: str = "",
        source: str = "api",
        expect_revision: int | None = None,
        canary_of: int | None = None,
    ) -> Revision:
        """Append a revision and make it current; ``Conflict`` as the interface says."""
        wanted = Revision(alias, 0, tuple(targets), author, at, note, source, canary_of)
        return await self._write(lambda db: alias_queries.assign_alias(db, wanted, expect_revision))

    async def delete_alias(
        self, alias: str, *, author: str, at: float, note: str = "", expect_revision: int | None = None
    ) -> Revision:
        """Take an alias out of the table. Raises ``NotFound``, and ``Conflict`` as the interface says."""
        return await self._write(
            lambda db: alias_queries.delete_alias(db, alias, author=author, at=at, note=note, expect=expect_revision)
        )

    async def alias_revision(self, alias: str, number: int) -> Revision:
        """Any revision, also of a deleted alias. Raises ``NotFound``."""
        return await self._run(lambda db: alias_queries.revision(db, alias, number))

    async def note_uses(self, uses: Mapping[tuple[str, int], float]) -> None:
        """When revisions last served; the latest known is kept."""
        if uses:
            await self._write(lambda db: alias_queries.note_uses(db, uses))

    async def alias_uses(self, alias: str) -> Mapping[int, float]:
        """When each revision of an alias last served."""
        return await self._run(lambda db: alias_queries.uses(db, alias))

    async def alias_history(self, alias: str) -> Sequence[Revision]:
        """All revisions, oldest first. Raises ``NotFound``."""
        return await self._run(lambda db: alias_queries.history(db, alias))

    async def engine_orders(self) -> EngineOrders:
        """All orders about engines and their generation, read in one transaction."""
        return await self._run(engine_queries.engine_orders)

    async def add_engine(
        self, url: str, *, labels: Mapping[str, str], author: str, at: float, note: str = ""
    ) -> EngineOrder:
        """Make an engine part of the fleet; ``Conflict`` as the interface says."""
        wanted = EngineOrder(url, added=True, labels=MappingProxyType(dict(labels)), author=author, at=at, note=note)
        return await self._order(url, lambda now: now.added(wanted))

    async def remove_engine(self, url: str, *, author: str, at: float, note: str = "") -> EngineOrder:
        """Take back that an engine was added, and a drain with it. Raises ``NotFound``."""
        return await self._order(url, lambda now: now.removed(author=author, at=at, note=note))

    async def drain_engine(
        self, url: str, *, draining: bool, author: str, at: float, note: str = ""
    ) -> tuple[EngineOrder, bool]:
        """Drain an engine or lift its drain; ``Conflict`` as the interface says."""
        return await self._order(url, lambda now: now.drained(draining=draining, author=author, at=at, note=note))

    async def beat(self, instance: Instance) -> None:
        """Register an instance, or tell that it still lives."""
        await self._write(lambda db: instance_queries.beat(db, instance))

    async def instances(self) -> Sequence[Instance]:
        """Instances heard of within an hour, oldest first."""
        return await self._run(instance_queries.instances)

    async def forget_instance(self, instance_id: str) -> None:
        """An instance has ended properly."""
        await self._write(lambda db: instance_queries.forget(db, instance_id))

    async def note(self, *, at: float, author: str, verb: str, subject: str, detail: Mapping[str, object]) -> None:
        """Append a line to the audit trail alone."""
        change = Change(at, author, verb, subject, detail)
        await self._write(lambda db: audit_queries.append(db, change))

    async def audit(self, *, after: int = 0, limit: int = 1_000) -> Sequence[AuditEntry]:
        """Lines of the audit trail with a number above ``after``, oldest first."""
        return await self._run(lambda db: audit_queries.lines(db, after, limit))

    async def audit_head(self) -> tuple[int, bytes]:
        """Number and hash of the newest line, as kept apart from the lines."""
        return await self._run(audit_queries.head)

    async def pepper_mark(self, version: int, mark: bytes) -> bytes:
        """The mark kept for a version of the pepper. Only the first of a version is written."""
        kept = await self._run(lambda db: audit_queries.mark_of(db, version))
        if kept is not None:
            return kept
        return await self._write(lambda db: audit_queries.keep_mark(db, version, mark))

    async def _order(self, url: str, decide: Decide[T]) -> T:
        return await self._write(lambda db: engine_queries.change(db, url, decide))

    async def _write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await self._run(lambda db: queries.in_transaction(db, "IMMEDIATE", work))

    async def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._closed:
            raise StoreUnavailable(f"state store {self._path} is closed")
        return await asyncio.get_running_loop().run_in_executor(self._worker, self._guarded, work)

    def _guarded(self, work: Callable[[sqlite3.Connection], T]) -> T:
        # SQLite goes on happily with a file that was deleted or replaced: writes would vanish and no revocation made
        # by another process would ever arrive.
        if _identity(self._path) != self._identity:
            raise StoreUnavailable(
                f"state store {self._path} was removed or replaced while in use. Restart the gateway"
            )
        with _translated(self._path):
            return work(self._connection)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    """Turn what SQLite and the system raise into ``StoreUnavailable``, by table."""
    try:
        yield
    except sqlite3.Error as error:
        # The low byte is the primary code; the rest tells variants apart.
        reason = _REASONS.get(getattr(error, "sqlite_errorcode", 0) & 0xFF, f"failed ({type(error).__name__})")
        raise StoreUnavailable(f"state store {path} {reason}.") from error
    except OSError as error:
        raise StoreUnavailable(f"state store {path} cannot be opened: {error.strerror}.") from error


def _open(path: Path, busy_timeout: float) -> sqlite3.Connection:
    with _translated(path):
        _prepare_file(path)
        connection = sqlite3.connect(path, timeout=busy_timeout, isolation_level=None, check_same_thread=False)
        try:
            _check_owner(connection, path)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            queries.in_transaction(connection, "IMMEDIATE", lambda db: _migrate(db, path))
        except BaseException:
            connection.close()
            raise
        return connection


def _prepare_file(path: Path) -> None:
    """Create the file (0600) and the folders that are missing (0700). SQLite gives its side files the same mode."""
    for folder in reversed(path.parents):
        if not folder.exists():
            folder.mkdir(mode=0o700, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    if path.stat().st_mode & 0o022:
        raise StoreUnavailable(f"state store {path} may be changed by other users. Run: chmod 600 {path}")


def _check_owner(db: sqlite3.Connection, path: Path) -> int:
    """The file's schema version. Raises ``StoreUnavailable`` for a file that is not ours or is newer than this code."""
    version = int(queries.scalar(db, "PRAGMA user_version"))
    application = int(queries.scalar(db, "PRAGMA application_id"))
    empty = version == 0 and application == 0 and int(queries.scalar(db, "SELECT count(*) FROM sqlite_schema")) == 0
    if not empty and application != APPLICATION_ID:
        raise StoreUnavailable(f"state store {path} is a database of another program. Choose another file.")
    if version > len(MIGRATIONS):
        raise StoreUnavailable(
            f"state store {path} was written by a newer gateway (schema {version}; this one knows {len(MIGRATIONS)}). "
            "Nothing was changed: upgrade this gateway, or restore a copy made before the upgrade."
        )
    return version


def _migrate(db: sqlite3.Connection, path: Path) -> None:
    # The version is read again under the write lock: another process may have done the work meanwhile.
    for step in MIGRATIONS[_check_owner(db, path) :]:
        for part in step:
            if callable(part):
                part(db)
            else:
                db.execute(part)
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
