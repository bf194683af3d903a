import asyncio

from loadtests.engine.wireclient import ask, get, post
from loadtests.fleet.canned import canned
from loadtests.fleet.crowd import Connection, Crowd, Engine, Tally


def test_a_played_engine_answers_and_says_what_came():
    async def main() -> tuple[list[int], Tally, Tally, int]:
        crowd, engine = Crowd(canned()), Engine(busy=False)
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Connection(crowd, engine), "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            asked = [
                get("/health", "connection: close"),
                get("/metrics"),
                get("/v1/models"),
                get("/version"),
                get("/nothing"),
                post("/v1/completions", b"{}", "x-request-id: canary-1"),
                post("/v1/completions", b"{}", "x-request-id: warmup-1"),
            ]
            statuses = [(await ask(port, each)).status for each in asked]
        return statuses, crowd.take(), crowd.take(), engine.steps

    statuses, first, second, steps = asyncio.run(main())
    assert statuses == [200, 200, 200, 200, 404, 200, 200]
    assert first.kinds == ["health", "metrics", "models", "version", "other", "canary", "warmup"]
    assert first.arrivals == sorted(first.arrivals)
    assert second == Tally()
    assert steps == 4, "two tokens for each inference"
