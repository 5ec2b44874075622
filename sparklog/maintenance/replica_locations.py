"""The locations of replicas in a broker's root, regardless of leadership, for maintenance."""

from __future__ import annotations

from sparklog.cluster.connection import Connection
from sparklog.cluster.metadata import PartitionState
from sparklog.errors import ProtocolError, SparklogError
from sparklog.model import TopicIdPartition
from sparklog.storage.location import Location


def replicas_in_root(
    connection: Connection, broker_id: int, log_dir: int | None
) -> tuple[Location, dict[TopicIdPartition, PartitionState]]:
    """Return the location of one root of a broker, and the partitions with a replica in it.

    Parameters: `log_dir`, the root's number in the broker's log.dirs; `None` is allowed if there is
    only one. Raises `ProtocolError` BROKER_ID_NOT_REGISTERED, and `SparklogError` if the root does
    not exist or has no replica assigned to it.
    """
    metadata = connection.metadata()
    broker = metadata.brokers.get(broker_id)
    if broker is None:
        known = ", ".join(map(str, sorted(metadata.brokers)))
        hint = f"name one of the registered brokers {known}" if known else "register one first"
        raise ProtocolError(
            "BROKER_ID_NOT_REGISTERED",
            f"there is no broker {broker_id}: {hint}",
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
