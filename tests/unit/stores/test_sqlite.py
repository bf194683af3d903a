"""What is particular to the SQLite file: permissions, damage, other processes, a full disk, the audit trail."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.model import Target
from gateway.stores.interfaces import KeyRecord, StoreUnavailable
from gateway.stores.sqlite import SqliteStore

NOBODY = 65_534


def run(path: Path, body: Callable[[SqliteStore], Awaitable[Any]], **options: float) -> Any:
    async def with_store() -> Any:
        store = await SqliteStore.open(path, **options)
        try:
            return await body(store)
        finally:
            await store.close()

    return asyncio.run(with_store())


async def write(store: SqliteStore) -> None:
    await store.assign_alias("chat", [Target("m")], author="ann", at=1.0, note="why")


def query(path: Path, sql: str) -> list[tuple[Any, ...]]:
    db = sqlite3.connect(path)
    try:
        with db:
            return db.execute(sql).fetchall()
    finally:
        db.close()


@pytest.fixture
def sealed() -> Iterator[Path]:
    """A folder in which nothing can be made by this process, which gives up root's powers for the time."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o555)
        root = os.geteuid() == 0
        if root:
            os.seteuid(NOBODY)
        try:
            yield Path(folder)
        finally:
            if root:
                os.seteuid(0)
            os.chmod(folder, 0o700)


def test_file_and_folders_are_for_the_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "state.db"

    async def body(store: SqliteStore) -> dict[str, int]:
        await write(store)
        return {item.name: stat.S_IMODE(item.stat().st_mode) for item in (path.parent, *path.parent.iterdir())}

    modes = run(path, body)
    assert modes.pop("b") == 0o700
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700
    assert set(modes) == {"state.db", "state.db-wal", "state.db-shm"}
    assert set(modes.values()) == {0o600}


def test_the_file_is_as_documented(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    run(path, write)
    assert query(path, "PRAGMA journal_mode") == [("wal",)]
    assert query(path, "PRAGMA user_version") == [(1,)]
    tables = query(path, "SELECT name, strict FROM pragma_table_list WHERE schema = 'main' AND name NOT LIKE 'sqlite%'")
    assert {strict for _, strict in tables} == {1}
    assert {name for name, _ in tables} == {"counters", "keys", "revisions", "aliases", "audit"}


def test_every_write_leaves_an_audit_row_without_secrets(tmp_path: Path) -> None:
    path = tmp_path / "state.db"

    async def body(store: SqliteStore) -> None:
        record = KeyRecord("AAAAAAAA", "app", "t1", ("user",), ("*",), 100.0, expires_at=200.0)
        await store.add_key(b"\xab\xcd" * 16, record, author="ann")
        await write(store)
        await store.revoke_key("app", at=150.0, author="bob")
        await store.revoke_key("app", at=151.0, author="bob")

    run(path, body)
    rows = query(path, "SELECT at, author, verb, subject, detail FROM audit ORDER BY id")
    assert [row[:4] for row in rows] == [
        (100.0, "ann", "key.create", "AAAAAAAA"),
        (1.0, "ann", "alias.set", "chat"),
        (150.0, "bob", "key.revoke", "AAAAAAAA"),
    ]
    assert [json.loads(row[4]) for row in rows] == [
        {"name": "app", "tenant": "t1", "roles": ["user"], "aliases": ["*"], "expires_at": 200.0},
        {"revision": 1, "from": 0, "targets": [["m", 1]], "note": "why", "source": "api"},
        {"name": "app"},
    ]


@pytest.mark.parametrize("sql", ["DELETE FROM audit", "UPDATE audit SET author = 'nobody'"])
def test_the_audit_trail_cannot_be_edited(tmp_path: Path, sql: str) -> None:
    path = tmp_path / "state.db"
    run(path, write)
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        query(path, sql)


@pytest.mark.parametrize(
    "content", [b"not a database, but long enough to have a header\n" * 40, b"SQLite format 3\0" + b"\xff" * 4096]
)
def test_a_damaged_file_is_refused_and_kept_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "state.db"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(StoreUnavailable, match=r"state\.db is damaged or is not a SQLite database.*restore"):
        run(path, write)
    assert path.read_bytes() == content
    assert [item.name for item in tmp_path.iterdir()] == ["state.db"]


def test_damage_met_later_is_unavailable_too(tmp_path: Path) -> None:
    path = tmp_path / "state.db"

    async def fill(store: SqliteStore) -> None:
        for number in range(200):
            await store.assign_alias(f"alias-{number}", [Target("m" * 50)], author="ann", at=1.0)

    run(path, fill)
    page = query(path, "PRAGMA page_size")[0][0]
    with path.open("r+b") as file:
        file.seek(page)
        file.write(b"\xff" * (path.stat().st_size - page))
    with pytest.raises(StoreUnavailable, match="damaged"):
        run(path, lambda store: store.alias_table())


def test_another_programs_database_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    query(path, "CREATE TABLE theirs (x)")
    path.chmod(0o600)
    before = path.read_bytes()
    with pytest.raises(StoreUnavailable, match="another program"):
        run(path, write)
    assert path.read_bytes() == before


def test_a_newer_schema_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    run(path, write)
    query(path, "PRAGMA user_version = 7")
    with pytest.raises(StoreUnavailable, match=r"newer gateway \(schema 7; this one knows 1\).*upgrade"):
        run(path, write)
    assert query(path, "PRAGMA user_version") == [(7,)]


def test_a_folder_that_cannot_be_written(sealed: Path) -> None:
    with pytest.raises(StoreUnavailable, match=r"cannot be opened: Permission denied"):
        run(sealed / "state.db", write)
    with pytest.raises(StoreUnavailable, match=r"cannot be opened: Permission denied"):
        run(sealed / "new" / "state.db", write)


def test_a_parent_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    with pytest.raises(StoreUnavailable, match=r"cannot be opened: (Not a directory|File exists)"):
        run(tmp_path / "plain" / "state.db", write)


def test_a_file_that_others_may_change_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    run(path, write)
    path.chmod(0o660)
    with pytest.raises(StoreUnavailable, match="chmod 600"):
        run(path, write)


def test_a_lock_held_by_another_process_ends_a_write_but_not_a_read(tmp_path: Path) -> None:
    path = tmp_path / "state.db"

    async def body(store: SqliteStore) -> None:
        holder = sqlite3.connect(path, isolation_level=None)
        try:
            holder.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreUnavailable, match="locked by another process"):
                await write(store)
            assert (await store.versions()).aliases == 0
        finally:
            holder.close()
        await write(store)
        assert (await store.versions()).aliases == 1

    run(path, body, busy_timeout=0.05)


