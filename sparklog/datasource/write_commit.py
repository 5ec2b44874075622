"""What a sink does when its tasks are done: files are named to the leaders, answers awaited."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from sparklog.clients.connection import connect
from sparklog.clients.file_sends import FileSender, MicroBatch, PendingSend
from sparklog.clients.stream_writes import Files
from sparklog.datasource.write_options import WriteOptions
from sparklog.datasource.write_task import WrittenFile
from sparklog.storage.copying import ProcessCopier


def commit_write(
    options: WriteOptions, written: Iterable[WrittenFile], once: MicroBatch | None = None
) -> None:
    """Send the files that the tasks wrote, in the order of the tasks, and wait for the answers.

    As micro-batch `once` of a stream they are stored once, however often the micro-batch is run:
    the files that an earlier run noted are sent instead of these. Raises as `PendingSend.result`
    does.
    """
    files: dict[str, Files] = defaultdict(dict)
    for one in written:
        files[one.topic].setdefault(one.key, []).append(one.sent)
    if not files:
        return
    sender = FileSender(connect(options.cluster), ProcessCopier(), options.client_id)
    sends = [_send(sender, options, topic, files[topic], once) for topic in sorted(files)]
    for send in sends:
        send.result(options.delivery_timeout_ms)


def _send(
    sender: FileSender, options: WriteOptions, topic: str, files: Files, once: MicroBatch | None
) -> PendingSend:
    acks, timeout_ms = options.acks, options.request_timeout_ms
    if once is not None and (begun := sender.begun(topic, once)) is not None:
        return sender.send_again(topic, begun, acks, timeout_ms, once)
    # The tasks may have met different leaders.
    states = sender.partitions(topic)
    return sender.send(topic, sender.gather(files, states), states, acks, timeout_ms, once)
