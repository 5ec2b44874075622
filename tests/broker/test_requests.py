"""A leader's handling of produce requests, valid and invalid ones (rules 3.1 to 3.7).

One cluster serves all tests here; each has a topic of its own, led by broker 0, followed by 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from sparklog.model import DELAYED_OPERATIONS, PRODUCE_REQUESTS, REQUEST_INDEX, new_batch_path
from sparklog.producer.produce_requests import PendingProduce, ProduceClient, RequestedBatch
from sparklog.storage.batch_files import BatchFileWriter, records_table
from sparklog.storage.location import Location
from sparklog.testing import LocalCluster
from tests.broker.requests import append
from tests.broker.states import answers, error, log, rows, versions
from tests.storage.requests import row_of

Row = dict[str, Any]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    cluster = LocalCluster(tmp_path_factory.mktemp("cluster"), brokers=[0, 1])
    yield cluster
    cluster.close()


@dataclass
class Topic:
    """A topic and its leader's inbox."""

    cluster: LocalCluster
    name: str

    def row(self, *texts: str, **changes: Any) -> Row:
        """Write a batch file and return the row by which a client would name it."""
        cluster = self.cluster
        state = cluster.connection.metadata().partition(self.name, 0)
        location = Location.of(str(cluster.root / f"broker-{state.leader}" / "log"))
        writer = BatchFileWriter(location, new_batch_path())
        contents = [text.encode() for text in texts or ("m",)]
        writer.write(records_table(contents, None, cluster.clock.now_ms()))
        batch = RequestedBatch(state, writer.close())
        request_id = changes.pop("request_id", new_batch_path())
        acks = changes.pop("acks", 1)
        timeout_ms = changes.pop("timeout_ms", 1000)
        client = ProduceClient(cluster.connection, client_id="local", clock=cluster.clock)
        return row_of(client.request(request_id, batch, acks, timeout_ms)) | changes

    def send(self, *of: Row, to: int = 0) -> None:
        """Append rows to a broker's request table in one commit."""
        append(self.cluster, to, of)

    def error(self, row: Row, of: int = 0) -> str | None:
        """Return the error code of a request's answer, or `None` if it was not answered."""
        found = [
            answer.error
            for answer in answers(self.cluster, of)
            if (answer.request_id, answer.topic_id) == (row["request_id"], row["topic_id"])
        ]
        assert len(found) <= 1, "a request is answered once"
        return found[0] if found else None

    def produce(self, *texts: str, acks: Any = 1, timeout_ms: int = 1000) -> PendingProduce:
        contents = [text.encode() for text in texts]
        return self.cluster.produce(self.name, 0, contents, acks=acks, timeout_ms=timeout_ms)

    @property
    def log(self) -> list[str]:
        return log(self.cluster, 0, self.name)


@pytest.fixture
def topic(shared: LocalCluster, request: pytest.FixtureRequest) -> Topic:
    name = f"t{abs(hash(request.node.nodeid))}"
    shared.create_topic(name, assignment={0: [0, 1]})
    shared.leader_tick(0)
    shared.follower_tick(1)
    return Topic(shared, name)


def answer(pending: PendingProduce) -> tuple[str, int] | None:
    response = pending.response
    return (response.error, response.base_offset) if response else None


class TestAcks:
    def test_zero_is_appended_and_never_answered(self, topic: Topic) -> None:
        """A batch with acks=0 is appended, and no answer is written."""
        pending = topic.produce("a", acks=0)
        topic.cluster.leader_tick(0)
        assert topic.log == ["a"]
        assert pending.is_done
        assert pending.response is None

    def test_zero_is_refused_without_an_answer(self, topic: Topic) -> None:
        """A batch with acks=0 that is refused gets no answer."""
        row = topic.row(acks=0, leader_epoch=7)
        topic.send(row)
        topic.cluster.leader_tick(0)
        assert (topic.log, topic.error(row)) == ([], None)

    def test_one_is_answered_after_the_leaders_append(self, topic: Topic) -> None:
        """A batch with acks=1 is answered after the leader's append."""
        pending = topic.produce("a", "b")
        topic.cluster.leader_tick(0)
        assert answer(pending) == ("NONE", 0)
        assert pending.response is not None
        assert pending.response.last_offset == 1

    def test_all_is_answered_when_the_high_watermark_has_passed(self, topic: Topic) -> None:
        """A batch with acks=all is answered once the high watermark has passed it."""
        pending = topic.produce("a", acks="all")
        topic.cluster.leader_tick(0)
        assert pending.response is None
        topic.cluster.follower_tick(1)
        assert pending.response is None
        topic.cluster.leader_tick(0)
        assert answer(pending) == ("NONE", 0)

    def test_anything_else_is_refused(self, topic: Topic) -> None:
        """Other values of acks are refused with INVALID_REQUIRED_ACKS."""
        bad = [topic.row() | {"acks": acks} for acks in (2, -2, -99, None, 1 << 30)]
        topic.send(*bad)
        topic.cluster.leader_tick(0)
        assert {topic.error(row) for row in bad} == {"INVALID_REQUIRED_ACKS"}
        assert topic.log == []


