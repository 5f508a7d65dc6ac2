"""The gate: whatever a compiler asks for, what the kernel accepts is limited, noised and charged; and nothing else runs."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import random
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from types import SimpleNamespace
from typing import Any

import duckdb
import pyarrow as pa
import pytest
import shop
from hostile import Hostile
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from test_lemmas import assert_apart, assert_within

import dpsql
from dpsql.backends.duckdb import DuckDB, Shadow
from dpsql.errors import Refused
from dpsql.kernel import request as ask
from dpsql.kernel.accountant import CURRENCIES
from dpsql.kernel.charged import Ticket, sell
from dpsql.kernel.exact import ExactQuery, PublicRead, ReleasedTable, read_public
from dpsql.kernel.fan_out import Growth
from dpsql.kernel.keys import PublicKeys
from dpsql.kernel.mechanisms import cost
from dpsql.kernel.noise import Release
from dpsql.kernel.plan import follow, plan
from dpsql.kernel.question import find_rows
from dpsql.kernel.relations import columns, select
from dpsql.kernel.release import limited, release
from dpsql.policy.catalog import Catalog, build, fold, read_policy

EXTREME = 10**6  # a person who comes to the others


@cache
def engine() -> duckdb.DuckDBPyConnection:
    connection = shop.SHOP.connect({})
    connection.execute("SET threads = 1")
    return connection


@cache
def known(ledger: str, neighbours: str = "add-remove") -> tuple[Catalog, Shadow]:
    policy = read_policy(
        shop.undeclared() if ledger == "undeclared" else shop.policy(accounting=ledger, neighbours=neighbours)
    )
    backend = DuckDB(engine())
    with backend.snapshot() as snapshot:
        schemas = snapshot.schemas(policy.tables)
        return build(policy, schemas, backend.repeats), Shadow(schemas)


def accepted(seed: int, ledger: str, neighbours: str = "add-remove") -> Release | None:
    """A release that the kernel and the engine accept of a request at random."""
    catalog, shadow = known(ledger, neighbours)
    try:
        made = plan(Hostile(catalog, seed).request(), catalog)
        if made.choosing:
            shadow.confirm(made)
            rungs = random.Random(seed)
            made = follow(made, tuple(rungs.randrange(len(unknown.rungs)) for unknown in made.unknowns))
        shadow.confirm(made)
    except Refused:
        return None
    return made


def cells(column: Any) -> list[Any]:
    """Dates and times as numbers: the engine has more of them than Python."""
    if pa.types.is_temporal(column.type):
        column = column.cast(pa.int32() if pa.types.is_date32(column.type) else pa.int64())
    found: list[Any] = column.to_pylist()
    return found


def exact(made: Release) -> dict[tuple[Any, ...], tuple[int, ...]]:
    """The integers that are noised, by key."""
    if not made.noise:
        return {}
    totals = limited(made, lambda query: engine().sql(query.sql))
    least = 0 if made.threshold else None
    table = pa.table(totals.with_noise("laplace", [2.0**-200] * len(made.noise), least))
    width = table.num_columns - len(made.noise)
    rows = list(zip(*map(cells, table.columns), strict=True))
    if isinstance(made.keys, PublicKeys):
        assert len(rows) == made.keys.count
        return {(number,): tuple(map(int, row[width:])) for number, row in enumerate(rows)}
    keyed = {tuple(map(repr, row[:width])): tuple(map(int, row[width:])) for row in rows}
    assert len(keyed) == len(rows)
    return keyed


def extreme(rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """With one person more, who has far more rows than the others, and cells at the ends of their types."""
    found = {table: list(there) for table, there in rows.items()}
    first = next(row for row in found["customer"] if row[0] is not None)
    found["customer"].append((EXTREME, *first[1:]))
    orders, items = found["orders"][:8] or [(1, 1, "open", 1, 1.0, 1, None, "de")], found["item"][:8]
    for i in range(60):
        found["orders"].append((EXTREME + i, EXTREME, *orders[i % len(orders)][2:]))
        found["item"] += [(EXTREME + i, *item[1:]) for item in items]
    return found


def facts_hold(made: Release) -> None:
    """What the kernel has derived of a relation's columns is true of every cell."""
    catalog = made.catalog.limited(made.request.max_rows, made.request.max_groups)
    found = find_rows(made.request, catalog)
    from dpsql.kernel.derive import Derivation

    derived = Derivation(catalog.tables).relation(made.request.relation)[1]
    source = select(found.relation).sql("duckdb")
    for word, facts in derived.items():
        if word not in columns(found.relation):
            continue
        cell = '"' + word.replace('"', '""') + '"'
        ((nulls,),) = engine().execute(f"SELECT count(*) - count({cell}) FROM ({source})").fetchall()
        assert facts.nullable or not nulls, (word, facts)
        if facts.range is not None and facts.type.kind in ("INTEGER", "DECIMAL"):
            ((low, high),) = engine().execute(f"SELECT min({cell}), max({cell}) FROM ({source})").fetchall()
            assert low is None or facts.range[0] <= Fraction(low) <= Fraction(high) <= facts.range[1], (word, facts)


