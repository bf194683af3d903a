"""Rules and alerts: by promtool, and against what a gateway really exports."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import httpx
import pytest
import yaml

from gateway import gauges
from gateway.admission.outcomes import Outcome
from gateway.errors import CODES
from gateway.fleet.life import Sign, State
from gateway.fleet.signals import Signal
from gateway.model import Endpoint, Priority

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
RULE_FILES = (DEPLOY / "prometheus" / "rules.yaml", DEPLOY / "prometheus" / "alerts.yaml")
CASES = yaml.safe_load((Path(__file__).parent / "alert_cases.yaml").read_text())
_GROUPS = [group for path in RULE_FILES for group in yaml.safe_load(path.read_text())["groups"]]
GROUPS = [group["name"] for group in _GROUPS]
RULES: list[dict[str, Any]] = [rule for group in _GROUPS for rule in group["rules"]]
ALERTS = {rule["alert"]: rule for rule in RULES if "alert" in rule}
RECORDED = {rule["record"]: rule["expr"] for rule in RULES if "record" in rule}
PANELS = [
    panel for panel in json.loads((DEPLOY / "grafana" / "gateway.json").read_text())["panels"] if panel["type"] != "row"
]


def _filled(expr: str) -> str:
    """A query of the dashboard as Prometheus gets it."""
    return re.sub(r"\$(job|instance|alias)\b", ".*", expr.replace("$__rate_interval", "5m"))


EXPRESSIONS = {
    **{rule.get("alert") or rule["record"]: rule["expr"] for rule in RULES},
    **{f"{p['title']} {t['refId']}": _filled(t["expr"]) for p in PANELS for t in p["targets"]},
}

OURS = {code for code, spec in CODES.items() if spec.status >= 500} | {"queue_full"}
"""Codes of failures that are not the caller's."""


def promtool(*args: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run it. A machine without it fails the test: a skip would pass for a check."""
    path = shutil.which("promtool")
    assert path, "promtool is missing: deploy/apt-install prometheus"
    return subprocess.run([path, *args], capture_output=True, text=True, check=False, timeout=300, **options)


# --- by promtool


@pytest.mark.parametrize("path", RULE_FILES, ids=lambda path: path.name)
def test_promtool_takes_the_rules(path):
    done = promtool("check", "rules", path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_takes_the_example_of_a_configuration():
    done = promtool("check", "config", "prometheus.yaml", cwd=DEPLOY / "prometheus")
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_takes_every_query_of_the_dashboard(tmp_path):
    queries = [_filled(target["expr"]) for panel in PANELS for target in panel["targets"]]
    rules = [{"record": f"panel:query:number{number}", "expr": query} for number, query in enumerate(queries)]
    path = tmp_path / "panels.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    done = promtool("check", "rules", path)
    assert done.returncode == 0, done.stdout + done.stderr


def _unit_test(alert: str, case: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """promtool's test that an alert fires, with these labels alone, or that it does not."""
    labels = {"alertname": alert, "alertstate": "firing", **case["labels"]}
    fired = [{"labels": "ALERTS{" + ", ".join(f'{n}="{v}"' for n, v in labels.items()) + "}", "value": 1}]
    query = f'ALERTS{{alertname="{alert}", alertstate="firing"}}'
    return {
        "name": f"{alert} {kind}",
        "interval": "1m",
        "input_series": [{"series": series, "values": values} for series, values in case[kind].items()],
        "promql_expr_test": [
            {"expr": query, "eval_time": case["at"], "exp_samples": fired if kind == "fires" else []},
        ],
    }


@pytest.mark.parametrize("every", sorted({case.get("every", "1m") for case in CASES.values()}))
def test_each_alert_fires_by_its_series_and_not_by_those_close_by(every, tmp_path):
    chosen = {alert: case for alert, case in CASES.items() if case.get("every", "1m") == every}
    tests = [_unit_test(alert, case, kind) for alert, case in chosen.items() for kind in ("fires", "silent")]
    path = tmp_path / "tests.yaml"
    files = [str(file) for file in RULE_FILES]
    # promtool's own order is random, and a value recorded 30 minutes ago is too old for an alert that comes before it.
    whole = {"rule_files": files, "group_eval_order": GROUPS, "evaluation_interval": every, "tests": tests}
    path.write_text(yaml.safe_dump(whole))
    done = promtool("test", "rules", path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_its_cases():
    assert list(CASES) == list(ALERTS)
    assert all(case["fires"] and case["silent"] for case in CASES.values())


# --- what an alert must have


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_says_how_bad_it_is_and_what_to_look_at_next(alert):
    rule = ALERTS[alert]
    assert re.fullmatch(r"\d+[smh]", rule["for"])
    assert rule["labels"]["severity"] in {"page", "ticket"}
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    assert rule["annotations"]["runbook_url"] == f"runbooks/{alert}.md"
    assert len(rule["annotations"]["description"]) > 80


@pytest.mark.parametrize("alert", ALERTS)
def test_the_labels_of_its_text_are_those_that_it_has_when_it_fires(alert):
    text = " ".join(ALERTS[alert]["annotations"].values())
    assert set(re.findall(r"\$labels\.(\w+)", text)) <= set(CASES[alert]["labels"])


def test_each_alert_has_a_runbook_and_each_runbook_an_alert():
    assert {path.stem for path in (DEPLOY / "runbooks").glob("*.md")} == set(ALERTS)


def test_symptoms_page_and_few_causes_do():
    pages = {alert for alert, rule in ALERTS.items() if rule["labels"]["severity"] == "page"}
    assert pages == {
        "GatewayErrorBudgetBurnFast",
        "GatewayFirstTokenBurnFast",
        "GatewayAliasFailing",
        "GatewayModelNotReady",
        "GatewayFleetNotReady",
        "GatewayDown",
        "GatewayStoreUnreachable",
    }


def test_recorded_names_have_level_metric_and_operation_and_are_used():
    for name in RECORDED:
        assert re.fullmatch(r"[a-z]+:[a-z_]+:[a-z0-9_]+", name)
        assert any(name in expr for other, expr in EXPRESSIONS.items() if other != name), f"nothing uses {name}"


@pytest.mark.parametrize("name", [name for name, expr in EXPRESSIONS.items() if "engine_timeout" in expr])
def test_failures_are_all_codes_that_are_not_the_callers_fault(name):
    for codes in re.findall(r'(?:code|error_type)=~"([^"]*engine_timeout[^"]*)"', EXPRESSIONS[name]):
        assert set(codes.split("|")) == OURS


def test_objectives_are_figures_and_stand_in_one_place():
    given = {name: expr for name, expr in RECORDED.items() if name.endswith(":objective")}
    assert len(given) == 2
    assert all(re.fullmatch(r"vector\(0\.\d+\)", expr) for expr in given.values())


# --- against what a gateway exports


class Use(NamedTuple):
    """A metric in an expression, with what is asked of its labels: name, operator, value."""

    metric: str
    matchers: tuple[tuple[str, str, str], ...] = ()


_SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)\s*\{([^}]*)\}")
_MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_NAME = re.compile(r"(?<![\w:.])([a-zA-Z_:][\w:]*)(?!\s*\()(?![\w:])")
_WORDS = {"and", "or", "unless", "bool", "Inf", "NaN", "offset"}


