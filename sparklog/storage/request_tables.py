"""The request tables of a root, as its owner looks at them.

One table is enough until producers on an object store compete: a table takes one commit each round
trip there. Producers that were refused again and again say so in their commits; the owner creates
the further tables then, and the producers spread over them (`request_appends`).
"""

from __future__ import annotations

from collections.abc import Sequence

from sparklog.model import REQUEST_TABLES
from sparklog.storage.control_table import create_table
from sparklog.storage.location import Location
from sparklog.storage.request_files import has_further_tables
from sparklog.storage.request_table import RequestTable

_FURTHER = REQUEST_TABLES[1:]

_WARM_ROUNDS, _COLD_ROUNDS = 100, 8
"""A further table is looked at in every round while one of the last 100 has found a commit there,
and in every 8th after that."""


class RequestTables:
    """The request tables of one broker root, opened by its owner.

    `tables` begins with the one that every root has; `add` adds the others.
    """

    def __init__(self, root: Location) -> None:
        self.location = root
        self.tables = [RequestTable(root)]
        self._rounds = 0
        # Of further tables, the version that was loaded, and the round that found it.
        self._found: dict[int, tuple[int, int]] = {}
        # The numbers of those that the last look ahead has asked for; all without one.
        self._asked: frozenset[int] | None = None
        if has_further_tables(root):
            self.add(self.further())

    @property
    def commits(self) -> int:
        """How many commits these handles have made."""
        return sum(table.commits for table in self.tables)

    @property
    def is_to_spread(self) -> bool:
        """Whether producers compete for the only table there is, on an object store."""
        is_alone = len(self.tables) == 1 and not self.location.is_local
        return is_alone and self.tables[0].is_contended

    def has_news(self) -> bool:
        """Say whether there is certainly a newer version; only told of tables in a folder."""
        return any(table.has_news() for table in self.tables)

    def look_ahead(self, *, to_end: bool = False) -> None:
        """Ask an object store for the next commits beside the caller; `refresh` takes them.

        Further tables are asked for as `_COLD_ROUNDS` says, with `to_end` always.
        """
        self._rounds += 1
        asked = [number for number in range(len(self.tables)) if to_end or self._is_due(number)]
        self._asked = frozenset(asked)
        for number in asked:
            self.tables[number].look_ahead(to_end=to_end)

    def _is_due(self, number: int) -> bool:
        version, found_at = self._found.get(number, (-1, self._rounds))
        if number > 0 and self.tables[number].version != version:
            found_at = self._rounds
            self._found[number] = self.tables[number].version, found_at
        return self._rounds - found_at < _WARM_ROUNDS or self._rounds % _COLD_ROUNDS == 0

    def is_asked(self, number: int) -> bool:
        """Say whether a table is to be refreshed in this round."""
        return self._asked is None or number in self._asked

    def further(self) -> list[RequestTable]:
        """Open the further tables, and create those that are not there; may run beside the rest.

        Raises `StorageError` or `OSError` where that is not possible.
        """
        # The first of them is the last to be created: all others are there where it is.
        for schema in reversed(_FURTHER):
            create_table(self.location, schema)
        return [RequestTable(self.location, schema) for schema in _FURTHER]

    def add(self, further: Sequence[RequestTable]) -> None:
        """Look at further tables, too, from the next look ahead on."""
        self.tables += further
