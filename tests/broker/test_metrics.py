"""The metrics of brokers: lags, elections and traffic of a cluster, and totals across runs."""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sparklog.broker.application import Application
from sparklog.broker.metrics import METRICS, samples
from sparklog.cli.application import one_line_errors, run_application
from sparklog.cli.exit_codes import ExitCode
from sparklog.config import ClusterConfig, parse
from sparklog.counts import FAILURES, Histogram, HistogramState
from sparklog.errors import ConfigError
from sparklog.logger import RepeatedFailures, get_logger
from sparklog.testing import LocalCluster, ManualClock

Start = Callable[..., LocalCluster]

SERVER = "kafka_server_replicamanager_"
CONTROLLER = "kafka_controller_kafkacontroller_"
STATS = "kafka_controller_controllerstats_"
TRAFFIC = "kafka_server_brokertopicmetrics_"
LAG = "kafka_server_replicafetchermanager_maxlag"
PURGATORY = "kafka_server_delayedoperationpurgatory_purgatorysize"
ANSWERS = "kafka_network_requestmetrics_errors_total"


def metric(cluster: LocalCluster, broker: int, name: str, *labels: str) -> float:
    """Return a metric of one broker; of a histogram the number of its values."""
    [value] = [
        one.value
        for one in samples([cluster.brokers[broker]])
        if one.series == (name, (str(broker), *labels))
    ]
    return value.cumulative[-1] if isinstance(value, HistogramState) else value


def total(cluster: LocalCluster, name: str) -> float:
    """Return the sum of a metric over the brokers that run."""
    return sum(metric(cluster, one, name) for one in cluster.brokers)


def test_a_follower_that_falls_behind_is_reported_by_itself_and_by_its_leader(
    start: Start,
) -> None:
    """It copies one batch a tick. Without ticks it leaves the ISR, and returns to it later."""
    cluster = start(0, 1, min_isr=2, replica_fetch_max_bytes=1, replica_lag_time_max_ms=5_000)
    for value in (b"a", b"b", b"c"):
        cluster.produce("t", 0, [value], acks=1)
    pending = cluster.produce("t", 0, [b"d"], acks="all")
    cluster.leader_tick(0)
    assert metric(cluster, 0, PURGATORY, "Produce") == 1
    cluster.follower_tick(1)
    behind = cluster.replica(0, "t", 0).log_end_offset - cluster.replica(1, "t", 0).log_end_offset
    assert metric(cluster, 1, LAG, "Replica") == behind == 3
    assert metric(cluster, 0, f"{SERVER}underreplicatedpartitions") == 0

    cluster.clock.advance(5_001)
    cluster.leader_tick(0)
    cluster.tick_until_idle()
    assert metric(cluster, 0, f"{SERVER}isrshrinks_total") == 1
    assert metric(cluster, 0, f"{SERVER}isrexpands_total") == 1
    assert metric(cluster, 1, LAG, "Replica") == 0
    assert metric(cluster, 0, PURGATORY, "Produce") == 0
    assert pending.response is not None
    assert metric(cluster, 0, ANSWERS, "Produce", "NONE") == 3 + (pending.response.error == "NONE")
    assert metric(cluster, 0, "kafka_network_requestmetrics_totaltimems", "Produce") == 4

    assert metric(cluster, 0, f"{TRAFFIC}messagesin_total", "t") == 4
    batches = cluster.brokers[0]._roots[0].log.partitions()
    [key] = batches
    size = sum(one.size_bytes for one in cluster.brokers[0]._roots[0].log.batches(key))
    assert metric(cluster, 0, f"{TRAFFIC}bytesin_total", "t") == size
    assert metric(cluster, 1, f"{TRAFFIC}replicationbytesin_total") == size
    assert metric(cluster, 1, "sparklog_files_copied_total") == 4


