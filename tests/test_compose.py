"""Statements of several releases: what they cost, what they read, and that nothing but releases reaches the query around them."""

from __future__ import annotations

import datetime
import threading
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
import shop
import spec
import sqlglot
from sqlglot import exp
from stages import planned
from test_lemmas import catalog

import dpsql
from dpsql import run
from dpsql.compiler.compile import compile
from dpsql.compiler.parse import parse
from dpsql.compiler.program import Plan, Program
from dpsql.history import verify
from dpsql.kernel.charged import Ticket
from dpsql.kernel.noise import Release
from dpsql.kernel.release import Totals, choose

RELEASED = [one.query for one in spec.every("shop") if one.file.stem == "released" and not one.refused]
TWO = "SELECT (SELECT count(*) FROM orders) / (SELECT count(*) FROM customer) AS n"


def program(query: str, ledger: str = "gdp") -> Program:
    made = compile(query, catalog(ledger), Fraction(1), Fraction(1, 10**8))
    assert isinstance(made, Program)
    return made


@pytest.mark.parametrize("query", RELEASED)
def test_only_releases_and_public_tables_are_read(query: str) -> None:
    made = program(query)
    tree = sqlglot.parse_one(made.outer, dialect="duckdb")
    own = {cte.alias for cte in tree.find_all(exp.CTE)}
    allowed = {f"release {i}" for i in range(len(made.parts))} | {f"public {name}" for name in made.tables} | own
    read = [table for table in tree.find_all(exp.Table) if not (isinstance(table.this, exp.Func) and not made.parts)]
    assert {table.name for table in read} <= allowed  # and of constants `range`, which reads nothing
    assert set(made.tables) <= {"country", "rate"}


@pytest.mark.parametrize("ledger", ["gdp", "pure", "zcdp"])
@pytest.mark.parametrize("query", RELEASED)
def test_all_releases_together_cost_no_more_than_one(query: str, ledger: str) -> None:
    """Also beside one with private keys, whose threshold takes a part of delta."""
    made = program(query, ledger)
    single = compile("SELECT count(*) FROM orders", catalog(ledger), Fraction(1), Fraction(1, 10**8))
    assert made.charge.amount <= single.charge.amount + 1000  # what waits reserves all, to the last digit (1e-15)
    assert made.charge.amount == pytest.approx(sum(part.charge.amount for part in made.parts), abs=100)
    assert made.charge.delta <= 10**10  # 1e-8
    if made.parts:
        assert made.charge.amount > 0.9 * single.charge.amount


def test_the_same_subquery_is_released_once() -> None:
    one = "(SELECT status, count(*) AS n FROM orders GROUP BY status)"
    assert len(program(f"SELECT * FROM {one} AS a JOIN {one} AS b USING (status)").parts) == 1
    assert len(program(f"WITH d AS {one} SELECT * FROM d JOIN d AS e USING (status)").parts) == 1
    assert len(program(TWO).parts) == 2


@pytest.mark.parametrize(
    "other",
    [
        "SELECT o.status, count(*) AS n FROM orders AS o GROUP BY o.status",
        "SELECT Status, COUNT(*) AS N FROM Orders GROUP BY STATUS",
        "SELECT status AS k, count(*) AS m FROM orders GROUP BY k",
    ],
)
def test_the_same_under_other_names_is_released_once(other: str, clean: dpsql.Session) -> None:
    one = "SELECT s.status, count(*) AS n FROM orders AS s GROUP BY s.status"
    query = f"SELECT a.n FROM ({one}) AS a(s, n), ({other}) AS b(s, n) WHERE a.s = b.s AND a.n = b.n"
    assert len(program(query).parts) == 1
    assert len(clean.sql(query, epsilon=0.1)) == 3


def test_a_name_that_means_another_column_is_another_release() -> None:
    a = "SELECT tier AS segment, count(*) AS n FROM customer GROUP BY tier"
    b = "SELECT segment AS tier, count(*) AS n FROM customer GROUP BY segment"
    assert len(program(f"SELECT * FROM ({a}), ({b})").parts) == 2


def test_one_release_stays_one() -> None:
    query = "SELECT n, count(*) FROM (SELECT customer, count(*) AS n FROM orders GROUP BY customer) GROUP BY n"
    assert isinstance(compile(query, catalog("gdp"), Fraction(1), Fraction(1, 10**8)), Plan)


