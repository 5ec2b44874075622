"""The ends of applications as processes: their bound, their exit codes and their one line."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from sparklog.cli.exit_codes import ExitCode
from sparklog.model import BROKERS, CONTROLLER, TOPICS
from sparklog.storage.delta_log_files import commit_path, newest_version
from sparklog.storage.location import Location
from tests.jobs.processes import PATIENCE, Client, Cluster, Process, wait_for
from tests.storage.test_s3 import Store, store
from tests.storage.test_s3 import pytestmark as needs_store

__all__ = ["store"]

LONG_MS = 600_000
"""A bound in ms that no test reaches."""


def line_of(process: Process) -> str:
    """Return the line with which a process has ended; nothing follows it."""
    line = process.stderr.splitlines()[-1]
    assert line.startswith("sparklog: "), process.stderr
    assert "Traceback" not in process.stderr
    return line


def states(cluster: Cluster) -> dict[int, str]:
    return {row["broker_id"]: row["state"] for row in cluster.rows(BROKERS)}


def hang_reads_of(cluster: Cluster, table: str) -> str:
    """Let the next read of a control table of the cluster root hang: its next commit is a pipe.

    Returns
    -------
    str
        The path of the pipe.
    """
    location = Location.of(str(cluster.folder / "cluster" / table))
    pipe = f"{location.uri}/{commit_path(newest_version(location) + 1)}"
    os.mkfifo(pipe)
    return pipe


@contextmanager
def hanging_tick(cluster: Cluster, process: Process) -> Iterator[None]:
    """Let a tick of `process` hang: it reads a pipe that has a writer and no content.

    A signal sent before a tick reads the pipe would end an idle process, which hangs nowhere.
    """
    pipe = hang_reads_of(cluster, TOPICS.name)

    def opened() -> list[int]:
        # Without a reader, this is refused with ENXIO.
        with suppress(OSError):
            return [os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)]
        return []

    [writer] = wait_for(opened, "reader of the pipe", process)
    try:
        yield
    finally:
        os.close(writer)
        Path(pipe).unlink()


def store_options(port: int) -> dict[str, str]:
    """Return the options of a store at a local port."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "an-id",
        "AWS_SECRET_ACCESS_KEY": "a-secret",
        "max_retries": "0",
    }


def running(cluster: Cluster, **settings: Any) -> Process:
    """Start a single broker that creates its cluster, and wait until it is alive."""
    cluster.settings |= {key.replace("_", "."): value for key, value in settings.items()}
    process = cluster.run(broker_id=0)
    process.wait_for_event("became controller")
    return process


