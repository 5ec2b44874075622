"""The operations of commits to the tables of the cluster root, as Delta's history shows them.

A commit names one, and as parameters what it concerns and its cause. They are for people and for
the views of the past: no decision depends on them.
"""

from __future__ import annotations

from typing import NamedTuple

from sparklog.states import BrokerEvent
from sparklog.storage.commits import Cause


class Operation(NamedTuple):
    """An operation: its name, the tables that its commits change, and what it does."""

    name: str
    tables: tuple[str, ...]
    meaning: str


OPERATIONS = (
    Operation("CREATE TOPIC", ("topics", "partition_state"), "A topic is created."),
    Operation("CREATE PARTITIONS", ("topics", "partition_state"), "A topic gets more partitions."),
    Operation("ALTER CONFIGS", ("topics", "configs"), "Dynamic configurations change."),
    Operation("ANNOUNCE CONFIGS", ("brokers",), "The change is announced to running processes."),
    Operation("DELETE TOPIC", ("topics",), "A topic is marked for deletion."),
    Operation("DELETE TOPICS", ("partition_state",), "Its partitions lose their leaders."),
    Operation("FINISH DELETIONS", ("topics",), "The replicas are gone, and so is the topic."),
    Operation(
        "REMOVE ABANDONED TOPICS",
        ("topics", "partition_state"),
        "The controller removes a topic whose creation has stopped.",
    ),
    Operation("DELETE RECORDS", ("partition_state",), "A partition begins at a later offset."),
    Operation("ELECT LEADERS", ("partition_state",), "Leaders change, or ISRs after an absence."),
    Operation("BALANCE LEADERS", ("partition_state",), "Preferred leaders lead again."),
    Operation("CHANGE ISR", ("partition_state",), "A leader adds or removes followers."),
    Operation("LEAVE ISR", ("partition_state",), "A broker leaves the ISRs itself."),
    Operation("REASSIGN PARTITIONS", ("partition_state",), "Partitions move to other brokers."),
    Operation(
        "COMPLETE REASSIGNMENTS", ("partition_state",), "The replicas that move away are gone."
    ),
    Operation(
        "CORRECT REPLICATION FACTORS", ("topics",), "`topics` has the number of replicas after it."
    ),
    Operation(
        "SET REPLICATION THROTTLE", ("partition_state",), "Reassignments get another byte rate."
    ),
    Operation("ELECT CONTROLLER", ("controller",), "A broker takes the controller's lease."),
    Operation("RESIGN CONTROLLER", ("controller",), "A broker gives the lease back."),
    Operation("FENCE BROKERS", ("brokers",), "The controller ends the sessions of silent brokers."),
    Operation("NOTE LOG VERSIONS", ("brokers",), "The versions that restored logs are known by."),
    Operation("FAIL LOG DIRECTORIES", ("brokers",), "Log directories of a broker are offline."),
    Operation("REGISTER BROKER", ("brokers",), "A process of a broker starts."),
    Operation("REGISTER IN DOUBT BROKER", ("brokers",), "It starts with a log that lacks a part."),
    Operation("RETURN BROKER", ("brokers",), "A fenced broker is alive again."),
    Operation("BEGIN STOP BROKER", ("brokers",), "A broker begins to hand its leaderships over."),
    Operation("RETURN TO STOP BROKER", ("brokers",), "It goes on with that after a restart."),
    Operation("STOP BROKER", ("brokers",), "It has stopped."),
    Operation("PARK BROKER", ("brokers",), "A scheduled run of a broker has ended."),
    Operation("FENCE BROKER", ("brokers",), "An operator ends a broker's session."),
    Operation("UNREGISTER BROKER", ("brokers",), "An operator removes a broker."),
    Operation("REPLACE CHECKPOINTS BROKER", ("brokers",), "Checkpoints of a broker are imported."),
    Operation("REQUEST REPAIRS", ("brokers",), "Rows in `repairs` are announced to brokers."),
    Operation("RESTORE CLUSTER", ("brokers",), "The log directories are those of a restoration."),
    Operation("NOTE FINDINGS", ("repairs",), "A scrub has found damage, or finds it gone."),
    Operation("NOTE OUTCOMES", ("repairs",), "A repair was tried."),
    Operation("BEGIN SCRUB", ("scrubs",), "A run verifies the cluster, or goes on with that."),
    Operation("NOTE SCRUB POSITION", ("scrubs",), "It has come so far."),
    Operation("ALLOT PRODUCER IDS", ("producer_ids",), "Producers get ids and epochs."),
    Operation("RENEW TRANSACTIONAL ID", ("producer_ids",), "A producer keeps its id."),
    Operation("EXPIRE TRANSACTIONAL IDS", ("producer_ids",), "Unused ids are removed."),
    Operation("BEGIN MICRO-BATCH", ("stream_writes",), "A stream names its files."),
    Operation("REPLACE FILES", ("stream_writes",), "It names others, since some were lost."),
    Operation("FINISH MICRO-BATCH", ("stream_writes",), "All its files are stored."),
    Operation("CHANGE GROUP", ("consumer_groups",), "A group rebalances; `cause` says why."),
    Operation("HEARTBEAT", ("consumer_group_heartbeats",), "Members are alive."),
    Operation("REMOVE HEARTBEATS", ("consumer_group_heartbeats",), "Members are gone."),
    Operation("COMMIT OFFSETS", ("consumer_offsets",), "A group commits offsets."),
    Operation("FENCE GROUP", ("consumer_offsets",), "Older generations commit no more."),
    Operation("DELETE OFFSETS", ("consumer_offsets",), "A group is deleted."),
    Operation("REMOVE OFFSETS OF TOPICS", ("consumer_offsets",), "Topics were deleted."),
    Operation(
        "EXTEND HISTORY",
        ("leadership_history", "partition_history", "controller_history"),
        "The controller copies the changes since the last time.",
    ),
    Operation("CREATE ROOT", ("format",), "The root is complete."),
    Operation("ADD TABLES", ("format",), "A later release has added tables, or raised the format."),
    Operation("ANNOUNCE FORMAT", ("brokers",), "The format is announced to running processes."),
)
"""All operations of the cluster root's tables, but Delta's own and those that every table has:
`FENCE`, `SET TRANSACTIONS`, `RECREATE TABLE`, `REPAIR`, `CREATE TABLE`.
"""


