"""Removal of files on an object store: what it costs, and that nobody needs the files."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from sparklog.model import HIGH_WATERMARK_CHECKPOINT, LOG
from sparklog.storage.control_table import ControlTable, create_table
from sparklog.storage.delta_checkpoints import write_checkpoint
from sparklog.storage.delta_log_files import LOG_FOLDER, is_checkpoint
from sparklog.storage.location import Location
from sparklog.storage.object_store import ObjectStore
from sparklog.storage.record_log import RecordLog
from sparklog.storage.vacuum import (
    COMMIT_RETENTION,
    FILE_RETENTION,
    Delays,
    interval_ms,
    read_table_files,
    set_retention,
    vacuum_table,
)
from tests.storage.batches import FENCE, chain
from tests.storage.test_s3 import Store, at, pytestmark, store

__all__ = ["Store", "at", "pytestmark", "store"]

At = Callable[[str], Location]
HOUR_MS = 3_600_000
DELAYS = Delays(HOUR_MS, 24 * HOUR_MS)
FAR_MS = 1 << 43
"""A time in the future, in ms since 1970."""


def test_a_thousand_files_of_a_log_are_removed_by_a_few_requests(
    at: At, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Listing, reading the log and one request for all removals; the live files stay."""
    create_table(at("broker"), LOG)
    log = RecordLog(at("broker"), FENCE)
    batches = chain(0, *[1] * 60)
    log.commit(batches)
    log.commit(removed=batches[:50])
    for one in batches:
        log.location.put_new(one.path, b"x")
    removals: list[int] = []
    remove_all = ObjectStore.remove_all

    def counted(self: ObjectStore, paths: list[str]) -> None:
        removals.append(len(paths))
        remove_all(self, paths)

    monkeypatch.setattr(ObjectStore, "remove_all", counted)
    report = vacuum_table(log.location, DELAYS, FAR_MS)
    assert report == (50, 50, 0, 0)
    assert removals == [50]
    assert log.location.names("_inbox") == sorted(
        one.path.removeprefix("_inbox/") for one in batches[50:]
    )
    assert vacuum_table(log.location, DELAYS, FAR_MS) == (0, 0, 0, 0)
    log.location.remove_all([one.path for one in batches])
    log.location.remove_all(["_inbox/none"])


def test_a_search_ends_between_two_removals_if_the_process_ends(at: At) -> None:
    """The next search removes the rest."""
    create_table(at("broker"), LOG)
    log = RecordLog(at("broker"), FENCE)
    [one, other] = chain(0, 1, 1)
    for batch in (one, other):
        log.location.put_new(batch.path, b"x")
    report = vacuum_table(log.location, DELAYS, FAR_MS, is_stopping=lambda: True)
    assert report == (0, 0, 2, 2)
    assert vacuum_table(log.location, DELAYS, FAR_MS) == (2, 2, 0, 0)


def test_files_of_a_control_table_are_known_without_opening_it(at: At) -> None:
    """The files and properties of the log's actions are those that delta-rs finds."""
    create_table(at("broker"), HIGH_WATERMARK_CHECKPOINT)
    table = ControlTable(at("broker"), HIGH_WATERMARK_CHECKPOINT)
    for _ in range(3):
        table.compare_and_set(HIGH_WATERMARK_CHECKPOINT.columns.empty_table())
    files = read_table_files(table.location)
    assert files.live == set(table._files)
    assert len(files.removed_at_ms) == 2
    assert interval_ms(files.properties[COMMIT_RETENTION]) == 600_000
    assert set_retention(table.location, 10 * HOUR_MS)
    assert not set_retention(table.location, 5 * HOUR_MS)
    properties = read_table_files(table.location).properties
    assert interval_ms(properties[FILE_RETENTION]) == 10 * HOUR_MS
    table.refresh()
    table.compare_and_set(HIGH_WATERMARK_CHECKPOINT.columns.empty_table())


def test_old_checkpoints_are_thinned_out_and_every_version_can_be_read(tmp_path: Path) -> None:
    """One in ten minutes stays, besides those of the last ten minutes."""
    root = Location.of(str(tmp_path))
    create_table(root, HIGH_WATERMARK_CHECKPOINT)
    table = ControlTable(root, HIGH_WATERMARK_CHECKPOINT)
    # The middle of a span of ten minutes.
    now_s = time.time() // 600 * 600 + 300
    made = {}
    for age_s in (3_700, 3_600, 2_400, 2_399, 700, 650, 599, 500, 1):
        table.compare_and_set(HIGH_WATERMARK_CHECKPOINT.columns.empty_table())
        write_checkpoint(table.location)
        [file] = tmp_path.glob(f"*/_delta_log/{table.version:020}.checkpoint.parquet")
        os.utime(file, times=(now_s - age_s, now_s - age_s))
        made[age_s] = file
    now_ms = int(now_s * 1_000)
    dry = vacuum_table(table.location, DELAYS, now_ms, is_dry_run=True)
    assert dry.files == 4
    assert all(file.exists() for file in made.values())
    assert vacuum_table(table.location, DELAYS, now_ms).files == 4
    left = [age_s for age_s, file in made.items() if file.exists()]
    assert left == [3_600, 2_399, 599, 500, 1]
    for version in range(table.version + 1):
        assert DeltaTable(table.location.uri, version=version).version() == version
    assert vacuum_table(table.location, DELAYS, now_ms).files == 0


def test_the_newest_checkpoint_stays_however_old_it_is(at: At) -> None:
    create_table(at("broker"), HIGH_WATERMARK_CHECKPOINT)
    table = ControlTable(at("broker"), HIGH_WATERMARK_CHECKPOINT)
    for _ in range(3):
        table.compare_and_set(HIGH_WATERMARK_CHECKPOINT.columns.empty_table())
        write_checkpoint(table.location)
    vacuum_table(table.location, DELAYS, FAR_MS)
    names = table.location.names(LOG_FOLDER)
    assert [name for name in names if is_checkpoint(name)] == [
        f"{table.version:020}.checkpoint.parquet"
    ]


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("interval 10 minutes", 600_000),
        ("interval 1 week", 604_800_000),
        ("interval 5 milliseconds", 5),
        ("interval 1 month", -1),
        ("forever", -1),
        (None, -1),
    ],
)
def test_intervals_are_deltas(text: str | None, ms: int) -> None:
    """An interval that cannot be read is -1."""
    assert interval_ms(text) == ms
