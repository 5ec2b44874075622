"""Fixtures of the storage's tests: a local folder, racing processes, and commits to lose."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from pkgutil import resolve_name

import pytest

from sparklog.storage.location import Location
from tests.storage.racing import Processes


@pytest.fixture
def root(tmp_path: Path) -> Location:
    return Location.of(str(tmp_path / "root"))


@pytest.fixture(scope="session")
def processes() -> Iterator[Processes]:
    started = Processes()
    yield started
    started.close()


@pytest.fixture
def after_next(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[[], object]], None]:
    """Run an action once, just after the named function returns for the next time, during a
    write.
    """

    def arrange(name: str, action: Callable[[], object]) -> None:
        original = resolve_name(name)
        waiting = [action]

        def interposed(*arguments: object) -> object:
            result = original(*arguments)
            if waiting:
                waiting.pop()()
            return result

        monkeypatch.setattr(name, interposed)

    return arrange
