"""The answers to produce requests: appended, merged into few files, and trimmed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from sparklog.broker.inbox import Group, group
from sparklog.errors import DamagedError
from sparklog.logger import get_logger
from sparklog.model import PRODUCE_RESPONSES
from sparklog.storage.roots import BrokerRoot

_log = get_logger(__name__)

RESPONSE_RETENTION_MS = 600_000
"""How long an answer stays to be read, at least."""

MERGED_FILES = 64
"""How many files of answers are merged into one, and how many of those again."""

Answer = dict[str, Any]
"""One row of `produce_responses`."""


@dataclass(frozen=True)
class _File:
    """A file of answers; `rows` is `None` where an earlier process has written it.

    `level` counts how often its rows were merged, `newest_ms` is when its newest row was written.
    """

    path: str
    newest_ms: int
    level: int
    rows: pa.Table | None


class Answers:
    """The `produce_responses` table of one root.

    Every tick that answers appends a file, and opening the table costs O(files). So each
    `MERGED_FILES`th append takes the rows of the others along and removes them in its own commit,
    as it removes files whose newest row is older than `RESPONSE_RETENTION_MS`.

    Parameters: `opened_at_ms`, the time from which files count that an earlier process has left.
    """

    def __init__(self, root: BrokerRoot, opened_at_ms: int) -> None:
        self._root = root
        self._table = root.produce_responses
        self._files = [_File(path, opened_at_ms, 0, None) for path in self._table.new_files(-1)]

    def append(self, answers: Sequence[Answer], now_ms: int) -> None:
        """Append answers in one commit."""
        rows = PRODUCE_RESPONSES.rows([answer | {"answered_at_ms": now_ms} for answer in answers])
        old = [one for one in self._files if now_ms - one.newest_ms > RESPONSE_RETENTION_MS]
        merged: list[_File] = []
        level = 0
        # The new file is the last one of its level.
        while len(mergeable := self._mergeable(level, old)) >= MERGED_FILES - 1:
            merged += mergeable
            level += 1
        parts = [one.rows for one in merged if one.rows is not None]
        rows = pa.concat_tables([*parts, rows]).combine_chunks()
        replaced = [*old, *merged]
        try:
            path = self._put(rows, replaced)
        except DamagedError as error:
            # Earlier answers are lost; a batch that is sent again is recognised.
            _log.error("table recreated", error=str(error))
            self._table.recreate(self._root.fence)
            self._files, replaced = [], []
            path = self._put(rows, replaced)
        self._files = [one for one in self._files if one not in replaced]
        self._files.append(_File(path, now_ms, level, rows))

    def _put(self, rows: pa.Table, replaced: Sequence[_File]) -> str:
        """Append `rows` as one file, in the place of `replaced`; return its path."""
        if replaced:
            paths = [one.path for one in replaced]
            return self._table.replace_files(paths, rows, self._root.fence)
        self._table.append(rows, self._root.fence)
        [path] = self._table.new_files(self._table.version - 1)
        return path

    def _mergeable(self, level: int, old: Sequence[_File]) -> list[_File]:
        files = [one for one in self._files if one.level == level and one.rows is not None]
        return [one for one in files if one not in old]

    def answered(self) -> set[Group]:
        """Return which partitions of which requests are answered, as far as answers are kept."""
        return {group(row) for row in self._table.rows().to_pylist()}
