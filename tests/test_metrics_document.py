"""The table of docs/metrics.md, the alert rules and the dashboard name metrics that exist."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from sparklog.broker.metrics import METRICS
from sparklog.config import BrokerConfig, Settings, parse

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs/metrics.md"
TABLE = re.compile(r"(<!-- begin: generated .* -->\n).*?(<!-- end -->)", re.DOTALL)

ASKED = (
    "UnderReplicatedPartitions",
    "OfflinePartitionsCount",
    "UnderMinIsrPartitionCount",
    "ActiveControllerCount",
    "IsrShrinksPerSec",
    "IsrExpandsPerSec",
    "LeaderElectionRateAndTimeMs",
    "UncleanLeaderElectionsPerSec",
    "MaxLag",
    "BytesInPerSec",
    "MessagesInPerSec",
    "PurgatorySize",
    "TotalTimeMs",
)
"""Kafka's metrics that operators watch first."""

SERIES = {
    series
    for one in METRICS.values()
    for series in (
        [f"{one.name}_{part}" for part in ("bucket", "sum", "count")]
        if one.kind == "histogram"
        else [one.name]
    )
}


def generated() -> str:
    """Return the table of all metrics."""
    lines = ["| name | kind | labels | Kafka | |", "|---|---|---|---|---|"]
    for one in METRICS.values():
        labels = ", ".join(f"`{label}`" for label in one.labels)
        lines.append(f"| `{one.name}` | {one.kind} | {labels} | {one.kafka} | {one.description} |")
    return "\n".join(lines) + "\n"


def test_the_table_of_names_is_that_of_the_code() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    expected, found = TABLE.subn(lambda of: of[1] + generated() + of[2], text)
    assert found == 1
    if os.environ.get("REWRITE"):
        DOCUMENT.write_text(expected, encoding="utf-8")
    assert DOCUMENT.read_text(encoding="utf-8") == expected


def test_names_are_those_of_the_jmx_exporters_rules() -> None:
    """Its rule for Kafka: domain, type and name in lower case; PerSec is a counter, `_total`."""
    kafka = {one.kafka: one for one in METRICS.values() if one.kafka}
    assert set(ASKED) <= kafka.keys()
    for name, one in kafka.items():
        end = name.removesuffix("PerSec").lower()
        suffix = "_total" if one.kind == "counter" else ""
        assert re.fullmatch(rf"kafka_(server|controller|network|log)_\w+_{end}{suffix}", one.name)
    for one in METRICS.values():
        assert one.kafka or one.name.startswith("sparklog_")
        assert one.name.endswith("_total") == (one.kind == "counter"), one.name


def test_the_keys_are_described_with_their_defaults() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    for name, field in Settings.model_fields.items():
        if name.startswith("metrics_"):
            default = "off" if field.default is None else f"`{field.default}`"
            assert f"| `{field.alias}` | {default} |" in text


def test_the_configurations_that_the_document_shows_are_valid() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    shown = [yaml.safe_load(one) for one in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]
    brokers = [one for one in shown if any(key.startswith("metrics.") for key in one)]
    assert len(brokers) == 2
    required = {"cluster.root": "/c", "broker.id": 0, "log.dirs": "/b"}
    for one in brokers:
        parse(BrokerConfig, required | one, "docs/metrics.md")
    [prometheus] = [one for one in shown if one not in brokers]
    [job] = prometheus["scrape_configs"]
    ports = [brokers[0]["metrics.http.port"] + number for number in range(3)]
    assert job["static_configs"] == [{"targets": [f"localhost:{port}" for port in ports]}]


def check_expression(expression: str) -> None:
    """Assert that a query names existing series, and has matching brackets."""
    named = set(re.findall(r"\b(?:kafka|sparklog)_\w+", expression))
    assert named <= SERIES, named - SERIES
    assert named
    for opening, closing in ("()", "[]", "{}"):
        assert expression.count(opening) == expression.count(closing), expression
    for series in re.findall(r"(?:rate|increase)\((\w+)", expression):
        assert series.endswith(("_total", "_bucket", "_sum", "_count")), expression


def test_every_alert_is_a_rule_on_existing_metrics_and_is_explained() -> None:
    text = (ROOT / "conf/prometheus/alerts.yaml").read_text(encoding="utf-8")
    [group] = yaml.safe_load(text)["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    for rule in rules:
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        check_expression(rule["expr"])
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"]
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "0s"))
    explained = re.findall(
        r"^\| `(Sparklog\w+)`", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert [rule["alert"] for rule in rules] == explained


def test_each_alert_fires_on_the_series_of_its_test() -> None:
    """`promtool test rules`, where promtool is installed; it names each alert that does not."""
    folder = ROOT / "conf/prometheus"
    tests = yaml.safe_load((folder / "alerts_test.yaml").read_text(encoding="utf-8"))["tests"]
    firing = {
        one["alertname"] for of in tests for one in of["alert_rule_test"] if one.get("exp_alerts")
    }
    rules = yaml.safe_load((folder / "alerts.yaml").read_text(encoding="utf-8"))
    assert firing == {rule["alert"] for rule in rules["groups"][0]["rules"]}
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool, a part of Prometheus, is not installed")
    for arguments in (("check", "alerts.yaml"), ("test", "alerts_test.yaml")):
        done = subprocess.run(
            [promtool, arguments[0], "rules", arguments[1]],
            cwd=folder,
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    text = (ROOT / "conf/grafana/sparklog.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def test_the_dashboards_queries_are_on_existing_metrics(dashboard: dict[str, Any]) -> None:
    shown_queries = [target["expr"] for one in dashboard["panels"] for target in one["targets"]]
    variables = dashboard["templating"]["list"]
    queries = shown_queries + [one["query"] for one in variables if one["type"] == "query"]
    for query in queries:
        check_expression(query)
    shown = set(re.findall(r"\b(?:kafka|sparklog)_\w+", " ".join(queries)))
    for name in ASKED:
        [one] = [one for one in METRICS.values() if one.kafka == name]
        if name != "LeaderElectionRateAndTimeMs":
            assert any(of.startswith(one.name) for of in shown), name
    for query in shown_queries:
        # Kafka's own brokers have metrics of the same names.
        selectors = query.count('{job=~"$job", instance=~"$instance"')
        assert selectors == len(re.findall(r"\b(?:kafka|sparklog)_\w+", query)), query
    assert all(len(one["description"]) > 20 for one in dashboard["panels"])
    names = {one["name"] for one in variables} | {"__rate_interval"}
    assert set(re.findall(r"\$(\w+)", " ".join(queries))) <= names


def test_the_dashboards_panels_do_not_overlap(dashboard: dict[str, Any]) -> None:
    panels = dashboard["panels"]
    assert len({one["id"] for one in panels}) == len(panels)
    for one in panels:
        assert one["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert one["gridPos"]["x"] + one["gridPos"]["w"] <= 24
    for one, other in combinations((panel["gridPos"] for panel in panels), 2):
        assert (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        ), (one, other)
