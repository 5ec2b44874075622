"""Rows of `consumer_groups` and `producer_ids` that no member and no producer writes.

Every client may append rows to these tables. All of these were found by hostile input.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import write_deltalake

from sparklog.errors import DamagedError
from sparklog.groups.group import ConsumerGroups, Group, groups_in
from sparklog.model import CONSUMER_GROUPS, PRODUCER_IDS, TableSchema
from sparklog.producer.producer_ids import BLOCK_SIZE, ProducerId, ProducerIds
from sparklog.testing import LocalCluster

MEMBER: dict[str, Any] = dict.fromkeys(CONSUMER_GROUPS.columns.names) | {
    "group_id": "g",
    "state": "Stable",
    "generation": 1,
    "group_epoch": 1,
    "member_id": "m",
    "topics": '["t"]',
    "protocols": '["range"]',
    "assignment": '[["id", 0]]',
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    cluster = LocalCluster(tmp_path, brokers=[0])
    yield cluster
    cluster.close()


def append(cluster: LocalCluster, schema: TableSchema, *rows: dict[str, Any]) -> None:
    """Append rows as another Delta writer does."""
    table = str(cluster.root / "cluster" / schema.name)
    whole = [dict.fromkeys(schema.columns.names) | row for row in rows]
    write_deltalake(table, schema.rows(whole), mode="append")


@pytest.mark.parametrize(
    "wrong",
    [
        {"generation": None},
        {"topics": None},
        {"topics": "no JSON"},
        {"topics": '{"t": 1}'},
        {"protocols": "[5]"},
        {"assignment": None},
        {"assignment": "7"},
        {"assignment": '[["id"]]'},
        {"assignment": '[[["id"], 0]]'},
        {"assignment": '[["id", "0"]]'},
        {"assignment": "[" * 100_000},
    ],
    ids=lambda one: json.dumps(one)[:40],
)
def test_a_malformed_row_damages_its_group_alone(
    cluster: LocalCluster, wrong: dict[str, Any]
) -> None:
    """Its members and lists of groups name it; other groups go on.

    They got TypeError, JSONDecodeError and RecursionError.
    """
    append(cluster, CONSUMER_GROUPS, MEMBER | wrong, MEMBER | {"group_id": "other"})
    groups = ConsumerGroups(cluster.connection.root.consumer_groups)
    with pytest.raises(DamagedError, match="group 'g' in the table consumer_groups is damaged"):
        groups.find("g")
    with pytest.raises(DamagedError, match="group 'g' in the table consumer_groups is damaged"):
        groups.all()
    assert [one.member_id for one in groups.find("other").members] == ["m"]


def test_rows_of_no_group_belong_to_none() -> None:
    """They were sorted among the names of groups: TypeError in each list of groups."""
    rows = CONSUMER_GROUPS.rows([MEMBER, MEMBER | {"group_id": None}])
    assert [one.group_id for one in groups_in(rows)] == ["g"]


def test_a_producer_gets_an_id_among_rows_without_numbers(cluster: LocalCluster) -> None:
    """They kept every producer from an id: int(None) was a TypeError."""
    ids = ProducerIds(cluster.connection)
    first = ids.allot().producer_id
    append(cluster, PRODUCER_IDS, {}, {"next_producer_id": -5}, {"next_producer_id": (1 << 63) - 1})
    second = ProducerIds(cluster.connection).allot().producer_id
    assert second == first + BLOCK_SIZE


def test_without_a_usable_next_id_the_table_is_damaged(cluster: LocalCluster) -> None:
    """Beginning at 0 again would give two producers one id."""
    append(cluster, PRODUCER_IDS, {"next_producer_id": None})
    with pytest.raises(DamagedError, match="producer_ids is damaged: it has no usable next id"):
        ProducerIds(cluster.connection).allot()


@pytest.mark.parametrize("numbers", [(None, 3), (5, None), (-5, 3), (5, (1 << 31) - 1)])
def test_a_transactional_id_without_usable_numbers_gets_another_id(
    cluster: LocalCluster, numbers: tuple[int | None, int | None]
) -> None:
    """The next epoch was a TypeError, or did not fit into its column."""
    ids = ProducerIds(cluster.connection)
    used = ids.allot().producer_id
    row = dict(zip(("producer_id", "producer_epoch"), numbers, strict=True))
    append(cluster, PRODUCER_IDS, {"transactional_id": "x"} | row)
    got = ids.allot("x")
    assert got == ProducerId(used + BLOCK_SIZE, 0)
    assert ids.allot("x") == got._replace(producer_epoch=1)


def test_a_group_without_rows_is_empty(cluster: LocalCluster) -> None:
    assert ConsumerGroups(cluster.connection.root.consumer_groups).find("g") == Group("g")
