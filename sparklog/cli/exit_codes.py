"""The exit codes of the commands, by which a scheduler decides whether to restart a process."""

from __future__ import annotations

from enum import IntEnum

from sparklog.errors import (
    ApplicationFailedError,
    CommitConflictError,
    FencedError,
    ProtocolError,
    SparklogError,
    UnreachableError,
)

OF_SIGNALS = 128
"""Added to a signal's number, it is the exit code of a process that the signal has ended."""


class ExitCode(IntEnum):
    """The exit codes; docs/operating.md has them for operators."""

    DONE = 0
    """Stopped as asked, or idle."""
    UNEXPECTED = 1
    """An error that was not foreseen; its traceback is on standard error."""
    UNUSABLE = 2
    """The command line, the configuration or a root has to be corrected."""
    TAKEN_OVER = 3
    """Another process plays the broker."""
    FAILED = 4
    """A root cannot be reached, ticks or stops fail, or Spark or the heartbeats have ended."""
    NOT_STOPPED = 5
    """The process did not end within controlled.shutdown.timeout.ms, and was ended as it was."""

    @property
    def restart(self) -> bool:
        """Whether a restart without any change may help."""
        return self in (ExitCode.UNEXPECTED, ExitCode.FAILED, ExitCode.NOT_STOPPED)


def exit_code(error: SparklogError) -> ExitCode:
    """Return the exit code of a process that ends with `error`."""
    is_alive_elsewhere = (
        isinstance(error, ProtocolError) and error.code.name == "DUPLICATE_BROKER_REGISTRATION"
    )
    if isinstance(error, FencedError) or is_alive_elsewhere:
        return ExitCode.TAKEN_OVER
    if isinstance(error, (ApplicationFailedError, CommitConflictError, UnreachableError)):
        return ExitCode.FAILED
    return ExitCode.UNUSABLE
