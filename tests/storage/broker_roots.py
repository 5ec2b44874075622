"""Broker roots, opened as by their broker."""

from __future__ import annotations

from sparklog.cluster.roots import BrokerRoot
from sparklog.storage.location import Location


def taken_over(location: Location, broker_epoch: int) -> BrokerRoot:
    """Return the root at `location`, opened and fenced as a broker does at its start."""
    root = BrokerRoot(location)
    root.take_fence(broker_epoch)
    return root
