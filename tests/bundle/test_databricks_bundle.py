"""The Databricks Asset Bundle: its jobs are valid, and their commands are those of the wheel."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from databricks.bundles.jobs import Job

from sparklog.config import load_either
from tests.bundle.command_arguments import parsed
from tests.examples import CHECKOUT

FOLDER = CHECKOUT / "conf" / "databricks"
BUNDLE = yaml.safe_load((FOLDER / "databricks.yml").read_text())
BROKERS = {0, 1, 2}


def job_files() -> list[Path]:
    return sorted(file for pattern in BUNDLE["include"] for file in FOLDER.glob(pattern))


def jobs() -> dict[str, dict[str, Any]]:
    """Return the jobs of all included files by key."""
    found: dict[str, dict[str, Any]] = {}
    for file in job_files():
        content = yaml.safe_load(file.read_text())
        assert content.keys() == {"resources"}
        assert content["resources"].keys() == {"jobs"}
        assert not found.keys() & content["resources"]["jobs"].keys()
        found |= content["resources"]["jobs"]
    return found


def tasks() -> Iterator[tuple[str, dict[str, Any], list[str]]]:
    """Yield each task with its job's key and its parameters, in which variables have values."""
    for key, job in jobs().items():
        for task in job["tasks"]:
            given = task["python_wheel_task"]["parameters"]
            yield key, task, [resolved(one) for one in given]


def resolved(text: str, target: str = "scheduled") -> str:
    """Return a text in which each ${...} has its value in a target."""
    values = {f"var.{name}": str(one["default"]) for name, one in BUNDLE["variables"].items()}
    overridden = BUNDLE["targets"][target].get("variables", {})
    values |= {f"var.{name}": str(value) for name, value in overridden.items()}
    values["workspace.file_path"] = str(FOLDER)
    return re.sub(r"\$\{(.+?)\}", lambda match: values[match[1]], text)


def brokers_of(key_part: str) -> dict[int, dict[str, Any]]:
    """Return the jobs that run brokers and have this part in their key, by broker id."""
    found = {}
    for key, task, parameters in tasks():
        if key_part in key:
            name, options = parsed(parameters)
            assert name == "broker", task
            [broker] = load_either(options["config"]).brokers
            assert broker.broker_id not in found
            found[broker.broker_id] = jobs()[key] | {"options": options}
    return found


def test_every_file_of_resources_is_included_and_there_are_some() -> None:
    assert job_files() == sorted((FOLDER / "resources").iterdir())
    assert len(jobs()) == 10


@pytest.mark.parametrize("key", list(jobs()))
def test_each_job_is_one_by_the_models_of_databricks(key: str) -> None:
    """The typed models accept each job, and each task runs on a cluster of its job."""
    job = Job.from_dict(jobs()[key])  # type: ignore[arg-type]
    assert job.max_concurrent_runs == 1
    text = job.as_dict()
    clusters = {one["job_cluster_key"] for one in text["job_clusters"]}  # type: ignore[union-attr,index]
    assert {one["job_cluster_key"] for one in text["tasks"]} == clusters  # type: ignore[union-attr,index]
    assert sum(one in text for one in ("schedule", "continuous")) == 1


@pytest.mark.parametrize(
    "change",
    [{"max_concurrent_run": 1}, {"tasks": [{"python_wheel_task": {}}]}, {"continuous": {"x": 1}}],
)
def test_the_models_refuse_a_job_that_is_wrong(change: dict[str, Any]) -> None:
    job = jobs()["sparklog_audit"]
    with pytest.raises((TypeError, ValueError)):
        Job.from_dict(job | change)  # type: ignore[arg-type]


def test_each_task_names_an_entry_point_of_the_wheel_and_a_file_of_its_build() -> None:
    [script] = [
        one
        for one in metadata.entry_points(group="console_scripts")
        if one.name == "sparklog" and one.dist is not None
    ]
    artifact = BUNDLE["artifacts"]["sparklog"]
    assert artifact["type"] == "whl"
    target, folder = re.findall(r"make -C \.\./\.\. (\w+) BUNDLE_FOLDER=(\S+)", artifact["build"])[
        0
    ]
    assert re.search(rf"^{target}:", (CHECKOUT / "Makefile").read_text(), re.MULTILINE)
    for _, task, _ in tasks():
        wheel = task["python_wheel_task"]
        assert (wheel["package_name"], wheel["entry_point"]) == ("sparklog", script.name)
        [library] = task["libraries"]
        at = (FOLDER / "resources" / library["whl"]).resolve()
        assert at == CHECKOUT / folder / "*.whl"


def test_the_parameters_of_all_tasks_are_commands() -> None:
    """The command line parses each task's parameters, and the files that they name are there."""
    names = set()
    for _, _, parameters in tasks():
        name, options = parsed(parameters)
        names.add(name)
        file = Path(options.get("config") or options["cluster"])
        assert load_either(file).cluster_root == "s3://my-cluster/sparklog"
        assert file.parent.name in BUNDLE["sync"]["paths"]
    assert names == {"broker", "produce", "consume", "maintain", "scrub", "audit"}


def test_each_broker_has_one_scheduled_and_one_continuous_job() -> None:
    scheduled, continuous = brokers_of("_scheduled_"), brokers_of("_continuous_")
    assert scheduled.keys() == continuous.keys() == BROKERS
    for job in scheduled.values():
        assert job["options"]["until_idle"]
        assert job["queue"] == {"enabled": False}
    assert not any(job["options"]["until_idle"] for job in continuous.values())
    cluster = load_either(FOLDER / "brokers" / "cluster.yaml")
    own = [load_either(FOLDER / "brokers" / f"broker-{one}.yaml") for one in sorted(BROKERS)]
    assert [one.brokers[0] for one in own] == cluster.brokers


@pytest.mark.parametrize("target", list(BUNDLE["targets"]))
def test_a_target_runs_either_the_scheduled_or_the_continuous_jobs(target: str) -> None:
    """Two processes of one broker would fence one another."""
    statuses = {
        kind: {resolved(job[kind]["pause_status"], target) for job in brokers_of(part).values()}
        for kind, part in (("schedule", "_scheduled_"), ("continuous", "_continuous_"))
    }
    wanted = "schedule" if target == "scheduled" else "continuous"
    assert statuses.pop(wanted) == {"UNPAUSED"}
    assert list(statuses.values()) == [{"PAUSED"}]
