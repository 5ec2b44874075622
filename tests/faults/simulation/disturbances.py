"""Disturbances between the rounds of a story: what goes wrong in a cluster, and what operators do.

Some are single faults, such as a kill. Others are sequences that random faults meet too seldom: a
leader that is lost after its answer and before a follower's copy, replicas that die one after the
other, a commit that lands after clean-up has removed its predecessor.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from tests.faults.simulation.script import Event, Step
from tests.faults.simulation.world import BROKERS, PRODUCERS, READER, Shape, process_names

Events = tuple[Event, ...]

_LONG_PAUSES_MS = (7_000, 12_000, 12_000, 70_000)
"""The longer pauses, without the longest one of the cluster's shape."""
_JUMPS_MS = (0, 0, -3_600_000, -5_000, 5_000, 3_600_000)
_SESSION_MS = 12_000
"""Longer than the session of a broker on a clock that drifts."""
_MERGE_MS = 70_000
"""Longer than the age at which batches are merged."""
_OUTCOMES_OF_CLEANING = ("kill", "suspend", "refused", "unknown", "landed", "died")
_STATES_OF_DAMAGED = ("running", "running", "suspended", "killed", "killed", "alone")
_FOCUS_WEIGHT = 15
"""A weight that makes the disturbance in focus about a third of all."""
_SECOND = "b"
"""The slot of a broker's second process, which may run beside the first one."""
_FAILED_COMMITS = (*("refused",) * 4, *("unknown",) * 2, "landed", "repeated", "died", "suspend")
_FAILED_COMMITS_ON_STORES = (*_FAILED_COMMITS, *("late",) * 3)


