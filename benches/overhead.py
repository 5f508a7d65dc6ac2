"""What privacy costs over the plain DuckDB query: time and peak memory, for both forms of the limit pass.

python benches/overhead.py [--quick] [--full] [--json] [--plot FILE.png] [--only WORD]

Events (200,000 persons, 1,000 Zipf keys) of 1 and 10 million rows, and 50 with --full; TPC-H at scale factor 1 if
`tpchgen-cli` can be found (pip install tpchgen-cli); ten queries over a table of page views. Columns:

plain   DuckDB alone
norm    dpsql with declared groups: a person's whole vector is scaled down to max_rows_contributed
caps    dpsql with groups that are not declared: she keeps max_groups_contributed of hers, then as before.
        There are no caps on the rows of one group: the norm does that
sql     as norm, with the limits in SQL instead of Rust

Each cell is the median of a child process of its own, so that peak memory is its own too.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb

import dpsql
from dpsql.passes import limit

FORMS = ("plain", "norm", "caps", "sql")
EVENTS = {
    "count by number": "SELECT kind, count(*) FROM events GROUP BY kind",
    "count by text": "SELECT page, count(*) FROM events GROUP BY page",
    "average by number": "SELECT kind, avg(value) FROM events GROUP BY kind",
    "average by text": "SELECT page, avg(value) FROM events GROUP BY page",
}
TPCH = {
    "count by flag and status": "SELECT l_returnflag, l_linestatus, count(*) FROM lineitem GROUP BY ALL",
    "sum and average by ship mode": "SELECT l_shipmode, sum(l_extendedprice), avg(l_quantity) FROM lineitem GROUP BY ALL",
    "customers by priority": "SELECT o_orderpriority, count(DISTINCT o_custkey) FROM orders GROUP BY ALL",
    "count by part": "SELECT l_partkey, count(*) FROM lineitem GROUP BY ALL",
}
HITS = {
    "rows": "SELECT count(*) FROM hits",
    "filtered": "SELECT count(*) FROM hits WHERE width > 1000",
    "sum and average": "SELECT sum(width), count(*), avg(timing) FROM hits",
    "persons": "SELECT count(DISTINCT person) FROM hits",
    "by region": "SELECT region, count(*), avg(width) FROM hits GROUP BY region",
    "persons by region": "SELECT region, count(DISTINCT person) FROM hits GROUP BY region",
    "by engine": "SELECT engine, count(*) FROM hits WHERE engine <> 0 GROUP BY engine",
    "by page": "SELECT url, count(*) FROM hits GROUP BY url",
    "by day and engine": "SELECT day, engine, sum(timing) FROM hits GROUP BY day, engine",
    "deviation by engine": "SELECT engine, stddev(timing) FROM hits GROUP BY engine",
}


def events(db: duckdb.DuckDBPyConnection, rows: int) -> None:
    """Keys by the inverse of the integral of 1 / x; persons with one, two or three times as many rows as others."""
    db.execute(
        "CREATE TABLE events AS SELECT person, kind, 'page ' || kind AS page, value FROM (SELECT "
        "(hash(i) % (50000 * (1 + hash(i, 1) % 4)))::BIGINT AS person, "
        "(pow(1000, (hash(i, 2) % 1000000) / 1e6) - 1)::INTEGER AS kind, "
        f"(hash(i, 3) % 10000) / 100.0::DOUBLE AS value FROM range({rows}) r(i))"
    )


def hits(db: duckdb.DuckDBPyConnection, rows: int) -> None:
    db.execute(
        "CREATE TABLE hits AS SELECT (hash(i) % 100000 * 7919)::BIGINT AS person, (hash(i, 1) % 200)::INTEGER AS region, "
        "(hash(i, 2) % 4000)::SMALLINT AS width, (pow(5, (hash(i, 3) % 1000) / 1e3) - 1)::SMALLINT AS engine, "
        "(hash(i, 4) % 30000)::INTEGER AS timing, DATE '2013-07-01' + (hash(i, 5) % 31)::INTEGER AS day, "
        "'https://shop.example/item/' || pow(20000, (hash(i, 6) % 1000000) / 1e6)::INTEGER AS url "
        f"FROM range({rows}) r(i)"
    )


def tables(declared: bool, there: set[str]) -> dict[str, Any]:
    """The policy's tables, with the groups or without them."""
    kinds, modes = range(1000), ["AIR", "FOB", "MAIL", "RAIL", "REG AIR", "SHIP", "TRUCK"]
    groups: dict[str, dict[str, list[Any]]] = {
        "events": {"kind": list(kinds), "page": [f"page {kind}" for kind in kinds]},
        "hits": {"region": list(range(200)), "engine": [0, 1, 2, 3, 4]},
        "orders": {"o_orderpriority": ["1-URGENT", "2-HIGH", "3-MEDIUM", "4-NOT SPECIFIED", "5-LOW"]},
        "lineitem": {"l_returnflag": ["A", "N", "R"], "l_linestatus": ["F", "O"], "l_shipmode": modes},
    }
    ranges: dict[str, dict[str, list[int]]] = {
        "events": {"value": [0, 100]},
        "hits": {"width": [0, 4000], "timing": [0, 30_000]},
        "orders": {},
        "lineitem": {"l_extendedprice": [0, 110_000], "l_quantity": [1, 50]},
    }
    persons: dict[str, Any] = {"events": "person", "hits": "person", "orders": "o_custkey"}
    persons["lineitem"] = {"column": "l_orderkey", "references": "orders.o_orderkey"}
    return {
        name: {
            "person": persons[name],
            "columns": {column: {"between": ends} for column, ends in ranges[name].items()}
            | {column: {"in": values} for column, values in groups[name].items() if declared},
        }
        for name in persons
        if name in there
    }


