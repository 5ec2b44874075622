"""The JSON of offsets, in options and in checkpoints."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.datasource.offsets import Position, StreamOffset, parse_offsets
from sparklog.errors import ConfigError, StorageError
from sparklog.model import TopicPartition

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


def test_a_checkpoints_offset_is_the_connectors_json_with_one_more_member() -> None:
    """A checkpoint's offset is the Kafka connector's JSON with the additional member
    `@sparklog`.
    """
    offset = StreamOffset(
        {T1: Position(5), T0: Position(23, "id-of-t", 4, 20), U0: Position(0, "u")}
    )
    assert offset.to_json() == {
        "t": {"0": 23, "1": 5},
        "u": {"0": 0},
        "@sparklog": {
            "topic_ids": {"t": "id-of-t", "u": "u"},
            "leader_epochs": {"t": {"0": 4}},
            "epoch_starts": {"t": {"0": 20}},
        },
    }


def test_a_plain_offset_of_the_connector_is_read_as_well() -> None:
    """A plain offset of the Kafka connector can be read."""
    assert StreamOffset.from_json({"t": {"0": 23}}) == StreamOffset({T0: Position(23)})


positions = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from(["t", "u", "a.b-c_d"]), st.integers(0, 40)),
    st.integers(0, 1 << 62),
    min_size=1,
).map(
    lambda found: {
        key: Position(offset, f"id of {key.topic}", offset % 7 - 1, offset % 5 - 1)
        for key, offset in found.items()
    }
)


@given(positions, st.booleans(), st.none() | positions, st.sampled_from(["", "an-id"]))
def test_an_offset_survives_the_checkpoint(
    here: dict[TopicPartition, Position],
    is_initial: bool,
    started_at: dict[TopicPartition, Position] | None,
    stream_id: str,
) -> None:
    """An offset is unchanged after it was written to a checkpoint and read."""
    offset = StreamOffset(here, is_initial, started_at, stream_id)
    text = json.dumps(offset.to_json())
    assert StreamOffset.from_json(json.loads(text)) == offset
    assert parse_offsets(text, "startingOffsets") == here


def test_the_order_in_which_partitions_are_found_does_not_show() -> None:
    """Spark compares offsets as text."""
    one = StreamOffset({T0: Position(1), T1: Position(2)}).to_json()
    other = StreamOffset({T1: Position(2), T0: Position(1)}).to_json()
    assert json.dumps(one) == json.dumps(other)


@pytest.mark.parametrize(
    "values",
    [
        {"t": 5},
        {"t": {"0": []}},
        {"t": {"0": float("inf")}},
        {"t": {"x": 1}},
        {"t": {"0": 1}, "@sparklog": []},
        {"t": {"0": 1}, "@sparklog": {"topic_ids": 5}},
        {"t": {"0": 1}, "@sparklog": {"leader_epochs": {"t": {"0": float("nan")}}}},
        {"t": {"0": 1}, "@sparklog": {"started_at": ["t"]}},
    ],
)
def test_a_damaged_offset_of_a_checkpoint_is_refused_in_a_sentence(values: Any) -> None:
    """Found by hostile input: TypeError, AttributeError, ValueError and OverflowError ended the
    query, without a word about its checkpoint.
    """
    with pytest.raises(StorageError, match="offset in the query's checkpoint is malformed"):
        StreamOffset.from_json(values)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"t":{"' + "9" * 5_000 + '":1}}',
        '{"t":{"\N{ARABIC-INDIC DIGIT SEVEN}":1}}',
        '{"t":{"0":' + str(1 << 63) + "}}",
        '{"t":{"0":1},"@sparklog":{"epoch_starts":{"t":{"0":Infinity}}}}',
    ],
    ids=lambda one: one[:20],
)
def test_offsets_that_no_partition_has_are_refused(text: str) -> None:
    """Found by hostile input: RecursionError, ValueError and OverflowError."""
    with pytest.raises(ConfigError, match=r"^option startingOffsets must have the form"):
        parse_offsets(text, "startingOffsets")
