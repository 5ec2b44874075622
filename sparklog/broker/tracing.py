"""Spans of ticks for OpenTelemetry: `tracing.enable`.

The library uses the API only. The process configures an SDK, for example by the environment of
`opentelemetry-instrument`; without one, spans cost nothing and go nowhere.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from sparklog.broker.tick import TickReport
from sparklog.config import Settings
from sparklog.errors import ConfigError

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer


class TickSpans:
    """The spans of one broker's ticks: of those that changed something, and of those that failed.

    An idle tick has no span, so that a resident broker makes none at rest.
    """

    def __init__(self, broker_id: int, settings: Settings) -> None:
        self._broker_id = broker_id
        self._tracer: Tracer | None = tracer() if settings.tracing_enable else None

    def note(self, role: str, seconds: float, outcome: TickReport | Exception) -> None:
        """Record the tick that has just ended, after `seconds`, as a span."""
        is_idle = isinstance(outcome, TickReport) and not outcome.changed
        if self._tracer is None or is_idle:
            return
        from opentelemetry.trace import Status, StatusCode

        ended_ns = time.time_ns()
        span = self._tracer.start_span(
            f"{role} tick",
            start_time=ended_ns - int(seconds * 1e9),
            attributes={"sparklog.broker": self._broker_id, "sparklog.role": role},
        )
        if isinstance(outcome, TickReport):
            for count in ("commits", "spark_jobs", "files_copied", "bytes_copied"):
                span.set_attribute(f"sparklog.{count}", getattr(outcome, count))
        else:
            span.record_exception(outcome)
            span.set_status(Status(StatusCode.ERROR, str(outcome)))
        span.end(ended_ns)


def tracer() -> Tracer:
    """Return the tracer of sparklog; `ConfigError` if opentelemetry-api is missing."""
    try:
        from opentelemetry import trace
    except ImportError:
        raise ConfigError(
            "tracing.enable needs the package opentelemetry-api: install sparklog[tracing], or "
            "remove the key"
        ) from None
    return trace.get_tracer("sparklog")
