"""Values that are parsed from bytes are shared by readers of the same bytes, up to a limit."""

from __future__ import annotations

from sparklog.storage.content_cache import UNUSED_S, ContentCache


def test_a_value_is_that_of_its_version_and_content() -> None:
    """A value is found only by the same version and content."""
    cache: ContentCache[str] = ContentCache(100)
    cache.put(1, b"content", "value")
    assert cache.get(1, bytes(bytearray(b"content"))) == "value"
    assert cache.get(2, b"content") is None
    assert cache.get(1, b"Content") is None


def test_what_was_not_used_for_longest_makes_room() -> None:
    """The least recently used value is removed first."""
    cache: ContentCache[int] = ContentCache(10)
    for version in (1, 2, 3):
        cache.put(version, b"four", version)
        cache.get(1, b"four")
    assert [cache.get(version, b"four") for version in (1, 2, 3)] == [1, None, 3]


def test_a_content_that_is_put_again_takes_no_more_room() -> None:
    """A content that is put again does not count twice."""
    cache: ContentCache[int] = ContentCache(10)
    for value in range(5):
        cache.put(1, b"four", value)
    cache.put(2, b"four", 2)
    assert (cache.get(1, b"four"), cache.get(2, b"four")) == (4, 2)


def test_a_content_larger_than_the_bound_is_not_kept() -> None:
    """A content larger than the limit is not kept."""
    cache: ContentCache[int] = ContentCache(10)
    cache.put(1, b"four", 1)
    cache.put(2, b"eleven bytes", 2)
    assert (cache.get(1, b"four"), cache.get(2, b"eleven bytes")) == (1, None)


def test_values_that_are_not_used_any_more_do_not_stay() -> None:
    """A process at rest has the values of the last minute, and no more in an hour than in two."""
    now_s = [0.0]
    cache: ContentCache[int] = ContentCache(4 << 20, lambda: now_s[0])
    lengths = []
    for version in range(3600):
        now_s[0] += 2
        cache.put(version, b"a heartbeat", version)
        assert cache.get(version, b"a heartbeat") == version
        lengths.append(len(cache))
    assert max(lengths) == UNUSED_S / 2 + 1
    assert cache._kept_bytes == len(cache) * len(b"a heartbeat")


def test_a_value_that_is_used_stays() -> None:
    """Each use counts, not the time since a value was put."""
    now_s = [0.0]
    cache: ContentCache[str] = ContentCache(100, lambda: now_s[0])
    cache.put(1, b"used", "value")
    for version in range(2, 100):
        now_s[0] += UNUSED_S / 2
        cache.put(version, b"other", "value")
        assert cache.get(1, b"used") == "value"
    assert len(cache) == 4
