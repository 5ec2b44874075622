"""The probe of a log directory: lasting errors, and those that may be over soon."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO

import pytest

from benchmarks.s3_store import running_store
from sparklog.cluster.roots import BrokerRoot
from sparklog.storage import local_files
from sparklog.storage.directory_probe import ProbeError, probe
from sparklog.storage.local_files import LocalFiles
from sparklog.storage.location import Location
from tests.storage.batches import file_size_limit


@pytest.fixture
def root(tmp_path: Path) -> Location:
    location = Location.of(str(tmp_path / "root"))
    BrokerRoot.create(location, "cluster", 0)
    return location


def fault(root: Location) -> ProbeError:
    with pytest.raises(ProbeError) as raised:
        probe(root)
    return raised.value


def test_a_sound_directory_is_left_as_it_was(root: Location) -> None:
    before = sorted(Path(root.uri).rglob("*"))
    probe(root)
    assert sorted(Path(root.uri).rglob("*")) == before


@pytest.mark.parametrize("gone", ["", "log", "format"])
def test_a_missing_folder_is_lasting(root: Location, gone: str) -> None:
    """Nothing is created in its place."""
    folder = Path(root.uri) / gone
    folder.rename(folder.parent / "away")
    assert fault(root).is_lasting
    assert not folder.exists()


def test_a_file_in_the_place_of_the_directory_is_lasting(root: Location) -> None:
    Path(root.uri).rename(f"{root.uri}-away")
    Path(root.uri).touch()
    assert fault(root).is_lasting


class RefusingFiles(LocalFiles):
    """A file system that creates no file."""

    def __init__(self, number: int) -> None:
        self._number = number

    def create(self, path: str) -> IO[bytes]:
        raise OSError(self._number, os.strerror(self._number), path)


@pytest.mark.parametrize(
    ("number", "is_lasting"),
    [
        (errno.EIO, True),
        (errno.EROFS, True),
        (errno.EACCES, True),
        (errno.ESTALE, True),
        (errno.ENOSPC, False),
        (errno.EDQUOT, False),
        (errno.EMFILE, False),
    ],
    ids=lambda value: errno.errorcode.get(value, value) if value > 1 else None,
)
def test_errors_of_a_file_system(
    root: Location, monkeypatch: pytest.MonkeyPatch, number: int, is_lasting: bool
) -> None:
    monkeypatch.setattr(local_files, "FILES", RefusingFiles(number))
    assert fault(root).is_lasting is is_lasting


def test_a_limit_of_the_process_is_not_lasting(root: Location) -> None:
    """The limit of a file's size stands for a full disk, with the kernel's own error."""
    with file_size_limit(1):
        assert not fault(root).is_lasting


@pytest.fixture
def answer(request: pytest.FixtureRequest) -> Iterator[Location]:
    """A store that answers each request with one status."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(request.param)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_PUT = do_DELETE = do_HEAD = answer  # noqa: N815 - named by http.server

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield Location.of(
        "s3://bucket/root",
        {
            "s3://": {
                "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
                "AWS_ALLOW_HTTP": "true",
                "AWS_REGION": "us-east-1",
                "AWS_ACCESS_KEY_ID": "k",
                "AWS_SECRET_ACCESS_KEY": "s",
                "max_retries": "0",
            }
        },
    )
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("answer", "is_lasting"),
    [(401, True), (403, True), (404, True), (500, False), (503, False)],
    indirect=["answer"],
)
def test_answers_of_a_store(answer: Location, is_lasting: bool) -> None:
    """A denied access and a missing bucket last; its own failures were retried by the client."""
    assert fault(answer).is_lasting is is_lasting


def test_a_bucket(tmp_path: Path) -> None:
    """A sound one takes four requests and keeps no object; a removed one is lasting."""
    with running_store(tmp_path / "store.log") as store:
        root = Location.of(f"{store.bucket('one')}/root", store.options())
        BrokerRoot.create(root, "cluster", 0)
        before = sorted(one.path for one in root.files())
        with store.logged() as requests:
            probe(root)
        assert len(requests) == 4
        assert sorted(one.path for one in root.files()) == before
        store.remove_bucket("one")
        assert fault(root).is_lasting
