"""The request table: producers append to it, and its owner reads and removes requests."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from sparklog.errors import CommitConflictError, StorageError
from sparklog.model import PRODUCE_REQUESTS, new_batch_path
from sparklog.storage import (
    delta_checkpoints,
    delta_log,
    local_files,
    request_appends,
    request_commits,
)
from sparklog.storage.commits import BROKER_EPOCH, Commit, RemovedFile, read_commits
from sparklog.storage.control_table import create_table
from sparklog.storage.delta_checkpoints import await_checkpoints
from sparklog.storage.delta_log import DeltaLog
from sparklog.storage.delta_log_files import commit_path
from sparklog.storage.delta_snapshots import open_delta_table
from sparklog.storage.location import Location
from sparklog.storage.request_appends import RequestAppends
from sparklog.storage.request_files import ProduceRequest, read_requests
from sparklog.storage.request_table import Added, RequestTable
from tests.storage import racing
from tests.storage.racing import Processes
from tests.storage.requests import ALL, appending, commit_file, ids, ids_in, request, row_of

AfterNext = Callable[[str, Callable[[], object]], None]


def table_of(root: Location) -> Location:
    return root.child(PRODUCE_REQUESTS.name)


def paths_in(root: Location) -> list[str]:
    """Return the files of the newest version, as read by delta-rs."""
    return [one["path"] for one in read_requests(root).to_pylist()]


def clean_up(root: Location, below: int) -> None:
    """Delete the commits below a version, as delta-rs does when they are ten minutes old."""
    await_checkpoints()
    open_delta_table(table_of(root)).create_checkpoint()
    for version in range(below):
        commit_file(root, version).unlink(missing_ok=True)


def remove_as_anybody(root: Location, *paths: str) -> None:
    """Commit the removal of paths of the table, whether they exist or not."""
    assert DeltaLog(table_of(root)).commit("DELETE", removed=[RemovedFile(one, 1) for one in paths])


def fail_to_link(monkeypatch: pytest.MonkeyPatch, error: Exception, *, lands: bool) -> None:
    """Let the next commit fail, before or after it has landed."""

    def link(source: str, target: str) -> None:
        monkeypatch.undo()
        if lands:
            os.link(source, target)
        raise error

    monkeypatch.setattr(local_files.FILES, "link", link)


class Milliseconds:
    """A clock whose every reading is 1 ms after the previous one."""

    def __init__(self) -> None:
        self._readings = count(1_800_000_000_000)

    def time_ns(self) -> int:
        return next(self._readings) * 1_000_000

    def monotonic(self) -> float:
        return 0.0


class TestAppends:
    def test_a_request_is_one_commit_that_names_the_batch_files(self, root: Location) -> None:
        """The files may be missing: they are uploaded at the same time."""
        appends = appending(root)
        first, second = request("a"), request("a", partition=1, topic="")
        appends.append([first, second])
        owner = RequestTable(root)
        assert owner.requests_after(ALL) == {Added(1, 0): first, Added(1, 1): second}
        assert [path.name for path in Path(table_of(root).uri).iterdir()] == ["_delta_log"]
        lines = commit_file(root, 1).read_text().splitlines()[1:]
        assert [json.loads(line)["add"]["path"] for line in lines] == [
            f"../log/{one.path}" for one in (first, second)
        ]
        newest, *_ = DeltaTable(table_of(root).uri).history()
        assert newest["operation"] == "WRITE"
        assert newest["engineInfo"].startswith("sparklog ")

    def test_an_append_lands_behind_those_of_others(self, root: Location) -> None:
        """There may be many of them, and the owner's removals as well."""
        appends, other, owner = appending(root), RequestAppends(root), RequestTable(root)
        for number in range(20):
            other.append([request(f"{number}")])
        owner.refresh()
        owner.remove(list(owner.requests_after(-1))[:5])
        appends.append([request("mine")])
        other.append([request("last")])
        owner.refresh()
        expected = [*map(str, range(5, 20)), "mine", "last"]
        assert ids_in(owner) == ids_in(RequestTable(root)) == expected
        assert owner.version == 23

    def test_an_append_that_another_was_faster_than_lands_behind_it(
        self, root: Location, after_next: AfterNext
    ) -> None:
        """The other producer commits between the search for the newest version and the commit."""
        appends, other = appending(root), RequestAppends(root)
        after_next(
            "sparklog.storage.request_appends.DeltaLog.skip",
            lambda: other.append([request("other")]),
        )
        appends.append([request("mine")])
        assert ids_in(RequestTable(root)) == ["other", "mine"]

    def test_threads_may_append_through_one_handle(self, root: Location) -> None:
        """Threads may append through one handle."""
        appends = appending(root)
        names = [str(number) for number in range(24)]
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda name: appends.append([request(name)]), names))
        owner = RequestTable(root)
        assert sorted(ids_in(owner)) == sorted(names)
        assert owner.version == 24

    def test_no_file_is_synced_but_the_commit_is(
        self, root: Location, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The broker syncs a batch's file before the journal names it."""
        appends = appending(root)
        synced: list[str] = []
        sync = local_files.FILES.sync

        def noted(path: str) -> None:
            synced.append(Path(path).name)
            sync(path)

        monkeypatch.setattr(local_files.FILES, "sync", noted)
        appends.append([request("a")])
        unfinished, folder = synced
        assert (Path(unfinished).suffix, folder) == (".tmp", "_delta_log")

    @pytest.mark.parametrize("error", [OSError(errno.EIO, "lost"), FileExistsError("repeated")])
    def test_an_append_lands_once_when_its_answer_was_lost(
        self, root: Location, monkeypatch: pytest.MonkeyPatch, error: OSError
    ) -> None:
        """An append whose answer was lost lands once."""
        appends = appending(root)
        fail_to_link(monkeypatch, error, lands=True)
        appends.append([request("a")])
        appends.append([request("b")])
        assert ids_in(RequestTable(root)) == ["a", "b"]

    def test_another_ones_commit_is_not_taken_for_the_own_one(
        self, root: Location, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another producer's commit is not taken for the producer's own."""
        appends, other = appending(root), RequestAppends(root)

        def link(_source: str, _target: str) -> None:
            monkeypatch.undo()
            other.append([request("other")])
            raise OSError(errno.EIO, "lost")

        monkeypatch.setattr(local_files.FILES, "link", link)
        with pytest.raises(OSError, match="lost"):
            appends.append([request("a")])
        appends.append([request("b")])
        assert ids_in(RequestTable(root)) == ["other", "b"]

    @pytest.mark.parametrize("lands", [False, True])
    def test_an_append_whose_outcome_is_unknown_does_not_stop_the_next_one(
        self, root: Location, monkeypatch: pytest.MonkeyPatch, lands: bool
    ) -> None:
        """An append with an unknown outcome does not stop the next one, and lands at most once."""
        appends = appending(root)

        def unreadable(*_: object) -> Commit:
            raise OSError(errno.EIO, "unreadable")

        with monkeypatch.context() as patch:
            patch.setattr(delta_log, "read_commit", unreadable)
            with pytest.MonkeyPatch.context() as inner:
                fail_to_link(inner, OSError(errno.EIO, "lost"), lands=lands)
                with pytest.raises(OSError, match="unreadable"):
                    appends.append([request("a")])
        appends.append([request("b")])
        assert ids_in(RequestTable(root)) == (["a", "b"] if lands else ["b"])

    def test_nothing_is_left_behind_by_a_failure(
        self, root: Location, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A failed append leaves no files."""
        appends = appending(root)
        before = sorted(Path(root.uri).rglob("*"))
        fail_to_link(monkeypatch, OSError(errno.ENOSPC, "full"), lands=False)
        with pytest.raises(OSError, match="full"):
            appends.append([request("a")])
        with pytest.raises(OverflowError):
            appends.append([request("a"), request("b", max_timestamp_ms=1 << 60)])
        assert sorted(Path(root.uri).rglob("*")) == before
        appends.append([request("b")])
        assert ids_in(RequestTable(root)) == ["b"]

    def test_an_append_gives_up_where_others_are_always_faster(
        self, root: Location, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An append that always loses the race raises `CommitConflictError`."""
        appends = appending(root)
        before = sorted(Path(root.uri).rglob("*"))
        monkeypatch.setattr(DeltaLog, "commit", lambda *_, **__: False)
        with pytest.raises(CommitConflictError, match=r"no commit to .* in .* attempts"):
            appends.append([request("a")])
        assert sorted(Path(root.uri).rglob("*")) == before

    def test_a_folder_without_hard_links_is_written_by_delta_rs(
        self, root: Location, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """On a file system without hard links, requests are committed by delta-rs."""

        def refused(*_: object) -> None:
            raise PermissionError(errno.EPERM, "no links here")

        monkeypatch.setattr(os, "link", refused)
        appends, other = appending(root), RequestAppends(root)
        requests = [request("a"), request("b", path="with space & 100% é#?"), request("c")]
        for one, by in zip(requests, (appends, other, appends), strict=True):
            by.append([one])
        owner = RequestTable(root)
        assert list(owner.requests_after(ALL).values()) == requests
        owner.remove(owner.requests_after(ALL).keys())
        assert paths_in(root) == []

    def test_a_table_that_is_not_there_is_not_made_by_opening_it(self, root: Location) -> None:
        """Opening a missing table raises `StorageError` and does not create it."""
        with pytest.raises(StorageError, match="there is no table at"):
            RequestAppends(root)
        assert not Path(root.uri).exists()


class TestOtherTables:
    """The broker recreates a table, or its root is restored, under a running producer."""

    @pytest.mark.parametrize("commits", [0, 1, 5])
    def test_a_table_that_was_recreated_is_appended_to(self, root: Location, commits: int) -> None:
        """The new table may be shorter than the old one, as long, or longer."""
        appends = appending(root)
        for _ in range(2):
            appends.append([request("old")])
        shutil.rmtree(table_of(root).uri)
        with pytest.raises(StorageError, match="there is no table at"):
            appends.append([request("lost")])
        other = appending(root)
        names = [str(number) for number in range(commits)]
        for one in names:
            other.append([request(one)])
        appends.append([request("a")])
        appends.append([request("b")])
        assert ids_in(RequestTable(root)) == [*names, "a", "b"]

    @pytest.mark.parametrize("commits", [0, 1, 2, 5])
    def test_a_root_that_was_restored_is_appended_to(
        self, root: Location, tmp_path: Path, commits: int
    ) -> None:
        """The copy lacks some commits; other commits may have taken their versions."""
        appends = appending(root)
        appends.append([request("old")])
        shutil.copytree(root.uri, tmp_path / "copy")
        for _ in range(2):
            appends.append([request("lost")])
        shutil.rmtree(root.uri)
        shutil.copytree(tmp_path / "copy", root.uri)
        other = RequestAppends(root)
        names = [str(number) for number in range(commits)]
        for one in names:
            other.append([request(one)])
        appends.append([request("a")])
        appends.append([request("b")])
        assert ids_in(RequestTable(root)) == ["old", *names, "a", "b"]

    def test_an_append_follows_a_table_whose_commits_were_cleaned_up(self, root: Location) -> None:
        """A producer that was suspended has a version whose commit no longer exists."""
        suspended, other = appending(root), RequestAppends(root)
        for one in "abcde":
            other.append([request(one)])
        clean_up(root, below=5)
        suspended.append([request("f")])
        assert not commit_file(root, 1).exists()
        assert sorted(ids_in(RequestTable(root))) == list("abcdef")

    def test_an_owner_notices_that_its_table_is_another_one(self, root: Location) -> None:
        """An owner detects that its table was recreated, and reloads it."""
        appending(root).append([request("old")])
        owner = RequestTable(root)
        assert (ids_in(owner), owner.generation) == (["old"], 0)
        shutil.rmtree(table_of(root).uri)
        appending(root).append([request("new")])
        owner.refresh()
        assert (ids_in(owner), owner.generation) == (["new"], 1)

    def test_an_owner_notices_that_its_root_was_restored(
        self, root: Location, tmp_path: Path
    ) -> None:
        """An owner detects that its root was restored, and reloads the table."""
        appends = appending(root)
        appends.append([request("old")])
        shutil.copytree(root.uri, tmp_path / "copy")
        for _ in range(3):
            appends.append([request("lost")])
        owner = RequestTable(root)
        shutil.rmtree(root.uri)
        shutil.copytree(tmp_path / "copy", root.uri)
        RequestAppends(root).append([request("new")])
        owner.refresh()
        assert (ids_in(owner), owner.generation) == (["old", "new"], 1)


class TestOrder:
    def test_requests_come_in_the_order_in_which_they_were_added(self, root: Location) -> None:
        """Requests are ordered by their commits, and by their places within a commit."""
        appends = appending(root)
        owner = RequestTable(root)
        for one in "abcd":
            appends.append([request(one)])
        appends.append([request("e"), request("e"), request("f")])
        owner.refresh()
        for table in (owner, RequestTable(root)):
            assert ids_in(table) == list("abcdeef")
            assert ids_in(table, after=0) == list("abcdeef")
            assert ids_in(table, after=3) == list("deef")
            assert list(table.requests_after(4)) == [Added(5, 0), Added(5, 1), Added(5, 2)]
            assert ids_in(table, after=5) == ids_in(table, after=9) == []

    def test_removed_requests_are_left_out(self, root: Location) -> None:
        """Removed requests are omitted."""
        appends = appending(root)
        for one in "abc":
            appends.append([request(one)])
        owner = RequestTable(root)
        _, second, _ = owner.requests_after(ALL)
        owner.remove([second])
        for table in (owner, RequestTable(root)):
            assert list(table.requests_after(ALL)) == [Added(1, 0), Added(3, 0)]
            assert ids_in(table) == ["a", "c"]

    def test_the_order_outlives_a_checkpoint_and_a_clean_up(
        self, root: Location, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Requests whose commits are removed are ordered by their times (rule 3.6)."""
        monkeypatch.setattr(request_appends, "time", Milliseconds())
        appends = appending(root)
        names = [f"{number:03}" for number in range(110)]
        for name in names:
            appends.append([request(name)])
        opened = RequestTable(root)
        clean_up(root, below=90)
        fresh = RequestTable(root)
        opened.refresh()
        assert ids_in(opened) == ids_in(opened, after=ALL) == names
        assert ids_in(fresh) == names
        assert ids_in(fresh, after=104) == names[104:]
        for one in (opened, fresh):
            assert one.requests_after(95).keys() == opened.requests_after(95).keys()

    def test_batches_of_one_commit_keep_their_order_after_a_clean_up(self, root: Location) -> None:
        """Batches of one commit keep their order after the clean-up of the commit."""
        appends = appending(root)
        batches = [request(f"{number:02}", base_sequence=10 * number) for number in range(20)]
        appends.append(batches)
        appends.append([request("z")])
        clean_up(root, below=2)
        assert ids_in(RequestTable(root)) == [*ids(batches), "z"]

    def test_requests_whose_commits_were_cleaned_up_unseen_are_new_to_a_running_owner(
        self, root: Location
    ) -> None:
        """The owner was suspended for longer than commits are kept."""
        appends = appending(root)
        names = [f"{number:02}" for number in range(20)]
        for name in names[:5]:
            appends.append([request(name)])
        owner = RequestTable(root)
        for name in names[5:]:
            appends.append([request(name)])
        clean_up(root, below=15)
        owner.refresh()
        assert owner.generation == 0
        found = ids_in(owner, after=5)
        assert found[-15:] == names[5:]

    def test_a_request_keeps_its_place_when_the_table_is_opened_again(self, root: Location) -> None:
        """The inbox identifies a request by its place, and removes it."""
        appends = appending(root)
        for one in "abcdef":
            appends.append([request(one)])
        clean_up(root, below=4)
        owner = RequestTable(root)
        before = owner.requests_after(ALL)
        owner.remove(list(before)[:2])
        remove_as_anybody(root, "what was never there")
        owner.refresh()
        rest = dict(list(before.items())[2:])
        assert owner.requests_after(ALL) == rest
        owner.remove(rest.keys())
        assert paths_in(root) == []

    def test_what_was_seen_can_be_removed_after_its_commit_was_cleaned_up(
        self, root: Location
    ) -> None:
        """A request can be removed after its commit was cleaned up."""
        appends = appending(root)
        for one in "abc":
            appends.append([request(one)])
        owner = RequestTable(root)
        seen = owner.requests_after(ALL).keys()
        for one in "def":
            appends.append([request(one)])
        clean_up(root, below=5)
        owner.refresh()
        owner.remove(seen)
        assert sorted(ids_in(owner)) == list("def")

    def test_a_long_history_is_not_read_for_the_few_requests_that_are_there(
        self, root: Location, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Opening a table reads only the commits of the remaining requests."""
        appends = appending(root)
        owner = RequestTable(root)
        for one in "abcdefgh":
            appends.append([request(one)])
            owner.refresh()
            owner.remove(owner.requests_after(ALL).keys())
        appends.append([request("i")])
        read: list[str] = []
        original = request_commits._limited_bytes

        def counted(location: Location, path: str) -> tuple[bytes | None, str | None]:
            read.append(path)
            return original(location, path)

        monkeypatch.setattr(request_commits, "_limited_bytes", counted)
        fresh = RequestTable(root)
        assert ids_in(fresh) == ["i"]
        assert read == [commit_path(fresh.version)]


class TestRemovals:
    def test_removed_paths_are_gone(self, root: Location) -> None:
        """The removal is one commit, and counts as one."""
        appends = appending(root)
        for one in "abc":
            appends.append([request(one)])
        owner, reader = RequestTable(root), RequestTable(root)
        owner.remove(list(owner.requests_after(ALL))[:2])
        [third] = owner.requests_after(ALL).values()
        assert (owner.version, owner.commits) == (4, 1)
        assert paths_in(root) == [third.path]
        reader.refresh()
        assert reader.requests_after(ALL) == owner.requests_after(ALL)
        newest, *_ = DeltaTable(owner.location.uri).history()
        assert newest["operation"] == "DELETE"

    def test_removing_what_is_gone_or_was_never_there_changes_nothing(self, root: Location) -> None:
        """Removing requests that are removed or never existed makes no commit."""
        appending(root).append([request("a")])
        owner = RequestTable(root)
        gone = list(owner.requests_after(ALL))
        owner.remove(gone)
        for requests in (gone, [Added(7, 0), Added(1, 9), Added(-1, 0)], []):
            owner.remove(requests)
        assert (owner.version, owner.commits) == (2, 1)

    def test_two_owners_remove_the_same_once(self, root: Location) -> None:
        """An older process of the broker may still be running."""
        appends = appending(root)
        for one in "abc":
            appends.append([request(one)])
        first, second = RequestTable(root), RequestTable(root)
        some = list(first.requests_after(ALL))
        first.remove(some[:2])
        second.remove(some[:2])
        assert (second.version, second.commits, ids_in(second)) == (4, 0, ["c"])
        second.remove(some[1:])
        first.refresh()
        assert ids_in(first) == paths_in(root) == []

    def test_a_removal_that_an_append_was_faster_than_lands_behind_it(
        self, root: Location, after_next: AfterNext
    ) -> None:
        """A removal that loses a race against an append lands after it."""
        appends = appending(root)
        appends.append([request("a")])
        owner = RequestTable(root)
        after_next(
            "sparklog.storage.request_table.RequestTable.refresh",
            lambda: appends.append([request("b")]),
        )
        owner.remove([Added(1, 0)])
        assert (owner.version, owner.commits) == (3, 1)
        assert ids_in(owner) == ids_in(RequestTable(root)) == ["b"]

    def test_a_removal_that_fails_is_tried_again(
        self, root: Location, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A removal that failed can be repeated."""
        appending(root).append([request("a")])
        owner = RequestTable(root)
        before = sorted(Path(root.uri).rglob("*"))
        fail_to_link(monkeypatch, OSError(errno.ENOSPC, "full"), lands=False)
        with pytest.raises(OSError, match="full"):
            owner.remove([Added(1, 0)])
        assert sorted(Path(root.uri).rglob("*")) == before
        assert ids_in(owner) == ["a"]
        fail_to_link(monkeypatch, OSError(errno.EIO, "lost"), lands=True)
        owner.remove([Added(1, 0)])
        assert (owner.commits, ids_in(owner), paths_in(root)) == (1, [], [])

    def test_an_epoch_that_a_client_commits_does_not_fence_the_owner(self, root: Location) -> None:
        """A broker epoch that a client commits does not fence the owner."""
        appends = appending(root)
        appends.append([request("a")])
        owner = RequestTable(root)
        assert DeltaLog(owner.location).commit("FENCE", transactions={BROKER_EPOCH: 1 << 40})
        owner.remove([Added(1, 0)])
        appends.append([request("b")])
        owner.refresh()
        assert ids_in(owner) == ["b"]

    def test_a_commit_that_removes_a_path_twice_is_applied(self, root: Location) -> None:
        """A client can write it; delta-rs reads it as one removal."""
        appends = appending(root)
        first, second = request("a"), request("b")
        appends.append([first, second])
        owner = RequestTable(root)
        path = f"../log/{first.path}"
        remove_as_anybody(root, path, path)
        owner.refresh()
        assert ids_in(owner) == ids_in(RequestTable(root)) == ["b"]


class TestOneFileOfSeveralRequests:
    """A producer that retries names the same file in another request."""

    def test_all_are_seen_and_the_file_stays_until_all_are_removed(self, root: Location) -> None:
        """Requests of one file are all seen, and the file stays until all of them are removed."""
        appends, owner = appending(root), RequestTable(root)
        path = new_batch_path()
        appends.append([request("a", path=path)])
        appends.append([request("b"), request("c", path=path)])
        appends.append([request("d", path=path, acks=0), request("e", path=path)])
        owner.refresh()
        a, b, c, d, e = owner.requests_after(ALL)
        assert ids_in(owner) == list("abcde")
        for some in ([a, b], [d], [c]):
            version = owner.version
            owner.remove(some)
            assert owner.version == version + (b in some)
            assert path in paths_in(root)
        owner.remove([a, c, d])
        assert path in paths_in(root)
        owner.remove([a, c, d, e])
        assert paths_in(root) == []
        assert ids_in(owner) == ids_in(RequestTable(root)) == []

    def test_a_request_that_comes_after_the_removal_is_seen(self, root: Location) -> None:
        """A request that arrives after the removal of its file is seen."""
        appends, owner = appending(root), RequestTable(root)
        path = new_batch_path()
        for one in "ab":
            appends.append([request(one, path=path)])
            owner.refresh()
            assert ids_in(owner) == ids_in(RequestTable(root)) == [one]
            owner.remove(owner.requests_after(ALL).keys())

    def test_an_owner_that_starts_sees_the_newest(self, root: Location) -> None:
        """A version of a Delta table has one action per path."""
        appends = appending(root)
        path = new_batch_path()
        for one in "ab":
            appends.append([request(one, path=path)])
        fresh = RequestTable(root)
        assert list(fresh.requests_after(ALL)) == [Added(2, 0)]
        assert ids_in(fresh) == ["b"]


BARE = ProduceRequest(
    request_id="",
    topic_id="",
    topic="",
    partition=-1,
    named_leader_epoch=-1,
    path="x",
    record_count=0,
    byte_size=7,
    checksum="",
    min_timestamp_ms=-2,
    max_timestamp_ms=-2,
    producer_id=-1,
    producer_epoch=-1,
    base_sequence=-1,
    acks=-99,
    timeout_ms=0,
    client_id="",
    created_at_ms=-1,
    fault="it has no request id, so it cannot be answered",
)
"""The request of an action that has only a path and a size of 7 bytes."""


class TestSnapshots:
    """A snapshot of delta-rs has the same requests as the commits, in every field."""

    @pytest.fixture
    def requests(self) -> list[ProduceRequest]:
        """Requests whose values are at the limits of their types, or unusual as text."""
        small, large = -(1 << 63), (1 << 63) - 1
        producer = {"producer_id": large, "producer_epoch": 0, "base_sequence": (1 << 31) - 1}
        fault = "its producer id, epoch or sequence is negative"
        text = "\"é\\n' 100%25 a/b=c&d+e\0 鍵🗝"
        return [
            request("full"),
            request("text", topic_id=text, topic=text, checksum=text, client_id=text),
            request(text, path="with space & 100% %25 é#?+/../x"),
            request("large", timeout_ms=large, created_at_ms=large, **producer),
            request("small", producer_id=small, timeout_ms=small, created_at_ms=small, fault=fault),
            request("wide", partition=(1 << 31) - 1, acks=-(1 << 31), **producer),
            request("times", min_timestamp_ms=-62_135_596_800_000, max_timestamp_ms=-1),
            request("later", min_timestamp_ms=0, max_timestamp_ms=253_402_300_799_999),
            request("bytes", byte_size=(1 << 53) - 1, record_count=(1 << 31) - 1),
        ]

    @pytest.mark.parametrize("way", ["commits", "checkpoint", "cleaned up"])
    def test_equals_what_the_commits_say(
        self, root: Location, requests: list[ProduceRequest], way: str
    ) -> None:
        """A newly opened table has the same requests as one that followed the commits."""
        appends = appending(root)
        follower = RequestTable(root)
        for one in requests:
            appends.append([one])
        appends.append([request("gone")])
        follower.refresh()
        follower.remove([Added(len(requests) + 1, 0)])
        found = follower.requests_after(ALL)
        assert list(found.values()) == requests
        if way == "checkpoint":
            open_delta_table(table_of(root)).create_checkpoint()
        if way == "cleaned up":
            clean_up(root, below=len(requests) + 2)
        fresh = RequestTable(root).requests_after(ALL)
        if way == "cleaned up":
            by_path = {one.path: one for one in fresh.values()}
            assert by_path == {one.path: one for one in requests}
        else:
            assert fresh == found
        read = {one["path"]: one for one in read_requests(root).to_pylist()}
        assert read == {one.path: row_of(one) for one in requests}

    def test_an_empty_table_has_no_requests(self, root: Location) -> None:
        """An empty table has no requests."""
        appending(root)
        assert read_requests(root).num_rows == 0
        assert RequestTable(root).requests_after(ALL) == {}

    @pytest.mark.parametrize("values", [{}, dict.fromkeys(PRODUCE_REQUESTS.partition_by)])
    @pytest.mark.parametrize("has_others", [False, True])
    def test_an_omitted_value_is_null_for_readers_and_refused_by_the_leader(
        self, root: Location, has_others: bool, values: dict[str, None]
    ) -> None:
        """delta-rs omits columns that no action has."""
        appends = appending(root)
        add = {
            "path": "../log/x",
            "partitionValues": values,
            "size": 7,
            "modificationTime": 1,
            "dataChange": True,
        }
        follower = RequestTable(root)
        commit_file(root, 1).write_text(json.dumps({"add": add}))
        if has_others:
            appends.append([request("a")])
        follower.refresh()
        [bare, *_] = follower.requests_after(ALL).values()
        assert bare == BARE
        assert RequestTable(root).requests_after(ALL) == follower.requests_after(ALL)
        clean_up(root, below=follower.version)
        [found] = [one for one in read_requests(root).to_pylist() if one["path"] == "x"]
        known = {name: value for name, value in found.items() if value is not None}
        unreadable = {"min_timestamp_ms": -2, "max_timestamp_ms": -2}
        assert known == {"path": "x", "byte_size": 7, **unreadable}


class TestManyProducers:
    def test_nothing_is_lost_or_read_twice_while_others_append(
        self, root: Location, processes: Processes
    ) -> None:
        """Requests whose removal lost a race are removed together with the next ones."""
        appending(root)
        owner = RequestTable(root)
        running = processes.start(racing.append, root.uri, 200)
        polled, taken = -1, []
        waiting: set[Added] = set()
        are_all_there = False
        while waiting or not are_all_there:
            are_all_there = not wait(running, timeout=0).not_done
            owner.refresh()
            found = owner.requests_after(polled)
            polled = owner.version
            taken += ids(found.values())
            waiting |= found.keys()
            # As in the broker: appends without a pause may preempt a removal each time.
            with suppress(CommitConflictError):
                owner.remove(waiting)
                waiting.clear()
        sent = [one for future in running for one in future.result()]
        assert len(sent) == 4 * 200
        assert sorted(taken) == sorted(sent)
        assert paths_in(root) == []

    def test_each_path_is_removed_once_by_two_owners_while_others_append(
        self, root: Location, processes: Processes, tmp_path: Path
    ) -> None:
        """With two owners and concurrent appends, each path is added and removed once."""
        appending(root)
        ends = tmp_path / "ends"
        ends.mkdir()
        sent = processes.run(racing.append_or_remove, root.uri, 200, str(ends))
        owner = RequestTable(root)
        owner.remove(owner.requests_after(ALL).keys())
        commits = list(read_commits(owner.location, 1, owner.version))
        added = Counter(file.path for commit in commits for file in commit.added)
        removed = Counter(path for commit in commits for path in commit.removed)
        assert added == removed
        assert set(added.values()) == {1}
        assert added.total() == sum(map(len, sent))
        assert paths_in(root) == []

    def test_the_requests_of_four_processes_are_all_there_each_ones_in_order(
        self, root: Location, processes: Processes
    ) -> None:
        """There are more commits than the checkpoint interval: one of the processes writes a
        checkpoint.
        """
        appending(root)
        sent = processes.run(racing.append_requests, root.uri, 30)
        owner = RequestTable(root)
        assert owner.version == 30 * Processes.count
        found = ids_in(owner)
        for number, of_process in enumerate(sent):
            mine = [one for one in found if one.startswith(f"{number}-")]
            assert mine == [one for one in of_process for _ in range(2)]
        assert len(found) == 60 * Processes.count
        checkpoints = list(commit_file(root, 0).parent.glob("*.checkpoint.parquet"))
        assert len(checkpoints) == 1

    def test_one_of_many_producers_writes_the_checkpoint(
        self, root: Location, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The producer whose commit has a multiple of the interval as its version writes the
        checkpoint.
        """
        written: list[Location] = []
        monkeypatch.setattr(delta_checkpoints, "_write_checkpoint", written.append)
        short = dict(PRODUCE_REQUESTS.properties) | {"delta.checkpointInterval": "10"}
        create_table(root, PRODUCE_REQUESTS._replace(properties=short))
        producers = [RequestAppends(root) for _ in range(3)]
        counts = []
        for number in range(35):
            producers[number % 3].append([request("a")])
            await_checkpoints()
            counts.append(len(written))
        assert counts == [version // 10 for version in range(1, 36)]

    def test_a_checkpoint_that_fails_does_not_undo_the_append(
        self, root: Location, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A checkpoint that fails does not undo its append."""

        def failing(_: DeltaTable) -> None:
            raise DeltaError("the store is away")

        monkeypatch.setattr(DeltaTable, "create_checkpoint", failing)
        short = dict(PRODUCE_REQUESTS.properties) | {"delta.checkpointInterval": "2"}
        create_table(root, PRODUCE_REQUESTS._replace(properties=short))
        appends = RequestAppends(root)
        for one in "abcde":
            appends.append([request(one)])
        await_checkpoints()
        assert ids_in(RequestTable(root)) == list("abcde")


class TestSkip:
    def test_an_append_reads_no_commit_of_others(
        self, root: Location, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An append reads no commit of other producers."""
        appends, other = appending(root), RequestAppends(root)
        for number in range(25):
            other.append([request(f"{number}")])
        read: list[str] = []
        monkeypatch.setattr(Location, "read_bytes", lambda _, path: read.append(path))
        appends.append([request("mine")])
        assert read == []
        monkeypatch.undo()
        assert ids_in(RequestTable(root))[-1] == "mine"

    @pytest.mark.parametrize("ahead", [0, 1, 3, 4, 5, 17])
    def test_finds_the_newest_version(self, root: Location, ahead: int) -> None:
        """`skip` finds the newest version, over any number of commits."""
        other = appending(root)
        other.append([request("first")])
        log = DeltaLog(table_of(root))
        for _ in range(ahead):
            other.append([request("a")])
        log.skip()
        assert (log.version, log.is_lost) == (1 + ahead, False)

    def test_says_that_the_loaded_version_is_lost(self, root: Location) -> None:
        """`skip` after a removed commit sets `is_lost` and stays at its version."""
        appends = appending(root)
        log = DeltaLog(table_of(root))
        for _ in range(3):
            appends.append([request("a")])
        clean_up(root, below=3)
        log.skip()
        assert (log.version, log.is_lost) == (0, True)

    def test_ends_the_uncertainty_about_a_commit(
        self, root: Location, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """`skip` clears `is_uncertain`."""
        appending(root)
        log = DeltaLog(table_of(root))
        fail_to_link(monkeypatch, OSError(errno.EIO, "lost"), lands=False)
        with pytest.raises(OSError, match="lost"):
            log.commit("WRITE")
        assert log.is_uncertain
        log.skip()
        assert (log.version, log.is_uncertain) == (0, False)