class Disturbances:
    """Draws disturbances; each is a list of steps.

    A script does not know who leads, so the steps name actors: the step `cast` at the beginning
    makes the leader of a partition actor 0, and the other brokers actors 1 and 2. They keep these
    names until the next cast, also when another broker leads.

    Parameters: `events` draws the faults of a step; `focus`, a number, chooses the kind of
    disturbance that is drawn most often, so that consecutive numbers have each kind as theirs.
    """

    def __init__(
        self, chance: random.Random, shape: Shape, events: Callable[[], Events], focus: int
    ) -> None:
        self._chance, self._shape, self._events = chance, shape, events
        self._pauses_ms = (*_LONG_PAUSES_MS, shape.longest_pause_ms)
        self._kinds: dict[str, tuple[int, Callable[[], Sequence[Step]]]] = {
            "pause": (4, self._pause),
            "kill": (3, self._kill),
            "stop": (1, self._stop),
            "park": (1, self._park),
            "second process": (3, self._second_process),
            "power": (3, self._power),
            "jump": (1, self._jump),
            "elect": (2, self._elect),
            "upkeep": (2, self._upkeep),
            "client": (1, self._client),
            "lost leader": (3, self._lost_leader),
            "one after the other": (2, self._one_after_the_other),
            "failed commit": (3, self._failed_commit),
            "truncation": (3, self._truncation),
            "late commit": (2, self._late_commit),
            "delete": (1, self._delete),
            "reassign": (1, self._reassign),
            "old epoch": (2, self._old_epoch),
            "late retry": (2, self._late_retry),
            "rest": (2, lambda: [Step("machine", "rest")]),
        }
        if shape.is_compacted:
            self._kinds["compaction"] = (8, self._compaction)
        if shape.has_bit_flips:
            self._kinds["bit flip"] = (15, self._bit_flip)
        if shape.has_damaged_tables:
            self._kinds["damaged table"] = (15, self._damaged_table)
        if shape.has_replaced_processes:
            self._kinds["replaced process"] = (4, self._replaced_process)
        if shape.has_cut_leaders:
            self._kinds["cut leader"] = (8, self._cut_leader)
        self._focus = list(self._kinds)[focus % len(self._kinds)]

    def any(self) -> Sequence[Step]:
        """Return the steps of a random disturbance."""
        weights = [
            weight + (_FOCUS_WEIGHT if name == self._focus else 0)
            for name, (weight, _) in self._kinds.items()
        ]
        [(_, drawn)] = self._chance.choices(list(self._kinds.values()), weights)
        return [Step("machine", "cast", (self._partition(),)), *drawn()]

    # --- single faults --------------------------------------------------------------------------

    def _pause(self) -> list[Step]:
        return [self._advance(self._chance.choice(self._pauses_ms)), *self._elections()]

    def _kill(self) -> list[Step]:
        broker = self._any_broker()
        steps = [Step(_name(broker), "kill")]
        if self._happens(0.5):
            steps += self._pause()
        return [*steps, *([Step(_name(broker), "start")] if self._happens(0.5) else [])]

    def _stop(self) -> list[Step]:
        return [Step(_name(self._any_broker()), "stop", (), self._events()), *self._elections()]

    def _park(self) -> list[Step]:
        """A scheduled run ends, and the next one begins after a while."""
        broker = self._any_broker()
        parked = Step(_name(broker), "park", (), self._events())
        return [parked, self._advance(self._chance.choice(self._pauses_ms)), *self._sends()]

    def _power(self) -> list[Step]:
        """The power of one machine fails, now or while its broker makes a commit."""
        broker = self._any_broker()
        steps: list[Step] = []
        if self._happens(0.6):
            steps += [*self._sends(), *self._ticks("leader_tick", "follower_tick", "leader_tick")]
            steps += self._polls()
        lost = self._chance.randrange(3), self._chance.randrange(3)
        steps.append(Step(_name(broker), "power", lost))
        if self._happens(0.4):
            steps += [self._advance(_SESSION_MS), *self._elections(without=(broker,))]
        steps.append(Step(_name(broker), "start"))
        if self._happens(0.5):
            # It leads, or is followed, with what the disk has kept.
            steps += self._ticks("heartbeat", "controller_tick", "leader_tick", "follower_tick")
        return steps

    def _jump(self) -> list[Step]:
        jumped = self._chance.choice(process_names())
        return [Step(jumped, "jump", (self._chance.choice(_JUMPS_MS),))]

    def _elect(self) -> list[Step]:
        return [Step("admin", "elect", (self._partition(),), self._events())]

    def _upkeep(self) -> list[Step]:
        done = self._chance.choice(("merge", "merge", "vacuum"))
        steps = [Step(_name(self._any_broker()), done, (), self._events())]
        return [self._advance(_MERGE_MS), *self._ticks("heartbeat"), *steps]

    def _compaction(self) -> list[Step]:
        """Some brokers clean their logs, and one is lost before it has come to an end with that.

        So replicas are cleaned differently far, when they follow or lead one another afterwards.
        """
        steps: list[Step] = []
        for _ in range(self._chance.randint(1, 3)):
            steps += [*self._sends(), *self._ticks("leader_tick", "follower_tick", "leader_tick")]
            steps += self._polls()
        steps += [self._advance(_MERGE_MS), *self._ticks("heartbeat", "controller_tick")]
        steps += self._ticks("leader_tick", "follower_tick", "leader_tick")
        brokers = self._chance.sample(range(BROKERS), self._chance.randint(1, BROKERS))
        for one in brokers:
            events: tuple[Event, ...] = ()
            if self._happens(0.4):
                number = int(self._chance.expovariate(1 / 8)) + 1
                events = (Event(number, self._chance.choice(_OUTCOMES_OF_CLEANING)),)
            steps.append(Step(_name(one), "clean", (), events))
        lost = self._any_broker()
        if self._happens(0.5):
            steps += [*self._sends(), *self._ticks("leader_tick")]
            steps += [Step(_name(lost), "kill"), self._advance(_SESSION_MS)]
            steps += [*self._elections(without=(lost,)), *self._sends()]
            steps += self._ticks("leader_tick", "follower_tick", "leader_tick", without=(lost,))
        steps += [Step(_name(one), "resume") for one in brokers]
        steps += [Step(_name(one), "start") for one in sorted({lost, *brokers})]
        return [*steps, *self._ticks("heartbeat", "follower_tick", "leader_tick"), *self._polls()]

    def _bit_flip(self) -> list[Step]:
        """A bit of a file flips, and others work with its broker; it may be repaired soon."""
        broker, partition = self._any_broker(), self._partition()
        steps = [*self._revived(), *self._elections()]
        for _ in range(2):
            steps += [*self._sends(), *self._ticks("leader_tick", "follower_tick", "leader_tick")]
        drawn = partition, self._chance.randrange(1_000_000)
        steps.append(Step(_name(broker), "flip", drawn))
        if self._happens(0.3):
            lost = self._any_broker()
            steps += [Step(_name(lost), "kill"), self._advance(_SESSION_MS)]
            steps += [*self._elections(without=(lost,)), Step(_name(lost), "start")]
        for _ in range(self._chance.randint(1, 3)):
            steps += [*self._sends(), Step("consumer-0", "read", (partition,), self._events())]
            for role in ("leader_tick", "follower_tick", "leader_tick"):
                steps += [*self._ticks(role), *self._reads_on()]
            steps += [*self._polls(), self._advance(self._chance.choice((1_000, 10_000)))]
        if self._happens(0.3):
            role = self._chance.choice(("merge", "clean", "vacuum"))
            steps += [self._advance(_MERGE_MS), *self._ticks("heartbeat", "controller_tick", role)]
        if self._happens(0.7):
            for _ in range(2):
                steps.append(Step("admin", "repair", (0,), self._events()))
                steps += [Step("admin", "resume"), *self._ticks("follower_tick", "leader_tick")]
        return [*steps, *self._elections(), *self._sends(), *self._polls()]

    def _cut_leader(self) -> list[Step]:
        """A leader finds a flipped bit, is deposed, and cuts its log below what a reader has read.

        The reader loads the metadata before, and reads on by them afterwards.
        """
        leader, partition = 0, self._partition()
        steps = [*self._revived(), *self._elections()]
        for _ in range(2):
            steps += [*self._sends(), *self._ticks("leader_tick", "follower_tick", "leader_tick")]
            steps += [*self._polls(), *self._reads_on()]
        steps.append(Step("machine", "cast", (partition,)))
        drawn = partition, self._chance.randrange(1_000_000)
        steps += [Step(_name(leader), "flip", drawn), self._advance(1_000), *self._reads_on()]
        for _ in range(2):
            steps += [*self._only(leader, "leader_tick"), *self._ticks("controller_tick")]
        steps += [*self._only(leader, "leader_tick"), *self._reads_on(), self._advance(1_000)]
        steps += [*self._reads_on(), *self._ticks("leader_tick", "follower_tick", "leader_tick")]
        return [*steps, Step("admin", "repair", (0,)), *self._elections(), *self._reads_on()]

    def _damaged_table(self) -> list[Step]:
        """A file of a table's log is damaged while a broker runs, is suspended, or is down: in its
        root, or in the cluster root.

        Others may fail before the repair. A repair may be interrupted and is played again.
        """
        broker = self._any_broker()
        steps = [*self._revived(), *self._elections()]
        for _ in range(2):
            steps += [*self._sends(), *self._ticks("leader_tick", "follower_tick", "leader_tick")]
            steps += self._polls()
        state = self._chance.choice(
            ("running", "running", "suspended", "killed", "killed", "alone")
        )
        if state == "suspended":
            at = Event(int(self._chance.expovariate(1 / 8)) + 1, "suspend")
            steps.append(Step(_name(broker), "leader_tick", (), (at,)))
        where = "machine" if self._happens(0.3) else _name(broker)
        damaged = Step(where, "damage", (self._chance.randrange(1_000_000),))
        if state == "killed" and self._happens(0.5):
            steps += [Step(_name(broker), "kill"), damaged]
        else:
            steps.append(damaged)
            if state == "killed":
                steps.append(Step(_name(broker), "kill"))
        if state == "alone":
            steps += self._is_left_alone(broker)
        elif state != "running" and self._happens(0.7):
            steps += [self._advance(_SESSION_MS), *self._elections(without=(broker,))]
        lost = self._any_broker()
        if self._happens(0.3):
            steps += [Step(_name(lost), "kill"), self._advance(_SESSION_MS)]
            steps += [*self._elections(without=(lost,))]
        for _ in range(self._chance.randint(1, 3)):
            steps += [*self._sends(), *self._ticks("leader_tick", "follower_tick", "leader_tick")]
            steps += [*self._polls(), self._advance(self._chance.choice((1_000, 10_000)))]
            if self._happens(0.3):
                steps += [Step(_name(broker), "resume"), Step(_name(broker), "start")]
        if self._happens(0.8):
            for _ in range(2):
                steps += [Step("admin", "repair", (0,), self._events()), Step("admin", "resume")]
                steps += self._ticks("heartbeat", "follower_tick", "leader_tick")
        return [*steps, *self._revived(), *self._elections(), *self._sends(), *self._polls()]

    def _is_left_alone(self, broker: int) -> list[Step]:
        """A broker goes on alone, and is lost when the others return: it has the only records."""
        others = [one for one in range(BROKERS) if one != broker]
        steps = [Step(_name(one), "kill") for one in others]
        for _ in range(2):
            steps += [self._advance(_SESSION_MS)]
            steps += self._only(broker, "heartbeat", "controller_tick", "leader_tick")
        for _ in range(2):
            steps += [*self._sends(), *self._only(broker, "leader_tick"), *self._polls()]
        steps += [Step(_name(broker), "kill"), *(Step(_name(one), "start") for one in others)]
        return [*steps, self._advance(_SESSION_MS), *self._elections(without=(broker,))]

    def _client(self) -> list[Step]:
        readers = ("consumer-0", READER) if self._shape.has_public_clients else ("consumer-0",)
        return [Step(self._chance.choice((*PRODUCERS, *readers)), "kill")]

    def _delete(self) -> list[Step]:
        """An administrator deletes the oldest records."""
        asked = self._partition(), self._chance.randrange(1, 4)
        return [Step("admin", "delete", asked, self._events()), *self._ticks("leader_tick")]

    def _reassign(self) -> list[Step]:
        """An administrator moves a partition to other brokers, and may change their mind."""
        count = self._chance.randint(1, BROKERS)
        target = self._chance.sample(range(BROKERS), count)
        asked = self._partition(), *target
        steps = [Step("admin", "reassign", asked, self._events())]
        for role in ("follower_tick", "leader_tick", "controller_tick"):
            steps += [*self._ticks(role), *self._reads_on()]
        if self._shape.has_public_clients:
            # The deposed leader removes its replica.
            steps += [*self._ticks("leader_tick"), *self._reads_on()]
        if self._happens(0.2):
            steps.append(Step("admin", "reassign", asked[:1], self._events()))
        return steps

    # --- sequences ------------------------------------------------------------------------------

    def _lost_leader(self) -> list[Step]:
        """Leaders append and may answer; one is lost for longer than a session; then it returns."""
        broker = 0 if self._happens(0.7) else self._any_broker()
        steps = [*self._sends(), *self._ticks("leader_tick", "leader_tick"), *self._polls()]
        if self._happens(0.3):
            steps += [*self._ticks("follower_tick", "leader_tick"), *self._polls()]
        if self._happens(0.4):
            steps += [*self._sends(), *self._ticks("leader_tick"), *self._polls()]
        if self._happens(0.7):
            steps.append(Step(_name(broker), "kill"))
        steps += [self._advance(_SESSION_MS), *self._elections(without=(broker,))]
        others = broker, self._events() if self._happens(0.3) else ()
        for _ in range(self._chance.randint(1, 3)):
            steps += self._sends()
            steps += self._ticks("leader_tick", "follower_tick", "leader_tick", without=others[:1])
            steps += self._polls()
        back = [Step(_name(broker), "start"), *self._ticks("heartbeat", "follower_tick")]
        return [*steps, *back, Step(_name(broker), "follower_tick", (), others[1])]

    def _one_after_the_other(self) -> list[Step]:
        """Brokers are lost one after the other; the first one returns before the last one goes."""
        first, second, third = self._chance.sample(range(BROKERS), BROKERS)
        steps = [*self._sends(), *self._ticks("leader_tick", "follower_tick", "leader_tick")]
        for lost, without in ((first, (first,)), (second, (first, second))):
            steps += [Step(_name(lost), "kill"), self._advance(_SESSION_MS)]
            steps += [*self._elections(without=without), *self._sends()]
            steps += [*self._ticks("leader_tick", without=without), *self._polls()]
        steps += [Step(_name(first), "start"), *self._only(first, "heartbeat", "controller_tick")]
        steps += [Step(_name(third), "kill"), self._advance(_SESSION_MS)]
        for _ in range(2):
            steps += self._only(first, "heartbeat", "controller_tick", "leader_tick")
        steps += [self._advance(_SESSION_MS), Step(_name(second), "start")]
        for _ in range(2):
            steps += self._ticks("heartbeat", "controller_tick", without=(third,))
        return [*steps, Step(_name(third), "start"), *self._elections()]

    def _failed_commit(self) -> list[Step]:
        """The commit of a tick fails in some way while requests are waiting."""
        steps = [*self._sends(), *self._sends()]
        role = self._chance.choice(("leader_tick", "leader_tick", "follower_tick"))
        if role == "follower_tick":
            steps += self._ticks("leader_tick")
        for broker in range(BROKERS):
            # The leader's first commit appends what the producers have sent.
            number = 1 if broker == 0 else self._chance.randint(1, 2)
            kind = "commit" if broker == 0 else self._chance.choice(("commit", "link"))
            outcomes = _FAILED_COMMITS_ON_STORES if self._shape.is_on_store else _FAILED_COMMITS
            event = Event(number, self._chance.choice(outcomes), kind)
            steps.append(Step(_name(broker), role, (), (event,)))
        steps += [*self._polls(), *self._ticks("leader_tick", "follower_tick", "leader_tick")]
        steps += [*self._polls(), *self._revived()]
        # Processes that go on with what they remember of the failure answer all requests.
        return [*steps, *([Step("machine", "rest")] if self._happens(0.6) else [])]

    def _truncation(self) -> list[Step]:
        """A follower that does not know the latest high watermark begins a leader epoch.

        It ends, or is suspended, after one of its commits, and another replica is lost.
        """
        restarted = self._chance.randrange(1, BROKERS)
        lost = 0 if self._happens(0.7) else BROKERS - restarted
        steps = [*self._sends(), *self._ticks("leader_tick", "follower_tick", "leader_tick")]
        steps += [*self._polls(), Step(_name(restarted), "kill")]
        if self._happens(0.5):
            steps += [self._advance(_SESSION_MS), *self._elections(without=(restarted,))]
        steps.append(Step(_name(restarted), "start"))
        if self._happens(0.5):
            steps += self._elections()
        ends = Event(self._chance.randint(2, 3), self._chance.choice(("kill", "suspend")), "commit")
        steps.append(Step(_name(restarted), "follower_tick", (), (ends,)))
        steps += [Step(_name(lost), "kill"), Step(_name(restarted), "start")]
        steps += [self._advance(_SESSION_MS), *self._elections(without=(lost,))]
        steps += self._ticks("leader_tick", "follower_tick", "leader_tick", without=(lost,))
        return [*steps, Step(_name(lost), "start"), *self._revived()]

    def _old_epoch(self) -> list[Step]:
        """A leader that was suspended through an election has requests, and acts on them.

        Another broker, which may be the new leader, is restarted in between.
        """
        broker, other = 0, self._chance.randrange(1, BROKERS)
        steps = [*self._ticks("heartbeat"), *self._sends(), self._advance(_SESSION_MS)]
        steps += self._elections(without=(broker,))
        if self._happens(0.6):
            steps += [Step(_name(other), "kill"), Step(_name(other), "start")]
        steps += [*self._sends(), *self._ticks("leader_tick", without=(broker,))]
        roles = ["leader_tick", "follower_tick", "heartbeat", "leader_tick"]
        if self._happens(0.5):
            self._chance.shuffle(roles)
        steps += self._only(broker, *roles)
        for _ in range(self._chance.randint(1, 2)):
            steps += self._ticks("follower_tick", "leader_tick")
        steps += [*self._polls(), Step("admin", "elect", (self._partition(),)), *self._sends()]
        return [*steps, *self._ticks("leader_tick", "follower_tick", "leader_tick"), *self._polls()]

    def _late_retry(self) -> list[Step]:
        """A batch without an answer is replicated, merged by the next leader, and sent again."""
        lost = self._any_broker()
        steps = [*self._sends(), *self._ticks("leader_tick", "follower_tick", "leader_tick")]
        steps += [*self._polls(), *self._sends(), *self._ticks("leader_tick", "follower_tick")]
        steps += [Step(_name(lost), "kill"), self._advance(_SESSION_MS)]
        steps += [*self._elections(without=(lost,)), *self._ticks("leader_tick", "follower_tick")]
        steps += [*self._ticks("leader_tick"), self._advance(_MERGE_MS), *self._ticks("heartbeat")]
        steps += self._ticks("controller_tick", "leader_tick", "merge")
        for _ in range(2):
            steps += [*self._polls(), *self._ticks("leader_tick", "follower_tick", "leader_tick")]
        return [*steps, *self._polls(), Step(_name(lost), "start")]

    def _late_commit(self) -> list[Step]:
        """A process is suspended before a commit; it commits after clean-up of the old commits."""
        broker = self._any_broker()
        first = _name(broker)
        role = self._chance.choice(("leader_tick", "follower_tick", "heartbeat"))
        kind = self._chance.choice(("commit", "commit", "link"))
        steps = [*self._sends(), *self._ticks("leader_tick"), *self._sends()]
        steps.append(Step(first, role, (), (Event(1, "suspend", kind),)))
        steps += [self._advance(_SESSION_MS), *self._elections(without=(broker,))]
        second = f"actor-{broker}{_SECOND}"
        takes_over = self._happens(0.7)
        if takes_over:
            steps += [Step(second, "start"), *self._sends()]
            for _ in range(2):
                steps += self._ticks("leader_tick", "follower_tick", without=(broker,))
                steps += [Step(second, "follower_tick"), Step(second, "leader_tick")]
        steps += [Step("machine", "clean up"), Step(first, "resume"), *self._sends()]
        steps += [Step(first, "leader_tick"), *self._polls()]
        if takes_over:
            steps += [Step(second, "leader_tick"), Step(second, "follower_tick")]
            steps += [Step(second, "kill"), Step(first, "kill"), Step(first, "start")]
        return steps

    def _second_process(self) -> list[Step]:
        """Start a broker's second process beside its first one, and let both act."""
        broker = self._any_broker()
        first, second = _name(broker), f"actor-{broker}{_SECOND}"
        before = self._sends()
        if self._happens(0.6):
            at = Event(int(self._chance.expovariate(1 / 20)) + 1, "suspend")
            if self._happens(0.5):
                at = Event(1, "suspend", "commit")
            role = self._chance.choice(("leader_tick", "leader_tick", "follower_tick"))
            before.append(Step(first, role, (), (at,)))
        others = self._ticks("follower_tick", "leader_tick", without=(broker,))
        of_second = [Step(second, one) for one in ("leader_tick", "follower_tick", "leader_tick")]
        elections = self._elections() if self._happens(0.7) else []
        late = [Step(first, "resume"), *(Step(first, "leader_tick") for _ in range(2))]
        steps = [*before, Step(second, "start"), *elections]
        steps += [*of_second[:1], *self._sends(), *of_second, *others, *of_second[:1]]
        steps += [*self._polls(), *self._sends(), *late, *others, *of_second, *self._polls()]
        ended = [Step(second, "kill"), Step(first, "kill"), Step(first, "start")]
        return [*steps, *self._sends(), *late, Step(first, "follower_tick"), *ended]

    def _replaced_process(self) -> list[Step]:
        """A leader is suspended after it has read the metadata and before it reads its journal.

        It reads it since its last commit has failed. Another broker is elected, and a second
        process of the first one follows it. Then the first process reads what the second one has
        written, and acts on the metadata from before.
        """
        broker = 0
        first, second = _name(broker), f"actor-{broker}{_SECOND}"
        failed = Event(1, self._chance.choice(("refused", "unknown")), "commit")
        at = Event(1, "suspend", "own journal read")
        steps = [*self._ticks("leader_tick", "follower_tick", "leader_tick"), *self._sends()]
        steps += [*self._polls(), *self._sends()]
        steps += [Step(first, "leader_tick", (), (failed,)), Step(first, "leader_tick", (), (at,))]
        steps += [self._advance(_SESSION_MS), *self._elections(without=(broker,)), *self._sends()]
        steps += self._ticks("leader_tick", "follower_tick", "leader_tick", without=(broker,))
        steps += [Step(second, one) for one in ("start", "heartbeat", "follower_tick")]
        for _ in range(self._chance.randint(1, 2)):
            steps += [*self._polls(), *self._sends()]
            steps += self._ticks("controller_tick", "leader_tick", without=(broker,))
            steps += [Step(second, one) for one in ("leader_tick", "follower_tick")]
            steps += self._ticks("leader_tick", without=(broker,))
        steps += [Step(first, "resume"), *self._polls(), *self._sends()]
        steps += [Step(first, "leader_tick"), Step(second, "leader_tick")]
        steps += [Step(second, "follower_tick"), *self._ticks("leader_tick", without=(broker,))]
        return [*steps, *(Step(one, "kill") for one in (first, second)), Step(first, "start")]

    # --- their parts ----------------------------------------------------------------------------

    def _sends(self) -> list[Step]:
        return [
            Step(one, "send", (self._partition(), 1, self._chance.choice((0, 0, 1))))
            for one in PRODUCERS
        ]

    def _reads_on(self) -> list[Step]:
        """The consumer with positions reads, by metadata that may be those of its last read."""
        return [Step(READER, "poll")] if self._shape.has_public_clients else []

    def _polls(self) -> list[Step]:
        return [Step(one, "poll") for one in PRODUCERS]

    def _revived(self) -> list[Step]:
        """All brokers go on, from where they were suspended or with a new process."""
        return [Step(_name(one), what) for one in range(BROKERS) for what in ("resume", "start")]

    def _ticks(self, *roles: str, without: Sequence[int] = ()) -> list[Step]:
        """The ticks of all brokers, role by role."""
        brokers = [one for one in range(BROKERS) if one not in without]
        return [Step(_name(one), role) for role in roles for one in brokers]

    def _only(self, broker: int, *roles: str) -> list[Step]:
        return [Step(_name(broker), role) for role in roles]

    def _elections(self, without: Sequence[int] = ()) -> list[Step]:
        """The ticks after which the brokers that are present have replaced silent leaders."""
        present = [one for one in range(BROKERS) if one not in without]
        ticks = [Step(_name(one), "heartbeat") for one in present]
        for _ in range(2):
            ticks += [Step(_name(one), "controller_tick", (), self._events()) for one in present]
        return ticks

    def _advance(self, ms: int) -> Step:
        return Step("clock", "advance", (ms,))

    def _any_broker(self) -> int:
        """An actor: more often the leader."""
        return 0 if self._happens(0.4) else self._chance.randrange(BROKERS)

    def _partition(self) -> int:
        return self._chance.randrange(self._shape.partitions)

    def _happens(self, probability: float) -> bool:
        return self._chance.random() < probability


def _name(broker: int) -> str:
    """The first process of an actor."""
    return f"actor-{broker}a"
