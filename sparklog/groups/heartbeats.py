"""Heartbeats of a group's members in one process: one thread and one commit for all.

Heartbeats are rows of one table. One compare-and-set per interval increments those of all members
of a process. The members of other processes are observed once per process.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Protocol
from weakref import WeakValueDictionary

import pyarrow as pa

from sparklog.clock import Clock
from sparklog.cluster.observations import Observations, is_silent
from sparklog.cluster.roots import ClusterRoot
from sparklog.groups.group import ConsumerGroups, Group, expired
from sparklog.logger import get_logger
from sparklog.model import CONSUMER_GROUP_HEARTBEATS
from sparklog.storage.commits import Cause
from sparklog.storage.location import Location
from sparklog.storage.shard_rewrites import RowChanges
from sparklog.storage.sharded_table import ShardedTable

_log = get_logger(__name__)

FREQUENT_PROCESSES = 20
"""The number of processes of a group up to which each commits every heartbeat.interval.ms. The
interval grows with the number above that: each process reads the commits of all others, so a fixed
interval would be quadratic, and writers of one table would refuse each other's commits.
"""


def spread_interval_ms(interval_ms: int, session_timeout_ms: int, processes: int) -> int:
    """Return the time between two heartbeats of one of `processes` of a group, in ms.

    At most a third of the session, unless `interval_ms` is longer.
    """
    spread_ms = interval_ms * processes // FREQUENT_PROCESSES
    return max(interval_ms, min(spread_ms, session_timeout_ms // 3))


class GroupHeartbeats:
    """Sends heartbeats of members of the group `group_id`, and removes its silent members.

    Silence is measured on `clock` from changes of a member's row. Clocks of different processes are
    not compared (as in rule 7.1).
    """

    def __init__(self, root: ClusterRoot, group_id: str, clock: Clock) -> None:
        self._group_id = group_id
        self._groups = ConsumerGroups(root.consumer_groups)
        self._heartbeats = root.consumer_group_heartbeats
        self._clock = clock
        self._observations = Observations()
        self.member_count = 0
        """The number of members of the group at the last heartbeat."""

    def beat(self, member_ids: Collection[str]) -> Group:
        """Increment the heartbeats of these members, and remove the silent ones of the group.

        Returns the group after that. Ids that are not members of the group are ignored.
        """
        group = self._groups.find(self._group_id)
        self.member_count = len(group.members)
        alive = [one.member_id for one in group.members if one.member_id in member_ids]
        if not alive:
            return group
        heartbeats = self._write([one.member_id for one in group.members], alive)
        silent, late = self._silent(group, heartbeats, alive)
        # One commit for each cause, since a commit names one.
        found = group
        for cause, gone in (("session_timeout", silent), ("max_poll_interval", late)):
            if gone:
                _log.warning("members removed", group=self._group_id, members=gone, cause=cause)
                step = partial(expired, seen=found, silent=gone)
                group = self._groups.change(self._group_id, step, cause)
        return group

    def forget(self, member_id: str) -> None:
        """Remove the heartbeats of a member that has left."""
        remove_heartbeats(self._heartbeats, self._group_id, lambda one: one == member_id)

    def _silent(
        self, group: Group, heartbeats: Mapping[str, int], alive: Collection[str]
    ) -> tuple[list[str], list[str]]:
        """Return the members that were silent, and those that had not joined, for too long."""
        now_ms = self._clock.monotonic_ms()
        silent: list[str] = []
        late: list[str] = []
        for one in group.members:
            if one.member_id in alive:
                continue
            seen = heartbeats.get(one.member_id), one.joined_generation
            since_ms = self._observations.observe(one.member_id, seen, now_ms)
            if is_silent(now_ms, since_ms=since_ms, timeout_ms=one.session_timeout_ms):
                silent.append(one.member_id)
        preparing_ms = self._observations.observe(
            "rebalance", (group.state, group.generation), now_ms
        )
        patience_ms = max((one.rebalance_timeout_ms for one in group.members), default=0)
        if is_silent(now_ms, since_ms=preparing_ms, timeout_ms=patience_ms):
            missing = [one.member_id for one in group.missing]
            # A member removes others, not itself: one of the members in `alive` stays.
            watcher = next((one for one in alive if one not in missing), next(iter(alive)))
            late = [one for one in missing if one != watcher and one not in silent]
        return silent, late

    def _write(self, members: Collection[str], alive: Collection[str]) -> dict[str, int]:
        """Increment heartbeats, remove those of former members, and return the group's."""
        kept: dict[str, int] = {}

        def decide(rows: pa.Table) -> RowChanges:
            nonlocal kept
            before = {row["member_id"]: int(row["heartbeat"]) for row in rows.to_pylist()}
            beaten = {one: before.get(one, 0) + 1 for one in alive}
            kept = {one: count for one, count in before.items() if one in members} | beaten
            changed = [
                {"group_id": self._group_id, "member_id": one, "heartbeat": count}
                for one, count in beaten.items()
            ]
            gone = frozenset((self._group_id, one) for one in before.keys() - kept.keys())
            return RowChanges(CONSUMER_GROUP_HEARTBEATS.rows(changed), gone)

        self._heartbeats.change_rows(decide, [(self._group_id,)], cause=Cause("HEARTBEAT"))
        return kept


