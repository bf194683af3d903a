"""The shape of the repository: tests mirror the code, the top level stays closed, and no file speaks of a workplace."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE, TESTS = ROOT / "gateway", ROOT / "tests" / "unit"

TOP_LEVEL = {
    "README.md",
    "CHANGELOG.md",
    "Makefile",
    "pyproject.toml",
    "requirements.lock",
    "gateway",
    "policies",
    "deploy",
    "tests",
    "loadtests",
}

# Modules without a test file of their own, and why: what is behind the colon is where they are tested.
_ADMIN = "a resource of the admin API, told as one story: admin/test_admin.py"
_COMMAND = "a part of the command line, run as a command: cli/test_cli.py"
EXCUSED = {
    "__main__.py": "three lines that call cli.main: cli/test_cli.py",
    "configfile.py": "read only through the settings: test_settings.py",
    "configvalues.py": "read only through the settings: test_settings.py",
    "needs.py": "protocols alone: test_proxy.py",
    "core.py": "values that the composition root fills: test_app.py",
    "planes.py": "a part of the composition root: test_app.py",
    "runner.py": "the process around the composition root: cli/test_cli.py",
    "admin/aliases.py": _ADMIN,
    "admin/build.py": _ADMIN,
    "admin/errors.py": _ADMIN,
    "admin/gate.py": _ADMIN,
    "admin/handlers.py": _ADMIN,
    "admin/health.py": _ADMIN,
    "admin/keys.py": _ADMIN,
    "admin/metrics.py": _ADMIN,
    "admin/news.py": "what the views of the policy are made of: admin/test_rules.py",
    "admin/operations.py": _ADMIN,
    "admin/reads.py": _ADMIN,
    "admin/schemas.py": _ADMIN,
    "admin/state.py": _ADMIN,
    "admin/explainviews.py": "the views of one route: admin/test_explaining.py",
    "cli/alias.py": _COMMAND,
    "cli/backend.py": _COMMAND,
    "cli/choose.py": _COMMAND,
    "cli/faults.py": _COMMAND,
    "cli/keys.py": _COMMAND,
    "cli/local.py": _COMMAND,
    "cli/main.py": _COMMAND,
    "cli/output.py": _COMMAND,
    "cli/remote.py": _COMMAND,
    "cli/run.py": _COMMAND,
    "cli/serve.py": _COMMAND,
    "fleet/balance/pool.py": "what a balancer keeps for each model: fleet/balance/test_balancer.py",
    "fleet/surroundings.py": "values that all watches are given: fleet/test_watch.py",
    "identity/keyset.py": "the values that the parsing of keys makes: identity/test_jwk.py",
    "policy/content.py": "a kind of body rule: policy/test_guards.py",
    "policy/document.py": "how a policy file is read: policy/test_guards.py",
    "policy/kinds.py": "the kinds of body rules: policy/test_guards.py",
    "policy/rules.py": "the body rules: policy/test_guards.py",
    "policy/schemas.py": "a kind of body rule: policy/test_guards.py",
    "stores/alias_queries.py": "the SQL behind one store: stores/test_store.py",
    "stores/audit_queries.py": "the SQL behind one store: stores/test_store.py",
    "stores/instance_queries.py": "the SQL behind one store: stores/test_store.py",
    "stores/interfaces.py": "protocols, kept by every store: stores/test_store.py",
    "stores/key_queries.py": "the SQL behind one store: stores/test_store.py",
    "stores/open.py": "from a URL to a store: stores/test_store.py",
    "stores/queries.py": "the SQL behind one store: stores/test_store.py",
    "stores/redis_aliases.py": "the commands behind one store: stores/test_redis.py",
    "stores/redis_keys.py": "the commands behind one store: stores/test_redis.py",
    "stores/redis_instances.py": "the commands behind one store: stores/test_store.py",
    "stores/redis_records.py": "the values behind one store: stores/test_redis.py",
    "stores/redis_scripts.py": "the scripts behind one store: stores/test_redis.py",
    "stores/redis_state.py": "how one store plans and writes: stores/test_redis.py",
    "stores/schema.py": "the tables behind one store: stores/test_sqlite.py",
    "stores/trail.py": "what audit lines say, in any store: stores/test_store.py",
    "wire/answer.py": "the other half of the pool: wire/test_upstream.py",
    "wire/engineconnection.py": "the other half of the pool: wire/test_upstream.py",
    "wire/exchange.py": "protocols, kept by the server: wire/test_connection.py",
}

# In two pieces each, or this file would find itself.
UNWANTED = ("/wo" + "rk/", "/ro" + "ot/", "sha" + "red/", "TO" + "DO", "FIX" + "ME")
_BINARY = {".png", ".gz", ".zip", ".db", ".pyc"}


def _modules() -> list[str]:
    found = (path.relative_to(CODE).as_posix() for path in CODE.rglob("*.py"))
    return sorted(name for name in found if not name.endswith("__init__.py"))


def _test_of(module: str) -> Path:
    path = Path(module)
    return TESTS / path.parent / f"test_{path.name}"


def _ignored() -> set[str]:
    return {line.strip().rstrip("/") for line in (ROOT / ".gitignore").read_text().splitlines() if line.strip()}


def _is_ignored(name: str, ignored: set[str]) -> bool:
    return name == ".git" or any(Path(name).match(pattern) for pattern in ignored)


def _files() -> Iterator[Path]:
    ignored = _ignored()
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if not _is_ignored(name, ignored)]
        yield from (Path(folder, name) for name in names if not _is_ignored(name, ignored))


@pytest.mark.parametrize("module", _modules())
def test_a_module_has_its_own_test_or_a_reason(module):
    if module in EXCUSED:
        assert (TESTS / EXCUSED[module].rpartition(": ")[2]).is_file()
    else:
        assert _test_of(module).is_file(), f"tests/unit/{_test_of(module).relative_to(TESTS)} is missing"


def test_an_excuse_is_for_a_module_that_is_there_and_has_no_test_of_its_own():
    assert set(EXCUSED) <= set(_modules())
    assert [module for module in EXCUSED if _test_of(module).is_file()] == []


def test_a_package_file_holds_no_code():
    assert [path for path in CODE.rglob("__init__.py") if path.read_text().strip()] == []


def test_the_top_level_holds_what_it_should_and_nothing_else():
    ignored = _ignored()
    there = {path.name for path in ROOT.iterdir() if not _is_ignored(path.name, ignored)}
    assert {name for name in there if not name.startswith(".")} == TOP_LEVEL


def test_no_file_names_a_workplace_or_holds_a_mark_of_unfinished_work():
    found, read = [], 0
    for path in _files():
        if path.suffix in _BINARY:
            continue
        read += 1
        text = path.read_text(encoding="utf-8", errors="replace")
        found += [f"{path.relative_to(ROOT)}: {word}" for word in UNWANTED if word in text]
    assert found == []
    assert read > 100


def test_modules_are_small():
    sizes = {module: len((CODE / module).read_text().splitlines()) for module in _modules()}
    assert {module: size for module, size in sizes.items() if size > 400} == {}
