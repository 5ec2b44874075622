"""The commit of a sink: produce requests for the files of all tasks, and their answers."""

from __future__ import annotations

from collections.abc import Iterable

from sparklog.cluster.connection import Connection
from sparklog.datasource.write_options import WriteOptions
from sparklog.datasource.write_task import WrittenFile
from sparklog.producer.delivery import FileSender
from sparklog.producer.stream_writes import Files, MicroBatch
from sparklog.storage.execution import DriverExecution


def commit_write(
    options: WriteOptions, written: Iterable[WrittenFile], once: MicroBatch | None = None
) -> None:
    """Send the files that the tasks wrote, in the order of the tasks, and wait for the answers.

    As micro-batch `once` of a stream they are stored once, however often the micro-batch is run:
    the files that an earlier run noted, of all topics, are sent instead of these. Of `written`,
    only rows are sent whose noted files were lost before a leader had them. Raises as
    `PendingSend.result` does.
    """
    files: Files = {}
    for one in written:
        files.setdefault(one.key, []).append(one.sent)
    if once is None and not files:
        return
    connection = Connection(options.cluster, storage_options=options.storage_options)
    sender = FileSender(connection, DriverExecution(), options.client_id)
    begun = None if once is None else sender.stream_writes.find(once)
    acks = options.acks
    # Leaders that run on a schedule may append the files until the write fails.
    timeout_ms = max(options.request_timeout_ms, options.delivery_timeout_ms)
    if once is not None and begun is not None:
        send = sender.send_again(begun.files, acks, timeout_ms, once, lambda: files)
    elif files:
        send = sender.send(files, acks, timeout_ms, once)
    else:
        return
    send.result(options.delivery_timeout_ms)
