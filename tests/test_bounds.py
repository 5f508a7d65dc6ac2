"""Contribution bounds: the same as the steps by hand, whatever the limits; one row of each person in a group."""

from __future__ import annotations

import random
from fractions import Fraction
from typing import Any

import duckdb
import pytest
import shop
import spec
from forms import by_sql, natively, same
from sql_form import reference
from stages import limited, planned
from test_lemmas import catalog, engine
from test_specs import WIDE, close

import dpsql
from dpsql.compiler.parse import parse
from dpsql.compiler.program import Plan
from dpsql.kernel.keys import PublicKeys

# For each database: tables, the person's column in a query over them, keys and values; 0, 1 and 2 references from the person.
SOURCES = {
    "shop": [
        ("customer", "id", ["segment", "member", "age % 2"], ["age", "balance", "score"]),
        (
            "orders",
            "customer",
            ["status", "country", "month(placed)", "quantity > 4"],
            ["amount", "weight", "quantity"],
        ),
        ("item JOIN orders ON order_id = id", "customer", ["flag", "status", "n"], ["price", "n", "quantity"]),
        (
            "customer c LEFT JOIN orders o ON o.customer = c.id",
            "c.id",
            ["segment", "upper(country)"],
            ["amount", "age + quantity"],
        ),
    ],
    "hospital": [
        ("patient", "id", ["sex", "insurer", "year(born) % 3"], ["height"]),
        ("admission", "patient", ["ward", "emergency"], ["cost", "date_diff('day', admitted, discharged)"]),
        (
            "measurement JOIN admission ON admission = admission.id",
            "patient",
            ["kind", "ward", "date_trunc('month', admitted)"],
            ["value", "cost"],
        ),
    ],
}
FORMS = [
    ("sum({x}, contribution_bounds_per_group => ({a}, {b}))", "sum({x})", "sum({clip})"),
    ("avg({x}, contribution_bounds_per_group => ({a}, {b}))", "avg({x})", "avg({clip})"),
    ("count({x}, contribution_bounds_per_group => (1, 2))", "count({x})", "sum(least(greatest({m}, 1), 2))::BIGINT"),
    ("count(*, contribution_bounds_per_group => (0, 2))", "count(*)", "sum(least({m}, 2))::BIGINT"),
    (
        "count_if({x} > {a}, contribution_bounds_per_group => (0, 1))",
        "count_if({x} > {a})",
        "sum(CASE WHEN {m} IS NOT NULL THEN least({m}, 1) END)",
    ),
    (
        "sum({x}, contribution_bounds_per_group => ({a}, {b})) FILTER (WHERE {x} > {a})",
        "sum({x}) FILTER (WHERE {x} > {a})",
        "sum({clip})",
    ),
    (
        "sum({x}, contribution_bounds_per_row => (-3, {b}), contribution_bounds_per_group => ({a}, 999))",
        "sum(CASE WHEN {x} IS NOT NULL THEN least(greatest({x}, -3), {b}) END)",
        "sum(CASE WHEN {m} IS NOT NULL THEN least(greatest({m}, {a}), 999) END)",
    ),
]


def pairs(name: str, seed: int) -> tuple[str, str, int]:
    """A query with bounds, the same with a step by hand, and the number of keys."""
    choose = random.Random(f"{name} {seed}")
    source, person, keys, values = choose.choice(SOURCES[name])
    keys = choose.sample(keys, choose.randrange(min(len(keys), 2) + 1))
    asked, inner, outer = list[str](), list[str](), list[str]()
    for i in range(choose.randint(1, 3)):
        told, measure, summed = choose.choice(FORMS)
        low, high = sorted(choose.sample([-7, 0, 3, 20, 90], 2))
        m = f"m{i}"
        clip = f"CASE WHEN {m} IS NOT NULL THEN least(greatest({m}, {low}), {high}) END"
        words = {"x": choose.choice(values), "a": low, "b": high, "m": m, "clip": clip}
        asked.append(told.format(**words) + f" AS v{i}")
        inner.append(measure.format(**words) + f" AS {m}")
        outer.append(summed.format(**words) + f" AS v{i}")
    asked.append(f"count(DISTINCT {person}) AS persons")
    outer.append("count(*) AS persons")
    named = [f"{key} AS k{i}" for i, key in enumerate(keys)]
    words = [f"k{i}" for i in range(len(keys))]
    by = f" GROUP BY {', '.join(words)}" if keys else ""
    step = f"SELECT {', '.join([f'{person} AS p', *named, *inner])} FROM {source} GROUP BY {', '.join(['p', *words])}"
    query = f"SELECT {', '.join([*named, *asked])} FROM {source}{by}"
    return query, f"SELECT {', '.join([*words, *outer])} FROM ({step}){by}", len(keys)