class TestExpiry:
    def test_of_a_delayed_request(self, topic: Topic) -> None:
        """An expired request's batch stays in the log, and a retry is recognised (3.6, 4.2)."""
        pending = topic.produce("a", acks="all", timeout_ms=1000)
        topic.cluster.leader_tick(0)
        topic.cluster.clock.advance(999)
        topic.cluster.leader_tick(0)
        assert pending.response is None
        topic.cluster.clock.advance(1)
        topic.cluster.leader_tick(0)
        assert answer(pending) == ("REQUEST_TIMED_OUT", 0)
        retry = topic.cluster.retry(pending)
        topic.cluster.tick_until_idle()
        assert answer(retry) == ("NONE", 0)
        assert topic.log == ["a"]

    def test_of_one_partition_leaves_the_others_result(self, topic: Topic) -> None:
        """The expiry of one partition keeps the error of another one in the same request."""
        row = topic.row("a", acks=-1, request_id="two")
        refused = topic.row("b", acks=-1, request_id="two") | {"partition": 5}
        topic.send(row, refused)
        topic.cluster.leader_tick(0)
        topic.cluster.clock.advance(1000)
        topic.cluster.leader_tick(0)
        errors = {
            answer.partition: answer.error
            for answer in answers(topic.cluster, 0)
            if answer.request_id == "two"
        }
        assert errors == {0: "REQUEST_TIMED_OUT", 5: "UNKNOWN_TOPIC_OR_PARTITION"}

    def test_of_what_may_have_waited_unseen(self, topic: Topic) -> None:
        """The client has given up by then; appending the batch now would be without its knowledge
        (3.1).
        """
        pending = topic.produce("a", timeout_ms=1000)
        topic.cluster.clock.advance(1001)
        topic.cluster.leader_tick(0)
        assert answer(pending) == ("REQUEST_TIMED_OUT", -1)
        assert topic.log == []

    def test_not_of_what_has_waited_for_just_its_timeout(self, topic: Topic) -> None:
        """A request that is exactly as old as its timeout is still appended."""
        pending = topic.produce("a", timeout_ms=1000)
        topic.cluster.clock.advance(1000)
        topic.cluster.leader_tick(0)
        assert answer(pending) == ("NONE", 0)

    def test_is_completed_once(self, topic: Topic) -> None:
        """A request is completed once, either by the high watermark or by the deadline (4.2)."""
        row = topic.row("a", acks=-1)
        topic.send(row)
        topic.cluster.leader_tick(0)
        topic.cluster.clock.advance(1000)
        topic.cluster.leader_tick(0)
        topic.cluster.tick_until_idle()
        assert topic.error(row) == "REQUEST_TIMED_OUT"
        assert rows(topic.cluster, 0, DELAYED_OPERATIONS) == []


