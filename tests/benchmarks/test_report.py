"""The evaluation of measurements: verdicts on targets, noted results, the report and its plots."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks import results
from benchmarks.__main__ import DOCUMENT, app, chosen
from benchmarks.bench import Bench
from benchmarks.figures import Figures, Target
from benchmarks.report import not_held, number, rendered, write
from benchmarks.results import Result
from benchmarks.work import Work
from benchmarks.works import WORKS

MACHINE = {"cores": "2", "Kafka": "4.3.1"}


def figures(**seconds: tuple[float, ...]) -> Figures:
    found = Figures()
    for system, values in seconds.items():
        for value in values:
            found.add("100 B", system, "s", value)
    return found


def work(*targets: Target) -> Work:
    def run(_: Bench, found: Figures) -> None:
        found.add("100 B", "ours", "s", 1.0)

    return Work("one", "One thing", "How it is done.", run, targets)


def result(found: Figures, scale: float = 1.0) -> Result:
    return Result(found, "2026-01-02T03:04+00:00", scale, 3, MACHINE)


@pytest.mark.parametrize(
    ("ours", "held"), [(0.9, "aim held"), (1.7, "held"), (1.9, "not held"), (1.8, "held")]
)
def test_a_target_is_a_ratio_to_the_best_of_the_others_medians(ours: float, held: str) -> None:
    """The best median here is 2.0, not the 0.1 of a single run."""
    found = figures(ours=(ours,), theirs=(0.1, 2.0, 3.0), others=(4.0,))
    target = Target("100 B", "ours", 0.9, 0.5, ("theirs", "others"))
    verdict = target.judge(found)
    assert (verdict.held, verdict.compared_with) == (held, "theirs")
    assert verdict.ratio == pytest.approx(ours / 2)


def test_a_floor_is_to_be_reached() -> None:
    """A floor is held if the ratio is at least its value."""
    found = figures(ours=(0.6,), copy=(1.0,))
    assert Target("100 B", "ours", 0.7, None, ("copy",), is_floor=True).judge(found).held == (
        "not held"
    )
    assert Target("100 B", "ours", 0.6, None, ("copy",), is_floor=True).judge(found).held == "held"


def test_a_target_without_a_measure_is_absolute() -> None:
    """A target without a comparison is absolute."""
    assert Target("100 B", "ours", 2).judge(figures(ours=(1.0, 2.0, 9.0))).held == "held"
    assert Target("100 B", "ours", 1).judge(figures(ours=(1.0, 2.0, 9.0))).held == "not held"


def test_growth_is_compared_with_the_same_system() -> None:
    """A target against another figure compares figures of the same system."""
    found = figures(ours=(3.0,))
    found.add("empty", "ours", "s", 2.0)
    target = Target("100 B", "ours", 1.5, against_what="empty")
    assert (target.judge(found).ratio, target.judge(found).held) == (1.5, "held")


@pytest.mark.parametrize("found", [figures(theirs=(1.0,)), figures(ours=(1.0,))])
def test_what_was_not_measured_neither_holds_nor_fails(found: Figures) -> None:
    """A target without a measurement is neither held nor missed."""
    assert Target("100 B", "ours", 1, None, ("theirs",)).judge(found).held == "not measured"


def test_latencies_are_noted_by_quantile_and_run() -> None:
    """Latencies are noted as quantiles, one value per run."""
    found = Figures()
    for run in (1, 2):
        found.add_latencies("one record", "ours", [run * ms / 1000 for ms in range(1, 101)], 99)
    assert [(one.what, one.unit, one.values) for one in found] == [
        ("one record, p50", "ms", (51.0, 102.0)),
        ("one record, p99", "ms", (100.0, 200.0)),
    ]


def test_a_work_that_is_run_again_replaces_its_own_results_alone(tmp_path: Path) -> None:
    """A work that runs again replaces only its own results."""
    file = tmp_path / "results.json"
    assert results.load(file) == {}
    results.note("one", result(figures(ours=(1.0,))), file)
    results.note("two", result(figures(ours=(2.0,))), file)
    results.note("one", result(figures(ours=(3.0,))), file)
    loaded = results.load(file)
    assert {name: next(iter(one.figures)).values for name, one in loaded.items()} == {
        "one": (3.0,),
        "two": (2.0,),
    }
    assert loaded["one"].machine == MACHINE


def test_the_report_says_what_holds_and_what_does_not(tmp_path: Path) -> None:
    """The report lists which targets are held and which are not."""
    works = [work(Target("100 B", "ours", 0.9, 0.5, ("theirs",)), Target("100 B", "ours", 0.5))]
    found = {"one": result(figures(ours=(1.0, 1.2, 0.8), theirs=(2.0,)))}
    text = rendered(works, found)
    assert "| 100 B: ours | 1 s | 0.50x of theirs | at most 0.9x of theirs; aim 0.5x" in text
    assert "| aim held |" in text
    assert "| **not held** |" in text
    assert "| 100 B | 1 s (0.8 to 1.2) | 2 s (2 to 2) |" in text
    assert "full size" not in text
    assert [verdict.median for _, _, verdict in not_held(works, found)] == [1.0]
    write(works, found, tmp_path / "benchmarks.md")
    assert (tmp_path / "benchmarks.md").read_text() == text


def test_tables_are_noted_and_written_beside_the_report(tmp_path: Path) -> None:
    """Tables are written to CSV files beside the report."""
    found = figures(ours=(1.0,))
    found.tables["one-list"] = ["number,key", '1,"a,b"']
    results.note("one", result(found), tmp_path / "results.json")
    write([work()], results.load(tmp_path / "results.json"), tmp_path / "benchmarks.md")
    assert (tmp_path / "benchmarks" / "one-list.csv").read_text() == 'number,key\n1,"a,b"\n'


def test_the_plots_of_the_same_figures_are_the_same(tmp_path: Path) -> None:
    """Plots of the same figures have the same bytes."""
    pytest.importorskip("matplotlib")
    found = {"one": result(figures(ours=(1.0, 2.0), theirs=(2.0,)))}
    for folder in ("first", "second"):
        write([work()], found, tmp_path / folder / "benchmarks.md")
    first, second = (tmp_path / one / "benchmarks" / "one.svg" for one in ("first", "second"))
    assert first.read_text() == second.read_text()
    assert "theirs" in first.read_text()


def test_figures_of_a_small_scale_say_so() -> None:
    """The report names the scale of figures that were not measured at full size."""
    assert "at 0.01 of the full size" in rendered(
        [work()], {"one": result(figures(ours=(1.0,)), scale=0.01)}
    )


@pytest.mark.parametrize(
    ("value", "text"), [(1234567, "1,234,567"), (123.4, "123"), (0.5, "0.5"), (2, "2")]
)
def test_numbers_are_written_for_people(value: float, text: str) -> None:
    """Numbers are rounded for readers."""
    assert number(value) == text


def test_the_document_is_that_of_the_noted_results() -> None:
    """docs/benchmarks.md is the report of the noted results."""
    assert DOCUMENT.read_text(encoding="utf-8") == rendered(WORKS, results.load())


def test_every_result_is_of_a_work_that_there_is() -> None:
    """Every noted result belongs to an existing work."""
    assert set(results.load()) <= {one.name for one in WORKS}


def test_a_run_that_names_nothing_leaves_out_what_takes_longest() -> None:
    """Without names all works run except the longest ones."""
    assert [one.name for one in WORKS if one not in chosen([])] == ["log_growth", "cleaning"]
    assert [one.name for one in chosen(["log_growth"])] == ["log_growth"]


def test_an_unknown_work_is_refused_with_those_that_there_are() -> None:
    """The error for an unknown work lists the existing ones."""
    answer = CliRunner().invoke(app, ["prodcue", "--without-kafka"])
    assert answer.exit_code == 2
    assert "prodcue" in answer.output
    assert "produce" in answer.output
