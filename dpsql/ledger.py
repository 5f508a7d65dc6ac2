"""Durable append-only budget: reserve, then settle. What is reserved is spent, whatever happens afterwards.

Needs:   a file that only the owner of the data can write; charges as `accountant` defines them
Gives:   the sum of all charges never exceeds the budget, at any time and with any number of processes; a charge is on
         disk before `reserve` returns
Proof:   `reserve` reads the last running total, compares and appends within one BEGIN IMMEDIATE transaction, which
         SQLite gives to one writer at a time and has synced (synchronous=EXTRA, rollback journal) when COMMIT returns.
         Rows are never changed or removed (triggers), nothing is ever given back, and amounts are integers of any size.
         Every failure (full disk, lock, damage, unknown version) raises before data is touched
Checked: test_ledger
"""

from __future__ import annotations

import datetime
import json
import os
import sqlite3
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dpsql.accountant import Charge, Currency, budget_of
from dpsql.catalog import Budget, Policy
from dpsql.errors import BudgetExhausted, Refused
from dpsql.plan import Plan

APPLICATION, VERSION = 0x64707371, 1  # "dpsq"

SCHEMA = f"""
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {VERSION};
CREATE TABLE account (dataset TEXT, accounting TEXT, epsilon TEXT, delta TEXT, currency TEXT, amount TEXT, deltas TEXT) STRICT;
CREATE TABLE entry (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    state TEXT NOT NULL CHECK (state IN ('reserved', 'settled')),
    query TEXT NOT NULL,               -- identifies one run; its two rows share it
    at TEXT NOT NULL,                  -- for people; nothing is computed from it
    analyst TEXT NOT NULL,
    statement TEXT NOT NULL,
    mechanisms TEXT NOT NULL,          -- what was sampled: enough to compute the charge again
    amount TEXT NOT NULL, delta TEXT NOT NULL,               -- this row's charge, in 1e-18
    spent TEXT NOT NULL, spent_delta TEXT NOT NULL,          -- all charges up to here
    own TEXT NOT NULL, own_delta TEXT NOT NULL               -- this analyst's charges up to here
) STRICT;
CREATE INDEX entry_by_analyst ON entry (analyst, number);
CREATE UNIQUE INDEX entry_once ON entry (query, state);
CREATE TRIGGER entry_replace BEFORE INSERT ON entry WHEN EXISTS (SELECT 1 FROM entry WHERE number = NEW.number)
    BEGIN SELECT RAISE(ABORT, 'append-only'); END;
""" + "".join(
    f"CREATE TRIGGER {table}_{verb.lower()} BEFORE {verb} ON {table} BEGIN SELECT RAISE(ABORT, 'append-only'); END;"
    for table in ("account", "entry")
    for verb in ("UPDATE", "DELETE")
)


@dataclass(frozen=True)
class Balance:
    """Totals in units of 1e-18."""

    spent: Charge
    total: Charge

    @property
    def left(self) -> Charge:
        return Charge(
            self.total.currency,
            max(self.total.amount - self.spent.amount, 0),
            max(self.total.delta - self.spent.delta, 0),
        )


