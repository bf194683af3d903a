from random import Random

import pytest

from loadtests.engine.text import pieces
from loadtests.routing import scenarios
from loadtests.routing.scenarios import HALF, MODEL, REPLICAS, SCENARIOS, USUAL, Scenario
from loadtests.routing.traffic import Turn

SECONDS = 25.0
EACH = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)


def prompt_bytes(turns: list[Turn]) -> int:
    return sum(len(message.content) for turn in turns for message in turn.messages)


def test_the_kinds_of_load_are_all_there_once() -> None:
    assert [each.name for each in SCENARIOS] == [
        *("retrieval", "chat", "mixed", "slow-replica", "bursts", "two-instances")
    ]


def test_selecting_keeps_the_order_of_the_table() -> None:
    assert [each.name for each in scenarios.select(["bursts", "chat"])] == ["chat", "bursts"]
    assert scenarios.select([]) == SCENARIOS
    with pytest.raises(scenarios.UnknownScenario, match="slow-replica"):
        scenarios.select(["slow"])


@EACH
def test_each_has_four_replicas_of_one_model(scenario: Scenario) -> None:
    assert len(scenario.replicas) == REPLICAS
    assert {spec.model for spec in scenario.replicas} == {MODEL}


@EACH
def test_the_load_is_modest_and_every_request_fits_into_an_engine(scenario: Scenario) -> None:
    turns = scenario.traffic.turns(Random(6), SECONDS)
    assert 5 <= len(turns) / SECONDS <= 20
    assert prompt_bytes(turns) / SECONDS < 500_000
    longest = max(turns, key=lambda turn: prompt_bytes([turn]))
    tokens = sum(len(pieces(message.content)) + 10 for message in longest.messages)
    assert tokens + longest.output <= min(spec.max_model_len for spec in scenario.replicas)


@EACH
def test_the_replicas_have_prefill_enough_for_all_prompts_together_only_where_it_is_meant(scenario: Scenario) -> None:
    """Without any cache: retrieval is far above what they can do, so it must be the caches that save it."""
    turns = scenario.traffic.turns(Random(6), 200.0)
    tokens = sum(len(message.content.split()) for turn in turns for message in turn.messages)
    load = tokens / 200.0 / sum(spec.prefill_tokens_per_second for spec in scenario.replicas)
    assert (load > 0.8) is (scenario.name == "retrieval")
    assert load > 0.15


def test_the_documents_fit_into_all_caches_together_and_not_into_one() -> None:
    retrieval = scenarios.by_name("retrieval")
    tokens = sum(
        {
            turn.session: len(turn.messages[0].content.split()) for turn in retrieval.traffic.turns(Random(6), 60.0)
        }.values()
    )
    caches = [spec.kv_blocks * spec.block_size for spec in retrieval.replicas]
    assert max(caches) * 2 < tokens < sum(caches)


def test_the_slow_replica_is_half_as_fast_in_all() -> None:
    assert HALF.prefill_tokens_per_second * 2 == USUAL.prefill_tokens_per_second
    assert HALF.step_time == USUAL.step_time * 2
    assert HALF.step_time_per_sequence == USUAL.step_time_per_sequence * 2
    assert scenarios.by_name("slow-replica").replicas.count(HALF) == 1


def test_two_instances_stand_before_the_load_of_chat() -> None:
    chat, both = scenarios.by_name("chat"), scenarios.by_name("two-instances")
    assert (both.traffic, both.replicas, both.limit) == (chat.traffic, chat.replicas, chat.limit)
    assert [each.name for each in SCENARIOS if each.instances != 1] == ["two-instances"]
    assert both.instances == 2


@EACH
def test_an_idle_replica_is_within_the_limit_of_nearly_all(scenario: Scenario) -> None:
    turns = scenario.traffic.turns(Random(6), 100.0)
    tokens = sorted(sum(len(message.content.split()) for message in turn.messages) for turn in turns)
    slowest = min(spec.prefill_tokens_per_second for spec in scenario.replicas)
    assert tokens[int(len(tokens) * 0.9)] / slowest < scenario.limit
