"""What a ledger has recorded: checked from the first row to the last, listed, and drawn over time. For the owner."""

from __future__ import annotations

import datetime
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from dpsql.errors import Refused
from dpsql.explain import percent
from dpsql.kernel.accountant import CURRENCIES, UNIT, Charge, Currency, Loss, budget_of, in_words, units
from dpsql.kernel.mechanisms import Approximate, Gaussian, Laplace, Later, Threshold, cost, more_for, read
from dpsql.kernel.mechanisms.later import together
from dpsql.ledger import NOTHING, SELECT, Chain, Entry, Ledger, corrupt, failing_closed, initialise, usable

CLOSE = Fraction(1, 10**8)  # charges in delta are computed in floats, whose last digits differ between machines
BLOCKS = " ▁▂▃▄▅▆▇█"


def share(charge: Charge, total: Charge) -> float:
    """Which part of the budget a charge is: of its amount or of its delta, whichever is more.

    >>> share(Charge("epsilon", 1, 20), Charge("epsilon", 100, 1000))
    0.02
    """
    parts = ((charge.amount, total.amount), (charge.delta, total.delta))
    return max((min(cost / whole, 1.0) for cost, whole in parts if whole), default=0.0)


def tighter(charge: Charge, total: Charge) -> str:
    """What runs out first where it is not the amount: "delta"."""
    return "delta" if charge.delta * total.amount > charge.amount * total.delta else ""


@dataclass(frozen=True)
class Run:
    """Who asked what, when, at what charge, and whether an answer left."""

    run: str
    query: str  # the id that the caller gave it, if any
    at: str
    analyst: str
    statement: str
    state: str  # reserved: charged, and no answer has left; settled: answered; failed: ended without an answer
    charge: Charge
    part: float  # of the budget at that time: of its amount or of its delta, whichever is more


class Runs(list[Run]):
    """Runs as a list that reads like a table."""

    def __repr__(self) -> str:
        lines = (
            f"{run.at[:16].replace('T', ' ')}  {run.state:<8}  {percent(run.part):>16}  {' '.join(run.statement.split()):.34}"
            for run in self
        )
        return "\n".join(lines) or "nothing was asked yet"


