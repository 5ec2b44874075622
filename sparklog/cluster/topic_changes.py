"""Changes of existing topics in the cluster root: further partitions, settings, deletion.

Further partitions are stored in three steps, as a new topic is: a claim, the partitions, and the
commit that ends the claim and raises the number of partitions, which makes them visible.

A deletion is one commit: the topic's row becomes `deleting`. Nobody sees the topic after that. The
controller removes its rows and committed offsets, and each broker removes its replicas of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sparklog.cluster.abandoned_topics import (
    CREATION_TIMEOUT_MS,
    without_claims,
    without_partitions_from,
)
from sparklog.cluster.metadata import DELETED, DELETING, GROWING, LIVE, TopicInfo, topic_of
from sparklog.cluster.roots import ClusterRoot
from sparklog.config import TopicConfig
from sparklog.errors import CommitConflictError, ProtocolError
from sparklog.model import TOPICS, TopicIdPartition, new_id
from sparklog.states import topic_state_after
from sparklog.storage.commits import Cause
from sparklog.storage.shard_rewrites import RowChanges

KEPT_DELETIONS = 10_000
"""The number of deletions of which the cluster root keeps the record, the newest ones."""


def grow_topic(
    root: ClusterRoot, topic: TopicInfo, partitions: int, rows: pa.Table, now_ms: int
) -> None:
    """Raise the number of partitions of a topic to `partitions`; `rows` are those of the new ones.

    Raises INVALID_PARTITIONS if another administrator has changed the number, or is about to;
    UNKNOWN_TOPIC_OR_PARTITION if the topic was deleted; REQUEST_TIMED_OUT if the controller has
    removed the claim. The partitions are not visible then.
    """
    claim_id = new_id()
    claim = {
        "topic_id": claim_id,
        "topic": topic.topic,
        "partitions": partitions,
        "replication_factor": topic.replication_factor,
        "configs": "{}",
        "state": topic_state_after("grow", "(no row)"),
        "created_at_ms": now_ms,
    }
    cause = Cause(
        "CREATE PARTITIONS",
        {"cause": "created", "topic": topic.topic, "partitions": str(partitions)},
    )
    root.topics.update(lambda old: (_with_claim(old, topic, claim), None), cause=cause)
    new = {TopicIdPartition(topic.topic_id, one) for one in range(topic.partitions, partitions)}

    def store(old: pa.Table) -> RowChanges:
        # Rows that exist are left over from an abandoned claim. Checked after they were loaded: a
        # later claim's partitions are stored after this one has ended.
        root.topics.refresh()
        _claimed(root.topics.rows(), topic, claim)
        left_over = without_partitions_from(old, topic.topic_id, topic.partitions)
        return RowChanges(rows, left_over.removed)

    try:
        root.partition_state.change_rows(store, new, cause=cause)
        root.topics.update(lambda old: (_grown(old, topic, claim), None), cause=cause)
    except (ProtocolError, CommitConflictError):
        undone = cause._replace(operation="UNDO CREATE PARTITIONS")
        root.topics.update(lambda old: (without_claims(old, [claim_id]), None), cause=undone)
        raise


def delete_topic(root: ClusterRoot, name: str) -> str:
    """Delete a topic, and return its id; raises UNKNOWN_TOPIC_OR_PARTITION if there is none."""

    def change(rows: pa.Table) -> tuple[pa.Table, str]:
        topic, others = _live_row(rows, name)
        deleted = {**topic, "state": topic_state_after("delete", LIVE)}
        # The records of deletions are in the order of the deletions.
        return TOPICS.rows([*others, deleted]), topic["topic_id"]

    topic_id: str = root.topics.update(change, cause=Cause("DELETE TOPIC", {"topic": name}))
    return topic_id


def cleaned_up(rows: pa.Table, topic_ids: frozenset[str]) -> pa.Table | None:
    """Return the rows of `topics` with the state `deleted` for those of `topic_ids`.

    Of all records of deletions the newest `KEPT_DELETIONS` are kept.
    """
    result: list[dict[str, Any]] = rows.to_pylist()
    deleting = [one for one in result if one["topic_id"] in topic_ids and one["state"] == DELETING]
    if not deleting:
        return None
    for row in deleting:
        row["state"] = topic_state_after("clean_up", DELETING)
    deleted = [one for one in result if one["state"] == DELETED]
    forgotten = {one["topic_id"] for one in deleted[:-KEPT_DELETIONS]}
    return TOPICS.rows([one for one in result if one["topic_id"] not in forgotten])


def change_configs(
    root: ClusterRoot, name: str, changed: Callable[[Mapping[str, Any], int], TopicConfig]
) -> None:
    """Replace the settings of a topic by those that `changed` returns.

    It receives the topic's settings and its replication factor, and may raise an error, which
    refuses the change. Raises UNKNOWN_TOPIC_OR_PARTITION.
    """

    def change(rows: pa.Table) -> tuple[pa.Table | None, None]:
        topic, _ = _live_row(rows, name)
        config = changed(json.loads(topic["configs"]), topic["replication_factor"])
        configs = json.dumps(config.model_dump(by_alias=True, exclude_none=True))
        if configs == topic["configs"]:
            return None, None
        result = rows.to_pylist()
        for row in result:
            if row["topic_id"] == topic["topic_id"]:
                row["configs"] = configs
        return TOPICS.rows(result), None

    root.topics.update(change, cause=Cause("ALTER CONFIGS", {"topic": name}))


def topics_being_deleted(root: ClusterRoot) -> list[TopicInfo]:
    """Return the deleted topics whose rows the controller has yet to remove."""
    root.topics.refresh()
    rows = root.topics.rows()
    return [topic_of(row) for row in rows.filter(pc.equal(rows["state"], DELETING)).to_pylist()]


def _live_row(rows: pa.Table, name: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the row of the topic with a name, and all other rows."""
    mine = [row for row in rows.to_pylist() if row["topic"] == name and row["state"] == LIVE]
    if not mine:
        names = rows.filter(pc.equal(rows["state"], LIVE))["topic"].to_pylist()
        raise unknown_topic(name, names)
    topic_id = mine[0]["topic_id"]
    return mine[0], [row for row in rows.to_pylist() if row["topic_id"] != topic_id]


