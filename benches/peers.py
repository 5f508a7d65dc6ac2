"""Other libraries on the same queries; run by an interpreter that has them, started by a bench (see `--peers` there).

A request is one JSON object on standard input; for each query one line of JSON leaves: answers and seconds of each run, or the
reason why there is none. Each peer has the person as its unit, the ranges and domains of the policy and the query's limits, and is
asked for the whole of epsilon and delta. What it offers a careful user is used; what it computes is not repaired.
"""

from __future__ import annotations

import json
import math
import sqlite3
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

Request = dict[str, Any]
Question = dict[str, Any]
Ask = Callable[[], list[Any]]


class Unable(Exception):
    """The peer cannot express the query at the level of persons."""


def domain(request: Request, query: Question) -> list[list[Any]] | None:
    """The values of each key, if all are declared."""
    columns = request["columns"][query["table"]]
    found = [columns.get(key, {}).get("in") for key in query["keys"]]
    return None if None in found else found


def counts_persons(query: Question) -> bool:
    return [call for call, _ in query["aggregates"]] == ["persons"]


def rows_of(request: Request, table: str) -> tuple[list[tuple[str, str]], list[Any]]:
    """Names and SQLite types of the columns, and the rows, with dates as texts."""
    import duckdb

    relation = duckdb.sql(f"FROM '{request['files'][table]}'")
    types = [
        (name, "VARCHAR" if str(kind) in ("VARCHAR", "DATE") else "INTEGER")
        for name, kind in zip(relation.columns, relation.types, strict=True)
    ]
    listed = ", ".join(f'"{name}"::{"VARCHAR" if kind == "VARCHAR" else "BIGINT"}' for name, kind in types)
    return types, duckdb.sql(f"SELECT {listed} FROM '{request['files'][table]}'").fetchall()


def in_sqlite(connection: sqlite3.Connection, request: Request) -> dict[str, list[tuple[str, str]]]:
    tables = {}
    for table in request["files"]:
        tables[table], rows = rows_of(request, table)
        connection.execute(f"CREATE TABLE {table} ({', '.join(f'{name} {kind}' for name, kind in tables[table])})")
        connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(tables[table]))})", rows)
    connection.commit()
    return tables


def smartnoise(request: Request) -> Callable[[Question], Ask]:
    """Its rows are sampled to `max_ids` for each person; each column that it draws noise for costs epsilon once."""
    from snsql import Privacy, from_connection

    connection = sqlite3.connect(":memory:")
    tables = in_sqlite(connection, request)

    def prepare(query: Question) -> Ask:
        columns: dict[str, Any] = {}
        for name, kind in tables[query["table"]]:
            declared = request["columns"][query["table"]].get(name, {})
            between = declared.get("between") if kind == "INTEGER" else None
            columns[name] = {"type": "int" if kind == "INTEGER" else "string"}
            columns[name] |= {"lower": between[0], "upper": between[1]} if between else {}
        columns[request["person"]] = {"type": "int", "private_id": True}
        private = domain(request, query) is None
        alone = counts_persons(query) and query["groups"] == 1  # then one row of each person is enough
        options = {
            "max_ids": 1 if alone else query["rows"],
            "sample_max_ids": True,
            "censor_dims": private,
            "clamp_counts": False,
        }
        metadata = {"": {"main": {query["table"]: options | columns}}}
        sql = query["sql"].replace(f"FROM {query['table']}", f"FROM main.{query['table']}")

        def reader(epsilon: float, delta: float) -> Any:
            return from_connection(
                connection, privacy=Privacy(epsilon=epsilon, delta=delta), metadata=metadata, engine="sqlite"
            )

        # What it says that the query costs is linear in both as long as few columns are added up.
        spent, lost = reader(request["epsilon"], request["delta"]).get_privacy_cost(sql)
        parts = request["epsilon"] / spent, min(1.0, request["delta"] / lost if lost else 1.0)
        asked = reader(request["epsilon"] * parts[0], request["delta"] * parts[1])
        if asked.get_privacy_cost(sql)[0] > request["epsilon"] * 1.001:
            raise Unable("it cannot be asked for this epsilon")
        return lambda: asked.execute(sql)[1:]

    return prepare


def qrlew(request: Request) -> Callable[[Question], Ask]:
    """Its SQL runs on DuckDB; sizes and types come from a copy in SQLite, ranges and domains from the policy."""
    import duckdb
    import pyqrlew
    import sqlalchemy

    engine = sqlalchemy.create_engine("sqlite://", poolclass=sqlalchemy.pool.StaticPool)
    tables = in_sqlite(engine.raw_connection().driver_connection, request)
    dataset = pyqrlew.Dataset.from_database("bench", engine)
    duck = duckdb.connect()
    for table, file in request["files"].items():
        texts = [f"{name}::VARCHAR AS {name}" for name, kind in tables[table] if kind == "VARCHAR"]
        replaced = f" REPLACE ({', '.join(texts)})" if texts else ""
        duck.execute(f"CREATE TABLE {table} AS SELECT *{replaced} FROM '{file}'")
        for name, kind in tables[table]:
            declared = request["columns"][table].get(name, {})
            if "in" in declared:
                dataset = dataset.with_possible_values(None, table, name, [str(value) for value in declared["in"]])
            elif "between" in declared and kind == "INTEGER":
                dataset = dataset.with_range(None, table, name, *declared["between"])

    def prepare(query: Question) -> Ask:
        sql, most = query["sql"], query["rows"]
        if counts_persons(query):  # its COUNT(DISTINCT person) counts rows, but it can group by the person
            keys = ", ".join(query["keys"])
            every = ", ".join([*query["keys"], request["person"]])
            listed, grouped = (f"{keys}, ", f" GROUP BY {keys}") if keys else ("", "")
            inner = f"SELECT {every} FROM {query['table']} GROUP BY {every}"
            sql, most = f"SELECT {listed}count(*) AS a0 FROM ({inner}) AS t{grouped}", query["groups"]
        dialect = pyqrlew.Dialect.PostgreSql
        rewritten = pyqrlew.Relation.from_query(sql, dataset, dialect).rewrite_with_differential_privacy(
            dataset,
            [(query["table"], [], request["person"])],
            {"epsilon": request["epsilon"], "delta": request["delta"]},
            max_multiplicity=float(most),
            max_multiplicity_share=1.0,
            max_privacy_unit_groups=query["groups"],
        )
        private = rewritten.relation().to_query(dialect)
        return lambda: duck.execute(private).fetchall()

    return prepare


