"""The bounded cache."""

from __future__ import annotations

from collections import OrderedDict

from gateway.recent import keep


def test_the_oldest_goes_when_there_are_too_many():
    cache: OrderedDict[str, int] = OrderedDict()
    for value, key in enumerate("abc"):
        keep(cache, key, value, 2)
    assert list(cache.items()) == [("b", 1), ("c", 2)]


def test_what_is_put_in_again_is_the_newest():
    cache: OrderedDict[str, int] = OrderedDict(a=1, b=2)
    keep(cache, "a", 3, 2)
    keep(cache, "c", 4, 2)
    assert list(cache.items()) == [("a", 3), ("c", 4)]
