"""The ledger, in real SQLite files, with real processes that race and are killed."""

import json
import multiprocessing
import os
import pickle
import random
import re
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
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import duckdb
import pytest

import dpsql
from dpsql.accountant import UNIT, Charge, units
from dpsql.catalog import Policy, read_policy
from dpsql.ledger import VERSION, Ledger
from dpsql.plan import Plan

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


def compiled(query: str = COUNT, epsilon: float = 0.1, **policy: Any) -> Plan:
    with shop() as connection, dpsql.connect(connection, policy=declare(**policy), ledger=":memory:") as db:
        return db._plan(query, epsilon, None)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return compiled()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.ledger"


def opened(path: Path, epsilon: float = 1.0, **more: Any) -> Ledger:
    return Ledger(path, "shop", read_policy(declare(epsilon, **more)))


def rows(path: Path, columns: str = "state, query, analyst, amount, spent, own") -> list[tuple[Any, ...]]:
    with sqlite3.connect(path) as connection:
        return connection.execute(f"SELECT {columns} FROM entry ORDER BY number").fetchall()


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
    opened(path).settle(first, COUNT, "")
    assert opened(path).balance().spent == Charge("epsilon", 2 * TENTH)
    assert opened(path).balance().left == Charge("epsilon", UNIT - 2 * TENTH)
    assert [(state, query) for state, query, *_ in rows(path)] == [
        ("reserved", first),
        ("reserved", second),
        ("settled", first),
    ]
    assert check_totals(path) == 2 * TENTH
    assert [file.name for file in path.parent.iterdir()] == [path.name]


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


