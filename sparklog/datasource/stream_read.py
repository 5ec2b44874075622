"""A streaming query: its position, the end of the next micro-batch, and its tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparklog.clock import Clock, SystemClock
from sparklog.cluster.committed_logs import CommittedLogs
from sparklog.cluster.connection import Connection, Visible
from sparklog.datasource.data_loss import DataLoss, position_at, sound_offsets
from sparklog.datasource.group_progress import GroupProgress
from sparklog.datasource.micro_batch_limits import MinimumPerTrigger, within_limit
from sparklog.datasource.offset_reader import OffsetReader, Seen
from sparklog.datasource.offsets import Positions, StreamOffset
from sparklog.datasource.options import ReadOptions
from sparklog.datasource.read_plan import plan_tasks
from sparklog.datasource.read_task import OffsetRange, ReadTask
from sparklog.datasource.starting_points import starting_offsets
from sparklog.model import TopicPartition


class StreamRead:
    """The source of one streaming query. Offsets are the JSON objects of `StreamOffset`.

    State that is kept between calls is not required: Spark restarts from the checkpoint at any
    time.
    """

    def __init__(self, options: ReadOptions, clock: Clock | None = None) -> None:
        self._options = options
        connection = Connection(options.cluster, storage_options=options.storage_options)
        self._offset_reader = OffsetReader(options, CommittedLogs(connection))
        self._loss = DataLoss(options.fail_on_data_loss)
        self._minimum = MinimumPerTrigger(options, clock or SystemClock())
        self._progress = GroupProgress(options, self._offset_reader.connection)
        self._target: Positions | None = None
        self._initial: StreamOffset | None = None

    def initial_offset(self) -> dict[str, Any]:
        """Return the offset at which a new query begins.

        Raises as `starting_offsets` does, and the error that keeps a partition from being read.
        """
        if self._initial is None:
            seen = self._offset_reader.visible(self._offset_reader.partitions())
            starts = starting_offsets(self._offset_reader, seen, self._loss)
            positions = {key: position_at(starts[key], one) for key, one in seen.items()}
            self._initial = StreamOffset(
                positions, is_initial=True, stream_id=self._progress.stream_id()
            )
        return self._initial.to_json()

    def prepare_for_trigger_available_now(self) -> None:
        """Limit the query to the offsets that can be read now."""
        seen = self._offset_reader.visible(self._offset_reader.existing_partitions())
        self._target = {key: position_at(one.high_watermark, one) for key, one in seen.items()}

    def latest_offset(self, start: Mapping[str, Any], *, is_limited: bool) -> dict[str, Any]:
        """Return the end of the micro-batch that begins at `start`: the high watermarks.

        A partition whose new leader has to catch up stays at its offset; only a reported loss moves
        the end back. With `is_limited` the options' limits apply. If nothing is new, `start` itself
        is returned. Raises `DataLossError`.
        """
        begun = StreamOffset.from_json(start)
        # Spark commits it only with the next micro-batch, which may never come.
        self._progress.note(begun)
        existing = self._existing(begun.positions)
        if self._target is not None:
            existing &= begun.positions.keys() | self._target.keys()
        seen = self._offset_reader.available(sorted(existing))
        starts = self._starts(begun.positions, seen)
        ends: Mapping[TopicPartition, int]
        ends = {key: self._end(key, one, starts[key]) for key, one in seen.items()}
        if is_limited:
            if self._target is None and self._minimum.is_awaited(starts, ends):
                return dict(start)
            ends = within_limit(starts, ends, self._options.max_offsets_per_trigger)
        positions = {
            key: position
            for key, position in begun.positions.items()
            if key in existing and key not in seen
        }
        for key, one in seen.items():
            before, here = begun.positions.get(key), (ends[key], one.state.topic_id)
            stays = before is not None and before[:2] == here and starts[key] == ends[key]
            positions[key] = before if before and stays else position_at(ends[key], one)
        if positions == begun.positions:
            return dict(start)
        started_at = begun.positions if begun.is_initial else None
        stream_id = self._progress.stream_id(begun)
        return StreamOffset(positions, started_at=started_at, stream_id=stream_id).to_json()

    def latest_offset_of_all(self) -> dict[str, Any]:
        """Return the high watermarks, for a Spark version that does not pass the start.

        Waits for new leaders to catch up, since the offsets that were read are not known.
        """
        if self._initial is None:
            self.initial_offset()
        assert self._initial is not None
        seen = self._offset_reader.visible(self._offset_reader.partitions())
        positions = {key: position_at(one.high_watermark, one) for key, one in seen.items()}
        return StreamOffset(
            positions, started_at=self._initial.positions, stream_id=self._initial.stream_id
        ).to_json()

    def report_latest_offset(self) -> dict[str, Any]:
        """Return the high watermarks, for Spark's progress report."""
        seen = self._offset_reader.available(self._offset_reader.existing_partitions())
        positions = {key: position_at(one.high_watermark, one) for key, one in seen.items()}
        return StreamOffset(positions).to_json()

    def plan(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[ReadTask]:
        """Return the tasks of a micro-batch; the same for the same offsets.

        Raises `DataLossError` if records between the offsets are gone, and the error that keeps a
        partition from being read.
        """
        begun, ended = StreamOffset.from_json(start), StreamOffset.from_json(end)
        if begun.is_initial and ended.started_at is not None:
            # The micro-batch was begun before a crash, when "latest" was an earlier offset.
            begun = StreamOffset(ended.started_at)
        elif begun.is_initial and ended.is_initial:
            return []
        existing = self._existing(ended.positions)
        moved = {
            key: position
            for key, position in ended.positions.items()
            if key in existing and begun.positions.get(key) != position
        }
        needed = {key: one.offset for key, one in moved.items()}
        seen = self._offset_reader.visible(moved, needed)
        started = {key: one for key, one in begun.positions.items() if key in moved}
        starts = self._starts(started, seen)
        ends = sound_offsets(self._offset_reader.connection, moved, seen, self._loss)
        ranges = []
        for key, visible in seen.items():
            if ends[key] > visible.high_watermark:
                self._loss.report(
                    f"records {visible.high_watermark} to {ends[key] - 1} of {key} are lost: its "
                    f"high watermark is {visible.high_watermark}"
                )
            ranges.append(OffsetRange(key, starts[key], min(ends[key], visible.high_watermark)))
        return plan_tasks(self._offset_reader, seen, ranges)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Publish that all records before `end` are processed, if the options name a group.

        Raises nothing because of the group: a failure is a warning.
        """
        self._progress.publish(StreamOffset.from_json(end))

    def _existing(self, read: Positions) -> set[TopicPartition]:
        """Return the existing partitions, and report those of `read` that no longer exist."""
        existing = set(self._offset_reader.existing_partitions())
        for key in sorted(read.keys() - existing):
            self._loss.report(f"partition {key} no longer exists: its unread records are lost")
        return existing

    def _starts(self, started: Positions, seen: Seen) -> dict[TopicPartition, int]:
        """Return the first unread offset of each partition; new ones begin at their log start."""
        known = {key: one for key, one in started.items() if key in seen}
        starts = sound_offsets(self._offset_reader.connection, known, seen, self._loss)
        for key, one in seen.items():
            if key not in started:
                if one.log_start_offset > 0:
                    self._loss.report(
                        f"new partition {key} begins at {one.log_start_offset}: earlier records "
                        "were deleted before they were read"
                    )
                starts[key] = one.log_start_offset
        return starts

    def _end(self, key: TopicPartition, seen: Visible, start: int) -> int:
        """Return how far a partition can be read: below `start` only after a reported loss."""
        end = seen.high_watermark
        if end < start and self._options.replica == "leader":
            self._loss.report(
                f"the high watermark of {key} is {end}, below the offset {start} it was read up to"
            )
            return end
        if self._target is not None:
            target = self._target.get(key)
            is_meant = target is not None and target.topic_id == seen.state.topic_id
            end = min(end, target.offset) if target is not None and is_meant else start
        return max(end, start)
