"""A Spark home in which a cluster of processes may write."""

from __future__ import annotations

from pathlib import Path

import pyspark


def spark_home(folder: Path) -> Path:
    """Return a folder with all of pyspark, in which workers may create their folder `work`."""
    folder.mkdir(exist_ok=True, parents=True)
    for entry in Path(pyspark.__file__).parent.iterdir():
        link = folder / entry.name
        if not link.is_symlink():
            link.symlink_to(entry)
    return folder