def test_partitions_without_enough_replicas_are_counted_at_their_leader(start: Start) -> None:
    cluster = start(0, 1, 2, min_isr=2, assignment={0: [0, 1], 1: [0, 2], 2: [1, 2]})
    cluster.crash(2)
    cluster.fence(2)
    cluster.tick_until_idle()
    under = f"{SERVER}underreplicatedpartitions"
    assert [metric(cluster, one, under) for one in (0, 1)] == [1, 1]
    assert [metric(cluster, one, f"{SERVER}underminisrpartitioncount") for one in (0, 1)] == [1, 1]
    assert [metric(cluster, one, f"{SERVER}atminisrpartitioncount") for one in (0, 1)] == [1, 0]
    assert [metric(cluster, one, f"{SERVER}leadercount") for one in (0, 1)] == [2, 1]
    assert [metric(cluster, one, f"{SERVER}partitioncount") for one in (0, 1)] == [2, 2]
    assert total(cluster, f"{CONTROLLER}activebrokercount") == 2
    assert total(cluster, f"{CONTROLLER}fencedbrokercount") == 1


def test_elections_are_counted_by_the_controller_and_unclean_ones_apart(start: Start) -> None:
    cluster = start(0, 1, 2, assignment={0: [1, 2]}, replica_lag_time_max_ms=5_000)
    assert total(cluster, f"{CONTROLLER}activecontrollercount") == 1
    assert metric(cluster, 0, f"{CONTROLLER}activecontrollercount") == 1
    cluster.crash(1)
    cluster.fence(1)
    cluster.tick_until_idle()
    assert cluster.partition("t", 0).leader == 2
    assert metric(cluster, 0, "sparklog_leader_elections_total", "clean") == 1
    assert metric(cluster, 0, f"{STATS}uncleanleaderelections_total") == 0
    assert metric(cluster, 0, f"{STATS}leaderelectionrateandtimems") == 1
    assert metric(cluster, 0, f"{CONTROLLER}preferredreplicaimbalancecount") == 1

    # Broker 1 lacks the record, and is not in sync when the leader dies.
    cluster.produce("t", 0, [b"lost"], acks=1)
    cluster.leader_tick(2)
    cluster.crash(2)
    cluster.restart(1)
    cluster.fence(2)
    cluster.tick_until_idle()
    assert cluster.partition("t", 0).leader is None
    assert metric(cluster, 0, f"{CONTROLLER}offlinepartitionscount") == 1
    assert metric(cluster, 0, "sparklog_leader_elections_total", "none") == 1

    cluster.alter_configs("t", {"unclean.leader.election.enable": "true"})
    cluster.tick_until_idle()
    assert cluster.partition("t", 0).leader == 1
    assert metric(cluster, 0, f"{CONTROLLER}offlinepartitionscount") == 0
    assert metric(cluster, 0, f"{STATS}uncleanleaderelections_total") == 1
    assert metric(cluster, 0, "sparklog_leader_elections_total", "clean") == 1
    assert metric(cluster, 0, f"{STATS}leaderelectionrateandtimems") == 3


def test_a_tick_is_timed_by_its_role_also_if_it_fails(
    start: Start, fail_once: Callable[[str, str], None]
) -> None:
    cluster = start(0)
    before = {
        role: metric(cluster, 0, "sparklog_tick_seconds", role)
        for role in ("controller", "leader", "follower")
    }
    cluster.leader_tick(0)
    fail_once("refresh", "cluster/brokers")
    with pytest.raises(OSError, match="is away"):
        cluster.controller_tick()
    cluster.follower_tick(0)
    for role, count in before.items():
        assert metric(cluster, 0, "sparklog_tick_seconds", role) == count + 1, role


def test_metrics_are_those_of_the_table_and_cost_no_commit(start: Start) -> None:
    cluster = start(0, 1)
    cluster.produce("t", 0, [b"a"])
    cluster.tick_until_idle()
    found = samples(cluster.brokers.values())
    only_in_files = {name for name in METRICS if name.startswith("sparklog_last_run_")}
    only_on_stores = {"sparklog_store_requests_total"}
    only_of_events = {"sparklog_leader_elections_total", "sparklog_failures_total"}
    missing = METRICS.keys() - {one.metric.name for one in found}
    assert missing <= only_in_files | only_on_stores | only_of_events
    for one in found:
        assert len(one.labels) == len(one.metric.labels), one
    assert len({one.series for one in found}) == len(found)
    assert cluster.leader_tick(0).commits == 0


