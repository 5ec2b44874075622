"""Administration of brokers: what each has, and the end of one that does not come back."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import pyarrow as pa

from sparklog.broker.abandoned_topics import with_known_topics
from sparklog.broker.election import Elections
from sparklog.broker.signs_of_life import SessionWatch
from sparklog.clients.connection import Connection
from sparklog.clock import Clock
from sparklog.config import Settings
from sparklog.errors import ProtocolError
from sparklog.model import BROKERS, PARTITION_STATE, BrokerState, TopicPartition
from sparklog.storage.location import Location
from sparklog.storage.metadata import BrokerInfo, Metadata
from sparklog.storage.shard_rewrites import RowChanges

_WATCH_SECONDS = 0.02
"""How often a broker's row and journals are polled, in seconds."""

_Rows = list[dict[str, Any]]


class BrokerDescription(NamedTuple):
    """A broker, and in how many partitions it leads, is in sync, and has a replica."""

    broker: BrokerInfo
    leads: int
    in_sync: int
    replicas: int


class BrokerAdmin:
    """Administers the brokers of a cluster through its tables; no broker has to run."""

    def __init__(
        self, connection: Connection, elections: Elections, settings: Settings, clock: Clock
    ) -> None:
        self._connection = connection
        self._elections = elections
        self._settings = settings
        self._clock = clock

    def list_brokers(self) -> list[BrokerDescription]:
        """Return the brokers by id; unregistered ones only where replicas are assigned to them."""
        metadata = self._connection.metadata()
        described = []
        for broker in sorted(metadata.brokers.values()):
            states = [
                (state, replica)
                for state in metadata.partitions.values()
                if (replica := state.replica(broker.broker_id)) is not None
            ]
            if states or broker.is_registered:
                described.append(
                    BrokerDescription(
                        broker,
                        sum(state.leader == broker.broker_id for state, _ in states),
                        sum(replica.in_isr for _, replica in states),
                        len(states),
                    )
                )
        return described

    def fence(self, broker_id: int) -> None:
        """Fence a broker that does not run: others lead what it led, as after its session."""
        row = self._silent_row(broker_id)
        self._end(row, "fenced")
        self._elect(broker_id, "fenced", gives_up=False)

    def unregister(self, broker_id: int, *, force: bool) -> int:
        """Unregister a broker that does not run; return how many replicas it leaves.

        Its epoch rises, so that a suspended process of it cannot go on.
        """
        row = self._silent_row(broker_id)
        metadata = self._as_ended(broker_id, "unregistered")
        table = self._connection.root.partition_state
        table.refresh()
        rows = table.rows()
        elected = with_known_topics(rows, metadata, self._elections.elect)
        after = rows if elected is None else elected.applied_to(rows, PARTITION_STATE)
        last = _last_in_sync(after.to_pylist(), broker_id)
        if last and not force:
            shown = ", ".join(map(str, last[:5])) + (" and others" if len(last) > 5 else "")
            raise ProtocolError(
                "INELIGIBLE_REPLICA",
                f"broker {broker_id} has the only replica that is in sync of {shown}: start it "
                "and wait until another has caught up, or give up the records that it alone has "
                "with --force",
            )
        self._end(row, "unregistered")
        self._elect(broker_id, "unregistered", gives_up=force)
        return sum(one["broker_id"] == broker_id for one in after.to_pylist())

    def _silent_row(self, broker_id: int) -> dict[str, Any]:
        """Return the row of a broker once it is known that no process of it runs.

        A parked, stopped or fenced broker does not run; otherwise neither its row nor one of its
        journals must change for broker.session.timeout.ms. Raises INVALID_REQUEST as soon as one
        does.
        """
        since_ms = self._clock.monotonic_ms()
        first = self._row(broker_id)
        now = first
        if now["state"] not in ("alive", "stopping"):
            return now
        options = self._connection.storage_options
        journals = SessionWatch(first, lambda uri: Location.of(uri, options))
        while now["state"] in ("alive", "stopping"):
            if self._is_other(now, first) or journals.has_moved():
                raise ProtocolError(
                    "INVALID_REQUEST", f"broker {broker_id} runs: stop it first, then try again"
                )
            if self._clock.monotonic_ms() - since_ms > self._settings.broker_session_timeout_ms:
                break
            time.sleep(_WATCH_SECONDS)
            now = self._row(broker_id)
        return now

    def _row(self, broker_id: int) -> dict[str, Any]:
        table = self._connection.root.brokers
        table.refresh()
        rows: _Rows = table.rows().to_pylist()
        known = [row for row in rows if row["state"] != "unregistered"]
        for row in known:
            if row["broker_id"] == broker_id:
                return row
        ids = ", ".join(str(row["broker_id"]) for row in known) or "none"
        raise ProtocolError(
            "BROKER_ID_NOT_REGISTERED", f"there is no broker {broker_id}; registered are: {ids}"
        )

    @staticmethod
    def _is_other(row: dict[str, Any], first: dict[str, Any]) -> bool:
        return any(row[name] != first[name] for name in ("broker_epoch", "heartbeat"))

    def _end(self, silent: dict[str, Any], state: BrokerState) -> None:
        """Set the state of a broker, whose row must still be `silent`.

        An unregistered broker gets a new broker epoch, which no other broker has.
        """

        def change(table: pa.Table) -> tuple[pa.Table, None]:
            rows: _Rows = table.to_pylist()
            next_epoch = max(row["broker_epoch"] for row in rows) + 1
            for row in rows:
                if row["broker_id"] == silent["broker_id"]:
                    if self._is_other(row, silent):
                        raise ProtocolError(
                            "INVALID_REQUEST",
                            f"broker {row['broker_id']} was started: stop it first, then try again",
                        )
                    row["state"] = state
                    if state == "unregistered":
                        row["broker_epoch"] = next_epoch
            return BROKERS.rows(rows), None

        self._connection.root.brokers.update(change)

    def _as_ended(self, broker_id: int, state: BrokerState) -> Metadata:
        metadata = self._connection.metadata()
        ended = metadata.brokers[broker_id]._replace(state=state)
        return metadata._replace(brokers={**metadata.brokers, broker_id: ended})

    def _elect(self, broker_id: int, state: BrokerState, *, gives_up: bool) -> None:
        """Take a broker out of in-sync sets where others remain, and let others lead.

        `gives_up`: also where it is the last one, and out of the eligible replicas.
        """

        def decide(table: pa.Table) -> RowChanges | None:
            left = _without(table, broker_id) if gives_up else None
            elected = with_known_topics(
                table if left is None else left.applied_to(table, PARTITION_STATE),
                self._as_ended(broker_id, state),
                self._elections.elect,
            )
            if left is None or elected is None:
                return elected or left
            return RowChanges(elected.applied_to(left.rows, PARTITION_STATE))

        self._connection.root.partition_state.change_rows(decide)