class Ledger:
    """One dataset's ledger in a SQLite file, or in memory for rehearsals and tests."""

    def __init__(self, path: str | Path, dataset: str, policy: Policy) -> None:
        self._path = None if str(path) == ":memory:" else usable(path)
        self._memory: sqlite3.Connection | None = None
        self._lock = threading.Lock()
        self._policy = policy
        budget = policy.budget
        self._total = budget_of(budget.epsilon, budget.delta, budget.accounting)
        if self._total.amount <= 0:
            raise Refused(
                "policy_invalid", "policy, budget: is too small to be counted", "Allow a larger epsilon or delta."
            )
        expected = (dataset, budget.accounting, str(budget.epsilon), str(budget.delta))
        row = (*expected, self._total.currency, str(self._total.amount), str(self._total.delta))
        if self._path is None:
            self._memory = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
            initialise(self._memory, row)
        elif not self._path.exists():
            create(self._path, row)
        with self._transaction("BEGIN") as db:
            found = self._account(db)
        if found[:4] != expected:
            raise Refused(
                "ledger_differs",
                f"the ledger is of dataset {found[0]!r} with epsilon {decimal(found[2])}, delta {decimal(found[3])}, "
                f"{found[1]}; the policy says {dataset!r} with epsilon {decimal(expected[2])}, "
                f"delta {decimal(expected[3])}, {budget.accounting}",
                "The ledger wins: restore the policy, or let the owner start a ledger for another dataset.",
            )
        self._total = Charge(found[4], int(found[5]), int(found[6]))

    def _account(self, db: sqlite3.Connection) -> tuple[Any, ...]:
        rows = db.execute(
            "SELECT dataset, accounting, epsilon, delta, currency, amount, deltas FROM account"
        ).fetchall()
        if len(rows) != 1:
            raise corrupt(self._path)
        return tuple(rows[0])

    @property
    def currency(self) -> Currency:
        return self._total.currency

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        """One transaction on a connection of its own: nothing is shared between threads or across a fork."""
        with self._lock:
            db = self._memory
            try:
                if db is None:
                    assert self._path is not None
                    db = open_file(self._path)
                db.execute(begin)
                yield db
                db.execute("COMMIT")
            except sqlite3.OperationalError as error:
                if "no such" in str(error):  # a table or a column is missing
                    raise corrupt(self._path) from None
                raise unavailable(self._path, error) from None
            except (sqlite3.DatabaseError, ValueError):
                raise corrupt(self._path) from None
            finally:
                if db is not None:
                    if db.in_transaction:
                        db.execute("ROLLBACK")
                    if db is not self._memory:
                        db.close()

    def balance(self, analyst: str | None = None) -> Balance:
        """What has been spent of the budget, or of an analyst's part of it."""
        with self._transaction("BEGIN") as db:
            return self._balance(db, analyst)

    def _balance(self, db: sqlite3.Connection, analyst: str | None) -> Balance:
        where = "" if analyst is None else "WHERE analyst = ?"
        columns = "spent, spent_delta" if analyst is None else "own, own_delta"
        row = db.execute(
            f"SELECT {columns} FROM entry {where} ORDER BY number DESC LIMIT 1", () if analyst is None else (analyst,)
        ).fetchone()
        spent = Charge(self.currency, int(row[0]), int(row[1])) if row else Charge(self.currency, 0)
        return Balance(spent, self._total if analyst is None else self._allocation(analyst))

    def _allocation(self, analyst: str) -> Charge:
        share, budget = self._policy.analysts.get(analyst), self._policy.budget
        return self._total if share is None else budget_of(share, budget.delta, budget.accounting)

    def reserve(self, plan: Plan, statement: str, analyst: str) -> str:
        """Charge a plan, durably, before any row is read; returns the run's identity."""
        query, charge = str(uuid.uuid4()), plan.charge
        assert charge.currency == self.currency
        record = json.dumps([[m.name, m.scale.hex(), str(m.sensitivity)] for m in plan.noises])
        with self._transaction("BEGIN IMMEDIATE") as db:
            if self._account(db)[5:] != (str(self._total.amount), str(self._total.delta)):
                raise corrupt(self._path)
            whole, own = self._balance(db, None), self._balance(db, analyst)
            for balance, whose in ((whole, "of the dataset"), (own, f"of analyst {analyst!r}")):
                if charge.amount > balance.left.amount or charge.delta > balance.left.delta:
                    raise BudgetExhausted(
                        "budget_exhausted",
                        f"the budget {whose} has {fraction(balance)} left, and this query costs {part(charge, balance)} of it",
                        "Ask for a smaller epsilon, or ask the owner of the data to allow more.",
                    )
            append(db, "reserved", query, analyst, statement, record, charge, whole, own)
        return query

    def settle(self, query: str, statement: str, analyst: str) -> None:
        """Note that a reserved run has been answered. It costs nothing and gives nothing back."""
        with self._transaction("BEGIN IMMEDIATE") as db:
            free = Charge(self.currency, 0)
            append(
                db,
                "settled",
                query,
                analyst,
                statement,
                "[]",
                free,
                self._balance(db, None),
                self._balance(db, analyst),
            )


