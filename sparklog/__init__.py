"""sparklog: a replicated log in Delta tables, kept by Spark jobs instead of brokers.

The public names. Each is imported on its first use, so that a Spark task or a command that needs
one of them does not import the others.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparklog.broker.application import Application
    from sparklog.cluster.admin import Admin
    from sparklog.cluster.connection import Connection
    from sparklog.cluster.views import create_views
    from sparklog.config import BrokerConfig, ClusterConfig
    from sparklog.consumer.assigned_partition import ConsumerRecord
    from sparklog.consumer.consumer import Consumer
    from sparklog.consumer.spark import SparkConsumer
    from sparklog.datasource.native_read import read
    from sparklog.datasource.plan_options import cluster_options
    from sparklog.errors import ProtocolError, SparklogError
    from sparklog.groups.admin import GroupAdmin, ResetTo
    from sparklog.groups.committed_offsets import OffsetAndMetadata
    from sparklog.model import TopicPartition
    from sparklog.producer.accumulator import RecordMetadata
    from sparklog.producer.plain import Producer
    from sparklog.producer.spark import SparkProducer
    from sparklog.session import spark_session

__version__ = "0.1.0"

_HOMES = {
    "Admin": "sparklog.cluster.admin",
    "Application": "sparklog.broker.application",
    "BrokerConfig": "sparklog.config",
    "ClusterConfig": "sparklog.config",
    "Connection": "sparklog.cluster.connection",
    "Consumer": "sparklog.consumer.consumer",
    "ConsumerRecord": "sparklog.consumer.assigned_partition",
    "GroupAdmin": "sparklog.groups.admin",
    "OffsetAndMetadata": "sparklog.groups.committed_offsets",
    "Producer": "sparklog.producer.plain",
    "ProtocolError": "sparklog.errors",
    "RecordMetadata": "sparklog.producer.accumulator",
    "ResetTo": "sparklog.groups.admin",
    "SparkConsumer": "sparklog.consumer.spark",
    "SparkProducer": "sparklog.producer.spark",
    "SparklogError": "sparklog.errors",
    "TopicPartition": "sparklog.model",
    "cluster_options": "sparklog.datasource.plan_options",
    "create_views": "sparklog.cluster.views",
    "read": "sparklog.datasource.native_read",
    "spark_session": "sparklog.session",
}

__all__ = [
    "Admin",
    "Application",
    "BrokerConfig",
    "ClusterConfig",
    "Connection",
    "Consumer",
    "ConsumerRecord",
    "GroupAdmin",
    "OffsetAndMetadata",
    "Producer",
    "ProtocolError",
    "RecordMetadata",
    "ResetTo",
    "SparkConsumer",
    "SparkProducer",
    "SparklogError",
    "TopicPartition",
    "__version__",
    "cluster_options",
    "create_views",
    "read",
    "spark_session",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sparklog' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
