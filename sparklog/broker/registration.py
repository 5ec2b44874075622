"""A broker's row in `brokers`: registration, parking, stopping, and the end of fencing (rule 7.2).

Heartbeats are commits of the broker's journals and do not change the row.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cache
from typing import Any, NamedTuple

import pyarrow as pa

from sparklog.broker.isr import leave_isr
from sparklog.broker.log_directories import LogDirectory
from sparklog.broker.signs_of_life import SessionWatch
from sparklog.broker.unclean_start import (
    OwnLog,
    boot_id,
    may_have_lost_files,
    shortened_replicas,
)
from sparklog.clock import Clock
from sparklog.errors import FencedError, ProtocolError, StorageError
from sparklog.logger import get_logger
from sparklog.model import BROKERS, BrokerState, TopicIdPartition
from sparklog.storage.control_table import ControlTable
from sparklog.storage.damage import REBUILT_FROM_LOG
from sparklog.storage.location import Location
from sparklog.storage.metadata import MetadataReader
from sparklog.storage.roots import ClusterRoot
from sparklog.storage.sharded_table import ShardedTable

_log = get_logger(__name__)

_WATCH_SECONDS = 0.2

Row = dict[str, Any]


def await_session(
    brokers: ControlTable,
    broker_id: int,
    session_timeout_ms: int,
    clock: Clock,
    locate: Callable[[str], Location],
) -> None:
    """Wait until the last process of this broker is known to be gone.

    It is gone where its row says so, or where neither the row nor one of its journals changes for
    the session timeout. Raises DUPLICATE_BROKER_REGISTRATION as soon as one of these does change:
    another process plays this broker. `locate` returns the location of a URI.
    """
    since_ms = clock.monotonic_ms()
    first = _row(brokers, broker_id)
    if first is None or first["state"] != "alive":
        return
    journals = SessionWatch(first, locate)
    while clock.monotonic_ms() - since_ms <= session_timeout_ms:
        time.sleep(_WATCH_SECONDS)
        now = _row(brokers, broker_id)
        if now is None or now["state"] != "alive":
            return
        is_other = any(now[name] != first[name] for name in ("broker_epoch", "heartbeat"))
        if is_other or journals.has_moved():
            raise ProtocolError(
                "DUPLICATE_BROKER_REGISTRATION",
                f"broker {broker_id} is registered and alive: stop that process first, or give "
                "this one another broker.id",
            )


def register(
    reader: MetadataReader,
    cluster: ClusterRoot,
    broker_id: int,
    directories: Sequence[LogDirectory],
    rack: str | None,
    now_ms: int,
    damaged: Mapping[int, Collection[str]] | None = None,
) -> int:
    """Register a broker and return its broker epoch, which is higher than any before.

    The caller knows the broker's last process to be gone (`await_session`); if it is not, the
    new epoch fences it. A parked broker with the same roots resumes under the epoch it had.

    Before it counts as alive, the broker leaves the ISR and ELR of every partition whose replica
    is not what it was (rules 7.2, 10.4):

    - all of a root that was lost or restored: another table id, a lower version than before, or
      another digest than at the last clean stop; also as the last member;
    - a replica that has lost records which other replicas know of; also as the last member;
    - all of a root whose unsynced files may be gone, where another member stays;
    - all of a root with a damaged table about its replicas, where another member stays.

    Parameters: `damaged`, the names of the damaged tables of each root, by its number: they start
    again empty.
    Raises `DamagedError` where a log of the broker is damaged; nothing is registered then.
    """
    damaged = damaged or {}
    roots = {number: one.location for number, one in enumerate(directories) if one.location}
    uris = json.dumps([one.location and one.location.uri for one in directories])
    own = {number: OwnLog(root, damaged.get(number, ())) for number, root in roots.items()}
    rebuilt = {
        number
        for number, names in damaged.items()
        if any(table.name in names for table in REBUILT_FROM_LOG)
    }
    identity = {
        "log_table_id": json.dumps([one.table_id for one in directories]),
        "log_version": json.dumps([one.log_version for one in directories]),
        "log_digest": None,
        "boot_id": boot_id(),
    }

    @cache
    def doubts_since(*registered: str | None) -> _Doubts:
        # Once for all attempts: others' changes of the table would outrun a comparison in each.
        before = dict(zip(identity, registered, strict=True))
        return _doubts(broker_id, before, own, roots, reader, rebuilt)

    def change(rows: pa.Table) -> tuple[pa.Table, tuple[int, _Doubts]]:
        others = [row for row in rows.to_pylist() if row["broker_id"] != broker_id]
        mine = next((row for row in rows.to_pylist() if row["broker_id"] == broker_id), None)
        doubts = doubts_since(*(mine[name] for name in identity)) if mine else _Doubts()
        if (
            mine is not None
            and not any(doubts)
            and not any(damaged.values())
            and mine["state"] == "parked"
            and mine["roots"] == uris
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
            "state": "alive",
            "registered_at_ms": now_ms,
            "heartbeat": mine["heartbeat"] + 1 if mine else 0,
        }
        if mine is not None and any(doubts):
            # Until it has left the in-sync sets; a start that ends before that finds it again.
            row |= {"state": "fenced", **{name: mine[name] for name in identity}}
        return BROKERS.rows(_sorted([*others, row])), (epoch, doubts)

    epoch, doubts = cluster.brokers.update(change)
    if any(doubts):
        _leave(cluster.partition_state, reader, broker_id, doubts)
        change_state(cluster.brokers, broker_id, epoch, changes=identity)
    return epoch


class _Doubts(NamedTuple):
    """The replicas of a starting broker that may not be what they were.

    `lost`, the roots, by number, that were lost or restored; `shortened`, replicas that have lost
    records which others know of; `unclean`, the roots whose unsynced files may be gone, or of which
    a table is damaged.
    """

    lost: AbstractSet[int] = frozenset()
    shortened: AbstractSet[TopicIdPartition] = frozenset()
    unclean: AbstractSet[int] = frozenset()


def _doubts(
    broker_id: int,
    before: Mapping[str, Any],
    own: Mapping[int, OwnLog],
    roots: Mapping[int, Location],
    reader: MetadataReader,
    rebuilt: AbstractSet[int],
) -> _Doubts:
    """Compare the logs with the broker's last registration, and with what others know.

    Parameters: `before`, the columns of the registration that identify the logs; `rebuilt`, the
    roots with a damaged table about their replicas.
    """
    ids, versions = json.loads(before["log_table_id"]), json.loads(before["log_version"])
    digests = json.loads(before["log_digest"]) if before["log_digest"] else None
    lost, unclean = set(), set()
    for index, (table_id, version) in enumerate(zip(ids, versions, strict=True)):
        now = own.get(index)
        if now is None or now.log.table_id != table_id:
            lost.add(index)
        elif digests is not None:
            # A clean stop: nothing was written after the mark.
            if now.log.digest() != digests[index]:
                lost.add(index)
        elif now.log.version < max(version, now.described_version):
            lost.add(index)
        elif may_have_lost_files(before["boot_id"], roots[index]):
            unclean.add(index)
    if digests is not None and not lost:
        return _Doubts(unclean=rebuilt)
    return _Doubts(lost, shortened_replicas(broker_id, own, reader), unclean | rebuilt)


def _leave(
    partition_state: ShardedTable, reader: MetadataReader, broker_id: int, doubts: _Doubts
) -> None:
    """Leave the ISR and ELR of every partition whose replica is in doubt."""
    roots_of = {
        key: replica.root
        for key, state in reader.load().partitions.items()
        if (replica := state.replica(broker_id)) is not None
    }
    lost = {key for key, root in roots_of.items() if root in doubts.lost} | doubts.shortened
    unclean = {key for key, root in roots_of.items() if root in doubts.unclean} - lost
    if lost:
        _log.warning(
            "replicas lost or restored: they leave the ISR",
            broker=broker_id,
            roots=sorted(doubts.lost),
            partitions=len(lost),
        )
        leave_isr(partition_state, broker_id, lost)
    if unclean:
        left = leave_isr(partition_state, broker_id, unclean, keep_last=True)
        _log.warning(
            "unclean start: replicas leave the ISR where others stay",
            broker=broker_id,
            left=len(left),
            stayed=len(unclean) - len(left),
        )


def change_state(
    brokers: ControlTable,
    broker_id: int,
    broker_epoch: int,
    state: BrokerState = "alive",
    changes: Mapping[str, Any] | None = None,
    *,
    from_state: BrokerState | None = None,
) -> None:
    """Set the state in the broker's row; its `heartbeat` rises.

    `changes` are further columns to set; `from_state`, the only state that is changed, any by
    default. Raises `FencedError` where a newer process has registered as this broker.
    """

    def change(rows: pa.Table) -> tuple[pa.Table | None, None]:
        result: list[Row] = rows.to_pylist()
        mine = next((row for row in result if row["broker_id"] == broker_id), None)
        check_registered(mine["broker_epoch"] if mine else None, broker_id, broker_epoch)
        if mine is not None and from_state not in (None, mine["state"]):
            return None, None
        for row in result:
            if row["broker_id"] == broker_id:
                row |= {"heartbeat": row["heartbeat"] + 1, "state": state, **(changes or {})}
        return BROKERS.rows(result), None

    brokers.update(change)


def check_registered(registered_epoch: int | None, broker_id: int, broker_epoch: int) -> None:
    """Raise `FencedError` where a newer process has registered as this broker.

    Raises `StorageError` where the registration is older than this process: the cluster root was
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


def _row(brokers: ControlTable, broker_id: int) -> Row | None:
    brokers.refresh()
    return next((row for row in brokers.rows().to_pylist() if row["broker_id"] == broker_id), None)


def _sorted(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: int(row["broker_id"]))
