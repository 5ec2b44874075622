"""Secrets in storage options are references, which are resolved where a store is opened."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from sparklog.errors import ConfigError
from sparklog.storage.location import Location
from sparklog.storage.references import is_secret, literal_secrets, resolved

URI = "s3://logs/broker-0"


def location(**options: str) -> Location:
    return Location.of(URI, {"s3://logs": options})


def test_a_variable_is_read_at_each_use_of_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable is read at each use of the store, so a changed secret is used at once."""
    at = location(AWS_ACCESS_KEY_ID="an-id", AWS_SECRET_ACCESS_KEY="${LOGS_SECRET}")
    monkeypatch.setenv("LOGS_SECRET", "first")
    assert at.store_options == {"AWS_ACCESS_KEY_ID": "an-id", "AWS_SECRET_ACCESS_KEY": "first"}
    monkeypatch.setenv("LOGS_SECRET", "second")
    assert at.store_options["AWS_SECRET_ACCESS_KEY"] == "second"


def test_a_file_gives_its_text_without_the_end_of_its_line(tmp_path: Path) -> None:
    """The value of `${file:/path}` is the file's text without white space around it."""
    (tmp_path / "secret").write_text("of a file\n")
    at = location(AWS_SECRET_ACCESS_KEY=f"${{file:{tmp_path}/secret}}")
    assert at.store_options == {"AWS_SECRET_ACCESS_KEY": "of a file"}


def test_a_reference_may_be_a_part_of_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reference may stand within a value, and other dollar signs stand for themselves."""
    monkeypatch.setenv("HOST", "store")
    assert resolved({"endpoint": "http://${HOST}:9000", "a": "$x{"}, URI) == {
        "endpoint": "http://store:9000",
        "a": "$x{",
    }


def test_a_location_carries_the_reference_and_never_the_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A location is pickled with the reference, and its representation has no options."""
    monkeypatch.setenv("LOGS_SECRET", "hush-hush")
    at = location(AWS_SECRET_ACCESS_KEY="${LOGS_SECRET}")
    assert at.store_options == {"AWS_SECRET_ACCESS_KEY": "hush-hush"}
    assert b"hush-hush" not in pickle.dumps(at)
    assert "LOGS_SECRET" not in repr(at)
    assert at.child("log").options == {"AWS_SECRET_ACCESS_KEY": "${LOGS_SECRET}"}


def test_a_missing_variable_is_one_error_that_names_the_key_and_the_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each use of a store with an unset variable raises one line with the key and the variable."""
    monkeypatch.delenv("LOGS_SECRET", raising=False)
    at = location(AWS_SECRET_ACCESS_KEY="${LOGS_SECRET}", AWS_REGION="r")
    for use in (lambda: at.store_options, lambda: at.exists("x"), lambda: at.read_bytes("x")):
        with pytest.raises(ConfigError) as told:
            use()
        assert "AWS_SECRET_ACCESS_KEY of s3://logs" in str(told.value)
        assert "no environment variable LOGS_SECRET: set it" in str(told.value)
        assert "\n" not in str(told.value)


def test_a_missing_file_is_one_error_that_names_the_key_and_the_file(tmp_path: Path) -> None:
    """A missing file is one line with the key and the file."""
    at = location(AWS_SECRET_ACCESS_KEY=f"${{file:{tmp_path}/nothing}}")
    with pytest.raises(ConfigError, match=f"SECRET_ACCESS_KEY of .* the file {tmp_path}/nothing"):
        _ = at.store_options


@pytest.mark.parametrize("value", ["${}", "${no name}", "${env:X}", "${file:relative}", "${1}"])
def test_a_malformed_reference_is_refused_before_the_store_is_used(value: str) -> None:
    """A malformed reference is refused by `Location.of`, with the two forms that exist."""
    with pytest.raises(ConfigError, match=r"write \$\{NAME\} .* or \$\{file:/path\}"):
        location(AWS_SECRET_ACCESS_KEY=value)


def test_a_secret_scope_is_refused_with_the_place_where_databricks_resolves_it() -> None:
    """Databricks resolves `{{secrets/...}}` in a cluster's environment variables."""
    with pytest.raises(ConfigError, match="in a cluster's environment variables only: define"):
        location(AWS_SECRET_ACCESS_KEY="{{secrets/logs/key}}")


def test_credentials_are_distinguished_from_other_options() -> None:
    """Credentials are recognised by their keys, also in the spelling of environment variables."""
    secret = (
        *("AWS_SECRET_ACCESS_KEY", "aws_session_token", "token", "secret_access_key"),
        *("azure_storage_account_key", "access_key", "sas_token", "azure_storage_sas_key"),
        *("client_secret", "google_service_account_key", "aws_sse_customer_key_base64"),
    )
    public = ("AWS_ACCESS_KEY_ID", "AWS_REGION", "endpoint", "google_service_account", "client_id")
    assert [key for key in (*secret, *public) if is_secret(key)] == [*secret]
    assert literal_secrets({"token": "x", "client_secret": "${S}", "region": "r"}) == ["token"]


def test_a_url_with_a_password_is_a_credential() -> None:
    """Found by a search of Spark's outputs: an endpoint's password was accepted as an option."""
    urls = {
        "AWS_ENDPOINT_URL": "https://user:password@store",
        "proxy_url": "http://:password@proxy:80/",
        "endpoint": "https://user:${PASSWORD}@store",
        "azure_storage_endpoint": "https://store:80/a:b@c",
    }
    assert literal_secrets(urls) == ["AWS_ENDPOINT_URL", "proxy_url"]


def test_a_file_whose_name_has_a_null_character_is_refused() -> None:
    """Found by hostile input: reading it raised ValueError."""
    with pytest.raises(ConfigError, match="cannot be read"):
        resolved({"key": "${file:/a\0b}"}, URI)


def test_a_file_without_an_end_is_refused() -> None:
    """Found by hostile input: all of a device was read, until the memory was used up."""
    with pytest.raises(ConfigError, match="text of up to 1048576 bytes"):
        resolved({"key": "${file:/dev/zero}"}, URI)
