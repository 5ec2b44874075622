"""The check of a history: records that are lost, duplicated, reordered, invented or moved.

A history has requests, answers and reads, and no logs, rows or epochs. Its checkers therefore share
no condition with those of the same invariants on tables, and invariants about them have none here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from itertools import pairwise
from typing import Literal, NamedTuple

from sparklog.protocol.invariants import Invariant, checks
from sparklog.testing.history import Answer, History, Place, Read, SentRecord

ViolationKind = Literal["lost", "duplicated", "reordered", "invented", "moved"]


class Violation(NamedTuple):
    """A violated guarantee.

    Attributes
    ----------
    kind : {"lost", "duplicated", "reordered", "invented", "moved"}
        The kind of the violation; see `check`.
    sentence : str
        A sentence with the record and its position.

    Examples
    --------
    >>> from sparklog.testing import History, check
    >>> history = History()
    >>> history.record_read("orders", 0, [(0, b"an order")])
    >>> [violation.kind for violation in check(history)]
    ['invented']
    """

    kind: ViolationKind
    sentence: str


def check(history: History, *, at_least_once: Collection[str] = ()) -> list[Violation]:
    """Return the violations that a history shows.

    lost: acknowledged, or read before, and missing. duplicated: present twice. reordered: a
    producer's records are in one partition in another order than they were sent. invented: present,
    and never sent. moved: read at another position than acknowledged, read before or requested.

    A record that failed or was not answered may be present or not, but not twice. A topic with
    acks=1 may lose records that only the leader has acknowledged; this check reports them as lost.

    Parameters
    ----------
    history : History
        The recorded sends, answers and reads.
    at_least_once : collection of str, optional
        The producers without idempotence, whose records may be present more than once.

    Returns
    -------
    list of Violation
        The violations; an empty list if the history is consistent.

    Examples
    --------
    >>> from sparklog.testing import History, check
    >>> history = History()
    >>> number = history.record_sent("orders-1", "orders", b"an order")
    >>> history.record_answer("orders-1", number, "NONE", partition=0, offset=0)
    >>> history.record_read("orders", 0, [])
    >>> [violation.kind for violation in check(history)]
    ['lost']
    """
    by_value = {(record.topic, record.value): record for record in history.sent}
    there: dict[Place, bytes | None] = {}
    for read in history.reads:
        for offset, value in read.records:
            there.setdefault(Place(read.topic, read.partition, offset), value)
    places: dict[SentRecord, list[Place]] = defaultdict(list)
    for place, value in sorted(there.items(), key=lambda item: item[0]):
        record = by_value.get((place.topic, value)) if value is not None else None
        if record is not None:
            places[record].append(place)
    return [
        *_lost_answers(history, places),
        *_lost_reads(history),
        *_duplicated(places, at_least_once),
        *_reordered(places),
        *_invented(history, by_value),
        *_moved_from_answers(history, places, at_least_once),
        *_moved_between_reads(history, there),
    ]


@checks(Invariant.ACKNOWLEDGED_RECORDS_SURVIVE)
def _lost_answers(history: History, places: dict[SentRecord, list[Place]]) -> Iterator[Violation]:
    passes = _passes(history)
    for record, answer in _acknowledged(history):
        of = passes[record.topic, answer.partition]
        if record not in places and (not of or _has_passed(of, answer.offset)):
            promised = Place(record.topic, answer.partition, answer.offset)
            yield Violation("lost", f"{record} was acknowledged at {promised} and is not there")


def _passes(history: History) -> defaultdict[tuple[str, int], list[Read]]:
    """Return the reads of each partition."""
    passes: defaultdict[tuple[str, int], list[Read]] = defaultdict(list)
    for read in history.reads:
        passes[read.topic, read.partition].append(read)
    return passes


def _has_passed(passes: list[Read], offset: int) -> bool:
    """Return whether the passes must contain `offset`; retention may have removed it before."""
    if offset >= passes[-1].first_offset:
        return True
    return any(
        one.first_offset <= offset <= max((last for last, _ in one.records), default=-1)
        for one in passes
    )


@checks(Invariant.HIGH_WATERMARK_NEVER_GOES_BACK)
def _lost_reads(history: History) -> Iterator[Violation]:
    """Yield the records of any pass that the last pass does not contain."""
    last = {(read.topic, read.partition): read for read in history.reads}
    left = {of: {offset for offset, _ in read.records} for of, read in last.items()}
    told = set()
    for read in history.reads:
        of = read.topic, read.partition
        for offset, _ in read.records:
            place = Place(*of, offset)
            if offset >= last[of].first_offset and offset not in left[of] and place not in told:
                told.add(place)
                yield Violation("lost", f"a record was read at {place} and is not there any more")


@checks(Invariant.ACKNOWLEDGED_RECORDS_SURVIVE)
def _duplicated(
    places: dict[SentRecord, list[Place]], at_least_once: Collection[str]
) -> Iterator[Violation]:
    for record, found in places.items():
        if len(found) > 1 and record.producer not in at_least_once:
            where = " and at ".join(map(str, found))
            yield Violation("duplicated", f"{record} is there {len(found)} times: at {where}")


def _reordered(places: dict[SentRecord, list[Place]]) -> Iterator[Violation]:
    lines: dict[tuple[str, str, int], list[tuple[int, SentRecord]]] = defaultdict(list)
    for record, found in places.items():
        for partition in {place.partition for place in found}:
            # A duplicate follows the first occurrence, and is reported as a duplicate.
            first = min(place.offset for place in found if place.partition == partition)
            lines[record.producer, record.topic, partition].append((first, record))
    for (_, topic, partition), line in lines.items():
        line.sort()
        for (before, earlier), (after, later) in pairwise(line):
            if earlier.number > later.number:
                yield Violation(
                    "reordered",
                    f"{later} is at {Place(topic, partition, after)}, behind {earlier} at offset "
                    f"{before}, which was sent after it",
                )


def _invented(
    history: History, by_value: dict[tuple[str, bytes], SentRecord]
) -> Iterator[Violation]:
    found = {
        (Place(read.topic, read.partition, offset), value)
        for read in history.reads
        for offset, value in read.records
        if (read.topic, value) not in by_value
    }
    for place, value in sorted(found, key=lambda one: (one[0], one[1] or b"")):
        shown = f"{value[:40]!r}" if value is not None else "a null value"
        yield Violation("invented", f"{shown} is at {place} and nobody has sent it")


@checks(Invariant.ACKNOWLEDGED_RECORDS_SURVIVE)
def _moved_from_answers(
    history: History, places: dict[SentRecord, list[Place]], at_least_once: Collection[str]
) -> Iterator[Violation]:
    passes = _passes(history)
    for record, answer in _acknowledged(history):
        promised = Place(record.topic, answer.partition, answer.offset)
        found = places.get(record, [])
        of = passes[record.topic, answer.partition]
        is_deleted = bool(of) and not _has_passed(of, answer.offset)
        if is_deleted and record.producer in at_least_once:
            # The one that was read is a duplicate.
            continue
        if found and promised not in found:
            yield Violation(
                "moved", f"{record} was acknowledged at {promised} and is at {found[0]}"
            )
    for record, found in places.items():
        elsewhere = [place for place in found if record.partition not in (None, place.partition)]
        if elsewhere:
            asked = f"{record.topic}-{record.partition}"
            yield Violation("moved", f"{record} was sent to {asked} and is at {elsewhere[0]}")


@checks(Invariant.IN_SYNC_REPLICAS_AGREE, Invariant.HIGH_WATERMARK_NEVER_GOES_BACK)
def _moved_between_reads(history: History, there: dict[Place, bytes | None]) -> Iterator[Violation]:
    told = set()
    for read in history.reads:
        for offset, value in read.records:
            place = Place(read.topic, read.partition, offset)
            if value != there[place] and place not in told:
                told.add(place)
                both = f"{_short(there[place])} and {_short(value)}"
                yield Violation("moved", f"two reads differ at {place}: {both}")


def _acknowledged(history: History) -> Iterator[tuple[SentRecord, Answer]]:
    sent = {(record.producer, record.number): record for record in history.sent}
    for answer in history.answers:
        if answer.is_acknowledgement:
            yield sent[answer.producer, answer.number], answer


def _short(value: bytes | None) -> str:
    return "null" if value is None else f"{value[:40]!r}"
