"""Seeded faults: each changes one mechanism of the real code, as a programming mistake would.

The state machine's checker finds each of them (`test_seeded_faults`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from sparklog.broker import registration
from sparklog.broker.broker import Broker
from sparklog.broker.following.follower import Follower
from sparklog.broker.leading.appends import Appends
from sparklog.broker.replicas import Replicas
from sparklog.broker.unclean_start import Doubts
from sparklog.cluster.metadata import Metadata
from sparklog.protocol.driver_rules import DriverRules
from sparklog.storage import control_table, delta_log, journal, record_log
from sparklog.storage.journal import Journal, Step
from sparklog.storage.location import Location

Patch = pytest.MonkeyPatch
Row = dict[str, Any]


def fence_check_left_out(patch: Patch) -> None:
    """A process writes to its root without checking the broker epoch in the tables."""
    for module in (control_table, record_log):
        patch.setattr(module, "check_fence", lambda _log, _fence: None)


def answered_before_the_log_commit(patch: Patch) -> None:
    """Produce requests are answered whether or not the commit to the log succeeds."""
    commit = Replicas.commit

    def careless(self: Replicas, *arguments: Any, **options: Any) -> bool:
        if not self._appended:
            return commit(self, *arguments, **options)
        try:
            return commit(self, *arguments, **options)
        except OSError:
            self._settle_staged()
            return True

    patch.setattr(Replicas, "commit", careless)


def what_failed_is_kept(patch: Patch) -> None:
    """The staged changes of a failed tick count, and the journal's later state does not."""

    def refresh(self: Replicas) -> None:
        self.root.log.refresh()
        self.root.log.pop_moved()

    patch.setattr(Replicas, "settle", refresh)


def requests_taken_before_the_log_commit(patch: Patch) -> None:
    """Requests leave the inbox before their batches are in the log."""
    load = Appends.load

    def early(self: Appends, now_ms: int, standing: Any) -> Any:
        taken = load(self, now_ms, standing)
        self.inbox.note_committed(self.inbox.positions())
        return taken

    patch.setattr(Appends, "load", early)


def _change_rule(patch: Patch, rule: str, change: Callable[[Row, Row], Row]) -> None:
    """Let `change` replace each row of a rule's result; it gets the row and its partition's input.

    The input is the first row of the rule's first table with that partition.
    """
    run = DriverRules.run

    def changed(self: DriverRules, name: str, **inputs: Any) -> list[Row]:
        rows = run(self, name, **inputs)
        if name != rule:
            return rows
        taken = [*next(iter(inputs.values()))]
        of = {(row["topic_id"], row["partition"]): row for row in reversed(taken)}
        return [change(row, of[row["topic_id"], row["partition"]]) for row in rows]

    patch.setattr(DriverRules, "run", changed)


def high_watermark_ahead_of_the_log(patch: Patch) -> None:
    """A follower takes the leader's high watermark unchanged, beyond its own log end."""
    _change_rule(
        patch,
        "follower_high_watermark",
        lambda row, given: row | {"high_watermark": given["leader_high_watermark"]},
    )


def epoch_entry_not_written(patch: Patch) -> None:
    """Leader-epoch entries are kept in memory and not written."""
    commit_step = Journal.commit_step

    def without(self: Journal, added: Any, removed: Any, step: Step, *others: Any) -> None:
        commit_step(self, added, removed, step._replace(histories={}), *others)

    patch.setattr(Journal, "commit_step", without)


def epoch_taken_from_memory(patch: Patch) -> None:
    """A broker acts in the leader epoch in its memory, whatever the metadata contain."""
    load = Broker._load

    def remembered(self: Broker) -> Metadata:
        return self._reader.metadata if self._reader.versions is not None else load(self)

    patch.setattr(Broker, "_load", remembered)


def reported_before_the_commit(patch: Patch) -> None:
    """A follower reports the position after its commit before the commit."""
    commit_step = Journal.commit_step

    def report(self: Journal, added: Any, removed: Any, *step: Any) -> None:
        if added and not removed:
            commit_step(self, [], [], *step)
        commit_step(self, added, removed, *step)

    patch.setattr(Journal, "commit_step", report)


def checkpoint_ahead_of_the_journal(patch: Patch) -> None:
    """The checkpoints name a version of the journal that they do not describe yet."""
    row_table = Journal.row_table

    def late(self: Journal, version: int | None = None) -> Any:
        rows = row_table(self, version)
        written = getattr(self, "_late", rows)
        self._late = rows  # type: ignore[attr-defined]
        return written

    patch.setattr(Journal, "row_table", late)


def checkpoint_not_replayed(patch: Patch) -> None:
    """A broker that starts uses its checkpoints and not the commits after them."""
    patch.setattr(journal, "read_commits", lambda *_: ())


def truncation_to_the_high_watermark(patch: Patch) -> None:
    """A follower begins each leader epoch by truncating to its own high watermark (KIP-101)."""
    agree = Follower._agree

    def truncate(self: Follower, followed: Any, now_ms: int) -> Any:
        points = {
            one.key: self._replicas[one.key].high_watermark
            for one in followed
            if one.key in self._replicas
            and self._replicas[one.key].leader_epoch != one.state.leader_epoch
            and self._replicas[one.key].high_watermark < self._replicas.log_end_offset(one.key)
        }
        if points:
            self._truncate(points, followed, now_ms)
        return agree(self, followed, now_ms)

    patch.setattr(Follower, "_agree", truncate)


def nothing_synced(patch: Patch) -> None:
    """Files count as written before they are on the disk."""
    patch.setattr(Location, "is_synced", False)


def predecessor_check_left_out(patch: Patch) -> None:
    """A commit counts although clean-up has removed the version before it."""
    patch.setattr(delta_log.DeltaLog, "_is_predecessor_lost", lambda _: False)


def followers_claim_the_lead(patch: Patch) -> None:
    """Rows of replicas name their broker a leader in the epoch, although it follows (rule 9.4)."""
    commit_step = Journal.commit_step

    def claiming(self: Journal, added: Any, removed: Any, step: Step, *others: Any) -> None:
        rows = [{**row, "role": "leader"} for row in step.rows]
        commit_step(self, added, removed, step._replace(rows=rows), *others)

    patch.setattr(Journal, "commit_step", claiming)


def unclean_start_not_noticed(patch: Patch) -> None:
    """A broker keeps its place in the ISR after a crash or a power loss, without any check."""
    patch.setattr(registration, "doubts_about", lambda *_: Doubts())


FAULTS: Mapping[str, Callable[[Patch], None]] = {
    fault.__name__: fault
    for fault in (
        fence_check_left_out,
        answered_before_the_log_commit,
        what_failed_is_kept,
        requests_taken_before_the_log_commit,
        high_watermark_ahead_of_the_log,
        epoch_entry_not_written,
        checkpoint_ahead_of_the_journal,
        checkpoint_not_replayed,
        epoch_taken_from_memory,
        reported_before_the_commit,
        truncation_to_the_high_watermark,
        nothing_synced,
        predecessor_check_left_out,
        unclean_start_not_noticed,
        followers_claim_the_lead,
    )
}
