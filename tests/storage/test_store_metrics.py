"""The counted requests to an object store are those that the store has received."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sparklog.broker.metrics import samples
from sparklog.counts import STORE_REQUESTS
from sparklog.model import CONFIGS
from sparklog.storage.control_table import create_table
from sparklog.storage.file_copies import await_copies
from sparklog.storage.location import Location
from sparklog.storage.vacuum import set_retention
from tests.storage.test_s3 import Store, pytestmark
from tests.storage.test_store_heartbeats import Cluster

__all__ = ["pytestmark"]

METHODS = {
    "get": "GET",
    "list": "GET",
    "head": "HEAD",
    "put": "PUT",
    "put_new": "PUT",
    "delete": "POST",
    "multipart": "POST",
}

Received = Callable[[], Counter[str]]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("moto") / "log"


@pytest.fixture(scope="module")
def store(log: Path) -> Iterator[Store]:
    running = Store(log)
    yield running
    running.close()


@pytest.fixture
def received(log: Path) -> Received:
    """The requests in the store's log, by method."""

    def count() -> Counter[str]:
        return Counter(re.findall(r"([A-Z]+) /bucket-", log.read_text(encoding="utf-8")))

    return count


def counted() -> Counter[str]:
    """Return the counted requests, by method."""
    found: Counter[str] = Counter()
    for kind, count in STORE_REQUESTS.totals().items():
        found[METHODS[kind]] += count
    return found


def test_requests_are_counted_by_kind_and_a_report_makes_none(
    store: Store, received: Received
) -> None:
    bucket = store.bucket()
    sent, came = counted(), received()
    folder = Location.of(f"{bucket}/folder", store.options())
    assert list(folder.files()) == []
    folder.put_new("a", b"1")
    with pytest.raises(FileExistsError):
        folder.put_new("a", b"2")
    folder.overwrite_object("a", b"3")
    assert folder.exists("a")
    assert not folder.exists("b")
    assert folder.read_bytes("a") == b"3"
    [page] = Location.of(bucket, store.options()).pages("folder")
    assert page == ["a"]
    assert folder.names() == ["a"]
    folder.remove_all(["a"])
    assert counted() - sent == received() - came
    assert sum((counted() - sent).values()) == 10


def test_a_table_whose_retention_is_set_is_read_by_counted_requests(
    store: Store, received: Received
) -> None:
    """delta-rs read each commit twice, one after another: 55 requests for 28 commits, none counted.

    Each process asks once for each of its tables, so each scheduled run did.
    """
    root = Location.of(f"{store.bucket()}/root", store.options())
    create_table(root, CONFIGS)
    table = root.child(CONFIGS.name)
    assert set_retention(table, 30 * 86_400_000)
    await_copies()
    sent, came = counted(), received()
    assert not set_retention(table, 30 * 86_400_000)
    # The list, two commits, and the copy of a third one, which is not there.
    assert counted() - sent == received() - came == {"GET": 4}


def test_a_scrape_of_brokers_on_a_store_makes_no_request(store: Store, received: Received) -> None:
    cluster = Cluster(store)
    try:
        cluster.application.round()
        before, totals = received(), STORE_REQUESTS.totals()
        found = samples(cluster.brokers.values())
        assert received() == before
        assert {
            one.labels[0]: one.value
            for one in found
            if one.metric.name == "sparklog_store_requests_total"
        } == totals
        cluster.application.round()
        sent = Counter(STORE_REQUESTS.totals()) - Counter(totals)
        assert sum(sent.values()) == sum((received() - before).values())
        assert sum(sent.values()) > 0
    finally:
        cluster.application.stop()
        cluster.application.run()
