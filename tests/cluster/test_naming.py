"""Every client takes a cluster's root, its configuration file, and storage options."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sparklog import Admin, Connection, Consumer, Producer, cluster_options
from sparklog.cluster.naming import named_cluster
from sparklog.config import Settings
from sparklog.datasource.options import parse_read_options
from sparklog.datasource.write_options import parse_write_options
from sparklog.errors import ConfigError, SparklogError
from sparklog.groups.admin import GroupAdmin
from sparklog.testing import LocalCluster
from tests.cli.command_line import run

SECRET = {"s3://logs": {"AWS_SECRET_ACCESS_KEY": "hush-hush"}}


class Named(NamedTuple):
    root: Path
    file: Path


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Named]:
    """A cluster with a topic, and its configuration file in another folder."""
    folder = tmp_path_factory.mktemp("cluster")
    cluster = LocalCluster(folder)
    cluster.create_topic("t")
    file = tmp_path_factory.mktemp("conf") / "cluster.yaml"
    file.write_text(
        f"cluster.root: {folder}/cluster\n"
        f"brokers: [{{broker.id: 0, log.dirs: {folder}/broker-0}}]\n"
        "num.partitions: 3\nstorage.options: {'s3://logs': {AWS_REGION: eu-central-1}}\n"
    )
    yield Named(folder / "cluster", file)
    cluster.close()


def opened(client: Any) -> Any:
    """Return a client after closing it, if it can be closed."""
    getattr(client, "close", lambda: None)()
    return client


CLIENTS: list[Callable[..., Any]] = [Connection, Admin, Producer, Consumer]


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_takes_the_root_the_file_and_options(
    named: Named, client: Callable[..., Any]
) -> None:
    """`Producer("cluster.yaml")` took the file for the folder of a cluster before."""
    options = {"s3://logs": {"AWS_REGION": "eu-central-1"}}
    opened(client(named.root))
    opened(client(str(named.file)))
    opened(client(named.file))
    opened(client(named.root, storage_options=options))
    opened(client(named.file, storage_options=options))


@pytest.mark.parametrize("client", [Admin, Producer, Consumer])
def test_options_beside_a_connection_are_refused(named: Named, client: Callable[..., Any]) -> None:
    """A connection has storage options of its own, which others would contradict."""
    connection = Connection(named.root)
    opened(client(connection))
    with pytest.raises(SparklogError, match="storage_options are given with a Connection"):
        client(connection, storage_options={})


def test_group_admin_takes_them_too(named: Named) -> None:
    """`GroupAdmin` takes a configuration file as the other clients do."""
    assert GroupAdmin(named.file).list_groups() == []


def test_the_files_settings_are_those_of_a_new_topic(named: Named) -> None:
    """`Admin` applies the file's settings, as the command line does."""
    created = Admin(named.file).create_topic("u")
    assert len(created.partitions) == 3
    assert len(Admin(named.file, settings=Settings()).create_topic("v").partitions) == 1
    assert len(Admin(named.root).create_topic("w").partitions) == 1


def test_given_options_take_precedence_over_the_files_prefix_by_prefix(named: Named) -> None:
    """Options in a call replace the file's options of the same prefix and keep the others."""
    given = {"s3://logs": {"AWS_REGION": "r"}, "s3://other": {"max_retries": 3}}
    both = named_cluster(named.file, given).storage_options
    assert both == {"s3://logs": {"AWS_REGION": "r"}, "s3://other": {"max_retries": "3"}}
    assert named_cluster(named.file).storage_options == {
        "s3://logs": {"AWS_REGION": "eu-central-1"}
    }


@pytest.mark.parametrize("parse", [parse_read_options, parse_write_options])
def test_the_options_of_a_dataframe_carry_the_root_and_the_stores_options(
    named: Named, parse: Callable[[dict[str, str]], Any]
) -> None:
    """A task gets the root and the options, and never opens the configuration file."""
    topic = {"subscribe": "t"} if parse is parse_read_options else {"topic": "t"}
    options = parse({"cluster": str(named.file), **topic})
    assert options.cluster == str(named.root)
    assert options.storage_options == {"s3://logs": {"AWS_REGION": "eu-central-1"}}
    given = json.dumps({"s3://": {"AWS_REGION": "r"}})
    options = parse({"cluster": str(named.root), "storageOptions": given, **topic})
    assert options.storage_options == {"s3://": {"AWS_REGION": "r"}}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"s3://": 5}, "storage.options.s3:// in the given storage options has an unusable value"),
        ({"s3://": {"a": ["hush-hush"]}}, "storage.options.s3://.a in .* an unusable value"),
        ("{", "the storage options are not JSON"),
    ],
)
def test_options_of_another_form_are_refused_without_their_values(
    options: Any, sentence: str
) -> None:
    """Malformed options are refused in one line that names the key and not the value."""
    with pytest.raises(ConfigError, match=sentence) as told:
        named_cluster("c", options)
    assert "hush-hush" not in str(told.value)


def test_no_representation_shows_the_options() -> None:
    """The representations of clusters and options leave out the storage options."""
    values = {"cluster": "/c", "storageOptions": json.dumps(SECRET), "subscribe": "t"}
    write = {"cluster": "/c", "storageOptions": json.dumps(SECRET), "topic": "t"}
    for value in (
        named_cluster("/c", SECRET),
        parse_read_options(values),
        parse_write_options(write),
    ):
        assert "hush-hush" not in repr(value)


def test_the_options_of_a_plan_name_a_cluster_without_its_file(named: Named) -> None:
    """`cluster_options` gives a file's root and options, and refuses a literal secret."""
    assert cluster_options(named.file) == {
        "cluster": str(named.root),
        "storageOptions": '{"s3://logs": {"AWS_REGION": "eu-central-1"}}',
    }
    assert cluster_options(named.root) == {"cluster": str(named.root)}
    reference = {"s3://logs": {"AWS_SECRET_ACCESS_KEY": "${S}"}}
    assert "${S}" in cluster_options(named.root, storage_options=reference)["storageOptions"]
    with pytest.raises(ConfigError, match="AWS_SECRET_ACCESS_KEY of s3://logs is a secret") as told:
        cluster_options(named.root, storage_options=SECRET)
    assert "hush-hush" not in str(told.value)


def test_the_command_line_takes_options(named: Named) -> None:
    """`--storage-options` applies to every command, and a mistake in it is one line."""
    options = '{"s3://logs": {"AWS_REGION": "r"}}'
    listed = run("--storage-options", options, "topics", "list", "--cluster", named.root)
    assert "t" in listed.printed.split()
    refused = run("--storage-options", "{", "topics", "list", "--cluster", named.root)
    assert refused.refusal.startswith("the storage options are not JSON")
    missing = '{"s3://logs": {"AWS_REGION": "${NOT_SET_ANYWHERE}"}}'
    unset = run("--storage-options", missing, "topics", "list", "--cluster", "s3://logs/cluster")
    assert "no environment variable NOT_SET_ANYWHERE" in unset.refusal


def test_storage_options_that_are_nested_too_deeply_are_refused() -> None:
    """Found by hostile input: RecursionError."""
    with pytest.raises(ConfigError, match="the storage options are not JSON"):
        named_cluster("/data", "[" * 100_000)
