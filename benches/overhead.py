"""What privacy costs over the plain DuckDB query: time, peak memory and error, at epsilon 1 and delta 1e-6.

python benches/overhead.py [--quick | --full] [--only WORD] [--peers PYTHON ...] [--json] [--plot]

The queries of `workloads.py`: events (200,000 persons, 1,000 Zipf keys) of 1 and 10 million rows, and 50 with --full; TPC-H at
scale factor 1; ten queries over 5 million page views. Times are medians of ratios to the plain query, which runs in turn with the
other in one process; memory is the most that a process of its own has held. Columns:

norm      groups declared: a person's whole vector is scaled down to max_rows_contributed
caps      groups not declared: she keeps max_groups_contributed of hers, then as before
prepared  as norm, on the copy that `dpsql prepare` writes

A query without groups has no caps. Peers as for benches/accuracy.py, whose --help says how to install them; they have files with the
person in each row and the limits of `norm` (their groups are declared where they can be). `flat`, beside them: as norm, on a table of
these rows, with a `pure` ledger, as each query has an epsilon and a delta of its own there. `--plot` writes docs/images/overhead.png.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
from accuracy import DELTA, EPSILON, HERE, ask_peer, error, flatten, peers_of, short
from workloads import EVENTS, HITS, TPC_H, Query, Workload, policy_of

import dpsql
from dpsql.policy.catalog import read_policy
from dpsql.prepare import prepare

FORMS = ("norm", "caps", "prepared")
GROUPS: dict[str, dict[str, list[Any]]] = {
    "events": {"key": list(range(1, 1001))},
    "hits": {"RegionID": list(range(1, 2001)), "EventDate": [datetime.date(2013, 7, day) for day in range(1, 32)]},
    "lineitem": {"l_partkey": list(range(1, 200_001))},
}


def declared(workload: Workload, query: Query, groups: bool, accounting: str = "gdp") -> dict[str, Any]:
    """The policy with all groups, or with none."""
    policy = copy.deepcopy(policy_of(workload, query, accounting))
    for name, table in policy["tables"].items():
        columns = table.setdefault("columns", {})
        if groups:
            columns |= {column: {"in": values} for column, values in GROUPS.get(name, {}).items()}
        else:
            table["columns"] = {column: limits for column, limits in columns.items() if "in" not in limits}
    return policy


def flat(policy: dict[str, Any], person: str, own: duckdb.DuckDBPyConnection) -> dict[str, Any]:
    """The policy for tables of what the peers have."""
    tables = {}
    for (name,) in own.execute("SELECT table_name FROM duckdb_tables()").fetchall():
        there = {column for column, *_ in own.execute(f"DESCRIBE {name}").fetchall()}
        columns = policy["tables"][name].get("columns", {})
        tables[name] = {"person": person, "columns": {c: columns[c] for c in columns if c in there}}
    return policy | {"tables": tables}


def session(path: str, form: str, workload: Workload, query: Query, own: duckdb.DuckDBPyConnection) -> dpsql.Session:
    policy = declared(workload, query, form != "caps")
    if form == "flat":
        policy = flat(declared(workload, query, True, "pure"), workload.person, own)
    return dpsql.connect(path if form == "prepared" else own, policy=policy, ledger=":memory:")


def child(path: str, form: str, name: str, number: int, rows: int, times: int) -> None:
    """One cell: seconds of the plain query, ratio, peak memory in megabytes, milliseconds of an EXPLAIN, and error."""
    workload = next(one for one in (EVENTS, TPC_H, HITS) if one.name == name)
    query = workload.queries(rows)[number]
    own = duckdb.connect(path, read_only=True)
    db = session(path, form, workload, query, own) if form != "plain" else None
    plain, ratios, answers, planning, exact = [], [], [], 0.0, []
    begun = time.perf_counter()
    # The first one warms up. Short queries are asked more often, as the clock of a shared machine changes.
    while len(plain) <= times or (len(plain) <= 5 * times and time.perf_counter() - begun < 3.0):
        start = time.perf_counter()
        exact = own.sql(query.sql).fetchall()
        plain.append(time.perf_counter() - start)
        if db is not None:
            start = time.perf_counter()
            answers.append(db.sql(query.sql, epsilon=EPSILON, delta=DELTA).fetchall())
            ratios.append((time.perf_counter() - start) / plain[-1])
    if db is not None:
        start = time.perf_counter()
        db.explain(query.sql)
        planning = time.perf_counter() - start
    status = Path("/proc/self/status").read_text()  # not getrusage, which begins with the parent's
    peak = int(status.split("VmHWM:")[1].split()[0]) / 1024
    found = {"plain": statistics.median(plain[1:]), "peak": peak, "planning": planning * 1e3}
    found |= {"ratio": statistics.median(ratios[1:] or [1.0])}
    found |= {"error": error(exact, answers, query)[-1][0] if answers else 0.0}
    print(json.dumps(found))


def measured(*arguments: object) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, __file__, "--child", *map(str, arguments)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{arguments}: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def stored(workload: Workload, rows: int, folder: Path) -> Path:
    """The database as a file."""
    path = folder / f"{workload.name}.duckdb"
    with workload.make(rows, folder) as made:
        made.execute(f"ATTACH '{path}' AS stored")
        made.execute("COPY FROM DATABASE memory TO stored")
        made.execute("DETACH stored")
    return path


def pairs(path: Path, workload: Workload, query: Query) -> int:
    """How many pairs of a person and a group there are."""
    select = workload.flat[query.table]
    listed = ", ".join([workload.person, *query.keys])
    where = f" WHERE {query.where}" if query.where else ""
    with duckdb.connect(str(path), read_only=True) as own:
        ((count,),) = own.execute(f"SELECT count(*) FROM (SELECT DISTINCT {listed} FROM ({select}){where})").fetchall()
    return int(count)


def measure(title: str, workload: Workload, rows: int, options: Any, peers: dict[str, str]) -> Iterator[dict[str, Any]]:
    times = 3 if options.quick else 5
    with TemporaryDirectory() as directory:
        folder = Path(directory)
        path = stored(workload, rows, folder)
        queries = workload.queries(rows)
        start = time.perf_counter()
        prepare(path, read_policy(declared(workload, queries[0], True)))
        print(f"({title} prepared in {time.perf_counter() - start:.0f} s)", file=sys.stderr, flush=True)
        told = timed_peers(path, workload, queries, folder, peers) if peers else {}
        for number, query in enumerate(queries):
            if options.only not in f"{title} {query.name}":
                continue
            cell = {"": measured(path, "plain", workload.name, number, rows, times)}
            for form in FORMS:
                if query.keys or form != "caps":
                    cell[form] = measured(path, form, workload.name, number, rows, times)
            plain = statistics.median(one["plain"] for one in cell.values())
            if told:
                cell["flat"] = measured(folder / "flat.duckdb", "flat", workload.name, number, rows, times)
                cell["flat"]["ratio"] *= cell["flat"]["plain"] / plain  # of the same plain query as the others
            ratios = {form: one["ratio"] for form, one in cell.items() if form}
            errors = {form: one["error"] for form, one in cell.items() if form}
            for peer, lines in told.items():
                line = lines[query.name]
                if "reason" not in line:
                    ratios[peer] = statistics.median(line["seconds"]) / plain
                    errors[peer] = line["error"]
            yield {
                "query": f"{title}: {query.name}",
                "plain": plain,
                "ratios": ratios,
                "errors": errors,
                "peaks": {form or "plain": one["peak"] for form, one in cell.items()},
                "planning": {form: one["planning"] for form, one in cell.items() if form},
                "pairs": pairs(path, workload, query),
            }


def timed_peers(
    path: Path, workload: Workload, queries: tuple[Query, ...], folder: Path, peers: dict[str, str]
) -> dict[str, dict[str, Any]]:
    with duckdb.connect(str(path), read_only=True) as own:
        files = flatten(own, workload, queries, folder)
        exacts = {query.name: own.execute(query.sql).fetchall() for query in queries}
    with duckdb.connect(str(folder / "flat.duckdb")) as made:
        for table, file in files.items():
            made.execute(f"CREATE TABLE {table} AS FROM '{file}'")
            for column, *_ in made.execute(f"DESCRIBE {table}").fetchall():  # so that there are no groups of NULLs
                made.execute(f"ALTER TABLE {table} ALTER COLUMN {column} SET NOT NULL")
    request = {
        "files": files,
        "person": workload.person,
        "columns": {table: declared(workload, queries[0], True)["tables"][table].get("columns", {}) for table in files},
        "queries": [asdict(query) | {"sql": query.sql, "runs": 3} for query in queries],
        "epsilon": EPSILON,
        "delta": DELTA,
    }
    told = {peer: ask_peer(python, request | {"peer": peer}) for peer, python in peers.items()}
    for peer, lines in told.items():
        for query in queries:
            line = lines[query.name]
            if "reason" in line:
                print(f"({peer} is left out of {query.name}: {line['reason']})", file=sys.stderr, flush=True)
            else:
                line["error"] = error(exacts[query.name], line["answers"], query)[-1][0]
    return told


def row(found: dict[str, Any], names: list[str]) -> str:
    """Times in bold, and the error behind them."""
    cells = [
        f"**{found['ratios'][name]:.1f}** ({short(found['errors'][name])})" if name in found["ratios"] else "-"
        for name in names
    ]
    peaks = found["peaks"]
    memory = f"{peaks['plain']:.0f}, {peaks['norm']:.0f}, {peaks.get('caps', peaks['norm']):.0f}"
    allowed = 2 * peaks["plain"] + 64 * found["pairs"] / 2**20
    return f"| {found['query']} | {found['plain'] * 1e3:.0f} ms | {' | '.join(cells)} | {memory} of {allowed:.0f} |"


def plot(results: list[dict[str, Any]], names: list[str]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 0.34 * len(results) + 1.6))
    for name, mark in zip(names, "osd^vP*X", strict=False):
        there = [(found["ratios"][name], i) for i, found in enumerate(results) if name in found["ratios"]]
        label = f"dpsql, {name}" if name in (*FORMS, "flat") else name
        axes.scatter([x for x, _ in there], [y for _, y in there], marker=mark, s=36, label=label, alpha=0.8)
    axes.axvline(1, color="grey", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yticks(range(len(results)), [found["query"] for found in results], fontsize=8)
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    axes.set_xlabel("times the plain query")
    axes.legend(fontsize=8, loc="best")
    figure.tight_layout()
    figure.savefig(HERE.parent / "docs" / "images" / "overhead.png", dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="a million rows of each: end within a few minutes")
    size.add_argument("--full", action="store_true", help="50 million events too")
    parser.add_argument("--only", default="", help="queries whose name has this in it, as in 'events 10M'")
    parser.add_argument("--peers", nargs="+", default=[], metavar="PYTHON", help="interpreters that have peers")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--plot", action="store_true", help="write docs/images/overhead.png; needs matplotlib")
    options = parser.parse_args()
    peers = peers_of(options.peers)
    names = [*FORMS, *(["flat"] if peers else []), *peers]
    millions = (1,) if options.quick else (1, 10, 50) if options.full else (1, 10)
    asked = [(f"events {n}M", EVENTS, n * 10**6) for n in millions]
    asked += [("TPC-H", TPC_H, 10**6 if options.quick else 6 * 10**6)]
    asked += [("page views", HITS, 10**6 if options.quick else 5 * 10**6)]
    print(f"| query | plain | {' | '.join(names)} | MB: plain, norm, caps |\n|{'---|' * (3 + len(names))}", flush=True)
    results = []
    for title, workload, rows in asked:
        if any(options.only in f"{title} {query.name}" for query in workload.queries(rows)):
            for found in measure(title, workload, rows, options, peers if rows <= 10**7 else {}):
                results.append(found)
                print(row(found, names), flush=True)
    for title, _, _ in asked:
        for name in names:
            ratios = [r["ratios"][name] for r in results if r["query"].startswith(title) and name in r["ratios"]]
            if ratios:
                print(f"{title}, {name}: geometric mean {math.exp(statistics.fmean(map(math.log, ratios))):.2f} x")
    if options.plot:
        plot(results, names)
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        path, form, name, number, rows, times = sys.argv[2:]
        child(path, form, name, int(number), int(rows), int(times))
    else:
        main()
