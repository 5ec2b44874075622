"""The offset of the newest timestamp: records may come in any order of time."""

from __future__ import annotations

from pathlib import Path

from sparklog.cluster.admin import Admin
from sparklog.cluster.committed_logs import CommittedLogs
from sparklog.cluster.offsets import Offsets
from sparklog.model import TopicPartition
from sparklog.testing import LocalCluster


def test_the_newest_record_is_the_first_of_its_time_that_is_visible(tmp_path: Path) -> None:
    """Records that are not committed or that are deleted are not visible, also within a batch."""
    cluster = LocalCluster(tmp_path, [0, 1])
    cluster.create_topic("t", assignment={0: [0, 1]})
    name = TopicPartition("t", 0)

    def newest() -> tuple[int, int] | None:
        found = Offsets(CommittedLogs(cluster.connection)).of_max_timestamp([name])[name]
        return None if found is None else (found.offset, found.timestamp_ms)

    assert newest() is None
    for time_ms in (5_000, 9_000, 9_000, 7_000):
        cluster.produce("t", 0, [b"a", b"b"], timestamp_ms=time_ms)
        cluster.tick_until_idle()
    assert newest() == (2, 9_000)
    cluster.produce("t", 0, [b"a"], timestamp_ms=99_000)
    cluster.leader_tick(0)
    assert newest() == (2, 9_000)
    Admin(cluster.connection).delete_records({name: 5}, timeout_ms=0)
    cluster.leader_tick(0)
    assert newest() == (5, 9_000)
    cluster.tick_until_idle()
    assert newest() == (8, 99_000)
