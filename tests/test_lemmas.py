"""The lemmas of the proof, on random databases, for every spec query and with every person removed.

Locality: the relation is the disjoint union of R(D|p), each a function of p's bag of rows; R of the public tables is empty.
Contributions: the person's own limited vector is within the limit. Sensitivity: the exact integers that are noised move
by no more than the mechanisms are charged for. No false alarms: everything here is exact.
"""

from __future__ import annotations

import math
import random
import zlib
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import accumulate, pairwise
from typing import Any

import duckdb
import pytest
import shop
import spec
from forms import by_sql, natively, same
from sql_form import inner, reference
from sqlglot import exp
from stages import limited, planned, question

from dpsql.backends import DuckDB
from dpsql.compiler import compile as compiler
from dpsql.compiler.compile import compile, release
from dpsql.compiler.parse import Parsed, parse
from dpsql.compiler.program import Plan
from dpsql.errors import Refused
from dpsql.kernel.fan_out import Growth
from dpsql.kernel.keys import PublicKeys
from dpsql.kernel.relations import select
from dpsql.policy.catalog import Catalog, Table, build, read_policy

QUERIES = {name: [one.query for one in spec.every(name) if not one.refused] for name in spec.DATABASES}
# Conditions that no sane analyst writes, for the cells that no sane owner has.
QUERIES["shop"] += [
    "SELECT count(*), sum(balance), sum(score), avg(age) FROM customer WHERE balance * balance > 1 OR balance / balance < 2",
    "SELECT segment, member, tier, sum(score * age) FROM customer WHERE age % (tier - 2) = 0 GROUP BY segment, member, tier",
    "SELECT status, sum(weight * weight), sum(amount * weight), sum(quantity * quantity * quantity) FROM orders GROUP BY status",
    "SELECT sum(price * n), sum(wide * wide), count(big), count(ubig) FROM item WHERE ubig // n > big OR ubig % 7 < n OR -ubig < 5",
    "SELECT count(*) FROM item WHERE big > ubig AND wide > big AND ubig <> price OR big IN (1, 2.5, 1e30) OR ubig BETWEEN -1 AND 1e40",
    # Constants that the engine reassociates and folds, and operands that are wider than the result.
    "SELECT count(*) FROM customer WHERE ((age - 200) + 2147483647) + 50 > 0 AND (age + 10000000000) * 0 = 0",
    "SELECT sum((age - 200) + 2147483647 + 50) FROM customer WHERE ((0 % age) * 2147483647) * (0 - 3) = 0",
    "SELECT count(*) FROM item WHERE ubig * 0 = 0 AND wide * 0.0 = 0 AND (2147483647 + 1) * (0 - 1) < n AND ubig * (1 // 3) = 0",
    "SELECT count(placed), count(*) FROM orders WHERE placed > '1900-01-01' OR placed IS NULL",
    # Functions on whatever may stand in a cell.
    "SELECT count(year(placed)), sum(month(placed)), sum(least(greatest(year(placed), 1900), 2100)), count(date_trunc('week', placed)) FROM orders WHERE placed + INTERVAL 3 MONTH > placed - INTERVAL '40 years'",
    "SELECT sum(date_diff('day', joined, DATE '2020-01-01')), count(CAST(joined AS TIMESTAMP) + INTERVAL 1 HOUR), sum(joined - DATE '2000-01-01') FROM customer WHERE joined + (age * 1000000) > DATE '2020-01-01' OR date_trunc('month', joined) IS NOT NULL",
    "SELECT count(CAST(country AS INTEGER)), sum(least(greatest(CAST(country AS DOUBLE), -5), 5)), count(CAST(country AS DATE)), sum(least(length(upper(country) || country), 10)) FROM orders WHERE country ILIKE '%E_%' OR regexp_matches(trim(country), '[0-9x]{1,9}$') OR country IS NULL",
    "SELECT sum(CAST(weight AS INTEGER)), sum(CAST(weight * weight AS DECIMAL(9,2))), sum(round(weight, 1)), sum(CASE WHEN weight > 3 THEN quantity ELSE -amount END) FROM orders WHERE nullif(quantity, 0) // nullif(quantity, 5) > 0 OR coalesce(weight, amount, quantity) < 3",
    "SELECT sum(CAST(balance AS TINYINT)), sum(abs(balance)), sum(floor(score)), sum(round(age, -1)), sum(member::INT) FROM customer WHERE abs(age - 2147483647) > 3 AND coalesce((age - 200) + 2147483647, 5) + 50 > 0",
    "SELECT sum(least(greatest(big, -3), 3)), sum(least(ubig, 9)), sum(least(greatest(n, wide), price)) FROM item WHERE CAST(big AS SMALLINT) > 3 OR TRY_CAST(ubig AS INTEGER) + 5 - 7 < 3 OR round(wide, 2) > 0",
    "SELECT segment, count(*), sum(price), sum(amount) FROM item i JOIN orders o ON i.order_id = o.id JOIN customer c ON o.customer = c.id GROUP BY segment",
    "SELECT balance, age % 7, joined, count(*), sum(score) FROM customer GROUP BY balance, age % 7, joined",
    "SELECT customer % 7, weight, count(*), sum(quantity) FROM orders GROUP BY customer % 7, weight",
    "SELECT price, wide, ubig, flag, count(*), avg(n) FROM item GROUP BY 1, 2, 3, 4",
    # Lists, and many rows of one row.
    "SELECT mark, count(*), sum(least(greatest(mark, 0), 5)), count(DISTINCT mark) FROM item, unnest(marks) AS u(mark) GROUP BY mark",
    "SELECT tag, count(*), count(DISTINCT id), sum(len(tag)), count(DISTINCT tag) FROM customer, unnest(tags) AS u(tag) GROUP BY tag",
    "SELECT a.tag, count(*), count_if(b.tag < a.tag) FROM (SELECT id, unnest(tags) AS tag FROM customer) a JOIN (SELECT id, unnest(tags) AS tag FROM customer) b ON a.id = b.id GROUP BY ALL",
    "SELECT m[1], count(*), count(m), sum(least(list_max(m), 5)) FROM (SELECT order_id, first_value(marks) OVER (PARTITION BY order_id ORDER BY n) AS m FROM item) GROUP BY m[1]",
    "SELECT r, count(*), sum(least(greatest(x, -5), 5)) FROM (SELECT row_number() OVER (PARTITION BY order_id ORDER BY n) AS r, x FROM (SELECT *, unnest(marks) AS x FROM item)) WHERE r < 4 GROUP BY r",
    "SELECT part, count(*) FROM orders o JOIN customer c ON o.customer = c.id CROSS JOIN unnest(string_split(country || array_to_string(tags, 'e'), 'e')) AS u(part) GROUP BY part",
    "SELECT count(*), sum(x) FROM customer, unnest([age, tier, len(tags), list_position(tags, 'x')]) AS u(x) WHERE list_contains(tags[2:], segment) OR x IN [age, 3]",
    # Moments, values and persons.
    "SELECT corr(balance, age), regr_slope(score, balance), var_pop(tier), regr_avgx(balance, joined - DATE '2000-01-01') FROM customer",
    "SELECT status, stddev(weight), corr(amount, weight) FILTER (WHERE quantity > 3), regr_syy(weight, quantity), covar_pop(amount, amount) FROM orders GROUP BY status",
    "SELECT country, var_samp(weight), regr_r2(quantity, weight), count(DISTINCT weight), sum(DISTINCT amount), count(DISTINCT customer) FROM orders GROUP BY country",
    "SELECT flag, corr(price, wide), var_pop(n), count(DISTINCT big), avg(DISTINCT price), count(DISTINCT order_id), sum(DISTINCT wide) FROM item GROUP BY flag",
    "SELECT quantity > 3, status, country IS NULL, weight > 5, count(DISTINCT customer), count(DISTINCT customer) FILTER (WHERE weight > 1), count(DISTINCT placed) FROM orders GROUP BY ALL",
    "SELECT count(DISTINCT balance), count(DISTINCT id), count(DISTINCT id) FILTER (WHERE balance > 0), count(DISTINCT segment) FROM customer",
    "SELECT DISTINCT balance, weight, country FROM orders o JOIN customer c ON o.customer = c.id",
    "SELECT member, count(DISTINCT a.customer), count(DISTINCT c.id), count(DISTINCT b.id) FROM customer c JOIN orders a ON a.customer = c.id JOIN orders b ON b.customer = c.id GROUP BY member",
    "SELECT member, count(*) FROM customer c JOIN orders a ON a.customer = c.id JOIN orders b ON b.customer = c.id GROUP BY member",
    # Ranges of the caller's own.
    "SELECT weight, sum(balance, contribution_bounds_per_group => (-9, 7.5)), avg(weight, contribution_bounds_per_row => (0, 3), contribution_bounds_per_group => (1, 2)), count(DISTINCT c.id) FILTER (WHERE weight > 1) FROM customer c JOIN orders o ON o.customer = c.id GROUP BY weight",
    "SELECT country, quantity % 2, count(placed, contribution_bounds_per_group => (1, 2)), sum(amount, contribution_bounds_per_group => (-1, 60)) FILTER (WHERE quantity > 2) FROM orders GROUP BY ALL",
    "SELECT flag, sum(big, contribution_bounds_per_row => (-3, 5), contribution_bounds_per_group => (-4, 9)), sum(ubig, contribution_bounds_per_row => (2, 7)), sum(price, contribution_bounds_per_group => (0, 1e-3)) FROM item GROUP BY flag",
    "SELECT var_pop(price, contribution_bounds_per_row => (-1.5, 1e3)), sum(wide, contribution_bounds_per_row => (-0.5, 40)), sum(wide), stddev(n, contribution_bounds_per_row => (3, 4)) FROM item",
    "SELECT c.id % 3, count(*, contribution_bounds_per_group => (0, 2)), count(DISTINCT o.customer) FROM customer c FULL JOIN orders o ON o.customer = c.id GROUP BY 1",
]
Exact = dict[tuple[Any, ...], tuple[int, ...]]


