"""Commits whose answer is lost: the commit landed, but its process gets an error.

A conditional PUT that is repeated after its answer was lost is refused because of itself, and so is
link() on a network file system. Over S3 such answers left wrong epoch histories on every broker.
One lost answer, an election and a failed copy erased acknowledged records from all replicas.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from deltalake.exceptions import DeltaError

from sparklog.broker.broker import Broker
from sparklog.errors import StorageError
from sparklog.model import BROKERS
from sparklog.storage import local_files
from sparklog.storage.delta_log import DeltaLog
from sparklog.storage.record_log import RecordLog
from sparklog.testing import LocalCluster
from tests.broker.states import rows, values


class LosingAnswers(local_files.LocalFiles):
    """Loses the answer of the commit number `lost` to one of `tables`; counts from 0.

    `way`: "exists" (refused because of itself), "error" (an I/O error after it landed), "unread"
    (an I/O error, and the commit cannot be read back at once), "failed" (an I/O error before).
    """

    def __init__(self, tables: tuple[str, ...], lost: int, way: str) -> None:
        self._tables, self._lost, self._way = tables, lost, way
        self.commits = 0
        self.is_unreadable = False

    def link(self, source: str, target: str) -> None:
        if not target.endswith(".json") or Path(target).parts[-3] not in self._tables:
            os.link(source, target)
            return
        number, self.commits = self.commits, self.commits + 1
        if number != self._lost:
            os.link(source, target)
            return
        if self._way != "failed":
            os.link(source, target)
        if self._way == "exists":
            raise FileExistsError(errno.EEXIST, "there already", target)
        self.is_unreadable = self._way == "unread"
        raise OSError(errno.EIO, "the answer was lost", target)


@pytest.fixture
def lose(monkeypatch: pytest.MonkeyPatch) -> Callable[[tuple[str, ...], int, str], LosingAnswers]:
    is_by = DeltaLog._is_by

    def arrange(tables: tuple[str, ...], lost: int, way: str) -> LosingAnswers:
        files = LosingAnswers(tables, lost, way)

        def read_back(log: DeltaLog, commit_id: str) -> bool:
            if files.is_unreadable:
                files.is_unreadable = False
                raise OSError(errno.EIO, "not readable now")
            return is_by(log, commit_id)

        monkeypatch.setattr(local_files, "FILES", files)
        monkeypatch.setattr(DeltaLog, "_is_by", read_back)
        return files

    return arrange


Lose = Callable[[tuple[str, ...], int, str], LosingAnswers]


def idle(cluster: LocalCluster) -> None:
    """Tick until idle, as an application does: a tick that fails is repeated."""
    for _ in range(5):
        with suppress(OSError, StorageError, DeltaError):
            cluster.tick_until_idle()
            return
    cluster.tick_until_idle()


def story(cluster: LocalCluster) -> list[str]:
    """A failover and a returning leader, with a record in each epoch; return the acknowledged
    values.
    """
    told = []

    def send(value: str) -> None:
        pending = cluster.produce("t", 0, [value.encode()])
        idle(cluster)
        assert pending.response is not None
        assert pending.response.error == "NONE"
        told.append(value)

    send("m0")
    cluster.crash(0)
    cluster.clock.advance(cluster.settings.broker_session_timeout_ms + 1)
    idle(cluster)
    send("m1")
    with suppress(OSError, StorageError, DeltaError):
        cluster.restart(0)
    if 0 not in cluster.brokers:
        cluster.restart(0)
    idle(cluster)
    send("m2")
    return told


def check(cluster: LocalCluster, told: list[str]) -> None:
    histories = []
    for broker in (0, 1, 2):
        log = cluster.log(broker, "t", 0)
        assert values(log) == told
        starts: dict[int, int] = {}
        for record in log:
            starts.setdefault(record.leader_epoch, record.offset)
        history = cluster.leader_epochs(broker, "t", 0)
        assert set(starts.items()) <= set(history), f"broker {broker}"
        assert history == sorted(history)
        histories.append(history)
    partition = cluster.partition("t", 0)
    assert partition.isr == [0, 1, 2]
    assert values(cluster.consume("t", 0)) == told


TABLES = {
    "log": ("log",),
    "checkpoints": (
        "leader_epoch_checkpoint",
        "high_watermark_checkpoint",
        "delayed_operations",
    ),
    "requests": ("produce_requests",),
    "cluster": ("partition_state", "brokers", "controller"),
}


WAYS = ("exists", "error", "unread", "failed")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("tables", [*TABLES])
def test_no_commit_of_any_role_loses_or_repeats_a_record(
    tmp_path: Path, lose: Lose, tables: str, way: str
) -> None:
    """Each commit of the scenario in turn: appends, copies, truncations, fences, elections."""
    if tables == "requests" and way in ("unread", "failed"):
        pytest.skip("the client's own send fails then, which is told to the caller")
    # Each commit to a log is lost in one of the ways; of the other commits, which are many, a
    # sample.
    number, of_story = WAYS.index(way), len(WAYS)
    step = len(WAYS) if tables == "log" else 5 * len(WAYS)
    while number < of_story:
        cluster = LocalCluster(tmp_path / str(number))
        cluster.create_topic("t", assignment={0: [0, 1, 2]}, configs={"min.insync.replicas": "2"})
        cluster.tick_until_idle()
        files = lose(TABLES[tables], number, way)
        told = story(cluster)
        of_story = files.commits
        check(cluster, told)
        cluster.close()
        number += step
    assert of_story >= 5


@pytest.mark.parametrize("stop", [Broker.park, Broker.stop])
def test_a_clean_stop_after_a_lost_answer_marks_the_log_as_it_is(
    tmp_path: Path, lose: Lose, stop: Callable[[Broker], None]
) -> None:
    """The mark used to omit the commit, so the last in-sync replica counted as restored."""
    cluster = LocalCluster(tmp_path, brokers=[0])
    cluster.create_topic("t", assignment={0: [0]})
    cluster.tick_until_idle()
    cluster.produce("t", 0, [b"a"])
    lose(("log",), 0, "unread")
    with pytest.raises(OSError, match="not readable now"):
        cluster.leader_tick(0)
    stop(cluster.brokers[0])
    cluster.crash(0)
    cluster.restart(0)
    assert cluster.partition("t", 0).isr == [0]
    cluster.tick_until_idle()
    assert values(cluster.consume("t", 0)) == ["a"]


def test_a_stop_without_an_answer_about_the_log_leaves_no_mark(
    tmp_path: Path, lose: Lose, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop marks no clean stop if the log cannot be read after a lost answer."""
    cluster = LocalCluster(tmp_path, brokers=[0])
    cluster.create_topic("t", assignment={0: [0]})
    cluster.tick_until_idle()
    cluster.produce("t", 0, [b"a"])
    lose(("log",), 0, "unread")
    with pytest.raises(OSError, match="not readable now"):
        cluster.leader_tick(0)

    def unreadable(*_: object) -> None:
        raise OSError(errno.EIO, "not readable now")

    with monkeypatch.context() as patch:
        patch.setattr(RecordLog, "refresh", unreadable)
        cluster.brokers[0].park()
    [row] = rows(cluster, None, BROKERS)
    assert (row["state"], row["log_digest"]) == ("parked", None)
    cluster.crash(0)
    cluster.restart(0)
    assert cluster.partition("t", 0).isr == [0]


