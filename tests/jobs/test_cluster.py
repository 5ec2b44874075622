"""jobs.cluster as real processes: resident and until idle, signals, and killed processes."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from sparklog.cli.exit_codes import ExitCode
from sparklog.model import BROKER_TABLES, BROKERS, CLUSTER_TABLES, CONTROLLER, LOG
from tests.jobs.processes import SESSION_MS, Client, Cluster, wait_for


def states(cluster: Cluster) -> dict[int, tuple[int, str]]:
    """Return each broker's epoch and state."""
    return {row["broker_id"]: (row["broker_epoch"], row["state"]) for row in cluster.rows(BROKERS)}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_resident_cluster_answers_and_is_parked_by_a_signal(
    cluster: Cluster, number: signal.Signals
) -> None:
    """A resident cluster answers requests, and a signal parks its brokers."""
    process = cluster.run()
    client = Client(cluster)
    client.create_topic()
    assert [client.produce(b"a", b"b"), client.produce(b"c")] == [0, 2]
    assert client.committed() == [b"a", b"b", b"c"]

    assert process.end(number) == 0, process.stderr
    assert states(cluster) == {0: (1, "parked"), 1: (2, "parked"), 2: (3, "parked")}
    assert [cluster.log(broker) for broker in range(3)] == [
        [(0, 0, b"a"), (1, 0, b"b"), (2, 0, b"c")]
    ] * 3
    assert process.stdout == ""
    assert "Traceback" not in process.stderr


def test_a_run_until_idle_does_the_pending_work_and_the_next_one_finds_nothing_to_do(
    cluster: Cluster,
) -> None:
    """A run until idle handles pending requests; without any, the next run changes nothing."""
    first = cluster.run("--until-idle")
    assert first.exit_code() == 0, first.stderr
    client = Client(cluster)
    client.create_topic()
    pending = client.send([b"a", b"b"])
    assert not pending.is_done

    second = cluster.run("--until-idle")
    assert second.exit_code() == 0, second.stderr
    assert pending.response is not None
    assert pending.response.error == "NONE"
    assert client.committed() == [b"a", b"b"]
    parked = {0: (1, "parked"), 1: (2, "parked"), 2: (3, "parked")}
    assert states(cluster) == parked

    before = rows_of_all_tables(cluster)
    third = cluster.run("--until-idle")
    assert third.exit_code() == 0, third.stderr
    assert rows_of_all_tables(cluster) == before
    assert states(cluster) == parked


def rows_of_all_tables(cluster: Cluster) -> dict[str, object]:
    """Return the rows of every table, except those that change with heartbeats."""
    found: dict[str, object] = {
        schema.name: cluster.rows(schema)
        for schema in CLUSTER_TABLES
        if schema not in (BROKERS, CONTROLLER)
    }
    for broker in range(3):
        found[f"{broker} log"] = cluster.log(broker)
        for schema in BROKER_TABLES:
            if schema is not LOG:
                ignored = {"reported_at_ms", "log_version", "epochs_version"}
                rows = cluster.rows(schema, f"broker-{broker}")
                kept = [{key: row[key] for key in row if key not in ignored} for row in rows]
                found[f"{broker} {schema.name}"] = kept
    return found


def test_a_signal_ends_a_run_until_idle_after_its_round_with_the_signals_exit_code(
    tmp_path: Path,
) -> None:
    """The next run does the rest; by the exit code a scheduler sees that the run was not
    complete.
    """
    cluster = Cluster(tmp_path / "data", replica_fetch_max_bytes=1)
    try:
        first = cluster.run("--until-idle")
        assert first.exit_code() == 0, first.stderr
        client = Client(cluster)
        client.create_topic(leader=0)
        batches = 25
        pending = [client.send([b"%d" % number], acks=1) for number in range(batches)]
        run = cluster.run("--until-idle")
        # One batch per round: the followers are far from the end when they have the first one.
        wait_for(lambda: cluster.log(1), "first batch", run)
        assert run.end() == 128 + signal.SIGTERM, run.stderr
        assert len(cluster.log(0)) == batches
        assert len(cluster.log(1)) < batches
        assert {state for _, state in states(cluster).values()} == {"parked"}

        rest = cluster.run("--until-idle")
        assert rest.exit_code() == 0, rest.stderr
        assert all(one.is_done for one in pending)
        assert client.committed() == [b"%d" % number for number in range(batches)]
        assert cluster.log(0) == cluster.log(1) == cluster.log(2)
    finally:
        cluster.close()


def test_a_cluster_that_was_killed_comes_back_after_one_session_under_new_epochs(
    cluster: Cluster,
) -> None:
    """Before that its brokers cannot be distinguished from live ones; all are waited for in
    parallel.
    """
    first = cluster.run()
    client = Client(cluster)
    client.create_topic(leader=1)
    client.produce(b"a")
    first.kill()
    assert {state for _, state in states(cluster).values()} == {"alive"}

    second = cluster.run()
    since = time.monotonic()
    second.wait_for_event("broker started")
    assert time.monotonic() - since > SESSION_MS / 1000
    client.produce(b"b")
    assert client.committed() == [b"a", b"b"]
    assert states(cluster) == {0: (4, "alive"), 1: (5, "alive"), 2: (6, "alive")}
    assert second.end() == 0
    assert "taken over" not in second.stderr


def test_a_second_process_is_refused_while_the_first_goes_on(cluster: Cluster) -> None:
    """A second process of a running cluster is refused, and the first goes on."""
    first = cluster.run()
    client = Client(cluster)
    client.create_topic()
    epochs = states(cluster)

    second = cluster.run()
    assert second.exit_code() == ExitCode.TAKEN_OVER
    [line] = second.stderr.splitlines()
    assert line.startswith("sparklog: DUPLICATE_BROKER_REGISTRATION: broker ")
    assert "stop that process first" in line

    client.produce(b"a")
    assert states(cluster) == epochs
    assert first.end() == 0


def test_two_processes_that_create_a_cluster_at_once_leave_a_whole_one(cluster: Cluster) -> None:
    """The second process is refused, replaces the first, or waits; no table is damaged."""
    rivals = [cluster.run("--until-idle") for _ in range(2)]
    for rival in rivals:
        assert rival.exit_code() in (ExitCode.DONE, ExitCode.TAKEN_OVER), rival.stderr
        assert "Traceback" not in rival.stderr
    later = cluster.run("--until-idle")
    assert later.exit_code() == 0, later.stderr
    assert {state for _, state in states(cluster).values()} == {"parked"}


def test_a_signal_while_the_last_session_is_awaited_ends_the_process_and_registers_nobody(
    tmp_path: Path,
) -> None:
    """A signal during the wait for the last session ends the process without a registration."""
    cluster = Cluster(tmp_path / "data", broker_session_timeout_ms=4_000)
    try:
        first = cluster.run()
        Client(cluster).create_topic()
        first.kill()
        before = cluster.rows(BROKERS)
        second = cluster.run("--log-level", "debug")
        second.wait_for_event("starting")
        assert second.end() == 0, second.stderr
        assert cluster.rows(BROKERS) == before
    finally:
        cluster.close()
