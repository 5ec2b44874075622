"""Partitioning of records (rule 3.1): explicit, by key, or sticky for null keys.

Partitioners work on whole Arrow arrays, so a batch of records takes a few numpy passes.
Keys hash as in Kafka's clients, so a topic that moves between Kafka and sparklog keeps every key in
its partition.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

UNKNOWN_PARTITION = -1
"""Kafka's RecordMetadata.UNKNOWN_PARTITION: the result of `keyed_partitions` for a null key."""

_SEED = np.uint32(0x9747B28C)
_M = np.uint32(0x5BD1E995)
_R = np.uint32(24)

# Rows hashed together: enough to hide numpy's cost per call, few enough to stay in cache.
_CHUNK_ROWS = 65_536
# Words gathered at once, which bounds memory for keys of any length.
_GATHER_WORDS = 262_144
# Below about this many keys a plain loop over ints is faster than two numpy calls per word.
_FEW_KEYS = 12


class Partitioner(Protocol):
    """Picks partitions for batches of records; one instance serves one task and one topic.

    Implementations must be picklable, because Spark ships them to its tasks.

    Examples
    --------
    >>> import numpy as np
    >>> from sparklog import Producer
    >>> class FirstPartition:
    ...     def __init__(self, partition_count):
    ...         self.partition_count = partition_count
    ...     def partition(self, keys, values, explicit_partitions=None):
    ...         return np.zeros(len(values), dtype=np.int32)
    >>> with Producer("sparklog-data/cluster", partitioner=FirstPartition) as producer:
    ...     sent = producer.send("orders", b"an order")
    >>> sent.result().partition
    0
    """

    def partition(
        self,
        keys: pa.Array[Any],
        values: pa.Array[Any],
        explicit_partitions: pa.Array[Any] | None = None,
    ) -> npt.NDArray[np.int32]:
        """Pick a partition for every record of a batch.

        Parameters
        ----------
        keys : pyarrow.Array
            The keys: a binary array, nulls allowed.
        values : pyarrow.Array
            The values: a binary array of the same length, nulls allowed.
        explicit_partitions : pyarrow.Array, optional
            An integer array of that length, null for records without an explicit partition.

        Returns
        -------
        numpy.ndarray
            int32 partition numbers, one per record.

        Raises
        ------
        ValueError
            An explicit partition does not exist.
        """
        ...


def murmur2(keys: pa.Array[Any]) -> npt.NDArray[np.uint32]:
    """Hash every key like `Utils.murmur2` of Kafka's Java client, which returns it as int32.

    Parameters: `keys`, an Arrow array of any binary or string type; it may be a slice, but not a
    chunked array. Returns: uint32 hashes of shape (len(keys),); a null hashes as the empty key.
    The work is proportional to the number of keys plus their bytes, also for uneven lengths.
    Raises: TypeError for another type of array.
    """
    starts, lengths, data = _extents(keys)
    hashes = np.empty(len(keys), dtype=np.uint32)
    for first in range(0, len(keys), _CHUNK_ROWS):
        rows = slice(first, first + _CHUNK_ROWS)
        hashes[rows] = _murmur2_chunk(starts[rows], lengths[rows], data)
    return hashes


def keyed_partitions(keys: pa.Array[Any], partition_count: int) -> npt.NDArray[np.int32]:
    """Map keys to partitions as Kafka's default partitioner does.

    Parameters: `keys`, as for `murmur2`; `partition_count`, the topic's number of partitions.
    Returns: int32 partitions of shape (len(keys),), UNKNOWN_PARTITION for null keys.
    Raises: TypeError as `murmur2` does, ValueError for a partition count below 1.
    """
    _check_partition_count(partition_count)
    hashes = murmur2(keys)
    # Kafka clears the sign bit and does not take abs(): abs(Integer.MIN_VALUE) is negative.
    hashes &= np.uint32(0x7FFFFFFF)
    hashes %= np.uint32(partition_count)
    partitions = hashes.astype(np.int32)
    if keys.null_count:
        partitions[~_valid(keys)] = UNKNOWN_PARTITION
    return partitions