def _last_in_sync(rows: _Rows, broker_id: int) -> list[TopicPartition]:
    """Return the partitions of which only this broker is in sync, or eligible to lead."""
    own, others = {}, set()
    for row in rows:
        if row["in_isr"] or row["in_elr"]:
            of = row["topic_id"], row["partition"]
            if row["broker_id"] == broker_id:
                own[of] = TopicPartition(row["topic"], row["partition"]), row["in_isr"]
            else:
                others.add(of)
    return [name for of, (name, in_isr) in own.items() if in_isr or of not in others]


def _without(table: pa.Table, broker_id: int) -> RowChanges | None:
    """Return the rows of the partitions that this broker leaves; `None` if it is in no set."""
    rows: _Rows = table.to_pylist()
    left = {
        (row["topic_id"], row["partition"])
        for row in rows
        if row["broker_id"] == broker_id and (row["in_isr"] or row["in_elr"])
    }
    for row in rows:
        if (row["topic_id"], row["partition"]) in left:
            row["partition_epoch"] += 1
            if row["broker_id"] == broker_id:
                row["in_isr"] = row["in_elr"] = False
    changed = [row for row in rows if (row["topic_id"], row["partition"]) in left]
    return RowChanges(PARTITION_STATE.rows(changed)) if left else None
