"""A `LocalCluster` that is checked after every call, and that records its calls.

Requests and producers are numbered, and values are generated, so a story consists of a few plain
calls.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from deltalake.exceptions import DeltaError

from sparklog.broker import unclean_start
from sparklog.broker.broker import Broker
from sparklog.broker.tick import StoppedError
from sparklog.cluster.election import ElectionType
from sparklog.cluster.roots import BrokerRoot, ClusterRoot
from sparklog.errors import CommitConflictError, FencedError, ProtocolError, StorageError
from sparklog.model import CLUSTER_TABLES, Batch, TopicPartition
from sparklog.producer.produce_requests import Acks, PendingProduce, ProduceResponse
from sparklog.protocol.driver_rules import DriverRules
from sparklog.storage.batch_merging import Merge
from sparklog.storage.execution import DriverExecution
from sparklog.storage.location import Location
from sparklog.testing import LocalCluster
from sparklog.testing.local_producer import LocalProducer
from tests.faulty_files import Failure, FaultyFiles, Kept
from tests.state_machine.invariants import Invariants
from tests.state_machine.roots import clean_up, has_damaged_file

TOPIC = "t"
LAG_MS = 6_000
SESSION_MS = 9_000
TIMEOUT_MS = 30_000
MERGE_LAG_MS = 60_000
WRITE_BACK_MS = 30_000
"""The time after which the kernel has written unsynced data to the disk, in ms."""
ERRORS = {
    "NONE",
    "NOT_LEADER_OR_FOLLOWER",
    "FENCED_LEADER_EPOCH",
    "UNKNOWN_LEADER_EPOCH",
    "LEADER_NOT_AVAILABLE",
    "NOT_ENOUGH_REPLICAS",
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
    "REQUEST_TIMED_OUT",
    "OUT_OF_ORDER_SEQUENCE_NUMBER",
    # By a process that was paused before its first poll.
    "UNKNOWN_TOPIC_OR_PARTITION",
}
"""The possible answers to a correct client."""

_MEMORY = "/dev/shm"
"""Linux's file system in memory."""
_STORY_BYTES = 256 << 20
"""The free space that a story needs at most, many times over."""

_CLUSTER_TABLES = {schema.name for schema in CLUSTER_TABLES}

_FORESEEN = (CommitConflictError, StorageError, OSError, DeltaError)
"""Errors with which a tick may fail and after which a broker goes on."""

_Method = TypeVar("_Method", bound=Callable[..., Any])


def _step(method: _Method) -> _Method:
    """Record the call, make it, and check the cluster; report the story if that fails."""

    @functools.wraps(method)
    def call(self: CheckedCluster, *args: Any, **options: Any) -> Any:
        named = [f"{name}={value!r}" for name, value in options.items() if value is not None]
        given = ", ".join([*map(repr, args), *named])
        self.story.append(f"cluster.{method.__name__}({given})")
        try:
            with self._machine():
                result = method(self, *args, **options)
                self.check()
        except Exception as error:
            self._on_failure(f"{self.script}# {type(error).__name__}: {error}")
            raise
        return result

    return cast(_Method, call)


class _Request(NamedTuple):
    """A request with its batch, and the root of its inbox: the broker, and the number of the
    root.
    """

    pending: PendingProduce
    partition: int
    values: list[bytes]
    producer: int | None
    addressed: tuple[int, int]
    first_sent_ms: int
    power_losses: int