def test_public_tables_are_free(clean: dpsql.Session) -> None:
    before = clean.budget.spent
    assert clean.sql("SELECT name FROM country WHERE vat > 0.19 ORDER BY name").fetchall() == [("fr",), ("it",)]
    assert clean.budget.spent == before


def test_parameters(clean: dpsql.Session) -> None:
    plain = shop.database(shop.clean())
    query = "SELECT (SELECT count(*) FROM orders WHERE status = $s AND weight > $w) + $n, (SELECT count(*) FROM customer WHERE joined > $d)"
    values = {"s": "open", "w": 2.5, "n": Decimal("1.50"), "d": datetime.date(2020, 1, 9)}
    assert clean.sql(query, values, epsilon=1e9).fetchall() == plain.execute(query, values).fetchall()


def test_an_answer_is_kept_under_its_id() -> None:
    db = dpsql.connect(shop.database(shop.clean()), policy=shop.policy(), ledger=":memory:")
    for query in (TWO, RELEASED[2]):
        first = db.sql(query, query_id=query).fetchall()
        spent = db.budget.spent
        assert db.sql(query, query_id=query).fetchall() == first and db.budget.spent == spent


def test_a_rehearsal() -> None:
    db = dpsql.connect(shop.database({}), policy=shop.policy(), ledger=":memory:")
    assert len(db.rehearse(RELEASED[2])) == 3


def test_all_releases_read_one_snapshot() -> None:
    """A row that arrives between two of them is in none, or in both."""
    owner = shop.database(shop.clean())
    db = dpsql.connect(owner, policy=shop.policy(), ledger=":memory:")
    query = "SELECT (SELECT count(*) FROM orders WHERE quantity > 0) - (SELECT count(*) FROM orders WHERE status <> '')"
    done = threading.Event()

    def write() -> None:
        with owner.cursor() as cursor:
            while not done.is_set():
                cursor.execute(
                    "INSERT INTO orders SELECT id, customer, status, amount, weight, quantity, placed, country FROM orders LIMIT 1"
                )

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert {db.sql(query, epsilon=1e9).fetchall()[0][0] for _ in range(5)} == {0}
    finally:
        done.set()
        writer.join()


def test_a_ledger_of_releases_that_wait_is_verified(tmp_path: Path) -> None:
    """What was charged before its values were known covers what was drawn; public groups alone draw nothing."""
    db = dpsql.connect(shop.database(shop.clean()), policy=shop.undeclared(), ledger=str(tmp_path / "x.ledger"))
    above = "FROM orders WHERE amount > (SELECT avg(amount) FROM orders)"
    for query in (
        f"SELECT sum(weight) {above}",
        f"SELECT country, count(*) {above} GROUP BY country",
        f"SELECT DISTINCT status {above}",
    ):
        db.sql(query)
    db.sql("SELECT name FROM country")
    db.close()
    assert verify(tmp_path / "x.ledger")


CLOCK = "WITH m AS (SELECT count(*) AS a FROM customer) SELECT count(*), {} FROM orders"
AROUND = [
    *(
        CLOCK.format(f"({inner})")
        for inner in (
            "SELECT hour(get_current_time()) FROM m",
            "SELECT epoch_us(system.main.now()) FROM m",
            "SELECT random() FROM m",
            "SELECT current_setting('memory_limit') FROM m",
            "SELECT max(value) FROM m, duckdb_settings() AS s WHERE s.name = 'secret_directory'",
            "SELECT max(x) FROM m, query('SELECT 42 AS x')",
            "SELECT [a] FROM m",
            "SELECT INTERVAL 1 DAY FROM m",
            "SELECT a::VARCHAR FROM m",
        )
    ),
    "SELECT count(*) FROM orders AS o JOIN (SELECT status, (SELECT hour(get_current_time()) FROM (SELECT count(*) FROM customer)) AS t "
    "FROM (SELECT status, count(*) FROM orders GROUP BY status)) AS s USING (status)",
    # Columns that the engine takes for clocks.
    *(
        CLOCK.format(f'(SELECT epoch_us("{word}") FROM m)')
        for word in ("localtimestamp", "current_timestamp", "LocalTimestamp")
    ),
    CLOCK.format("(SELECT year(age(TIMESTAMP '2020-01-01')) FROM m)"),
    'SELECT "current_date", a FROM (SELECT count(*) AS a FROM customer)',
    # What fails for the kind of a value is refused before it is known.
    "SELECT quantity & (SELECT avg(quantity) FROM orders) AS q, count(*) FROM orders GROUP BY q ORDER BY q",
    # Rows of persons that multiply with what an analyst made of a release.
    "WITH d AS (SELECT status, count(*) AS n FROM orders GROUP BY status), b AS (SELECT x.status FROM d x, d y, d z) "
    "SELECT count(*) FROM orders o JOIN b ON o.status = b.status JOIN b c ON o.status = c.status",
    'SELECT max(c) FROM "release 0", (SELECT count(*) AS c FROM orders)',
    'WITH "release 0" AS (SELECT 1 AS c) SELECT (SELECT max(c) FROM "release 0"), (SELECT count(*) FROM orders)',
]


