"""The creation of a cluster root that fails or is interrupted at any of its writes.

Invariant: all processes that open or create the root get one cluster id.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

import pytest

from sparklog.broker.tick import StoppedError
from sparklog.cluster.root_format import read_format
from sparklog.cluster.roots import BrokerRoot, ClusterRoot
from sparklog.errors import DamagedError, SparklogError, StorageError
from sparklog.model import CLUSTER_TABLES, FORMAT
from sparklog.storage.file_copies import FOLDER
from sparklog.storage.location import Location
from sparklog.storage.object_store import ObjectStore
from tests.faulty_files import Failure, FaultyFiles
from tests.storage.test_s3 import at, pytestmark, store

__all__ = ["at", "pytestmark", "store"]

Way = Literal["dies", "died", "refused", "lost"]
"""The process ends before or after a PUT, or the PUT fails before or after it takes effect."""

FAILURES = (OSError, SparklogError, StoppedError)


def is_copy(path: str) -> bool:
    return f"/{FOLDER}/" in path


@contextmanager
def failing_put(number: int, way: Way) -> Iterator[list[str]]:
    """Let the PUT of this number fail, and every later one too if the process ends.

    Second copies, which are put beside these, are not counted: they end with the process.
    Yields the paths of the failed PUTs.
    """
    failed: list[str] = []
    count = 0
    lock = threading.Lock()
    put_new = ObjectStore.put_new

    def put(self: ObjectStore, path: str, content: bytes) -> None:
        nonlocal count
        if is_copy(path):
            if count < number or way not in ("dies", "died"):
                put_new(self, path, content)
            return
        with lock:
            count += 1
            is_meant = count == number or (count > number and way in ("dies", "died"))
        if not is_meant:
            put_new(self, path, content)
            return
        if way == "lost" or (way == "died" and count == number):
            put_new(self, path, content)
        failed.append(path)
        raise (OSError if way in ("refused", "lost") else StoppedError)(f"PUT of {path}: {way}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ObjectStore, "put_new", put)
        yield failed


@pytest.mark.parametrize("way", ["dies", "died", "refused", "lost"])
def test_on_a_store_any_write_may_fail_and_the_next_process_completes_the_cluster(
    at: Callable[[str], Location], way: Way
) -> None:
    """Each PUT of the creation: of the tables in any order, of `format`, and of its row."""
    # Each table, `format`, the file of its row, and the commit of that file.
    writes = len(CLUSTER_TABLES) + 3
    for number in range(1, writes + 1):
        root = at(f"cluster-{number}")
        ids: set[str] = set()
        with failing_put(number, way) as failed, suppress(*FAILURES):
            ids.add(ClusterRoot.create(root).cluster_id)
        assert failed, f"the creation has fewer than {number} writes"
        ids |= {ClusterRoot.create(root).cluster_id for _ in range(2)}
        found = read_format(root)
        assert found is not None
        assert ids == {found.cluster_id}
        assert set(root.names()) == {schema.name for schema in (*CLUSTER_TABLES, FORMAT)}
    with failing_put(writes + 1, way) as failed:
        ClusterRoot.create(at("cluster"))
    assert failed == []


def test_on_a_store_a_process_may_create_the_cluster_between_two_writes_of_another(
    at: Callable[[str], Location], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each PUT of a slow process another one creates the whole cluster."""
    put_new = ObjectStore.put_new
    for number in range(1, len(CLUSTER_TABLES) + 4):
        root = at(f"cluster-{number}")
        ids: list[str] = []
        numbers = itertools.count(1)

        def put(
            self: ObjectStore,
            path: str,
            content: bytes,
            number: int = number,
            numbers: Iterator[int] = numbers,
            root: Location = root,
            ids: list[str] = ids,
        ) -> None:
            if not is_copy(path) and next(numbers) == number:
                ids.append(ClusterRoot.create(root).cluster_id)
            put_new(self, path, content)

        monkeypatch.setattr(ObjectStore, "put_new", put)
        slow = ClusterRoot.create(root).cluster_id
        assert ids == [slow]


@pytest.mark.parametrize(
    "failure", ["refused", "full", "torn", "unsynced", "landed", "repeated", "unknown", "died"]
)
def test_in_a_folder_the_row_may_fail_and_the_next_process_completes_the_cluster(
    tmp_path: Path, failure: Failure
) -> None:
    """The row of `format` decides which cluster id the root has."""
    root = Location.of(str(tmp_path / "cluster"))
    files = FaultyFiles(tmp_path / "stash")
    ids: set[str] = set()
    table = f"{root.uri}/format"
    is_of_commit = failure not in ("full", "torn")
    with files.installed():
        files.fail(f"{table}/_delta_log" if is_of_commit else table, failure)
        with suppress(*FAILURES):
            ids.add(ClusterRoot.create(root).cluster_id)
        assert files.failed
        files.calm()
        ids |= {ClusterRoot.create(root).cluster_id for _ in range(2)}
    found = read_format(root)
    assert found is not None
    assert ids == {found.cluster_id}


class TestBrokersOfALostCluster:
    """A broker with records creates no cluster root, however its own root was damaged."""

    def test_create_none_where_their_own_root_names_a_cluster(self, tmp_path: Path) -> None:
        """The broker's root names its cluster, so the cluster root is lost or misspelled."""
        own = Location.of(str(tmp_path / "broker"))
        BrokerRoot.create(own, "a-cluster", 7)
        with pytest.raises(StorageError, match="belongs to broker 7 of cluster a-cluster"):
            ClusterRoot.create(Location.of(str(tmp_path / "cluster")), [own])
        assert not (tmp_path / "cluster").exists()

    def test_create_none_where_the_format_of_their_own_root_is_lost(self, tmp_path: Path) -> None:
        """A root with written tables is not a new one."""
        own = Location.of(str(tmp_path / "broker"))
        BrokerRoot.create(own, "a-cluster", 7).take_fence(1)
        (tmp_path / "broker" / "format").rename(tmp_path / "format")
        with pytest.raises(DamagedError, match="format is damaged: it is missing, and"):
            ClusterRoot.create(Location.of(str(tmp_path / "cluster")), [own])
        assert not (tmp_path / "cluster").exists()
