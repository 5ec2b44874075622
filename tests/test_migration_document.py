"""docs/migration.md: its names exist in sparklog and the other packages, and its program runs."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from sparklog import Admin, Connection, Consumer, ConsumerRecord, GroupAdmin, Producer
from tests.examples import CHECKOUT, example_cluster, examples
from tests.record_client_names import parameters

DOCUMENT = "docs/migration.md"

CLASSES = {
    "producer": Producer,
    "consumer": Consumer,
    "admin": Admin,
    "group_admin": GroupAdmin,
    "record": ConsumerRecord,
}

RECORDED = json.loads(Path(__file__).with_name("client_names.json").read_text(encoding="utf-8"))
"""The public names of the other packages, written by record_client_names.py."""

Names = dict[str, "list[str] | None"]


def rows(package: str) -> list[tuple[str, str]]:
    """Return the two cells of each row of a package's table."""
    text = (CHECKOUT / DOCUMENT).read_text(encoding="utf-8")
    section = text.split(f"## {package}\n")[1].split("\n## ")[0]
    found = re.findall(r"^\| (.*) \| (.*) \|$", section, re.MULTILINE)
    assert found[0] == (package, "sparklog")
    return found[1:]


def references(cell: str) -> list[ast.Attribute | ast.Call]:
    """Return the attributes and calls in the code of a cell; the attribute of a call is in it."""
    found: list[ast.Attribute | ast.Call] = []
    for code in re.findall(r"`([^`]+)`", cell):
        try:
            tree = ast.parse(code, mode="eval")
        except SyntaxError:
            assert "(" not in code, code
            continue
        called = [one.func for one in ast.walk(tree) if isinstance(one, ast.Call)]
        found += [
            one
            for one in ast.walk(tree)
            if isinstance(one, (ast.Attribute, ast.Call)) and one not in called
        ]
    return found


def wrong(reference: ast.Attribute | ast.Call, classes: dict[str, Names]) -> str | None:
    """Return how a reference differs from the names of its class, or None.

    A positional argument that is a name has to be the name of the parameter in its place.
    """
    name = reference.func if isinstance(reference, ast.Call) else reference
    if not isinstance(name, ast.Attribute) or not isinstance(name.value, ast.Name):
        return None
    if name.value.id not in classes:
        return None
    text, known = ast.unparse(reference), classes[name.value.id]
    if name.attr not in known:
        return f"{text}: no {name.attr}"
    parameters = known[name.attr]
    if not isinstance(reference, ast.Call) or parameters is None:
        return None
    given = [
        (place, ast.unparse(argument))
        for place, argument in enumerate(reference.args)
        if isinstance(argument, (ast.Name, ast.Starred))
    ]
    keywords = {str(keyword.arg) for keyword in reference.keywords}
    is_known = len(reference.args) <= len(parameters) and keywords <= set(parameters)
    if is_known and all(parameters[place] == argument for place, argument in given):
        return None
    return f"{text}: the parameters are {parameters}"


def names_of_sparklog(of: type) -> Names:
    return {
        one: parameters(getattr(of, one)) if callable(getattr(of, one)) else None
        for one in dir(of)
        if not one.startswith("_")
    }


PACKAGES = sorted(RECORDED)


@pytest.mark.parametrize("package", PACKAGES)
def test_the_names_of_the_other_package_exist(package: str) -> None:
    """The first column has the methods and the parameters of the recorded release.

    The page once had `list_consumer_groups` of kafka-python, which its releases 3.x do not have.
    """
    classes = RECORDED[package]["classes"]
    found = [one for cell, _ in rows(package) for one in references(cell)]
    assert len(found) > 30
    assert [text for one in found if (text := wrong(one, classes))] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_the_names_of_sparklog_exist(package: str) -> None:
    """The last column has the methods and the parameters of sparklog's classes."""
    classes = {kind: names_of_sparklog(of) for kind, of in CLASSES.items()}
    found = [one for _, cell in rows(package) for one in references(cell)]
    assert len(found) > 30
    assert [text for one in found if (text := wrong(one, classes))] == []


def test_the_settings_and_errors_of_kafka_python_exist() -> None:
    recorded = RECORDED["kafka-python"]
    cells = [cell for cell, _ in rows("kafka-python")]
    settings = {
        (called.func.id, str(keyword.arg))
        for cell in cells
        for called in references(cell)
        if isinstance(called, ast.Call) and isinstance(called.func, ast.Name)
        for keyword in called.keywords
    }
    assert len(settings) == 6
    assert {one for one in settings if one[1] not in recorded["settings"][one[0]]} == set()
    errors = set(re.findall(r"`(\w+Error)`", " ".join(cells)))
    assert errors
    assert errors <= set(recorded["errors"])


@pytest.mark.parametrize("package", PACKAGES)
def test_the_page_names_the_recorded_release(package: str) -> None:
    text = (CHECKOUT / DOCUMENT).read_text(encoding="utf-8")
    assert f"{package} {RECORDED[package]['version']}" in text


@pytest.mark.parametrize(
    "code",
    [
        "consumer.absent()",
        "consumer.absent",
        "consumer.seek(offset, partition)",
        "consumer.seek(partition, offset, 1)",
        "consumer.seek(partition, at=1)",
    ],
)
def test_a_wrong_name_is_found(code: str) -> None:
    """The comparison of the page can fail: an unknown name, order, count and keyword."""
    [reference] = references(f"`{code}`")
    assert wrong(reference, RECORDED["kafka-python"]["classes"]) is not None


def test_the_program_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    [example] = examples(DOCUMENT)
    with example_cluster(tmp_path):
        Admin(Connection("sparklog-data/cluster")).create_topic("orders", partitions=2)
        exec(compile(example, DOCUMENT, "exec"), {})
    assert capsys.readouterr().out == "0\n"
