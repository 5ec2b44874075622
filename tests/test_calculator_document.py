"""docs/calculator.md and its form compute from the measured requests of docs/benchmarks.md.

Rewrite both with `REWRITE=1 python -m pytest tests/test_calculator_document.py`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from sparklog.config import Settings
from tests.benchmark_figures import figures, number, replaced
from tests.examples import CHECKOUT

DOCUMENT = "docs/calculator.md"
FORM = CHECKOUT / "docs/javascripts/calculator.js"

SECONDS_A_MONTH = 30.44 * 86_400
PUT_PRICE, GET_PRICE = 0.005, 0.0004
BATCHES = 4
"""Batches of the measured round, one of each partition."""


class Load(NamedTuple):
    """The input of the form."""

    tick_s: float
    busy: float
    partitions: int
    mib_s: float
    retention_days: float
    request_ms: float


DEFAULT_S = Settings.model_fields["tick_interval_ms"].default / 1000
"""The default of tick.interval.ms, in s."""

FORM_VALUES = Load(1, 1, 4, 0.1, 7, 30)
"""The values with which the form begins."""

EXAMPLES = (
    Load(DEFAULT_S, 0.05, 4, 0.1, 7, 30),
    Load(DEFAULT_S, 0, 4, 0, 7, 30),
    FORM_VALUES,
    Load(5, 1, 4, 0.1, 7, 30),
    Load(60, 1, 4, 0.1, 7, 30),
    Load(1, 0.01, 1, 0.001, 7, 30),
    Load(1, 1, 16, 10, 7, 30),
    Load(5, 1, 100, 10, 7, 100),
)

HEAD = (
    "| tick | ticks with a record | partitions in each | MiB/s | retention | latency of a request "
    "| requests, $ a month | storage, $ a month | acks=all, median |"
)


def constants() -> dict[str, float]:
    """Return the constants of the formula, from the figures of the benchmarks.

    Prices are $ for 1,000 requests, and for a GB and month.
    """
    counts = figures("Storage requests")
    round_ = counts[
        "a round of 4 partitions, acks=all, with its producer, all requests (4 partitions)"
    ]
    files = counts["broker/log"]  # the last of its rows: batch files
    assert (files["file"], number(files["PUT"]), number(files["GET"])) == (
        "batch file",
        3 * BATCHES,
        3 * BATCHES,
    )
    month = figures("A month's requests to an object store")
    at_1_s, at_5_s = (
        number(month[f"at rest, ticks every {tick} s"]["three brokers, a process each"])
        for tick in (1, 5)
    )
    default = figures("A month's requests to an object store with the default tick.interval.ms")
    rest_default, every_second = (
        number(default[f"{load}, ticks every {DEFAULT_S:g} s"]["three brokers, a process each"])
        for load in ("at rest", "a request every second")
    )
    # The files of a round are counted by the formula.
    files_a_month = 3 * BATCHES * (PUT_PRICE + GET_PRICE) / 1_000 * SECONDS_A_MONTH
    latency = figures("One record on an object store: send to acks=all")
    at_10_ms, at_100_ms = (
        number(latency[f"one record, {ms} ms a request, p50"]["three brokers, a process each"])
        for ms in (10, 100)
    )
    slope = (at_100_ms - at_10_ms) / 90
    of_tick = (at_1_s - at_5_s) / (1 - 1 / 5)
    found = {
        "put_round": number(round_["PUT"]) - 3 * BATCHES,
        "get_round": number(round_["GET"]) - 3 * BATCHES,
        "rest": at_1_s - of_tick,
        "rest_tick": of_tick,
        "rest_default": rest_default,
        "round_default": every_second - rest_default - files_a_month,
        "latency": at_10_ms - 10 * slope,
        "latency_request": slope,
        "put_price": PUT_PRICE,
        "get_price": GET_PRICE,
        "gb_price": 0.023,
    }
    return {name: round(value, 4) for name, value in found.items()}


class Result(NamedTuple):
    """The output of the form: $ a month, and ms."""

    requests: float
    storage: float
    latency_ms: float


def cost(load: Load, of: dict[str, float]) -> Result:
    rounds = load.busy / load.tick_s
    batches = max(rounds * load.partitions, load.mib_s / 4)
    files = 3 * batches * (of["put_price"] + of["get_price"]) / 1_000
    fixed = (of["put_round"] * of["put_price"] + of["get_round"] * of["get_price"]) / 1_000
    rest = of["rest"] + of["rest_tick"] / load.tick_s + fixed * rounds * SECONDS_A_MONTH
    if load.tick_s < 1:
        rest = of["rest_default"] + of["round_default"] * rounds
    gigabytes = load.mib_s * (1 << 20) * 86_400 * load.retention_days * 3 / 1e9
    wait = load.tick_s * 500 if load.tick_s >= 1 else 0
    return Result(
        rest + files * SECONDS_A_MONTH,
        gigabytes * of["gb_price"],
        of["latency"] + of["latency_request"] * load.request_ms + wait,
    )


def examples() -> str:
    lines = [HEAD, "|---:|---:|---:|---:|---:|---:|---:|---:|---:|"]
    of = constants()
    for one in EXAMPLES:
        result = cost(one, of)
        lines.append(
            f"| {one.tick_s:g} s | {one.busy:.0%} | {one.partitions} | {one.mib_s:g} "
            f"| {one.retention_days:g} days | {one.request_ms:g} ms | {result.requests:,.2f} "
            f"| {result.storage:,.2f} | {result.latency_ms / 1000:.2f} s |"
        )
    return "\n".join(lines)


def form() -> str:
    """Return the form's program with the constants of the benchmarks."""
    text = json.dumps(constants(), indent=2)
    return re.sub(
        r"(// <constants>\n).*(// </constants>)",
        lambda match: f"{match[1]}const CONSTANTS = {text};\n{match[2]}",
        FORM.read_text(encoding="utf-8"),
        flags=re.DOTALL,
    )