def test_a_histogram_counts_values_up_to_each_bound() -> None:
    histogram = Histogram((1, 5))
    for value in (0.5, 1, 3, 7):
        histogram.observe(value)
    assert histogram.state() == HistogramState((1, 5), [2, 3, 4], 11.5)


# --- scheduled runs ------------------------------------------------------------------------------


def application(folder: Path, **settings: object) -> Application:
    config = {
        "cluster.root": str(folder / "cluster"),
        "brokers": [{"broker.id": 0, "log.dirs": str(folder / "broker-0")}],
        "log.merger.enable": False,
        "metrics.textfile": str(folder / "sparklog.prom"),
    } | {key.replace("_", "."): value for key, value in settings.items()}
    return Application(parse(ClusterConfig, config, "the test"), clock=ManualClock())


def run(folder: Path, **settings: object) -> dict[str, float]:
    """Run a broker until it is idle; return the series in its textfile."""
    ran = application(folder, **settings)
    ran.start()
    ran.run_until_idle()
    return textfile(folder)


def textfile(folder: Path) -> dict[str, float]:
    text = (folder / "sparklog.prom").read_text(encoding="utf-8")
    return {
        ",".join((one.name, *(of for _, of in sorted(one.labels.items())))): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def test_the_counters_of_a_textfile_are_totals_of_all_runs(tmp_path: Path) -> None:
    """The first run creates the roots, later ones park and resume the broker."""
    first = run(tmp_path)
    inode = (tmp_path / "sparklog.prom").stat().st_ino
    second = run(tmp_path)
    # Replaced by a rename, so that no reader sees a part of it.
    assert (tmp_path / "sparklog.prom").stat().st_ino != inode
    assert [one.name for one in tmp_path.glob("sparklog.prom*")] == ["sparklog.prom"]
    for name in ("sparklog_commits_total,0", "sparklog_tick_seconds_count,0,leader"):
        assert second[name] > first[name] > 0
    assert (
        second["sparklog_tick_seconds_bucket,0,+Inf,leader"]
        == (second["sparklog_tick_seconds_count,0,leader"])
    )
    # The state at the end of the run, before the broker is parked.
    assert second[f"{CONTROLLER}activecontrollercount,0"] == 1
    assert second["sparklog_last_run_success"] == 1
    assert (
        second["sparklog_last_run_timestamp_seconds"]
        >= (first["sparklog_last_run_timestamp_seconds"])
    )


@pytest.mark.parametrize("text", ["sparklog_commits_total{broker=", "\x00\xff", "nothing 1\n"])
def test_a_damaged_textfile_is_replaced_and_counters_restart(tmp_path: Path, text: str) -> None:
    (tmp_path / "sparklog.prom").write_text(text, encoding="utf-8")
    assert run(tmp_path)["sparklog_last_run_success"] == 1


def test_a_run_that_fails_says_so_in_its_textfile(tmp_path: Path) -> None:
    run(tmp_path)
    failing = application(tmp_path)
    failing.start()
    os.rename(tmp_path / "cluster" / "partition_state", tmp_path / "moved")  # noqa: PTH104
    with pytest.raises(Exception, match="partition_state"):
        failing.run_until_idle()
    assert textfile(tmp_path)["sparklog_last_run_success"] == 0


def test_a_textfile_without_a_folder_is_refused_before_anything_is_created(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"metrics\.textfile: .* create the folder"):
        application(tmp_path, metrics_textfile=str(tmp_path / "none" / "a.prom")).start()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigError, match=r"metrics\.textfile .*a\.txt"):
        application(tmp_path, metrics_textfile=str(tmp_path / "a.txt"))


