"""``gateway policy``: files judged, and a key and an alias explained."""

from __future__ import annotations

import json


def test_sound_files_are_said_to_be_sound(cli, tmp_path):
    result = cli("policy", "check")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == f"The policies in {tmp_path / 'policies'} are valid.\n"
    del cli.env["GATEWAY_POLICIES"]
    assert cli("policy", "check").exit_code == 0


def test_all_faults_of_all_files_are_said_at_once(cli, tmp_path):
    folder = tmp_path / "policies"
    (folder / "access.yaml").write_text("roles:\n  a: {admin: [keys:wirte]}\nlimits: {requests: 1}\ncanary-secret: 1\n")
    (folder / "guards.yaml").write_text("nonsense: 1\n")
    said = cli.refused("policy", "check", "--policies", str(folder))
    for fault in ("access.yaml:2: roles.a.admin[0]", "access.yaml:3: limits.requests", "guards.yaml:1: nonsense"):
        assert fault in said
    assert "keys:wirte" not in said


def test_a_folder_that_is_none_is_said_so(cli, tmp_path):
    assert "is no folder" in cli.refused("policy", "check", "--policies", str(tmp_path / "none"))
    (tmp_path / "empty").mkdir()
    assert "access.yaml" in cli.refused("policy", "check", "--policies", str(tmp_path / "empty"))


def test_a_key_and_an_alias_are_explained(cli):
    cli.ok("keys", "create", "app1", "--alias", "chat-*", "--tpm", "7")
    cli.ok("alias", "set", "chat-a", "--model", "m1")
    said = cli.ok("policy", "explain", "--key", "app1", "--alias", "chat-a")
    assert "goes through" in said
    assert "requests_per_minute\t60\trole user" in said
    assert "tokens_per_minute\t7\tkey" in said
    assert "standard (default)" in said
    assert "1, its tenant's share beside others that wait" in said
    refused = cli.ok("policy", "explain", "--key", "app1", "--alias", "other")
    assert "404 model_not_found" in refused
    assert "its own list does not have it" in refused
    view = json.loads(cli.ok("policy", "explain", "--key", "app1", "--alias", "chat-a", "--json"))
    assert (view["name"], view["allowed"], view["code"]) == ("app1", True, None)
    cli.ok("keys", "revoke", "app1")
    assert "401 invalid_api_key" in cli.ok("policy", "explain", "--key", "app1", "--alias", "chat-a")
    assert "No key has that id or name. 'gateway keys list'" in cli.refused(
        "policy", "explain", "--key", "none", "--alias", "chat-a"
    )


def test_a_gateway_explains_by_the_policy_that_it_has_in_force(cli, running):
    cli.ok("keys", "create", "app1")
    here = json.loads(cli.ok("policy", "explain", "--key", "app1", "--alias", "chat", "--json"))
    cli.env["GATEWAY_ADMIN_URL"] = running.url
    assert json.loads(cli.ok("policy", "explain", "--key", "app1", "--alias", "chat", "--json")) == here
