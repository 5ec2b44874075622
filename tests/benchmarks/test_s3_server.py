"""The S3 API server of the benchmarks answers like moto's, counts, logs and adds latency."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from obstore.exceptions import AlreadyExistsError
from obstore.store import S3Store

from benchmarks import s3_server
from benchmarks.s3_buckets import LEAST_PART_BYTES, Bucket, S3Error
from benchmarks.s3_server import BYTES, BYTES_READ, NOT_FOUND, REFUSED, Request, S3Api, charged_as
from benchmarks.s3_store import Store, await_port, running_store
from sparklog.storage.location import Location

needs_moto = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("moto", "flask_cors", "boto3")),
    reason="moto's server is not installed: it is compared with",
)
PART = b"p" * LEAST_PART_BYTES


@pytest.fixture
def bucket(store: Store) -> S3Store:
    name = f"bucket-{time.time_ns()}"
    store.bucket(name)
    options = store.options(name)["s3://"]
    config = {key: value for key, value in options.items() if key != "AWS_ALLOW_HTTP"}
    given: dict[str, Any] = {"config": config, "client_options": {"allow_http": True}}
    return S3Store(name, **given)


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("moto") / "log"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        await_port(port, process, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


class Transcript:
    """Calls of S3's API by boto3, each with its result or its error."""

    def __init__(self, url: str) -> None:
        boto3, config = pytest.importorskip("boto3"), pytest.importorskip("botocore.config")
        self._client = boto3.client(
            "s3",
            endpoint_url=url,
            region_name="us-east-1",
            aws_access_key_id="an-id",
            aws_secret_access_key="a-secret",
            config=config.Config(
                s3={"addressing_style": "path"},
                request_checksum_calculation="when_required",
                retries={"total_max_attempts": 1},
            ),
        )
        self._client.create_bucket(Bucket="bucket")
        self._error = pytest.importorskip("botocore.exceptions").ClientError
        self.lines: list[tuple[object, ...]] = []

    def call(self, name: str, *wanted: str, **arguments: Any) -> dict[str, Any]:
        """Make a call and note the `wanted` parts of its result."""
        try:
            result: dict[str, Any] = getattr(self._client, name)(Bucket="bucket", **arguments)
        except self._error as error:
            status = error.response["ResponseMetadata"]["HTTPStatusCode"]
            code = "" if status == 416 else error.response["Error"]["Code"]
            self.lines.append((name, arguments.get("Key"), status, code))
            return {}
        found = {one: result.get(one) for one in wanted}
        if "Body" in found:
            found["Body"] = result["Body"].read()
        status = result["ResponseMetadata"]["HTTPStatusCode"]
        self.lines.append((name, arguments.get("Key"), status, found))
        return result


def conditional_writes(transcript: Transcript) -> None:
    call = transcript.call
    call("put_object", Key="a", Body=b"1", IfNoneMatch="*")
    call("put_object", Key="a", Body=b"2", IfNoneMatch="*")
    first = call("get_object", "Body", Key="a")["ETag"]
    second = call("put_object", Key="a", Body=b"3", IfMatch=first)["ETag"]
    call("put_object", Key="a", Body=b"4", IfMatch=first)
    call("get_object", "Body", Key="a")
    call("put_object", Key="a", Body=b"5", IfMatch=second)
    call("put_object", Key="absent", Body=b"6", IfMatch=second)
    call("delete_object", Key="a")
    call("put_object", Key="a", Body=b"7", IfNoneMatch="*")
    call("get_object", "Body", Key="a")


def reads(transcript: Transcript) -> None:
    call = transcript.call
    etag = call("put_object", Key="a/ü %41=1+&.json", Body=b"0123456789")["ETag"]
    key = "a/ü %41=1+&.json"
    for extent in ("2-4", "2-", "-3", "0-0", "9-99", "-99", "10-12"):
        call("get_object", "Body", "ContentRange", Key=key, Range=f"bytes={extent}")
    call("get_object", "Body", "ContentLength", Key=key, IfMatch=etag)
    call("get_object", "Body", Key=key, IfMatch='"another"')
    call("get_object", "Body", Key=key, IfNoneMatch=etag)
    call("head_object", "ContentLength", Key=key)
    call("head_object", Key="absent")
    call("get_object", Key="absent")
    call("delete_object", Key="absent")
    call("put_object", Key="empty", Body=b"")
    call("get_object", "Body", Key="empty")