class TestAddress:
    def test_older_leader_epoch(self, topic: Topic) -> None:
        """A request with an older leader epoch is refused with FENCED_LEADER_EPOCH."""
        row = topic.row() | {"leader_epoch": -1}
        topic.send(row)
        topic.cluster.leader_tick(0)
        assert (topic.log, topic.error(row)) == ([], "FENCED_LEADER_EPOCH")

    def test_newer_leader_epoch(self, topic: Topic) -> None:
        """A request with a newer leader epoch is refused with UNKNOWN_LEADER_EPOCH."""
        row = topic.row() | {"leader_epoch": 1}
        topic.send(row)
        topic.cluster.leader_tick(0)
        assert (topic.log, topic.error(row)) == ([], "UNKNOWN_LEADER_EPOCH")

    def test_another_broker(self, topic: Topic) -> None:
        """A broker that leads no partition answers, too (3.1)."""
        row = topic.row()
        topic.send(row, to=1)
        topic.cluster.leader_tick(1)
        assert topic.error(row, of=1) == "NOT_LEADER_OR_FOLLOWER"
        assert not topic.cluster.leader_tick(1).changed

    def test_unknown_topic_id(self, topic: Topic) -> None:
        """A request with an unknown topic id is refused with UNKNOWN_TOPIC_OR_PARTITION."""
        row = topic.row() | {"topic_id": "no such id"}
        topic.send(row)
        topic.cluster.leader_tick(0)
        assert topic.error(row) == "UNKNOWN_TOPIC_OR_PARTITION"

    def test_the_name_of_a_topic_counts_for_nothing(self, topic: Topic) -> None:
        """A topic is identified by its id; the name in a request is ignored."""
        row = topic.row("a") | {"topic": "another"}
        topic.send(row)
        topic.cluster.leader_tick(0)
        assert (topic.log, topic.error(row)) == (["a"], "NONE")
        [batch] = topic.cluster.brokers[0]._leaders[0]._root.log.find([row["path"][7:39]])
        assert batch.topic == topic.name


class TestARetry:
    def test_of_a_batch_in_the_log_is_answered_with_its_offsets(self, topic: Topic) -> None:
        """A retry of a batch in the log is answered with the batch's offsets."""
        first = topic.produce("a", "b")
        topic.produce("c")
        topic.cluster.leader_tick(0)
        retry = topic.cluster.retry(first)
        topic.cluster.leader_tick(0)
        assert answer(retry) == ("NONE", 0)
        assert topic.log == ["a", "b", "c"]

    @pytest.mark.parametrize("same_file", [False, True], ids=["another file", "the same file"])
    def test_in_the_same_tick_shares_what_becomes_of_the_first(
        self, topic: Topic, same_file: bool
    ) -> None:
        """A client that retries before the leader's next poll has both requests in the inbox."""
        first = topic.row("a", "b")
        path = first["path"] if same_file else new_batch_path(first["path"][7:39])
        if not same_file:
            root = topic.cluster.root / "broker-0" / "log"
            (root / path).write_bytes((root / first["path"]).read_bytes())
        retry = first | {"request_id": "retry of " + first["request_id"], "path": path}
        topic.send(first)
        topic.send(retry)
        topic.cluster.leader_tick(0)
        assert (topic.error(first), topic.error(retry)) == ("NONE", "NONE")
        assert topic.log == ["a", "b"]

    def test_of_an_idempotent_producer_with_another_file(self, topic: Topic) -> None:
        """A retry of an idempotent producer with another file is recognised by its sequence
        (3.6).
        """
        sequence = {"producer_id": 4000, "producer_epoch": 0, "base_sequence": 0}
        first, retry = topic.row("a", **sequence), topic.row("a", **sequence)
        after = topic.row("b", **(sequence | {"base_sequence": 1}))
        topic.send(first)
        topic.send(retry)
        topic.send(after)
        topic.cluster.leader_tick(0)
        assert [topic.error(row) for row in (first, retry, after)] == ["NONE"] * 3
        assert topic.log == ["a", "b"]

    def test_of_a_request_that_was_answered_just_before_a_crash(self, topic: Topic) -> None:
        """The first is still in the inbox and is skipped: the retry must not share its result.

        It used to make every tick of the broker fail for good.
        """
        first = topic.produce("a")
        topic.cluster.leader_tick(0, stop_after="responses")
        retry = topic.cluster.retry(first)
        topic.cluster.restart(0)
        topic.cluster.tick_until_idle()
        assert answer(first) == answer(retry) == ("NONE", 0)
        assert topic.log == ["a"]

    def test_waits_like_the_first_where_acks_is_all(self, topic: Topic) -> None:
        """A retry with acks=all is delayed like the first request, and both get the same answer."""
        first = topic.produce("a", acks="all")
        topic.cluster.leader_tick(0)
        retry = topic.cluster.retry(first)
        topic.cluster.leader_tick(0)
        assert (first.response, retry.response) == (None, None)
        topic.cluster.follower_tick(1)
        topic.cluster.leader_tick(0)
        assert (answer(first), answer(retry)) == (("NONE", 0), ("NONE", 0))
        assert topic.log == ["a"]

    def test_named_twice_in_one_request_is_appended_once(self, topic: Topic) -> None:
        """delta-rs would take the path twice: two headers for one file, and a gap in the log."""
        row = topic.row("a", "b")
        topic.send(row, row)
        after = topic.produce("c")
        topic.cluster.leader_tick(0)
        assert topic.error(row) == "NONE"
        assert topic.log == ["a", "b", "c"]
        assert answer(after) == ("NONE", 2)

    def test_of_a_file_for_another_partition_is_refused(self, topic: Topic) -> None:
        """A file has one header."""
        other = Topic(topic.cluster, topic.name + "-other")
        topic.cluster.create_topic(other.name, assignment={0: [0, 1]})
        topic.cluster.leader_tick(0)
        row = topic.row("a")
        thief = other.row("x") | {name: row[name] for name in ("path", "checksum", "byte_size")}
        topic.send(row, thief)
        topic.cluster.leader_tick(0)
        assert (topic.error(row), topic.error(thief)) == ("NONE", "CORRUPT_MESSAGE")
        topic.send(again := thief | {"request_id": "again"})
        topic.cluster.leader_tick(0)
        assert topic.error(again) == "CORRUPT_MESSAGE"
        assert (topic.log, other.log) == (["a"], [])


