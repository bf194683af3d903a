"""What a request is taken to use before, and what it counts as after."""

from __future__ import annotations

import asyncio

import pytest

from gateway.model import BodyKind, Endpoint, FormPart, InferenceRequest, Route, Usage
from gateway.policy.access import Estimate
from gateway.steps.admit import Reservation, Taken, admit, reserve, used_tokens
from gateway.telemetry.trace import Trace

ESTIMATE = Estimate(output_tokens=1_000, bytes_per_token=4)


def _request(endpoint=Endpoint.CHAT, **fields):
    return InferenceRequest(Route("POST", "/x", endpoint, BodyKind.JSON), "a", {}, **fields)


@pytest.mark.parametrize(
    ("fields", "prompt", "total"),
    [
        ({}, 25, 1_025),
        ({"max_tokens": 7}, 25, 32),
        ({"max_tokens": 7, "choices": 3}, 25, 46),
        ({"choices": 2}, 25, 2_025),
    ],
)
def test_what_generates_reserves_its_prompt_and_the_most_of_each_answer(fields, prompt, total):
    for endpoint in (Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.RESPONSES, Endpoint.MESSAGES):
        assert reserve(_request(endpoint, **fields), 98, ESTIMATE) == (prompt, total)


def test_every_endpoint_that_generates_nothing_reserves_its_input_alone():
    generating = {Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.RESPONSES, Endpoint.MESSAGES}
    for endpoint in set(Endpoint) - generating:
        assert reserve(_request(endpoint, choices=9), 100, ESTIMATE) == (25, 25)


def test_the_bytes_of_sound_are_not_taken_for_text():
    form = Route("POST", "/x", Endpoint.TRANSCRIPTIONS, BodyKind.MULTIPART)
    for parts in ((FormPart("file", b"\0" * 1_000, "a.wav"),), ()):  # what was large is not kept
        assert reserve(InferenceRequest(form, "a", {}, parts), 1_000_000, ESTIMATE) == (0, 0)


def _trace(**fields):
    trace = Trace("req_1", 0.0, 0.0)
    for name, value in fields.items():
        setattr(trace, name, value)
    return trace


@pytest.mark.parametrize(
    ("fields", "served", "used"),
    [
        # Whole answers: as the engine said, cached prompt tokens included.
        ({"usage": Usage(10, 5, 8), "finish": "stop"}, True, 15),
        ({"usage": Usage(10, 5), "finish": "stop", "events": 6}, True, 15),
        ({"usage": Usage(10, 0)}, True, 10),  # embeddings: no finish reason
        # Cut streams: by what was sent, never less than an event each.
        ({"events": 4, "first_bytes": 100, "response_bytes": 400, "attempts": 1}, True, 34),
        ({"events": 2, "first_bytes": 100, "response_bytes": 1_000, "attempts": 1}, True, 30 + 200),
        # Anthropic's stream says the prompt at its start: that counts, the rest is by what was sent.
        ({"usage": Usage(12, 1), "events": 5, "first_bytes": 50, "response_bytes": 250, "attempts": 1}, True, 17),
        # Nothing was said: the prompt, if an engine had it.
        ({"attempts": 1}, True, 30),
        ({"attempts": 1}, False, 0),
        ({"attempts": 0}, True, 0),
    ],
)
def test_what_a_request_counts_as(fields, served, used):
    assert used_tokens(_trace(**fields), 30, served=served) == used


def test_a_lease_that_is_there_is_not_waited_for_and_another_is():
    class Limiter:
        def __init__(self, answer):
            self.answer = answer

        def admit(self, budgets, tokens):
            self.asked = tokens
            return self.answer

    async def later():
        return "later"

    async def body():
        for limiter, lease in ((Limiter("lease"), "lease"), (Limiter(later()), "later")):
            taken = admit(limiter, (), Reservation(3, 7))
            assert isinstance(taken, Taken) is (lease == "lease")
            taken = taken if isinstance(taken, Taken) else await taken
            assert (taken.lease, taken.prompt) == (lease, 3)
            assert limiter.asked == 7

    asyncio.run(body())


def test_what_was_used_takes_the_place_of_what_was_reserved_and_the_lease_ends():
    class Lease:
        standing = None

        def __init__(self):
            self.said = []

        def settle(self, tokens):
            self.said.append(tokens)

        def close(self):
            self.said.append("closed")

    for fields, gone, used in (
        ({"status": 200, "attempts": 1}, False, 30),
        ({"status": 499, "attempts": 1}, True, 30),
        ({"status": 502, "attempts": 1}, False, 0),
        ({"status": 200, "usage": Usage(10, 5), "finish": "stop"}, False, 15),
    ):
        lease = Lease()
        Taken(lease, 30).settle(_trace(**fields), gone=gone)
        assert lease.said == [used, "closed"]
