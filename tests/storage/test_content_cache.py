"""Values that are parsed from bytes are shared by readers of the same bytes, up to a limit."""

from __future__ import annotations

from sparklog.storage.content_cache import ContentCache


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
