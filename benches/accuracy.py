"""How far answers are from the exact ones, at epsilon 1 and delta 1e-6 for each query, beside other libraries.

python benches/accuracy.py [--quick | --full | --rows N] [--runs N] [--peers PYTHON ...] [--json] [--plot]

Each figure is the root-mean-square error over all groups of the exact answer and all runs; a group that is not shown counts as an
answer of zero. dpsql and the peers have the limits of `workloads.py`: the person is the unit, one in a hundred has more rows.
`gdp` is dpsql as it comes (`accounting = "gdp"`, Gaussian noise: most room for many queries), `pure` the accounting for a few
queries (Laplace or Gaussian noise, the one that errs less by a formula of public facts). With the better of both, `chosen`: no
limits declared, chosen privately out of the same epsilon; and `hindsight`: the best constant limits among those tried, which nobody
can know without looking at the data: NOT private, but what is left to win by choosing them.

Peers live in environments of their own, never in dpsql's:

    python -m venv /tmp/peers && /tmp/peers/bin/pip install smartnoise-sql pyqrlew duckdb
    python -m venv /tmp/opendp && /tmp/opendp/bin/pip install 'opendp[polars]'
    python benches/accuracy.py --peers /tmp/peers/bin/python /tmp/opendp/bin/python

`--plot` needs matplotlib and writes docs/images/accuracy.png.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from workloads import WORKLOADS, Query, Workload, policy_of

import dpsql

HERE = Path(__file__).parent
EPSILON, DELTA = 1.0, 1e-6
LADDER = (0.125, 0.25, 0.5, 1.0, 2.0)  # times the declared limits
FEW = 4  # groups, from which on more runs are not needed
OURS = ("gdp", "pure", "chosen", "hindsight")


def rows_of(answer: list[Any], keys: int) -> dict[tuple[str, ...], list[float]]:
    """Values by keys; NULL and what is no number count as zero, like a group that is not shown."""
    return {
        tuple(str(cell) for cell in row[:keys]): [
            float(cell) if cell is not None and math.isfinite(float(cell)) else 0.0 for cell in row[keys:]
        ]
        for row in answer
    }


Error = tuple[float, float]  # and its own standard error


def error(exact: list[Any], answers: list[list[Any]], query: Query) -> list[Error]:
    """The root of the mean square of what each aggregate is off by. Groups of one run share noise or bias only if limits bite, so
    that the standard error takes all as independent."""
    keys, known, nothing = len(query.keys), rows_of(exact, len(query.keys)), [0.0] * len(query.aggregates)
    wrong: list[list[float]] = [[] for _ in query.aggregates]
    for answer in answers:
        found = rows_of(answer, keys)
        for key, values in known.items():
            for i, value in enumerate(values):
                wrong[i].append((found.get(key, nothing)[i] - value) ** 2)
    found = []
    for squares in wrong:
        root = math.sqrt(statistics.fmean(squares))
        found.append((root, statistics.stdev(squares) / math.sqrt(len(squares)) / (2 * root) if root else 0.0))
    return found


def ask(
    owner: Any, workload: Workload, query: Query, runs: int, accounting: str, declared: bool = True
) -> list[list[Any]]:
    policy = policy_of(workload, query, accounting)
    if not declared:
        del policy["defaults"]["max_rows_contributed"], policy["defaults"]["max_groups_contributed"]
    with dpsql.connect(owner, policy=policy, ledger=":memory:") as db:
        return [db.sql(query.sql, epsilon=EPSILON, delta=DELTA).fetchall() for _ in range(runs)]


def times(runs: int, groups: int) -> int:
    """Where there are few groups, more runs."""
    return max(runs, FEW * runs // max(groups, 1))


def choices(workload: Workload, query: Query) -> Iterator[Query]:
    """Limits to try: of rows unless persons are counted, of groups where they matter."""
    columns = workload.policy[query.table]["columns"]
    persons = any(call == "persons" for call, _ in query.aggregates)
    private = any("in" not in columns.get(key, {}) for key in query.keys)
    rows = [1.0] if persons else LADDER
    groups = LADDER if query.groups > 1 and (persons or private) else [1.0]
    for r in rows:
        for g in groups if r <= 1 or len(groups) == 1 else [r]:
            if r in (g, 1.0) or g == 1.0:  # the axes and the diagonal
                yield replace(query, rows=max(1, round(query.rows * r)), groups=max(1, round(query.groups * g)))


def hindsight(
    owner: Any, workload: Workload, query: Query, exact: list[Any], runs: int, accounting: str
) -> tuple[Query, list[Error]]:
    """The best of all that were tried, asked again: the least of several estimates alone would be too small."""

    def tried(limits: Query) -> float:
        return error(exact, ask(owner, workload, limits, max(2, runs // 4), accounting), query)[-1][0]

    best = min(dict.fromkeys(choices(workload, query)), key=tried)
    return best, error(exact, ask(owner, workload, best, runs, accounting), query)


def flatten(owner: Any, workload: Workload, queries: tuple[Query, ...], directory: Path) -> dict[str, str]:
    """For the peers, files with the person beside each row and the columns that are asked for."""
    files = {}
    for table, select in workload.flat.items():
        asked = [q for q in queries if q.table == table]
        there = [name for name, *_ in owner.execute(f"DESCRIBE ({select})").fetchall()]
        texts = (
            " ".join([q.sql for q in asked] + [workload.person]).replace(",", " ").replace("(", " ").replace(")", " ")
        )
        files[table] = str(directory / f"flat_{table}.parquet")
        columns = ", ".join(name for name in there if name in texts.split())
        owner.execute(f"COPY (SELECT {columns} FROM ({select})) TO '{files[table]}'")
    return files


def call(python: str, request: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Without PYTHONPATH, which is for our interpreter."""
    return subprocess.run(
        [python, HERE / "peers.py"],
        input=json.dumps(request, default=str) + "\n",
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        text=True,
        capture_output=True,
    )


