"""Brokers play their roles on a session of Spark Connect, as serverless compute offers it."""

from __future__ import annotations

from pathlib import Path

from tests.connect.conftest import ConnectServer

TRUNCATION = "no divergence when the follower that missed a record leads first"
"""A scenario in which a returning leader truncates."""


def test_brokers_work_with_all_rules_and_record_work_on_spark_connect(
    server: ConnectServer, tmp_path: Path
) -> None:
    """Checks, copies, truncation and the rules run without RDDs and without a JVM."""
    found = server.run("roles.py", tmp_path, TRUNCATION)
    assert (found["is connect"], found["jvm"]) == (True, False)
    assert (found["error"], found["copied"]) == ("NONE", 1)
    assert found["leader"] > 0
    assert found["follower"] > 0
    assert found["idle"] == [0, 0, 0]
