"""Record work on executors that are processes of their own and get the package from the bundle.

One Spark application, `two_executors.py`, runs all parts; each test asserts the facts of a part.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from jobs.bundle import Bundle
from tests.bundle.submitting import TWO_EXECUTORS, Submitter
from tests.jobs.processes import ROOT, Cluster

# The tests share an application, so they must run in one process.
pytestmark = pytest.mark.xdist_group("executors")

Parts = dict[str, Any]


@pytest.fixture(scope="module")
def parts(bundle: Bundle, bare_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Parts:
    """The facts of each part of the application."""
    folder = tmp_path_factory.mktemp("executors")
    cluster = Cluster(folder / "processes")
    submitter = Submitter(bundle, bare_python, cluster)
    try:
        process = submitter.run(
            *(bundle.py_files, folder),
            file=Path(__file__).with_name("two_executors.py"),
            master=TWO_EXECUTORS,
            with_package=False,
        )
    finally:
        cluster.close()
    lines = (line.partition(": ") for line in process.stdout.splitlines())
    return {name: json.loads(facts) for name, separator, facts in lines if separator}


def by_name(jobs: list[list[Any]]) -> dict[str, list[list[Any]]]:
    """Return the tasks of all jobs of a name: index, attempt, executor and status of each."""
    found: dict[str, list[list[Any]]] = defaultdict(list)
    for name, tasks in jobs:
        found[name] += tasks
    return found


def test_brokers_stay_in_the_driver_if_the_executors_lack_the_package(parts: Parts) -> None:
    """execution=auto logs one line with the remedy, and the brokers work."""
    facts = parts["without_the_package"]
    [warning] = facts["warnings"]
    assert warning["event"] == "record work stays in the driver"
    fault = "the executors lack the Python package sparklog: install the driver's release"
    assert warning["fault"].startswith(fault)
    assert "--py-files" in warning["fault"]
    assert facts["error"] == "NONE"
    assert facts["jobs"] == []


def test_execution_spark_is_refused_if_the_executors_lack_the_package(parts: Parts) -> None:
    """An application does not start, and creates nothing."""
    facts = parts["without_the_package"]
    wanted = "execution=spark is not possible: the executors lack the Python package sparklog: "
    assert facts["refused"].startswith(wanted)
    assert not facts["created"]


def test_executors_import_the_package_and_the_texts_of_its_rules_from_the_zip(
    parts: Parts, bundle: Bundle
) -> None:
    """Each executor has a copy of the zip in a folder of its own."""
    rules = len(list((ROOT / "sparklog").rglob("*.sql")))
    found = parts["executors"]
    for _, _, folder, package, count in found:
        assert package == f"{folder}/{bundle.py_files.name}/sparklog/__init__.py"
        assert count == rules
    assert [one[0] for one in found] == ["0", "1"]


def test_checks_copies_cuts_and_merges_run_on_both_executors(parts: Parts) -> None:
    """Each kind of record work has tasks on both, and all of them succeed."""
    facts = parts["record_work"]
    tasks = by_name(facts["jobs"])
    assert tasks.keys() == {"check", "copy", "cut", "merge"}
    for of_name in tasks.values():
        assert {status for *_, status in of_name} == {"SUCCESS"}
        assert {executor for _, _, executor, _ in of_name} == {"0", "1"}
    # Each of the two clusters fences the broker that was away; no job was done in the driver.
    assert [one["event"] for one in facts["warnings"]] == ["broker fenced"] * 2


def test_record_work_on_executors_has_the_results_of_the_driver(parts: Parts) -> None:
    """The same history leaves the same records, batches and positions."""
    facts = parts["record_work"]
    assert facts["merged"] == [[32, 8], [32, 8]]
    assert facts["is_equal"]
    # In each partition two batches from before the follower's absence, and the cut of a merged one.
    assert facts["batches of the follower that was away"] == [1, 1, 2] * 8
    assert facts["findings"] == []


def test_an_executor_killed_in_the_middle_of_a_copy_costs_one_repeated_task(parts: Parts) -> None:
    """The other tasks of the job are not repeated, and the driver copies nothing."""
    facts = parts["killed_executor"]
    [tasks] = by_name(facts["jobs"]).values()
    assert [name for name, _ in facts["jobs"]] == ["copy"]
    assert Counter(status for *_, status in tasks) == {"SUCCESS": 8, "FAILED": 1}
    [(index, _, executor, _)] = [task for task in tasks if task[3] == "FAILED"]
    assert executor == facts["victim"]
    attempts = {attempt: where for at, attempt, where, _ in tasks if at == index}
    assert attempts.keys() == {0, 1}
    assert attempts[1] != executor
    assert facts["warnings"] == []
    assert facts["copied"] == 8


def test_the_file_of_a_killed_executor_is_named_by_no_commit(parts: Parts) -> None:
    """The logs are equal, the audit finds nothing, and the unfinished file stays unnamed."""
    facts = parts["killed_executor"]
    assert facts["is_equal"]
    assert facts["records"] == 8
    assert facts["findings"] == []
    assert facts["stored"] == 9
    [size] = facts["not named"]
    assert 0 < size < facts["source"]


def test_a_table_goes_to_a_topic_and_into_another_table_on_executors(parts: Parts) -> None:
    """Tasks of produce and consume run the format sparklog of the zip on executors."""
    facts = parts["commands"]
    assert facts["copied"] == {"offset": list(range(1000)), "city": ["Łódź"] * 1000}
    executors = {executor for _, tasks in facts["jobs"] for _, _, executor, _ in tasks}
    assert "driver" not in executors
