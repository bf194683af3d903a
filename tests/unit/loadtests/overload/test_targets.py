from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from loadtests.bench.procs import StartFailed
from loadtests.fleet.stand import Plan
from loadtests.overload import targets
from loadtests.overload.client import Stand
from loadtests.overload.scenarios import by_name
from loadtests.overload.targets import PLAIN, TARGETS, Place
from loadtests.routing.place import Endpoint

ENGINES = ("http://a", "http://b")


def place(folder: Path, scenario: str = "classes") -> Place:
    return Place(ENGINES, folder, frozenset({0}), by_name(scenario))


class Gateway:
    """Stands in for a gateway: one that serves, or one that ended with these words."""

    port, pid = 9, 77
    plans: list[Plan]
    words = ""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plans.append(plan)

    def __enter__(self) -> "Gateway":
        return self

    def __exit__(self, *ended: object) -> None:
        pass

    def wait_for_replicas(self, count: int, seconds: float) -> None:
        assert count == len(ENGINES)
        if self.words:
            raise StartFailed(self.words)

    def wait_until_ready(self) -> None:
        pass

    def key(self, name: str, options: Sequence[str]) -> str:
        return f"sk-{name} {' '.join(options)}"

    def last_words(self) -> str:
        return "its last words"


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    monkeypatch.setattr(targets, "Gateway", Gateway)
    monkeypatch.setattr(targets, "answers", lambda url: True)
    monkeypatch.setattr(Gateway, "plans", [], raising=False)
    return Gateway.plans


def test_each_caller_has_a_key_with_its_tenant_and_role(plans: list[Plan], tmp_path: Path) -> None:
    with TARGETS[0].open(place(tmp_path)) as stand:
        assert stand.keys == {
            "interactive": "sk-interactive --tenant people --role interactive",
            "bulk": "sk-bulk --tenant machines --role bulk",
        }
    assert plans[0].routing["admission"] == by_name("classes").admission
    assert plans[0].access["roles"]["bulk"]["priority"] == "bulk"


def test_without_a_limit_as_shipped_and_without_admission(plans: list[Plan], tmp_path: Path) -> None:
    for target in (TARGETS[1], TARGETS[2], PLAIN):
        with target.open(place(tmp_path)):
            pass
    assert [plan.routing.get("admission") for plan in plans] == [{"in_flight": 1_000_000}, {}, None]
    assert ["priority" in str(plan.access) for plan in plans] == [True, True, False]


@pytest.mark.parametrize(("target", "told"), [(TARGETS[0], True), (PLAIN, False)], ids=["gateway", "plain"])
def test_a_gateway_without_admission_is_told_from_one_that_does_not_start(
    target: targets.Target, told: bool, plans: list[Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Gateway, "words", "routing.yaml: admission: unknown option")
    with pytest.raises(StartFailed) as failed, target.open(place(tmp_path)):
        pass
    assert ("--no-admission" in str(failed.value)) == told
    assert "unknown option" in str(failed.value)


def test_another_failure_is_no_lack_of_admission() -> None:
    assert targets.explained("address in use", tried=True) == "address in use"


def test_a_gateway_that_ended_under_load_is_a_failure(
    plans: list[Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "answers", lambda url: False)
    with pytest.raises(StartFailed, match="its last words"), TARGETS[0].open(place(tmp_path)):
        pass


def test_the_peer_is_the_router_of_the_routing_scenarios(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def routers(peer: object, policy: str, where: object) -> Iterator[Sequence[Endpoint]]:
        assert policy == "cache_aware"
        yield (Endpoint(5, "", 6),)

    monkeypatch.setattr(targets.peers, "routers", routers)
    with TARGETS[3].open(place(tmp_path)) as stand:
        assert stand == Stand(5, {}, 6)


def test_selecting() -> None:
    def names(found: Sequence[targets.Target]) -> list[str]:
        return [each.name for each in found]

    assert names(targets.select([])) == ["gateway", "unlimited"]
    assert names(targets.select([], others=True)) == ["gateway", "unlimited", "vllm-router"]
    assert names(targets.select(["vllm-router", "gateway"])) == ["gateway", "vllm-router"]
    assert names(targets.select(["shipped"])) == ["shipped"], "only if it is named"
    assert targets.select([], admission=False) == (PLAIN,)
    with pytest.raises(targets.UnknownTarget, match="gateway"):
        targets.select(["unlimited"], admission=False)


def test_a_peer_plays_what_has_one_caller() -> None:
    assert targets.suits(by_name("overload"), TARGETS[3])
    assert not targets.suits(by_name("tenants"), TARGETS[3])
    assert targets.suits(by_name("tenants"), TARGETS[0])