def fan_out_holds(made: Release, persons: Counter[Any]) -> None:
    """No person has more rows than the kernel's bound says."""
    catalog = made.catalog.limited(made.request.max_rows, made.request.max_groups)
    found = find_rows(made.request, catalog)
    bound = Growth(catalog).rows(found.relation)
    source = select(found.relation).sql("duckdb")
    person = '"' + found.person.replace('"', '""') + '"'
    for who, rows in engine().execute(f"SELECT {person}, count(*) FROM ({source}) GROUP BY ALL").fetchall():
        assert rows <= bound.factor * max(persons[who], 1) ** bound.power


def pairs(seed: int, ledger: str) -> int:
    """Compare a random request on a database with all its neighbours; how many there were."""
    replacing = ledger == "replace"
    made = accepted(seed, "gdp" if replacing else ledger, "replace" if replacing else "add-remove")
    if made is None or not made.noise:
        return 0
    assert cost(made.sampled, CURRENCIES[made.catalog.policy.budget.accounting]) == made.charge
    rows = shop.wild(seed % 97, 8)
    rows["item"] = rows["item"][:60]
    shop.fill(engine(), rows)
    shown = SimpleNamespace(release=made)
    here, done = exact(made), 0
    facts_hold(made)
    owned = Counter(person for table in shop.SHOP.owners(rows).values() for own in table for person in own)
    fan_out_holds(made, owned)
    persons = shop.SHOP.persons(rows)
    leaving = random.Random(seed).sample(persons, min(2, len(persons)))
    others = []
    for person in leaving:
        shop.fill(engine(), shop.SHOP.without(rows, person))
        others.append(exact(made))
        if not replacing:
            assert_within(shown, here, others[-1])  # type: ignore[arg-type]
        done += 1
    if replacing:  # two that lack one person each
        assert_apart(shown, *others[:2])  # type: ignore[arg-type]
        return done
    shop.fill(engine(), extreme(rows))
    assert_within(shown, exact(made), here)  # type: ignore[arg-type]
    shop.fill(engine(), {})
    empty = exact(made)
    assert all(not any(row) for row in empty.values())
    return done + 1


SEEN: Counter[str] = Counter()
LEDGERS = ["gdp", "pure", "undeclared", "replace"]


def hostile(examples: int) -> Any:
    return settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


@pytest.mark.parametrize("ledger", LEDGERS)
def test_random_requests(ledger: str) -> None:
    run(ledger, 480 if ledger == "replace" else 330)
    assert SEEN[ledger] >= 250, SEEN


@pytest.mark.long
@pytest.mark.parametrize("ledger", LEDGERS)
def test_many_random_requests(ledger: str) -> None:
    before = SEEN[ledger]
    run(ledger, 9_600 if ledger == "replace" else 6_600)
    assert SEEN[ledger] - before >= 5_000, SEEN


def run(ledger: str, examples: int) -> None:
    @hostile(examples)
    @given(st.integers(0, 2**48))
    def hold(seed: int) -> None:
        SEEN[ledger] += pairs(seed, ledger)

    hold()


# --- what is no request ---------------------------------------------------------------------------------------------


