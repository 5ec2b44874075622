"""The keys of brokers and producers that are Kafka's own, with the defaults that Kafka has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KAFKA_DEFAULTS: Mapping[str, Any] = {
    "replica.lag.time.max.ms": 30_000,
    "replica.high.watermark.checkpoint.interval.ms": 5_000,
    "replica.fetch.max.bytes": 1_048_576,
    "replica.fetch.response.max.bytes": 10_485_760,
    "producer.id.expiration.ms": 86_400_000,
    "transactional.id.expiration.ms": 604_800_000,
    "quota.window.num": 11,
    "quota.window.size.seconds": 1,
    "replica.fetch.min.bytes": 1,
    "replica.fetch.wait.max.ms": 500,
    "log.retention.ms": None,
    "log.retention.minutes": None,
    "log.retention.hours": 168,
    "log.retention.bytes": -1,
    "log.retention.check.interval.ms": 300_000,
    "min.insync.replicas": 1,
    "message.max.bytes": 1_048_588,
    "unclean.leader.election.enable": False,
    "num.partitions": 1,
    "delete.topic.enable": True,
    "default.replication.factor": 1,
    "broker.session.timeout.ms": 9_000,
    "broker.heartbeat.interval.ms": 2_000,
    "broker.rack": None,
    "auto.leader.rebalance.enable": True,
    "log.cleanup.policy": ["delete"],
    "log.cleaner.enable": True,
    "log.cleaner.backoff.ms": 15_000,
    "log.cleaner.min.cleanable.ratio": 0.5,
    "log.cleaner.min.compaction.lag.ms": 0,
    "log.cleaner.max.compaction.lag.ms": (1 << 63) - 1,
    "log.cleaner.delete.retention.ms": 86_400_000,
    "log.cleaner.dedupe.buffer.size": 134_217_728,
    "leader.imbalance.check.interval.seconds": 300,
    "leader.imbalance.per.broker.percentage": 10,
    "queued.max.requests": 500,
}
"""Kafka 4's defaults, from its broker configuration reference."""

DELIBERATE: Mapping[str, str] = {
    "replica.fetch.max.bytes": "a batch is a file: one fetch copies many MiB, not one",
    "replica.fetch.response.max.bytes": "the same, of all partitions",
    "message.max.bytes": "a batch is a file of a whole DataFrame's partition, not a few KiB",
}
"""Defaults that differ from Kafka's, with the reasons."""

PRODUCER_DEFAULTS: Mapping[str, Any] = {
    "acks": "all",
    "batch.size": 16_384,
    "linger.ms": 5,
    "buffer.memory": 33_554_432,
    "max.block.ms": 60_000,
    "max.request.size": 1_048_576,
    "enable.idempotence": True,
    "transactional.id": None,
    "request.timeout.ms": 30_000,
    "delivery.timeout.ms": 120_000,
    "retry.backoff.ms": 100,
    "retry.backoff.max.ms": 1_000,
    "client.id": "",
}
"""Kafka 4's defaults, from its producer configuration reference."""
