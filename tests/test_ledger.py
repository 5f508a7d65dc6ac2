"""The ledger, in real SQLite files, with real processes that race and are killed."""

import fcntl
import json
import multiprocessing
import os
import pickle
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from functools import cache
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import dpsql
from dpsql import head
from dpsql.compiler.program import Plan
from dpsql.history import recorded, verify
from dpsql.kernel.accountant import UNIT, Charge, units
from dpsql.ledger import VERSION, Charged, Ledger
from dpsql.policy.catalog import Policy, read_policy
from dpsql.upkeep import raise_budget

COUNT = "SELECT count(*) FROM visits"
TABLES = {
    "visits": {
        "person": "person",
        "max_rows_contributed": 1,
        "columns": {"spend": {"between": [0, 10]}, "age": {"between": [0, 120]}},
    }
}
TENTH = UNIT // 10


def declare(epsilon: float = 1.0, **more: Any) -> dict[str, Any]:
    return {"dataset": {"id": "shop"}, "budget": {"epsilon": epsilon}, "tables": TABLES} | more


def shop(rows: int = 0) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute(f"CREATE TABLE visits AS SELECT i::INT AS person, 7 AS spend, 40 AS age FROM range({rows}) t(i)")
    return connection


def compiled(query: str = COUNT, epsilon: float = 0.1, delta: float | None = None, **policy: Any) -> Plan:
    with shop() as connection, dpsql.connect(connection, policy=declare(**policy), ledger=":memory:") as db:
        return db._plan(query, epsilon, delta)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return compiled()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.ledger"


def opened(path: Path, epsilon: float = 1.0, **more: Any) -> Ledger:
    return Ledger(path, "shop", read_policy(declare(epsilon, **more)))


def rows(path: Path, columns: str = "state, run, analyst, amount, spent, own") -> list[tuple[Any, ...]]:
    with sqlite3.connect(path) as connection:
        return connection.execute(f"SELECT {columns} FROM entry WHERE number > 1 ORDER BY number").fetchall()


def check_totals(path: Path) -> int:
    """Every row's running totals are the sums of the charges up to it; returns the last."""
    spent, own = 0, dict[str, int]()
    for state, _, analyst, amount, total, mine in rows(path):
        spent += int(amount)
        own[analyst] = own.get(analyst, 0) + int(amount)
        assert (int(total), int(mine)) == (spent, own[analyst])
        assert state == "reserved" or int(amount) == 0
    return spent


def refusal(path: Path | str, plan: Plan) -> str:
    """The code with which a ledger that cannot be used is refused."""
    with pytest.raises(dpsql.Refused) as caught:
        Ledger(path, "shop", read_policy(declare())).reserve(plan, COUNT, "")
    assert caught.value.hint
    return caught.value.code


# --- one process ------------------------------------------------------------------------------------------------------


def test_totals_persist(path: Path, plan: Plan) -> None:
    first = opened(path).reserve(plan, COUNT, "")
    second = opened(path).reserve(plan, COUNT, "")
    opened(path).settle(first)
    assert opened(path).balance().spent == Charge("epsilon", 2 * TENTH)
    assert opened(path).balance().left == Charge("epsilon", UNIT - 2 * TENTH)
    assert [(state, query) for state, query, *_ in rows(path)] == [
        ("reserved", first.run),
        ("reserved", second.run),
        ("settled", first.run),
    ]
    assert check_totals(path) == 2 * TENTH
    assert sorted(file.name for file in path.parent.iterdir()) == [path.name, f"{path.name}.head"]


def test_more_than_the_budget_is_refused_and_not_recorded(path: Path, plan: Plan) -> None:
    ledger = opened(path)
    for _ in range(10):
        ledger.reserve(plan, COUNT, "")
    before = path.read_bytes()
    with pytest.raises(dpsql.BudgetExhausted) as caught:
        ledger.reserve(plan, COUNT, "")
    assert (caught.value.code, path.read_bytes()) == ("budget_exhausted", before)
    assert len(rows(path)) == 10
    assert ledger.balance().left == Charge("epsilon", 0)


def test_delta_is_a_budget_too(path: Path) -> None:
    budget = {"epsilon": 1.0, "delta": 1e-6, "accounting": "pure"}
    ledger = Ledger(path, "shop", read_policy(declare(budget=budget)))
    costly = compiled("SELECT spend, count(*) FROM visits GROUP BY spend", delta=6e-7, budget=budget)
    ledger.reserve(costly, COUNT, "")
    with pytest.raises(dpsql.BudgetExhausted, match="delta"):
        ledger.reserve(costly, COUNT, "")
    assert ledger.balance().spent == costly.charge
    assert ledger.balance().room(costly.charge) == 0
    assert 5e-7 < costly.charge.delta / UNIT < 6e-7


def test_a_charge_that_its_row_does_not_explain_is_not_made(path: Path, plan: Plan) -> None:
    ledger = opened(path)
    with pytest.raises(AssertionError):
        ledger.reserve(replace(plan, release=replace(plan.release, charge=Charge("epsilon", 1))), COUNT, "")
    assert rows(path) == []