class StickyPartitioner:
    """Sends records without a key to one partition for about a batch, then to the next.

    Based on KIP-480 and KIP-794. A run ends with the record that brings it to `batch_size` bytes,
    so uneven records do not favour a partition. A run continues in the next call. A pickled copy
    does not continue the run: without a seed every Spark task draws its own starting partition.
    """

    def __init__(
        self, partition_count: int, batch_size: int = 16_384, seed: int | None = None
    ) -> None:
        """Parameters: `partition_count`, the topic's; `batch_size`, Kafka's batch.size in bytes
        (0 changes partition with every record); `seed`, which fixes the starting partition; without
        it the first record draws one. Raises: ValueError for a count below 1, a size or seed below
        0.
        """
        _check_partition_count(partition_count)
        if batch_size < 0:
            raise ValueError(f"batch_size is {batch_size} bytes; set it to 0 or more.")
        if seed is not None and seed < 0:
            raise ValueError(f"seed is {seed}; set it to 0 or more, or leave it out.")
        self._partition_count = partition_count
        self._batch_size = batch_size
        self._seed = seed
        self._current: int | None = None
        self._bytes_in_run = 0

    def __reduce__(self) -> tuple[type[StickyPartitioner], tuple[int, int, int | None]]:
        return type(self), (self._partition_count, self._batch_size, self._seed)

    def partition(self, value_sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """Assign the next records without a key.

        Parameters: `value_sizes`, bytes of each record's value, in order; 0 for a null value.
        Returns: int32 partitions, one per record.
        """
        count = len(value_sizes)
        if count == 0:
            return np.empty(0, dtype=np.int32)
        if self._current is None:
            # Not drawn in __init__: forked workers and pickled copies would share it.
            self._current = int(np.random.default_rng(self._seed).integers(self._partition_count))
        limit = max(self._batch_size, 1)
        # An empty value counts one byte; otherwise a stream of them would never end its run.
        ends = np.cumsum(np.maximum(value_sizes, 1), dtype=np.int64)
        begins = np.concatenate(([0], ends[:-1]))
        begins[0] -= self._bytes_in_run
        # For each record, the start of the next run if a run started at this record.
        next_run = np.searchsorted(ends, begins + limit) + 1

        starts_run = np.zeros(count, dtype=np.int64)
        run_start, following = 0, int(next_run[0])
        while following < count:
            starts_run[following] = 1
            run_start, following = following, int(next_run[following])
        runs = np.cumsum(starts_run)
        partitions = (self._current + runs) % self._partition_count

        if following == count:  # the last record filled its run
            self._current = (int(partitions[-1]) + 1) % self._partition_count
            self._bytes_in_run = 0
        else:
            self._current = int(partitions[-1])
            self._bytes_in_run = int(ends[-1] - begins[run_start])
        return partitions.astype(np.int32)


class DefaultPartitioner:
    """Picks as Kafka does: the explicit partition, else the key's, else the sticky one."""

    def __init__(
        self, partition_count: int, batch_size: int = 16_384, seed: int | None = None
    ) -> None:
        """Parameters and errors: as for `StickyPartitioner`."""
        self._partition_count = partition_count
        self._sticky = StickyPartitioner(partition_count, batch_size, seed)

    def partition(
        self,
        keys: pa.Array[Any],
        values: pa.Array[Any],
        explicit_partitions: pa.Array[Any] | None = None,
    ) -> npt.NDArray[np.int32]:
        """Pick a partition for every record of a batch; see `Partitioner.partition`.

        Raises: ValueError for an explicit partition outside 0 to partition_count - 1 or for
        arrays of different lengths, TypeError for arrays of a wrong type. An error leaves the
        sticky run unchanged.
        """
        count = len(keys)
        if len(values) != count:
            raise ValueError(f"{count} keys came with {len(values)} values; pass one per record.")
        chosen, explicit = self._explicit(explicit_partitions, count)
        unkeyed = ~_valid(keys)
        sticky = unkeyed & ~chosen

        if unkeyed.all() or chosen.all():
            partitions = np.empty(count, dtype=np.int32)
        else:
            partitions = keyed_partitions(keys, self._partition_count)
        if sticky.any():
            partitions[sticky] = self._sticky.partition(_extents(values)[1][sticky])
        partitions[chosen] = explicit
        return partitions

    def _explicit(
        self, explicit_partitions: pa.Array[Any] | None, count: int
    ) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int32]]:
        """Return a mask of the records with an explicit partition, and their checked partitions."""
        none_given = np.zeros(count, dtype=np.bool_), np.empty(0, dtype=np.int32)
        if explicit_partitions is None:
            return none_given
        if len(explicit_partitions) != count:
            raise ValueError(
                f"{count} keys came with {len(explicit_partitions)} explicit partitions; "
                "pass one per record, null where the partitioner is to choose."
            )
        if pa.types.is_null(explicit_partitions.type):
            return none_given
        if not pa.types.is_integer(explicit_partitions.type):
            raise TypeError(f"Partitions must be integers, not {explicit_partitions.type}.")
        chosen = _valid(explicit_partitions)
        given = explicit_partitions.drop_null().to_numpy(zero_copy_only=False)
        outside = (given < 0) | (given >= self._partition_count)
        if outside.any():
            at = int(outside.argmax())
            raise ValueError(
                f"Partition {given[at]} of record {np.flatnonzero(chosen)[at]} does not exist; "
                f"give one from 0 to {self._partition_count - 1}, or null to have one chosen."
            )
        return chosen, given.astype(np.int32)


