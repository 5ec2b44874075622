"""The inbox of one broker root: the pending requests of its request tables, as one list.

Anyone with access to the root can append anything to its request tables, so their content is not
trusted. Requests that cannot be a batch are marked, and refused like any other bad request.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from typing import NamedTuple

from sparklog.broker.checkpoints import VERIFY_INTERVAL_MS
from sparklog.broker.leading.inbox_table import InboxTable
from sparklog.clock import Clock, Interval
from sparklog.cluster.roots import BrokerRoot
from sparklog.logger import RepeatedFailures, get_logger
from sparklog.storage.batch_actions import MAX_TIMESTAMP_MS
from sparklog.storage.errors import UNREADABLE
from sparklog.storage.journal import InboxPosition
from sparklog.storage.location import one_line
from sparklog.storage.parallel import background_thread
from sparklog.storage.request_files import ProduceRequest
from sparklog.storage.request_table import Added, RequestTable
from sparklog.storage.request_tables import RequestTables

_log = get_logger(__name__)


class PendingRequest(NamedTuple):
    """A pending request as a tick has loaded it.

    `position` is its index among the loaded requests. `waited_ms` is an upper bound of the time
    that it has been in the inbox; `None` if this process has not read the inbox before. `age_ms` is
    the time since its producer sent it, on two clocks; `None` if the request does not name that
    time. `loaded_ms` is the time since this process has found it. `fault` is the reason why it
    cannot be a batch, or `None`. `repeats` is the position of an earlier request for the same
    batch, or `None`. `table` and `added` are the number of its request table and its position
    there.
    """

    request: ProduceRequest
    position: int
    waited_ms: int | None
    age_ms: int | None
    loaded_ms: int
    fault: str | None
    repeats: int | None
    table: int
    added: Added

    @property
    def origin(self) -> int:
        """The position of the request whose outcome this one shares: an earlier one, or itself."""
        return self.position if self.repeats is None else self.repeats


class Inbox:
    """The pending requests of one root.

    The reads of earlier processes do not count: such a process may have run on another machine,
    whose clock may differ.
    """

    def __init__(self, root: BrokerRoot, clock: Clock) -> None:
        self._root = root
        self._clock = clock
        self._polled_at_ms: int | None = None
        self._failures = RepeatedFailures(_log)
        # On an object store a tick does not wait for maintenance of the tables.
        self._beside = None if root.location.is_local else background_thread("requests")
        self._tables: list[InboxTable] = []
        self._spreading: Future[list[RequestTable]] | None = None
        self._verifications = Interval(clock)
        self._take_over(root.request_tables)

    @property
    def waiting(self) -> bool:
        """Whether the inbox has pending requests."""
        return any(table.waiting for table in self._tables)

    def poll(self, now_ms: int) -> None:
        """Read the request tables; note since when each request may have been there (rule 10.1)."""
        # Before the read: a table that is recreated has other versions.
        self._verify()
        request_tables = self._root.request_tables
        self._spread(request_tables)
        self._take_over(request_tables)
        for number, inbox_table in enumerate(self._tables):
            if request_tables.is_asked(number):
                inbox_table.poll(now_ms)
        self._polled_at_ms = now_ms

    def _verify(self) -> None:
        """Verify that new producers can open the request tables if that is due (rule 10.8).

        Only on local file systems, as `CheckpointWriter.verify`; a failure is only logged.
        """
        if self._beside or not self._verifications.is_over:
            return
        self._verifications.begin(VERIFY_INTERVAL_MS)
        if self._polled_at_ms is None:
            # The tables were opened just now.
            return
        for table in self._root.request_tables.tables:
            try:
                table.verify()
            except UNREADABLE as error:
                self._failures.warning(
                    "verify",
                    "request table not verified",
                    table=table.location.uri,
                    error=one_line(error),
                )
            else:
                self._failures.over("verify")

    def _take_over(self, request_tables: RequestTables) -> None:
        """Add the tables that were opened since the last read."""
        self._tables += [
            InboxTable(self._root, table, self._polled_at_ms, self._beside, self._clock)
            for table in request_tables.tables[len(self._tables) :]
        ]

    def _spread(self, request_tables: RequestTables) -> None:
        """Create further tables in parallel to the ticks, and add them when they exist."""
        if self._spreading is not None and self._spreading.done():
            spreading, self._spreading = self._spreading, None
            try:
                request_tables.add(spreading.result())
            except UNREADABLE as error:
                root = self._root.location.uri
                _log.warning("further request tables not created", root=root, error=one_line(error))
        elif self._beside is not None and self._spreading is None and request_tables.is_to_spread:
            # If that fails, it is tried again when producers compete again.
            request_tables.tables[0].is_contended = False
            self._spreading = self._beside.submit(request_tables.further)

    def load(self, now_ms: int) -> list[PendingRequest]:
        """Return the pending requests, in order of arrival in each table."""
        pending: list[PendingRequest] = []
        repetitions = _Repetitions()
        for number, table in enumerate(self._tables):
            for added, request in table.waiting.items():
                table.loaded.add(added)
                position = len(pending)
                found = table.found[added]
                since_ms, sent_at_ms = found.unseen_since_ms, request.created_at_ms
                waited_ms = now_ms - since_ms if since_ms is not None else None
                # A time that is not plausible would exceed the range of the rule's numbers.
                is_dated = 0 <= sent_at_ms <= MAX_TIMESTAMP_MS
                age_ms = now_ms - sent_at_ms if is_dated else None
                loaded_ms = now_ms - found.at_ms
                fault = repetitions.file_fault(request) or request.fault
                repeats = repetitions.earlier(request, position)
                times = waited_ms, age_ms, loaded_ms
                pending.append(
                    PendingRequest(request, position, *times, fault, repeats, number, added)
                )
        return pending

    def leave(self, requests: Iterable[PendingRequest]) -> None:
        """Leave some of the loaded requests in the inbox: the next tick loads them again."""
        for request in requests:
            self._tables[request.table].loaded.discard(request.added)

    def positions(self) -> list[InboxPosition]:
        """Return the positions of the tables once all loaded requests are dealt with.

        Only of tables from which requests were loaded.
        """
        return [position for table in self._tables if (position := table.position()) is not None]

    def note_committed(self, positions: Iterable[InboxPosition]) -> None:
        """Note that all loaded requests are dealt with durably; `positions`, as committed."""
        of_tables = {one.table_id: one for one in positions}
        for table in self._tables:
            table.note_committed(of_tables.get(table.table_id))

    def trim(self) -> None:
        """Remove taken requests if that is due; a failure is only logged."""
        for table in self._tables:
            table.trim()


class _Repetitions:
    """The requests of a tick that name the batch or the file of an earlier one.

    A batch is identified by its id, that of an idempotent producer also by its sequence. A file can
    belong to one partition only (rules 3.6, 3.7).
    """

    def __init__(self) -> None:
        self._first: dict[tuple[object, ...], int] = {}
        self._partition_of: dict[str, tuple[str, int]] = {}

    def file_fault(self, request: ProduceRequest) -> str | None:
        """Return the fault of a request that names a file of another partition, or `None`."""
        partition = request.topic_id, request.partition
        if self._partition_of.setdefault(request.path, partition) != partition:
            return "another request names its file for another partition"
        return None

    def earlier(self, request: ProduceRequest, position: int) -> int | None:
        """Return the position of the first request for the same batch; `None` if this is it."""
        partition = request.topic_id, request.partition
        identities: list[tuple[object, ...]] = [(*partition, request.batch_id)]
        if request.is_idempotent:
            sequence = request.producer_id, request.producer_epoch, request.base_sequence
            identities.append((*partition, *sequence, request.record_count))
        found = [self._first[identity] for identity in identities if identity in self._first]
        origin = found[0] if found else position
        for identity in identities:
            self._first.setdefault(identity, origin)
        return found[0] if found else None
