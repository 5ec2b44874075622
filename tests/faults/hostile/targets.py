"""All targets of hostile input."""

from __future__ import annotations

from pathlib import Path

from tests.faults.hostile.files import file_targets
from tests.faults.hostile.samples import Samples
from tests.faults.hostile.tables import table_targets
from tests.faults.hostile.target import Target
from tests.faults.hostile.texts import text_targets


def all_targets(folder: Path) -> list[Target]:
    """Return all targets; `folder` is empty and theirs."""
    samples = Samples(folder)
    return [*table_targets(folder, samples), *file_targets(folder, samples), *text_targets(folder)]