@pytest.fixture(scope="module", params=SOURCES)
def opened(request: pytest.FixtureRequest) -> tuple[str, duckdb.DuckDBPyConnection, dpsql.Session]:
    one = spec.DATABASES[request.param]
    connection = one.connect(one.clean())
    session = dpsql.connect(connection, policy={**one.pure(), "defaults": WIDE}, ledger=":memory:")
    return request.param, connection, session


@pytest.mark.parametrize("seed", range(25))
def test_the_same_by_hand(opened: tuple[str, duckdb.DuckDBPyConnection, dpsql.Session], seed: int) -> None:
    name, connection, session = opened
    query, hand, keys = pairs(name, seed)
    answer, exact = session.sql(query, epsilon=1e12), connection.sql(hand)
    assert answer.columns == tuple(exact.columns)
    rows, wanted = ({row[:keys]: row[keys:] for row in found.fetchall()} for found in (answer, exact))
    assert isinstance(answer.plan, Plan)
    if isinstance(answer.plan.release.keys, PublicKeys):
        assert rows.keys() >= wanted.keys()
    for key, row in rows.items():
        assert key in wanted or row[-1] == 0, (query, key)  # groups without rows are shown too
        for cell, value in zip(row, wanted.get(key, ()), strict=False):
            assert value is None or close(type(value)(cell), value), (query, key, row, wanted[key])


PRIVATE = [
    "SELECT country, sum(amount, contribution_bounds_per_group => (0, 99)) FROM orders GROUP BY country",
    "SELECT weight, count(*, contribution_bounds_per_group => (0, 2)), count(DISTINCT customer) FROM orders GROUP BY weight",
    "SELECT country || status, quantity % 3, avg(weight, contribution_bounds_per_row => (0, 9), contribution_bounds_per_group => (1, 5)) FROM orders GROUP BY ALL",
    "SELECT repeat(country, 60), count(*, contribution_bounds_per_group => (0, 2)) FROM orders GROUP BY ALL",
    "SELECT status, month(placed), sum(quantity, contribution_bounds_per_group => (-4, 9)) FROM orders GROUP BY ALL",
    "SELECT segment, balance, sum(n, contribution_bounds_per_group => (0, 5)), count(*) FROM item i JOIN orders o ON i.order_id = o.id JOIN customer c ON o.customer = c.id GROUP BY segment, balance",
]


@pytest.mark.parametrize("query", PRIVATE)
@pytest.mark.parametrize("ledger", ["gdp", "pure", "undeclared"])
def test_one_row_in_each_group(query: str, ledger: str) -> None:
    """On cells that no sane owner has, long texts among them; both forms of the limits give the same."""
    rows = shop.wild(11)
    long = ["x" * 1024, "x" * 1025, "y" * 1025, "z" * 5000, "é" * 600]
    rows["orders"] = [(*row[:-1], long[i % 5] if i % 2 else row[-1]) for i, row in enumerate(rows["orders"])]
    shop.fill(engine(), rows)
    known = catalog(ledger)
    plan = planned(parse(query), known)
    made = limited(plan)
    assert made.question.apart
    counted = f"{reference(plan.release).args['with_'].sql('duckdb')} SELECT max(n) FROM pairs"
    assert engine().execute(counted).fetchall() == [(1,)]
    assert plan.release.limits
    assert same(natively(engine(), plan), by_sql(engine(), plan), isinstance(plan.release.keys, PublicKeys))


def small(columns: str, rows: str, declared: dict[str, Any]) -> tuple[duckdb.DuckDBPyConnection, dpsql.Session]:
    connection = duckdb.connect()
    connection.execute(f"CREATE TABLE t ({columns})")
    connection.execute(f"INSERT INTO t {rows}")
    policy = {
        "dataset": {"id": "t"},
        "budget": {"epsilon": 1e13, "delta": 1e-6},
        "defaults": {"max_rows_contributed": 8, "epsilon": 1e12},
        "tables": {"t": {"person": "p", "columns": declared}},
    }
    return connection, dpsql.connect(connection, policy=policy, ledger=":memory:")