def uses(expr: str) -> Iterator[Use]:
    """Every metric in a PromQL expression."""
    for metric, inner in _SELECTOR.findall(expr):
        yield Use(metric, tuple(_MATCHER.findall(inner)))
    bare = re.sub(r"\[[^]]*\]", " ", _GROUPING.sub(" ", _SELECTOR.sub(" ", expr)))
    for name in _NAME.findall(re.sub(r'"[^"]*"', " ", bare)):
        if name not in _WORDS:
            yield Use(name)


def groupings(expr: str) -> set[str]:
    """Every label by which an expression groups or joins."""
    return {label.strip() for inner in _GROUPING.findall(expr) for label in inner.split(",") if label.strip()}


_SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
TARGET = {"job", "instance"}
MODEL = "sim-model"


@pytest.fixture(scope="module")
def exported(shared_site) -> dict[str, set[str]]:
    """Labels by the name of every series that a gateway may have, checked against the page of a running one."""
    gateway = shared_site.gateway([shared_site.engine()])
    metrics = gateway.gateway.core.metrics
    gauges.watch_share(metrics, SimpleNamespace(age=lambda: 0.0, instances=0, refused=0))  # with Redis alone
    gauges.watch_certificate(metrics, SimpleNamespace(expires_at=0.0))  # with TLS alone
    page = httpx.get(f"{gateway.admin_url}/metrics", trust_env=False).text
    found = {name: set() for name in re.findall(r"^# TYPE (process_\w+) ", page, re.MULTILINE)}
    for family in metrics.collect():
        for suffix in _SUFFIXES[family.type]:
            found[family.name + suffix] = {*family._labelnames, *(("le",) if suffix == "_bucket" else ())}
        typed = family.name + ("_total" if family.type == "counter" else "")
        assert f"# TYPE {typed} {family.type}\n" in page
    return found


