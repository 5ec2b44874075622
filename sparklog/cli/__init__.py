"""The `sparklog` command."""

from sparklog.cli.main import app

__all__ = ["app"]
