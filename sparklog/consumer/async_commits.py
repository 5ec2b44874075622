"""Commits of a consumer in the background, in the order in which they were requested."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from sparklog.clock import Clock
from sparklog.cluster.client_metrics import ClientMetrics
from sparklog.cluster.roots import ClusterRoot
from sparklog.groups.committed_offsets import CommittedOffsets, OffsetAndMetadata, commit_as
from sparklog.groups.group import ConsumerGroups, Group
from sparklog.logger import get_logger
from sparklog.model import TopicIdPartition, TopicPartition
from sparklog.storage.location import one_line

_log = get_logger(__name__)

CommitCallback = Callable[[Mapping[TopicPartition, OffsetAndMetadata], Exception | None], object]
"""A callback of `commit_async`; it receives the offsets, and the error or `None`."""

Check = Callable[[Group], None]
"""Raises the error that refuses a commit in a state of the group."""


@dataclass(eq=False)
class _Request:
    """A requested commit, and the future and callback for its outcome.

    `member` identifies the member and its generation at the request; commits of one member may be
    merged.
    """

    offsets: Mapping[TopicIdPartition, tuple[str, OffsetAndMetadata]]
    member: object
    check: Check
    callback: CommitCallback | None
    future: Future[None] = field(default_factory=Future)
    error: Exception | None = None


class AsyncCommits:
    """The background commits of one consumer.

    A thread commits them, with tables of its own. It starts with the first commit. Requests that
    have gathered meanwhile are committed in one step. `submit`, `call_back`, `finish` and `close`
    are for the consumer's thread.

    Parameters: `open_root`, which opens the cluster root for the thread's use alone.
    """

    def __init__(
        self,
        group_id: str,
        open_root: Callable[[], ClusterRoot],
        clock: Clock,
        metrics: ClientMetrics,
    ) -> None:
        self._metrics = metrics
        self._group_id = group_id
        self._open_root = open_root
        self._clock = clock
        self._tables: tuple[ConsumerGroups, CommittedOffsets] | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._waiting: deque[_Request] = deque()
        self._requested: deque[_Request] = deque()

    def submit(
        self,
        offsets: Mapping[TopicIdPartition, tuple[str, OffsetAndMetadata]],
        member: object,
        check: Check,
        callback: CommitCallback | None,
    ) -> Future[None]:
        """Request a commit; return the future with its outcome."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="commits")
        request = _Request(offsets, member, check, callback)
        # A commit that is requested cannot be cancelled.
        request.future.set_running_or_notify_cancel()
        self._requested.append(request)
        self._waiting.append(request)
        self._thread.submit(self._commit_waiting)
        return request.future

    def call_back(self) -> None:
        """Call the callbacks of the commits that are done, in order; without one, log an error."""
        while self._requested and self._requested[0].future.done():
            request = self._requested.popleft()
            error = request.error
            if request.callback is None:
                if error is not None:
                    _log.warning("commit failed", group=self._group_id, error=one_line(error))
                continue
            given = {
                TopicPartition(topic, key.partition): committed
                for key, (topic, committed) in request.offsets.items()
            }
            request.callback(given, error)

    def finish(self) -> None:
        """Wait for all requested commits, and call their callbacks."""
        wait([request.future for request in self._requested])
        self.call_back()

    def close(self) -> None:
        """Finish, and end the thread."""
        try:
            self.finish()
        finally:
            if self._thread is not None:
                self._thread.shutdown()
                self._thread = None

    # --- run by the thread ----------------------------------------------------------------------

    def _commit_waiting(self) -> None:
        """Commit the requests that have gathered: those of one member in one step."""
        requests: list[_Request] = []
        while self._waiting:
            if requests and self._waiting[0].member != requests[0].member:
                self._commit(requests)
                requests = []
            requests.append(self._waiting.popleft())
        if requests:
            self._commit(requests)

    def _commit(self, requests: list[_Request]) -> None:
        offsets = {key: one for request in requests for key, one in request.offsets.items()}
        try:
            if self._tables is None:
                root = self._open_root()
                self._tables = (
                    ConsumerGroups(root.consumer_groups),
                    CommittedOffsets(root.consumer_offsets, self._clock),
                )
            commit_as(*self._tables, self._group_id, requests[0].check, offsets)
        except Exception as error:  # noqa: BLE001 - it is the outcome of the future
            if len(requests) > 1:
                # One request may be invalid, such as one with a negative offset.
                for request in requests:
                    self._commit([request])
            else:
                requests[0].error = error
                requests[0].future.set_exception(error)
        else:
            self._metrics.add("commit")
            for request in requests:
                request.future.set_result(None)
