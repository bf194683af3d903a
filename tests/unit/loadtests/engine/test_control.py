"""Setting faults by hand and over HTTP."""

import json

import pytest

from loadtests.engine.faults import FAULTS, FaultSet, UnknownFault
from loadtests.engine.harness import with_engine
from loadtests.engine.server import SimulatedEngine
from loadtests.engine.wireclient import ask, get, post

WHOLE = post("/v1/chat/completions", b'{"messages":[{"role":"user","content":"hello world"}],"max_tokens":8}')


@pytest.mark.parametrize(("name", "params"), [("no_such", {}), ("done_twice", {"times": 3}), ("paused", {"count": 1})])
def test_unknown_faults_and_parameters_are_refused(name: str, params: dict[str, int]) -> None:
    faults = FaultSet(lambda: None)
    with pytest.raises(UnknownFault):
        faults.set(name, **params)


def test_control_over_http() -> None:
    async def check(engine: SimulatedEngine) -> None:
        wish = json.dumps({"name": "status_burst", "count": 1, "status": 503}).encode()
        assert (await ask(engine.port, post("/sim/faults", wish))).status == 200
        assert (await ask(engine.port, WHOLE)).status == 503
        assert (await ask(engine.port, WHOLE)).status == 200
        await ask(engine.port, post("/sim/faults", b'{"name":"accept_and_hang"}'))
        state = json.loads((await ask(engine.port, get("/sim/state"))).body)
        assert [fault["name"] for fault in state["faults"]] == ["accept_and_hang"]
        assert state["requests"] == 2
        await ask(engine.port, b"DELETE /sim/faults HTTP/1.1\r\n\r\n")
        assert (await ask(engine.port, WHOLE)).status == 200
        assert (await ask(engine.port, post("/sim/faults", b'{"name":"nonsense"}'))).status == 400
        menu = json.loads((await ask(engine.port, get("/sim/faults"))).body)["menu"]
        assert set(menu) == set(FAULTS)

    with_engine(check)
