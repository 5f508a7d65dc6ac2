"""Where the time of a limited query goes: nanoseconds a row of each step, and what a query waits for that has hardly any rows.

python benches/limits.py [--rows N] [--times N]

plain   the plain query
stream  DuckDB's rows of person, key and value as Arrow, read and dropped
native  the calls that read them and limit each person
whole   the query as a session answers it

For what is inside `native`: perf record python benches/limits.py, and perf report.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from overhead import declared
from workloads import EVENTS

import dpsql
from dpsql.compiler.program import Plan
from dpsql.kernel.release import limited


def median(times: int, act: Callable[[], Any]) -> float:
    found = []
    for _ in range(times + 1):  # the first one warms up
        start = time.perf_counter()
        act()
        found.append(time.perf_counter() - start)
    return statistics.median(found[1:])


def drop(stream: Any) -> None:
    for _ in pa.RecordBatchReader.from_stream(stream):
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--times", type=int, default=7)
    options = parser.parse_args()
    for rows, unit in ((options.rows, 1e9 / options.rows), (1_000, 1e3)):
        with EVENTS.make(rows, Path()) as own:
            for query in EVENTS.queries(options.rows):
                for form in ("norm", "caps"):
                    policy = declared(EVENTS, query, form == "norm")
                    with dpsql.connect(own, policy=policy, ledger=":memory:") as db:
                        plan = db.explain(query.sql).plan
                        assert isinstance(plan, Plan) and plan.release.limits
                        sql = plan.release.limits[0].rows
                        steps = {
                            "plain": lambda q=query: own.sql(q.sql).fetchall(),
                            "stream": lambda s=sql: drop(own.sql(s)),
                            "native": lambda p=plan: limited(p.release, lambda one: own.sql(one.sql)),
                            "whole": lambda q=query, d=db: d.sql(q.sql).fetchall(),
                        }
                        found = {word: median(options.times, act) * unit for word, act in steps.items()}
                    cells = ", ".join(f"{word} {value:.1f}" for word, value in found.items())
                    print(
                        f"{rows:,} rows, {query.name}, {form}: {cells} {'ns a row' if rows > 1_000 else 'ms'}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