@dataclass(frozen=True)
class History:
    """A whole ledger."""

    dataset: str
    delta: Fraction
    entries: tuple[Entry, ...]

    @property
    def head(self) -> str:
        return f"{self.entries[-1].number}:{self.entries[-1].hash}"

    @property
    def runs(self) -> list[Run]:
        ended = {entry.run: entry.state for entry in self.entries if entry.state in ("settled", "failed")}
        return [
            Run(
                entry.run,
                entry.query,
                entry.at,
                entry.analyst,
                entry.text,
                ended.get(entry.run, "reserved"),
                Charge(self._currency, entry.amount, entry.delta),
                share(Charge(self._currency, entry.amount, entry.delta), self._total(entry)),
            )
            for entry in self.entries
            if entry.state == "reserved"
        ]

    @property
    def budgets(self) -> list[dict[str, str]]:
        """The budget when the ledger was opened, and each time that an owner raised it."""
        return [
            {"at": e.at, "by": e.analyst, "state": e.state, **json.loads(e.text)}
            for e in self.entries
            if e.state in ("opened", "raised")
        ]

    @property
    def acts(self) -> list[tuple[str, str, str, str]]:
        """What the owner did besides: when, who, what, and the part of the budget that was taken as lost."""
        return [
            (
                e.at,
                e.analyst,
                e.state,
                f"{percent(share(Charge(self._currency, e.amount, e.delta), self._total(e)))} taken as lost"
                if e.state == "recovered"
                else "",
            )
            for e in self.entries
            if e.state in ("raised", "reset", "verified", "recovered")
        ]

    def _total(self, entry: Entry) -> Charge:
        return Charge(self._currency, entry.total, entry.total_delta)

    @property
    def _currency(self) -> Currency:
        return currency(json.loads(self.entries[0].text))

    def spent(self, persons: int = 1) -> Loss:
        """What has been lost by one person, or by a group of several who come or go together."""
        last = self.entries[-1]
        drawn = {entry.run for entry in self.entries if entry.state == "settled" and entry.mechanisms}
        delta = more = Fraction(0)
        for entry in self.entries:
            if (
                entry.state == "recovered" and entry.delta
            ):  # by which noise is not known, so of groups nothing can be said
                delta += Fraction(entry.delta, UNIT) if persons == 1 else 1
            sampled = read(entry.mechanisms or "[]")
            more += more_for(persons, sampled)
            for one in sampled:
                if isinstance(one, Threshold | Approximate):
                    delta += one.delta_for(persons)
                elif isinstance(one, Later) and entry.run not in drawn:
                    delta += one.delta_for(persons)  # what was drawn is not known
        return in_words(Charge(self._currency, last.spent, units(min(delta, Fraction(1)))), self.delta, persons, more)

    def chart(self, width: int = 72, height: int = 8) -> str:
        """The part of the budget that was spent, over time."""
        times = [datetime.datetime.fromisoformat(entry.at).timestamp() for entry in self.entries]
        first, last = min(times), max(times)
        parts = [0.0] * width
        for time, entry in zip(times, self.entries, strict=True):
            column = int((width - 1) * (time - first) / (last - first)) if last > first else width - 1
            parts[column] = share(Charge(self._currency, entry.spent, entry.spent_delta), self._total(entry))
        for column in range(1, width):
            parts[column] = parts[column] or parts[column - 1]
        lines, top = [], max(parts) or 1.0
        for row in reversed(range(height)):
            bars = (BLOCKS[round(8 * min(max(part / top * height - row, 0), 1))] for part in parts)
            label = {height - 1: f"{100 * top:.3g} %", 0: "0"}.get(row, "")
            lines.append(f"{label:>8} │{''.join(bars)}")
        ends = (self.entries[0].at[:16].replace("T", " "), self.entries[-1].at[:16].replace("T", " "))
        return "\n".join([*lines, f"{'└':>10}{'─' * width}", f"{'':10}{ends[0]}{ends[1]:>{width - len(ends[0])}}"])


def recorded(path: str | Path) -> History:
    """All rows of a ledger, the last of which are held against the head."""
    return everything(Chain(usable(path), None))


def everything(chain: Chain) -> History:
    with chain.transaction("BEGIN") as (db, _):
        entries = tuple(rows(db))
        known = json.loads([e for e in entries if e.state in ("opened", "raised", "declared")][-1].text)
    return History(known["dataset"], Fraction(known["delta"]), entries)


def runs_of(ledger: Ledger) -> list[Run]:
    return everything(ledger.chain).runs


def rows(db: sqlite3.Connection) -> Iterator[Entry]:
    return (Entry.of(row) for row in db.execute(f"{SELECT} ORDER BY number"))


def verify(path: str | Path, noted: str | None = None) -> str:
    """Recompute every hash, every charge and every sum; returns the head. `noted` is a head that must lie in the past.

    A copy of the ledger that was put back together with its head file is consistent in itself: only a head that the owner
    has noted elsewhere tells it from the newest one.
    """
    file = usable(path)
    with Chain(file, None).transaction("BEGIN") as (db, _), failing_closed(file):
        last = check_rows(file, db, noted)
    return f"{last.number}:{last.hash}"


def check_rows(file: Path, db: sqlite3.Connection, noted: str | None) -> Entry:
    """Check every row, and that the head that was `noted` is among them; returns the last row."""
    if db.execute("PRAGMA integrity_check").fetchall() != [("ok",)] or layout(db) != fresh_layout():
        raise corrupt(file)
    before, book, found = NOTHING, Book(), noted is None
    for entry in rows(db):
        problem = book.problem(entry, before)
        if problem:
            raise corrupt(file, f"is wrong at row {entry.number}: {problem}")
        found = found or noted == f"{entry.number}:{entry.hash}"
        before = entry
    if not found:
        raise Refused(
            "ledger_rolled_back",
            f"the ledger {str(file)!r} does not contain the head {noted}",
            "An older or another copy was put in its place: restore the newest one.",
        )
    if before is NOTHING:
        raise corrupt(file)
    return before


