"""The walk over the audit trail: each way to break a trail is found, and named by its line."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from gateway.admin.trail import audit_entry, audit_view, point, verify
from gateway.stores.chain import GENESIS, sealed


class Trail:
    """Lines and a head in memory. ``late`` are written while somebody walks."""

    def __init__(self, count):
        self.lines = []
        self.late = 0
        self.pages = []
        for _ in range(count):
            self.append()
        self.head = self.newest()

    def newest(self):
        return (self.lines[-1].number, self.lines[-1].hash) if self.lines else (0, GENESIS)

    def append(self):
        number, previous = self.newest()
        self.lines.append(
            sealed(previous, number + 1, 1_000.5 + number, "a", "key.create", f"k{number}", {"n": number})
        )

    def rewritten(self, start, **change):
        """Everything from a line on sealed anew, with the change in that line."""
        kept, rest = self.lines[: start - 1], self.lines[start - 1 :]
        for old in rest:
            line = replace(old, **change) if old.number == start else old
            previous = kept[-1].hash if kept else GENESIS
            values = (line.at, line.author, line.verb, line.subject)
            kept.append(sealed(previous, line.number, *values, line.detail))
        self.lines = kept

    async def audit(self, *, after=0, limit=1_000):
        page = [line for line in self.lines if line.number > after][:limit]
        self.pages.append(len(page))
        if self.late:
            self.late -= 1
            self.append()
            self.head = self.newest()
        return page

    async def audit_head(self):
        return self.head


def walked(trail, expect=None):
    verdict = asyncio.run(verify(trail, expect, page=3))
    return verdict.whole, verdict.broken_at, verdict.fault, verdict.lines


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 10])
def test_a_whole_trail_is_whole_page_by_page(count):
    trail = Trail(count)
    verdict = asyncio.run(verify(trail, page=3))
    assert (verdict.whole, verdict.lines, verdict.head) == (True, count, trail.newest()[1].hex())
    assert max(trail.pages) <= 3


def test_lines_written_meanwhile_are_walked_as_well():
    trail = Trail(7)
    trail.late = 4
    assert walked(trail) == (True, None, None, 11)


@pytest.mark.parametrize("change", [{"author": "b"}, {"at": 5.0}, {"detail": "{}"}, {"hash": bytes(32)}, {"number": 9}])
@pytest.mark.parametrize("line", [1, 3, 4, 7])
def test_a_changed_line_is_found(line, change):
    trail = Trail(7)
    trail.lines[line - 1] = replace(trail.lines[line - 1], **change)
    whole, broken_at, fault, lines = walked(trail)
    assert (whole, broken_at, lines) == (False, line, line - 1)
    assert fault == "changed"


@pytest.mark.parametrize("line", [1, 3, 4, 6])
def test_a_removed_line_is_found(line):
    trail = Trail(7)
    del trail.lines[line - 1]
    assert walked(trail) == (False, line, "changed", line - 1)


@pytest.mark.parametrize("left", [0, 2, 3, 6])
def test_a_trail_cut_at_its_end_is_found_by_the_head(left):
    trail = Trail(7)
    del trail.lines[left:]
    assert walked(trail) == (False, left + 1, "cut", left)


def test_lines_that_the_head_does_not_know_are_found():
    trail = Trail(5)
    trail.append()
    assert walked(trail) == (False, 6, "ahead", 6)


def test_a_trail_sealed_anew_is_found_by_the_head():
    trail = Trail(7)
    trail.rewritten(4, author="b")
    assert walked(trail) == (False, 7, "changed", 6)


def test_a_trail_rewritten_with_its_head_is_found_by_a_hash_that_was_kept():
    trail = Trail(7)
    kept = point(f"5:{trail.lines[4].hash.hex()}")
    assert walked(trail, kept) == (True, None, None, 7)
    trail.rewritten(2, author="b")
    trail.head = trail.newest()
    assert walked(trail) == (True, None, None, 7)
    assert walked(trail, kept) == (False, 5, "expected", 4)


def test_a_trail_cut_with_its_head_is_found_by_a_hash_that_was_kept():
    trail = Trail(7)
    kept = point(f"7:{trail.lines[6].hash.hex()}")
    del trail.lines[4:]
    trail.head = trail.newest()
    assert walked(trail) == (True, None, None, 4)
    assert walked(trail, kept) == (False, 5, "expected", 4)


def test_the_point_of_an_empty_trail_fits_any():
    trail = Trail(3)
    assert walked(trail, point(f"0:{GENESIS.hex()}")) == (True, None, None, 3)


@pytest.mark.parametrize(
    "text", ["", "5", "5:", ":" + "a" * 64, "05:" + "a" * 64, "5:" + "A" * 64, "5:" + "a" * 64 + "\n"]
)
def test_what_is_no_point_is_refused_unquoted(text):
    with pytest.raises(ValueError, match="expected NUMBER:HASH"):
        point(text)


def test_a_line_survives_being_shown():
    for line in Trail(3).lines:
        assert audit_entry(type(audit_view(line)).model_validate_json(audit_view(line).model_dump_json())) == line
