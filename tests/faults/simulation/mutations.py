"""Mutations of the real code, as programming mistakes would be, for the simulation to find.

Those of the state machine, and some of its own. `python -m tests.faults.simulation --mutations`
measures how many seeds each needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from sparklog.broker import purgatory
from sparklog.broker.damage import Repairs
from sparklog.broker.leading.led_partitions import LedPartitions
from sparklog.broker.leading.sequences import Sequences
from sparklog.broker.replicas import Replicas
from sparklog.cluster import connection
from sparklog.cluster.connection import Connection
from sparklog.cluster.metadata import Metadata, PartitionState
from sparklog.maintenance import journal_end, repair
from sparklog.protocol import rules
from sparklog.protocol.driver_rules import DriverRules
from sparklog.storage.delta_log import DeltaLog
from sparklog.storage.location import Location
from tests.state_machine.faults import FAULTS

Patch = pytest.MonkeyPatch
Row = dict[str, Any]


def outcome_not_read_back(patch: Patch) -> None:
    """A commit whose name is taken counts as another process's, although it may be the own one."""
    patch.setattr(DeltaLog, "_is_by", lambda *_: False)


def old_metadata_not_noticed(patch: Patch) -> None:
    """Readers take what a deposed leader has left of its log for that of the leader."""
    patch.setattr(connection, "_led_epoch", lambda row: row["leader_epoch"])
    patch.setattr(Connection, "_are_first", lambda _self, unreported, _locations: {*unreported})


def duplicates_not_recognised(patch: Patch) -> None:
    """A leader forgets the batches of idempotent producers, and appends them twice."""
    patch.setattr(Sequences, "duplicates", lambda *_: {})


def sequences_not_checked(patch: Patch) -> None:
    """A leader forgets the sequence numbers of producers and recognises no retry."""
    patch.setattr(Sequences, "remembered", lambda *_: [])


def older_isr_taken_again(patch: Patch) -> None:
    """A leader takes the ISR from metadata that were read before its own change of it."""
    update = LedPartitions.update_state

    def forgetful(self: LedPartitions, state: PartitionState, metadata: Metadata) -> bool:
        leadership = self[state.key]
        if state.partition_epoch < leadership.state.partition_epoch:
            older = leadership.state._replace(partition_epoch=state.partition_epoch - 1)
            leadership.state = older
        return update(self, state, metadata)

    patch.setattr(LedPartitions, "update_state", forgetful)


def cut_without_leaving_the_isr(patch: Patch) -> None:
    """A damaged replica is cut if the broker's metadata have it outside the ISR."""
    repaired = Repairs._repair

    def hasty(self: Repairs, *arguments: Any) -> bool:
        self._left |= set(self._replicas.damaged)
        return repaired(self, *arguments)

    patch.setattr(Repairs, "_repair", hasty)


def journal_ended_without_another_replica(patch: Patch) -> None:
    """A repair ends a damaged journal although no other running replica has its records."""
    end = journal_end.end_before_damage

    def hasty(root: Location, broker_id: int, metadata: Metadata, now_ms: int) -> str:
        return end(root, broker_id, metadata._replace(partitions={}), now_ms)

    patch.setattr(repair, "end_before_damage", hasty)


def _change_output(patch: Patch, rule: str, change: Callable[[Row], Row | None]) -> None:
    """Let `change` replace each row of a rule's result; `None` leaves it out."""
    run = DriverRules.run

    def changed(self: DriverRules, name: str, **inputs: Any) -> list[Row]:
        rows = run(self, name, **inputs)
        if name != rule:
            return rows
        return [row for row in map(change, rows) if row is not None]

    patch.setattr(DriverRules, "run", changed)


def divergence_not_truncated(patch: Patch) -> None:
    """A follower never truncates, whatever the leader's epochs say."""
    _change_output(patch, "truncation_point", lambda _: None)


def no_return_to_the_isr(patch: Patch) -> None:
    """A follower that has caught up does not return to the ISR."""
    _change_output(patch, "isr_expand", lambda _: None)


def log_end_offset_too_small(patch: Patch) -> None:
    """The log end of a replica is taken to be one record too low."""
    end = Replicas.log_end_offset

    def short(self: Replicas, *arguments: Any) -> int:
        return max(end(self, *arguments) - 1, 0)

    patch.setattr(Replicas, "log_end_offset", short)


def _change_text(rule: str, part: str, changed: str) -> Callable[[Patch], None]:
    """Return the mutation that changes a part of a rule's SQL text."""

    def mutate(patch: Patch) -> None:
        texts = rules._texts()
        assert part in texts[rule], f"{rule} has no {part!r}"
        mutated = {**texts, rule: texts[rule].replace(part, changed)}
        patch.setattr(rules, "_texts", lambda: mutated)
        rules.rule.cache_clear()

    return mutate


