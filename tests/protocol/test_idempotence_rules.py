"""No batch is written twice: duplicate_batches, producer_sequences (3.6, 3.7, KIP-98)."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from sparklog.protocol.rules import Rules

GAP = "OUT_OF_ORDER_SEQUENCE_NUMBER"
FENCED = "INVALID_PRODUCER_EPOCH"


class Sent(NamedTuple):
    """A requested batch of producer 7, or of a client without a producer id."""

    base_sequence: int = -1
    record_count: int = 1
    producer_epoch: int = 4
    producer_id: int = 7
    batch_id: str = "new"
    partition: int = 0
    topic_id: str = "t"
    refusal: str | None = None


class Known(NamedTuple):
    """A batch in the log."""

    base_sequence: int
    last_sequence: int
    producer_epoch: int = 4
    producer_id: int = 7
    batch_id: str = "old"
    base_offset: int = 50
    partition: int = 0
    topic_id: str = "t"

    def row(self) -> dict[str, Any]:
        last_offset = self.base_offset + self.last_sequence - self.base_sequence
        return self._asdict() | {"last_offset": last_offset}


def rows(sent: tuple[Sent, ...]) -> list[dict[str, Any]]:
    return [one._asdict() | {"position": position} for position, one in enumerate(sent)]


def duplicates(rules: Rules, known: list[Known], *sent: Sent) -> dict[int, tuple[int, int]]:
    found = rules.run(
        "duplicate_batches", requests=rows(sent), batches=[one.row() for one in known]
    )
    return {row["position"]: (row["base_offset"], row["last_offset"]) for row in found}


def refused(rules: Rules, known: list[Known], *sent: Sent) -> dict[int, str]:
    found = rules.run(
        "producer_sequences", requests=rows(sent), batches=[one.row() for one in known]
    )
    return {row["position"]: row["error"] for row in found}


def test_a_batch_is_known_by_its_id(rules: Rules) -> None:
    """Rule 3.7: in its own topic and partition, at its original offsets, once per request."""
    plain = Sent(producer_id=-1, producer_epoch=-1, batch_id="a")
    sent = [
        plain,
        plain._replace(batch_id="b"),
        plain._replace(partition=1),
        plain._replace(topic_id="u"),
        plain,
    ]
    known = [Known(-1, 2, -1, -1, batch_id="a", base_offset=5)]
    assert duplicates(rules, known, *sent) == {0: (5, 8), 4: (5, 8)}


def test_an_idempotent_producers_batch_is_known_by_its_sequence(rules: Rules) -> None:
    """Rule 3.6: another file of the same batch is answered with the first one's offsets."""
    known = [Known(0, 9, base_offset=40), Known(10, 12)]
    assert duplicates(rules, known, Sent(10, 3)) == {0: (50, 52)}
    assert duplicates(rules, known, Sent(0, 10)) == {0: (40, 49)}


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(Sent(13, 3), id="the next sequence"),
        pytest.param(Sent(10, 2), id="another number of records"),
        pytest.param(Sent(10, 3, producer_id=8), id="another producer"),
        pytest.param(Sent(10, 3, producer_epoch=3), id="an older epoch"),
        pytest.param(Sent(10, 3, producer_epoch=5), id="a newer epoch"),
        pytest.param(Sent(10, 3, partition=1), id="another partition"),
        pytest.param(Sent(10, 3, topic_id="u"), id="another topic"),
    ],
)
def test_it_is_another_batch_with(rules: Rules, sent: Sent) -> None:
    """Rule 3.6: producer id, epoch and sequence, per partition."""
    assert duplicates(rules, [Known(10, 12)], sent) == {}


def test_batches_of_an_earlier_epoch_are_forgotten(rules: Rules) -> None:
    """Rule 3.6: after a batch of a newer epoch, a zombie's retry is refused as fenced."""
    known = [Known(10, 12, producer_epoch=3), Known(0, 0, producer_epoch=4, base_offset=53)]
    assert duplicates(rules, known, Sent(10, 3, producer_epoch=3)) == {}
    assert refused(rules, known, Sent(10, 3, producer_epoch=3)) == {0: FENCED}


def test_batches_without_a_producer_have_no_sequence(rules: Rules) -> None:
    """Rule 3.6: -1 is no producer id."""
    known = [Known(-1, -1, producer_epoch=-1, producer_id=-1)]
    assert duplicates(rules, known, Sent(-1, 1, producer_epoch=-1, producer_id=-1)) == {}


def test_the_first_producer_id_is_one_like_any_other(rules: Rules) -> None:
    """Rule 3.8: ids are allotted from 0 on."""
    known = [Known(10, 12, producer_id=0)]
    assert duplicates(rules, known, Sent(10, 3, producer_id=0)) == {0: (50, 52)}


def test_a_duplicate_may_wrap(rules: Rules) -> None:
    """Rule 3.6: sequences continue at 0 after 2^31 - 1."""
    known = [Known(2**31 - 2, 1)]
    assert list(duplicates(rules, known, Sent(2**31 - 2, 4))) == [0]


LAST_9 = [Known(0, 4, base_offset=40), Known(5, 9, base_offset=45)]


