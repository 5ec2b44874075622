"""The heartbeats of a consumer group's members in one process: one thread and one commit for all.

Heartbeats are rows of one table, so one compare-and-set an interval increments those of all members
of a process, and the members of other processes are observed once.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Mapping
from typing import Protocol
from weakref import WeakValueDictionary

import pyarrow as pa

from sparklog.broker.observations import Observations
from sparklog.clients.consumer_group import ConsumerGroups, Group, expired
from sparklog.clock import Clock
from sparklog.logger import get_logger
from sparklog.model import CONSUMER_GROUP_HEARTBEATS
from sparklog.storage.location import Location
from sparklog.storage.roots import ClusterRoot

_log = get_logger(__name__)


class GroupHeartbeats:
    """Sends heartbeats of members of the group `group_id` and removes its silent members.

    Silence is measured on `clock` from changes of a member's row: no two clocks are compared (as in
    rule 7.1).
    """

    def __init__(self, root: ClusterRoot, group_id: str, clock: Clock) -> None:
        self._group_id = group_id
        self._groups = ConsumerGroups(root.consumer_groups)
        self._heartbeats = root.consumer_group_heartbeats
        self._clock = clock
        self._observations = Observations()

    def beat(self, member_ids: Collection[str]) -> Group:
        """Increment the heartbeats of these members, and remove the silent ones of the group.

        Returns the group after that. Ids that are not members of the group are ignored.
        """
        group = self._groups.find(self._group_id)
        alive = [one.member_id for one in group.members if one.member_id in member_ids]
        if not alive:
            return group
        heartbeats = self._write([one.member_id for one in group.members], alive)
        gone = self._silent(group, heartbeats, alive)
        if not gone:
            return group
        _log.warning("members removed", group=self._group_id, members=gone)
        return self._groups.change(self._group_id, lambda now: expired(now, group, gone))

    def forget(self, member_id: str) -> None:
        """Remove the heartbeats of a member that has left."""

        def change(rows: pa.Table) -> tuple[pa.Table | None, None]:
            before = rows.to_pylist()
            of = self._group_id, member_id
            kept = [row for row in before if (row["group_id"], row["member_id"]) != of]
            changed = CONSUMER_GROUP_HEARTBEATS.rows(kept) if len(kept) < len(before) else None
            return changed, None

        self._heartbeats.update(change)

    def _silent(
        self, group: Group, heartbeats: Mapping[str, int], alive: Collection[str]
    ) -> list[str]:
        """Return the members that were silent, or did not join, for too long."""
        now_ms = self._clock.monotonic_ms()
        gone = []
        for one in group.members:
            if one.member_id in alive:
                continue
            seen = heartbeats.get(one.member_id), one.joined_generation
            since_ms = self._observations.observe(one.member_id, seen, now_ms)
            if now_ms - since_ms > one.session_timeout_ms:
                gone.append(one.member_id)
        preparing_ms = self._observations.observe(
            "rebalance", (group.state, group.generation), now_ms
        )
        patience_ms = max((one.rebalance_timeout_ms for one in group.members), default=0)
        if now_ms - preparing_ms > patience_ms:
            late = [one.member_id for one in group.missing]
            # A member removes others, not itself: one of those that beat here stays.
            watcher = next((one for one in alive if one not in late), next(iter(alive)))
            gone += [one for one in late if one != watcher and one not in gone]
        return gone

    def _write(self, members: Collection[str], alive: Collection[str]) -> dict[str, int]:
        """Increment heartbeats, remove those of former members, and return the group's."""

        def change(rows: pa.Table) -> tuple[pa.Table, dict[str, int]]:
            before = rows.to_pylist()
            others = [row for row in before if row["group_id"] != self._group_id]
            mine = {
                row["member_id"]: int(row["heartbeat"])
                for row in before
                if row["group_id"] == self._group_id
            }
            kept = {one: count for one, count in mine.items() if one in members}
            kept |= {one: mine.get(one, 0) + 1 for one in alive}
            after = [
                {"group_id": self._group_id, "member_id": one, "heartbeat": count}
                for one, count in kept.items()
            ]
            return CONSUMER_GROUP_HEARTBEATS.rows([*others, *after]), kept

        return self._heartbeats.update(change)


class BeatingMember(Protocol):
    """A member whose heartbeats are sent for it."""

    heartbeat_interval_ms: int

    def beating_id(self) -> str | None:
        """Return the member's id, or `None` while no heartbeat is due; may leave the group."""


class ProcessHeartbeats:
    """The thread that sends the heartbeats of all members of one group in this process.

    It runs while there are members: from the first `add` to the last `remove`. A member joins and
    leaves its group under `lock`.
    """

    def __init__(self, root: ClusterRoot, group_id: str, clock: Clock) -> None:
        self.lock = threading.Lock()
        self.beats = GroupHeartbeats(root, group_id, clock)
        self._members: list[BeatingMember] = []
        self._changed = threading.Condition()
        self._clock = clock
        self._thread: threading.Thread | None = None

    def add(self, member: BeatingMember) -> None:
        """Send heartbeats for a member from now on, one an interval."""
        with self._changed:
            if member in self._members:
                return
            self._members.append(member)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="heartbeats", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def remove(self, member: BeatingMember) -> None:
        """Send no more heartbeats for a member; the thread ends with the last one."""
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
        """Send one heartbeat of each member: one commit for all of them."""
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
        """Wait until one interval after `began_ms`; return False where no member is left."""
        with self._changed:
            while self._thread is threading.current_thread():
                interval_ms = min(one.heartbeat_interval_ms for one in self._members)
                left_ms = began_ms + interval_ms - self._clock.monotonic_ms()
                if left_ms <= 0:
                    return True
                self._changed.wait(left_ms / 1000)
            return False


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
    """Return the heartbeats that this process's members of a group share."""
    place = root.location
    # A process that was forked has none of its parent's threads.
    key = os.getpid(), place, frozenset(place.options.items()), group_id
    with _lock:
        found = _of_groups.get(key)
        if found is None:
            found = _of_groups[key] = ProcessHeartbeats(root, group_id, clock)
        return found