COUNT = ask.Request(
    ask.Rows("orders", "o", ("id", "quantity")),
    (),
    (ask.Block((ask.Asked(ask.Name("o.quantity"), 1),)),),
    Fraction(1),
    Fraction(1, 10**8),
    "gaussian",
)
GARBAGE: list[Any] = [
    *[None, 0, -1, 2**200, 1.5, float("nan"), "", "x", "o.id", "person:o", b"x", True, (), [], {}, object()],
    *[(None,), ("a", "b"), Fraction(1, 3), Fraction(-5), ask.Name("o.id"), ask.Constant(1, "INTEGER"), COUNT],
    *[ask.Apply("error", (ask.Constant("x", "VARCHAR"),)), ask.Constant(10**30, "TINYINT"), ask.Constant("x", "DATE")],
    *[ask.Rows("secrets", "s", ("x",)), ask.Rows("orders", "o", ("nothing",)), ask.Name("nothing")],
]


def nodes(node: Any) -> Iterator[Any]:
    if dataclasses.is_dataclass(node):
        yield node
        for field in dataclasses.fields(node):
            yield from nodes(getattr(node, field.name))
    elif isinstance(node, tuple):
        for part in node:
            yield from nodes(part)


@hostile(400)
@given(st.integers(0, 2**48))
def test_what_is_no_request_is_refused(seed: int) -> None:
    """Ill-typed, cyclic, deep: a refusal and nothing else, or a release that means what it says."""
    r = random.Random(seed)
    catalog, shadow = known("gdp")
    try:
        request = copy.deepcopy(Hostile(catalog, seed).request() if r.random() < 0.7 else COUNT)
    except Refused:
        return
    victims = list(nodes(request))
    for victim in r.sample(victims, min(len(victims), r.choice([1, 1, 2]))):
        if fields := dataclasses.fields(victim):
            others = [*GARBAGE, victim, request.relation]  # itself: then it has no end
            object.__setattr__(victim, r.choice(fields).name, r.choice(others))
    try:
        made = plan(request, catalog)
        if not made.choosing:
            shadow.confirm(made)
            shop.fill(engine(), shop.wild(seed % 7, 6))
            exact(made)
    except Refused:
        pass


def test_names_are_not_ours() -> None:
    """A column that has the name of the person's would stand in the place of the person."""
    catalog, _ = known("gdp")
    rows = ask.Rows("orders", "o", ("id", "customer"))
    for word in ("person:o", "PERSON:o", "o.id"):
        columns_ = ((word, ask.Name("o.id")), ("O.ID", ask.Name("o.customer")))
        with pytest.raises(Refused, match="request_invalid"):
            plan(dataclasses.replace(COUNT, relation=ask.Selected(rows, "o", columns_), blocks=()), catalog)


def test_deep_requests_are_refused() -> None:
    catalog, _ = known("gdp")
    deep: ask.Expression = ask.Name("o.quantity")
    for _ in range(50_000):
        deep = ask.Apply("negate", (deep,))
    with pytest.raises(Refused, match="too_deep"):
        plan(dataclasses.replace(COUNT, keys=(deep,)), catalog)


# --- what runs ------------------------------------------------------------------------------------------------------


def made_otherwise(one: Any) -> Iterator[Any]:
    """The same object, made in other ways than by the kernel."""
    values = {field.name: getattr(one, field.name) for field in dataclasses.fields(one)}
    yield type(one)(**values)
    yield dataclasses.replace(one)
    yield copy.copy(one)
    if not isinstance(one, Release):  # whose request has no end of parts
        yield copy.deepcopy(one)
        yield pickle.loads(pickle.dumps(one))
    bare = object.__new__(type(one))
    for name, value in values.items():
        object.__setattr__(bare, name, value)
    yield bare
    inherited: Any = type("Inherited", (type(one),), {})
    yield inherited(**values)