def peers_of(pythons: list[str]) -> dict[str, str]:
    """Which interpreter has which peer."""
    found = {}
    for python in pythons:
        told = call(python, {})
        told.check_returncode()
        found |= dict.fromkeys(json.loads(told.stdout.splitlines()[-1]), python)
    return found


def ask_peer(python: str, request: dict[str, Any]) -> dict[str, Any]:
    told = call(python, request)
    lines = [json.loads(line) for line in told.stdout.splitlines() if line.startswith("{")]
    ended = f"it ended with {told.returncode}: {told.stderr.strip().splitlines()[-1:]}"
    answered = {line["query"]: line for line in lines}
    return {q["name"]: answered.get(q["name"], {"reason": ended}) for q in request["queries"]}


def measure(workload: Workload, rows: int, runs: int, peers: dict[str, str]) -> Iterator[dict[str, Any]]:
    """For each query and aggregate the errors, or reasons, of all who are asked."""
    queries = workload.queries(rows)
    with TemporaryDirectory() as directory, workload.make(rows, Path(directory)) as owner:
        exacts = {query.name: owner.execute(query.sql).fetchall() for query in queries}
        repeats = {name: times(runs, len(exact)) for name, exact in exacts.items()}
        files = flatten(owner, workload, queries, Path(directory)) if peers else {}
        request = {
            "files": files,
            "person": workload.person,
            "columns": {table: workload.policy[table]["columns"] for table in files},
            "queries": [asdict(query) | {"sql": query.sql, "runs": repeats[query.name]} for query in queries],
            "epsilon": EPSILON,
            "delta": DELTA,
        }
        told = {peer: ask_peer(python, request | {"peer": peer}) for peer, python in peers.items()}
        for query in queries:
            exact, often = exacts[query.name], repeats[query.name]
            answers = {accounting: ask(owner, workload, query, often, accounting) for accounting in ("gdp", "pure")}
            errors = {accounting: error(exact, found, query) for accounting, found in answers.items()}
            better = min(errors, key=lambda accounting: errors[accounting][-1])
            errors["chosen"] = error(exact, ask(owner, workload, query, often, better, declared=False), query)
            best, errors["hindsight"] = hindsight(owner, workload, query, exact, often, better)
            reasons = {}
            for peer, lines in told.items():
                line = lines[query.name]
                if "reason" in line:
                    reasons[peer] = line["reason"]
                else:
                    errors[peer] = error(exact, line["answers"], query)
            known = rows_of(exact, len(query.keys))
            shown = statistics.fmean(sum(key in known for key in rows_of(a, len(query.keys))) for a in answers[better])
            for i, (call, column) in enumerate(query.aggregates):
                yield {
                    "workload": workload.name,
                    "query": query.name + (f": {call}" if len(query.aggregates) > 1 else ""),
                    "exact": math.sqrt(statistics.fmean(values[i] ** 2 for values in known.values())),
                    "column": column,
                    "groups": len(exact),
                    "shown": shown,
                    "errors": {who: found[i][0] for who, found in errors.items()},
                    "standard_errors": {who: found[i][1] for who, found in errors.items()},
                    "reasons": reasons,
                    "limits": [query.rows, query.groups],
                    "hindsight_limits": [best.rows, best.groups],
                }


