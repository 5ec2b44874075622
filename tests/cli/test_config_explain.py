"""`sparklog config explain`: the meaning of a key, its default and places, and Kafka's."""

from __future__ import annotations

import json

from rich.cells import cell_len

from sparklog.cli.explain import all_explanations, explanations, text_of
from sparklog.cli.kafka_keys import PRODUCER_DEFAULTS
from sparklog.config import ProducerConfig
from tests.cli.command_line import run


def test_a_key_is_explained_in_all_of_its_places() -> None:
    """`config` and `configs` are the same command, which needs no cluster."""
    assert (
        run("config", "explain", "message.max.bytes").printed
        == """\
message.max.bytes
  The largest batch file, in bytes, unless the topic overrides it.
  Default: 1073741824
  Values: whole number, more than 0
  Valid in: the file of `sparklog cluster`
  Valid in: a broker or all brokers, while they run: configs alter --entity-type
            brokers
  Valid in: the file of `sparklog broker`
  Kafka: the same key and meaning; its default is 1048588. It differs here on
         purpose: a batch is a file of a whole DataFrame's partition, not a few
         KiB.
"""
    )
    assert (
        run("configs", "explain", "cleanup.policy").printed
        == """\
cleanup.policy
  delete, compact, or both.
  Default: the brokers' setting
  Values: delete, compact
  Valid in: a topic: topics create --config, configs alter
  Kafka: the same key and meaning.
"""
    )
    of_topic, of_client = explanations("producer_byte_rate")
    assert of_topic.valid_in != of_client.valid_in


def test_every_key_is_described_within_80_columns() -> None:
    for one in all_explanations():
        assert len(one.description) > 5, one.key
        assert all(cell_len(line) <= 80 for line in text_of(one).splitlines()), one.key
    listed = json.loads(run("config", "explain", "--json").printed)
    assert [one["key"] for one in listed] == [one.key for one in all_explanations()]
    assert "min.insync.replicas" in run("config", "explain").printed


def test_an_unknown_key_is_answered_with_the_one_that_was_meant() -> None:
    refusal = run("config", "explain", "min.insync.replica").refusal
    assert refusal == (
        "there is no configuration key min.insync.replica: did you mean min.insync.replicas?"
    )
    assert "`configs explain` lists all keys" in run("config", "explain", "colour").refusal


def test_kafkas_defaults_are_known_for_every_key_of_producers() -> None:
    assert PRODUCER_DEFAULTS.keys() == {
        field.alias or name for name, field in ProducerConfig.model_fields.items()
    }
