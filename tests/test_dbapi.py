"""The database API 2.0 (PEP 249), with its own compliance suite, pandas and polars on the other side."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dbapi20
import duckdb
import pandas as pd
import polars as pl
import pytest
import shop

import dpsql
from dpsql import dbapi

GROUPED = "SELECT segment, count(*) AS n, avg(age) AS age FROM customer GROUP BY segment"
DRINKS = {"dbapi20test_booze": "name VARCHAR", "dbapi20test_barflys": "name VARCHAR, drink VARCHAR"}


@pytest.fixture
def connection() -> Iterator[dbapi.Connection]:
    made = dbapi.connect(shop.database(shop.clean()), shop.policy(epsilon=100.0), ":memory:")
    with made:
        yield made


# --- the compliance suite ---------------------------------------------------------------------------------------------


class OwnersCursor(dbapi.Cursor):
    """What the suite writes is written by the owner of the data; what it reads is asked through dpsql."""

    def execute(self, operation: str, parameters: object = None, **options: Any) -> dbapi.Cursor:
        self.check()
        if operation.split()[0].lower() in ("create", "drop", "insert"):
            self._answer = None
            if operation.startswith("insert"):
                self.connection.owner.execute(operation, parameters)  # type: ignore[attr-defined]
            return self
        try:
            return super().execute(operation, parameters, **options)
        except dbapi.OperationalError as error:
            assert error.code == "data_changed"  # the owner has written
            return super().execute(operation, parameters, **options)

    def executemany(self, operation: str, seq_of_parameters: Any) -> Any:
        for parameters in seq_of_parameters:
            self.execute(operation, parameters)


class OwnersConnection(dbapi.Connection):
    owner: duckdb.DuckDBPyConnection

    def cursor(self) -> dbapi.Cursor:
        self.check()
        return OwnersCursor(self)


class Driver:
    """dpsql.dbapi, with public tables that the suite may fill."""

    def __getattr__(self, name: str) -> Any:
        return getattr(dbapi, name)

    def connect(self) -> dbapi.Connection:
        owner = duckdb.connect()
        for table, columns in DRINKS.items():
            owner.execute(f"CREATE TABLE {table} ({columns})")
        policy = {
            "dataset": {"id": "bar"},
            "budget": {"epsilon": 1.0, "delta": 1e-6},
            "defaults": {"epsilon": 0.1},
            "tables": {table: {"public": True} for table in DRINKS},
        }
        made = OwnersConnection(dpsql.connect(owner, policy=policy, ledger=":memory:"))
        made.owner = owner
        return made


class TestCompliance(dbapi20.DatabaseAPI20Test):  # type: ignore[misc]
    """All but three of the suite's tests: they are overridden here, and say why they do not apply."""

    driver = Driver()

    def test_nextset(self) -> None:
        """PEP 249 has it as optional: a statement has one answer, and there are no procedures."""
        assert not hasattr(dbapi.Cursor, "nextset") and not hasattr(dbapi.Cursor, "callproc")

    def test_setoutputsize(self) -> None:
        """Nothing to do, which PEP 249 allows; that it does nothing is in test_setoutputsize_basic."""

    def test_non_idempotent_close(self) -> None:
        """PEP 249 does not ask for an error, and `with` closes what may be closed already."""
        connection = self._connect()
        connection.close()
        connection.close()


# --- what is ours -----------------------------------------------------------------------------------------------------


def test_a_cursor_has_error_bars(connection: dbapi.Connection) -> None:
    cursor = connection.cursor()
    assert cursor.description is None and cursor.rowcount == -1
    assert cursor.execute(GROUPED) is cursor
    assert [(d[0], d[1]) for d in cursor.description or ()] == [
        ("segment", "VARCHAR"),
        ("n", "BIGINT"),
        ("age", "DOUBLE"),
    ]
    assert [d[1] == dbapi.STRING for d in cursor.description or ()] == [True, False, False]
    assert [d[1] == dbapi.NUMBER for d in cursor.description or ()] == [False, True, True]
    assert cursor.rowcount == 4 and len(list(cursor)) == 4 and cursor.fetchall() == []
    assert all(bars[0] is None and bars[1] > 0 for bars in cursor.errors)  # type: ignore[operator]
    narrow, wide = cursor.interval(0.5)[0][1], cursor.interval(0.99)[0][1]
    assert narrow and wide and wide[0] < narrow[0] < narrow[1] < wide[1]
    assert cursor.loss.epsilon == 1.0 and cursor.notes


def test_parameters(connection: dbapi.Connection) -> None:
    cursor = connection.cursor()
    query = "SELECT count(*) FROM customer WHERE joined > {} AND segment = {}"
    values = (dbapi.Date(2020, 1, 1), "family")
    for text, parameters in (
        (query.format("?", "?"), values),
        (query.format("$1", "$2"), list(values)),
        (query.format("$day", "$what"), {"day": values[0], "what": values[1]}),
    ):
        assert cursor.execute(text, parameters, epsilon=30.0).fetchone()[0] == pytest.approx(15, abs=5)  # type: ignore[index]
    assert dbapi.TimestampFromTicks(0).timestamp() == 0 and dbapi.Time(1, 2) == datetime.time(1, 2)


