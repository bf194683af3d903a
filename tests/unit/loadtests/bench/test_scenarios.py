import orjson
import pytest

from loadtests.bench import answers, scenarios
from loadtests.bench.scenarios import SCENARIOS, Scenario
from loadtests.bench.targets import TARGETS


def test_names_are_unique_and_needs_stand_before_those_who_need_them() -> None:
    names = [scenario.name for scenario in SCENARIOS]
    assert len(set(names)) == len(names)
    for place, scenario in enumerate(SCENARIOS):
        assert set(scenario.needs) <= set(names[:place])
        assert scenario.only <= {target.name for target in TARGETS}


def test_selecting_brings_what_is_needed_in_the_order_of_the_table() -> None:
    assert [each.name for each in scenarios.select(["stream"])] == ["chat", "stream"]
    assert [each.name for each in scenarios.select(["large", "chat-1"])] == ["chat-1", "large"]
    assert scenarios.select([]) == SCENARIOS
    with pytest.raises(scenarios.UnknownScenario, match="chat-1"):
        scenarios.select(["chatt"])


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_requests_are_whole_and_bodies_have_the_promised_size(scenario: Scenario) -> None:
    requests = scenarios.requests_of(scenario, 8080, "sk-abcX")
    assert len(set(requests)) == scenarios.VARIANTS
    for request in requests:
        head, _, body = request.partition(b"\r\n\r\n")
        assert len(body) == scenario.body_bytes
        assert f"content-length: {len(body)}".encode() in head
        assert orjson.loads(body)["model"] == scenarios.MODEL
        assert orjson.loads(body)["stream"] is scenario.stream
        assert (b"Bearer sk-abcX" in head) is not scenario.wrong_key


def test_a_wrong_key_differs_only_in_its_last_character() -> None:
    for key in ("sk-abcX", "sk-abcA"):
        wrong = scenarios.wrong(key)
        assert wrong != key
        assert wrong[:-1] == key[:-1]


def test_a_target_without_keys_gets_no_authorization_header() -> None:
    assert b"authorization" not in scenarios.http_request(1, b"{}", "")


def test_the_engine_streams_as_many_events_as_the_scenario_expects() -> None:
    stream = scenarios.by_name("stream")
    plain, with_usage = (answers.stream(stream.chunks, with_usage=asked) for asked in (False, True))
    assert len(plain) == stream.chunks + 1
    assert len(with_usage) == stream.chunks + 2
    assert plain[-1] == b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
    for piece in plain[:-1]:
        size, _, rest = piece.partition(b"\r\n")
        assert len(rest) == int(size, 16) + 2
        assert 200 <= int(size, 16) <= 300
        assert rest.count(b"\n\n") == 1


def test_the_answers_have_the_sizes_of_real_ones() -> None:
    assert 650 <= len(answers.chat_answer()) <= 850
    assert answers.ANSWER.encode() in answers.chat_answer()
    assert 20_000 <= len(answers.exposition()) <= 60_000
