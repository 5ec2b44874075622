"""Record the public names of kafka-python and confluent-kafka, for test_migration_document.py.

They are no dependencies of sparklog. In an environment of their own:

    python -m venv clients && clients/bin/pip install kafka-python confluent-kafka
    clients/bin/python tests/record_client_names.py > tests/client_names.json

Methods have the names of their parameters in order, or null if they are not documented. Those of
confluent-kafka's C classes stand in the first line of their docstrings.
"""

from __future__ import annotations

import inspect
import json
import re
from importlib.metadata import version
from typing import Any

VARIADIC: dict[Any, str] = {
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}


def parameters(method: Any) -> list[str] | None:
    """Return the names of a method's parameters without `self`; those that collect have stars."""
    try:
        found = list(inspect.signature(method).parameters.values())
    except ValueError:
        documented = re.match(r"\s*\.\. py:function:: \w+\((.*)\)", method.__doc__ or "")
        return re.findall(r"(\w+)(?:=[-\w]+)?\]?(?:,|$)", documented[1]) if documented else None
    return [VARIADIC.get(one.kind, "") + one.name for one in found if one.name != "self"]


def names(of: type) -> dict[str, list[str] | None]:
    """Return the public methods and attributes of a class."""
    public = {one: getattr(of, one) for one in dir(of) if not one.startswith("_")}
    return {
        name: parameters(member) if callable(member) else None for name, member in public.items()
    }


def main() -> None:
    """Print the names of both packages as JSON."""
    import confluent_kafka
    import kafka
    from confluent_kafka.admin import AdminClient
    from kafka.consumer.fetcher import ConsumerRecord
    from kafka.producer.future import FutureRecordMetadata

    listing = {
        "kafka-python": {
            "version": version("kafka-python"),
            "settings": {
                one.__name__: sorted(one.DEFAULT_CONFIG)
                for one in (kafka.KafkaProducer, kafka.KafkaConsumer, kafka.KafkaAdminClient)
            },
            "errors": sorted(one for one in dir(kafka.errors) if one.endswith("Error")),
            "classes": {
                "producer": names(kafka.KafkaProducer),
                "consumer": names(kafka.KafkaConsumer),
                "admin": names(kafka.KafkaAdminClient),
                "record": dict.fromkeys(ConsumerRecord._fields),
                "future": names(FutureRecordMetadata),
            },
        },
        "confluent-kafka": {
            "version": version("confluent-kafka"),
            "settings": {},
            "errors": ["BufferError", "KafkaException"],
            "classes": {
                "producer": names(confluent_kafka.Producer),
                "consumer": names(confluent_kafka.Consumer),
                "admin": names(AdminClient),
                "message": names(confluent_kafka.Message),
                "error": names(confluent_kafka.KafkaError),
            },
        },
    }
    print(json.dumps(listing, indent=1))


if __name__ == "__main__":
    main()
