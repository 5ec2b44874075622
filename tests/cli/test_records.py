"""`sparklog produce` and `sparklog consume` with lines: Kafka's console tools on a cluster."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sparklog.cli import app
from sparklog.groups.committed_offsets import lag
from tests.cli.command_line import Finished, run
from tests.running_cluster import RunningCluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    cluster = RunningCluster(tmp_path_factory.mktemp("running"))
    yield cluster
    cluster.stop()


_NUMBERS = itertools.count()


@pytest.fixture
def topic(cluster: RunningCluster) -> str:
    """A topic of one partition for this test alone."""
    name = f"t{next(_NUMBERS)}"
    cluster.create_topic(name)
    return name


def produce(cluster: RunningCluster, topic: str, lines: bytes, *options: str) -> Finished:
    """Run `sparklog produce` with these bytes as standard input."""
    result = CliRunner().invoke(
        app,
        ["produce", topic, "--cluster", cluster.connection.cluster, *options],
        input=lines,
    )
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Finished(result.exit_code, result.stdout, result.stderr)


def consume(cluster: RunningCluster, topic: str, *options: str | Path) -> list[str]:
    """Run `sparklog consume` from the beginning until it has waited for a second."""
    finished = run(
        "consume", topic, "--cluster", cluster.connection.cluster, "--timeout-ms=1000", *options
    )
    assert finished.exit_code == 0, finished.stderr
    lines = finished.stdout.splitlines()
    messages = "message" if len(lines) == 1 else "messages"
    assert finished.stderr == f"Processed a total of {len(lines)} {messages}.\n"
    return lines


def test_lines_are_produced_and_consumed_in_order(cluster: RunningCluster, topic: str) -> None:
    finished = produce(cluster, topic, b"a\nb b\r\n\nlast")
    assert finished == (0, "", f"Produced 4 records to topic {topic}.\n")
    assert consume(cluster, topic, "--from-beginning") == ["a", "b b", "", "last"]
    assert consume(cluster, topic, "--from-beginning", "--max-messages=2") == ["a", "b b"]
    assert consume(cluster, topic) == []


def test_the_properties_of_kafkas_console_tools_are_honoured(
    cluster: RunningCluster, topic: str
) -> None:
    """Keys, headers and null values are read and printed as by Kafka's tools."""
    lines = b"h1:a,h2:NULL\tk1|v1\n\tk2|NULL\n"
    properties = ["parse.key=true", "key.separator=|", "parse.headers=true", "null.marker=NULL"]
    options = [f"--reader-property={one}" for one in properties]
    assert produce(cluster, topic, lines, *options).exit_code == 0

    shown = ["partition", "offset", "headers", "key"]
    printed = consume(
        cluster,
        topic,
        "--from-beginning",
        *(f"--formatter-property=print.{one}=true" for one in shown),
    )
    assert printed == [
        "Partition:0\tOffset:0\th1:a,h2:null\tk1\tv1",
        "Partition:0\tOffset:1\tNO_HEADERS\tk2\tnull",
    ]
    [first, second] = map(json.loads, consume(cluster, topic, "--from-beginning", "--json"))
    assert first.pop("timestamp") > 0
    assert first == {
        "topic": topic,
        "partition": 0,
        "offset": 0,
        "key": "k1",
        "value": "v1",
        "headers": [["h1", "a"], ["h2", None]],
    }
    assert second["value"] is None


def test_properties_files_have_the_keys_that_options_do_not_give(
    cluster: RunningCluster, topic: str, tmp_path: Path
) -> None:
    """--reader-config, --formatter-config and --command-config, as in Kafka's tools."""
    file = tmp_path / "tool.properties"
    file.write_text("parse.key=true\nkey.separator=|\n")
    client = tmp_path / "client.properties"
    client.write_text("linger.ms=1\n")
    options = ["--reader-config", str(file), "--command-config", str(client)]
    produce(cluster, topic, b"k1:v1\n", *options, "--reader-property=key.separator=:")
    file.write_text("print.key = true\nkey.separator: \\t\\:\n")
    client.write_text("auto.offset.reset=earliest\n")
    options = ["--formatter-config", str(file), "--command-config", str(client)]
    assert consume(cluster, topic, *options) == ["k1\t:v1"]
    client.write_text("linger.msec=1\n")
    refused = produce(cluster, topic, b"v\n", "--command-config", str(client)).refusal
    assert "linger.msec" in refused


def test_reading_begins_with_an_offset_of_a_partition(cluster: RunningCluster, topic: str) -> None:
    produce(cluster, topic, b"a\nb\nc\n")
    of_one = ("--partition=0", "--offset")
    assert consume(cluster, topic, *of_one, "1") == ["b", "c"]
    assert consume(cluster, topic, *of_one, "earliest") == ["a", "b", "c"]
    assert consume(cluster, topic, *of_one, "latest") == []


def test_topics_are_read_by_a_regular_expression(cluster: RunningCluster) -> None:
    """Without a group all their partitions are read, with one they are shared by its members."""
    for name in ("like-1", "like-2", "unlike-1"):
        cluster.create_topic(name)
        produce(cluster, name, name.encode())
    assert sorted(consume(cluster, "like-.*", "--from-beginning")) == ["like-1", "like-2"]
    with_group = ("--from-beginning", "--group=g-like")
    assert sorted(consume(cluster, "like-1,like-2", *with_group)) == ["like-1", "like-2"]
    refused = run("consume", "none-.*", "--cluster", cluster.connection.cluster).refusal
    assert "no topic matches 'none-.*'" in refused