def test_settling_gives_nothing_back(path: Path, plan: Plan) -> None:
    ledger = opened(path)
    query = ledger.reserve(plan, COUNT, "")
    charged = ledger.balance()
    ledger.settle(query)
    assert ledger.balance() == charged
    assert rows(path, "state, amount, delta, spent") == [
        ("reserved", str(TENTH), "0", str(TENTH)),
        ("settled", "0", "0", str(TENTH)),
    ]


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE entry SET amount = '0'",
        "UPDATE entry SET total = '9' WHERE state = 'opened'",
        "DELETE FROM entry",
        "DELETE FROM entry WHERE state = 'opened'",
        "INSERT OR REPLACE INTO entry SELECT number, state, run, query, at, analyst, text, mechanisms, answer, '0', '0', '0', "
        "'0', '0', '0', total, total_delta, hash FROM entry",
    ],
)
def test_append_only(path: Path, plan: Plan, change: str) -> None:
    opened(path).reserve(plan, COUNT, "")
    connection = sqlite3.connect(path)
    with pytest.raises(sqlite3.IntegrityError):
        connection.execute(change)
    connection.close()
    assert opened(path).balance().spent.amount == TENTH


def test_allocations_are_checked_together_with_the_budget(path: Path, plan: Plan) -> None:
    """An analyst stops at her allocation, and before it where the dataset's budget ends first."""
    ledger = opened(path, analysts={"ana": {"epsilon": 0.3}, "bob": {"epsilon": 0.9}})
    for _ in range(3):
        ledger.reserve(plan, COUNT, "ana")
    with pytest.raises(dpsql.BudgetExhausted, match="analyst 'ana'"):
        ledger.reserve(plan, COUNT, "ana")
    for _ in range(7):
        ledger.reserve(plan, COUNT, "bob")
    assert ledger.balance("bob").left.amount == 2 * TENTH
    with pytest.raises(dpsql.BudgetExhausted, match="of the dataset"):
        ledger.reserve(plan, COUNT, "bob")
    assert len(rows(path)) == 10
    assert check_totals(path) == UNIT
    assert ledger.balance("ana").spent.amount == 3 * TENTH


def test_amounts_of_any_size(path: Path) -> None:
    """Amounts beyond 64 bits are exact, also after reopening."""
    ledger = Ledger(path, "shop", read_policy(declare(1e21)))
    huge = compiled(epsilon=1e20)
    for _ in range(10):
        ledger.reserve(huge, COUNT, "")
    again = Ledger(path, "shop", read_policy(declare(1e21))).balance()
    assert again.total == Charge("epsilon", 10**39)
    assert again.spent.amount == 10 * huge.charge.amount
    assert 10**39 - 10**30 < again.spent.amount <= 10**39


@pytest.mark.parametrize(
    ("dataset", "budget"),
    [
        ("shop", {"epsilon": 2.0}),
        ("shop", {"epsilon": 1.0, "delta": 1e-6, "accounting": "gdp"}),
        ("shop", {"epsilon": 1.0, "delta": 1e-6, "accounting": "pure"}),
        ("another shop", {"epsilon": 1.0}),
    ],
)
def test_a_policy_that_differs_is_refused(path: Path, plan: Plan, dataset: str, budget: dict[str, Any]) -> None:
    opened(path).reserve(plan, COUNT, "")
    before = path.read_bytes()
    with pytest.raises(dpsql.Refused) as caught:
        Ledger(path, dataset, read_policy(declare(budget=budget)))
    assert (caught.value.code, path.read_bytes()) == ("ledger_differs", before)


def test_threads(path: Path, plan: Plan) -> None:
    ledger = opened(path)

    def ask(_: int) -> bool:
        try:
            ledger.settle(ledger.reserve(plan, COUNT, ""))
        except dpsql.BudgetExhausted:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(ask, range(40))) == 10
    assert check_totals(path) == UNIT


@pytest.mark.parametrize("query", [COUNT, "SELECT count(*), sum(spend), avg(age) FROM visits"])
@pytest.mark.parametrize("delta", [0, 1e-6])
def test_the_charge_can_be_computed_again_from_its_row(path: Path, query: str, delta: float) -> None:
    policy = declare(budget={"epsilon": 1.0, "delta": delta})
    with shop(9) as connection, dpsql.connect(connection, policy=policy, ledger=path) as db:
        db.sql(query, epsilon=0.1)
    mechanisms, amount, spent_delta = rows(path, "mechanisms, amount, delta")[0]
    lost = Fraction(0)
    for one in json.loads(mechanisms):
        ratio = Fraction(one["sensitivity"]) / Fraction(float.fromhex(one["scale"]))
        lost += {"laplace": ratio, "gaussian": ratio**2}[one["mechanism"]]
    assert lost > 0
    assert (int(amount), int(spent_delta)) == (units(lost), 0)


def test_a_row_says_nothing_of_the_data(tmp_path: Path) -> None:
    """The ledger of a shop and that of an empty shop are equal, but for the random identity and the time."""
    entries = []
    for size in (0, 4242):
        path = tmp_path / f"{size}.ledger"
        with shop(size) as connection, dpsql.connect(connection, policy=declare(), ledger=path) as db:
            db.sql("SELECT count(*), sum(spend), avg(age) FROM visits WHERE age > 30", epsilon=0.5)
        known = (
            "number, state, query, analyst, text, mechanisms, answer, amount, delta, spent, spent_delta, own, own_delta, "
            "total, total_delta"
        )
        entries.append(rows(path, known))
        with sqlite3.connect(path) as connection_:
            names = [row[1] for row in connection_.execute("PRAGMA table_info(entry)")]
            assert {row[0] for row in connection_.execute("SELECT name FROM sqlite_master WHERE type = 'table'")} == {
                "entry"
            }
        assert set(names) - {"run", "at", "hash"} == set(known.split(", "))
        for query, at in rows(path, "run, at"):
            assert re.fullmatch(r"2-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}-\d+@.*", query)
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", at)
    assert len(entries[0]) == 2
    assert entries[0] == entries[1]