class Book:
    """What has been read so far."""

    def __init__(self) -> None:
        self.known: dict[str, Any] = {}  # the budget's terms
        self.open: dict[str, Entry] = {}  # runs without an answer
        self.seen: set[str] = set()
        self.own: dict[str, tuple[int, int]] = {}

    def problem(self, entry: Entry, before: Entry) -> str:
        """What is wrong with the next row, or nothing."""
        if entry.number != before.number + 1:
            return "a row is missing before it"
        if entry != entry.sealed(before.hash):
            return "it has been changed"
        total = before.total, before.total_delta
        charge, lost = (0, 0), (0, 0)
        match entry.state:
            case "opened" | "raised":
                if (entry.state == "opened") != (entry.number == 1):
                    return "a ledger is opened once"
                self.known = json.loads(entry.text)
                budget = (Fraction(self.known[name]) for name in ("epsilon", "delta"))
                wanted = budget_of(*budget, self.known["accounting"])
                if not close((entry.total, entry.total_delta), (wanted.amount, wanted.delta)):
                    return "its budget does not follow from its terms"
                total = entry.total, entry.total_delta
            case "declared":
                known = json.loads(entry.text)
                if {**known, "persons": self.known["persons"]} != self.known:
                    return "it changes more than the tables that are known"
                if any(known["persons"].get(name) != who for name, who in self.known["persons"].items() if who):
                    return "it changes whose the rows of a table are"
                self.known = known
            case "reserved":
                if entry.run in self.seen or not entry.run.startswith(f"{entry.number}-"):
                    return "its run was charged before"
                wanted = cost(sampled := read(entry.mechanisms), currency(self.known))
                charge = entry.amount, entry.delta
                if not sampled or not close(charge, (wanted.amount, wanted.delta)):
                    return "its charge does not follow from its mechanisms"
                self.seen.add(entry.run)
                self.open[entry.run] = entry
            case "settled":
                asked = self.open.pop(entry.run, NOTHING)
                if (asked.analyst, asked.query, asked.run) != (entry.analyst, entry.query, entry.run):
                    return "its run was not charged before"
                later = [one for one in read(asked.mechanisms) if isinstance(one, Later)]
                noises = Laplace | Gaussian | Threshold | Approximate
                drawn = [one for one in read(entry.mechanisms or "[]") if isinstance(one, noises)]
                # Nothing is said of what was drawn where the computing of an answer failed: then it counts as the most.
                if drawn and not (later and together(later).covers(drawn)):
                    return "what was drawn costs more than was charged"
            case "failed":
                asked = self.open.pop(entry.run, NOTHING)
                if (asked.analyst, asked.query, asked.run) != (entry.analyst, entry.query, entry.run):
                    return "its run was not charged before"
            case "recovered":
                lost = entry.amount, entry.delta
            case "reset" | "verified":
                pass
            case _:
                return "it is of an unknown kind"
        own = self.own.get(entry.analyst, (0, 0))
        self.own[entry.analyst] = own[0] + charge[0], own[1] + charge[1]
        charge = charge[0] + lost[0], charge[1] + lost[1]
        sums = before.spent + charge[0], before.spent_delta + charge[1], *self.own[entry.analyst], *total
        if entry[9:17] != (*charge, *sums) or min(lost) < 0:
            return "its totals do not add up"
        if entry.spent > entry.total or entry.spent_delta > entry.total_delta:
            return "it exceeds the budget"
        return ""


def currency(known: Mapping[str, Any]) -> Currency:
    return CURRENCIES[known["accounting"]]


def close(found: Sequence[int], wanted: Sequence[int]) -> bool:
    return all(abs(f - w) <= w * CLOSE + 1 for f, w in zip(found, wanted, strict=True))


def layout(db: sqlite3.Connection) -> list[tuple[str, str]]:
    return db.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()


def fresh_layout() -> list[tuple[str, str]]:
    with sqlite3.connect(":memory:", isolation_level=None) as db:
        initialise(db, NOTHING._replace(number=1, state="opened"))
        return layout(db)


__all__ = ["History", "Run", "recorded", "runs_of", "verify"]
