"""Unused transactional ids leave `producer_ids` after transactional.id.expiration.ms."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sparklog.errors import ProtocolError
from sparklog.model import PRODUCER_IDS
from sparklog.producer.producer_ids import RENEWAL_MS, ProducerId, ProducerIds
from sparklog.testing import LocalCluster
from tests.broker.states import rows, table

Start = Callable[..., LocalCluster]

WEEK_MS = 604_800_000
CHECK_MS = 3_600_000


def known(cluster: LocalCluster) -> list[str]:
    ids = [row["transactional_id"] for row in rows(cluster, None, PRODUCER_IDS)]
    return sorted(one for one in ids if one is not None)


def ids_of(cluster: LocalCluster) -> ProducerIds:
    return ProducerIds(cluster.connection, clock=cluster.clock)


def pass_time(cluster: LocalCluster, ms: int) -> None:
    cluster.clock.advance(ms)
    cluster.controller_tick()


def test_an_id_without_a_producer_is_forgotten(start: Start) -> None:
    """The controller checks every hour; the counter of producer ids is kept."""
    cluster = start(0, 1)
    first = cluster.idempotent_producer("old")
    pass_time(cluster, WEEK_MS - CHECK_MS)
    cluster.idempotent_producer("young")
    pass_time(cluster, CHECK_MS - 1)
    assert known(cluster) == ["old", "young"]
    pass_time(cluster, CHECK_MS)
    assert known(cluster) == ["young"]
    again = cluster.idempotent_producer("old")
    assert again.producer_id > first.producer_id


def test_to_begin_again_keeps_an_id(start: Start) -> None:
    """Each initialisation of a producer restarts the expiration of its transactional id."""
    cluster = start(0, 1)
    epochs = []
    for _ in range(3):
        epochs.append(cluster.idempotent_producer("t").producer_epoch)
        pass_time(cluster, WEEK_MS - 1)
    assert epochs == [0, 1, 2]


def test_a_producer_that_renews_its_id_keeps_it(start: Start) -> None:
    """A producer that sends renews its id every hour."""
    cluster = start(0, 1)
    ids = ids_of(cluster)
    held = ids.allot("t")
    for _ in range(3):
        pass_time(cluster, WEEK_MS - RENEWAL_MS)
        ids.renew("t", held)
    assert known(cluster) == ["t"]


def test_a_producer_that_slept_too_long_takes_its_id_back_while_nobody_else_has_it(
    start: Start,
) -> None:
    """A producer whose id has expired takes it back if no other producer has it."""
    cluster = start(0, 1)
    ids = ids_of(cluster)
    held = ids.allot("t")
    pass_time(cluster, WEEK_MS + CHECK_MS)
    assert known(cluster) == []
    ids.renew("t", held)
    assert ids.allot("t") == ProducerId(held.producer_id, held.producer_epoch + 1)


@pytest.mark.parametrize("slept_ms", [0, WEEK_MS + CHECK_MS])
def test_a_producer_whose_successor_has_begun_is_fenced(start: Start, slept_ms: int) -> None:
    """A producer is fenced once a successor has begun, also if its transactional id had expired
    before.
    """
    cluster = start(0, 1)
    ids = ids_of(cluster)
    held = ids.allot("t")
    pass_time(cluster, slept_ms)
    ids_of(cluster).allot("t")
    with pytest.raises(ProtocolError) as refused:
        ids.renew("t", held)
    assert refused.value.code.name == "INVALID_PRODUCER_EPOCH"


def test_rows_of_an_older_version_count_from_when_they_are_first_seen(start: Start) -> None:
    """A row without a time of use expires a week after the controller's first check of it."""
    cluster = start(0, 1)
    cluster.idempotent_producer("t")
    stored = table(cluster, None, PRODUCER_IDS)
    old = [row | {"used_at_ms": None} for row in stored.rows().to_pylist()]
    stored.compare_and_set(PRODUCER_IDS.rows(old))
    pass_time(cluster, CHECK_MS)
    pass_time(cluster, WEEK_MS - 1)
    assert known(cluster) == ["t"]
    pass_time(cluster, CHECK_MS)
    assert known(cluster) == []
