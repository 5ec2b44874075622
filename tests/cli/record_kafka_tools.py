"""Record the options of Kafka's command line tools, for test_command_line_document.py.

They are those that the tools print for --help. `libs` is the folder of that name in a distribution
of Kafka; Java 17 is needed:

    python tests/cli/record_kafka_tools.py kafka_2.13-4.3.1/libs > tests/cli/kafka_tools.json

Options of a tool with commands of its own have the command before them, as in "describe --status".
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

TOOLS = {
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
    "kafka-configs.sh": "kafka.admin.ConfigCommand",
    "kafka-consumer-groups.sh": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-groups.sh": "org.apache.kafka.tools.GroupsCommand",
    "kafka-reassign-partitions.sh": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-leader-election.sh": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-delete-records.sh": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-get-offsets.sh": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-log-dirs.sh": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-console-producer.sh": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-console-consumer.sh": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-broker-api-versions.sh": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-metadata-quorum.sh": "org.apache.kafka.tools.MetadataQuorumCommand",
    "kafka-cluster.sh": "org.apache.kafka.tools.ClusterTool",
    "kafka-features.sh": "org.apache.kafka.tools.FeatureCommand",
    "kafka-storage.sh": "kafka.tools.StorageTool",
}
"""The classes that the scripts of bin/ run, by script."""

NEEDS_SERVER = "org.apache.kafka.tools.MetadataQuorumCommand"
"""The only tool that refuses `COMMAND --help` without a server; it does not connect to it."""


def printed(libs: Path, *command: str) -> str:
    """Return the help that a tool prints, to either stream and with any exit code."""
    found = subprocess.run(
        ["java", "-XX:TieredStopAtLevel=1", "-cp", f"{libs}/*", *command, "--help"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "--help" in found.stdout + found.stderr, (command, found)
    return found.stdout + found.stderr


def options(text: str) -> dict[str, str]:
    """Return the options of a help text with their descriptions.

    An option begins a line of the left column: of both columns in the form of joptsimple, indented
    by two spaces, maybe after a short form, in that of argparse4j.
    """
    parts = re.split(r"^(?:\* |  )?(?:-\w, )?(--[a-z][a-z.-]*)", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], (" ".join(one.split()) for one in parts[2::2]), strict=True))


def recorded(libs: Path, tool: str) -> dict[str, list[str]]:
    """Return the options of a tool, and which of them its help calls deprecated."""
    text = printed(libs, tool)
    found = options(text)
    commands = re.search(r"^  \{([a-z,-]+)\}$", text, re.MULTILINE)
    server = ("--bootstrap-server", "localhost:9092") if tool == NEEDS_SERVER else ()
    for command in commands[1].split(",") if commands else ():
        found[command] = ""
        of_command = options(printed(libs, tool, *server, command))
        of_command.pop("--help")
        found |= {f"{command} {name}": of_command[name] for name in of_command}
    deprecated = [name for name in found if re.search(r"deprecated", found[name], re.IGNORECASE)]
    return {"options": sorted(found.keys() - deprecated), "deprecated": sorted(deprecated)}


def main() -> None:
    """Print the options of all tools as JSON."""
    libs = Path(sys.argv[1])
    [jar] = libs.glob("kafka-tools-[0-9]*.jar")
    version = jar.stem.removeprefix("kafka-tools-")
    tools = {script: recorded(libs, tool) for script, tool in TOOLS.items()}
    print(json.dumps({"version": version, "tools": tools}, indent=1))


if __name__ == "__main__":
    main()