# --- files that are no good -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory, plan: Plan) -> Path:
    """A ledger of many pages."""
    path = tmp_path_factory.mktemp("used") / "shop.ledger"
    ledger = opened(path, 100.0)
    for _ in range(25):
        ledger.settle(ledger.reserve(plan, COUNT, ""))
    return path


def copied(path: Path, target: Path) -> Path:
    """A ledger and its head, in another place."""
    for suffix in ("", ".head"):
        shutil.copy(f"{path}{suffix}", f"{target}{suffix}")
    return target


def random_bytes(path: Path) -> None:
    path.write_bytes(random.Random(1).randbytes(20_000))


def nothing(path: Path) -> None:
    path.write_bytes(b"")


def zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def last_page(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-4096])


def another_database(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE entry (number INTEGER)")


def no_table(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE entry")


def no_rows(path: Path) -> None:
    tampered(path, "DELETE FROM entry")


def tampered(path: Path, *changes: str) -> None:
    """What somebody does who can write the file, and knows SQLite but not the chain."""
    with sqlite3.connect(path) as connection:
        for trigger, sql in connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {trigger}")
            changes += (sql,)
        for change in changes:
            connection.execute(change)


def not_a_number(path: Path) -> None:
    tampered(path, "UPDATE entry SET spent = 'x', own = 'x', total = 'x'")


def no_head(path: Path) -> None:
    head.beside(path).unlink()


def empty_head(path: Path) -> None:
    head.beside(path).write_bytes(b"")


def other_head(path: Path) -> None:
    head.beside(path).write_text("something else")


def last_row_changed(path: Path) -> None:
    tampered(path, "UPDATE entry SET spent = '0' WHERE number = (SELECT max(number) FROM entry)")


def last_answer_changed(path: Path) -> None:
    tampered(path, "UPDATE entry SET answer = 'x' WHERE number = (SELECT max(number) FROM entry)")


@pytest.mark.parametrize(
    "damage",
    [
        random_bytes, nothing, zeros, half, last_page, another_database, no_table, no_rows, not_a_number, no_head, empty_head,
        other_head, last_row_changed, last_answer_changed,
    ],
)  # fmt: skip
def test_a_damaged_ledger_is_refused(path: Path, used: Path, plan: Plan, damage: Callable[[Path], None]) -> None:
    copied(used, path)
    ledger = opened(path, 100.0)
    damage(path)
    before = path.read_bytes()
    for use in (lambda: opened(path, 100.0), lambda: ledger.reserve(plan, COUNT, ""), ledger.balance):
        with pytest.raises(dpsql.Refused) as caught:  # one that was open already notices as well
            use()
        assert caught.value.code == "ledger_corrupt"
    assert path.read_bytes() == before


def test_an_older_copy_is_refused(path: Path, plan: Plan, tmp_path: Path) -> None:
    """Put back while the ledger is open, after one more charge and after one more answer; the newest one is accepted."""
    ledger = opened(path)
    run, older = ledger.reserve(plan, COUNT, ""), tmp_path / "older"
    shutil.copy(path, older)
    ledger.settle(run)
    for more in (lambda: None, lambda: ledger.reserve(plan, COUNT, "")):
        more()
        newest = path.read_bytes()
        path.write_bytes(older.read_bytes())
        for use in (lambda: opened(path), lambda: ledger.reserve(plan, COUNT, "")):
            with pytest.raises(dpsql.Refused) as caught:
                use()
            assert caught.value.code == "ledger_rolled_back"
        path.write_bytes(newest)
        assert opened(path).balance().left.amount > 0


def test_another_ledger_of_the_same_dataset_is_refused(path: Path, plan: Plan, tmp_path: Path) -> None:
    """As long or longer, but with another past."""
    other = tmp_path / "other.ledger"
    for file, queries in ((path, 2), (other, 3)):
        for _ in range(queries):
            opened(file).reserve(plan, COUNT, "")
    os.replace(other, path)
    assert refusal(path, plan) == "ledger_rolled_back"


def test_a_ledger_that_is_ahead_of_its_head_goes_on(path: Path, plan: Plan) -> None:
    """As after a crash between the charge and its head: the charge stands, and the head follows."""
    ledger = opened(path)
    before = head.read(head.beside(path))
    assert before is not None and before[0] == 1
    ledger.reserve(plan, COUNT, "")
    ledger.reserve(plan, COUNT, "")
    head.beside(path).write_bytes(b"dpsql head %020d %s\n" % (before[0], before[1].encode()))
    assert opened(path).balance().spent.amount == 2 * TENTH
    opened(path).reserve(plan, COUNT, "")
    found = head.read(head.beside(path))
    assert found is not None and found == (4, rows(path, "hash")[-1][0])


def test_a_new_ledger_without_a_head_gets_one(path: Path, plan: Plan) -> None:
    """As after a crash while the ledger was made: nothing had been charged."""
    opened(path)
    head.beside(path).unlink()
    opened(path).reserve(plan, COUNT, "")
    assert head.beside(path).exists() and check_totals(path) == TENTH


def test_another_may_be_first_to_make_the_head_and_to_charge(
    path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two looks of a process at a new ledger: its head is there then, and nothing was lost."""
    opened(path)
    head.beside(path).unlink()
    read, charged = head.read, list[str]()

    def slowly(file: Path) -> head.Head | None:
        found = read(file)
        if found is None and not charged:
            charged.append("now")  # whoever asks within comes to read on its own
            opened(path).reserve(plan, COUNT, "")
        return found

    monkeypatch.setattr(head, "read", slowly)
    opened(path).reserve(plan, COUNT, "")
    assert charged and check_totals(path) == 2 * TENTH


def test_another_may_make_ledger_and_head_at_once(path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    beside = head.beside

    def slowly(ledger: Path) -> Path:
        monkeypatch.undo()
        opened(path).reserve(plan, COUNT, "")
        return beside(ledger)

    monkeypatch.setattr(head, "beside", slowly)
    opened(path).reserve(plan, COUNT, "")
    assert check_totals(path) == 2 * TENTH


def test_a_head_without_a_ledger_is_refused(path: Path, plan: Plan) -> None:
    """A ledger that was deleted is not started anew, also by one who connects later."""
    opened(path).reserve(plan, COUNT, "")
    path.unlink()
    assert refusal(path, plan) == "ledger_corrupt"
    assert not path.exists()


def test_a_head_that_is_locked_is_refused(path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = opened(path)
    monkeypatch.setattr(head, "WAIT", 0.1)
    with head.opened(head.beside(path), os.O_RDONLY, fcntl.LOCK_EX), pytest.raises(dpsql.Refused) as caught:
        ledger.reserve(plan, COUNT, "")
    assert caught.value.code == "ledger_locked" and rows(path) == []
    ledger.reserve(plan, COUNT, "")


# --- one query, asked twice -------------------------------------------------------------------------------------------

GROUPED = "SELECT person % 3, count(*), sum(spend) FROM visits GROUP BY person % 3"


def test_a_query_with_an_id_is_charged_once(path: Path) -> None:
    """Asked again it has the same bytes, also from another session; other queries under its id are refused."""
    policy = declare(100.0, budget={"epsilon": 100.0, "delta": 1e-6})
    with shop(900) as connection:
        answers = []
        for _ in range(2):
            with dpsql.connect(connection, policy=policy, ledger=path) as db:
                answers += [db.sql(GROUPED, epsilon=10.0, query_id="q"), db.sql(COUNT, epsilon=1.0, query_id="é ' 1")]
                spent = db.budget.spent.amount
        assert [list(a) for a in answers[:2]] == [list(a) for a in answers[2:]] and len(answers[0]) == 3
        for first, again in zip(answers[:2], answers[2:], strict=True):
            assert (first.types, first.errors, first.loss, first.notes) == (
                again.types,
                again.errors,
                again.loss,
                again.notes,
            )
        assert spent == answers[0].loss.amount + answers[1].loss.amount
        assert [state for state, *_ in rows(path)] == ["reserved", "settled"] * 2
        with dpsql.connect(connection, policy=policy, ledger=path) as db:
            for query, values, epsilon in ((COUNT, None, 1.0), (GROUPED, None, 11.0)):
                with pytest.raises(dpsql.Refused, match="query_differs"):
                    db.sql(query, values, epsilon=epsilon, query_id="q")
            hidden = (
                "SELECT spend, count(*) FROM visits WHERE person < 3 GROUP BY spend"  # of too few persons to be shown
            )
            for _ in range(2):  # no rows are an answer too
                assert db.sql(hidden, epsilon=1.0, query_id="none").fetchall() == []
            older = "SELECT count(*) FROM visits WHERE age > ?"
            db.sql(older, [30], epsilon=1.0, query_id="p")
            with pytest.raises(dpsql.Refused, match="query_differs"):
                db.sql(older, [31], epsilon=1.0, query_id="p")
            for bad in ("", "x" * 201, "\ud800", 5):
                with pytest.raises(dpsql.Refused, match="query_id_invalid"):
                    db.sql(COUNT, epsilon=1.0, query_id=bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("accounting", ["pure", "gdp", "zcdp"])
@pytest.mark.parametrize("neighbours", ["add-remove", "replace"])
def test_a_limit_that_is_chosen_first(path: Path, accounting: str, neighbours: str) -> None:
    """The charge is made before the choice, what was drawn stands beside the answer, and the answer can be had again."""
    budget = {"epsilon": 100.0, "delta": 1e-6, "accounting": accounting, "neighbours": neighbours}
    policy = declare(budget=budget, tables={"visits": {"person": "person"}})
    query = "SELECT person % 3, count(*), sum(spend) FROM visits GROUP BY person % 3"
    with shop(9000) as connection, dpsql.connect(connection, policy=policy, ledger=path) as db:
        plan = db.explain(query, epsilon=20.0).plan
        assert (
            plan.release.ladder is not None
            and plan.sampled.count(plan.release.ladder) == len(plan.release.unknowns) > 0
        )
        first, again = (db.sql(query, epsilon=20.0, query_id="q") for _ in range(2))
        assert list(first) == list(again) and first.errors == again.errors and len(first) == 3
        assert abs(first.fetchall()[0][1] - 3000) < 300
        assert db._ledger.balance().spent == plan.charge
    reserved, settled = ([one["mechanism"] for one in json.loads(m)] for (m,) in rows(path, "mechanisms"))
    assert {"ladder", "later"} == set(reserved) and "later" not in settled
    assert ("approximate" if accounting == "pure" else "threshold") in settled
    verify(path)
    assert recorded(path).spent(4).delta > recorded(path).spent().delta > 0


def test_a_query_that_has_no_answer_is_not_run_again(path: Path, plan: Plan) -> None:
    """It may still be running, or its answer may have left: what could be a second answer is not free."""
    ledger = opened(path)
    ledger.reserve(plan, COUNT, "", "q")
    assert ledger.answered("q", plan, COUNT, "") is None
    with pytest.raises(dpsql.Refused) as caught:
        ledger.reserve(plan, COUNT, "", "q")
    assert caught.value.code == "query_unfinished" and check_totals(path) == TENTH
    with pytest.raises(dpsql.Refused, match="query_differs"):
        ledger.answered("q", plan, COUNT, "eve")
    assert ledger.answered("r", plan, COUNT, "") is None


def test_what_was_never_reserved_is_not_settled(path: Path, plan: Plan) -> None:
    ledger = opened(path)
    run = ledger.reserve(plan, COUNT, "")
    ledger.settle(run)
    for wrong in (run, Charged("x"), Charged("2-x"), Charged("")):
        with pytest.raises(dpsql.Refused):
            ledger.settle(wrong)
    assert len(rows(path)) == 2


# --- the owner's rows -------------------------------------------------------------------------------------------------


def test_a_budget_is_raised_by_a_row(path: Path, plan: Plan) -> None:
    ledger = opened(path)
    for _ in range(10):
        ledger.reserve(plan, COUNT, "")
    larger = read_policy(declare(1.2))
    with pytest.raises(dpsql.Refused, match="ledger_differs"):
        Ledger(path, "shop", larger)
    raise_budget(path, larger, "olga")
    with pytest.raises(dpsql.Refused, match="ledger_differs"):  # an open session with the old policy too
        ledger.reserve(plan, COUNT, "")
    again = Ledger(path, "shop", larger)
    for _ in range(2):
        again.reserve(plan, COUNT, "")
    with pytest.raises(dpsql.BudgetExhausted):
        again.reserve(plan, COUNT, "")
    assert [(state, analyst) for state, _, analyst, *_ in rows(path)][9:11] == [("reserved", ""), ("raised", "olga")]
    assert check_totals(path) == 12 * TENTH


@pytest.mark.parametrize(
    "budget",
    [
        {"epsilon": 2.0, "delta": 1e-6},  # as it is
        {"epsilon": 1.0, "delta": 1e-6},
        {"epsilon": 3.0, "delta": 1e-7},
        {"epsilon": 3.0, "delta": 1e-6, "accounting": "zcdp"},
        {"epsilon": 3.0, "delta": 1e-6, "neighbours": "replace"},
    ],
)
def test_a_budget_only_grows(path: Path, budget: dict[str, Any]) -> None:
    Ledger(path, "shop", read_policy(declare(budget={"epsilon": 2.0, "delta": 1e-6})))
    with pytest.raises(dpsql.Refused, match="nothing_to_raise" if budget["epsilon"] == 2.0 else "ledger_differs"):
        raise_budget(path, read_policy(declare(budget=budget)), "")
    assert rows(path) == []


def test_a_budget_is_raised_by_an_owner_only(path: Path) -> None:
    analysts = {"ana": {"epsilon": 0.3}, "vic": {"role": "viewer"}, "olga": {"role": "owner"}}
    opened(path, analysts=analysts)
    larger = read_policy(declare(2.0, analysts=analysts))
    for name in ("ana", "vic", "eve", ""):
        with pytest.raises(dpsql.Refused, match="role_may_not"):
            raise_budget(path, larger, name)
    raise_budget(path, larger, "olga")
    with pytest.raises(dpsql.Refused, match="ledger_missing"):  # what is not there is not made
        raise_budget(path.with_name("x.ledger"), larger, "olga")
    assert not path.with_name("x.ledger").exists()


def test_the_largest_query_is_checked_with_the_charge(path: Path) -> None:
    """Of the policy and of the analyst, whichever is less; also where the session was not asked."""
    analysts = {"ana": {"epsilon": 0.9, "max_epsilon": 0.2}, "bob": {"epsilon": 0.9}}
    ledger = opened(path, analysts=analysts, defaults={"max_epsilon": 0.4})
    for name, fits, not_ in (("ana", 0.2, 0.21), ("bob", 0.4, 0.41)):
        ledger.reserve(compiled(epsilon=fits), COUNT, name)
        with pytest.raises(dpsql.Refused, match="epsilon_too_large"):
            ledger.reserve(compiled(epsilon=not_), COUNT, name)
    assert len(rows(path)) == 2


def test_a_ledger_of_another_version_is_refused(path: Path, plan: Plan) -> None:
    opened(path)
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    assert refusal(path, plan) == "ledger_version"


def test_a_ledger_that_vanishes_is_not_started_anew(path: Path, plan: Plan) -> None:
    ledger = opened(path)
    ledger.reserve(plan, COUNT, "")
    path.unlink()
    with pytest.raises(dpsql.Refused) as caught:
        ledger.reserve(plan, COUNT, "")
    assert caught.value.code == "ledger_corrupt"
    assert not path.exists()


@pytest.mark.parametrize(
    "name", ["missing/x.ledger", "file/x.ledger", "directory", "x" * 240, "x" * 300, "/proc/x.ledger"]
)
def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path, plan: Plan, name: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "directory").mkdir()
    assert refusal(tmp_path / name, plan) == "ledger_unavailable"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["directory", "file"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere; /proc above stands in for it")
def test_a_read_only_directory_is_refused(tmp_path: Path, plan: Plan) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    assert refusal(tmp_path / "locked" / "x.ledger", plan) == "ledger_unavailable"


LOOKS = """
import json, os, sys
import dpsql
import dpsql.session
if os.geteuid() == 0:
    os.setegid(65534), os.seteuid(65534)  # root may write everywhere
db = dpsql.connect("shop.duckdb", policy="shop.policy.toml")
explained = str(db.explain("SELECT count(*) FROM visits", epsilon=0.1))
rehearsed = db.rehearse("SELECT count(*) FROM visits", epsilon=0.1).fetchall()
try:
    db.sql("SELECT count(*) FROM visits", epsilon=0.1)
    code = ""
except dpsql.Refused as error:
    code = error.code
from pathlib import Path
from dpsql.policy.catalog import read_policy
from dpsql.prepare import prepare
try:
    prepare(Path("shop.duckdb"), read_policy("shop.policy.toml"))
except dpsql.Refused as error:
    assert error.code == "cannot_prepare" and error.hint, error
print(json.dumps([db.budget.spent.epsilon, db.budget.left.epsilon, "cost" in explained, len(rehearsed), code]))
"""


def test_what_charges_nothing_needs_no_place_to_write() -> None:
    """explain, rehearse and budget work in a directory that cannot be written, with a ledger and without one."""
    with TemporaryDirectory() as folder:
        place = Path(folder)
        with duckdb.connect(str(place / "shop.duckdb")) as connection:
            connection.execute("CREATE TABLE visits AS SELECT 1 AS person, 7 AS spend, 40 AS age")
        (place / "shop.policy.toml").write_text(
            "[budget]\nepsilon = 1.0\n[tables.visits]\nperson = 'person'\nmax_rows_contributed = 1\n"
        )

        def look() -> list[Any]:
            place.chmod(0o555)
            for file in place.iterdir():
                file.chmod(0o444)
            done = subprocess.run([sys.executable, "-c", LOOKS], cwd=place, capture_output=True, text=True)
            place.chmod(0o755)
            for file in place.iterdir():
                file.chmod(0o644)
            assert done.returncode == 0, done.stderr
            found: list[Any] = json.loads(done.stdout)
            return found

        assert look() == [0, 1, True, 1, "ledger_unavailable"]
        assert sorted(file.name for file in place.iterdir()) == ["shop.duckdb", "shop.policy.toml"]
        policy, ledger = place / "shop.policy.toml", place / "shop.ledger"
        Ledger(ledger, "shop.duckdb", read_policy(policy))  # its head is there, and ends at the first row
        assert look() == [0, 1, True, 1, "ledger_unavailable"]
        head.beside(ledger).unlink()  # as after a crash
        assert look() == [0, 1, True, 1, "ledger_unavailable"]
        with dpsql.connect(place / "shop.duckdb", policy=policy) as db:
            db.sql(COUNT, epsilon=0.25)
        assert look() == [0.25, 0.75, True, 1, "ledger_unavailable"]


def test_a_lazy_ledger_is_made_by_the_first_charge(path: Path, plan: Plan) -> None:
    policy = read_policy(declare())
    one, two = (Ledger(path, "shop", policy, lazy=True) for _ in range(2))
    other = Ledger(path, "shop", read_policy(declare(2.0)), lazy=True)
    assert one.balance().left.amount == UNIT and one.last_charge() is None and not path.exists()
    one.reserve(plan, COUNT, "")
    assert path.exists() and head.beside(path).exists()
    assert one.balance().spent.amount == two.balance().spent.amount == TENTH
    two.reserve(plan, COUNT, "")
    assert one.balance().spent.amount == 2 * TENTH
    for use in (other.balance, lambda: other.reserve(plan, COUNT, "")):  # the ledger's own terms win
        with pytest.raises(dpsql.Refused) as caught:
            use()
        assert caught.value.code == "ledger_differs"
    path.unlink()
    head.beside(path).unlink()
    for use in (one.balance, two.balance, lambda: one.reserve(plan, COUNT, "")):  # they have seen it: it is lost
        with pytest.raises(dpsql.Refused) as caught:
            use()
        assert caught.value.code == "ledger_corrupt"
    assert not path.exists()


@pytest.mark.parametrize("name", ["a#b?mode=memory&c.ledger", "100%41.ledger", "50% off.ledger", "é ☃.ledger"])
def test_a_path_with_odd_characters_is_that_path(tmp_path: Path, plan: Plan, name: str) -> None:
    """SQLite is given a URI; its escapes must not lead to another file."""
    neighbour = tmp_path / "100A.ledger"
    opened(neighbour)
    ledger = opened(tmp_path / name)
    ledger.reserve(plan, COUNT, "")
    assert len(rows(tmp_path / name)) == 1
    assert rows(neighbour) == []


# --- several processes ------------------------------------------------------------------------------------------------

# Each process is forked from a fresh one without threads, which has imported what takes long.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["dpsql", "dpsql.history", "duckdb", "hypothesis.stateful", "pytest"])


def ask(path: Path, policy: Policy, analyst: str, attempts: int, go: Any, answers: Connection) -> None:
    """What a process does: wait for the others, then ask again and again, and tell of each answer."""
    plan = compiled()
    go.wait()
    ledger = Ledger(path, "shop", policy)
    for _ in range(attempts):
        try:
            query = ledger.reserve(plan, COUNT, analyst)
            ledger.settle(query)
            answers.send(query.run)
        except dpsql.BudgetExhausted:
            answers.send(None)


def start(path: Path, policy: Policy, analyst: str, attempts: int, go: Any) -> tuple[BaseProcess, Connection]:
    receive, send = FORKS.Pipe(duplex=False)
    process = FORKS.Process(target=ask, args=(path, policy, analyst, attempts, go, send), daemon=True)
    process.start()
    send.close()
    return process, receive


def heard(answers: Connection) -> Iterator[str | None]:
    """All that is left to hear from a process, until it ends or is ended."""
    with suppress(EOFError):
        while True:
            yield answers.recv()


def race(path: Path, policy: Policy, analysts: Sequence[str], attempts: int) -> list[list[str | None]]:
    """What each process was answered; None where the budget was exhausted."""
    go = FORKS.Barrier(len(analysts))
    running = [start(path, policy, analyst, attempts, go) for analyst in analysts]
    with ThreadPoolExecutor(len(running)) as pool:
        results = list(pool.map(lambda each: list(heard(each[1])), running))
    for process, _ in running:
        process.join()
        assert process.exitcode == 0
    return results


def test_processes_race_for_the_budget(path: Path, plan: Plan) -> None:
    """Eight processes ask 96 times for a budget of 40; the ledger does not exist before."""
    results = race(path, read_policy(declare(4.0)), [""] * 8, 12)
    accepted = [query for answers in results for query in answers if query]
    assert [len(answers) for answers in results] == [12] * 8
    assert len(accepted) == len(set(accepted)) == 40
    assert check_totals(path) == 40 * TENTH
    assert {query for state, query, *_ in rows(path) if state == "reserved"} == set(accepted)
    assert len(rows(path)) == 80
    assert sorted(file.name for file in path.parent.iterdir()) == [path.name, f"{path.name}.head"]


def test_processes_race_for_an_allocation(path: Path, plan: Plan) -> None:
    policy = read_policy(declare(10.0, analysts={"ana": {"epsilon": 1.2}, "bob": {"epsilon": 9.0}}))
    results = race(path, policy, ["ana", "bob", "ana", "bob", "ana"], 8)
    assert sum(query is not None for answers in results[0::2] for query in answers) == 12
    assert sum(query is not None for answers in results[1::2] for query in answers) == 16
    assert check_totals(path) == 28 * TENTH


def test_processes_that_create_the_ledger_at_once_share_it(path: Path, plan: Plan) -> None:
    results = race(path, read_policy(declare()), [""] * 6, 1)
    assert {query for (query,) in results} == {query for _, query, *_ in rows(path)}
    assert check_totals(path) == 6 * TENTH
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM entry WHERE state = 'opened'").fetchone() == (1,)


@pytest.mark.parametrize("kills", [16, pytest.param(1000, marks=pytest.mark.long)])
def test_killed_processes_lose_no_charge(
    path: Path, plan: Plan, kills: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Six processes at a time, one of them killed at a random moment: each answer has its charge, each charge stays."""
    chance, go = random.Random(kills), FORKS.Barrier(1)
    policy = read_policy(declare(1e9, defaults={"max_failures": 10**6}))
    answered: set[str | None] = set()
    reserved: set[str] = set()
    Ledger(path, "shop", policy)
    running = [start(path, policy, "", 10**6, go) for _ in range(6)]
    for number in range(kills):
        ready = wait(
            [answers for _, answers in running], 30
        )  # at work: killed while it imports, it would prove nothing
        victim, answers = running.pop(chance.choice([i for i, (_, answers) in enumerate(running) if answers in ready]))
        time.sleep(chance.uniform(0, 0.05))
        victim.kill()
        victim.join()
        assert victim.exitcode == -signal.SIGKILL
        answered.update(heard(answers))
        running.append(start(path, policy, "", 10**6, go))
        if number % 100 == 15:
            now = charged(path)
            assert reserved <= now, "a charge was lost"
            reserved = now
    for victim, answers in running:
        victim.kill()
        victim.join()
        answered.update(heard(answers))
    now = charged(path)
    assert reserved <= now and answered and answered <= now
    assert check_totals(path) == opened(path, 1e9).balance().spent.amount == len(now) * TENTH
    verify(path)
    with capsys.disabled():
        print(f"\n{kills} kills over 6 processes: {len(now)} charges, {len(answered)} answers; 0 uncharged, 0 lost")


def charged(path: Path) -> set[str]:
    return {query for state, query, *_ in rows(path) if state == "reserved"}


def test_a_lock_that_is_held_is_refused(path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait is shortened; the lock and its holder are real."""
    ledger, connect = opened(path), sqlite3.connect
    code = "import sqlite3, sys; db = sqlite3.connect(sys.argv[1]); db.execute('BEGIN EXCLUSIVE'); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"\n"
        monkeypatch.setattr(sqlite3, "connect", lambda *args, **kw: connect(*args, **kw | {"timeout": 0.1}))
        with pytest.raises(dpsql.Refused) as caught:
            ledger.reserve(plan, COUNT, "")
        assert caught.value.code == "ledger_locked"
        assert refusal(path, plan) == "ledger_locked"
        holder.communicate(b"\n")
    ledger.reserve(plan, COUNT, "")
    assert len(rows(path)) == 1


# --- against a model --------------------------------------------------------------------------------------------------

SIZES = (0.07, 0.1, 0.25)
of_size = cache(lambda size: compiled(epsilon=size))


class Model(RuleBasedStateMachine):
    """Any order of charges, answers, retries, raises, restarts, crashes and old copies, beside a few integers."""

    @initialize()
    def open(self) -> None:
        self.directory = TemporaryDirectory()
        self.path = Path(self.directory.name) / "shop.ledger"
        self.budget, self.spent, self.own = 1.0, 0, {"ana": 0, "bob": 0}
        self.runs: dict[str, tuple[str, float, bool]] = {}
        self.names: dict[str, str] = {}
        self.older: list[tuple[bytes, bytes]] = []
        self.reopen()

    @rule()
    def reopen(self) -> None:
        analysts = {"ana": {"epsilon": 0.4, "max_epsilon": 0.2}, "bob": {"epsilon": 0.8}}
        self.policy = read_policy(declare(self.budget, analysts=analysts | {"olga": {"role": "owner"}}))
        self.ledger = Ledger(self.path, "shop", self.policy)

    @rule(
        analyst=st.sampled_from(["ana", "bob"]),
        size=st.sampled_from(SIZES),
        name=st.sampled_from([None, "a", "b", "c"]),
    )
    def reserve(self, analyst: str, size: float, name: str | None) -> None:
        amount = of_size(size).charge.amount
        largest, share = {"ana": (0.2, 4 * TENTH), "bob": (1.0, 8 * TENTH)}[analyst]
        expected: str | None = None
        if size > largest:
            expected = "epsilon_too_large"
        elif name in self.names:
            expected = "query_unfinished"
        elif self.spent + amount > round(self.budget * 10) * TENTH or self.own[analyst] + amount > share:
            expected = "budget_exhausted"
        try:
            run = self.ledger.reserve(of_size(size), COUNT, analyst, name).run
        except dpsql.Error as error:
            assert error.code == expected
        else:
            assert expected is None and run not in self.runs
            self.spent, self.own[analyst] = self.spent + amount, self.own[analyst] + amount
            self.runs[run] = analyst, size, False
            if name:
                self.names[name] = run

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        run = data.draw(st.sampled_from(sorted(self.runs)))
        analyst, size, settled = self.runs[run]
        for name in (name for name, named in self.names.items() if named == run):
            assert self.ledger.answered(name, of_size(size), COUNT, analyst) == (f"answer {run}" if settled else None)
        if settled:
            with pytest.raises(dpsql.Refused):
                self.ledger.settle(Charged(run))
        else:
            self.ledger.settle(Charged(run), f"answer {run}")
            self.runs[run] = analyst, size, True

    @precondition(lambda self: self.budget < 2)
    @rule()
    def raise_(self) -> None:
        self.budget = round(self.budget + 0.3, 1)
        with pytest.raises(dpsql.Refused, match="ledger_differs"):
            self.reopen()
        raise_budget(self.path, self.policy, "olga")
        self.reopen()

    @rule()
    def copy(self) -> None:
        self.older.append((self.path.read_bytes(), head.beside(self.path).read_bytes()))

    @precondition(lambda self: self.older)
    @rule(data=st.data())
    def put_an_older_copy_back(self, data: st.DataObject) -> None:
        ledger, anchor = data.draw(st.sampled_from(self.older))
        newest = self.path.read_bytes()
        self.path.write_bytes(ledger)
        if anchor != head.beside(self.path).read_bytes():
            with pytest.raises(dpsql.Refused, match="ledger_rolled_back"):
                self.ledger.reserve(of_size(0.07), COUNT, "bob")
        self.path.write_bytes(newest)

    @precondition(lambda self: self.older)
    @rule(data=st.data())
    def crash_before_the_head(self, data: st.DataObject) -> None:
        """The head is behind: what the ledger holds stands."""
        head.beside(self.path).write_bytes(data.draw(st.sampled_from(self.older))[1])
        self.reopen()

    @invariant()
    def agrees(self) -> None:
        if hasattr(self, "ledger"):
            whole = self.ledger.balance()
            assert (whole.spent.amount, whole.total.amount) == (self.spent, round(self.budget * 10) * TENTH)
            assert all(self.ledger.balance(name).spent.amount == own for name, own in self.own.items())

    def teardown(self) -> None:
        if hasattr(self, "ledger"):
            verify(self.path)
            assert {(r.run, r.state == "settled") for r in recorded(self.path).runs} == {
                (run, settled) for run, (_, _, settled) in self.runs.items()
            }
            self.directory.cleanup()


FEW = settings(
    max_examples=12,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
TestModel = Model.TestCase
TestModel.settings = FEW


@pytest.mark.long
def test_model_at_length() -> None:
    run_state_machine_as_test(Model, settings=settings(FEW, max_examples=400, stateful_step_count=60))


FULL = """
import pickle, resource, sys
import dpsql
from dpsql.ledger import Charged, Ledger
from test_ledger import compiled
plan, policy = compiled(), pickle.load(open(sys.argv[1], "rb"))
ledger = Ledger(sys.argv[2], "shop", policy)
ledger.reserve(plan, "SELECT count(*) FROM visits", "")
resource.setrlimit(resource.RLIMIT_FSIZE, (32768, 32768))
accepted = 1
try:
    while True:
        ledger.reserve(plan, "SELECT count(*) FROM visits", "")
        accepted += 1
except dpsql.Refused as refused:
    print(refused.code, accepted)
"""


def test_a_full_disk_is_refused(path: Path, plan: Plan) -> None:
    """A limit on the size of files stands for the disk's end: what could not be written was not accepted."""
    order = path.with_suffix(".order")
    order.write_bytes(pickle.dumps(read_policy(declare(1e6, defaults={"max_failures": 10**6}))))
    run = [sys.executable, "-c", FULL, str(order), str(path)]
    ended = subprocess.run(run, capture_output=True, text=True, cwd=Path(__file__).parent)
    code, accepted = ended.stdout.split()
    assert (ended.stderr.count("\n"), code) == (1, "ledger_unavailable") and "a new ledger begins" in ended.stderr
    assert 1 < int(accepted) == len(rows(path))
    assert check_totals(path) == int(accepted) * TENTH
    opened(path, 1e6, defaults={"max_failures": 10**6}).reserve(plan, COUNT, "")