def test_long_declared_keys() -> None:
    """Where groups are hidden, keys of more than 1,024 bytes are put together: she could have several rows in a group."""
    texts = ["a" * 2000, "b" * 2000, "c"]
    _, session = small("p INTEGER, k VARCHAR, x INTEGER", "VALUES (1, 'c', 1)", {"k": {"in": texts}})
    with pytest.raises(dpsql.Refused, match="bytes"):
        session.explain("SELECT k, sum(x, contribution_bounds_per_group => (0, 7)) FROM t GROUP BY k")


def test_texts_that_differ_in_case() -> None:
    """What a step calls its columns must not be the same name to the engine."""
    rows = "SELECT i // 2, CASE WHEN i % 3 THEN 'A' ELSE 'a' END, 2 FROM range(300) t(i)"
    connection, session = small("p INTEGER, k VARCHAR, x INTEGER", rows, {"x": {"between": [0, 9]}})
    told = ", ".join(f"sum(x, contribution_bounds_per_group => (0, 99)) FILTER (WHERE k = '{k}')" for k in "Aa")
    exact = connection.sql("SELECT sum(x) FILTER (WHERE k = 'A'), sum(x) FILTER (WHERE k = 'a') FROM t").fetchall()
    assert session.sql(f"SELECT {told} FROM t").fetchall() == exact


@pytest.mark.parametrize("ends", [(-10, -5), (300, 400), (-10, 0), (10, 300), (0, 100_000_000_000)])
@pytest.mark.parametrize("type_", ["UTINYINT", "TINYINT", "INTEGER", "DECIMAL(4, 1)"])
def test_bounds_beside_what_is_declared(type_: str, ends: tuple[int, int]) -> None:
    """Ranges that have nothing in common, or that the type does not have, where nothing is limited: both forms are the same."""
    columns = {"x": {"between": [1, 10]}, "k": {"in": [0, 1]}}
    connection, session = small(
        f"p INTEGER PRIMARY KEY, k INTEGER, x {type_}", "SELECT i, i % 2, i % 12 FROM range(50) t(i)", columns
    )
    query = f"SELECT k, sum(x, contribution_bounds_per_row => {ends}), count(*) FROM t GROUP BY k"
    try:
        plan = session.explain(query).plan
    except dpsql.Refused as refused:
        assert refused.code == "bounds_invalid"
        return
    assert isinstance(plan, Plan)
    assert same(natively(connection, plan), by_sql(connection, plan), True)


def bounded(query: str, ledger: str = "gdp", **limits: int) -> Plan:
    known = catalog(ledger).limited(limits.get("rows"), limits.get("groups"))
    return planned(parse(query), known)


def weights(plan: Plan) -> list[float]:
    return [
        float(m.sensitivity) / s.weight for s, m in zip(plan.release.summands, plan.release.mechanisms, strict=True)
    ]


@pytest.mark.parametrize(
    ("query", "ledger", "limits", "most"),
    [
        ("SELECT sum(amount, BOUNDS) FROM orders", "gdp", {}, 1),  # one row of each person
        ("SELECT sum(amount, BOUNDS) FROM orders", "pure", {}, 1),
        ("SELECT status, sum(amount, BOUNDS) FROM orders GROUP BY status", "gdp", {}, 3**0.5),  # all groups there are
        ("SELECT status, sum(amount, BOUNDS) FROM orders GROUP BY status", "pure", {}, 3),
        ("SELECT status, sum(amount, BOUNDS) FROM orders GROUP BY status", "gdp", {"groups": 2}, 3**0.5),
        ("SELECT status, sum(amount, BOUNDS) FROM orders GROUP BY status", "gdp", {"groups": 1}, 1),
        ("SELECT status, sum(amount, BOUNDS) FROM orders GROUP BY status", "pure", {"groups": 2}, 2),
        ("SELECT status, sum(amount, BOUNDS) FROM orders GROUP BY status", "pure", {"rows": 2}, 2),
        ("SELECT country, sum(amount, BOUNDS) FROM orders GROUP BY country", "gdp", {"groups": 8}, 8**0.5),
        ("SELECT country, sum(amount, BOUNDS) FROM orders GROUP BY country", "pure", {"groups": 1}, 1),
        ("SELECT country, sum(amount, BOUNDS) FROM orders GROUP BY country", "pure", {"groups": 8}, 8**0.5),  # Gaussian
        ("SELECT country, sum(amount, BOUNDS) FROM orders GROUP BY country", "gdp", {"groups": 99, "rows": 16}, 4),
        # All rows of a customer have one segment, but nothing says that a customer is one row.
        ("SELECT segment, sum(amount, BOUNDS) FROM orders JOIN customer c ON customer = c.id GROUP BY segment", "gdp", {}, 2),
    ],
)  # fmt: skip
def test_limits(query: str, ledger: str, limits: dict[str, int], most: float) -> None:
    plan = bounded(query.replace("BOUNDS", "contribution_bounds_per_group => (0, 99)"), ledger, **limits)
    assert weights(plan) == [pytest.approx(most)]