class HeldBack(local_files.LocalFiles):
    """Delays one commit of the log, as a store does that executes a request late."""

    def __init__(self) -> None:
        self.held: tuple[bytes, str] | None = None

    def link(self, source: str, target: str) -> None:
        if self.held is None and target.endswith(".json") and "/log/_delta_log/" in target:
            self.held = Path(source).read_bytes(), target
            raise OSError(errno.ETIMEDOUT, "no answer in time", target)
        os.link(source, target)

    def land(self) -> bool:
        """Execute the commit now; return whether its version was free."""
        assert self.held is not None
        content, target = self.held
        try:
            with Path(target).open("xb") as file:
                file.write(content)
        except FileExistsError:
            return False
        return True


def test_a_commit_that_may_still_land_loses_its_version_before_anything_is_decided(
    start: Callable[..., LocalCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tick takes the version of an uncertain commit first, also if it has nothing to commit
    (10.6).

    The pending commit may be outdated by then: a leader that had changed the ISR found a high
    watermark of the earlier ISR in its log.
    """
    cluster = start(0, 1)
    replicas = cluster.brokers[0]._replicas[0]
    [key] = replicas.partitions()
    version = replicas.root.log.version
    files = HeldBack()
    monkeypatch.setattr(local_files, "FILES", files)
    replicas.put(key, "t", reported_at_ms=5)
    with pytest.raises(OSError, match="no answer"):
        replicas.commit(5)
    replicas.settle()
    assert replicas.commit(6)
    assert replicas.root.log.version == version + 1
    assert not files.land()
    assert not replicas.commit(7)
    cluster.tick_until_idle()


def test_a_commit_that_lands_late_is_found_by_the_tick_that_takes_its_version(
    start: Callable[..., LocalCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tick that tries the version of a late commit finds it, and appends the record once."""
    cluster = start(0, 1)
    files = HeldBack()
    pending = cluster.produce("t", 0, [b"a"], acks=1)
    monkeypatch.setattr(local_files, "FILES", files)
    with pytest.raises(OSError, match="no answer"):
        cluster.leader_tick(0)
    replicas = cluster.brokers[0]._replicas[0]
    replicas.settle()
    assert files.land()
    with suppress(OSError, StorageError, DeltaError):
        cluster.leader_tick(0)
    cluster.tick_until_idle()
    assert pending.response is not None
    assert pending.response.error == "NONE"
    assert values(cluster.log(0, "t", 0)) == values(cluster.log(1, "t", 0)) == ["a"]
