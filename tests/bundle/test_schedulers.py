"""The examples of conf/ for systemd, cron and Airflow: their files and commands are valid."""

from __future__ import annotations

import ast
import configparser
import re
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from sparklog import __version__
from tests.bundle.command_arguments import parsed
from tests.examples import CHECKOUT

SYSTEMD = CHECKOUT / "conf" / "systemd"
COMMAND = "/opt/sparklog/bin/sparklog"


def units(pattern: str = "*") -> list[Path]:
    return sorted(SYSTEMD.glob(f"*.{pattern}"))


def faults(unit: str, folder: Path) -> list[str]:
    """Return the faults that systemd-analyze finds in one of the units in a folder."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    instance = folder / unit.replace("@", "@0")
    if instance.name != unit:
        instance.symlink_to(folder / unit)
    answer = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(instance)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return [line for line in answer.stderr.splitlines() if "sparklog" in line]


@pytest.fixture
def installed_units(tmp_path: Path) -> Path:
    """A folder with the units, of a program and a user that exist."""
    program = tmp_path / "sparklog"
    shutil.copyfile(sys.executable, program)
    program.chmod(0o755)
    for one in units():
        text = one.read_text().replace(COMMAND, str(program)).replace("=sparklog", "=root")
        (tmp_path / one.name).write_text(text)
    return tmp_path


@pytest.mark.parametrize("unit", [unit.name for unit in units()])
def test_systemd_accepts_the_unit(unit: str, installed_units: Path) -> None:
    assert faults(unit, installed_units) == []


def test_systemd_names_a_key_that_is_misspelt(installed_units: Path) -> None:
    unit = installed_units / "sparklog-broker@.service"
    unit.write_text(unit.read_text().replace("Restart=", "Restrat="))
    [fault] = faults(unit.name, installed_units)
    assert "Restrat" in fault


@pytest.mark.parametrize("unit", units("service"), ids=lambda unit: unit.name)
def test_the_commands_of_a_service_are_commands(unit: Path) -> None:
    lines = re.findall(r"^ExecStart=(.+)$", unit.read_text(), re.MULTILINE)
    assert lines
    for line in lines:
        program, *arguments = shlex.split(line.replace("%i", "0"))
        assert program == COMMAND
        name, options = parsed(arguments)
        assert options.get("until_idle", False) == ("until-idle" in unit.name), name


def test_each_timer_has_a_service() -> None:
    for timer in units("timer"):
        assert timer.with_suffix(".service").is_file()
        parser = configparser.ConfigParser(strict=False)
        parser.read_string(timer.read_text())
        assert parser["Timer"]["OnCalendar"]


def test_the_lines_of_the_crontab_are_commands_at_times() -> None:
    """Each line has five fields of time and a command that the command line parses."""
    lines = (CHECKOUT / "conf" / "crontab").read_text().splitlines()
    jobs = [
        line for line in lines if line and not line.startswith("#") and "=" not in line.split()[0]
    ]
    names = []
    locks = []
    number = r"(\*|\d+(-\d+)?)(/\d+)?"
    limits = (59, 23, 31, 12, 7)
    for line in jobs:
        *times, command = line.split(maxsplit=5)
        assert len(times) == 5
        for time, limit in zip(times, limits, strict=True):
            assert re.fullmatch(rf"{number}(,{number})*", time), line
            assert all(int(one) <= limit for one in re.findall(r"\d+", time.split("/")[0])), line
        assert "%" not in command, "cron reads a percent sign as a line break"
        words = shlex.split(command)
        if words[0] == "flock":
            assert words[1] == "-n"
            locks.append(words[2])
            words = words[3:]
        assert words[0] == COMMAND
        names.append(parsed(words[1:])[0])
    assert names == ["broker"] * 3 + ["produce", "scrub", "maintain", "audit"]
    assert len(set(locks)) == len(locks) == 5


DAG_FILE = CHECKOUT / "conf" / "airflow" / "sparklog_brokers.py"


def commands_of_the_dags() -> list[str]:
    """Return the commands of the DAG file, by evaluating its constants and f-strings alone."""
    tree = ast.parse(DAG_FILE.read_text())
    scope: dict[str, object] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and not any(
            isinstance(one, ast.Call) for one in ast.walk(node.value)
        ):
            exec(compile(ast.Module([node], []), str(DAG_FILE), "exec"), scope)
    found: list[str] = []
    brokers = scope["BROKERS"]
    assert isinstance(brokers, tuple)
    for loop in tree.body:
        if isinstance(loop, ast.For):
            [arguments] = [one for one in loop.body if isinstance(one, ast.Assign)][:1]
            [call] = [one for one in ast.walk(loop) if _is_command(one)]
            for broker in brokers:
                values = scope | {"broker": broker}
                exec(compile(ast.Module([arguments], []), str(DAG_FILE), "exec"), values)
                found.append(_value(call, values))
    in_loops = {
        id(one) for node in tree.body if isinstance(node, ast.For) for one in ast.walk(node)
    }
    found += [
        _value(one, scope) for one in ast.walk(tree) if _is_command(one) and id(one) not in in_loops
    ]
    return found


def _is_command(node: ast.AST) -> bool:
    return isinstance(node, ast.keyword) and node.arg == "bash_command"


def _value(node: ast.AST, scope: dict[str, object]) -> str:
    assert isinstance(node, ast.keyword)
    return str(eval(compile(ast.Expression(node.value), str(DAG_FILE), "eval"), dict(scope)))


def test_the_commands_of_the_airflow_dags_are_commands_of_this_release() -> None:
    names = []
    for command in commands_of_the_dags():
        words = shlex.split(command)
        assert words[0] == "spark-submit"
        at = words.index("/opt/sparklog/sparklog-submit.py")
        assert words[words.index("--py-files") + 1].endswith(
            f"/sparklog-{__version__}-py-files.zip"
        )
        name, options = parsed(words[at + 1 :])
        assert options.get("until_idle", True)
        names.append(name)
    assert sorted(names) == ["audit", "broker", "broker", "broker", "maintain", "scrub"]


def test_airflow_loads_the_dags() -> None:
    """Airflow finds one DAG a broker, of one run at a time, and that of the maintenance."""
    if find_spec("airflow") is None:
        pytest.skip("apache-airflow, over 100 packages, is not installed")
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(str(DAG_FILE))
    assert not bag.import_errors
    assert sorted(bag.dags) == [
        *(f"sparklog_broker_{one}" for one in range(3)),
        "sparklog_maintenance",
    ]
    assert all(dag.max_active_runs == 1 for dag in bag.dags.values())
