"""`sparklog reassign-partitions`: moving partitions, as kafka-reassign-partitions.sh does."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparklog.cli.cluster import Cluster, ClusterOption, reaching
from sparklog.cli.name_completion import complete_broker_list
from sparklog.cli.options import JsonOption
from sparklog.errors import ConfigError, ProtocolError, SparklogError
from sparklog.storage.json_text import json_value

if TYPE_CHECKING:
    from typing import TypeAlias

    from sparklog.cluster.admin import Admin
    from sparklog.cluster.reassignment_admin import AddingReplica, PartitionReassignment
    from sparklog.model import TopicPartition

    _Assignment: TypeAlias = dict[TopicPartition, list[int]]

_EXISTING = (
    "Cannot execute because there is an existing partition assignment.  Use --additional to "
    "override this and create a new partition assignment in addition to the existing one. The "
    "--additional flag can also be used to change the throttle by resubmitting the current "
    "reassignment."
)
_VERIFY = (
    "Warning: You must run --verify periodically, until the reassignment completes, to ensure the "
    "throttle is removed."
)


def reassign_partitions(
    cluster: ClusterOption,
    generate: Annotated[
        bool, typer.Option("--generate", help="Propose a placement; nothing is changed.")
    ] = False,
    execute: Annotated[bool, typer.Option("--execute", help="Start reassignments.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Print whether reassignments are completed.")
    ] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel reassignments.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="Print reassignments in progress.")] = False,
    reassignment_json_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help='{"version": 1, "partitions": [{"topic": "t", "partition": 0, '
            '"replicas": [1, 2]}]}.',
        ),
    ] = None,
    topics_to_move_json_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help='{"version": 1, "topics": [{"topic": "t"}]}.'),
    ] = None,
    broker_list: Annotated[
        str | None,
        typer.Option(
            metavar="1,2,3",
            help="The brokers for --generate.",
            autocompletion=complete_broker_list,
        ),
    ] = None,
    disable_rack_aware: Annotated[
        bool, typer.Option("--disable-rack-aware", help="Ignore racks in --generate.")
    ] = False,
    throttle: Annotated[
        int,
        typer.Option(
            metavar="BYTES",
            help="Bytes per second that a broker copies into new replicas; -1 is no limit.",
        ),
    ] = -1,
    additional: Annotated[
        bool,
        typer.Option(
            "--additional", help="Execute although there are other reassignments in progress."
        ),
    ] = False,
    disallow_replication_factor_change: Annotated[
        bool,
        typer.Option(
            "--disallow-replication-factor-change",
            help="Refuse --execute if a partition would get more or fewer replicas.",
        ),
    ] = False,
    preserve_throttles: Annotated[
        bool, typer.Option("--preserve-throttles", help="Keep throttles in --verify and --cancel.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Move partitions to other brokers, as kafka-reassign-partitions.sh does.

    New replicas copy the leader's log while clients go on. When all of them are
    in sync, the controller ends the reassignment, and brokers remove the other
    replicas. --verify also removes throttles, once nothing is in progress.
    """
    from sparklog.cluster.admin import Admin

    actions = {
        "--generate": generate,
        "--execute": execute,
        "--verify": verify,
        "--cancel": cancel,
        "--list": list_,
    }
    chosen = [name for name, is_given in actions.items() if is_given]
    if len(chosen) != 1:
        raise ConfigError(f"Command must include exactly one action: {', '.join(actions)}")
    given = {
        "--reassignment-json-file": reassignment_json_file,
        "--topics-to-move-json-file": topics_to_move_json_file,
        "--broker-list": broker_list,
    }
    missing = [name for name in _REQUIRED[chosen[0]] if given[name] is None]
    if missing:
        raise ConfigError(f'Missing required argument "[{missing[0].lstrip("-")}]"')
    surplus = [
        name
        for name, value in given.items()
        if value is not None and name not in _REQUIRED[chosen[0]]
    ]
    if surplus:
        raise ConfigError(f"Option {surplus[0]} can't be used with action {chosen[0]}")
    wanted: _Assignment = {}
    if reassignment_json_file is not None:
        wanted = _assignment(reassignment_json_file)
    named = Cluster.of(cluster)
    with reaching(named.root):
        admin = Admin(named.connect(), settings=named.settings)
        if topics_to_move_json_file is not None and broker_list is not None:
            topics = _topics(topics_to_move_json_file)
            _generate(
                admin,
                topics,
                _brokers(broker_list),
                rack_aware=not disable_rack_aware,
                as_json=as_json,
            )
        elif execute:
            if disallow_replication_factor_change:
                _check_factors(wanted, _current(admin, wanted))
            _execute(admin, wanted, throttle, additional=additional, as_json=as_json)
        elif verify:
            _verify(admin, wanted, keeps_throttles=preserve_throttles, as_json=as_json)
        elif cancel:
            _cancel(admin, wanted, keeps_throttles=preserve_throttles, as_json=as_json)
        else:
            _list(admin, as_json=as_json)


