"""Parameters are constants of the algebra: a query with them is the query with the values written in."""

from __future__ import annotations

import datetime
import math
import sqlite3
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
import shop

import dpsql

DAY, MOMENT = datetime.date(2020, 1, 20), datetime.datetime(2021, 1, 10, 2, 30)
PAIRS: list[tuple[str, object, str]] = [
    ("SELECT count(*) FROM customer WHERE age > ?", [40], "SELECT count(*) FROM customer WHERE age > 40"),
    ("SELECT count(*) FROM customer WHERE age > $1", (40,), "SELECT count(*) FROM customer WHERE age > 40"),
    ("SELECT count(*) FROM customer WHERE age > $Low", {"low": 40}, "SELECT count(*) FROM customer WHERE age > 40"),
    ("SELECT count(*) FROM customer WHERE age IN ($a,$b)", {"a": 40, "b": 41},
     "SELECT count(*) FROM customer WHERE age IN (40, 41)"),
    ("SELECT count(*) FROM customer WHERE age=$2+$1", [2, 40], "SELECT count(*) FROM customer WHERE age = 40 + 2"),
    ("SELECT count(*) FROM customer WHERE age BETWEEN $a AND $a", {"a": 40},
     "SELECT count(*) FROM customer WHERE age BETWEEN 40 AND 40"),
    ("SELECT count(*) FROM customer WHERE balance < ?", [-12.5], "SELECT count(*) FROM customer WHERE balance < -1.25e1"),
    ("SELECT count(*) FROM customer WHERE score < ?", [Decimal("12.50")], "SELECT count(*) FROM customer WHERE score < 12.50"),
    ("SELECT count(*) FROM customer WHERE segment = ?", ["it's; DROP TABLE customer --"],
     "SELECT count(*) FROM customer WHERE segment = 'it''s; DROP TABLE customer --'"),
    ("SELECT count(*) FROM customer WHERE member = ?", [True], "SELECT count(*) FROM customer WHERE member = true"),
    ("SELECT count(*) FROM customer WHERE joined < ?", [DAY], "SELECT count(*) FROM customer WHERE joined < DATE '2020-01-20'"),
    ("SELECT count(*) FROM customer WHERE joined < ?", ["2020-01-20"],
     "SELECT count(*) FROM customer WHERE joined < '2020-01-20'"),
    ("SELECT count(*) FROM orders WHERE placed < ?", [MOMENT],
     "SELECT count(*) FROM orders WHERE placed < TIMESTAMP '2021-01-10 02:30:00'"),
    ("SELECT segment, sum(age * ?) AS x FROM customer WHERE age < ? GROUP BY segment HAVING count(*) > ? ORDER BY 2 LIMIT ? OFFSET ?",
     [2, 90, 0, 2, 1],
     "SELECT segment, sum(age * 2) AS x FROM customer WHERE age < 90 GROUP BY segment HAVING count(*) > 0 ORDER BY 2 LIMIT 2 OFFSET 1"),
]  # fmt: skip


@pytest.mark.parametrize(("query", "parameters", "written"), PAIRS, ids=[pair[0] for pair in PAIRS])
def test_the_plan_is_that_of_the_query_with_the_values(
    clean: dpsql.Session, query: str, parameters: object, written: str
) -> None:
    assert repr(clean.explain(query, parameters).plan) == repr(clean.explain(written).plan)
    assert clean.sql(query, parameters, epsilon=1e9).fetchall() == clean.sql(written, epsilon=1e9).fetchall()
    assert list(clean.sql("EXPLAIN PRIVACY " + query, parameters)) == list(clean.sql("EXPLAIN PRIVACY " + written))


@pytest.mark.parametrize(
    ("query", "parameters"),
    [
        ("SELECT count(*) + ?, sum(age) / ?, -? AS m FROM customer WHERE age <> ?", [2, 4, 1, 50]),
        ("SELECT count(*) + $n, $n FROM customer WHERE segment = $s", {"n": 2**40, "s": "family"}),
        ("SELECT count(*) * $1 FROM customer", [Decimal("1E+2")]),
    ],
)
def test_names_types_and_values_are_duckdbs(clean: dpsql.Session, query: str, parameters: Any) -> None:
    answer, exact = clean.sql(query, parameters, epsilon=1e9), shop.database(shop.clean()).execute(query, parameters)
    assert answer.columns == tuple(column[0] for column in exact.description)
    assert answer.types == tuple(str(column[1]) for column in exact.description)
    for mine, theirs in zip(answer.fetchall(), exact.fetchall(), strict=True):
        assert all(math.isclose(a, b, rel_tol=1e-6) for a, b in zip(mine, theirs, strict=True))


AGE = "SELECT count(*) FROM customer WHERE age > "


