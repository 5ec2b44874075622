"""Partitioners (rule 3.1): the same partition as Kafka's clients for a key, fair runs without.

murmur2_vectors.json was made with kafka-python 3.0.12 (`kafka.partitioner.default.murmur2`, the
hashes) and confluent-kafka 2.16.1 (`rd_kafka_msg_partitioner_murmur2` of its librdkafka 2.16.0,
the partitions of a topic with 12), over random keys of 0 to 70 bytes. Both agreed on every key.
Its part kafka_clients was made with Kafka's own producer, the Java classes of kafka-clients 4.1.0
(`Utils.murmur2` and `BuiltInPartitioner.partitionForKey`), over random keys of 0 to 100 bytes and
runs of zero and of 255 bytes, for topics of eight sizes.
"""

from __future__ import annotations

import json
import pickle
import random
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.producer.partitioner import (
    UNKNOWN_PARTITION,
    DefaultPartitioner,
    Partitioner,
    StickyPartitioner,
    keyed_partitions,
    murmur2,
)
from sparklog.producer.plain import Producer
from tests.running_cluster import RunningCluster

_FILE = json.loads(Path(__file__).with_name("murmur2_vectors.json").read_text())
VECTORS = _FILE["vectors"]
KAFKA_CLIENTS_VECTORS = {
    bytes.fromhex(key): (murmur2_hash, partitions)
    for key, murmur2_hash, partitions in _FILE["kafka_clients"]
}
KAFKA_CLIENTS_TOPIC_SIZES = [1, 2, 3, 5, 7, 12, 50, 1000]

# Kafka's UtilsTest.testMurmur2
KAFKA_UNIT_TEST_VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def scalar_murmur2(key: bytes) -> int:
    """Utils.murmur2 of Kafka, line by line and byte by byte."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = 0x9747B28C ^ len(key)
    whole = len(key) // 4 * 4
    for i in range(0, whole, 4):
        k = key[i] | key[i + 1] << 8 | key[i + 2] << 16 | key[i + 3] << 24
        k = k * m & mask
        k ^= k >> 24
        k = k * m & mask
        h = (h * m & mask) ^ k
    left = len(key) - whole
    if left == 3:
        h ^= key[whole + 2] << 16
    if left >= 2:
        h ^= key[whole + 1] << 8
    if left >= 1:
        h = (h ^ key[whole]) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


def scalar_sticky(sizes: list[int], batch_size: int, partition_count: int, start: int) -> list[int]:
    """Assign one record at a time: change the partition once it has been given batch.size bytes."""
    current, in_run, partitions = start, 0, []
    for size in sizes:
        partitions.append(current)
        in_run += max(size, 1)
        if in_run >= batch_size:
            current, in_run = (current + 1) % partition_count, 0
    return partitions


def values_of(sizes: list[int]) -> pa.Array[Any]:
    return pa.array([b"v" * size for size in sizes], pa.binary())


def no_keys(count: int) -> pa.Array[Any]:
    return pa.array([None] * count, pa.binary())


def test_hashes_are_those_of_kafkas_own_unit_test() -> None:
    """murmur2 returns the hashes of Kafka's UtilsTest."""
    hashes = murmur2(pa.array(list(KAFKA_UNIT_TEST_VECTORS), pa.binary()))
    assert hashes.dtype == np.uint32
    assert hashes.view(np.int32).tolist() == list(KAFKA_UNIT_TEST_VECTORS.values())


def test_hashes_and_partitions_are_those_of_other_kafka_clients() -> None:
    """Hashes and partitions equal those of kafka-python and librdkafka."""
    raw_keys = [bytes.fromhex(key) for key, _, _ in VECTORS]
    assert {len(key) for key in raw_keys} == set(range(71))
    keys = pa.array(raw_keys, pa.binary())
    assert murmur2(keys).tolist() == [murmur2_hash for _, murmur2_hash, _ in VECTORS]
    assert keyed_partitions(keys, 12).tolist() == [partition for _, _, partition in VECTORS]