_REQUIRED: Mapping[str, Collection[str]] = {
    "--generate": ("--topics-to-move-json-file", "--broker-list"),
    "--execute": ("--reassignment-json-file",),
    "--verify": ("--reassignment-json-file",),
    "--cancel": ("--reassignment-json-file",),
    "--list": (),
}
"""The options that each action needs; the others of these are not for it."""


def progress_line(one: AddingReplica) -> str:
    """Return a line with the progress of a new replica."""
    if one.log_end_offset is None or one.leader_log_end_offset is None:
        return f"\treplica on broker {one.broker_id}: it or its leader cannot be read"
    text = f"\treplica on broker {one.broker_id}: offset {one.log_end_offset} of "
    text += f"{one.leader_log_end_offset}, {one.bytes_left} bytes left to copy"
    return text + (", in sync" if one.in_isr else "")


def reassignment_of(
    name: TopicPartition, one: PartitionReassignment, adding: Sequence[AddingReplica]
) -> dict[str, Any]:
    """Return a reassignment in progress as a JSON object."""
    of_it = [replica for replica in adding if (replica.topic, replica.partition) == name]
    return name._asdict() | one._asdict() | {"progress": [replica._asdict() for replica in of_it]}


def _print_json(value: Any) -> None:
    from sparklog.cli import output

    output.print_value(value)


def _generate(
    admin: Admin,
    topics: Sequence[str],
    brokers: Sequence[int],
    *,
    rack_aware: bool,
    as_json: bool,
) -> None:
    proposed = admin.propose_reassignment(topics, brokers, rack_aware=rack_aware)
    current = _current(admin, proposed)
    if as_json:
        _print_json({"current": _document(current), "proposed": _document(proposed)})
        return
    typer.echo(f"Current partition replica assignment\n{_json(current)}\n")
    typer.echo(f"Proposed partition reassignment configuration\n{_json(proposed)}")


def _execute(
    admin: Admin, wanted: _Assignment, throttle: int, *, additional: bool, as_json: bool
) -> None:
    if admin.list_partition_reassignments() and not additional:
        raise SparklogError(_EXISTING)
    known = {one.broker.broker_id for one in admin.list_brokers() if one.broker.is_registered}
    unknown = sorted({broker for brokers in wanted.values() for broker in brokers} - known)
    if unknown:
        raise ProtocolError("INVALID_REPLICA_ASSIGNMENT", f"Unknown broker id {unknown[0]}")
    current = _current(admin, wanted)
    rate = throttle if throttle >= 0 else None
    if not as_json:
        typer.echo(f"Current partition replica assignment\n\n{_json(current)}\n")
        typer.echo("Save this to use as the --reassignment-json-file option during rollback")
        if rate is not None:
            typer.echo(_VERIFY)
    altered = admin.alter_partition_reassignments(wanted, throttle=rate)
    if rate is not None:
        # Those that were in progress before have the same throttle, as in Kafka.
        admin.alter_replication_throttle(rate)
        if not as_json:
            typer.echo(f"The inter-broker throttle limit was set to {rate} B/s")
    if as_json:
        outcomes = [name._asdict() | one._asdict() for name, one in sorted(altered.items())]
        _print_json({"current": _document(current), "throttle": rate, "partitions": outcomes})
        if any(one.error != "NONE" for one in altered.values()):
            raise typer.Exit(1)
        return
    errors = {name: one.detail for name, one in altered.items() if one.error != "NONE"}
    if errors:
        _fail("Error reassigning partition(s):", errors)
    names = ",".join(map(str, sorted(wanted)))
    typer.echo(f"Successfully started partition reassignment{_s(wanted)} for {names}")


def _check_factors(wanted: _Assignment, current: _Assignment) -> None:
    for name, replicas in sorted(wanted.items()):
        if len(replicas) != len(current[name]):
            raise ProtocolError(
                "INVALID_REPLICATION_FACTOR",
                f"partition {name} has {len(current[name])} replicas and would get "
                f"{len(replicas)}: leave out --disallow-replication-factor-change to change that",
            )


