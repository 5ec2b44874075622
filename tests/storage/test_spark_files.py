"""Spark's settings for object stores are derived from storage options."""

from __future__ import annotations

import pytest

from sparklog.errors import ConfigError
from sparklog.storage.location import Location
from sparklog.storage.spark_files import spark_files

S3 = "org.apache.hadoop.fs.s3a"


def derived(uri: str, **options: str) -> dict[str, str]:
    """Return the derived options without the prefix of the bucket or the suffix of the account."""
    found = spark_files(Location.of(uri, {uri.partition("://")[0] + "://": options})).options
    return {
        name.removeprefix("fs.s3a.bucket.logs.").removesuffix(".acc.dfs.core.windows.net"): value
        for name, value in found.items()
    }


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("s3://logs/a/b", "s3a://logs/a/b"),
        ("s3a://logs/a", "s3a://logs/a"),
        ("gs://logs/a", "gs://logs/a"),
        ("abfss://c@acc.dfs.core.windows.net/a", "abfss://c@acc.dfs.core.windows.net/a"),
        ("abfs://c@acc.dfs.core.windows.net/a", "abfss://c@acc.dfs.core.windows.net/a"),
        ("/data/a", "/data/a"),
    ],
)
def test_spark_gets_the_scheme_of_its_own_file_system(uri: str, expected: str) -> None:
    """s3:// is s3a:// for Spark, and abfs:// is abfss://."""
    assert spark_files(Location.of(uri)).uri == expected


def test_a_container_of_azure_needs_the_name_of_its_account() -> None:
    """az:// has no account, so the storage options name it."""
    options = {"az://": {"azure_storage_account_name": "acc"}}
    files = spark_files(Location.of("az://c/a", options))
    assert files.uri == "abfss://c@acc.dfs.core.windows.net/a"
    with pytest.raises(ConfigError, match="name no account"):
        spark_files(Location.of("az://c/a"))


def test_an_endpoint_and_credentials_of_s3_are_those_of_the_bucket() -> None:
    """Endpoint, region, path style and credentials apply to the bucket alone."""
    assert derived(
        "s3://logs/a",
        AWS_ENDPOINT_URL="http://store:9000",
        AWS_ALLOW_HTTP="true",
        AWS_REGION="eu-central-1",
        AWS_ACCESS_KEY_ID="${ID}",
        AWS_SECRET_ACCESS_KEY="${SECRET}",
        max_retries="3",
    ) == {
        "endpoint": "http://store:9000",
        "endpoint.region": "eu-central-1",
        "connection.ssl.enabled": "false",
        "path.style.access": "true",
        "access.key": "${env.ID}",
        "secret.key": "${env.SECRET}",
        "aws.credentials.provider": f"{S3}.SimpleAWSCredentialsProvider",
    }
    assert list(spark_files(Location.of("s3://b", {"s3://b": {"region": "r"}})).options) == [
        "fs.s3a.bucket.b.endpoint.region"
    ]


def test_an_endpoint_with_a_password_is_refused() -> None:
    """Spark redacts options by their names, and shows endpoints."""
    with pytest.raises(ConfigError, match="endpoint of s3://logs has a password") as told:
        derived("s3://logs/a", AWS_ENDPOINT_URL="http://user:hush-hush@store:9000")
    assert "hush-hush" not in str(told.value)


def test_without_options_sparks_own_settings_apply() -> None:
    """Without storage options nothing is set: Spark's own configuration applies."""
    assert derived("s3://logs/a") == derived("gs://logs/a") == {}


def test_session_tokens_and_anonymous_access_have_their_providers() -> None:
    """A session token and skip_signature choose Hadoop's providers for them."""
    token = derived("s3a://logs", access_key_id="i", secret_access_key="${S}", token="${T}")
    assert token["aws.credentials.provider"] == f"{S3}.TemporaryAWSCredentialsProvider"
    assert token["session.token"] == "${env.T}"
    anonymous = derived("s3://logs", skip_signature="true", virtual_hosted_style_request="true")
    assert anonymous == {
        "aws.credentials.provider": f"{S3}.AnonymousAWSCredentialsProvider",
        "path.style.access": "false",
    }


def test_azures_credentials_are_those_of_the_account() -> None:
    """A key, a SAS token and a service principal apply to the account alone."""
    uri = "abfss://c@acc.dfs.core.windows.net/a"
    assert derived(uri, azure_storage_account_key="${K}") == {
        "fs.azure.account.auth.type": "SharedKey",
        "fs.azure.account.key": "${env.K}",
    }
    assert derived(uri, sas_token="${SAS}") == {
        "fs.azure.account.auth.type": "SAS",
        "fs.azure.sas.fixed.token": "${env.SAS}",
    }
    principal = derived(uri, client_id="i", azure_client_secret="${S}", tenant_id="t")
    assert principal["fs.azure.account.auth.type"] == "OAuth"
    assert principal["fs.azure.account.oauth2.client.secret"] == "${env.S}"
    assert principal["fs.azure.account.oauth2.client.endpoint"].endswith(".com/t/oauth2/token")


def test_the_key_file_of_a_service_account_is_named_for_gs() -> None:
    """The file of google_service_account is named to the connector."""
    assert derived("gs://logs", google_service_account="/k.json") == {
        "fs.gs.auth.type": "SERVICE_ACCOUNT_JSON_KEYFILE",
        "fs.gs.auth.service.account.json.keyfile": "/k.json",
    }


@pytest.mark.parametrize(
    ("uri", "options", "sentence"),
    [
        ("s3://b", {"secret_access_key": "${file:/s}"}, "refers to a file, which Spark's own"),
        ("abfss://c@a.b", {"account_key": "bGl0ZXJhbA=="}, "Spark would show it in its plans"),
        ("gs://b", {"service_account_key": "{}"}, "reads from a file only"),
    ],
)
def test_a_secret_that_spark_cannot_keep_is_refused(
    uri: str, options: dict[str, str], sentence: str
) -> None:
    """A secret in a form that Spark does not have, or would show, is refused without its value."""
    with pytest.raises(ConfigError, match=sentence) as told:
        spark_files(Location.of(uri, {uri: options}))
    assert "bGl0" not in str(told.value)
