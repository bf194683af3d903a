"""Which addresses are believed of which names."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.configvalues import is_https, is_loopback
from gateway.fleet.discover.addresses import engines_at
from gateway.fleet.discover.sources import MAX_ENGINES, DiscoveryFault
from gateway.model import EngineSpec

NAME = "nodes.serving.svc"


def test_a_listed_name_leads_to_https_engines_under_that_name():
    assert engines_at(["10.0.0.12", "2001:db8::1", "10.0.0.2", "10.0.0.2"], 8443, NAME) == (
        EngineSpec("https://10.0.0.2:8443", server_name=NAME),
        EngineSpec("https://10.0.0.12:8443", server_name=NAME),
        EngineSpec("https://[2001:db8::1]:8443", server_name=NAME),
    )
    assert engines_at([], 8443, NAME) == ()


def test_localhost_leads_to_http_engines_on_this_host():
    assert engines_at(["::1", "127.0.0.1"], 8001, "localhost") == (
        EngineSpec("http://127.0.0.1:8001"),
        EngineSpec("http://[::1]:8001"),
    )


def test_an_ipv4_address_in_ipv6_clothes_is_an_ipv4_address():
    (spec,) = engines_at(["::ffff:10.0.0.1", "10.0.0.1"], 1, NAME)
    assert spec.url == "https://10.0.0.1:1"


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.9.9.9",
        "::1",
        "::ffff:127.0.0.1",
        "0.0.0.0",
        "::",
        "::ffff:0.0.0.0",
        "169.254.169.254",
        "::ffff:169.254.169.254",
        "fe80::1",
        "fe80::1%eth0",
        "2001:db8::1%eth0",
        "224.0.0.1",
        "ff02::1",
        "",
        "10.0.0",
        "0x0a000001",
        "example.com",
        "10.0.0.1\n",
    ],
)
def test_an_address_that_cannot_be_an_engines_spoils_the_answer(address):
    with pytest.raises(DiscoveryFault) as caught:
        engines_at(["10.0.0.1", address], 8443, NAME)
    assert not address or address not in caught.value.reason


@pytest.mark.parametrize("address", ["10.0.0.1", "0.0.0.0", "2001:db8::1", "169.254.1.1", "::ffff:8.8.8.8"])
def test_localhost_never_leads_away(address):
    with pytest.raises(DiscoveryFault, match="away from this host"):
        engines_at(["127.0.0.1", address], 8001, "localhost")


def test_an_answer_has_a_size():
    addresses = [f"10.0.{n // 256}.{n % 256}" for n in range(MAX_ENGINES + 1)]
    assert len(engines_at(addresses[1:], 1, NAME)) == MAX_ENGINES
    with pytest.raises(DiscoveryFault, match="more than 1024"):
        engines_at(addresses, 1, NAME)


ADDRESSES = st.lists(
    st.one_of(st.builds(IPv4Address, st.integers(0, 2**32 - 1)), st.builds(IPv6Address, st.integers(0, 2**128 - 1)))
)


@given(ADDRESSES, st.sampled_from([NAME, "localhost"]))
def test_whatever_comes_prompts_stay_here_or_go_by_tls_to_the_listed_name(addresses, name):
    try:
        engines = engines_at(map(str, addresses), 8443, name)
    except DiscoveryFault:
        return
    assert list(engines) == list(engines_at(map(str, reversed(addresses)), 8443, name))
    for spec in engines:
        assert is_loopback(spec) if name == "localhost" else is_https(spec) and spec.server_name == name
        assert is_loopback(spec) != is_https(spec)
