"""Files of object stores as Spark's own readers open them: URIs and settings, from storage options.

Spark opens s3a://, abfss:// and gs:// by Hadoop's file systems. Their settings are given as options
of each DataFrame, so that they apply to a running session, also with Spark Connect, and leave its
configuration as it is. A reference to an environment variable remains one: Hadoop resolves it in
the driver and in each executor.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from sparklog.errors import ConfigError, SparklogError
from sparklog.session import hadoop_version, is_connect, spark_errors
from sparklog.storage.location import Location
from sparklog.storage.references import for_hadoop, has_password, literal_secrets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SCHEMES = {"s3": "s3a", "s3a": "s3a", "abfs": "abfss", "abfss": "abfss", "gs": "gs"}
_AZURE_CONTAINERS = ("az", "azure", "adl")

_PACKAGES = {
    "s3a": "org.apache.hadoop:hadoop-aws:{hadoop}",
    "abfss": "org.apache.hadoop:hadoop-azure:{hadoop}",
    "gs": "com.google.cloud.bigdataoss:gcs-connector:4.0.0",
}
"""The Maven coordinates of the file systems; Hadoop's are published with each of its releases."""

_MISSING = {
    "s3a": r"fs\.s3a\.S3AFileSystem not found|software[./]amazon[./]awssdk",
    "abfss": r"fs\.azurebfs\.SecureAzureBlobFileSystem not found",
    "gs": r"GoogleHadoopFileSystem not found",
}
"""Patterns of Hadoop's errors if the classes of a file system are missing."""

_PREFIX = re.compile(r"^(aws_|azure_storage_|azure_|google_)")
_ALIASES = {
    "endpoint_url": "endpoint",
    "default_region": "region",
    "token": "session_token",
    "access_key": "account_key",
    "master_key": "account_key",
    "sas_token": "sas_key",
    "authority_id": "tenant_id",
    "service_account_path": "service_account",
}
"""The alternative keys that delta-rs accepts, without their prefix."""


class SparkFiles(NamedTuple):
    """The URI of a location for Spark's readers, and the options to read files there.

    Spark redacts the options that are credentials, because of their names.
    """

    uri: str
    options: Mapping[str, str]


def spark_files(location: Location) -> SparkFiles:
    """Return the URI and the reader options with which Spark reads files at `location`.

    Raises `ConfigError` if an option has no form in which Spark keeps it secret.
    """
    if location.is_local:
        return SparkFiles(location.uri, {})
    uri = spark_uri(location)
    scheme, store, *_ = urlsplit(uri)
    options = _options(location)
    if scheme == "s3a":
        return SparkFiles(uri, _s3a(store, options))
    if scheme == "gs":
        return SparkFiles(uri, _gs(options, location.uri))
    return SparkFiles(uri, _abfss(store.rpartition("@")[2], options, location.uri))


def spark_uri(location: Location) -> str:
    """Return the URI of a location with the scheme that Spark reads."""
    if location.is_local:
        return location.uri
    scheme, store, path, *_ = urlsplit(location.uri)
    if scheme in _AZURE_CONTAINERS:
        account = _options(location).get("account_name")
        if account is None:
            raise ConfigError(
                f"the storage options of {location.uri} name no account, which Spark needs: add "
                "azure_storage_account_name, or write abfss://container@account.dfs.core.windows.net"
            )
        return f"abfss://{store}@{account}.dfs.core.windows.net{path}"
    return f"{_SCHEMES.get(scheme, scheme)}://{store}{path}"


def check_secrets(spark: SparkSession, location: Location) -> None:
    """Raise `ConfigError` if Spark would show a credential of the location's store.

    Spark redacts options in its plans and its UI. The UI of Spark Connect shows a request as it
    came, so credentials must be references there.
    """
    literal = literal_secrets(location.options)
    if literal and not location.is_local and is_connect(spark):
        raise ConfigError(
            f"the storage option {literal[0]} of {location.uri} is a secret that Spark Connect "
            "would show in its UI: refer to an environment variable of the server, as ${NAME}"
        )