def test_persons_are_counted_for_the_threshold_anyway() -> None:
    query = "SELECT country, sum(amount, contribution_bounds_per_group => (0, 9)), count(DISTINCT customer) FROM orders GROUP BY 1"
    assert len(bounded(query).release.summands) == 1


@pytest.fixture(scope="module")
def db() -> dpsql.Session:
    return dpsql.connect(shop.SHOP.connect(shop.clean()), policy=shop.policy(), ledger=":memory:")


@pytest.mark.parametrize("kind", ["row", "group"])
def test_parameters(db: dpsql.Session, kind: str) -> None:
    told = f"SELECT sum(amount, contribution_bounds_per_{kind} => (%s)) AS s FROM orders"
    wanted = db.explain(told % "-0.5, 30").plan
    for marks, given in (("?, ?", [-0.5, 30]), ("$1, $2", [Fraction(-1, 2), 30.0]), ("$low, 30", {"low": -0.5})):
        values: Any = [float(v) for v in given] if isinstance(given, list) else given
        plan = db.explain(told % marks, values).plan
        assert isinstance(plan, Plan) and isinstance(wanted, Plan)
        assert plan.release.text == wanted.release.text and plan.outer == wanted.outer and plan.notes == wanted.notes
    for bad in ([0, 0], [5, 1], ["0", "1"], [True, 3], [0, 1e300], [0, 1e-300]):
        with pytest.raises(dpsql.Refused, match="contribution_bounds") as refused:
            db.explain(told % "?, ?", bad)
        assert refused.value.code == "bounds_invalid"
    for bad_ in ([0, float("nan")], [0, float("inf")], [None, 1]):
        with pytest.raises(dpsql.Refused) as refused:
            db.explain(told % "?, ?", bad_)
        assert refused.value.code == "parameter_invalid"


def test_other_bounds_are_another_query(db: dpsql.Session) -> None:
    """The same id is one charge only for the same bounds."""
    query = "SELECT status, sum(weight, contribution_bounds_per_{} => ({}, {})) AS s FROM orders GROUP BY status"
    plans = [db.explain(query.format(*one)).plan for one in (("row", 0, 5), ("row", 0, 6), ("row", 1, 5), ("group", 0, 5), ("group", 0, 6))]  # fmt: skip
    assert len({plan.parts[0].release.text for plan in plans}) == len(plans)
    first = db.sql(query.format("group", 0, 5), query_id="bounds").fetchall()
    assert db.sql(query.format("group", 0, 5), query_id="bounds").fetchall() == first
    with pytest.raises(dpsql.Refused):
        db.sql(query.format("group", 0, 6), query_id="bounds")


