"""A disk whose writes below some folders fail, for as long as a test wants."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sparklog.storage.local_files import LocalFiles


class FailingDisk:
    """Lets each write below some folders fail with an error of the file system."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failing: dict[str, int] = {}
        for name in ("create", "link", "sync"):
            original = getattr(LocalFiles, name)

            def call(
                files: LocalFiles, *paths: str, _original: Callable[..., object] = original
            ) -> object:
                for folder, number in self.failing.items():
                    if any(path.startswith(f"{folder}/") for path in paths):
                        raise OSError(number, os.strerror(number), paths[-1])
                return _original(files, *paths)

            monkeypatch.setattr(LocalFiles, name, call)

    def fail(self, folder: Path, number: int = errno.EIO) -> None:
        """Let writes below `folder` fail until `mend`."""
        self.failing[str(folder)] = number

    def names(self) -> set[str]:
        """Return the names of the folders that fail."""
        return {Path(folder).name for folder in self.failing}

    def mend(self) -> None:
        """End all failures."""
        self.failing.clear()
