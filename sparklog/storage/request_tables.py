"""The request tables of a root, as its owner reads them.

One table is enough until producers on an object store compete: a table takes one commit per round
trip there. Producers that were refused repeatedly report that in their commits. The owner then
creates the further tables, and the producers spread over them (`request_appends`).
"""

from __future__ import annotations

from collections.abc import Sequence

from sparklog.model import REQUEST_TABLES, TableSchema
from sparklog.storage.control_table import create_table
from sparklog.storage.location import Location
from sparklog.storage.parallel import map_in_parallel
from sparklog.storage.request_files import has_further_tables
from sparklog.storage.request_table import RequestTable

_FURTHER = REQUEST_TABLES[1:]

_WARM_ROUNDS, _COLD_ROUNDS = 100, 8
"""A further table is polled in each round while a commit was found there in one of the last 100
rounds, and in every 8th round otherwise.
"""


class RequestTables:
    """The request tables of one broker root, opened by its owner.

    Invariant: `tables` starts with the table that each root has, `produce_requests`; `add` appends
    the others.
    """

    def __init__(self, root: Location) -> None:
        self.location = root
        self.tables = [RequestTable(root)]
        self._rounds = 0
        # By further table: the version that was loaded, and the round in which it was found.
        self._found: dict[int, tuple[int, int]] = {}
        # The tables that the last poll_ahead has requested, by index. None before the first call
        # means all.
        self._asked: frozenset[int] | None = None
        if has_further_tables(root):
            self.add(self._opened_further())

    @property
    def commits(self) -> int:
        """The number of commits made through these tables' instances."""
        return sum(table.commits for table in self.tables)

    @property
    def is_to_spread(self) -> bool:
        """Whether producers compete for the only table of a root on an object store."""
        is_alone = len(self.tables) == 1 and not self.location.is_local
        return is_alone and self.tables[0].is_contended

    def has_news(self) -> bool:
        """Return True if a table has a newer version. Always False on object stores (a request)."""
        return any(table.has_news() for table in self.tables)

    def poll_ahead(self, *, to_end: bool = False) -> None:
        """Request the next commits from an object store without waiting; `refresh` applies them.

        Further tables are polled as `_WARM_ROUNDS` and `_COLD_ROUNDS` define, or always with
        `to_end`.
        """
        self._rounds += 1
        for number in range(1, len(self.tables)):
            self._note_commits(number)
        asked = [number for number in range(len(self.tables)) if to_end or self._is_due(number)]
        self._asked = frozenset(asked)
        for number in asked:
            self.tables[number].poll_ahead(to_end=to_end)

    def _note_commits(self, number: int) -> None:
        version, _ = self._found.get(number, (-1, 0))
        if self.tables[number].version != version:
            self._found[number] = self.tables[number].version, self._rounds

    def _is_due(self, number: int) -> bool:
        if number == 0 or self._rounds % _COLD_ROUNDS == 0:
            return True
        _, found_at = self._found[number]
        return self._rounds - found_at < _WARM_ROUNDS

    def is_asked(self, number: int) -> bool:
        """Return whether a table is to be refreshed in this round."""
        return self._asked is None or number in self._asked

    def further(self) -> list[RequestTable]:
        """Create the missing further tables and open all; may run in parallel to other methods.

        Raises `StorageError` or `OSError` if a table cannot be created or opened.
        """
        # The first is created last: if it exists, all others do.
        for schema in reversed(_FURTHER):
            create_table(self.location, schema)
        return self._opened_further()

    def _opened_further(self) -> list[RequestTable]:
        def opened(schema: TableSchema) -> RequestTable:
            return RequestTable(self.location, schema)

        return map_in_parallel(opened, _FURTHER, 0, is_local=self.location.is_local)

    def add(self, further: Sequence[RequestTable]) -> None:
        """Poll further tables, too, from the next `poll_ahead` on."""
        self.tables += further
