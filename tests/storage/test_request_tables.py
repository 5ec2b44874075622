"""The further request tables of a root on an object store, among which producers spread."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sparklog.cluster.roots import BrokerRoot
from sparklog.model import PRODUCE_REQUESTS, REQUEST_TABLES
from sparklog.storage import request_appends
from sparklog.storage.control_table import create_table
from sparklog.storage.delta_log import DeltaLog
from sparklog.storage.delta_log_files import newest_version
from sparklog.storage.location import Location
from sparklog.storage.object_store import ObjectStore
from sparklog.storage.request_appends import RequestAppends
from sparklog.storage.request_commits import peek_request_commit, refusals, told_refusals
from sparklog.storage.request_files import has_further_tables, read_requests, request_file
from sparklog.storage.request_table import RequestTable
from sparklog.storage.request_tables import RequestTables
from tests.storage.requests import ids_in, request
from tests.storage.test_s3 import Store, at, pytestmark, store

__all__ = ["Store", "at", "pytestmark", "store"]

At = Callable[[str], Location]


@pytest.fixture
def root(at: At) -> Location:
    BrokerRoot.create(at("broker"), "a-cluster", 0)
    return at("broker")


@pytest.fixture
def rival(root: Location, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let another producer win a race for `produce_requests` once for each id in this list."""
    left: list[str] = []
    table = DeltaLog(root.child(PRODUCE_REQUESTS.name))
    original = DeltaLog.commit

    def commit(of: DeltaLog, *args: object, **options: object) -> bool:
        if of is not table and of.location == table.location and left:
            table.skip()
            original(table, "WRITE", [request_file(request(left.pop()), 1)], syncs_files=False)
        return original(of, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(DeltaLog, "commit", commit)
    return left


def where(root: Location, request_id: str) -> list[int]:
    """Return the numbers of the tables that contain a request."""
    tables = [RequestTable(root, schema) for schema in REQUEST_TABLES]
    return [number for number, table in enumerate(tables) if request_id in ids_in(table)]


class TestAProducer:
    def test_that_is_refused_twice_goes_on_in_a_further_table(
        self, root: Location, rival: list[str]
    ) -> None:
        """A producer that is refused twice appends to a further table."""
        RequestTables(root).further()
        appends = RequestAppends(root)
        rival += ["a", "b"]
        appends.append([request("mine")])
        [number] = where(root, "mine")
        assert number > 0
        table = root.child(REQUEST_TABLES[number].name)
        commit = peek_request_commit(table, newest_version(table))
        assert commit is not None
        assert refusals(commit) == 2

        # It stays there, also without competition.
        appends.append([request("next")])
        assert where(root, "next") == [number]

    def test_that_is_refused_once_stays(self, root: Location, rival: list[str]) -> None:
        """A producer that is refused once stays at the first table."""
        RequestTables(root).further()
        rival += ["a"]
        RequestAppends(root).append([request("mine")])
        assert where(root, "mine") == [0]

    def test_comes_back_when_it_was_not_refused_for_long(
        self, root: Location, rival: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A producer returns to the first table after a time without refusals."""
        RequestTables(root).further()
        monkeypatch.setattr(request_appends, "_AWAY_SECONDS", 0.0)
        appends = RequestAppends(root)
        rival += ["a", "b"]
        appends.append([request("mine")])
        appends.append([request("next")])
        assert where(root, "mine") != [0]
        assert where(root, "next") == [0]

    def test_goes_on_where_it_is_while_there_are_no_further_tables(
        self, root: Location, rival: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Without further tables a producer stays at the first one, and searches for others
        once.
        """
        looked: list[Location] = []

        def poll(table: Location) -> int:
            looked.append(table)
            return newest_version(table)

        monkeypatch.setattr(request_appends, "newest_version", poll)
        rival += list("abcdef")
        RequestAppends(root).append([request("mine")])
        owner = RequestTable(root)
        assert ids_in(owner)[-1] == "mine"
        assert sorted(ids_in(owner)) == ["a", "b", "c", "d", "e", "f", "mine"]
        assert len(looked) == 2

    def test_of_a_table_in_a_folder_asks_for_no_other(self, tmp_path: object) -> None:
        """On a local file system a producer uses only the first table."""
        root = Location.of(str(tmp_path))
        create_table(root, PRODUCE_REQUESTS)
        appends = RequestAppends(root)
        appends._go_away()
        assert appends._number == 0

    def test_polls_first_where_others_append_and_not_where_nobody_does(
        self, root: Location, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A commit that will be refused costs more than a poll."""
        mine, other = RequestAppends(root), RequestAppends(root)
        calls: list[str] = []
        for name in ("get", "put_new", "size_bytes", "names", "pages"):
            original = getattr(ObjectStore, name)

            def call(
                of: ObjectStore,
                *args: object,
                _name: str = name,
                _original: Callable[..., object] = original,
            ) -> object:
                calls.append(_name)
                return _original(of, *args)

            monkeypatch.setattr(ObjectStore, name, call)
        mine.append([request("a")])
        assert calls == ["put_new"]
        other.append([request("b")])
        assert calls.count("put_new") == 3
        calls.clear()
        mine.append([request("c")])
        assert calls.count("put_new") == 2
        for _ in range(20):
            other.append([request("d")])
        calls.clear()
        mine.append([request("e")])
        assert calls.count("put_new") == 1
        assert calls.count("size_bytes") > 0
        calls.clear()
        mine.append([request("f")])
        mine.append([request("g")])
        assert calls.count("put_new") == 2
        calls.clear()
        mine.append([request("h")])
        assert calls == ["put_new"]


class TestTheOwner:
    def test_is_to_spread_when_a_producer_was_refused_twice(self, root: Location) -> None:
        """The owner creates further tables once a producer was refused twice."""
        tables = RequestTables(root)
        log = DeltaLog(root.child(PRODUCE_REQUESTS.name))
        files = [request_file(request("a"), 1)]
        for refused, is_to_spread in ((0, False), (1, False), (2, True)):
            log.commit("WRITE", files, user_metadata=told_refusals(refused), syncs_files=False)
            tables.tables[0].refresh()
            assert tables.is_to_spread is is_to_spread

    @pytest.mark.parametrize(
        "told", ["", "2", "[2]", '{"refused": -1}', '{"refused": "2"}', "[" * 10_000, '{"a": 2}']
    )
    def test_believes_no_invalid_count(self, root: Location, told: str) -> None:
        """The owner ignores an invalid count of refusals."""
        log = DeltaLog(root.child(PRODUCE_REQUESTS.name))
        log.commit("WRITE", [request_file(request("a"), 1)], user_metadata=told, syncs_files=False)
        tables = RequestTables(root)
        log.commit("WRITE", [request_file(request("b"), 1)], user_metadata=told, syncs_files=False)
        tables.tables[0].refresh()
        assert not tables.is_to_spread
        assert ids_in(tables.tables[0]) == ["a", "b"]

    def test_creates_all_of_them_and_finds_them_again(self, root: Location) -> None:
        """The owner creates all further tables, and a new process finds them."""
        tables = RequestTables(root)
        assert not has_further_tables(root)
        tables.add(tables.further())
        assert has_further_tables(root)
        assert len(tables.tables) == len(REQUEST_TABLES)
        assert len(RequestTables(root).tables) == len(REQUEST_TABLES)
        for number, schema in enumerate(REQUEST_TABLES):
            log = DeltaLog(root.child(schema.name))
            log.commit("WRITE", [request_file(request(f"{number}"), 1)], syncs_files=False)
        assert read_requests(root)["request_id"].to_pylist() == [*map(str, range(8))]

    def test_completes_a_creation_that_was_interrupted(self, root: Location) -> None:
        """The existence of the others is recognised by the last table."""
        for schema in REQUEST_TABLES[4:]:
            create_table(root, schema)
        assert not has_further_tables(root)
        assert len(RequestTables(root).tables) == 1
        assert len(RequestTables(root).further()) == 7

    def test_polls_unused_tables_seldom(
        self, root: Location, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """At first one request for each table and round, later one for each eight."""
        tables = RequestTables(root)
        tables.add(tables.further())
        asked: list[str] = []

        def poll_ahead(of: RequestTable, *, to_end: bool) -> None:
            del to_end
            asked.append(of.location.uri)

        monkeypatch.setattr(RequestTable, "poll_ahead", poll_ahead)

        def asked_in(rounds: int) -> dict[int, int]:
            asked.clear()
            for _ in range(rounds):
                tables.poll_ahead()
            return {number: asked.count(each.location.uri) for number, each in numbered}

        numbered = list(enumerate(tables.tables))
        assert set(asked_in(90).values()) == {90}
        asked_in(14)
        assert asked_in(80) == {0: 80} | dict.fromkeys(range(1, 8), 10)
        log = DeltaLog(root.child(REQUEST_TABLES[3].name))
        log.commit("WRITE", [request_file(request("a"), 1)], syncs_files=False)
        tables.tables[3].refresh()
        assert asked_in(80) == {0: 80, 3: 80} | dict.fromkeys((1, 2, 4, 5, 6, 7), 10)
        asked.clear()
        tables.poll_ahead(to_end=True)
        assert len(asked) == 8
