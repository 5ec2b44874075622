"""Kafka's placement of replicas, with the values of its own tests (7.4)."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparklog.errors import ProtocolError
from sparklog.protocol.placement import MOST_PARTITIONS, place_replicas

RACKS = {0: "r1", 1: "r3", 2: "r3", 3: "r2", 4: "r2", 5: "r1"}


def unracked(brokers: int) -> dict[int, str | None]:
    return dict.fromkeys(range(brokers))


def test_without_racks_as_in_kafkas_admin_utils_test() -> None:
    """5 brokers, 10 partitions, replication factor 3: the shift increases with every round."""
    assert place_replicas(unracked(5), 10, 3, start_index=0, shift=0) == {
        0: [0, 1, 2],
        1: [1, 2, 3],
        2: [2, 3, 4],
        3: [3, 4, 0],
        4: [4, 0, 1],
        5: [0, 2, 3],
        6: [1, 3, 4],
        7: [2, 4, 0],
        8: [3, 0, 1],
        9: [4, 1, 2],
    }


def test_with_racks_as_in_kafkas_admin_rack_aware_test() -> None:
    """Racks alternate: the brokers' order is 0, 3, 1, 5, 4, 2."""
    assert place_replicas(dict(RACKS), 7, 3, start_index=0, shift=0) == {
        0: [0, 3, 1],
        1: [3, 1, 5],
        2: [1, 5, 4],
        3: [5, 4, 2],
        4: [4, 2, 0],
        5: [2, 0, 3],
        6: [0, 4, 2],
    }


def test_the_order_of_brokers_alternates_their_racks() -> None:
    """The leaders of one round are in this order, also if racks have different sizes."""

    def order(racks: dict[int, str | None]) -> list[int]:
        placed = place_replicas(racks, len(racks), 1, start_index=0, shift=0)
        return [placed[partition][0] for partition in range(len(racks))]

    assert order(dict(RACKS)) == [0, 3, 1, 5, 4, 2]
    assert order({one: rack for one, rack in RACKS.items() if one != 5}) == [0, 3, 1, 4, 2]


def test_start_and_shift_say_where_it_begins() -> None:
    """Kafka's start index and shift; by default they are random."""
    assert place_replicas(unracked(5), 1, 3, start_index=2, shift=0) == {0: [2, 3, 4]}
    assert place_replicas(unracked(5), 1, 3, start_index=2, shift=1) == {0: [2, 4, 0]}
    seen = {tuple(place_replicas(unracked(4), 1, 2)[0]) for _ in range(400)}
    assert len(seen) == 12


def test_without_every_rack_known_no_rack_counts() -> None:
    """A placement by some of the racks would be worse than one without racks."""
    half: dict[int, str | None] = {**dict(RACKS), 2: None}
    assert place_replicas(half, 12, 3, 0, 0) == place_replicas(unracked(6), 12, 3, 0, 0)


def test_one_rack_is_as_good_as_none() -> None:
    """Racks only matter if there are several."""
    same: dict[int, str | None] = dict.fromkeys(range(5), "r1")
    assert place_replicas(same, 10, 3, 0, 0) == place_replicas(unracked(5), 10, 3, 0, 0)


def test_broker_ids_need_not_be_dense() -> None:
    """Ids are used for their order only."""
    assert place_replicas({7: None, 40: None, 3: None}, 3, 2, 0, 0) == {
        0: [3, 7],
        1: [7, 40],
        2: [40, 3],
    }


def test_one_broker_holds_everything() -> None:
    """The smallest cluster."""
    assert place_replicas({9: None}, 3, 1) == {0: [9], 1: [9], 2: [9]}
    assert place_replicas({9: "r"}, 3, 1) == {0: [9], 1: [9], 2: [9]}


CLUSTERS = st.dictionaries(
    st.integers(0, 30), st.none() | st.sampled_from(["r1", "r2", "r3"]), min_size=1, max_size=9
)


@settings(max_examples=150, deadline=None)
@given(racks=CLUSTERS, partitions=st.integers(1, 30), factor=st.integers(1, 9))
def test_replicas_and_leaders_are_spread(
    racks: dict[int, str | None], partitions: int, factor: int
) -> None:
    """Rule 7.4: no broker twice, leaders in turns, and no rack twice before every rack has one."""
    factor = min(factor, len(racks))
    placed = place_replicas(racks, partitions, factor)
    assert list(placed) == list(range(partitions))
    for replicas in placed.values():
        assert len(replicas) == len(set(replicas)) == factor
        assert set(replicas) <= racks.keys()
        if None not in racks.values():
            used = {racks[broker] for broker in replicas}
            assert len(used) == min(factor, len(set(racks.values())))
    leaders = Counter(replicas[0] for replicas in placed.values())
    counts = [leaders[broker] for broker in racks]
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize(
    ("racks", "partitions", "factor"),
    [
        pytest.param(unracked(5), 10, 3, id="without racks"),
        pytest.param(unracked(5), 5, 5, id="everywhere"),
        pytest.param(dict(RACKS), 6, 3, id="with racks of one size"),
        pytest.param(dict(RACKS), 12, 2, id="two replicas of three racks"),
    ],
)
def test_full_rounds_load_every_broker_alike(
    racks: dict[int, str | None], partitions: int, factor: int
) -> None:
    """Rule 7.4: for racks of one size, after full rounds, from any start."""
    for start in range(len(racks)):
        placed = place_replicas(racks, partitions, factor, start_index=start, shift=0)
        loads = Counter(broker for replicas in placed.values() for broker in replicas)
        assert set(loads.values()) == {partitions * factor // len(racks)}


def test_more_replicas_than_live_brokers_are_refused() -> None:
    """Rule 7.4; the message has the number of brokers and a remedy."""
    with pytest.raises(ProtocolError, match=r"INVALID_REPLICATION_FACTOR: .*there are 2"):
        place_replicas(unracked(2), 1, 3)
    with pytest.raises(ProtocolError, match="INVALID_REPLICATION_FACTOR"):
        place_replicas({}, 1, 1)


@pytest.mark.parametrize("factor", [0, -1])
def test_a_partition_has_one_replica_at_least(factor: int) -> None:
    """Kafka's InvalidReplicationFactorException."""
    with pytest.raises(ProtocolError, match="INVALID_REPLICATION_FACTOR"):
        place_replicas(unracked(2), 1, factor)


@pytest.mark.parametrize("partitions", [0, -1, MOST_PARTITIONS + 1, 1 << 40])
def test_a_topic_has_one_partition_at_least_and_a_bounded_number(partitions: int) -> None:
    """Kafka's InvalidPartitionsException; placing 2^40 partitions would not end."""
    with pytest.raises(ProtocolError, match="INVALID_PARTITIONS"):
        place_replicas(unracked(2), partitions, 1)