@pytest.mark.parametrize("query", AROUND, ids=range(len(AROUND)))
def test_nothing_else_is_asked_on_the_way(query: str, clean: dpsql.Session) -> None:
    """What is computed between two releases is confirmed like what comes after them: clocks would time an exact query."""
    before = clean.budget.spent.amount
    with pytest.raises(dpsql.Refused):
        clean.sql(query)
    assert clean.budget.spent.amount == before


SAME = [
    # NULL in a list that was released.
    "SELECT count(*) FROM customer WHERE coalesce(segment, 'zzz') NOT IN (SELECT segment FROM customer GROUP BY segment HAVING count(*) > 5)",
    "SELECT count(*) FROM customer WHERE (coalesce(segment, 'zzz') IN (SELECT segment FROM customer GROUP BY segment HAVING count(*) > 5)) IS NULL",
    "SELECT count(*) FROM customer WHERE tier NOT IN (SELECT max(tier) FROM (SELECT tier, count(*) AS n FROM customer GROUP BY tier) WHERE n > 1000000)",
    "SELECT count(*) FROM customer WHERE tier NOT IN (SELECT tier FROM (SELECT tier, count(*) AS n FROM customer GROUP BY tier) WHERE n > 1000000)",
    "SELECT count(*) FROM orders WHERE quantity > (SELECT 0e0 / 0 * max(n) FROM (SELECT status, count(*) AS n FROM orders GROUP BY status))",
    # Names that stand for something else further in.
    "WITH country AS (SELECT 'de' AS name, count(*) AS n FROM orders) SELECT count(*) FROM orders o JOIN country c ON o.country = c.name",
    "WITH country AS (SELECT 'de' AS name, count(*) AS n FROM orders) SELECT count(*) FROM orders o WHERE country IN (SELECT name FROM country)",
    "WITH d AS (SELECT tier AS k, count(*) AS n FROM customer GROUP BY tier) SELECT * FROM (WITH d AS (SELECT status AS k, count(*) AS n FROM orders GROUP BY status) SELECT * FROM d) ORDER BY 1",
    "SELECT * FROM (WITH country AS (SELECT count(*) AS n FROM orders) SELECT * FROM country)",
    "WITH d AS (SELECT status, count(*) AS n FROM orders GROUP BY status) SELECT (WITH d AS (SELECT 1 AS n) SELECT max(n) FROM d) AS x, max(n) AS m FROM d",
    "WITH orders AS (SELECT count(*) AS customer FROM item) SELECT count(*) FROM customer WHERE id IN (SELECT customer FROM orders)",
    "WITH a AS (WITH b AS (SELECT status, count(*) AS n FROM orders GROUP BY status) SELECT max(n) AS m FROM b), b AS (SELECT count(*) AS n FROM customer) SELECT m, n FROM a, b",
    "WITH a AS (SELECT count(*) AS n FROM orders), a2 AS (WITH a AS (SELECT 7 AS n) SELECT n FROM a) SELECT a.n, a2.n AS m FROM a, a2",
    "WITH a AS (SELECT * FROM orders WHERE status = 'open'), b AS (SELECT * FROM a WHERE quantity > 5) SELECT (WITH a AS (SELECT * FROM orders) SELECT count(*) FROM b) AS n",
    "WITH country AS (SELECT 'de' AS name, count(*) AS n FROM orders) SELECT * FROM (WITH country AS (SELECT name FROM country) SELECT * FROM country)",
    "WITH c AS (SELECT * FROM orders WHERE quantity > 5) SELECT count(*) FROM orders WHERE amount > (SELECT avg(amount) FROM c)",
    "WITH c AS (SELECT * FROM orders WHERE quantity > 5) SELECT status FROM (VALUES ('open'), ('sent')) v(status) WHERE (SELECT count(*) FROM c WHERE c.status = v.status) > 10 ORDER BY 1",
    # Lists with a value among others, and what an aggregate is of nothing.
    "SELECT count(*) FROM orders WHERE quantity IN (5, (SELECT 7 * count(*) / count(*) FROM customer))",
    "SELECT c.name, (SELECT coalesce(sum(quantity), 0) FROM orders o WHERE o.country = c.name || 'x') AS n FROM country c ORDER BY 1",
    "SELECT c.name, (SELECT count(*) FILTER (WHERE quantity > 5) + 1 FROM orders o WHERE o.country = c.name || 'x') AS n FROM country c ORDER BY 1",
    "SELECT count(*) FROM customer c WHERE 0 = (SELECT count(*) FROM customer i WHERE i.segment = c.segment)",
    # That someone has a declared value.
    "SELECT name FROM country WHERE 'open' IN (SELECT status FROM orders WHERE quantity > 1000) ORDER BY 1",
    "SELECT n FROM (VALUES ('open'), ('sent')) AS v(n) WHERE EXISTS (SELECT 1 FROM orders o WHERE o.status = n AND quantity > 1000)",
    "SELECT m FROM (VALUES (1), (2)) AS v(m) WHERE EXISTS (SELECT 1 FROM orders o WHERE month(o.placed) = m AND quantity > 1000)",
    "SELECT b FROM (VALUES (true), (false)) AS v(b) WHERE EXISTS (SELECT 1 FROM customer c WHERE c.member = b AND age > 1000)",
    "SELECT k FROM (VALUES ('old'), ('new')) AS v(k) WHERE k IN (SELECT CASE WHEN age > 40 THEN 'old' ELSE 'new' END FROM customer WHERE age > 1000)",
    "SELECT k FROM (VALUES ('open'), ('sent')) AS v(k) WHERE k IN (SELECT DISTINCT status FROM orders WHERE quantity > 1000)",
    "SELECT k FROM (VALUES ('open'), ('sent')) AS v(k) WHERE k IN (SELECT status FROM orders WHERE quantity > 1000 GROUP BY status)",
    "SELECT k FROM (VALUES ('open'), ('sent')) AS v(k) WHERE k IN (SELECT s FROM (SELECT customer, status AS s FROM orders WHERE quantity > 1000))",
    "WITH x AS (SELECT customer, status AS s FROM orders WHERE quantity > 1000) SELECT k FROM (VALUES ('open'), ('sent')) AS v(k) WHERE EXISTS (SELECT 1 FROM x WHERE x.s = v.k)",
    "WITH x AS (SELECT DISTINCT status AS s FROM orders WHERE quantity > 1000) SELECT k FROM (VALUES ('open'), ('sent')) AS v(k) WHERE k NOT IN (SELECT s FROM x) ORDER BY 1",
    "SELECT count(*) FROM orders WHERE status IN (SELECT status FROM orders WHERE quantity > 1000 GROUP BY status)",
    "SELECT count(*) FROM (SELECT DISTINCT status FROM orders WHERE quantity > 1000)",
    "SELECT v.k FROM (VALUES ('open'), ('sent')) AS v(k) JOIN (SELECT DISTINCT status FROM orders WHERE quantity > 1000) d ON d.status = v.k",
    "SELECT k FROM (VALUES ('open'), ('sent')) AS v(k) WHERE k IN (SELECT s FROM (SELECT status AS s, count(*) AS n FROM orders GROUP BY status) WHERE n + 1 > 5) ORDER BY 1",
    # Decimals that are computed from what was released.
    "SELECT count(*) FROM orders WHERE quantity > (SELECT 0.1 * count(*) FROM customer)",
    "SELECT count(*) FROM orders WHERE amount > (SELECT 2 * count(*) / 3.0 FROM customer)",
    "SELECT count(*) FROM orders WHERE amount > (SELECT 0.01 * sum(amount) FROM orders)",
    "SELECT status, count(*) AS n FROM orders GROUP BY status HAVING count(*) > (SELECT 0.05 * count(*) FROM orders) ORDER BY 1",
    "SELECT count(*) FROM orders o JOIN (SELECT status, 0.1 * count(*) AS few FROM orders GROUP BY status) AS u USING (status) WHERE o.amount > u.few",
    # A release has one row for each of its keys, also under the name of a CTE: joined twice it multiplies nothing.
    "WITH u AS (SELECT status, avg(amount) AS a FROM orders GROUP BY status) SELECT count(*) FROM orders o JOIN u ON u.status = o.status JOIN u v ON v.status = o.status WHERE o.amount > u.a",
    "WITH u AS (SELECT status, avg(amount) AS a FROM orders GROUP BY status), r AS (SELECT o.customer FROM orders o JOIN u ON u.status = o.status WHERE o.amount > u.a UNION ALL SELECT o.customer FROM orders o JOIN u ON u.status = o.status WHERE o.amount < u.a) SELECT count(*) FROM r",
    # Types of the same name in two tables, and of two sides.
    "SELECT count(*) FROM orders o JOIN (SELECT d.status, d.n FROM (SELECT status, count(*) * 1000 AS n FROM orders GROUP BY status) d, rate r) x ON o.status = x.status WHERE x.n > 10",
    # Keys of several tables, aliases and columns.
    "SELECT o.country AS a, r.country AS b, count(*) AS n FROM orders o JOIN rate r ON r.country = o.country GROUP BY ROLLUP (o.country, r.country) ORDER BY ALL",
    "SELECT tier % 2 AS tier, count(*) AS n FROM customer GROUP BY ROLLUP (tier) ORDER BY ALL",
    "SELECT status AS s, count(*) AS n FROM orders GROUP BY ROLLUP (s) ORDER BY ALL",
    "SELECT 10 - c.tier AS tier, count(*) AS n FROM customer c GROUP BY ROLLUP (c.tier) ORDER BY tier",
    # Values of other kinds, and tables beside.
    "SELECT count(*) FROM customer WHERE segment = (SELECT segment FROM (SELECT segment, count(*) AS n FROM customer WHERE segment IS NOT NULL GROUP BY segment) ORDER BY n DESC, segment LIMIT 1)",
    "WITH m AS (SELECT count(*) AS a FROM customer) SELECT count(*) FROM orders WHERE quantity > (SELECT 20 * max(vat) + 0 * max(a) FROM country, m)",
    "SELECT x.i, n FROM (SELECT status, count(*) AS n FROM orders GROUP BY status), range(2) AS x(i) ORDER BY 1, 2",
]  # fmt: skip


