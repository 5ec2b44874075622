"""An attack on a broker's tick: thousands of malformed requests and files among valid ones.

A producer can only add files and request rows. None of them stops a tick, affects a valid request,
or makes the broker access files outside of its root (rules 3.1, 3.5, 3.7). All data is generated
from fixed seeds.
"""

from __future__ import annotations

import io
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from deltalake import DeltaTable, write_deltalake
from deltalake.transaction import AddAction, RemoveAction

from sparklog.model import PRODUCE_REQUESTS, RECORD_COLUMNS, REQUEST_INDEX
from sparklog.producer.produce_requests import PendingProduce
from sparklog.storage.batch_files import records_table
from sparklog.storage.location import Location
from sparklog.storage.parquet import ParquetContent
from sparklog.storage.record_log import RecordLog
from sparklog.testing import LocalCluster
from tests.broker import states
from tests.broker.requests import append
from tests.broker.states import log, rows

Row = dict[str, Any]

TOPICS = {"t": {0: [0, 1], 1: [0, 1]}, "mangled": {0: [0, 1]}, "elsewhere": {0: [1, 0]}}
INTS = (-(1 << 31), -2, -1, 0, 1, 7, (1 << 31) - 1)
LONGS = (*INTS, -(1 << 63), 1 << 40, (1 << 63) - 1)
TEXTS = (
    "",
    " ",
    ".",
    "..",
    "\0",
    "a\0b",
    "'; drop table requests; --",
    "\N{PILE OF POO}",
    "x" * 100_000,
)
READABLE = frozenset({"NONE", "CORRUPT_MESSAGE"})
"""Possible answers to a mangled file; the change may leave the file intact."""


class Attack(NamedTuple):
    """A malformed row and its possible answers; empty if the row requests no answer."""

    row: Row
    answers: frozenset[str]
    kind: str = ""

    def is_right(self, answer: str | None) -> bool:
        return answer in self.answers if self.row["acks"] != 0 else answer is None


class Attacker:
    """A client that may write to a broker's inbox and to its request table."""

    def __init__(self, cluster: LocalCluster, seed: int) -> None:
        self.cluster = cluster
        self.random = random.Random(seed)
        self.root = cluster.root / "broker-0"
        self.outside = cluster.root / "outside"
        self.outside.mkdir()
        (self.root / "log" / "_inbox").mkdir(exist_ok=True)
        self.known: list[int] = []
        """Idempotent producers, each with one batch in the log, which no attack has used yet."""
        self._newest_producer = 1_000_000
        states = cluster.connection.metadata().partitions.values()
        self.states = {(state.topic, state.partition): state for state in states}

    def path(self) -> str:
        """Return a path like those of `new_batch_path`, from the seed."""
        return (
            f"_inbox/{self.random.getrandbits(128):032x}.{self.random.getrandbits(48):012x}.parquet"
        )

    def batch(self, count: int = 3) -> pa.Table:
        """Return the records of a valid batch."""
        values = [self.random.randbytes(20) for _ in range(count)]
        times = records_table(values, values, 1_000_000)
        deltas = pa.array(np.arange(count), pa.int32())
        columns = [deltas, *(times[name] for name in RECORD_COLUMNS.names[1:])]
        return pa.Table.from_arrays(columns, schema=RECORD_COLUMNS)

    def row(
        self, content: bytes | None = None, to: tuple[str, int] = ("t", 0), **changes: Any
    ) -> Row:
        """Write a file, by default a valid one of three records, and return a row that names it."""
        content = parquet(self.batch()) if content is None else content
        path = self.path()
        (self.root / "log" / path).write_bytes(content)
        state = self.states[to]
        return {
            "request_id": f"{self.random.getrandbits(128):032x}",
            "topic_id": state.topic_id,
            "topic": state.topic,
            "partition": state.partition,
            "leader_epoch": state.leader_epoch,
            "path": path,
            "record_count": 3,
            "byte_size": len(content),
            "checksum": xxhash.xxh3_64_hexdigest(content),
            "min_timestamp_ms": 1_000_000,
            "max_timestamp_ms": 1_000_000,
            "producer_id": -1,
            "producer_epoch": -1,
            "base_sequence": -1,
            "acks": 1,
            "timeout_ms": 30_000,
            "client_id": "attacker",
            "created_at_ms": 0,
        } | changes

    def known_producer(self) -> Row:
        """Return a valid row of an idempotent producer without earlier batches."""
        self._newest_producer += 1
        sequence: Row = {"producer_epoch": 5, "base_sequence": 0}
        return self.row(producer_id=self._newest_producer, **sequence)

    def send(self, of: list[Row]) -> None:
        """Append rows to the request table in one commit."""
        append(self.cluster, 0, of)


