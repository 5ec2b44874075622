"""Values of --command-property, which are YAML."""

from __future__ import annotations

import pytest

from sparklog.cli.record_lines import client_config


@pytest.mark.parametrize(
    "text",
    ["2001-13-45", "9" * 5_000, "!!bool x", "!!int ''", "[" * 5_000, "{", "!!timestamp x"],
    ids=lambda one: one[:12],
)
def test_a_value_that_yaml_cannot_convert_is_text(text: str) -> None:
    """The client refuses it, if it is not usable, and names the key.

    Found by hostile input: PyYAML raises ValueError, KeyError, IndexError, AttributeError or
    RecursionError for some of these.
    """
    assert client_config([f"client.id={text}"]) == {"client_id": text}
