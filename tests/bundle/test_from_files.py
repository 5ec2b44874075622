"""Sources, readers and writers are unpickled where the package is only in a zip of the executor."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.bundle import Bundle

PICKLED = """
import sys
from pyspark import cloudpickle
from pyspark_sparklog import DefaultSource
from pyspark_sparklog.readers import BatchReader, StreamReader
from pyspark_sparklog.writers import BatchWriter, StreamWriter
from sparklog.datasource.options import parse_read_options
from sparklog.datasource.write_options import parse_write_options

cluster = {"cluster": "/nowhere/cluster"}
written = parse_write_options(cluster | {"topic": "t"})
read = parse_read_options(cluster | {"subscribe": "t"}, "batch")
made = [BatchWriter(written), StreamWriter(written), BatchReader(read), StreamReader(read)]
made.append(DefaultSource(cluster))
[one] = [one for one in made if type(one).__name__ == sys.argv[1]]
sys.stdout.buffer.write(cloudpickle.dumps(one))
"""

UNPICKLED = """
import importlib.util, pickle, sys
from pyspark import SparkFiles

# As in a worker of an executor, whose folder of files is relative.
SparkFiles._is_running_on_worker = True
SparkFiles._root_directory = "."
assert importlib.util.find_spec("pyspark_sparklog") is None
found = pickle.loads(sys.stdin.buffer.read())
print(type(found).__name__, vars(found))
"""


@pytest.mark.parametrize(
    "kind", ["BatchWriter", "StreamWriter", "BatchReader", "StreamReader", "DefaultSource"]
)
def test_tasks_import_the_package_from_the_files_of_their_executor(
    bundle: Bundle, bare_python: Path, tmp_path: Path, kind: str
) -> None:
    """Spark adds the zip only to the path of functions that come from the driver's Python.

    `produce --from` failed on executors with ModuleNotFoundError, unless their Python workers had
    run other tasks of the application before.
    """
    pickled = subprocess.run(
        [sys.executable, "-c", PICKLED, kind], capture_output=True, check=True
    ).stdout
    shutil.copy(bundle.py_files, tmp_path)
    # Spark unpacks an archive of the application into a folder with its name.
    (tmp_path / "environment.zip").mkdir()
    (tmp_path / "broken.zip").write_bytes(b"no zip")
    unpickled = subprocess.run(
        [bare_python, "-c", UNPICKLED],
        cwd=tmp_path,
        env={},
        input=pickled,
        capture_output=True,
        check=True,
    )
    [name, state] = unpickled.stdout.decode().split(" ", 1)
    assert (name, "/nowhere/cluster" in state) == (kind, True)
