"""Checks of the public clients' arguments; each error is one sentence."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from sparklog.errors import SparklogError
from sparklog.model import TopicPartition

_PARTITION = "a partition is (topic, number), such as ('t', 0)"


def partition_name(given: object) -> TopicPartition:
    """Return the partition that `given`, a pair (topic, number), names."""
    if isinstance(given, list | set | frozenset | dict):
        raise SparklogError(
            f"{_PARTITION}, and one is wanted here, not the {type(given).__name__} {given!r}: "
            "call it for each partition"
        )
    if not isinstance(given, tuple) or len(given) != 2 or not isinstance(given[0], str):
        raise SparklogError(f"{_PARTITION}, not {given!r}")
    return TopicPartition(given[0], whole_number(given[1], "a partition's number"))


def partition_names(given: object) -> list[TopicPartition]:
    """Return the partitions that a list of pairs (topic, number) names."""
    is_one = isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str)
    if is_one or isinstance(given, str) or not isinstance(given, Iterable):
        raise SparklogError(f"partitions are given as a list, and {_PARTITION}: got {given!r}")
    return [partition_name(one) for one in given]


def partition_arguments(given: tuple[Any, ...]) -> list[TopicPartition]:
    """Return the partitions of a method that takes them as arguments, or as one list."""
    is_list = len(given) == 1 and isinstance(given[0], list | set | frozenset)
    return partition_names(given[0] if is_list else list(given))


def by_partition(given: object, what: str) -> dict[TopicPartition, Any]:
    """Return a mapping by partition; `what` names its values in the error message."""
    if not isinstance(given, Mapping):
        raise SparklogError(
            f"{what} are given by partition, such as {{('t', 0): 5}}: got {given!r}"
        )
    return {partition_name(name): value for name, value in given.items()}


def whole_number(given: object, what: str) -> int:
    """Return an integer, which may be one of numpy's; `what` names it in the error message."""
    try:
        if not isinstance(given, bool):
            return operator.index(given)  # type: ignore[arg-type]
    except TypeError:
        pass
    raise SparklogError(f"{what} must be a whole number, not {given!r} ({type(given).__name__})")


def milliseconds(given: object, name: str) -> float:
    """Return a wait time in ms, 0 or more; `name` is the argument's name."""
    if not isinstance(given, int | float) or isinstance(given, bool) or not given >= 0:
        raise SparklogError(f"{name} must be a number of milliseconds, 0 or more, not {given!r}")
    return given


def callback(given: object, name: str) -> None:
    """Raise `SparklogError` unless `given` is callable or `None`; `name` is the argument's name."""
    if given is not None and not callable(given):
        raise SparklogError(f"{name} must be a function or None, not {given!r}")


def check_session(given: object) -> None:
    """Raise `SparklogError` unless `given` is a Spark session."""
    if not hasattr(given, "createDataFrame"):
        raise SparklogError(f"a SparkSession is needed, such as spark_session(), not {given!r}")


def numbers_list(given: object, what: str) -> list[int]:
    """Return the integers of a list; `what` names them in the error message."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise SparklogError(f"{what} must be a list of whole numbers, such as [0], not {given!r}")
    return [whole_number(one, f"one of {what}") for one in given]


def numbers_by_number(given: object, what: str) -> dict[int, int]:
    """Return a mapping of integers to integers; `what` names it in the error message."""
    if not isinstance(given, Mapping):
        raise SparklogError(
            f"{what} must be whole numbers by partition, such as {{0: 5}}, not {given!r}"
        )
    keys = numbers_list(given.keys(), f"the partitions of {what}")
    return dict(zip(keys, numbers_list(given.values(), what), strict=True))


def names_list(given: object, what: str) -> list[str]:
    """Return the names in a list, or the list of a single name; `what` is for the error message."""
    if isinstance(given, str):
        return [given]
    names: list[Any] = [*given] if isinstance(given, Iterable) else [given]
    for name in names:
        if not isinstance(name, str):
            raise SparklogError(f"{what} are given as a list of their names: got {given!r}")
    return names


def conversion(given: object, name: str, method: str) -> Callable[[str, Any], Any] | None:
    """Return a serializer or deserializer as a function of (topic, content), or `None`.

    `given` is a function of the content, or, as in Kafka's clients, an object with `method`, which
    takes the topic too. `name` is the argument's name.
    """
    if given is None:
        return None
    with_topic = getattr(given, method, None)
    if callable(with_topic):
        return cast("Callable[[str, Any], Any]", with_topic)
    if not callable(given):
        raise SparklogError(
            f"{name} must be a function, or an object with the method {method}, not {given!r}"
        )
    return lambda _, content: given(content)