IN_TEXTS = {
    "high_watermark_of_the_fastest_replica": _change_text(
        "high_watermark", "min(case when in_maximal_isr", "max(case when in_maximal_isr"
    ),
    "in_sync_without_being_caught_up": _change_text(
        "isr_expand",
        "and log_end_offset >= high_watermark\n    and log_end_offset >= epoch_start_offset",
        "and log_end_offset is not null",
    ),
    "any_live_replica_is_elected": _change_text(
        "leader_election", "when in_elr and is_alive then 2000", "when is_alive then 2000"
    ),
    "leader_epoch_not_raised": _change_text(
        "leader_election", "then leader_epoch + 1 else", "then leader_epoch else"
    ),
    "answered_at_its_first_offset": _change_text(
        "delayed_operations", "max(last_offset) + 1", "min(base_offset)"
    ),
    "fetched_across_a_divergence": _change_text("fetch", "and d.topic_id is null", ""),
    "offsets_with_a_gap": _change_text(
        "assigned_offsets", "preceding and 1 preceding", "preceding and current row"
    ),
    "the_last_member_leaves_the_isr": _change_text(
        "isr_fence", "where in_isr and is_alive", "where in_isr"
    ),
    "recovered_beyond_the_log_end": _change_text(
        "recovered_replicas",
        "greatest(log_end_offset, coalesce(log_start_offset, 0))\n    ) as high_watermark",
        "9223372036854775807\n    ) as high_watermark",
    ),
}
"""Mutations of the rules' texts."""


def answered_before_it_is_committed(patch: Patch) -> None:
    """Requests with acks=all are answered when the leader has appended them."""
    _change_text("completed_operations", "or high_watermark >= required_offset", "or true")(patch)
    patch.setattr(purgatory, "may_be_complete", lambda *_: True)


MUTATIONS: Mapping[str, Callable[[Patch], None]] = {
    **FAULTS,
    **IN_TEXTS,
    **{
        mutation.__name__: mutation
        for mutation in (
            answered_before_it_is_committed,
            outcome_not_read_back,
            old_metadata_not_noticed,
            duplicates_not_recognised,
            sequences_not_checked,
            divergence_not_truncated,
            no_return_to_the_isr,
            log_end_offset_too_small,
            older_isr_taken_again,
            cut_without_leaving_the_isr,
            journal_ended_without_another_replica,
        )
    },
}
"""All mutations by their names."""

SEEDS_NEEDED: Mapping[str, int] = {
    "answered_at_its_first_offset": 1,
    "checkpoint_ahead_of_the_journal": 1,
    "checkpoint_not_replayed": 1,
    "epoch_entry_not_written": 1,
    "epoch_taken_from_memory": 1,
    "followers_claim_the_lead": 1,
    "high_watermark_of_the_fastest_replica": 1,
    "leader_epoch_not_raised": 1,
    "log_end_offset_too_small": 1,
    "no_return_to_the_isr": 1,
    "offsets_with_a_gap": 1,
    "reported_before_the_commit": 1,
    "what_failed_is_kept": 1,
    "answered_before_it_is_committed": 2,
    "any_live_replica_is_elected": 2,
    "unclean_start_not_noticed": 2,
    "duplicates_not_recognised": 3,
    "divergence_not_truncated": 8,
    "high_watermark_ahead_of_the_log": 3,
    "truncation_to_the_high_watermark": 14,
    "nothing_synced": 6,
    "requests_taken_before_the_log_commit": 6,
    "predecessor_check_left_out": 3,
    "sequences_not_checked": 12,
    "outcome_not_read_back": 17,
    "answered_before_the_log_commit": 29,
}
"""The number of seeds of 500 steps, from 0 on, of which the last one finds a mutation."""

LATER_SEEDS_NEEDED: Mapping[str, int] = {
    "fence_check_left_out": 7,
    "in_sync_without_being_caught_up": 17,
    # Upper bounds: the seeds that found these faults of the product.
    "older_isr_taken_again": 808,
    "cut_without_leaving_the_isr": 1563,
}
"""The same from seed `FIRST_ON_STORES` on, for what the earlier seeds do not find."""

SEEDS_WITH_DAMAGED_TABLES_NEEDED: Mapping[str, int] = {"journal_ended_without_another_replica": 2}
"""The same from seed `FIRST_WITH_DAMAGED_TABLES` on."""

SEEDS_WITH_CUT_LEADERS_NEEDED: Mapping[str, int] = {"old_metadata_not_noticed": 12}
"""The same from seed `FIRST_WITH_CUT_LEADERS` on."""
