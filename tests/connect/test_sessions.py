"""Sessions of Spark Connect: how they begin, and how their end is noticed."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from tests.connect.conftest import ConnectServer, run_program

DEFAULT_PORT = 15002
"""The port that Spark uses for the server of a local master."""


def test_the_end_of_a_server_is_noticed_though_its_client_repeats_requests(tmp_path: Path) -> None:
    """`has_ended` is false while the server answers, and true soon after it is gone."""
    server = ConnectServer(tmp_path / "log")
    try:
        client = server.start("ends.py")
        assert client.stdout is not None
        assert client.stdout.readline() == "ready\n", client.communicate()[1]
    finally:
        server.close()
    found, errors = client.communicate("the server is gone\n", timeout=120)
    assert found, errors
    outcome = json.loads(found)
    assert outcome["answered"] > 1
    assert (outcome["before"], outcome["is gone"]) == (False, True)


def test_a_local_master_starts_a_server_of_its_own(tmp_path: Path) -> None:
    """`spark_session(remote="local[2]")` has Delta, and the driver's Python in its tasks."""
    with socket.socket() as port:
        if port.connect_ex(("127.0.0.1", DEFAULT_PORT)) == 0:
            pytest.skip(f"port {DEFAULT_PORT} is taken")
    found = run_program("local.py", tmp_path / "table")
    assert found == {"is connect": True, "rows": 10, "is same python": True, "named": 3}


def test_an_address_without_a_server_is_one_line() -> None:
    """Without a server, the error names the address; Spark's client tries for ten minutes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"sc://127.0.0.1:{free.getsockname()[1]}"
    found = run_program("local.py", url)
    assert found["refused"].startswith(f"no server of Spark Connect answers at {url} within")
    assert "\n" not in found["refused"]
