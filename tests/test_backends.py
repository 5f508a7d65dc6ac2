"""DuckDB: the owner's connection is left alone, nothing shadows a name, and the generated SQL is what it seems."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest
import shop

import dpsql
from dpsql.kernel.exact import ExactQuery
from dpsql.kernel.noise import Exact, Release, Streams

COUNT = "SELECT count(*) FROM customer"


def connect(connection: Any, **rest: Any) -> dpsql.Session:
    return dpsql.connect(connection, policy=shop.policy(), **{"ledger": ":memory:", **rest})


@pytest.fixture
def owner() -> duckdb.DuckDBPyConnection:
    return shop.database(shop.clean())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "shop.duckdb"
    with duckdb.connect(str(path)) as connection:
        for table, columns in shop.TABLES.items():
            connection.execute(f"CREATE TABLE {table} ({columns})")
        shop.fill(connection, shop.clean())
    return path


def code(session: dpsql.Session, query: str = COUNT) -> str:
    with pytest.raises(dpsql.Refused) as refusal:
        session.sql(query)
    return refusal.value.code


def test_settings_of_the_owner_stay(owner: duckdb.DuckDBPyConnection) -> None:
    before = owner.execute("SELECT name, value FROM duckdb_settings() ORDER BY name").fetchall()
    tables = owner.execute("SELECT * FROM duckdb_tables()").fetchall()
    db = connect(owner)
    db.sql(COUNT)
    assert owner.execute("SELECT name, value FROM duckdb_settings() ORDER BY name").fetchall() == before
    assert owner.execute("SELECT * FROM duckdb_tables()").fetchall() == tables
    owner.execute("INSERT INTO country VALUES ('es', 0.21)")


def test_the_owner_can_write_between_queries(file: Path) -> None:
    db = connect(file)
    db.sql(COUNT)
    with duckdb.connect(str(file)) as writer:
        writer.execute("INSERT INTO country VALUES ('es', 0.21)")
    db.sql(COUNT)


@pytest.mark.parametrize("name", ["sum", "+", "count", "round", "isnan", "SUM", "<", "~~"])
def test_a_macro_does_not_shadow(owner: duckdb.DuckDBPyConnection, name: str) -> None:
    """Neither here nor in another schema or database, nor for the session alone."""
    db = connect(owner)
    query = "SELECT sum(age + tier), count(*) FROM customer WHERE round(age) < 50 AND segment LIKE 'b%'"
    (exact, *_) = owner.execute(query).fetchall()
    arguments = "(a, b)" if name in ("+", "<", "~~") else "(a)"
    owner.execute(f"""CREATE SCHEMA memory."system"; ATTACH ':memory:' AS other; CREATE MACRO other."{name}"{arguments} AS 42;
        CREATE MACRO "{name}"{arguments} AS 42; CREATE MACRO memory."system"."{name}"{arguments} AS 42; CREATE TEMP MACRO "{name}"{arguments} AS 42""")
    (found, *_) = db.sql(query, epsilon=1e9).fetchall()
    assert [float(cell) for cell in found] == pytest.approx([float(cell) for cell in exact], rel=1e-3)


def test_nobody_replaces_a_built_in(owner: duckdb.DuckDBPyConnection) -> None:
    """What the proof of `snapshot` takes from the engine."""
    for statement in ("CREATE MACRO system.main.sum(a) AS 42", "CREATE TYPE system.main.mood AS ENUM ('a')"):
        with pytest.raises(duckdb.Error):
            owner.execute(statement)
    with pytest.raises(duckdb.Error):
        owner.create_function("abs", lambda x: 42, ["BIGINT"], "BIGINT")


def test_a_type_does_not_shadow(owner: duckdb.DuckDBPyConnection) -> None:
    db = connect(owner)
    owner.execute("CREATE SCHEMA mine; CREATE TYPE mine.hugeint AS VARCHAR; USE mine")
    (count,) = db.sql(COUNT, epsilon=1e9).fetchone() or ()
    assert count == 60


def test_other_macros_do_no_harm(owner: duckdb.DuckDBPyConnection) -> None:
    owner.execute("CREATE MACRO my_own(a) AS a + 1; CREATE TYPE mood AS ENUM ('good', 'bad')")
    connect(owner).sql(COUNT)


def test_temporary_tables_and_views_do_not_shadow(owner: duckdb.DuckDBPyConnection) -> None:
    db = connect(owner)
    owner.execute(
        "CREATE TEMP TABLE customer AS SELECT 1 AS id; CREATE SCHEMA other; CREATE VIEW other.orders AS SELECT 1 AS id"
    )
    (count,) = db.sql(COUNT, epsilon=1e9).fetchone() or ()
    assert count == 60


@pytest.mark.parametrize(
    "setting",
    [
        "default_collation = 'nocase'",
        "integer_division = true",
        "ieee_floating_point_ops = false",
        "default_order = 'DESC'",
    ],
)
def test_settings_that_change_meanings_are_refused(owner: duckdb.DuckDBPyConnection, setting: str) -> None:
    db = connect(owner)
    owner.execute(f"SET GLOBAL {setting}")
    assert code(db) == "setting_not_supported"


def test_a_changed_schema_is_refused_before_the_charge(owner: duckdb.DuckDBPyConnection) -> None:
    db = connect(owner)
    owner.execute("ALTER TABLE orders ALTER quantity TYPE VARCHAR")
    assert code(db) == "schema_changed"
    owner.execute("DROP TABLE orders; CREATE VIEW orders AS SELECT 1 AS id")
    assert code(db) == "schema_changed"
    assert db.budget.spent.amount == 0


def test_a_database_in_use_is_refused(file: Path) -> None:
    with duckdb.connect(str(file)), pytest.raises(dpsql.Refused, match="database_in_use"):
        connect(file)
    hold = subprocess.Popen(
        [sys.executable, "-c", f"import duckdb, sys; c = duckdb.connect({str(file)!r}); print(1, flush=True); sys.stdin.read()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    assert hold.stdout is not None and hold.stdout.readline()
    with pytest.raises(dpsql.Refused, match="database_in_use"):
        connect(file)
    hold.communicate(b"")


def test_what_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.duckdb").write_text("hello " * 1000)
    cases = {"database_missing": tmp_path / "none.duckdb", "database_unreadable": tmp_path / "text.duckdb"}
    for expected, path in cases.items():
        with pytest.raises(dpsql.Refused, match=expected):
            connect(path)
    with pytest.raises(dpsql.Refused, match="database_not_supported"):
        connect(42)
    closed = duckdb.connect()
    closed.close()
    with pytest.raises(dpsql.Refused, match="database_closed"):
        connect(closed)


def test_an_open_connection_needs_a_ledger_and_a_name(owner: duckdb.DuckDBPyConnection) -> None:
    with pytest.raises(dpsql.Refused, match="ledger_missing"):
        connect(owner, ledger=None)
    anonymous = {key: value for key, value in shop.policy().items() if key != "dataset"}
    with pytest.raises(dpsql.Refused, match="dataset_missing") as caught:
        dpsql.connect(owner, policy=anonymous, ledger=":memory:")
    assert '\n[dataset]\nid = "shop"' in caught.value.hint


def test_a_file_has_one_name_however_it_is_opened(tmp_path: Path) -> None:
    """The ledger of a path is that of a connection to it, and not that of another file."""
    policy = {"budget": {"epsilon": 1.0}, "tables": {"t": {"person": "p", "max_rows_contributed": 1}}}
    for name in ("one.duckdb", "two.duckdb"):
        with duckdb.connect(str(tmp_path / name)) as connection:
            connection.execute("CREATE TABLE t AS SELECT 1 AS p")
    ledger = tmp_path / "one.ledger"
    with dpsql.connect(tmp_path / "one.duckdb", policy=policy) as db:
        db.sql("SELECT count(*) FROM t", epsilon=0.25)
    with duckdb.connect(str(tmp_path / "one.duckdb")) as connection:
        assert dpsql.connect(connection, policy=policy, ledger=ledger).budget.spent.epsilon == 0.25
    with duckdb.connect(str(tmp_path / "two.duckdb")) as other, pytest.raises(dpsql.Refused, match="ledger_differs"):
        dpsql.connect(other, policy=policy, ledger=ledger)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1; SELECT 2",
        "DROP TABLE customer",
        'SELECT count(*) FROM "memory"."main"."country"',
        "SELECT count(*) FROM customer",
        "SELECT count(*) FROM read_csv('/etc/passwd')",
        'SELECT error("id") FROM "memory"."main"."customer"',
        'SELECT (SELECT query(\'x\')) FROM "memory"."main"."customer"',
        "PIVOT customer ON id",
        "SELECT",
    ],
)
def test_the_engine_parser_confirms_only_what_was_planned(owner: duckdb.DuckDBPyConnection, sql: str) -> None:
    """A generator that wrote any of these would be found out before the charge."""
    db = connect(owner)
    plan = db._plan(COUNT, None, None)
    db._shadow.confirm(plan.release)
    with pytest.raises((AssertionError, dpsql.Refused)):
        db._shadow.confirm(other(plan, sql))
    with pytest.raises((AssertionError, dpsql.Refused)):
        db._shadow.confirm(other(plan, sql, plan.release.exact.all))


def other(plan: Any, sql: str, more: tuple[ExactQuery, ...] = ()) -> Release:
    """A release that runs this SQL."""
    query = ExactQuery(sql, plan.release.tables, 0)
    (limits, *_) = plan.release.limits
    streams = Streams(limits, query, more, None, None)
    return dataclasses.replace(plan.release, exact=Exact(passes=(streams,)))


def test_what_the_engine_cannot_run_is_refused_before_the_charge(owner: duckdb.DuckDBPyConnection) -> None:
    db = connect(owner)
    plan = db._plan(COUNT, None, None)
    with pytest.raises(dpsql.Refused, match="engine_cannot"):
        wrong = 'SELECT "nothing" AS "n0" FROM "memory"."main"."customer"'
        db._shadow.confirm(other(plan, wrong))
    with pytest.raises(dpsql.Refused, match="too_deep"):
        db.sql("SELECT sum(" + " + ".join(["quantity"] * 700) + ") FROM orders")
    assert db.budget.spent.amount == 0


@pytest.mark.parametrize(
    "query",
    [
        "SELECT count(*) FROM customer WHERE age = 1 = true",
        "SELECT sum(age) EXPORT_STATE FROM customer",
        'SELECT count(*) FROM customer AS ""',
    ],
)
def test_what_duckdb_would_not_read_so_is_refused(owner: duckdb.DuckDBPyConnection, query: str) -> None:
    assert code(connect(owner), query) in ("syntax", "not_supported")


def test_a_collation_is_refused(tmp_path: Path) -> None:
    """Under a collation one text equals another, and a row would count under both keys, or two persons be one."""
    owner = duckdb.connect()
    owner.execute("CREATE TABLE t (id VARCHAR COLLATE NOCASE, g VARCHAR)")
    policy = {"dataset": {"id": "t"}, "budget": {"epsilon": 1.0}, "tables": {"t": {"person": "id"}}}
    with pytest.raises(dpsql.Refused, match="collation"):
        dpsql.connect(owner, policy=policy, ledger=":memory:")


def test_names_are_folded_as_the_engine_does(tmp_path: Path) -> None:
    """Python lowers every alphabet, DuckDB only ASCII: two tables or columns must not become one."""
    owner = duckdb.connect()
    owner.execute('CREATE TABLE "\u00c9" (i INTEGER); CREATE TABLE "\u00e9" ("\u00c9" INTEGER, "\u00e9" INTEGER)')
    owner.execute('INSERT INTO "\u00e9" SELECT i, i % 2 FROM range(10) t(i)')
    tables = {"\u00c9": {"public": True}, "\u00e9": {"person": "\u00c9"}}
    policy = {
        "dataset": {"id": "t"},
        "budget": {"epsilon": 1e12},
        "defaults": {"max_rows_contributed": 1},
        "tables": tables,
    }
    db = dpsql.connect(owner, policy=policy, ledger=":memory:")
    assert db.sql('SELECT count(*) FROM "\u00e9"', epsilon=1e9).fetchall() == [(10,)]


def test_an_engine_error_is_one_constant_and_is_charged(
    owner: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A generated query that raises on some cell: no text, no cause, and the charge stands."""
    from dpsql.backends.duckdb import Snapshot

    db = connect(owner)
    bad = "SELECT CAST(error('secret ' || segment) AS HUGEINT) AS n0 FROM customer"
    monkeypatch.setattr(Snapshot, "_run", lambda self, query: self._connection.sql(bad))
    with pytest.raises(dpsql.Failed) as failure:
        db.sql(COUNT)
    assert str(failure.value) == str(dpsql.Failed())
    assert failure.value.__cause__ is None and failure.value.__context__ is None
    assert "secret" not in repr(failure.value)
    assert db.budget.spent.amount > 0
    monkeypatch.undo()
    db.sql(COUNT)


