"""The judge, the results and the faults of the store."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.faults.client_logs import Answered, GroupLog, Polled, ProducerLog, Sent
from tests.faults.compaction import KEYS, FinalLog, Removed, removed
from tests.faults.faulty_store import KINDS, Faults, running_faulty_store
from tests.faults.judge import Gap, anomalies, check_stream, unavailable
from tests.faults.nemesis import Deed
from tests.faults.results import Results, quantile, summary
from tests.faults.stream_process import ROWS

PRODUCER = ProducerLog("p", [Sent(1, 0, 0, 2), Sent(2, 0, 2, 1)], [Answered(3, 0, 0, 3, "NONE", 0)])
RECORDS = [(0, b"p:0"), (1, b"p:1"), (2, b"p:2")]


def kinds(log: FinalLog, polled: list[tuple[int, bytes]] = RECORDS) -> set[str]:
    group = GroupLog(polled=[Polled(4, "c", 0, tuple(polled))])
    return {kind for kind, _ in anomalies([PRODUCER], group, log)}


def test_a_correct_round_has_no_anomaly() -> None:
    assert not kinds({0: RECORDS})


def test_a_lost_a_duplicate_a_moved_and_an_invented_record_are_anomalies() -> None:
    assert "lost" in kinds({0: RECORDS[:2]}, RECORDS[:2])
    assert kinds({0: [*RECORDS, (3, b"p:0")]}) == {"duplicated"}
    assert "moved" in kinds({0: [*RECORDS[:2], (3, b"p:2")]}, RECORDS[:2])
    assert "invented" in kinds({0: [*RECORDS, (3, b"x:0")]})


def test_a_poll_that_differs_from_the_log_is_an_anomaly() -> None:
    assert "moved" in kinds({0: RECORDS}, [(0, b"p:0"), (1, b"p:2"), (2, b"p:1")])
    assert kinds({0: RECORDS}, RECORDS[1:]) == {"poll skip", "unseen"}


def test_a_record_may_be_missing_where_compaction_has_removed_it() -> None:
    """It is compacted if the log has a later record of its key, and lost otherwise."""
    earlier, later = (0, b"p:0"), (KEYS, b"p:%d" % KEYS)
    producer = ProducerLog("p", [Sent(1, 0, 0, KEYS + 1)], [Answered(3, 0, 0, KEYS + 1, "NONE", 0)])
    records = [(one, b"p:%d" % one) for one in range(KEYS + 1)]
    group = GroupLog(polled=[Polled(4, "c", 0, tuple(records[1:]))])

    def found(log: list[tuple[int, bytes]]) -> tuple[Removed, set[str]]:
        compacted = removed([producer], group, {0: log})
        return compacted, {kind for kind, _ in anomalies([producer], group, {0: log}, compacted)}

    assert found(records[1:]) == ({0: dict([earlier])}, set())
    assert found(records[:-1]) == ({0: {}}, {"lost", "unseen", "poll skip"})
    assert found(records[1:-1])[1] == {"lost", "unseen"}
    moved = [*records[1:-1], (KEYS, b"p:0"), (KEYS + 1, later[1])]
    assert {"duplicated", "moved"} <= found(moved)[1]


def test_the_gap_of_a_killed_leader_is_between_acknowledgements_around_the_kill() -> None:
    """Only the partitions that the killed broker led count, until the next action on a broker."""
    times = (100, 200, 9_300, 9_400, 60_000)
    answers = [Answered(at, 0, of, 1, "NONE", of) for of, at in enumerate(times)]
    others = [Answered(250, 1, 9, 1, "NONE", 0), Answered(90_000, 1, 10, 1, "NONE", 1)]
    producer = ProducerLog("p", [], [*answers, *others])
    kills = [Deed("kill broker", 250, (0,)), Deed("kill producer", 300, ())]
    deeds = [*kills, Deed("stop broker", 9_350, ())]
    assert unavailable([producer], deeds, 100) == [Gap(9_100, 0, 200)]
    before = [Deed("stop broker", 200, ()), *deeds]
    assert unavailable([producer], before, 100) == [Gap(9_100, 0, 200, is_single=False)]
    during = [*kills, Deed("suspend broker", 9_000, ())]
    assert unavailable([producer], during, 100) == [Gap(9_100, 0, 200, is_single=False)]


def test_a_stream_has_each_row_of_its_committed_micro_batches_once(tmp_path: Path) -> None:
    """Rows of a micro-batch that is not committed may be there, once."""
    checkpoint = tmp_path / "stream-0"
    (checkpoint / "commits").mkdir(parents=True)
    (checkpoint / "commits" / "0").touch()
    rows = [(row, str(row).encode()) for row in range(ROWS + 5)]
    assert not list(check_stream(checkpoint, {0: rows}))
    assert [kind for kind, _ in check_stream(checkpoint, {0: rows[1:]})] == ["stream lost"]
    twice = {0: rows, 1: rows[-1:]}
    assert [kind for kind, _ in check_stream(checkpoint, twice)] == ["stream duplicate"]


def test_results_add_up_over_runs(tmp_path: Path) -> None:
    file = tmp_path / "new" / "processes.jsonl"
    assert Results(file).load() == []
    for gap in (9_000, 11_000):
        Results(file).append(
            {
                "acknowledged": 5,
                "deeds": {"kill broker": 2, "suspend broker": 1},
                "faults": {"503 before": 3},
                "unavailable_ms": [gap],
                "anomalies": 0,
            }
        )
    assert summary(Results(file).load()) == (
        "2 rounds, 10 records acknowledged, 4 kills, 2 suspensions, 6 faults of requests, "
        "0 anomalies; unavailable after the kill of a leader (2 gaps): "
        "median 11.0 s, 99% 11.0 s, max 11.0 s"
    )
    assert quantile([1, 2, 3], 0.5) == 2


def test_faults_are_of_every_kind_before_and_after_the_request() -> None:
    faults = Faults(1.0, seed=1)
    for _ in range(500):
        faults.draw()
    assert set(faults.counts) == {
        f"{kind} {when}" for kind in KINDS for when in ("before", "after")
    }


def test_a_bucket_that_is_away_answers_503_and_comes_back(tmp_path: Path) -> None:
    with running_faulty_store(tmp_path / "store.log", 0.0, 0.0, seed=1) as store:
        for name in ("first", "second"):
            store.bucket(name)
        store.set_away("first")
        with pytest.raises(urllib.error.HTTPError, match="503"):
            urllib.request.urlopen(f"{store.url}/first?list-type=2")
        urllib.request.urlopen(f"{store.url}/second?list-type=2").close()
        store.set_away("")
        urllib.request.urlopen(f"{store.url}/first?list-type=2").close()


def test_some_failed_puts_are_carried_out_and_others_are_not(tmp_path: Path) -> None:
    """Every PUT fails; those that were carried out are found once nothing fails."""
    with running_faulty_store(tmp_path / "store.log", 0.0, 0.0, seed=2) as store:
        store.bucket("b")
        store.set_share(1.0)
        for number in range(12):
            request = urllib.request.Request(
                f"{store.url}/b/{number}", data=b"content", method="PUT"
            )
            with pytest.raises(OSError, match=r"50|reset|closed|Remote end"):
                urllib.request.urlopen(request, timeout=30)
        faults = store.faults()
        store.set_share(0.0)
        with urllib.request.urlopen(f"{store.url}/b?list-type=2") as answer:
            there = answer.read().count(b"<Key>")
    assert sum(faults.values()) == 12
    assert there == sum(of for kind, of in faults.items() if kind.endswith("after"))
    assert 0 < there < 12