def test_only_the_kernel_makes_what_runs() -> None:
    catalog, _ = known("gdp")
    made, backend = plan(COUNT, catalog), DuckDB(engine())
    shop.fill(engine(), shop.clean())
    query = made.exact.all[0]
    assert isinstance(query, ExactQuery)
    read = read_public(catalog, "country")
    table = ReleasedTable("released 0", (), ())
    with backend.snapshot() as snapshot:
        for other in made_otherwise(query):
            with pytest.raises(AssertionError, match="only what the kernel has made"):
                snapshot._run(other)
        for other in made_otherwise(read):
            with pytest.raises(AssertionError, match="only what the kernel has made"):
                snapshot.public(other)
        for other in (table, "SELECT 1"):
            with pytest.raises(AssertionError, match="only what the kernel has made"):
                snapshot.load(other, engine().sql("SELECT 1"))  # type: ignore[arg-type]
        for text in ("SELECT * FROM orders", query.sql):
            with pytest.raises(AssertionError, match="only what the kernel has made"):
                snapshot._run(text)  # type: ignore[arg-type]
        (ticket,) = sell([made])
        for other in made_otherwise(made):
            with pytest.raises(AssertionError, match="only what the kernel has made"):
                snapshot.totals(other, ticket)
    with pytest.raises(AssertionError):
        read_public(catalog, "orders")
    assert isinstance(read, PublicRead) and fold(read.table[2]) == "country"


def test_a_charge_is_used_once() -> None:
    catalog, _ = known("gdp")
    made, dearer = plan(COUNT, catalog), plan(dataclasses.replace(COUNT, epsilon=Fraction(2)), catalog)
    shop.fill(engine(), shop.clean())
    with DuckDB(engine()).snapshot() as snapshot:
        for wrong in (*sell([dearer]), *sell([made], synthetic=True), Ticket(made, False)):
            with pytest.raises(AssertionError):
                snapshot.totals(made, wrong)
        (ticket,) = sell([made])
        totals = snapshot.totals(made, ticket)
        with pytest.raises(AssertionError):
            snapshot.totals(made, ticket)
        (ticket,) = sell([made])
        totals = snapshot.totals(made, ticket)
        assert len(release(made, totals, ticket)) == 1
        for again in (ticket, *sell([made])):  # neither is the ticket good twice, nor are the totals
            with pytest.raises((AssertionError, ValueError)):
                release(made, totals, again)


def test_a_session_runs_only_releases_of_its_own_catalogue() -> None:
    with dpsql.connect(shop.database(shop.clean()), policy=shop.policy(), ledger=":memory:") as db:
        found = db.explain("SELECT count(*) FROM orders").plan
        assert all(part.release.catalog is db._catalog for part in found.parts)


# --- what came through ----------------------------------------------------------------------------------------------
# A reviewer who read the kernel for the first time made these requests by hand. No SQL leads to them.


def name(word: str) -> ask.Name:
    return ask.Name(word)


def big(value: int) -> ask.Constant:
    return ask.Constant(value, "BIGINT")


def counting(relation: ask.Relation, **more: Any) -> ask.Request:
    return ask.Request(relation, (), (ask.Block(),), Fraction(1), Fraction(1, 10**8), "gaussian", **more)


ORDER, ITEM = (1, "open", 1, 1.0, 1, None, "de"), (1, 1, 1, 1, 1, True, None)
OTHERS: dict[str, list[Any]] = {
    "customer": [(i, "family", 20, 1.0, True, 1, None, 1, None) for i in range(100, 150)],
    "orders": [(1000 + i, i, *ORDER[1:]) for i in range(100, 150)],
    "item": [],
}
VICTIM = {"customer": [(7, *OTHERS["customer"][0][1:])], "orders": [(5, 7, *ORDER[1:])], "item": [(5, *ITEM)]}
ORDERS = ask.Rows("orders", "o", ("id", "customer"))
SWAPPED = ask.Combined(
    ask.Selected(ORDERS, "a", (("x", name("o.id")), ("y", name("o.customer")))),
    ask.Selected(
        ask.Rows("orders", "p", ("id",)),
        "b",
        (("z", ask.Apply("CAST", (big(5), ask.Constant("BIGINT", "VARCHAR")))), ("x", name("p.id"))),
    ),
    "union all",
)
FORGED = ask.Elements(
    ask.Rows("item", "i", ("n",)), ask.Apply("list_value", tuple(map(big, range(1100, 1150)))), "i.order_id"
)
FORGERIES: dict[str, ask.Request] = {
    "a set operation goes by place, and leads to the person by name": counting(
        ask.Joined(SWAPPED, ask.Rows("item", "i", ("order_id",)), ask.Apply("=", (name("x"), name("i.order_id")))),
        max_rows=1,
    ),
    "a column that is made has the name of one that leads to the person": counting(
        ask.Joined(ask.Rows("orders", "o", ("id",)), FORGED, ask.Apply("=", (name("o.id"), name("i.order_id")))),
        max_rows=1,
    ),
}


