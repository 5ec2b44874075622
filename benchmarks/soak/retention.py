"""Shorter retention of commits and removed files, so that a soak has many such times."""

from __future__ import annotations

from pathlib import Path

from deltalake import DeltaTable


def keep_for(folder: Path, ms: int) -> None:
    """Keep commits for `ms`, and the names of removed files for twice as long, in all tables.

    Brokers that run have opened the tables before; they are to be restarted.
    """
    properties = {
        "delta.logRetentionDuration": f"interval {ms} milliseconds",
        "delta.deletedFileRetentionDuration": f"interval {2 * ms} milliseconds",
    }
    for log in folder.glob("*/*/_delta_log"):
        DeltaTable(str(log.parent)).alter.set_table_properties(properties)
