"""Public docstrings have one layout, numpy's as in PySpark, and their examples run.

The examples run in a folder with the cluster of conf/cluster.yaml at `sparklog-data/cluster`. Its
topic `clicks` has two partitions, the first with three records; its topic `orders`, two empty ones.
The examples of methods continue those of their class. `spark` is the session.
"""

from __future__ import annotations

import dataclasses
import doctest
import importlib
import inspect
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel

import sparklog
import sparklog.testing
from sparklog import Admin, Producer
from sparklog.datasource import options, write_options
from tests.examples import example_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FURTHER = {
    "pyspark_sparklog": ("DefaultSource",),
    "sparklog.broker.cleaner": ("CleanReport",),
    "sparklog.broker.merger": ("MergeReport",),
    "sparklog.storage.vacuum": ("VacuumReport",),
    "sparklog.broker.tick": ("TickReport",),
    "sparklog.cluster.admin": ("TopicDescription",),
    "sparklog.cluster.broker_admin": ("BrokerDescription",),
    "sparklog.cluster.log_dirs": ("LogDirDescription", "ReplicaSize"),
    "sparklog.cluster.topic_admin": ("ConfigEntry", "ConfigSynonym"),
    "sparklog.cluster.connection": ("Visible",),
    "sparklog.cluster.metadata": (
        "AssignedReplica",
        "BrokerInfo",
        "Metadata",
        "PartitionState",
        "RemovedReplica",
        "TopicInfo",
    ),
    "sparklog.cluster.offsets": ("OffsetAndTimestamp",),
    "sparklog.cluster.reassignment_admin": (
        "AddingReplica",
        "AlteredReassignment",
        "PartitionReassignment",
    ),
    "sparklog.cluster.record_deletion": ("DeletedRecords",),
    "sparklog.config": (
        "BrokerEntry",
        "ConsumerConfig",
        "ProducerConfig",
        "Settings",
        "TopicConfig",
    ),
    "sparklog.errors": (
        "ApplicationFailedError",
        "ConfigError",
        "DamagedError",
        "ErrorCode",
        "FencedError",
        "LogTruncationError",
        "NoOffsetForPartitionError",
        "RecordDeserializationError",
        "StorageError",
    ),
    "sparklog.groups.admin": ("PlannedReset",),
    "sparklog.groups.group": ("Group", "GroupFence", "Member"),
    "sparklog.model": ("Record", "TopicIdPartition"),
    "sparklog.producer.delivery": ("PendingSend",),
    "sparklog.producer.partitioner": ("Partitioner",),
    "sparklog.producer.produce_requests": ("PendingProduce", "ProduceResponse"),
    "sparklog.testing.history": ("Answer", "Read", "SentRecord"),
    "sparklog.testing.local_cluster": ("PartitionView", "ReplicaView"),
    "sparklog.testing.local_producer": ("LocalProducer",),
}
"""The classes that the exported names take, return or raise."""

_ELSEWHERE = {"DataFrame", "DataSource", "Future", "Iterator", "NDArray", "None", "SparkSession"}
"""Classes of Python and Spark in return types."""

_INTERNAL = {"Broker", "ControlTable", "Journal", "Location", "RequestedBatch"}
"""Classes that `Connection` and `Application` return for the use of sparklog itself."""

_SECTIONS = (
    "Parameters",
    "Attributes",
    "Read Options",
    "Write Options",
    "Returns",
    "Yields",
    "Raises",
    "Examples",
)
"""The sections of a docstring, in their order."""


def _public() -> dict[str, Any]:
    found = {name: getattr(sparklog, name) for name in sparklog.__all__ if name != "__version__"}
    found |= {name: getattr(sparklog.testing, name) for name in sparklog.testing.__all__}
    for module, names in _FURTHER.items():
        found |= {name: getattr(importlib.import_module(module), name) for name in names}
    return found


PUBLIC = _public()


def members(name: str) -> dict[str, Any]:
    """Return the functions and properties that a public class defines, by qualified name."""
    found = {}
    one = PUBLIC[name]
    for of, member in vars(one).items() if inspect.isclass(one) else ():
        plain = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        is_callable = inspect.isfunction(plain) or isinstance(plain, property)
        if is_callable and not of.startswith("_"):
            found[f"{name}.{of}"] = plain
    return found


DOCUMENTED = PUBLIC | {of: one for name in PUBLIC for of, one in members(name).items()}
"""The public classes, functions, methods and properties, by qualified name."""


def sections(text: str) -> dict[str, str]:
    """Return the sections of a docstring by title; "" is the part before the first one."""
    parts = re.split(r"^(\w[\w ]*)\n-{3,}$", text, flags=re.MULTILINE)
    return dict(zip(["", *parts[1::2]], parts[0::2], strict=True))


def described(section: str) -> set[str]:
    """Return the names that a section of a docstring describes."""
    heads = re.findall(r"^(\*{0,2}[a-zA-Z][\w., *]*?)(?: :.*)?$", section, re.MULTILINE)
    return {name.lstrip("*") for head in heads for name in head.split(", ")}


def taken(one: Any) -> list[str]:
    """Return the names of a function's parameters, or of the values that a class consists of."""
    if isinstance(one, property):
        return []
    if getattr(one, "_is_protocol", False):
        return []
    if not inspect.isclass(one):
        return [name for name in inspect.signature(one).parameters if name not in ("self", "cls")]
    if issubclass(one, BaseModel):
        fields = one.model_fields.items()
        return [name for name, field in fields if not field.description]
    if dataclasses.is_dataclass(one):
        return [field.name for field in dataclasses.fields(one)]
    if hasattr(one, "_fields"):
        return list(one._fields)
    return taken(vars(one)["__init__"]) if inspect.isfunction(vars(one).get("__init__")) else []


