"""Refused operations of stores and local folders, and the permissions of new files."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from sparklog.errors import AccessDeniedError
from sparklog.storage.delta_snapshots import open_table
from sparklog.storage.local_files import files_below, make_folders
from sparklog.storage.location import Location
from tests.access.policy_store import running_policy_store

REQUESTS: dict[str, Callable[[Location], Any]] = {
    "read": lambda at: at.read_bytes("a"),
    "exists": lambda at: at.exists("a"),
    "list": lambda at: at.names(),
    "list pages": lambda at: list(at.pages("folder")),
    "list files": lambda at: list(at.files()),
    "create": lambda at: at.put_new("a", b"x"),
    "replace": lambda at: at.replace("a", b"x"),
    "large": lambda at: _write(at, 9 << 20),
    "remove": lambda at: at.remove("a"),
    "remove several": lambda at: at.remove_all(["a", "b"]),
}


def _write(at: Location, size_bytes: int) -> None:
    with at.create("a") as file:
        file.write(b"x" * size_bytes)


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Location]:
    with running_policy_store(tmp_path_factory.mktemp("refusing") / "log") as store:
        store.bucket("logs")
        store.set_policy("nobody", {"Statement": []})
        yield Location.of("s3://logs/root", store.options("nobody"))


@pytest.mark.parametrize("name", REQUESTS)
def test_each_kind_of_request_is_refused_alike(refusing: Location, name: str) -> None:
    with pytest.raises(
        AccessDeniedError, match=r"^this identity may not \w+ s3://logs/root"
    ) as one:
        REQUESTS[name](refusing)
    assert "\n" not in str(one.value)
    assert "<" not in str(one.value)


def _as_nobody(action: Callable[[], object]) -> tuple[str, str]:
    """Run an action as a user without permissions; return the class and message of its error."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.setgroups([])
        os.setgid(65_534)
        os.setuid(65_534)
        try:
            outcome = f"None\n{action()}"
        except BaseException as error:  # noqa: BLE001 - it is the outcome
            outcome = f"{type(error).__name__}\n{error}"
        os.write(writing, outcome.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        kind, _, text = pipe.read().partition("\n")
    os.waitpid(child, 0)
    return kind, text


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_folder_that_may_not_be_read_is_not_missing(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "a").write_text("x")
    hidden.chmod(0o700)
    at = Location.of(str(hidden))
    for action in (
        lambda: at.exists("a"),
        at.names,
        lambda: at.read_bytes("a"),
        lambda: at.put_new("b", b"x"),
    ):
        kind, text = _as_nobody(action)
        assert kind == "AccessDeniedError"
        assert text.startswith("this identity may not ")
    assert _as_nobody(lambda: list(files_below(str(hidden))))[0] == "PermissionError"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_table_that_may_not_be_read_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    """The refusal came as "the table cannot be opened": clients retried it until their timeout."""
    table = Location.of(str(tmp_path / "hidden"))
    write_deltalake(table.uri, pa.table({"a": [1]}))
    (tmp_path / "hidden").chmod(0o700)
    os.seteuid(65_534)
    try:
        with pytest.raises(AccessDeniedError, match=r"^this identity may not ") as one:
            open_table(table)
    finally:
        os.seteuid(0)
    assert one.value.uri.startswith(table.uri)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_files_have_the_permissions_of_their_folder(tmp_path: Path) -> None:
    """A process with a restrictive umask writes files that the others of its folder can read."""
    shared, own = tmp_path / "shared", tmp_path / "own"
    shared.mkdir()
    shared.chmod(0o2775)
    own.mkdir()
    own.chmod(0o700)
    before = os.umask(0o077)
    try:
        for folder in (shared, own):
            at = Location.of(str(folder))
            at.put_new("commit", b"x")
            with at.create("inbox/batch") as file:
                file.write(b"x")
            make_folders(f"{folder}/a/b")
    finally:
        os.umask(before)
    assert [_mode(shared / name) for name in ("commit", "inbox/batch")] == [0o644, 0o644]
    assert [_mode(shared / name) for name in ("inbox", "a/b")] == [0o2775, 0o2775]
    assert [_mode(own / name) for name in ("commit", "inbox/batch")] == [0o600, 0o600]
    assert [_mode(own / name) for name in ("inbox", "a/b")] == [0o700, 0o700]
