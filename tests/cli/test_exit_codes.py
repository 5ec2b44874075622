"""Exit codes: each error has one, and docs/operating.md says the same of each."""

from __future__ import annotations

import re

import pytest

from sparklog.cli.exit_codes import ExitCode, exit_code
from sparklog.config import Settings
from sparklog.errors import (
    ApplicationFailedError,
    CommitConflictError,
    ConfigError,
    DamagedError,
    FencedError,
    ProtocolError,
    SparklogError,
    StorageError,
    UnreachableError,
)
from tests.examples import CHECKOUT

DOCUMENT = (CHECKOUT / "docs" / "operating.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SparklogError("e"), ExitCode.UNUSABLE),
        (ConfigError("e"), ExitCode.UNUSABLE),
        (StorageError("e"), ExitCode.UNUSABLE),
        (DamagedError("p", "f", "r"), ExitCode.UNUSABLE),
        (ProtocolError("UNKNOWN_TOPIC_OR_PARTITION"), ExitCode.UNUSABLE),
        (ProtocolError("DUPLICATE_BROKER_REGISTRATION"), ExitCode.TAKEN_OVER),
        (FencedError("e"), ExitCode.TAKEN_OVER),
        (UnreachableError("e"), ExitCode.FAILED),
        (CommitConflictError("e"), ExitCode.FAILED),
        (ApplicationFailedError("e"), ExitCode.FAILED),
    ],
)
def test_an_error_has_the_code_by_which_a_scheduler_acts(
    error: SparklogError, code: ExitCode
) -> None:
    assert exit_code(error) is code


def test_the_document_lists_each_code_with_its_reaction() -> None:
    rows = re.findall(r"^\| (\d+) \| (\w+) \| .* \| (yes|no) \|$", DOCUMENT, re.MULTILINE)
    expected = [(str(int(one)), one.name, "yes" if one.restart else "no") for one in ExitCode]
    assert rows == expected


def test_the_unit_file_in_the_document_restarts_by_the_codes() -> None:
    """Of the failures, systemd restarts those that a restart may end."""
    [listed] = re.findall(r"^RestartPreventExitStatus=(.*)$", DOCUMENT, re.MULTILINE)
    failures = [one for one in ExitCode if one is not ExitCode.DONE]
    assert listed.split() == [str(int(one)) for one in failures if not one.restart]


def test_the_document_has_the_defaults_of_its_settings() -> None:
    rows = dict(re.findall(r"^\| `([\w.]+)` \| ([^\s`]+) \|", DOCUMENT, re.MULTILINE))
    fields = {field.alias or name: field for name, field in Settings.model_fields.items()}
    assert {"auto.create.cluster.enable", "file.delete.delay.ms"} <= rows.keys()
    assert rows == {key: str(fields[key].default).lower() for key in rows}
