"""State URLs: what they mean, what is refused, and that no fault or text of theirs gives a password away."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.secret import Secret
from gateway.stateurl import RedisPlace, is_redis, redis_place, sqlite_path, without_password


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("redis://localhost", RedisPlace((("localhost", 6379),))),
        ("redis://10.0.0.7:6380/3", RedisPlace((("10.0.0.7", 6380),), db=3)),
        ("redis://[::1]:6380/", RedisPlace((("::1", 6380),))),
        ("redis://:p%40ss@Redis.example/1", RedisPlace((("redis.example", 6379),), db=1, password=Secret("p@ss"))),
        ("redis://ann:pw@h:1", RedisPlace((("h", 1),), user="ann", password=Secret("pw"))),
        ("rediss://h:6379/0", RedisPlace((("h", 6379),), tls=True)),
        (
            "redis+sentinel://:pw@s1,s2:7/mymaster/2",
            RedisPlace((("s1", 26379), ("s2", 7)), db=2, password=Secret("pw"), service="mymaster"),
        ),
    ],
)
def test_what_a_redis_url_means(url: str, place: RedisPlace) -> None:
    assert is_redis(url)
    assert redis_place(url) == place


@pytest.mark.parametrize(
    "url",
    [
        "redis://",
        "redis:///0",
        "redis://h:0",
        "redis://h:65536",
        "redis://h/x",
        "redis://h/0/1",
        "redis://h/99999",
        "redis://h1,h2/0",
        "redis://s3cret@h/0",
        "redis://u:s3cret@h@i/0",
        "redis://h/0#x",
        "redis://h/0?db=1",
        "redis://h/0?ca=/etc/ssl/ca.pem",
        "rediss://h/0?ca=relative.pem",
        "rediss://h/0?ca=/nowhere/ca.pem",
        "rediss://h/0?ssl_cert_reqs=none",
        "redis+sentinel://h:1",
        "redis+sentinel://h:1//0",
        "redis+sentinel://" + ",".join(["h"] * 17) + "/m",
        "redis+unix:///s3cret",
        "redis://127.1/0",
        "redis://h..i/0",
        "redis://h_s3cret\n/0",
    ],
)
def test_what_is_refused_is_refused_with_what_was_expected_and_is_not_quoted(url: str) -> None:
    with pytest.raises(ValueError, match=r"^expected ") as raised:
        redis_place(url)
    assert "s3cret" not in str(raised.value)


def test_a_ca_file_is_named_by_its_absolute_path(tmp_path: Path) -> None:
    (tmp_path / "my ca.pem").touch()
    place = redis_place(f"rediss://h/0?ca={tmp_path}/my%20ca.pem")
    assert (place.ca, place.tls) == (tmp_path / "my ca.pem", True)


def test_the_password_of_the_url_goes_before_the_one_given() -> None:
    assert redis_place("redis://h", Secret("given")).password == Secret("given")
    assert redis_place("redis://:own@h", Secret("given")).password == Secret("own")


@pytest.mark.parametrize(
    ("url", "kept", "password"),
    [
        ("redis://:pw@h:1/2", "redis://h:1/2", "pw"),
        ("rediss://ann:p%2Fw@h/0", "rediss://ann:@h/0", "p/w"),
        ("redis+sentinel://:pw@a,b/m/1", "redis+sentinel://a,b/m/1", "pw"),
        ("redis://h", "redis://h", None),
        ("sqlite:///a:b@c", "sqlite:///a:b@c", None),
    ],
)
def test_a_password_is_taken_out_of_a_url(url: str, kept: str, password: str | None) -> None:
    secret = None if password is None else Secret(password)
    assert without_password(url) == (kept, secret)
    if is_redis(url):
        assert redis_place(kept, secret) == redis_place(url)


def test_a_place_is_told_without_user_and_password() -> None:
    place = redis_place("redis+sentinel://ann:s3cret@a:1,[::1]:2/m/4")
    assert str(place) == "a:1,[::1]:2/m/4"
    assert "s3cret" not in f"{place!r}"


@pytest.mark.parametrize("url", ["state.db", "sqlite://", "sqlite://state.db", "sqlite:///a/", "postgres://x/y", ""])
def test_a_url_of_neither_kind_is_told_both(url: str) -> None:
    assert not is_redis(url)
    with pytest.raises(ValueError, match=r"expected sqlite:///PATH.* redis://HOST"):
        sqlite_path(url)


def test_a_sqlite_url_holds_an_absolute_path() -> None:
    assert sqlite_path("sqlite:///var/lib/state.db") == Path("/var/lib/state.db")
