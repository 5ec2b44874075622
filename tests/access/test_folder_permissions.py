"""The permissions of the roles on folders: each is enough for its role, and no role has more.

Each role is a user of the operating system, whose permissions are the commands that `sparklog
policy` prints. Needs root, and the packages acl and util-linux.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml

from sparklog.cluster.access import Role
from sparklog.cluster.connection import Connection
from sparklog.cluster.root_format import read_format
from sparklog.errors import StorageError
from sparklog.storage.location import Location
from tests.cli.command_line import run
from tests.jobs.processes import ROOT, Process, wait_for

FIRST_UID = 61_000
OPERATIONS = "tests.access.user_operations"
RESTRICTIVE = "077"
"""A umask with which a user's new files are unreadable for others."""

pytestmark = [
    pytest.mark.skipif(
        os.geteuid() != 0 or not shutil.which("setfacl") or not shutil.which("setpriv"),
        reason="needs root, setfacl and setpriv",
    ),
    # The tests share the processes of one cluster.
    pytest.mark.xdist_group("users"),
]

Outcomes = dict[str, tuple[str | None, str | None]]


class UserCluster:
    """Two brokers and a user for each role."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "cluster"
        self.log_dirs = [folder / f"broker-{one}" for one in range(2)]
        self.brokers: list[Process] = []
        self.uids = {name: FIRST_UID + number for number, name in enumerate(self.names())}
        values = {
            "cluster.root": str(self.root),
            "broker.session.timeout.ms": 4_000,
            "broker.heartbeat.interval.ms": 500,
            "replica.lag.time.max.ms": 4_000,
        }
        listed = [{"broker.id": one, "log.dirs": str(at)} for one, at in enumerate(self.log_dirs)]
        self.file = self._write("cluster", {**values, "brokers": listed})
        for number, one in enumerate(listed):
            self._write(f"broker-{number}", {**values, **one})

    def names(self) -> list[str]:
        """Return the names of the users."""
        return ["broker-0", "broker-1", "nobody", *(role.value for role in Role)]

    def _write(self, name: str, values: dict[str, object]) -> Path:
        file = self.folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump(values), encoding="utf-8")
        return file

    def command(self, name: str, *arguments: str | Path) -> list[str | Path]:
        """Return the command of a Python process of a user without groups."""
        uid = str(self.uids[name])
        as_user = ["setpriv", "--reuid", uid, "--regid", uid, "--clear-groups"]
        return [*as_user, sys.executable, "-m", *arguments]

    def grant(self, role: Role, name: str, *options: str, is_checked: bool = True) -> None:
        """Run the commands that `sparklog policy` prints."""
        principal = f"u:{self.uids[name]}"
        arguments = [role.value, "--principal", principal, *options, "--cluster", self.file]
        for line in run("policy", *arguments).printed.splitlines():
            subprocess.run(line, shell=True, check=is_checked, capture_output=True)

    def start(self) -> None:
        """Create the roots as their owners, grant the permissions, and await a stable cluster."""
        for name, folder in (
            ("operator", self.root),
            *((f"broker-{one}", at) for one, at in enumerate(self.log_dirs)),
        ):
            folder.mkdir()
            os.chown(folder, self.uids[name], self.uids[name])
        assert self.outcomes("operator", "create_cluster") == {"create_cluster": (None, None)}
        for one in range(2):
            # Before the first start the log directories have no tables yet.
            self.grant(Role.CONTROLLER, f"broker-{one}", "--broker-id", str(one), is_checked=False)
        for one in range(2):
            file = self.folder / f"broker-{one}.yaml"
            command = self.command(f"broker-{one}", "jobs.broker", "--config", file)
            self.brokers.append(
                Process([*command, "--without-spark"], self.folder / f"process-{one}")
            )
        wait_for(self._has_roots, "roots of the brokers")
        for one in range(2):
            self.grant(Role.CONTROLLER, f"broker-{one}", "--broker-id", str(one))
        for role in Role:
            if role not in (Role.BROKER, Role.CONTROLLER):
                self.grant(role, role.value)
        connection = Connection(str(self.root))

        def are_alive() -> bool:
            brokers = connection.metadata().brokers.values()
            return len(brokers) == 2 and all(one.is_alive for one in brokers)

        wait_for(are_alive, "live brokers")

    def _has_roots(self) -> bool:
        try:
            return all(read_format(Location.of(str(at))) for at in self.log_dirs)
        except StorageError:
            return False

    def outcomes(self, name: str, *operations: str, umask: str = "022") -> Outcomes:
        """Return the class and the message of the error of each operation of a user."""
        command = self.command(name, OPERATIONS, umask, str(self.root), *operations)
        finished = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
        )
        lines = [json.loads(line) for line in finished.stdout.splitlines()]
        assert len(lines) == len(operations), finished.stderr
        return {operation: (error, text) for operation, error, text in lines}


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UserCluster]:
    folder = tmp_path_factory.mktemp("users")
    for one in (folder, *folder.parents):
        if one == folder or one.name.startswith(("pytest", "popen", "sparklog")):
            one.chmod(0o755)
    cluster = UserCluster(folder)
    probe = cluster.command("nobody", OPERATIONS, "022", cluster.root)
    if subprocess.run(probe, cwd=ROOT, capture_output=True, check=False).returncode:
        pytest.skip("other users cannot read this checkout")
    try:
        cluster.start()
        yield cluster
    finally:
        for broker in cluster.brokers:
            broker.close()


def test_the_permissions_are_enough(users: UserCluster) -> None:
    """Also with umasks that hide the files of some users from the others."""
    done = {
        "admin": users.outcomes("admin", "create_topic", umask=RESTRICTIVE),
        "producer": users.outcomes("producer", "produce", "produce_plainly", umask=RESTRICTIVE),
        "consumer": users.outcomes("consumer", "consume"),
        "group-member": users.outcomes("group-member", "join", umask=RESTRICTIVE),
        "auditor": users.outcomes("auditor", "check"),
    }
    failed = {
        (name, operation): outcome
        for name, outcomes in done.items()
        for operation, outcome in outcomes.items()
        if outcome != (None, None)
    }
    assert failed == {}
    assert users.outcomes("admin", "alter_topic") == {"alter_topic": (None, None)}


REFUSED: Sequence[tuple[str, Sequence[str]]] = (
    ("nobody", ("consume", "produce", "check")),
    ("consumer", ("produce", "produce_plainly", "join", "alter_topic")),
    ("producer", ("consume", "join", "alter_topic", "read_a_record_file")),
    ("auditor", ("consume", "produce_plainly", "alter_topic", "read_a_record_file")),
    ("group-member", ("produce_plainly", "alter_topic")),
)


@pytest.mark.parametrize(("name", "operations"), REFUSED)
def test_the_permissions_are_not_more(
    users: UserCluster, name: str, operations: Sequence[str]
) -> None:
    """Other operations are refused, in one sentence that names the path."""
    found = users.outcomes(name, *operations)
    for operation, (error, text) in found.items():
        if operation == "read_a_record_file":
            assert error == "PermissionError"
            continue
        assert error == "AccessDeniedError", (operation, error, text)
        assert text is not None
        assert text.startswith("this identity may not ")
        assert str(users.folder) in text
        assert "\n" not in text