@pytest.mark.parametrize("query", SAME, ids=range(len(SAME)))
def test_as_the_plain_query(query: str, clean: dpsql.Session) -> None:
    assert clean.sql(query, epsilon=1e9).fetchall() == shop.database(shop.clean()).execute(query).fetchall()


def test_an_id_stands_for_one_question(clean: dpsql.Session) -> None:
    """Also where its parameter is only in what is computed between two releases."""
    query = "WITH m AS (SELECT count(*) AS a FROM customer) SELECT count(*) FROM orders WHERE quantity > (SELECT a * 0 + $f FROM m)"
    clean.sql(query, {"f": 0}, query_id="one")
    with pytest.raises(dpsql.Refused, match="query_differs"):
        clean.sql(query, {"f": 100}, query_id="one")


def test_public_tables_keep_their_types() -> None:
    """Arrow has no type for some of them."""
    owner = shop.database(shop.clean())
    numbers = "'340282366920938463463374607431768211455'::UHUGEINT AS u, '-170141183460469231731687303715884105727'::HUGEINT AS h"
    owner.execute(f"CREATE TABLE odd AS SELECT {numbers}, '0110'::BIT AS b")
    policy = shop.policy()
    policy["tables"] = policy["tables"] | {"odd": {"public": True}}
    with dpsql.connect(owner, policy=policy, ledger=":memory:") as db:
        query = "SELECT u % 10, h, b FROM odd"
        assert db.sql(query).fetchall() == owner.execute(query).fetchall()


