"""The recorder of histories and their checker: each violation is reported, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparklog.cluster.connection import Connection
from sparklog.errors import ProtocolError, SparklogError
from sparklog.producer.plain import Producer
from sparklog.testing import LocalCluster
from sparklog.testing.history import History, RecordedProducer
from sparklog.testing.history_check import Violation, check

T = "t"


def sent_and_answered(*answers: tuple[str, int]) -> History:
    """One producer's records v0, v1, ... to partition 0 and their answers."""
    history = History()
    for error, offset in answers:
        number = history.record_sent("p", T, b"v%d" % len(history.sent), 0)
        history.record_answer("p", number, error, 0 if error == "NONE" else -1, offset)
    return history


@pytest.fixture
def three() -> History:
    """Three acknowledged records, not read yet."""
    return sent_and_answered(("NONE", 0), ("NONE", 1), ("NONE", 2))


ALL = [(0, b"v0"), (1, b"v1"), (2, b"v2")]


def sentences(history: History, **of: Any) -> list[tuple[str, str]]:
    return [(kind, sentence) for kind, sentence in check(history, **of)]


class TestWhatIsFound:
    def test_nothing_where_all_is_as_it_was_answered(self, three: History) -> None:
        """A history whose reads match the answers has no violation."""
        three.record_read(T, 0, ALL[:2])
        three.record_read(T, 0, ALL)
        assert check(three) == []

    def test_what_was_acknowledged_and_is_not_there_is_lost(self, three: History) -> None:
        """An acknowledged record that is missing in the last read is lost."""
        three.record_read(T, 0, ALL[:2])
        told = "record 2 of producer p was acknowledged at offset 2 of t-0 and is not there"
        assert sentences(three) == [("lost", told)]

    def test_what_was_acknowledged_is_lost_where_nobody_has_read(self, three: History) -> None:
        """Acknowledged records are lost if there is no read."""
        assert [violation.kind for violation in check(three)] == ["lost"] * 3

    def test_what_was_read_once_and_is_not_there_any_more_is_lost(self) -> None:
        """A record that was read once and is missing in a later read is lost."""
        history = sent_and_answered(("REQUEST_TIMED_OUT", -1))
        history.record_read(T, 0, [(0, b"v0")])
        history.record_read(T, 0, [])
        told = "a record was read at offset 0 of t-0 and is not there any more"
        assert sentences(history) == [("lost", told)]

    def test_what_is_there_twice_is_duplicated_unless_its_producer_may(
        self, three: History
    ) -> None:
        """A record that is stored twice is duplicated, unless its producer is at-least-once."""
        three.record_read(T, 0, [*ALL, (3, b"v1")])
        told = "record 1 of producer p is there 2 times: at offset 1 of t-0 and at offset 3 of t-0"
        assert sentences(three) == [("duplicated", told)]
        assert sentences(three, at_least_once=["p"]) == []

    def test_a_duplicate_may_be_read_where_the_acknowledged_record_was_deleted(self) -> None:
        """Without idempotence the first attempt may be stored, and the second one acknowledged,
        which retention has deleted before it was read: it was reported as moved.
        """
        history = sent_and_answered(("NONE", 5))
        history.record_read(T, 0, [(0, b"v0")])
        history.record_read(T, 0, [], 8)
        assert [violation.kind for violation in check(history)] == ["moved"]
        assert check(history, at_least_once=["p"]) == []
        history.record_read(T, 0, [(6, b"v1")], 5)
        assert "moved" in [one.kind for one in check(history, at_least_once=["p"])]

    def test_what_failed_is_there_once_at_most(self) -> None:
        """A record whose request failed may be stored at most once."""
        history = sent_and_answered(("REQUEST_TIMED_OUT", -1), ("NONE", 1))
        history.record_read(T, 0, [(0, b"v0"), (1, b"v1")])
        assert check(history) == []
        history.record_read(T, 0, [(0, b"v0"), (1, b"v1"), (2, b"v0")])
        assert [violation.kind for violation in check(history)] == ["duplicated"]

    def test_one_producers_records_in_another_order_are_reordered(self) -> None:
        """Records of one producer in another order are reordered."""
        history = sent_and_answered(*[("REQUEST_TIMED_OUT", -1)] * 2)
        history.record_read(T, 0, [(4, b"v1"), (5, b"v0")])
        told = (
            "record 0 of producer p is at offset 5 of t-0, behind record 1 of producer p at "
            "offset 4, which was sent after it"
        )
        assert sentences(history) == [("reordered", told)]

    def test_two_producers_have_no_order_between_them(self) -> None:
        """Records of two producers have no order."""
        history = History()
        for producer in ("a", "b"):
            number = history.record_sent(producer, T, producer.encode())
            history.record_answer(producer, number, "NONE", 0, 0 if producer == "b" else 1)
        history.record_read(T, 0, [(0, b"b"), (1, b"a")])
        assert check(history) == []

    def test_what_nobody_has_sent_is_invented(self, three: History) -> None:
        """A record that nobody has sent is invented."""
        three.record_read(T, 0, [*ALL, (3, b"?"), (4, None)])
        assert sentences(three) == [
            ("invented", "b'?' is at offset 3 of t-0 and nobody has sent it"),
            ("invented", "a null value is at offset 4 of t-0 and nobody has sent it"),
        ]

    def test_what_was_sent_to_another_topic_is_invented(self, three: History) -> None:
        """A record that was sent to another topic is invented."""
        three.record_read(T, 0, ALL)
        three.record_read("other", 0, ALL[:1])
        assert [violation.kind for violation in check(three)] == ["invented"]

    def test_a_record_elsewhere_than_was_answered_is_moved(self, three: History) -> None:
        """A record at another offset than acknowledged is moved."""
        three.record_read(T, 0, [*ALL[:2], (3, b"v2")])
        told = (
            "record 2 of producer p was acknowledged at offset 2 of t-0 and is at offset 3 of t-0"
        )
        assert sentences(three) == [("moved", told)]

    def test_a_record_in_another_partition_than_was_asked_is_moved(self) -> None:
        """A record in another partition than requested is moved."""
        history = sent_and_answered(("REQUEST_TIMED_OUT", -1))
        history.record_read(T, 1, [(0, b"v0")])
        told = "record 0 of producer p was sent to t-0 and is at offset 0 of t-1"
        assert sentences(history) == [("moved", told)]

    def test_two_reads_that_differ_show_what_has_moved(self) -> None:
        """Two reads that differ at an offset report a moved record."""
        history = sent_and_answered(*[("REQUEST_TIMED_OUT", -1)] * 2)
        history.record_read(T, 0, [(0, b"v0")])
        history.record_read(T, 0, [(0, b"v1")])
        history.record_read(T, 0, [(0, b"v1")])
        told = "two reads differ at offset 0 of t-0: b'v0' and b'v1'"
        assert sentences(history) == [("moved", told)]

    def test_what_retention_has_removed_is_not_lost(self, three: History) -> None:
        """A record that retention has removed is not lost."""
        three.record_read(T, 0, ALL[1:], first_offset=1)
        assert check(three) == []
        three.record_read(T, 0, [], first_offset=3)
        assert check(three) == []

    def test_what_was_missing_before_retention_came_is_lost(self, three: History) -> None:
        """A record that was missing before retention removed its offset is lost."""
        three.record_read(T, 0, [(1, b"v1")])
        three.record_read(T, 0, [], first_offset=2)
        kinds = [(violation.kind, violation.sentence[:8]) for violation in check(three)]
        assert kinds == [("lost", "record 0"), ("lost", "record 2")]

    @pytest.mark.parametrize("there", [[], [(0, b"v0")]])
    def test_an_answer_without_a_place_promises_nothing(
        self, there: list[tuple[int, bytes]]
    ) -> None:
        """An acknowledgement without an offset allows any offset, also none."""
        history = sent_and_answered(("NONE", -1))
        history.record_read(T, 0, there)
        assert check(history) == []


