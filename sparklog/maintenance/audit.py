"""The audit: what the protocol promises, computed again from the tables (section 9).

It believes no checkpoint and no process: high watermarks come from the logs, the density and the
epochs of a log from its batches, agreement from checksums, or from the records where replicas are
batched differently. The cluster may be running, or stopped.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from sparklog.clients.connection import Connection
from sparklog.maintenance.audit_checks import Finding, check
from sparklog.maintenance.audit_reading import Reading, read_cluster
from sparklog.model import Batch
from sparklog.protocol.driver_rules import DriverRules
from sparklog.protocol.rules import Rules
from sparklog.storage.batch_files import file_checksum
from sparklog.storage.location import Location, one_line

__all__ = ["Finding", "audit"]

_READ_AGAIN = 2
_PAUSE_SECONDS = 0.2
"""How often, and after what pause, a cluster in which something disagrees is read again."""


def audit(
    connection: Connection, rules: Rules | None = None, verify_files: bool = False
) -> list[Finding]:
    """Check everything in the tables of a cluster against everything else.

    Parameters: `rules`, what runs the rules (DuckDB in this process unless given; Spark where the
    state is large); `verify_files`, also read every batch file and compare its checksum. Returns
    what disagrees, sorted by topic, partition and broker; a cluster that is running is read again
    before it is accused, so that what was just moving is not reported.
    """
    rules = rules or DriverRules()
    reading = read_cluster(connection)
    findings = check(reading, rules)
    for _ in range(_READ_AGAIN):
        if not findings:
            break
        time.sleep(_PAUSE_SECONDS)
        seen = {_subject(finding) for finding in findings}
        again = check(read_cluster(connection), rules)
        findings = [finding for finding in again if _subject(finding) in seen]
    if verify_files:
        findings += _damaged_files(reading)
    return sorted(findings, key=_place)


def _place(finding: Finding) -> tuple[str, int, int]:
    broker_id = -1 if finding.broker_id is None else finding.broker_id
    return finding.topic or "", finding.partition or 0, broker_id


def _subject(finding: Finding) -> tuple[object, ...]:
    return finding.rule, finding.topic, finding.partition, finding.broker_id


def _damaged_files(reading: Reading) -> list[Finding]:
    """Read every batch file and compare its checksum with the one in the log (rule 3.7)."""
    work = [(one, batch) for one in reading.replicas for batch in one.batches]
    with ThreadPoolExecutor(max_workers=8) as pool:
        faults = list(pool.map(lambda item: _fault(item[1], item[0].log.location), work))
    findings = []
    for (one, batch), fault in zip(work, faults, strict=True):
        if fault is None:
            continue
        # A batch that was truncated or merged meanwhile may have lost its file.
        one.log.refresh()
        if batch in one.batches:
            of = (one.state.topic, one.state.partition, one.broker_id)
            findings.append(Finding("3.7", *of, *fault))
    return findings


def _fault(batch: Batch, log: Location) -> tuple[str, str] | None:
    """Say what a batch's file is, and what the log says of it, where they differ."""
    expected = f"the log has {batch.checksum}"
    try:
        checksum = file_checksum(log, batch.path)
    except FileNotFoundError:
        return f"file {batch.path} is missing", expected
    except OSError as error:
        return f"file {batch.path} cannot be read: {one_line(error)}", expected
    if checksum == batch.checksum:
        return None
    return f"file {batch.path} has checksum {checksum}", expected