LADDERS = [
    "SELECT count(*), sum(balance), avg(age), sum(score) FROM customer",
    "SELECT status, sum(amount), sum(weight), avg(quantity) FROM orders GROUP BY status",
    "SELECT country, count(*), sum(weight * quantity) FROM orders GROUP BY country",
    "SELECT sum(big), sum(ubig), sum(wide), sum(price / n) FROM item",
    "SELECT stddev(balance), corr(age, score), sum(DISTINCT tier) FROM customer",
    "SELECT status, regr_slope(quantity, weight), count(DISTINCT customer), count(DISTINCT country) FROM orders GROUP BY status",
    "SELECT flag, sum(price), sum(n) FROM item i JOIN orders o ON i.order_id = o.id GROUP BY flag",
    "SELECT flag, status, sum(quantity, contribution_bounds_per_group => (-2, 9)), count(*), sum(n, contribution_bounds_per_row => (0, 3)) FROM item i JOIN orders o ON i.order_id = o.id GROUP BY flag, status",
    "SELECT member, count(*, contribution_bounds_per_group => (0, 3)), sum(quantity) FROM orders o JOIN customer c ON o.customer = c.id GROUP BY member",
]


@cache
def engine() -> duckdb.DuckDBPyConnection:
    """One for all databases, whose tables have different names."""
    connection = duckdb.connect()
    for one in spec.DATABASES.values():
        one.connect({}, connection)
    connection.execute("SET threads = 1")  # faster on tables this small
    return connection


