"""A bit of a file that a disk or a person has changed."""

from __future__ import annotations

from pathlib import Path
from random import Random


def flip_bit(file: Path, random: Random) -> None:
    """Change a random bit of a file."""
    file.write_bytes(flipped(file.read_bytes(), random))


def flipped(content: bytes, random: Random) -> bytes:
    """Return content with a random bit changed."""
    changed = bytearray(content)
    changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)
