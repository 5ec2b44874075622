"""A picture of the page of `sparklog status --html`, after an unclean election.

python -m jobs.status_picture

Three brokers replicate three topics. A follower stands still, a broker is fenced, and a topic that
permits it elects a leader uncleanly and loses records. The story takes a minute in real time; a
headless Chromium takes the picture.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from jobs.headless_browser import Area, find_chromium, headless_page
from sparklog.cli import status_page
from sparklog.cli.application import one_line_errors
from sparklog.cli.status_history import past_status
from sparklog.clock import SystemClock
from sparklog.cluster.connection import Connection
from sparklog.consumer.consumer import Consumer
from sparklog.maintenance.cluster_past import ClusterPast
from sparklog.maintenance.status_reader import StatusReader
from sparklog.testing import LocalCluster

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "images" / "status-page.png"
WIDTH = 1280
"""The width of the page in CSS pixels."""

_HOURS = 6


def story(folder: Path, pause_s: float) -> LocalCluster:
    """Return a cluster that has lost records; each of its steps takes `pause_s` seconds or more."""
    cluster = LocalCluster(folder, brokers=[0, 1, 2], racks={0: "east", 1: "west", 2: "west"})
    # Times of rows are those of the cluster's clock, times of commits those of the system's.
    cluster.clock.advance(SystemClock().now_ms() - cluster.clock.now_ms())
    orders = {one: [(one + other) % 3 for other in range(3)] for one in range(3)}
    cluster.create_topic("orders", assignment=orders)
    unclean = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
    cluster.create_topic("clicks", assignment={0: [0, 1]}, configs=unclean)

    def pass_time(seconds: float) -> None:
        until = time.monotonic() + seconds
        while True:
            cluster.clock.advance(max(SystemClock().now_ms() - cluster.clock.now_ms(), 0))
            cluster.tick_until_idle()
            if time.monotonic() >= until:
                return
            time.sleep(0.5)

    def produce(topic: str, partition: int, records: int) -> None:
        cluster.produce(topic, partition, [b"a record"] * records, acks=1)

    def lose(broker_id: int) -> None:
        cluster.crash(broker_id)
        cluster.fence(broker_id)

    for partition in range(3):
        produce("orders", partition, 40)
    pass_time(2 * pause_s)
    with Consumer(folder / "cluster", group_id="billing", auto_offset_reset="earliest") as consumer:
        consumer.assign(consumer.partitions_for_topic("orders"))
        for assigned in consumer.assignment():
            consumer.seek(assigned, 25)
        consumer.commit()
    cluster.pause(2)
    for _ in range(3):
        produce("orders", 0, 60)
        pass_time(pause_s)
    cluster.resume(2)
    pass_time(2 * pause_s)
    lose(1)
    pass_time(pause_s)
    produce("clicks", 0, 120)
    produce("orders", 0, 80)
    pass_time(2 * pause_s)
    # Before broker 1 has copied what it lacks.
    cluster.crash(0)
    cluster.restart(1)
    cluster.fence(0)
    pass_time(pause_s)
    produce("clicks", 0, 10)
    pass_time(pause_s)
    cluster.restart(0)
    pass_time(2 * pause_s)
    lose(2)
    produce("orders", 0, 30)
    pass_time(pause_s)
    return cluster


def write_page(root: Path, to: Path) -> None:
    """Write the status page of the cluster at `root`, as `sparklog status --html --utc` does."""
    reader = StatusReader(Connection(root))
    status = reader.read()
    past = past_status(ClusterPast(reader, _HOURS).read(status.read_at_ms))
    status_page.write(to, status, past, None, utc=True)


def picture(chromium: str, page: Path, width: int = WIDTH) -> bytes:
    """Return a page of this width as PNG."""
    with headless_page(chromium, width) as shown:
        shown.open(page.as_uri())
        return shown.picture(Area(0, 0, width, shown.evaluate(_HEIGHT)))


_HEIGHT = "Math.ceil(document.documentElement.getBoundingClientRect().height)"


def main(
    to: Annotated[Path, typer.Option(help="The file of the picture.")] = PICTURE,
    pause: Annotated[float, typer.Option(help="The seconds of a step of the story.")] = 4,
) -> None:
    """Take a picture of the status page of a cluster that has lost records."""
    with one_line_errors(), tempfile.TemporaryDirectory(prefix="sparklog-") as folder:
        chromium = find_chromium()
        story(Path(folder), pause)
        page = Path(folder, "status.html")
        write_page(Path(folder, "cluster"), page)
        png = picture(chromium, page)
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_bytes(png)
        print(f"written: {to}")


if __name__ == "__main__":
    typer.run(main)