def test_many_requests_are_one_commit(topic: Topic) -> None:
    """Group commit: the number of commits per tick does not depend on the number of requests."""
    cluster = topic.cluster
    # The first taken requests are removed at once, later ones every 5 s.
    topic.produce("first", acks=1)
    cluster.leader_tick(0)
    before = versions(cluster, 0)
    pending = [topic.produce(f"m{n}", acks=1) for n in range(10)]
    requested = versions(cluster, 0)["produce_requests"] - before["produce_requests"]
    cluster.leader_tick(0)
    after = versions(cluster, 0)
    grown = {name: after[name] - before[name] for name in after}
    assert grown == {
        "log": 1,
        "high_watermark_checkpoint": 0,
        "produce_requests": requested,
        "leader_epoch_checkpoint": 0,
        "delayed_operations": 0,
        "producer_state": 0,
        "cleaner_offset_checkpoint": 0,
        "truncations": 0,
        "replica_history": 0,
    }
    assert [answer(one) for one in pending] == [("NONE", n + 1) for n in range(10)]
    assert topic.log == ["first", *(f"m{n}" for n in range(10))]


_BAD_CLAIMS: tuple[Row, ...] = (
    {"path": "_inbox/../../log/x.parquet"},
    {"path": "/etc/passwd"},
    {"path": ""},
    {"path": None},
    {"checksum": "0"},
    {"checksum": None},
    {"byte_size": 1},
    {"byte_size": 0},
    {"record_count": 2},
    {"record_count": 0},
    {"record_count": -1},
    {"record_count": (1 << 63) - 1},
    {"record_count": None},
    {"min_timestamp_ms": -(1 << 63)},
    {"max_timestamp_ms": (1 << 63) - 1},
    {"min_timestamp_ms": 2, "max_timestamp_ms": 1},
    {"producer_id": 5, "base_sequence": -1},
    {"producer_id": 5, "producer_epoch": -3, "base_sequence": 0},
    {"producer_id": -7},
)


def test_batches_that_are_not_what_they_claim_are_refused_and_spoil_no_other(topic: Topic) -> None:
    """A batch that differs from its row is refused with CORRUPT_MESSAGE, and other batches are
    not.
    """
    before = topic.produce("a")
    bad = [topic.row("bad") | claims for claims in _BAD_CLAIMS]
    for row in bad:
        topic.send(row)
    after = topic.produce("b")
    topic.cluster.leader_tick(0)
    errors = {str(claims): topic.error(row) for claims, row in zip(_BAD_CLAIMS, bad, strict=True)}
    assert errors == dict.fromkeys(map(str, _BAD_CLAIMS), "CORRUPT_MESSAGE")
    assert (answer(before), answer(after)) == (("NONE", 0), ("NONE", 1))
    assert topic.log == ["a", "b"]


