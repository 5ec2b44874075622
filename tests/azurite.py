"""Azurite, Microsoft's emulator of Azure Blob Storage, as a process of its own."""

from __future__ import annotations

import base64
import hashlib
import hmac
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from email.utils import formatdate
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest

from tests.examples import CHECKOUT
from tests.jobs.processes import wait_for

VERSION = "3.35.0"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account of the emulator and its key, which are documented and secure nothing."""

_FOLDER = CHECKOUT / ".azurite"
_API_VERSION, _CONTENT_TYPE = "2021-12-02", "application/octet-stream"


def installed() -> Path:
    """Return the emulator's command, which npm installs at the first use; skips without npm."""
    command = _FOLDER / "node_modules" / ".bin" / "azurite-blob"
    npm = shutil.which("npm")
    if not command.exists():
        if npm is None:
            pytest.skip("npm, which installs Azurite, is not installed")
        options = ("--no-audit", "--no-fund", "--loglevel=error")
        install = [npm, "install", *options, "--prefix", str(_FOLDER), f"azurite@{VERSION}"]
        done = subprocess.run(install, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"Azurite cannot be installed: {done.stderr.strip()[-200:]}")
    return command


@contextmanager
def running_azurite(folder: Path, container: str) -> Iterator[dict[str, str]]:
    """Run the emulator with an empty container; yield the storage options of the account."""
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
    command = [str(installed()), "--inMemoryPersistence", "--disableTelemetry", "--silent"]
    # Clients may ask with a version of the API that is newer than the emulator.
    command += ["--skipApiVersionCheck", "--blobPort", str(port)]
    with (folder / "azurite.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        wait_for(lambda: _is_created(endpoint, container), "the emulator answers")
        yield {
            "azure_storage_account_name": ACCOUNT,
            "azure_storage_account_key": KEY,
            "azure_storage_endpoint": endpoint,
            "azure_allow_http": "true",
        }
    finally:
        process.terminate()
        process.wait()


def _is_created(endpoint: str, container: str) -> bool:
    """Create a container, as its owner would in the portal; return whether the server answers."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": _API_VERSION}
    signed = "\n".join(
        [
            "PUT",
            *["", "", "", "", _CONTENT_TYPE, "", "", "", "", "", ""],
            *(f"{name}:{value}" for name, value in sorted(headers.items())),
            f"/{ACCOUNT}/{ACCOUNT}/{container}",
            "restype:container",
        ]
    )
    digest = hmac.new(base64.b64decode(KEY), signed.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
    headers["Content-Type"] = _CONTENT_TYPE
    request = Request(
        f"{endpoint}/{container}?restype=container", method="PUT", headers=headers, data=b""
    )
    try:
        with urlopen(request, timeout=5) as response:
            return bool(response.status == 201)
    except (URLError, ConnectionError):
        return False