@pytest.mark.parametrize("case", FORGERIES)
def test_forged_names(case: str) -> None:
    catalog, shadow = known("gdp")
    try:
        made = plan(FORGERIES[case], catalog)
        shadow.confirm(made)
    except Refused:
        return
    found = []
    for rows in (OTHERS, {table: [*OTHERS[table], *VICTIM[table]] for table in OTHERS}):
        shop.fill(engine(), rows)
        found.append(exact(made))
    assert_within(SimpleNamespace(release=made), found[1], found[0])  # type: ignore[arg-type]


@pytest.mark.parametrize("type_", ["DECIMAL(foo", "DECIMAL(1,0) /* x */", 'DECIMAL(1,0)) AS "z", (SELECT 1'])
def test_types_are_no_sql(type_: str) -> None:
    catalog, _ = known("gdp")
    key = ask.Constant(None, type_)
    with pytest.raises(Refused):
        plan(dataclasses.replace(COUNT, keys=(key,)), catalog)
    table = ask.Released("released 0", (("a", type_),))
    joined = ask.Joined(ORDERS, ask.Rows("released 0", "r", ()), None)
    with pytest.raises(Refused):
        plan(counting(joined, tables=(table,)), catalog)


@pytest.mark.parametrize("column", ["country", "placed"])
def test_only_numbers_are_summed(column: str) -> None:
    catalog, shadow = known("gdp")
    block = ask.Block((ask.Asked(name(f"o.{column}"), 1),))
    with pytest.raises(Refused):
        shadow.confirm(
            plan(dataclasses.replace(counting(ask.Rows("orders", "o", (column,))), blocks=(block,)), catalog)
        )


def test_float_is_no_type_of_an_expression() -> None:
    catalog, _ = known("gdp")
    value = ask.Apply("CAST", (name("c.balance"), ask.Constant("FLOAT", "VARCHAR")))
    with pytest.raises(Refused):
        plan(dataclasses.replace(counting(ask.Rows("customer", "c", ("balance",))), keys=(value,)), catalog)


def test_names_of_empty_scans_are_ours() -> None:
    catalog, _ = known("gdp")
    joined = ask.Joined(ORDERS, ask.Rows("country", "k", ()), None)
    made = ask.Elements(joined, ask.Apply("list_value", (ask.Constant("x", "VARCHAR"),)), "k.")
    with pytest.raises(Refused):
        plan(counting(made), catalog)


def test_a_choice_is_followed_by_its_own_release() -> None:
    catalog, _ = known("undeclared")
    rows = ask.Rows("orders", "o", ("quantity",))

    def asked(clip: Any, most: int | None) -> Release:
        block = ask.Block((ask.Asked(name("o.quantity"), 1, clip),))
        return plan(dataclasses.replace(counting(rows, waiting=True, max_rows=most), blocks=(block,)), catalog)

    first, other = asked(None, None), asked((Fraction(0), Fraction(10)), 3)
    assert first.choosing and not other.choosing
    (ticket,) = sell([first])
    for step in ("run", "noise"):
        ticket.use(step, first)
    with pytest.raises(AssertionError):
        ticket.use("run", other)


def test_long_texts_are_one_group_below_too() -> None:
    catalog, _ = known("gdp")
    rows = ask.Rows("orders", "o", ("country",))
    measures = (("m", ask.Measured("count", None)),)
    made = plan(
        dataclasses.replace(
            counting(ask.Grouped(rows, (("g", name("o.country")),), measures, True), max_groups=2, max_rows=2),
            keys=(name("g"),),
        ),
        catalog,
    )
    two = [(i, 7, *ORDER[1:-1], letter * 2000) for i, letter in enumerate("ab")]
    shop.fill(engine(), {**VICTIM, "orders": two, "item": []})
    ((_, cell),) = exact(made).values()
    assert cell <= made.mechanisms[0].sensitivity