def short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def line(found: dict[str, Any], names: list[str]) -> str:
    """In bold the least error that is private, and those that differ from it by less than two standard errors (and by less than a
    half: one run far off makes both large)."""
    errors, spread = found["errors"], found["standard_errors"]
    least = min((who for who in errors if who != "hindsight"), key=lambda who: errors[who])
    cells = []
    for who in names:
        text = short(errors[who]) if who in errors else "-"
        apart = errors[who] - errors[least] if who in errors else math.inf
        near = apart <= min(2 * math.hypot(spread.get(who, 0), spread[least]), errors[least] / 2)
        cells.append(f"**{text}**" if near and who != "hindsight" else text)
    shown = f"{found['shown']:.0f} of {found['groups']}"
    return f"| {found['workload']}: {found['query']} | {shown} | {short(found['exact'])} | {' | '.join(cells)} |"


def plot(results: list[dict[str, Any]], names: list[str], title: str) -> None:
    """Errors over the better of dpsql's two, one line for each query."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 0.32 * len(results) + 1.6))
    for who, mark in zip(names, "osd^vP*", strict=False):
        there = [
            (r["errors"][who] / min(r["errors"]["gdp"], r["errors"]["pure"]), i)
            for i, r in enumerate(results)
            if who in r["errors"]
        ]
        label = f"dpsql, {who}{' (not private)' * (who == 'hindsight')}" if who in OURS else who
        axes.scatter([x for x, _ in there], [y for _, y in there], marker=mark, s=36, label=label, alpha=0.8)
    axes.axvline(1, color="grey", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yticks(range(len(results)), [f"{r['workload']}: {r['query']}" for r in results], fontsize=8)
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    axes.set_xlabel("root-mean-square error, the better one of dpsql with the same limits being 1")
    axes.set_title(title, fontsize=9)
    axes.legend(fontsize=8, loc="best")
    figure.tight_layout()
    figure.savefig(HERE.parent / "docs" / "images" / "accuracy.png", dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="20,000 rows: end within a minute")
    size.add_argument("--full", action="store_true", help="10 million rows")
    size.add_argument("--rows", type=int, default=100_000, help="rows of each large table")
    parser.add_argument("--runs", type=int, help="answers to each query; more where it has fewer than four groups")
    parser.add_argument("--only", choices=[w.name for w in WORKLOADS], help="one of the three databases")
    parser.add_argument("--peers", nargs="+", default=[], metavar="PYTHON", help="interpreters that have peers")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--plot", action="store_true", help="write docs/images/accuracy.png; needs matplotlib")
    options = parser.parse_args()
    rows = 20_000 if options.quick else 10_000_000 if options.full else options.rows
    runs = options.runs or (2 if options.quick else 5)
    peers = peers_of(options.peers)
    names = [*OURS, *peers]
    heads = [f"dpsql, {who}" if who in OURS else who for who in names]
    print(f"| query | groups shown | exact | {' | '.join(heads)} |\n|{'---|' * (3 + len(names))}", flush=True)
    results = []
    for workload in WORKLOADS:
        if options.only in (None, workload.name):
            for found in measure(workload, rows, runs, peers):
                results.append(found)
                print(line(found, names), flush=True)
    print()
    for found in results:
        for who, reason in found["reasons"].items():
            print(f"{who} is left out of {found['workload']}: {found['query']}, as {reason}")
    if options.plot:
        plot(results, names, f"{rows:,} rows, epsilon {EPSILON:g}, delta {DELTA:g}, {runs} runs or more")
    if options.json:
        print(json.dumps({"rows": rows, "runs": runs, "results": results}))


if __name__ == "__main__":
    sys.exit(main())
