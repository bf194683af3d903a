"""The token ring over a real issuer: what is cached, what waits for whom, and how soon a change is seen."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Coroutine
from dataclasses import replace
from typing import Any

import httpx
import pytest

from gateway.errors import Unavailable
from gateway.identity.jwks import CacheLimits
from gateway.identity.jwt import verify
from gateway.identity.keyring import MISS
from gateway.identity.tokens import TokenRing
from gateway.model import Credential, Principal
from gateway.policy.issuers import ClaimRule, IssuerPolicy
from tests.issuer import DISCOVERY, JWKS, Issuer

NOW = 1_800_000_000.0
PATIENCE = 10.0


class Clock:
    """Time that moves when told to."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Bench:
    """An issuer, a ring that trusts it, and their clocks."""

    def __init__(self, *algorithms: str, **issuer: Any) -> None:
        self.wall, self.steady = Clock(NOW), Clock(1_000.0)
        self.issuer = Issuer(*(algorithms or ("ES256",)), clock=self.wall, **issuer)
        self.refused: list[str] = []
        self.ring: TokenRing

    def policy(self, issuer: Issuer | None = None, **more: Any) -> IssuerPolicy:
        issuer = issuer or self.issuer
        tenant = ClaimRule(("tenant",), {"acme": "t-acme"})
        base = IssuerPolicy("corp", issuer.url, ("gateway",), ("ES256", "RS256"), tenant, ClaimRule())
        return replace(base, **more)

    @contextlib.asynccontextmanager
    async def open(self, *policies: IssuerPolicy, **options: Any) -> AsyncIterator[TokenRing]:
        with self.issuer:
            # Without verify it does not load certificates, which would take longer than the test.
            async with httpx.AsyncClient(trust_env=False, verify=False) as client:
                self.ring = TokenRing(
                    policies or (self.policy(),),
                    client,
                    self.wall,
                    monotonic=self.steady,
                    random=random.Random(1),
                    on_refused=self.refused.append,
                    **options,
                )
                try:
                    yield self.ring
                finally:
                    await self.ring.close()

    def advance(self, seconds: float) -> None:
        self.wall.now += seconds
        self.steady.now += seconds


async def until(condition) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "the condition never came"
        await asyncio.sleep(0.002)


def run(body: Coroutine[Any, Any, None]) -> None:
    asyncio.run(body)


def test_a_token_is_waited_for_once_and_then_known():
    async def body() -> None:
        bench = Bench()
        async with bench.open() as ring:
            token = bench.issuer.token()
            assert ring.lookup(token) is MISS
            found = await ring.fetch(token)
            assert isinstance(found, Principal)
            assert (found.tenant, found.name, found.credential) == ("t-acme", "corp", Credential.TOKEN)
            assert found.expires_at == NOW + 60
            assert ring.lookup(token) is found
            assert isinstance(await ring.fetch(bench.issuer.token(sub="bob")), Principal)
            assert bench.issuer.hits == {DISCOVERY: 1, JWKS: 1}
            assert bench.refused == []

    run(body())


def test_a_known_token_never_waits_for_a_slow_issuer():
    async def body() -> None:
        bench = Bench()
        async with bench.open() as ring:
            known, unknown = bench.issuer.token(), bench.issuer.token(header={"kid": "other"})
            assert await ring.fetch(known)
            with bench.issuer.held():
                bench.advance(30)
                waiting = asyncio.create_task(ring.fetch(unknown))
                await until(lambda: bench.issuer.hits[DISCOVERY] == 2)
                assert isinstance(ring.lookup(known), Principal)
                assert isinstance(await ring.fetch(known), Principal)
                bench.advance(31)
                assert isinstance(ring.lookup(known), Principal)  # verified anew, with the keys that are held
                assert isinstance(await ring.fetch(bench.issuer.token(sub="new")), Principal)
                assert not waiting.done()
            assert await waiting is None
            assert bench.refused == ["key"]

    run(body())


