"""The `sparklog` command."""

from sparklog.cli.main import app, main

__all__ = ["app", "main"]