class TestWhatIsRecorded:
    def test_values_must_differ_within_a_topic(self) -> None:
        """Values must be unique within a topic."""
        history = History()
        history.record_sent("a", T, b"v")
        history.record_sent("a", "other", b"v")
        with pytest.raises(SparklogError, match="b'v' was sent to topic t before"):
            history.record_sent("b", T, b"v")
        assert len(history.sent) == 2

    def test_an_answer_is_to_what_was_sent(self) -> None:
        """An answer to a record that was not sent is refused."""
        with pytest.raises(SparklogError, match="producer p has sent no record 0"):
            History().record_answer("p", 0, "NONE", 0, 0)

    def test_a_file_holds_all_of_it(self, three: History, tmp_path: Path) -> None:
        """A history file has the complete history."""
        three.record_sent("q", T, b"\xff\x00")
        three.record_read(T, 0, [*ALL, (3, None)], first_offset=0)
        three.save(tmp_path / "history.jsonl")
        loaded = History.load(tmp_path / "history.jsonl")
        assert (loaded.sent, loaded.answers, loaded.reads) == (
            three.sent,
            three.answers,
            three.reads,
        )
        assert loaded.record_sent("p", T, b"next") == 3

    def test_histories_of_several_processes_are_merged(self, three: History) -> None:
        """Histories of several processes can be merged."""
        other = History()
        other.record_answer("q", other.record_sent("q", T, b"q"), "NONE", 0, 3)
        other.record_read(T, 0, [*ALL, (3, b"q")])
        three.merge(other)
        assert check(three) == []
        assert three.summary() == (
            "4 records sent by 2 producers, 4 acknowledged, 0 failed {}, 4 read in 1 passes"
        )
        with pytest.raises(SparklogError, match="producer q is in both histories"):
            three.merge(other)

    def test_a_recorded_producer_records_its_sends_and_answers(self, tmp_path: Path) -> None:
        """No broker ticks here, so sent records time out; refused records are not sent."""
        LocalCluster(tmp_path, brokers=[0]).create_topic(T)
        history = History()
        hasty: dict[str, Any] = {
            "delivery_timeout_ms": 300,
            "request_timeout_ms": 100,
            "max_request_size": 100,
        }
        with Producer(Connection(str(tmp_path / "cluster")), **hasty) as producer:
            recorded = RecordedProducer(producer, "p", history)
            failed = recorded.send(T, b"v", key=b"k")
            with pytest.raises(ProtocolError, match="MESSAGE_TOO_LARGE"):
                recorded.send(T, b"x" * 101, partition=0)
            with pytest.raises(ProtocolError, match="REQUEST_TIMED_OUT"):
                failed.result(30)
        assert [tuple(record) for record in history.sent] == [
            ("p", 0, T, None, b"v"),
            ("p", 1, T, 0, b"x" * 101),
        ]
        assert sorted((answer.number, answer.error) for answer in history.answers) == [
            (0, "REQUEST_TIMED_OUT"),
            (1, "MESSAGE_TOO_LARGE"),
        ]