@pytest.mark.parametrize(
    ("key", "value", "module", "extra"),
    [
        ("metrics_http_port", 0, "prometheus_client", "metrics"),
        ("metrics_textfile", "/a.prom", "prometheus_client", "metrics"),
        ("tracing_enable", True, "opentelemetry", "tracing"),
    ],
)
def test_a_missing_package_is_named_with_the_extra_that_has_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    key: str,
    value: object,
    module: str,
    extra: str,
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    settings = {"metrics_textfile": None} | {key: value}
    with pytest.raises(ConfigError, match=rf"install sparklog\[{extra}\]") as refused:
        application(tmp_path, **settings).start()
    assert str(refused.value).startswith(key.replace("_", "."))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("metrics.http.port", None, "cannot serve metrics at 127.0.0.1:{port} (Address already in"),
        ("metrics.http.host", "no.such.host.invalid", "cannot serve metrics at no.such.host"),
        ("metrics.textfile", "{folder}/none/a.prom", "create the folder"),
    ],
)
def test_metrics_that_cannot_be_exported_are_refused_before_spark_starts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    key: str,
    value: str | None,
    message: str,
) -> None:
    """Spark took 10 s to start, on Databricks minutes, before the one line about a taken port."""

    def start_spark(**_: object) -> None:
        raise AssertionError("Spark is started")

    monkeypatch.setattr("sparklog.cli.application.spark_session", start_spark)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = {
            "cluster.root": str(tmp_path / "cluster"),
            "brokers": [{"broker.id": 0, "log.dirs": str(tmp_path / "broker-0")}],
            "metrics.http.port": port if key == "metrics.http.port" else 0,
        }
        if value is not None:
            config[key] = value.format(folder=tmp_path)
        parsed = parse(ClusterConfig, config, "the test")
        with pytest.raises(SystemExit) as ended, one_line_errors():
            run_application(parsed, until_idle=True, with_spark=True)
    assert ended.value.code == ExitCode.UNUSABLE
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("sparklog: metrics.")
    assert message.format(port=port) in line
    assert list(tmp_path.iterdir()) == []


def test_by_default_metrics_go_nowhere_and_need_no_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("prometheus_client", "opentelemetry"):
        monkeypatch.setitem(sys.modules, module, None)
    idle = application(tmp_path, metrics_textfile=None)
    idle.start()
    assert not [one for one in threading.enumerate() if one.name == "metrics"]
    idle.run_until_idle()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["broker-0", "cluster"]


# --- repeated failures ---------------------------------------------------------------------------


def test_the_end_of_a_repeated_failure_is_logged_with_its_number(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failures = RepeatedFailures(get_logger("sparklog.test"), lambda: 0.0)
    before = FAILURES.totals().get("store gone", 0)
    with caplog.at_level(logging.INFO, "sparklog"):
        for _ in range(1_600):
            failures.warning("of", "store gone", root="r")
        assert failures.over("of")
        assert not failures.over("of")
    assert [one.message for one in caplog.records] == [
        "store gone root=r",
        'failure ended failure="store gone" occurrences=1600',
    ]
    assert FAILURES.totals()["store gone"] == before + 1_600


def test_a_replica_whose_first_commit_fails_is_reported_as_created_once(
    start: Start, fail_once: Callable[[str, str], None], caplog: pytest.LogCaptureFixture
) -> None:
    cluster = start(0, 1)
    cluster.create_topic("new", assignment={0: [0]})
    with caplog.at_level(logging.INFO, "sparklog"):
        for _ in range(3):
            fail_once("write", "broker-0/log")
            with pytest.raises(OSError, match="is away"):
                cluster.leader_tick(0)
        assert not [one for one in caplog.records if "replica created" in one.message]
        cluster.leader_tick(0)
    assert len([one for one in caplog.records if "replica created" in one.message]) == 1


def test_an_election_whose_commit_fails_is_logged_once_it_is_committed(
    start: Start, fail_once: Callable[[str, str], None], caplog: pytest.LogCaptureFixture
) -> None:
    cluster = start(0, 1, 2, assignment={0: [1, 2]})
    cluster.crash(1)
    fail_once("write", "cluster/partition_state")
    with caplog.at_level(logging.INFO, "sparklog"):
        with pytest.raises(OSError, match="is away"):
            cluster.fence(1)
        assert not [one for one in caplog.records if "partition changed" in one.message]
        cluster.controller_tick()
    [line] = [one.message for one in caplog.records if "partition changed" in one.message]
    assert line == "partition changed topic=t partition=0 leader=2 leader_epoch=1 isr=[2]"
    assert metric(cluster, 0, "sparklog_leader_elections_total", "clean") == 1
