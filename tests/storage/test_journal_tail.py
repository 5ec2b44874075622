"""The rows of replicas without the log: equal to a journal's, at any time."""

from __future__ import annotations

from pathlib import Path

from sparklog.model import LOG
from sparklog.storage.delta_log_files import commit_path
from sparklog.storage.journal import Journal
from sparklog.storage.journal_tail import JournalTail
from sparklog.storage.location import Location
from sparklog.testing import LocalCluster

_VERSIONS = {"log_version", "epochs_version"}


def rows_of(state: Journal | JournalTail) -> dict[object, dict[str, object]]:
    """Return the rows without nulls and versions, which a checkpoint has beside a commit's."""
    return {
        key: {name: one for name, one in row.items() if one is not None and name not in _VERSIONS}
        for key, row in state.rows.items()
    }


def test_has_the_rows_of_the_journal(tmp_path: Path) -> None:
    """Opened or followed, before and after checkpoints, with deleted topics gone."""
    cluster = LocalCluster(tmp_path, [0, 1])
    root = Location.of(f"{tmp_path}/broker-1")
    followed = JournalTail(root)
    for topic in ("a", "b"):
        cluster.create_topic(topic, assignment={0: [0, 1], 1: [1, 0]})
        for partition in (0, 1):
            cluster.produce(topic, partition, [b"a record"] * 3)
        cluster.tick_until_idle()
        followed.refresh()
        assert rows_of(followed) == rows_of(JournalTail(root)) == rows_of(Journal(root))
        cluster.clock.advance(6_000)
        cluster.tick_until_idle()
    cluster.delete_topic("a")
    cluster.tick_until_idle()
    followed.refresh()
    assert rows_of(followed) == rows_of(JournalTail(root)) == rows_of(Journal(root))
    assert {row["topic"] for row in followed.rows.values()} == {"b"}
    ends = {key: row["log_end_offset"] for key, row in followed.rows.items()}
    assert ends == {key: Journal(root).log_end_offset(key, 0) for key in followed.rows}


def test_is_not_in_place_after_its_root_was_replaced(tmp_path: Path) -> None:
    """A restored root has another commit at the version, or none."""
    for name in ("one", "other"):
        LocalCluster(tmp_path / name, [0])
    tail = JournalTail(Location.of(f"{tmp_path}/one/broker-0"))
    assert tail.is_in_place()
    newest, other = (
        Path(tmp_path, name, "broker-0", LOG.name, commit_path(tail.newest.commit.version))
        for name in ("one", "other")
    )
    newest.unlink()
    assert not tail.is_in_place()
    newest.write_bytes(other.read_bytes())
    assert not tail.is_in_place()


def test_earlier_commits_end_at_a_time_and_at_clean_up(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, [0])
    for _ in range(5):
        cluster.clock.advance(6_000)
        cluster.tick_until_idle()
    tail = JournalTail(Location.of(f"{tmp_path}/broker-0"))
    found = [one.commit.version for one in tail.earlier(0)]
    assert found == list(range(tail.newest.commit.version + 1))
    assert tail.earlier(tail.newest.stored_at_ms + 1) == []
    cluster.clock.advance(10_000)
    assert tail.refresh()
    Path(tmp_path, "broker-0", LOG.name, commit_path(2)).unlink()
    versions = [one.commit.version for one in tail.earlier(0)]
    assert versions == list(range(3, tail.newest.commit.version + 1))
