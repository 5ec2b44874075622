"""Streams over what is available now, run to their end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pyspark.errors import StreamingQueryException

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_SECONDS = 240


def run_to_end(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Start a stream that reads what is available now, and return it when it has ended.

    It is started once more, as an operator would, where Spark gave up on a worker: it gives one
    that plans a micro-batch 10 s to connect, whatever its settings say, which a busy machine
    exceeds.
    """
    query = start()
    try:
        assert query.awaitTermination(_SECONDS), "the stream does not end"
    except StreamingQueryException as error:
        if "failed to connect back" not in str(error):
            raise
        query = start()
        assert query.awaitTermination(_SECONDS), "the stream does not end"
    return query