@cache
def catalog(ledger: str, name: str = "shop") -> Catalog:
    one = spec.DATABASES[name]
    policy = read_policy(one.undeclared() if ledger == "undeclared" else one.policy(accounting=ledger))
    backend = DuckDB(engine())
    with backend.snapshot() as snapshot:
        return build(policy, snapshot.schemas(policy.tables), backend.repeats)


class Part(str):
    """A release of a statement that has several, and the tables of others that it reads."""

    tree: exp.Query
    tables: dict[str, Table]
    hidden: bool  # whether its keys are private although they are declared


def parts(query: str, name: str) -> list[str]:
    """The releases of a statement: itself, if it is one."""
    known, found = catalog("gdp", name), dict[str, Part]()

    def note(parsed: Parsed, *rest: Any, **named: Any) -> Plan:
        tree = parsed.tree.copy()
        made = release(parsed, *rest, **named)  # some are only tried, or planned again under other names
        if "hidden" in named and "with place" not in tree.sql("duckdb"):  # one part of several
            part = Part(f"{query} -- {tree.sql('duckdb')}")
            part.tree, part.tables, part.hidden = tree, {}, named["hidden"]
            for table in part.tree.find_all(exp.Table):
                if table.name in rest[0].tables.keys() - known.tables.keys():
                    read = released(rest[0].tables[table.name], f"{query} {table.name}", name)
                    part.tables[read.name] = read
                    table.set("alias", table.args.get("alias") or exp.TableAlias(this=table.this.copy()))
                    table.set("this", exp.to_identifier(read.name, quoted=True))
            found[str(part)] = part
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "release", note)
        made = compile(query, known, Fraction(1), Fraction(1, 10**8), now=spec.NOW)
    return [query] if isinstance(made, Plan) else list(found.values())


