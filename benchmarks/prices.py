"""The prices of requests to an object store: S3 Standard in us-east-1."""

from __future__ import annotations

from collections.abc import Mapping

MONTH_SECONDS = 30.44 * 86_400
PRICES = {"PUT": 5e-6, "LIST": 5e-6, "GET": 4e-7, "HEAD": 4e-7, "DELETE": 0.0}
"""Dollars per request."""
STORED_GB_MONTH = 0.023
"""Dollars per stored GB and month."""


def dollars(counts: Mapping[str, float]) -> float:
    """Return the price in dollars of requests, given their number by kind.

    >>> dollars({"PUT": 2, "GET": 100, "DELETE": 7})
    5e-05
    """
    return sum(counts.get(kind, 0) * price for kind, price in PRICES.items())