class TestTheBound:
    def test_ends_a_stop_whose_tick_hangs_and_names_the_tick(self, cluster: Cluster) -> None:
        """The signal is handled though a read of a file hangs; the next start succeeds."""
        process = running(cluster, controlled_shutdown_timeout_ms=1_500)
        with hanging_tick(cluster, process):
            since = time.monotonic()
            assert process.end() == ExitCode.NOT_STOPPED, process.stderr
            assert time.monotonic() - since >= 1.5
        line = line_of(process)
        assert re.search(r"controlled\.shutdown\.timeout\.ms=1500: \w+_tick of broker 0 has", line)
        assert "not stopped: broker 0; acknowledged records are safe" in line

        again = cluster.run(broker_id=0)
        again.wait_for_event("broker started")
        assert again.end() == ExitCode.DONE, again.stderr
        assert states(cluster) == {0: "stopped"}

    @pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
    def test_is_not_awaited_after_a_second_signal(
        self, cluster: Cluster, second: signal.Signals
    ) -> None:
        """A second signal, also another one, ends a process whose tick hangs at once."""
        process = running(cluster, controlled_shutdown_timeout_ms=LONG_MS)
        with hanging_tick(cluster, process):
            process.send(signal.SIGTERM)
            # The handler of the first signal replaces itself before the second one is sent.
            wait_for(lambda: not handles(process, signal.SIGTERM), "end of the handler", process)
            assert process.end(second) == -second

    @needs_store
    @pytest.mark.parametrize("is_awaited", [True, False], ids=["bound", "second signal"])
    def test_ends_a_stop_whose_requests_to_a_store_hang(
        self, cluster: Cluster, store: Store, is_awaited: bool
    ) -> None:
        """The server of the store is suspended while a broker runs."""
        cluster.settings["cluster.root"] = f"{store.bucket()}/cluster"
        cluster.settings["storage.options"] = dict(store.options())
        bound_ms = 1_500 if is_awaited else LONG_MS
        process = running(cluster, controlled_shutdown_timeout_ms=bound_ms)
        store.suspend()
        try:
            process.send(signal.SIGTERM)
            if is_awaited:
                assert process.exit_code() == ExitCode.NOT_STOPPED
                assert "of broker 0 has run for" in line_of(process)
            else:
                wait_for(lambda: not handles(process, signal.SIGTERM), "first signal", process)
                assert process.end(signal.SIGTERM) == -signal.SIGTERM
        finally:
            store.resume()

    def test_begins_with_a_signal_that_another_thread_receives(self, cluster: Cluster) -> None:
        """Such a signal does not interrupt the wait of the main thread, where handlers run.

        The same holds for a signal that arrives just before the wait begins.
        """
        code = (
            "import signal, threading, sparklog.cli\n"
            "from sparklog.broker.broker import Broker\n"
            "tick, sent = Broker.controller_tick, []\n"
            "def controller_tick(broker):\n"
            "    if not sent:\n"
            "        sent.append(signal.SIGTERM)\n"
            "        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)\n"
            "    return tick(broker)\n"
            "Broker.controller_tick = controller_tick\n"
            "sparklog.cli.app()\n"
        )
        config = str(cluster.configuration(0))
        command = [sys.executable, "-c", code, "broker", "--config", config, "--without-spark"]
        process = cluster.start(command)
        assert process.exit_code() == ExitCode.DONE
        assert states(cluster) == {0: "stopped"}

    def test_holds_for_a_request_in_the_thread_of_the_rounds(self, cluster: Cluster) -> None:
        """The client of a store does not return to Python, and thus to a handler, for a signal."""
        cluster.settings["controlled.shutdown.timeout.ms"] = 1_000
        with socket.create_server(("127.0.0.1", 0)) as silent:
            options = {"s3://bucket": store_options(silent.getsockname()[1])}
            code = (
                "import sparklog.cli\n"
                "from sparklog.broker.broker import Broker\n"
                "from sparklog.storage.location import Location\n"
                "def controller_tick(_):\n"
                f"    Location.of('s3://bucket/cluster', {options!r}).read_bytes('file')\n"
                "Broker.controller_tick = controller_tick\n"
                "sparklog.cli.app()\n"
            )
            config = str(cluster.configuration(0))
            command = [sys.executable, "-c", code, "broker", "--config", config, "--without-spark"]
            process = cluster.start(command)
            silent.settimeout(PATIENCE)
            with silent.accept()[0]:
                since = time.monotonic()
                assert process.end() == ExitCode.NOT_STOPPED
                # The client gives up after 30 s.
                assert time.monotonic() - since < 25
        assert "controller_tick of broker 0 has run for" in line_of(process)

    def test_holds_for_requests_that_hang_after_the_brokers_have_ended(
        self, cluster: Cluster
    ) -> None:
        """The interpreter waits for the threads of pools, such as reads of a dead peer's store."""
        cluster.settings["controlled.shutdown.timeout.ms"] = 1_000
        code = (
            "import threading, sparklog.cli\n"
            "from sparklog.storage.parallel import reading_threads\n"
            "reading_threads().submit(threading.Event().wait)\n"
            "sparklog.cli.app()\n"
        )
        config = str(cluster.configuration(0))
        options = ["broker", "--config", config, "--without-spark", "--until-idle"]
        process = cluster.start([sys.executable, "-c", code, *options])
        assert process.exit_code() == ExitCode.NOT_STOPPED
        assert "the brokers have ended, but requests of this process hang" in line_of(process)
        assert states(cluster) == {0: "parked"}

    def test_leaves_time_for_checkpoints_if_nobody_takes_the_leadership(
        self, cluster: Cluster
    ) -> None:
        """The hand-over ends after half of the bound, though a session is longer."""
        cluster.settings |= {
            "broker.session.timeout.ms": LONG_MS,
            "controlled.shutdown.timeout.ms": 4_000,
        }
        brokers = [cluster.run(broker_id=one) for one in range(3)]
        for process in brokers:
            process.wait_for_event("broker started")
        [lease] = wait_for(lambda: cluster.rows(CONTROLLER), "controller")
        leader = (lease["broker_id"] + 1) % 3
        client = Client(cluster)
        client.create_topic(leader=leader)
        client.produce(b"a")
        brokers[lease["broker_id"]].send(signal.SIGSTOP)
        assert brokers[leader].end() == ExitCode.DONE, brokers[leader].stderr
        assert '"event": "leadership not handed over"' in brokers[leader].stderr
        assert states(cluster)[leader] == "stopped"
        assert client.leader() == leader


