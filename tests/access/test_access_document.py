"""docs/access.md: its tables and its policy are those that `sparklog policy` prints."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from sparklog.cluster.access import GRANTS, Role, RootUris, folder_commands, s3_policy
from sparklog.errors import StorageError
from sparklog.model import BROKER_TABLES, CLUSTER_TABLES, FORMAT
from tests.cli.command_line import run
from tests.examples import CHECKOUT

TEXT = (CHECKOUT / "docs" / "access.md").read_text(encoding="utf-8")
ON_S3 = RootUris("s3://logs/cluster", [f"s3://logs/broker-{one}" for one in range(3)])


@pytest.mark.parametrize("role", Role)
def test_the_table_of_a_role_has_its_grants(role: Role) -> None:
    section = TEXT.split(f"\n### {role.value}\n")[1].split("\n##")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if line.startswith("| ")
    ]
    assert rows[1:] == [
        [
            one.action.name.lower(),
            one.roots.value,
            ", ".join(f"`{path}`" for path in one.paths),
            one.purpose,
        ]
        for one in GRANTS[role]
    ]


def test_each_role_is_described() -> None:
    assert all(f"| `{role.value}` | " in TEXT for role in Role)


def test_the_policy_is_the_one_that_is_printed() -> None:
    [shown] = re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)
    assert json.loads(shown) == s3_policy(Role.CONSUMER, ON_S3)


def test_granted_paths_are_tables() -> None:
    tables = {one.name for one in (*CLUSTER_TABLES, *BROKER_TABLES, FORMAT)} | {"*"}
    tables |= {"produce_requests*"}
    every = [one for grants in GRANTS.values() for one in grants]
    assert {path.split("/")[0] for one in every for path in one.paths} <= tables


def test_the_command_prints_a_policy_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "logs.yaml"
    file.write_text(
        "cluster.root: s3://logs/cluster\nbrokers:\n"
        + "".join(
            f"  - {{broker.id: {one}, log.dirs: {ON_S3.log_dirs[one]}}}\n" for one in range(3)
        )
    )
    printed = run("policy", "consumer", "--cluster", file).printed
    assert json.loads(printed) == s3_policy(Role.CONSUMER, ON_S3)
    own = ON_S3._replace(own=["s3://logs/broker-1"])
    printed = run("policy", "controller", "--broker-id", "1", "--cluster", file).printed
    assert json.loads(printed) == s3_policy(Role.CONTROLLER, own)
    assert "is not a role" in run("policy", "reader", "--cluster", file).refusal
    assert "--broker-id is missing" in run("policy", "broker", "--cluster", file).refusal
    assert "no broker 7" in run("policy", "broker", "--broker-id", "7", "--cluster", file).refusal


def test_commands_for_folders_quote_them() -> None:
    [first, *_] = folder_commands(Role.CONSUMER, RootUris("/a b/c", ["/d"]), "g:readers")
    assert first == "setfacl -R -m o::-,d:o::- '/a b/c'"


def test_a_policy_of_another_store_is_refused() -> None:
    with pytest.raises(StorageError, match="is not on S3"):
        s3_policy(Role.CONSUMER, RootUris("gs://a/b", []))
