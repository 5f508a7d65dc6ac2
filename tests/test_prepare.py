"""A prepared copy gives the same integers as the database that it was made of, for as long as that is unchanged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pytest
from click.testing import CliRunner
from forms import by_sql, natively, same

import dpsql
from dpsql.compiler.program import Plan
from dpsql.frontends.cli import cli
from dpsql.kernel.keys import PublicKeys
from dpsql.policy.catalog import INTEGERS, read_policy
from dpsql.prepare import prepare

POLICY: dict[str, Any] = {
    "dataset": {"id": "shop", "version": "1"},
    "budget": {"epsilon": 100.0, "delta": 1e-6},
    "defaults": {"epsilon": 1.0, "max_rows_contributed": 8, "max_groups_contributed": 3},
    "tables": {
        "buyer": {"person": "name", "key": ["name"], "columns": {"age": {"between": [0, 99]}}},
        "orders": {
            "person": {"column": "buyer", "references": "buyer.name"},
            "key": ["id"],
            "columns": {"kind": {"in": ["a", "b", "c"]}, "price": {"between": [0, 50]}, "level": {"in": [0, 1, 2, 3]}},
        },
        "item": {
            "person": {"column": "order_id", "references": "orders.id"},
            "shared": True,  # where it is not prepared
            "columns": {"n": {"between": [0, 9]}},
        },
        "shop": {"public": True, "key": ["code"]},
    },
}
QUERIES = [
    "SELECT kind, count(*), avg(price) FROM orders GROUP BY kind",
    "SELECT kind, level, sum(price) FROM orders WHERE price > 3 GROUP BY kind, level",
    "SELECT count(*), stddev(price) FROM orders",
    "SELECT level, count(DISTINCT buyer) FROM orders GROUP BY level",
    "SELECT note, count(*) FROM orders GROUP BY note",
    "SELECT count(*), sum(n) FROM item",
    "SELECT kind, sum(n) FROM item JOIN orders ON item.order_id = orders.id GROUP BY kind",
    "SELECT town, count(*), sum(price) FROM orders JOIN shop ON orders.shop = shop.code GROUP BY town",
    "SELECT level, sum(price) FROM orders JOIN shop ON orders.shop = shop.code GROUP BY level",
    "SELECT level, count(*) FROM orders JOIN buyer ON orders.buyer = buyer.name WHERE age > 20 GROUP BY level",
    "SELECT count(*) FROM orders WHERE buyer IN (SELECT name FROM buyer WHERE age < 50)",
    "SELECT avg(n) FROM (SELECT buyer, count(*) AS n FROM orders GROUP BY buyer)",
    "SELECT level, count(*) FROM (SELECT level, price FROM orders WHERE price < 40) GROUP BY level",
    "SELECT level, count(*) FROM (SELECT buyer, level, max(price) AS p FROM orders GROUP BY buyer, level) GROUP BY level",
    "SELECT count(*) FROM orders a JOIN orders b ON a.buyer = b.buyer",
    "SELECT count(DISTINCT price) FROM orders",
    "SELECT count(*), avg(age) FROM buyer",
    "SELECT level, sum(price, contribution_bounds_per_group => (0, 90)), count(DISTINCT buyer) FROM orders GROUP BY level",
    "SELECT kind, count(*, contribution_bounds_per_group => (0, 2)) FROM item JOIN orders ON item.order_id = orders.id GROUP BY kind",
]


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    path = tmp_path / "shop.duckdb"
    with duckdb.connect(str(path)) as db:
        db.execute("CREATE TABLE buyer AS SELECT 'name ' || i AS name, (i % 70)::INTEGER AS age FROM range(60) r(i)")
        db.execute(
            "CREATE TABLE orders AS SELECT i AS id, CASE WHEN i % 40 > 0 THEN 'name ' || (i * i % 67) END AS buyer, "
            "chr((97 + i % 5)::INTEGER) AS kind, (i % 61)::DOUBLE AS price, (i % 6)::SMALLINT AS level, "
            "'note ' || i % 3 AS note, i % 7 AS shop FROM range(900) r(i)"
        )
        db.execute("CREATE TABLE item AS SELECT i % 1000 AS order_id, i % 12 AS n FROM range(3000) r(i)")
        db.execute("CREATE TABLE shop AS SELECT i AS code, 'town ' || i % 2 AS town FROM range(6) r(i)")
    return path


def explained(session: dpsql.Session, query: str) -> Plan:
    plan = session.explain(query).plan
    assert isinstance(plan, Plan)
    return plan


def uses_a_copy(session: dpsql.Session) -> bool:
    limits = explained(session, QUERIES[0]).release.limits
    return bool(limits and limits[0].sums)


def engine(session: dpsql.Session) -> duckdb.DuckDBPyConnection:
    assert session._backend._owner is not None
    return session._backend._owner.cursor()


def test_the_same_integers(shop: Path) -> None:
    with dpsql.connect(shop, policy=POLICY, ledger=":memory:") as db:
        plans = {query: explained(db, query) for query in QUERIES}
    with duckdb.connect(str(shop), read_only=True) as own:
        before = {query: by_sql(own, plan) for query, plan in plans.items()}
    prepare(shop, read_policy(POLICY))
    split = 0
    with dpsql.connect(shop, policy=POLICY, ledger=":memory:") as db:
        own = engine(db)
        for query, expected in before.items():
            plan = explained(db, query)
            ordered = isinstance(plan.release.keys, PublicKeys)
            assert same(by_sql(own, plan), expected, ordered), query
            if plan.release.limits:
                assert same(natively(own, plan), expected, ordered), query
                split += bool(plan.release.limits[0].rows and plan.release.limits[0].sums)
            assert len(db.sql(query).fetchall()) >= 0
            assert len(db.rehearse(query).fetchall()) >= 0
    assert split >= 7, "persons with few rows are added up by the engine"


def test_persons_with_few_rows_are_not_streamed(shop: Path) -> None:
    prepare(shop, read_policy(POLICY))
    with dpsql.connect(shop, policy=POLICY, ledger=":memory:") as db:
        own, plan = engine(db), explained(db, QUERIES[0])
        assert plan.release.limits
        persons = own.sql(f"SELECT person, count(*) FROM ({plan.release.limits[0].rows}) GROUP BY person").fetchall()
        assert persons and all(isinstance(person, int) for person, _ in persons)
        everyone = own.sql('SELECT "dpsql code", any_value("dpsql rows") FROM orders GROUP BY ALL').fetchall()
        assert {person for person, _ in persons} <= {code for code, rows in everyone if code is not None and rows > 8}
        assert "added up by the engine" in db.explain(QUERIES[0]).sql


def test_nothing_hidden_can_be_asked(shop: Path) -> None:
    prepare(shop, read_policy(POLICY))
    with dpsql.connect(shop, policy=POLICY, ledger=":memory:") as db:
        for query in (
            'SELECT sum("dpsql rows") FROM orders',
            'SELECT "dpsql person", count(*) FROM orders GROUP BY ALL',
        ):
            with pytest.raises(dpsql.Refused, match="column"):
                db.sql(query)


@pytest.mark.parametrize("what", ["data", "policy", "version", "damage"])
def test_what_has_changed_is_not_used(shop: Path, what: str) -> None:
    target, policy = prepare(shop, read_policy(POLICY)), POLICY
    with dpsql.connect(shop, policy=POLICY, ledger=":memory:") as db:
        assert uses_a_copy(db)
        if what == "data":
            with duckdb.connect(str(shop)) as owner:
                owner.execute("DELETE FROM orders WHERE id = 7")
            with pytest.raises(dpsql.Refused, match="data_changed"):
                db.sql(QUERIES[0])
            assert not db.history
    if what == "policy":
        orders = {**POLICY["tables"]["orders"], "person": "buyer"}
        policy = {**POLICY, "tables": {**POLICY["tables"], "orders": orders}}
    if what == "version":
        policy = {**POLICY, "dataset": {"id": "shop", "version": "2"}}
    if what == "damage":
        target.write_bytes(b"nonsense")
    with dpsql.connect(shop, policy=policy, ledger=":memory:") as db:
        assert not uses_a_copy(db)
        db.sql(QUERIES[0])


def test_a_row_of_two_persons_is_not_prepared(shop: Path) -> None:
    with duckdb.connect(str(shop)) as owner:
        owner.execute("INSERT INTO orders SELECT * REPLACE ('name 1' AS buyer) FROM orders WHERE id = 3")
    for policy in (POLICY, {**POLICY, "tables": {**POLICY["tables"], "orders": without_key()}}):
        with pytest.raises(dpsql.Refused, match=r"cannot_prepare: item: a row finds more than one person"):
            prepare(shop, read_policy(policy))
    assert sorted(file.name for file in shop.parent.iterdir()) == ["shop.duckdb"]


def without_key() -> dict[str, Any]:
    return {word: value for word, value in POLICY["tables"]["orders"].items() if word != "key"}


def test_the_command(shop: Path, tmp_path: Path) -> None:
    policy = tmp_path / "shop.policy.toml"
    lines = ["[budget]", "epsilon = 9.0", "[tables.buyer]", 'person = "name"']
    policy.write_text("\n".join(lines))
    run = CliRunner().invoke(cli, ["prepare", str(shop)])
    assert run.exit_code == 0 and "preparing buyer" in run.output and run.stdout == f"{shop}.prepared\n"
    answered = CliRunner().invoke(cli, ["sql", str(shop), "SELECT count(*) FROM buyer", "--epsilon", "1", "--json"])
    assert answered.exit_code == 0, answered.output
    assert json.loads(answered.stdout)
    assert CliRunner().invoke(cli, ["prepare", str(tmp_path / "none.duckdb"), "--policy", str(policy)]).exit_code == 3


def test_the_copy_is_as_private_as_the_database(shop: Path) -> None:
    shop.chmod(0o600)
    assert prepare(shop, read_policy(POLICY)).stat().st_mode & 0o777 == 0o600


def test_links_are_followed(shop: Path, tmp_path: Path) -> None:
    """The engine keeps the log beside the file itself, not beside the link."""
    link = tmp_path / "elsewhere" / "other.duckdb"
    link.parent.mkdir()
    link.symlink_to(shop)
    assert prepare(link, read_policy(POLICY)) == Path(f"{shop}.prepared")
    with dpsql.connect(link, policy=POLICY, ledger=":memory:") as db:
        assert uses_a_copy(db)
        db.sql(QUERIES[0])
        Path(f"{shop}.wal").write_bytes(b"a log that someone has left")
        with pytest.raises(dpsql.Refused, match="data_changed"):
            db.sql(QUERIES[0])


def test_a_copy_under_another_name_is_not_used(shop: Path) -> None:
    """The engine would call it otherwise than the plans do, and all would fail and be charged."""
    target = prepare(shop, read_policy(POLICY))
    other = shop.rename(shop.with_name("other.duckdb"))
    target.rename(f"{other}.prepared")
    with dpsql.connect(other, policy=POLICY, ledger=":memory:") as db:
        assert not uses_a_copy(db)
        db.sql(QUERIES[0])


def test_nothing_else_is_overwritten(shop: Path) -> None:
    Path(f"{shop}.prepared").write_text("something else")
    with pytest.raises(dpsql.Refused, match="in the way"):
        prepare(shop, read_policy(POLICY))
    copy = shop.rename(shop.with_name("shop.prepared"))
    for act in (
        lambda: prepare(copy, read_policy(POLICY)),
        lambda: dpsql.connect(copy, policy=POLICY, ledger=":memory:"),
    ):
        with pytest.raises(dpsql.Refused, match="database_is_a_copy"):
            act()


def test_the_price_does_not_change(shop: Path, tmp_path: Path) -> None:
    """Neither the noise nor the charge; and a query is charged once, whether or not the data is prepared between two tries."""
    ledger = tmp_path / "shop.ledger"
    with dpsql.connect(shop, policy=POLICY, ledger=ledger) as db:
        before = {query: explained(db, query) for query in QUERIES}
        first = db.sql(QUERIES[0], query_id="one").fetchall()
    prepare(shop, read_policy(POLICY))
    with dpsql.connect(shop, policy=POLICY, ledger=ledger) as db:
        for query, plan in before.items():
            after = explained(db, query)
            assert (after.charge, after.release.max_rows, after.release.noises) == (
                plan.charge,
                plan.release.max_rows,
                plan.release.noises,
            )
            assert after.release.text == plan.release.text
        assert db.sql(QUERIES[0], query_id="one").fetchall() == first and len(db.history) == 1


REFERENCES: dict[str, Any] = {
    "dataset": {"id": "shop"},
    "budget": {"epsilon": 100.0, "delta": 1e-6},
    "defaults": {"epsilon": 1.0, "max_rows_contributed": 9, "max_groups_contributed": 3},
    "tables": {
        "buyer": {"person": "id", "key": ["id"]},
        "orders": {"person": {"column": "buyer", "references": "buyer.id"}, "key": ["id"]},
        "item": {
            "person": {"column": "order_id", "references": "orders.id"},
            "columns": {"kind": {"in": [0, 1]}, "n": {"between": [0, 9]}},
        },
    },
}
OF_ITEMS = (
    "SELECT count(*) FROM item",
    "SELECT kind, count(*), sum(n) FROM item GROUP BY kind",
    "SELECT sum(n) FROM item JOIN orders ON item.order_id = orders.id",
    "SELECT sum(n) FROM item JOIN orders ON item.order_id = orders.id JOIN buyer ON orders.buyer = buyer.id",
    "SELECT sum(most) FROM (SELECT buyer, max(id) AS most FROM orders GROUP BY buyer)",
)


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("own", ["TINYINT", "INTEGER", "BIGINT", "UBIGINT"])
@pytest.mark.parametrize("goal", ["UINTEGER", "BIGINT", "HUGEINT", "UBIGINT"])
def test_references_between_whole_numbers_of_any_width(tmp_path: Path, own: str, goal: str, prepared: bool) -> None:
    """Both forms, with a copy and without, count as plain SQL does, and no number is too large to be looked up."""
    path, ends = tmp_path / "shop.duckdb", {kind: map(int, INTEGERS[kind]) for kind in (own, goal)}
    with duckdb.connect(str(path)) as connection:
        connection.execute(f"CREATE TABLE buyer (id {goal} PRIMARY KEY)")
        connection.execute(f"CREATE TABLE orders (id {own} UNIQUE, buyer {own})")
        connection.execute(f"CREATE TABLE item (order_id {goal}, kind INTEGER, n INTEGER)")
        numbers = {kind: {0, 1, 2, 3, *found} for kind, found in ends.items()}
        for number in numbers[goal]:
            connection.execute("INSERT INTO buyer SELECT CAST(? AS VARCHAR)", [str(number)])
            connection.execute("INSERT INTO item SELECT CAST(? AS VARCHAR), i % 2, i FROM range(3) t(i)", [str(number)])
        for number in numbers[own]:
            connection.execute("INSERT INTO orders SELECT CAST(? AS VARCHAR), CAST(? AS VARCHAR)", [str(number)] * 2)
        connection.execute("INSERT INTO orders VALUES (NULL, 1), (7, NULL)")
    found = len(numbers[own] & numbers[goal])
    policy = read_policy(REFERENCES)
    if prepared:
        prepare(path, policy)
    with dpsql.connect(path, policy=REFERENCES, ledger=":memory:") as db:
        for query in OF_ITEMS:
            plan = db._plan(query, 1.0, None)
            assert isinstance(plan, Plan)
            with db._backend._connect() as connection:
                exact = by_sql(connection, plan)
                assert (
                    same(natively(connection, plan), exact, isinstance(plan.release.keys, PublicKeys))
                    or not plan.release.limits
                )
            if query == OF_ITEMS[0]:
                assert exact == [(3 * found * plan.release.summands[0].weight,)]
        assert abs(db.sql(OF_ITEMS[0], epsilon=20).fetchall()[0][0] - 3 * found) < 30
