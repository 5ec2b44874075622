"""`sparklog delete-records`: deleting the records before an offset of each partition."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparklog.cli.cluster import Cluster, ClusterOption, reaching
from sparklog.cli.options import JsonOption
from sparklog.errors import ConfigError
from sparklog.storage.json_text import json_value

if TYPE_CHECKING:
    from sparklog.cluster.record_deletion import DeletedRecords
    from sparklog.model import TopicPartition


def delete_records(
    cluster: ClusterOption,
    offset_json_file: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help='{"partitions": [{"topic": "t", "partition": 0, "offset": 5}], "version": 1}; '
            "offset -1 is the high watermark.",
        ),
    ],
    timeout_ms: Annotated[
        int, typer.Option(metavar="MS", help="ms to wait for the live replicas.", min=0)
    ] = 60_000,
    as_json: JsonOption = False,
) -> None:
    """Delete the records before an offset of each partition, as kafka-delete-records.sh does.

    Waits until every live replica has deleted them. A request that has timed
    out is stored: brokers serve it when they run.
    """
    from sparklog.cli import output
    from sparklog.cluster.admin import Admin

    offsets = _offsets(offset_json_file)
    named = Cluster.of(cluster)
    with reaching(named.root):
        admin = Admin(named.connect(), settings=named.settings)
        if not as_json:
            typer.echo("Executing records delete operation")
        found = admin.delete_records(offsets, timeout_ms=timeout_ms)
    if as_json:
        output.print_value([name._asdict() | one._asdict() for name, one in found.items()])
    else:
        _print(found)
    if any(outcome.error != "NONE" for outcome in found.values()):
        raise typer.Exit(1)


def _print(found: Mapping[TopicPartition, DeletedRecords]) -> None:
    """Print the outcomes in the words of Kafka's tool."""
    typer.echo("Records delete operation completed:")
    for name, outcome in found.items():
        is_done = outcome.error == "NONE"
        text = f"low_watermark: {outcome.low_watermark}" if is_done else f"error: {outcome.detail}"
        typer.echo(f"partition: {name}\t{text}")


def _offsets(file: Path) -> dict[TopicPartition, int]:
    """Return the offsets in a file of Kafka's format; `ConfigError` if it has another one."""
    try:
        given = json_value(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{file} is not JSON: {error}") from None
    version = given.get("version", 1) if isinstance(given, dict) else None
    entries = given.get("partitions") if isinstance(given, dict) else None
    if not isinstance(entries, list) or version != 1:
        raise ConfigError(
            f'{file} must be an object with the list "partitions", and "version" 1 or none'
        )
    offsets: dict[TopicPartition, int] = {}
    for entry in entries:
        name, offset = _entry(file, entry)
        if name in offsets:
            raise ConfigError(f"{file} has the partition {name} twice: name each once")
        offsets[name] = offset
    return offsets


def _entry(file: Path, entry: Any) -> tuple[TopicPartition, int]:
    from sparklog.model import TopicPartition

    types = {"topic": str, "partition": int, "offset": int}
    values: list[Any] = [entry.get(name) for name in types] if isinstance(entry, dict) else []
    if [type(value) for value in values] != list(types.values()):
        raise ConfigError(
            f"{file} has {json.dumps(entry)} for a partition: it needs a topic (text), a partition "
            "and an offset (whole numbers)"
        )
    topic, partition, offset = values

    return TopicPartition(topic, partition), offset
