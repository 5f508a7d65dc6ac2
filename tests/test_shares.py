"""Parts of the budget: even, by the smallest error where that is known, or as the caller says; never more than all of it."""

from __future__ import annotations

from fractions import Fraction

import pytest
import sqlglot
from test_lemmas import catalog

import dpsql
from dpsql.compiler.compile import compile
from dpsql.compiler.program import Program
from dpsql.compiler.shares import shares

ONE, OTHER = "(SELECT count(*) FROM orders)", "(SELECT count(*) FROM customer)"  # 16 rows of a person, and one


def program(query: str, ledger: str = "gdp", weights: tuple[Fraction, ...] | None = None) -> Program:
    made = compile(query, catalog(ledger), Fraction(1), Fraction(1, 10**8), None, weights)
    assert isinstance(made, Program)
    return made


def variance(made: Program) -> float:
    return sum((p.release.mechanisms[0].deviation / p.release.summands[0].weight) ** 2 for p in made.parts)


@pytest.mark.parametrize("ledger", ["gdp", "pure", "zcdp"])
@pytest.mark.parametrize(
    "query",
    [
        f"SELECT {ONE} - {OTHER} AS n",
        f"{ONE[1:-1]} UNION ALL {OTHER[1:-1]}",
        "SELECT 'orders' AS what, count(*) AS n FROM orders UNION ALL SELECT 'customers', count(*) FROM customer",
        f"WITH a AS {ONE}, b AS {OTHER} SELECT * FROM a UNION ALL SELECT * FROM b",
        "SELECT a + b AS n FROM (SELECT count(*) AS a FROM orders), (SELECT count(*) AS b FROM customer)",
        f"SELECT {ONE} * 0.5 + {OTHER} / 2 AS n",
    ],
)
def test_the_error_of_a_sum_is_smallest(query: str, ledger: str) -> None:
    made = program(query, ledger)
    for weight in (1, 2, 4, 8, 12, 32, 64):
        other = program(query, ledger, (Fraction(weight, weight + 1), Fraction(1, weight + 1)))
        assert variance(made) <= variance(other) * 1.02
        assert other.charge.amount == pytest.approx(made.charge.amount, rel=1e-3)


@pytest.mark.parametrize("ledger", ["gdp", "pure", "zcdp"])
def test_parts_never_cost_more_than_the_whole(ledger: str) -> None:
    one = compile("SELECT count(*) FROM orders", catalog(ledger), Fraction(1), Fraction(1, 10**8))
    both = f"SELECT {ONE} AS a, (SELECT count(*) FROM (SELECT country, count(*) FROM orders GROUP BY country)) AS b"
    for weights in ((1, 1), (1, 99), (999, 1)):
        made = program(both, ledger, tuple(Fraction(weight, sum(weights)) for weight in weights))
        assert made.charge.amount <= one.charge.amount
        assert made.charge.delta <= 10**10  # 1e-8


@pytest.mark.parametrize("query", [f"SELECT {ONE} / {OTHER} AS n", f"SELECT {ONE} AS a, {OTHER} AS b"])
def test_others_have_even_parts(query: str) -> None:
    made = program(query)
    assert made.parts[0].charge.amount == pytest.approx(made.parts[1].charge.amount)
    assert shares(sqlglot.parse_one(made.outer, dialect="duckdb"), made.parts) == (Fraction(1, 2),) * 2


def test_weights(clean: dpsql.Session) -> None:
    query = f"SELECT {ONE} / {OTHER} AS n"
    told = clean.explain(query, weights=[3, 1]).plan
    assert told.parts[0].charge.amount == pytest.approx(3 * told.parts[1].charge.amount, rel=1e-6)
    lines = [(line,) for line in str(clean.explain(query, weights=[3, 1])).splitlines()]
    for ask in (clean.sql, clean.rehearse):
        assert ask(f"EXPLAIN PRIVACY {query}", weights=[3, 1]).fetchall() == lines
    assert len(clean.sql(query, weights=[3, 1])) == len(clean.rehearse(query, weights=[3, 1])) == 1
    for weights in ([1], [1, 1, 1], [1, 0], [1, float("nan")], [], "ab", [1e9, 1]):
        with pytest.raises(dpsql.Refused, match="weights_invalid"):
            clean.sql(query, weights=weights)
    with pytest.raises(dpsql.Refused, match="weights_invalid"):
        clean.sql(ONE[1:-1], weights=[1, 2])
