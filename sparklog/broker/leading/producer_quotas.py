"""Quotas of producers by client id: producer_byte_rate, over the window of Kafka's quotas (3.9).

Answers to a client id over its quota carry a throttle time, for which a producer sends nothing.
Until then this broker root refuses its requests, except those with acks=0, which nobody would send
again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sparklog.cluster.byte_rates import ByteRates
from sparklog.cluster.dynamic_configs import DynamicConfigs, byte_rate_of
from sparklog.protocol.rules import RowTuples, Rules
from sparklog.storage.journal import ProduceAnswer

_OF_CLIENT = "client_id", "recent_bytes", "window_ms", "byte_rate"
"""The columns of a client's row for the rule `throttle_times`."""


class ProducerQuotas:
    """The bytes and throttle times of client ids with a quota, on the broker's clock.

    In memory only: a restarted broker measures again, as Kafka's does.
    """

    def __init__(self, configs: DynamicConfigs, rules: Rules, window_ms: int) -> None:
        self._configs = configs
        self._rules = rules
        self._rates = ByteRates(window_ms)
        self._until_ms: dict[str, int] = {}
        # The client ids of throttled requests whose answers are delayed.
        self._clients: dict[str, str] = {}

    def has_quota(self, client_id: str) -> bool:
        """Return whether a client id has a quota, its own or that of all client ids."""
        return self._byte_rate(client_id) is not None

    def left_ms(self, client_id: str, now_ms: int) -> int:
        """Return the time in ms for which a client id is still throttled."""
        until_ms = self._until_ms.get(client_id, now_ms)
        return until_ms - now_ms if until_ms > now_ms and self.has_quota(client_id) else 0

    def throttle_times(self, appended: Mapping[str, int], now_ms: int) -> dict[str, int]:
        """Return the throttle times in ms of client ids that append these bytes now."""
        rows = [
            (client_id, size + self._rates.recent_bytes(client_id, now_ms), window_ms, byte_rate)
            for client_id, size in appended.items()
            if (byte_rate := self._byte_rate(client_id)) is not None
            for window_ms in [self._rates.window_ms]
        ]
        if not rows:
            return {}
        found = self._rules.run("throttle_times", clients=RowTuples(_OF_CLIENT, rows))
        return {row["client_id"]: row["throttle_time_ms"] for row in found}

    def note(
        self,
        appended: Mapping[str, int],
        times_ms: Mapping[str, int],
        delayed: Mapping[str, str],
        now_ms: int,
    ) -> None:
        """Note bytes that were committed, and the throttle times that follow.

        Parameters: `delayed`, the client ids of the requests that are answered later.
        """
        for client_id, size in appended.items():
            if self.has_quota(client_id):
                self._rates.note(client_id, size, now_ms)
        self._until_ms = {of: ms for of, ms in self._until_ms.items() if ms > now_ms}
        self._until_ms |= {of: now_ms + ms for of, ms in times_ms.items()}
        self._clients = {of: one for of, one in self._clients.items() if one in self._until_ms}
        self._clients |= {of: one for of, one in delayed.items() if one in self._until_ms}

    def with_times(
        self,
        answers: Iterable[ProduceAnswer],
        times_ms: Mapping[str, int],
        clients: Mapping[str, str],
        now_ms: int,
    ) -> list[ProduceAnswer]:
        """Return answers with the throttle times of their clients.

        Parameters: `times_ms`, the result of `throttle_times`; `clients`, the client ids of this
        tick's requests.
        """

        def with_time(answer: ProduceAnswer) -> ProduceAnswer:
            request_id = answer.request_id
            client_id = clients.get(request_id, self._clients.get(request_id))
            if client_id is None:
                return answer
            time_ms = max(times_ms.get(client_id, 0), self.left_ms(client_id, now_ms))
            return answer._replace(throttle_time_ms=time_ms) if time_ms else answer

        return [with_time(answer) for answer in answers]

    def _byte_rate(self, client_id: str) -> int | None:
        return byte_rate_of(self._configs, client_id, "producer_byte_rate")
