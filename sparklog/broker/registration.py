"""A broker's row in `brokers`: registration, parking, stopping, and the end of fencing (rule 7.2).

Heartbeats are commits of the broker's journals and do not change the row.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import pyarrow as pa

from sparklog.broker.log_directories import LogDirectory
from sparklog.broker.restored_roots import Witness, seen_of_roots
from sparklog.broker.unclean_start import Doubts, OwnLog, boot_id, doubts_about, leave_in_sync_sets
from sparklog.clock import Clock, wait_until
from sparklog.cluster.metadata import MetadataReader
from sparklog.cluster.observations import is_silent
from sparklog.cluster.operations import cause_of_event
from sparklog.cluster.roots import BrokerRoot, ClusterRoot
from sparklog.cluster.session_watch import SessionWatch
from sparklog.errors import FencedError, ProtocolError, StorageError
from sparklog.logger import get_logger
from sparklog.model import BROKERS, Row
from sparklog.states import RUNNING_STATES, BrokerEvent, broker_state_after, has_effect
from sparklog.storage.control_table import ControlTable
from sparklog.storage.control_table_damage import REBUILT_FROM_LOG
from sparklog.storage.location import Location

_log = get_logger(__name__)

_WATCH_MS = 200


class LastProcess(NamedTuple):
    """The registration of a process that is gone: `broker_epoch` and `heartbeat` of its row."""

    broker_epoch: int
    heartbeat: int

    @classmethod
    def of(cls, row: Row | None) -> LastProcess:
        """Return the registration in a row; (-1, -1) for a broker that never registered."""
        return cls(row["broker_epoch"], row["heartbeat"]) if row is not None else cls(-1, -1)


def await_session(
    brokers: ControlTable,
    broker_id: int,
    session_timeout_ms: int,
    clock: Clock,
    locate: Callable[[str], Location],
) -> LastProcess:
    """Wait until the last process of this broker is known to be gone, and return which one it is.

    It is gone if its row says so, or if neither the row nor one of its journals changes for the
    session timeout. Raises DUPLICATE_BROKER_REGISTRATION as soon as one of these does change:
    another process plays this broker. `locate` returns the location of a URI.
    """
    since_ms = clock.monotonic_ms()
    first = gone = _row(brokers, broker_id)
    if first is None or first["state"] not in RUNNING_STATES:
        return LastProcess.of(first)
    journals = SessionWatch(first, locate)

    def is_gone() -> bool:
        nonlocal gone
        gone = now = _row(brokers, broker_id)
        if now is None or now["state"] not in RUNNING_STATES:
            return True
        if LastProcess.of(now) != LastProcess.of(first) or journals.has_moved():
            raise _is_alive(broker_id)
        now_ms = clock.monotonic_ms()
        return is_silent(now_ms, since_ms=since_ms, timeout_ms=session_timeout_ms)

    wait_until(is_gone, pause_ms=_WATCH_MS)
    return LastProcess.of(gone)


def register(
    reader: MetadataReader,
    cluster: ClusterRoot,
    broker_id: int,
    directories: Sequence[LogDirectory],
    opened: Mapping[int, BrokerRoot],
    rack: str | None,
    now_ms: int,
    last_process: LastProcess | None = None,
    found: Sequence[Witness] = (),
) -> int:
    """Register a broker and return its broker epoch, which is higher than all earlier ones.

    The caller must know that the broker's last process is gone (`await_session`); if it is not, the
    new epoch fences it. A parked broker with the same roots resumes under its old epoch.

    Before it counts as alive, the broker leaves the ISR and ELR of every partition whose replica is
    not as it was (rules 7.2, 10.4):

    - all replicas of a root that was lost or restored: another table id, a lower version than
      before or than other brokers have seen, or another digest than at the last clean stop; even as
      the last member;
    - a replica that has lost records which other replicas know of; even as the last member;
    - all replicas of a root whose unsynced files may be gone, if another member stays;
    - all replicas of a root with a damaged table about its replicas, if another member stays.

    A directory that has failed, or that log.dirs does not have, is offline: the controller removes
    its replicas from the ISRs in which others are alive. When it is back, it is compared as above.

    Parameters: `opened`, the roots by their numbers; their damaged tables start again empty;
    `last_process`, the process that is known to be gone; `found`, the versions that the brokers
    have seen of each other's journals. Raises DUPLICATE_BROKER_REGISTRATION if
    another one has registered since, as of two runs that start at the same time.
    """
    uris = json.dumps([one.location and one.location.uri for one in directories])
    own = {number: OwnLog(root.log) for number, root in opened.items()}
    roots = {number: root.location for number, root in opened.items()}
    rebuilt = {
        number
        for number, root in opened.items()
        if any(table.name in root.damage for table in REBUILT_FROM_LOG)
    }
    failed = [one.table_id for one in directories if one.has_failed]
    offline = json.dumps(failed) if failed else None
    identity = {
        "log_table_id": json.dumps([one.table_id for one in directories]),
        "log_version": json.dumps([one.log_version for one in directories]),
        "log_digest": None,
        "boot_id": boot_id(),
    }

    @cache
    def doubts_since(last_epoch: int, *registered: str | None) -> Doubts:
        # Computed once for all attempts: others change the table faster than a comparison takes.
        before = dict(zip(identity, registered, strict=True))
        # After the row was read: an older process may have committed since the logs were opened,
        # and a mark of a clean stop describes a log to its end.
        for one in own.values():
            one.log.refresh()
        seen = seen_of_roots(found, broker_id, last_epoch)
        # Of a directory that is away, the versions that others have seen are kept: under a later
        # registration they do not count any more.
        identity["log_version"] = json.dumps(
            [
                own[number].log.version
                if number in own
                else max(one.log_version, seen.get(number, -1))
                for number, one in enumerate(directories)
            ]
        )
        return doubts_about(broker_id, before, own, roots, reader, rebuilt, seen)

    def change(rows: pa.Table) -> tuple[pa.Table, tuple[int, Doubts]]:
        others = [row for row in rows.to_pylist() if row["broker_id"] != broker_id]
        mine = next((row for row in rows.to_pylist() if row["broker_id"] == broker_id), None)
        is_running = mine is not None and mine["state"] in RUNNING_STATES
        if last_process is not None and is_running and LastProcess.of(mine) != last_process:
            raise _is_alive(broker_id)
        doubts = Doubts()
        if mine is not None:
            doubts = doubts_since(mine["broker_epoch"], *(mine[name] for name in identity))
        if (
            mine is not None
            and not any(doubts)
            and not any(root.damage for root in opened.values())
            and mine["state"] == "parked"
            and mine["roots"] == uris
            and mine["offline_log_dirs"] == offline
        ):
            epoch = int(mine["broker_epoch"])
        else:
            epoch = max((row["broker_epoch"] for row in rows.to_pylist()), default=0) + 1
        row = {
            "broker_id": broker_id,
            "broker_epoch": epoch,
            "roots": uris,
            "rack": rack,
            **identity,
            "newest_format": cluster.formats.newest,
            "state": broker_state_after("register", mine["state"] if mine else None),
            "registered_at_ms": now_ms,
            "heartbeat": mine["heartbeat"] + 1 if mine else 0,
            "repair_requests": mine["repair_requests"] if mine else None,
            "offline_log_dirs": offline,
        }
        if mine is not None and any(doubts):
            # Fenced until it has left the in-sync sets. It keeps the old identity, so that a start
            # after a crash before that compares the logs again; with it the versions that others
            # have seen of the last registration, which is replaced.
            state = broker_state_after("register_in_doubt", mine["state"])
            row |= {"state": state, **{name: mine[name] for name in identity}}
            seen = seen_of_roots(found, broker_id, mine["broker_epoch"])
            row["log_version"] = json.dumps(
                [
                    max(version, seen.get(number, -1) if number in doubts.lost else -1)
                    for number, version in enumerate(json.loads(mine["log_version"]))
                ]
            )
        return BROKERS.rows(_sorted([*others, row])), (epoch, doubts)

    epoch, doubts = cluster.brokers.update(change, cause=cause_of_event("register", broker_id))
    if any(doubts):
        leave_in_sync_sets(cluster.partition_state, reader, broker_id, doubts)
        change_state(cluster.brokers, broker_id, epoch, "return", identity)
    return epoch


def change_state(
    brokers: ControlTable,
    broker_id: int,
    broker_epoch: int,
    event: BrokerEvent,
    changes: Mapping[str, Any],
) -> None:
    """Set the state in the broker's row as `event` requires, and increment its `heartbeat`.

    `changes` are further columns to set. An event without an effect changes nothing. Raises
    `FencedError` if a newer process has registered as this broker.
    """

    def change(rows: pa.Table) -> tuple[pa.Table | None, None]:
        result: list[dict[str, Any]] = rows.to_pylist()
        mine = next((row for row in result if row["broker_id"] == broker_id), None)
        check_registered(mine["broker_epoch"] if mine else None, broker_id, broker_epoch)
        if mine is None or not has_effect(event, mine["state"]):
            _log.info("state not changed", broker=broker_id, change=event)
            return None, None
        state = broker_state_after(event, mine["state"])
        mine |= {"heartbeat": mine["heartbeat"] + 1, "state": state, **changes}
        return BROKERS.rows(result), None

    brokers.update(change, cause=cause_of_event(event, broker_id))


def check_registered(registered_epoch: int | None, broker_id: int, broker_epoch: int) -> None:
    """Raise `FencedError` if a newer process has registered as this broker.

    Raises `StorageError` if the registration is older than this process: the cluster root was
    restored to an older state.
    """
    if registered_epoch is None or registered_epoch < broker_epoch:
        raise StorageError(
            f"the cluster root is older than broker {broker_id}: it knows broker epoch "
            f"{registered_epoch} of it, and this process has {broker_epoch}; the root was lost or "
            "restored: restore its newest state"
        )
    if registered_epoch != broker_epoch:
        raise FencedError(
            f"another process has registered as broker {broker_id}: this one must stop"
        )


def _is_alive(broker_id: int) -> ProtocolError:
    return ProtocolError(
        "DUPLICATE_BROKER_REGISTRATION",
        f"broker {broker_id} is registered and alive: stop that process first, or give this one "
        "another broker.id",
    )


def _row(brokers: ControlTable, broker_id: int) -> Row | None:
    brokers.refresh()
    return next((row for row in brokers.rows().to_pylist() if row["broker_id"] == broker_id), None)


def _sorted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: int(row["broker_id"]))
