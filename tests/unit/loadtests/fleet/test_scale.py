import pytest

from loadtests.fleet.scale import fleets, phase, said, waited


def test_a_tally_becomes_counts_and_inferences_are_not_looks():
    told = said(
        '{"kinds": ["metrics", "health", "canary", "warmup", "metrics"], "arrivals": [1.0, 1.01, 1.0, 1.0, 3.0]}'
    )
    found = phase(told, 10.0, 0.5, 0.2)
    assert found.counts == {"metrics": 2, "health": 1, "canary": 1, "warmup": 1}
    assert (found.looks.count, found.looks.most) == (3, 2)
    assert (found.canaries.count, found.canaries.most) == (1, 1)
    assert (found.cpu_seconds, found.waited_seconds, found.core_share) == (0.5, 0.2, 0.05)


def test_kinds_and_arrivals_belong_together():
    with pytest.raises(ValueError, match="shorter"):
        phase(said('{"kinds": ["metrics"], "arrivals": []}'), 1.0, 0.0)


def test_the_large_fleet_comes_last_and_a_small_one_stands_alone():
    assert fleets(256) == (3, 256)
    assert fleets(3) == (3,)
    assert fleets(1) == (1,)


def test_waiting_is_the_second_figure_of_each_thread_in_nanoseconds():
    assert waited(["1000 2500000000 7\n", "5 500000000 1\n"]) == 3.0
    assert waited([]) == 0.0
