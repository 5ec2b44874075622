"""A target of hostile input: one parser of the product, its valid samples and its errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from sparklog.errors import SparklogError
from tests.faults.hostile.mutation import Form, Mutator


@dataclass(frozen=True)
class Target:
    """A parser that is given hostile input.

    Parameters: `run` parses an input and raises `AssertionError` if an invariant of the result does
    not hold; `samples`, valid inputs; `permitted`, the exceptions that the parser documents, any
    other is a finding; `weight`, the target's share of all inputs; `finish`, see `Mutator`.
    """

    name: str
    run: Callable[[bytes], object]
    samples: Sequence[bytes]
    form: Form = "bytes"
    permitted: tuple[type[Exception], ...] = (SparklogError,)
    weight: int = 10
    finish: Callable[[Random, bytes], bytes] | None = None

    def input(self, seed: int, number: int) -> bytes:
        """Return input `number` of a seed."""
        random = Random((seed << 40) + number)
        return Mutator(self.samples, self.form, self.finish).input(random)
