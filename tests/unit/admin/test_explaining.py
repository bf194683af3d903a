"""The routes that tell why a request went where it went."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import httpx
import pytest
from fastapi import FastAPI

from gateway.admin.explaining import explain_routes
from gateway.admin.fleetshow import FleetHandle
from gateway.admin.handlers import install
from gateway.fleet.balance.estimate import Load, Quote
from gateway.fleet.balance.explained import Decision, Decisions
from gateway.fleet.balance.pace import Prior

ID = "req_" + "0123456789abcdef01234567"


def decision(number=0, alias="general", **fields):
    quote = Quote()
    quote.renew(Load(unanswered=800, in_flight=2), Prior(), 90.0)
    seen = [("a:1", quote.said, 2, 1 << 30), ("b:1", None, 0, 1)]
    given = Decision(
        (ID[:-2] + f"{number:02x}", alias, "m"), 90.0, "estimate", 1, 100.0, 400, {"a:1": 200}, True, 2, seen, "a:1"
    )
    return given._replace(**fields)


def asked(*decisions, path):
    kept = Decisions()
    for each in decisions:
        kept.add(each)
    app = FastAPI()
    state = SimpleNamespace(fleet=FleetHandle(decisions=kept, now=lambda: 100.0), clock=lambda: 5_000.0)
    app.include_router(explain_routes(state))
    install(app)

    async def ask():
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://admin") as client:
            return await client.get(path)

    return asyncio.run(ask())


def test_a_request_is_told_with_all_that_was_known():
    answer = asked(decision(0x67), decision(1), path=f"/admin/fleet-explain/{ID}")
    told = answer.json()
    assert answer.status_code == 200
    assert (told["request_id"], told["at"], told["replica"], told["attempt"]) == (ID, 4_990.0, "a:1", 1)
    assert (told["prompt_tokens"], told["prompt_bytes"], told["pool"], told["alias"]) == (100.0, 400, 2, "general")
    by_id = {one["replica"]: one for one in told["candidates"]}
    assert by_id["b:1"]["terms"] is None
    assert (by_id["b:1"]["room"], by_id["a:1"]["room"], by_id["a:1"]["in_flight"]) == (1, None, 2)
    assert (by_id["a:1"]["holds"], by_id["a:1"]["chosen"], by_id["b:1"]["chosen"]) == (200, True, False)
    terms = by_id["a:1"]["terms"]
    parts = [terms[name] for name in ("queue", "prefill", "slot", "decode", "pressure", "burden")]
    assert terms["total"] == pytest.approx(sum(parts) * terms["factor"])
    assert told["sentence"].endswith(".")


def test_without_an_id_the_newest_of_all_or_of_an_alias():
    given = (decision(1), decision(2, alias="other"), decision(3))
    assert asked(*given, path="/admin/fleet-explain").json()["request_id"] == given[2].request_id
    assert asked(*given, path="/admin/fleet-explain?alias=other").json()["request_id"] == given[1].request_id
    assert asked(*given, path="/admin/fleet-explain?alias=none").status_code == 404


@pytest.mark.parametrize(
    "unknown", ["req_" + "f" * 24, "req_1", "x", ID.upper(), ID + "0", ID + "/x", "x%0a", "%00", "a" * 3_000]
)
def test_whatever_is_not_known_gets_the_same_answer(unknown):
    answer = asked(decision(0x67), path=f"/admin/fleet-explain/{unknown}")
    assert answer.status_code == 404
    assert answer.content == asked(path=f"/admin/fleet-explain/{ID}").content
    assert answer.json()["error"]["code"] == "no_such_object"
    assert "ask the instance that served it" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("", "No such request has been placed"),
        ("?alias=none", "No such request"),
        (f"/{ID}", "not among the last ones"),
    ],
)
def test_what_was_not_named_is_not_said_to_be_lost(path, words):
    assert words in asked(path=f"/admin/fleet-explain{path}").json()["error"]["message"]


@pytest.mark.parametrize("bad", ["alias=", "alias=a%20b", "what=1"])
def test_a_scope_is_closed(bad):
    assert asked(decision(), path=f"/admin/fleet-explain?{bad}").status_code == 400
