"""Durable append-only budget: reserve, then settle. What is reserved is spent, whatever happens afterwards.

Needs:   a file that only the owner of the data can write; charges as `accountant` defines them
Gives:   the sum of all charges never exceeds the budget, at any time and with any number of processes; a charge is on
         disk before `reserve` returns; an older copy, or one with a row changed or missing at its end, is refused
Proof:   `reserve` reads the last running total, compares and appends within one BEGIN IMMEDIATE transaction, which
         SQLite gives to one writer at a time and has synced (synchronous=EXTRA, rollback journal) when COMMIT returns.
         Rows are never changed or removed (triggers), nothing is ever given back, and amounts are integers of any size.
         Each row's hash covers the row and the hash before it. After COMMIT and before `reserve` returns, number and
         hash of the new row are synced to the head file, which never goes back; each transaction begins by finding the
         head's row in the chain. So a file without the last charge that was answered is behind its head, or differs from it.
         Every failure (full disk, lock, damage, unknown version) raises before data is touched.
         A statement that ends without an answer is noted, durably, before its error leaves; one whose process dies is
         found by its row without an end. `reserve` refuses once there are as many of both as the policy allows since an
         owner last reset them: only those that were already running may follow
Checked: test_ledger, test_faults, test_history, test_upkeep
"""

from __future__ import annotations

import datetime
import errno
import hashlib
import json
import logging
import os
import socket
import sqlite3
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import quote

from dpsql import head
from dpsql.compiler.program import Plan, Program
from dpsql.errors import BudgetExhausted, Error, Refused
from dpsql.kernel.accountant import CURRENCIES, Charge, Currency, budget_of, most_of
from dpsql.kernel.charged import Ticket, sell
from dpsql.kernel.mechanisms import Sampled, cost, read, write
from dpsql.policy.catalog import Budget, Policy, fold

log = logging.getLogger("dpsql")
MARGIN = 10.0  # seconds beyond max_seconds, after which a statement has surely ended
RETRIED = 30.0  # seconds for noting that a statement failed
RUNNING: set[str] = set()  # what this process runs now
APPLICATION, VERSION = 0x64707371, 3  # "dpsq"
Paths = Mapping[str, tuple[str, str, str]]
STATES = ("opened", "raised", "declared", "reserved", "settled", "failed", "reset", "verified", "recovered")

SCHEMA = f"""
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {VERSION};
CREATE TABLE entry (
    number INTEGER PRIMARY KEY,
    state TEXT NOT NULL CHECK (state IN {STATES}),
    run TEXT NOT NULL,                 -- identifies one run; the rows about it share it
    query TEXT NOT NULL,               -- the id that the caller gave it, or nothing
    at TEXT NOT NULL,                  -- for people; no charge is computed from it
    analyst TEXT NOT NULL,
    text TEXT NOT NULL,                -- the statement; or the terms, the verified keys, or what was recovered
    mechanisms TEXT NOT NULL,          -- what was sampled: enough to compute the charge again
    answer TEXT NOT NULL,              -- what was released, for whoever asks again under the same id
    amount TEXT NOT NULL, delta TEXT NOT NULL,               -- this row's charge, in 1e-18
    spent TEXT NOT NULL, spent_delta TEXT NOT NULL,          -- all charges up to here
    own TEXT NOT NULL, own_delta TEXT NOT NULL,              -- this analyst's charges up to here
    total TEXT NOT NULL, total_delta TEXT NOT NULL,          -- the budget from here on
    hash TEXT NOT NULL                 -- of this row and of the hash before it
) STRICT;
CREATE INDEX entry_by_analyst ON entry (analyst, number) WHERE state = 'reserved';
CREATE UNIQUE INDEX entry_named ON entry (query, state) WHERE query <> '';
CREATE INDEX entry_terms ON entry (number) WHERE state IN ('opened', 'raised', 'declared');
CREATE INDEX entry_recovered ON entry (number) WHERE state = 'recovered';
CREATE INDEX entry_verified ON entry (number) WHERE state = 'verified';
CREATE TRIGGER entry_replace BEFORE INSERT ON entry WHEN EXISTS (SELECT 1 FROM entry WHERE number = NEW.number)
    BEGIN SELECT RAISE(ABORT, 'append-only'); END;
""" + "".join(
    f"CREATE TRIGGER entry_{verb.lower()} BEFORE {verb} ON entry BEGIN SELECT RAISE(ABORT, 'append-only'); END;"
    for verb in ("UPDATE", "DELETE")
)


