"""What the ledger's promises cost: reserve + settle beside two durable commits of raw SQLite and one synced head.

python benches/ledger.py [--quick] [--json]

The baseline writes the same two rows into a plain table on one open connection, with the same settings
(journal_mode=DELETE, synchronous=EXTRA), and syncs a file of 100 bytes. Both take turns in one run.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import statistics
import time
import uuid
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb

import dpsql
from dpsql import head
from dpsql.compiler.program import Plan
from dpsql.kernel.mechanisms import write
from dpsql.ledger import SELECT, Entry, Ledger
from dpsql.policy.catalog import Policy, read_policy

QUERY = "SELECT count(*) FROM visits WHERE age BETWEEN 30 AND 40"
POLICY = {
    "dataset": {"id": "shop"},
    "budget": {"epsilon": 1e9, "delta": 1e-6},
    "tables": {"visits": {"person": "person", "max_rows_contributed": 1}},
}


def compiled() -> Plan:
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE visits (person INTEGER, age INTEGER)")
        with dpsql.connect(connection, policy=POLICY, ledger=":memory:") as db:
            return db._plan(QUERY, 1e-3, None)


class Raw:
    """Two durable commits, and the fsync of a small file."""

    def __init__(self, directory: Path, rows: list[Entry]) -> None:
        self.db = sqlite3.connect(directory / "raw.sqlite", isolation_level=None)
        self.db.execute("PRAGMA journal_mode = DELETE")
        self.db.execute("PRAGMA synchronous = EXTRA")
        self.db.execute(f"CREATE TABLE entry (number INTEGER PRIMARY KEY, {', '.join(Entry._fields[1:])})")
        self.file = os.open(directory / "raw.head", os.O_RDWR | os.O_CREAT)
        self.insert = f"INSERT INTO entry ({', '.join(Entry._fields[1:])}) VALUES ({', '.join('?' * 17)})"
        self.rows = [[*map(str, row[1:])] for row in rows]

    def once(self) -> None:
        for row in self.rows:
            self.db.execute("BEGIN IMMEDIATE")
            self.db.execute(self.insert, row)
            self.db.execute("COMMIT")
        os.pwrite(self.file, b"x" * 100, 0)
        os.fsync(self.file)


def fill(path: Path, plan: Plan, policy: Policy, rows: int) -> None:
    """Append many rows at once, as the ledger would have one by one: the same chain, without a sync for each."""
    Ledger(path, "shop", policy)
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA synchronous = OFF")
        last = Entry.of(db.execute(f"{SELECT} ORDER BY number DESC LIMIT 1").fetchone())
        record, marks = write(plan.sampled), ", ".join("?" * len(Entry._fields))

        def made() -> Entry:
            nonlocal last
            reserved = last.number % 2 == 1
            charge = plan.charge.amount if reserved else 0
            last = last._replace(
                number=last.number + 1,
                state="reserved" if reserved else "settled",
                run=f"{last.number + 1}-{uuid.uuid4()}" if reserved else last.run,
                text=QUERY if reserved else "",
                mechanisms=record if reserved else "",
                amount=charge,
                spent=last.spent + charge,
                own=last.own + charge,
            ).sealed(last.hash)
            return last

        db.executemany(
            f"INSERT INTO entry VALUES ({marks})", ([e.number, *map(str, e[1:])] for e in (made() for _ in range(rows)))
        )
    head.advance(head.beside(path), (last.number, last.hash), durable=True)


def seconds(run: object) -> float:
    start = time.perf_counter()
    run()  # type: ignore[operator]
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="end within a minute: 100,000 rows instead of a million")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = parser.parse_args()
    plan, policy = compiled(), read_policy(POLICY)
    times, rows = (100, 100_000) if options.quick else (600, 1_000_000)
    with TemporaryDirectory(dir=".") as directory:  # beside the data, not in a directory that may live in memory
        small, large = Path(directory) / "small.ledger", Path(directory) / "large.ledger"
        fill(large, plan, policy, rows)
        ledgers = [Ledger(path, "shop", policy) for path in (small, large)]
        for ledger in ledgers:
            ledger.settle(ledger.reserve(plan, QUERY, ""))
        with sqlite3.connect(small) as db:
            sample = [Entry.of(row) for row in db.execute(f"{SELECT} WHERE number > 1 ORDER BY number")]
        raw = Raw(Path(directory), sample)
        turns = [
            raw.once,
            *(lambda ledger=ledger: ledger.settle(ledger.reserve(plan, QUERY, "")) for ledger in ledgers),
        ]
        spent: list[list[float]] = [[seconds(turn) for turn in turns] for _ in range(times)]
        base, first, last = (statistics.median(column) for column in zip(*spent, strict=True))
        print(f"two durable commits and one synced head, raw SQLite {base * 1e3:8.2f} ms")
        print(f"reserve + settle, {'new ledger':<31} {first * 1e3:8.2f} ms, {first / base:.2f} x")
        print(f"reserve + settle, {f'after {rows:,} rows':<31} {last * 1e3:8.2f} ms, {last / base:.2f} x")
        if options.json:
            figures = {"ledger_vs_raw": first / base, "ledger_full_vs_raw": last / base, "full_vs_new": last / first}
            print(json.dumps({"rows": rows, **{name: round(value, 3) for name, value in figures.items()}}))


if __name__ == "__main__":
    main()
