"""Benchmarks: sparklog, a real Kafka and plain Delta appends, side by side in one go.

    make bench
    python -m benchmarks produce read --scale 0.01

Every work is one row of the table in docs/benchmarks.md; its module says what is measured and how.
"""
