"""The audit: the guarantees of the protocol, computed again from the tables (section 9).

It relies on no checkpoint and no process. High watermarks are computed from the logs; the density
and the epochs of a log from its batches. Replicas are compared by checksums, or by records if their
batches differ. The cluster may be running or stopped.
"""

from __future__ import annotations

import time

from sparklog.cluster.connection import Connection
from sparklog.errors import AccessDeniedError
from sparklog.maintenance.audit_checks import Finding, check
from sparklog.maintenance.audit_reading import AuditedReplica, Reading, read_cluster
from sparklog.model import Batch
from sparklog.protocol.driver_rules import DriverRules
from sparklog.protocol.rules import Rules
from sparklog.storage.batch_files import file_checksum
from sparklog.storage.location import Location, one_line
from sparklog.storage.parallel import map_in_parallel
from sparklog.storage.progress import OnProgress, reporting

__all__ = ["Finding", "audit"]

_READ_AGAIN = 2
_PAUSE_SECONDS = 0.2
"""The number of repeated readings of an inconsistent cluster, and the seconds between them."""


def audit(
    connection: Connection,
    rules: Rules | None = None,
    verify_files: bool = False,
    on_progress: OnProgress | None = None,
) -> list[Finding]:
    """Check the tables of a cluster for consistency; return the inconsistencies.

    Parameters: `rules`, the engine that runs the rules (by default DuckDB in this process; use
    Spark for a large state); `verify_files`, whether every batch file is read and its checksum
    compared; `on_progress`, which is called after each file.

    Returns the findings, sorted by topic, partition and broker. Before an inconsistency is
    reported, the cluster is read again, so that changes during a reading are not reported.
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
        findings += _damaged_files(reading, on_progress)
    return sorted(findings, key=_place)


def _place(finding: Finding) -> tuple[str, int, int]:
    broker_id = -1 if finding.broker_id is None else finding.broker_id
    return finding.topic or "", finding.partition or 0, broker_id


def _subject(finding: Finding) -> tuple[object, ...]:
    return finding.rule, finding.topic, finding.partition, finding.broker_id


def _damaged_files(reading: Reading, on_progress: OnProgress | None) -> list[Finding]:
    """Read each batch file and compare its checksum with the one in the log (rule 3.7)."""
    work = [(one, batch) for one in reading.replicas for batch in one.batches]

    def verify(item: tuple[AuditedReplica, Batch]) -> tuple[str, str] | None:
        return _fault(item[1], item[0].log.location)

    faults = map_in_parallel(
        reporting(verify, "files", len(work), on_progress),
        work,
        sum(batch.size_bytes for _, batch in work),
        # A folder may be mounted from a network.
        is_local=False,
    )
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
    """Return the state of a batch's file and the log's checksum if they differ, or `None`."""
    expected = f"the log has {batch.checksum}"
    try:
        checksum = file_checksum(log, batch.path)
    except FileNotFoundError:
        return f"file {batch.path} is missing", expected
    except AccessDeniedError:
        # The auditor lacks a permission, which says nothing about the file.
        raise
    except OSError as error:
        return f"file {batch.path} cannot be read: {one_line(error)}", expected
    if checksum == batch.checksum:
        return None
    return f"file {batch.path} has checksum {checksum}", expected
