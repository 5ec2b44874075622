"""Secrets by reference: values of storage options that are read where they are used.

`${NAME}` is the environment variable NAME of the process that opens the store, `${file:/path}` the
content of a file there without surrounding white space. A location carries the reference, also to
Spark's tasks; its value is in no plan, log or representation.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from sparklog.errors import ConfigError

_REFERENCE = re.compile(r"\$\{([^{}]*)\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FILE = "file:"
_MOST_BYTES = 1 << 20
"""The largest file that a reference may name; keys of service accounts have a few KiB."""
_SECRET_SCOPE = re.compile(r"\{\{\s*secrets/[^{}]*\}\}")
_SECRET_KEY = re.compile(
    r"secret|password|token|sas_|customer_key|(account|access|master|service_account)_key$"
)
_PASSWORD = re.compile(r"://[^/?#\s@]*:[^/?#\s@]*@")
"""The user and the password in a URL."""


def check_references(options: Mapping[str, str], uri: str) -> None:
    """Raise `ConfigError` if the options of the store at `uri` have a malformed reference."""
    for key, value in options.items():
        if _SECRET_SCOPE.search(value):
            raise ConfigError(
                f"the storage option {key} of {uri} names a secret scope, which Databricks "
                "resolves in a cluster's environment variables only: define NAME="
                "{{secrets/scope/key}} there, and write ${NAME} here"
            )
        for name in _REFERENCE.findall(value):
            is_file = name.startswith(_FILE) and name.removeprefix(_FILE).startswith("/")
            if not is_file and not _NAME.fullmatch(name):
                raise ConfigError(
                    f"the storage option {key} of {uri} has a malformed reference: write "
                    "${NAME} for an environment variable, or ${file:/path} for a file"
                )


def resolved(options: Mapping[str, str], uri: str) -> dict[str, str]:
    """Return the options of the store at `uri` with the values that references name.

    Raises `ConfigError` if a variable or file is missing in this process.
    """
    return {
        key: _REFERENCE.sub(lambda found, key=key: _value(found[1], key, uri), value)  # type: ignore[misc]
        if "${" in value
        else value
        for key, value in options.items()
    }


def for_hadoop(key: str, value: str, uri: str) -> str:
    """Return a value in Hadoop's notation, which resolves variables where a file is opened.

    Raises `ConfigError` for a reference to a file, which Hadoop does not have.
    """
    if _REFERENCE.search(value) and f"${{{_FILE}" in value:
        raise ConfigError(
            f"the storage option {key} of {uri} refers to a file, which Spark's own readers cannot "
            "read: refer to an environment variable as ${NAME}, or read with format('sparklog')"
        )
    return _REFERENCE.sub(r"${env.\1}", value)


def literal_secrets(options: Mapping[str, str]) -> list[str]:
    """Return the keys of credentials that are written out instead of referred to.

    A URL with a password, of an endpoint or a proxy, is a credential.
    """
    return [
        key
        for key, value in options.items()
        if (is_secret(key) or has_password(value)) and "${" not in value
    ]


def is_secret(key: str) -> bool:
    """Return whether a storage option is a credential, by its key in delta-rs's spelling."""
    return _SECRET_KEY.search(key.lower()) is not None


def has_password(value: str) -> bool:
    """Return whether a storage option is a URL with a password."""
    return _PASSWORD.search(value) is not None


def _value(name: str, key: str, uri: str) -> str:
    if not name.startswith(_FILE):
        found = os.environ.get(name)
        if found is None:
            raise ConfigError(
                f"the storage option {key} of {uri} refers to ${{{name}}}, and this process has no "
                f"environment variable {name}: set it wherever the store is used, with Spark on "
                "the driver and on every executor"
            )
        return found
    path = name.removeprefix(_FILE)
    try:
        return _limited_bytes(path).decode("utf-8").strip()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or f"it is not text of up to {_MOST_BYTES} bytes"
        raise ConfigError(
            f"the storage option {key} of {uri} refers to the file {path}, which cannot be read "
            f"({reason}): put it wherever the store is used, with Spark on the driver and on every "
            "executor"
        ) from None


def _limited_bytes(path: str) -> bytes:
    """Return the bytes of a file; raises `ValueError` for too many, since a device has no end."""
    with Path(path).open("rb") as file:
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ValueError(f"it has more than {_MOST_BYTES} bytes")
    return content
