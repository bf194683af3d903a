"""How aliases and instances are shown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.admin.aliasviews import (
    HistoryPaging,
    alias_reference,
    alias_view,
    history_page,
    instance_view,
    revision_of,
    split_reference,
)
from gateway.model import INSTANCE_TTL, Instance, Revision, Target

TRIAL = Revision("chat", 4, (Target("a", 95), Target("b", 5)), "ops", 9.0, "n", "canary", 3)
ONE = Instance("i1", "gw-1", "0.1", "http://h:9090", started_at=1.0, seen_at=100.0, generation=7)


def test_a_shown_revision_is_the_revision():
    assert revision_of(alias_view(TRIAL)) == TRIAL


def test_a_reference_is_a_name_with_or_without_a_revision():
    assert split_reference("team/chat") == ("team/chat", None)
    assert split_reference("team/chat@12") == ("team/chat", 12)
    assert alias_reference("chat@3") == "chat@3"


@pytest.mark.parametrize("text", ["", "@1", "a@", "a@0", "a@01", "a@-1", "a@1@2", "a@1\n", "a@" + "9" * 17, "a//b@1"])
def test_what_is_no_reference_is_refused_without_an_echo(text):
    with pytest.raises(ValueError, match=r"where N counts from 1|expected an alias name") as refused:
        alias_reference(text)
    assert "//" not in str(refused.value)


def test_a_history_is_paged_newest_first():
    history = [replace(TRIAL, number=number) for number in range(1, 6)]
    numbers, before = [], None
    while True:
        page = history_page(history, 5, {2: 8.0}, HistoryPaging(before=before, limit=2))
        numbers += [(one.revision, one.current, one.used_at) for one in page.revisions]
        before = page.next
        if before is None:
            break
    assert numbers == [(5, True, None), (4, False, None), (3, False, None), (2, False, 8.0), (1, False, None)]
    assert not any(one.current for one in history_page(history, 0, {}, HistoryPaging()).revisions)
    assert history_page(history, 5, {}, HistoryPaging(before=1)).revisions == []


def test_an_instance_is_live_for_its_time_and_lags_only_while_live():
    edge = 100.0 + INSTANCE_TTL
    assert [instance_view(ONE, 7, now).live for now in (100.0, edge, edge + 0.1)] == [True, True, False]
    assert [instance_view(ONE, generation, 101.0).lags for generation in (6, 7, 8)] == [False, False, True]
    assert not instance_view(ONE, 8, edge + 0.1).lags
    # Its clock may be ahead of this one.
    assert instance_view(ONE, 7, 90.0).seen_ago == 0.0