def test_a_full_disk_ends_a_write_whole_and_reads_go_on(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    async def body(store: SqliteStore) -> None:
        await write(store)
        limit = (tmp_path / "state.db-wal").stat().st_size + 512
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            with pytest.raises(StoreUnavailable, match=r"full|no space|disk"):
                await store.assign_alias("big", [Target("m" * 100_000)], author="ann", at=2.0)
            assert (await store.versions()).aliases == 1
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        await write(store)
        assert set((await store.alias_table()).current) == {"chat"}

    run(path, body)


@pytest.mark.parametrize("replacement", [None, b""], ids=["removed", "replaced"])
def test_a_file_that_is_gone_is_noticed(tmp_path: Path, replacement: bytes | None) -> None:
    path = tmp_path / "state.db"

    async def body(store: SqliteStore) -> None:
        await write(store)
        other = tmp_path / "other"
        path.rename(other)
        if replacement is not None:
            path.write_bytes(replacement)
        for call in (store.versions(), write(store)):
            with pytest.raises(StoreUnavailable, match="removed or replaced"):
                await call

    run(path, body)


WRITER = """
import asyncio, sys
from pathlib import Path
from gateway.model import Target
from gateway.stores.sqlite import SqliteStore

async def main():
    store = await SqliteStore.open(Path(sys.argv[1]), busy_timeout=30.0)
    for _ in range(40):
        await store.assign_alias("chat", [Target(sys.argv[2])], author=sys.argv[2], at=1.0)
    await store.close()

asyncio.run(main())
"""


def test_processes_that_open_and_write_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(path), name], stderr=subprocess.PIPE)
        for name in ("one", "two", "three")
    ]
    for writer in writers:
        _, errors = writer.communicate(timeout=60)
        assert (writer.returncode, errors) == (0, b"")

    async def body(store: SqliteStore) -> None:
        history = await store.alias_history("chat")
        assert [revision.number for revision in history] == list(range(1, 121))
        assert (await store.versions()).aliases == 120

    run(path, body)
    assert query(path, "SELECT author, count(*) FROM audit GROUP BY author ORDER BY author") == [
        ("one", 40),
        ("three", 40),
        ("two", 40),
    ]


def test_a_client_learns_nothing_about_files() -> None:
    fault = StoreUnavailable("state store /secret/path is damaged")
    assert str(fault) == fault.reason == "state store /secret/path is damaged"
    assert (fault.spec.status, fault.spec.code) == (503, "store_unavailable")
    assert "path" not in fault.message