def opendp(request: Request) -> Callable[[Question], Ask]:
    """Rows are sampled for each person; averages are quotients within their range. Laplace noise, which is smaller than its Gaussian noise unless one
    person is counted in many groups."""
    import opendp.prelude as dp
    import polars as pl

    dp.enable_features("contrib")
    most = 10**9  # rows of any table: public

    def prepare(query: Question) -> Ask:
        keys, frame = query["keys"], pl.scan_parquet(request["files"][query["table"]])
        persons = counts_persons(query)
        gaussian = persons and query["groups"] > 13
        known = domain(request, query)
        half = (
            request["delta"] / 2 if gaussian and known is None else request["delta"]
        )  # the other half is the threshold's
        loss = {"rho": rho_of(request["epsilon"], half)} if gaussian else {"epsilon": request["epsilon"]}
        context = dp.Context.compositor(
            data=frame,
            privacy_unit=dp.unit_of(contributions=1, identifier=pl.col(request["person"])),
            privacy_loss=dp.loss_of(**loss, delta=half if known is None else 0.0),
            split_evenly_over=1,
            margins=[dp.polars.Margin(by=keys, max_length=most, max_groups=most)],
        )
        asked = context.query()
        if query["where"]:
            asked = asked.filter(pl.sql_expr(query["where"]))
        if persons:
            asked = asked.truncate_per_group(1, by=keys) if keys else asked
            asked = asked.truncate_per_group(query["groups"])
        else:
            asked = asked.truncate_per_group(query["rows"])
        sums = dict.fromkeys(column for call, column in query["aggregates"] if call in ("sum", "avg"))
        counted = known is None or any(call != "sum" for call, _ in query["aggregates"])
        wanted = [dp.len(signed=True).alias("n")] if counted else []
        for column in sums:
            low, high = request["columns"][query["table"]][column]["between"]
            wanted.append(pl.col(column).cast(pl.Int64).fill_null(low).dp.sum((low, high)))
        asked = asked.group_by(*keys).agg(*wanted) if keys else asked.select(*wanted)
        if keys and known is not None:
            schema, public = frame.collect_schema(), pl.LazyFrame()
            for key, values in zip(keys, known, strict=True):
                column = pl.LazyFrame({key: values}, schema={key: schema[key]})
                public = column if public.collect_schema().len() == 0 else public.join(column, how="cross")
            asked = asked.with_keys(public)
        measurement = asked.resolve()

        def clipped(value: float, column: str) -> float:
            low, high = request["columns"][query["table"]][column]["between"]
            return float(min(max(value, low), high))

        def run() -> list[Any]:
            found = measurement(frame).collect().to_dicts()
            cell = {
                "count": lambda row, _: row["n"],
                "persons": lambda row, _: row["n"],
                "sum": lambda row, column: row[column],
                "avg": lambda row, column: clipped(row[column] / max(row["n"], 1), column),
            }
            return [
                [*(row[key] for key in keys), *(cell[call](row, column) for call, column in query["aggregates"])]
                for row in found
            ]

        return run

    return prepare


def rho_of(epsilon: float, delta: float) -> float:
    """The largest rho of zero-concentrated privacy that implies (epsilon, delta); Canonne, Kamath and Steinke 2020."""

    def implied(rho: float) -> float:
        orders = [1 + 10 ** (i / 100) for i in range(-100, 400)]
        return min((a - 1) * (a * rho - epsilon) - math.log(a - 1) + a * math.log1p(-1 / a) for a in orders)

    low, high = 0.0, epsilon
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if implied(middle) <= math.log(delta) else (low, middle)
    return low


PEERS: dict[str, tuple[str, Callable[[Request], Callable[[Question], Ask]]]] = {
    "SmartNoise": ("snsql", smartnoise),
    "Qrlew": ("pyqrlew", qrlew),
    "OpenDP": ("opendp.prelude, polars", opendp),
}


def available() -> Iterator[str]:
    """Those whose modules load; to import is the only test that says so."""
    for name, (modules, _) in PEERS.items():
        try:
            for module in modules.split(", "):
                __import__(module)
        except ImportError:
            continue
        yield name


def plain(value: Any) -> Any:
    return value if isinstance(value, int | float | str | None) else str(value)


def main() -> None:
    warnings.simplefilter("ignore")
    request: Request = json.loads(sys.stdin.readline())
    if "peer" not in request:
        print(json.dumps(list(available())))
        return
    prepare = PEERS[request["peer"]][1](request)
    for query in request["queries"]:
        found: dict[str, Any] = {"query": query["name"], "answers": [], "seconds": []}
        try:
            ask = prepare(query)
            for _ in range(query["runs"]):
                start = time.perf_counter()
                answer = ask()
                found["seconds"].append(time.perf_counter() - start)
                found["answers"].append([[plain(cell) for cell in row] for row in answer])
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            found = {"query": query["name"], "reason": " ".join(str(error).split())[:200] or type(error).__name__}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