def released(table: Table, unique: str, name: str) -> Table:
    """A table that might have been released before, under a name of its own: whatever is in it, the lemmas hold."""
    rows = [row for rows in spec.DATABASES[name].clean().values() for row in rows[:40]]
    cells = sorted({repr(cell): cell for row in rows for cell in row}.values(), key=repr)
    texts = [cell for cell in cells if isinstance(cell, str)]
    kinds: dict[str, list[Any]] = {"VARCHAR": texts, "BOOLEAN": [True, False], "DATE": ["2020-01-01"]}
    kinds["TIMESTAMP"] = kinds["DATE"]
    kinds["INTERVAL"] = ["30 days", "-3 hours", "2147483647 months"]
    word = f"released {zlib.crc32(unique.encode())}"
    columns = ", ".join(f'"{column.name}" {column.type.sql}' for column in table.columns.values())
    engine().execute(f'CREATE OR REPLACE TEMP TABLE "{word}" ({columns})')
    choice = random.Random(unique)
    for _ in range(60):
        row = [choice.choice([None, *kinds.get(c.type.kind, [0, 1, 2, 5, 50])]) for c in table.columns.values()]
        engine().execute(f'INSERT INTO temp."{word}" VALUES ({", ".join("?" * len(row))})', row)
    return replace(table, name=word, path=("temp", "main", word))


def read(query: str) -> Parsed:
    return Parsed(query.tree.copy()) if isinstance(query, Part) else parse(query, spec.NOW)


def beside(known: Catalog, query: str) -> Catalog:
    """With what a release reads of others."""
    return replace(known, tables={**known.tables, **query.tables}) if isinstance(query, Part) else known


@cache
def stages(query: str, ledger: str, name: str = "shop") -> tuple[Plan, str, str, str]:
    """The plan, the tracked relation's SQL and person, and the SQL for each person's limited vector."""
    known = beside(catalog(ledger, name), query)
    hidden = isinstance(query, Part) and query.hidden
    plan = planned(read(query), known, hidden=hidden)
    made = limited(plan)
    vector = exp.select("*").from_(exp.Table(this=exp.to_identifier("limited", quoted=True)))
    if plan.release.noise:
        vector.set("with_", reference(plan.release).args["with_"])
    else:  # public keys and nothing else: nobody adds anything, and no table is read
        assert not plan.release.exact.all and not plan.charge.amount and not plan.charge.delta
        vector = exp.select("1").where("false")
    relation, person = made.question.relation, made.question.person
    return plan, select(relation).sql("duckdb"), person, vector.sql("duckdb")


@cache
def releases(name: str) -> list[str]:
    """What is asked of a database, release by release."""
    return [part for query in QUERIES[name] for part in parts(query, name)]


def bag(sql: str) -> Counter[tuple[Any, ...]]:
    """All rows as a multiset; NaN equals NaN, -0.0 differs from 0.0, and a month from 30 days, which are one timedelta."""
    return Counter(engine().execute(f"SELECT CAST(COLUMNS(*) AS VARCHAR) FROM ({sql})").fetchall())


def exact(plan: Plan, both: bool = True) -> dict[tuple[Any, ...], tuple[int, ...]]:
    """The integers that are noised, by key: the number of a public key, the text of a private one."""
    if not plan.release.noise:
        return {}
    rows = engine().execute(inner(plan.release)).fetchall()
    if both:  # what runs gives the same
        assert same(natively(engine(), plan), by_sql(engine(), plan), isinstance(plan.release.keys, PublicKeys)), inner(
            plan.release
        )
    width = len(rows[0]) - len(plan.release.noise) if rows else 0
    if isinstance(plan.release.keys, PublicKeys):
        assert len(rows) == plan.release.keys.count and width == 0
    assert all(type(cell) is int for row in rows for cell in row[width:])
    if isinstance(plan.release.keys, PublicKeys):
        return {(number,): row for number, row in enumerate(rows)}
    keyed = {tuple(map(repr, row[:width])): row[width:] for row in rows}
    assert len(keyed) == len(rows), "a key that the engine keeps apart looks the same to people"
    return keyed


