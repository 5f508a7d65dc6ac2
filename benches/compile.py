"""How long planning takes: `python benches/compile.py [--json] [--quick]`.

Planning is what happens before any row is read: parse, resolve, track, split, limit, climb and allot. The baseline is
sqlglot's own parser on the same text, in the same run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from fractions import Fraction

import sqlglot

from dpsql.compiler.compile import compile
from dpsql.policy.catalog import Catalog, Schema, build, read_policy

POLICY = {
    "budget": {"epsilon": 1.0, "delta": 1e-6},
    "defaults": {"max_rows_contributed": 8},
    "tables": {
        "person": {"person": "id", "columns": {"age": {"between": [0, 120]}, "city": {"in": ["Bern", "Oslo", "Rome"]}}},
        "visit": {
            "person": {"column": "person", "references": "person.id"},
            "columns": {"spend": {"between": [0, 100]}},
        },
        "place": {"public": True},
    },
}
SCHEMAS = {
    "person": [("id", "BIGINT"), ("age", "INTEGER"), ("city", "VARCHAR")],
    "visit": [("person", "BIGINT"), ("place", "VARCHAR"), ("spend", "DOUBLE"), ("at", "TIMESTAMP")],
    "place": [("name", "VARCHAR"), ("country", "VARCHAR")],
}
QUERIES = {
    "count": "SELECT count(*) FROM person",
    "grouped": "SELECT city, count(*), avg(age), sum(age) FROM person WHERE age >= 18 GROUP BY city ORDER BY 2 DESC",
    "private keys": "SELECT date_trunc('month', at) AS m, count(*), sum(spend) FROM visit GROUP BY m",
    "join": "SELECT country, count(*), avg(spend) FROM visit v JOIN place p ON v.place = p.name JOIN person q ON v.person = q.id "
    "WHERE q.age BETWEEN 20 AND 40 AND p.country <> 'CH' GROUP BY country",
    "per person": "WITH t AS (SELECT person, count(*) AS n, sum(spend) AS s FROM visit GROUP BY person HAVING count(*) > 1) "
    "SELECT n, count(*), avg(s) FROM t GROUP BY n",
}


def catalog() -> Catalog:
    schemas = {
        name: Schema(("memory", "main", name), tuple((column, type_, True, False) for column, type_ in columns))
        for name, columns in SCHEMAS.items()
    }
    return build(read_policy(POLICY), schemas)


def median(work: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--quick", action="store_true", help="within a minute")
    options = parser.parse_args()
    repeats, known = (20 if options.quick else 100), catalog()
    figures: dict[str, float] = {}

    def plan(query: str) -> object:
        return compile(query, known, Fraction(1), Fraction(1, 10**8))

    for name, query in QUERIES.items():
        plan(query)
        ours = median(lambda query=query: plan(query), repeats)
        theirs = median(lambda query=query: sqlglot.parse_one(query, dialect="duckdb"), repeats)
        figures[f"{name}_ms"], figures[f"{name}_vs_parse"] = ours * 1e3, ours / theirs
        print(f"{name:14} {ours * 1e3:8.2f} ms   {ours / theirs:6.1f} x sqlglot's parser alone")
    # A query that is four times as long should take about four times as long to plan.
    sizes = [median(lambda n=n: plan(wide(n)), max(repeats // 10, 3)) for n in (25, 100)]
    figures["growth_of_4x"] = sizes[1] / sizes[0]
    print(f"{'four times':14} {sizes[0] * 1e3:8.2f} ms -> {sizes[1] * 1e3:.2f} ms: {sizes[1] / sizes[0]:.1f} x")
    if options.json:
        print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


def wide(conditions: int) -> str:
    return f"SELECT count(*) FROM person WHERE {' AND '.join(f'age <> {i}' for i in range(conditions))}"


if __name__ == "__main__":
    main()
