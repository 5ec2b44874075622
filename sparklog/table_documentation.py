"""The documentation of every table and column; the schemas themselves are in `sparklog.model`.

It is kept beside the schemas, not in the metadata of their fields: Delta would store it as part of
a table's schema, and roots of different releases would have different schemas.
docs/tables.md is generated from it by tests/test_tables_document.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from sparklog import model


class TableDocumentation(NamedTuple):
    """The documentation of one table.

    `rows` describes a row, `writers` names the processes that write to the table and their
    conditions. `columns` maps each column to its description, in the order of the schema.
    """

    rows: str
    writers: str
    columns: Mapping[str, str]


_TOPIC_ID = "Id of the topic: 16 bytes in URL-safe base64, 22 characters."
_TOPIC = "Name of the topic; the id identifies the topic, the name is for readers."
_PARTITION = "Number of the partition, from 0."
_OF_PARTITION = {"topic_id": _TOPIC_ID, "topic": _TOPIC, "partition": _PARTITION}

_PRODUCER = {
    "producer_id": "Id of the idempotent producer that wrote the batch; -1 for other producers.",
    "producer_epoch": "Epoch of the producer id; -1 where producer_id is -1.",
    "base_sequence": (
        "Sequence number of the batch's first record, 0 to 2^31 - 1, after which it continues at "
        "0; -1 where producer_id is -1."
    ),
}

_CHECKSUM = "XXH3 (64 bits) of the bytes of the batch's file, as 16 hexadecimal digits."

_RECORD = {
    "offset_delta": "Offset of the record less the base offset of its batch: 0, 1, 2, …",
    "timestamp": (
        "Time that the producer gave the record, in µs since 1970 (UTC), between the years 1 and "
        "9999; never null."
    ),
    "key": "Key of the record; null for a record without a key.",
    "value": "Value of the record; null for a tombstone.",
    "headers": "Headers of the record, in order; null or empty for a record without headers.",
}

BROKER_ROOT: Mapping[str, TableDocumentation] = {
    "log": TableDocumentation(
        rows=(
            "A record of a replica. A Parquet file is a record batch: its partition values are the "
            "header of the batch, its rows are the records. The `userMetadata` of the commits is "
            "the broker's journal."
        ),
        writers=(
            "The broker that owns the root, at most one process of it: each commit is checked "
            "against the broker epoch in the table. The import of checkpoints commits under a new "
            "broker epoch. Clients and Spark never commit to it."
        ),
        columns={
            **_OF_PARTITION,
            "leader_epoch": "Epoch of the leader that appended the batch.",
            "base_offset": (
                "Offset of the first record of the batch; a record's offset is base_offset + "
                "offset_delta."
            ),
            "producer_id": (
                "Id of the idempotent producer that wrote the batch; -1 for other producers, and "
                "for a merged batch."
            ),
            "producer_epoch": _PRODUCER["producer_epoch"],
            "base_sequence": _PRODUCER["base_sequence"],
            "checksum": _CHECKSUM,
            "header_checksum": (
                "XXH3 (64 bits) of the batch id, the other values of the header, the file's size "
                "and its statistics, as 16 hexadecimal digits."
            ),
            **_RECORD,
        },
    ),
    "high_watermark_checkpoint": TableDocumentation(
        rows=(
            "A replica of the root, as of one version of `log`. It lags behind the journal, which "
            "has the newest row of each replica."
        ),
        writers=(
            "The broker that owns the root, overwriting all rows: after "
            "`replica.high.watermark.checkpoint.interval.ms` in which a replica has changed, after "
            "100 commits of `log`, at a clean stop, and after damage."
        ),
        columns={
            **_OF_PARTITION,
            "leader_epoch": (
                "Leader epoch of the report: a leader's own epoch, or that of the leader with "
                "whose log a follower's was last found to agree; -1 before that and while the "
                "report is withdrawn."
            ),
            "broker_epoch": "Broker epoch of the process that wrote the row.",
            "role": "Role of the replica: `leader` or `follower`.",
            "log_start_offset": "Offset of the first record of the replica's log.",
            "log_end_offset": "Offset that the next record of the replica's log gets.",
            "high_watermark": (
                "Offset after the last record that the replica knows to be committed; at most "
                "log_end_offset."
            ),
            "log_version": (
                "Version of `log` that the rows describe, the same in all rows; also the app "
                "transaction `log_version` of the table."
            ),
            "epochs_version": (
                "Version of `leader_epoch_checkpoint` when the row was written, the same in all "
                "rows; null in the Spark view and in `sparklog query`, which read the journal."
            ),
            "reported_at_ms": (
                "Time of a follower's last report, or at which a leader's role or high watermark "
                "last changed, in ms since 1970 on the broker's clock; 0 before the first."
            ),
            "damaged_offset": (
                "Offset from which on the replica is damaged; null where it is sound."
            ),
            "damage": "Error message of the damage; null where the replica is sound.",
            "leader_damaged_offset": (
                "Base offset of a batch that a follower could not copy because it is damaged at "
                "the leader, or the offset of a fault in the leader's log; null where there is "
                "none."
            ),
            "parked_lags": (
                "For how long in-sync followers of a leader were not caught up when it was parked: "
                'a JSON object `{"leader_epoch": …, "lag_ms": {broker_id: ms}}`; null where none '
                "was behind, and from the first tick as the leader after that."
            ),
        },
    ),
    "leader_epoch_checkpoint": TableDocumentation(
        rows="An entry of the leader-epoch history of a replica of the root.",
        writers=(
            "The broker that owns the root, overwriting all rows with `high_watermark_checkpoint`, "
            "if a history has changed."
        ),
        columns={
            **_OF_PARTITION,
            "epoch": "Leader epoch.",
            "start_offset": (
                "Offset of the epoch's first record: the log end offset of its leader when it "
                "began."
            ),
        },
    ),
    "producer_state": TableDocumentation(
        rows=(
            "A batch of an idempotent producer that `log` no longer has, since it was merged with "
            "others or precedes the log start offset; the last five of each producer and "
            "partition. A row counts only if `log` has a record of its leader_epoch at its "
            "last_offset, or starts after that."
        ),
        writers=(
            "The broker that owns the root, overwriting all rows: before the commit of `log` that "
            "removes batches, after a truncation, and when producers expire."
        ),
        columns={
            "topic_id": _TOPIC_ID,
            "partition": _PARTITION,
            "producer_id": "Id of the idempotent producer.",
            "producer_epoch": "Epoch of the producer id.",
            "base_sequence": "Sequence number of the batch's first record, 0 to 2^31 - 1.",
            "last_sequence": (
                "Sequence number of the batch's last record; below base_sequence where the "
                "sequence has continued at 0 within the batch."
            ),
            "base_offset": "Offset of the batch's first record.",
            "last_offset": "Offset of the batch's last record.",
            "leader_epoch": "Epoch of the leader that appended the batch.",
            "timestamp_ms": (
                "Time at which the batch was committed to this root's log, or at which the row was "
                "copied from a leader, in ms since 1970 on the broker's clock."
            ),
            "snapshot_offset": "Offset after the last record of the batch that it was merged into.",
        },
    ),
    "produce_requests": TableDocumentation(
        rows=(
            "A record that a producer has sent to the leaders of this root. A Parquet file, which "
            "is in the inbox of `log` (`../log/_inbox/`), is one batch of a produce request for "
            "one partition; its partition values are the header of the request. Files stay in the "
            "table for a while after the leader has taken them. The Spark view and `sparklog "
            "query` show one row a file, with its path, record count, size in bytes and time range "
            "in ms. On an object store where producers compete, the root has seven more tables of "
            "this schema, `produce_requests_1` to `produce_requests_7`."
        ),
        writers=(
            "Producers, which append; the broker that owns the root, which removes the files of "
            "requests that were taken. No commit has a broker epoch. A value that a producer "
            "leaves out is null, and the request is refused where the value matters."
        ),
        columns={
            "request_id": "Id of the produce request, which the responses repeat.",
            "topic_id": _TOPIC_ID,
            "topic": "Name of the topic as the producer knows it; the leader goes by topic_id.",
            "partition": _PARTITION,
            "leader_epoch": (
                "Leader epoch that the producer addresses; a leader of another epoch refuses the "
                "request."
            ),
            "checksum": _CHECKSUM,
            **_PRODUCER,
            "acks": ("Required acknowledgements: 0 none, 1 the leader, -1 every in-sync replica."),
            "timeout_ms": (
                "Time in ms for which the producer waits: after it the leader refuses a request "
                "that it has not taken, or answers REQUEST_TIMED_OUT where in-sync replicas have "
                "not acknowledged it."
            ),
            "client_id": "`client.id` of the producer; null where it is empty.",
            "created_at_ms": (
                "Time at which the producer sent the request, in ms since 1970 on its own clock; "
                "by it the leader judges a request that waited while it did not run."
            ),
            **_RECORD,
        },
    ),
    "cleaner_offset_checkpoint": TableDocumentation(
        rows="A replica of a compacted topic that was cleaned.",
        writers="The broker that owns the root: its log cleaner, after a pass over the replica.",
        columns={
            "topic_id": _TOPIC_ID,
            "partition": _PARTITION,
            "first_dirty_offset": "End of the part of the log that is clean.",
            "passes": (
                "Passes whose tombstones are still in the log, as a JSON list of `[end offset, "
                "time in ms since 1970 on the broker's clock]`: the tombstones below were cleaned "
                "first by this pass or an earlier one."
            ),
        },
    ),
    "delayed_operations": TableDocumentation(
        rows=(
            "One partition of a delayed produce request or of a delayed fetch, as of the version "
            "of `log` that the app transaction `log_version` names."
        ),
        writers=(
            "The broker that owns the root, overwriting all rows with `high_watermark_checkpoint`, "
            "if they have changed; on an object store only when a process begins, every 100 "
            "commits of `log`, and at a clean stop."
        ),
        columns={
            "operation_id": (
                "`<request_id>/<topic_id>/<partition>`, for a fetch followed by `/<leader_epoch>`."
            ),
            "kind": "`DelayedProduce` or `DelayedFetch`.",
            "request_id": (
                "Id of the produce request; of a fetch "
                "`fetch/<leader's broker id>/<its root>/<its broker epoch>`."
            ),
            **_OF_PARTITION,
            "leader_epoch": (
                "Leader epoch in which the records were appended, or which the fetch names."
            ),
            "base_offset": (
                "Offset of the first record of the request; for a fetch, the follower's log end "
                "offset."
            ),
            "required_offset": (
                "High watermark at which the operation is complete; null for a fetch."
            ),
            "min_bytes": (
                "Bytes (`replica.fetch.min.bytes`) that a fetch waits for in all of its "
                "partitions together; null for a produce request."
            ),
            "deadline_ms": (
                "Time at which the operation expires, in ms since 1970 on the broker's clock."
            ),
            "state": "Always `pending`.",
        },
    ),
    "truncations": TableDocumentation(
        rows=(
            "A truncation of a replica of the root. The newest 100,000 are kept. The views and "
            "`sparklog query` add those that are only in the journal yet."
        ),
        writers=(
            "The broker that owns the root, with its checkpoints, if the journal has truncations "
            "since the last ones."
        ),
        columns={
            "topic_id": _TOPIC_ID,
            "topic": _TOPIC,
            "partition": _PARTITION,
            "version": "Version of `log` that has truncated the replica.",
            "at_ms": "Time of the truncation, in ms since 1970 on the broker's clock.",
            "cause": (
                "Cause: `divergence` from the leader's log, `log_restart` at the leader's log "
                "start offset, `damage` that is cut and copied from the leader again."
            ),
            "leader": "Id of the leader with whose log the replica agrees afterwards.",
            "leader_epoch": "Epoch of that leader.",
            "from_offset": "Log end offset before.",
            "to_offset": "Log end offset after.",
            "high_watermark": "High watermark of the replica before.",
            "records_removed": "Number of offsets that were removed from this replica.",
            "records_lost": (
                "Number of those below the high watermark: committed records that an unclean "
                "election has lost; all of those that a leader has cut for damage after one."
            ),
        },
    ),
    "replica_history": TableDocumentation(
        rows=(
            "The last state of a replica of the root in a minute in which it has changed, or the "
            "number of produce requests that were refused with an error in a minute. Rows older "
            "than 6 hours have a grain of 10 minutes, those older than 2 days one of an hour, and "
            "those older than `metadata.history.retention.ms` are removed, but for the last state "
            "of each replica. The newest 1,000,000 are kept. The views and `sparklog query` add "
            "those that are only in the journal yet."
        ),
        writers=(
            "The broker that owns the root, in the background: every 20 minutes, and with the "
            "search for files that no table names."
        ),
        columns={
            "topic_id": _TOPIC_ID,
            "topic": "Name of the topic; null if a refused request was for an unknown one.",
            "partition": _PARTITION,
            "at_ms": "Time of the last commit in the minute, in ms since 1970 on its clock.",
            "version": "Version of `log` of that commit.",
            "role": "Role of the replica: `leader` or `follower`; null in a row with an error.",
            "leader_epoch": "Leader epoch of the replica; null in a row with an error.",
            "log_start_offset": "Log start offset; null in a row with an error.",
            "log_end_offset": "Log end offset; null in a row with an error.",
            "high_watermark": "High watermark; null in a row with an error.",
            "error": "Kafka's name of the error of refused requests; null in a row with a state.",
            "requests": "Number of refused requests; null in a row with a state.",
        },
    ),
}
"""The tables of each broker root but `format`."""

CLUSTER_ROOT: Mapping[str, TableDocumentation] = {
    "brokers": TableDocumentation(
        rows="A broker that has registered; an unregistered one keeps its row, with its epoch.",
        writers=(
            "Brokers, each its own row: registration, parking, stopping, the end of fencing, a "
            "failed log directory. The controller: fencing, and the versions of the logs once a "
            "minute. An administrator: `sparklog brokers fence` and `unregister`, the import of "
            "checkpoints, and the announcement of changes of `configs`."
        ),
        columns={
            "broker_id": "Id of the broker (`broker.id`).",
            "broker_epoch": (
                "Registration of the broker; a new one gets the highest epoch of all brokers + 1, "
                "a parked broker that resumes keeps its own."
            ),
            "roots": (
                "URIs of the log directories by number, as a JSON list; null in the place of one "
                "that log.dirs does not have now."
            ),
            "rack": "`broker.rack`; null where it is not set.",
            "log_table_id": (
                "Delta table ids of the `log` tables, which are the ids of the log directories, by "
                "number, as a JSON list."
            ),
            "log_version": (
                "Versions of the `log` tables by number, as a JSON list: as of the broker's last "
                "change of the row, or one less than the version that the controller has seen "
                "since, if that is higher."
            ),
            "log_digest": (
                "Digests of the live batches of the `log` tables by number at a clean stop, as a "
                "JSON list; null as long as the broker runs, and after it ended otherwise."
            ),
            "boot_id": (
                "Boot id of the broker's machine at registration "
                "(`/proc/sys/kernel/random/boot_id`); null if the system does not provide one."
            ),
            "state": (
                "`alive`, `fenced`, `parked` (between two scheduled runs), `stopping` (handing "
                "over leadership), `stopped` or `unregistered`."
            ),
            "registered_at_ms": (
                "Time of the registration, in ms since 1970 on the broker's clock."
            ),
            "heartbeat": (
                "Counter that rises with each change that the broker makes to the row; heartbeats "
                "themselves are commits of `log`."
            ),
            "parked_at_ms": (
                "Time at which the broker was parked, in ms since 1970 on its clock; null where it "
                "was not parked since it registered."
            ),
            "newest_format": (
                "Newest format of roots that the broker's release knows, as of its registration; "
                "null where that release does not say so."
            ),
            "repair_requests": (
                "Number of times that `sparklog repair` has left rows of `repairs` to the broker; "
                "null before the first."
            ),
            "offline_log_dirs": (
                "Ids of the log directories that have failed since the broker registered, or could "
                "not be used then, as a JSON list; null while none has."
            ),
        },
    ),
    "controller": TableDocumentation(
        rows="The controller's lease: one row, none before the first controller.",
        writers=(
            "A broker that takes over the lease, or gives it back when it stops. Renewals are "
            "commits of the holder's `log`."
        ),
        columns={
            "broker_id": "Id of the broker that holds the lease; -1 after it was given back.",
            "controller_epoch": "Epoch of the controller; it rises with each takeover.",
            "lease_sequence": "0 after a takeover; raised by 1 when the lease is given back.",
            "elected_ms": (
                "Time of the takeover, in ms since 1970 on the clock of the broker; null if an "
                "earlier release took the lease over."
            ),
        },
    ),
    "topics": TableDocumentation(
        rows=(
            "A topic; an administrator's claim on a name or on further partitions; or the record "
            "of a deletion. Deleted topics are in the order of their deletion."
        ),
        writers=(
            "The administrator that creates a topic, or further partitions: a claim, and after the "
            "partitions the state `live` or the new number. The administrator that changes "
            "settings or deletes a topic. The controller: removes a claim that is older than 60 s; "
            "makes `deleting` `deleted`, and keeps the newest 10,000 of these."
        ),
        columns={
            "topic_id": _TOPIC_ID,
            "topic": "Name of the topic; unique among `creating` and `live`.",
            "partitions": "Number of partitions; of a claim, the number after it.",
            "replication_factor": "Number of replicas of each partition.",
            "configs": "Kafka's topic keys that the topic sets for itself, as a JSON object.",
            "state": (
                "`creating` (a claim on the name), `growing` (a claim on further partitions), "
                "`live`, `deleting` or `deleted`; see [states.md](states.md)."
            ),
            "created_at_ms": (
                "Time of the creation, in ms since 1970 on the administrator's clock."
            ),
        },
    ),
    "partition_state": TableDocumentation(
        rows=(
            "An assigned replica of a partition. The columns from leader on are those of the "
            "partition, the same in all of its rows."
        ),
        writers=(
            "The controller: elections, fenced brokers. Leaders: in-sync sets. Any broker: leaves "
            "the ISR and ELR with a replica that is damaged, was lost, or is to be truncated below "
            "its high watermark. An administrator: new topics, elections by hand, requests to "
            "delete records, the end of a broker."
        ),
        columns={
            **_OF_PARTITION,
            "broker_id": "Id of the broker that has the replica.",
            "root": "Number of the broker's log directory that has the replica, from 0.",
            "replica_index": "Place in the list of assigned replicas; 0 is the preferred leader.",
            "in_isr": "Whether the replica is in sync.",
            "in_elr": "Whether the replica is eligible to lead although it is not in sync.",
            "adding": "Whether a reassignment is adding the replica (KIP-455).",
            "removing": "Whether a reassignment is removing the replica (KIP-455).",
            "leader": "Id of the broker that leads; null while the partition is offline.",
            "leader_broker_epoch": (
                "Broker epoch of the leader that was elected; -1 where no process of it may lead."
            ),
            "leader_epoch": (
                "Leader epoch, from 0; it rises with each election and each loss of the leader."
            ),
            "partition_epoch": "Version of the partition's state; it rises with each change.",
            "controller_epoch": (
                "Epoch of the last controller that has changed the partition; 0 before the first."
            ),
            "min_isr": (
                "Published `min.insync.replicas` of the partition; null until one is published."
            ),
            "delete_records_offset": (
                "Offset before which an administrator has requested to delete the records; null "
                "without a request."
            ),
            "delete_records_epoch": (
                "Leader epoch of the record before that offset, null without a request: a request "
                "is void if another record is there."
            ),
            "removed_replicas": (
                "Replicas that reassignments have removed, as JSON: a list of broker id, number of "
                "the log directory, and the leader epoch that began with the removal; the brokers "
                "remove them by this record; null without any."
            ),
            "replication_throttled_rate": (
                "Bytes per second that a broker copies into adding replicas of such partitions; "
                "null without a limit."
            ),
        },
    ),
    "leadership_history": TableDocumentation(
        rows=(
            "A leader epoch of a partition, with its leader: from the first one that the history "
            "of partition_state had when this table was written first."
        ),
        writers=(
            "The controller, at each vacuum: the leader epochs in the commits of partition_state "
            "since the last one, before their history is cleaned up."
        ),
        columns={
            "topic_id": _TOPIC_ID,
            "topic": _TOPIC,
            "partition": _PARTITION,
            "leader_epoch": "The leader epoch.",
            "leader": "Id of the broker that led; null where the partition was offline.",
            "leader_broker_epoch": "Broker epoch of that leader; -1 where none may lead.",
            "controller_epoch": "Epoch of the controller that had changed the partition last.",
            "version": "Version of `partition_state` that began the epoch.",
            "since_ms": "Time of that commit, in ms since 1970 on its writer's clock.",
        },
    ),
    "partition_history": TableDocumentation(
        rows=(
            "A change of a partition: of its leader, its replicas, its ISR or its ELR, with the "
            "cause. The newest 1,000,000 changes are kept. The views and `sparklog query` add "
            "those that the table does not have yet."
        ),
        writers=(
            "The controller, at each vacuum: the changes in the commits of partition_state since "
            "the last one, before their history is cleaned up."
        ),
        columns={
            "topic_id": _TOPIC_ID,
            "topic": _TOPIC,
            "partition": _PARTITION,
            "partition_epoch": "Partition epoch that the change began.",
            "at_ms": "Time of the commit, in ms since 1970 on its writer's clock.",
            "version": "Version of `partition_state` with the change.",
            "operation": "Operation in Delta's history of that version, such as `ELECT LEADERS`.",
            "cause": (
                "Cause, such as `leader_fenced` or `follower_lagging`; null where the commit "
                "names none."
            ),
            "detail": (
                "What the leader knew of followers that joined or left the ISR, or for how long a "
                "fenced broker was silent; or null."
            ),
            "leader": "Id of the broker that leads; null where the partition is offline.",
            "leader_before": "The leader before the change; null where there was none.",
            "leader_epoch": "Leader epoch after the change.",
            "leader_broker_epoch": "Broker epoch of the leader; -1 where none may lead.",
            "controller_epoch": "Epoch of the controller that has changed the partition last.",
            "is_elected": "Whether the change began a leader epoch.",
            "is_unclean": (
                "Whether the elected leader was neither in sync nor eligible; null where the "
                "change before is not known."
            ),
            "replicas": "Ids of the brokers with a replica, by replica index, as JSON.",
            "isr": "Ids of the brokers in the ISR, as JSON.",
            "elr": "Ids of the brokers in the ELR, as JSON.",
            "joined_isr": (
                "Ids of the brokers that have joined the ISR, as JSON; null where the change "
                "before is not known."
            ),
            "left_isr": "Ids of the brokers that have left the ISR, as JSON; null as `joined_isr`.",
        },
    ),
    "controller_history": TableDocumentation(
        rows=(
            "A broker's time as the controller, or the release of the lease. The views and "
            "`sparklog query` add those that the table does not have yet."
        ),
        writers=(
            "The controller, at each vacuum: the commits of `controller` since the last one, "
            "before they are cleaned up."
        ),
        columns={
            "controller_epoch": "Controller epoch.",
            "broker_id": "Id of the broker that became the controller; -1 where it resigned.",
            "at_ms": "Time of the commit, in ms since 1970 on its writer's clock.",
            "version": "Version of `controller` with the change.",
            "operation": "Operation in Delta's history: `ELECT CONTROLLER`, `RESIGN CONTROLLER`.",
            "cause": (
                "Cause: `first_controller`, `lease_released`, `lease_lapsed`, `broker_restarted`; "
                "null for a release, and in commits of an earlier release of sparklog."
            ),
            "detail": (
                "Time for which the controller before was silent; null for other causes than "
                "`lease_lapsed`, and in commits of an earlier release of sparklog."
            ),
            "broker_before": (
                "Id of the broker that was the controller before, also where it released the "
                "lease; null in the first row."
            ),
        },
    ),
    "producer_ids": TableDocumentation(
        rows=(
            "A transactional id; the row without one (transactional_id is null) is the counter of "
            "producer ids."
        ),
        writers=(
            "Producers: blocks of 1,000 producer ids, and new epochs and renewals of transactional "
            "ids. The controller: removes transactional ids that have expired."
        ),
        columns={
            "next_producer_id": "Next free producer id; null in the rows of transactional ids.",
            "transactional_id": "`transactional.id`; null in the row of the counter.",
            "producer_id": "Producer id of the transactional id; null in the row of the counter.",
            "producer_epoch": (
                "Newest epoch of the producer id, of which older ones are refused; null in the row "
                "of the counter."
            ),
            "used_at_ms": (
                "Time at which a producer last began under the transactional id or renewed it, in "
                "ms since 1970 on the producer's clock; null in the row of the counter."
            ),
        },
    ),
    "stream_writes": TableDocumentation(
        rows="The newest micro-batch of a streaming query, for one topic that it writes to.",
        writers=(
            "The driver of the streaming query: before its first request, when files that were "
            "lost are replaced, and when all are stored. The rows of a query's last micro-batch "
            "stay."
        ),
        columns={
            "query_id": "Id of the streaming query.",
            "topic_id": _TOPIC_ID,
            "batch_id": "Number of the micro-batch in the query, from 0.",
            "files": (
                "Noted batch files as a JSON list of `[partition, log URI, path, size in bytes, "
                "checksum, record count, first and last timestamp in ms since 1970]`; `[]` when "
                "is_done."
            ),
            "is_done": "Whether all files are stored.",
        },
    ),
    "consumer_groups": TableDocumentation(
        rows=(
            "A member of a consumer group. A group without members keeps one row, in which the "
            "columns from member_id on are null but for group_epoch."
        ),
        writers=(
            "The members: each step of a rebalance is one compare-and-set of the group's rows. An "
            "administrator: deletes a group."
        ),
        columns={
            "group_id": "Name of the group (`group.id`).",
            "state": (
                "`Empty`, `PreparingRebalance`, `CompletingRebalance`, `Stable`, or `Dead` after "
                "the group was deleted."
            ),
            "generation": "Generation of the group; it never goes back.",
            "protocol": (
                "Assignor of the generation; null before the first one, and in a group without "
                "members."
            ),
            "leader": (
                "Member id of the leader, which assigns the partitions; null in a group without "
                "members."
            ),
            "member_id": "Id of the member: `<client.id>-<UUID>`.",
            "group_instance_id": (
                "`group.instance.id` of a static member; null for a dynamic member."
            ),
            "client_id": "`client.id` of the member; empty where it is not set.",
            "joined_generation": (
                "Newest generation that the member has joined, or is waiting to join."
            ),
            "topics": "Names of the topics that the member subscribes to, as a JSON list.",
            "protocols": (
                "Names of the assignors that the member supports, the preferred one first, as a "
                "JSON list."
            ),
            "assignment": (
                "Partitions that the member was last assigned, as a JSON list of `[topic_id, "
                "partition]`."
            ),
            "session_timeout_ms": (
                "`session.timeout.ms` of the member: silence in ms after which others remove it."
            ),
            "rebalance_timeout_ms": (
                "`max.poll.interval.ms` of the member: time in ms that it has to join a new "
                "generation."
            ),
            "group_epoch": (
                "Version of the group, which rises with each step of it; null in rows of a release "
                "without this column, where it counts as 0."
            ),
        },
    ),
    "consumer_group_heartbeats": TableDocumentation(
        rows="The heartbeat of a member of a consumer group.",
        writers=(
            "Consumers: one commit every `heartbeat.interval.ms` for all members of a group in one "
            "process, which also removes the rows of former members. An administrator: deletes a "
            "group."
        ),
        columns={
            "group_id": "Name of the group (`group.id`).",
            "member_id": "Id of the member, as in `consumer_groups`.",
            "heartbeat": (
                "Counter of the member's heartbeats; other members measure on their own clocks for "
                "how long it has not changed."
            ),
        },
    ),
    "consumer_offsets": TableDocumentation(
        rows=(
            "The committed offset of a consumer group in a partition, or only the group's fence "
            "(generation and group_epoch): commits under an older fence are refused."
        ),
        writers=(
            "Consumers and streaming queries: commits of offsets. The leader of a generation and a "
            "static member that replaces its predecessor: the fence. An administrator: resets "
            "offsets, deletes a group."
        ),
        columns={
            "group_id": "Name of the group (`group.id`).",
            "topic_id": (
                "Id of the topic; null in a row that keeps the fence of a group without partitions."
            ),
            "topic": "Name of the topic; null where topic_id is.",
            "partition": "Number of the partition, from 0; null where topic_id is.",
            "committed_offset": (
                "Offset of the next record to read; null where nothing was committed."
            ),
            "leader_epoch": (
                "Leader epoch of the record before committed_offset, -1 where it is not known; "
                "null where nothing was committed."
            ),
            "metadata": (
                "Text that the consumer has committed with the offset, 4,096 bytes at most; null "
                "where nothing was committed."
            ),
            "generation": "Generation of the group under which the row was last written.",
            "committed_at_ms": (
                "Time of the commit, in ms since 1970 on the consumer's clock; null where nothing "
                "was committed."
            ),
            "group_epoch": (
                "Version of the group under which the row was last written; null in rows of a "
                "release without this column, where it counts as 0."
            ),
        },
    ),
    "scrubs": TableDocumentation(
        rows="A scrub of the cluster, which may have several runs; the last 20 are kept.",
        writers=(
            "`sparklog scrub`: at the beginning and the end of a run, after findings, and every "
            "5 s (30 s on an object store). A run that was taken over by another one is refused."
        ),
        columns={
            "scrub_id": "Id of the scrub.",
            "run_id": "Id of its last run.",
            "state": ("`running` (or killed), `paused` (the next run continues it) or `done`."),
            "phase": "Part in which the position is: `tables`, `files` or `records`.",
            "root": (
                "Position: the table's URI in `tables`, the root's URI in `files`, empty in "
                "`records`."
            ),
            "topic_id": "Position: id of the topic; empty in `tables`.",
            "partition": "Position: number of the partition; -1 in `tables`.",
            "broker_id": "Position: id of the broker; -1 in `tables`.",
            "next_offset": (
                "Position: the offset after the last batch that was verified; in `tables` 1 after "
                "the table."
            ),
            "files": "Files that all runs have read.",
            "bytes": "Bytes that all runs have read.",
            "findings": "Damaged objects that all runs have found.",
            "started_at_ms": "Time of the scrub's beginning, in ms since 1970.",
            "changed_at_ms": "Time of the last change of the row, in ms since 1970.",
        },
    ),
    "repairs": TableDocumentation(
        rows=(
            "A finding of a scrub, and its repair. Of repaired and gone findings the last 1,000 "
            "are kept."
        ),
        writers=(
            "`sparklog scrub` records findings, and closes those that it does not find again. "
            "`sparklog repair` repairs them or leaves them to the owner of the root. A broker acts "
            "on rows in state `requested`."
        ),
        columns={
            "repair_id": "Id of the finding: the same for the same damage to the same object.",
            "state": (
                "`found`; `requested` of the broker; `refilling` from the leader; `unrepairable` "
                "without an operator; `repaired`; `gone` (no longer part of the cluster, or found "
                "sound)."
            ),
            "fault": (
                "`damaged_file`, `truncated_file`, `missing_file`, `foreign_file` (of a batch); "
                "`damaged_commit`, `missing_commit`, `damaged_checkpoint` (of a table's log); "
                "`damaged_table_file`, `damaged_copy` (a file's second copy), `missing_table`; "
                "`damaged_header` (of a replica's batch); "
                "`records_differ` (from the in-sync replicas)."
            ),
            "detail": "The damage in words.",
            "broker_id": "Broker whose root is damaged; null for the cluster root.",
            "root": "URI of the root.",
            "table_name": "Table in the root.",
            "path": "Damaged file, relative to its table; null for a whole table or replica.",
            "topic_id": "Id of the topic; null where no replica is concerned.",
            "topic": "Name of the topic; null where topic_id is.",
            "partition": "Number of the partition; null where topic_id is.",
            "first_offset": "First offset concerned; null where topic_id is.",
            "last_offset": "Last offset concerned; null where topic_id is.",
            "source_broker_id": (
                "Broker from whose replica it can be, or was, repaired; null where no replica has "
                "a copy."
            ),
            "remedy": "What to do.",
            "outcome": "What was done; empty before a repair.",
            "found_at_ms": "Time of the finding, in ms since 1970.",
            "changed_at_ms": "Time of the last change of the row, in ms since 1970.",
        },
    ),
    "configs": TableDocumentation(
        rows=(
            "What was set while the cluster runs: settings of a broker or of all brokers, quotas "
            "of a client id or of all client ids. Settings of topics are in `topics`."
        ),
        writers=(
            "An administrator: `sparklog configs alter`. The version of the commit is announced "
            "in `brokers`, as the app transaction `configs_version`."
        ),
        columns={
            "entity_type": "`brokers` or `clients`, as in Kafka's tool.",
            "entity_name": (
                "Id of the broker, or client id; `<default>` for all that set no value of their "
                "own."
            ),
            "configs": "Values by Kafka's key, as a JSON object of text.",
            "changed_at_ms": (
                "Time of the last change of the row, in ms since 1970 on the administrator's clock."
            ),
        },
    ),
}
"""The tables of the cluster root but `format`."""

EVERY_ROOT: Mapping[str, TableDocumentation] = {
    "format": TableDocumentation(
        rows="The root: one row, which is written last when the root is created.",
        writers=(
            "The process that creates the root; a later release that adds a table to it lists it "
            "here."
        ),
        columns={
            "schema_version": (
                f"Format of the root; this release knows {model.OLDEST_SCHEMA_VERSION} to "
                f"{model.SCHEMA_VERSION}, and `sparklog upgrade` sets the newest."
            ),
            "cluster_id": "Id of the cluster that the root belongs to.",
            "created_by": "Release that created the root: `sparklog <version>`.",
            "broker_id": "Id of the broker that owns the root; null in a cluster root.",
            "tables": (
                "Names of the tables that the root has, as a JSON list; null where only releases "
                "without this column have written the row."
            ),
        },
    ),
}
"""The table of both kinds of roots."""

TABLES: Mapping[str, TableDocumentation] = {**CLUSTER_ROOT, **BROKER_ROOT, **EVERY_ROOT}
"""The documentation of every table, by name."""

_BROKER_ID = "Id of the broker whose root has the row."
_COMMIT_TIME = "Time of the commit, in ms since 1970 on its writer's clock."
_OPERATION = "Operation in Delta's history, such as `ELECT LEADERS`; null where it is not known."
_CAUSE = "Cause, as listed below; null where the commit names none."
_LAG_SECONDS = (
    "Seconds from the timestamp of the first record behind until now; 0 at the end and for a "
    "timestamp in the future, and null where it is not known."
)
_VERSION_OF_STATE = "Version of `partition_state` with the change."

VIEWS: Mapping[str, TableDocumentation] = {
    "isr_history": TableDocumentation(
        rows="A change of the ISR of a partition, or its first known ISR.",
        writers="",
        columns={
            **_OF_PARTITION,
            "at_ms": _COMMIT_TIME,
            "isr": "Ids of the brokers in the ISR after the change, as JSON.",
            "joined_isr": (
                "Ids of the brokers that have joined, as JSON; null where the change before is not "
                "known."
            ),
            "left_isr": "Ids of the brokers that have left, as JSON; null as `joined_isr`.",
            "operation": _OPERATION,
            "cause": _CAUSE,
            "detail": (
                "Last known position of a follower that joined or left, or for how long a fenced "
                "broker was silent; null without."
            ),
            "leader": "Id of the broker that leads; null where the partition is offline.",
            "leader_epoch": "Leader epoch after the change.",
            "partition_epoch": "Partition epoch that the change began.",
            "version": _VERSION_OF_STATE,
        },
    ),
    "elections": TableDocumentation(
        rows="The beginning of a leader epoch of a partition.",
        writers="",
        columns={
            **_OF_PARTITION,
            "at_ms": _COMMIT_TIME,
            "leader_before": "Id of the leader before; null where there was none.",
            "leader": "Id of the elected leader; null where no replica may lead.",
            "leader_epoch": "Leader epoch that has begun.",
            "is_unclean": (
                "Whether the elected leader was neither in sync nor eligible; null where the "
                "change before is not known."
            ),
            "operation": _OPERATION,
            "cause": _CAUSE,
            "detail": "For how long a fenced leader was silent, or that it was not; null without.",
            "isr": "Ids of the brokers in the ISR after the election, as JSON.",
            "controller_epoch": "Epoch of the controller that has elected the leader.",
            "version": _VERSION_OF_STATE,
        },
    ),
    "config_history": TableDocumentation(
        rows=(
            "A change of a dynamic configuration: a key of a topic, broker or client id. It "
            "reaches back as far as the commits of `topics` and `configs`."
        ),
        writers="",
        columns={
            "at_ms": _COMMIT_TIME,
            "entity_type": "Type of the entity: `topics`, `brokers` or `clients`.",
            "entity_name": "Name of the topic, id of the broker, client id, or `<default>`.",
            "key": "Kafka's key.",
            "value_before": "Value before; null where the entity did not set the key.",
            "value": "Value after; null where the entity no longer sets the key.",
            "operation": "Operation in Delta's history: `ALTER CONFIGS`, or that of a topic.",
            "version": "Version of `topics` or `configs` with the change.",
        },
    ),
    "group_history": TableDocumentation(
        rows=(
            "A change of a consumer group: a step of a rebalance. It reaches back as far as the "
            "commits of `consumer_groups`, `metadata.history.retention.ms`."
        ),
        writers="",
        columns={
            "at_ms": _COMMIT_TIME,
            "group_id": "Name of the group (`group.id`).",
            "generation": "Generation of the group after the change.",
            "state": "State of the group after the change, such as `PreparingRebalance`.",
            "cause": "Cause, such as `session_timeout`.",
            "members": (
                "Ids of at most 20 members that are gone or, if none is, that have joined, as "
                "JSON; null where partitions were assigned, which is for all."
            ),
            "member_count": "Number of members after the change.",
            "version": "Version of `consumer_groups` with the change.",
        },
    ),
    "replica_progress": TableDocumentation(
        rows="A follower as its leader sees it.",
        writers="",
        columns={
            **_OF_PARTITION,
            "broker_id": "Id of the broker with the follower.",
            "leader": "Id of the broker that leads; null where the partition is offline.",
            "leader_epoch": "Leader epoch of the partition.",
            "in_isr": "Whether the follower is in the ISR.",
            "log_end_offset": "Log end offset that the follower has reported; null without one.",
            "high_watermark": "High watermark that the follower has reported; null without one.",
            "leader_log_end_offset": "Log end offset of the leader; null without a leader.",
            "lag": "Offsets between the two; null where one of them is not known.",
            "lag_seconds": _LAG_SECONDS,
            "last_caught_up_ms": (
                "Time in ms since 1970 until which the follower had everything: of its newest "
                "report at the leader's log end, or the timestamp of the first record that it "
                "lacks; after `left_isr_at_ms` if nothing was written for a time after the "
                "follower had left, or if it has caught up and not joined yet."
            ),
            "reported_at_ms": "Time of the follower's last report, in ms since 1970 on its clock.",
            "left_isr_at_ms": (
                "Time in ms since 1970 at which a follower outside the ISR has left it; null "
                "inside."
            ),
            "left_isr_because": "Cause for which it has left the ISR; null inside.",
            "left_isr_detail": "Position at which it has left the ISR; null inside.",
        },
    ),
    "lag": TableDocumentation(
        rows="A reader of a partition: a follower, or a consumer group.",
        writers="",
        columns={
            "kind": "Kind of reader: `replica` or `group`.",
            "name": "Id of the broker or of the group.",
            **_OF_PARTITION,
            "position": "Log end offset of the follower, or committed offset of the group.",
            "end_offset": (
                "Log end offset of the leader for a follower, its high watermark for a group; null "
                "without a leader."
            ),
            "lag": "Offsets between the two; null where one of them is not known.",
            "lag_seconds": _LAG_SECONDS,
        },
    ),
    "refusals": TableDocumentation(
        rows="The produce requests for a partition that were refused with an error in a minute.",
        writers="",
        columns={
            "broker_id": _BROKER_ID,
            "at_ms": "Time of the last of them, in ms since 1970 on the broker's clock.",
            "error": "Kafka's name of the error.",
            **_OF_PARTITION,
            "requests": "Number of refused requests.",
            "version": "Version of `log` with the last of the responses.",
        },
    ),
    "high_watermark_history": TableDocumentation(
        rows="The last state of a replica in a minute in which it has changed.",
        writers="",
        columns={
            "broker_id": _BROKER_ID,
            "at_ms": "Time of that state's commit, in ms since 1970 on the broker's clock.",
            **_OF_PARTITION,
            "role": "Role of the replica: `leader` or `follower`.",
            "leader_epoch": "Leader epoch of the replica's report.",
            "log_start_offset": "Log start offset.",
            "log_end_offset": "Log end offset.",
            "high_watermark": "High watermark.",
            "version": "Version of `log` with that state.",
        },
    ),
    "leader_imbalance": TableDocumentation(
        rows="A broker that is the preferred leader of partitions.",
        writers="",
        columns={
            "broker_id": "Id of the broker.",
            "preferred": "Number of partitions of which it is the preferred leader.",
            "led_by_others": "Number of those that it does not lead.",
            "leader_imbalance": "Percentage of those that it does not lead.",
        },
    ),
    "batches": TableDocumentation(
        rows="A record batch of a replica: one file.",
        writers="",
        columns={
            "broker_id": _BROKER_ID,
            "path": "Path of the file in the folder of `log`.",
            "size_bytes": "Size of the file in bytes.",
            **_OF_PARTITION,
            "leader_epoch": "Epoch of the leader that appended the batch.",
            "base_offset": "Offset of the first record of the batch.",
            **_PRODUCER,
            "checksum": _CHECKSUM,
            "record_count": "Number of records in the file.",
            "last_offset_delta": "Offset of the last record less the base offset.",
            "min_timestamp_ms": "Earliest timestamp of its records, in ms since 1970.",
            "max_timestamp_ms": "Latest timestamp of its records, in ms since 1970.",
            "next_offset": "Offset after the last record of the batch.",
        },
    ),
    "records": TableDocumentation(
        rows="A record of a replica, committed or not; only in Spark.",
        writers="",
        columns={
            "broker_id": _BROKER_ID,
            **_OF_PARTITION,
            "offset": "Offset of the record.",
            "leader_epoch": "Epoch of the leader that appended the record.",
            **{name: text for name, text in _RECORD.items() if name != "offset_delta"},
        },
    ),
}
"""The documentation of the views that no table has as they are; all are read, none is written."""
