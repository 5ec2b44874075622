"""Runs every program against a real Kafka and stores the results.

    python -m tests.kafka_comparison.record KAFKA_JARS CONNECTOR_JARS

The first folder holds the JARs of a Kafka broker (kafka_2.13 and kafka-tools with all that they
need), the second those of Spark's Kafka connector. The tests compare the stored results with those
of the same programs on sparklog; docs/kafka-compatibility.md shows them.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from sparklog.session import spark_session
from tests.kafka_comparison.kafka import fill, running_kafka
from tests.kafka_comparison.programs import PROGRAMS, Session, outcome_of
from tests.kafka_comparison.table import OUTCOMES


def main() -> None:
    """Run all programs, in order."""
    libs, connector = (Path(folder).absolute() for folder in sys.argv[1:])
    jars = ",".join(sorted(map(str, connector.glob("*.jar"))))
    outcomes = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with running_kafka(libs, folder) as side:
            spark = spark_session(
                "kafka comparison", master="local[2]", config={"spark.jars": jars}
            )
            fill(spark, side)
            for number, program in enumerate(PROGRAMS):
                own = folder / f"program-{number}"
                own.mkdir()
                outcomes[program.name] = outcome_of(program, Session(spark, side, own))
                print(f"{program.name}: {json.dumps(outcomes[program.name])[:150]}", flush=True)
            spark.stop()
    OUTCOMES.write_text(json.dumps(outcomes, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
