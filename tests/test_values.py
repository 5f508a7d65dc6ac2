"""Values that are hard to write down, where they are released and compared again: the answers are those of DuckDB."""

from __future__ import annotations

from functools import cache
from typing import Any

import duckdb
import pytest

import dpsql
from dpsql.compiler.given import written
from dpsql.errors import Unfinished

PERSONS = 900
NUMBERS = "['nan'::DOUBLE, 'inf'::DOUBLE, '-inf'::DOUBLE, 1.5::DOUBLE, 0.5::DOUBLE, -2.5::DOUBLE]"
TEXTS = "['a' || chr(0) || 'b', 'ab', '', chr(0), chr(0) || chr(0) || 'c''d', 'é' || chr(0)]"
DAYS = "['0044-03-15 (BC)', '12000-01-01', 'infinity', '-infinity', '2020-01-01', '9999-12-31']"
TIMES = "['0044-03-15 (BC) 01:02:03.000004', '12000-01-01', 'infinity', '-infinity', '2020-01-01 01:02:03', '9999-12-31 23:59:59.999999']"
COLUMNS = {"z": "DOUBLE", "f": "FLOAT", "s": "VARCHAR", "d": "DATE", "t": "TIMESTAMP"}


@cache
def database() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    cells = ", ".join(
        f"CAST({values}[1 + i % 6] AS {type_}) AS {word}"
        for (word, type_), values in zip(COLUMNS.items(), (NUMBERS, NUMBERS, TEXTS, DAYS, TIMES), strict=True)
    )
    connection.execute(f"CREATE TABLE p AS SELECT CAST(i AS BIGINT) AS id, {cells} FROM range({PERSONS}) AS r(i)")
    connection.execute(
        "CREATE TABLE long AS SELECT i AS id, repeat('x', 500 * (1 + i % 3)) AS s FROM range(900) AS r(i)"
    )
    spans = "CASE i % 3 WHEN 0 THEN INTERVAL '1 month' WHEN 1 THEN INTERVAL '30 days' ELSE INTERVAL '20000 years' END"
    connection.execute(f"CREATE TABLE span AS SELECT i AS id, {spans} AS i FROM range(900) AS r(i)")
    return connection


@cache
def session() -> dpsql.Session:
    table = {"person": "id", "max_rows_contributed": 1}
    policy: dict[str, Any] = {
        "dataset": {"id": "values"},
        "budget": {"epsilon": 1e20, "delta": 1e-6},
        "defaults": {"epsilon": 1e12, "max_groups_contributed": 1},
        "tables": {"p": table, "long": table, "span": table},
    }
    return dpsql.connect(database(), policy=policy, ledger=":memory:")


FORMS = (
    "SELECT count(*) FROM p WHERE {x} IN (SELECT {x} FROM p GROUP BY {x})",
    "SELECT count(*) FROM p WHERE {x} NOT IN (SELECT {x} FROM p WHERE id % 6 < 3 GROUP BY {x})",
    "SELECT count(*) FROM p WHERE id < 6 OR {x} IN (SELECT {x} FROM p WHERE id % 6 < 3 GROUP BY {x})",
    "SELECT count(*) FROM p WHERE {x} = (SELECT max({x}) FROM (SELECT {x}, count(*) FROM p GROUP BY {x}))",
    "SELECT count(*) FROM p WHERE {x} > (SELECT min({x}) FROM (SELECT {x}, count(*) FROM p GROUP BY {x}))",
    "SELECT count(*) FROM p WHERE {x} <= (SELECT max({x}) FROM (SELECT {x}, count(*) FROM p WHERE id % 6 < 2 GROUP BY {x}))",
    "SELECT count(*) FROM p JOIN (SELECT {x}, count(*) AS n FROM p GROUP BY {x}) AS r ON p.{x} = r.{x}",
    "SELECT CAST({x} AS VARCHAR) AS v, count(*) FROM p GROUP BY {x} ORDER BY v",
)  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("column", COLUMNS)
def test_as_in_the_engine(column: str, form: str) -> None:
    query = form.format(x=column)
    assert session().sql(query).fetchall() == database().sql(query).fetchall()


@pytest.mark.parametrize("column", COLUMNS)
def test_a_stored_answer_has_them_too(column: str) -> None:
    query = f"SELECT {column}, count(*) FROM p GROUP BY {column}"
    first, second = (repr(session().sql(query, query_id=f"keys {column}").fetchall()) for _ in range(2))
    assert first == second


def test_long_texts_are_no_keys_and_a_note_says_so() -> None:
    answer = session().sql("SELECT length(s) AS n, count(*) FROM long GROUP BY s ORDER BY n")
    assert answer.fetchall() == [(500, 300), (1000, 300), (None, 300)]
    assert "texts of long.s with more than 1024 bytes are counted under NULL" in answer.notes
    listed = session().sql("SELECT count(*) FROM long WHERE s IN (SELECT s FROM long GROUP BY s)")
    assert listed.fetchall() == [(600,)]
    assert "texts of long.s with more than 1024 bytes are counted under NULL" in listed.notes


def test_too_many_zeros_are_said_and_not_dropped() -> None:
    """The text was released, so the reason may be shown."""
    assert written("a\0b").sql("duckdb") == "CONCAT('a', CHR(0), 'b')"
    with pytest.raises(Unfinished, match="characters 0"):
        written("a\0" * 40)


def test_long_intervals_are_no_keys_and_a_note_says_so() -> None:
    answer = session().sql("SELECT epoch_us(i) AS n, count(*) FROM span GROUP BY i ORDER BY n")
    assert answer.fetchall() == [(2_592_000_000_000, 600), (None, 300)]
    assert "intervals of span.i with more than 10,000 years are counted under NULL" in answer.notes
