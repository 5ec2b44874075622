"""The structure of the code: imports go in one direction, and each fact has one place.

The source is read as a syntax tree, so imports inside functions and under TYPE_CHECKING count too.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from sparklog import model
from sparklog.protocol.rules import RULE_FOLDERS, rule, rule_names

ROOT = Path(__file__).parents[1]

LAYERS: Sequence[Sequence[str]] = (
    ("errors",),
    ("counts",),
    ("model", "states", "config", "clock", "java", "logger"),
    ("jars", "table_documentation"),
    ("session",),
    ("spark_jobs",),
    ("protocol", "storage"),
    ("cluster",),
    ("producer", "groups"),
    ("consumer",),
    ("broker", "datasource", "maintenance"),
    ("cli", "testing"),
    ("sparklog",),
    ("jobs", "pyspark_sparklog"),
)
"""The layers from the bottom up. A module in one layer imports neither its neighbours nor higher
layers; `sparklog` is the package's own `__init__`, which offers the public names.
"""

OWN = ("sparklog", "pyspark_sparklog", "jobs", "tests", "benchmarks")
"""The packages of this repository."""

VERSION = "__version__"
"""Names of the package itself that every layer may import."""


class Import(NamedTuple):
    """One module that a file imports, by its full name, and the line."""

    name: str
    line: int


def wrong_imports(root: Path, layers: Sequence[Sequence[str]] = LAYERS) -> list[str]:
    """Return a sentence for every import below `root` that does not go to a lower layer."""
    height = {member: number for number, layer in enumerate(layers) for member in layer}
    wrong = []
    for file, own in source_files(root):
        place = file.relative_to(root)
        if own not in height:
            wrong.append(f"{place}:1: {own} stands in no layer: say in LAYERS what it may import")
            continue
        for name, line in imports(file, root):
            imported = member(name, root)
            if imported is None or imported == own:
                continue
            if imported not in height or height[imported] >= height[own]:
                wrong.append(
                    f"{place}:{line}: {own} imports {imported} ({name}), which does not stand "
                    f"below it: imports point from {layers[-1][0]} down to {layers[0][0]}"
                )
    return wrong


def source_files(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield the files of the layers, each with its member of a layer."""
    for package in ("sparklog", "pyspark_sparklog", "jobs"):
        for file in sorted((root / package).rglob("*.py")):
            parts = module_name(file, root).split(".")
            yield file, parts[1] if package == "sparklog" and len(parts) > 1 else package


def module_name(file: Path, root: Path) -> str:
    parts = file.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def member(name: str, root: Path) -> str | None:
    """Return the layer's member of a module, or of a name in it; None for other packages."""
    first, *rest = name.split(".")
    if first not in OWN:
        return None
    if first != "sparklog" or not rest:
        return first
    if rest == [VERSION]:
        return None
    is_module = (root / first / rest[0]).is_dir() or (root / first / f"{rest[0]}.py").is_file()
    return rest[0] if is_module else first


