"""A page in a headless Chromium, driven by the DevTools protocol on a pair of pipes."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from sparklog.errors import SparklogError

_SECONDS = 120.0
"""Timeout in seconds of the browser's start and of each command."""

_NAMES = ("chromium", "chromium-browser", "google-chrome")


class Area(NamedTuple):
    """A rectangle of a page, in CSS pixels."""

    x: float
    y: float
    width: float
    height: float


def find_chromium() -> str:
    """Return the program of Chromium: the variable CHROMIUM, or the first of its names on PATH.

    Raises `SparklogError` if there is no such program.
    """
    named = os.environ.get("CHROMIUM")
    for name in [named] if named else _NAMES:
        found = shutil.which(name)
        if found is not None:
            return found
    raise SparklogError(
        f"Chromium is missing: the variable CHROMIUM names {named}, which is no program"
        if named
        else "Chromium is missing: install it (Debian's package chromium), or name it in CHROMIUM"
    )


@contextmanager
def headless_page(chromium: str, width: int) -> Iterator[Page]:
    """Start a browser of its own, with an empty profile, and yield its page of this width."""
    with tempfile.TemporaryDirectory(prefix="sparklog-chromium-", **_IGNORED) as profile:
        # Chromium reads commands from descriptor 3 and writes answers to descriptor 4.
        commands, to_browser = os.pipe()
        from_browser, answers = os.pipe()
        errors = Path(profile, "errors.txt")
        descriptors = [
            (os.POSIX_SPAWN_DUP2, commands, 3),
            (os.POSIX_SPAWN_DUP2, answers, 4),
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, str(errors), os.O_WRONLY | os.O_CREAT, 0o600),
        ]
        # Chromium's sandbox refuses to run as root.
        options = [*_OPTIONS, *(["--no-sandbox"] if os.geteuid() == 0 else [])]
        arguments = [chromium, *options, f"--user-data-dir={profile}", "about:blank"]
        process = os.posix_spawn(
            chromium, arguments, os.environ, file_actions=descriptors, setpgroup=0
        )
        os.close(commands)
        os.close(answers)
        try:
            yield Page(to_browser, from_browser, errors, width)
        finally:
            os.close(to_browser)
            os.close(from_browser)
            with suppress(ProcessLookupError):
                os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)


_OPTIONS = [
    "--headless",
    "--remote-debugging-pipe",
    "--no-proxy-server",
    "--no-first-run",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
]

_IGNORED: dict[str, Any] = {"ignore_cleanup_errors": True}
"""A killed browser's children may still write to the profile while it is removed."""


class Page:
    """A page of a browser.

    Parameters: `to_browser` and `from_browser`, the descriptors of its pipes; `errors`, the file of
    its standard error; `width`, the page's width in CSS pixels.
    """

    def __init__(self, to_browser: int, from_browser: int, errors: Path, width: int) -> None:
        self._to_browser, self._from_browser = to_browser, from_browser
        self._errors = errors
        self._unread = b""
        self._last_id = 0
        self._of_page: dict[str, str] = {}
        target = self._do("Target.createTarget", url="about:blank")["targetId"]
        attached = self._do("Target.attachToTarget", targetId=target, flatten=True)
        self._of_page = {"sessionId": attached["sessionId"]}
        self._do("Page.enable")
        size = {"width": width, "height": 800, "deviceScaleFactor": 1}
        self._do("Emulation.setDeviceMetricsOverride", **size, mobile=False)

    def open(self, url: str) -> None:
        """Load a URL, and wait until its styles and scripts are loaded, too.

        Raises `SparklogError` if it cannot be loaded.
        """
        error = self._do("Page.navigate", url=url).get("errorText")
        if error:
            raise SparklogError(f"Chromium cannot load {url}: {error}")
        deadline = time.monotonic() + _SECONDS
        while self._message(deadline).get("method") != "Page.loadEventFired":
            pass

    def evaluate(self, script: str) -> Any:
        """Return the value of a JavaScript expression.

        Raises `SparklogError` if it throws.
        """
        answer = self._do("Runtime.evaluate", expression=script, returnByValue=True)
        if "exceptionDetails" in answer:
            thrown = answer["exceptionDetails"].get("exception", {}).get("description", "")
            raise SparklogError(f"a script failed in Chromium: {thrown}")
        return answer["result"].get("value")

    def picture(self, area: Area) -> bytes:
        """Return an area of the page as PNG."""
        clip = {**area._asdict(), "scale": 1}
        options: dict[str, Any] = {"format": "png", "captureBeyondViewport": True}
        return base64.b64decode(self._do("Page.captureScreenshot", clip=clip, **options)["data"])

    def _do(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result; events before it are dropped."""
        self._last_id += 1
        command = {"id": self._last_id, "method": method, "params": parameters, **self._of_page}
        deadline = time.monotonic() + _SECONDS
        try:
            os.write(self._to_browser, json.dumps(command).encode() + b"\0")
        except BrokenPipeError as error:
            raise self._ended() from error
        while True:
            message = self._message(deadline)
            if message.get("id") != self._last_id:
                continue
            if "error" in message:
                raise SparklogError(f"Chromium refused {method}: {message['error']['message']}")
            result: dict[str, Any] = message["result"]
            return result

    def _message(self, deadline: float) -> dict[str, Any]:
        """Return the next message, an answer or an event."""
        while b"\0" not in self._unread:
            seconds = max(0.0, deadline - time.monotonic())
            if not select.select([self._from_browser], [], [], seconds)[0]:
                raise SparklogError(f"Chromium did not answer within {_SECONDS:g} s: try again")
            part = os.read(self._from_browser, 1 << 16)
            if not part:
                raise self._ended()
            self._unread += part
        first, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(first)
        return message

    def _ended(self) -> SparklogError:
        lines = self._errors.read_text(errors="replace").strip().splitlines()
        return SparklogError(f"Chromium ended: {lines[-1] if lines else 'it gave no reason'}")
