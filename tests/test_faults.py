"""The k-th open, write or fsync fails, or the process is killed at it, for every k: in real files, below SQLite and Python.

A library that is preloaded (faults.c) stands between the process and the operating system.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import pickle
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import dpsql
from dpsql import head
from dpsql.compiler.program import Plan
from dpsql.history import recorded, verify
from dpsql.ledger import Ledger
from dpsql.policy.catalog import Policy, read_policy
from dpsql.upkeep import raise_budget

SHIM = "DPSQL_TEST_FAULTS"
KINDS, MANNERS = ("open", "write", "fsync"), ("once", "always", "die")
QUERY = "SELECT count(*) FROM visits"


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("shim") / "faults.so"
    source = Path(__file__).parent / "faults.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return library


def inside(shim: Path, task: Callable[..., None], *arguments: object) -> str:
    """Run one of the functions below in a process of its own, with the library in between."""
    environment = os.environ | {"LD_PRELOAD": str(shim), SHIM: str(shim)}
    environment["PYTHONPATH"] = f"{Path(__file__).parent}{os.pathsep}{environment.get('PYTHONPATH', '')}"
    code = f"import pickle, sys, test_faults; test_faults.{task.__name__}(*pickle.load(sys.stdin.buffer))"
    done = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(arguments), env=environment, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


@pytest.fixture(scope="module")
def order() -> tuple[Policy, Policy]:
    from test_ledger import declare

    return read_policy(declare()), read_policy(declare(2.0))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("manner", ["once", *(pytest.param(m, marks=pytest.mark.long) for m in ("always", "die"))])
def test_every_fault(shim: Path, tmp_path: Path, order: tuple[Policy, Policy], kind: str, manner: str) -> None:
    """Making a ledger, reserving, settling and raising: refused or done, never in between, and it goes on afterwards."""
    told = inside(shim, every_fault, str(tmp_path), order, kind, manner)
    points = dict(line.split() for line in told.splitlines())
    least = {"open": (5, 5, 5, 5), "write": (3, 5, 5, 5), "fsync": (3, 4, 3, 4)}[kind]
    for task, wanted in zip(("make", "reserve", "settle", "raise"), least, strict=True):
        assert int(points[task]) >= wanted, told


def every_fault(directory: str, order: tuple[Policy, Policy], kind: str, manner: str) -> None:
    library = ctypes.CDLL(os.environ[SHIM])
    number, how = KINDS.index(kind), MANNERS.index(manner)
    from test_ledger import compiled

    plan, (policy, larger) = compiled(), order
    start = Path(directory) / "start" / "x.ledger"
    start.parent.mkdir()
    first = Ledger(start, "shop", policy)
    before = first.reserve(plan, QUERY, "", "before")
    tasks: dict[str, Callable[[Path], object]] = {
        "make": lambda path: Ledger(path, "shop", policy),
        "reserve": lambda path: Ledger(path, "shop", policy).reserve(plan, QUERY, "", "now"),
        "settle": lambda path: Ledger(path, "shop", policy).settle(before),
        "raise": lambda path: raise_budget(path, larger, ""),
    }
    for name, task in tasks.items():
        for k in itertools.count(1):
            path = Path(directory) / f"{name}-{k}" / "x.ledger"
            path.parent.mkdir()
            if name != "make":
                for suffix in ("", ".head"):
                    shutil.copy(f"{start}{suffix}", f"{path}{suffix}")
            library.fault_watch(str(path.parent).encode())
            fired, done = attempt(library, number, k, how, lambda path=path, task=task: task(path))
            library.fault_watch(b"")
            check(path, name, plan, policy, larger, done, fired)
            shutil.rmtree(path.parent)
            if not fired:
                assert done
                print(name, k - 1)
                break


def attempt(library: ctypes.CDLL, kind: int, k: int, how: int, task: Callable[[], object]) -> tuple[bool, bool]:
    """Whether the fault was met, and whether the task was done all the same."""
    if MANNERS[how] != "die":
        library.fault_arm(kind, k, how)
        try:
            task()
            done = True
        except dpsql.Refused as refused:
            assert refused.code in ("ledger_unavailable", "ledger_corrupt", "ledger_locked"), refused
            done = False
        fired = library.fault_count(kind) >= k
        library.fault_arm(-1, 0, 0)
        return fired, done
    child = os.fork()
    if child == 0:
        library.fault_arm(kind, k, how)
        task()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0 or os.WTERMSIG(status) == signal.SIGKILL
    return status != 0, status == 0


def check(path: Path, task: str, plan: Plan, policy: Policy, larger: Policy, done: bool, fired: bool) -> None:
    """What was done is there; what was charged before is not lost; and the ledger goes on."""
    if task == "make":
        Ledger(path, "shop", policy).reserve(plan, QUERY, "", "before")
    raised = task == "raise" and recorded(path).budgets[-1]["epsilon"] == "2"
    states = {(entry.query, entry.state) for entry in recorded(path).entries}
    assert ("before", "reserved") in states
    assert not done or {"reserve": ("now", "reserved") in states, "settle": ("before", "settled") in states}.get(
        task, raised or task == "make"
    )
    if done and task != "settle":  # the next one finds out, were it taken away
        last = recorded(path).entries[-1]
        assert head.read(head.beside(path)) == (last.number, last.hash)
    ledger = Ledger(path, "shop", larger if raised else policy)
    ledger.settle(ledger.reserve(plan, QUERY, "", "after"))
    assert (
        ledger.balance().spent.amount
        == plan.charge.amount * sum(state == "reserved" for _, state in states) + plan.charge.amount
    )
    verify(path)


def test_fsync_comes_before_the_answer(shim: Path, tmp_path: Path) -> None:
    """A trace of a whole query: the charge and its head are on disk before the answer is written anywhere."""
    lines = [line.split(" ", 1) for line in inside(shim, traced, str(tmp_path)).splitlines()]
    events = [(what, Path(name).name if Path(name) != tmp_path else ".") for what, name in lines]
    answered = events.index(("write", "answer"))
    before = events[:answered]

    def last(event: tuple[str, str], among: list[tuple[str, str]] = before) -> int:
        return len(among) - 1 - among[::-1].index(event)

    # The reserved row: journal, its directory, the ledger, the directory without the journal, the head.
    anchored = before.index(("fsync", "x.ledger.head"))
    charge = before[:anchored]
    journal = last(("fsync", "x.ledger-journal"), charge)
    ledger = last(("fsync", "x.ledger"), charge)
    gone = last(("unlink", "x.ledger-journal"), charge)
    assert journal < last(("write", "x.ledger"), charge) < ledger < gone < last(("fsync", "."), charge)
    assert last(("fsync", "."), charge) < last(("write", "x.ledger.head"), charge) < anchored
    # The settled row: nothing of it that a charge depends on is left in memory.
    assert anchored < last(("write", "x.ledger")) < last(("fsync", "x.ledger")) < last(("unlink", "x.ledger-journal"))
    assert last(("unlink", "x.ledger-journal")) < last(("fsync", ".")) < answered


def traced(directory: str) -> None:
    from test_ledger import declare, shop

    library = ctypes.CDLL(os.environ[SHIM])
    with shop(9) as connection:
        db = dpsql.connect(connection, policy=declare(), ledger=Path(directory) / "x.ledger")
        db.sql(QUERY, epsilon=0.1)  # the first charge makes the file
        library.fault_watch(directory.encode())
        library.fault_trace(1)
        answer = db.sql(QUERY, epsilon=0.1)
        descriptor = os.open(f"{directory}/answer", os.O_WRONLY | os.O_CREAT)
        os.write(descriptor, str(answer.fetchall()).encode())
        library.fault_trace(-1)