def test_hashes_and_partitions_are_those_of_kafkas_own_java_producer() -> None:
    """Hashes and partitions equal those of Kafka's Java producer, for topics of eight sizes."""
    assert {len(key) for key in KAFKA_CLIENTS_VECTORS} == set(range(101))
    keys = pa.array(list(KAFKA_CLIENTS_VECTORS), pa.binary())
    hashes, partitions = zip(*KAFKA_CLIENTS_VECTORS.values(), strict=True)
    assert murmur2(keys).tolist() == list(hashes)
    for count, expected in zip(
        KAFKA_CLIENTS_TOPIC_SIZES, zip(*partitions, strict=True), strict=True
    ):
        assert keyed_partitions(keys, count).tolist() == list(expected)


@pytest.mark.parametrize("count", [2, 7, 12])
def test_a_producers_keyed_records_are_where_kafkas_own_java_producer_puts_them(
    running_cluster: RunningCluster, count: int
) -> None:
    """Keyed records go to the partitions of Kafka's Java producer, also between unkeyed ones."""
    topic = f"of-{count}"
    running_cluster.create_topic(topic, partitions=count)
    with Producer(running_cluster.connection, batch_size=2_000) as producer:
        for key in KAFKA_CLIENTS_VECTORS:
            producer.send(topic, b"keyed", key=key)
            producer.send(topic, b"without a key")
    column = KAFKA_CLIENTS_TOPIC_SIZES.index(count)
    stored = {
        record["key"]: partition
        for partition, records in running_cluster.committed(topic).items()
        for record in records
        if record["key"] is not None
    }
    assert stored == {
        key: partitions[column] for key, (_, partitions) in KAFKA_CLIENTS_VECTORS.items()
    }


@given(
    keys=st.lists(st.none() | st.binary(max_size=40), max_size=60),
    kind=st.sampled_from([pa.binary(), pa.large_binary(), pa.binary_view()]),
    data=st.data(),
)
def test_any_slice_hashes_as_its_keys_one_by_one(
    keys: list[bytes | None], kind: pa.DataType, data: st.DataObject
) -> None:
    """A slice of an array has the hashes of its keys."""
    start = data.draw(st.integers(0, len(keys)))
    length = data.draw(st.integers(0, len(keys) - start))
    part = pa.array(keys, kind).slice(start, length)
    expected = keys[start : start + length]
    assert murmur2(part).tolist() == [scalar_murmur2(key or b"") for key in expected]
    assert keyed_partitions(part, 7).tolist() == [
        UNKNOWN_PARTITION if key is None else (scalar_murmur2(key) & 0x7FFFFFFF) % 7
        for key in expected
    ]


def test_bytes_beneath_a_null_are_not_hashed() -> None:
    """The bytes of a null in an Arrow buffer are not hashed."""
    offsets = pa.array([0, 3, 8, 9], pa.int32()).buffers()[1]
    validity = pa.array([True, False, True]).buffers()[1]
    buffers = [validity, offsets, pa.py_buffer(b"keyjunk!!")]
    keys = pa.Array.from_buffers(pa.binary(), 3, buffers)
    assert keys.to_pylist() == [b"key", None, b"!"]
    assert murmur2(keys).tolist() == [scalar_murmur2(key) for key in (b"key", b"", b"!")]


@pytest.mark.parametrize(
    "lengths",
    [
        pytest.param([0] * 5, id="only empty keys, no data buffer"),
        pytest.param([n % 23 for n in range(70_000)], id="more rows than one chunk"),
        pytest.param([5] * 100 + [(1 << 20) + 3, 2_500_002, 9], id="a few long keys among short"),
        pytest.param([70_000 + 501 * n for n in range(20)], id="many long keys"),
    ],
)
def test_keys_of_every_size_hash_right(lengths: list[int]) -> None:
    """Keys of every size have the right hash, also in one array."""
    source = random.Random(7)
    keys = [source.randbytes(length) for length in lengths]
    assert murmur2(pa.array(keys, pa.binary())).tolist() == [scalar_murmur2(key) for key in keys]


