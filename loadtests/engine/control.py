"""The engine's own control routes under /sim/, for tests that run it as a process."""

from __future__ import annotations

from collections.abc import Callable

import orjson

from loadtests.engine.acts import Reply
from loadtests.engine.exchange import ReceivedRequest
from loadtests.engine.faults import FAULTS, FaultSet, UnknownFault

PREFIX = "/sim/"


def owns(path: str) -> bool:
    return path.startswith(PREFIX)


def answer(request: ReceivedRequest, faults: FaultSet, state: Callable[[], dict[str, object]]) -> Reply:
    """POST /sim/faults sets one, DELETE clears (`?name=` one, else all), GET lists the menu; GET /sim/state."""
    match request.method, request.path:
        case "POST", "/sim/faults":
            return _set(request.body, faults)
        case "DELETE", "/sim/faults":
            name = request.target.partition(b"?name=")[2].decode("ascii", "replace")
            faults.clear(name or None)
            return _reply(200, {"faults": faults.listing()})
        case "GET", "/sim/faults":
            menu = {name: {"meaning": f.meaning, "scope": f.scope, **f.defaults} for name, f in FAULTS.items()}
            return _reply(200, {"faults": faults.listing(), "menu": menu})
        case "GET", "/sim/state":
            return _reply(200, state())
        case _:
            return _reply(404, {"error": "known: POST, DELETE, GET /sim/faults and GET /sim/state"})


def _set(body: bytes, faults: FaultSet) -> Reply:
    try:
        wish = orjson.loads(body)
        name = str(wish.pop("name"))
        faults.set(name, **wish)
    except (orjson.JSONDecodeError, AttributeError, KeyError):
        return _reply(400, {"error": 'the body is {"name": a fault, "count": N or null, its parameters}'})
    except UnknownFault as unknown:
        return _reply(400, {"error": str(unknown)})
    return _reply(200, {"faults": faults.listing()})


def _reply(status: int, payload: dict[str, object]) -> Reply:
    return Reply(status, orjson.dumps(payload, option=orjson.OPT_NON_STR_KEYS))