def test_delta_is_a_budget_too(path: Path, plan: Plan) -> None:
    budget = {"epsilon": 1.0, "delta": 1e-6, "accounting": "pure"}
    ledger = Ledger(path, "shop", read_policy(declare(budget=budget)))
    costly = replace(plan, charge=Charge("epsilon", 1, 6 * UNIT // 10**7))
    ledger.reserve(costly, COUNT, "")
    with pytest.raises(dpsql.BudgetExhausted):
        ledger.reserve(costly, COUNT, "")
    assert ledger.balance().spent == Charge("epsilon", 1, 6 * UNIT // 10**7)


def test_settling_gives_nothing_back(path: Path, plan: Plan) -> None:
    ledger = opened(path)
    query = ledger.reserve(plan, COUNT, "")
    charged = ledger.balance()
    ledger.settle(query, COUNT, "")
    assert ledger.balance() == charged
    assert rows(path, "state, amount, delta, spent") == [
        ("reserved", str(TENTH), "0", str(TENTH)),
        ("settled", "0", "0", str(TENTH)),
    ]


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE entry SET amount = '0'",
        "UPDATE account SET amount = '9'",
        "DELETE FROM entry",
        "DELETE FROM account",
        "INSERT OR REPLACE INTO entry SELECT number, state, query, at, analyst, statement, mechanisms, '0', '0', '0', "
        "'0', '0', '0' FROM entry",
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
            ledger.settle(ledger.reserve(plan, COUNT, ""), COUNT, "")
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
    for name, scale, sensitivity in json.loads(mechanisms):
        ratio = Fraction(sensitivity) / Fraction(float.fromhex(scale))
        lost += {"laplace": ratio, "gaussian": ratio**2}[name]
    assert lost > 0
    assert (int(amount), int(spent_delta)) == (units(lost), 0)


def test_a_row_says_nothing_of_the_data(tmp_path: Path) -> None:
    """The ledger of a shop and that of an empty shop are equal, but for the random identity and the time."""
    entries = []
    for size in (0, 4242):
        path = tmp_path / f"{size}.ledger"
        with shop(size) as connection, dpsql.connect(connection, policy=declare(), ledger=path) as db:
            db.sql("SELECT count(*), sum(spend), avg(age) FROM visits WHERE age > 30", epsilon=0.5)
        known = "number, state, analyst, statement, mechanisms, amount, delta, spent, spent_delta, own, own_delta"
        entries.append(rows(path, known))
        with sqlite3.connect(path) as connection_:
            names = [row[1] for row in connection_.execute("PRAGMA table_info(entry)")]
            assert {row[0] for row in connection_.execute("SELECT name FROM sqlite_master WHERE type = 'table'")} == {
                "account",
                "entry",
                "sqlite_sequence",
            }
        assert set(names) - {"query", "at"} == set(known.split(", "))
        for query, at in rows(path, "query, at"):
            assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", query)
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", at)
    assert len(entries[0]) == 2
    assert entries[0] == entries[1]


# --- files that are no good -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory, plan: Plan) -> bytes:
    """A ledger of many pages."""
    path = tmp_path_factory.mktemp("used") / "shop.ledger"
    ledger = opened(path, 100.0)
    for _ in range(50):
        ledger.reserve(plan, COUNT, "")
    return path.read_bytes()


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


def no_account(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE account")


def not_a_number(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(
            "INSERT INTO entry SELECT 1000, state, 'x', at, analyst, statement, mechanisms, amount, delta, 'x', 'x', 'x', 'x' "
            "FROM entry LIMIT 1"
        )


@pytest.mark.parametrize(
    "damage", [random_bytes, nothing, zeros, half, last_page, another_database, no_account, not_a_number]
)
def test_a_damaged_ledger_is_refused(path: Path, used: bytes, plan: Plan, damage: Callable[[Path], None]) -> None:
    path.write_bytes(used)
    ledger = opened(path, 100.0)
    damage(path)
    before = path.read_bytes()
    with pytest.raises(dpsql.Refused) as caught:
        opened(path, 100.0).reserve(plan, COUNT, "")
    assert caught.value.code == "ledger_corrupt"
    with pytest.raises(dpsql.Refused) as caught:  # one that was open already notices as well
        ledger.reserve(plan, COUNT, "")
    assert caught.value.code == "ledger_corrupt"
    assert path.read_bytes() == before


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
FORKS.set_forkserver_preload(["dpsql.ledger", "duckdb", "pytest"])


def ask(path: Path, policy: Policy, plan: Plan, analyst: str, attempts: int, go: Any, answers: Connection) -> None:
    """What a process does: wait for the others, then ask again and again, and tell of each answer."""
    go.wait()
    ledger = Ledger(path, "shop", policy)
    for _ in range(attempts):
        try:
            query = ledger.reserve(plan, COUNT, analyst)
            ledger.settle(query, COUNT, analyst)
            answers.send(query)
        except dpsql.BudgetExhausted:
            answers.send(None)


def start(
    path: Path, policy: Policy, plan: Plan, analyst: str, attempts: int, go: Any
) -> tuple[BaseProcess, Connection]:
    receive, send = FORKS.Pipe(duplex=False)
    process = FORKS.Process(target=ask, args=(path, policy, plan, analyst, attempts, go, send), daemon=True)
    process.start()
    send.close()
    return process, receive


def heard(answers: Connection) -> Iterator[str | None]:
    """All that is left to hear from a process, until it ends or is ended."""
    with suppress(EOFError):
        while True:
            yield answers.recv()


def race(path: Path, policy: Policy, plan: Plan, analysts: Sequence[str], attempts: int) -> list[list[str | None]]:
    """What each process was answered; None where the budget was exhausted."""
    go = FORKS.Barrier(len(analysts))
    running = [start(path, policy, plan, analyst, attempts, go) for analyst in analysts]
    with ThreadPoolExecutor(len(running)) as pool:
        results = list(pool.map(lambda each: list(heard(each[1])), running))
    for process, _ in running:
        process.join()
        assert process.exitcode == 0
    return results


def test_processes_race_for_the_budget(path: Path, plan: Plan) -> None:
    """Eight processes ask 96 times for a budget of 40; the ledger does not exist before."""
    results = race(path, read_policy(declare(4.0)), plan, [""] * 8, 12)
    accepted = [query for answers in results for query in answers if query]
    assert [len(answers) for answers in results] == [12] * 8
    assert len(accepted) == len(set(accepted)) == 40
    assert check_totals(path) == 40 * TENTH
    assert {query for state, query, *_ in rows(path) if state == "reserved"} == set(accepted)
    assert len(rows(path)) == 80
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_processes_race_for_an_allocation(path: Path, plan: Plan) -> None:
    policy = read_policy(declare(10.0, analysts={"ana": {"epsilon": 1.2}, "bob": {"epsilon": 9.0}}))
    results = race(path, policy, plan, ["ana", "bob", "ana", "bob", "ana"], 8)
    assert sum(query is not None for answers in results[0::2] for query in answers) == 12
    assert sum(query is not None for answers in results[1::2] for query in answers) == 16
    assert check_totals(path) == 28 * TENTH


def test_processes_that_create_the_ledger_at_once_share_it(path: Path, plan: Plan) -> None:
    results = race(path, read_policy(declare()), plan, [""] * 6, 1)
    assert {query for (query,) in results} == {query for _, query, *_ in rows(path)}
    assert check_totals(path) == 6 * TENTH
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM account").fetchone() == (1,)


@pytest.mark.parametrize("kills", [16, pytest.param(200, marks=pytest.mark.long)])
def test_killed_processes_lose_no_charge(path: Path, plan: Plan, kills: int) -> None:
    """Two processes at a time, one of them killed at a random moment: each answered query has its charge."""
    chance, policy, go = random.Random(kills), read_policy(declare(1e6)), FORKS.Barrier(1)
    answered: set[str | None] = set()
    running = [start(path, policy, plan, "", 10**6, go)]
    for _ in range(kills):
        running.append(start(path, policy, plan, "", 10**6, go))
        victim, answers = running.pop(0)
        time.sleep(chance.uniform(0.01, 0.15))
        victim.kill()
        victim.join()
        answered.update(heard(answers))
        assert victim.exitcode == -signal.SIGKILL
    running[0][0].kill()
    answered.update(heard(running[0][1]))
    reserved = {query for state, query, *_ in rows(path) if state == "reserved"}
    assert answered  # how many depends on the machine
    assert answered <= reserved
    assert check_totals(path) == opened(path, 1e6).balance().spent.amount == len(reserved) * TENTH


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


FULL = """
import pickle, resource, sys
import dpsql
from dpsql.ledger import Ledger
plan, policy = pickle.load(open(sys.argv[1], "rb"))
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
    order.write_bytes(pickle.dumps((plan, read_policy(declare(1e6)))))
    ended = subprocess.run([sys.executable, "-c", FULL, str(order), str(path)], capture_output=True, text=True)
    code, accepted = ended.stdout.split()
    assert (ended.stderr, code) == ("", "ledger_unavailable")
    assert 1 < int(accepted) == len(rows(path))
    assert check_totals(path) == int(accepted) * TENTH
    opened(path, 1e6).reserve(plan, COUNT, "")