@contextmanager
def file_systems_needed(spark: SparkSession) -> Iterator[None]:
    """Turn Spark's error about a missing file system into one line with the remedy."""
    try:
        yield
    except spark_errors() as error:
        for scheme, package in _PACKAGES.items():
            unknown = rf'No FileSystem for scheme "?{scheme}\b'
            if re.search(f"{unknown}|{_MISSING[scheme]}", str(error)):
                coordinate = package.format(hadoop=hadoop_version(spark))
                raise SparklogError(
                    f"this Spark has no file system for {scheme}://: start it with --packages "
                    f"{coordinate}, or by spark_session(config={{'spark.jars.packages': "
                    f"'{coordinate}'}})"
                ) from error
        raise


def _options(location: Location) -> dict[str, str]:
    """Return the options under one key each, with references in Hadoop's notation."""
    found = {}
    for name, value in location.options.items():
        key = _PREFIX.sub("", name.lower())
        found[_ALIASES.get(key, key)] = for_hadoop(name, value, location.uri)
    return found


def _s3a(bucket: str, options: Mapping[str, str]) -> dict[str, str]:
    settings = {}
    names = {
        "region": "endpoint.region",
        "access_key_id": "access.key",
        "secret_access_key": "secret.key",
        "session_token": "session.token",
        "request_payer": "requester.pays.enabled",
    }
    for key, name in names.items():
        if key in options:
            settings[name] = options[key]
    if "endpoint" in options:
        if has_password(options["endpoint"]):
            raise ConfigError(
                f"the endpoint of s3://{bucket} has a password, and Spark would show it in its "
                "plans: write the endpoint without it, or read with format('sparklog')"
            )
        settings["endpoint"] = options["endpoint"]
        settings["connection.ssl.enabled"] = _text(not options["endpoint"].startswith("http://"))
    if "endpoint" in options or "virtual_hosted_style_request" in options:
        is_virtual = options.get("virtual_hosted_style_request", "false").lower() == "true"
        settings["path.style.access"] = _text(not is_virtual)
    provider = _s3a_provider(options)
    if provider is not None:
        settings["aws.credentials.provider"] = f"org.apache.hadoop.fs.s3a.{provider}"
    return {f"fs.s3a.bucket.{bucket}.{name}": value for name, value in settings.items()}


def _s3a_provider(options: Mapping[str, str]) -> str | None:
    if options.get("skip_signature", "false").lower() == "true":
        return "AnonymousAWSCredentialsProvider"
    if "secret_access_key" not in options:
        return None
    if "session_token" in options:
        return "TemporaryAWSCredentialsProvider"
    return "SimpleAWSCredentialsProvider"


def _abfss(account: str, options: Mapping[str, str], uri: str) -> dict[str, str]:
    settings: dict[str, str] = {}
    if "account_key" in options:
        if "${" not in options["account_key"]:
            raise ConfigError(
                f"the account key of {uri} is written out, and Spark would show it in its plans: "
                "refer to an environment variable, as ${NAME}"
            )
        settings = {"account.auth.type": "SharedKey", "account.key": options["account_key"]}
    elif "sas_key" in options:
        settings = {"account.auth.type": "SAS", "sas.fixed.token": options["sas_key"]}
    elif "client_secret" in options:
        tenant = options.get("tenant_id", "common")
        settings = {
            "account.auth.type": "OAuth",
            "account.oauth.provider.type": "org.apache.hadoop.fs.azurebfs.oauth2."
            "ClientCredsTokenProvider",
            "account.oauth2.client.id": options.get("client_id", ""),
            "account.oauth2.client.secret": options["client_secret"],
            "account.oauth2.client.endpoint": f"https://login.microsoftonline.com/{tenant}"
            "/oauth2/token",
        }
    return {f"fs.azure.{name}.{account}": value for name, value in settings.items()}


def _gs(options: Mapping[str, str], uri: str) -> dict[str, str]:
    if "service_account_key" in options:
        raise ConfigError(
            f"the storage options of {uri} contain a service account's key, which Spark reads from "
            "a file only: name the file in google_service_account"
        )
    if "service_account" not in options:
        return {}
    return {
        "fs.gs.auth.type": "SERVICE_ACCOUNT_JSON_KEYFILE",
        "fs.gs.auth.service.account.json.keyfile": options["service_account"],
    }


def _text(value: bool) -> str:
    return str(value).lower()
