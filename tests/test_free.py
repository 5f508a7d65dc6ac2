"""Above the noise: what is free there reads released values only, and gives the same result each time."""

from __future__ import annotations

import duckdb
import pytest
import shop
import spec
import sqlglot
from sqlglot import exp
from test_lemmas import stages

import dpsql
from dpsql.backends.duckdb import repeatable
from dpsql.compiler.aggregates import RULES

FINISHING = [one.query for one in spec.every("shop") if one.file.stem == "finishing" and not one.refused]


@pytest.mark.parametrize("query", FINISHING)
def test_only_the_released_table_is_read(query: str) -> None:
    outer = sqlglot.parse_one(stages(query, "gdp")[0].outer, dialect="duckdb")
    assert {table.name for table in outer.find_all(exp.Table)} == {"released"}


def test_every_aggregate_of_the_engine_is_known(clean: dpsql.Session) -> None:
    """None of them is taken for a function of released values."""
    found = duckdb.execute("SELECT DISTINCT function_name FROM duckdb_functions() WHERE function_type = 'aggregate'")
    for (name,) in found.fetchall():
        if name not in RULES:
            for arguments in ("country", "country, 1"):
                with pytest.raises(dpsql.Refused):
                    clean.explain(f'SELECT country, "{name}"({arguments}) FROM orders GROUP BY country')


def test_what_tells_of_the_outside_is_not_repeatable() -> None:
    outside = [
        "random",
        "uuid",
        "now",
        "today",
        "current_date",
        "current_database",
        "current_setting",
        "getvariable",
        "version",
        "nextval",
        "error",
    ]
    assert not [name for name in outside if name in repeatable()]
    assert {"ntile", "strftime", "list_sum", "printf"} <= repeatable().keys()


def test_equal_rows_come_in_the_order_of_their_keys(clean: dpsql.Session) -> None:
    """Otherwise the engine, and with it the number of its threads, would decide."""
    query = "SELECT tier, segment, row_number() OVER (ORDER BY 1 = 1) AS n FROM customer GROUP BY tier, segment"
    assert [row[2] for row in clean.sql(query)] == list(range(1, 13))


def test_the_cells_that_overflow_are_null(clean: dpsql.Session) -> None:
    query = "SELECT (count(*) + 9223372036854775807) + 9223372036854775807, factorial(CAST(count(*) AS INTEGER)) FROM customer"
    (row,) = clean.sql(query, epsilon=1e9).fetchall()
    assert row == (None, None)


def test_names_of_the_select_list(clean: dpsql.Session) -> None:
    """A name may be used by what follows it, unless a column has it."""
    plain = shop.database(shop.clean())
    query = (
        "SELECT count(*) AS age, age * 2 AS double, double + 1 FROM customer GROUP BY customer.age HAVING count(*) > 1"
    )
    assert sorted(clean.sql(query, epsilon=1e9).fetchall()) == sorted(plain.execute(query).fetchall())
    with pytest.raises(dpsql.Refused, match="later"):
        clean.sql("SELECT later + 1, count(*) AS later FROM customer")
