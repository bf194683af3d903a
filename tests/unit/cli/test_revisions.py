"""What an alias has been, as commands: on a store and through a gateway."""

from __future__ import annotations

import json

import httpx


def test_a_history_is_told_newest_first_with_its_uses(anywhere, held):
    cli = anywhere
    for model in ("model-a", "model-b"):
        cli.ok("alias", "set", "team/chat", "--model", model, "--note", f"to {model}")
    held(lambda store: store.note_uses({("team/chat", 1): 1_000.0}))
    rows = [line.split("\t") for line in cli.ok("alias", "history", "team/chat").splitlines()]
    assert rows[0] == ["REVISION", "STATE", "MODEL", "AUTHOR", "SET", "LAST SERVED", "SOURCE", "NOTE"]
    assert [(row[0], row[1], row[2], row[5], row[7]) for row in rows[1:]] == [
        ("2", "current", "model-b", "-", "to model-b"),
        ("1", "-", "model-a", "1970-01-01 00:16:40Z", "to model-a"),
    ]
    told = json.loads(cli.ok("alias", "history", "team/chat", "--json"))
    assert [(one["revision"], one["current"], one["used_at"]) for one in told] == [(2, True, None), (1, False, 1_000.0)]
    shown = json.loads(cli.ok("alias", "show", "team/chat@1", "--json"))
    assert (shown["revision"], shown["targets"]) == (1, [{"model": "model-a", "weight": 1}])
    assert cli.ok("alias", "show", "team/chat").splitlines()[1].split() == ["revision", "2"]
    assert "o alias has that name" in cli.refused("alias", "history", "none")
    cli.refused("alias", "show", "team/chat@9")
    cli.refused("alias", "history", "team/chat@1", code=2)


def test_a_diff_is_of_the_last_two_unless_told(anywhere):
    cli = anywhere
    for model in ("model-a", "model-b", "model-a"):
        cli.ok("alias", "set", "chat", "--model", model)
    assert cli.ok("alias", "diff", "chat").splitlines() == [
        "WHAT\tREVISION 2\tREVISION 3",
        "model-b\t100 %\t-",
        "model-a\t-\t100 %",
    ]
    same = cli("alias", "diff", "chat", "1")
    assert (same.stdout, same.stderr) == ("", "Revisions 1 and 3 of chat do not differ.\n")
    view = json.loads(cli.ok("alias", "diff", "chat", "1", "2", "--json"))
    assert (view["old"]["revision"], view["new"]["revision"], len(view["differences"])) == (1, 2, 2)
    cli.refused("alias", "diff", "chat", "0", code=2)
    cli.refused("alias", "diff", "chat", "9")
    cli.ok("alias", "set", "new", "--model", "model-a")
    assert "none before it" in cli.refused("alias", "diff", "new")


def test_every_page_of_a_history_is_told(cli, running, monkeypatch):
    for _ in range(5):
        cli.ok("alias", "set", "chat", "--model", "model-a")
    cli.env["GATEWAY_ADMIN_URL"] = running.url
    real = httpx.AsyncClient.request

    async def in_pages(self, method, url, **more):
        more["params"] = {**(more["params"] or {}), "limit": 2}
        return await real(self, method, url, **more)

    monkeypatch.setattr(httpx.AsyncClient, "request", in_pages)
    told = json.loads(cli.ok("alias", "history", "chat", "--json"))
    assert [one["revision"] for one in told] == [5, 4, 3, 2, 1]
