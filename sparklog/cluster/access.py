"""The permissions of each role: the one place that says which paths a process reads and writes.

Permissions are those of the store: S3's policies, or a file system's folders. A grant allows one
operation on paths below a kind of root. `sparklog policy` prints the grants of a role,
docs/access.md explains them, and tests/access shows that they are enough.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from sparklog.errors import StorageError
from sparklog.storage.file_copies import FOLDER, WITHOUT_COPIES_ON_STORES


class Role(str, Enum):
    """The roles of processes. One process may have several: it needs the grants of all of them."""

    CONSUMER = "consumer"
    GROUP_MEMBER = "group-member"
    PRODUCER = "producer"
    STREAM_WRITER = "stream-writer"
    BROKER = "broker"
    CONTROLLER = "controller"
    AUDITOR = "auditor"
    BACKUP = "backup"
    ADMIN = "admin"
    OPERATOR = "operator"


class Roots(Enum):
    """The kinds of roots: the cluster's, all log directories, those of the role's own broker."""

    CLUSTER = "cluster root"
    LOG_DIRS = "every log directory"
    OWN = "its own log directories"


class Action(Enum):
    """The operations on files, in S3's words."""

    READ = "s3:GetObject"
    WRITE = "s3:PutObject"
    REMOVE = "s3:DeleteObject"


class Grant(NamedTuple):
    """Permission for an action on paths below a kind of root; * stands for any characters."""

    action: Action
    roots: Roots
    paths: tuple[str, ...]
    purpose: str


def _tables(*names: str) -> tuple[str, ...]:
    return tuple(f"{name}/*" for name in names)


def _logs(*names: str) -> tuple[str, ...]:
    return tuple(f"{name}/_delta_log/*" for name in names)


def _cleaned(*names: str) -> tuple[str, ...]:
    """Return the paths from which writers of some tables remove what newer files replace."""
    copied = [name for name in names if name not in WITHOUT_COPIES_ON_STORES]
    return (*_logs(*names), *(f"{name}/{FOLDER}/*" for name in copied))


def _read(roots: Roots, paths: tuple[str, ...], purpose: str) -> Grant:
    return Grant(Action.READ, roots, paths, purpose)


def _write(roots: Roots, paths: tuple[str, ...], purpose: str) -> Grant:
    return Grant(Action.WRITE, roots, paths, purpose)


def _remove(roots: Roots, paths: tuple[str, ...], purpose: str) -> Grant:
    return Grant(Action.REMOVE, roots, paths, purpose)


_EVERYTHING = ("*",)

_METADATA = _read(
    Roots.CLUSTER,
    _tables("format", "brokers", "topics", "partition_state"),
    "the metadata: brokers, topics, leaders",
)

_REPLICA_STATE = _tables("high_watermark_checkpoint", "leader_epoch_checkpoint")

_CONSUMER = (
    _METADATA,
    _read(Roots.CLUSTER, _tables("configs"), "quotas of client ids"),
    _read(Roots.LOG_DIRS, ("log/*", *_REPLICA_STATE), "records and high watermarks"),
)

_GROUP_TABLES = ("consumer_groups", "consumer_group_heartbeats", "consumer_offsets")
_GROUP_MEMBER = (
    _read(Roots.CLUSTER, _tables(*_GROUP_TABLES), "members and committed offsets"),
    _write(Roots.CLUSTER, _tables(*_GROUP_TABLES), "joining, heartbeats, committing offsets"),
    _remove(Roots.CLUSTER, _cleaned(*_GROUP_TABLES), "the clean-up of old commits and copies"),
)

_PRODUCER = (
    _METADATA,
    _read(Roots.CLUSTER, _tables("producer_ids"), "the producer's id and epoch"),
    _write(Roots.CLUSTER, _tables("producer_ids"), "a producer id, for idempotence"),
    _remove(Roots.CLUSTER, _cleaned("producer_ids"), "the clean-up of old commits and copies"),
    _read(Roots.LOG_DIRS, _logs("log"), "the leaders' answers"),
    _read(Roots.LOG_DIRS, _logs("produce_requests*"), "the end of the inbox"),
    _write(Roots.LOG_DIRS, ("log/_inbox/*",), "batch files"),
    _write(Roots.LOG_DIRS, _logs("produce_requests*"), "produce requests"),
    _remove(
        Roots.LOG_DIRS,
        _logs("produce_requests*"),
        "an own request to a table that its broker has recreated",
    ),
)

_STREAM_WRITER = (
    _read(Roots.CLUSTER, _tables("stream_writes"), "the files of earlier runs of a micro-batch"),
    _write(Roots.CLUSTER, _tables("stream_writes"), "the files of a micro-batch"),
    _remove(Roots.CLUSTER, _cleaned("stream_writes"), "the clean-up of old commits and copies"),
    _read(Roots.LOG_DIRS, ("log/_inbox/*",), "batch files that are moved to another leader"),
)