def imports(file: Path, root: Path) -> Iterator[Import]:
    """Yield the imports of a file, anywhere in it, and its uses of `sparklog.<name>`."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"), str(file))):
        if isinstance(node, ast.Import):
            # The bare package is always loaded; its names are used as attributes.
            yield from (Import(a.name, node.lineno) for a in node.names if a.name != "sparklog")
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module_name(file, root).split(".")
                is_package = file.name == "__init__.py"
                package = package[: len(package) - node.level + is_package]
                base = ".".join([*package, *([base] if base else [])])
            yield from (Import(f"{base}.{one.name}", node.lineno) for one in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "sparklog":
                yield Import(f"sparklog.{node.attr}", node.lineno)
        elif isinstance(node, ast.Call) and called(node) in ("import_module", "__import__"):
            for argument in node.args[:1]:
                if isinstance(argument, ast.Constant):
                    yield Import(str(argument.value), node.lineno)


def called(call: ast.Call) -> str:
    """Return the last name of a called function, such as `b` of `a.b()`."""
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def imports_when_loaded(file: Path) -> Iterator[Import]:
    """Yield the imports that are executed when a file is imported."""
    waiting: list[ast.AST] = [ast.parse(file.read_text(encoding="utf-8"), str(file))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            waiting += node.orelse
            continue
        if isinstance(node, ast.Import):
            yield from (Import(one.name, node.lineno) for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield Import(node.module or "", node.lineno)
        waiting += ast.iter_child_nodes(node)


def spark_imports(root: Path) -> list[str]:
    """Return a sentence for every import of Spark that is executed when sparklog is imported."""
    return [
        f"{file.relative_to(root)}:{line}: {name} is imported with the module: import it where it "
        "is used, since sparklog works without Spark"
        for file in sorted((root / "sparklog").rglob("*.py"))
        for name, line in imports_when_loaded(file)
        if name.split(".")[0] in ("pyspark", "py4j", "delta")
    ]


def calls(root: Path, *names: str) -> dict[str, set[str]]:
    """Return the files below sparklog/ that call each of these functions."""
    found: dict[str, set[str]] = {name: set() for name in names}
    for file in sorted((root / "sparklog").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                for name in names:
                    if ast.unparse(node.func).endswith(name):
                        found[name].add(str(file.relative_to(root / "sparklog")))
    return found


def repeated_classes(root: Path) -> list[str]:
    """Return a sentence for every public class of sparklog/ whose name another class has."""
    found: dict[str, list[str]] = {}
    for file in sorted((root / "sparklog").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                place = f"{file.relative_to(root)}:{node.lineno}"
                found.setdefault(node.name, []).append(place)
    return [
        f"{name} is the name of several classes ({', '.join(places)}): rename all but one"
        for name, places in found.items()
        if len(places) > 1
    ]


# --- the house itself -----------------------------------------------------------------------------


def test_imports_point_one_way() -> None:
    assert not wrong_imports(ROOT), "\n".join(wrong_imports(ROOT))


def test_spark_is_imported_only_where_it_is_used() -> None:
    assert not spark_imports(ROOT), "\n".join(spark_imports(ROOT))


def test_every_public_class_has_a_name_of_its_own() -> None:
    assert not repeated_classes(ROOT), "\n".join(repeated_classes(ROOT))


def test_every_module_can_be_imported_without_spark() -> None:
    modules = [module_name(file, ROOT) for file in sorted((ROOT / "sparklog").rglob("*.py"))]
    assert len(modules) > 30
    code = (
        "import importlib, sys\n"
        "sys.modules.update(dict.fromkeys(['pyspark', 'py4j', 'delta', 'pandas']))\n"
        "for name in sys.argv[1:]: importlib.import_module(name)\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code, *modules],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert answer.returncode == 0, answer.stderr


def test_table_schemas_are_declared_in_one_module() -> None:
    assert calls(ROOT, "TableSchema")["TableSchema"] == {"model.py"}
    tables = [one for one in vars(model).values() if isinstance(one, model.TableSchema)]
    listed = [*model.BROKER_TABLES, *model.CLUSTER_TABLES, model.FORMAT]
    assert sorted(tables) == sorted(listed)
    assert len({table.name for table in tables}) == len(tables)


def test_few_modules_write_to_delta_tables() -> None:
    """All other modules use them, so that fencing and compare-and-set cannot be bypassed."""
    found = calls(
        ROOT,
        "DeltaTable.create",
        "write_deltalake",
        "create_write_transaction",
        "self.location.put_new",
        "DeltaLog",
        "_EndOfLog",
    )
    assert found == {
        "DeltaTable.create": {"storage/control_table.py"},
        "write_deltalake": {"storage/control_table.py"},
        "create_write_transaction": {"storage/delta_log.py"},
        "self.location.put_new": {"storage/delta_log.py"},
        "DeltaLog": {
            "storage/control_table.py",
            "storage/journal.py",
            "storage/record_log.py",
        },
        "_EndOfLog": {"storage/request_appends.py"},
    }


def test_every_sql_file_is_a_rule_that_can_be_loaded() -> None:
    files = sorted((ROOT / "sparklog").rglob("*.sql"))
    folders = {file.parent.relative_to(ROOT / "sparklog") for file in files}
    assert {str(folder) for folder in folders} == {f"protocol/{name}" for name in RULE_FOLDERS}
    assert sorted(file.stem for file in files) == list(rule_names())
    for file in files:
        loaded = rule(file.stem)
        assert loaded.text == file.read_text(encoding="utf-8")
        assert loaded.takes
        assert loaded.gives.names


def test_every_rule_that_is_run_exists() -> None:
    run = {
        str(node.args[0].value)
        for file in (ROOT / "sparklog").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).endswith("rules.run")
        and node.args
        and isinstance(node.args[0], ast.Constant)
    }
    assert len(run) > 10
    assert run <= set(rule_names())


# --- the checks themselves ------------------------------------------------------------------------


def tree(root: Path, files: dict[str, str]) -> Path:
    """Create a small package: one module below, one above, and these files."""
    ground = {
        "sparklog/__init__.py": "__version__ = '1'\nfrom sparklog.cli.admin import Admin\n",
        "sparklog/errors.py": "",
        "sparklog/model.py": "from sparklog.errors import Error\n",
        "sparklog/storage/__init__.py": "",
        "sparklog/storage/roots.py": "import sparklog\nfrom sparklog import model, errors\n",
        "sparklog/broker/__init__.py": "",
        "sparklog/broker/leader.py": "from sparklog.storage.roots import Root\n",
        "sparklog/cli/admin.py": "from sparklog.broker import leader\n",
        "jobs/cluster.py": "import sparklog.broker.leader\nfrom sparklog import Admin\n",
    }
    for name, text in (ground | files).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_a_house_whose_imports_point_down_is_accepted(tmp_path: Path) -> None:
    assert wrong_imports(tree(tmp_path, {})) == []
    assert spark_imports(tmp_path) == []


@pytest.mark.parametrize(
    ("file", "text", "line", "sentence"),
    [
        ("model.py", "import sparklog.storage.roots", 1, "model imports storage"),
        ("model.py", "import os\nfrom sparklog import broker", 2, "model imports broker"),
        ("errors.py", "from sparklog.model import X", 1, "errors imports model"),
        ("storage/roots.py", "from sparklog.broker.leader import X", 1, "storage imports broker"),
        ("storage/roots.py", "from ..broker import leader", 1, "storage imports broker"),
        ("storage/roots.py", "from ..broker.leader import X", 1, "storage imports broker"),
        ("storage/__init__.py", "from ..broker import leader", 1, "storage imports broker"),
        ("storage/roots.py", "def f():\n    import sparklog.broker", 2, "storage imports broker"),
        (
            "storage/roots.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from sparklog import broker",
            3,
            "storage imports broker",
        ),
        ("storage/roots.py", "try:\n    import sparklog.cli\nfinally: pass", 2, "imports cli"),
        ("storage/roots.py", "import sparklog\nx = sparklog.broker.leader", 2, "imports broker"),
        ("storage/roots.py", "from sparklog import Admin", 1, "storage imports sparklog"),
        ("storage/roots.py", "import importlib\nimportlib.import_module('jobs.x')", 2, "jobs"),
        ("storage/roots.py", "import tests.conftest", 1, "storage imports tests"),
        ("storage/roots.py", "import sparklog.protocol.rules", 1, "storage imports protocol"),
        ("cli/admin.py", "import jobs.cluster", 1, "cli imports jobs"),
        ("utils.py", "", 1, "utils stands in no layer"),
    ],
)
def test_an_import_that_points_up_or_sideways_is_found(
    file: str, text: str, line: int, sentence: str, tmp_path: Path
) -> None:
    neighbours = {"sparklog/protocol/rules.py": "", "sparklog/cli/__init__.py": ""}
    root = tree(tmp_path, neighbours | {f"sparklog/{file}": text + "\n"})
    [wrong] = wrong_imports(root)
    assert wrong.startswith(f"sparklog/{file}:{line}: ")
    assert sentence in wrong


def test_a_class_name_that_is_taken_twice_is_found(tmp_path: Path) -> None:
    one, other = "class Root: ...\nclass _Own: ...\n", "\nclass Root: ...\nclass _Own: ...\n"
    files = {"sparklog/storage/roots.py": one, "sparklog/broker/leader.py": other}
    [found] = repeated_classes(tree(tmp_path, files))
    assert found.startswith(
        "Root is the name of several classes (sparklog/broker/leader.py:2, "
        "sparklog/storage/roots.py:1)"
    )


def test_the_table_of_layers_decides(tmp_path: Path) -> None:
    """The same package, with two of its layers exchanged, has wrong imports in just these
    places.
    """
    high, low = ("broker", "datasource", "maintenance"), ("protocol", "storage")
    swap: dict[tuple[str, ...], Sequence[str]] = {high: low, low: high}
    swapped = [swap.get(tuple(layer), layer) for layer in LAYERS]
    found = wrong_imports(tree(tmp_path, {}), swapped)
    assert [sentence.split(" (")[0] for sentence in found] == [
        "sparklog/broker/leader.py:1: broker imports storage"
    ]
    assert wrong_imports(ROOT, swapped)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("import pyspark", 1),
        ("from pyspark.sql import SparkSession", 1),
        ("try:\n    import py4j.protocol\nexcept ImportError: pass", 2),
        ("class A:\n    from delta import DeltaTable", 2),
        ("if True:\n    import pyspark", 2),
        ("if TYPE_CHECKING:\n    import os\nelse:\n    import pyspark", 4),
    ],
)
def test_spark_at_the_top_of_a_module_is_found(text: str, line: int, tmp_path: Path) -> None:
    root = tree(tmp_path, {"sparklog/session.py": text + "\n"})
    [found] = spark_imports(root)
    assert found.startswith(f"sparklog/session.py:{line}: ")


def test_spark_inside_a_function_or_for_type_checkers_is_accepted(tmp_path: Path) -> None:
    text = (
        "import typing\n"
        "if typing.TYPE_CHECKING:\n    from pyspark.sql import SparkSession\n"
        "def f():\n    import pyspark\n"
    )
    assert spark_imports(tree(tmp_path, {"sparklog/session.py": text})) == []
