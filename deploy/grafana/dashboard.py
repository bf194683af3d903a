"""The dashboard that Grafana imports, made of ``panels.yaml``: ``python deploy/grafana/dashboard.py``.

It writes ``gateway.json`` beside this file. A panel is edited in ``panels.yaml``, never there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).resolve().parent
WIDTH, HEIGHT = 24, 8
"""Columns of Grafana's grid, and the height of a panel in its units."""

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_HERE = 'job=~"$job", instance=~"$instance"'
_LABELS = {
    "HERE": _HERE,
    "ALIAS": f'{_HERE}, gen_ai_request_model=~"$alias"',
    "REVISION": f'{_HERE}, alias=~"$alias"',
}
"""What stands for labels in ``panels.yaml``."""

Written = Mapping[str, Any]
"""A row, a panel or a query as ``panels.yaml`` has it."""


def dashboard(rows: Sequence[Written]) -> dict[str, Any]:
    """What Grafana imports."""
    return {
        "title": "Inference gateway",
        "uid": "inference-gateway",
        "description": "Made by deploy/grafana/dashboard.py: edit there.",
        "tags": ["gateway"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": list(_variables())},
        "annotations": {"list": [_alert_marks()]},
        "panels": list(_laid_out(rows)),
    }


def render(panels: str) -> str:
    """The text of ``gateway.json``, by that of ``panels.yaml``."""
    return json.dumps(dashboard(yaml.safe_load(panels)), indent=1) + "\n"


def _variables() -> Iterator[dict[str, Any]]:
    yield {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "current": {}}
    for name, label, query in (
        ("job", "Gateways", "label_values(gateway_alias_generation, job)"),
        ("instance", "Instance", 'label_values(gateway_alias_generation{job=~"$job"}, instance)'),
        (
            "alias",
            "Alias",
            'label_values(gen_ai_server_request_duration_seconds_count{job=~"$job"}, gen_ai_request_model)',
        ),
    ):
        yield {
            "name": name,
            "label": label,
            "type": "query",
            "datasource": _SOURCE,
            "query": {"query": query, "refId": name},
            "definition": query,
            "refresh": 2,
            "sort": 1,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": ["All"], "value": ["$__all"]},
        }


def _alert_marks() -> dict[str, Any]:
    return {
        "name": "Alerts",
        "datasource": _SOURCE,
        "enable": True,
        "iconColor": "red",
        "expr": 'ALERTS{alertname=~"Gateway.*", alertstate="firing", job=~"$job"}',
        "titleFormat": "{{alertname}}",
        "textFormat": "{{instance}} {{replica}} {{gen_ai_request_model}}",
        "step": "60s",
    }


def _laid_out(rows: Sequence[Written]) -> Iterator[dict[str, Any]]:
    """Panels with their places: a heading, and below it the row's panels side by side."""
    number, top = 0, 0
    for row in rows:
        number += 1
        place = {"x": 0, "y": top, "w": WIDTH, "h": 1}
        yield {"id": number, "type": "row", "title": row["title"], "collapsed": False, "gridPos": place, "panels": []}
        top, left = top + 1, 0
        height = HEIGHT // 2 if all(panel.get("kind") == "stat" for panel in row["panels"]) else HEIGHT
        for panel in row["panels"]:
            number += 1
            yield _panel(number, panel, {"x": left, "y": top, "w": panel["width"], "h": height})
            left += panel["width"]
        top += height


def _panel(number: int, panel: Written, place: dict[str, int]) -> dict[str, Any]:
    kind = panel.get("kind", "timeseries")
    return {
        "id": number,
        "type": kind,
        "title": panel["title"],
        "description": panel["meaning"],
        "datasource": _SOURCE,
        "gridPos": place,
        "targets": [
            _target(index, kind, legend, expr) for index, (legend, expr) in enumerate(_queries(panel["queries"]))
        ],
        "fieldConfig": {"defaults": _defaults(kind, panel), "overrides": []},
        "options": _OPTIONS[kind],
        **({"transformations": [_WITHOUT_TIME]} if kind == "table" else {}),
    }


def _queries(written: Sequence[Written]) -> Iterator[tuple[str, str]]:
    """The legend and the expression of each query, quantiles one by one."""
    for query in written:
        if "expr" in query:
            yield query["legend"], _with_labels(query["expr"])
        for quantile in query.get("quantiles", ()):
            yield (
                f"{query['legend']} p{quantile * 100:g}",
                f"histogram_quantile({quantile}, {_with_labels(query['of'])})",
            )


def _with_labels(expr: str) -> str:
    for name, labels in _LABELS.items():
        expr = expr.replace(name, labels)
    return expr


def _target(index: int, kind: str, legend: str, expr: str) -> dict[str, Any]:
    instant = kind != "timeseries"
    return {
        "refId": chr(ord("A") + index),
        "datasource": _SOURCE,
        "expr": expr,
        "legendFormat": legend,
        "instant": instant,
        "range": not instant,
        **({"format": "table"} if kind == "table" else {}),
    }


def _defaults(kind: str, panel: Written) -> dict[str, Any]:
    """How values are drawn. Nothing is below 0."""
    if kind != "timeseries":
        return {"unit": panel["unit"]}
    whole = panel.get("whole", False)
    stacking = {"mode": "normal" if whole else "none", "group": "A"}
    custom = {"lineWidth": 1, "fillOpacity": 30 if whole else 0, "showPoints": "never", "stacking": stacking}
    return {"unit": panel["unit"], "min": 0, "custom": custom}


_OPTIONS: dict[str, dict[str, Any]] = {
    "timeseries": {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "textMode": "value_and_name"},
    "table": {"showHeader": True},
}
_WITHOUT_TIME = {"id": "organize", "options": {"excludeByName": {"Time": True, "Value": True}}}


if __name__ == "__main__":
    (FOLDER / "gateway.json").write_text(render((FOLDER / "panels.yaml").read_text("utf-8")), encoding="utf-8")