def faults(one: Any) -> list[str]:
    """Return a sentence for each fault of a docstring's layout."""
    text = inspect.cleandoc(one.__doc__ or "")
    if not text:
        return ["it has no docstring"]
    parts = sections(text)
    found = []
    titles = [title for title in parts if title]
    if titles != [title for title in _SECTIONS if title in titles]:
        found.append(f"its sections are {titles}: the order is {_SECTIONS}")
    if re.search(r"^(Args|Parameters|Returns|Raises): ?|[Rr]aises [A-Z`]", text, re.MULTILINE):
        found.append("it has parameters, results or errors in its prose: write sections")
    names = described(parts.get("Parameters", "")) | described(parts.get("Attributes", ""))
    if missing := [name for name in taken(one) if name not in names]:
        found.append(f"its section Parameters or Attributes lacks {missing}")
    is_exported = any(one is public for public in PUBLIC.values())
    if is_exported and ">>> " not in parts.get("Examples", ""):
        found.append("it has no example")
    if inspect.isfunction(one):
        result = inspect.signature(one).return_annotation
        says_it = len(titles) == 0 and not taken(one) and text.startswith("Return ")
        if result != "None" and not says_it and not {"Returns", "Yields"} & parts.keys():
            found.append(f"it returns {result}: add the section Returns")
    return found


@pytest.mark.parametrize("name", DOCUMENTED)
def test_a_public_docstring_has_its_sections(name: str) -> None:
    assert not faults(DOCUMENTED[name])


def test_the_classes_that_public_methods_return_are_public() -> None:
    functions = {name: one for name, one in DOCUMENTED.items() if inspect.isfunction(one)}
    unknown = {
        f"{name} returns {returned}"
        for name, one in functions.items()
        for returned in re.findall(r"\b[A-Z]\w+", str(inspect.signature(one).return_annotation))
        if returned not in PUBLIC.keys() | _ELSEWHERE | _INTERNAL
        and not returned.startswith("DataSource")
    }
    assert not unknown


def test_the_options_of_the_format_are_described() -> None:
    parts = sections(inspect.cleandoc(PUBLIC["DefaultSource"].__doc__))
    assert described(parts["Read Options"]) == set(options.KNOWN)
    assert described(parts["Write Options"]) == set(write_options.KNOWN)


def _no_sections(number: int) -> int:
    """Return a number. Raises ValueError for a negative one."""
    return number


def _no_such_name(number: int) -> None:
    """Take a number.

    Parameters
    ----------
    count : int
        A number.
    """


def test_faults_of_docstrings_are_found() -> None:
    assert [fault.split(":")[0] for fault in faults(_no_sections)] == [
        "it has parameters, results or errors in its prose",
        "its section Parameters or Attributes lacks ['number']",
        "it returns int",
    ]
    assert faults(_no_such_name) == ["its section Parameters or Attributes lacks ['number']"]
    assert faults(lambda: None) == ["it has no docstring"]


def docstrings(name: str) -> dict[str, str]:
    """Return the docstrings with examples of a public name and of its members."""
    own = {of: inspect.cleandoc(one.__doc__ or "") for of, one in members(name).items()}
    texts = {name: inspect.cleandoc(PUBLIC[name].__doc__ or ""), **own}
    return {of: text for of, text in texts.items() if ">>> " in text}


def uses_spark(name: str) -> bool:
    """Return whether the examples of a public name and of its members need a session."""
    code = re.findall(r"^(?:>>>|\.\.\.) (.*)$", "\n".join(docstrings(name).values()), re.MULTILINE)
    return any(re.search(r"\bspark\b", line) for line in code)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder in which examples run, with a running cluster."""
    folder = tmp_path_factory.mktemp("docstrings")
    with pytest.MonkeyPatch.context() as patch:
        # Synced files would take most of the time, and no machine fails here.
        patch.setattr(os, "fsync", lambda _: None)
        with example_cluster(folder):
            _fill(folder / "sparklog-data" / "cluster")
            yield folder


def _fill(cluster: Path) -> None:
    for topic in ("clicks", "orders"):
        Admin(cluster).create_topic(topic, partitions=2, replication_factor=3)
    with Producer(cluster) as producer:
        for number, value in enumerate((b"first", b"second", b"third"), 1):
            key = b"user-%d" % number
            producer.send("clicks", value, key, partition=0, timestamp_ms=1_000 * number)


def failures(name: str, folder: Path, scope: dict[str, Any]) -> str:
    """Run the examples of a public name and of its members; return a report of those that fail."""
    report: list[str] = []
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    for of, text in docstrings(name).items():
        # Spark resolves paths against its start folder, which was another one.
        source = text.replace('"sparklog-data/', f'"{folder}/sparklog-data/')
        test = doctest.DocTestParser().get_doctest(source, scope, of, None, 0)
        doctest.DocTestRunner(optionflags=flags).run(test, out=report.append, clear_globs=False)
        scope = test.globs
    return "".join(report)


@pytest.mark.xdist_group("docstrings")
@pytest.mark.parametrize("name", [name for name in PUBLIC if not uses_spark(name)])
def test_the_examples_run(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert not failures(name, folder, {})


@pytest.mark.parametrize("name", [name for name in PUBLIC if uses_spark(name)])
def test_the_examples_with_spark_run(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession
) -> None:
    monkeypatch.chdir(folder)
    assert not failures(name, folder, {"spark": spark})
