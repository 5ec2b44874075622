"""`sparklog state`: a cluster's state as the tree of ZooKeeper and of Kafka's metadata shell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparklog.cli.cluster import Cluster, ClusterOption, reaching
from sparklog.cli.options import JsonOption, UtcOption
from sparklog.cli.times import is_instant, time_text
from sparklog.errors import SparklogError

if TYPE_CHECKING:
    from rich.tree import Tree

    from sparklog.cluster.admin import Admin
    from sparklog.cluster.connection import Connection
    from sparklog.cluster.metadata import Metadata


class Entry(dict[str, Any]):
    """The values at the end of a path; a plain dict is a folder of entries and folders."""


def state(
    cluster: ClusterOption,
    path: Annotated[
        str, typer.Argument(help="A path such as /brokers/topics/orders; by default all.")
    ] = "/",
    as_json: JsonOption = False,
    utc: UtcOption = False,
) -> None:
    """Print the cluster's state as a tree: controller, brokers, topics, partitions, configs.

    The paths are those that Kafka's people know from ZooKeeper and from
    kafka-metadata-shell.sh: /controller, /brokers/ids, /brokers/topics, /config,
    /consumers, /admin. The values come from the tables of the cluster root.
    """
    from rich.tree import Tree

    from sparklog.cli import output

    named = Cluster.of(cluster)
    with reaching(named.root):
        found = _at(_tree(named.connect()), path)
    if as_json:
        output.print_value(found)
        return
    title = "/" + "/".join(_parts(path))
    root = Tree(_label(title, found, utc=utc), highlight=False)
    _add(root, found, utc=utc)
    output.show(root)


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _at(tree: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """Return the folder or entry at a path; raises `SparklogError` with the names that exist."""
    at = "/"
    for part in _parts(path):
        names = [] if isinstance(tree, Entry) else list(tree)
        if part not in names:
            known = ", ".join(names) or "nothing"
            raise SparklogError(f"there is no {part!r} in {at}; it has: {known}")
        tree = tree[part]
        at = f"{at.rstrip('/')}/{part}"
    return tree


def _tree(connection: Connection) -> dict[str, Any]:
    """Return all paths; names are those of ZooKeeper's tree, values those of the tables."""
    from sparklog.cluster.admin import Admin
    from sparklog.groups.admin import GroupAdmin

    admin = Admin(connection)
    metadata = connection.metadata()
    brokers = admin.list_brokers()
    controllers = connection.root.controller.rows().to_pylist()
    epoch = next((one["controller_epoch"] for one in controllers), None)
    leading = [one for one in brokers if one.is_controller]
    return {
        "cluster": Entry(
            id=connection.root.cluster_id,
            root=connection.root.location.uri,
            format=connection.root.format_version,
        ),
        "controller": Entry(
            broker_id=leading[0].broker.broker_id if leading else None,
            controller_epoch=epoch,
            since_ms=leading[0].controller_since_ms if leading else None,
        ),
        "brokers": {
            "ids": {
                str(one.broker.broker_id): Entry(
                    state=one.broker.state,
                    broker_epoch=one.broker.broker_epoch,
                    rack=one.broker.rack,
                    leads=one.leads,
                    replicas=one.replicas,
                    log_dirs=[uri for uri in one.broker.roots if uri is not None],
                )
                for one in brokers
            },
            "topics": dict(_topics(metadata)),
        },
        "config": _configs(admin, metadata),
        "consumers": {
            one.group_id: Entry(
                state=one.state, generation=one.generation, members=len(one.members)
            )
            for one in GroupAdmin(connection).list_groups()
        },
        "admin": {
            "reassign_partitions": {
                str(name): Entry(one._asdict())
                for name, one in sorted(admin.list_partition_reassignments().items())
            },
            "delete_topics": {
                one.topic.topic: Entry(topic_id=one.topic.topic_id)
                for one in admin.list_topics_marked_for_deletion()
            },
        },
    }


def _topics(metadata: Metadata) -> Iterator[tuple[str, dict[str, Any]]]:
    partitions: dict[str, dict[str, Entry]] = {}
    for key, one in sorted(metadata.partitions.items()):
        partitions.setdefault(key.topic_id, {})[str(one.partition)] = Entry(
            leader=one.leader,
            leader_epoch=one.leader_epoch,
            isr=one.isr,
            elr=[replica.broker_id for replica in one.replicas if replica.in_elr],
            replicas=[replica.broker_id for replica in one.replicas],
            partition_epoch=one.partition_epoch,
            controller_epoch=one.controller_epoch,
        )
    for topic in sorted(metadata.topics.values(), key=lambda one: one.topic):
        yield (
            topic.topic,
            {
                "id": Entry(topic_id=topic.topic_id),
                "partitions": partitions.get(topic.topic_id, {}),
            },
        )


def _configs(admin: Admin, metadata: Metadata) -> dict[str, Any]:
    """Return the settings of topics and brokers and the quotas of clients, if they have any."""
    topics = {
        one.topic: Entry(one.config.model_dump(by_alias=True, exclude_none=True))
        for one in sorted(metadata.topics.values(), key=lambda one: one.topic)
    }
    brokers: dict[str, Entry] = {}
    registered = sorted(one.broker_id for one in metadata.brokers.values() if one.is_registered)
    for broker_id in (None, *registered):
        source = "dynamic default" if broker_id is None else "dynamic broker"
        entries = admin.describe_broker_configs(broker_id).values()
        name = "<default>" if broker_id is None else str(broker_id)
        brokers[name] = Entry({one.name: one.value for one in entries if one.source == source})
    clients = {
        "<default>" if name is None else name: Entry(quotas)
        for name, quotas in admin.describe_client_quotas().items()
    }
    found = {"topics": topics, "brokers": brokers, "clients": clients}
    return {kind: {name: one for name, one in of.items() if one} for kind, of in found.items()}


def _add(tree: Tree, folder: Mapping[str, Any], *, utc: bool) -> None:
    if isinstance(folder, Entry):
        return
    for name, value in folder.items():
        _add(tree.add(_label(name, value, utc=utc)), value, utc=utc)


def _label(name: str, value: Mapping[str, Any], *, utc: bool) -> Any:
    """Return a line of the tree; a Text object, since brackets in a value are not markup."""
    from rich.text import Text

    label = Text(name, "bold")
    if isinstance(value, Entry):
        pairs = [f"{key}={_text(key, one, utc=utc)}" for key, one in value.items()]
        label.append(f": {' '.join(pairs)}", "not bold")
    return label


def _text(key: str, value: Any, *, utc: bool) -> str:
    if value is None:
        return "none"
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(str, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return time_text(value, utc=utc) if is_instant(key) else str(value)