def test_the_document_and_the_form_have_the_figures_of_the_benchmarks() -> None:
    document = replaced(DOCUMENT, examples())
    program = form()
    if os.environ.get("REWRITE"):
        (CHECKOUT / DOCUMENT).write_text(document, encoding="utf-8")
        FORM.write_text(program, encoding="utf-8")
    assert (CHECKOUT / DOCUMENT).read_text(encoding="utf-8") == document, "run with REWRITE=1"
    assert FORM.read_text(encoding="utf-8") == program, "run this test with REWRITE=1"


@pytest.mark.parametrize("tick_s", [1, 5])
def test_the_formula_gives_the_measured_months(tick_s: int) -> None:
    month = figures("A month's requests to an object store")
    row = month[f"a request every tick, ticks every {tick_s} s"]
    measured = number(row["three brokers, a process each"])
    computed = cost(Load(tick_s, 1, 4, 0, 0, 30), constants()).requests
    assert 0.85 * measured < computed < 1.05 * measured


def test_the_formula_gives_the_measured_month_with_default_ticks() -> None:
    month = figures("A month's requests to an object store with the default tick.interval.ms")
    row = month[f"a request every second, ticks every {DEFAULT_S:g} s"]
    measured = number(row["three brokers, a process each"])
    found = cost(Load(DEFAULT_S, DEFAULT_S, 4, 0, 0, 30), constants()).requests
    assert found == pytest.approx(measured, rel=1e-3)


def test_the_formula_gives_the_measured_latency_between_its_points() -> None:
    latency = figures("One record on an object store: send to acks=all")
    row = latency["one record, 30 ms a request, p50"]
    measured = number(row["three brokers, a process each"])
    computed = cost(Load(0.05, 1, 1, 0, 0, 30), constants()).latency_ms
    assert computed == pytest.approx(measured, rel=0.1)


def test_the_form_computes_the_same(tmp_path: Path) -> None:
    browser = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if browser is None:
        pytest.skip("the form runs in Chromium")
    program = FORM.read_text(encoding="utf-8")
    page = tmp_path / "page.html"
    page.write_text(
        f'<div id="calculator"></div><script>{program}</script>'
        f"<script>document.title = JSON.stringify("
        f"{json.dumps([one._asdict() for one in EXAMPLES])}.map((one) => cost(one)))</script>",
        encoding="utf-8",
    )
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", page.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    [title] = re.findall(r"<title>(.*?)</title>", shown)
    of = constants()
    for one, expected in zip(json.loads(title), EXAMPLES, strict=True):
        assert one == pytest.approx(cost(expected, of)._asdict())
    first = cost(FORM_VALUES, of)
    assert f"Requests: ${first.requests:.2f} a month" in shown
