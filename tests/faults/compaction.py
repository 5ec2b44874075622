"""The keys of the records in a compacted topic, and the records that compaction may remove.

Kafka keeps at least the last record of each key. A record may therefore be missing in the final log
if that log has a later record of its key in the same partition.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tests.faults.client_logs import GroupLog, ProducerLog

KEYS = 50
"""The number of keys; all producers use the same ones."""

FinalLog = Mapping[int, Sequence[tuple[int, bytes]]]
"""All records of each partition as (offset, value)."""

Removed = dict[int, dict[int, bytes]]
"""Records that compaction has removed, by partition and offset."""


def value_of(producer: str, number: int) -> bytes:
    """Return the value of a producer's record, which no other record has."""
    return b"%s:%d" % (producer.encode(), number)


def key_of(value: bytes) -> bytes:
    """Return the key of a record with a value of `value_of`."""
    return b"%d" % (int(value.rsplit(b":", 1)[1]) % KEYS)


def removed(producers: Sequence[ProducerLog], group: GroupLog, log: FinalLog) -> Removed:
    """Return the records that clients know and that compaction may have removed from the log.

    Known are records that were acknowledged or polled. Where both differ, it is the polled one,
    so that the acknowledgement is found to differ from it.
    """
    last: dict[int, dict[bytes, int]] = {
        partition: {key_of(value): offset for offset, value in records}
        for partition, records in log.items()
    }
    known: Removed = {}
    for producer in producers:
        for one in producer.answered:
            if one.error == "NONE":
                of = known.setdefault(one.partition, {})
                for place in range(one.size):
                    of[one.offset + place] = value_of(producer.name, one.first + place)
    for poll in group.polled:
        known.setdefault(poll.partition, {}).update(poll.records)
    return {
        partition: _superseded(records, last.get(partition, {}), log.get(partition, ()))
        for partition, records in known.items()
    }


def _superseded(
    known: Mapping[int, bytes],
    last: Mapping[bytes, int],
    log: Collection[tuple[int, bytes]],
) -> dict[int, bytes]:
    there = {offset for offset, _ in log}
    return {
        offset: value
        for offset, value in known.items()
        if offset not in there and offset < last.get(key_of(value), -1)
    }
