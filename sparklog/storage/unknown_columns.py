"""Columns of a control table that a later release has added and that this one does not know.

During an upgrade two releases write to one table. The earlier one overwrites the whole table, so it
must preserve the values of columns that it does not know.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa

from sparklog.model import TableSchema


def with_unknown_columns(
    rows: pa.Table, stored: Sequence[pa.Table], declared: Collection[str], schema: TableSchema
) -> pa.Table:
    """Return `rows` with the unknown columns of the rows that they replace.

    Parameters: `rows`, the new rows with the columns of `schema`; `stored`, the rows of the table's
    files with all of their columns; `declared`, the columns of the table's own schema. Other
    columns are ignored, since a client may append a file with any columns. A row keeps the values
    of the stored row with the same primary key, or of the equal stored row if the table has no key.
    The only row of a table without a key, such as `controller`, keeps them when it changes. New
    rows have nulls.
    """
    known = schema.columns.names
    unknown = {
        field.name: field.type
        for table in stored
        for field in table.schema
        if field.name in declared and field.name not in known
    }
    if not unknown:
        return rows
    before = [row for table in stored for row in table.to_pylist()]
    if not schema.key and len(before) == rows.num_rows == 1:
        replaced = before
    else:
        key = schema.key or tuple(known)
        values = {tuple(row.get(name) for name in key): row for row in before}
        replaced = [values.get(tuple(row[name] for name in key), {}) for row in rows.to_pylist()]
    for name, of_type in unknown.items():
        rows = rows.append_column(name, pa.array([row.get(name) for row in replaced], of_type))
    return rows