def child(path: str, form: str, query: str, times: int) -> None:
    """One cell of the table: seconds, the most memory in megabytes, and the seconds of an EXPLAIN, which only plans."""
    owner, db = duckdb.connect(path), None
    there = {row[0] for row in owner.execute("SHOW TABLES").fetchall()}
    if form == "sql":
        limit.natively = lambda *_: None
    if form != "plain":
        policy = {
            "dataset": {"id": "bench"},
            "budget": {"epsilon": 1e6, "delta": 1e-6},
            "defaults": {"epsilon": 1.0, "max_rows_contributed": 50, "max_groups_contributed": 10},
            "tables": tables(form != "caps", there),
        }
        db = dpsql.connect(owner, policy=policy, ledger=":memory:")
    spent, planning = [], 0.0
    for _ in range(times + 1):  # the first one warms up
        start = time.perf_counter()
        (db or owner).sql(query).fetchall()
        spent.append(time.perf_counter() - start)
    if db is not None:
        start = time.perf_counter()
        db.explain(query)
        planning = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps([statistics.median(spent[1:]), peak, planning]))


def measured(path: Path, form: str, query: str, times: int) -> tuple[float, float, float]:
    command = [sys.executable, __file__, "--child", str(path), form, query, str(times)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds, peak, planning = json.loads(done.stdout)
    return seconds, peak, planning


def tpch(folder: Path) -> Path | None:
    tool = shutil.which("tpchgen-cli")
    if tool is None:
        return None
    subprocess.run(
        [tool, "parquet", "-s", "1", "--tables=lineitem,orders", f"--output-dir={folder}"],
        check=True,
        capture_output=True,
    )
    with duckdb.connect(str(folder / "tpch.db")) as db:
        for table in ("lineitem", "orders"):
            db.execute(f"CREATE TABLE {table} AS SELECT * FROM '{folder / table}.parquet'")
    return folder / "tpch.db"


def databases(folder: Path, quick: bool, full: bool) -> Iterator[tuple[str, Path, dict[str, str]]]:
    for millions in (1,) if quick else (1, 10, 50) if full else (1, 10):
        with duckdb.connect(str(folder / f"events{millions}.db")) as db:
            events(db, millions * 10**6)
        yield f"events {millions}M", folder / f"events{millions}.db", EVENTS
    with duckdb.connect(str(folder / "hits.db")) as db:
        hits(db, 10**6 if quick else 5 * 10**6)
    yield "hits", folder / "hits.db", HITS
    if not quick:
        path = tpch(folder)
        if path is None:
            print("TPC-H is left out: there is no tpchgen-cli here")
        else:
            yield "tpch", path, TPCH


def plot(figures: dict[str, float], file: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = [key.removesuffix(", norm") for key in figures if key.endswith(", norm")]
    figure, axes = pyplot.subplots(figsize=(8, 0.35 * len(names) + 1))
    for place, form in enumerate(FORMS[1:]):
        ratios = [figures.get(f"{name}, {form}", math.nan) for name in names]
        axes.barh([i + 0.25 * place for i in range(len(names))], ratios, 0.25, label=form)
    axes.set_yticks([i + 0.25 for i in range(len(names))], names)
    axes.set(xscale="log", xlabel="times the plain query")
    axes.invert_yaxis()
    axes.legend()
    figure.savefig(file, dpi=150, bbox_inches="tight")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="end within two minutes")
    parser.add_argument("--full", action="store_true", help="50 million rows too")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--plot", help="a PNG of the ratios; needs matplotlib")
    parser.add_argument("--only", default="", help="queries and databases whose name has this in it")
    options = parser.parse_args()
    times = 3 if options.quick else 5
    figures: dict[str, float] = {}
    with TemporaryDirectory() as folder:
        for name, path, queries in databases(Path(folder), options.quick, options.full):
            found: dict[str, list[float]] = {form: [] for form in FORMS}
            for title, query in queries.items():
                if options.only not in f"{name} {title}":
                    continue
                plain, base, _ = measured(path, "plain", query, times)
                line = f"{name:<11} {title:<28} plain {plain * 1e3:7.1f} ms {base:5.0f} MB"
                for form in FORMS[1:]:
                    seconds, peak, planning = measured(path, form, query, times)
                    found[form].append(seconds / plain)
                    figures |= {f"{name}, {title}, {form}": seconds / plain, f"{name}, {title}, {form} MB": peak}
                    line += f" | {form} {seconds / plain:6.1f} x {peak:5.0f} MB"
                    figures[f"{name}, {title}, {form} planning ms"] = planning * 1e3
                    line += f" ({planning * 1e3:.0f} ms of it planning)"
                print(line, flush=True)
            for form, ratios in found.items():
                if ratios:
                    figures[f"{name}, geometric mean, {form}"] = statistics.geometric_mean(ratios)
                    print(f"{name:<11} geometric mean {form:<5} {statistics.geometric_mean(ratios):6.1f} x")
            path.unlink()
    if options.plot:
        plot(figures, options.plot)
    if options.json:
        print(json.dumps({key: round(value, 3) for key, value in figures.items()}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5]))
    else:
        main()
