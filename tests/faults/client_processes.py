"""The clients of a round as processes: producers, and members of one group."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.faults.broker_processes import PARTITIONS, TOPIC, BrokerProcesses
from tests.jobs.processes import Process

GROUP = "fire-readers"
_END_SECONDS = 900.0


class ClientProcesses:
    """Producers and consumers; a killed one is followed by another one with its own log."""

    def __init__(
        self,
        brokers: BrokerProcesses,
        producers: int,
        consumers: int,
        records_per_second: float,
        streams: int = 0,
    ) -> None:
        self._brokers = brokers
        self._rate = records_per_second / producers
        self.producer_logs: list[Path] = []
        self.consumer_logs: list[Path] = []
        self.producers = [self._start_producer() for _ in range(producers)]
        self.consumers = [self._start_consumer() for _ in range(consumers)]
        self.checkpoints = [brokers.folder / f"stream-{one}" for one in range(streams)]
        self.streams = [self._start_stream(one) for one in self.checkpoints]

    def _start_producer(self) -> Process:
        file = self._brokers.folder / f"p{len(self.producer_logs)}.jsonl"
        file.touch()
        self.producer_logs.append(file)
        given = (self._brokers.cluster, TOPIC, str(PARTITIONS), str(self._rate), str(file))
        return self._brokers.run("tests.faults.producer_process", *given)

    def _start_consumer(self) -> Process:
        file = self._brokers.folder / f"c{len(self.consumer_logs)}.jsonl"
        file.touch()
        self.consumer_logs.append(file)
        given = (self._brokers.cluster, TOPIC, GROUP, str(self._brokers.session_ms), str(file))
        return self._brokers.run("tests.faults.consumer_process", *given)

    def _start_stream(self, checkpoint: Path) -> Process:
        given = (self._brokers.cluster, topic_of(checkpoint), str(PARTITIONS), str(checkpoint))
        return self._brokers.run("tests.faults.stream_process", *given)

    def replace_producer(self, place: int) -> None:
        """Kill a producer and start another one."""
        self.producers[place].kill()
        self.producers[place] = self._start_producer()

    def replace_consumer(self, place: int) -> None:
        """Kill a member of the group and start another one."""
        self.consumers[place].kill()
        self.consumers[place] = self._start_consumer()

    def replace_stream(self, place: int) -> None:
        """Kill a stream with its JVM, and start another process with its checkpoint."""
        self.streams[place].close()
        self.streams[place] = self._start_stream(self.checkpoints[place])

    def check(self) -> None:
        """Fail if a client has ended by itself."""
        for process in [*self.producers, *self.consumers, *self.streams]:
            if process.popen.poll() is not None:
                raise AssertionError(f"a client has ended by itself: {process.stderr[-3000:]}")

    def stop_producers(self) -> None:
        """Let the producers deliver the records in flight, and wait for their end."""
        _stop(self.producers)

    def stop_streams(self) -> None:
        """Let the streams end their micro-batches, and wait for their end."""
        _stop(self.streams)

    def stop_consumers(self) -> None:
        """Let the members leave the group, and wait for their end."""
        _stop(self.consumers)


def topic_of(checkpoint: Path) -> str:
    """Return the topic of the stream with a checkpoint."""
    return checkpoint.name


def _stop(processes: list[Process]) -> None:
    """End processes in order; one that was started just now ends before it has sent anything."""
    for process in processes:
        process.send(signal.SIGTERM)
    for process in processes:
        code = process.popen.wait(_END_SECONDS)
        # Before a client has installed its handler, the signal itself ends it.
        assert code in (0, -signal.SIGTERM), f"ended with {code}: {process.stderr[-3000:]}"
