"""Each kind of anomaly is found in a forged log of clients, and none in a correct one."""

from __future__ import annotations

from pathlib import Path

from tests.faults.client_logs import (
    Answered,
    Assigned,
    ClientLog,
    Committed,
    GroupLog,
    Polled,
    ProducerLog,
    Sent,
    read_group,
    read_producer,
)
from tests.faults.group_check import check_commits, check_polls, check_sends, check_unseen

THERE = {0: [0, 1, 2, 4, 5]}


def polled(at_ms: int, member: str, *offsets: int) -> Polled:
    return Polled(at_ms, member, 0, tuple((one, b"v%d" % one) for one in offsets))


def committed(at_ms: int, member: str, offset: int, error: str | None = "NONE") -> Committed:
    ended_ms = None if error is None else at_ms + 1
    return Committed(at_ms, member, {0: offset}, ended_ms, error)


def poll_kinds(group: GroupLog) -> list[str]:
    return [kind for kind, _ in check_polls(group, THERE)]


class TestSends:
    def test_a_later_record_at_a_lower_offset_is_a_nonmonotonic_send(self) -> None:
        log = ProducerLog(
            "p", [], [Answered(1, 0, 0, 2, "NONE", 4), Answered(2, 0, 2, 1, "NONE", 3)]
        )
        assert [kind for kind, _ in check_sends(log)] == ["nonmonotonic send"]

    def test_answers_may_come_in_another_order_than_the_sends(self) -> None:
        """Order counts by record, not by the time at which an answer was logged."""
        answers = [Answered(1, 0, 2, 1, "NONE", 9), Answered(2, 0, 0, 2, "NONE", 4)]
        failed = Answered(3, 0, 3, 1, "REQUEST_TIMED_OUT", -1)
        assert not list(check_sends(ProducerLog("p", [], [*answers, failed])))


class TestPolls:
    def test_an_offset_again_within_one_assignment_is_a_nonmonotonic_poll(self) -> None:
        group = GroupLog([Assigned(0, "a", (0,))], [polled(1, "a", 0, 1), polled(2, "a", 1, 2)])
        assert poll_kinds(group) == ["nonmonotonic poll"]

    def test_an_offset_again_after_an_assignment_is_allowed(self) -> None:
        """Records that were polled and not committed are polled again by the next member."""
        assigned = [Assigned(0, "a", (0,)), Assigned(3, "b", (0,)), Assigned(5, "a", (0,))]
        polls = [polled(1, "a", 0, 1), polled(4, "b", 0, 1, 2), polled(6, "a", 0)]
        assert not poll_kinds(GroupLog(assigned, polls))

    def test_a_record_between_two_polled_ones_is_a_poll_skip(self) -> None:
        """Offset 3 has no record in the final log, so it is not skipped; offset 1 has one."""
        assigned = [Assigned(0, "a", (0,))]
        assert not poll_kinds(GroupLog(assigned, [polled(1, "a", 0, 1, 2), polled(2, "a", 4)]))
        assert poll_kinds(GroupLog(assigned, [polled(1, "a", 0), polled(2, "a", 2, 4)])) == [
            "poll skip"
        ]

    def test_a_first_poll_above_every_commit_is_a_poll_skip(self) -> None:
        """A commit of unknown outcome may count; one that had not begun does not."""
        assigned = [Assigned(0, "a", (0,))]
        first = [polled(5, "a", 2)]
        for commits, kinds in (
            ([committed(1, "b", 2)], []),
            ([committed(1, "b", 2, None)], []),
            ([committed(1, "b", 1)], ["poll skip"]),
            ([committed(9, "b", 2)], ["poll skip"]),
        ):
            assert poll_kinds(GroupLog(assigned, first, commits)) == kinds


def test_an_acknowledged_record_that_nobody_polled_is_unseen() -> None:
    answers = [Answered(1, 0, 0, 3, "NONE", 0), Answered(1, 0, 3, 1, "REQUEST_TIMED_OUT", -1)]
    producers = [ProducerLog("p", [], answers)]
    assert not list(check_unseen(producers, GroupLog(polled=[polled(1, "a", 0, 1, 2)])))
    found = list(check_unseen(producers, GroupLog(polled=[polled(1, "a", 0, 2)])))
    assert [kind for kind, _ in found] == ["unseen"]
    assert "record 1 of p" in found[0][1]


class TestCommits:
    def test_a_lower_commit_after_a_higher_one_goes_backwards(self) -> None:
        group = GroupLog(committed=[committed(1, "a", 5), committed(3, "b", 4)])
        assert [kind for kind, _ in check_commits(group)] == ["commit backwards"]

    def test_a_refused_or_concurrent_commit_does_not(self) -> None:
        refused = committed(3, "b", 4, "ILLEGAL_GENERATION")
        assert not list(check_commits(GroupLog(committed=[committed(1, "a", 5), refused])))
        at_once = [committed(1, "a", 5), committed(1, "b", 4)]
        assert not list(check_commits(GroupLog(committed=at_once)))


class TestLogs:
    def test_of_a_killed_client_end_with_its_last_whole_line(self, tmp_path: Path) -> None:
        file = tmp_path / "p.jsonl"
        log = ClientLog(file)
        log.write("sent", 0, 0, 100)
        log.write("answered", 0, 0, 100, "NONE", 7)
        with file.open("a") as lines:
            lines.write('["sent", 1')
        found = read_producer(file)
        assert found.name == "p"
        assert [one[1:] for one in found.sent] == [(0, 0, 100)]
        assert isinstance(found.sent[0], Sent)
        assert [one[1:] for one in found.answered] == [(0, 0, 100, "NONE", 7)]

    def test_of_members_have_commits_with_and_without_an_answer(self, tmp_path: Path) -> None:
        log = ClientLog(tmp_path / "a.jsonl")
        log.write("assigned", [0, 1])
        log.write("polled", 0, [(0, "v0")])
        log.write("committing", {0: 1})
        log.write("committed", "NONE")
        log.write("failed", "there is no leader")
        log.write("committing", {0: 2})
        group = read_group([tmp_path / "a.jsonl"])
        assert group.assigned[0].partitions == (0, 1)
        assert group.polled[0].records == ((0, b"v0"),)
        assert [(one.offsets, one.error) for one in group.committed] == [
            ({0: 1}, "NONE"),
            ({0: 2}, None),
        ]