def _check_partition_count(partition_count: int) -> None:
    if not 1 <= partition_count <= 0x7FFFFFFF:
        raise ValueError(
            f"partition_count is {partition_count}; pass the topic's number of partitions, "
            "at least 1."
        )


def _valid(array: pa.Array[Any]) -> npt.NDArray[np.bool_]:
    valid: npt.NDArray[np.bool_] = array.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _extents(
    array: pa.Array[Any],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Return the start and the length in bytes of each value in the data buffer, and the buffer.

    A null has length 0, although Arrow allows it to have bytes in the buffer.
    """
    if not isinstance(array, pa.Array):
        raise TypeError(f"Expected one Arrow array, got {type(array).__name__}; pass its chunks.")
    try:
        # Widens 32-bit offsets without copying the data.
        binary = array.cast(pa.large_binary())
    except pa.ArrowNotImplementedError as error:
        raise TypeError(
            f"Keys and values must be binary, not {array.type}; serialize them first."
        ) from error
    count = len(binary)
    if count == 0:  # Arrow then allows the offsets to be missing
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint8)
    _, offsets_buffer, data_buffer = binary.buffers()
    offsets = np.frombuffer(memoryview(offsets_buffer or b""), dtype=np.int64)
    offsets = offsets[binary.offset : binary.offset + count + 1]
    lengths = np.diff(offsets)
    if binary.null_count:
        lengths[~_valid(binary)] = 0
    return offsets[:-1], lengths, np.frombuffer(memoryview(data_buffer or b""), dtype=np.uint8)


def _mix(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Scramble each 4-byte word as Murmur2 does, in place and independently of other words."""
    words *= _M
    words ^= words >> _R
    words *= _M
    return words


def _murmur2_chunk(
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    data: npt.NDArray[np.uint8],
) -> npt.NDArray[np.uint32]:
    """Hash the keys that begin at `starts` in `data` and have `lengths` bytes."""
    word_counts = lengths >> 2
    # numpy sorts narrow integer types by radix sort, several times faster than int64.
    narrow = np.min_scalar_type(int(word_counts.max()))
    by_word_count = np.argsort(word_counts.astype(narrow), kind="stable")
    word_counts = word_counts[by_word_count]
    lengths = lengths[by_word_count]
    starts = starts[by_word_count]

    hashes = lengths.astype(np.uint32) ^ _SEED
    _fold_words(hashes, starts, word_counts, data)

    tails = starts + 4 * word_counts
    tail_lengths = lengths & 3
    for byte in range(3):
        rows = np.flatnonzero(tail_lengths > byte)
        hashes[rows] ^= data[tails[rows] + byte].astype(np.uint32) << np.uint32(8 * byte)
    hashes[tail_lengths > 0] *= _M

    hashes ^= hashes >> np.uint32(13)
    hashes *= _M
    hashes ^= hashes >> np.uint32(15)
    in_key_order: npt.NDArray[np.uint32] = np.empty_like(hashes)
    in_key_order[by_word_count] = hashes
    return in_key_order


def _fold_words(
    hashes: npt.NDArray[np.uint32],
    starts: npt.NDArray[np.int64],
    word_counts: npt.NDArray[np.int64],
    data: npt.NDArray[np.uint8],
) -> None:
    """Fold the whole words of every key into its hash, in place; `word_counts` is ascending.

    One step takes the next word of all keys that still have one. The few longest keys are
    finished one by one, so that a step never costs more than the words it folds.
    """
    count = len(hashes)
    # Overlapping little-endian words, one at every byte position: keys are not aligned.
    words: npt.NDArray[np.uint32] = np.ndarray(
        (max(len(data) - 3, 0),), dtype="<u4", buffer=data, strides=(1,)
    )
    done = 0
    first = int(np.searchsorted(word_counts, done, side="right"))
    while count - first > _FEW_KEYS:
        until = min(int(word_counts[first]), done + max(_GATHER_WORDS // (count - first), 1))
        positions = starts[first:] + 4 * np.arange(done, until)[:, np.newaxis]
        active = hashes[first:]
        for row in _mix(words[positions].astype(np.uint32, copy=False)):
            active *= _M
            active ^= row
        done = until
        first = int(np.searchsorted(word_counts, done, side="right"))

    for key in range(first, count):
        folded = int(hashes[key])
        end = int(starts[key] + 4 * word_counts[key])
        for begin in range(int(starts[key]) + 4 * done, end, 4 * _GATHER_WORDS):
            piece = data[begin : min(begin + 4 * _GATHER_WORDS, end)].view("<u4")
            for word in _mix(piece.astype(np.uint32)).tolist():
                folded = (folded * 0x5BD1E995 & 0xFFFFFFFF) ^ word
        hashes[key] = folded
