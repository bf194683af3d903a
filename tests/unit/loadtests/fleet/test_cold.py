import asyncio

import orjson

from loadtests.engine.wireclient import ask, post
from loadtests.fleet.cold import MODEL, Counting, Met, spec

BODY = orjson.dumps({"model": MODEL, "prompt": [1, 2, 3], "max_tokens": 1})


def test_engines_count_whose_inferences_they_get_and_whether_a_user_finds_them_cold():
    async def main() -> tuple[Met, Met]:
        cold, warm = Counting(spec(cold=True)), Counting(spec(cold=False))
        for engine in (cold, warm):
            await engine.start()
        try:
            for engine in (cold, warm):
                for name in ("warmup-1", "0a1b", "canary-1"):  # two are answered while it is cold
                    answer = await ask(engine.port, post("/v1/completions", BODY, f"x-request-id: {name}"), 20.0)
                    assert answer.status == 200
            return cold.met, warm.met
        finally:
            await cold.close()
            await warm.close()

    cold, warm = asyncio.run(main())
    assert (cold.user, cold.user_cold, cold.warmup, cold.canary, cold.cold) == (1, 1, 1, 1, False)
    assert (warm.user, warm.user_cold, warm.warmup, warm.canary, warm.cold) == (1, 0, 1, 1, False)