_BROKER = (
    _read(Roots.CLUSTER, _EVERYTHING, "metadata, settings, repairs"),
    _write(
        Roots.CLUSTER,
        _tables("brokers", "partition_state", "repairs"),
        "registration, in-sync sets, outcomes of repairs",
    ),
    _remove(
        Roots.CLUSTER,
        _cleaned("brokers", "partition_state", "repairs"),
        "the clean-up of old commits and copies",
    ),
    _read(
        Roots.LOG_DIRS,
        ("log/*", *_REPLICA_STATE, *_logs("produce_requests*")),
        "replication from the leaders",
    ),
    _read(Roots.OWN, _EVERYTHING, "its own tables"),
    _write(Roots.OWN, _EVERYTHING, "its own tables"),
    _remove(Roots.OWN, _EVERYTHING, "the removal of old files and requests"),
)

_CONTROLLER = (
    _write(Roots.CLUSTER, _EVERYTHING, "the lease, elections, deletions of topics, the past"),
    _remove(Roots.CLUSTER, _EVERYTHING, "the removal of old files and commits"),
)

_ADMIN_TABLES = (
    "topics",
    "partition_state",
    "configs",
    "brokers",
    "consumer_groups",
    "consumer_group_heartbeats",
    "consumer_offsets",
)
_ADMIN = (
    _read(Roots.CLUSTER, _EVERYTHING, "the state of the cluster"),
    _read(
        Roots.LOG_DIRS,
        (*_logs("log"), *_REPLICA_STATE),
        "offsets, log directories",
    ),
    _write(
        Roots.CLUSTER,
        _tables(*_ADMIN_TABLES),
        "topics, settings, elections, reassignments, brokers, groups and their offsets",
    ),
    _remove(Roots.CLUSTER, _cleaned(*_ADMIN_TABLES), "the clean-up of old commits and copies"),
)

_AUDITOR = (
    _read(Roots.CLUSTER, _EVERYTHING, "the tables of the cluster root"),
    _read(
        Roots.LOG_DIRS,
        (
            "format/*",
            *_REPLICA_STATE,
            *_logs("log", "produce_requests*"),
            *_tables(
                "delayed_operations",
                "producer_state",
                "cleaner_offset_checkpoint",
                "truncations",
                "replica_history",
            ),
        ),
        "the tables of the log directories, without the records",
    ),
)

_BACKUP = (
    _read(Roots.CLUSTER, _EVERYTHING, "the tables of the cluster root"),
    _read(Roots.LOG_DIRS, _EVERYTHING, "the tables and records of the log directories"),
)

_OPERATOR = tuple(
    Grant(
        action, roots, _EVERYTHING, "`format`, `maintain`, `scrub`, `repair`, `upgrade`, `restore`"
    )
    for roots in (Roots.CLUSTER, Roots.LOG_DIRS)
    for action in Action
)

GRANTS: dict[Role, tuple[Grant, ...]] = {
    Role.CONSUMER: _CONSUMER,
    Role.GROUP_MEMBER: (*_CONSUMER, *_GROUP_MEMBER),
    Role.PRODUCER: _PRODUCER,
    Role.STREAM_WRITER: (*_PRODUCER, *_STREAM_WRITER),
    Role.BROKER: _BROKER,
    Role.CONTROLLER: (*_BROKER, *_CONTROLLER),
    Role.AUDITOR: _AUDITOR,
    Role.BACKUP: _BACKUP,
    Role.ADMIN: _ADMIN,
    Role.OPERATOR: _OPERATOR,
}
"""The grants of each role, with which all of its operations succeed."""


class RootUris(NamedTuple):
    """The URIs or folders of a cluster's roots; `own` are the log directories of one broker."""

    cluster: str
    log_dirs: Sequence[str]
    own: Sequence[str] = ()

    def of(self, roots: Roots) -> Sequence[str]:
        """Return the roots of a kind."""
        return {Roots.CLUSTER: [self.cluster], Roots.LOG_DIRS: self.log_dirs, Roots.OWN: self.own}[
            roots
        ]


def s3_policy(role: Role, uris: RootUris) -> dict[str, Any]:
    """Return the policy of a role in the form of AWS's identity policies.

    Each statement has an id. The paths of one action below one kind of root are one statement.
    Raises `StorageError` if a root is not on S3.
    """
    statements: dict[str, dict[str, Any]] = {}
    granted = [
        (action, f"{action.name.title()}{roots.name.title().replace('_', '')}", *_parts(uri, path))
        for action, roots, path in _covering(GRANTS[role])
        for uri in uris.of(roots)
    ]
    for action, name, bucket, pattern in granted:
        # A broker's own log directories are also among all log directories.
        if any(
            (action, bucket) == (other_action, other_bucket) and _covers(other, pattern)
            for other_action, _, other_bucket, other in granted
        ):
            continue
        statement = statements.setdefault(
            name,
            {"Sid": name, "Effect": "Allow", "Action": action.value, "Resource": []},
        )
        statement["Resource"].append(f"arn:aws:s3:::{bucket}/{pattern}")
    return {
        "Version": "2012-10-17",
        "Statement": [*statements.values(), *_listings(role, uris)],
    }


