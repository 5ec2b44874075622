"""The repair of findings from outside of the brokers, and requests to the brokers for the rest.

A process that is not the owner of a root may restore a file under its name with the bytes that the
log's header names, and may replace a damaged Delta checkpoint: neither needs a commit. Everything
else is a commit to the owner's log, which its fence allows to the owner alone. It is requested from
the owner, in a durable row of `repairs`; a broker that does not run acts when it is started.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from deltalake.exceptions import DeltaError

from sparklog.clock import Clock, SystemClock
from sparklog.cluster.connection import Connection
from sparklog.cluster.metadata import PartitionState
from sparklog.cluster.repairs import Repair, repairs_of, request_repairs, set_outcomes
from sparklog.cluster.restore_candidates import restore_candidates
from sparklog.errors import DamagedError, StorageError
from sparklog.maintenance.journal_end import end_before_damage
from sparklog.maintenance.missing_tables import empty_in_place
from sparklog.maintenance.scrub_checks import MENDED_BY_BROKER, Checks
from sparklog.maintenance.scrub_reading import ScrubReading
from sparklog.maintenance.table_restoration import restore_broker_roots, restore_cluster_root
from sparklog.model import (
    BROKER_TABLES,
    CLUSTER_TABLES,
    CONSUMER_GROUP_HEARTBEATS,
    FORMAT,
    LOG,
    REQUEST_TABLES,
    Batch,
)
from sparklog.states import RUNNING_STATES
from sparklog.storage.control_table import ControlTable
from sparklog.storage.control_table_damage import CREATED_AGAIN
from sparklog.storage.delta_checkpoints import write_checkpoint
from sparklog.storage.delta_log_check import JOURNAL_FAULTS, LOG_FILE_FAULTS, check_log
from sparklog.storage.delta_log_files import CHECKPOINT_HINT, LOG_FOLDER, newest_version
from sparklog.storage.execution import DriverExecution
from sparklog.storage.file_states import FILE_FAULTS, NamedFile, file_state, find_fault
from sparklog.storage.journal_check import check_journal
from sparklog.storage.location import Location, one_line
from sparklog.storage.progress import OnProgress, counted
from sparklog.storage.restoring import find_content, replace_file

_Changes = dict[str, Any]

_TABLES = (FORMAT, *CLUSTER_TABLES, *BROKER_TABLES, *REQUEST_TABLES)

_OF_TABLES = (*LOG_FILE_FAULTS, "damaged_table_file", "missing_table")
"""The kinds of findings about tables."""


def repair(
    connection: Connection,
    *,
    dry_run: bool = False,
    clock: Clock | None = None,
    done: Callable[[str], object] | None = None,
    on_progress: OnProgress | None = None,
) -> list[Repair]:
    """Repair the open findings of scrubs; return them with their outcomes.

    Brokers and clients may run. Each finding is verified again before anything is written.

    Parameters
    ----------
    connection : Connection
        The cluster.
    dry_run : bool, default False
        Whether the findings are only returned.
    clock : Clock, optional
        The clock of the rows' times; the system's by default.
    done : callable, optional
        Called with the name of each effect after it: file, journal, rows, request.
    on_progress : callable, optional
        Called after each step with the name of the work, the steps done, and their number.

    Returns
    -------
    list of Repair
        The findings that were open before. Those in state requested are left to their brokers.

    Raises
    ------
    StorageError
        The cluster root cannot be read.

    Examples
    --------
    >>> from sparklog import Connection
    >>> from sparklog.maintenance.repair import repair
    >>> repair(Connection("sparklog-data/cluster"))
    []
    """
    now_ms = (clock or SystemClock()).now_ms()
    cluster = connection.root.location
    restored = restore_cluster_root(cluster, is_dry_run=dry_run, now_ms=now_ms)
    restored += restore_broker_roots(connection, is_dry_run=dry_run, now_ms=now_ms)
    opened = [one for one in repairs_of(connection.root) if one.is_open]
    known = {one.repair_id for one in opened}
    restored = [one for one in restored if one.repair_id not in known]
    if dry_run or not opened:
        return restored + opened
    done = done or (lambda _: None)
    repairs = _Repairs(connection, now_ms, done)
    changes = {
        one.repair_id: {**repairs.act(one), "changed_at_ms": now_ms}
        for one in counted(opened, "findings", on_progress)
    }
    set_outcomes(connection.root.repairs, changes)
    done("rows")
    after = [one._replace(**changes[one.repair_id]) for one in opened]
    owners = {one.broker_id for one in after if one.state == "requested"}
    request_repairs(connection.root.brokers, {one for one in owners if one is not None})
    if owners:
        done("request")
    return restored + after


class _Repairs:
    """Acts on findings; each action returns the changes of the finding's row."""

    def __init__(self, connection: Connection, now_ms: int, done: Callable[[str], object]) -> None:
        self._connection = connection
        self._now_ms = now_ms
        self._done = done
        self._reading = ScrubReading(connection)
        self._checks = Checks(self._reading, DriverExecution())

    def act(self, one: Repair) -> _Changes:
        """Repair a finding, or request its repair; a failure becomes its outcome."""
        try:
            if one.fault in FILE_FAULTS:
                return self._restore(one)
            if one.fault in _OF_TABLES and self._is_sound(one):
                return {"state": "repaired", "outcome": "the table is sound again"}
            if one.fault == "damaged_checkpoint":
                return self._replace_checkpoint(one)
            if one.fault == "records_differ":
                return self._refill(one)
            return self._other(one)
        except (StorageError, DeltaError, OSError) as error:
            return {"outcome": f"not repaired: {one_line(error)}"}

    # --- batch files ----------------------------------------------------------------------------

    def _restore(self, one: Repair) -> _Changes:
        """Restore a batch's file with the bytes that its header names."""
        state, batch, log = self._batch(one)
        if batch is None or log is None:
            return {"state": "gone", "outcome": "the batch is no longer part of its log"}
        read = file_state(NamedFile(log, batch.path, batch.size_bytes))
        if find_fault(batch, read, {}) is None:
            return {"state": "repaired", "outcome": "the file is sound again"}
        found = None
        if state is not None and one.broker_id is not None:
            committed = self._reading.committed(state)
            found = find_content(
                batch,
                restore_candidates(state, one.broker_id, batch, committed, self._reading.log_of),
            )
        if found is None:
            return self._requested(
                one,
                "no other replica has a sound copy: restore the file from a copy of the root, or "
                f"broker {one.broker_id} leaves the ISR if another member stays",
            )
        source: _Changes = {"source_broker_id": found.source_broker_id}
        if found.batch.checksum != batch.checksum:
            return source | self._requested(
                one,
                f"broker {one.broker_id} rebuilds the file from broker {found.source_broker_id} "
                "and commits it",
            )
        try:
            replace_file(log, batch, found.content)
        except OSError as error:
            # Another account, perhaps: the owner may write there.
            return source | self._requested(
                one, f"the file cannot be written from here ({one_line(error)})"
            )
        self._done("file")
        return source | {
            "state": "repaired",
            "outcome": f"the file was restored from broker {found.source_broker_id}",
        }

    def _batch(self, one: Repair) -> tuple[PartitionState | None, Batch | None, Location | None]:
        """Return the live batch of a finding, its partition and its log."""
        root = next(
            (
                root
                for root in self._reading.roots.values()
                if (root.broker_id, root.location.uri) == (one.broker_id, one.root)
            ),
            None,
        )
        if root is None or one.key is None:
            return None, None, None
        if root.log is None:
            raise StorageError(f"the log in {one.root} cannot be opened: repair it first")
        state = self._reading.metadata.partitions.get(one.key)
        batches = root.log.batches(one.key, -1)
        live = next((batch for batch in batches if batch.path == one.path), None)
        return state, live, root.log.location

    # --- replicas -------------------------------------------------------------------------------

    def _refill(self, one: Repair) -> _Changes:
        state = self._reading.metadata.partitions.get(one.key) if one.key is not None else None
        if state is None:
            return {"state": "gone", "outcome": "there is no such partition any more"}
        if one.state != "refilling" and self._checks.has_equal_records(one):
            return {"state": "gone", "outcome": f"broker {one.broker_id} has equal records now"}
        if state.leader == one.broker_id:
            return {
                "state": "unrepairable",
                "outcome": f"broker {one.broker_id} leads the partition now, so its records count: "
                f"compare both logs, and elect broker {one.source_broker_id} if its are right",
            }
        return self._requested(
            one,
            f"broker {one.broker_id} leaves the ISR and is refilled from broker {state.leader}",
        )

    def _requested(self, one: Repair, what: str) -> _Changes:
        """Return the changes of a row that is left to its broker."""
        if one.state == "refilling":
            return {"outcome": one.outcome}
        when = (
            "" if self._is_running(one.broker_id) else f", when broker {one.broker_id} is started"
        )
        return {"state": "requested", "outcome": f"requested: {what}{when}"}

    def _is_running(self, broker_id: int | None) -> bool:
        brokers = self._reading.metadata.brokers
        broker = brokers.get(broker_id) if broker_id is not None else None
        return broker is not None and broker.state in RUNNING_STATES

    # --- tables ---------------------------------------------------------------------------------

    def _replace_checkpoint(self, one: Repair) -> _Changes:
        """Remove a damaged Delta checkpoint without which the table opens, and write another."""
        table = Location.of(one.root, self._connection.storage_options).child(one.table_name)
        damaged = [file for file in check_log(table).damaged if file.path == one.path]
        if not damaged:
            return {"state": "repaired", "outcome": "the checkpoint is sound, or was replaced"}
        if not damaged[0].is_dispensable:
            return self._other(one)
        # Without the hint, readers list the log; it is written again with the checkpoint.
        table.remove(f"{LOG_FOLDER}/{CHECKPOINT_HINT}")
        table.remove_durably(damaged[0].path)
        self._done("file")
        write_checkpoint(table)
        return {"state": "repaired", "outcome": "a new checkpoint was written"}

    def _is_sound(self, one: Repair) -> bool:
        """Return whether a damaged table is sound: restored from copies, or written again."""
        root = Location.of(one.root, self._connection.storage_options)
        table = root.child(one.table_name)
        if one.table_name == LOG.name:
            # Other damage of a journal may be repaired in another way.
            damaged = [each for each in check_journal(root).damaged if each.path == one.path]
        else:
            damaged = check_log(table).damaged
        if damaged:
            return False
        if one.fault == "missing_commit" and one.path is not None:
            # Without its newest commit a table is a sound one of an earlier version.
            name = one.path.removeprefix(f"{LOG_FOLDER}/")
            if newest_version(table) < int(name[:20]):
                return False
        schema = next(schema for schema in _TABLES if schema.name == one.table_name)
        if schema is not LOG:
            try:
                opened = ControlTable(root, schema)
                if schema not in REQUEST_TABLES:
                    opened.verify()
            except DamagedError:
                return False
        return True

    def _other(self, one: Repair) -> _Changes:
        """Leave a table to its running broker; other tables are restored by an operator."""
        is_of_log = one.table_name == LOG.name and one.fault in JOURNAL_FAULTS
        if is_of_log and one.broker_id is not None and not self._is_running(one.broker_id):
            # It cannot be started with damage to the log itself.
            return self._end_journal(one, one.broker_id)
        if is_of_log or (one.broker_id is not None and one.table_name in MENDED_BY_BROKER):
            return self._requested(one, f"broker {one.broker_id} writes it again")
        if one.table_name == CONSUMER_GROUP_HEARTBEATS.name and one.fault in _OF_TABLES:
            return self._empty(one)
        if one.fault == "damaged_header":
            return self._requested(one, f"broker {one.broker_id} refills the replica")
        return {"state": "unrepairable", "outcome": one.remedy}

    def _empty(self, one: Repair) -> _Changes:
        """Empty a table whose rows are written again within seconds."""
        table = Location.of(one.root, self._connection.storage_options).child(one.table_name)
        empty_in_place(table, CONSUMER_GROUP_HEARTBEATS, self._now_ms)
        self._done("file")
        lost = CREATED_AGAIN[one.table_name]
        return {"state": "repaired", "outcome": f"the table was emptied: {lost}"}

    def _end_journal(self, one: Repair, broker_id: int) -> _Changes:
        """End the journal of a stopped broker before the damage."""
        root = Location.of(one.root, self._connection.storage_options)
        try:
            outcome = end_before_damage(root, broker_id, self._reading.metadata, self._now_ms)
        except StorageError as error:
            return {"state": "unrepairable", "outcome": f"{one_line(error)}; {one.remedy}"}
        self._done("journal")
        if any(each.path == one.path for each in check_journal(root).damaged):
            # Only the state of the replicas needs the commit: the broker can be started.
            return self._requested(one, f"broker {broker_id} writes its checkpoint tables again")
        return {"state": "repaired", "outcome": outcome}