def listings(transcript: Transcript) -> None:
    keys = [f"t/{name}" for name in ("a", "b/1", "b/2", "b<3>", "c/1/x", "c/2", "d", "e&f")]
    for key in [*keys, "s", "u"]:
        transcript.call("put_object", Key=key, Body=key.encode())

    def pages(**arguments: Any) -> None:
        token: dict[str, str] = {}
        while True:
            result = transcript.call(
                "list_objects_v2", "KeyCount", "IsTruncated", **arguments, **token
            )
            transcript.lines.append(
                (
                    [(one["Key"], one["Size"]) for one in result.get("Contents", ())],
                    [one["Prefix"] for one in result.get("CommonPrefixes", ())],
                )
            )
            if not result.get("IsTruncated"):
                return
            token = {"ContinuationToken": result["NextContinuationToken"]}

    pages()
    pages(Prefix="t/")
    pages(Prefix="t/", MaxKeys=3)
    pages(Prefix="t/", Delimiter="/")
    pages(Prefix="t/", StartAfter="t/b/1")
    pages(Prefix="t/", StartAfter="a")
    pages(Prefix="absent")
    given = {"Objects": [{"Key": "t/a"}, {"Key": "t/e&f"}, {"Key": "t/absent"}]}
    transcript.call("delete_objects", Delete=given)
    pages(Prefix="t/")


def uploads(transcript: Transcript) -> None:
    call = transcript.call

    def upload(key: str, *contents: bytes) -> tuple[str, list[dict[str, Any]]]:
        upload_id = call("create_multipart_upload", Key=key)["UploadId"]
        parts = [
            {
                "PartNumber": number,
                "ETag": call(
                    "upload_part", Key=key, UploadId=upload_id, PartNumber=number, Body=content
                )["ETag"],
            }
            for number, content in enumerate(contents, 1)
        ]
        return upload_id, parts

    def complete(key: str, upload_id: str, parts: list[dict[str, Any]], **more: str) -> None:
        call(
            "complete_multipart_upload",
            Key=key,
            UploadId=upload_id,
            MultipartUpload={"Parts": parts},
            **more,
        )

    one, parts = upload("large", PART, b"the rest")
    other, others = upload("large", b"other")
    call("get_object", Key="large")
    complete("large", one, parts, IfNoneMatch="*")
    call("head_object", "ContentLength", Key="large")
    complete("large", other, others, IfNoneMatch="*")
    call("head_object", "ContentLength", Key="large")
    small, too_small = upload("small", b"small", b"parts")
    complete("small", small, too_small)
    wrong, wrong_parts = upload("wrong", b"content")
    complete("wrong", wrong, [{**wrong_parts[0], "ETag": '"another"'}])
    gone, _ = upload("gone", b"content")
    call("abort_multipart_upload", Key="gone", UploadId=gone)
    call("get_object", Key="gone")


@needs_moto
@pytest.mark.parametrize("calls", [conditional_writes, reads, listings, uploads])
def test_calls_are_answered_as_by_moto(
    calls: Callable[[Transcript], None], tmp_path: Path, moto: str
) -> None:
    """Calls get the same results and errors as from moto."""
    theirs = Transcript(moto)
    with running_store(tmp_path / "log") as own:
        ours = Transcript(own.url)
        calls(ours)
    for key in [one["Key"] for one in theirs.call("list_objects_v2").get("Contents", ())]:
        theirs.call("delete_object", Key=key)
    theirs.lines.clear()
    calls(theirs)
    assert ours.lines == theirs.lines


def test_of_many_puts_of_a_new_object_one_succeeds(store: Store, bucket: S3Store) -> None:
    """Of many conditional PUTs of one new object, one succeeds."""

    def put(number: int) -> int:
        try:
            obstore.put(bucket, "key", b"%d" % number, mode="create")
        except AlreadyExistsError:
            return 0
        return 1

    store.set_latency(5)
    try:
        with ThreadPoolExecutor(20) as pool:
            assert sum(pool.map(put, range(20))) == 1
    finally:
        store.set_latency(0)
    counts = store.counts(bucket.config["access_key_id"])
    assert (counts["PUT"], counts[REFUSED]) == (20, 19)


