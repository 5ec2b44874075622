"""Evidence that a root was restored to an older state: the versions that others have seen of it.

The commits of every journal carry the versions of the other journals, and of the cluster root's
tables, that their broker has seen (`SeenVersions`). A starting broker reads the newest ones of all
journals that it can read, its own among them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import NamedTuple

from sparklog.cluster.roots import BrokerRoot
from sparklog.cluster.session_watch import online_roots
from sparklog.logger import get_logger
from sparklog.model import LOG, Row
from sparklog.storage.delta_log_files import newest_version
from sparklog.storage.errors import UNREADABLE
from sparklog.storage.journal import newest_seen
from sparklog.storage.location import Location
from sparklog.storage.parallel import map_in_parallel
from sparklog.storage.seen_versions import SeenVersions

_log = get_logger(__name__)


class Witness(NamedTuple):
    """A journal with the newest versions that its broker has seen.

    `boot_id` is that of the broker's machine when it registered; `None` if it is unknown.
    """

    broker_id: int
    root: Location
    boot_id: str | None
    seen: SeenVersions


def witnesses(
    brokers: Iterable[Row],
    broker_id: int,
    own: Sequence[BrokerRoot],
    locate: Callable[[str], Location],
) -> list[Witness]:
    """Return what the journals of all registered brokers, and of `broker_id`'s roots, have seen.

    Parameters: `brokers`, the rows of this table; `own`, the opened roots of the starting broker;
    `locate`, returns the location of a URI. Journals that cannot be read are left out, with a
    warning.
    """
    rows = {row["broker_id"]: row for row in brokers}
    mine = rows.get(broker_id, {}).get("boot_id")
    journals = [(broker_id, root.location, mine, root.log.version) for root in own]
    journals += [
        (of, locate(uri), row["boot_id"], -1)
        for of, row in rows.items()
        if of != broker_id and row["state"] != "unregistered"
        for uri in online_roots(row).values()
    ]

    def read(journal: tuple[int, Location, str | None, int]) -> Witness | None:
        of, root, boot_id, version = journal
        log = root.child(LOG.name)
        try:
            newest = newest_version(log) if version < 0 else version
            return Witness(of, root, boot_id, newest_seen(log, newest))
        except UNREADABLE as error:
            _log.warning("journal not compared", broker=of, root=root.uri, error=str(error))
            return None

    is_local = all(root.is_local for _, root, _, _ in journals)
    found = map_in_parallel(read, journals, 0, is_local=is_local)
    return [one for one in found if one is not None]


def seen_of_roots(found: Sequence[Witness], broker_id: int, broker_epoch: int) -> Mapping[int, int]:
    """Return the newest version that others have seen of each of a broker's roots, by its number.

    Only versions of the registration `broker_epoch` count: before an older state was treated as
    lost, the root had others.
    """
    journals = merged(one for one in found if one.broker_id != broker_id).journals
    return {
        of.root: version
        for of, version in journals.items()
        if (of.broker_id, of.broker_epoch) == (broker_id, broker_epoch)
    }


def merged(found: Iterable[Witness]) -> SeenVersions:
    """Return the newest versions that any of the witnesses has seen."""
    return reduce(SeenVersions.merged, (one.seen for one in found), SeenVersions())