def remove_heartbeats(
    table: ShardedTable, group_id: str, is_removed: Callable[[str], bool]
) -> None:
    """Remove the heartbeats of the members of a group for whose ids `is_removed` returns true."""

    def decide(rows: pa.Table) -> RowChanges:
        member_ids = filter(is_removed, rows["member_id"].to_pylist())
        removed = frozenset((group_id, one) for one in member_ids)
        return RowChanges(CONSUMER_GROUP_HEARTBEATS.rows([]), removed)

    table.change_rows(decide, [(group_id,)], cause=Cause("REMOVE HEARTBEATS"))


class BeatingMember(Protocol):
    """A member whose heartbeats are sent for it."""

    heartbeat_interval_ms: int
    session_timeout_ms: int

    def beating_id(self) -> str | None:
        """Return the member's id, or `None` while no heartbeat is due; may leave the group."""


class ProcessHeartbeats:
    """The thread that sends the heartbeats of all members of one group in this process.

    It runs while there are members: from the first `add` to the last `remove`. Members join and
    leave their group under `lock`.
    """

    def __init__(self, root: ClusterRoot, group_id: str, clock: Clock) -> None:
        self.lock = threading.Lock()
        self.beats = GroupHeartbeats(root, group_id, clock)
        self._members: list[BeatingMember] = []
        self._changed = threading.Condition()
        self._clock = clock
        self._thread: threading.Thread | None = None

    def add(self, member: BeatingMember) -> None:
        """Send heartbeats for a member from now on, one per interval (`spread_interval_ms`)."""
        with self._changed:
            if member in self._members:
                return
            self._members.append(member)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="heartbeats", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def remove(self, member: BeatingMember) -> None:
        """Send no more heartbeats for a member; the thread ends after the last one is removed."""
        with self._changed:
            if member not in self._members:
                return
            self._members.remove(member)
            ended = None if self._members else self._thread
            if ended is not None:
                self._thread = None
            self._changed.notify_all()
        if ended is not None and ended is not threading.current_thread():
            ended.join()

    def beat(self) -> None:
        """Send one heartbeat for each member, in one commit."""
        with self._changed:
            members = list(self._members)
        with self.lock:
            ids = {one for member in members if (one := _beating_id(member)) is not None}
            if ids:
                self.beats.beat(ids)

    def _run(self) -> None:
        began_ms = self._clock.monotonic_ms()
        while self._await(began_ms):
            began_ms = self._clock.monotonic_ms()
            try:
                self.beat()
            except Exception as error:  # noqa: BLE001 - what fails now may work the next time
                _log.warning("heartbeat failed", error=str(error))

    def _await(self, began_ms: int) -> bool:
        """Wait until one interval after `began_ms`; return False if no member remains."""
        with self._changed:
            while self._thread is threading.current_thread():
                left_ms = began_ms + self._interval_ms() - self._clock.monotonic_ms()
                if left_ms <= 0:
                    return True
                self._changed.wait(left_ms / 1000)
            return False

    def _interval_ms(self) -> int:
        """Return the time between two heartbeats of this process, in ms."""
        # The processes of a group have similar numbers of members.
        processes = -(-self.beats.member_count // len(self._members))
        interval_ms = min(one.heartbeat_interval_ms for one in self._members)
        session_timeout_ms = min(one.session_timeout_ms for one in self._members)
        return spread_interval_ms(interval_ms, session_timeout_ms, processes)


def _beating_id(member: BeatingMember) -> str | None:
    try:
        return member.beating_id()
    except Exception as error:  # noqa: BLE001 - the others of the process go on
        _log.warning("leaving failed", error=str(error))
        return None


_Key = tuple[int, Location, frozenset[tuple[str, str]], str]
_of_groups: WeakValueDictionary[_Key, ProcessHeartbeats] = WeakValueDictionary()
_lock = threading.Lock()


def process_heartbeats(root: ClusterRoot, group_id: str, clock: Clock) -> ProcessHeartbeats:
    """Return the heartbeats that are shared by a group's members in this process."""
    place = root.location
    # A forked process has no threads of its parent, so the key contains the process id.
    key = os.getpid(), place, frozenset(place.options.items()), group_id
    with _lock:
        found = _of_groups.get(key)
        if found is None:
            found = _of_groups[key] = ProcessHeartbeats(root, group_id, clock)
        return found