def test_a_copy_of_a_bucket_has_its_objects_and_is_independent(store: Store) -> None:
    """A copy replaces the bucket that is there, and has the times of the original's objects."""
    original, copy = (
        Location.of(store.bucket(f"{name}-{time.time_ns()}"), store.options()).child("a")
        for name in ("original", "copy")
    )
    original.put_new("1", b"first")
    copy.put_new("of the bucket before", b"")
    names = [one.uri.split("/")[2] for one in (original, copy)]
    assert store.copy_bucket(names[0], names[1]) == f"s3://{names[1]}"
    assert list(copy.files()) == list(original.files())
    copy.replace("1", b"second")
    assert original.read_bytes("1") == b"first"


def test_a_large_object_is_put_in_parts_and_read_whole(bucket: S3Store) -> None:
    """A large object is uploaded in parts and read completely and in ranges."""
    content = bytes(range(256)) * (80 << 10)
    with obstore.open_writer(bucket, "large", buffer_size=8 << 20) as writer:
        writer.write(content)
    assert bytes(obstore.get(bucket, "large").bytes()) == content
    assert bytes(obstore.get_range(bucket, "large", start=1 << 20, length=10)) == content[:10]


def test_a_listing_has_pages(bucket: S3Store) -> None:
    """A listing of many objects has several pages."""
    paths = [f"folder/{number:05}" for number in range(2500)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda path: obstore.put(bucket, path, b"x"), paths))
    found = [one["path"] for page in obstore.list(bucket, "folder") for one in page]
    assert found == paths
    later = obstore.list(bucket, "folder", offset=paths[2000])
    assert [one["path"] for page in later for one in page] == paths[2001:]
    assert obstore.list_with_delimiter(bucket)["common_prefixes"] == ["folder"]


def test_deltalake_commits_in_parallel(store: Store, bucket: S3Store) -> None:
    """Parallel commits by delta-rs all land."""
    sender = bucket.config["access_key_id"]
    uri, options = f"s3://{sender}/table", dict(store.options(sender)["s3://"])
    write_deltalake(uri, pa.table({"n": [-1]}), storage_options=options)

    def append(number: int) -> None:
        write_deltalake(uri, pa.table({"n": [number]}), mode="append", storage_options=options)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(append, range(8)))
    table = DeltaTable(uri, storage_options=options)
    assert table.version() == 8
    assert sorted(table.to_pyarrow_table()["n"].to_pylist()) == list(range(-1, 8))


def test_requests_are_counted_by_sender_and_logged_in_order(store: Store, bucket: S3Store) -> None:
    """Requests are counted by sender, and logged in order."""
    sender = bucket.config["access_key_id"]
    with store.logged() as log:
        obstore.put(bucket, "a/key", b"12345")
        with pytest.raises(AlreadyExistsError):
            obstore.put(bucket, "a/key", b"1", mode="create")
        obstore.get_range(bucket, "a/key", start=1, length=2)
        with pytest.raises(FileNotFoundError):
            obstore.get(bucket, "absent")
        obstore.list_with_delimiter(bucket, "a")
        obstore.head(bucket, "a/key")
        obstore.delete(bucket, ["a/key", "b"])
    with pytest.raises(FileNotFoundError):
        obstore.head(bucket, "a/key")
    counts = store.counts(sender)
    names = ("PUT", REFUSED, BYTES, "GET", NOT_FOUND, "LIST", "HEAD", "DELETE")
    assert [counts[name] for name in names] == [2, 1, 6, 2, 1, 1, 2, 1]
    assert counts[BYTES_READ] == 2
    assert [(one.sender, one.kind, one.key, one.status, one.size_bytes) for one in log] == [
        (sender, "PUT", f"{sender}/a/key", 200, 5),
        (sender, "PUT", f"{sender}/a/key", 412, 1),
        (sender, "GET", f"{sender}/a/key", 206, 2),
        (sender, "GET", f"{sender}/absent", 404, 0),
        (sender, "LIST", f"{sender}/a/", 200, 0),
        (sender, "HEAD", f"{sender}/a/key", 200, 0),
        (sender, "DELETE", f"{sender}/a/key", 200, 0),
    ]