def test_quoted_names(tmp_path: Path) -> None:
    """Names with quotes, dots and other alphabets, and names that the generated SQL uses itself."""
    owner = duckdb.connect()
    owner.execute('CREATE TABLE "od""d" ("person" BIGINT, "row" INTEGER, "k0" VARCHAR, "größe.x" INTEGER, "n" INTEGER)')
    owner.execute('INSERT INTO "od""d" SELECT i, 1, \'a\', 5, 2 FROM range(50) t(i)')
    policy = {
        "dataset": {"id": "odd"}, "budget": {"epsilon": 1e12},
        "defaults": {"max_rows_contributed": 1},
        "tables": {'od"d': {"person": "person", "columns": {
            "k0": {"in": ["a", "b'"]}, "größe.x": {"between": [0, 10]}, "row": {"between": [0, 3]}, "n": {"between": [0, 3]}}}},
    }  # fmt: skip
    db = dpsql.connect(owner, policy=policy, ledger=":memory:")
    answer = db.sql(
        'SELECT k0, sum("größe.x"), sum("row"), sum(n), count(person) FROM "od""d" WHERE "row" = 1 GROUP BY k0',
        epsilon=1e9,
    )
    assert answer.fetchall()[:2] == [("a", 250, 50, 100, 50), ("b'", 0, 0, 0, 0)]