def assert_within(plan: Plan, whole: Exact, smaller: Exact) -> None:
    """Each block's movement, in the norm of its mechanism, is what it was charged for at the most.

    Private keys: the person counts once in each of at most `keys` keys, and those that only she has hold nobody else.
    """
    columns = list(plan.release.noise)
    zero = (0,) * len(columns)
    # A private key that only she has is shown with probability delta at the most, whatever stands beside it.
    keys = whole if plan.release.threshold is None else whole.keys() & smaller.keys()
    moves = [[a - b for a, b in zip(whole.get(k, zero), smaller.get(k, zero), strict=True)] for k in keys]
    for index, (summand, mechanism) in enumerate(zip(plan.release.summands, plan.release.mechanisms, strict=True)):
        cells = [row[columns.index(c)] for row in moves for c in summand.columns(index)]
        if mechanism.norm == 1:
            assert sum(map(abs, cells)) <= mechanism.sensitivity
        else:
            assert sum(cell * cell for cell in cells) <= mechanism.sensitivity**2
    if plan.release.threshold is not None:
        persons = [whole[key][0] - smaller.get(key, zero)[0] for key in whole]
        assert set(persons) <= {0, 1} and sum(persons) <= plan.release.threshold.keys
        assert set(smaller) <= set(whole) and all(whole[key][0] == 1 for key in whole if key not in smaller)


OTHERS = [name for name in spec.DATABASES if name != "shop"]


def few(first: int, rest: int) -> list[Any]:
    """Seeds: one for every run, and more for the long one."""
    return [first, *(pytest.param(first + i, marks=pytest.mark.long) for i in range(1, rest))]


@pytest.mark.parametrize("seed", few(0, 4))
@pytest.mark.parametrize("name", spec.DATABASES)
def test_locality(name: str, seed: int) -> None:
    """R(D) is the disjoint union of R(D|p), and nothing else: neither rows of nobody nor of two persons at once."""
    one, queries = spec.DATABASES[name], releases(name)
    rows = one.wild(seed)
    one.fill(engine(), rows)
    relations = [stages(query, "gdp", name)[1] for query in queries]
    wholes = [bag(relation) for relation in relations]
    parts: list[Counter[tuple[Any, ...]]] = [Counter() for _ in queries]
    for person in one.persons(rows):
        one.fill(engine(), one.only(rows, [person]))
        for part, relation in zip(parts, relations, strict=True):
            part.update(bag(relation))
    for query, whole, part in zip(queries, wholes, parts, strict=True):
        assert whole == part, query
    one.fill(engine(), {})
    assert not any(bag(relation) for relation in relations)


MULTIPLYING = [  # one person's rows, by each other, by lists and by public tables
    "SELECT count(*) FROM customer c JOIN orders a ON a.customer = c.id JOIN orders b ON b.customer = c.id",
    "SELECT a.status, b.status, count(*), sum(a.amount) FROM orders a LEFT JOIN orders b ON a.customer = b.customer AND a.quantity < b.quantity GROUP BY ALL",
    "SELECT count(*) FROM orders a FULL JOIN orders b ON a.customer = b.customer",
    "SELECT count(*) FROM orders a WHERE EXISTS (SELECT 1 FROM orders b WHERE a.customer = b.customer AND a.placed < b.placed)",
    "SELECT count(*) FROM orders a WHERE NOT EXISTS (SELECT 1 FROM orders b WHERE a.customer = b.customer AND a.weight < b.weight)",
    "SELECT x, count(*) FROM customer, unnest(tags) AS u(x), unnest(tags) AS v(y), unnest([age, tier]) AS w(z) GROUP BY x",
    "SELECT count(x), count(*) FROM customer LEFT JOIN unnest(tags) AS u(x) ON true",
    "SELECT count(*), sum(i.n) FROM item i JOIN orders o ON i.order_id = o.id JOIN item j ON j.order_id = o.id",
    "SELECT count(y) FROM (SELECT id, first(tags ORDER BY age) AS l FROM customer GROUP BY id), unnest(l) AS u(x), unnest(l) AS v(y)",
    "SELECT vat, count(*) FROM orders o JOIN rate r ON o.country = r.country JOIN country c ON c.vat > 0.1 JOIN orders p ON p.customer = o.customer GROUP BY vat",
    "SELECT count(*) FROM (SELECT customer, status FROM orders UNION ALL SELECT id, segment FROM customer) s JOIN orders o USING (customer)",
]