_NUMBERS = st.one_of(st.none(), st.integers(-3, 3), st.sampled_from([-(1 << 63), (1 << 63) - 1]))
_INTS = st.one_of(st.none(), st.integers(-3, 3), st.sampled_from([-(1 << 31), (1 << 31) - 1]))
_TEXTS = st.one_of(st.none(), st.text(max_size=8), st.sampled_from(["t/0", "_inbox/x", "\0", "'"]))
_KINDS = {"int64": _NUMBERS, "int32": _INTS, "string": _TEXTS}
_SIZES = st.sampled_from([None, 0, 1, (1 << 53) - 1])
_COLUMNS = {field.name: _KINDS[str(field.type)] for field in REQUEST_INDEX} | {"byte_size": _SIZES}


@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    garbage=st.lists(
        st.tuples(st.booleans(), st.fixed_dictionaries({}, optional=_COLUMNS)), max_size=4
    )
)
def test_garbage_is_answered_or_dropped(topic: Topic, garbage: list[tuple[bool, Row]]) -> None:
    """No row of the request table makes a tick fail or affects another client's request."""
    cluster = topic.cluster
    good = topic.row("g")
    spoiled = [
        (good | {"request_id": "g", "path": "_inbox/no"} if is_alike else dict.fromkeys(good)) | row
        for is_alike, row in garbage
    ]
    before = len(topic.log)
    topic.send(*spoiled)
    topic.send(good)
    cluster.leader_tick(0)
    assert topic.error(good) == "NONE"
    assert len(topic.log) == before + 1
    assert not cluster.leader_tick(0).changed


def test_a_request_is_answered_once_although_its_removal_failed(
    topic: Topic, fail_once: Callable[[str, str], None]
) -> None:
    """A request whose removal failed is not answered a second time."""
    topic.cluster.clock.advance(5_000)
    row = topic.row("a")
    topic.send(row)
    fail_once("remove", "broker-0/produce_requests")
    topic.cluster.leader_tick(0)
    assert rows(topic.cluster, 0, PRODUCE_REQUESTS) != []
    topic.cluster.clock.advance(5_000)
    topic.cluster.leader_tick(0)
    assert (topic.log, topic.error(row)) == (["a"], "NONE")
    assert rows(topic.cluster, 0, PRODUCE_REQUESTS) == []


