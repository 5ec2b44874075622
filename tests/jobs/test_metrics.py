"""The metrics of a real broker process: scraped by HTTP, and compared with the tables."""

from __future__ import annotations

import json
import socket
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sparklog.model import BROKERS, PARTITION_STATE
from tests.jobs.processes import Client, Cluster, Process, wait_for
from tests.jobs.test_bad_input import refusal, tree

CONTROLLER = "kafka_controller_kafkacontroller_"


def event(process: Process, name: str) -> dict[str, object]:
    """Return the first logged event of a name."""
    process.wait_for_event(name)
    events = [json.loads(line) for line in process.stderr.splitlines() if line.startswith("{")]
    found: dict[str, object] = next(one for one in events if one["event"] == name)
    return found


def scrape(address: str) -> dict[str, dict[tuple[str, ...], float]]:
    """Return the series of each sample name, by the values of their labels."""
    with urlopen(f"http://{address}/metrics", timeout=30) as response:
        assert response.headers["Content-Type"].startswith("text/plain")
        text = response.read().decode()
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            labels = tuple(of for _, of in sorted(one.labels.items()))
            assert labels not in found.setdefault(one.name, {}), one
            found[one.name][labels] = one.value
    return found


def test_a_running_cluster_serves_on_this_machine_what_its_tables_say(cluster: Cluster) -> None:
    cluster.settings["metrics.http.port"] = 0
    cluster.settings["metrics.textfile"] = str(cluster.folder / "sparklog.prom")
    process = cluster.run()
    served = event(process, "metrics served")
    assert served["host"] == "127.0.0.1"
    address = f"127.0.0.1:{served['port']}"
    client = Client(cluster)
    client.create_topic()
    for value in (b"a", b"b", b"c"):
        client.produce(value)

    def copied() -> bool:
        return len(cluster.log(1)) == len(cluster.log(2)) == 3

    wait_for(copied, "copies", process)
    found = scrape(address)
    states = cluster.rows(PARTITION_STATE)
    led = {str(one): sum(row["leader"] == one for row in states) // 3 for one in range(3)}
    assert {of: n for (of,), n in found["kafka_server_replicamanager_leadercount"].items()} == led
    for name, expected in (
        ("kafka_server_replicamanager_underreplicatedpartitions", 0),
        (f"{CONTROLLER}activecontrollercount", 1),
        (f"{CONTROLLER}globalpartitioncount", len(states) // 3),
        (f"{CONTROLLER}offlinepartitionscount", 0),
        (f"{CONTROLLER}activebrokercount", len(cluster.rows(BROKERS))),
        ("kafka_server_brokertopicmetrics_messagesin_total", len(client.committed())),
    ):
        assert sum(found[name].values()) == expected, name
    answers = [answer.error for one in range(3) for answer in cluster.answers(one)]
    counted = found["kafka_network_requestmetrics_errors_total"]
    assert sum(n for labels, n in counted.items() if "NONE" in labels) == answers.count("NONE")
    # A scrape reads nothing but memory: the second one finds the same traffic.
    again = scrape(address)
    assert again["kafka_network_requestmetrics_errors_total"] == counted

    # Another process cannot have the port; it creates nothing, and the first one goes on.
    cluster.settings["metrics.http.port"] = served["port"]
    cluster.settings["cluster.root"] = "other"
    other = Cluster(cluster.folder / "other", **cluster.settings)
    try:
        line = refusal(other.run())
    finally:
        other.close()
    assert f"metrics.http.port: cannot serve metrics at {address} (" in line
    assert {one for one in tree(other.folder) if not one.endswith(".prom")} == set()
    assert process.end() == 0
    assert (cluster.folder / "sparklog.prom").is_file()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", int(str(served["port"]))), timeout=30)
