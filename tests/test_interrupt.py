"""Ctrl-C: real signals to real processes that are in the middle of a slow query."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import duckdb
import pytest

import dpsql
from dpsql.interrupt import interruptible

POLICY = """
[dataset]
id = "slow"
[budget]
epsilon = 3.0
[defaults]
epsilon = 0.5
max_rows_contributed = 1
[tables.people]
person = "id"
[tables.visits]
person = { column = "person", references = "people.id" }
[tables.numbers]
public = true
"""
# One person who stands 500,000 times in both tables: 250 thousand million rows.
SLOW = "SELECT count(*) FROM visits JOIN people ON visits.person = people.id WHERE i + j <> 7"
# Persons are counted at once, and what is computed from that takes as long.
FINISHED_SLOWLY = (
    "SELECT count(*) FROM (SELECT count(*) AS n FROM people), numbers AS a, numbers AS b WHERE a.i + b.i > n"
)
FAST = "SELECT count(*) FROM people"
SCRIPT = f"""
import dpsql
db = dpsql.connect("slow.duckdb", policy="slow.policy.toml")
try:
    db.sql({SLOW!r})
except KeyboardInterrupt as error:
    print(type(error).__name__, error, error.__cause__, error.__context__)
print(len(db.sql({FAST!r})), db.budget.spent.epsilon)
"""


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    with duckdb.connect(str(tmp_path / "slow.duckdb")) as connection:
        connection.execute("CREATE TABLE visits AS SELECT 1 AS person, (i % 1000)::INT AS i FROM range(500_000) t(i)")
        connection.execute("CREATE TABLE people AS SELECT person AS id, i AS j FROM visits")
        connection.execute("CREATE TABLE numbers AS SELECT i FROM range(500_000) t(i)")
    (tmp_path / "slow.policy.toml").write_text(POLICY)
    return tmp_path


def entries(directory: Path) -> list[tuple[str, str]]:
    ledger = directory / "slow.ledger"
    if not ledger.exists():
        return []
    with sqlite3.connect(f"file:{ledger}?mode=ro", uri=True) as db:
        return db.execute(
            "SELECT state, text FROM entry WHERE state IN ('reserved', 'settled') ORDER BY number"
        ).fetchall()


def interrupt(directory: Path, *arguments: str, times: int = 1) -> tuple[int, str, str, float]:
    """Start a process, send SIGINT once its query has been charged and runs; its end, and how long that took."""
    process = subprocess.Popen(
        [sys.executable, *arguments], cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not entries(directory) and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.5)
    assert process.poll() is None, "the query should still be running"
    start = time.monotonic()
    for _ in range(times):
        process.send_signal(signal.SIGINT)
        time.sleep(0.03)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err, time.monotonic() - start


def test_the_session_goes_on(slow: Path) -> None:
    code, out, err, took = interrupt(slow, "-c", SCRIPT)
    assert code == 0, err
    assert out.splitlines() == ["Interrupted the query was interrupted; its charge stands None None", "1 1.0"]
    assert took < 10
    assert entries(slow) == [("reserved", SLOW), ("reserved", FAST), ("settled", "")]


def test_the_finishing_query_is_interrupted_too(slow: Path) -> None:
    """It runs in the main thread, where DuckDB makes an error of its own of Ctrl-C."""
    code, out, err, took = interrupt(slow, "-c", SCRIPT.replace(SLOW, FINISHED_SLOWLY))
    assert code == 0, err
    assert out.splitlines() == ["Interrupted the query was interrupted; its charge stands None None", "1 1.0"]
    assert took < 10
    assert entries(slow) == [("reserved", FINISHED_SLOWLY), ("reserved", FAST), ("settled", "")]


def test_impatience_changes_nothing(slow: Path) -> None:
    """Ctrl-C five times: no engine error comes out, and nothing but the charge is left."""
    code, out, err, took = interrupt(slow, "-m", "dpsql", "sql", "slow.duckdb", SLOW, times=5)
    assert code in (130, -signal.SIGINT), err  # the last one may come when the interpreter is on its way out
    assert out == "" and took < 10 and "Error" not in err, err
    assert entries(slow) == [("reserved", SLOW)]


def test_the_command_line_says_that_the_charge_stands(slow: Path) -> None:
    code, out, err, took = interrupt(slow, "-m", "dpsql", "sql", "slow.duckdb", SLOW)
    assert (code, out) == (130, "")
    assert err.splitlines()[1:] == [
        "interrupted: the query was interrupted; its charge stands"
    ]  # behind the new ledger
    assert took < 10
    assert entries(slow) == [("reserved", SLOW)]


def test_an_interrupt_before_the_query_begins_is_not_lost(request: pytest.FixtureRequest) -> None:
    """`stop` is called until the work ends."""
    calls: list[int] = []
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have had it ignored
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))

    def work() -> None:
        signal.raise_signal(signal.SIGINT)  # the flag is set, and the main thread sees it
        while len(calls) < 3:
            time.sleep(0.001)

    with pytest.raises(KeyboardInterrupt):
        interruptible(work, lambda: calls.append(1))
    assert len(calls) >= 3


def test_an_interrupt_while_it_looks_whether_the_work_has_ended(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that is at work is not among those that wait for some."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    looks: list[int] = []
    ended = threading.Event()

    class Impatient(threading.Event):
        def is_set(self) -> bool:
            looks.append(1)
            if len(looks) == 2 and threading.current_thread() is threading.main_thread():
                raise KeyboardInterrupt
            return super().is_set()

    def work() -> None:
        signal.raise_signal(signal.SIGINT)
        while len(looks) < 5:
            time.sleep(0.001)
        ended.set()

    monkeypatch.setattr("dpsql.interrupt._idle", idle := [])
    monkeypatch.setattr("dpsql.interrupt.threading.Event", Impatient)
    with pytest.raises(KeyboardInterrupt):
        interruptible(work, lambda: None)
    assert ended.is_set() and len(looks) >= 5 and len(idle) == 1


def test_a_thread_at_work_is_not_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where the waiting itself has failed."""

    def fail() -> None:
        raise RuntimeError

    monkeypatch.setattr("dpsql.interrupt._idle", idle := [])
    end = threading.Event()
    with pytest.raises(RuntimeError):
        interruptible(end.wait, lambda: None, fail)
    assert not idle
    end.set()


def test_work_that_fails_gives_nothing() -> None:
    assert interruptible(lambda: 1 // 0, lambda: None) is None
    assert interruptible(lambda: 42, lambda: None) == 42


def test_threads_are_kept_and_not_shared() -> None:
    """One that waits is used again; who finds none gets a new one, and so does a child process."""

    def inside() -> list[int | None]:
        return [threading.get_ident(), interruptible(threading.get_ident, lambda: None)]

    first = interruptible(threading.get_ident, lambda: None)
    assert interruptible(threading.get_ident, lambda: None) == first
    found = interruptible(inside, lambda: None)
    assert found is not None and found[0] == first and found[1] not in (None, first)
    child = os.fork()
    if child == 0:
        os._exit(0 if interruptible(lambda: 42, lambda: None) == 42 else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_an_interrupt_is_no_error_of_dpsql() -> None:
    """A loop that goes on after a refusal or a failure ends with Ctrl-C."""
    assert not issubclass(dpsql.errors.Interrupted, Exception)