def unknown_topic(name: str, names: list[str]) -> ProtocolError:
    """Return UNKNOWN_TOPIC_OR_PARTITION for a name; `names` are those of the topics."""
    return ProtocolError(
        "UNKNOWN_TOPIC_OR_PARTITION",
        f"there is no topic {name!r}; the topics are: {', '.join(sorted(names)) or 'none yet'}",
    )


def _with_claim(rows: pa.Table, topic: TopicInfo, claim: dict[str, Any]) -> pa.Table:
    """Return `topics` with the claim; the topic must be as it was, and have no other claim."""
    _unchanged(rows, topic)
    if any(row["topic"] == topic.topic and row["state"] == GROWING for row in rows.to_pylist()):
        raise ProtocolError(
            "INVALID_PARTITIONS",
            f"another process is creating partitions of topic {topic.topic!r}: try again when it "
            f"has ended, or when the controller has given that up, after {CREATION_TIMEOUT_MS} ms",
        )
    return pa.concat_tables([rows, TOPICS.rows([claim])])


def _claimed(rows: pa.Table, topic: TopicInfo, claim: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of `topics` without the claim, which must be there."""
    _unchanged(rows, topic)
    others = [row for row in rows.to_pylist() if row["topic_id"] != claim["topic_id"]]
    if len(others) == rows.num_rows:
        raise ProtocolError(
            "REQUEST_TIMED_OUT",
            f"the creation of partitions of topic {topic.topic!r} took more than "
            f"{CREATION_TIMEOUT_MS} ms and was given up by the controller: create them again",
        )
    return others


def _grown(rows: pa.Table, topic: TopicInfo, claim: dict[str, Any]) -> pa.Table:
    """Return `topics` without the claim, and with the new number of partitions."""
    others = _claimed(rows, topic, claim)
    for row in others:
        if row["topic_id"] == topic.topic_id:
            row["partitions"] = claim["partitions"]
    return TOPICS.rows(others)


def _unchanged(rows: pa.Table, topic: TopicInfo) -> None:
    mine, _ = _live_row(rows, topic.topic)
    if mine["topic_id"] != topic.topic_id:
        raise ProtocolError(
            "UNKNOWN_TOPIC_OR_PARTITION",
            f"topic {topic.topic!r} was deleted and created again: describe it, and decide again",
        )
    if mine["partitions"] != topic.partitions:
        raise ProtocolError(
            "INVALID_PARTITIONS",
            f"topic {topic.topic!r} has {mine['partitions']} partitions by now, since another "
            "process has added some: describe it, and decide again",
        )
