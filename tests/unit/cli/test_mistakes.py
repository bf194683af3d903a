"""What people do wrong, and what they are told: the place, what was expected, what to do next, and the exit code."""

from __future__ import annotations

import asyncio
import io
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admin.schemas import KeyOrder
from gateway.cli import output
from gateway.cli.backend import CliFault, Misuse
from gateway.cli.choose import Where, choose
from gateway.cli.remote import RemoteBackend
from gateway.cli.run import time_option, waiting_time
from gateway.runner import finder
from gateway.secret import Secret
from gateway.server import bind
from gateway.settings import load_settings

NOBODY = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--admin-url", ""), "--admin-url: expected http://HOST:PORT"),
        (("--admin-url", NOBODY, "--admin-token", ""), "--admin-token: expected printable ASCII"),
        (("--admin-url", NOBODY, "--admin-token", "wr\u00f6ng"), "--admin-token: expected printable ASCII"),
        (("--admin-url", NOBODY, "--admin-token", "wrong\ntoken"), "--admin-token: expected printable ASCII"),
        (("--state", ""), "--state: expected sqlite:///PATH"),
        (("--state", "redis://h:0/0"), "--state: expected HOST:PORT of a Redis"),
    ],
)
def test_an_option_that_cannot_be_acted_on_is_wrong_usage_and_not_quoted(cli, args, words):
    said = cli.refused("alias", "set", "chat", "--model", "m", *args, code=2)
    assert words in said
    assert "ng" + "token" not in said
    assert "wr\u00f6ng" not in said
    assert not cli.folder.exists()


@pytest.mark.parametrize("name", ["GATEWAY_STATE", "GATEWAY_ADMIN_URL"])
def test_a_wrong_variable_is_named_and_is_no_usage_error(cli, name):
    cli.env[name] = "bogus"
    assert f"gateway: {name}: expected" in cli.refused("keys", "list")


@given(st.text(min_size=1))
def test_no_token_breaks_a_header(token):
    """Whatever is given is refused, or is what a header may hold."""
    where = Where(admin_url=NOBODY, admin_token=Secret(token))
    try:
        choose(where, {"HOME": "/nonexistent"})
    except Misuse:
        assert not token.isascii() or not all("!" <= character <= "~" for character in token)
    else:
        assert all("!" <= character <= "~" for character in token)


@pytest.mark.parametrize(
    ("args", "option", "words"),
    [
        (("a b",), "NAME", "the first a letter or a digit"),
        (("app", "--tenant", "a b"), "--tenant", "the first a letter or a digit"),
        (("app", "--role", "a b"), "--role", "the first a letter or a digit"),
        (("app", "--alias", ""), "--alias", "a glob with * and ?"),
        (("app", "--rpm", "10000001"), "--rpm", "10000000"),
        (("app", "--expires", "0d"), "--expires", "from 1s to 3660d"),
        (("app", "--expires", "3661d"), "--expires", "from 1s to 3660d"),
        (("app", "--expires", "soon"), "--expires", "such as 90d"),
    ],
)
def test_a_rule_that_a_value_breaks_is_told_in_words_with_the_option(cli, args, option, words):
    said = cli.refused("keys", "create", *args, code=2)
    assert f"Invalid value for '{option}'" in said
    assert words in said
    assert "pattern" not in said


def test_the_words_are_those_of_the_rules():
    assert KeyOrder.model_json_schema()["properties"]["expires_in"]["anyOf"][0]["maximum"] == 3_660 * 86_400


def test_waiting_needs_no_unit_and_anything_else_does():
    assert [waiting_time(text) for text in ("0", "600", "10m", "2h")] == [0, 600, 600, 7_200]
    for text in ("", "-1", "1y", "ten", "9" * 10, "\u0661"):
        with pytest.raises(Exception, match="expected seconds, or a number with a unit"):
            waiting_time(text)
    with pytest.raises(Exception, match="a unit"):
        time_option("600")
    assert time_option(None) is None


@pytest.mark.parametrize("command", [("alias", "set", "a", "--model", "m"), ("fleet", "drain", "127.0.0.1:1")])
def test_timeout_means_the_same_in_every_command(cli, command):
    assert "expected seconds, or a number with a unit" in cli.refused(*command, "--timeout", "1y", code=2)
    assert "seconds, or 10m" in cli.ok(*command[:2], "--help")


def test_who_makes_a_new_state_is_told_so_once(cli, tmp_path):
    state = ("--state", f"sqlite://{tmp_path / 'new.db'}")
    assert "Made a new state at sqlite://" in cli("keys", "create", "app1", *state).stderr
    assert "Made a new state" not in cli("keys", "create", "app2", *state).stderr
    said = cli.refused("keys", "list", "--state", f"sqlite://{tmp_path / 'none.db'}")
    assert "no gateway has run on it" in said
    assert "--admin-url, --state or GATEWAY_STATE" in said


def test_what_does_not_exist_is_answered_with_where_to_look(anywhere):
    anywhere("keys", "create", "app1")
    anywhere("alias", "set", "chat", "--model", "model-a")
    for args in (("show", "none"), ("rotate", "none"), ("revoke", "none")):
        assert (
            anywhere.refused("keys", *args)
            == "gateway: No key has that id or name. 'gateway keys list' lists all keys."
        )
    aliases = (("show", "chat@9"), ("diff", "chat", "1", "9"), ("delete", "none"), ("rollback", "none"))
    for args in (*aliases, ("history", "none"), ("promote", "none")):
        assert "'gateway alias history " in anywhere.refused("alias", *args)