def test_a_file_that_this_process_has_open_read_only(tmp_path: Path) -> None:
    """One instance serves both; open for writing, or with settings of its own, it is refused."""
    policy = {"budget": {"epsilon": 9.0}, "tables": {"t": {"person": "p", "max_rows_contributed": 1}}}
    file = tmp_path / "shop.duckdb"
    with duckdb.connect(str(file)) as connection:
        connection.execute("CREATE TABLE t AS SELECT i AS p FROM range(100) t(i)")
        with pytest.raises(dpsql.Refused, match="database_in_use"):
            dpsql.connect(file, policy=policy)
    with duckdb.connect(str(file), read_only=True) as connection:
        with dpsql.connect(file, policy=policy) as db:
            assert abs(db.sql("SELECT count(*) FROM t", epsilon=1).fetchall()[0][0] - 100) < 50
        assert connection.execute("SELECT count(*) FROM t").fetchall() == [(100,)]
        connection.execute("SET GLOBAL integer_division = true")
        with pytest.raises(dpsql.Refused, match="setting_not_supported"):
            dpsql.connect(file, policy=policy)
    other = duckdb.connect(str(file), read_only=True, config={"threads": 1})
    with other, pytest.raises(dpsql.Refused, match="database_in_use"):
        dpsql.connect(file, policy=policy)
    with duckdb.connect(str(file)) as connection:  # nothing of ours is left open
        connection.execute("INSERT INTO t VALUES (1)")
