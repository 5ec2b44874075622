"""The questions of docs/questions.md, and the tables and views of the past that answer them."""

from __future__ import annotations

import json
import re
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import pytest
from deltalake import DeltaTable

from sparklog import Admin, Consumer, OffsetAndMetadata, TopicPartition
from sparklog.cli.cluster import Cluster
from sparklog.cli.sql import query
from sparklog.cluster.operations import CAUSES, GROUP_CAUSES, OPERATIONS
from sparklog.cluster.partition_changes import OF_CONTROLLER
from sparklog.cluster.past import BROKER_PAST, CLUSTER_PAST
from sparklog.cluster.views import create_views
from sparklog.config import ConsumerConfig
from sparklog.groups.member import GroupMember
from sparklog.maintenance.scrub import scrub
from sparklog.model import (
    CONTROLLER,
    CONTROLLER_HISTORY,
    NOBODY,
    PARTITION_HISTORY,
    PARTITION_STATE,
    TRUNCATIONS,
    TableSchema,
)
from sparklog.states import BrokerEvent
from sparklog.storage.control_table import ControlTable
from sparklog.storage.delta_checkpoints import write_checkpoint
from sparklog.storage.delta_log_files import commit_path
from sparklog.storage.delta_snapshots import open_delta_table
from sparklog.testing import LocalCluster
from tests.examples import CHECKOUT, examples

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LAG_MS = 5_000
DAY_MS = 86_400_000
HOUR_MS = 3_600_000
PLACEHOLDER = "2026-11-25 09:14:00Z"
"""The time in the page's queries that stands for the one that a question asks for."""

BACKFILLED_MS = 1_700_000_000_000
"""The timestamp of a record that was written long after it."""

OF_EVERY_TABLE = {"CREATE TABLE", "FENCE", "SET TRANSACTIONS", "RECREATE TABLE", "REPAIR"}
OF_BROKER_ROOTS = {"CHECKPOINT"}

Rows = list[tuple[Any, ...]]


class Prepared(NamedTuple):
    """The cluster, and times in ms since 1970.

    `first_ms` is the timestamp of its first records, an hour before its first commit at `began_ms`;
    `before_ms` is before its unclean election.
    """

    cluster: LocalCluster
    first_ms: int
    began_ms: int
    before_ms: int


def rows(cluster: LocalCluster, statement: str) -> list[dict[str, Any]]:
    result = query(statement, Cluster.of(str(cluster.root / "cluster")))
    assert result.left_out == []
    found: list[dict[str, Any]] = result.rows.to_pylist()
    return found


def table(cluster: LocalCluster, broker: int | None, schema: TableSchema) -> ControlTable:
    return ControlTable(cluster.location(broker), schema)


def rebalance(cluster: LocalCluster) -> None:
    """Let two members join the group "reports", and one of them leave for a slow `poll`."""
    config = ConsumerConfig.model_validate({"client.id": "nightly"})
    one, other = (
        GroupMember(cluster.connection.root, "reports", config, cluster.clock) for _ in range(2)
    )
    one.join(["orders"])
    one.assign({})
    other.join(["orders"])
    one.join(["orders"])
    one.assign({})
    other.leave("max_poll_interval")
    one.join(["orders"])


def controller(cluster: LocalCluster) -> int:
    return next(one for one, broker in cluster.brokers.items() if broker.is_controller)