class Entry(NamedTuple):
    """A row. Amounts are in units of 1e-18."""

    number: int
    state: str
    run: str
    query: str
    at: str
    analyst: str
    text: str
    mechanisms: str
    answer: str
    amount: int
    delta: int
    spent: int
    spent_delta: int
    own: int
    own_delta: int
    total: int
    total_delta: int
    hash: str = ""

    @staticmethod
    def of(row: tuple[str, ...]) -> Entry:
        return Entry._make([int(row[0]), *row[1:9], *map(int, row[9:17]), row[17]])

    def sealed(self, before: str) -> Entry:
        """The entry with the hash that it must have after an entry with the hash `before`."""
        content = json.dumps([before, *map(str, self[:-1])])
        return self._replace(hash=hashlib.sha256(content.encode()).hexdigest())


SELECT = f"SELECT {', '.join(Entry._fields)} FROM entry"
NOTHING = Entry(0, "", "", "", "", "", "", "", "", 0, 0, 0, 0, 0, 0, 0, 0)


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

    def room(self, charge: Charge) -> int:
        """How many times the charge fits into what is left."""
        parts = ((self.left.amount, charge.amount), (self.left.delta, charge.delta))
        return min((left // cost for left, cost in parts if cost), default=0)


class Chain:
    """The rows of one file, or of one ledger in memory: each transaction begins at the end of an unbroken chain."""

    def __init__(self, path: Path | None, opening: Entry | None) -> None:
        self.path, self._memory, self._lock = path, None, threading.Lock()
        self._opening: Entry | None = None  # the first row of a file that nobody has made yet
        if path is None:
            assert opening is not None
            self._memory = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
            initialise(self._memory, opening)
        elif not path.exists():
            if opening is None:
                raise lost(path)
            self._opening = opening

    def _open(self, reading: bool) -> sqlite3.Connection:
        """The file. One that was never there is made by the first charge; until then it reads as an unspent budget.

        Once this chain has seen the file, it never makes it again: a file that has gone is lost, and so is its budget.
        """
        if self._memory is not None:
            return self._memory
        assert self.path is not None
        if (opening := self._opening) is not None and not self.path.exists():
            # A head comes after its ledger: one that another process has just made is there by now.
            if head.beside(self.path).exists() and not self.path.exists():
                raise lost(self.path)
            if not reading:
                create(self.path, opening)
            elif not self.path.exists():
                unspent = sqlite3.connect(":memory:", isolation_level=None)
                initialise(unspent, opening)
                return unspent
        self._opening = None
        if not self.path.exists() and not head.beside(self.path).exists():
            raise corrupt(self.path, "has gone, with its head file, since it was opened")
        return open_file(self.path)

    @contextmanager
    def transaction(self, begin: str) -> Iterator[tuple[sqlite3.Connection, Entry]]:
        """One transaction on a connection of its own: nothing is shared between threads or across a fork."""
        reading = begin == "BEGIN"
        with self._lock, failing_closed(self.path):
            db = None
            try:
                db = self._open(reading)
                anchored = self._anchored(db, reading)
                db.execute(begin)
                yield db, self._last(db, anchored, reading)
                db.execute("COMMIT")
            finally:
                if db is not None:
                    if db.in_transaction:
                        db.execute("ROLLBACK")
                    if db is not self._memory:
                        db.close()

    def _anchored(self, db: sqlite3.Connection, reading: bool) -> head.Head | None:
        """The head, read before the transaction begins: the ledger may then be ahead of it, and never behind.

        Each row but the first is added by a transaction that has read a head, so one who holds the lock and finds such
        rows and no head knows that it was lost. Without the lock, the head and a row may have come between two looks.
        """
        if self.path is None or self._opening is not None:
            return None
        file = head.beside(self.path)
        if (anchored := head.read(file)) is None:
            with reading_may_not_write(reading):
                db.execute("BEGIN IMMEDIATE")
            if (anchored := head.read(file)) is None:
                first = find(db, "ORDER BY number DESC LIMIT 1")
                if first is None:
                    raise corrupt(self.path)
                if first.number > 1:
                    raise lost(self.path)
                anchored = 1, first.hash
                with reading_may_not_write(reading):
                    head.advance(file, anchored, durable=True)
            if db.in_transaction:
                db.execute("ROLLBACK")
        return anchored

    def _last(self, db: sqlite3.Connection, anchored: head.Head | None, reading: bool) -> Entry:
        """The last row, once the chain from the head's row to it has been followed."""
        last = find(db, "ORDER BY number DESC LIMIT 1")
        if last is None:
            raise corrupt(self.path)
        if self.path is None or anchored is None:
            return last
        if last.number < anchored[0]:
            raise rolled_back(self.path, last.number, anchored[0])
        before = NOTHING
        for row in db.execute(f"{SELECT} WHERE number >= ? ORDER BY number", (anchored[0] - 1,)):
            entry = Entry.of(row)
            if entry.number >= anchored[0] and entry != entry.sealed(before.hash):
                raise corrupt(self.path)
            if entry.number == anchored[0] and entry.hash != anchored[1]:
                raise rolled_back(self.path, last.number, anchored[0])
            before = entry
        if last.number > anchored[0]:  # somebody was killed, or is about to do this
            with reading_may_not_write(reading):
                head.advance(head.beside(self.path), (last.number, last.hash), durable=False)
        return last

    @contextmanager
    def appending(self, durable: bool) -> Iterator[tuple[sqlite3.Connection, Entry, Callable[[Entry], None]]]:
        """A transaction that adds rows: number, time, totals and hash of each follow from the one before. Anchored at its end."""
        made = NOTHING

        def append(entry: Entry) -> None:
            nonlocal made
            own = of_analyst(db, entry.analyst)
            made = entry._replace(
                number=made.number + 1,
                at=now(),
                spent=made.spent + entry.amount,
                spent_delta=made.spent_delta + entry.delta,
                own=own.own + entry.amount,
                own_delta=own.own_delta + entry.delta,
                total=entry.total or made.total,
                total_delta=entry.total_delta if entry.total else made.total_delta,
            ).sealed(made.hash)
            insert(db, made)

        with self.transaction("BEGIN IMMEDIATE") as (db, last):
            made = last
            yield db, last, append
        if self.path is not None:
            with failing_closed(self.path):
                head.advance(head.beside(self.path), (made.number, made.hash), durable)


@dataclass(frozen=True)
class Charged:
    """A run that has been charged: its identity, and a ticket for each release."""

    run: str
    tickets: tuple[Ticket, ...] = ()


class Ledger:
    """One dataset's ledger in a SQLite file, or in memory for rehearsals and tests."""

    def __init__(
        self, path: str | Path, dataset: str, policy: Policy, *, lazy: bool = False, paths: Paths = MappingProxyType({})
    ) -> None:
        """`lazy`: a file that is not there is made by the first charge. Reading a budget needs no place to write. `paths`: where
        the tables of the policy are, if that is known."""
        self._policy, self._terms, self._failures = policy, terms(dataset, policy, paths), Failures()
        self.currency: Currency = CURRENCIES[policy.budget.accounting]
        opening = opened(self._terms, policy.budget)
        self.chain = Chain(None if str(path) == ":memory:" else usable(path), opening)
        with self.chain.transaction("BEGIN" if lazy else "BEGIN IMMEDIATE") as (db, _):
            self._agree(db)

    def _agree(self, db: sqlite3.Connection) -> str | None:
        """The ledger's own terms win over the policy's. Returns the terms with tables that the ledger does not know yet."""
        found = terms_of(db)
        if said(found) != said(self._terms):
            raise Refused(
                "ledger_differs",
                f"the ledger is of {said(found)}; the policy says {said(self._terms)}",
                "The ledger wins: restore the policy, or let the owner record a larger budget (dpsql ledger raise).",
            )
        old, new = (json.loads(text)["persons"] for text in (found, self._terms))
        for table, person in new.items():
            if old.get(table) not in (person, None):  # None: it was public, and is about persons from now on
                what = f"the policy has other persons for table {table!r} than those whose budget the ledger keeps"
                hint = f"Restore the policy: tables.{table} had {json.dumps(old[table])}. For other persons, begin another ledger."
                raise Refused("ledger_differs", what, hint)
        merged = old | new
        return json.dumps(json.loads(found) | {"persons": merged}, sort_keys=True) if merged != old else None

    def balance(self, analyst: str | None = None) -> Balance:
        """What has been spent of the budget, or of an analyst's part of it."""
        with self.chain.transaction("BEGIN") as (db, last):
            self._agree(db)  # another process may have made the file since this ledger was opened
            return self._balances(db, last, analyst or "")[analyst is not None]

    def _balances(self, db: sqlite3.Connection, last: Entry, analyst: str) -> tuple[Balance, Balance]:
        """Of the dataset, and of the analyst."""
        total = Charge(self.currency, last.total, last.total_delta)
        whole = Balance(Charge(self.currency, last.spent, last.spent_delta), total)
        own, known, budget = of_analyst(db, analyst), self._policy.analysts.get(analyst), self._policy.budget
        share = known.epsilon if known else None
        allocation = total if share is None else budget_of(share, budget.delta, budget.accounting)
        lost = db.execute(
            "SELECT amount, delta FROM entry WHERE state = 'recovered'"
        ).fetchall()  # by whom, nobody knows
        amount, delta = own.own + sum(int(a) for a, _ in lost), own.own_delta + sum(int(d) for _, d in lost)
        return whole, Balance(Charge(self.currency, amount, delta), allocation)

    def last_charge(self) -> Charge | None:
        """What the last query cost."""
        with self.chain.transaction("BEGIN") as (db, _):
            found = find(db, "WHERE state = 'reserved' AND amount <> '0' ORDER BY number DESC LIMIT 1")
        return Charge(self.currency, found.amount, found.delta) if found else None

    def reserve(self, plan: Plan | Program, statement: str, analyst: str, query: str | None = None) -> Charged:
        """Charge a plan, durably, before any row is read; returns the run's identity, and a ticket for each release."""
        charge, record = plan.charge, write(plan.sampled)
        if cost(read(record), self.currency) != charge:
            raise AssertionError("the charge cannot be computed again from what is recorded")
        with self.chain.appending(durable=True) as (db, last, append):
            declared = self._agree(db)
            most, budget = self._policy.max_epsilon(analyst), self._policy.budget
            self._allow(db, last, analyst)
            if most is not None and charge.amount > most_of(most, budget.delta, budget.accounting):
                raise Refused(
                    "epsilon_too_large", f"the query costs more than epsilon {float(most):g}", "Ask for less."
                )
            if query and find(db, "WHERE query = ? AND query <> ''", query):
                raise Refused(
                    "query_unfinished",
                    f"query {query!r} was charged before, and no answer to it is stored; its charge stands",
                    "Wait if it is still running, or ask under another id.",
                )
            for balance, whose in zip(
                self._balances(db, last, analyst), ("of the dataset", f"of analyst {analyst!r}"), strict=True
            ):
                if charge.amount > balance.left.amount or charge.delta > balance.left.delta:
                    raise exhausted(plan, balance, whose)
            if declared is not None:
                append(NOTHING._replace(state="declared", run=str(uuid.uuid4()), text=declared))
            number = last.number + 1 + (declared is not None)
            run = f"{number}-{uuid.uuid4()}-{process()}"  # the row's number finds it without an index
            wanted = NOTHING._replace(state="reserved", run=run, query=query or "", analyst=analyst, text=statement)
            append(wanted._replace(mechanisms=record, amount=charge.amount, delta=charge.delta))
        RUNNING.add(run)
        return Charged(run, sell(part.release for part in plan.parts))

    def _allow(self, db: sqlite3.Connection, last: Entry, analyst: str) -> None:
        """Refuse where as many statements as the policy allows have ended without an answer: each tells something that no
        noise covers."""
        most, alone = self._policy.defaults.max_failures, self._policy.analyst(analyst).max_failures
        found = self._failures.read(db, last, float(self._policy.defaults.max_seconds))
        failures, own = found.total(), found[analyst]
        if failures >= most or (alone is not None and own >= alone):
            raise Refused(
                "too_many_failures",
                f"{failures} statements on this dataset failed or took too long since the owner last looked, {own} of them "
                f"of {f'analyst {analyst!r}' if analyst else 'this analyst'}; the policy allows {most}"
                + (f", and {alone} of this analyst" if alone is not None else ""),
                f"Ask the owner to look into it and to run: dpsql ledger reset-failures {self.chain.path or 'FILE'}",
            )

    def settle(self, run: Charged, answer: str = "", drawn: tuple[Sampled, ...] = ()) -> None:
        """Note that a reserved run is being answered. It costs nothing and gives nothing back.

        `drawn` is the noise itself, where it could not be known when it was charged.
        """
        # Not synced: no charge depends on it, and the next charge syncs it.
        self._end(run.run, "settled", durable=False, answer=answer, mechanisms=write(drawn) if drawn else "")

    def fail(self, charged: Charged) -> None:
        """Note, durably, that a reserved run ends without an answer.

        Through interrupts, and for a while where another process holds the ledger: if it cannot be noted, the row without an
        end says as much, since nobody runs it any more.
        """
        run = charged.run
        RUNNING.discard(run)
        end = time.monotonic() + RETRIED
        while True:
            try:
                return self._end(run, "failed", durable=True)
            except Refused as error:
                if error.code != "ledger_locked" or time.monotonic() > end:
                    raise
            except (KeyboardInterrupt, SystemExit):
                if time.monotonic() > end:
                    raise

    def _end(self, run: str, state: str, durable: bool, answer: str = "", mechanisms: str = "") -> None:
        with self.chain.appending(durable) as (db, _, append):
            number = run.partition("-")[0]
            reserved = find(db, "WHERE number = ? AND run = ?", number, run)
            if reserved is None or find(db, "WHERE number > ? AND run = ?", number, run):
                raise ValueError("never reserved, or ended before")
            ended = NOTHING._replace(state=state, run=run, query=reserved.query, analyst=reserved.analyst)
            append(ended._replace(answer=answer, mechanisms=mechanisms))
        RUNNING.discard(run)

    def verified(self, version: str | None) -> frozenset[tuple[str, frozenset[str]]]:
        """The tables and columns of which the owner has verified on this version of the data that no two rows agree."""
        if version is None:
            return frozenset()
        with self.chain.transaction("BEGIN") as (db, _):
            rows = db.execute(f"{SELECT} WHERE state = 'verified' ORDER BY number DESC").fetchall()
        for record in (json.loads(Entry.of(row).text) for row in rows):
            if record["version"] == version:
                return frozenset((table, frozenset(columns)) for table, columns in record["unique"])
        return frozenset()

    def asked(self, query: str) -> list[Entry | None]:
        """The rows of a query's id, if there are any: that of its charge, and that of its answer."""
        with self.chain.transaction("BEGIN") as (db, _):
            kept = "WHERE query = ? AND query <> '' AND state ="
            return [find(db, f"{kept} '{state}'", query) for state in ("reserved", "settled")]

    def answered(self, query: str, plan: Plan | Program, statement: str, analyst: str) -> str | None:
        """What was stored when the query of this id was settled; None if it was never asked, or has no answer."""
        asked, settled = self.asked(query)
        if asked and (asked.text, asked.analyst, asked.mechanisms) != (statement, analyst, write(plan.sampled)):
            what = f"query {query!r} was another query, another analyst's, or was planned by a version that chose other noise"
            raise Refused("query_differs", what, "Ask under another id.")
        return settled.answer if settled else None


WITHOUT_DELTA = (
    "Pass delta=1e-30: then it gets Laplace noise, which needs no delta. If one person counts in dozens of groups or "
    "aggregates, pass a smaller max_groups_contributed too, or ask for fewer at a time. Or ask the owner to allow more."
)


def exhausted(plan: Plan | Program, balance: Balance, whose: str) -> BudgetExhausted:
    charge = plan.charge
    # Thresholds need a delta, and what waits is charged one whichever noise it gets; all else can do without, in epsilons.
    free = charge.currency == "epsilon" and not any(part.release.threshold or part.waits for part in plan.parts)
    left, cost = (f"{100 * c.amount / balance.total.amount:.3g} %" for c in (balance.left, charge))
    return BudgetExhausted(
        "budget_exhausted",
        f"the budget {whose} has {left} left, and this query costs {cost} of it"
        if charge.amount > balance.left.amount
        else f"the budget {whose} has too little delta left for this query",
        WITHOUT_DELTA
        if free and charge.amount <= balance.left.amount
        else "Ask for a smaller epsilon or delta, or ask the owner of the data to allow more.",
    )


# --- rows -----------------------------------------------------------------------------------------------------------


def find(db: sqlite3.Connection, where: str, *values: str) -> Entry | None:
    row = db.execute(f"{SELECT} {where}", values).fetchone()
    return Entry.of(row) if row else None


def of_analyst(db: sqlite3.Connection, analyst: str) -> Entry:
    return find(db, "WHERE state = 'reserved' AND analyst = ? ORDER BY number DESC LIMIT 1", analyst) or NOTHING


class Failures:
    """Which statements of whom ended without an answer since the owner last reset them.

    A statement that is killed leaves a row without an end. It counts as soon as nobody can be running it: if it is of this
    process and not in RUNNING, if its process is gone, or if it is older than `max_seconds` and MARGIN. So whether it counts
    depends on the clock only while a process of that number lives, or on another machine. A clock that is wrong can count a
    statement that still runs, until it ends. It cannot keep one from being counted for longer than that time, since a row
    from the future counts at once.

    The rows are read once: the ledger only grows. Where the last row that was read is another now, all are read anew.
    """

    def __init__(self) -> None:
        self._clear(0, "")

    def _clear(self, number: int, seal: str) -> None:
        self._read, self._failed, self._open = (number, seal), Counter[str](), dict[str, tuple[str, str]]()

    def read(self, db: sqlite3.Connection, last: Entry, seconds: float) -> Counter[str]:
        """How many, for each analyst."""
        known = find(db, "WHERE number = ?", str(self._read[0]))
        if known is None or known.hash != self._read[1]:
            self._clear(0, "")
        for state, run, at, who in db.execute(
            "SELECT state, run, at, analyst FROM entry WHERE number > ? ORDER BY number", (self._read[0],)
        ):
            if state == "reset":
                self._clear(0, "")
            elif state == "reserved":
                self._open[run] = who, at
            elif state in ("settled", "failed"):
                self._open.pop(run, None)
                self._failed[who] += state == "failed"
        self._read = last.number, last.hash
        gone = (who for run, (who, at) in self._open.items() if not may_run(run, at, seconds))
        return self._failed + Counter(gone)


def may_run(run: str, at: str, seconds: float) -> bool:
    """Whether somebody may still be running a statement that began at that time and has no end."""
    before, _, host = run.partition("@")
    age = (datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(at)).total_seconds()
    if not -1 <= age <= seconds + MARGIN or (run.endswith(f"-{process()}") and run not in RUNNING):
        return False
    try:
        if host == socket.gethostname():
            os.kill(int(before.rpartition("-")[2]), 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it is another user's
        pass
    return True


def process() -> str:
    return f"{os.getpid()}@{socket.gethostname()}"


def failures_of(db: sqlite3.Connection, last: Entry, seconds: float) -> int:
    return Failures().read(db, last, seconds).total()


def insert(db: sqlite3.Connection, entry: Entry) -> None:
    values = [entry.number, *map(str, entry[1:])]
    db.execute(f"INSERT INTO entry VALUES ({', '.join('?' * len(values))})", values)


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def terms(dataset: str, policy: Policy, paths: Paths = MappingProxyType({})) -> str:
    """What a ledger is bound to, as canonical JSON: whose budget it is, and how large."""
    budget = policy.budget
    known = {"dataset": dataset, "accounting": budget.accounting, "neighbours": budget.neighbours}
    amounts = {"epsilon": str(budget.epsilon), "delta": str(budget.delta)}
    return json.dumps({**known, **amounts, "persons": persons_of(policy, paths)}, sort_keys=True)


def persons_of(policy: Policy, paths: Paths) -> dict[str, Any]:
    """For each table the column or the reference by which a row finds its person, as the policy writes it; None if public.

    A table has one name here however the policy calls it: t, main.t and d.main.t are one. Tables of several databases that
    are called the same are one too, and have what all of them have.
    """
    found: dict[str, list[Any]] = {}
    for name, table in policy.tables.items():
        person = table.get("person")
        if isinstance(person, Mapping):
            own = person.get("columns") or [person.get("column")]
            person = [*map(str, own), "references", str(person.get("references"))]
            person = [fold(word.replace(" ", "")) for word in person]
        called = ".".join((paths.get(name) or name.split("."))[-2:])
        one = fold(person) if isinstance(person, str) else person
        them = found.setdefault(fold(called).removeprefix("main."), [])
        them += [one] if one not in them else []
    return {name: them[0] if len(them) == 1 else sorted(them, key=str) for name, them in found.items()}


def terms_of(db: sqlite3.Connection) -> str:
    found = find(db, "WHERE state IN ('opened', 'raised', 'declared') ORDER BY number DESC LIMIT 1")
    if found is None:
        raise ValueError("no budget")
    return found.text


def said(text: str) -> str:
    known = json.loads(text)
    epsilon, delta = (f"{float(Fraction(known[name])):g}" for name in ("epsilon", "delta"))
    return f"dataset {known['dataset']!r} with epsilon {epsilon}, delta {delta}, {known['accounting']}, {known['neighbours']}"


def opened(known: str, budget: Budget) -> Entry:
    total = budget_of(budget.epsilon, budget.delta, budget.accounting)
    if total.amount <= 0:
        raise Refused(
            "policy_invalid", "policy, budget: is too small to be counted", "Allow a larger epsilon or delta."
        )
    made = NOTHING._replace(number=1, state="opened", run=str(uuid.uuid4()), at=now(), text=known)
    return made._replace(total=total.amount, total_delta=total.delta).sealed("")


# --- the file -------------------------------------------------------------------------------------------------------


def initialise(db: sqlite3.Connection, opening: Entry) -> None:
    db.executescript(f"BEGIN; {SCHEMA}")
    insert(db, opening)
    db.execute("COMMIT")


def usable(path: str | Path) -> Path:
    with failing_closed(Path(path)):
        Path(path).exists()
    return Path(path)


def create(path: Path, opening: Entry) -> None:
    """Make the file whole and durable under another name first: there is never half a ledger."""
    draft = path.with_name(f"{path.name}.{uuid.uuid4().hex}.new")
    try:
        with failing_closed(path):
            db = sqlite3.connect(draft, isolation_level=None)
            db.execute("PRAGMA synchronous = EXTRA")
            initialise(db, opening)
            db.close()
            with suppress(FileExistsError):  # another process was first; its ledger counts
                os.link(draft, path)
                log.warning("dpsql: a new ledger begins at %s, with nothing spent of %s", path, said(opening.text))
            head.sync(path.parent)
    finally:
        with suppress(OSError):
            draft.unlink()


def open_file(path: Path) -> sqlite3.Connection:
    if not path.exists():
        raise lost(path)
    if path.stat().st_size == 0:
        raise corrupt(path)
    db = sqlite3.connect(
        f"file:{quote(path.absolute().as_posix())}?mode=rw", uri=True, isolation_level=None, timeout=head.WAIT
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


# --- what goes wrong ------------------------------------------------------------------------------------------------


@contextmanager
def reading_may_not_write(reading: bool) -> Iterator[None]:
    """Whoever only reads leaves the head as it is where they may not write it: nothing is charged on what they read."""
    try:
        yield
    except (sqlite3.OperationalError, OSError) as error:
        refused = isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
        if not reading or not (refused or "readonly" in str(error)):
            raise


@contextmanager
def failing_closed(path: Path | None) -> Iterator[None]:
    """Whatever goes wrong with a file is a refusal."""
    try:
        yield
    except Error:
        raise
    except (sqlite3.OperationalError, OSError) as error:
        if isinstance(error, sqlite3.Error) and "no such" in str(error):  # a table or a column is missing
            raise corrupt(path) from None
        if isinstance(error, head.Busy) or (isinstance(error, sqlite3.Error) and "locked" in str(error)):
            raise Refused(
                "ledger_locked", f"the ledger {str(path)!r} is in use by another process", "Try again."
            ) from None
        raise Refused(
            "ledger_unavailable",
            f"the ledger {str(path)!r} cannot be written: {error}",
            "Check that the directory exists, is writable and has free space.",
        ) from None
    except (sqlite3.DatabaseError, ValueError, TypeError, KeyError, ArithmeticError):  # a row that does not read as one
        raise corrupt(path) from None


RESTORE = "Restore it from a backup. Starting a new one would forget what has been spent."


def corrupt(path: Path | None, what: str = "is damaged or is not a ledger", hint: str = RESTORE) -> Refused:
    return Refused("ledger_corrupt", f"the ledger {str(path)!r} {what}", hint)


def lost(path: Path) -> Refused:
    if not path.exists() and not head.beside(path).exists():
        hint = "Check the path. A ledger is made by the first query that is charged to it."
        return Refused("ledger_missing", f"there is no ledger {str(path)!r}", hint)
    if path.exists():
        hint = f"Restore it, or the owner takes the ledger into use without it: dpsql ledger recover {path} --lost 0.05"
        return corrupt(path, f"has lost its head file {head.beside(path).name!r}", hint)
    return corrupt(path, f"is missing, and its head file {head.beside(path).name!r} is there")


def rolled_back(path: Path, found: int, expected: int) -> Refused:
    return Refused(
        "ledger_rolled_back",
        f"the ledger {str(path)!r} ends at row {found} or has another past; its head file knows it up to row {expected}",
        "An older or another copy was put in its place: restore the newest one. What it charged must not be forgotten. If it is "
        f"gone, the owner says what may have been charged since: dpsql ledger recover {path} --lost 0.05",
    )


__all__ = ["Balance", "Budget", "Chain", "Entry", "Ledger"]
