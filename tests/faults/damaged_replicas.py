"""Damage to a file of a replica while its broker works, and the repair on request."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random

from sparklog.cluster.connection import Connection
from sparklog.cluster.repairs import repairs_of
from sparklog.maintenance.repair import repair
from sparklog.maintenance.scrub import scrub
from sparklog.storage.location import Location
from sparklog.storage.record_log import RecordLog
from tests.faults.bit_flips import flip_bit

_SETTLED_S = 20
"""The age of a file whose records are replicated, in seconds: the damage costs one replica."""


def flip_a_bit(root: Path, random: Random) -> bool:
    """Flip a bit in a batch file of a broker's log; return whether it has one that is settled."""
    location = Location.of(str(root))
    log = RecordLog(location)
    settled = time.time() - _SETTLED_S
    files = [
        file
        for key in log.partitions()
        for batch in log.batches(key)
        if (file := root / "log" / batch.path).exists() and file.stat().st_mtime < settled
    ]
    if not files:
        return False
    flip_bit(random.choice(files), random)
    return True


def request_repair(connection: Connection) -> bool:
    """Scrub all brokers and repair the findings; return whether none is open any more."""
    scrub(connection, restart=True)
    repair(connection)
    return not any(one.is_open for one in repairs_of(connection.root))
