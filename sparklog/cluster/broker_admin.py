"""Administration of brokers: listing, fencing and unregistering them."""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa

from sparklog.clock import Clock, wait_until
from sparklog.cluster.abandoned_topics import with_known_topics
from sparklog.cluster.connection import Connection
from sparklog.cluster.election import Elections, log_changes
from sparklog.cluster.metadata import BrokerInfo, Metadata
from sparklog.cluster.observations import is_silent
from sparklog.cluster.operations import cause_of_event
from sparklog.cluster.session_watch import SessionWatch
from sparklog.config import Settings
from sparklog.errors import ProtocolError
from sparklog.model import BROKERS, PARTITION_STATE, TopicPartition
from sparklog.states import BROKER_TRANSITIONS, RUNNING_STATES, BrokerEvent, broker_state_after
from sparklog.storage.commits import Cause
from sparklog.storage.location import Location
from sparklog.storage.shard_rewrites import RowChanges

_WATCH_MS = 20
"""Interval in ms at which a broker's row and journals are polled."""

_Rows = list[dict[str, Any]]


class BrokerDescription(NamedTuple):
    """A broker, and its numbers of led, in-sync and assigned partitions.

    Attributes
    ----------
    broker : BrokerInfo
        The broker as it is registered.
    leads : int
        The number of partitions that it leads.
    in_sync : int
        The number of partitions in whose ISR it is.
    replicas : int
        The number of partitions of which it has a replica.
    preferred : int
        The number of partitions of which it is the preferred leader, as the first replica.
    preferred_led_by_others : int
        The number of those that it does not lead.
    is_controller : bool
        Whether it holds the lease of the controller.
    controller_since_ms : int or None
        The time in ms since 1970 at which it took the lease over; `None` if it does not hold it.

    Examples
    --------
    >>> from sparklog import Admin
    >>> first = Admin("sparklog-data/cluster").list_brokers()[0]
    >>> first.in_sync == first.replicas
    True
    """

    broker: BrokerInfo
    leads: int
    in_sync: int
    replicas: int
    preferred: int = 0
    preferred_led_by_others: int = 0
    is_controller: bool = False
    controller_since_ms: int | None = None

    @property
    def leader_imbalance(self) -> float:
        """The percentage of its preferred partitions that it does not lead.

        Above leader.imbalance.per.broker.percentage the controller elects it for them (rule 7.6).
        """
        return 100 * self.preferred_led_by_others / self.preferred if self.preferred else 0.0