def test_a_tick_does_not_wait_for_appends_without_a_pause(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A removal lost 50 races within a tick, for seconds; now it loses five, and is made later."""
    topic.cluster.clock.advance(5_000)
    row = topic.row("a")
    topic.send(row)
    [leader] = topic.cluster.brokers[0]._leaders
    [table] = [one._table for one in leader.appends.inbox._tables]
    lost = []

    def lose(*_: object, **__: object) -> bool:
        lost.append(True)
        return False

    monkeypatch.setattr(table._log, "commit", lose)
    topic.cluster.leader_tick(0)
    assert (topic.log, topic.error(row), len(lost)) == (["a"], "NONE", 5)
    monkeypatch.undo()
    topic.cluster.clock.advance(5_000)
    topic.cluster.leader_tick(0)
    assert rows(topic.cluster, 0, PRODUCE_REQUESTS) == []


def test_values_arrive_as_they_were(topic: Topic) -> None:
    """Values are stored unchanged, including nulls and empty values."""
    cluster = topic.cluster
    cluster.produce(topic.name, 0, [None, b"", b"x"], keys=[b"k", None, b""])
    cluster.tick_until_idle()
    records = cluster.consume(topic.name, 0)
    assert [(one.key, one.value) for one in records] == [(b"k", None), (None, b""), (b"", b"x")]
    assert [one.value for one in cluster.consume(topic.name, 0, from_offset=2)] == [b"x"]


def test_more_requests_than_a_tick_takes_are_to_be_sent_again(
    start: Callable[..., LocalCluster],
) -> None:
    """Back-pressure: the first ones are served, every request is answered, no record is lost."""
    cluster = start(0, 1, queued_max_requests=2)
    producer = cluster.idempotent_producer()
    sent = [cluster.produce("t", 0, [b"%d" % one], producer=producer) for one in range(4)]
    cluster.tick_until_idle()
    answered = [pending.response.error for pending in sent if pending.response]
    assert answered == ["NONE", "NONE", "THROTTLING_QUOTA_EXCEEDED", "THROTTLING_QUOTA_EXCEEDED"]
    again = [producer.retry(pending) for pending in sent[2:]]
    cluster.tick_until_idle()
    assert [pending.response.error for pending in again if pending.response] == ["NONE", "NONE"]
    assert log(cluster, 1) == ["0", "1", "2", "3"]


class TestAFileThatIsNotThereYet:
    """Producers upload a batch while they append its request: the request waits for the file,
    briefly.
    """

    @pytest.fixture
    def cluster(self, start: Callable[..., LocalCluster]) -> LocalCluster:
        return start(0, 1)

    @staticmethod
    def sent_ahead(cluster: LocalCluster) -> tuple[Row, Path, bytes]:
        """Send a request before its file is uploaded: return its row, the file's path, its
        bytes.
        """
        row = Topic(cluster, "t").row("late", timeout_ms=30_000)
        file = cluster.root / "broker-0" / "log" / row["path"]
        content = file.read_bytes()
        file.unlink()
        append(cluster, 0, [row])
        return row, file, content

    def test_is_appended_once_it_is_there(self, cluster: LocalCluster) -> None:
        """A batch is appended once its file is uploaded."""
        row, file, content = self.sent_ahead(cluster)
        assert not cluster.leader_tick(0).changed
        assert Topic(cluster, "t").error(row) is None
        file.write_bytes(content)
        cluster.leader_tick(0)
        assert (Topic(cluster, "t").error(row), log(cluster, 0)) == ("NONE", ["late"])

    def test_holds_no_other_request_back(self, cluster: LocalCluster) -> None:
        """A producer has one batch per partition in flight, so the order is kept."""
        row, file, content = self.sent_ahead(cluster)
        other = cluster.produce("t", 0, [b"other"], acks=1)
        cluster.leader_tick(0)
        assert (error(other), Topic(cluster, "t").error(row)) == ("NONE", None)
        file.write_bytes(content)
        cluster.leader_tick(0)
        assert (Topic(cluster, "t").error(row), log(cluster, 0)) == ("NONE", ["other", "late"])

    def test_is_refused_after_five_seconds(self, cluster: LocalCluster) -> None:
        """A request whose file is missing for five seconds is refused with CORRUPT_MESSAGE."""
        row, _, _ = self.sent_ahead(cluster)
        cluster.clock.advance(4_999)
        cluster.leader_tick(0)
        assert Topic(cluster, "t").error(row) is None
        cluster.clock.advance(1)
        cluster.leader_tick(0)
        assert Topic(cluster, "t").error(row) == "CORRUPT_MESSAGE"
        assert log(cluster, 0) == []
        cluster.clock.advance(5_000)
        cluster.leader_tick(0)
        assert rows(cluster, 0, PRODUCE_REQUESTS) == []

    def test_of_a_request_before_others_is_distinguished_after_a_crash(
        self, cluster: LocalCluster
    ) -> None:
        """The journal records which of the later requests were handled; the delayed one is
        answered, too.
        """
        row, file, content = self.sent_ahead(cluster)
        others = [cluster.produce("t", 0, [b"%d" % one], acks=1) for one in range(2)]
        cluster.leader_tick(0)
        cluster.crash(0)
        file.write_bytes(content)
        cluster.restart(0)
        cluster.tick_until_idle()
        assert [error(one) for one in others] == ["NONE", "NONE"]
        assert Topic(cluster, "t").error(row) == "FENCED_LEADER_EPOCH"
        assert log(cluster, 0) == ["0", "1"]

    def test_of_a_repetition_shares_what_becomes_of_the_first(self, cluster: LocalCluster) -> None:
        """A repeated request waits for the same file, and gets the same answer as the first."""
        row, file, content = self.sent_ahead(cluster)
        append(cluster, 0, [again := row | {"request_id": "again"}])
        cluster.leader_tick(0)
        topic = Topic(cluster, "t")
        assert (topic.error(row), topic.error(again)) == (None, None)
        file.write_bytes(content)
        cluster.leader_tick(0)
        assert (topic.error(row), topic.error(again)) == ("NONE", "NONE")
        assert log(cluster, 0) == ["late"]
