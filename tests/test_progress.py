"""While a query runs, whoever watches sees which release is on its way, and for how long."""

from __future__ import annotations

import io

import duckdb

import dpsql
from dpsql.progress import Line

POLICY = {
    "dataset": {"id": "long"},
    "budget": {"epsilon": 10, "delta": 1e-6},
    "defaults": {"epsilon": 0.1, "max_rows_contributed": 5},
    "tables": {"t": {"person": "person"}},
}


def test_phases() -> None:
    owner = duckdb.connect()
    owner.execute("CREATE TABLE t AS SELECT range % 300_000 AS person, hash(range) % 100 AS k FROM range(9_000_000)")
    seen: list[tuple[str, float]] = []
    with dpsql.connect(owner, policy=POLICY, ledger=":memory:") as db:
        assert db.progress is None  # nobody sees the standard error of a test
        db.progress = lambda phase, seconds: seen.append((phase, seconds))
        db.sql(
            "SELECT (SELECT count(*) FROM (SELECT k, count(*) FROM t GROUP BY k)) AS a, (SELECT count(*) FROM t) AS b"
        )
    assert {"dpsql: computing release 1 of 2", ""} <= {phase for phase, _ in seen}
    assert seen[-1][0] == "" and all(seconds >= 0 for _, seconds in seen)


def test_line() -> None:
    """Nothing for what is short; wiped when done."""
    stream = io.StringIO()
    line = Line(stream)
    line("computing", 0.5)
    line("", 0.6)
    assert stream.getvalue() == ""
    line("computing", 1.2)
    line("computing", 61)
    line("", 62)
    line("", 63)
    assert stream.getvalue() == "\r\033[Kcomputing … 1 s\r\033[Kcomputing … 61 s\r\033[K"