@pytest.mark.parametrize(
    ("query", "parameters", "code"),
    [
        (AGE + "?", None, "parameter_missing"),
        (AGE + "?", [], "parameter_missing"),
        (AGE + "? AND age < ?", [1], "parameter_missing"),
        (AGE + "$b", {"a": 1}, "parameter_missing"),
        (AGE + "$2", [1, 2], "parameter_unknown"),
        (AGE + "?", [1, 2], "parameter_unknown"),
        (AGE + "1", {"a": 1}, "parameter_unknown"),
        ("SHOW BUDGET", [1], "parameter_unknown"),
        (AGE + "$a", {"a": 1, "A": 1}, "parameter_invalid"),
        (AGE + "?", "1", "parameter_invalid"),
        (AGE + "?", 1, "parameter_invalid"),
        (AGE + "?", {1: 1}, "parameter_invalid"),
        (AGE + "?", [None], "parameter_invalid"),
        (AGE + "?", [b"1"], "parameter_invalid"),
        (AGE + "?", [[1]], "parameter_invalid"),
        (AGE + "?", [1j], "parameter_invalid"),
        (AGE + "?", [math.nan], "parameter_invalid"),
        (AGE + "?", [-math.inf], "parameter_invalid"),
        (AGE + "?", [2**127], "parameter_invalid"),
        (AGE + "?", [Decimal("NaN")], "parameter_invalid"),
        (AGE + "?", [Decimal("1E+999999")], "parameter_invalid"),
        (AGE + "?", [Decimal("1." + "1" * 39)], "parameter_invalid"),
        (AGE + "?", [np.int64(1)], "parameter_invalid"),
        ("SELECT count(*) FROM customer WHERE segment = ?", ["\0"], "parameter_invalid"),
        ("SELECT count(*) FROM customer WHERE segment = ?", ["\ud800"], "parameter_invalid"),
        ("SELECT count(*) FROM customer WHERE segment = ?", ["x" * 70_000], "too_long"),
        ("SELECT count(*) FROM orders WHERE placed < ?", [MOMENT.replace(tzinfo=datetime.UTC)], "parameter_invalid"),
        ("SELECT count(*) FROM customer LIMIT ?", [-1], "parameter_invalid"),
        ("SELECT count(*) FROM customer LIMIT ?", [True], "parameter_invalid"),
        ("SELECT count(*) FROM customer LIMIT ?", [1.0], "parameter_invalid"),
        ("SELECT segment, count(*) FROM customer GROUP BY ?", [1], "key_not_supported"),
        ("SELECT segment, count(*) FROM customer GROUP BY segment ORDER BY ?", [1], "position_invalid"),
        ("SELECT count(*) FROM ?", ["customer"], "syntax"),
        (AGE + "? AND age < $1", [1], "parameters_mixed"),
        (AGE + "$a AND age < $1", {"a": 1, "1": 2}, "parameters_mixed"),
        (AGE + ":a", {"a": 1}, "syntax"),
        (AGE + '$"a b"', {"a b": 1}, "syntax"),
        (AGE + "$1.5", [1], "not_supported"),
        (AGE + "$0", [1], "syntax"),
        (AGE + "$a$x$a$", {"a$x$a$": 1}, "syntax"),
        (AGE + "?", ["abc"], "type_mismatch"),
        ("SELECT count(*) FROM customer WHERE joined < ?", ["soon"], "literal_invalid"),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_refused_before_the_charge(clean: dpsql.Session, query: str, parameters: object, code: str) -> None:
    spent = clean.budget.spent
    with pytest.raises(dpsql.Refused) as refusal:
        clean.sql(query, parameters)
    assert refusal.value.code == code
    assert clean.budget.spent == spent


def test_a_missing_parameter_names_its_place(clean: dpsql.Session) -> None:
    with pytest.raises(dpsql.Refused) as refusal:
        clean.sql(AGE + "? AND age < ?", [1])
    assert refusal.value.position == len(AGE + "? AND age < ") and "$2" in refusal.value.message


def test_the_ledger_keeps_the_text_and_not_the_values(tmp_path: Path) -> None:
    db = dpsql.connect(shop.database(shop.clean()), policy=shop.policy(), ledger=tmp_path / "x.ledger")
    query = "SELECT count(*) FROM customer WHERE segment = $1"
    db.sql(query, ["s3cret"])
    with sqlite3.connect(tmp_path / "x.ledger") as ledger:
        assert {row[0] for row in ledger.execute("SELECT text FROM entry WHERE state = 'reserved'")} == {query}
        assert not any("s3cret" in str(row) for row in ledger.execute("SELECT * FROM entry"))


def test_duckdb_counts_question_marks_alike() -> None:
    """By their order in the text."""
    query = "SELECT ? AS a FROM range(3) t(i) WHERE i >= ? ORDER BY i LIMIT ? OFFSET ?"
    assert duckdb.connect().execute(query, [7, 0, 1, 2]).fetchall() == [(7,)]