class CheckedCluster:
    """A cluster of `brokers` brokers with one topic on all of them.

    Parameters: `on_failure` is called with the story, a script, before an error is raised; `syncs`,
    whether the brokers sync their files.
    """

    def __init__(
        self,
        brokers: int = 3,
        partitions: int = 1,
        min_isr: int = 1,
        unclean: bool = False,
        on_failure: Callable[[str], object] = print,
        *,
        syncs: bool = True,
    ) -> None:
        unsynced = "" if syncs else ", syncs=False"
        self.story = [
            "from tests.state_machine.checked_cluster import CheckedCluster",
            "",
            f"cluster = CheckedCluster({brokers}, {partitions}, {min_isr}, {unclean}{unsynced})",
        ]
        self._on_failure = on_failure
        self.ids = tuple(range(brokers))
        self.partitions = tuple(range(partitions))
        self._folder = tempfile.TemporaryDirectory(prefix="sparklog-", dir=_in_memory())
        self.root = Path(self._folder.name)
        for name in ("cluster", *(f"broker-{one}" for one in self.ids)):
            shutil.copytree(_empty_roots() / name, self.root / name)
        config = {
            "replica.lag.time.max.ms": LAG_MS,
            "broker.session.timeout.ms": SESSION_MS,
            "unclean.leader.election.enable": unclean,
            "min.insync.replicas": min_isr,
            "log.merger.min.lag.ms": MERGE_LAG_MS,
            "log.merger.min.batches": 2,
        }
        self.syncs = syncs
        self._files = FaultyFiles(self.root / "stash")
        options = None if syncs else {str(self.root): {"sync": "false"}}
        self._boot_id = self.root / "boot_id"
        self._boot_id.write_text("0")
        with self._machine():
            self._cluster = LocalCluster(
                self.root, brokers=self.ids, config=config, storage_options=options
            )
            assignment = {one: [*self.ids[one:], *self.ids[:one]] for one in self.partitions}
            self._cluster.create_topic(TOPIC, assignment=assignment)
            self._cluster.tick_until_idle()
        self._files.write_back(str(self.root))
        self.paused: set[int] = set()
        self.lost: set[int] = set()
        self._losses = dict.fromkeys(self.ids, 0)
        self._power_losses = dict.fromkeys(self.ids, 0)
        self._without_power: set[int] = set()
        self.zombies: dict[int, Broker] = {}
        self._producers: dict[int, LocalProducer] = {}
        self.requests: list[_Request] = []
        self._unanswered: set[int] = set()
        self._unclean_was_asked = False
        self._invariants = Invariants(self.root, self.ids, allows_unclean=unclean)
        self._invariants.check()

    @contextmanager
    def _machine(self) -> Iterator[None]:
        """Let brokers use the faulty file system, and a boot id that changes at a power loss."""
        real = unclean_start._BOOT_ID
        unclean_start._BOOT_ID = self._boot_id
        try:
            with self._files.installed():
                yield
        finally:
            unclean_start._BOOT_ID = real

    @property
    def script(self) -> str:
        """The story so far, as a script that repeats it."""
        return "\n".join([*self.story, ""])

    def close(self) -> None:
        """Close the cluster and remove its folder."""
        self._cluster.close()
        self._folder.cleanup()

    # --- brokers and requests ---------------------------------------------------------------

    def running(self) -> list[int]:
        """The brokers that have not crashed, including paused ones."""
        return sorted(self._cluster.brokers)

    def awake(self) -> list[int]:
        """The brokers that run and are not paused."""
        return [one for one in self.running() if one not in self.paused]

    def crashed(self) -> list[int]:
        """The brokers without a process."""
        return [one for one in self.ids if one not in self._cluster.brokers]

    def leader(self, partition: int) -> int:
        """The leader of a partition, or the first replica if it has no leader."""
        return self._leader(partition)

    def committed(self, partition: int) -> int:
        """The number of records that a partition has committed, deleted ones included."""
        return len(self._invariants.committed(partition))

    def controller(self) -> int:
        """The active controller."""
        return next(one for one, of in self._cluster.brokers.items() if of.is_controller)

    @property
    def failures(self) -> int:
        """The number of file calls that have failed on request."""
        return len(self._files.failed)

    def sendable(self) -> list[int]:
        """The requests whose batch files are still at their paths."""
        producible = self.producible()
        return [
            number
            for number, one in enumerate(self.requests)
            if self._is_whole(one) and one.partition in producible and self._may_retry(one)
        ]

    def producible(self) -> list[int]:
        """The partitions whose leader's inbox exists."""
        away = self.lost | self._without_power
        return [one for one in self.partitions if self._leader(one) not in away]

    def _is_there(self, request: _Request) -> bool:
        broker_id, losses = request.addressed
        return self._losses[broker_id] == losses

    def _is_whole(self, request: _Request) -> bool:
        """Whether the batch file is unchanged: a power loss may have removed or cut it."""
        [batch] = request.pending.batches
        root = self.root / f"broker-{request.addressed[0]}"
        file = root / "log" / batch.file.path
        return (
            self._is_there(request)
            and file.exists()
            and file.stat().st_size == batch.file.size_bytes
        )

    def _may_be_lost(self, request: _Request) -> bool:
        """Whether the request, or its answer, may be lost: it was not synced at a power loss."""
        lost_power = self._power_losses[request.addressed[0]] > request.power_losses
        return lost_power and not self.syncs

    def _may_retry(self, request: _Request) -> bool:
        """Whether a client still would: one without sequences gives up before batches are merged.

        Its last attempt is appended or refused within its timeout.
        """
        age_ms = self._cluster.clock.now_ms() - request.first_sent_ms
        return request.producer is not None or age_ms <= MERGE_LAG_MS - TIMEOUT_MS

    def _leader(self, partition: int) -> int:
        """The leader, or the broker whose inbox gets the file while there is no leader."""
        leader = self._invariants.leader(partition)
        return self.ids[partition] if leader is None else leader

    # --- steps ----------------------------------------------------------------------------------

    @_step
    def produce(
        self, partition: int, count: int, acks: Acks = "all", producer: int | None = None
    ) -> None:
        """Send a batch of `count` new values; `producer`, the number of an idempotent one."""
        self._produce(partition, count, acks, producer)

    def _produce(
        self, partition: int, count: int, acks: Acks = "all", producer: int | None = None
    ) -> None:
        values = [f"{len(self.requests)}.{one}".encode() for one in range(count)]
        if producer is not None and producer not in self._producers:
            self._producers[producer] = self._cluster.idempotent_producer()
        of = None if producer is None else self._producers[producer]
        leader = self._leader(partition)
        pending = self._cluster.produce(
            TOPIC, partition, values, acks=acks, timeout_ms=TIMEOUT_MS, producer=of
        )
        now_ms = self._cluster.clock.now_ms()
        self._sent(pending, partition, values, producer, leader, now_ms)

    @_step
    def retry(self, number: int) -> None:
        """Send the batch of request `number` once more, to the current leader."""
        request = self.requests[number]
        leader = self._leader(request.partition)
        again = self._cluster.retry(request.pending)
        of = request.partition, request.values, request.producer
        self._sent(again, *of, leader, request.first_sent_ms)

    def _sent(
        self,
        pending: PendingProduce,
        partition: int,
        values: list[bytes],
        producer: int | None,
        leader: int,
        first_sent_ms: int,
    ) -> None:
        if pending.acks != 0:
            self._unanswered.add(len(self.requests))
        addressed = leader, self._losses[leader]
        power_losses = self._power_losses[leader]
        of = pending, partition, values, producer
        request = _Request(*of, addressed, first_sent_ms, power_losses)
        self.requests.append(request)

    @_step
    def leader_tick(self, broker_id: int, stop_after: str | None = None) -> None:
        """Run a broker's leader tick; a paused broker acts on its earlier reads."""
        self._cluster.leader_tick(broker_id, stop_after)

    @_step
    def follower_tick(self, broker_id: int, stop_after: str | None = None) -> None:
        """Run a broker's follower tick; a paused broker acts on its earlier reads."""
        self._cluster.follower_tick(broker_id, stop_after)

    @_step
    def controller_tick(self, stop_after: str | None = None) -> None:
        """Let the brokers observe and the controller act."""
        self._cluster.controller_tick(stop_after)

    @_step
    def merge(self, broker_id: int, stop_after: str | None = None) -> None:
        """Let a broker merge its batches, after the time from which they are old enough."""
        self._cluster.clock.advance(MERGE_LAG_MS)
        self._cluster.merge(broker_id, stop_after)

    @_step
    def merge_during(self, broker_id: int, role: str, other_id: int) -> None:
        """Run a tick of this broker or another between the write of a merged file and its
        commit.
        """
        self._cluster.clock.advance(MERGE_LAG_MS)
        with _before_commit_of_merge(lambda: getattr(self._cluster, role)(other_id)):
            self._cluster.merge(broker_id)

    @_step
    def delete_records(self, partition: int, offset: int) -> None:
        """Request to delete the records before an offset; -1 stands for the high watermark."""
        committed = len(self._invariants.committed(partition))
        self._invariants.expect_deletion(partition, committed if offset == -1 else offset)
        self._cluster.delete_records({TopicPartition(TOPIC, partition): offset})

    @_step
    def tick_until_idle(self) -> None:
        """Let the brokers that are awake tick until they are idle."""
        self._cluster.tick_until_idle()

    @_step
    def tick_during(
        self, role: str, broker_id: int, before_rule: str, other_role: str, other_id: int
    ) -> None:
        """Run another tick within a tick, just before a rule runs in it (if it does)."""

        def other() -> None:
            if other_role == "controller_tick":
                self._cluster.controller_tick()
            else:
                getattr(self._cluster, other_role)(other_id)

        with _before_rule(before_rule, other):
            getattr(self._cluster, role)(broker_id)

    @_step
    def faulty_tick(
        self, role: str, broker_id: int, folder: str, failure: Failure, skip: int = 0
    ) -> None:
        """Run a broker's tick while a file call fails.

        Parameters: `role`, the method of `Broker`; `folder`, a table of the broker's root or of the
        cluster's with `/_delta_log` for its commits; `skip`, the number of calls before the one
        that fails.
        """
        if role == "merge":
            self._cluster.clock.advance(MERGE_LAG_MS)
        self._files.fail(self._place(broker_id, folder), failure, skip)
        if failure == "unread":
            self._invariants.fail_reads(broker_id)
        self._act(self._cluster.brokers[broker_id], role)
        self._files.calm()

    @_step
    def suspend(
        self,
        role: str,
        broker_id: int,
        folder: str,
        takes_over: bool = False,
        cleans_up: bool = False,
    ) -> None:
        """Suspend a broker's process within a tick, before it commits to a table.

        The others go on: its session expires, records are produced and replicated. Then it wakes up
        and commits.

        Parameters: as `faulty_tick`; `takes_over`, whether a newer process of the broker starts;
        `cleans_up`, whether the old commits of all tables are removed.
        """
        process = self._cluster.brokers[broker_id]

        def others() -> None:
            process.is_paused = True
            self._cluster.clock.advance(SESSION_MS + 1)
            self._cluster.controller_tick()
            if takes_over:
                self._cluster.crash(broker_id)
                self._restart(broker_id)
            self.check()
            for partition in self.producible():
                self._produce(partition, 1)
            self._cluster.tick_until_idle()
            self.check()
            if cleans_up:
                # As before Delta's clean-up.
                for awake in self.awake():
                    self._cluster.brokers[awake]._write_checkpoints()
                self._clean_up("cluster", *(f"broker-{one}" for one in self.ids))
            process.is_paused = False

        if role == "merge":
            self._cluster.clock.advance(MERGE_LAG_MS)
        self._files.before_link(self._place(broker_id, folder), others)
        self._act(process, role)
        self._files.calm()

    def _place(self, broker_id: int, folder: str) -> str:
        is_of_cluster = folder.removesuffix("/_delta_log") in _CLUSTER_TABLES
        return str(self.root / ("cluster" if is_of_cluster else f"broker-{broker_id}") / folder)

    def _act(self, process: Broker, role: str) -> bool:
        """Let a process tick as the application does: a tick that fails is repeated later.

        Returns whether the process ended.
        """
        try:
            getattr(process, role)()
        except (FencedError, StoppedError):
            if self._cluster.brokers.get(process.broker_id) is process:
                self._cluster.crash(process.broker_id)
            return True
        except _FORESEEN:
            return False
        return False

    @_step
    def clean_up(self, *roots: str) -> None:
        """Write Delta's checkpoint of every table of these roots and remove the commits before it.

        Of a journal only the commits are removed that the checkpoint tables describe.
        """
        self._clean_up(*roots)

    def _clean_up(self, *roots: str) -> None:
        for root in roots:
            clean_up(self.root / root)
            self._invariants.clean_up(self.root / root)

    @_step
    def lose_power(self, broker_id: int, names: Kept = "none", content: Kept = "none") -> None:
        """Cut the power of a broker's machine: its process ends and unsynced data is lost."""
        if broker_id in self._cluster.brokers:
            self._cluster.crash(broker_id)
        self.zombies.pop(broker_id, None)
        self._files.lose_power(str(self.root / f"broker-{broker_id}"), names, content)
        self._power_losses[broker_id] += 1
        self._without_power.add(broker_id)
        self._invariants.lose_power(broker_id, syncs=self.syncs)

    @_step
    def advance(self, ms: int) -> None:
        """Let time pass."""
        self._cluster.clock.advance(ms)
        if ms > WRITE_BACK_MS:
            self._files.write_back(str(self.root))

    @_step
    def crash(self, broker_id: int) -> None:
        """Stop a broker's process."""
        self._cluster.crash(broker_id)

    @_step
    def restart(self, broker_id: int) -> None:
        """Start a broker's process again, with a new root if the old one is lost."""
        self._restart(broker_id)

    def _restart(self, broker_id: int) -> None:
        self._boot_id.write_text(str(self._power_losses[broker_id]))
        root = self.root / f"broker-{broker_id}"
        if not self.syncs and self._power_losses[broker_id] and has_damaged_file(root):
            # The invariants read every batch, before the scrub has found the damaged ones.
            self._lose_root(broker_id)
        try:
            self._cluster.restart(broker_id)
        except (StorageError, DeltaError):
            # The documented remedy for a root that a power loss has damaged.
            if self.syncs or not self._power_losses[broker_id]:
                raise
            self._lose_root(broker_id)
            self._cluster.restart(broker_id)
        self.lost.discard(broker_id)
        self._without_power.discard(broker_id)
        self._invariants.regain(broker_id)

    @_step
    def pause(self, broker_id: int) -> None:
        """Suspend a broker's process."""
        self._cluster.pause(broker_id)
        self.paused.add(broker_id)

    @_step
    def resume(self, broker_id: int) -> None:
        """Resume a broker's process."""
        self.paused.discard(broker_id)
        self._cluster.resume(broker_id)

    @_step
    def wake(self, broker_id: int) -> None:
        """Resume a broker's process: it has read the changes, and not sent a heartbeat."""
        self.paused.discard(broker_id)
        process = self._cluster.brokers[broker_id]
        process.is_paused = False
        process.poll()

    @_step
    def fence(self, broker_id: int) -> None:
        """Let the session of a crashed or paused broker expire."""
        self._cluster.fence(broker_id)

    @_step
    def replace_process(self, broker_id: int) -> None:
        """Start a newer process of a broker; the older one is suspended and will act once more."""
        self._cluster.pause(broker_id)
        zombie = self._cluster.brokers[broker_id]
        self._cluster.crash(broker_id)
        self._restart(broker_id)
        self.zombies[broker_id] = zombie

    @_step
    def zombie_tick(self, broker_id: int, role: str) -> None:
        """Let the older process of a broker act on its earlier reads; it ends when it is fenced."""
        zombie = self.zombies.get(broker_id)
        if zombie is not None and self._act(zombie, role):
            del self.zombies[broker_id]

    @_step
    def lose_root(self, broker_id: int) -> None:
        """Stop a broker's process and delete its tables."""
        self._lose_root(broker_id)

    def _lose_root(self, broker_id: int) -> None:
        if broker_id in self._cluster.brokers:
            self._cluster.crash(broker_id)
        shutil.rmtree(self.root / f"broker-{broker_id}")
        self.lost.add(broker_id)
        self._losses[broker_id] += 1
        self.zombies.pop(broker_id, None)
        self._invariants.lose(broker_id)

    @_step
    def elect(self, election_type: ElectionType, partition: int) -> None:
        """Run an election by an administrator."""
        self._unclean_was_asked = election_type == "unclean"
        self._cluster.elect_leaders(election_type, [(TOPIC, partition)])

    @_step
    def reassign(self, partition: int, target: Sequence[int] | None) -> None:
        """Request other brokers for a partition, or cancel that."""
        asked = {TopicPartition(TOPIC, partition): target}
        [altered] = self._cluster.alter_partition_reassignments(asked).values()
        allowed = {"NONE", "INVALID_REPLICA_ASSIGNMENT"}
        if target is None:
            allowed.add("NO_REASSIGNMENT_IN_PROGRESS")
        assert altered.error in allowed, altered

    @_step
    def consume(self, partition: int) -> None:
        """Read the committed records; a consumer reads at least as far as others did, or gets an
        error.
        """
        try:
            records = self._cluster.consume(TOPIC, partition)
        except ProtocolError as error:
            if not error.code.retriable:
                raise
            return
        committed = self._invariants.committed(partition)
        values = [record.value or b"" for record in records]
        first = records[0].offset if records else 0
        assert self._invariants.has_committed(partition, first, values), (
            f"{values} are shown from {first} on, {committed} committed"
        )
        offsets = [record.offset for record in records]
        assert offsets == list(range(first, first + len(records)))

    @_step
    def bring_back(self) -> None:
        """Restart all brokers and let them tick until they are idle."""
        self._bring_back()

    def _bring_back(self) -> None:
        self.zombies.clear()
        for broker_id in sorted(self.paused & set(self.running())):
            self._cluster.resume(broker_id)
        self.paused.clear()
        for broker_id in self.crashed():
            self._restart(broker_id)
        self._rest()

    @_step
    def come_to_rest(self) -> None:
        """Restart all brokers: the replicas become equal, and every request is answered."""
        self._bring_back()
        # A controller whose process failed to renew its lease is replaced after a session.
        self._cluster.clock.advance(SESSION_MS + 1)
        self._rest()
        for partition in self.partitions:
            self._elect_uncleanly_if_nobody_is_left(partition)
        self._rest()
        # A follower that has left the ISR joins by a report that it has not made yet.
        self._cluster.clock.advance(LAG_MS // 3)
        self._rest()
        self._invariants.check_at_rest()
        self._cluster.clock.advance(TIMEOUT_MS + 1)
        self._rest()
        # By now what could not be read has been copied again.
        self._invariants.expect_sound_replicas()
        self._invariants.check_at_rest()
        for number in sorted(self._unanswered):
            request = self.requests[number]
            is_excused = not self._is_there(request) or self._may_be_lost(request)
            assert is_excused, f"request {number} is not answered"

    def _rest(self) -> None:
        self._cluster.tick_until_idle()
        self.check()

    def _elect_uncleanly_if_nobody_is_left(self, partition: int) -> None:
        state = self._cluster.partition(TOPIC, partition)
        if state.leader is None:
            assert not state.isr, f"offline, although {state.isr} are in sync and alive"
            self._unclean_was_asked = True
            self._cluster.elect_leaders("unclean", [(TOPIC, partition)])
            self.check()

    # --- checks ---------------------------------------------------------------------------------

    def check(self) -> None:
        """Check the tables, and the answers so far, against the earlier state."""
        self.paused &= set(self.running())
        self._invariants.check(unclean_was_asked=self._unclean_was_asked)
        self._unclean_was_asked = False
        for number in sorted(self._unanswered):
            request = self.requests[number]
            if not self._is_there(request):
                continue
            response = request.pending.response
            if response is not None:
                self._unanswered.discard(number)
                self._check_answer(number, request, response)

    def _check_answer(self, number: int, request: _Request, response: ProduceResponse) -> None:
        lost_power = self._power_losses[request.addressed[0]] > request.power_losses
        # Its file was not synced before it was committed.
        is_lost = lost_power and response.error == "CORRUPT_MESSAGE"
        assert is_lost or response.error in ERRORS, f"request {number} is answered with {response}"
        if response.error == "OUT_OF_ORDER_SEQUENCE_NUMBER":
            assert request.producer is not None, "not an idempotent producer's"
        if response.error != "NONE":
            return
        count = response.last_offset - response.base_offset + 1
        assert count == len(request.values), f"request {number} is answered with {response}"
        self._invariants.check_appended(request.partition, response.base_offset, request.values)
        epoch = request.pending.batches[0].state.leader_epoch
        if request.pending.acks == 1 or epoch < self._invariants.unclean_epoch(request.partition):
            return
        at = request.partition, response.base_offset
        assert self._invariants.has_committed(*at, request.values), (
            f"9.1: request {number} is answered with {response}, but committed are "
            f"{self._invariants.committed(request.partition)}"
        )


def _in_memory() -> str | None:
    """Return a folder in memory with enough space for a story, or `None`.

    Nothing is lost by it: `FaultyFiles` decides what a power loss leaves.
    """
    try:
        has_space = shutil.disk_usage(_MEMORY).free >= _STORY_BYTES
    except OSError:
        return None
    return _MEMORY if has_space and os.access(_MEMORY, os.W_OK) else None


@functools.cache
def _empty_roots() -> Path:
    """The roots of a newly created cluster of three brokers; copying them is faster than creating
    them.
    """
    folder = Path(tempfile.mkdtemp(prefix="sparklog-", dir=_in_memory()))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    cluster = ClusterRoot.create(Location.of(str(folder / "cluster")))
    for broker in range(3):
        BrokerRoot.create(Location.of(str(folder / f"broker-{broker}")), cluster.cluster_id, broker)
    return folder


@contextmanager
def _before_commit_of_merge(action: Callable[[], object]) -> Iterator[None]:
    """Run `action` once, when merged files have been written and not yet committed."""
    merge = DriverExecution.merge
    waiting = [action]

    def interposed(self: DriverExecution, merges: Sequence[Merge]) -> list[Batch | str]:
        found = merge(self, merges)
        if waiting:
            waiting.pop()()
        return found

    DriverExecution.merge = interposed  # type: ignore[method-assign]
    try:
        yield
    finally:
        DriverExecution.merge = merge  # type: ignore[method-assign]


@contextmanager
def _before_rule(name: str, action: Callable[[], None]) -> Iterator[None]:
    """Run `action` once, just before the rule of this name runs next."""
    run = DriverRules.run
    waiting = [action]

    def interposed(self: DriverRules, rule: str, **inputs: Any) -> list[dict[str, Any]]:
        if rule == name and waiting:
            waiting.pop()()
        return run(self, rule, **inputs)

    DriverRules.run = interposed  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        DriverRules.run = run  # type: ignore[method-assign]