def test_nested_definitions_are_read_once() -> None:
    """The types of a CTE are found once, not once for each way to it."""
    steps = ", ".join(
        f"a{i + 1} AS (SELECT x.status, x.n FROM a{i} x JOIN a{i} y ON x.status = y.status)" for i in range(20)
    )
    query = f"WITH a0 AS (SELECT status, count(*) AS n FROM orders GROUP BY status), {steps} SELECT count(*) FROM orders o JOIN a20 b ON o.status = b.status"
    assert len(program(query).parts) == 2


def test_what_fails_after_the_releases_says_why(clean: dpsql.Session) -> None:
    for query in (
        "SELECT status::INTEGER FROM (SELECT status, count(*) AS n FROM orders GROUP BY status)",
        "SELECT count(*) FROM orders WHERE quantity > (SELECT n FROM (SELECT status, count(*) AS n FROM orders GROUP BY status))",
    ):
        before = clean.budget.spent.amount
        with pytest.raises(dpsql.Failed, match="unfinished"):
            clean.sql(query)
        assert clean.budget.spent.amount > before


@pytest.mark.parametrize(
    "where",
    [
        "country IN (SELECT country FROM orders GROUP BY country HAVING count(*) > 0)",
        "amount > (SELECT 0 * avg(amount) - 1 FROM orders)",
        "EXISTS (SELECT 1 FROM (SELECT country, count(*) AS n FROM orders GROUP BY country) AS d WHERE d.country = orders.country AND d.n > 0)",
    ],
)
def test_all_levels_are_about_the_same_rows_beside_a_release(where: str) -> None:
    """Rows with undeclared keys are in no group: in the total they would be spread over the groups."""
    policy = shop.policy()
    orders = {**shop.POLICY["orders"], "columns": {"quantity": {"in": [1, 2, 3]}}}
    policy["tables"] = policy["tables"] | {"orders": orders}
    owner = shop.database(shop.clean())
    with dpsql.connect(owner, policy=policy, ledger=":memory:") as db:
        query = f"SELECT quantity, count(*) FROM orders WHERE {where} AND {{}} GROUP BY ROLLUP (quantity) ORDER BY ALL"
        exact = owner.execute(query.format("quantity <= 3")).fetchall()
        assert db.sql(query.format("true"), epsilon=1e9).fetchall() == exact


