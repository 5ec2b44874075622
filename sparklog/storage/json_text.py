"""JSON of commits: written and read by pydantic-core, which takes a third of the time of `json`.

The text and the values are those of `json`, without spaces: pydantic-core refuses some of what
`json` takes, such as half of a surrogate pair, and `json` decides then.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic_core import from_json, to_json


def json_bytes(value: Any) -> bytes:
    """Return a value of the types that JSON has as JSON on one line, in UTF-8.

    Raises as `json.dumps` does.
    """
    try:
        return to_json(value)
    except ValueError:
        return json.dumps(value, separators=(",", ":")).encode()


def json_value(text: str | bytes) -> Any:
    """Return the value of a JSON text; raises as `json.loads` does."""
    try:
        return from_json(text)
    except ValueError:
        return json.loads(text)
