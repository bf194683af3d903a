import re

from loadtests.fleet.canned import MODEL, Page, canned, exposition, metrics_response
from loadtests.fleet.crowd import BUSY_STEPS, Engine

LINES = re.compile(rb"(?m)^(vllm:[a-z_:]+)\{[^}]*\} ([0-9.e+]+)$")


def values(page: bytes) -> dict[bytes, float]:
    return {match[1]: float(match[2]) for match in LINES.finditer(page)}


def test_a_page_is_as_long_as_a_real_one_under_load():
    for page in (canned().busy, canned().idle):
        assert 60_000 < len(page.at(1)) < 85_000


def test_counters_move_together_and_nothing_else_does():
    page = canned().busy
    before, after = values(page.at(10)), values(page.at(50))
    moved = {name for name in before if before[name] != after[name]}
    assert {b"vllm:generation_tokens_total", b"vllm:iteration_tokens_total_count"} <= moved
    assert all((before[name], after[name]) == (10, 50) for name in moved)
    assert before[b"vllm:num_requests_running"] == after[b"vllm:num_requests_running"] == 3
    assert values(canned().idle.at(10))[b"vllm:num_requests_running"] == 0


def test_a_page_put_together_again_has_every_other_byte():
    text = exposition(running=0)
    assert len(Page.of(text).pieces) > 5
    assert re.sub(rb"(?m) [0-9.e+]+$", b" N", Page.of(text).at(7)) == re.sub(rb"(?m) [0-9.e+]+$", b" N", text)


def test_a_busy_engine_moves_on_its_own_and_an_idle_one_does_not():
    answers = canned()
    busy, idle = Engine(busy=True), Engine(busy=False)
    assert busy.metrics(answers) == metrics_response(answers.busy.at(BUSY_STEPS))
    assert busy.metrics(answers) == metrics_response(answers.busy.at(2 * BUSY_STEPS))
    assert idle.metrics(answers) == idle.metrics(answers) == metrics_response(answers.idle.at(0))


def test_answers_name_the_model_and_end():
    answers = canned()
    assert MODEL.encode() in answers.get[b"/v1/models"]
    assert answers.completion.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert answers.completion.startswith(b"HTTP/1.1 200 OK\r\n")