def test_notes_name_the_limits_that_were_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are chosen privately, after the statement has been planned."""

    def chosen(release: Release, totals: Totals, ticket: Ticket) -> tuple[int, ...]:
        choose(release, totals, ticket)
        return (2,) * len(release.unknowns)

    monkeypatch.setattr(run, "choose", chosen)
    with dpsql.connect(shop.database(shop.clean()), policy=shop.undeclared(), ledger=":memory:") as db:
        query = "SELECT (SELECT sum(amount) FROM orders) AS a, (SELECT count(*) FROM customer) AS b"
        notes = " ".join(db.sql(query).notes)
        assert "more than 3 rows" in notes and "more than 16 rows" not in notes


def test_what_nobody_reads_is_not_released() -> None:
    unread = "b AS (SELECT count(*) AS n FROM customer), c AS (SELECT max(n) AS m FROM b)"
    query = f"WITH a AS (SELECT status, count(*) AS n FROM orders GROUP BY status), {unread} SELECT max(n) FROM a"
    assert len(program(query).parts) == 1
    assert len(program(query.replace("SELECT max(n) FROM a", "SELECT max(a.n + m) FROM a, c")).parts) == 2


def test_names_of_columns_are_confirmed(clean: dpsql.Session) -> None:
    """Two statements whose SQL differs only in a name that is given inside: the second is refused before it is charged."""
    query = "SELECT count(*) FROM (SELECT status, count(*) AS {} FROM orders GROUP BY status) WHERE n > 3"
    assert clean.sql(query.format("n"), epsilon=1e9).fetchall() == [(3,)]
    before = clean.budget.spent.amount
    with pytest.raises(dpsql.Refused, match="column_unknown"):
        clean.sql(query.format("k"), epsilon=1e9)
    assert clean.budget.spent.amount == before


def test_many_arms_are_planned_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """About as many nodes are copied for each arm: not more the more there are (800 of them took a minute)."""
    copied, copy = list[int](), exp.Expression.copy
    monkeypatch.setattr(exp.Expression, "copy", lambda node: copied.append(sum(1 for _ in node.walk())) or copy(node))
    program(" UNION ALL ".join(["SELECT vat FROM country"] * 100))
    few = sum(copied)
    program(" UNION ALL ".join(["SELECT vat FROM country"] * 200))
    assert few > 0 and sum(copied) - few < 2.5 * few


def test_public_rows_alone_are_no_release() -> None:
    """They are answered around releases, for free; by themselves they have no persons."""
    known = catalog("gdp")
    with pytest.raises(dpsql.Refused, match="public_only"):
        planned(parse("SELECT count(*) FROM country"), known)
