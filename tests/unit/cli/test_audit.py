"""``gateway audit``: what is read, and what is proved."""

from __future__ import annotations

import json
import sqlite3


def tamper(cli, statement):
    """Change the state behind the store's back, its guards removed first."""
    with sqlite3.connect(cli.folder / "state.db", isolation_level=None) as db:
        for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
            db.execute(f"DROP TRIGGER {name}")
        db.execute(statement)
    db.close()


def written(cli, count):
    for number in range(count):
        cli.ok("keys", "create", f"app{number}")


def test_the_newest_lines_are_listed_and_more_from_where_one_likes(cli):
    written(cli, 4)
    header, *lines = cli.ok("audit", "list", "--limit", "2").splitlines()
    assert header.split("\t") == ["NUMBER", "TIME", "AUTHOR", "VERB", "SUBJECT", "DETAIL"]
    assert [line.split("\t")[0] for line in lines] == ["3", "4"]
    assert lines[0].split("\t")[2].startswith("cli:")
    assert lines[0].split("\t")[3] == "key.create"
    shown = json.loads(cli.ok("audit", "list", "--after", "1", "--limit", "2", "--json"))
    assert [line["number"] for line in shown] == [2, 3]
    assert json.loads(shown[0]["detail"])["name"] == "app1"
    assert cli.ok("audit", "list", "--after", "4", "--json") == "[]\n"


def test_a_whole_trail_gives_a_line_to_keep_and_to_give_back(cli):
    written(cli, 3)
    result = cli("audit", "verify")
    assert (result.exit_code, result.stdout[:2]) == (0, "3:")
    assert "whole: 3 lines" in result.stderr
    kept = result.stdout.strip()
    cli.ok("alias", "set", "chat", "--model", "m1")
    assert cli.ok("audit", "verify", "--expect", kept).startswith("4:")
    assert json.loads(cli.ok("audit", "verify", "--json"))["whole"] is True
    said = cli.refused("audit", "verify", "--expect", f"3:{'0' * 64}")
    assert "broken at line 3" in said
    assert "rewritten" in said


def test_a_changed_line_is_named_and_what_to_do_is_said(cli):
    written(cli, 5)
    tamper(cli, "UPDATE audit SET author = 'cli:other' WHERE number = 3")
    said = cli.refused("audit", "verify")
    assert "broken at line 3" in said
    assert "The 2 lines before are whole" in said
    assert "backup" in said
    result = cli("audit", "verify", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["broken_at"] == 3


def test_a_trail_cut_at_its_end_is_found(cli):
    written(cli, 4)
    tamper(cli, "DELETE FROM audit WHERE number = 4")
    assert "missing from here" in cli.refused("audit", "verify")


def test_a_trail_rewritten_as_a_whole_is_found_by_what_was_kept(cli):
    written(cli, 3)
    kept = cli.ok("audit", "verify").strip()
    for name in ("state.db", "state.db-wal", "state.db-shm"):
        (cli.folder / name).unlink(missing_ok=True)
    written(cli, 3)
    assert cli.ok("audit", "verify").startswith("3:")
    assert "broken at line 3" in cli.refused("audit", "verify", "--expect", kept)


def test_a_gateway_shows_and_proves_the_same(cli, running):
    written(cli, 3)
    here, proved = cli.ok("audit", "list", "--json"), cli.ok("audit", "verify")
    cli.env["GATEWAY_ADMIN_URL"] = running.url
    assert cli.ok("audit", "list", "--json") == here
    assert cli.ok("audit", "verify", "--expect", proved.strip()) == proved
    tamper(cli, "UPDATE audit SET at = 1.0 WHERE number = 2")
    assert "broken at line 2" in cli.refused("audit", "verify")
