"""The shell commands of the documents run on a small cluster, or the reason why not stands here."""

from __future__ import annotations

import json
import re
import shlex
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from sparklog.testing import LocalCluster
from tests.cli.command_line import Finished, run
from tests.examples import CHECKOUT

RUN_HERE = ("README.md", "docs/audit.md", "docs/operating.md", "docs/status.md")

RUN_ELSEWHERE = {
    "docs/access.md": "tests/access/test_access_document.py",
    "docs/backup.md": "tests/maintenance/test_backup.py",
    "docs/consuming.md": "tests/test_docs.py",
    "docs/failures.md": "tests/test_failures_document.py",
    "docs/object-stores.md": "tests/test_object_stores_document.py",
    "docs/questions.md": "tests/cluster/test_past.py",
    "docs/quickstart.md": "tests/test_quickstart_document.py",
    "docs/running.md": "tests/bundle/test_running_document.py",
}
"""The tests of documents that have their own."""

NOT_RUN = {
    "make ": "the Makefile's targets are run by tests/test_bootstrap.py and tests/bundle",
    "pip install ": "it would change the environment of the tests",
    "aws s3api ": "another project's program; tests/faults/damage puts objects back as it does",
    "node_exporter ": "another project's program",
    "opentelemetry-instrument ": "another project's program",
    "spark-submit --packages": "it fetches JARs; tests/bundle runs spark-submit with local ones",
    "sparklog audit --cluster conf/cluster.yaml --engine spark": (
        "it needs Spark; tests/maintenance/test_audit.py runs the rules on it"
    ),
    "sparklog cluster --config": "it needs Spark; tests/jobs runs it as a process",
    "sparklog produce orders --from": "it needs Spark; tests/datasource and tests/jobs run it",
    "sparklog produce orders --cluster conf/cluster.yaml --format kafka": (
        "it needs Spark and a Kafka; tests/kafka_comparison/test_migration.py runs it"
    ),
    "python -m jobs.cluster": "it needs Spark; tests/jobs/test_scheduled_runs.py runs it",
}
"""The commands that no test runs as they stand, by their beginnings, with the reasons."""


class Command(NamedTuple):
    """A command of a document, without the path of the environment, and the output below it."""

    text: str
    shown: str

    @property
    def reason(self) -> str | None:
        """The reason why it is not run."""
        return next((why for of, why in NOT_RUN.items() if self.text.startswith(of)), None)


def commands(document: str, heading: str | None = None) -> list[Command]:
    """Return the commands of a document, or of one of its sections, in their order."""
    text = (CHECKOUT / document).read_text(encoding="utf-8")
    if heading is not None:
        text = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    found = []
    for language, block in re.findall(
        r"^```(console|shell)\n(.*?)^```", text, re.MULTILINE | re.DOTALL
    ):
        lines = block.replace("\\\n", " ")
        if language == "shell":
            lines = re.sub("^", "$ ", lines.rstrip("\n"), flags=re.MULTILINE)
        for one in re.split(r"^\$ ", lines, flags=re.MULTILINE)[1:]:
            command, _, shown = one.partition("\n")
            plain = re.sub(r"\s+# .*", "", command).replace(".venv/bin/", "")
            found.append(Command(" ".join(plain.split()), shown))
    return found


