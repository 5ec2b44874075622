"""A picture of the Spark UI's page of jobs, on which the jobs of brokers have names.

python -m jobs.spark_ui

Three brokers replicate one batch, each in another role, with `execution: spark` and
`rules.engine: spark`; a headless Chromium takes the picture.
"""

from __future__ import annotations

import json
import tempfile
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from jobs.headless_browser import Area, find_chromium, headless_page
from sparklog.cli.application import one_line_errors
from sparklog.errors import SparklogError
from sparklog.session import spark_session
from sparklog.testing import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "images" / "spark-ui-jobs.png"
WIDTH = 1200
"""The width of the page in CSS pixels."""


class Job(NamedTuple):
    """A job that has ended, as Spark's UI shows it."""

    number: int
    name: str


def replicate(spark: SparkSession, folder: Path) -> list[Job]:
    """Replicate one batch, and return the jobs of the brokers' ticks.

    Broker 0 is the controller, broker 1 the leader, and broker 2 the follower.
    """
    config = {"execution": "spark", "rules.engine": "spark"}
    cluster = LocalCluster(folder, brokers=[0, 1, 2], spark=spark, config=config)
    cluster.create_topic("clicks", assignment={0: [1, 2]})
    pending = cluster.produce("clicks", 0, [b"a click"])
    before = jobs(spark)[-1].number
    cluster.controller_tick()
    cluster.leader_tick(1)
    cluster.follower_tick(2)
    cluster.leader_tick(1)
    cluster.follower_tick(2)
    if pending.response is None or pending.response.error != "NONE":
        raise SparklogError(f"the batch was not replicated: {pending.response}")
    return [job for job in jobs(spark) if job.number > before]


def jobs(spark: SparkSession) -> list[Job]:
    """Return the jobs that the UI shows, the oldest first.

    Raises `SparklogError` if the session has no UI.
    """
    context = spark.sparkContext
    # The UI shows a job when the event of its end was processed.
    context._jsc.sc().listenerBus().waitUntilEmpty()
    address = f"{ui(spark)}/api/v1/applications/{context.applicationId}/jobs"
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(address) as answer:
        listed = json.load(answer)
    return sorted(Job(one["jobId"], one.get("description", "")) for one in listed)


def ui(spark: SparkSession) -> str:
    """Return the address of a session's UI; raise `SparklogError` for a session without UI."""
    address = spark.sparkContext.uiWebUrl
    if address is None:
        raise SparklogError("this Spark session has no UI: set spark.ui.enabled to true")
    return address


def picture(chromium: str, address: str, rows: int) -> bytes:
    """Return the newest jobs on the UI's page of jobs as PNG."""
    with headless_page(chromium, WIDTH) as page:
        page.open(f"{address}/jobs/?completedJob.pageSize={rows}")
        return page.picture(Area(*page.evaluate(_CROPPED)))


# Removed are the line of code below each name, with the path of its file, and buttons above the
# table.
_CROPPED = """(() => {
  for (const line of document.querySelectorAll("#completedJob-table a.name-link"))
    line.style.display = "none";
  for (const button of document.querySelectorAll("body *"))
    if (getComputedStyle(button).position == "fixed") button.style.display = "none";
  const table = document.querySelector("#completedJob-table").getBoundingClientRect();
  return [0, 0, document.documentElement.clientWidth, Math.ceil(table.bottom) + 8];
})()"""


def main(
    to: Annotated[Path, typer.Option(help="The file of the picture.")] = PICTURE,
) -> None:
    """Take a picture of the Spark UI with the jobs of three brokers."""
    settings = {
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.ui.timelineEnabled": "false",
    }
    with one_line_errors(), tempfile.TemporaryDirectory(prefix="sparklog-") as folder:
        chromium = find_chromium()
        spark = spark_session("sparklog", master="local[2]", config=settings)
        try:
            found = replicate(spark, Path(folder, "cluster"))
            png = picture(chromium, ui(spark), len(found))
        finally:
            spark.stop()
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_bytes(png)
        print(f"{to}: {len(found)} jobs, {len(png):,} bytes")


if __name__ == "__main__":
    typer.run(main)
