"""What privacy costs in time over the plain DuckDB query, on the demo's shop of a million rows.

python benches/overhead.py [--quick] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb

import dpsql
from dpsql.frontends.demo import QUESTIONS, make

NAMES = ("grouped_count", "join_avg", "filtered_avg", "private_keys")


def median(run: Callable[[], object], times: int) -> float:
    spent = []
    for _ in range(times + 1):  # the first one warms up
        start = time.perf_counter()
        run()
        spent.append(time.perf_counter() - start)
    return statistics.median(spent[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="end within a minute")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = parser.parse_args()
    figures: dict[str, float] = {}
    with TemporaryDirectory() as directory:
        owner = duckdb.connect(str(make(Path(directory))))
        policy = Path(directory) / "shop.policy.toml"
        db = dpsql.connect(owner, policy=policy, ledger=Path(directory) / "shop.ledger")
        times = 3 if options.quick else 15
        for name, (_, query) in zip(NAMES, QUESTIONS, strict=True):
            plan = db._plan(query, 1e-3, None)
            plain = median(lambda query=query: owner.execute(query).fetchall(), times)
            inner = median(lambda plan=plan: owner.execute(plan.inner).fetchall(), times)
            whole = median(lambda query=query: db.sql(query, epsilon=1e-3).fetchall(), times)
            planning = median(lambda query=query: db._plan(query, 1e-3, None), times)
            figures |= {f"{name}_vs_plain": whole / plain, f"{name}_inner_vs_plain": inner / plain}
            print(
                f"{name:<15} plain {plain * 1e3:7.1f} ms, dpsql {whole / plain:6.1f} x, its exact query {inner / plain:6.1f} x, planning {planning * 1e3:5.1f} ms"
            )
        owner.close()
    if options.json:
        print(json.dumps({key: round(value, 3) for key, value in figures.items()}))


if __name__ == "__main__":
    main()