@pytest.mark.parametrize(
    ("short_keys", "long_keys", "long_size"),
    [
        # A matrix of all keys at the length of the longest would take 20 GiB.
        pytest.param(20_000, 1, 1 << 20, id="one long key among short"),
        # The positions of all words of all keys would take 32 MiB at once, and the words 16 MiB
        # more.
        pytest.param(0, 64, 1 << 18, id="many long keys"),
    ],
)
def test_long_keys_take_bounded_memory(short_keys: int, long_keys: int, long_size: int) -> None:
    """Hashing long keys takes less than 24 MiB of memory."""
    keys = pa.array([b"0123456789"] * short_keys + [b"k" * long_size] * long_keys, pa.binary())
    tracemalloc.start()
    try:
        murmur2(keys)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 24 << 20


def test_text_hashes_as_its_utf8_bytes() -> None:
    """The hash of text is that of its UTF-8 bytes."""
    text = ["", "clé", "鍵"]
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        hashes = murmur2(pa.array(text, kind)).tolist()
        assert hashes == [scalar_murmur2(item.encode()) for item in text]


@pytest.mark.parametrize("keys", [pa.array([1, 2]), pa.chunked_array([[b"a"], [b"b"]])])
def test_what_is_not_one_binary_array_is_refused(keys: pa.Array[Any]) -> None:
    """Anything but one binary array raises `TypeError`."""
    with pytest.raises(TypeError, match=r"serialize them first|pass its chunks"):
        murmur2(keys)


@given(
    batches=st.lists(st.lists(st.integers(0, 50), max_size=30), max_size=6),
    batch_size=st.integers(0, 120),
    partition_count=st.integers(1, 5),
    seed=st.integers(0, 1000),
)
def test_sticky_runs_are_those_of_one_record_at_a_time_across_batches(
    batches: list[list[int]], batch_size: int, partition_count: int, seed: int
) -> None:
    """Sticky runs are the same for batches of records as for one record at a time."""
    sticky = StickyPartitioner(partition_count, batch_size, seed)
    actual = [
        partition
        for batch in batches
        for partition in sticky.partition(np.array(batch, dtype=np.int64)).tolist()
    ]
    sizes = [size for batch in batches for size in batch]
    if sizes:
        assert 0 <= actual[0] < partition_count
        assert actual == scalar_sticky(sizes, batch_size, partition_count, actual[0])