@pytest.fixture
def verified(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A letter for each verification that there was."""
    done: list[str] = []

    def counted(*arguments):
        done.append("v")
        return verify(*arguments)

    monkeypatch.setattr("gateway.identity.tokens.verify", counted)
    return done


def test_a_look_verifies_nothing_that_was_never_good(verified):
    """The request path looks before it asks whether the source is blocked."""

    async def body() -> None:
        bench = Bench()
        async with bench.open() as ring:
            good = bench.issuer.token()
            assert await ring.fetch(good)
            header, claims, signature = good.split(".")
            never = [
                bench.issuer.token(sub="bob"),
                bench.issuer.token(aud="other"),
                bench.issuer.token(exp=int(NOW) - 60),
                bench.issuer.token(header={"kid": "other"}),
                bench.issuer.token(iss="https://login.example.com"),
                f"{header}.{claims}.{signature[:-4]}AAAA",
                "a.b.c",
            ]
            verified.clear()
            for _ in range(3):
                assert [ring.lookup(token) for token in never] == [MISS] * len(never)
                assert isinstance(ring.lookup(good), Principal)
            assert verified == bench.refused == []
            assert await ring.fetch(never[0])
            assert [await ring.fetch(token) for token in never[1:]] == [None] * (len(never) - 1)
            done = len(verified)
            assert [ring.lookup(token) for token in never[1:]].count(None) == len(never) - 2  # a kid may come yet
            assert len(verified) == done > 0

    run(body())


def test_what_is_cached_is_verified_anew_after_a_minute(verified):
    async def body() -> None:
        bench = Bench()
        async with bench.open() as ring:
            token = bench.issuer.token()
            for step, expected in ((0, 1), (59.9, 1), (0.1, 2), (59, 2)):
                bench.advance(step)
                assert isinstance(ring.lookup(token) if verified else await ring.fetch(token), Principal)
                assert len(verified) == expected
            bench.wall.now -= 50  # a clock that is set back does not keep it
            bench.steady.now += 1
            assert isinstance(ring.lookup(token), Principal)
            assert len(verified) == 3

    run(body())


def test_a_session_does_not_outlive_its_token():
    async def body() -> None:
        bench = Bench()
        async with bench.open() as ring:
            token = bench.issuer.token(exp=int(NOW) + 20)
            found = await ring.fetch(token)
            assert isinstance(found, Principal)
            assert found.expires_at == NOW + 20
            bench.advance(49.9)
            assert isinstance(ring.lookup(token), Principal)  # within the leeway, and judged each time
            assert not ring._known
            assert ring.lookup(token) is MISS
            assert isinstance(await ring.fetch(token), Principal)
            bench.advance(0.1)
            assert await ring.fetch(token) is None
            assert await ring.fetch(token) is None
            assert bench.refused == ["expired", "expired"]

    run(body())


def test_keys_that_were_never_had_are_no_wrong_token():
    async def body() -> None:
        bench = Bench()
        bench.issuer.mode = "failing"
        async with bench.open() as ring:
            for _ in range(20):
                with pytest.raises(Unavailable) as caught:
                    await ring.fetch(bench.issuer.token())
                assert caught.value.retry_after == 1
            assert bench.issuer.hits == {DISCOVERY: 1}
            assert ring.faults() == {"corp": "status"}
            assert ring.ages() == {"corp": float("inf")}
            assert bench.refused == []
            bench.issuer.mode = "well"
            bench.advance(1)
            assert await ring.fetch(bench.issuer.token())
            assert ring.faults() == {}

    run(body())


def test_an_issuer_that_is_down_leaves_its_keys_for_a_day():
    async def body() -> None:
        bench = Bench()
        async with bench.open() as ring:
            assert await ring.fetch(bench.issuer.token())
            bench.issuer.mode = "failing"
            bench.advance(240)
            await ring.refresh()
            await until(lambda: ring.faults() == {"corp": "status"})
            bench.advance(86_400)
            assert ring.ages() == {"corp": 86_640}
            assert isinstance(await ring.fetch(bench.issuer.token()), Principal)
            bench.advance(60)
            with pytest.raises(Unavailable):
                await ring.fetch(bench.issuer.token())

    run(body())


def test_refresh_waits_for_nobody():
    async def body() -> None:
        bench, other = Bench(), Issuer("ES256")
        async with bench.open(bench.policy(), bench.policy(other, name="slow")) as ring:
            with other, other.held():
                await ring.refresh()
                await until(lambda: ring.ages()["corp"] == 0)
                assert ring.ages()["slow"] == float("inf")
                bench.advance(240)
                await ring.refresh()
                await until(lambda: ring.ages()["corp"] == 0)
                assert other.hits == {DISCOVERY: 1}

    run(body())


def test_a_rotation_keeps_tokens_and_a_withdrawal_ends_them():
    async def body() -> None:
        bench = Bench()
        async with bench.open() as ring:
            old = bench.issuer.token()
            assert await ring.fetch(old)
            epoch = ring.epoch
            bench.issuer.rotate("ES256")
            new = bench.issuer.token()
            assert await ring.fetch(new)  # asked for at once, since no kid was asked for before
            assert ring.epoch == epoch
            assert isinstance(ring.lookup(old), Principal)
            bench.issuer.published.pop("ES256-0")
            bench.advance(240)
            old_again = bench.issuer.token()
            await ring.refresh()
            await until(lambda: ring.epoch != epoch)
            assert await ring.fetch(old) is None
            assert isinstance(await ring.fetch(old_again), Principal)
            assert bench.refused == ["key"]

    run(body())


def test_another_key_under_the_same_kid_ends_what_the_old_one_signed():
    async def body() -> None:
        bench = Bench()
        async with bench.open() as ring:
            token = bench.issuer.token()
            assert await ring.fetch(token)
            epoch = ring.epoch
            bench.issuer.rotate("ES256")
            bench.issuer.published = {"ES256-0": {**bench.issuer.published["ES256-1"], "kid": "ES256-0"}}
            bench.advance(240)
            await ring.refresh()
            await until(lambda: ring.epoch != epoch)
            assert await ring.fetch(token) is None
            assert bench.refused == ["signature"]

    run(body())


def test_new_policies_apply_at_once_and_keep_keys_that_still_serve():
    async def body() -> None:
        bench = Bench()
        async with bench.open() as ring:
            token = bench.issuer.token(jti="t1")
            assert await ring.fetch(token)
            epoch = ring.epoch
            ring.replace((bench.policy(denied_tokens=frozenset({"t1"})),))
            assert ring.epoch == epoch + 1
            assert await ring.fetch(token) is None
            ring.replace((bench.policy(),))
            assert isinstance(await ring.fetch(token), Principal)
            assert bench.issuer.hits == {DISCOVERY: 1, JWKS: 1}
            ring.replace(())
            assert await ring.fetch(token) is None
            assert ring.ages() == {}
            ring.replace((bench.policy(algorithms=("RS256",)),))
            assert await ring.fetch(token) is None
            assert bench.refused == ["denied", "issuer", "algorithm"]

    run(body())


def test_two_policies_for_one_issuer_are_refused_and_change_nothing():
    async def body() -> None:
        bench, other = Bench(), Issuer("ES256")
        async with bench.open() as ring:
            epoch = ring.epoch
            for second in (bench.policy(name="again"), bench.policy(other)):
                with pytest.raises(ValueError, match="two issuers"):
                    ring.replace((bench.policy(), second))
            assert ring.epoch == epoch
            assert await ring.fetch(bench.issuer.token())
        other.discard()

    run(body())


def test_policies_that_change_while_a_token_waits():
    async def body() -> None:
        bench = Bench()
        async with bench.open() as ring:
            with bench.issuer.held():
                waiting = asyncio.create_task(ring.fetch(bench.issuer.token()))
                await until(lambda: bench.issuer.hits[DISCOVERY] == 1)
                ring.replace(())
                assert await waiting is None
            assert bench.refused == ["issuer"]

    run(body())


def test_many_tokens_wait_for_one_load_and_too_many_are_told_to_come_back():
    async def body() -> None:
        bench = Bench()
        async with bench.open(max_waiting=50) as ring:
            tokens = [bench.issuer.token(sub=str(number)) for number in range(50)]
            with bench.issuer.held():
                waiting = [asyncio.create_task(ring.fetch(token)) for token in tokens]
                await until(lambda: bench.issuer.hits[DISCOVERY] == 1)
                with pytest.raises(Unavailable):
                    await ring.fetch(bench.issuer.token(sub="one more"))
                waiting[0].cancel()
                await asyncio.wait(waiting[:1])
                waiting[0] = asyncio.create_task(ring.fetch(tokens[0]))
            found = await asyncio.gather(*waiting)
            assert len({principal.id for principal in found}) == 50
            assert bench.issuer.hits == {DISCOVERY: 1, JWKS: 1}

    run(body())


def test_a_refusal_is_remembered_for_a_while(verified):
    async def body() -> None:
        bench = Bench()
        async with bench.open() as ring:
            bad = bench.issuer.token(aud="other")
            for _ in range(3):
                assert await ring.fetch(bad) is None
            assert ring.lookup(bad) is None
            assert len(verified) == 1
            assert bench.refused == ["audience"] * 4
            bench.advance(10)
            assert await ring.fetch(bad) is None
            assert len(verified) == 2

    run(body())


def test_what_time_mends_is_not_remembered():
    async def body() -> None:
        bench = Bench()
        async with bench.open() as ring:
            early = bench.issuer.token(nbf=int(NOW) + 31)
            assert await ring.fetch(early) is None
            bench.advance(1)
            assert isinstance(await ring.fetch(early), Principal)
            assert bench.refused == ["not_yet"]

    run(body())


def test_both_caches_are_bounded():
    async def body() -> None:
        bench = Bench()
        async with bench.open(capacity=3, negative_capacity=3) as ring:
            for number in range(6):
                assert await ring.fetch(bench.issuer.token(sub=str(number)))
                assert await ring.fetch(bench.issuer.token(sub=str(number), aud="x")) is None
            assert (len(ring._known), len(ring._refused)) == (3, 3)

    run(body())


def test_a_lookup_needs_no_loop_and_close_may_be_called_twice():
    bench = Bench()

    async def body() -> None:
        async with bench.open(limits=CacheLimits(cool_down=1.0)) as ring:
            await ring.fetch(bench.issuer.token())
            with bench.issuer.held():
                bench.advance(240)
                await ring.refresh()
                await until(lambda: bench.issuer.hits[DISCOVERY] == 2)
                await ring.close()
                await ring.close()
                assert len(asyncio.all_tasks()) == 1

    run(body())
    assert bench.ring.lookup(bench.issuer.token()) is MISS


def test_keys_from_a_file(tmp_path):
    async def body() -> None:
        bench = Bench()
        path = tmp_path / "keys.json"
        path.write_bytes(bench.issuer.key_set())
        async with bench.open(replace(bench.policy(), issuer="https://id.test", keys_file=path)) as ring:
            token = bench.issuer.token(iss="https://id.test")
            assert await ring.fetch(token)
            path.write_text('{"keys": []}')
            epoch = ring.epoch
            bench.advance(2)
            await ring.refresh()
            await until(lambda: ring.epoch != epoch)
            assert await ring.fetch(token) is None
            assert not bench.issuer.hits

    run(body())


def test_a_set_that_may_not_be_trusted_leaves_the_old_one():
    async def body() -> None:
        bench = Bench()
        async with bench.open() as ring:
            assert await ring.fetch(bench.issuer.token())
            for step, (mode, fault) in enumerate(
                {"oct_key": "symmetric_key", "duplicate_kids": "duplicate_kid"}.items()
            ):
                bench.issuer.mode = mode
                bench.advance(240 + step)
                await ring.refresh()
                await until(lambda fault=fault: ring.faults() == {"corp": fault})
                assert isinstance(await ring.fetch(bench.issuer.token()), Principal)

    run(body())
