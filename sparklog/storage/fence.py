"""Fences: the epoch in a table that excludes writers with an older epoch (protocol rule 10.7).

Each table carries the newest epoch of its writers in an app transaction of its log. A writer
commits only as the version after one that carries its own epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from sparklog.errors import FencedError
from sparklog.storage.commit_retries import moved, until_it_lands
from sparklog.storage.delta_log import DeltaLog
from sparklog.storage.location import Location


class Fence(NamedTuple):
    """The epoch of a writer: `transaction` is the app transaction that holds it.

    It is `BROKER_EPOCH` or `CONTROLLER_EPOCH`.
    """

    transaction: str
    epoch: int


def check_fence(log: DeltaLog, fence: Fence | None) -> None:
    """Raise `FencedError` unless the loaded version of a table carries `fence`'s epoch.

    Together with the compare-and-set on the next version this excludes every fenced writer.
    """
    if fence is not None:
        check_held(log.location, fence, log.transactions.get(fence.transaction))


def check_held(table: Location, fence: Fence, held: int | None) -> None:
    """Raise `FencedError` unless `held`, the epoch that a table carries, equals that of `fence`."""
    if held != fence.epoch:
        raise FencedError(
            f"{table.uri} is held by {fence.transaction} {held}, this process has "
            f"{fence.epoch}: a newer process plays this role, so this one must stop"
        )


def take_fence(
    table: Location, fence: Fence, load: Callable[[], DeltaLog], *, may_hold: bool = True
) -> bool:
    """Write `fence`'s epoch to `table`, so that writers with an older epoch can no longer commit.

    Parameters: `load` brings the table's log up to date and returns it; `may_hold`, whether the
    table may already carry the epoch, as it does when a parked broker resumes. An epoch that was
    just allocated belongs to no other process (protocol rule 10.7).

    Returns whether the epoch was written. Raises `FencedError` if the table carries a newer epoch,
    or if it carries this one and `may_hold` is false.
    """

    def attempt() -> bool:
        log = load()
        held = log.transactions.get(fence.transaction)
        if held is not None and held > fence.epoch:
            raise FencedError(
                f"{log.location.uri} is held by {fence.transaction} {held}, newer than "
                f"{fence.epoch}: another process has taken this role over"
            )
        if held == fence.epoch:
            if not may_hold:
                raise FencedError(
                    f"{log.location.uri} is held by {fence.transaction} {held}, which another "
                    "process has taken: this one must stop"
                )
            return False
        if not log.commit("FENCE", transactions={fence.transaction: fence.epoch}):
            raise moved(log)
        return True

    return until_it_lands(table, attempt)
