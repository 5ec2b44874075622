"""Hadoop's file system of S3 for Spark, of the same version as Spark's Hadoop.

Users take the package `hadoop-aws` as it is. It brings all of Amazon's SDK in one file of 600 MB;
the tests replace that by the few modules that reading needs.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from sparklog.errors import SparklogError
from sparklog.jars import _resolve, _spark_artifacts, ivy_folder
from sparklog.java import java_option, spark_home

_SDK = "2.35.4"
"""The version of Amazon's SDK with which Hadoop 3.5.0 was published."""

_MODULES = ("s3", "s3-transfer-manager", "sts", "apache-client", "netty-nio-client")


def s3a_jars() -> list[Path]:
    """Return the JARs, which are fetched once; skip the test if they cannot be fetched."""
    [hadoop] = (spark_home() / "jars").glob("hadoop-client-api-*.jar")
    version = re.sub(r"^hadoop-client-api-|\.jar$", "", hadoop.name)
    ivy = ivy_folder().absolute()
    note = ivy / "resolved" / f"hadoop-aws-{version}-{_SDK}.json"
    if not note.is_file():
        packages = [f"org.apache.hadoop:hadoop-aws:{version}"]
        packages += [f"software.amazon.awssdk:{module}:{_SDK}" for module in _MODULES]
        excluded = [f"*:{artifact}" for artifact in _spark_artifacts()]
        settings = {
            "spark.jars.ivy": str(ivy),
            "spark.jars.packages": ",".join(packages),
            "spark.jars.excludes": ",".join([*excluded, "software.amazon.awssdk:bundle"]),
        }
        options = [java_option("user.home", str(ivy))]
        try:
            names = _resolve(settings, options, ivy / "hadoop-aws.log")
        except SparklogError as error:
            pytest.skip(f"no Java: {error}")
        if names is None:
            pytest.skip("hadoop-aws cannot be fetched: the package registry is out of reach")
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(json.dumps(names))
    return [ivy / "jars" / name for name in json.loads(note.read_text())]