def cause_of_event(event: BrokerEvent, broker_id: int) -> Cause:
    """Return the cause of a commit by which the state of a broker changes."""
    return Cause(f"{event.replace('_', ' ').upper()} BROKER", {"brokerId": str(broker_id)})


_ABSENCES = {
    "fenced": "was silent for a session, or an operator has fenced it",
    "stopping": "is stopping",
    "stopped": "has stopped",
    "parked": "is parked, and its time is over",
    "unregistered": "is no longer registered",
    "log_directory_offline": "has lost the log directory of the replica",
}

CAUSES = {
    "created": "The topic or the partitions are new.",
    "abandoned": "The process that created the topic has not finished.",
    "requested": "An operator has asked for it.",
    **{f"leader_{name}": f"The broker that led {text}." for name, text in _ABSENCES.items()},
    "leader_restarted": "The broker that led runs as another process.",
    "leader_left_isr": "The leader has left the ISR itself.",
    **{f"follower_{name}": f"The broker of a follower {text}." for name, text in _ABSENCES.items()},
    "follower_lagging": "A follower was not at the log end for `replica.lag.time.max.ms`.",
    "follower_caught_up": "A follower is at the high watermark, and in this leader epoch.",
    "replica_returned": "The partition had no leader, and a replica that may lead is back.",
    "unclean_election_allowed": (
        "The partition had no leader, and `unclean.leader.election.enable` is true: a replica "
        "leads that may lack records."
    ),
    "preferred_leader": "The first replica is in sync, and another one led.",
    "min_isr_changed": "`min.insync.replicas` of the topic has another value.",
    "eligible_replicas_changed": "Only the replicas that may lead without loss are others.",
    "target_in_sync": "The replicas that are moved to are in sync.",
    "truncation": "The broker cuts its log below what it has reported.",
    "log_restart": "The log begins after the broker's: it copies the partition from there.",
    "log_lost": "The broker has started with a log that lacks the replica or its end.",
    "unclean_start": "The broker was not stopped cleanly, and its log may lack its end.",
    "damage": "The broker has found damage in its log.",
    "fence": "An operator has fenced the broker.",
    "unregister": "An operator has removed the broker.",
    "session_timeout": "The brokers were silent for `broker.session.timeout.ms`.",
    "first_controller": "The cluster had no controller yet.",
    "lease_released": "The controller before has stopped or parked.",
    "lease_lapsed": "The controller before was silent.",
    "broker_restarted": "The controller is a newer process of the same broker.",
}
"""All causes that commits of `partition_state`, `brokers`, `topics` and `controller` name."""

GROUP_CAUSES = {
    "member_joined": "A member joins the group.",
    "member_joined_again": "A member follows a change of another one.",
    "member_replaced": "A static member was restarted.",
    "member_left": "A member was closed, or has unsubscribed.",
    "session_timeout": "Members sent no heartbeat for `session.timeout.ms`.",
    "max_poll_interval": "Members did not call `poll`, or not join, for `max.poll.interval.ms`.",
    "subscription_changed": "A member subscribes to other topics.",
    "partitions_assigned": "The leader has assigned the partitions, and the group is stable.",
    "deleted": "An operator has deleted the group.",
}
"""All causes that commits of `consumer_groups` name."""
