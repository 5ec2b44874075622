"""Byte rates for quotas: the bytes within a sliding window."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sparklog.cluster.byte_rates import ByteRates

STEPS = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 500), st.integers(0, 90)), max_size=60
)


@given(STEPS)
def test_recent_bytes_are_the_sum_of_the_bytes_in_the_window(
    steps: list[tuple[str, int, int]],
) -> None:
    """`recent_bytes` is the sum of the bytes noted for a topic within the last window."""
    rates, noted, now_ms = ByteRates(100), [], 1_000
    for topic_id, size_bytes, passed_ms in steps:
        now_ms += passed_ms
        rates.note(topic_id, size_bytes, now_ms)
        noted.append((topic_id, size_bytes, now_ms))
        for of in "abc":
            expected = sum(size for topic, size, at in noted if topic == of and now_ms - at < 100)
            assert rates.recent_bytes(of, now_ms) == expected


def test_a_topic_that_is_no_longer_written_to_leaves_nothing() -> None:
    """Once a topic's last bytes have left the window, its entry is removed."""
    rates = ByteRates(100)
    rates.note("a", 10, 0)
    assert rates.recent_bytes("a", 99) == 10
    assert rates.recent_bytes("a", 100) == 0
    assert rates.recent_bytes("a", 99) == 0
