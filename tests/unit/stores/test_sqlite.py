"""What is particular to the SQLite file: permissions, damage, other processes, a full disk, the audit trail."""

from __future__ import annotations

import asyncio
import hashlib
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

from gateway.model import EngineOrders, Target
from gateway.stores import audit_queries
from gateway.stores.chain import first_break
from gateway.stores.interfaces import FoundKey, KeyRecord, KeySecret, StoreUnavailable, Versions
from gateway.stores.schema import APPLICATION_ID, MIGRATIONS
from gateway.stores.sqlite import SqliteStore

NOBODY = 65_534
TABLES = {
    *("counters", "keys", "key_secrets", "pepper_marks", "audit", "audit_head"),
    *("revisions", "aliases", "alias_deletions", "alias_uses", "instances", "engine_orders"),
}
RELEASED = (
    "62562b37b1ece0c73debecef08edc45986a7cc8281519df2b50c5cc9ae0c103d",
    "bae27d5e79a1d770d7e5442b418d1599c3b32a258d37a281d48857be8bc4eaa5",
    "42d8b02abb443fc5b64e95d06e09685acb5a68c6993c5cb0dbe0e4a2c7e82cdd",
)
"""SHA-256 of the SQL of each released step of the schema."""


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
    assert query(path, "PRAGMA user_version") == [(len(MIGRATIONS),)]
    tables = query(path, "SELECT name, strict FROM pragma_table_list WHERE schema = 'main' AND name NOT LIKE 'sqlite%'")
    assert {strict for _, strict in tables} == {1}
    assert {name for name, _ in tables} == TABLES


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM audit",
        "UPDATE audit SET author = 'nobody'",
        "REPLACE INTO audit SELECT number, at, 'nobody', verb, subject, detail, previous, hash FROM audit",
        "INSERT INTO audit SELECT 9, at, author, verb, subject, detail, hash, hash FROM audit",
        "INSERT INTO audit SELECT 2, at, author, verb, subject, detail, previous, hash FROM audit",
        "DELETE FROM audit_head",
        "UPDATE audit_head SET hash = zeroblob(32)",
        "UPDATE audit_head SET number = 0",
    ],
)
def test_the_audit_trail_cannot_be_edited(tmp_path: Path, sql: str) -> None:
    path = tmp_path / "state.db"
    run(path, write)
    before = query(path, "SELECT * FROM audit, audit_head")
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        query(path, sql)
    assert query(path, "SELECT * FROM audit, audit_head") == before


def test_of_two_first_marks_of_a_pepper_the_one_written_first_stays(tmp_path: Path) -> None:
    path = tmp_path / "state.db"

    async def body(store: SqliteStore) -> None:
        await store.pepper_mark(1, b"first")
        other = sqlite3.connect(path, isolation_level=None)
        # As when both had looked before either wrote.
        assert audit_queries.keep_mark(other, 1, b"second") == b"first"
        other.close()
        assert await store.pepper_mark(1, b"third") == b"first"

    run(path, body)


def test_an_edit_behind_the_triggers_is_found(tmp_path: Path) -> None:
    path = tmp_path / "state.db"

    async def three(store: SqliteStore) -> None:
        for number in range(3):
            await store.note(at=float(number), author="ann", verb="test", subject=str(number), detail={})

    async def trail(store: SqliteStore) -> tuple[int | None, int, int]:
        lines = await store.audit()
        return first_break(lines), len(lines), (await store.audit_head())[0]

    run(path, three)
    for trigger in ("audit_keeps_rows", "audit_keeps_values"):
        query(path, f"DROP TRIGGER {trigger}")
    query(path, "UPDATE audit SET author = 'nobody' WHERE number = 2")
    assert run(path, trail) == (2, 3, 3)
    query(path, "UPDATE audit SET author = 'ann' WHERE number = 2")
    query(path, "DELETE FROM audit WHERE number = 3")
    assert run(path, trail) == (None, 2, 3)


def key(key_id: str = "AAAAAAAA", name: str = "app", **more: Any) -> KeyRecord:
    return KeyRecord(key_id, name, "t1", ("user",), ("*",), 100.0, secrets=(KeySecret(100.0),), **more)


WRITES: dict[str, Callable[[SqliteStore], Awaitable[object]]] = {
    "create": lambda store: store.add_key(b"3" * 32, key("CCCCCCCC", "new"), author="ann"),
    "rotate": lambda store: store.rotate_key("app", b"4" * 32, KeySecret(1.0), overlap_until=2.0, author="ann"),
    "revoke": lambda store: store.revoke_key("app", at=150.0, author="ann"),
    "assign": write,
    "delete": lambda store: store.delete_alias("chat", author="ann", at=2.0),
    "add": lambda store: store.add_engine("http://b:1", labels={"gpu": "h100"}, author="ann", at=2.0),
    "remove": lambda store: store.remove_engine("http://a:1", author="ann", at=2.0),
    "drain": lambda store: store.drain_engine("http://b:1", draining=True, author="ann", at=2.0),
    "undrain": lambda store: store.drain_engine("http://a:1", draining=False, author="ann", at=2.0),
    "note": lambda store: store.note(at=1.0, author="ann", verb="test", subject="x", detail={}),
}