def handles(process: Process, number: signal.Signals) -> bool:
    """Return whether a process has a handler for a signal."""
    status = Path(f"/proc/{process.popen.pid}/status")
    if not status.exists():
        pytest.skip("this system does not list a process's signal handlers")
    [caught] = re.findall(r"^SigCgt:\s*([0-9a-f]+)$", status.read_text(), re.MULTILINE)
    return bool(int(caught, 16) >> (number - 1) & 1)


class TestExitCodes:
    """A scheduler restarts a process by its exit code; the line is for people."""

    def test_a_root_that_cannot_be_reached_is_tried_again(self, cluster: Cluster) -> None:
        """A store that does not answer may answer later: FAILED."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        cluster.settings["cluster.root"] = "s3://bucket/cluster"
        cluster.settings["storage.options"] = {"s3://bucket": store_options(port)}
        process = cluster.run(broker_id=0)
        assert process.exit_code() == ExitCode.FAILED
        assert "s3://bucket/cluster cannot be reached" in line_of(process)

    def test_ticks_that_fail_end_the_process_after_their_bound(self, cluster: Cluster) -> None:
        """The failure is logged at once, with its count; the process ends later."""
        process = running(cluster, tick_failure_timeout_ms=1_000)
        shutil.move(cluster.folder / "cluster", cluster.folder / "away")
        assert process.exit_code() == ExitCode.FAILED
        line = line_of(process)
        assert re.search(r"\w+ of broker 0 has failed for longer than .*=1000 \(\d+ times", line)
        assert "there is no cluster root at" in line
        first = next(one for one in process.stderr.splitlines() if '"event": "failed"' in one)
        assert '"failures": 1' in first
        shutil.move(cluster.folder / "away", cluster.folder / "cluster")
        again = cluster.run(broker_id=0)
        again.wait_for_event("broker started")
        assert again.end() == ExitCode.DONE, again.stderr

    def test_a_failure_whose_stop_hangs_keeps_its_line_and_code(self, cluster: Cluster) -> None:
        """The bound of a stop also holds for a process that ends because of a failure."""
        process = running(
            cluster, tick_failure_timeout_ms=2_000, controlled_shutdown_timeout_ms=1_000
        )
        root = cluster.folder / "cluster"
        # Each tick checks the format before it reads another table.
        (root / "format").rename(cluster.folder / "format")
        process.wait_for_event("failed")
        hang_reads_of(cluster, BROKERS.name)
        assert process.exit_code() == ExitCode.FAILED, process.stderr
        line = line_of(process)
        assert "tick.failure.timeout.ms=2000" in line
        assert re.search(r"controlled\.shutdown\.timeout\.ms=1000: stop of broker 0 has run", line)

    def test_a_process_whose_spark_was_killed_is_restarted(self, cluster: Cluster) -> None:
        """Without Spark nothing can be copied by its tasks: FAILED."""
        cluster.configuration(0)
        process = cluster.run(broker_id=0, with_spark=True)
        process.wait_for_event("became controller")
        children = Path(f"/proc/{process.popen.pid}/task/{process.popen.pid}/children")
        if not children.exists():
            pytest.skip("this system does not list a process's children")
        for child in children.read_text().split():
            os.kill(int(child), signal.SIGKILL)
        assert process.exit_code() == ExitCode.FAILED
        # py4j logs the lost connection with a traceback before that.
        [*_, line] = process.stderr.splitlines()
        assert line == "sparklog: Spark has ended, so nothing can be copied: restart"
        assert states(cluster) == {0: "stopped"}
