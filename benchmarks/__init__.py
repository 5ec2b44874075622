"""Benchmarks: sparklog, a real Kafka and plain Delta appends, measured in one run.

    make bench
    python -m benchmarks produce read --scale 0.01

Each work is one row of the table in docs/benchmarks.md; its module describes the measurement.
"""