@pytest.mark.parametrize("size", [100, 12_000, 16_384, 4 * 16_384])
def test_equal_values_without_keys_spread_evenly_whatever_their_size(size: int) -> None:
    """Unkeyed values of one size are spread evenly, for any size."""
    records = 4 * 3 * max(-(-16_384 // size), 1)
    partitions = StickyPartitioner(4, seed=1).partition(np.full(records, size))
    assert np.bincount(partitions, minlength=4).tolist() == [records // 4] * 4


def test_empty_values_without_keys_leave_their_partition_in_the_end() -> None:
    """Unkeyed empty values change their partition after some records."""
    partitions = DefaultPartitioner(3, batch_size=10).partition(no_keys(60), no_keys(60))
    assert np.bincount(partitions).tolist() == [20, 20, 20]


def test_seeds_give_tasks_different_starts_and_one_seed_always_the_same() -> None:
    """Different seeds give different first partitions, and one seed always the same."""
    size = np.array([1])
    starts = [int(StickyPartitioner(100, seed=seed).partition(size)[0]) for seed in range(50)]
    again = [int(StickyPartitioner(100, seed=seed).partition(size)[0]) for seed in range(50)]
    assert starts == again
    assert len(set(starts)) > 25


def test_copies_shipped_without_a_seed_each_draw_their_own_start() -> None:
    """Pickled copies without a seed each draw their own first partition."""
    partitioner = DefaultPartitioner(1_000_000)
    partitioner.partition(no_keys(1), values_of([1]))
    shipped = pickle.dumps(partitioner)
    starts = {
        int(pickle.loads(shipped).partition(no_keys(1), values_of([1]))[0]) for _ in range(20)
    }
    assert len(starts) > 10


def test_a_copy_shipped_with_a_seed_assigns_as_the_original_did() -> None:
    """A pickled copy with a seed assigns the same partitions as the original."""
    partitioner = DefaultPartitioner(5, batch_size=64, seed=3)
    shipped = pickle.dumps(partitioner)
    sizes = [n % 40 for n in range(100)]
    first = partitioner.partition(no_keys(100), values_of(sizes))
    assert pickle.loads(shipped).partition(no_keys(100), values_of(sizes)).tolist() == list(first)


@given(
    rows=st.lists(
        st.tuples(
            st.none() | st.binary(max_size=8),
            st.none() | st.binary(max_size=30),
            st.none() | st.integers(0, 4),
        ),
        max_size=40,
    )
)
def test_explicit_goes_before_key_and_key_before_sticky(
    rows: list[tuple[bytes | None, bytes | None, int | None]],
) -> None:
    """An explicit partition precedes the key, and the key precedes the sticky partition."""
    partitioner: Partitioner = DefaultPartitioner(5, batch_size=20, seed=9)
    actual = partitioner.partition(
        pa.array([key for key, _, _ in rows], pa.binary()),
        pa.array([value for _, value, _ in rows], pa.binary()),
        pa.array([explicit for _, _, explicit in rows], pa.int32()),
    )
    assert actual.dtype == np.int32
    sticky_sizes = [
        len(value or b"") for key, value, given in rows if key is None and given is None
    ]
    start = int(StickyPartitioner(5, seed=9).partition(np.array([0]))[0])
    sticky = iter(scalar_sticky(sticky_sizes, 20, 5, start))
    expected = []
    for key, _, explicit in rows:
        if explicit is not None:
            expected.append(explicit)
        elif key is not None:
            expected.append((scalar_murmur2(key) & 0x7FFFFFFF) % 5)
        else:
            expected.append(next(sticky))
    assert actual.tolist() == expected


def test_an_explicit_partition_array_may_be_left_out_or_all_null() -> None:
    """A missing array of explicit partitions is equivalent to one of nulls."""
    keys = pa.array([b"a", b"b", None], pa.binary())
    values = values_of([1, 1, 1])
    without = DefaultPartitioner(9, seed=1).partition(keys, values)
    all_null = DefaultPartitioner(9, seed=1).partition(keys, values, pa.nulls(3))
    assert without.tolist() == all_null.tolist()


@pytest.mark.parametrize("kind", [pa.int8(), pa.int32(), pa.int64()])
@pytest.mark.parametrize("outside", [-1, 4, 127])
def test_an_explicit_partition_outside_the_topic_is_refused_and_moves_no_run(
    kind: pa.DataType, outside: int
) -> None:
    """An explicit partition outside the topic raises `ValueError` and changes no sticky run."""
    partitioner = DefaultPartitioner(4, batch_size=2, seed=0)
    untouched = DefaultPartitioner(4, batch_size=2, seed=0)
    explicit = pa.array([None, None, outside], kind)
    with pytest.raises(ValueError, match=f"Partition {outside} of record 2 does not exist"):
        partitioner.partition(no_keys(3), values_of([1, 1, 1]), explicit)
    later = partitioner.partition(no_keys(5), values_of([1] * 5))
    assert later.tolist() == untouched.partition(no_keys(5), values_of([1] * 5)).tolist()


def test_arrays_that_do_not_fit_together_are_refused() -> None:
    """Arrays of different lengths or of a wrong type are refused."""
    partitioner = DefaultPartitioner(4)
    with pytest.raises(ValueError, match="2 keys came with 3 values"):
        partitioner.partition(no_keys(2), values_of([1] * 3))
    with pytest.raises(ValueError, match="2 keys came with 1 explicit partitions"):
        partitioner.partition(no_keys(2), values_of([1] * 2), pa.array([0]))
    with pytest.raises(TypeError, match="Partitions must be integers"):
        partitioner.partition(no_keys(1), values_of([1]), pa.array([0.5]))


def test_settings_that_make_no_sense_are_refused() -> None:
    """Invalid numbers of partitions, batch sizes and seeds raise `ValueError`."""
    with pytest.raises(ValueError, match="partition_count is 0"):
        keyed_partitions(no_keys(1), 0)
    with pytest.raises(ValueError, match="partition_count is 0"):
        DefaultPartitioner(0)
    with pytest.raises(ValueError, match="batch_size is -1"):
        DefaultPartitioner(1, batch_size=-1)
    with pytest.raises(ValueError, match="seed is -5"):
        DefaultPartitioner(1, seed=-5)
