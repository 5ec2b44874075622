"""sparklog: a replicated log in Delta tables, kept by Spark jobs instead of brokers.

The public names, each imported when it is first used, so that a Spark task or a command that needs
one of them does not pay for the others.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparklog.broker.application import Application
    from sparklog.clients.accumulator import RecordMetadata
    from sparklog.clients.admin import Admin
    from sparklog.clients.assigned_partitions import ConsumerRecord
    from sparklog.clients.committed_offsets import OffsetAndMetadata
    from sparklog.clients.connection import Connection
    from sparklog.clients.consumer import Consumer
    from sparklog.clients.producer import Producer
    from sparklog.clients.spark_consumer import SparkConsumer
    from sparklog.clients.spark_producer import SparkProducer
    from sparklog.clients.views import create_views
    from sparklog.config import BrokerConfig, ClusterConfig
    from sparklog.datasource.native_read import read
    from sparklog.errors import ProtocolError, SparklogError
    from sparklog.model import TopicPartition
    from sparklog.session import spark_session

__version__ = "0.1.0"

_HOMES = {
    "Admin": "sparklog.clients.admin",
    "Application": "sparklog.broker.application",
    "BrokerConfig": "sparklog.config",
    "ClusterConfig": "sparklog.config",
    "Connection": "sparklog.clients.connection",
    "Consumer": "sparklog.clients.consumer",
    "ConsumerRecord": "sparklog.clients.assigned_partitions",
    "OffsetAndMetadata": "sparklog.clients.committed_offsets",
    "Producer": "sparklog.clients.producer",
    "ProtocolError": "sparklog.errors",
    "RecordMetadata": "sparklog.clients.accumulator",
    "SparkConsumer": "sparklog.clients.spark_consumer",
    "SparkProducer": "sparklog.clients.spark_producer",
    "SparklogError": "sparklog.errors",
    "TopicPartition": "sparklog.model",
    "create_views": "sparklog.clients.views",
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
    "OffsetAndMetadata",
    "Producer",
    "ProtocolError",
    "RecordMetadata",
    "SparkConsumer",
    "SparkProducer",
    "SparklogError",
    "TopicPartition",
    "__version__",
    "create_views",
    "read",
    "spark_session",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sparklog' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
