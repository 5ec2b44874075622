"""The charts of the status page: HTML and CSS alone, so that they fit any width."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from html import escape

from sparklog.cli.status_history import InSync, LagSample, PastStatus
from sparklog.cli.times import short_time

_MOST_TIMELINES = 60
_MOST_BROKERS = 24

_STEPS_MS = tuple(
    seconds * 1000
    for seconds in (
        *(1, 2, 5, 10, 15, 30),
        *(60, 120, 300, 600, 900, 1800),
        *(3_600, 7_200, 10_800, 21_600, 43_200, 86_400, 604_800),
    )
)
"""The distances of times on an axis, in ms."""

_MOST_TICKS = 7

_LABELLED = (2, 97)
"""The part of an axis in per cent in which times are printed; others would leave the page."""


class _Scale:
    """The positions of times on a chart, in per cent of its width."""

    def __init__(self, past: PastStatus, *, utc: bool) -> None:
        self._since_ms = past.since_ms
        self._length_ms = max(past.until_ms - past.since_ms, 1)
        self._utc = utc

    def at(self, at_ms: int) -> float:
        share = (at_ms - self._since_ms) / self._length_ms
        return 100 * min(max(share, 0.0), 1.0)

    def time(self, at_ms: int) -> str:
        return short_time(at_ms, utc=self._utc, since_ms=self._since_ms)

    def axis(self) -> str:
        """Return the times at round distances, with a line up through the chart at each."""
        step_ms = next(
            (one for one in _STEPS_MS if self._length_ms / one <= _MOST_TICKS), _STEPS_MS[-1]
        )
        first = -(-self._since_ms // step_ms) * step_ms
        ticks = []
        for at_ms in range(first, self._since_ms + self._length_ms + 1, step_ms):
            text = self.time(at_ms)
            if step_ms >= 60_000:
                # Without the seconds, which are 0.
                text = text[:-3]
            at = self.at(at_ms)
            label = f"<b>{text}</b>" if _LABELLED[0] <= at <= _LABELLED[1] else ""
            ticks.append(f'<i style="left:{at:.2f}%">{label}</i>')
        return f'<div class="row axis"><span></span><div>{"".join(ticks)}</div></div>'


def in_sync_chart(past: PastStatus, *, utc: bool) -> str:
    """Return the timeline of in-sync sets: a row for each replica of a partition that changed."""
    if not past.in_sync:
        return "<p>No in-sync set has changed.</p>"
    scale = _Scale(past, utc=utc)
    by_replica: dict[tuple[str, int], list[InSync]] = defaultdict(list)
    for one in past.in_sync:
        by_replica[one.partition, one.broker_id].append(one)
    shown = sorted(by_replica)[:_MOST_TIMELINES]
    rows, before = [], None
    for partition, broker_id in shown:
        spans = "".join(_span(one, scale) for one in by_replica[partition, broker_id])
        first = "" if partition == before else ' class="row first"'
        name = f"<em>{escape(partition)}</em> broker {broker_id}"
        rows.append(f"<div{first or ' class=row'}><span>{name}</span><div>{spans}</div></div>")
        before = partition
    left = len(by_replica) - len(shown)
    more = f"<p>{left} more replicas changed and are not shown.</p>" if left else ""
    return f'<div class="chart spans">{"".join(rows)}{scale.axis()}</div>{more}'


def _span(one: InSync, scale: _Scale) -> str:
    begin, end = scale.at(one.from_ms), scale.at(one.until_ms)
    if one.leads:
        kind, state = "leader", "led"
    elif one.is_in_sync:
        kind, state = "in-sync", "was in sync"
    else:
        kind, state = "behind", "was not in sync"
    told = (
        f"broker {one.broker_id} {state} from {scale.time(one.from_ms)} to "
        f"{scale.time(one.until_ms)}"
    )
    style = f"left:{begin:.2f}%;width:{end - begin:.2f}%"
    return f'<i class="{kind}" style="{style}" title="{escape(told)}"></i>'


def lag_chart(past: PastStatus, *, utc: bool) -> str:
    """Return the lag of each broker's replicas, in offsets, summed: a strip for each broker.

    All strips have one scale, so that equal lags have equal heights and none covers another one.
    """
    if not any(one.lag for one in past.lag):
        return "<p>No replica was behind.</p>"
    scale = _Scale(past, utc=utc)
    by_broker: Mapping[int, list[LagSample]] = defaultdict(list)
    for one in past.lag:
        by_broker[one.broker_id].append(one)
    most = max(one.lag for one in past.lag)
    shown = sorted(by_broker, key=lambda of: (-max(one.lag for one in by_broker[of]), of))
    rows = [
        f'<div class="row first"><span>broker {broker_id} <small>{_peak(by_broker[broker_id])}'
        f"</small></span><div>{_strip(sorted(by_broker[broker_id]), most, scale)}</div></div>"
        for broker_id in sorted(shown[:_MOST_BROKERS])
    ]
    left = len(shown) - _MOST_BROKERS
    more = f"<p>{left} more brokers lagged less and are not shown.</p>" if left > 0 else ""
    return f'<div class="chart lag">{"".join(rows)}{scale.axis()}</div>{more}'


def _peak(samples: Sequence[LagSample]) -> str:
    most = max(one.lag for one in samples)
    return f"up to {most}" if most else "never behind"


def _strip(samples: Sequence[LagSample], most: int, scale: _Scale) -> str:
    """Return the area under a broker's lags; a lag holds until the next sample."""
    points, height = [], 0.0
    for one in samples:
        x = scale.at(one.at_ms)
        points += [f"{x:.2f},{100 - height:.1f}"]
        height = 100 * one.lag / most
        points += [f"{x:.2f},{100 - height:.1f}"]
    first = scale.at(samples[0].at_ms)
    path = " ".join([f"{first:.2f},100", *points, f"100,{100 - height:.1f}", "100,100"])
    told = "; ".join(f"{scale.time(one.at_ms)} {one.lag}" for one in samples if one.lag)[:400]
    return (
        '<svg viewBox="0 0 100 100" preserveAspectRatio="none" role="img">'
        f'<title>{escape(told or "never behind")}</title><polygon points="{path}"/></svg>'
    )
