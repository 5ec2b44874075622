"""The versions of other roots that a broker has seen, carried by the commits of its journals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sparklog.broker.cluster_root_age import seen_tables
from sparklog.broker.peers import Peers
from sparklog.broker.restored_roots import Witness, merged
from sparklog.broker.signs_of_life import SignsOfLife
from sparklog.cluster.formats import FORMAT_WITH_SEEN_VERSIONS
from sparklog.cluster.metadata import MetadataReader
from sparklog.cluster.roots import BrokerRoot, ClusterRoot
from sparklog.storage.seen_versions import SeenVersions


def carry_seen_versions(
    own: Sequence[BrokerRoot],
    cluster: ClusterRoot,
    reader: MetadataReader,
    signs: SignsOfLife,
    peers: Peers,
    found: Iterable[Witness],
) -> None:
    """Make the commits of a broker's journals carry the versions that it has seen.

    They show at a later start that a root was restored. Of journals only those of the current
    registrations are kept, so their number is that of the roots in the cluster. Nothing is
    requested for it.

    Parameters: `own`, the broker's roots; `signs`, `peers`, the journals that it follows; `found`,
    the versions in the journals at its start, of which those that its earlier processes have seen
    are carried on.
    """
    roots = {root.location for root in own}
    before = merged(one for one in found if one.root in roots)

    def seen() -> SeenVersions | None:
        """Return the versions; called by all threads that commit."""
        if cluster.format_version < FORMAT_WITH_SEEN_VERSIONS:
            return None
        followed = SeenVersions(signs.versions(), seen_tables(cluster))
        found = before.merged(followed).merged(SeenVersions(peers.versions()))
        if reader.versions is None:
            # Nothing is known of the registrations before the first tick.
            return found
        brokers = reader.metadata.brokers.values()
        registered = {(one.broker_id, one.broker_epoch) for one in brokers}
        journals = {
            of: version
            for of, version in found.journals.items()
            if (of.broker_id, of.broker_epoch) in registered
        }
        return found._replace(journals=journals)

    for root in own:
        root.log.seen = seen