@pytest.mark.parametrize(
    ("known", "sent", "error"),
    [
        pytest.param(LAST_9, Sent(10), None, id="the next one is taken"),
        pytest.param(LAST_9, Sent(11), GAP, id="a gap is refused"),
        pytest.param(LAST_9, Sent(9), GAP, id="an overlap that is no duplicate is refused"),
        pytest.param([], Sent(17), None, id="an unknown producer may begin anywhere"),
        pytest.param(LAST_9, Sent(17, producer_id=8), None, id="so may another producer"),
        pytest.param(LAST_9, Sent(17, partition=1), None, id="and the same one elsewhere"),
        pytest.param(LAST_9, Sent(17, topic_id="u"), None, id="in another topic, too"),
        pytest.param(LAST_9, Sent(0, producer_epoch=5), None, id="a new epoch begins at 0"),
        pytest.param(LAST_9, Sent(10, producer_epoch=5), GAP, id="and nowhere else"),
        pytest.param(LAST_9, Sent(10, producer_epoch=3), FENCED, id="an older epoch is fenced"),
        pytest.param([Known(0, 2**31 - 1)], Sent(0), None, id="sequences wrap at 2^31"),
        pytest.param(LAST_9, Sent(10, refusal="X"), "X", id="what is refused stays refused"),
    ],
)
def test_a_batch_continues_its_producers_sequence(
    rules: Rules, known: list[Known], sent: Sent, error: str | None
) -> None:
    """Rule 3.6 (KIP-98)."""
    assert refused(rules, known, sent) == ({} if error is None else {0: error})


def test_the_newest_epochs_last_batch_is_what_is_continued(rules: Rules) -> None:
    """Rule 3.6: the higher sequence of an older epoch does not count."""
    known = [Known(0, 30, producer_epoch=3), Known(0, 1, producer_epoch=4, base_offset=81)]
    assert refused(rules, known, Sent(2)) == {}
    assert refused(rules, known, Sent(31)) == {0: GAP}


def test_batches_of_one_tick_follow_each_other(rules: Rules) -> None:
    """Rule 3.6: in order of arrival, also over a wrap."""
    assert refused(rules, LAST_9, Sent(10, 3), Sent(13, 2), Sent(15)) == {}
    assert refused(rules, LAST_9, Sent(10, 3), Sent(14)) == {1: GAP}
    assert refused(rules, [], Sent(2**31 - 1), Sent(0)) == {}


def test_a_refused_batch_takes_its_followers_along(rules: Rules) -> None:
    """Rule 3.6: they would leave a gap; batches of other producers and partitions are accepted."""
    sent = [
        Sent(10, refusal="CORRUPT_MESSAGE"),
        Sent(11),
        Sent(12),
        Sent(3, producer_id=8),
        Sent(3, partition=1),
    ]
    assert refused(rules, LAST_9, *sent) == {0: "CORRUPT_MESSAGE", 1: GAP, 2: GAP}


def test_a_zombie_does_not_take_its_successor_along(rules: Rules) -> None:
    """Rule 3.6: the fenced epoch's batch is refused, and the current epoch's is accepted."""
    assert refused(rules, LAST_9, Sent(5, producer_epoch=3), Sent(10)) == {0: FENCED}
    assert refused(rules, LAST_9, Sent(10), Sent(11, producer_epoch=3), Sent(11)) == {1: FENCED}


def test_a_new_epoch_may_begin_and_go_on_in_one_tick(rules: Rules) -> None:
    """Rule 3.6: from there on the old epoch is fenced."""
    sent = [Sent(10), Sent(0, producer_epoch=5), Sent(1, producer_epoch=5), Sent(11)]
    assert refused(rules, LAST_9, *sent) == {3: FENCED}


@pytest.mark.parametrize("count", [2**63 - 1, -(2**63), 0])
def test_an_impossible_record_count_does_not_spoil_the_tick(rules: Rules, count: int) -> None:
    """Rule 3.7: the file's check refuses it; the batches of others must not fail with it."""
    bad = Sent(10, count, refusal="CORRUPT_MESSAGE")
    assert refused(rules, LAST_9, bad, Sent(0, producer_id=8)) == {0: "CORRUPT_MESSAGE"}
    assert duplicates(rules, LAST_9, bad, Sent(5, 5)) == {1: (45, 49)}


@pytest.mark.parametrize(
    ("newer", "error"),
    [
        (Sent(0, producer_epoch=5, refusal="CORRUPT_MESSAGE"), "CORRUPT_MESSAGE"),
        (Sent(3, producer_epoch=5), GAP),
    ],
)
def test_a_newer_epoch_that_is_refused_fences_nobody(rules: Rules, newer: Sent, error: str) -> None:
    """Its batch is not in the log, so the older epoch goes on."""
    assert refused(rules, LAST_9, newer, Sent(10)) == {0: error}


def test_the_first_batch_of_an_unknown_producer_begins_its_epoch_wherever_it_begins(
    rules: Rules,
) -> None:
    """It fences an older producer; a batch that was refused before does not count as the first."""
    first = Sent(7, producer_epoch=5)
    assert refused(rules, [], first, Sent(0)) == {1: FENCED}
    corrupt = Sent(0, producer_epoch=6, refusal="CORRUPT_MESSAGE")
    assert refused(rules, [], corrupt, first, Sent(0)) == {0: "CORRUPT_MESSAGE", 2: FENCED}
