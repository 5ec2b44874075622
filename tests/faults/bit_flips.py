"""A bit of a file that a disk or a person has changed."""

from __future__ import annotations

from pathlib import Path
from random import Random


def flip_bit(file: Path, random: Random) -> None:
    """Change a random bit of a file."""
    content = bytearray(file.read_bytes())
    content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    file.write_bytes(content)