def parquet(records: pa.Table, **options: Any) -> bytes:
    """Return an Arrow table as the bytes of a Parquet file."""
    target = io.BytesIO()
    pq.write_table(records, target, **options)
    return target.getvalue()


def refused(row: Row, error: str = "CORRUPT_MESSAGE") -> Attack:
    return Attack(row, frozenset({error}))


def claim(attacker: Attacker) -> Attack:
    """A valid file whose row has one false statement."""
    pick = attacker.random.choice
    row = attacker.row()
    wrong: dict[str, tuple[Any, ...]] = {
        "record_count": (None, 0, 2, 4, *LONGS),
        "byte_size": (None, 0, row["byte_size"] - 1, row["byte_size"] + 1),
        "checksum": (None, *TEXTS, row["checksum"].upper() + "0", row["checksum"][:-1]),
        "min_timestamp_ms": (None, 999_999, 1_000_001, *LONGS),
        "max_timestamp_ms": (None, 999_999, 1_000_001, *LONGS),
    }
    column = pick(list(wrong))
    return refused(row | {column: pick(wrong[column])})


def address(attacker: Attacker) -> Attack:
    """A valid file with a wrong destination, a wrong epoch, or invalid parameters."""
    pick = attacker.random.choice
    wrong: list[tuple[str, Row]] = [
        ("UNKNOWN_TOPIC_OR_PARTITION", {"topic_id": pick((None, *TEXTS, "t"))}),
        ("UNKNOWN_TOPIC_OR_PARTITION", {"partition": pick((None, 2, -1, *INTS[:3], INTS[-1]))}),
        ("NOT_LEADER_OR_FOLLOWER", {"topic_id": attacker.states["elsewhere", 0].topic_id}),
        (
            "INVALID_TOPIC_EXCEPTION",
            {"topic_id": attacker.states["__consumer_offsets", 0].topic_id},
        ),
        ("FENCED_LEADER_EPOCH", {"leader_epoch": pick((None, -1, -(1 << 31)))}),
        ("UNKNOWN_LEADER_EPOCH", {"leader_epoch": pick((1, 2, (1 << 31) - 1))}),
        ("INVALID_REQUIRED_ACKS", {"acks": pick((None, 2, -2, -99, 1 << 30, -(1 << 31)))}),
        ("REQUEST_TIMED_OUT", {"timeout_ms": pick((-1, -30_000, -(1 << 63)))}),
        ("MESSAGE_TOO_LARGE", {"byte_size": pick((1 << 40, (1 << 53) - 1, (1 << 30) + 1))}),
    ]
    error, changes = pick(wrong)
    return refused(attacker.row(**changes), error)


def producer(attacker: Attacker) -> Attack:
    """An idempotent producer with missing fields, an old epoch, or a wrong sequence."""
    pick = attacker.random.choice
    kind = pick(("half", "fenced", "gap", "new epoch"))
    if kind == "half":
        halves = ((5, None, 0), (5, 0, None), (None, 0, 0), (-7, 0, 0), (5, -3, 0), (5, 0, -2))
        return refused(of_producer(attacker, *pick((*halves, (-1, -1, 0), (INTS[0],) * 3))))
    known = attacker.known.pop()
    if kind == "fenced":
        row = of_producer(attacker, known, pick((0, 4)), pick((0, 3, INTS[-1])))
        return refused(row, "INVALID_PRODUCER_EPOCH")
    epoch, sequences = (5, (1, 2, 4, INTS[-1])) if kind == "gap" else (6, (1, 3))
    row = of_producer(attacker, known, epoch, pick(sequences))
    return refused(row, "OUT_OF_ORDER_SEQUENCE_NUMBER")


