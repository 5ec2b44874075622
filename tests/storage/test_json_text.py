"""The JSON of commits equals that of Python's json, for writing and reading by either library."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.storage.json_text import json_bytes, json_value

# These include half of a surrogate pair, which pydantic-core refuses.
_TEXTS = st.text(st.characters(exclude_categories=()))
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | _TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(_TEXTS, inner),
)


@given(_VALUES)
def test_values_come_back_as_they_were(value: Any) -> None:
    """Written values are read back unchanged, on one line."""
    written = json_bytes(value)
    assert b"\n" not in written
    assert json_value(written) == json.loads(written) == value


@given(_VALUES)
def test_what_json_has_written_is_read_alike(value: Any) -> None:
    """Text that Python's json has written is read back unchanged."""
    text = json.dumps(value)
    assert json_value(text) == json_value(text.encode()) == value


@pytest.mark.parametrize("text", ["", "{", "[1,]", "{'a': 1}", '"\x01"', "1 2", "\ufeff{}", "nul"])
def test_what_json_refuses_is_refused(text: str) -> None:
    """Text that Python's json refuses is refused."""
    with pytest.raises(json.JSONDecodeError):
        json_value(text)


def test_what_is_no_json_is_not_written() -> None:
    """A value without a JSON form raises `TypeError`."""
    with pytest.raises(TypeError):
        json_bytes(object())


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("[" * 100_000, id="nesting"),
        pytest.param('{"a":' * 5_000 + "1" + "}" * 5_000, id="nested objects"),
        pytest.param("9" * 5_000, id="digits"),
        pytest.param("\ud800", id="half of a surrogate pair"),
        pytest.param(b"\xff", id="no UTF-8"),
    ],
)
def test_hostile_text_is_a_value_error(text: str | bytes) -> None:
    """Text that is not JSON has one exception.

    Found by hostile input: pydantic-core raised TypeError for half of a surrogate pair, which in
    the statistics of a request failed each tick of its leader; nesting raised RecursionError,
    which the readers of options and of checkpoint hints did not expect.
    """
    with pytest.raises(ValueError, match=r".+"):
        json_value(text)
