"""The 22 queries of TPC-H under a policy: answered or why not, in how many releases, with which error.

python benches/tpch.py [--scale 1] [--runs 5] [--json]

The table of docs/benchmarks.md. `error` is the median over all cells that are shown, and over the runs, of |answer - exact| / |exact|, at
epsilon 1 and delta 1e-6 for each query; `rows` are those shown of those of the plain query, and `time` is that of the answer
over that of the plain query.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import tpch

import dpsql

KEYS = {1: 2, 4: 1, 5: 1, 7: 3, 8: 1, 9: 2, 12: 1, 13: 1, 15: 4, 20: 2, 21: 1, 22: 1}  # columns that tell rows apart


def median(found: list[float]) -> float:
    return statistics.median(found) if found else float("nan")


def errors(mine: list[Any], exact: list[Any], keys: int) -> list[float]:
    known = {row[:keys]: row[keys:] for row in exact}
    pairs = [pair for row in mine if row[:keys] in known for pair in zip(row[keys:], known[row[:keys]], strict=True)]
    return [abs(float(a) - float(b)) / abs(float(b)) for a, b in pairs if a is not None and b]


def measure(number: int, owner: Any, db: dpsql.Session, runs: int) -> dict[str, Any]:
    query = tpch.QUERIES[number]
    start = time.perf_counter()
    exact = owner.execute(query).fetchall()
    plain = time.perf_counter() - start
    found: dict[str, Any] = {"query": number}
    try:
        plan = db.explain(query).plan
    except dpsql.Refused as refusal:
        return found | {"refused": refusal.message}
    shown, wrong, took = [], [], []
    for _ in range(runs if plan.parts else 1):
        start = time.perf_counter()
        mine = db.sql(query).fetchall()
        took.append(time.perf_counter() - start)
        keys = KEYS.get(number, 0) if plan.parts else 1
        wrong += errors(mine, exact, keys) if plan.parts else []
        shown.append(sum(row[:keys] in {other[:keys] for other in exact} for row in mine))
    return found | {
        "releases": len(plan.parts),
        "rows": median(shown),
        "of": len(exact),
        "error": median(wrong) if plan.parts else 0.0,
        "time": median(took) / plain,
    }


def line(found: dict[str, Any]) -> str:
    name = f"Q{found['query']}"
    if "refused" in found:
        return f"| {name} | refused: {found['refused']} | | | | |"
    if not found["releases"]:
        return f"| {name} | public tables alone: free and exact | 0 | {found['rows']:g} of {found['of']} | 0 | {found['time']:.1f} x |"
    error = "-" if found["error"] != found["error"] else f"{100 * found['error']:.2g} %"
    return f"| {name} | answered | {found['releases']} | {found['rows']:g} of {found['of']} | {error} | {found['time']:.1f} x |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="the scale factor")
    parser.add_argument("--runs", type=int, default=5, help="answers to each query")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = parser.parse_args()
    budget, defaults = {"epsilon": 1e6, "delta": 1e-3}, tpch.POLICY["defaults"] | {"epsilon": 1.0, "delta": 1e-6}
    with TemporaryDirectory() as directory, tpch.generate(options.scale, Path(directory)) as owner:
        policy = tpch.POLICY | {"budget": budget, "defaults": defaults}
        with dpsql.connect(owner, policy=policy, ledger=":memory:") as db:
            print("| query | answer | releases | rows | error | time |\n|---|---|---|---|---|---|")
            results = []
            for number in tpch.QUERIES:
                results.append(measure(number, owner, db, options.runs))
                print(line(results[-1]), flush=True)
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
