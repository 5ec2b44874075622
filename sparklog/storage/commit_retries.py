"""Repeated attempts to commit to a table to which others commit at the same time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import tenacity

from sparklog.errors import CommitConflictError
from sparklog.storage.delta_log import DeltaLog
from sparklog.storage.location import Location

ATTEMPTS = 50
"""The number of attempts to commit before a writer that keeps losing to others gives up."""

_Result = TypeVar("_Result")


def moved(log: DeltaLog, loaded: int | None = None) -> CommitConflictError:
    """Return the error of a writer whose version another writer has committed."""
    version = log.version if loaded is None else loaded
    return CommitConflictError(
        f"{log.location.uri} moved past version {version}: reload and try again"
    )


def until_it_lands(
    table: Location, commit: Callable[[], _Result], attempts: int = ATTEMPTS
) -> _Result:
    """Retry a commit that other writers preempt; raises `CommitConflictError` after `attempts`."""
    try:
        return retrying(CommitConflictError, attempts)(commit)
    except CommitConflictError as error:
        raise CommitConflictError(
            f"no commit to {table.uri} in {attempts} attempts: other writers were faster each "
            "time; try again later"
        ) from error


def retrying(lost: type[Exception], attempts: int = ATTEMPTS) -> tenacity.Retrying:
    """Return a retry policy with jitter for commits that another writer has preempted."""
    return tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(lost),
        wait=tenacity.wait_random_exponential(multiplier=0.001, max=0.2),
        stop=tenacity.stop_after_attempt(attempts),
        reraise=True,
    )
