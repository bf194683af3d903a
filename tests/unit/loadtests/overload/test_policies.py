import orjson
import pytest

from gateway.policy.access import parse_access
from gateway.policy.routing import parse_routing
from loadtests.overload import policies
from loadtests.overload.scenarios import SCENARIOS, Caller, Scenario

CALLERS = {"a": Caller("small", weight=3.0), "b": Caller("large", priority="bulk")}


def text(content: object) -> str:
    return orjson.dumps(content).decode()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.name)
def test_the_gateway_understands_the_policies_of_each_scenario(scenario: Scenario) -> None:
    routing = parse_routing(text(policies.routing(scenario.admission)), "routing.yaml")
    assert routing.fleet.warmup.shapes == ()
    access = parse_access(text(policies.access(scenario.callers, fairness=True)), "access.yaml")
    assert set(access.tenants) == {caller.tenant for caller in scenario.callers.values()}


def test_a_limit_that_is_out_of_reach_is_a_figure_that_the_gateway_takes() -> None:
    assert parse_routing(text(policies.routing(policies.NO_LIMIT)), "routing.yaml").admission.in_flight == 1_000_000


def test_weights_and_priorities_are_those_of_the_callers() -> None:
    content = policies.access(CALLERS, fairness=True)
    assert content["tenants"] == {"small": {"weight": 3.0}, "large": {"weight": 1.0}}
    assert content["roles"] == {"user": {"aliases": ["*"]}, "bulk": {"aliases": ["*"], "priority": "bulk"}}
    assert [policies.role(caller) for caller in CALLERS.values()] == ["user", "bulk"]


def test_a_gateway_without_admission_is_given_no_option_of_it() -> None:
    content = policies.access(CALLERS, fairness=False)
    assert content["tenants"] == {"small": {}, "large": {}}
    assert content["roles"]["bulk"] == {"aliases": ["*"]}
    assert "admission" not in policies.routing(None)
