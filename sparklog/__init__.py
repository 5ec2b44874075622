"""sparklog: a replicated log in Delta tables, kept by Spark jobs instead of brokers."""

__version__ = "0.1.0"