@pytest.mark.parametrize("seed", few(0, 4))
@pytest.mark.parametrize("most", [0, 1, 2, 5])
def test_growth(most: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No person has more rows in a relation than `Growth` says, and what is cut of a person's rows depends on these alone.

    With `most` rows and elements, which cut much of what is there; 0: as usual.
    """
    if most:
        monkeypatch.setattr("dpsql.kernel.persons.STEPS", ((most, most),))
        monkeypatch.setattr("dpsql.kernel.fan_out.WIDE", 10**9)
    one, known = spec.DATABASES["shop"], catalog("gdp")
    everything = [*MULTIPLYING, *(QUERIES["shop"] if most in (0, 2) else [])]
    queries = [query for query in everything if not most or any(word in query for word in ("JOIN", "unnest", "EXISTS"))]
    tracked = []
    for query in queries:
        with suppress(Refused):  # a statement of several releases
            found = question(planned(parse(query, spec.NOW), known)).relation
            tracked.append((select(found).sql("duckdb"), Growth(known).rows(found)))
    assert len(tracked) >= len(MULTIPLYING)
    rows = one.wild(seed)
    one.fill(engine(), rows)
    wholes = [bag(sql) for sql, _ in tracked]
    parts: list[Counter[tuple[Any, ...]]] = [Counter() for _ in tracked]
    for person in one.persons(rows):
        alone = one.only(rows, [person])
        one.fill(engine(), alone)
        there = sum(len(rows_) for rows_ in alone.values())
        for part, (sql, most_rows) in zip(parts, tracked, strict=True):
            found_ = bag(sql)
            assert sum(found_.values()) <= most_rows.factor * there**most_rows.power and most_rows.power <= 1, sql
            part.update(found_)
    assert wholes == parts


SOME = 5  # persons that are removed, other than from the first database, where everyone is
PAIRS = [("shop", 100, "gdp"), ("shop", 102, "pure"), *((name, 100, "gdp") for name in OTHERS)]
MORE = [(name, seed, ledger) for name in spec.DATABASES for seed in range(103, 109) for ledger in ("gdp", "pure")]


HALVES = [(*PAIRS[0], 0), (*PAIRS[0], 1), *((*case, None) for case in PAIRS[1:])]  # of the longest, for two workers


@pytest.mark.parametrize(
    ("name", "seed", "ledger", "half"), [*HALVES, *(pytest.param(*case, None, marks=pytest.mark.long) for case in MORE)]
)
def test_sensitivity(name: str, seed: int, ledger: str, half: int | None) -> None:
    """Contributions, and with every person removed the exact integers and everyone else's vectors."""
    one, queries = spec.DATABASES[name], releases(name)
    rows = one.wild(seed)
    one.fill(engine(), rows)
    compiled = [stages(query, ledger, name) for query in queries]
    wholes = [(exact(plan), bag(vector)) for plan, _, _, vector in compiled]
    persons = one.persons(rows)
    everyone = half is not None or (name, seed, ledger) in MORE
    for person in persons[half :: 1 if half is None else 2] if everyone else random.Random(seed).sample(persons, SOME):
        one.fill(engine(), one.without(rows, person))
        for query, (plan, _, _, vector), (whole, vectors) in zip(queries, compiled, wholes, strict=True):
            smaller = exact(plan, both=person == persons[1])
            assert_within(plan, whole, smaller)
            if seed != PAIRS[0][1]:  # the vectors are made in the same way for all
                continue
            others = bag(vector)
            assert all(row[0] == str(person) for row in (vectors - others)), query
            assert not others - vectors, query


def test_gaussian_noise_in_a_pure_ledger() -> None:
    """Limits for the norm 2, also of one of several releases, whose blocks are those of the norm 1: no row is longer in L2."""
    rows = shop.wild(102)
    shop.fill(engine(), rows)
    plans = [
        planned(parse(query), catalog("pure"), part=part)
        for query in (
            "SELECT country, var_pop(quantity), regr_slope(weight, quantity), count(DISTINCT status) FROM orders GROUP BY country",
            "SELECT weight, stddev(n), avg(quantity), count(DISTINCT customer) FROM item JOIN orders ON order_id = id GROUP BY weight",
            "SELECT country, sum(amount, contribution_bounds_per_group => (0, 99)), count(DISTINCT customer) FROM orders GROUP BY country",
        )
        for part in (Fraction(1), Fraction(1, 2))
    ]
    for alone, part in zip(plans[::2], plans[1::2], strict=True):
        assert {noise.norm for noise in (*alone.release.noises, *part.release.noises)} == {2}
        assert {s.norm for s in alone.release.summands} == {2} and {s.norm for s in part.release.summands} == {1}
        assert part.charge.amount == alone.charge.amount / 2 and 2 * part.charge.delta <= alone.charge.delta * 1.1
    wholes = [exact(plan) for plan in plans]
    for person in shop.SHOP.persons(rows):
        shop.fill(engine(), shop.without(rows, person))
        for plan, whole in zip(plans, wholes, strict=True):
            assert_within(plan, whole, exact(plan, both=False))


@pytest.mark.parametrize("ledger", ["gdp", pytest.param("pure", marks=pytest.mark.long)])
def test_replacing(ledger: str) -> None:
    """Two databases that lack one person each are neighbours by replacement: they are `swap` times as far apart at the most."""
    rows, known = (shop.wild(200), read_policy(shop.policy(accounting=ledger, neighbours="replace")))
    backend = DuckDB(engine())
    with backend.snapshot() as snapshot:
        replacing = build(known, snapshot.schemas(known.tables), backend.repeats)
    plans = [
        planned(read(query), beside(replacing, query), hidden=isinstance(query, Part) and query.hidden)
        for query in releases("shop")
    ]
    for query, plan in zip(releases("shop"), plans, strict=True):
        one = stages(query, ledger)[0]
        assert plan.charge.amount == pytest.approx(one.charge.amount, rel=1e-9)
        if [type(m) for m in plan.release.noises] == [
            type(m) for m in one.release.noises
        ]:  # a pure ledger may choose another noise
            assert with_any(plan) == with_any(one)
            assert [m.sensitivity for m in plan.release.noises] == [m.swap * m.sensitivity for m in one.release.noises]
    found: list[list[Exact]] = []
    for person in shop.SHOP.persons(rows)[: None if ledger == "pure" else SOME]:
        shop.fill(engine(), shop.without(rows, person))
        found.append([exact(plan, both=False) for plan in plans])
    for first, second in pairwise(found):
        for plan, here, there in zip(plans, first, second, strict=True):
            assert_apart(plan, here, there)


def with_any(plan: Plan) -> str:
    """The reference with any number of persons that is enough: that goes with the noise."""
    limits = tuple(replace(one, enough=None) for one in plan.release.limits)
    return inner(replace(plan.release, limits=limits)) if limits else ""


def assert_apart(plan: Plan, here: Exact, there: Exact) -> None:
    columns = list(plan.release.noise)
    zero = (0,) * len(columns)
    keys = here if plan.release.threshold is None else here.keys() & there.keys()
    moves = [[a - b for a, b in zip(here.get(k, zero), there.get(k, zero), strict=True)] for k in keys]
    blocks = [
        (summand.columns(i), m)
        for i, (summand, m) in enumerate(zip(plan.release.summands, plan.release.mechanisms, strict=True))
    ]
    blocks += [(("persons",), plan.release.threshold.noise)] if plan.release.threshold else []
    for names, mechanism in blocks:
        cells = [row[columns.index(name)] for row in moves for name in names]
        assert sum(abs(cell) ** mechanism.norm for cell in cells) <= mechanism.sensitivity**mechanism.norm
    if plan.release.threshold:  # what only one of them has is one person's
        for mine, other in ((here, there), (there, here)):
            own = mine.keys() - other.keys()
            assert len(own) <= plan.release.threshold.keys and all(mine[key][0] == 1 for key in own)


SAME_WAY = ({0}, {1}, {-1}, {0, 1}, {0, -1})


@pytest.mark.parametrize("seed", few(200, 6))
def test_ladders(seed: int) -> None:
    """Adding a person lowers each rung's score by 0 or 1; and after the choice the limits hold, whichever it was."""
    rows = shop.wild(seed)
    rungs = random.Random(seed)
    shop.fill(engine(), rows)
    plans = [planned(parse(query), catalog("undeclared")) for query in LADDERS]
    chosen = []
    for plan in plans:
        assert plan.then is not None and len({unknown.what for unknown in plan.release.unknowns}) > 1
        chosen.append(plan.then(tuple(rungs.randrange(len(unknown.rungs)) for unknown in plan.release.unknowns)))
        assert chosen[-1].charge == plan.charge
    wholes = [(engine().execute(p.release.climb).fetchall(), exact(c)) for p, c in zip(plans, chosen, strict=True)]
    lacking: dict[str, list[Any]] = {}
    for person in shop.SHOP.persons(rows):
        shop.fill(engine(), shop.without(rows, person))
        for plan, after, (scores, whole) in zip(plans, chosen, wholes, strict=True):
            without = engine().execute(plan.release.climb).fetchall()
            ends = list(accumulate((len(unknown.rungs) for unknown in plan.release.unknowns), initial=0))
            for start, end in (
                pairwise(ends) if plan.release.climb in lacking else ()
            ):  # replaced: all rungs the same way
                other = lacking[plan.release.climb]
                assert {a[0] - b[0] for a, b in zip(without[start:end], other[start:end], strict=True)} in SAME_WAY
            lacking[plan.release.climb] = without
            moved = [more[0] - less[0] for more, less in zip(scores, without, strict=True)]
            assert len(moved) == sum(len(unknown.rungs) for unknown in plan.release.unknowns) and set(moved) <= {0, -1}
            assert_within(after, whole, exact(after))


def test_there_are_enough_neighbours() -> None:
    """The suite promises ten thousand pairs of a query and a neighbouring database."""
    found = [len(shop.SHOP.persons(shop.wild(100))), *(SOME for _ in PAIRS[1:])]
    assert sum(n * len(releases(name)) for n, (name, _, _) in zip(found, PAIRS, strict=True)) >= 10_000


@pytest.mark.parametrize("name", ["shop", *(pytest.param(name, marks=pytest.mark.long) for name in OTHERS)])
def test_order_and_threads(name: str) -> None:
    """The exact integers are a function of the bag: permuted rows and 1, 4 or 8 threads change nothing."""
    one = spec.DATABASES[name]
    queries = releases(name)[:: 2 if name == "shop" else 1]
    compiled = [stages(query, "gdp", name) for query in queries]
    rows = one.wild(7, persons=20)
    results = []
    for threads in (1, 4, 8) if name == "shop" else (1, 4):
        shuffled = {table: random.Random(threads).sample(found, len(found)) for table, found in rows.items()}
        one.fill(engine(), shuffled)
        engine().execute(f"SET threads = {threads}")
        results.append([(exact(plan), bag(vector)) for plan, _, _, vector in compiled])
    engine().execute("SET threads = 1")
    for query, first, *others in zip(queries, *results, strict=True):
        assert all(other == first for other in others), query


def test_root_is_never_below_the_norm() -> None:
    """The integer root that divides: exact near squares, for sizes far beyond what a database holds."""
    plan, _, _, _ = stages("SELECT count(*) FROM customer", "gdp")
    text = inner(plan.release)
    start = '"roots" AS (SELECT *, '
    root = text[text.index(start) + len(start) :].split(' AS "root"')[0]
    squares = [math.isqrt(2**k) ** 2 for k in range(126)] + [10**9, 10**18, (2**52 + 1) ** 2, (2**60 - 1) ** 2]
    sizes = sorted({size + d for size in squares for d in (-1, 0, 1, 2) if 0 <= size + d < 2**126})
    values = ", ".join(f"({size}::HUGEINT)" for size in sizes)
    found = engine().execute(
        f'SELECT "size", {root} FROM (SELECT "size", CAST(CEIL(SQRT(CAST("size" AS DOUBLE))) AS INT128) AS "guess" FROM (VALUES {values}) AS v("size"))'
    )
    for size, divisor in found.fetchall():
        assert divisor**2 >= size
        if size < 2**104:
            assert divisor <= math.isqrt(size) + 2