@pytest.mark.parametrize("kind", WRITES)
def test_what_cannot_be_audited_does_not_happen(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "state.db"

    async def state(store: SqliteStore) -> tuple[object, ...]:
        return (
            await store.versions(),
            await store.list_keys(),
            await store.alias_table(),
            await store.engine_orders(),
            await store.audit(),
            await store.audit_head(),
        )

    async def body(store: SqliteStore) -> None:
        await store.add_key(b"1" * 32, key(), author="ann")
        await write(store)
        await store.add_engine("http://a:1", labels={}, author="ann", at=1.0)
        await store.drain_engine("http://a:1", draining=True, author="ann", at=1.0)
        before = await state(store)
        query(path, "CREATE TRIGGER no_room BEFORE INSERT ON audit BEGIN SELECT RAISE(ABORT, 'no room'); END")
        with pytest.raises(StoreUnavailable, match="refuses the write"):
            await WRITES[kind](store)
        assert await state(store) == before
        query(path, "DROP TRIGGER no_room")
        await WRITES[kind](store)
        assert await state(store) != before

    run(path, body)


def test_released_steps_of_the_schema_are_never_edited() -> None:
    steps = [tuple(part for part in step if isinstance(part, str)) for step in MIGRATIONS]
    made = [hashlib.sha256(repr(step).encode()).hexdigest() for step in steps]
    assert tuple(made[: len(RELEASED)]) == RELEASED


def second_schema(path: Path) -> None:
    """The same file as the second release made of it."""
    first_schema(path)
    step_on(path, 2)


def third_schema(path: Path) -> None:
    """The same file as the third release made of it."""
    second_schema(path)
    step_on(path, 3)


def step_on(path: Path, version: int) -> None:
    db = sqlite3.connect(path)
    with db:
        for part in MIGRATIONS[version - 1]:
            if callable(part):
                part(db)
            else:
                db.execute(part)
        db.execute(f"PRAGMA user_version = {version}")
    db.close()


def first_schema(path: Path) -> None:
    """A file as the first release left it: three keys, two revisions, their audit rows."""
    db = sqlite3.connect(path)
    with db:
        for statement in MIGRATIONS[0]:
            assert isinstance(statement, str)
            db.execute(statement)
        for row in (
            ("AAAAAAAA", "app", "t1", '["user"]', '["chat-*"]', 100.0, None, None, 1, b"1" * 32),
            ("BBBBBBBB", "old", "t1", "[]", '["*"]', 50.0, 900.0, 150.5, 1, b"2" * 32),
            ("CCCCCCCC", "new", "t2", "[]", '["*"]', 100.0, 900.0, None, 3, b"3" * 32),
        ):
            db.execute(f"INSERT INTO keys VALUES ({', '.join('?' * 10)})", row)
        for number in (1, 2):
            row = ("chat", number, f'[["m{number}",1]]', "ann", float(number), "why", "cli")
            db.execute("INSERT INTO revisions VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        db.execute("INSERT INTO aliases VALUES ('chat', 2)")
        db.execute("UPDATE counters SET value = 4 WHERE name = 'keys'")
        db.execute("UPDATE counters SET value = 2 WHERE name = 'aliases'")
        audit = "INSERT INTO audit (id, at, author, verb, subject, detail) VALUES (?, ?, ?, ?, ?, ?)"
        for number, verb in ((1, "key.create"), (2, "alias.set"), (4, "key.revoke")):
            db.execute(audit, (number, number * 1.0, "ann", verb, f"é{number}", f'{{"n": {number}}}'))
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute("PRAGMA user_version = 1")
    db.close()
    path.chmod(0o600)


@pytest.mark.parametrize("older", [first_schema, second_schema, third_schema])
def test_a_file_of_an_older_schema_keeps_its_keys_aliases_and_trail(
    tmp_path: Path, older: Callable[[Path], None]
) -> None:
    path = tmp_path / "state.db"
    older(path)
    app = KeyRecord("AAAAAAAA", "app", "t1", ("user",), ("chat-*",), 100.0, secrets=(KeySecret(100.0),))
    old = KeyRecord("BBBBBBBB", "old", "t1", (), ("*",), 50.0, 900.0, 150.5, secrets=(KeySecret(50.0, 150.5),))
    new = KeyRecord("CCCCCCCC", "new", "t2", (), ("*",), 100.0, 900.0, secrets=(KeySecret(100.0, None, 3),))

    async def body(store: SqliteStore) -> None:
        assert list(await store.list_keys()) == [old, app, new]
        for digest, record in ((b"1" * 32, app), (b"2" * 32, old), (b"3" * 32, new)):
            assert await store.find_key(digest) == FoundKey(record, record.secrets[0])
        assert [revision.number for revision in await store.alias_history("chat")] == [1, 2]
        assert (await store.alias_table()).current["chat"].targets == (Target("m2"),)
        assert (await store.alias_revision("chat", 1)).canary_of is None
        assert await store.versions() == Versions(keys=4, aliases=2, fleet=0)
        assert await store.engine_orders() == EngineOrders()
        await store.rotate_key("app", b"4" * 32, KeySecret(200.0), overlap_until=300.0, author="bob")
        lines = await store.audit()
        assert first_break(lines) is None
        assert await store.audit_head() == (4, lines[-1].hash)
        assert [(line.number, line.at, line.verb, line.subject, line.detail) for line in lines[:3]] == [
            (1, 1.0, "key.create", "é1", '{"n": 1}'),
            (2, 2.0, "alias.set", "é2", '{"n": 2}'),
            (3, 4.0, "key.revoke", "é4", '{"n": 4}'),
        ]
        await store.delete_alias("chat", author="bob", at=5.0)
        assert (await store.assign_alias("chat", [Target("m3")], author="bob", at=6.0)).number == 3
        made = await store.add_engine("http://a:1", labels={"gpu": "h100"}, author="bob", at=7.0)
        assert await store.engine_orders() == EngineOrders(1, {"http://a:1": made})
        assert first_break(await store.audit()) is None

    run(path, body)
    assert query(path, "PRAGMA user_version") == [(4,)]
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        query(path, "DELETE FROM audit")
    made = tmp_path / "made.db"
    run(made, write)
    schema = "SELECT type, name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite%' ORDER BY name"
    assert query(path, schema) == query(made, schema)


def test_a_migration_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    first_schema(path)
    query(path, "CREATE TABLE audit_head (theirs)")
    with pytest.raises(StoreUnavailable):
        run(path, write)
    assert query(path, "PRAGMA user_version") == [(1,)]
    assert query(path, "SELECT count(*) FROM keys WHERE digest IS NOT NULL") == [(3,)]
    query(path, "DROP TABLE audit_head")
    run(path, write)


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


@pytest.mark.parametrize("table", ["aliases", "revisions", "audit", "alias_deletions"])
def test_a_write_of_an_alias_into_a_damaged_file_is_refused_whole(tmp_path: Path, table: str) -> None:
    path = tmp_path / "state.db"

    async def fill(store: SqliteStore) -> None:
        for number in range(3):
            await store.assign_alias(f"alias-{number}", [Target("m")], author="ann", at=1.0)
        await store.delete_alias("alias-0", author="ann", at=2.0)

    run(path, fill)
    ((size,),), ((page,),) = (
        query(path, "PRAGMA page_size"),
        query(path, f"SELECT rootpage FROM sqlite_schema WHERE name = '{table}'"),
    )
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)
    before = path.read_bytes()

    async def body(store: SqliteStore) -> None:
        for call in (
            store.assign_alias("alias-1", [Target("n")], author="eve", at=3.0),
            store.delete_alias("alias-1", author="eve", at=3.0),
        ):
            with pytest.raises(StoreUnavailable, match=r"is damaged .*Nothing was changed: restore a copy"):
                await call
        assert (await store.versions()).aliases == (await store.audit_head())[0] == 4

    run(path, body)
    # Opening writes the header of the first page anew: the count of changes and the like.
    assert path.read_bytes()[size:] == before[size:]


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
    with pytest.raises(StoreUnavailable, match=r"newer gateway \(schema 7; this one knows 4\).*upgrade"):
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
            with pytest.raises(StoreUnavailable, match=r"full|no space|disk"):
                await store.delete_alias("chat", author="ann", at=2.0, note="m" * 100_000)
            with pytest.raises(StoreUnavailable, match=r"full|no space|disk"):
                await store.note_uses({(f"alias-{number}", 1): 1.0 for number in range(5_000)})
            assert (await store.versions()).aliases == 1
            assert dict(await store.alias_uses("alias-0")) == {}
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        await write(store)
        assert set((await store.alias_table()).current) == {"chat"}
        assert first_break(await store.audit()) is None

    run(path, body)


def test_a_file_that_may_not_grow_refuses_the_write_of_an_alias_in_words(tmp_path: Path) -> None:
    path = tmp_path / "state.db"

    async def body(store: SqliteStore) -> None:
        await write(store)
        before = await store.alias_table(), await store.audit_head()
        pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
        store._connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreUnavailable, match=r"the disk is full\. Nothing was changed; free some space"):
            await store.assign_alias("big", [Target("m" * 100_000)], author="ann", at=2.0)
        with pytest.raises(StoreUnavailable, match="the disk is full"):
            await store.delete_alias("chat", author="ann", at=2.0, note="m" * 100_000)
        assert (await store.alias_table(), await store.audit_head()) == before

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
        assert first_break(await store.audit()) is None

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