def append(
    db: sqlite3.Connection,
    state: str,
    query: str,
    analyst: str,
    statement: str,
    record: str,
    charge: Charge,
    whole: Balance,
    own: Balance,
) -> None:
    totals = [(balance.spent.amount + charge.amount, balance.spent.delta + charge.delta) for balance in (whole, own)]
    at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    values = (state, query, at, analyst, statement, record, charge.amount, charge.delta, *totals[0], *totals[1])
    db.execute(
        "INSERT INTO entry (state, query, at, analyst, statement, mechanisms, amount, delta, spent, spent_delta, own, own_delta) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        tuple(map(str, values)),
    )


def decimal(text: str) -> str:
    return f"{float(Fraction(text)):g}"


def fraction(balance: Balance) -> str:
    return f"{100 * balance.left.amount / balance.total.amount:.3g} %"


def part(charge: Charge, balance: Balance) -> str:
    return f"{100 * charge.amount / balance.total.amount:.3g} %"


# --- the file -------------------------------------------------------------------------------------------------------


def initialise(db: sqlite3.Connection, row: tuple[str, ...]) -> None:
    db.executescript(f"BEGIN; {SCHEMA}")
    db.execute("INSERT INTO account VALUES (?, ?, ?, ?, ?, ?, ?)", row)
    db.execute("COMMIT")


def usable(path: str | Path) -> Path:
    try:
        Path(path).exists()
    except (OSError, ValueError) as error:
        raise unavailable(Path(path), error) from None
    return Path(path)


def create(path: Path, row: tuple[str, ...]) -> None:
    """Make the file whole and durable under another name first: there is never half a ledger."""
    draft = path.with_name(f"{path.name}.{uuid.uuid4().hex}.new")
    try:
        db = sqlite3.connect(draft, isolation_level=None)
        db.execute("PRAGMA synchronous = EXTRA")
        initialise(db, row)
        db.close()
        with suppress(FileExistsError):  # another process was first; its ledger counts
            os.link(draft, path)
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except (OSError, sqlite3.Error) as error:
        raise unavailable(path, error) from None
    finally:
        with suppress(OSError):
            draft.unlink()


def open_file(path: Path) -> sqlite3.Connection:
    if not path.exists() or path.stat().st_size == 0:
        raise corrupt(path)
    db = sqlite3.connect(
        f"file:{quote(path.absolute().as_posix())}?mode=rw", uri=True, isolation_level=None, timeout=10
    )
    try:
        if db.execute("PRAGMA application_id").fetchone() != (APPLICATION,):
            raise corrupt(path)
        if db.execute("PRAGMA user_version").fetchone() != (VERSION,):
            raise Refused(
                "ledger_version",
                f"the ledger {str(path)!r} was written by another version of dpsql",
                "Use the version of dpsql that wrote it.",
            )
        db.execute("PRAGMA journal_mode = DELETE")
        db.execute("PRAGMA synchronous = EXTRA")
    except BaseException:
        db.close()
        raise
    return db


def corrupt(path: Path | None) -> Refused:
    return Refused(
        "ledger_corrupt",
        f"the ledger {str(path)!r} is damaged or is not a ledger",
        "Restore it from a backup. Starting a new one would forget what has been spent.",
    )


def unavailable(path: Path | None, error: Exception) -> Refused:
    if "locked" in str(error):
        return Refused("ledger_locked", f"the ledger {str(path)!r} is in use by another process", "Try again.")
    return Refused(
        "ledger_unavailable",
        f"the ledger {str(path)!r} cannot be written: {error}",
        "Check that the directory exists, is writable and has free space.",
    )


__all__ = ["Balance", "Budget", "Ledger"]