def _verify(admin: Admin, wanted: _Assignment, *, keeps_throttles: bool, as_json: bool) -> None:
    moving = admin.list_partition_reassignments()
    adding = admin.list_adding_replicas()
    if as_json:
        _print_json([_status(admin, *one, moving, adding) for one in sorted(wanted.items())])
        if not moving and not keeps_throttles:
            admin.alter_replication_throttle(None)
        return
    typer.echo("Status of partition reassignment:")
    for name, target in sorted(wanted.items()):
        if name in moving:
            typer.echo(f"Reassignment of partition {name} is still in progress.")
            _print_progress(adding, name)
            continue
        current = _replicas(admin, name)
        if current == target:
            typer.echo(f"Reassignment of partition {name} is completed.")
        else:
            typer.echo(
                f"There is no active reassignment of partition {name}, but replica set is "
                f"{_ids(current)} rather than {_ids(target)}."
            )
    typer.echo("")
    if not moving and not keeps_throttles:
        _clear_throttles(admin, wanted)


def _status(
    admin: Admin,
    name: TopicPartition,
    target: list[int],
    moving: Mapping[TopicPartition, PartitionReassignment],
    adding: Sequence[AddingReplica],
) -> dict[str, Any]:
    """Return the state of a reassignment: in progress, completed, or none with this target."""
    if name in moving:
        of_it = reassignment_of(name, moving[name], adding)
        return of_it | {"target": target, "state": "in progress"}
    current = _replicas(admin, name)
    state = "completed" if current == target else "none"
    return name._asdict() | {"replicas": current, "target": target, "state": state}


def _cancel(admin: Admin, wanted: _Assignment, *, keeps_throttles: bool, as_json: bool) -> None:
    moving = sorted(admin.list_partition_reassignments(list(wanted)))
    altered = admin.alter_partition_reassignments(dict.fromkeys(moving)) if moving else {}
    if as_json:
        _print_json([name._asdict() | one._asdict() for name, one in sorted(altered.items())])
        if any(one.error != "NONE" for one in altered.values()):
            raise typer.Exit(1)
        if not keeps_throttles:
            admin.alter_replication_throttle(None)
        return
    if moving:
        errors = {name: one.detail for name, one in altered.items() if one.error != "NONE"}
        if errors:
            _fail(f"Error cancelling partition reassignment{_s(errors)} for:", errors)
        names = ",".join(map(str, moving))
        typer.echo(f"Successfully cancelled partition reassignment{_s(moving)} for: {names}")
    else:
        typer.echo("None of the specified partition reassignments are active.")
    typer.echo("None of the specified partition moves are active.")
    if not keeps_throttles:
        _clear_throttles(admin, wanted)


def _list(admin: Admin, *, as_json: bool) -> None:
    moving = admin.list_partition_reassignments()
    adding = admin.list_adding_replicas()
    if as_json:
        _print_json([reassignment_of(*one, adding) for one in sorted(moving.items())])
        return
    if not moving:
        typer.echo("No partition reassignments found.")
        return
    typer.echo("Current partition reassignments:")
    for name, one in sorted(moving.items()):
        line = f"{name}: replicas: {_ids(one.replicas)}."
        if one.adding_replicas:
            line += f" adding: {_ids(one.adding_replicas)}."
        if one.removing_replicas:
            line += f" removing: {_ids(one.removing_replicas)}."
        typer.echo(line)
        _print_progress(adding, name)


def _clear_throttles(admin: Admin, wanted: _Assignment) -> None:
    """Remove the throttles of all partitions, as Kafka's tool does for all brokers."""
    brokers = {one.broker.broker_id for one in admin.list_brokers() if one.broker.is_alive}
    brokers |= {broker for target in wanted.values() for broker in target}
    topics = sorted({name.topic for name in wanted})
    admin.alter_replication_throttle(None)
    typer.echo(f"Clearing broker-level throttles on broker{_s(brokers)} {_ids(sorted(brokers))}")
    typer.echo(f"Clearing topic-level throttles on topic{_s(topics)} {','.join(topics)}")


def _print_progress(adding: Sequence[AddingReplica], name: TopicPartition) -> None:
    for one in adding:
        if (one.topic, one.partition) == name:
            typer.echo(progress_line(one))


def _fail(title: str, errors: Mapping[TopicPartition, str]) -> None:
    typer.echo(title)
    for name, detail in sorted(errors.items()):
        typer.echo(f"{name}: {detail}")
    raise typer.Exit(1)