def test_a_line_without_its_key_ends_the_input_and_says_what_is_stored(
    cluster: RunningCluster, topic: str
) -> None:
    options = ["--reader-property=parse.key=true", "--reader-property=key.separator=:"]
    refused = produce(cluster, topic, b"k:v\nno key\nk:w\n", *options).refusal
    assert refused == (
        "line 2 has no key.separator ':': correct it, set the property key.separator, or set "
        "ignore.error=true to read the whole line as a value (records stored: 1)"
    )
    assert consume(cluster, topic, "--from-beginning") == ["v"]

    ignoring = [*options, "--reader-property=ignore.error=true"]
    assert produce(cluster, topic, b"no key\n", *ignoring).exit_code == 0
    assert consume(cluster, topic, "--from-beginning") == ["v", "no key"]


def test_a_record_that_is_refused_is_one_line(cluster: RunningCluster, topic: str) -> None:
    """A record that is too large ends the input, with the number of records before it."""
    limit = "--command-property=max.request.size=100"
    refused = produce(cluster, topic, b"small\n" + b"x" * 200 + b"\nnext\n", limit).refusal
    assert refused.startswith("MESSAGE_TOO_LARGE: a record of 232 bytes for topic")
    assert refused.endswith("(records stored: 1)")
    assert consume(cluster, topic, "--from-beginning") == ["small"]


def test_a_group_continues_after_the_records_that_were_printed(
    cluster: RunningCluster, topic: str
) -> None:
    produce(cluster, topic, b"0\n1\n2\n3\n")
    of_group = ["--group", f"g-{topic}", "--from-beginning"]
    assert consume(cluster, topic, *of_group, "--max-messages=3") == ["0", "1", "2"]
    [row] = lag(cluster.connection, f"g-{topic}")
    assert row.committed_offset == 3
    assert consume(cluster, topic, *of_group) == ["3"]
    assert consume(cluster, topic, *of_group) == []


def test_one_partition_is_read_alone(cluster: RunningCluster) -> None:
    cluster.create_topic("two", partitions=2)
    options = ["--reader-property=parse.key=true", "--reader-property=key.separator=:"]
    produce(cluster, "two", b"".join(b"%d:%d\n" % (one, one) for one in range(20)), *options)
    first, second = (
        consume(cluster, "two", "--from-beginning", f"--partition={one}") for one in range(2)
    )
    assert first
    assert second
    assert sorted(map(int, first + second)) == list(range(20))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["produce", "T", "--reader-property", "parse.keys=true"], "did you mean parse.key?"),
        (["produce", "T", "--reader-property", "parse.key=yes"], "set it to true or false"),
        (["produce", "T", "--reader-property", "parse.key"], "is not KEY=VALUE"),
        (["produce", "T", "--command-property", "linger=1"], "did you mean linger.ms?"),
        (["produce", "T", "--stream"], "--stream need --from, a Spark source"),
        (["produce", "T", "--from", "x", "--stream"], "--checkpoint is missing"),
        (["produce", "T", "--from", "x", "--checkpoint", "c"], "--checkpoint need --stream"),
        (["produce", "missing"], "UNKNOWN_TOPIC_OR_PARTITION"),
        (["produce", "missing", "--from", "x"], "UNKNOWN_TOPIC_OR_PARTITION"),
        (["consume", "missing"], "UNKNOWN_TOPIC_OR_PARTITION"),
        (["consume", "missing", "--to", "x", "--checkpoint", "c"], "UNKNOWN_TOPIC_OR_PARTITION"),
        (["consume", "T", "--to", "x"], "--checkpoint is missing"),
        (["consume", "T", "--to", "x", "--json"], "--json cannot be given with --to"),
        (["consume", "T", "--checkpoint", "x"], "--checkpoint needs --to"),
        (["consume", "T", "--to", "x", "--format", "csv"], "write delta or table"),
        (["consume", "T", "--partition", "0", "--group", "g"], "leave out --partition"),
        (["consume", "T", "--offset", "1"], "--offset is one of a partition: give --partition"),
        (["consume", "T", "--partition=0", "--offset=-1"], "--offset '-1' is no offset"),
        (["consume", "T", "--partition=0", "--offset=1", "--from-beginning"], "choose one"),
        (["consume", "T", "--formatter-config", "none"], "none cannot be read: No such file"),
        (["produce", "T", "--from", "x", "--reader-config", "c"], "--reader-config are for lines"),
        (["consume", "T", "--formatter-property", "print.keys=1"], "did you mean print.key?"),
        (["consume", "T", "--json", "--formatter-property", "print.key=true"], "choose one"),
    ],
)
def test_wrong_options_are_one_line(
    cluster: RunningCluster, topic: str, arguments: list[str], said: str
) -> None:
    """Wrong options are refused with one line, before anything is produced or consumed."""
    named = [topic if one == "T" else one for one in arguments]
    assert said in run(*named, "--cluster", cluster.connection.cluster).refusal


def test_help_does_not_import_spark_or_the_brokers() -> None:
    """The commands are listed without the modules that run them."""
    code = (
        "import sys\n"
        "from sparklog.cli import app\n"
        "try: app(['consume', '--help'])\n"
        "except SystemExit: pass\n"
        "loaded = {'pyspark', 'deltalake', 'pyarrow'} & set(sys.modules)\n"
        "sys.exit(f'loaded: {loaded}' if loaded else 0)\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert answer.returncode == 0, answer.stderr
