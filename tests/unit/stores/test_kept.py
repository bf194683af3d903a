"""The table that is kept for a start without the store: whole or none."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from gateway.model import AliasTable, EngineOrder, EngineOrders, Revision, Target
from gateway.stores.kept import FILE, ORDERS_FILE, keep_orders, keep_table, kept_orders, kept_table

TABLE = AliasTable(
    7,
    {
        "a": Revision("a", 3, (Target("m", 95), Target("n", 5)), "ops", 1.5, "why", "canary", canary_of=2),
        "b/c": Revision("b/c", 1, (Target("m"),), "ops", 2.0),
    },
)


def test_what_is_kept_comes_back_and_is_the_owners_alone(tmp_path: Path):
    folder = tmp_path / "new"
    keep_table(folder, TABLE)
    assert kept_table(folder) == TABLE
    assert stat.S_IMODE((folder / FILE).stat().st_mode) == 0o600
    keep_table(folder, AliasTable(8))
    assert kept_table(folder) == AliasTable(8)
    assert [path.name for path in folder.iterdir()] == [FILE]


def test_nothing_kept_is_none(tmp_path: Path):
    assert kept_table(tmp_path) is None
    assert kept_table(tmp_path / "not there") is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-7],
        lambda data: b"[]",
        lambda data: b"null",
        lambda data: data.replace(b'"format":1', b'"format":2'),
        lambda data: data.replace(b'"targets":[["m",1]]', b'"targets":[]'),
        lambda data: data.replace(b'"targets":[["m",1]]', b'"targets":7'),
        lambda data: data.replace(b'"number":1', b'"nonsense":1'),
        lambda data: data.replace(b'"generation":7', b'"generation":"x"'),
        lambda data: b"\xff\xfe" + data,
    ],
)
def test_a_damaged_file_is_no_table(tmp_path: Path, damage):
    keep_table(tmp_path, TABLE)
    whole = (tmp_path / FILE).read_bytes()
    assert damage(whole) != whole
    (tmp_path / FILE).write_bytes(damage(whole))
    assert kept_table(tmp_path) is None


def test_a_folder_that_takes_no_file_is_said(tmp_path: Path):
    (tmp_path / "file").write_text("x")
    with pytest.raises((FileExistsError, NotADirectoryError)):
        keep_table(tmp_path / "file", TABLE)


ORDERS = EngineOrders(
    9,
    {
        "http://127.0.0.1:8001": EngineOrder("http://127.0.0.1:8001", draining=True, author="ops", at=1.5, note="fan"),
        "https://gpu.example:443": EngineOrder("https://gpu.example:443", added=True, labels={"gpu": "a100"}),
    },
)


def test_orders_that_are_kept_come_back_and_are_the_owners_alone(tmp_path: Path):
    keep_orders(tmp_path, ORDERS)
    assert kept_orders(tmp_path) == ORDERS
    assert stat.S_IMODE((tmp_path / ORDERS_FILE).stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [ORDERS_FILE]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data.replace(b'"format":1', b'"format":2'),
        lambda data: data.replace(b'"draining":true', b'"draining":"yes"'),
        lambda data: data.replace(b'"labels":', b'"tags":'),
        lambda data: data.replace(b'"url":"http://127.0.0.1:8001"', b'"url":7'),
        lambda data: b"[]",
    ],
)
def test_orders_that_are_damaged_are_none(tmp_path: Path, damage):
    assert kept_orders(tmp_path) is None
    keep_orders(tmp_path, ORDERS)
    path = tmp_path / ORDERS_FILE
    path.write_bytes(damage(path.read_bytes()))
    assert kept_orders(tmp_path) is None
