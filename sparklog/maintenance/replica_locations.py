"""Where replicas lie, whoever leads: what maintenance reads, and consumers do not."""

from __future__ import annotations

from sparklog.clients.connection import Connection
from sparklog.errors import ProtocolError, SparklogError
from sparklog.model import TopicIdPartition
from sparklog.storage.location import Location
from sparklog.storage.metadata import PartitionState


def replicas_in_root(
    connection: Connection, broker_id: int, log_dir: int | None
) -> tuple[Location, dict[TopicIdPartition, PartitionState]]:
    """Return where one root of a broker lies, and the partitions that have a replica in it.

    `log_dir` is the root's number in the broker's log.dirs; it may be `None` where there is only
    one. Raises BROKER_ID_NOT_REGISTERED, and `SparklogError` where there is no such root or no
    replica is assigned to it.
    """
    metadata = connection.metadata()
    broker = metadata.brokers.get(broker_id)
    if broker is None:
        known = ", ".join(map(str, sorted(metadata.brokers))) or "none yet"
        raise ProtocolError(
            "BROKER_ID_NOT_REGISTERED",
            f"there is no broker {broker_id}; registered are: {known}",
        )
    if log_dir is None and len(broker.roots) > 1:
        raise SparklogError(
            f"broker {broker_id} has {len(broker.roots)} log directories: name one by its number "
            f"in log.dirs, from 0 to {len(broker.roots) - 1}"
        )
    root = log_dir or 0
    if root not in range(len(broker.roots)):
        raise SparklogError(
            f"broker {broker_id} has no log directory number {root}: its log.dirs are numbered "
            f"from 0 to {len(broker.roots) - 1}"
        )
    held = {
        key: state
        for key, state in metadata.partitions.items()
        if (replica := state.replica(broker_id)) is not None and replica.root == root
    }
    if not held:
        raise SparklogError(
            f"broker {broker_id} has no replica in {broker.roots[root]}: nothing to be done"
        )
    return connection.replica_location(next(iter(held.values())), broker_id), held
