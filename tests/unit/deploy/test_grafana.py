"""The dashboard: that it is what its source makes, and that Grafana finds nothing in it that is there twice."""

from __future__ import annotations

import importlib.util
import json
import re
from collections import Counter
from itertools import combinations
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parents[3] / "deploy" / "grafana"
TEXT = (FOLDER / "gateway.json").read_text()
BOARD: dict[str, Any] = json.loads(TEXT)
PANELS: list[dict[str, Any]] = BOARD["panels"]
SHOWN = [panel for panel in PANELS if panel["type"] != "row"]
UNITS = {"none", "short", "s", "percentunit", "reqps"}


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("dashboard", FOLDER / "dashboard.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_is_what_its_source_makes():
    """When this fails: python deploy/grafana/dashboard.py."""
    assert _generator().render((FOLDER / "panels.yaml").read_text()) == TEXT


def test_numbers_and_titles_are_there_once():
    assert [panel["id"] for panel in PANELS] == list(range(1, len(PANELS) + 1))
    assert max(Counter(panel["title"] for panel in PANELS).values()) == 1


def _cells(panel: dict[str, Any]) -> set[tuple[int, int]]:
    at = panel["gridPos"]
    return {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}


def test_panels_fill_the_grid_and_none_lies_on_another():
    for one, two in combinations(PANELS, 2):
        assert not _cells(one) & _cells(two), f"{one['title']} lies on {two['title']}"
    cells = set().union(*map(_cells, PANELS))
    height = max(y for _, y in cells) + 1
    assert cells == {(x, y) for x in range(24) for y in range(height)}


@pytest.mark.parametrize("panel", SHOWN, ids=lambda panel: panel["title"])
def test_a_panel_says_what_it_means_in_which_unit_and_asks_the_chosen_source(panel):
    assert len(panel["description"]) > 15
    assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
    assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"]) > 0
    for each in (panel, *panel["targets"]):
        assert each["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


@pytest.mark.parametrize("panel", SHOWN, ids=lambda panel: panel["title"])
def test_a_query_is_filled_in_and_its_legend_has_labels_that_are_there(panel):
    for target in panel["targets"]:
        expr = target["expr"]
        assert not re.search(r"\b(HERE|ALIAS|REVISION)\b", expr)
        assert 'job=~"$job"' in expr
        if "gen_ai_request_model" in expr:
            assert 'gen_ai_request_model=~"$alias"' in expr
        for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
            grouped = re.findall(r"by \(([^)]*)\)", expr)
            assert label in {"job", "instance", "gen_ai_request_model"} or any(label in names for names in grouped)


def test_every_variable_that_is_used_is_there_and_every_one_is_used():
    there = {variable["name"] for variable in BOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z]+)\b", json.dumps(SHOWN)))
    assert used == there == {"datasource", "job", "instance", "alias"}


def test_what_the_night_needs_is_on_it():
    titles = {panel["title"] for panel in SHOWN}
    assert titles >= {
        "Errors by code",
        "Time to first token",
        "Time per output token",
        "Queue wait",
        "Queue depth",
        "In flight against room",
        "Replica states",
        "Ready by model",
        "Retries and ejections",
        "Overhead",
        "Loop lag",
        "Failures by revision",
        "Age of signals, missing signals",
        "Refused by limits",
        "Records lost, certificate",
    }


def test_panels_that_runbooks_and_alerts_name_are_on_it():
    """A name in quotation marks that begins as a panel's title does is that of a panel."""
    deploy = FOLDER.parent
    alerts = (deploy / "prometheus" / "alerts.yaml").read_text()
    texts = [path.read_text() for path in (deploy / "runbooks").glob("*.md")]
    named = {name for text in texts for name in re.findall(r'"([A-Z][^"\n]{4,40})"', text)}
    named |= set(re.findall(r'"([A-Z][a-zA-Z ]{4,40})"', re.sub(r"summary: .*", "", alerts)))
    assert named
    titles = [panel["title"] for panel in SHOWN]
    parts = {part.strip().capitalize() for title in titles for part in title.split(",")}
    legends = {"Load of others", "Days of certificate"}
    for name in named:
        assert any(title.startswith(name) for title in titles) or name in parts | legends, name
