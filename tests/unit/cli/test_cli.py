"""The commands: what they print where, their exit codes, where they act."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version

import httpx
import pytest

from gateway.admin.presence import Presence
from gateway.cli.output import print_fields, print_table
from gateway.identity.keys import digest, well_formed
from gateway.server import bind
from gateway.stores.sqlite import SqliteStore

NEW = (
    ("keys", "rotate"),
    ("audit", "list"),
    ("audit", "verify"),
    ("policy", "check"),
    ("policy", "explain"),
    ("status",),
    *(
        ("alias", verb)
        for verb in (
            *("set", "show", "delete", "rollback", "canary", "promote", "abort", "compare", "history", "diff"),
            *("export", "apply"),
        )
    ),
)


def stored(cli, key, pepper):
    async def find():
        store = await SqliteStore.open(cli.folder / "state.db")
        try:
            return await store.find_key(digest(pepper.encode(), key))
        finally:
            await store.close()

    return asyncio.run(find())


def test_version_and_help(cli):
    assert cli.ok("--version") == f"gateway {version('gateway')}\n"
    shown = cli.ok("--help")
    for word in ("serve", "keys", "alias", "base_url", "Exit code"):
        assert word in shown
    for command in (("serve",), ("keys", "create"), ("keys", "list"), ("alias", "set"), ("keys", "revoke"), *NEW):
        assert "Example:" in cli.ok(*command, "--help")


def test_a_key_alone_is_on_stdout_and_works_under_the_gateways_pepper(cli):
    result = cli("keys", "create", "app1", "--tenant", "t1", "--role", "user", "--role", "viewer", "--alias", "chat-*")
    key = result.stdout.rstrip("\n")
    assert result.stdout == key + "\n"
    assert well_formed(key)
    assert key not in result.stderr
    assert "app1" in result.stderr
    record = stored(cli, key, (cli.folder / "pepper").read_text().strip()).key
    assert (record.name, record.tenant, record.roles, record.aliases) == ("app1", "t1", ("user", "viewer"), ("chat-*",))
    assert record.expires_at is None


def test_json_gives_the_whole_object(cli):
    made = json.loads(cli.ok("keys", "create", "app1", "--expires", "90d", "--json"))
    key = made.pop("key")
    assert well_formed(key)
    assert made["expires_at"] - made["created_at"] == pytest.approx(90 * 86_400)
    assert json.loads(cli.ok("keys", "list", "--json")) == [made]
    assert json.loads(cli.ok("keys", "show", "app1", "--json")) == made
    revoked = json.loads(cli.ok("keys", "revoke", "app1", "--json"))
    assert revoked["state"] == "revoked"
    assert key not in cli.ok("keys", "list", "--json")


def test_lists_in_a_pipe_are_lines_of_fields(cli):
    cli.ok("keys", "create", "app1", "--rpm", "5", "--concurrency", "2")
    header, line = cli.ok("keys", "list").splitlines()
    columns = ["ID", "NAME", "TENANT", "ROLES", "ALIASES", "CREATED", "EXPIRES", "STATE", "LIMITS", "SECRETS END"]
    assert header.split("\t") == columns
    assert line.split("\t")[1:5] == ["app1", "default", "-", "*"]
    assert line.split("\t")[6:] == ["-", "live", "5 rpm, 2 at once", "-"]
    assert "app1" in cli.ok("keys", "show", "app1")


def test_aliases_are_set_listed_and_shown(cli):
    assert cli.ok("alias", "set", "team/chat", "--model", "m1", "--note", "first") == ""
    set_again = json.loads(cli.ok("alias", "set", "team/chat", "--model", "m2", "--expect-revision", "1", "--json"))
    assert (set_again["revision"], set_again["source"], set_again["note"]) == (2, "cli", "")
    assert set_again["author"].startswith("cli:")
    assert set_again.pop("generation") == 2
    assert json.loads(cli.ok("alias", "list", "--json")) == [set_again]
    assert json.loads(cli.ok("alias", "show", "team/chat", "--json")) == set_again
    assert cli.ok("alias", "list").splitlines()[1].split("\t")[:3] == ["team/chat", "2", "m2"]
    assert "m2" in cli.ok("alias", "show", "team/chat")


def test_refusals_say_what_to_do(cli):
    assert "'gateway keys create' makes it" in cli.refused("keys", "list")
    assert not cli.folder.exists()
    cli.ok("keys", "create", "app1")
    assert "Revoke it, or choose another name" in cli.refused("keys", "create", "app1")
    assert "No key has that id or name. 'gateway keys list' lists all keys." in cli.refused("keys", "show", "none")
    assert "No key has that id or name. 'gateway keys list' lists all keys." in cli.refused("keys", "revoke", "none")
    assert "No alias has that name. 'gateway alias list'" in cli.refused("alias", "show", "none")
    cli.ok("alias", "set", "chat", "--model", "m1")
    assert "revision 1 (m1, set by cli:" in cli.refused(
        "alias", "set", "chat", "--model", "m2", "--expect-revision", "0"
    )
    assert "expected sqlite:///PATH" in cli.refused("keys", "list", "--state", "/var/lib/state.db", code=2)
    both = ("--state", "sqlite:///x/y", "--admin-url", "http://127.0.0.1:1")
    assert "not both" in cli.refused("keys", "list", *both, code=2)


@pytest.mark.parametrize(
    "args",
    [
        ("keys", "create"),
        ("keys", "create", "a b"),
        ("keys", "create", "app1", "--expires", "soon"),
        ("keys", "create", "app1", "--expires", "90"),
        ("keys", "create", "app1", "--expires", "0d"),
        ("keys", "create", "app1", "--alias", "a b"),
        ("keys", "create", "app1", "--rpm", "0"),
        ("keys", "create", "app1", "--rpm", "10000001"),
        ("keys", "create", "app1", "--tpm", "many"),
        ("keys", "rotate", "app1", "--overlap", "soon"),
        ("keys", "rotate", "app1", "--overlap", "91d"),
        ("audit", "list", "--limit", "0"),
        ("audit", "verify", "--expect", "5:" + "x" * 49),
        ("policy", "explain", "--key", "app1"),
        ("policy", "explain", "--key", "app1", "--alias", "a@1"),
        ("keys", "show", "gw_live_AAAAAAAA_" + "x" * 49),
        ("keys", "show", "../x"),
        ("keys", "nonsense"),
        ("alias", "set", "chat"),
        ("alias", "set", "chat@1", "--model", "m"),
        ("alias", "set", "a/../b", "--model", "m"),
        ("alias", "set", "chat", "--model", "m", "--note", "a\x1b[31m"),
        ("alias", "set", "chat", "--model", "m", "--expect-revision", "-1"),
        ("serve", "--nonsense"),
    ],
)
def test_wrong_usage_is_2_and_changes_nothing(cli, args):
    said = cli.refused(*args, code=2)
    assert "x" * 49 not in said
    assert not cli.folder.exists()


def test_a_key_is_not_made_under_a_pepper_that_the_gateway_does_not_use(cli):
    cli.env["GATEWAY_PEPPER"] = "p" * 40
    key = cli.ok("keys", "create", "app1").strip()
    assert stored(cli, key, "p" * 40).key.name == "app1"
    assert not (cli.folder / "pepper").exists()
    del cli.env["GATEWAY_PEPPER"]
    assert "Set GATEWAY_PEPPER" in cli.refused("keys", "create", "app2")
    assert not (cli.folder / "pepper").exists()


def test_a_damaged_store_or_secret_is_refused_in_words(cli):
    cli.ok("keys", "create", "app1")
    (cli.folder / "pepper").chmod(0o644)
    assert "chmod 600" in cli.refused("keys", "create", "app2")
    (cli.folder / "state.db").write_bytes(b"x" * 10_000)
    assert "damaged" in cli.refused("keys", "list")


def test_state_names_the_store(cli, tmp_path):
    url = f"sqlite://{tmp_path / 'other' / 'state.db'}"
    cli.ok("keys", "create", "app1", "--state", url)
    assert not cli.folder.exists()
    assert (tmp_path / "other" / "pepper").exists()
    cli.env["GATEWAY_STATE"] = url
    assert [key["name"] for key in json.loads(cli.ok("keys", "list", "--json"))] == ["app1"]


def test_every_command_works_through_a_gateway(cli, running):
    cli.env["GATEWAY_ADMIN_URL"] = running.url
    made = json.loads(cli.ok("keys", "create", "app1", "--expires", "1h", "--json"))
    assert stored(cli, made.pop("key"), running.secrets.pepper.reveal()).key.name == "app1"
    assert json.loads(cli.ok("keys", "list", "--json")) == [made]
    assert json.loads(cli.ok("keys", "show", made["id"], "--json")) == made
    assert json.loads(cli.ok("keys", "revoke", "app1", "--json"))["state"] == "revoked"
    alias = json.loads(cli.ok("alias", "set", "team/chat", "--model", "model-a", "--json"))
    assert (alias["author"], alias["source"]) == ("admin-token", "cli")
    assert alias.pop("generation") == 1
    assert json.loads(cli.ok("alias", "list", "--json")) == [alias]
    assert json.loads(cli.ok("alias", "show", "team/chat", "--json")) == alias
    assert "Served: model-a, model-b" in cli.refused("alias", "set", "chat", "--model", "model-c")
    cli.ok("alias", "set", "chat", "--model", "model-c", "--force")
    assert "revision 1" in cli.refused("alias", "set", "chat", "--model", "model-a", "--expect-revision", "0")
    assert "No key has that id or name" in cli.refused("keys", "show", "none")


def test_a_running_gateway_is_found_by_itself(cli, running):
    presence = Presence(cli.folder, running.url)
    try:
        assert json.loads(cli.ok("alias", "set", "chat", "--model", "model-a", "--json"))["author"] == "admin-token"
    finally:
        presence.close()
    assert json.loads(cli.ok("alias", "set", "chat", "--model", "model-a", "--json"))["author"].startswith("cli:")


def test_the_token_is_asked_for_kept_and_never_shown(cli, running, tmp_path):
    token = running.secrets.admin_token.reveal()
    wrong = "gwadmin_wrong" + "x" * 40
    said = cli.refused("keys", "list", "--admin-url", running.url, "--admin-token", wrong)
    assert "refused the admin token" in said
    assert wrong not in said
    elsewhere = replace(cli, home=tmp_path / "elsewhere", env=dict(cli.env))
    assert "Set GATEWAY_ADMIN_TOKEN" in elsewhere.refused("keys", "list", "--admin-url", running.url)
    elsewhere.env["GATEWAY_ADMIN_TOKEN"] = token
    assert elsewhere.ok("keys", "list", "--admin-url", running.url, "--json") == "[]\n"
    assert "Set GATEWAY_ADMIN_TOKEN" in cli.refused("keys", "list", "--admin-url", "http://gateway.example:9090")


def test_a_gateway_that_does_not_answer_is_said_so(cli, running):
    bound = bind("127.0.0.1", 0)
    port = bound.getsockname()[1]
    bound.close()
    assert f"No gateway answers at http://127.0.0.1:{port}" in cli.refused(
        "keys", "list", "--admin-url", f"http://127.0.0.1:{port}"
    )
    for bad in ("127.0.0.1:9090", "ftp://x", "http://user:hunter2@h:1", "http://", "http://h:99999"):
        said = cli.refused("keys", "list", "--admin-url", bad, code=2)
        assert "expected http://HOST:PORT" in said
        assert "hunter2" not in said


def test_serve_check_judges_the_configuration(cli, tmp_path):
    result = cli("serve", "--check", "--listen", "0.0.0.0:0")
    assert (result.exit_code, "warning: listen is 0.0.0.0:0" in result.stderr) == (0, True)
    result = cli("serve", "--check", "--engine", "http://127.0.0.1:1")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "The configuration is valid.\n")
    config = tmp_path / "gateway.yaml"
    config.write_text("lisen: 1\nattempts: 0\n")
    said = cli.refused("serve", "--check", "--config", str(config), "--listen", "x")
    for fault in (f"{config}:1: unknown setting", f"{config}:2: attempts: expected", "--listen: listen: expected"):
        assert fault in said
    (tmp_path / "guards.yaml").write_text("nonsense: 1\n")
    assert "guards.yaml:1:" in cli.refused("serve", "--check", "--policies", str(tmp_path))
    (tmp_path / "guards.yaml").unlink()
    assert "guards.yaml:0: file: expected this file" in cli.refused("serve", "--check", "--policies", str(tmp_path))
    assert not cli.folder.exists()


def test_a_key_is_rotated_and_its_text_alone_is_on_stdout(cli):
    first = cli.ok("keys", "create", "app1").strip()
    result = cli("keys", "rotate", "app1", "--overlap", "2h")
    second = result.stdout.rstrip("\n")
    assert (result.exit_code, result.stdout) == (0, second + "\n")
    assert well_formed(second)
    assert first.split("_")[2] == second.split("_")[2]
    assert first != second
    assert second not in result.stderr
    assert "works until 2" in result.stderr
    pepper = (cli.folder / "pepper").read_text().strip()
    assert {stored(cli, text, pepper).key.name for text in (first, second)} == {"app1"}
    view = json.loads(cli.ok("keys", "show", "app1", "--json"))
    assert view["secrets"][0]["expires_at"] is None
    assert view["secrets"][1]["expires_at"] - view["secrets"][0]["created_at"] == pytest.approx(7_200)
    assert cli.ok("keys", "list").splitlines()[1].split("\t")[-1].startswith("-, 2")
    assert "two live secrets" in cli.refused("keys", "rotate", "app1")
    assert "No key has that id or name. 'gateway keys list' lists all keys." in cli.refused("keys", "rotate", "none")
    cli.ok("keys", "create", "app2")
    ended = json.loads(cli.ok("keys", "rotate", "app2", "--overlap", "0s", "--json"))
    assert [secret["live"] for secret in ended["secrets"]] == [True, False]


def test_limits_of_a_key_are_given_and_shown(cli):
    cli.ok("keys", "create", "app1", "--rpm", "600", "--tpm", "100000", "--tpd", "5000000", "--concurrency", "8")
    limits = json.loads(cli.ok("keys", "show", "app1", "--json"))["limits"]
    assert tuple(limits.values()) == (600, 100_000, 5_000_000, 8)
    assert "600 rpm, 100000 tpm, 5000000 tpd, 8 at once" in cli.ok("keys", "show", "app1")


def test_a_role_that_the_policy_does_not_know_is_refused_on_a_store_as_well(cli, tmp_path):
    said = cli.refused("keys", "create", "app1", "--role", "opreator")
    assert "which knows admin, operator, user, viewer" in said
    assert "GATEWAY_POLICIES" in said
    assert "opreator" not in said
    assert not cli.folder.exists()
    (tmp_path / "policies" / "access.yaml").unlink()
    assert "access.yaml" in cli.refused("keys", "create", "app1", "--role", "user")
    cli.ok("keys", "create", "app1")


def test_a_key_with_admin_verbs_may_stand_in_for_the_token(cli, running):
    cli.env["GATEWAY_ADMIN_URL"] = running.url
    boss = cli.ok("keys", "create", "boss", "--role", "admin").strip()
    viewer = cli.ok("keys", "create", "seer", "--role", "viewer").strip()
    cli.env["GATEWAY_ADMIN_TOKEN"] = boss
    cli.ok("keys", "create", "app1")
    authors = [line["author"] for line in json.loads(cli.ok("audit", "list", "--json"))]
    assert authors == ["admin-token", "admin-token", f"key:{boss.split('_')[2]} (boss)"]
    cli.env["GATEWAY_ADMIN_TOKEN"] = viewer
    assert "keys:write" in cli.refused("keys", "create", "app2")
    assert "knows admin, operator, user, viewer" in cli.refused(
        "keys", "create", "app2", "--role", "x", "--admin-token", boss
    )


def test_every_page_of_keys_is_listed_through_a_gateway(cli, running, monkeypatch):
    for number in range(5):
        cli.ok("keys", "create", f"app{number}")
    cli.env["GATEWAY_ADMIN_URL"] = running.url
    asked = []
    real = httpx.AsyncClient.request

    async def in_pages(self, method, url, **more):
        if url == "/admin/keys":
            more["params"] = {**(more["params"] or {}), "limit": 2}
            asked.append(more["params"])
        return await real(self, method, url, **more)

    monkeypatch.setattr(httpx.AsyncClient, "request", in_pages)
    assert [key["name"] for key in json.loads(cli.ok("keys", "list", "--json"))] == [f"app{n}" for n in range(5)]
    assert len(asked) == 3


def test_a_redis_is_a_state_like_any_other(cli, redis_url):
    made = json.loads(cli.ok("keys", "create", "app1", "--rpm", "5", "--state", redis_url, "--json"))
    assert (cli.folder / "pepper").exists()
    cli.env["GATEWAY_STATE"] = redis_url.replace(":hunter2@", "")
    assert "redis" in cli.refused("keys", "list").lower()
    cli.env["GATEWAY_REDIS_PASSWORD"] = "hunter2"
    assert well_formed(made.pop("key"))
    assert json.loads(cli.ok("keys", "list", "--json")) == [made]
    assert well_formed(cli.ok("keys", "rotate", "app1").strip())
    cli.ok("alias", "set", "chat", "--model", "m1")
    cli.ok("alias", "canary", "chat", "--model", "m2")
    cli.ok("alias", "promote", "chat", "--wait")
    cli.ok("alias", "rollback", "chat", "--to", "1")
    cli.ok("alias", "delete", "chat")
    assert "deleted at revision 4" in cli.refused("alias", "set", "chat", "--model", "m", "--expect-revision", "4")
    assert cli.ok("alias", "export") == "aliases: {}\n"
    assert cli.ok("status").startswith("NAME")
    assert cli.ok("audit", "verify").startswith("7:")
    cli.env["GATEWAY_PEPPER"] = "x" * 40
    assert "under another pepper" in cli.refused("keys", "create", "app2")
    said = cli.refused("keys", "list", "--state", "redis://:hunter2@127.0.0.1:1/0")
    assert "hunter2" not in said


def test_control_characters_never_reach_a_terminal(capsys):
    print_fields([("name", "a\x1b[31m\tb\u2028c")])
    print_table("t", ("ONE", "TWO"), [("a\tb", "c\nd")])
    assert capsys.readouterr().out == "name  a?[31m?b?c\nONE\tTWO\na?b\tc?d\n"


@pytest.mark.parametrize(
    ("args", "code"),
    [(("keys", "create", "app1"), 0), (("keys", "list"), 1), (("keys", "create"), 2)],
)
def test_a_real_process_keeps_the_same_rules(tmp_path, args, code):
    env = {name: value for name, value in os.environ.items() if not name.startswith("GATEWAY_")}
    done = subprocess.run(
        [sys.executable, "-m", "gateway", *args],
        env={**env, "XDG_STATE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code
    assert done.stderr
    assert "Traceback" not in done.stderr
    if code == 0:
        assert well_formed(done.stdout.removesuffix("\n"))
    else:
        assert done.stdout == ""
