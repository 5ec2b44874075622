"""Streams over the available records, run to their end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pyspark.errors import StreamingQueryException

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_SECONDS = 240


def run_to_end(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Start a stream that reads the available records, and return it once it has ended.

    It is started once more, as an operator would do, if Spark gave up on a worker. Spark gives a
    worker that plans a micro-batch 10 s to connect, without a setting, which a busy machine
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
