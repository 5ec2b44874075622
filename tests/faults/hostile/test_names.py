"""Names that are SQL, paths, references or nothing that can be seen: refused, or only names.

No rule, view or query takes a name for a part of its text, and no file is named by one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparklog.cluster.admin import Admin
from sparklog.errors import ProtocolError
from sparklog.groups.committed_offsets import CommittedOffsets, OffsetAndMetadata
from sparklog.groups.group import ConsumerGroups, GroupFence, Member, assigned, joined
from sparklog.model import TopicIdPartition, new_batch_path
from sparklog.producer.produce_requests import ProduceClient, RequestedBatch
from sparklog.producer.producer_ids import ProducerIds
from sparklog.storage.batch_files import BatchFileWriter, records_table
from sparklog.testing import LocalCluster
from tests.cli.command_line import run
from tests.faults.hostile.whole_broker import NAMES

VALID_TOPICS = ("1_000", "0x10", "1e400", "-0", "NaN", "null", "true", "2001-13-45")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("names")
    (folder / "canary").write_text("as it was")
    cluster = LocalCluster(folder / "roots", brokers=[0])
    cluster.create_topic("t", assignment={0: [0]})
    cluster.produce("t", 0, [b"first"])
    cluster.tick_until_idle()
    yield cluster
    cluster.close()
    assert sorted(one.name for one in folder.iterdir()) == ["canary", "roots"]
    assert (folder / "canary").read_text() == "as it was"


def folders(cluster: LocalCluster) -> set[Path]:
    """Return all folders of the cluster, by which a name that became a path would be seen."""
    return {one for one in cluster.root.rglob("*") if one.is_dir()}


def query(cluster: LocalCluster, statement: str) -> list[str]:
    """Return the texts of a column, as `sparklog query` prints them."""
    printed = run("query", statement, "--json", cluster=cluster.root / "cluster")
    assert (printed.exit_code, printed.stderr) == (0, "")
    return [text for row in json.loads(printed.stdout) for text in row.values()]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_topic_is_refused_or_only_a_name(cluster: LocalCluster, name: str) -> None:
    before = folders(cluster)
    if name not in VALID_TOPICS:
        with pytest.raises(ProtocolError, match="INVALID_TOPIC_EXCEPTION"):
            cluster.create_topic(name, assignment={0: [0]})
        with pytest.raises(ProtocolError, match="INVALID_TOPIC_EXCEPTION"):
            Admin(str(cluster.root / "cluster")).create_topic(name, 1, 1)
        return
    cluster.create_topic(name, assignment={0: [0]})
    cluster.tick_until_idle()
    cluster.produce(name, 0, [b"a"])
    cluster.tick_until_idle()
    assert [one.value for one in cluster.consume(name, 0)] == [b"a"]
    assert name in query(cluster, "select topic from topics")
    assert name in query(cluster, "select topic from batches")
    cluster.delete_topic(name)
    cluster.tick_until_idle()
    assert folders(cluster) == before


def test_groups_members_and_metadata_are_only_names(cluster: LocalCluster) -> None:
    root = cluster.connection.root
    before = folders(cluster)
    key = TopicIdPartition(cluster.connection.metadata().topic("t").topic_id, 0)
    offsets = CommittedOffsets(root.consumer_offsets, cluster.clock)
    groups = ConsumerGroups(root.consumer_groups)
    for name in NAMES:
        member = Member(name, name, name, 0, (name,), ("range",), (), 45_000, 300_000)
        groups.change(name, lambda group, member=member: joined(group, member))  # type: ignore[misc]
        groups.change(name, lambda group, name=name: assigned(group, {name: [key]}))  # type: ignore[misc]
        offsets.commit(name, GroupFence(1, 1), {key: ("t", OffsetAndMetadata(0, name, 0))})
    for name in NAMES:
        [found] = groups.find(name).members
        assert found[:3] == (name, name, name)
        assert found.topics == (name,)
        assert offsets.fetch(name)[key].metadata == name
    assert {one.group_id for one in groups.all()} == set(NAMES)
    assert set(query(cluster, "select group_id from consumer_groups")) == set(NAMES)
    assert set(query(cluster, "select metadata from consumer_offsets")) == set(NAMES)
    assert folders(cluster) == before


def test_client_ids_and_their_quotas_are_only_names(cluster: LocalCluster) -> None:
    """The leader's rules get them as values, and the quota of each is that of no other."""
    before = folders(cluster)
    admin = Admin(str(cluster.root / "cluster"), clock=cluster.clock)
    for name in NAMES:
        admin.alter_client_quotas(name, {"producer_byte_rate": 1_000_000})
    assert set(admin.describe_client_quotas()) == set(NAMES)
    state = cluster.connection.metadata().partition("t", 0)
    log = cluster.location(0).child("log")
    sent = []
    for name in NAMES:
        writer = BatchFileWriter(log, new_batch_path())
        writer.write(records_table([name.encode()], None, 1_000_000))
        client = ProduceClient(cluster.connection, client_id=name, clock=cluster.clock)
        sent.append(client.send([RequestedBatch(state, writer.close())], "all"))
    cluster.tick_until_idle()
    assert [one.response.error for one in sent if one.response] == ["NONE"] * len(NAMES)
    values = [(one.value or b"").decode() for one in cluster.consume("t", 0)]
    assert values == ["first", *NAMES]
    assert folders(cluster) == before


