"""An alias at one moment: which number comes next, and what a refusal says."""

from __future__ import annotations

import pytest

from gateway.model import Revision, Target
from gateway.stores.interfaces import Conflict, NotFound
from gateway.stores.standing import Deletion, Standing

NOW = Revision("chat", 4, (Target("m"),), "ann", 0.0)
OVER = Deletion(3, 86_399.999, "bob")
STANDINGS = {
    "never": (Standing("chat"), 0, 1, "chat does not exist"),
    "there": (Standing("chat", NOW), 4, 5, "chat is at revision 4 (m, set by ann at 1970-01-01T00:00:00Z)"),
    "deleted": (Standing("chat", None, OVER), 0, 4, "chat was deleted at revision 3 (by bob at 1970-01-01T23:59:59Z)"),
    "again": (Standing("chat", NOW, OVER), 4, 5, "chat is at revision 4 (m, set by ann at 1970-01-01T00:00:00Z)"),
}


@pytest.mark.parametrize(("standing", "number", "following", "words"), STANDINGS.values(), ids=STANDINGS)
def test_where_an_alias_stands(standing: Standing, number: int, following: int, words: str) -> None:
    assert (standing.number, standing.next_number) == (number, following)
    standing.judge(None)
    standing.judge(number)
    for call in (standing.judge, standing.existing):
        with pytest.raises(Conflict) as raised:
            call(9)
        assert str(raised.value) == f"{words}; revision 9 was expected"


def test_what_is_not_there_cannot_be_ended() -> None:
    assert Standing("chat", NOW, OVER).existing(4) == NOW
    for standing in (Standing("chat"), Standing("chat", None, OVER)):
        for expected in (None, 0):
            with pytest.raises(NotFound):
                standing.existing(expected)
