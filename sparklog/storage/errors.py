"""The exceptions of reading and writing tables, as tuples for `except`."""

from __future__ import annotations

import pyarrow as pa
from deltalake.exceptions import DeltaError

from sparklog.errors import SparklogError, StorageError

STORE_ERRORS = (DeltaError, OSError)
"""The errors of delta-rs, object stores and file systems."""

UNREADABLE = (StorageError, *STORE_ERRORS)
"""The errors of reading the tables of a root."""

UNREADABLE_CONTENT = (SparklogError, *STORE_ERRORS, pa.ArrowException)
"""The errors of reading the tables of a root and decoding their files."""