@contextmanager
def answering(status: int, body: object) -> Iterator[str]:
    """A server that gives every request this answer; its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join(10)


@pytest.mark.parametrize(
    ("code", "words"),
    [("not_found", "it is an inference listener"), ("store_unavailable", "cannot use its state store now")],
)
def test_what_an_operator_can_do_about_an_answer_is_told(cli, code, words):
    with answering(404, {"error": {"code": code, "message": "No such path."}}) as url:
        said = cli.refused("keys", "list", "--admin-url", url, "--admin-token", "t" * 40)
    assert words in said
    assert url in said


@pytest.mark.parametrize(
    ("error", "read", "words"),
    [
        (httpx.ConnectTimeout("secret"), True, "No gateway answers at http://gw:9090 (no connection in 2 s)."),
        (httpx.ConnectError("[Errno -2] Name or service not known"), True, "([Errno -2] Name or service not known)."),
        (httpx.ConnectError("\x1b[31m" + "x" * 9_000), True, f"(?[31m{'x' * 195})."),
        (httpx.ReadTimeout("secret"), True, "broke off its answer (ReadTimeout)."),
        (httpx.ReadTimeout("secret"), False, "may have done what was asked all the same"),
        (httpx.RemoteProtocolError("secret"), False, "may have done what was asked all the same"),
    ],
)
def test_a_lost_answer_is_not_taken_for_a_gateway_that_is_not_there(error, read, words):
    def lost(request: httpx.Request) -> httpx.Response:
        raise error

    async def ask() -> None:
        async with RemoteBackend("http://gw:9090", Secret("t"), transport=httpx.MockTransport(lost)) as backend:
            await (backend.list_keys() if read else backend.create_key(KeyOrder(name="a")))

    with pytest.raises(CliFault) as raised:
        asyncio.run(ask())
    assert words in str(raised.value)
    assert "secret" not in str(raised.value)


def test_a_file_of_aliases_that_is_not_valid_is_no_configuration(cli, tmp_path):
    file = tmp_path / "aliases.yaml"
    file.write_text("aliases: [\n")
    cli.ok("alias", "set", "chat", "--model", "m")
    said = cli.refused("alias", "apply", str(file), "--yes")
    assert "the file is not valid, nothing was changed" in said
    assert f"{file}:2: file: expected YAML: " in said


def test_policy_files_that_are_not_valid_are_called_so(cli, tmp_path):
    (tmp_path / "guards.yaml").write_text("a: [\n")
    (tmp_path / "access.yaml").write_text("roles: {user: {aliases: ['*']}}\ndefault_roles: [usr]\n")
    said = cli.refused("policy", "check", "--policies", str(tmp_path))
    assert "the policy files are not valid" in said
    assert f"{tmp_path}/access.yaml:2: default_roles[0]: expected one of the roles" in said
    assert said.count("guards.yaml:") == 1  # what a broken file lacks is not told beside it


def test_an_address_that_is_taken_is_named_with_what_to_do(cli, tmp_path):
    taken = bind("127.0.0.1", 0)
    taken.listen()
    address = f"127.0.0.1:{taken.getsockname()[1]}"
    try:
        state = f"sqlite://{tmp_path / 'state.db'}"
        said = cli.refused("serve", "--listen", address, "--admin", "127.0.0.1:0", "--state", state)
    finally:
        taken.close()
    assert said.endswith(
        f"gateway: {address}: Address already in use. Something listens there already: stop it, or choose another port "
        "(--listen, --admin)."
    )


@pytest.mark.parametrize(
    ("state", "folder", "words"),
    [
        (None, None, ""),
        ("sqlite:///srv/a b/state.db", None, "GATEWAY_STATE='sqlite:///srv/a b/state.db' "),
        ("sqlite:///srv/state.db", "/etc/gateway", "GATEWAY_STATE_FOLDER=/etc/gateway "),
        ("redis://127.0.0.1:6379/0", None, ""),
        ("redis://127.0.0.1:6379/0", "/etc/gateway", "GATEWAY_STATE_FOLDER=/etc/gateway "),
    ],
)
def test_the_first_key_is_made_where_the_gateway_is(tmp_path, state, folder, words):
    """The command that is shown finds the gateway that shows it, also where its state is not the usual one."""
    env = {"HOME": str(tmp_path)}
    config = tmp_path / "gateway.yaml"
    config.write_text("" if folder is None else f"state_folder: {folder}\n")
    assert finder(load_settings({"state": state}, env, config), env) == words
    env["GATEWAY_STATE"] = "sqlite:///srv/x.db"
    assert finder(load_settings({}, env), env) == ""


def test_a_switch_shows_no_value_in_help(cli):
    for command in ((), ("serve",), ("keys",), ("keys", "list"), ("alias", "apply"), ("fleet", "list")):
        shown = cli.ok(*command, "--help")
        assert "<bool>" not in shown
        assert "--help" in shown
    assert "[[" not in cli.ok("alias", "diff", "--help") + cli.ok("alias", "export", "--help")


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("columns", "table"), [("60", False), ("200", True)])
def test_a_narrow_terminal_gets_a_field_a_line(monkeypatch, columns, table):
    screen = Terminal()
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(sys, "stdout", screen)
    row = ("127.0.0.1:8001", "ready", "2026-01-01 00:00:00Z", "why " * 20)
    output.print_table("Engines", ("ID", "STATE", "SINCE", "WHY"), [row, row])
    shown = screen.getvalue()
    assert ("\u2502" in shown) is table
    assert shown.count("127.0.0.1:8001") == shown.count("2026-01-01 00:00:00Z") == 2
    assert ("id     127.0.0.1:8001\n" in shown) is not table


def test_an_empty_table_is_one_at_any_width(monkeypatch):
    screen = Terminal()
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setattr(sys, "stdout", screen)
    output.print_table("T", ("ONE", "TWO", "THREE"), [])
    assert "T" in screen.getvalue()
