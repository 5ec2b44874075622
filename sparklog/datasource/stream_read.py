"""A streaming query: where it stands, how far the next micro-batch goes, and what that reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparklog.clients.committed_logs import CommittedLogs
from sparklog.clients.connection import Visible, connect
from sparklog.clock import Clock, SystemClock
from sparklog.datasource.admission import MinimumPerTrigger, within_limit
from sparklog.datasource.data_loss import DataLoss, position_at, sound_offsets
from sparklog.datasource.group_progress import GroupProgress
from sparklog.datasource.offsets import Positions, StreamOffset
from sparklog.datasource.options import ReadOptions
from sparklog.datasource.read_plan import plan_tasks
from sparklog.datasource.read_task import OffsetRange, ReadTask
from sparklog.datasource.starting_points import starting_offsets
from sparklog.datasource.subscription import Seen, Subscription
from sparklog.model import TopicPartition


class StreamRead:
    """The source of one streaming query. Offsets are the JSON objects of `StreamOffset`.

    Nothing but `latest_offset` remembers anything, and what it remembers it can do without: Spark
    begins anew from the checkpoint at any time.
    """

    def __init__(self, options: ReadOptions, clock: Clock | None = None) -> None:
        self._options = options
        self._subscription = Subscription(options, CommittedLogs(connect(options.cluster)))
        self._loss = DataLoss(options.fail_on_data_loss)
        self._minimum = MinimumPerTrigger(options, clock or SystemClock())
        self._progress = GroupProgress(options, self._subscription.connection)
        self._target: Positions | None = None
        self._initial: StreamOffset | None = None

    def initial_offset(self) -> dict[str, Any]:
        """Return where a new query begins.

        Raises what `starting_offsets` raises, and what keeps a partition from being seen.
        """
        if self._initial is None:
            seen = self._subscription.visible(self._subscription.partitions())
            starts = starting_offsets(self._subscription, seen, self._loss)
            positions = {key: position_at(starts[key], one) for key, one in seen.items()}
            self._initial = StreamOffset(
                positions, is_initial=True, stream_id=self._progress.stream_id()
            )
        return self._initial.to_json()

    def prepare_for_trigger_available_now(self) -> None:
        """Read no further than what can be seen now."""
        seen = self._subscription.visible(self._subscription.existing_partitions())
        self._target = {key: position_at(one.high_watermark, one) for key, one in seen.items()}

    def latest_offset(self, start: Mapping[str, Any], *, is_limited: bool) -> dict[str, Any]:
        """Return how far the micro-batch that begins at `start` goes: the high watermarks.

        It goes nowhere back: a partition whose new leader has to catch up stays where it is.
        `is_limited` says whether the options' limits count. Where there is nothing new, the answer
        is `start` itself. Raises `DataLossError`.
        """
        begun = StreamOffset.from_json(start)
        # Spark's own commit of it comes with the next micro-batch, which may be never.
        self._progress.note(begun)
        existing = self._existing(begun.positions)
        if self._target is not None:
            existing &= begun.positions.keys() | self._target.keys()
        seen = self._subscription.available(sorted(existing))
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
        """Return the high watermarks, for a Spark that does not say where the micro-batch begins.

        Waits for new leaders to catch up, since it is not known how far they were read.
        """
        if self._initial is None:
            self.initial_offset()
        assert self._initial is not None
        seen = self._subscription.visible(self._subscription.partitions())
        positions = {key: position_at(one.high_watermark, one) for key, one in seen.items()}
        return StreamOffset(
            positions, started_at=self._initial.positions, stream_id=self._initial.stream_id
        ).to_json()

    def report_latest_offset(self) -> dict[str, Any]:
        """Return the high watermarks, for Spark's progress report."""
        seen = self._subscription.available(self._subscription.existing_partitions())
        positions = {key: position_at(one.high_watermark, one) for key, one in seen.items()}
        return StreamOffset(positions).to_json()

    def plan(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[ReadTask]:
        """Return what each task of a micro-batch reads; the same for the same offsets.

        Raises `DataLossError` where records between them are gone, and what keeps a partition from
        being read.
        """
        begun, ended = StreamOffset.from_json(start), StreamOffset.from_json(end)
        if begun.is_initial and ended.started_at is not None:
            # The micro-batch was begun before a crash, and "latest" was earlier then.
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
        seen = self._subscription.visible(moved, needed)
        started = {key: one for key, one in begun.positions.items() if key in moved}
        starts = self._starts(started, seen)
        ends = sound_offsets(self._subscription.connection, moved, seen, self._loss)
        ranges = []
        for key, visible in seen.items():
            if ends[key] > visible.high_watermark:
                self._loss.report(
                    f"records {visible.high_watermark} to {ends[key] - 1} of {key} are gone: its "
                    f"high watermark is {visible.high_watermark}"
                )
            ranges.append(OffsetRange(key, starts[key], min(ends[key], visible.high_watermark)))
        return plan_tasks(self._subscription, seen, ranges)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Publish that all before `end` is processed, where the options name a group.

        Never raises for the group's sake: what fails is a warning.
        """
        self._progress.publish(StreamOffset.from_json(end))

    def _existing(self, read: Positions) -> set[TopicPartition]:
        """Return the partitions that are there, reporting those of `read` that are not any more."""
        existing = set(self._subscription.existing_partitions())
        for key in sorted(read.keys() - existing):
            self._loss.report(f"partition {key} is gone, and with it what was not read of it")
        return existing

    def _starts(self, started: Positions, seen: Seen) -> dict[TopicPartition, int]:
        """Return from where on nothing was read; a partition that is new begins at its start."""
        known = {key: one for key, one in started.items() if key in seen}
        starts = sound_offsets(self._subscription.connection, known, seen, self._loss)
        for key, one in seen.items():
            if key not in started:
                if one.log_start_offset > 0:
                    self._loss.report(
                        f"new partition {key} begins at {one.log_start_offset}, the records before "
                        "were deleted before they were read"
                    )
                starts[key] = one.log_start_offset
        return starts

    def _end(self, key: TopicPartition, seen: Visible, start: int) -> int:
        """Return how far a partition can be read, which is never before `start`."""
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
