"""The newest version of a journal, followed without its state.

New commits of a journal show that its broker is alive, and some of them renew the controller's
lease. Opening a whole journal reads the log and its checkpoints; a watch reads neither.
"""

from __future__ import annotations

from concurrent.futures import Future

from sparklog.clock import clocks, is_ago
from sparklog.errors import StorageError
from sparklog.model import LOG
from sparklog.storage.commits import commit_content, parse_commit, request_commits
from sparklog.storage.commits_ahead import FRESH_S
from sparklog.storage.delta_log import LONG_AGO_S
from sparklog.storage.delta_log_files import newest_behind_lost, newest_version
from sparklog.storage.journal import Renewal, renewal_in
from sparklog.storage.location import Location
from sparklog.storage.parallel import MOST_AHEAD


class JournalWatch:
    """Follows the journal of one broker root by one GET per new commit and one for the end.

    Raises `StorageError` if the journal does not exist, and `OSError` or `DeltaError` if the store
    cannot be read; so does `refresh`.
    """

    def __init__(self, root: Location) -> None:
        self._log = root.child(LOG.name)
        self.version = newest_version(self._log)
        """The newest version that was seen. Invariant: it never decreases."""
        self.renewal: Renewal | None = None
        """The newest renewal of the controller's lease in the commits that were read."""
        self._ahead: dict[int, Future[bytes | None]] = {}
        self._reach = 1
        self._seen_at: tuple[float, float] | None = None
        self._moved_at = clocks()

    def poll_ahead(self) -> None:
        """Request the next commits from an object store without waiting; `refresh` applies them.

        They count as the newest for `FRESH_S` at most. Does nothing for a local folder.
        """
        if not self._log.is_local:
            self._seen_at = None
            self._ahead = request_commits(self._log, self.version + 1, self._reach)

    def refresh(self) -> None:
        """Advance to the newest version, or to the last one that `poll_ahead` has requested."""
        ahead, self._ahead = self._ahead, {}
        if not ahead and self._seen_at is not None and not is_ago(self._seen_at, FRESH_S):
            return
        start = self.version
        while True:
            following = self.version + 1
            if ahead and following not in ahead:
                # There may be more commits: the next `poll_ahead` requests more in parallel.
                self._reach = min(2 * self._reach, MOST_AHEAD)
                break
            asked = ahead.get(following)
            content = asked.result() if asked else commit_content(self._log, following)
            if content is None:
                self._reach = 1
                break
            self.version = following
            self._note(following, content)
        if ahead:
            self._seen_at = clocks()
        if self.version == start and is_ago(self._moved_at, LONG_AGO_S):
            self._pass_lost_commits()
        elif self.version > start:
            self._moved_at = clocks()

    def _note(self, version: int, content: bytes) -> None:
        try:
            commit = parse_commit(self._log, version, content, lambda _: True)
            self.renewal = renewal_in(commit) or self.renewal
        except StorageError:
            # Damaged, or of a later release: the journal has advanced nevertheless.
            return

    def _pass_lost_commits(self) -> None:
        """Advance to the newest version if the next commits were cleaned up, or lost."""
        self._moved_at = clocks()
        newest = newest_behind_lost(self._log, self.version)
        self.version = max(self.version, newest or 0)