NEVER = [
    "SELECT sum(amount, contribution_bounds_per_row => (0, 5)) OVER () FROM orders",
    "SELECT count(*) FROM orders WHERE sum(amount, contribution_bounds_per_row => (0, 5)) > 3",
    "SELECT status FROM orders GROUP BY sum(amount, contribution_bounds_per_row => (0, 5))",
    "SELECT sum(sum(amount, contribution_bounds_per_row => (0, 5))) FROM orders",
    "SELECT sum(contribution_bounds_per_row => (0, 5)) FROM orders",
    "SELECT contribution_bounds_per_row => (0, 5) FROM orders",
    "SELECT sum(amount, contribution_bounds_per_row => (0, 5, 6)) FROM orders",
    "SELECT sum(amount, contribution_bounds_per_row => [0, 5]) FROM orders",
    "SELECT sum(amount, contribution_bounds_per_row => (0, 1 + 1)) FROM orders",
    "SELECT sum(amount, contribution_bounds_per_row => (0, error('x'))) FROM orders",
    "SELECT sum(amount, contribution_bounds_per_row => (0, 'inf'::DOUBLE)) FROM orders",
    "SELECT sum(amount, contribution_bounds_per_row => (0, 1e999)) FROM orders",
    "SELECT sum(amount, contribution_bounds_per_row := (0, 5)) FROM orders",
    "SELECT sum(amount, contribution_bounds_per_row => (x => 1, 5)) FROM orders",
    "SELECT sum(amount, contribution_bounds_per_row => contribution_bounds_per_row => (0, 5)) FROM orders",
    "SELECT lag(count(*), contribution_bounds_per_row => (0, 5)) OVER () FROM orders GROUP BY status",
    "SELECT list_filter([count(*)], contribution_bounds_per_row => (0, 5)) FROM orders",
    "SELECT count(*) FROM range(contribution_bounds_per_row => (0, 5))",
    "SELECT sum(n, contribution_bounds_per_group => (0, 5)) FROM (SELECT status, count(*) AS n FROM orders GROUP BY status)",
    "SELECT (SELECT sum(vat, contribution_bounds_per_group => (0, 5)) FROM country) FROM orders GROUP BY status",
    "SELECT sum(vat, contribution_bounds_per_row => (0, 5)) FROM country",
    "SELECT count(*) FROM (SELECT customer, count(*, contribution_bounds_per_group => (0, 5)) AS n FROM orders GROUP BY customer) WHERE n > 1",
    "SELECT count(*) FROM customer c WHERE (SELECT sum(amount, contribution_bounds_per_group => (0, 5)) FROM orders o WHERE o.customer = c.id) > 3",
    "SELECT sum(amount, contribution_bounds_per_group => (0, 5)), min(amount) FROM orders",
    "SELECT sum(amount, contribution_bounds_per_group => (0, 5)), sum(DISTINCT quantity) FROM orders",
    "SELECT sum(amount, contribution_bounds_per_group => (0, 5)), stddev(quantity) FROM orders",
    "SELECT sum(amount, contribution_bounds_per_group => (0, 5)), avg(quantity, contribution_bounds_per_row => (0, 5)) FROM orders",
]


@pytest.mark.parametrize("query", NEVER)
def test_refused(db: dpsql.Session, query: str) -> None:
    with pytest.raises(dpsql.Refused) as refused:
        db.explain(query)
    assert refused.value.hint and "KWARG" not in refused.value.message


ALSO = [
    "SELECT mean(amount, contribution_bounds_per_group => (0, 5)) FROM orders",
    "SELECT sum(ALL amount, Contribution_Bounds_Per_Group => ((0), (5))) FROM orders",
    "SELECT sum(amount, contribution_bounds_per_row=>(-0.0, .5)) FROM orders",
    "PIVOT (SELECT amount, status, member, customer FROM orders JOIN customer c ON c.id = customer) ON status IN ('open', 'sent') USING sum(amount, contribution_bounds_per_group => (0, 5)) GROUP BY member",
    "SELECT DISTINCT round(sum(amount, contribution_bounds_per_group => (0, 5)), -3) FROM orders GROUP BY status",
    "SELECT segment FROM customer GROUP BY segment QUALIFY sum(sum(age, contribution_bounds_per_group => (0, 50))) OVER () > 3",
    "SELECT status FROM orders GROUP BY status ORDER BY count(*, contribution_bounds_per_group => (0, 1)) LIMIT 1",
    "SELECT country, sum(amount, contribution_bounds_per_group => (0, 5)) FROM orders GROUP BY GROUPING SETS ((country), ())",
    "SELECT name, sum(amount, contribution_bounds_per_group => (0, 5)) FROM orders JOIN country ON country = name GROUP BY name",
    "SELECT sum(x, contribution_bounds_per_group => (0, 5)) FROM (SELECT quantity AS x, customer FROM orders UNION ALL SELECT age, id FROM customer)",
    "SELECT sum(x, contribution_bounds_per_group => (0, 5)) FROM (SELECT customer, status, max(amount) AS x FROM orders GROUP BY 1, 2)",
    "SELECT mark, count(*, contribution_bounds_per_group => (0, 2)) FROM item, unnest(marks) AS u(mark) GROUP BY mark",
    "SELECT count(*, contribution_bounds_per_group => (0, 2)) FROM customer FULL JOIN orders ON orders.customer = customer.id",
    "SELECT a.status, b.n FROM (SELECT status, sum(amount, contribution_bounds_per_group => (0, 5)) AS s FROM orders GROUP BY status) a JOIN (SELECT status, count(*) AS n FROM orders GROUP BY status) b USING (status)",
]  # fmt: skip


@pytest.mark.parametrize("query", ALSO)
def test_answered(db: dpsql.Session, query: str) -> None:
    answer = db.sql(query, epsilon=1e9)
    assert answer.fetchall() and any("one person adds" in note or "values of" in note for note in answer.notes)