def test_promtool_finds_nothing_in_the_page_of_a_gateway_that_has_served(shared_site, wait_until):
    """Names, units and types by Prometheus's rules, of families that every gateway has and of those that some do."""
    gateway = shared_site.gateway([shared_site.engine()])
    gateway.wait_ready(MODEL)
    metrics = gateway.gateway.core.metrics
    gauges.watch_share(metrics, SimpleNamespace(age=lambda: 0.0, instances=0, refused=0))  # with Redis alone
    gauges.watch_certificate(metrics, SimpleNamespace(expires_at=0.0))  # with TLS alone
    metrics.dry_runs.add("estimate", "same")
    ask = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "stream": True}
    headers = {"authorization": f"Bearer {gateway.key()}"}
    answer = httpx.post(f"{gateway.base_url}/chat/completions", json=ask, headers=headers, trust_env=False)
    assert answer.status_code == 200
    page = httpx.get(f"{gateway.admin_url}/metrics", trust_env=False).text
    for line in (
        'gateway_requests_total{endpoint="chat",status="200"} 1.0',
        'gateway_model_replicas{model="sim-model",state="ready"} 1.0',
        'gateway_model_aliases{model="sim-model"} 1.0',
        'gateway_queue_outcomes_total{outcome="full",priority="bulk"} 0.0',
        'gateway_canary_aborts_total{alias="sim-model"} 0.0',
        "gateway_body_memory_bytes 0.0",
    ):
        assert f"\n{line}\n" in page
    wait_until(lambda: "gateway_loop_lag_seconds_count 0.0" not in gateway.metrics(), "the loop's timer")
    done = promtool("check", "metrics", input=page)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_promtool_would_find_a_counter_that_passes_for_a_gauge():
    page = "# HELP gateway_drops_total Drops\n# TYPE gateway_drops_total gauge\ngateway_drops_total 1\n"
    assert "_total" in promtool("check", "metrics", input=page).stderr


@pytest.fixture(scope="module")
def known(exported) -> dict[str, set[str]]:
    """What may be used: also Prometheus's own series, and what rules record."""
    recorded = {name: groupings(expr) for name, expr in RECORDED.items()}
    for name, expr in RECORDED.items():
        recorded[name] |= {label for use in uses(expr) for label in recorded.get(use.metric, ())} & recorded[name]
    own = {"up": set(), "ALERTS": {"alertname", "alertstate", "severity"}}
    return {**exported, **own, **recorded}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_every_metric_and_label_is_one_that_a_gateway_exports(name, known):
    found = list(uses(EXPRESSIONS[name]))
    assert found or name.endswith(":objective")
    for use in found:
        assert use.metric in known, f"no such metric: {use.metric}"
        labels = {label for label, _, _ in use.matchers}
        assert labels <= known[use.metric] | TARGET, f"{use.metric} has no such label"
    of_all = set().union(TARGET, *(known[use.metric] for use in found))
    assert groupings(EXPRESSIONS[name]) <= of_all


def _values(of: type[StrEnum]) -> set[str]:
    return {member.value for member in of}


VALUES = {
    "state": _values(State),
    "sign": _values(Sign),
    "signal": _values(Signal),
    "priority": _values(Priority),
    "endpoint": _values(Endpoint),
    "outcome": _values(Outcome) | {"served", "failed"},
    "code": set(CODES),
    "error_type": {"", *CODES},
    "alertstate": {"firing"},
}
"""The closed set that a label's values come from."""


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_every_value_that_is_asked_for_is_one_that_its_label_can_have(name):
    for use in uses(EXPRESSIONS[name]):
        for label, _, value in use.matchers:
            if label in VALUES:
                assert set(value.split("|")) <= VALUES[label], f"{use.metric} never has this {label}"


def test_the_limit_of_the_first_token_is_a_bucket(shared_site):
    gateway = shared_site.gateway([shared_site.engine()])
    metric = "gen_ai_server_time_to_first_token_seconds"
    gateway.gateway.core.metrics.first_token.at("chat", "general").observe(0.1)
    (limit,) = re.findall(r'le="([^"]+)"', RECORDED["instance:first_tokens_in_time:sum"])
    assert re.search(rf'^{metric}_bucket{{[^}}]*le="{re.escape(limit)}"', gateway.metrics(), re.MULTILINE)


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        ('sum by (a, le) (rate(x_bucket{b=~"c|d", e!="f"}[5m])) > 1e3', [("x_bucket", {"b", "e"})]),
        ("a:b:c / on (job) group_left () scalar(d:e:f) and y", [("a:b:c", set()), ("d:e:f", set()), ("y", set())]),
        ("(z > 60 < Inf) or 0 * vector(1)", [("z", set())]),
    ],
)
def test_metrics_are_found_in_expressions(expr, expected):
    assert [(use.metric, {label for label, _, _ in use.matchers}) for use in uses(expr)] == expected
