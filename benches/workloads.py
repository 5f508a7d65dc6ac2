"""What the benches of time and of error ask: three databases, their policies, and queries that say what they need.

A query is kept in parts and not as a text alone, as some peers have no SQL. Generators use hashes of row numbers instead of random
numbers: the same rows on every machine. Limits are what an owner who knows such data would declare: about one person in a
hundred has more.
"""

from __future__ import annotations

import copy
import datetime
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import tpch

PERSONS = 200_000  # of a million events or more; fewer have a fifth as many, so that small tables look alike


@dataclass(frozen=True)
class Query:
    """SELECT keys, aggregates FROM table WHERE condition GROUP BY keys; `rows` and `groups` are one person's limits."""

    name: str
    table: str
    keys: tuple[str, ...]
    aggregates: tuple[tuple[str, str], ...]  # count, sum, avg or persons; and of which column
    rows: int
    groups: int
    where: str = ""

    @property
    def sql(self) -> str:
        calls = [
            f"{call}({column})" if call != "persons" else f"count(DISTINCT {column})"
            for call, column in self.aggregates
        ]
        listed = ", ".join([*self.keys, *(f"{text} AS a{i}" for i, text in enumerate(calls))])
        where = f" WHERE {self.where}" if self.where else ""
        grouped = f" GROUP BY {', '.join(self.keys)}" if self.keys else ""
        return f"SELECT {listed} FROM {self.table}{where}{grouped}"


@dataclass(frozen=True)
class Workload:
    """`flat` are SELECTs with the person beside each row, for peers that follow no references."""

    name: str
    make: Callable[[int, Path], duckdb.DuckDBPyConnection]  # about so many rows
    policy: dict[str, Any]
    person: str
    flat: dict[str, str]
    queries: Callable[[int], tuple[Query, ...]]  # with limits for so many rows


def mixed(salt: int, of: str = "i") -> str:
    """Not hash(i, salt): DuckDB joins hashes by XOR, so that those of one row would go together."""
    return f"hash({of} * 100 + {salt})"


def uniform(salt: int, of: str = "i") -> str:
    """Between 0 and 1, from the number of the row or of the person."""
    return f"({mixed(salt, of)}::DOUBLE / 18446744073709551616)"