def test_requests_wait_in_parallel(store: Store, bucket: S3Store) -> None:
    """A lower limit of time holds on any machine; the sum of latencies would be 10 s."""
    store.set_latency(500)
    try:
        began = time.monotonic()
        with ThreadPoolExecutor(20) as pool:
            list(pool.map(lambda one: obstore.put(bucket, f"{one}", b"x"), range(20)))
        assert 0.4 < time.monotonic() - began < 8
    finally:
        store.set_latency(0)


def test_a_server_ends_with_its_parent(tmp_path: Path) -> None:
    """A server process ends with its parent."""
    process = subprocess.Popen(
        [sys.executable, "-m", s3_server.__name__, "0"],
        cwd=Path(s3_server.__file__).parents[1],
        stdin=subprocess.PIPE,
    )
    process.communicate()
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"x-amz-content-sha256": "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"}, 501),
        ({"x-amz-copy-source": "/bucket/another"}, 501),
        ({"if-none-match": '"an-etag"'}, 501),
    ],
)
def test_requests_that_are_not_offered_are_refused(headers: dict[str, str], status: int) -> None:
    """Unsupported conditions are refused, and do not store an object."""
    api = S3Api()
    api.respond(Request("PUT", "bucket", "", {}, {}, b""))
    assert api.respond(Request("PUT", "bucket", "key", {}, headers, b"content")).status == status
    found = api.respond(Request("GET", "bucket", "key", {}, {}, b"")).status
    assert found == (200 if status == 200 else 404)


@pytest.mark.parametrize(
    ("start_after", "found"),
    [("", ["a", "b", "bc", "c"]), ("b", ["bc", "c"]), ("bb", ["bc", "c"]), ("c", [])],
)
def test_a_listing_starts_after_a_key(start_after: str, found: list[str]) -> None:
    """A listing starts after the given key."""
    bucket = Bucket()
    for key in ("c", "bc", "a", "b"):
        bucket.put(key, b"", {})
    page = bucket.list("", "", start_after, None, 10)
    assert [key for key, _ in page.objects] == found


def test_parts_are_completed_in_order() -> None:
    """The parts of an upload must be completed in order."""
    bucket = Bucket()
    upload_id = bucket.begin_upload("key")
    parts = [(number, bucket.put_part("key", upload_id, number, PART)) for number in (1, 2)]
    for wrong in (parts[::-1], [parts[0], parts[0]]):
        with pytest.raises(S3Error, match="out of order"):
            bucket.complete_upload("key", upload_id, wrong, {})
    assert bucket.complete_upload("key", upload_id, parts, {}).endswith('-2"')


def test_an_aborted_upload_cannot_be_completed() -> None:
    """An aborted upload cannot be completed."""
    bucket = Bucket()
    upload_id = bucket.begin_upload("key")
    parts = [(1, bucket.put_part("key", upload_id, 1, b"content"))]
    bucket.abort_upload("key", upload_id)
    with pytest.raises(S3Error, match="no upload"):
        bucket.complete_upload("key", upload_id, parts, {})


def test_pages_count_common_prefixes_and_do_not_repeat_them() -> None:
    """Pages count common prefixes, and do not repeat them."""
    bucket = Bucket()
    for key in ("a", "b/1", "b/2", "c/1", "d"):
        bucket.put(key, b"", {})
    seen, begin = [], None
    while True:
        page = bucket.list("", "/", "", begin, 1)
        seen += [key for key, _ in page.objects] + page.prefixes
        begin = page.next_key
        if begin is None:
            break
    assert seen == ["a", "b/", "c/", "d"]


@pytest.mark.parametrize(
    ("method", "key", "query", "charged"),
    [
        ("PUT", "a/file", {}, "PUT"),
        ("POST", "a/file", {"uploads": ""}, "PUT"),
        ("POST", "", {"delete": ""}, "DELETE"),
        ("GET", "a/file", {}, "GET"),
        ("GET", "", {"list-type": "2", "prefix": "a"}, "LIST"),
        ("HEAD", "a/file", {}, "HEAD"),
        ("DELETE", "a/file", {}, "DELETE"),
    ],
)
def test_requests_are_counted_as_what_they_are_charged(
    method: str, key: str, query: dict[str, str], charged: str
) -> None:
    """Requests are counted in the classes in which they are charged."""
    assert charged_as(method, key, query) == charged
