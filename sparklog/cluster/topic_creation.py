"""Storing a new topic: a claim on its name, its partitions, and the state "live"."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from sparklog.cluster.abandoned_topics import CREATION_TIMEOUT_MS, without_claims, without_topics
from sparklog.cluster.metadata import CREATING, LIVE
from sparklog.cluster.roots import ClusterRoot
from sparklog.errors import CommitConflictError, ProtocolError
from sparklog.model import TOPICS
from sparklog.states import topic_state_after
from sparklog.storage.commits import Cause
from sparklog.storage.shard_rewrites import RowChanges


def store_topic(
    root: ClusterRoot,
    entry: Mapping[str, Any],
    partitions: pa.Table,
    min_isr: int | None,
) -> None:
    """Store the row `entry` of `topics` and the rows `partitions` of `partition_state`.

    `min_isr` is the topic's own min.insync.replicas. Raises INVALID_CONFIG, TOPIC_ALREADY_EXISTS,
    and REQUEST_TIMED_OUT if the controller has abandoned the creation; nothing is stored then.
    """
    check_min_isr(entry["topic"], min_isr, entry["replication_factor"])
    topic_id = entry["topic_id"]
    cause = Cause(
        "CREATE TOPIC", {"cause": "created", "topic": entry["topic"], "topicId": topic_id}
    )
    # The claim on the name comes first, so that only its holder writes partitions. The state "live"
    # comes last, because it makes them visible. The controller removes claims of admins that died,
    # and partitions without a topic.
    root.topics.update(lambda old: (_with_claim(old, entry), None), cause=cause)
    try:
        created = {(topic_id, number) for number in partitions["partition"].unique().to_pylist()}
        root.partition_state.change_rows(lambda _: RowChanges(partitions), created, cause=cause)
        root.topics.update(lambda old: (_with_live(old, entry), None), cause=cause)
    except (ProtocolError, CommitConflictError):
        undone = cause._replace(operation="UNDO CREATE TOPIC")
        root.topics.update(lambda old: (without_claims(old, [topic_id]), None), cause=undone)
        root.partition_state.change_rows(lambda old: without_topics(old, [topic_id]), cause=undone)
        raise


def check_min_isr(topic: str, min_isr: int | None, factor: int) -> None:
    """Raise INVALID_CONFIG if min.insync.replicas of a topic is above its replication factor."""
    if min_isr is not None and min_isr > factor:
        raise ProtocolError(
            "INVALID_CONFIG",
            f"min.insync.replicas={min_isr} of topic {topic!r} is above its replication "
            f"factor {factor}: set it to {factor} or less",
        )


def _with_claim(topics: pa.Table, entry: Mapping[str, Any]) -> pa.Table:
    """Return `topics` with the row of a topic that is being created; its name must be free."""
    _check_name_is_free(topics.to_pylist(), entry)
    return pa.concat_tables(
        [topics, TOPICS.rows([{**entry, "state": topic_state_after("create", "(no row)")}])]
    )


def _with_live(topics: pa.Table, entry: Mapping[str, Any]) -> pa.Table:
    """Return `topics` with the claim turned into a topic; the claim must still exist."""
    rows = topics.to_pylist()
    mine = [row for row in rows if row["topic_id"] == entry["topic_id"]]
    others = [row for row in rows if row["topic_id"] != entry["topic_id"]]
    _check_name_is_free(others, entry)
    if not mine:
        raise ProtocolError(
            "REQUEST_TIMED_OUT",
            f"the creation of topic {entry['topic']!r} took more than {CREATION_TIMEOUT_MS} ms and "
            "was given up by the controller: create it again",
        )
    return TOPICS.rows([*others, {**mine[0], "state": topic_state_after("publish", CREATING)}])


def _check_name_is_free(rows: Iterable[Mapping[str, Any]], entry: Mapping[str, Any]) -> None:
    topic = entry["topic"]
    states = {row["state"] for row in rows if row["topic"] == topic}
    if LIVE in states:
        raise ProtocolError(
            "TOPIC_ALREADY_EXISTS", f"topic {topic!r} exists already: choose another name"
        )
    if CREATING in states:
        raise ProtocolError(
            "TOPIC_ALREADY_EXISTS",
            f"topic {topic!r} is being created by another process: choose another name, or try "
            f"again when the controller has given that up, after {CREATION_TIMEOUT_MS} ms",
        )
