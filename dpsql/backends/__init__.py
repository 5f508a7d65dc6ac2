"""The backends, one file each. A backend says which schema there is, and runs generated SQL on one snapshot."""

from dpsql.backends.duckdb import DuckDB

BACKENDS = (DuckDB,)

__all__ = ["BACKENDS", "DuckDB"]
