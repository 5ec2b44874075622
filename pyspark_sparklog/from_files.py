"""Pickling for executors that have this package only in a zip of `--py-files`.

Spark puts such files on the path of a task if its function comes from the driver's Python. It makes
the functions of a data source that it has found by itself in the JVM, without these files. Their
tasks would find the package only in a Python worker that other tasks have used before.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any

from pyspark import cloudpickle


class FromFiles:
    """A base class of objects that are unpickled where the package is a file of the application.

    The pickle begins with a function by value, which finds the zip unless the package is
    installed. It needs cloudpickle, as Spark uses it, and state in `__dict__` alone.
    """

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Return the function and the object as bytes, which are read after the import."""
        reduced = super().__reduce_ex__(protocol)
        return _BY_VALUE, (cloudpickle.dumps(reduced),)  # type: ignore[no-untyped-call]


def _restored(reduced: bytes) -> Any:
    import importlib.util
    import pickle
    import sys
    from pathlib import Path
    from zipfile import ZipFile, is_zipfile

    from pyspark import SparkFiles

    if importlib.util.find_spec("pyspark_sparklog") is None:
        for file in Path(SparkFiles.getRootDirectory()).resolve().glob("*.zip"):
            # Spark unpacks the files of --archives into folders with their names.
            if not is_zipfile(file):
                continue
            with ZipFile(file) as archive:
                if "pyspark_sparklog/__init__.py" in archive.namelist():
                    sys.path.insert(1, str(file))
                    break
    make, arguments, state, *_ = pickle.loads(reduced)
    restored = make(*arguments)
    vars(restored).update(state or {})
    return restored


_BY_VALUE = FunctionType(_restored.__code__, {"__builtins__": __builtins__})
# Otherwise cloudpickle would pickle the function as a name in this module.
_BY_VALUE.__module__ = "__main__"