def described_brokers(metadata: Metadata, leases: pa.Table) -> list[BrokerDescription]:
    """Return the brokers by id; unregistered ones only while replicas are assigned to them.

    Parameters: `leases`, the rows of `controller`.
    """
    since_ms = {lease["broker_id"]: lease["elected_ms"] for lease in leases.to_pylist()}
    described = []
    for broker in sorted(metadata.brokers.values()):
        states = [
            (state, replica)
            for state in metadata.partitions.values()
            if (replica := state.replica(broker.broker_id)) is not None
        ]
        preferred = [state for state, replica in states if replica is state.replicas[0]]
        if states or broker.is_registered:
            described.append(
                BrokerDescription(
                    broker,
                    sum(state.leader == broker.broker_id for state, _ in states),
                    sum(replica.in_isr for _, replica in states),
                    len(states),
                    len(preferred),
                    sum(state.leader != broker.broker_id for state in preferred),
                    broker.broker_id in since_ms,
                    since_ms.get(broker.broker_id),
                )
            )
    return described


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
        """Return the brokers by id; unregistered ones only while replicas are assigned to them."""
        metadata = self._connection.metadata()
        controller = self._connection.root.controller
        controller.refresh()
        return described_brokers(metadata, controller.rows())

    def fence(self, broker_id: int) -> None:
        """Fence a broker that does not run, and elect other leaders, as after a session timeout."""
        row = self._silent_row(broker_id)
        self._end(row, "fence")
        self._elect(broker_id, "fence", gives_up=False)

    def unregister(self, broker_id: int, *, force: bool) -> int:
        """Unregister a broker that does not run; return how many replicas stay assigned to it.

        Its broker epoch rises, so that a suspended process of the broker is refused.
        """
        row = self._silent_row(broker_id)
        metadata = self._as_ended(broker_id, "unregister")
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
        held: int = sum(one["broker_id"] == broker_id for one in after.to_pylist())
        if held and not force:
            partitions = "1 partition" if held == 1 else f"{held} partitions"
            raise ProtocolError(
                "INVALID_REQUEST",
                f"broker {broker_id} has a replica of {partitions}: move it away with `sparklog "
                f"brokers drain {broker_id}`, or give it up with --force",
            )
        self._end(row, "unregister")
        self._elect(broker_id, "unregister", gives_up=force)
        return held

    def _silent_row(self, broker_id: int) -> dict[str, Any]:
        """Return the row of a broker after checking that none of its processes runs.

        A parked, stopped or fenced broker does not run. Otherwise its row and its journals must not
        change for broker.session.timeout.ms. Raises INVALID_REQUEST at the first change.
        """
        since_ms = self._clock.monotonic_ms()
        timeout_ms = self._settings.broker_session_timeout_ms
        first = self._row(broker_id)
        if first["state"] not in RUNNING_STATES:
            return first
        options = self._connection.storage_options
        journals = SessionWatch(first, lambda uri: Location.of(uri, options))

        def is_gone(now: dict[str, Any]) -> bool:
            if now["state"] not in RUNNING_STATES:
                return True
            if self._is_other(now, first) or journals.has_moved():
                raise ProtocolError(
                    "INVALID_REQUEST", f"broker {broker_id} runs: stop it first, then try again"
                )
            return is_silent(self._clock.monotonic_ms(), since_ms=since_ms, timeout_ms=timeout_ms)

        return wait_until(lambda: self._row(broker_id), pause_ms=_WATCH_MS, until=is_gone)

    def _row(self, broker_id: int) -> dict[str, Any]:
        table = self._connection.root.brokers
        table.refresh()
        rows: _Rows = table.rows().to_pylist()
        known = [row for row in rows if row["state"] != "unregistered"]
        for row in known:
            if row["broker_id"] == broker_id:
                return row
        ids = ", ".join(str(row["broker_id"]) for row in known)
        hint = f"name one of the registered brokers {ids}" if ids else "no broker is registered yet"
        raise ProtocolError("BROKER_ID_NOT_REGISTERED", f"there is no broker {broker_id}: {hint}")

    @staticmethod
    def _is_other(row: dict[str, Any], first: dict[str, Any]) -> bool:
        return any(row[name] != first[name] for name in ("broker_epoch", "heartbeat"))

    def _end(self, silent: dict[str, Any], event: BrokerEvent) -> None:
        """Change the state of a broker that has not been started since `silent` was read.

        Raises INVALID_REQUEST if its broker epoch or heartbeat differs from that in `silent`. An
        unregistered broker gets a new broker epoch, which no other broker has.
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
                    row["state"] = broker_state_after(event, row["state"])
                    if event == "unregister":
                        row["broker_epoch"] = next_epoch
            return BROKERS.rows(rows), None

        cause = cause_of_event(event, int(silent["broker_id"]))
        self._connection.root.brokers.update(change, cause=cause)

    def _as_ended(self, broker_id: int, event: BrokerEvent) -> Metadata:
        metadata = self._connection.metadata()
        ended = metadata.brokers[broker_id]._replace(state=BROKER_TRANSITIONS[event].after)
        return metadata._replace(brokers={**metadata.brokers, broker_id: ended})

    def _elect(self, broker_id: int, event: BrokerEvent, *, gives_up: bool) -> None:
        """Remove a broker from ISRs that have other members, and elect other leaders.

        With `gives_up`, the broker is also removed from ISRs of which it is the last member, and
        from ELRs.
        """

        def decide(table: pa.Table) -> RowChanges | None:
            left = _without(table, broker_id) if gives_up else None
            elected = with_known_topics(
                table if left is None else left.applied_to(table, PARTITION_STATE),
                self._as_ended(broker_id, event),
                self._elections.elect,
            )
            if left is None or elected is None:
                return elected or left
            return RowChanges(elected.applied_to(left.rows, PARTITION_STATE))

        cause = Cause("ELECT LEADERS", {"cause": event, "brokerId": str(broker_id)})
        log_changes(self._connection.root.partition_state.change_rows(decide, cause=cause))


def _last_in_sync(rows: _Rows, broker_id: int) -> list[TopicPartition]:
    """Return the partitions in which only this broker is in sync, or eligible to lead.

    In `rows`, the broker is in an ISR only if it is the last member, because an election has
    removed it from the others.
    """
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
    """Return the changes that remove this broker from ISRs and ELRs, or `None` without changes."""
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
