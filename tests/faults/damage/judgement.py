"""The outcome of a trial in a few words, and the verdict: whether it keeps the promise.

The promise: damage is named, it costs nothing but its replica, and one command repairs it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal, NamedTuple

from sparklog.storage.file_copies import WITHOUT_COPIES, WITHOUT_COPIES_ON_STORES
from tests.faults.damage.sound_cluster import BROKERS, COMMITTED_OFFSET, PARTITIONS
from tests.faults.damage.trial import Observed, Trial, is_finding

Verdict = Literal["kept", "traceback", "lost", "silent", "too much", "not repaired"]
"""The verdicts of a case.

kept: the promise is kept. traceback: a process raised an exception that it does not expect. lost:
an acknowledged record or a committed offset is gone after the repair. silent: nothing named a
damaged file that is read. too much: damage to a replica cost another one, or clients. not repaired:
after the command something is still damaged, out of sync or refused.
"""


class Outcome(NamedTuple):
    """The outcome of a case, in words that are the same in each run."""

    brokers: str
    clients: str
    audit: str
    scrub: str
    repair: str
    after: str
    verdict: Verdict


def judge(trial: Trial) -> Outcome:
    """Return the outcome of a trial."""
    after = sorted(set(_problems(trial)))
    return Outcome(
        brokers=_brokers(trial),
        clients=_clients(trial.damaged),
        audit=_names_it(trial, trial.audit),
        scrub=_scrub(trial),
        repair=_repair(trial),
        after="; ".join(after) or "sound",
        verdict=_verdict(trial, after),
    )


def judge_pair(trial: Trial) -> Verdict:
    """Return the verdict of a trial in which a second file was damaged: more may be refused."""
    after = sorted(set(_problems(trial)))
    if trial.damaged.tracebacks or trial.repaired.tracebacks or trial.restarted.tracebacks:
        return "traceback"
    if any(one.startswith("lost") for one in after):
        return "lost"
    return "not repaired" if after else "kept"


def _verdict(trial: Trial, after: list[str]) -> Verdict:
    if trial.damaged.tracebacks or trial.repaired.tracebacks or trial.restarted.tracebacks:
        return "traceback"
    if any(one.startswith("lost") for one in after):
        return "lost"
    # An older state of a table that its owner writes again is a sound one, without an effect.
    rewritten = WITHOUT_COPIES if trial.storage == "folder" else WITHOUT_COPIES_ON_STORES
    is_rewritten = trial.case.table in rewritten and not after
    if trial.is_read and not is_rewritten and not _is_named(trial):
        return "silent"
    if _too_much(trial):
        return "too much"
    return "not repaired" if after else "kept"


# --- the damaged cluster --------------------------------------------------------------------------


def _brokers(trial: Trial) -> str:
    seen = trial.damaged
    stopped = [one for one in BROKERS if one not in seen.running]
    begins = trial.case.state == "at rest"
    if stopped == list(BROKERS):
        told = ["do not start" if begins else "end"]
    elif stopped:
        own = trial.case.root == f"broker-{stopped[0]}" and len(stopped) == 1
        told = [("its own" if own else "some") + (" does not start" if begins else " ends")]
    else:
        told = ["start" if begins else "go on"]
    if any(name.startswith(("tick", "start")) for name in seen.errors) and not stopped:
        told.append("ticks fail")
    out = {broker for _, broker in seen.out_of_sync}
    if out:
        partitions = {of for of, _ in seen.out_of_sync}
        is_own = out == {_owner(trial)}
        what = "a replica" if len(partitions) == 1 else "replicas"
        told.append(f"{what} of {'its broker' if is_own else 'other brokers'} left the ISR")
    return ", ".join(told)


def _clients(seen: Observed) -> str:
    failed = [one for one in ("produce", "consume", "group") if one in seen.errors]
    codes = {"no answer", "NOT_ENOUGH_REPLICAS"} & set(seen.errors.values())
    if not failed:
        return "served"
    if len(failed) == 3:
        return "refused"
    names = {"produce": "producers", "consume": "consumers", "group": "groups"}
    told = " and ".join(names[one] for one in failed)
    return f"{told} refused" + (f" ({min(codes)})" if codes else "")


def _owner(trial: Trial) -> int | None:
    match = re.fullmatch(r"broker-(\d+)", trial.case.root)
    return int(match[1]) if match else None


def _names_it(trial: Trial, lines: list[str]) -> str:
    if not lines:
        return "clean"
    if any(_mentions(trial, line) for line in lines):
        return "names it"
    return "other findings"


def _mentions(trial: Trial, text: str) -> bool:
    return f"{trial.file.root}/{trial.file.table}" in text or trial.file.path in text


def _is_named(trial: Trial) -> bool:
    said = [*trial.damaged.texts, *trial.audit, *trial.scrub, *trial.repair]
    return any(_mentions(trial, text) for text in said)


def _scrub(trial: Trial) -> str:
    if not trial.scrub:
        return "clean"
    faults = {line.split()[0] for line in trial.scrub if is_finding(line)}
    if faults:
        return ", ".join(sorted(faults))
    return "names it" if any(_mentions(trial, one) for one in trial.scrub) else "other findings"


def _repair(trial: Trial) -> str:
    states = {line.split()[0] for line in trial.repair if is_finding(line.partition(" ")[2])}
    if states:
        return ", ".join(sorted(states))
    if not trial.repair:
        return "nothing to do"
    return "refused" if any(_mentions(trial, one) for one in trial.repair) else "fails"


def _too_much(trial: Trial) -> bool:
    """Return whether damage to a broker's root cost more than its replicas or its one replica."""
    seen = trial.damaged
    owner = _owner(trial)
    if owner is None:
        return bool(seen.out_of_sync)
    if any(broker != owner for _, broker in seen.out_of_sync):
        return True
    is_file = "batch" in trial.case.kind
    if is_file and len({of for of, _ in seen.out_of_sync}) > 1:
        return True
    return any(name in seen.errors for name in ("produce", "consume", "group"))


# --- the repaired cluster -------------------------------------------------------------------------


def _problems(trial: Trial) -> Iterable[str]:
    """Yield what is not sound after the repair, and after a restart of all brokers."""
    if trial.audit_after:
        yield "audit"
    if trial.scrub_after:
        yield "scrub"
    for seen in (trial.repaired, trial.restarted):
        if seen.running != list(BROKERS):
            yield "brokers do not run"
        for name in sorted(seen.errors):
            yield {"produce": "producers", "consume": "consumers", "group": "groups"}.get(
                name, "ticks fail"
            )
        if seen.out_of_sync:
            yield "replicas out of sync"
        if "group" not in seen.errors and seen.committed != COMMITTED_OFFSET:
            yield "lost: a committed offset"
    if not trial.restarted.errors:
        # Where partitions have no leader, consumers see less than there is.
        yield from _lost_records(trial)


def _lost_records(trial: Trial) -> Iterable[str]:
    seen = [trial.damaged, trial.repaired]
    if trial.restarted is not trial.repaired:
        seen.append(trial.restarted)
    for of in PARTITIONS:
        acknowledged = [
            *trial.before.get(of, ()),
            *(value for one in seen for value in one.produced.get(of, ())),
        ]
        # A request that was not answered may have been appended, so more is no fault.
        read = iter(trial.restarted.consumed.get(of, ()))
        if not all(value in read for value in acknowledged):
            yield "lost: records"
