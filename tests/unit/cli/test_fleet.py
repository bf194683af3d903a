"""The commands about engines, on a store and through an admin plane."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from gateway.stores.sqlite import SqliteStore

ID, URL = "127.0.0.1:8001", "http://127.0.0.1:8001"
COMMANDS = ("list", "show", "add", "remove", "drain", "undrain", "warm")


def orders(cli):
    async def read():
        store = await SqliteStore.open(cli.folder / "state.db")
        try:
            return (await store.engine_orders()).engines, [line.verb for line in await store.audit()]
        finally:
            await store.close()

    return asyncio.run(read())


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_teaches_by_an_example(cli, command):
    shown = cli.ok("fleet", command, "--help")
    assert f"Example:  gateway fleet {command}" in shown or f"gateway fleet {command}" in shown.partition("Example:")[2]
    assert command in cli.ok("fleet", "--help")


def test_orders_are_given_and_listed(anywhere):
    cli = anywhere
    told = cli("fleet", "add", f"{URL}/", "--label", "gpu=a100", "--label", "zone=", "--note", "third card", "--json")
    made = json.loads(told.stdout)
    assert (made["id"], made["url"], made["changed"], made["generation"]) == (ID, URL, True, 1)
    assert (made["order"]["labels"], made["order"]["note"]) == ({"gpu": "a100", "zone": ""}, "third card")
    assert f"{ID} is added" in told.stderr
    assert "was added already" in cli.refused("fleet", "add", URL)
    drained = json.loads(cli.ok("fleet", "drain", URL, "--note", "new driver", "--json"))
    assert (drained["changed"], drained["order"]["draining"]) == (True, True)
    assert "is being drained already" in cli("fleet", "drain", ID).stderr
    header, row = (line.split("\t") for line in cli.ok("fleet", "list").splitlines())
    assert (header[0], header[-1]) == ("ID", "WHY / NEXT")
    assert row[:2] == [ID, "ordered"]
    assert row[-1].startswith("added and drained by ")
    assert row[-1].endswith(": new driver")
    listed = json.loads(cli.ok("fleet", "list", "--json"))
    assert [one["id"] for one in listed["orders"]] == [ID]
    assert cli.ok("fleet", "list", "--model", "m").count("\n") == 1
    assert "is let in again" in cli("fleet", "undrain", ID).stderr
    assert "was not drained: nothing changed" in cli("fleet", "undrain", ID).stderr
    assert "is removed" in cli("fleet", "remove", ID, "--note", "given away").stderr
    assert "no engine has that id" in cli.refused("fleet", "remove", ID).lower()
    assert orders(cli) == ({}, [f"fleet.{verb}" for verb in ("add", "drain", "undrain", "remove")])


def test_without_a_gateway_orders_wait_for_one_and_the_list_says_so(cli):
    told = cli("fleet", "add", URL, "--wait")
    assert told.exit_code == 0
    assert "a gateway looks at it once one runs here" in told.stderr
    assert "there is nothing to wait for here" in told.stderr
    assert "No gateway was asked" in cli("fleet", "list").stderr
    assert json.loads(cli.ok("fleet", "list", "--json"))["watched"] is False
    assert "Only a running gateway warms an engine up" in cli.refused("fleet", "warm", ID)
    assert "known to a running gateway alone" in cli.refused("fleet", "show", ID)
    ((order,), _) = (tuple(orders(cli)[0].values()), None)
    assert order.author.startswith("cli:")


def test_without_a_gateway_the_engines_of_the_configuration_are_known(cli):
    cli.env["GATEWAY_ENGINES"] = URL
    cli.ok("keys", "create", "app1")
    assert "listed in the configuration" in cli.refused("fleet", "add", URL)
    cli.ok("fleet", "drain", ID)
    assert "Take it out there" in cli.refused("fleet", "remove", ID)
    assert "near it are 127.0.0.1:8001" in cli.refused("fleet", "drain", "127.0.0.1:8002")
    cli.ok("fleet", "drain", "http://127.0.0.1:8002")
    assert set(orders(cli)[0]) == {URL, "http://127.0.0.1:8002"}


def test_a_host_elsewhere_has_to_be_listed_here_as_well(cli):
    said = cli.refused("fleet", "add", "https://gpu.example:8443")
    assert "listed in remote_engines" in said
    assert not cli.folder.exists()
    cli.env["GATEWAY_REMOTE_ENGINES"] = "gpu.example"
    cli.ok("fleet", "add", "https://gpu.example:8443")
    assert "loopback host" in cli.refused("fleet", "add", "http://gpu.example:8443")


def test_a_store_that_is_not_there_is_made_by_an_addition_alone(cli):
    for args in (("list",), ("drain", URL), ("undrain", ID), ("remove", ID)):
        assert "There is no state" in cli.refused("fleet", *args)
    assert not cli.folder.exists()
    cli.ok("fleet", "add", URL)
    assert cli.folder.exists()


@pytest.mark.parametrize(
    "args",
    [
        ("add",),
        ("add", "http://user:hunter2@127.0.0.1:1"),
        ("add", "127.0.0.1:8001"),
        ("add", "http://127.0.0.1:8001/v1"),
        ("add", URL, "--label", "hunter2"),
        ("add", URL, "--label", "a=1", "--label", "a=2"),
        ("add", URL, "--label", "a b=1"),
        ("add", URL, "--note", "a\x1b[31m"),
        ("add", URL, "--timeout", "soon"),
        ("drain", "../keys"),
        ("drain", "a/b:1"),
        ("drain", "127.0.0.1:8001\n"),
        ("drain", "user:hunter2@127.0.0.1:1"),
        ("drain", "x" * 10_000),
        ("drain", ID, "--timeout", "-1"),
        ("drain", ID, "--timeout", "٣"),
        ("drain", ID, "--timeout", "10 m"),
        ("undrain", "http://127.0.0.1:8001/?x"),
        ("show", "127.0.0.1"),
        ("warm", ""),
        ("list", "--in-state", "nonsense"),
        ("nonsense",),
    ],
)
def test_wrong_usage_is_2_and_changes_nothing(cli, args):
    said = cli.refused("fleet", *args, code=2)
    assert "hunter2@" not in said
    assert "x" * 99 not in said
    assert not cli.folder.exists()


def test_every_page_is_listed_through_a_gateway(cli, running, monkeypatch):
    pages = {
        "": {"replicas": [], "next": "http://a:1"},
        "http://a:1": {"replicas": [], "next": "http://b:1"},
        "http://b:1": {"replicas": [], "next": None},
    }
    asked = []

    async def answered(self, method, url, **more):
        after = (more["params"] or {}).get("after", "")
        asked.append((method, url, after))
        page = {"watched": True, "generation": 1, "sources": [], "orders": [], **pages[after]}
        return httpx.Response(200, json=page)

    monkeypatch.setattr(httpx.AsyncClient, "request", answered)
    cli.env["GATEWAY_ADMIN_URL"] = running.url
    assert json.loads(cli.ok("fleet", "list", "--json"))["next"] is None
    assert asked == [("GET", "/admin/fleet", after) for after in pages]


def test_a_viewer_may_list_and_not_order(cli, running):
    cli.env["GATEWAY_ADMIN_URL"] = running.url
    cli.env["GATEWAY_ADMIN_TOKEN"] = cli.ok("keys", "create", "seer", "--role", "viewer").strip()
    cli.ok("fleet", "list")
    for args in (("add", URL), ("drain", ID), ("undrain", ID), ("remove", ID), ("warm", ID)):
        assert "fleet:write" in cli.refused("fleet", *args)
    assert orders(cli) == ({}, ["key.create"])