def of_producer(attacker: Attacker, *given: int | None) -> Row:
    names = ("producer_id", "producer_epoch", "base_sequence")
    changes: Row = dict(zip(names, given, strict=True))
    return attacker.row(**changes)


def path(attacker: Attacker) -> Attack:
    """A path outside the inbox, to a valid batch: only its place is wrong."""
    pick, row = attacker.random.choice, attacker.row()
    name = Path(row["path"]).name
    (attacker.root / "log" / row["path"]).rename(attacker.outside / name)
    (attacker.root / "log" / name).write_bytes((attacker.outside / name).read_bytes())
    wrong = (
        f"_inbox/../../../outside/{name}",
        f"../../outside/{name}",
        f"{attacker.outside}/{name}",
        f"//{attacker.outside}/{name}",
        f"file://{attacker.outside}/{name}",
        f"_inbox/{attacker.outside}/{name}",
        f"_inbox/..%2f..%2f..%2foutside%2f{name}",
        f"_inbox/../{name}",
        f"./_inbox/../{name}",
        f"_inbox//{name}",
        f"_inbox/./{name}",
        f"_INBOX/{name}",
        f"_inbox\\{name}",
        name,
        f"s3://bucket/_inbox/{name}",
        f"http://localhost/_inbox/{name}",
        "/etc/passwd",
        "/dev/zero",
        "_delta_log/00000000000000000000.json",
        f"_inbox/{name}\n",
        f"_inbox/{name}\0",
        f"_inbox/{name}/",
        f"_inbox/{name}/../{name}",
        f"_inbox/{name.upper()}",
        f"_inbox/{name.replace(name[0], chr(0x0660))}",
        f"_inbox/{name}",
        "_inbox",
        "_inbox/",
        "_inbox/" + "a" * 100_000,
        None,
        *TEXTS,
    )
    return refused(row | {"path": pick(wrong)})


def link(attacker: Attacker) -> Attack:
    """A path of the inbox that is a link, a folder or a pipe instead of a file."""
    row = attacker.row()
    place = attacker.root / "log" / row["path"]
    name = place.name
    place.rename(attacker.outside / name)
    kind = attacker.random.choice(("link", "relative", "dangling", "loop", "folder", "pipe"))
    if kind == "link":
        place.symlink_to(attacker.outside / name)
    elif kind == "relative":
        place.symlink_to(Path("..", "..", "..", "outside", name))
    elif kind == "dangling":
        place.symlink_to(attacker.outside / "nothing")
    elif kind == "loop":
        place.symlink_to(name)
    elif kind == "folder":
        place.mkdir()
    else:
        os.mkfifo(place)
    return refused(row)