def events(rows: int, _: Path) -> duckdb.DuckDBPyConnection:
    """Key k has a share of about 1 / k; a person's activity has a heavy tail."""
    persons = min(PERSONS, max(rows // 5, 1))
    connection = duckdb.connect()
    connection.execute(
        f"CREATE TABLE events AS SELECT floor({persons} * pow({uniform(1)}, 1.5))::INTEGER AS person, "
        f"floor(pow(1001, {uniform(2)}))::INTEGER AS key, floor(101 * {uniform(3)})::INTEGER AS value FROM range({rows}) t(i)"
    )
    return connection


def event_queries(rows: int) -> tuple[Query, ...]:
    """With the number of persons fixed, each has more rows in a larger table."""
    mean = max(rows // PERSONS, 5)
    limits = {"rows": 4 * mean, "groups": min(3 * mean, 1000)}
    return (
        Query("count by key", "events", ("key",), (("count", "*"),), **limits),
        Query("sum by key", "events", ("key",), (("sum", "value"),), **limits),
    )


def hits(rows: int, _: Path) -> duckdb.DuckDBPyConnection:
    """Page views: what a person is follows from her number, what she does from the row's."""
    persons = max(rows // 50, 1)
    connection = duckdb.connect()
    connection.execute(
        f"""CREATE TABLE hits AS SELECT UserID, DATE '2013-07-01' + floor(31 * {uniform(1)})::INTEGER AS EventDate,
        floor(pow(2000, {uniform(11, "UserID")}))::INTEGER AS RegionID, ['f', 'm', 'x'][1 + ({mixed(12, "UserID")} % 3)::INTEGER] AS Sex,
        if({mixed(13, "UserID")} % 5 = 0, 'phone', 'desk') AS Device, [1920, 1366, 1280, 1024, 800][1 + ({mixed(14, "UserID")} % 5)::INTEGER] AS ResolutionWidth,
        (18 + {mixed(15, "UserID")} % 60)::INTEGER AS Age, ['advert', 'mail', 'search', 'direct'][least(1 + ({mixed(6)} % 10)::INTEGER, 4)] AS Source,
        floor(30000 * pow({uniform(7)}, 4))::INTEGER AS FetchTiming,
        CASE WHEN {mixed(8)} % 4 = 0 THEN 'phrase ' || floor(pow(5000, {uniform(9)}))::INTEGER ELSE '' END AS SearchPhrase
        FROM (SELECT i, floor({persons} * pow({uniform(0)}, 1.5))::INTEGER AS UserID FROM range({rows}) t(i))"""
    )
    return certain(connection, HITS.policy)


def tpc_h(rows: int, directory: Path) -> duckdb.DuckDBPyConnection:
    return certain(tpch.generate(max(rows / 6_000_000, 0.001), directory), TPC_H.policy)


def certain(connection: duckdb.DuckDBPyConnection, policy: dict[str, Any]) -> duckdb.DuckDBPyConnection:
    """No NULLs in what the policy declares, so that there are no groups of them."""
    for table, declared in policy.items():
        for column in declared.get("columns", ()):
            connection.execute(f"ALTER TABLE {table} ALTER COLUMN {column} SET NOT NULL")
    return connection


def tpc_h_policy() -> dict[str, Any]:
    """A customer has up to 40 orders and 170 line items; two flags are declared, as GROUP BY needs them."""
    tables = copy.deepcopy(tpch.POLICY["tables"])
    tables["lineitem"]["max_rows_contributed"] = 120
    tables["lineitem"]["columns"] |= {"l_returnflag": {"in": ["A", "N", "R"]}, "l_linestatus": {"in": ["F", "O"]}}
    tables["orders"]["max_rows_contributed"] = 30
    return tables


EVENTS = Workload(
    "events",
    events,
    {"events": {"person": "person", "columns": {"value": {"between": [0, 100]}}}},
    "person",
    {"events": "FROM events"},
    event_queries,
)
TPC_H = Workload(
    "tpch",
    tpc_h,
    tpc_h_policy(),
    "o_custkey",
    {
        "lineitem": "SELECT o_custkey, lineitem.* REPLACE (l_quantity::INTEGER AS l_quantity) FROM lineitem JOIN orders ON l_orderkey = o_orderkey",
        "orders": "FROM orders",
    },
    lambda rows: (
        Query("count by flag and status", "lineitem", ("l_returnflag", "l_linestatus"), (("count", "*"),), 120, 4),
        Query("sum by mode", "lineitem", ("l_shipmode",), (("sum", "l_quantity"),), 120, 7),
        Query("average by mode", "lineitem", ("l_shipmode",), (("avg", "l_quantity"),), 120, 7),
        Query("customers by priority", "orders", ("o_orderpriority",), (("persons", "o_custkey"),), 30, 5),
        Query("count by part", "lineitem", ("l_partkey",), (("count", "*"),), 120, 120),
    ),
)
DAYS = [datetime.date(2013, 7, 1), datetime.date(2013, 7, 31)]
HITS = Workload(
    "hits",
    hits,
    {
        "hits": {
            "person": "UserID",
            "columns": {
                "EventDate": {"between": DAYS},
                "Sex": {"in": ["f", "m", "x"]},
                "Device": {"in": ["desk", "phone"]},
                "Source": {"in": ["advert", "direct", "mail", "search"]},
                "ResolutionWidth": {"between": [0, 4000]},
                "Age": {"between": [0, 120]},
                "FetchTiming": {"between": [0, 30_000]},
            },
        }
    },
    "UserID",
    {"hits": "FROM hits"},
    lambda rows: (
        Query("count", "hits", (), (("count", "*"),), 150, 1),
        Query("count not direct", "hits", (), (("count", "*"),), 50, 1, "Source <> 'direct'"),
        Query("average width", "hits", (), (("avg", "ResolutionWidth"),), 150, 1),
        Query("users", "hits", (), (("persons", "UserID"),), 150, 1),
        Query("count by source", "hits", ("Source",), (("count", "*"),), 150, 4),
        Query("users by region", "hits", ("RegionID",), (("persons", "UserID"),), 150, 1),
        Query("count and sum by region", "hits", ("RegionID",), (("count", "*"), ("sum", "FetchTiming")), 150, 1),
        Query("count by phrase", "hits", ("SearchPhrase",), (("count", "*"),), 45, 30, "SearchPhrase <> ''"),
        Query("users by day", "hits", ("EventDate",), (("persons", "UserID"),), 150, 31),
        Query("average age by device and sex", "hits", ("Device", "Sex"), (("avg", "Age"),), 150, 1),
    ),
)
WORKLOADS = (EVENTS, TPC_H, HITS)


def policy_of(workload: Workload, query: Query | None = None, accounting: str = "gdp") -> dict[str, Any]:
    """The policy for a bench; with a query, its limits are those that the owner declares."""
    tables = copy.deepcopy(workload.policy)
    defaults: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6}
    if query is not None:
        for table in tables.values():
            table.pop("max_rows_contributed", None)
        defaults |= {"max_rows_contributed": query.rows, "max_groups_contributed": query.groups}
    return {
        "dataset": {"id": workload.name},
        "budget": {"epsilon": 1e6, "delta": 1e-2, "accounting": accounting},
        "defaults": defaults,
        "tables": tables,
    }