def _listings(role: Role, uris: RootUris) -> Iterator[dict[str, Any]]:
    """Yield the statements that allow listings of the roots, one for each bucket.

    S3 answers 404 for a missing object only if the identity may list its key, and 403 otherwise.
    """
    prefixes: dict[str, list[str]] = {}
    for roots in dict.fromkeys(grant.roots for grant in GRANTS[role]):
        for uri in uris.of(roots):
            bucket, prefix = _bucket_and_prefix(uri)
            known = prefixes.setdefault(bucket, [])
            if f"{prefix}*" not in known:
                known.append(f"{prefix}*")
    for number, (bucket, known) in enumerate(prefixes.items()):
        yield {
            "Sid": f"List{number or ''}",
            "Effect": "Allow",
            "Action": "s3:ListBucket",
            "Resource": f"arn:aws:s3:::{bucket}",
            "Condition": {"StringLike": {"s3:prefix": known}},
        }


def _covering(grants: Iterable[Grant]) -> list[tuple[Action, Roots, str]]:
    """Return the paths of some grants, without those that another path covers."""
    paths = dict.fromkeys((one.action, one.roots, path) for one in grants for path in one.paths)
    return [
        (action, roots, path)
        for action, roots, path in paths
        if not any(
            (action, roots) == (other_action, other_roots) and _covers(other, path)
            for other_action, other_roots, other in paths
        )
    ]


def _covers(other: str, path: str) -> bool:
    """Return whether another pattern stands for all that a pattern of paths stands for."""
    return path != other and other.endswith("*") and path.startswith(other.removesuffix("*"))


def _parts(uri: str, path: str) -> tuple[str, str]:
    """Return the bucket and the key of a path below a root."""
    bucket, prefix = _bucket_and_prefix(uri)
    return bucket, f"{prefix}{path}"


def _bucket_and_prefix(uri: str) -> tuple[str, str]:
    parts = urlsplit(uri)
    if parts.scheme not in ("s3", "s3a"):
        raise StorageError(f"{uri} is not on S3: policies are printed for s3:// and for folders")
    path = parts.path.strip("/")
    return parts.netloc, f"{path}/" if path else ""


def policy_text(role: Role, uris: RootUris) -> str:
    """Return the policy of a role on S3 as JSON."""
    return json.dumps(s3_policy(role, uris), indent=2)


def folder_commands(role: Role, uris: RootUris, principal: str) -> list[str]:
    """Return the commands that give a role's permissions on folders to a user or group.

    Parameters: `principal`, in setfacl's notation: `u:NAME` or `g:NAME`. The folders must exist.
    Permission to write to a folder includes the removal of its files. Default ACLs apply to files
    that are created later, whatever the umask of their creators.
    """
    grants = [
        (f"{uri}/{path.removesuffix('*')}".rstrip("/"), action)
        for action, roots, path in _covering(GRANTS[role])
        for uri in uris.of(roots)
    ]
    roots = [uri for kind in Roots for uri in uris.of(kind) if _is_granted(uri, grants)]
    commands = [f"setfacl -R -m o::-,d:o::- {_quoted(uri)}" for uri in dict.fromkeys(roots)]
    folders = dict.fromkeys(folder for folder, _ in grants)
    above = dict.fromkeys(
        parent
        for folder in folders
        for root in roots
        for parent in _between(root, folder)
        if not any(_is_within(parent, other) for other in folders)
    )
    commands += [f"setfacl -m {principal}:x {_quoted(folder)}" for folder in above]
    bits = {folder: _bits(folder, grants) for folder in folders}
    for folder in sorted(folders):
        covering = [other for other in folders if other != folder and _is_within(folder, other)]
        if any(bits[other] == bits[folder] for other in covering):
            continue
        entry = f"{principal}:{bits[folder]}"
        # A folder to which is only written: its files can be created and removed, but not read.
        is_read = bits[folder] != "rwx"
        given = f"-R -m {entry},d:{entry}" if is_read else f"-m {entry}"
        commands.append(f"setfacl {given} {_quoted(folder)}")
    return commands


def _bits(folder: str, grants: Sequence[tuple[str, Action]]) -> str:
    """Return the permissions on a folder; a grant on a folder includes the folders below it."""
    actions = {action for other, action in grants if _is_within(folder, other)}
    if Action.READ not in actions:
        # Syncing a folder needs r.
        return "rwx"
    return "rX" if actions == {Action.READ} else "rwX"


def _quoted(folder: str) -> str:
    """Return a folder for the shell, in which * stands for any characters."""
    return "*".join(shlex.quote(part) if part else "" for part in folder.split("*"))


def _is_granted(root: str, grants: Sequence[tuple[str, Action]]) -> bool:
    return any(_is_within(folder, root) for folder, _ in grants)


def _is_within(folder: str, other: str) -> bool:
    return folder == other or folder.startswith(f"{other}/")


def _between(root: str, folder: str) -> list[str]:
    """Return `root` and the folders between it and `folder`, which is not included."""
    if not _is_within(folder, root) or folder == root:
        return []
    parts = folder.removeprefix(f"{root}/").split("/")
    return ["/".join([root, *parts[:count]]) for count in range(len(parts))]