@pytest.mark.parametrize(
    ("query", "kind", "code"),
    [
        ("SELECT FROM WHERE", dbapi.ProgrammingError, "syntax"),
        ("SELECT count(*) FROM nowhere", dbapi.ProgrammingError, "table_unknown"),
        ("SELECT sum(nothing) FROM customer", dbapi.ProgrammingError, "column_unknown"),
        ("SELECT count(*) FROM customer WHERE age > ?", dbapi.ProgrammingError, "parameter_missing"),
        ("DELETE FROM customer", dbapi.NotSupportedError, "select_only"),
        ("SELECT count(*) FROM country LEFT JOIN orders ON name = country", dbapi.NotSupportedError, "join_not_local"),
    ],
)
def test_refusals_are_sorted(connection: dbapi.Connection, query: str, kind: type[Exception], code: str) -> None:
    cursor = connection.cursor()
    with pytest.raises(kind) as refusal:
        cursor.execute(query)
    assert isinstance(refusal.value, dbapi.Error) and type(refusal.value) is kind
    assert refusal.value.code == code and refusal.value.hint
    assert isinstance(refusal.value.__cause__, dpsql.Refused) and str(refusal.value.__cause__) == str(refusal.value)
    assert refusal.value.position == refusal.value.__cause__.position
    assert connection.session.budget.spent.amount == 0
    with pytest.raises(dbapi.ProgrammingError):
        cursor.fetchall()


def test_the_others_are_operational(connection: dbapi.Connection, tmp_path: Path) -> None:
    cursor = connection.cursor()
    with pytest.raises(dbapi.OperationalError, match="budget_exhausted"):
        for _ in range(3):
            cursor.execute(GROUPED, epsilon=90.0)
    with pytest.raises(dbapi.OperationalError, match="database_missing"):
        dbapi.connect(tmp_path / "shop.duckdb")
    duckdb.connect(tmp_path / "shop.duckdb").close()
    with pytest.raises(dbapi.OperationalError, match="policy_unreadable"):
        dbapi.connect(tmp_path / "shop.duckdb")
    with pytest.raises(dbapi.OperationalError, match="ledger_missing"):
        dbapi.connect(duckdb.connect(), shop.policy())
    with pytest.raises(dbapi.OperationalError, match="policy_missing"):
        dbapi.connect(duckdb.connect())
    assert dbapi.kind_of(dpsql.Failed()) is dbapi.OperationalError


def test_only_execute_asks(connection: dbapi.Connection) -> None:
    with pytest.raises(dbapi.NotSupportedError, match="executemany"):
        connection.cursor().executemany("SELECT count(*) FROM customer WHERE age > ?", [(1,), (2,)])
    assert connection.session.budget.spent.amount == 0


def test_closed(connection: dbapi.Connection) -> None:
    first, second = connection.cursor(), connection.cursor()
    second.execute("SELECT name FROM country")
    first.close()
    for use in (first.fetchone, lambda: first.execute(GROUPED), lambda: first.setinputsizes([1])):
        with pytest.raises(dbapi.InterfaceError, match="cursor_closed"):
            use()
    connection.close()
    for use in (second.fetchone, connection.cursor, connection.commit, connection.rollback):
        with pytest.raises(dbapi.InterfaceError, match="connection_closed"):
            use()


def test_the_privacy_of_a_connection(tmp_path: Path) -> None:
    """The policy is beside the file; epsilon and delta may be the connection's."""
    file = tmp_path / "shop.duckdb"
    shop.database(shop.clean(), duckdb.connect(str(file))).close()
    (tmp_path / "shop.policy.toml").write_text(
        "[budget]\nepsilon = 1.0\ndelta = 1e-6\n[tables.customer]\nperson = 'id'\nmax_rows_contributed = 1\n"
    )
    with dbapi.connect(str(file), epsilon=0.25) as connection:
        assert connection.cursor().execute("SELECT count(*) FROM customer").loss.epsilon == 0.25


def test_pandas(connection: dbapi.Connection) -> None:
    with pytest.warns(UserWarning, match="SQLAlchemy"):
        frame = pd.read_sql(GROUPED, connection)
    assert list(frame.columns) == ["segment", "n", "age"] and len(frame) == 4
    with pytest.warns(UserWarning, match="SQLAlchemy"):
        one = pd.read_sql("SELECT name FROM country WHERE vat > ?", connection, params=[0.21])
    assert list(one["name"]) == ["it"]


def test_polars(connection: dbapi.Connection) -> None:
    frame = pl.read_database(GROUPED, connection)
    assert frame.columns == ["segment", "n", "age"] and frame.height == 4
    assert frame.dtypes == [pl.String, pl.Int64, pl.Float64]
