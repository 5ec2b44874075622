"""A request log as a readable list: the subject of each request, and sums by table and file."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from benchmarks.s3_server import KINDS, Logged

COLUMNS = ("number", "step", "ms", "sender", "method", "key", "status", "bytes")

_COMMIT = re.compile(r"\d{20}\.json")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_HASH = re.compile(r"(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])")


def listed(steps: Iterable[tuple[str, Sequence[Logged]]]) -> list[str]:
    """Return a line of CSV for each request of each (step, log), with names of columns first.

    Keys are listed without their bucket, and ids in them are cut to eight digits.
    """
    rows: list[tuple[object, ...]] = [COLUMNS]
    for step, log in steps:
        for one in log:
            key = shortened(one.key.partition("/")[2])
            rows.append(
                (len(rows), step, one.at_ms, one.sender, one.kind, key, one.status, one.size_bytes)
            )
    target = io.StringIO()
    csv.writer(target, lineterminator="\n").writerows(rows)
    return target.getvalue().splitlines()


def shortened(key: str) -> str:
    """Return a key with its UUIDs and hashes cut to eight digits."""
    for pattern in (_UUID, _HASH):
        key = pattern.sub(lambda match: f"{match[0][:8]}~", key)
    return key


def subject(key: str) -> tuple[str, str]:
    """Return the table and the kind of file of a key.

    The roots of all brokers are `broker`: broker-0/log/_delta_log/...7.json is (broker/log,
    commit).
    """
    parts = key.split("/")
    root = re.sub(r"-\d+$", "", parts[0])
    table = f"{root}/{parts[1]}" if len(parts) > 2 else root
    name = parts[-1]
    if "_delta_log" in parts:
        if _COMMIT.fullmatch(name):
            return table, "commit"
        if name == "_last_checkpoint":
            return table, "checkpoint pointer"
        return table, "checkpoint" if ".checkpoint" in name else "log folder"
    if "_inbox" in parts:
        return table, "batch file"
    return table, "data file" if name.endswith(".parquet") else "other"


def by_table(lines: Sequence[str]) -> list[str]:
    """Return the sums of a list from `listed` as a Markdown table, largest first."""
    sums: dict[tuple[str, str], Counter[str]] = {}
    for row in csv.DictReader(lines):
        counts = sums.setdefault(subject(row["key"]), Counter())
        counts[row["method"]] += 1
        counts["nothing found"] += row["method"] == "GET" and row["status"] == "404"
        counts["refused"] += row["status"] == "412"
    names = [*KINDS, "nothing found", "refused"]
    table = [f"| table | file | {' | '.join(names)} |", f"|---|---|{'---:|' * len(names)}"]
    total: Counter[str] = Counter()
    order = sorted(sums.items(), key=lambda one: -sum(one[1][kind] for kind in KINDS))
    for (name, file), counts in order:
        total.update(counts)
        table.append(f"| {name} | {file} | {_cells(counts, names)} |")
    return [*table, f"| all | | {_cells(total, names)} |"]


def _cells(counts: Counter[str], names: Sequence[str]) -> str:
    return " | ".join(str(counts[name] or "") for name in names)
