"""Prints a counterexample in a readable form."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.decisions import Entries, Log
from tests.model.explorer import Violation
from tests.model.journal import Step
from tests.model.state import NO_ROW, State, members


def told(violation: Violation) -> str:
    """Return the steps of a violation with their changes, and the violated invariant."""
    lines = list(_lines(violation.story))
    return "\n".join([*lines, f"{len(lines)} steps; broken: {violation.invariant}"])


def _lines(story: tuple[Step, ...]) -> Iterator[str]:
    before: State | None = None
    for number, (label, after) in enumerate(story, 1):
        action, *rest = label
        actors = [f"broker {word}" if isinstance(word, int) else word for word in rest]
        if action in {"LeaderRefuses", "ClientSends"}:
            place = 0 if action == "ClientSends" else 1
            actors[place] = f"record {rest[place]}"
        yield f"{number:3} {action} ({', '.join(filter(None, actors))}): " + "; ".join(
            _changes(before, after)
        )
        before = after


def _changes(before: State | None, after: State) -> Iterator[str]:
    if before is not None and _published(before) != _published(after):
        leader = "none" if after.leader < 0 else str(after.leader)
        eligible = f", eligible {list(members(after.elr))}" if after.elr else ""
        isr = list(members(after.isr))
        yield f"leader {leader}, epoch {after.leader_epoch}, ISR {isr}{eligible}"
    for broker, replica in enumerate(after.replicas):
        old = before.replicas[broker] if before is not None else None
        if old is None or old.log != replica.log:
            yield f"log {broker} {_log(replica.log)}"
        if old is not None and old.entries != replica.entries:
            yield f"epochs {broker} {_epochs(replica.entries)}"
        if replica.row != NO_ROW and (old is None or old.row != replica.row):
            row = replica.row
            role = "leader" if row.leads else "follower"
            yield (
                f"row {broker}: {role}, leader epoch {row.leader_epoch}, "
                f"broker epoch {row.broker_epoch}, high watermark {row.high_watermark}"
            )
        for past in replica.past:
            if old is None or (past,) != old.past:
                yield (
                    f"checkpoints {broker} describe {past.rows_at} (rows) and {past.entries_at} "
                    f"(epochs) of {len(past.tail)} commits"
                )


def _published(state: State) -> tuple[int, ...]:
    return state.leader, state.leader_epoch, state.isr, state.elr


def _log(log: Log) -> str:
    return "[" + " ".join(f"r{record}@e{epoch}" for epoch, record in log) + "]"


def _epochs(entries: Entries) -> str:
    return "[" + " ".join(f"e{epoch}@{start}" for epoch, start in entries) + "]"