def ended_uncleanly(cluster: LocalCluster) -> None:
    """Let broker 1 lead orders-0 without the last two records, and broker 0 return and truncate."""
    for broker in (1, 2):
        cluster.crash(broker)
    for broker in (1, 2):
        cluster.fence(broker)
    cluster.tick_until_idle()
    cluster.produce("orders", 0, [b"lost", b"too"])
    cluster.tick_until_idle()
    cluster.crash(0)
    cluster.restart(1)
    cluster.fence(0)
    cluster.tick_until_idle()
    cluster.produce("orders", 0, [b"new"])
    cluster.tick_until_idle()
    cluster.restart(0)
    cluster.tick_until_idle()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """A slow follower, refusals, two controllers, an unclean election, a truncation, groups, a
    backfilled record, and a partition without a leader.
    """
    config = {"replica.lag.time.max.ms": LAG_MS}
    began_ms = time.time_ns() // 1_000_000
    first_ms = began_ms - HOUR_MS
    cluster = LocalCluster(tmp_path_factory.mktemp("past"), config=config, start_ms=first_ms)
    unclean = {"unclean.leader.election.enable": "true"}
    cluster.create_topic("orders", assignment={0: [0, 1, 2]}, configs=unclean)
    cluster.create_topic("payments", assignment={0: [1, 0]}, configs={"min.insync.replicas": "2"})
    cluster.produce("orders", 0, [b"a", b"b"])
    cluster.tick_until_idle()
    # Broker 2 does not follow for a while.
    cluster.produce("orders", 0, [b"c"])
    for _ in range(2):
        cluster.clock.advance(LAG_MS // 2 + 1)
        cluster.leader_tick(0)
        cluster.follower_tick(1)
    cluster.leader_tick(0)
    cluster.tick_until_idle()
    cluster.create_topic("alone", assignment={0: [2]})
    cluster.create_topic("imports", assignment={0: [0]}, configs={"retention.ms": -1})
    cluster.produce("alone", 0, [b"x"])
    cluster.produce("imports", 0, [b"old"], timestamp_ms=BACKFILLED_MS)
    cluster.tick_until_idle()
    committed = {("orders", 0): 1, ("alone", 0): 0, ("imports", 0): 0}
    with Consumer(
        str(cluster.root / "cluster"), group_id="billing", enable_auto_commit=False
    ) as consumer:
        consumer.assign([TopicPartition(*one) for one in committed])
        consumer.commit(
            {TopicPartition(*one): OffsetAndMetadata(at) for one, at in committed.items()}
        )
    rebalance(cluster)
    Admin(cluster.connection).alter_configs("payments", {"retention.ms": 86_400_000})
    cluster.crash(2)
    cluster.fence(2)
    cluster.crash(1)
    cluster.fence(1)
    cluster.tick_until_idle()
    refused = [cluster.produce("payments", 0, [b"x"], acks="all") for _ in range(2)]
    cluster.tick_until_idle()
    assert {one.response and one.response.error for one in refused} == {"NOT_ENOUGH_REPLICAS"}
    cluster.restart(1)
    cluster.restart(2)
    cluster.tick_until_idle()
    ended_uncleanly(cluster)
    [election] = rows(cluster, "from elections where is_unclean")
    return Prepared(cluster, first_ms, began_ms, election["at_ms"] - 1)


def test_each_commit_names_a_documented_operation_and_cause(prepared: Prepared) -> None:
    """Commits of configurations, groups, ids and histories were called WRITE."""
    cluster = prepared.cluster
    cluster.idempotent_producer("transactional")
    scrub(cluster.connection)
    found: dict[str, set[str]] = {}
    causes = set()
    for folder in (one for one in (cluster.root / "cluster").iterdir() if one.is_dir()):
        for commit in DeltaTable(folder).history():
            parameters = commit["operationParameters"]
            found.setdefault(commit["operation"], set()).add(folder.name)
            causes |= {parameters.get("cause"), *json.loads(parameters.get("otherCauses", "{}"))}
    documented = {one.name: set(one.tables) for one in OPERATIONS}
    for operation in found.keys() - OF_EVERY_TABLE:
        assert found[operation] <= documented.get(operation, set()), operation
    assert causes - {None} <= CAUSES.keys() | GROUP_CAUSES.keys()
    written = {
        "CREATE TOPIC",
        "ELECT LEADERS",
        "COMMIT OFFSETS",
        "ALLOT PRODUCER IDS",
        "BEGIN SCRUB",
    }
    assert written <= found.keys()


def test_the_documented_operations_are_those_of_the_code() -> None:
    """Each operation that the code names is in the list, and the other way round."""
    named = {f"{event.replace('_', ' ').upper()} BROKER" for event in get_args(BrokerEvent)}
    named -= {"SESSION TIMEOUT BROKER"}  # FENCE BROKERS, for all of them
    for path in (CHECKOUT / "sparklog").rglob("*.py"):
        for name in re.findall(r'[cC]ause[s]?\(\s*"([A-Z -]+)"', path.read_text(encoding="utf-8")):
            named.add(name)
    assert named - OF_EVERY_TABLE - OF_BROKER_ROOTS == {one.name for one in OPERATIONS}


def queries(before_ms: int) -> dict[int, str]:
    """Return the queries of the page by the numbers of their questions."""
    text = (CHECKOUT / "docs/questions.md").read_text(encoding="utf-8")
    found = re.findall(r"^### (\d+)\. .*?```sql\n(.*?)```", text, re.MULTILINE | re.DOTALL)
    before = datetime.fromtimestamp(before_ms / 1000, timezone.utc).strftime(
        "%Y-%m-%d %H:%M:%S.%fZ"
    )
    return {int(number): query.replace(PLACEHOLDER, before) for number, query in found}


LAGGED = f"broker 2 at offset 2 of 3, caught up {LAG_MS + 2} ms ago"


def silent(broker: int) -> str:
    return f"broker {broker} was silent for 9.0 s"


ANSWERS: dict[int, Rows] = {
    1: [(0, 0, "now")],
    2: [("imports", 0, 0, 2), ("orders", 0, 1, 1), ("payments", 0, 1, 2)],
    3: [
        ("now", 0, None, 0, "CREATE TOPIC", "created", None, False),
        ("now", 1, 0, 1, "ELECT LEADERS", "leader_fenced", silent(0), True),
    ],
    4: [("now", "orders", 0, 0, 1, "leader_fenced", silent(0))],
    5: [("alone", 0, 3), ("imports", 0, 2), ("payments", 0, 2), ("orders", 0, 1)],
    6: [
        ("now", "orders", 0, "[2]", "[0, 1]", "CHANGE ISR", "follower_lagging", LAGGED),
        ("now", "orders", 0, "[2]", "[0, 1]", "ELECT LEADERS", "follower_fenced", silent(2)),
        ("now", "orders", 0, "[1]", "[0]", "ELECT LEADERS", "follower_fenced", silent(1)),
        ("now", "payments", 0, "[1]", "[0]", "ELECT LEADERS", "leader_fenced", silent(1)),
        (
            "now",
            "orders",
            0,
            "[1, 2]",
            "[0]",
            "ELECT LEADERS",
            "follower_fenced",
            f"{silent(1)}; {silent(2)}",
        ),
        ("now", "payments", 0, "[1]", "[0]", "ELECT LEADERS", "follower_fenced", silent(1)),
        ("now", "orders", 0, "[0]", "[1]", "ELECT LEADERS", "leader_fenced", silent(0)),
        ("now", "payments", 0, "[0]", "[1]", "ELECT LEADERS", "leader_fenced", silent(0)),
    ],
    7: [("orders", 0, 2, "now", "follower_fenced", silent(2), 1)],
    8: [("orders", 0, 3, 2)],
    9: [],
    10: [("alone", 0)],
    11: [("now", "[0]", 0, "follower_fenced")],
    12: [(1, 0, 2, "now", "lease_lapsed", silent(0))],
    13: [("now", 0, 1, "lease_lapsed", silent(0))],
    14: [("now", 0, "orders", 0, 5, 3, 1, "divergence", 5, 2)],
    15: [("now", "orders", 0, 0, 1, "leader_fenced", 2, 3, 4)],
    16: [(0, 4, 4, 4, 0), (2, 3, 3, 4, 1)],
    17: [("2", "orders", 0, 1)],
    18: [("alone", 0, 0, None, None), ("imports", 0, 0, 1, 1), ("orders", 0, 1, 4, 3)],
    19: [("NOT_ENOUGH_REPLICAS", 2, "now", "now")],
    20: [("payments", 0, "NOT_ENOUGH_REPLICAS", 0, 2, "now")],
    21: [(0, 4), (1, 4), (2, 3)],
    22: [(0, 0, 0), (0, 1, 3), (1, 0, 0), (1, 1, 3), (2, 0, 0)],
    23: [(0, 2, 1), (2, 1, 1)],
    24: [(0, "orders", 0, 4, 3), (1, "orders", 0, 4, 3), (2, "orders", 0, 3, 2)],
    25: [(0, "alive"), (1, "alive"), (2, "fenced")],
    26: [("now", "topics", "payments", "retention.ms", None, "86400000")],
    27: [
        ("alone", 0, "now", "leader_fenced", silent(2), 2, "replica_returned", False),
        ("alone", 0, "now", "leader_fenced", silent(2), None, None, None),
        ("imports", 0, "now", "leader_fenced", silent(0), 0, "replica_returned", False),
    ],
    28: [
        ("orders", 0, 2, "now", "follower_lagging", LAGGED),
        ("orders", 0, 2, "now", "follower_fenced", silent(2)),
        ("orders", 0, 1, "now", "follower_fenced", silent(1)),
        ("payments", 0, 1, "now", "leader_fenced", silent(1)),
        ("orders", 0, 1, "now", "follower_fenced", silent(1)),
        ("orders", 0, 2, "now", "follower_fenced", silent(2)),
        ("payments", 0, 1, "now", "follower_fenced", silent(1)),
        ("orders", 0, 0, "now", "leader_fenced", silent(0)),
        ("payments", 0, 0, "now", "leader_fenced", silent(0)),
    ],
    29: [
        ("now", "reports", 1, "member_joined", '["nightly-<uuid>"]', 1),
        ("now", "reports", 1, "member_joined", '["nightly-<uuid>"]', 2),
        ("now", "reports", 2, "max_poll_interval", '["nightly-<uuid>"]', 1),
    ],
}


def test_the_page_has_a_line_and_a_query_for_each_of_its_twenty_nine_questions() -> None:
    text = (CHECKOUT / "docs/questions.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\| (\d+) \| (.+?) \| `\w+` \| .+ \|$", text, re.MULTILINE)
    headings = re.findall(r"^### (\d+)\. (.+)$", text, re.MULTILINE)
    assert [number for number, _ in lines] == [str(number) for number in range(1, 30)]
    assert headings == lines
    assert queries(0).keys() == set(range(1, 30))


LAGS_IN_SECONDS = """
select
    kind, name, topic, lag,
    round(unix_millis(current_timestamp) - 1000 * lag_seconds) as since_ms,
    lag_seconds = 0 as is_none
from lag
where topic in ('orders', 'alone', 'imports')
order by kind, topic, name
"""


def test_a_lag_in_seconds_is_from_the_first_missing_timestamp_until_now_or_null(
    spark: SparkSession, prepared: Prepared
) -> None:
    """A lag that nobody knows was 0 in both engines, whose `greatest` ignores null, or no row.

    It was 0 also where the missing records share one timestamp, however long the broker was gone.
    A timestamp is the producer's: a backfilled record is late by its age.
    """
    cluster = prepared.cluster
    [newest] = rows(
        cluster, "select max(min_timestamp_ms) as at_ms from batches where topic = 'orders'"
    )
    assert prepared.first_ms < newest["at_ms"] < prepared.began_ms
    expected = [
        ("group", "billing", "alone", None, None, None),
        ("group", "billing", "imports", 1, BACKFILLED_MS, False),
        ("group", "billing", "orders", 3, prepared.first_ms, False),
        ("replica", "2", "alone", None, None, None),
        ("replica", "0", "orders", 0, None, True),
        ("replica", "2", "orders", 1, newest["at_ms"], False),
    ]
    session = spark.newSession()
    create_views(session, str(cluster.root / "cluster"))
    of_spark = [row.asDict() for row in session.sql(LAGS_IN_SECONDS).collect()]
    for found in (rows(cluster, LAGS_IN_SECONDS), of_spark):
        for row in found:
            if row["is_none"]:
                row["since_ms"] = None
        assert [tuple(row.values()) for row in found] == expected


def test_a_lag_in_a_merged_batch_is_from_about_the_first_missing_record(
    spark: SparkSession, tmp_path: Path
) -> None:
    """It was from the first record of the batch: after a merge a reader was behind by hours more.

    Within a batch the records count as evenly spread, since it has its first and last timestamp.
    """
    now_ms = time.time_ns() // 1_000_000
    first_ms = now_ms - HOUR_MS
    config = {"log.merger.min.batches": 2}
    cluster = LocalCluster(tmp_path, config=config, start_ms=first_ms)
    cluster.create_topic("orders", assignment={0: [0]})
    for minute in range(10):
        at_ms = first_ms + minute * 60_000
        cluster.produce("orders", 0, [b"x"], timestamp_ms=at_ms)
        cluster.tick_until_idle()
    key = TopicPartition("orders", 0)
    with Consumer(
        str(cluster.root / "cluster"), group_id="billing", enable_auto_commit=False
    ) as consumer:
        consumer.assign([key])
        consumer.commit({key: OffsetAndMetadata(6)})
    cluster.clock.advance(HOUR_MS)
    assert cluster.merge(0) == (10, 1)
    query = """
        select lag, round(unix_millis(current_timestamp) - 1000 * lag_seconds) as since_ms
        from lag where kind = 'group'
    """
    create_views(spark, str(cluster.root / "cluster"))
    of_spark = [row.asDict() for row in spark.sql(query).collect()]
    assert rows(cluster, query) == of_spark == [{"lag": 4, "since_ms": first_ms + 6 * 60_000}]


def test_a_follower_has_had_everything_until_the_first_record_that_it_lacks(
    tmp_path: Path,
) -> None:
    """That may be after it has left the ISR: nothing was written between."""
    cluster = LocalCluster(tmp_path, [0, 1], start_ms=time.time_ns() // 1_000_000)
    cluster.create_topic("t", assignment={0: [0, 1]}, configs={"min.insync.replicas": 1})
    cluster.produce("t", 0, [b"a"])
    cluster.tick_until_idle()
    cluster.crash(1)
    cluster.fence(1)
    cluster.tick_until_idle()
    query = (
        "select in_isr, lag, reported_at_ms, left_isr_at_ms, last_caught_up_ms "
        "from replica_progress"
    )
    [idle] = rows(cluster, query)
    assert (idle["in_isr"], idle["lag"]) == (False, 0)
    assert idle["last_caught_up_ms"] == idle["reported_at_ms"]
    cluster.clock.advance(60_000)
    cluster.produce("t", 0, [b"b"], acks=1)
    cluster.tick_until_idle()
    [behind] = rows(cluster, query)
    assert behind["lag"] == 1
    assert behind["last_caught_up_ms"] == cluster.clock.now_ms() > behind["left_isr_at_ms"]
    assert behind["reported_at_ms"] == idle["reported_at_ms"]


def as_answered(row: dict[str, Any], prepared: Prepared) -> tuple[Any, ...]:
    """Return the values of a row without durations; a time of the cluster's life is `now`."""

    def shown(name: str, value: Any) -> Any:
        if name == "members":
            return re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "<uuid>", value)
        if not name.endswith("_ms") or value is None:
            return value
        return "now" if prepared.first_ms <= value <= time.time() * 1000 else value

    return tuple(shown(*one) for one in row.items() if not one[0].endswith("_seconds"))


def test_each_query_of_the_page_gives_its_answer(prepared: Prepared) -> None:
    texts = queries(prepared.before_ms)
    found = {
        number: [as_answered(row, prepared) for row in rows(prepared.cluster, text)]
        for number, text in texts.items()
    }
    assert found == ANSWERS
    for number in (4, 6):
        assert "interval '1' day" in texts[number]
        assert rows(prepared.cluster, texts[number].replace("'1' day", "'0' day")) == []


def test_the_views_of_spark_give_the_same_answers(spark: SparkSession, prepared: Prepared) -> None:
    session = spark.newSession()
    create_views(session, str(prepared.cluster.root / "cluster"))
    for number, text in queries(prepared.before_ms).items():
        found = [as_answered(row.asDict(), prepared) for row in session.sql(text).collect()]
        assert found == ANSWERS[number], number
    for name, past in (CLUSTER_PAST | BROKER_PAST).items():
        found = session.table(name).toArrow().select(past.columns.names).to_pylist()
        stored = rows(prepared.cluster, f"from {name}")
        expected = [{column: row[column] for column in past.columns.names} for row in stored]
        assert sorted(found, key=str) == sorted(expected, key=str), name


def test_plain_sql_over_the_tables_runs_as_the_page_has_it(
    spark: SparkSession, prepared: Prepared, capsys: pytest.CaptureFixture[str]
) -> None:
    scope: dict[str, Any] = {"spark": spark}
    for text in examples("docs/questions.md"):
        exec(text.replace("sparklog-data/", f"{prepared.cluster.root}/"), scope)
    shown = capsys.readouterr().out
    assert re.search(r"\|\s*orders\|\s+0\|\s+1\|\n", shown)
    assert "ELECT LEADERS" in shown
    assert scope["committed"].columns == ["topic", "partition", "offset", "value"]
    assert scope["before"].num_rows == 3


def test_an_election_that_a_setting_allowed_says_so(tmp_path: Path) -> None:
    """It was said to be due to a replica that had returned, although none had for minutes."""
    cluster = LocalCluster(tmp_path)
    cluster.create_topic("orders", assignment={0: [0, 1]})
    for broker in (1, 0):
        cluster.tick_until_idle()
        cluster.crash(broker)
        cluster.fence(broker)
    cluster.tick_until_idle()
    cluster.restart(1)
    cluster.tick_until_idle()
    assert cluster.partition("orders", 0).leader is None
    Admin(cluster.connection).alter_configs("orders", {"unclean.leader.election.enable": "true"})
    cluster.tick_until_idle()
    query = "select leader, cause, detail from elections where is_unclean"
    assert [tuple(row.values()) for row in rows(cluster, query)] == [
        (1, "unclean_election_allowed", "broker 1 was neither in the ISR nor in the ELR")
    ]


def test_delta_shows_the_cause_of_each_commit_of_control_state(prepared: Prepared) -> None:
    """Any reader of Delta sees it, in DESCRIBE HISTORY or through delta-rs."""

    def history(name: str) -> list[tuple[str, dict[str, str]]]:
        commits = open_delta_table(prepared.cluster.location().child(name)).history()
        return [(one["operation"], one["operationParameters"]) for one in reversed(commits)]

    states = history("partition_state")
    assert ("CREATE TOPIC", "orders") in {(of, one.get("topic")) for of, one in states}
    lagging = [one for of, one in states if one.get("cause") == "follower_lagging"]
    assert lagging[0]["detail"].startswith("broker 2 at offset 2 of 3, caught up ")
    assert history(CONTROLLER.name)[1:] == [
        (
            "ELECT CONTROLLER",
            {"brokerId": "0", "controllerEpoch": "1", "cause": "first_controller"},
        ),
        (
            "ELECT CONTROLLER",
            {
                "brokerId": "1",
                "controllerEpoch": "2",
                "cause": "lease_lapsed",
                "detail": silent(0),
            },
        ),
    ]
    fenced = [one for of, one in history("brokers") if of == "FENCE BROKERS"]
    assert {one["cause"] for one in fenced} == {"session_timeout"}
    assert [one["brokerIds"] for one in fenced][:2] == ["[2]", "[1]"]


def truncated_cluster(folder: Path) -> LocalCluster:
    """Return a cluster after an unclean election and the truncation that follows."""
    cluster = LocalCluster(folder)
    unclean = {"unclean.leader.election.enable": "true"}
    cluster.create_topic("orders", assignment={0: [0, 1, 2]}, configs=unclean)
    cluster.produce("orders", 0, [b"a", b"b"])
    cluster.tick_until_idle()
    ended_uncleanly(cluster)
    return cluster


@pytest.fixture
def cluster(tmp_path: Path) -> LocalCluster:
    return truncated_cluster(tmp_path)


class TestOfPartitions:
    CHANGES = "from partition_history order by topic_id, partition, partition_epoch"

    def clean_up(self, cluster: LocalCluster) -> None:
        """Remove the commits of `partition_state`, as Delta does after their retention."""
        states = cluster.location().child(PARTITION_STATE.name)
        write_checkpoint(states)
        for version in range(open_delta_table(states).version()):
            states.remove(commit_path(version))

    def test_is_the_same_after_the_commits_are_gone(self, cluster: LocalCluster) -> None:
        """The controller has copied the commits before, each once."""
        before = rows(cluster, self.CHANGES)
        assert [row["cause"] for row in before] == [
            *("created", "follower_fenced", "leader_fenced", "truncation", "follower_caught_up")
        ]
        cluster.vacuum(controller(cluster), after_ms=0)
        assert rows(cluster, self.CHANGES) == before
        self.clean_up(cluster)
        assert rows(cluster, self.CHANGES) == before
        cluster.vacuum(controller(cluster), after_ms=30 * DAY_MS)
        assert rows(cluster, self.CHANGES) == before
        assert table(cluster, None, PARTITION_HISTORY).rows().num_rows == len(before)

    def test_is_not_written_again_without_a_change(self, cluster: LocalCluster) -> None:
        cluster.vacuum(controller(cluster), after_ms=0)
        version = table(cluster, None, PARTITION_HISTORY).version
        cluster.vacuum(controller(cluster), after_ms=0)
        assert table(cluster, None, PARTITION_HISTORY).version == version

    def test_a_damaged_table_is_left_to_be_restored_and_the_vacuum_goes_on(
        self, cluster: LocalCluster
    ) -> None:
        cluster.vacuum(controller(cluster), after_ms=0)
        for file in (cluster.root / "cluster" / PARTITION_HISTORY.name).glob("*.parquet"):
            file.unlink()
        cluster.elect_leaders("preferred", [("orders", 0)])
        cluster.tick_until_idle()
        # Another process of the broker reads the table again.
        at = controller(cluster)
        cluster.crash(at)
        cluster.fence(at)
        cluster.restart(at)
        cluster.tick_until_idle()
        cluster.vacuum(controller(cluster), after_ms=0)
        assert rows(cluster, "from controller_history")[-1]["controller_epoch"] == 3
        stored = table(cluster, None, CONTROLLER_HISTORY).rows()["controller_epoch"].to_pylist()
        assert stored[-1] == 3

    def test_begins_at_the_current_state_without_claims_about_a_gap(
        self, cluster: LocalCluster
    ) -> None:
        """Nobody has copied the commits: whether the election was clean is not known."""
        self.clean_up(cluster)
        [row] = rows(cluster, "from elections")
        assert (row["leader"], row["leader_epoch"], row["is_unclean"]) == (1, 1, None)
        [row] = rows(cluster, "from isr_history")
        assert (row["isr"], row["left_isr"]) == ("[0, 1]", None)

    def test_has_the_new_leader_at_once(self, cluster: LocalCluster) -> None:
        """`leadership_history` as stored lags behind by the interval of the vacuum."""
        cluster.vacuum(controller(cluster), after_ms=0)
        cluster.elect_leaders("preferred", [("orders", 0)])
        found = rows(cluster, "select leader from leadership_history order by leader_epoch")
        assert [row["leader"] for row in found] == [0, 1, 0]
        [row] = rows(cluster, "from elections where leader_epoch = 2")
        assert (row["cause"], row["is_unclean"]) == ("requested", False)


class TestOfTheController:
    COLUMNS = "select controller_epoch, broker_id, broker_before, cause from controller_history"

    def test_each_row_has_the_controller_before(self, tmp_path: Path) -> None:
        """The row before says it, unless it is the release of a lease."""
        cluster = LocalCluster(tmp_path, [0, 1])
        cluster.create_topic("t")
        cluster.tick_until_idle()
        first = controller(cluster)
        other = 1 - first
        cluster.brokers[first].park()
        cluster.crash(first)
        for _ in range(10):
            cluster.clock.advance(3_000)
            cluster.tick_until_idle()
        cluster.restart(first)
        cluster.crash(other)
        for _ in range(10):
            cluster.clock.advance(3_000)
            cluster.tick_until_idle()
        expected = [
            (1, first, None, "first_controller"),
            (1, -1, first, None),
            (2, other, first, "lease_released"),
            (3, first, other, "lease_lapsed"),
        ]
        assert [tuple(row.values()) for row in rows(cluster, self.COLUMNS)] == expected
        details = rows(cluster, "select detail from controller_history order by version")
        *others, lapsed = (row["detail"] for row in details)
        assert others == [None] * 3
        assert re.fullmatch(rf"broker {other} was silent for (9|12)\.0 s", lapsed)
        cluster.vacuum(first, after_ms=0)
        stored = table(cluster, None, CONTROLLER_HISTORY).rows()
        assert stored["broker_before"].to_pylist() == [None, first, first, other]
        assert [tuple(row.values()) for row in rows(cluster, self.COLUMNS)] == expected

    def test_rows_of_an_earlier_release_get_it_when_they_are_read(self) -> None:
        """The column is null there, as in a table that lacks it."""
        earlier = [(1, 0, None), (1, NOBODY, None), (2, 1, None), (3, 2, 1), (4, 2, None)]
        stored = CONTROLLER_HISTORY.rows(
            [
                {"controller_epoch": epoch, "broker_id": broker_id, "broker_before": before}
                for epoch, broker_id, before in earlier
            ]
        )
        found = OF_CONTROLLER.fill(stored)
        assert found["broker_before"].to_pylist() == [None, 0, 0, 1, 2]
        assert found.schema == CONTROLLER_HISTORY.columns


class TestTruncations:
    def test_are_in_the_commit_that_truncates_and_then_in_the_table_once(
        self, cluster: LocalCluster
    ) -> None:
        """A process that dies before its checkpoints leaves them to the next one."""
        [row] = rows(cluster, "from truncations")
        assert (row["broker_id"], row["from_offset"], row["to_offset"]) == (0, 4, 2)
        assert (row["high_watermark"], row["records_lost"], row["leader_epoch"]) == (4, 2, 1)
        cluster.crash(0)
        assert rows(cluster, "from truncations") == [row]
        cluster.restart(0)
        cluster.tick_until_idle()
        cluster.brokers[0].stop()
        stored = table(cluster, 0, TRUNCATIONS).rows().to_pylist()
        assert [{"broker_id": 0, **one} for one in stored] == [row]
        assert rows(cluster, "from truncations") == [row]

    def test_a_damaged_table_is_recreated_and_keeps_no_checkpoint_back(
        self, cluster: LocalCluster
    ) -> None:
        folder = cluster.root / "broker-0" / TRUNCATIONS.name
        for file in (folder / "_delta_log").iterdir():
            file.write_bytes(b"{")
        cluster.brokers[0].stop()
        [stored] = table(cluster, 0, TRUNCATIONS).rows().to_pylist()
        assert stored["from_offset"] == 4


class TestConfigHistory:
    def test_has_each_change_with_the_value_before(self, tmp_path: Path) -> None:
        """Topics' values are in `topics`, those of brokers and client ids in `configs`."""
        cluster = LocalCluster(tmp_path, [0])
        cluster.create_topic("t", configs={"cleanup.policy": "compact"})
        admin = Admin(cluster.connection)
        admin.alter_configs("t", {"retention.ms": 1_000, "cleanup.policy": "compact,delete"})
        admin.alter_configs("t", {"retention.ms": 2_000})
        admin.alter_configs("t", {}, delete=["retention.ms"])
        admin.alter_client_quotas("c", {"producer_byte_rate": 10})
        cluster.create_topic("other")
        statement = "select * exclude (at_ms, version) from config_history order by at_ms, key"
        found = [tuple(row.values()) for row in rows(cluster, statement)]
        alter = "ALTER CONFIGS"
        assert found == [
            ("topics", "t", "cleanup.policy", None, "compact", "CREATE TOPIC"),
            ("topics", "t", "cleanup.policy", "compact", "compact,delete", alter),
            ("topics", "t", "retention.ms", None, "1000", alter),
            ("topics", "t", "retention.ms", "1000", "2000", alter),
            ("topics", "t", "retention.ms", "2000", None, alter),
            ("clients", "c", "producer_byte_rate", None, "10", alter),
        ]

    def test_begins_where_the_commits_begin_without_claims_about_values_before(
        self, tmp_path: Path
    ) -> None:
        cluster = LocalCluster(tmp_path, [0])
        cluster.create_topic("t")
        admin = Admin(cluster.connection)
        admin.alter_configs("t", {"retention.ms": 1_000})
        topics = cluster.location().child("topics")
        write_checkpoint(topics)
        for version in range(open_delta_table(topics).version()):
            topics.remove(commit_path(version))
        admin.alter_configs("t", {"retention.ms": 2_000})
        found = rows(cluster, "select value_before, value from config_history")
        assert found == [{"value_before": "1000", "value": "2000"}]