def test_transactional_ids_are_only_names(cluster: LocalCluster) -> None:
    before = folders(cluster)
    ids = ProducerIds(cluster.connection, cluster.clock)
    got = {name: ids.allot(name) for name in NAMES}
    assert len({one.producer_id for one in got.values()}) == len(NAMES)
    for name in NAMES:
        assert ids.allot(name) == got[name]._replace(producer_epoch=1)
    statement = "select transactional_id from producer_ids where transactional_id is not null"
    assert set(query(cluster, statement)) == set(NAMES)
    # The rule that expires them, in the controller's tick.
    cluster.clock.advance(604_800_001)
    cluster.tick_until_idle()
    assert query(cluster, statement) == []
    assert folders(cluster) == before


@pytest.mark.parametrize("name", ["a'b", 'a"b', "a;b", "a b", "a--b", "a$(b)", "a{b}"])
def test_a_root_with_such_a_name_is_only_a_folder(tmp_path: Path, name: str) -> None:
    cluster = LocalCluster(tmp_path / name, brokers=[0])
    cluster.create_topic("t", assignment={0: [0]})
    cluster.produce("t", 0, [b"a"])
    cluster.tick_until_idle()
    assert [one.value for one in cluster.consume("t", 0)] == [b"a"]
    assert query(cluster, "select topic from batches") == ["t"]
    cluster.close()
    assert [one.name for one in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("select 1; drop table topics", "only one SELECT statement is run"),
        ("drop table topics", "only one SELECT statement is run"),
        ("copy topics to 'hostile-copy'", "only one SELECT statement is run"),
        ("attach 'hostile.db'", "only one SELECT statement is run"),
        ("install httpfs", "only one SELECT statement is run"),
        ("set memory_limit = '1TB'", "only one SELECT statement is run"),
        ("select * from 'no\0such'", "no table"),
        ("select " + "(" * 200, "cannot be run"),
        ('select * from "\'; drop table topics"', "no table"),
        ("", "only one SELECT statement is run"),
        ("\N{PILE OF POO}", "cannot be run"),
    ],
    ids=[f"statement {number}" for number in range(11)],
)
def test_a_statement_that_is_no_query_is_refused(
    cluster: LocalCluster, statement: str, said: str
) -> None:
    refused = run("query", statement, cluster=cluster.root / "cluster")
    assert refused.exit_code == 2
    assert said in refused.stderr
    assert "Traceback" not in refused.stderr