# --- any history ----------------------------------------------------------------------------------


class Event(NamedTuple):
    """A record of a generated history: its producer and partition, its answer, and its offset."""

    producer: str
    partition: int
    value: bytes
    is_named: bool
    answer: str | None
    offset: int | None


@dataclass
class Story:
    """A correct history as plain lists, in which a test can change one thing."""

    events: list[Event] = field(default_factory=list)
    passes: list[tuple[int, int, list[tuple[int, bytes]]]] = field(default_factory=list)

    def history(self) -> History:
        history = History()
        for event in self.events:
            named = event.partition if event.is_named else None
            number = history.record_sent(event.producer, T, event.value, named)
            if event.answer == "NONE":
                history.record_answer(
                    event.producer, number, "NONE", event.partition, event.offset or 0
                )
            elif event.answer is not None:
                history.record_answer(event.producer, number, event.answer)
        for partition, first_offset, records in self.passes:
            history.record_read(T, partition, records, first_offset)
        return history

    def last(self, partition: int) -> list[tuple[int, bytes]]:
        """The records of the last pass over a partition."""
        return next(records for of, _, records in reversed(self.passes) if of == partition)

    def is_known(self, partition: int, offset: int) -> bool:
        """Whether an offset was acknowledged, or visible before the last pass."""
        told = any(
            event.answer == "NONE" and (event.partition, event.offset) == (partition, offset)
            for event in self.events
        )
        seen = [1 for of, _, records in self.passes if of == partition and offset in dict(records)]
        return told or len(seen) > 1


