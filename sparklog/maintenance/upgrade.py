"""The upgrade of a cluster to the newest format that this release knows.

Brokers are upgraded first, one after another: until the upgrade, brokers of both releases run side
by side, with the format that the cluster has. The upgrade is a sequence of steps. Invariant: each
step is one commit, or the creation of one table, and changes nothing if it was made before. So an
upgrade that was interrupted anywhere is completed by the next one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from sparklog import model
from sparklog.cluster.formats import THIS_RELEASE, Formats
from sparklog.cluster.root_format import add_tables, read_format
from sparklog.cluster.roots import ClusterRoot
from sparklog.errors import CommitConflictError, SparklogError
from sparklog.model import Row
from sparklog.states import RUNNING_STATES
from sparklog.storage.commit_retries import retrying
from sparklog.storage.commits import FORMAT_VERSION, Cause
from sparklog.storage.control_table import ControlTable, create_table
from sparklog.storage.errors import UNREADABLE
from sparklog.storage.location import Location, StorageOptions, one_line
from sparklog.storage.parallel import map_in_parallel

_MAY_RUN = RUNNING_STATES | {"fenced"}
"""The states of brokers that may be running. A parked or stopped one opens the roots when it
starts, and is refused there if its release does not know their format."""


class UpgradeStep(NamedTuple):
    """A step of an upgrade: a clause that says what it does to which root, and the step itself."""

    root: Location
    change: str
    make: Callable[[], None]


class Upgrade(NamedTuple):
    """The upgrade of a cluster.

    Attributes
    ----------
    cluster : ClusterRoot
        The cluster root, opened.
    target : int
        The format that the roots get.
    steps : tuple of UpgradeStep
        The steps that are left, in their order.
    left_to_brokers : tuple of str
        A sentence for each broker root that its broker upgrades when it starts.
    """

    cluster: ClusterRoot
    target: int
    steps: tuple[UpgradeStep, ...]
    left_to_brokers: tuple[str, ...]

    @classmethod
    def of(
        cls,
        location: Location,
        storage_options: StorageOptions | None = None,
        formats: Formats = THIS_RELEASE,
    ) -> Upgrade:
        """Return the upgrade of a cluster; nothing is changed.

        Parameters
        ----------
        location : Location
            The cluster root.
        storage_options : dict, optional
            The options of object stores by URI prefix.
        formats : Formats, optional
            The formats that the release knows; the target is the newest one.

        Returns
        -------
        Upgrade
            The upgrade. It has no steps if the cluster has the newest format.

        Raises
        ------
        StorageError
            There is no cluster root at `location`, or the release does not know its format.
        """
        cluster = ClusterRoot(location, formats=formats)
        cluster.check_format()
        target, left = formats.newest, list[str]()
        steps = [
            *_of_cluster(cluster, target),
            *_of_brokers(cluster, storage_options, target, left),
        ]
        return cls(cluster, target, tuple(steps), tuple(left))

    def check_brokers(self) -> None:
        """Raise an error if a broker that may run is of a release that does not know the target.

        Raises
        ------
        SparklogError
            Such a broker is alive, stopping or fenced.
        """
        self.cluster.brokers.refresh()
        older = [row for row in self.cluster.brokers.rows().to_pylist() if self._is_older(row)]
        if not older:
            return
        brokers = ", ".join(f"{row['broker_id']} ({row['state']})" for row in older)
        raise SparklogError(
            f"format {self.target} is not known to the releases of these brokers: {brokers}; start "
            "them with this release, or stop them, or unregister those that will not return; then "
            "run `sparklog upgrade` again"
        )

    def _is_older(self, row: Row) -> bool:
        newest = row["newest_format"] or model.OLDEST_SCHEMA_VERSION
        return row["state"] in _MAY_RUN and newest < self.target

    def make(self, on_step: Callable[[UpgradeStep], None] = lambda _: None) -> None:
        """Make all steps.

        Parameters
        ----------
        on_step : callable, optional
            Called with each step after it was made.

        Raises
        ------
        SparklogError
            A broker of an older release may run. It is raised before the first step, or after the
            last one if the broker has started meanwhile.
        StorageError, DeltaError, OSError
            A root cannot be written. The next upgrade makes the remaining steps.
        """
        self.check_brokers()
        for step in self.steps:
            step.make()
            on_step(step)
        self.check_brokers()


def _of_cluster(cluster: ClusterRoot, target: int) -> Iterator[UpgradeStep]:
    """Yield the steps of the cluster root.

    What later readers need comes first. The announcement in `brokers` counts as the format for
    processes that run or start; the row of `format`, which follows, also refuses releases that do
    not read announcements. A new root has the row only.
    """
    location, found = cluster.location, cluster.format
    tables = map_in_parallel(
        lambda schema: ControlTable(location, schema) if schema.name in found.tables else None,
        model.CLUSTER_TABLES,
        0,
        is_local=location.is_local,
    )
    for schema, table in zip(model.CLUSTER_TABLES, tables, strict=True):
        if table is None:
            create = partial(create_table, location, schema)
            yield UpgradeStep(location, f"create the table {schema.name}", create)
        elif table.missing_columns:
            columns = ", ".join(table.missing_columns)
            yield UpgradeStep(location, f"add to {schema.name}: {columns}", table.add_columns)
    if cluster.format_version < target:
        change = partial(_announce, cluster.brokers, target)
        yield UpgradeStep(location, f"announce format {target} to running processes", change)
    if found.schema_version < target:
        change = partial(add_tables, found, model.CLUSTER_TABLES, target)
        yield UpgradeStep(
            location, f"set the format from {found.schema_version} to {target}", change
        )


def _announce(brokers: ControlTable, target: int) -> None:
    """Commit the format of the cluster root to `brokers`, which all processes follow."""

    def attempt() -> None:
        brokers.refresh()
        if (brokers.transaction(FORMAT_VERSION) or 0) < target:
            brokers.compare_and_set(
                brokers.rows(), None, {FORMAT_VERSION: target}, Cause("ANNOUNCE FORMAT")
            )

    retrying(CommitConflictError)(attempt)


def _of_brokers(
    cluster: ClusterRoot, options: StorageOptions | None, target: int, left: list[str]
) -> Iterator[UpgradeStep]:
    """Yield the steps of the broker roots; note in `left` those that are left to their brokers.

    The tables of a broker root have one writer, its broker, so only the format is set here.
    """
    rows = cluster.brokers.rows().to_pylist()
    for row in [one for one in rows if one["state"] != "unregistered"]:
        for uri in filter(None, json.loads(row["roots"])):
            of = f"{uri} of broker {row['broker_id']}"
            location = Location.of(uri, options)
            try:
                found = read_format(location)
            except UNREADABLE as error:
                left.append(f"{of} cannot be read ({one_line(error)})")
                continue
            if found is None:
                left.append(f"{of} is not there now")
                continue
            if found.schema_version >= target:
                continue
            if any(schema.name not in found.tables for schema in model.BROKER_TABLES):
                left.append(f"{of} lacks tables of this release")
                continue
            change = partial(add_tables, found, model.BROKER_TABLES, target)
            text = f"set the format from {found.schema_version} to {target}"
            yield UpgradeStep(location, text, change)
