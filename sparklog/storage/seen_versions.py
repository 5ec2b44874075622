"""The versions of other tables that a broker has seen, carried by the commits of its journal.

A root that was restored has lower versions than others have seen of it. No request is made for
this: the versions are part of the commits that a broker makes anyway, heartbeats among them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from sparklog.model import Row


class JournalOf(NamedTuple):
    """A journal: its broker, the number of the log directory, and the broker's registration."""

    broker_id: int
    root: int
    broker_epoch: int


class SeenVersions(NamedTuple):
    """The newest versions that a broker has seen of journals, and of tables of the cluster root.

    Invariant: the commit of each version existed when the commit that carries them was made.
    """

    journals: Mapping[JournalOf, int] = {}
    tables: Mapping[str, int] = {}

    def merged(self, other: SeenVersions) -> SeenVersions:
        """Return the higher version of each journal and table in either of the two."""
        return SeenVersions(
            {
                of: max(self.journals.get(of, -1), other.journals.get(of, -1))
                for of in self.journals.keys() | other.journals.keys()
            },
            {
                name: max(self.tables.get(name, -1), other.tables.get(name, -1))
                for name in self.tables.keys() | other.tables.keys()
            },
        )

    def to_json(self) -> Row:
        """Return the versions in the journal's form."""
        journals = [[*of, version] for of, version in sorted(self.journals.items())]
        return {"journals": journals, "tables": dict(self.tables)}

    @classmethod
    def from_json(cls, value: Any) -> SeenVersions:
        """Return the versions in a member of a commit; `ValueError` if it is malformed."""
        try:
            journals = {
                JournalOf(int(broker), int(root), int(epoch)): int(version)
                for broker, root, epoch, version in value["journals"]
            }
            return cls(journals, {str(of): int(at) for of, at in value["tables"].items()})
        except (TypeError, LookupError, AttributeError, OverflowError) as error:
            raise ValueError(f"seen versions are malformed: {value}") from error
