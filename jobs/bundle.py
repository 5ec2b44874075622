"""The files of a release for spark-submit and Databricks, in dist/.

make bundle

- sparklog-VERSION-py3-none-any.whl: the wheel
- sparklog-VERSION-py-files.zip: the same content under a name that `spark-submit --py-files` puts
  on the path of the driver and of each executor; a .whl there is ignored
- sparklog-submit.py: the application file of spark-submit, which is the `sparklog` command
- sparklog-VERSION-requirements.txt: the packages that the Python of the driver and of the executors
  must have; most are native, and Python imports no native module from a zip
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from email import message_from_bytes
from pathlib import Path
from typing import Annotated, NamedTuple
from zipfile import ZipFile

import typer

from sparklog.cli.application import one_line_errors
from sparklog.errors import SparklogError

CHECKOUT = Path(__file__).resolve().parents[1]


class Bundle(NamedTuple):
    """The files of a bundle."""

    wheel: Path
    py_files: Path
    submit: Path
    requirements: Path


def build(folder: Path) -> Bundle:
    """Build the bundle of this checkout into a folder, in place of files of the same names.

    Raises `SparklogError` if the wheel cannot be built.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wheel = _build_wheel(folder)
    stem = "-".join(wheel.name.split("-")[:2])
    bundle = Bundle(
        wheel,
        folder / f"{stem}-py-files.zip",
        folder / "sparklog-submit.py",
        folder / f"{stem}-requirements.txt",
    )
    shutil.copyfile(wheel, bundle.py_files)
    shutil.copyfile(CHECKOUT / "jobs" / "submit.py", bundle.submit)
    bundle.requirements.write_text("".join(f"{one}\n" for one in _requirements(wheel)))
    return bundle


def _build_wheel(folder: Path) -> Path:
    # Hatchling is among the locked build tools, so that no network is needed.
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
    before = set(folder.glob("sparklog-*.whl"))
    for wheel in before:
        wheel.unlink()
    built = subprocess.run(
        [*command, "--directory", str(folder.resolve())],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    wheels = sorted(folder.glob("sparklog-*.whl"))
    if built.returncode or len(wheels) != 1:
        reason = (built.stderr or built.stdout).strip().splitlines()[-1:]
        raise SparklogError(f"the wheel was not built: {' '.join(reason)}; run make setup")
    return wheels[0]


def _requirements(wheel: Path) -> list[str]:
    """Return the requirements of the wheel, without those of its extras."""
    with ZipFile(wheel) as archive:
        [name] = [one for one in archive.namelist() if one.endswith(".dist-info/METADATA")]
        metadata = message_from_bytes(archive.read(name))
    required = metadata.get_all("Requires-Dist") or []
    return [one for one in required if "extra ==" not in one]


def main(
    folder: Annotated[Path, typer.Option(help="The folder of the files.")] = CHECKOUT / "dist",
) -> None:
    """Build the wheel, the zip for --py-files, its application file and the requirements."""
    with one_line_errors():
        for file in build(folder):
            print(file)


if __name__ == "__main__":
    typer.run(main)