def garbage(attacker: Attacker) -> Attack:
    """A file that is not a complete Parquet file, with its correct size and checksum."""
    pick, sound = attacker.random.choice, parquet(attacker.batch())
    length = attacker.random.randrange(len(sound))
    noise = attacker.random.randbytes(length)
    footer = int.from_bytes(sound[-8:-4], "little")
    content = pick(
        (
            b"",
            b"PAR1",
            b"PAR1PAR1",
            noise,
            b"PAR1" + noise + b"PAR1",
            sound[:length],
            sound[length + 1 :],
            sound[: len(sound) // 2] + noise + sound[len(sound) // 2 :],
            # Footers with extreme lengths, and one of random bytes.
            *(
                sound[:-8] + size.to_bytes(4, "little") + b"PAR1"
                for size in (0, 1, footer - 1, len(sound), (1 << 31) - 1, (1 << 32) - 1)
            ),
            sound[: -8 - footer] + attacker.random.randbytes(footer) + sound[-8:],
            json.dumps({"value": "text"}).encode(),
            "\N{PILE OF POO}".encode() * 50,
        )
    )
    return refused(attacker.row(content))


def columns(attacker: Attacker) -> Attack:
    """A Parquet file of three records whose columns differ from those of a record batch."""
    pick, sound = attacker.random.choice, attacker.batch()
    index = attacker.random.randrange(len(RECORD_COLUMNS))
    field, column = RECORD_COLUMNS.field(index), sound.column(index)
    foreign = pick(
        (
            pa.array(["a", "b", "c"]),
            pa.array([1.5, 2.5, 3.5]),
            pa.array([0, 1, 2], pa.int16()),
            pa.array([[0], [1], [2]]),
            pa.array([{"a": {"b": [1]}}] * 3),
            pa.array([0, 1, 2], pa.timestamp("ns")),
            pa.nulls(3, pa.bool_()),
        )
    )
    required = sound.schema.set(index, field.with_nullable(False))
    wrong = [
        sound.append_column("extra", column),
        sound.append_column(field.name, column),
        sound.remove_column(index),
        sound.set_column(index, field.name.upper(), column),
        sound.set_column(index, field.name, foreign),
        sound.select(RECORD_COLUMNS.names[::-1]),
        sound.select([]),
        pa.Table.from_arrays([pa.array([0, 1, 2]), *sound.columns[1:]], RECORD_COLUMNS.names),
        pa.table({"nested": [{"offset_delta": 0, "deep": [[[None]]]}] * 3}),
    ]
    if not column.null_count:
        wrong.append(pa.Table.from_arrays(sound.columns, schema=required))
    return refused(attacker.row(parquet(pick(wrong))))


def records(attacker: Attacker) -> Attack:
    """A file with the right columns whose offsets, times or number of records differ from its
    row.
    """
    pick, sound = attacker.random.choice, attacker.batch()
    kind = pick(("deltas", "times", "count"))
    if kind == "deltas":
        deltas = ([1, 2, 3], [0, 2, 3], [2, 1, 0], [0, 0, 0], [0, 1, None], [-1, 0, 1], INTS[-3:])
        sound = replaced(sound, 0, pa.array(pick(deltas), pa.int32()))
    elif kind == "times":
        after_year_9999 = 253_402_300_800_000_000
        times = ([0, 0, None], [None] * 3, [1] * 3, [LONGS[-1]] * 3, [-(1 << 63)] * 3)
        of = pick((*times, [after_year_9999] * 3))
        sound = replaced(sound, 1, pa.array(of, pa.timestamp("us", "UTC")))
    else:
        sound = attacker.batch(pick((0, 1, 2, 4, 100)))
    return refused(attacker.row(parquet(sound)))


def pages(attacker: Attacker) -> Attack:
    """A file with a valid footer, valid offsets and times, and invalid keys, values or headers."""
    pick, dictionary = attacker.random.choice, attacker.random.random() < 0.5
    if pick((True, False)):
        return refused(
            attacker.row(parquet(with_bad_header(attacker.batch()), use_dictionary=dictionary))
        )
    marker = b"MARKERMARKERMARK"
    index = RECORD_COLUMNS.get_field_index(pick(("key", "value")))
    sound = replaced(attacker.batch(), index, pa.array([marker] * 3, pa.binary()))
    content = bytearray(
        parquet(sound, use_dictionary=dictionary, compression="none", write_statistics=False)
    )
    # The length before the bytes, which then exceeds the end of the page.
    at = content.index(marker)
    content[at - 4 : at] = pick((b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff", b"\x00\x01\x00\x00"))
    return refused(attacker.row(bytes(content)))


def replaced(of: pa.Table, index: int, column: pa.Array[Any]) -> pa.Table:
    """Return records with one column replaced."""
    return of.set_column(index, RECORD_COLUMNS.field(index), column)


def with_bad_header(of: pa.Table) -> pa.Table:
    """Return three records whose headers have names that are not UTF-8."""
    no_text = pa.array([b"\xff\xfe"] * 3, pa.binary())
    names = pa.Array.from_buffers(pa.string(), 3, no_text.buffers())
    kind = RECORD_COLUMNS.field("headers").type.value_type
    pairs = pa.StructArray.from_arrays([names, no_text], fields=list(kind))
    return replaced(of, 4, pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), pairs))


def mangled(attacker: Attacker) -> Attack:
    """A file in which a few bytes were changed, with the checksum of its new content."""
    content = bytearray(
        parquet(
            attacker.batch(),
            compression=attacker.random.choice(("none", "zstd", "snappy", "gzip")),
            use_dictionary=attacker.random.choice((True, False)),
            store_schema=False,
        )
    )
    for _ in range(attacker.random.randint(1, 4)):
        content[attacker.random.randrange(len(content))] = attacker.random.randrange(256)
    return Attack(attacker.row(bytes(content), to=("mangled", 0)), READABLE)


def noise(attacker: Attacker) -> Attack:
    """A row in which every column may have any value."""
    pick = attacker.random.choice
    row = attacker.row()
    kinds = {"int64": LONGS, "int32": INTS, "string": TEXTS}
    for field in REQUEST_INDEX:
        if field.name not in ("request_id", "path", "byte_size") and pick((True, True, False)):
            row[field.name] = pick((None, *kinds[str(field.type)]))
    row["byte_size"] = pick((None, 0, 1 << 40))
    row["checksum"] = pick((None, *TEXTS))
    # The epoch must not be one of an honest producer, see test_a_refused_newer_epoch_fences_nobody.
    row["producer_id"] = pick((None, *LONGS[:3], *LONGS[-2:]))
    errors = frozenset(
        {
            "CORRUPT_MESSAGE",
            "FENCED_LEADER_EPOCH",
            "INVALID_REQUIRED_ACKS",
            "MESSAGE_TOO_LARGE",
            "REQUEST_TIMED_OUT",
            "UNKNOWN_LEADER_EPOCH",
            "UNKNOWN_TOPIC_OR_PARTITION",
        }
    )
    return Attack(row, errors)


def without_id(attacker: Attacker) -> Attack:
    """A valid batch of a request that cannot be answered, because it has no id."""
    return refused(attacker.row(request_id=attacker.random.choice((None, ""))))


KINDS: tuple[Callable[[Attacker], Attack], ...] = (
    claim,
    address,
    producer,
    path,
    link,
    garbage,
    columns,
    records,
    pages,
    mangled,
    noise,
    without_id,
)
TICKS, OF_A_KIND = 7, 40


class OpenedFiles:
    """Records the real paths of the files that Python opens; the audit hook is never removed."""

    def __init__(self) -> None:
        self.is_watching = False
        self.names: list[str] = []
        sys.addaudithook(self._note)

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.is_watching and event == "open" and isinstance(arguments[0], str):
            self.names.append(os.path.realpath(arguments[0]))

    def during(self, action: Callable[[], object]) -> list[str]:
        """Run an action and return the files that were opened meanwhile."""
        self.names, self.is_watching = [], True
        try:
            action()
        finally:
            self.is_watching = False
        return self.names


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    made = LocalCluster(tmp_path, brokers=[0, 1], config={"queued.max.requests": 10_000})
    for topic, assignment in TOPICS.items():
        made.create_topic(topic, assignment=assignment)
    made.create_topic("__consumer_offsets", assignment={0: [0, 1]})
    made.tick_until_idle()
    yield made
    made.close()


def answers(cluster: LocalCluster) -> dict[tuple[str, str, int], str]:
    """Return the answer of every partition of every request; each was answered once."""
    found = [(answer[:3], answer.error) for answer in states.answers(cluster, 0)]
    identities = Counter(of for of, _ in found)
    twice = {of for of, count in identities.items() if count > 1 and of[0]}
    assert not twice
    return dict(found)


def identity(row: Row) -> tuple[str, str, int]:
    partition = -1 if row["partition"] is None else row["partition"]
    return row["request_id"] or "", row["topic_id"] or "", partition


class Traffic:
    """Honest producers and attackers, and the checks of their results."""

    def __init__(self, cluster: LocalCluster, attacker: Attacker) -> None:
        self.cluster = cluster
        self.attacker = attacker
        self.producer = cluster.idempotent_producer()
        self.sent: dict[tuple[str, int], list[bytes]] = {("t", 0): [], ("t", 1): []}
        self.pending: list[PendingProduce] = []
        self.honest: list[Row] = []
        self.attacks: list[Attack] = []

    def introduce_producers(self, count: int) -> None:
        """Let producers append one batch each, so that their later batches can be out of order."""
        introduced = [self.attacker.known_producer() for _ in range(count)]
        self.attacker.known = [row["producer_id"] for row in introduced]
        self._send_honest(introduced)
        self.attacker.send(introduced)
        self.cluster.leader_tick(0)

    def send(self) -> None:
        """Send the requests of one tick, with files of all sizes, in an order that the seed
        gives.
        """
        attacks = [
            kind(self.attacker)._replace(kind=kind.__name__)
            for kind in KINDS
            for _ in range(OF_A_KIND)
        ]
        self.attacker.random.shuffle(attacks)
        self.attacks += attacks
        waiting = [attack.row for attack in attacks]
        number = 0
        while waiting:
            self._produce(number % 2, acks=(0, 1, "all")[number % 3])
            number += 1
            size = self.attacker.random.randint(1, 80)
            self.attacker.send([*waiting[:size], *self._half_sound(), self._theft()])
            del waiting[:size]

    def _produce(self, partition: int, acks: Any) -> None:
        values = [self.attacker.random.randbytes(9) for _ in range(3)]
        of = self.cluster.produce("t", partition, values, acks=acks, producer=self.producer)
        self.sent["t", partition] += values
        self.pending.append(of)

    def _half_sound(self) -> list[Row]:
        """A request for two partitions: an error of one does not affect the other (3.4)."""
        sound = self.attacker.row()
        bad = claim(self.attacker).row | {"partition": 1, "request_id": sound["request_id"]}
        self._send_honest([sound])
        self.attacks.append(refused(bad))
        return [bad, sound]

    def _theft(self) -> Row:
        """The file of an honest request, named for another partition."""
        [batch] = self.pending[-1].batches
        file, partition = batch.file, 1 - batch.state.partition
        row = self.attacker.row(path=file.path, byte_size=file.size_bytes, partition=partition)
        row |= {"checksum": file.checksum, "min_timestamp_ms": file.min_timestamp_ms}
        row |= {"max_timestamp_ms": file.max_timestamp_ms}
        self.attacks.append(refused(row))
        return row

    def _send_honest(self, of: list[Row]) -> None:
        for row in of:
            content = (self.attacker.root / "log" / row["path"]).read_bytes()
            self.sent["t", row["partition"]] += ParquetContent(content).read()["value"].to_pylist()
        self.honest += of

    def check(self) -> None:
        """Every valid record is stored once and in order, and every other row was refused."""
        found = answers(self.cluster)
        assert {found[identity(row)] for row in self.honest} == {"NONE"}
        for pending in self.pending:
            assert pending.is_done
            assert {one.error for one in pending.poll().values()} <= {"NONE"}
        wrong = Counter(
            (attack.kind, *attack.answers, found.get(identity(attack.row)))
            for attack in self.attacks
            if not attack.is_right(found.get(identity(attack.row)))
        )
        assert not wrong
        for broker in (0, 1):
            for (topic, partition), values in self.sent.items():
                stored = self.cluster.log(broker, topic, partition)
                assert [record.offset for record in stored] == list(range(len(values)))
                assert [record.value for record in stored] == values
            self._check_mangled(broker, found)
        assert self.cluster.log(1, "elsewhere", 0) == []
        assert self.cluster.log(0, "__consumer_offsets", 0) == []

    def _check_mangled(self, broker: int, found: dict[tuple[str, str, int], str]) -> None:
        """Every accepted mangled batch can be read by every consumer, in all its columns."""
        state = self.attacker.states["mangled", 0]
        taken = sum(of[1] == state.topic_id and error == "NONE" for of, error in found.items())
        offsets = [record.offset for record in self.cluster.log(broker, "mangled", 0)]
        assert offsets == list(range(3 * taken))
        root = Location.of(str(self.cluster.root / f"broker-{broker}"))
        stored = RecordLog(root)
        for batch in stored.batches(state.key):
            content = stored.location.read_bytes(batch.path)
            assert len(ParquetContent(content).read().to_pylist()) == 3


def tree(folder: Path) -> dict[str, bytes]:
    """Return the names and contents of the files in a folder."""
    return {str(one): one.read_bytes() for one in sorted(folder.rglob("*")) if one.is_file()}


def test_thousands_of_malformed_requests_stop_no_tick_and_spoil_no_honest_one(
    cluster: LocalCluster,
) -> None:
    """Each is answered with its own error, and the broker opens no file outside of its root."""
    attacker = Attacker(cluster, seed=5)
    traffic = Traffic(cluster, attacker)
    opened = OpenedFiles()
    traffic.introduce_producers(TICKS * OF_A_KIND)
    for _ in range(TICKS):
        traffic.send()
        outside = tree(attacker.outside)
        touched = opened.during(lambda: cluster.leader_tick(0))
        inside = [name for name in touched if name.startswith(str(attacker.root / "log/_inbox"))]
        assert len(inside) > len(KINDS)
        assert not [name for name in touched if name.startswith((str(attacker.outside), "/etc"))]
        assert tree(attacker.outside) == outside
        cluster.follower_tick(1)
        cluster.leader_tick(0)
    # The broker waits that long for a missing file, whose upload may not have ended.
    cluster.clock.advance(5_000)
    cluster.tick_until_idle()
    assert len(traffic.attacks) > 3_000
    traffic.check()
    cluster.clock.advance(5_000)
    cluster.leader_tick(0)
    assert not rows(cluster, 0, PRODUCE_REQUESTS)


# --- actions of the request table that violate its schema
# -------------------------------------------


def add(cluster: LocalCluster, *paths: str, statistics: str = '{"numRecords": 1}') -> None:
    """Commit files to the request table without any validation."""
    requests = DeltaTable(str(cluster.root / "broker-0" / "produce_requests"))
    actions: list[AddAction | RemoveAction] = [
        AddAction(one, 100, {}, 0, True, statistics) for one in paths
    ]
    requests.create_write_transaction(actions, "append", requests.schema())


@pytest.fixture
def small(start: Callable[..., LocalCluster]) -> LocalCluster:
    """One broker and the topic `t`, for one attack."""
    return start(0)


def check_honest_are_served(small: LocalCluster, attack: Callable[[], object]) -> None:
    """Requests before and after an attack are answered, and the broker becomes idle at once."""
    before = small.produce("t", 0, [b"before"], acks=1)
    attack()
    after = small.produce("t", 0, [b"after"], acks=1)
    small.leader_tick(0)
    assert [one.response.error for one in (before, after) if one.response] == ["NONE"] * 2
    assert log(small, 0) == ["before", "after"]
    assert not small.leader_tick(0).changed


@pytest.mark.parametrize(
    "place",
    [
        "nothing.parquet",
        "",
        ".",
        "..",
        "../log/_inbox",
        "sub/file.parquet",
        "/etc/passwd",
        "file:///etc/passwd",
        "s3://bucket/file.parquet",
        "a%00b.parquet",
        "a\0b.parquet",
        "a%2fb.parquet",
        "_delta_log/00000000000000000000.json",
    ],
)
def test_an_add_of_a_strange_place_is_refused_unread(small: LocalCluster, place: str) -> None:
    """A request whose path is invalid is refused without reading it, also after a restart."""
    check_honest_are_served(small, lambda: add(small, place))
    small.crash(0)
    small.restart(0)
    small.tick_until_idle()
    assert log(small, 0) == ["before", "after"]


@pytest.mark.parametrize(
    ("count", "value", "answer"),
    [
        pytest.param(20_000, b"x" * 1_000_000, "CORRUPT_MESSAGE", id="20 GB of values"),
        pytest.param(1 << 23, b"", "NONE", id="millions of records"),
    ],
)
def test_a_small_file_that_stands_for_much_takes_little_memory(
    small: LocalCluster, count: int, value: bytes, answer: str
) -> None:
    """Many records are read in pieces.

    Records that take more than 1 GiB, and more than 20 times their file, are refused: no consumer
    could decode them. The leader accepted 20 GB of values until hostile input was tried.
    """
    attacker = Attacker(small, seed=1)
    content = repeated(count, value)
    assert len(content) < 1 << 20
    attacker.send([attacker.row(content, record_count=count)])
    pool = pa.default_memory_pool()
    before = pool.max_memory()
    small.leader_tick(0)
    assert pool.max_memory() - before < 64 << 20
    [found] = set(answers(small).values())
    assert found == answer


def repeated(count: int, value: bytes) -> bytes:
    """Return a valid batch of many records with the same value."""
    size = min(count, 1 << 18)
    indices = pa.array(np.zeros(size, np.int32))
    columns = {
        "timestamp": pa.array(np.full(size, 10**9)).cast(pa.timestamp("us", "UTC")),
        "key": pa.nulls(size, pa.binary()),
        "value": pa.DictionaryArray.from_arrays(indices, pa.array([value], pa.binary())),
        "headers": pa.nulls(size, RECORD_COLUMNS.field("headers").type),
    }
    target = io.BytesIO()
    writer: pq.ParquetWriter | None = None
    for start in range(0, count, size):
        deltas = pa.array(np.arange(start, start + size), pa.int32())
        piece = pa.table({"offset_delta": deltas, **columns})
        writer = writer or pq.ParquetWriter(
            target,
            piece.schema,
            compression="zstd",
            use_dictionary=["timestamp", "value"],
            column_encoding={"offset_delta": "DELTA_BINARY_PACKED"},
            dictionary_pagesize_limit=4 << 20,
            store_schema=False,
        )
        writer.write_table(piece)
    assert writer is not None
    writer.close()
    return target.getvalue()


# --- effects after a tick, and on other clients
# ----------------------------------------------------


def test_statistics_that_are_no_json_stop_no_tick(small: LocalCluster) -> None:
    """A tick goes on after an add action whose statistics are not JSON."""
    check_honest_are_served(small, lambda: add(small, "none.parquet", statistics="no json"))


def test_an_add_of_a_strange_place_does_not_outlive_its_commit(
    small: LocalCluster,
) -> None:
    """Delta cleans up the commit at some time; the broker can start after that, too."""
    requests = small.root / "broker-0" / "produce_requests"
    check_honest_are_served(small, lambda: add(small, "sub/file.parquet"))
    DeltaTable(str(requests)).create_checkpoint()
    for commit in sorted((requests / "_delta_log").glob("*.json"))[:-1]:
        commit.unlink()
    small.crash(0)
    small.restart(0)
    small.tick_until_idle()


def test_a_column_that_a_producer_adds_locks_no_other_producer_out(small: LocalCluster) -> None:
    """A producer that adds a column to the request table does not lock out other producers."""
    requests = str(small.root / "broker-0" / "produce_requests")
    foreign = pa.table({"request_id": ["a"], "extra": [1]})

    def attack() -> None:
        write_deltalake(requests, foreign, mode="append", schema_mode="merge")

    check_honest_are_served(small, attack)


def test_a_refused_newer_epoch_fences_nobody(small: LocalCluster) -> None:
    """A refused batch does not start a new epoch (3.6)."""
    attacker = Attacker(small, seed=1)
    first = attacker.known_producer()
    refused_row = attacker.row(producer_id=first["producer_id"], producer_epoch=99, base_sequence=0)
    attacker.send([refused_row | {"checksum": "none"}, first])
    small.leader_tick(0)
    found = answers(small)
    assert found[identity(refused_row)] == "CORRUPT_MESSAGE"
    assert found[identity(first)] == "NONE"