def done(document: str, heading: str | None = None) -> list[tuple[Finished, str]]:
    """Run the commands of a section; a file that it prints with `cat` is made first."""
    outcomes = []
    for one in commands(document, heading):
        words = shlex.split(one.text)
        if one.reason is not None:
            continue
        if words[0] == "cat":
            Path(words[1]).write_text(one.shown, encoding="utf-8")
            continue
        assert words[0] == "sparklog", one.text
        # A new cluster has no state of ten minutes ago.
        arguments = ["0 seconds ago" if of == "10 minutes ago" else of for of in words[1:]]
        outcomes.append((run(*arguments), one.shown))
    return outcomes


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalCluster:
    """Four brokers with conf/cluster.yaml for them, and 500 records in topic clicks."""
    monkeypatch.chdir(tmp_path)
    made = LocalCluster("sparklog-data", [0, 1, 2, 3], config={"log.scrub.bytes.per.second": 0})
    made.create_topic("clicks", assignment={0: [0, 1]})
    made.produce("clicks", 0, [b"%d" % number for number in range(500)])
    made.tick_until_idle()
    brokers = [{"broker.id": one, "log.dirs": f"../sparklog-data/broker-{one}"} for one in range(4)]
    values = {"cluster.root": "../sparklog-data/cluster", "brokers": brokers}
    Path("conf").mkdir()
    Path("conf/cluster.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    return made


@contextmanager
def ticking(cluster: LocalCluster) -> Iterator[None]:
    """Tick the brokers meanwhile, for a command that waits for them."""
    is_over = threading.Event()

    def tick() -> None:
        while not is_over.wait(0.01):
            cluster.tick_until_idle()

    ticks = threading.Thread(target=tick)
    ticks.start()
    try:
        yield
    finally:
        is_over.set()
        ticks.join()


def masked(text: str) -> str:
    """Return a text without the amounts of data, which differ."""
    return re.sub(r"offset \d+ of \d+, \d+ bytes", "offset N of M, B bytes", text).rstrip()


def test_each_command_of_a_document_is_run_or_has_a_reason_not_to_be() -> None:
    documents = ["README.md", *(f"docs/{path.name}" for path in (CHECKOUT / "docs").glob("*.md"))]
    unused = set(NOT_RUN)
    for document in documents:
        for one in commands(document):
            unused -= {of for of in NOT_RUN if one.text.startswith(of)}
            is_run = document in RUN_HERE or document in RUN_ELSEWHERE or one.reason is not None
            assert is_run, f"{document}: {one.text}"
    assert not unused
    for document, test in RUN_ELSEWHERE.items():
        assert Path(document).name in (CHECKOUT / test).read_text(encoding="utf-8"), document


def test_the_commands_of_the_readme_status_and_audit_run(cluster: LocalCluster) -> None:
    create, describe, query, consume, audit = (
        shlex.split(one.text)[1:] for one in commands("README.md") if one.reason is None
    )
    assert "orders" in run(*create).printed
    cluster.tick_until_idle()
    assert "PartitionCount: 4" in run(*describe).printed
    assert "(14 rows)" in run(*query).printed
    for number in range(10):
        cluster.produce("orders", number % 4, [b"%d" % number])
    cluster.tick_until_idle()
    assert sorted(run(*consume).stdout.split()) == [str(number) for number in range(10)]
    assert run(*audit).printed == "No inconsistencies found: 5 partitions.\n"

    assert [outcome.exit_code for outcome, _ in done("docs/status.md")] == [0, 0, 0]
    assert "<html" in Path("status.html").read_text(encoding="utf-8")

    cluster.crash(1)
    cluster.fence(1)
    audited, verified, _, _ = [one.printed for one, _ in done("docs/audit.md")]
    assert audited == verified == "No inconsistencies found: 5 partitions.\n"
    assert (Path("exported") / "clicks-0" / "leader-epoch-checkpoint").is_file()
    cluster.restart(1)
    cluster.tick_until_idle()
    assert run(*audit).printed == audited


def test_the_commands_of_operating_run(cluster: LocalCluster) -> None:
    """In the page's order; what it shows of their output is their output."""
    page = "docs/operating.md"
    with ticking(cluster):
        [(deleted, shown)] = done(page, "Retention")
    assert deleted.printed == shown

    for outcome, _ in done(page, "Upgrades"):
        assert outcome.exit_code == 0
    [(described, shown)] = done(page, "Log directories")
    assert described.printed.splitlines()[:2] == shown.splitlines()[:2]
    assert described.printed.startswith(shown[: shown.index('"/data/a"')])

    cluster.create_topic("orders", 4, 2, configs={"max.message.bytes": 1000})
    cluster.tick_until_idle()
    _, _, settings, _ = [one.printed for one, _ in done(page, "Changing topics")]
    assert "min.insync.replicas=2" in settings
    assert "DYNAMIC_TOPIC_CONFIG:max.message.bytes" not in settings
    cluster.tick_until_idle()
    cluster.create_topic("orders", assignment={number: [0, 1] for number in range(4)})

    moves = {"version": 1, "partitions": [{"topic": "clicks", "partition": 0, "replicas": [3, 0]}]}
    Path("moves.json").write_text(json.dumps(moves), encoding="utf-8")
    (proposed, _), (_, _), (verified, shown) = done(page, "Moving partitions")
    assert '"topic":"clicks"' in proposed.printed
    assert masked(verified.printed) == masked(shown)
    cluster.tick_until_idle()

    drain, again, unregister = commands(page, "Adding and removing brokers")
    draining = run(*shlex.split(drain.text)[1:])
    assert masked(draining.printed) == masked(drain.shown)
    cluster.tick_until_idle()
    assert run(*shlex.split(again.text)[1:]).printed == again.shown
    cluster.crash(3)
    cluster.fence(3)
    assert run(*shlex.split(unregister.text)[1:]).printed == unregister.shown

    for heading in ("Settings of running brokers", "Quotas", "Reading the state"):
        for outcome, _ in done(page, heading):
            assert outcome.printed or heading == "Reading the state"
    cluster.tick_until_idle()
    partitions = {"partitions": [{"topic": "orders", "partition": 0}]}
    Path("partitions.json").write_text(json.dumps(partitions), encoding="utf-8")
    for outcome, _ in done(page, "Electing leaders"):
        assert outcome.exit_code == 0, outcome
    for outcome, _ in done(page, "Scrubbing"):
        assert outcome.exit_code == 0, outcome