def _current(admin: Admin, wanted: Collection[TopicPartition]) -> _Assignment:
    """Return the replicas of partitions; UNKNOWN_TOPIC_OR_PARTITION names those that are not."""
    found = {name: _replicas(admin, name) for name in sorted(wanted)}
    missing = [str(name) for name, replicas in found.items() if not replicas]
    if missing:
        raise ProtocolError(
            "UNKNOWN_TOPIC_OR_PARTITION", f"Unable to find partition: {', '.join(missing)}"
        )
    return found


def _replicas(admin: Admin, name: TopicPartition) -> list[int]:
    """Return the replicas of a partition, none if it does not exist."""
    try:
        states = admin.describe_topic(name.topic).partitions
    except ProtocolError:
        return []
    return [
        one.broker_id
        for state in states
        if state.partition == name.partition
        for one in state.replicas
    ]


def _json(assignment: _Assignment) -> str:
    return json.dumps(_document(assignment), separators=(",", ":"))


def _document(assignment: _Assignment) -> dict[str, Any]:
    """Return an assignment as Kafka's JSON document."""
    partitions = [
        {
            "topic": name.topic,
            "partition": name.partition,
            "replicas": replicas,
            "log_dirs": ["any"] * len(replicas),
        }
        for name, replicas in sorted(assignment.items())
    ]
    return {"version": 1, "partitions": partitions}


def _s(things: Collection[object]) -> str:
    return "" if len(things) == 1 else "s"


def _ids(brokers: Sequence[int]) -> str:
    return ",".join(map(str, brokers))


def _brokers(text: str) -> list[int]:
    try:
        brokers = [int(one) for one in text.split(",")]
    except ValueError:
        raise ConfigError(f"--broker-list {text!r} is not a list of ids, such as 1,2,3") from None
    twice = sorted({one for one in brokers if brokers.count(one) > 1})
    if twice:
        raise ConfigError(f"Broker list contains duplicate entries: {_ids(twice)}")
    return brokers


def _topics(file: Path) -> list[str]:
    """Return the topics in a file of Kafka's format."""
    topics = []
    for entry in _entries(file, "topics"):
        topic = entry.get("topic") if isinstance(entry, dict) else None
        if not isinstance(topic, str):
            raise ConfigError(f"{file} has {json.dumps(entry)} for a topic: it needs its name")
        topics.append(topic)
    twice = sorted({one for one in topics if topics.count(one) > 1})
    if twice:
        raise ConfigError(
            f"List of topics to reassign contains duplicate entries: {', '.join(twice)}"
        )
    return topics


def _assignment(file: Path) -> _Assignment:
    """Return the assignment in a file of Kafka's format."""
    from sparklog.model import TopicPartition

    found: _Assignment = {}
    for entry in _entries(file, "partitions"):
        given = entry if isinstance(entry, dict) else {}
        topic, partition = given.get("topic"), given.get("partition")
        replicas = given.get("replicas")
        if (
            not isinstance(topic, str)
            or type(partition) is not int
            or not isinstance(replicas, list)
            or any(type(one) is not int for one in replicas)
        ):
            raise ConfigError(
                f"{file} has {json.dumps(entry)} for a partition: it needs a topic (text), a "
                "partition (whole number), and replicas (a list of broker ids)"
            )
        name = TopicPartition(topic, partition)
        if name in found:
            raise ConfigError(f"Partition reassignment contains duplicate topic partitions: {name}")
        if not replicas:
            raise ConfigError("Partition replica list cannot be empty")
        twice = sorted({one for one in replicas if replicas.count(one) > 1})
        if twice:
            raise ConfigError(
                "Partition replica lists may not contain duplicate entries: "
                f"{name} contains multiple entries for {_ids(twice)}"
            )
        directories = given.get("log_dirs", ["any"] * len(replicas))
        if not isinstance(directories, list) or len(directories) != len(replicas):
            raise ConfigError(
                f"Size of replicas list {replicas} is different from size of log dirs list "
                f"{directories} for partition {name}"
            )
        if any(one != "any" for one in directories):
            raise ConfigError(
                f"{file} names log_dirs of {name}: brokers choose the log directories of new "
                'replicas, leave them out or give "any"'
            )
        found[name] = replicas
    if not found:
        raise ConfigError("Partition reassignment list cannot be empty")
    return found


def _entries(file: Path, member: str) -> list[Any]:
    """Return a list of a JSON file; `ConfigError` if it has another form."""
    try:
        given = json_value(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{file} is not JSON: {error}") from None
    version = given.get("version", 1) if isinstance(given, dict) else None
    entries = given.get(member) if isinstance(given, dict) else None
    if not isinstance(entries, list) or version != 1:
        raise ConfigError(
            f'{file} must be an object with the list "{member}", and "version" 1 or none'
        )
    return entries
