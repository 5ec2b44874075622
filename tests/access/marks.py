"""Marks of secrets, and the search for them in any form in which an output may have them."""

from __future__ import annotations

import base64

MARK = "MARKED7f3a"
"""A part of each secret of the tests."""

CONTROL = "CONTROLb81c"
"""A part of texts that are shown deliberately, so that a search that finds nothing is noticed."""


def forms(mark: str) -> list[str]:
    """Return a mark as text, and as it is within encodings of a longer text.

    The encodings are Base64, hexadecimal digits, and lists of bytes in decimal numbers.
    """
    content = mark.encode()
    found = [mark, content.hex()]
    found += [separator.join(map(str, content)) for separator in (",", ", ")]
    for before in range(3):
        # Only characters that are made of bytes of the mark alone.
        encoded = base64.b64encode(bytes(before) + content).decode()
        count = (before + len(content)) * 8 // 6
        found.append(encoded[-(-before * 8 // 6) : count])
    return found


def excerpts(text: str, mark: str) -> list[str]:
    """Return the surroundings of the first occurrence of each form of a mark in a text."""
    lower = text.lower()
    places = [lower.find(form.lower()) for form in forms(mark)]
    return [text[max(place - 200, 0) :][:400] for place in places if place >= 0]
