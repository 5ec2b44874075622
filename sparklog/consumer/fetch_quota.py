"""The quota of a consumer's client id: consumer_byte_rate, which the consumer keeps itself (3.9).

Consumers read the tables of brokers directly, so no broker could hold back a fetch. Each consumer
measures its own bytes: two consumers of one client id may fetch twice the quota.
"""

from __future__ import annotations

from sparklog.cluster.byte_rates import ByteRates
from sparklog.cluster.connection import Connection
from sparklog.cluster.dynamic_configs import DynamicConfigs, byte_rate_of
from sparklog.config import Settings
from sparklog.logger import get_logger

_log = get_logger(__name__)

_WINDOW_MS = 1_000 * (
    Settings.model_fields["quota_window_num"].default
    * Settings.model_fields["quota_window_size_seconds"].default
)
"""Kafka's default window in ms; the brokers' configuration is not known here."""


class FetchQuota:
    """The bytes that a consumer has fetched, and its throttle time, on its monotonic clock.

    The quota is read again once a change is announced in `brokers`, which the consumer's metadata
    contain; without a change nothing is read.
    """

    def __init__(self, connection: Connection, client_id: str) -> None:
        self._connection = connection
        self._client_id = client_id
        self._configs = DynamicConfigs(connection.root)
        self._rates = ByteRates(_WINDOW_MS)
        self._until_ms = 0

    def left_ms(self, now_ms: int) -> int:
        """Return the time in ms for which nothing is fetched."""
        if now_ms >= self._until_ms or self._byte_rate() is None:
            return 0
        return self._until_ms - now_ms

    def note(self, size_bytes: int, now_ms: int) -> None:
        """Note fetched bytes; begin a throttle time if they exceed the quota."""
        byte_rate = self._byte_rate()
        if byte_rate is None or not size_bytes:
            return
        self._rates.note(self._client_id, size_bytes, now_ms)
        client = {
            "client_id": self._client_id,
            "recent_bytes": self._rates.recent_bytes(self._client_id, now_ms),
            "window_ms": _WINDOW_MS,
            "byte_rate": byte_rate,
        }
        for row in self._connection.rules.run("throttle_times", clients=[client]):
            self._until_ms = now_ms + row["throttle_time_ms"]
            _log.info("throttled", client=self._client_id, time_ms=row["throttle_time_ms"])

    def _byte_rate(self) -> int | None:
        self._configs.refresh()
        return byte_rate_of(self._configs, self._client_id, "consumer_byte_rate")
