"""Hostile input for every parser, in a few thousand inputs; `python -m tests.faults.hostile` has
more.
"""

from __future__ import annotations

import os
import time
import zlib
from base64 import b64decode
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparklog.groups.assignors import ASSIGNORS, MemberSubscription
from sparklog.model import TopicPartition
from sparklog.storage.json_text import json_bytes
from tests.faults.hostile.mutation import MOST_BYTES, Mutator
from tests.faults.hostile.runner import fault_of, pasted, run_all, share, smaller
from tests.faults.hostile.target import Target
from tests.faults.hostile.targets import all_targets
from tests.faults.hostile.whole_broker import HostileCluster


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> list[Target]:
    return all_targets(tmp_path_factory.mktemp("targets"))


def test_no_parser_fails_otherwise_than_it_documents(targets: list[Target]) -> None:
    names = [one.name for one in targets]
    assert len(set(names)) == len(names)
    counts = share(targets, 6_000, 40)
    run = run_all(names, [counts[name] for name in names], seed=7)
    assert not run.findings, "\n".join(map(str, run.findings))
    assert {one.target: one.inputs for one in run.outcomes} == counts


def test_every_sample_is_valid(targets: list[Target]) -> None:
    """Mutations of an input that is refused from the start would show little."""
    for target in targets:
        for sample in target.samples:
            target.run(sample)


# --- structured values
# ----------------------------------------------------------------------------

_TEXTS = st.text(st.characters(exclude_categories=()), max_size=20)
_NUMBERS = st.integers() | st.floats()
_JSON = st.recursive(
    st.none() | st.booleans() | _NUMBERS | _TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXTS, inner, max_size=4),
    max_leaves=12,
)


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(value=_JSON)
def test_any_value_of_json_is_read_or_refused(targets: list[Target], value: Any) -> None:
    content = json_bytes(value)
    for target in targets:
        if target.form == "json" and target.name not in ("journal_opened", "request_table"):
            assert fault_of(target, content) is None, target.name


_TOPICS = st.sampled_from(["a", "b", "'; drop table a; --", "../b"])
_MEMBERS = st.lists(
    st.builds(
        MemberSubscription,
        member_id=_TEXTS,
        topics=st.frozensets(_TOPICS),
        owned=st.lists(st.builds(TopicPartition, _TOPICS, st.integers(-2, 9)), max_size=5).map(
            tuple
        ),
        group_instance_id=st.none() | _TEXTS,
    ),
    unique_by=lambda one: one.member_id,
    min_size=1,
    max_size=5,
)


@settings(max_examples=100, deadline=None)
@given(partitions=st.dictionaries(_TOPICS, st.integers(0, 5)), members=_MEMBERS)
def test_assignors_assign_each_partition_once_whatever_members_claim(
    partitions: dict[str, int], members: list[MemberSubscription]
) -> None:
    wanted = {topic for one in members for topic in one.topics}
    expected = [
        TopicPartition(topic, number)
        for topic in sorted(partitions.keys() & wanted)
        for number in range(partitions[topic])
    ]
    for assign in ASSIGNORS.values():
        assigned = assign(partitions, members)
        assert assigned.keys() == {one.member_id for one in members}
        assert sorted(one for owned in assigned.values() for one in owned) == expected


# --- a running broker
# -----------------------------------------------------------------------------


def test_hostile_commits_stop_no_broker(tmp_path: Path) -> None:
    """Each attack is followed by a request that is answered; nothing outside the roots changes."""
    cluster = HostileCluster(tmp_path)
    attacks = [attack for seed in range(3) for attack in cluster.round(Random(seed), 8)]
    assert len(attacks) == 24


# --- the tools themselves
# -------------------------------------------------------------------------


def test_an_input_is_a_function_of_its_seed_and_number(targets: list[Target]) -> None:
    for target in targets[:3]:
        inputs = [target.input(1, number) for number in range(50)]
        assert inputs == [target.input(1, number) for number in range(50)]
        assert len(set(inputs)) > 25
        assert inputs != [target.input(2, number) for number in range(50)]


def test_inputs_have_a_bounded_size() -> None:
    mutator = Mutator([b"x" * MOST_BYTES], "bytes")
    assert all(len(mutator.input(Random(seed))) <= MOST_BYTES for seed in range(200))


def test_a_long_input_is_pasted_as_an_expression() -> None:
    for content in (b"\0'", b"long" * 10_000):
        assert eval(pasted(content), {"zlib": zlib, "base64": _base64()}) == content


def _base64() -> Any:
    class Module:
        b64decode = staticmethod(b64decode)

    return Module


def _failing(folder: Path) -> list[Target]:
    """Return targets that fail in each way that counts, for some of their inputs."""
    del folder

    def raises(content: bytes) -> None:
        {b"": 0}[content[:1].strip(b"a")]

    def crashes(content: bytes) -> None:
        if b"x" in content:
            os.abort()

    def hangs(content: bytes) -> None:
        while b"xx" in content:
            time.sleep(1)

    return [
        Target("raises", raises, [b"xaaa"]),
        Target("crashes", crashes, [b"x" * 500]),
        Target("hangs", hangs, [b"x" * 500]),
    ]


def test_an_exception_a_crash_and_a_hang_are_findings() -> None:
    factory = f"{__name__}:_failing"
    run = run_all(["raises", "crashes", "hangs"], [40, 2, 1], 1, factory, hang_s=2)
    assert {one.target: one.inputs for one in run.outcomes} == {
        "raises": 40, "crashes": 2, "hangs": 1,
    }  # fmt: skip
    faults = {one.target: one.fault.split(":")[0] for one in run.findings}
    assert faults == {
        "raises": "KeyError",
        "crashes": "ends the process",
        "hangs": "hangs for 2 s",
    }
    [raised] = [one for one in run.findings if one.target == "raises"]
    assert raised.times > 1


def test_a_finding_is_made_smaller() -> None:
    [target, *_] = _failing(Path())
    content = b"x" + b"a" * 300
    found = fault_of(target, content)
    assert found is not None
    assert smaller(target, content, found[1]) == b"x"
