from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
import pytest

from gateway.policy.routing import parse_routing
from loadtests.routing import peers, targets
from loadtests.routing.place import Endpoint, Kind, Place
from loadtests.routing.targets import OURS, STRATEGIES, TARGETS


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_gateway_understands_the_policy_of_each_strategy(strategy: str) -> None:
    policy = parse_routing(orjson.dumps(dict(targets.routing(strategy))).decode(), "routing.yaml")
    assert policy.balancing.strategy == strategy
    assert policy.balancing.dry_run is None
    assert policy.fleet.warmup.shapes == ()
    assert policy.fleet.warmup.slow_start == 0
    assert policy.fleet.health.canary_interval == 0


def test_each_strategy_is_a_target_under_its_own_name() -> None:
    assert [target.name for target in TARGETS if target.kind is Kind.OURS] == list(STRATEGIES)
    assert OURS == "estimate"
    assert [target.name for target in TARGETS if target.kind is Kind.ORACLE] == ["oracle"]
    assert len({target.name for target in TARGETS}) == len(TARGETS)


def test_selecting_keeps_the_order_of_the_table() -> None:
    assert [each.name for each in targets.select(["session", "estimate"])] == ["estimate", "session"]
    assert [target for target in targets.select([]) if target.kind is Kind.PEER] == []
    assert targets.select([], others=True) == TARGETS
    assert targets.select([])[-1].kind is Kind.ORACLE
    assert targets.select(["smg-least-load"])[0].name == "smg-least-load"
    assert targets.select(["estimate"], others=True) == (TARGETS[0], *peers.TARGETS)
    with pytest.raises(targets.UnknownTarget, match="least-in-flight"):
        targets.select(["least"])


class _Gateway:
    """Stands in for a gateway that is up at first."""

    port, pid = 9, 77
    opened: list[object]

    def __init__(self, plan: object, folder: Path) -> None:
        self.opened = [plan]

    def __enter__(self):  # type: ignore[no-untyped-def]
        return self

    def __exit__(self, *ended: object) -> None:
        pass

    def wait_for_replicas(self, count: int, seconds: float) -> None:
        assert count == 2

    def wait_until_ready(self) -> None:
        pass

    def key(self) -> str:
        return "sk-x"

    def last_words(self) -> str:
        return "its last words"


@pytest.mark.parametrize("serves", [True, False])
def test_a_gateway_that_ended_under_load_is_a_failure_and_not_a_figure(
    serves: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "Gateway", _Gateway)
    monkeypatch.setattr(targets, "answers", lambda url: serves and url == "http://127.0.0.1:9/readyz")
    place = Place(["http://a", "http://b"], tmp_path, frozenset({0}))
    if serves:
        with TARGETS[0].open(place) as endpoints:
            assert endpoints == (Endpoint(9, "sk-x", 77),)
        return
    with pytest.raises(targets.StartFailed, match="its last words"), TARGETS[0].open(place):
        pass


def test_several_instances_share_their_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = (Endpoint(1, "sk-x", 7), Endpoint(2, "sk-x", 8))
    asked: list[tuple[object, Place]] = []

    @contextmanager
    def sharing(routing: object, place: Place) -> Iterator[tuple[Endpoint, ...]]:
        asked.append((routing, place))
        yield both

    monkeypatch.setattr(targets, "sharing", sharing)
    place = Place(["http://a"], tmp_path, frozenset({0}), instances=2)
    with TARGETS[2].open(place) as endpoints:
        assert endpoints == both
    assert asked == [(targets.routing("power-of-two"), place)]


def test_the_oracle_is_where_the_engines_say(tmp_path: Path) -> None:
    (oracle,) = targets.select(["oracle"])
    with oracle.open(Place(["http://a"], tmp_path, frozenset({0}), oracle=4711, instances=2)) as endpoints:
        assert endpoints == (Endpoint(4711, ""),)