@st.composite
def stories(draw: st.DrawFn) -> Story:
    story = Story()
    logs: list[list[tuple[int, bytes]]] = [[] for _ in range(draw(st.integers(1, 3)))]
    ends = [0] * len(logs)
    starts = [0] * len(logs)
    partitions = st.integers(0, len(logs) - 1)
    for number in range(draw(st.integers(0, 25))):
        partition = draw(partitions)
        match draw(st.sampled_from(["send", "send", "send", "read", "gap", "retention"])):
            case "send":
                answer = draw(st.sampled_from(["NONE", "NONE", "REQUEST_TIMED_OUT", None]))
                value = b"%d" % number
                offset = None
                if answer == "NONE" or draw(st.booleans()):
                    offset = ends[partition]
                    logs[partition].append((offset, value))
                    ends[partition] += 1
                producer = draw(st.sampled_from("abc"))
                is_named = draw(st.booleans())
                story.events.append(Event(producer, partition, value, is_named, answer, offset))
            case "read":
                story.passes.append((partition, starts[partition], list(logs[partition])))
            case "gap":
                ends[partition] += 1  # as a control record takes an offset
            case _:
                starts[partition] = draw(st.integers(starts[partition], ends[partition]))
                logs[partition] = [one for one in logs[partition] if one[0] >= starts[partition]]
    for partition, log in enumerate(logs):
        story.passes.append((partition, starts[partition], list(log)))
    return story


Corruption = tuple[str, str, Callable[[], None]]
"""The name of a change, the kind of violation that it must be reported as, and the change."""


def corruptions(story: Story) -> Iterator[Corruption]:
    """Yield every single change that makes a story wrong."""
    for partition in sorted({one[0] for one in story.passes}):
        log = story.last(partition)
        yield from _of_log(story, partition, log)
        for index, (offset, _) in enumerate(log):
            if story.is_known(partition, offset):
                yield "lose", "lost", lambda log=log, index=index: log.pop(index)  # type: ignore[misc]
    for _, _, records in story.passes:
        for index, (offset, _) in enumerate(records):

            def alter(
                records: list[tuple[int, bytes]] = records, index: int = index, offset: int = offset
            ) -> None:
                records[index] = offset, b"altered"

            yield "alter", "invented", alter
    for index, event in enumerate(story.events):
        if event.answer == "NONE" and event.offset in dict(story.last(event.partition)):

            def answer(index: int = index, event: Event = event) -> None:
                story.events[index] = event._replace(offset=(event.offset or 0) + 1)

            yield "answer", "moved", answer
        if event.offset is None:

            def promise(index: int = index, event: Event = event) -> None:
                story.events[index] = event._replace(answer="NONE", offset=1_000)

            yield "promise", "lost", promise


def _of_log(story: Story, partition: int, log: list[tuple[int, bytes]]) -> Iterator[Corruption]:
    yield "invent", "invented", lambda: log.append((2_000, b"invented"))
    owner = {event.value: event.producer for event in story.events}
    for index, (_, value) in enumerate(log):
        yield "repeat", "duplicated", lambda value=value: log.append((2_000, value))  # type: ignore[misc]
        for other in range(index):
            if owner[log[other][1]] == owner[value] and not _is_shown_before(story, log):

                def swap(one: int = other, two: int = index) -> None:
                    (first, former), (second, latter) = log[one], log[two]
                    log[one], log[two] = (first, latter), (second, former)

                yield "swap", "reordered", swap
    if log and story.is_known(partition, log[-1][0]):
        (offset, value) = log[-1]

        def shift() -> None:
            log[-1] = offset + 1, value

        yield "shift", "moved or lost", shift


def _is_shown_before(story: Story, log: list[tuple[int, bytes]]) -> bool:
    """Whether an earlier pass has read these offsets: two reads then differ as well."""
    return sum(bool(dict(records).keys() & dict(log).keys()) for _, _, records in story.passes) > 1


@given(stories())
@settings(deadline=None, max_examples=300)
def test_a_correct_history_never_alarms(story: Story) -> None:
    """A correct history has no violation."""
    assert check(story.history()) == []


@given(stories(), st.data())
@settings(deadline=None, max_examples=500)
def test_a_single_corruption_always_alarms_by_its_name(story: Story, data: st.DataObject) -> None:
    """A single change of a correct history is reported as a violation of its kind."""
    possible = list(corruptions(story))
    of_kind = data.draw(st.sampled_from(sorted({deed for deed, _, _ in possible})))
    _, kind, make_wrong = data.draw(st.sampled_from([one for one in possible if one[0] == of_kind]))
    make_wrong()
    found: list[Violation] = check(story.history())
    assert {violation.kind for violation in found} & set(kind.split(" or ")), (of_kind, found)
    assert all("\n" not in violation.sentence for violation in found)
