"""What ends without an answer is counted, and what the owner does to a ledger is a row of it."""

from __future__ import annotations

import pickle
import shutil
import socket
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import pytest
from test_frontends import bad, good
from test_ledger import COUNT, compiled, declare, opened, rows, shop

import dpsql
from dpsql import head
from dpsql.compiler.program import Plan
from dpsql.history import recorded, verify
from dpsql.ledger import Ledger, may_run, process
from dpsql.policy.catalog import read_policy
from dpsql.upkeep import backup, recover, reset_failures

SLOW = "SELECT count(*) FROM visits JOIN numbers ON visits.spend < numbers.n"  # 10^5 persons times 10^5 numbers


@pytest.fixture(scope="module")
def plan() -> Plan:
    return compiled()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.ledger"


def slow(path: Path, **defaults: Any) -> dpsql.Session:
    connection = shop(100_000)
    connection.execute("CREATE TABLE numbers AS SELECT range AS n FROM range(100000)")
    policy = declare(1e6, defaults={"max_rows_contributed": 1, "epsilon": 0.5, **defaults})
    policy["tables"] = {**policy["tables"], "numbers": {"public": True}}
    return dpsql.connect(connection, policy=policy, ledger=path)


def test_a_statement_that_takes_too_long_is_ended_and_charged(path: Path) -> None:
    db = slow(path)
    for more in ({"timeout": 0.05}, {"timeout": 0.3}):
        before, start = db.budget.spent.amount, time.monotonic()
        with pytest.raises(dpsql.Failed, match="took too long"):
            db.sql(SLOW, **more)
        assert time.monotonic() - start < 10 and db.budget.spent.amount > before
    assert [run.state for run in db.history] == ["failed", "failed"]
    assert db.sql(COUNT).fetchone() is not None  # the engine is as good as new
    verify(path)


def test_the_policy_says_how_long_a_statement_may_take(path: Path) -> None:
    db = slow(path, max_seconds=0.2)
    with pytest.raises(dpsql.Failed):
        db.sql(SLOW)
    for wrong in (0.3, 0, -1, float("nan"), "1"):
        with pytest.raises(dpsql.Refused, match=r"timeout_invalid[^$]*Pass timeout=0\.2\."):
            db.sql(SLOW, timeout=wrong)  # type: ignore[arg-type]
    with pytest.raises(dpsql.Refused, match=r"defaults\.max_seconds"):
        read_policy(declare(defaults={"max_seconds": 0}))


def test_a_finishing_query_ends_too(path: Path) -> None:
    """Over releases alone: it says why, since that is public."""
    db = slow(path, max_seconds=0.5)
    many = "SELECT count(*) FROM (SELECT count(*) AS n FROM visits), range(10000000) a(x), range(10000000) b(y) WHERE x * y % 7 = n"
    with pytest.raises(dpsql.Error) as caught:
        db.sql(many)
    assert caught.value.code in ("unfinished", "failed")


def test_the_time_is_that_of_the_whole_statement(path: Path) -> None:
    """How much of it is left for the finishing query depends on the data, so that counts. What releases nothing costs nothing."""
    db = slow(path)
    many = "numbers a, numbers b WHERE a.n * b.n % 7 = 3"
    start = time.monotonic()
    with pytest.raises(dpsql.Failed, match=r"^failed"):
        db.sql(f"SELECT count(*) FROM (SELECT count(*) AS n FROM visits) c, {many}", timeout=0.3)
    spent = db.budget.spent.amount
    with pytest.raises(dpsql.Failed, match="unfinished: nothing is charged, but the query failed"):
        db.sql(f"SELECT count(*) FROM {many}", timeout=0.3)
    assert time.monotonic() - start < 5 and db.budget.spent.amount == spent
    assert [run.state for run in db.history] == ["failed"]
    answer = db.sql("SELECT n FROM numbers", timeout=5)
    assert len(answer) == 100_000


def test_what_cannot_be_finished_is_no_failure(path: Path) -> None:
    """Why it could not is told by released values alone."""
    db = slow(path)
    with pytest.raises(dpsql.Failed, match="unfinished: the releases are charged"):
        db.sql("SELECT CAST('x' || count(*) AS INT) FROM (SELECT n FROM (SELECT count(*) AS n FROM visits))")
    assert [run.state for run in db.history] == ["settled"]
    verify(path)


SLOW_PAIRS = [
    "SELECT count(*) FROM t a JOIN t b ON a.id = b.id AND levenshtein(a.s, b.s) > 1",
    "SELECT count(*) FROM t a JOIN t b ON a.id = b.id WHERE levenshtein(a.s, b.s) > 1 AND a.s <= b.s",
    "SELECT count(*) FROM (SELECT levenshtein(a.s, b.s) AS d FROM t a JOIN t b USING (id)) WHERE d > 1",
]


@pytest.mark.parametrize("query", SLOW_PAIRS)
def test_what_is_slow_for_pairs_of_rows_is_ended(path: Path, query: str) -> None:
    """Within a join the engine looks at no interrupt: one person's 500 rows took 30 seconds where one was allowed."""
    connection = duckdb.connect(config={"threads": 1})
    connection.execute("CREATE TABLE t AS SELECT 1 AS id, repeat('ab', 125) AS s FROM range(500)")
    policy = {"dataset": {"id": "t"}, "budget": {"epsilon": 9.0}, "tables": {"t": {"person": "id"}}}
    policy["defaults"] = {"epsilon": 1.0, "max_rows_contributed": 1}
    db = dpsql.connect(connection, policy=policy, ledger=path)
    start = time.monotonic()
    with pytest.raises(dpsql.Failed):
        db.sql(query, timeout=0.5)
    assert time.monotonic() - start < 5


def test_too_many_failures(path: Path) -> None:
    """Counted for all analysts together, since they may collude, until the owner resets them."""
    analysts = {"ana": {"epsilon": 1e5}, "bob": {"epsilon": 1e5}, "olga": {"role": "owner"}}
    for name in ("ana", "bob", "ana"):
        connection = shop(100_000)
        connection.execute("CREATE TABLE numbers AS SELECT range AS n FROM range(100000)")
        policy = declare(1e6, defaults={"epsilon": 0.5, "max_failures": 3}, analysts=analysts)
        policy["tables"] = {**policy["tables"], "numbers": {"public": True}}
        db = dpsql.connect(connection, policy=policy, ledger=path, analyst=name)
        with pytest.raises(dpsql.Failed):
            db.sql(SLOW, timeout=0.05)
    with pytest.raises(dpsql.Refused, match=r"too_many_failures: 3 statements .* 2 of them of analyst 'ana'") as caught:
        db.sql(COUNT)
    assert caught.value.hint.endswith(f"dpsql ledger reset-failures {path}") and len(recorded(path).runs) == 3
    assert "3 failures" in run_hint(caught.value.hint)
    assert db.sql(COUNT).fetchone() is not None
    verify(path)


def test_one_analyst_is_stopped_before_the_others(path: Path, plan: Plan) -> None:
    analysts = {"ana": {"epsilon": 0.5, "max_failures": 1}, "bob": {"epsilon": 0.5}}
    ledger = opened(path, analysts=analysts)
    ledger.fail(ledger.reserve(plan, COUNT, "ana"))
    with pytest.raises(dpsql.Refused, match="too_many_failures"):
        ledger.reserve(plan, COUNT, "ana")
    ledger.reserve(plan, COUNT, "bob")


def test_a_statement_whose_process_is_killed_counts(path: Path, plan: Plan) -> None:
    """No process is there to record that it failed: the row without an end says so, as soon as nobody can be running it."""
    code = (
        "import sys, os, pickle, signal; from dpsql.ledger import Ledger\nfrom dpsql.policy.catalog import read_policy\n"
        "from test_ledger import compiled\nplan, policy = compiled(), pickle.load(sys.stdin.buffer)\n"
        f"Ledger({str(path)!r}, 'shop', read_policy(policy)).reserve(plan, 'killed', '')\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    policy = declare(defaults={"max_failures": 2})
    for _ in range(2):
        here = Path(__file__).parent
        subprocess.run([sys.executable, "-c", code], input=pickle.dumps(policy), check=False, cwd=here)
    ledger = opened(path, defaults={"max_failures": 2})
    with pytest.raises(dpsql.Refused, match="too_many_failures: 2 statements"):
        ledger.reserve(plan, COUNT, "")
    assert reset_failures(path, "") == 2
    ledger.reserve(plan, COUNT, "")
    verify(path)


def test_a_statement_without_an_end_counts_once_it_is_old(
    path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that is wrong makes it count sooner, or again when it ends; never not at all."""
    ledger = opened(path, defaults={"max_failures": 1, "max_seconds": 5})
    charged = ledger.reserve(plan, COUNT, "")
    run = charged.run
    at = next(row[0] for row in rows(path, "at"))
    assert [may_run(run, at, seconds) for seconds in (5.0, -100.0)] == [True, False]
    assert not may_run(run, "2200-01-01T00:00:00+00:00", 5.0)  # the clock was set back
    assert may_run(run.replace(process(), "1@elsewhere"), at, 5.0)  # of which only the clock can tell
    assert not may_run(run.replace(process(), f"{2**22 + 1}@{socket.gethostname()}"), at, 5.0)
    ledger.reserve(plan, COUNT, "")  # both are being run
    monkeypatch.setattr("dpsql.ledger.MARGIN", -100.0)
    with pytest.raises(dpsql.Refused, match="too_many_failures: 2 statements"):
        ledger.reserve(plan, COUNT, "")
    ledger.settle(charged)
    with pytest.raises(dpsql.Refused, match="too_many_failures: 1 statements"):
        ledger.reserve(plan, COUNT, "")


class Ended(BaseException):
    """What the handler of a signal raises."""


@pytest.mark.parametrize("raised", [SystemExit, Ended])
def test_every_end_of_a_statement_counts(path: Path, monkeypatch: pytest.MonkeyPatch, raised: type) -> None:
    db = slow(path)

    def handle(*_: Any) -> None:
        try:
            raise ZeroDivisionError
        except ZeroDivisionError:
            raise raised  # noqa: B904

    monkeypatch.setattr(db, "_answer", handle)
    with pytest.raises(raised) as caught:
        db.sql(COUNT)
    assert caught.value.__context__ is None and [run.state for run in db.history] == ["failed"]


def test_a_failure_is_noted_through_locks_and_interrupts(
    path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, end = opened(path), Ledger._end
    errors = [dpsql.Refused("ledger_locked", ""), KeyboardInterrupt(), SystemExit()]

    def stumbling(*arguments: Any, **more: Any) -> None:
        if errors:
            raise errors.pop(0)
        end(*arguments, **more)

    monkeypatch.setattr(Ledger, "_end", stumbling)
    ledger.fail(ledger.reserve(plan, COUNT, ""))
    assert not errors and [state for state, *_ in rows(path)] == ["reserved", "failed"]


def run_hint(hint: str) -> str:
    """What the command at the end of a hint says."""
    from test_frontends import run

    done = run(Path.cwd(), *hint.partition("dpsql ")[2].split())
    assert done.returncode == 0
    return done.stdout


def test_a_failure_needs_a_charge(path: Path, plan: Plan) -> None:
    ledger = opened(path)
    run = ledger.reserve(plan, COUNT, "")
    ledger.fail(run)
    for again in (ledger.fail, ledger.settle):
        with pytest.raises(dpsql.Refused):
            again(run)
    assert [state for state, *_ in rows(path)] == ["reserved", "failed"]
    assert reset_failures(path, "olga") == 1 and reset_failures(path, "olga") == 0
    verify(path)


# --- whose budget it is -----------------------------------------------------------------------------------------------


def with_tables(**tables: Any) -> dict[str, Any]:
    return declare() | {"tables": tables}


def test_persons_are_pinned(path: Path, plan: Plan) -> None:
    """Tables may come and go; a table's person may not change, even after the table was gone for a while."""
    first = with_tables(visits={"person": "person"}, towns={"public": True})
    later = with_tables(visits={"person": "PERSON"}, orders={"person": {"column": "o", "references": "visits.person"}})
    for policy in (first, later, first, later):
        Ledger(path, "shop", read_policy(policy)).reserve(plan, COUNT, "")
    assert [state for state, *_ in rows(path)] == ["reserved", "declared", *["reserved"] * 3]
    for changed in (
        with_tables(visits={"person": "other"}),
        with_tables(visits={"public": True}),
        with_tables(visits={"person": "person"}, orders={"person": "o"}),
        with_tables(**{"main.visits": {"person": "other"}}),
        with_tables(**{"d.main.visits": {"person": "other"}}),
        with_tables(**{"d.main.visits": {"person": "person"}, "e.main.visits": {"person": "other"}}),
    ):
        with pytest.raises(dpsql.Refused, match="ledger_differs: the policy has other persons"):
            Ledger(path, "shop", read_policy(changed))
    paths = {"s.visits": ("d", "main", "visits")}
    with pytest.raises(dpsql.Refused, match="ledger_differs: the policy has other persons"):
        Ledger(path, "shop", read_policy(with_tables(**{"s.visits": {"person": "other"}})), paths=paths)
    Ledger(path, "shop", read_policy(with_tables(towns={"person": "mayor"}))).reserve(
        plan, COUNT, ""
    )  # more is protected
    with pytest.raises(dpsql.Refused, match="other persons for table 'towns'"):
        Ledger(path, "shop", read_policy(first))
    verify(path)


# --- backup and recovery ----------------------------------------------------------------------------------------------


def test_backup(path: Path, plan: Plan, tmp_path: Path) -> None:
    opened(path).reserve(plan, COUNT, "")
    safe = tmp_path / "safe.ledger"
    noted = backup(path, safe)
    assert verify(safe) == noted == verify(path)
    with pytest.raises(dpsql.Refused, match="backup_exists"):
        backup(path, safe)
    with pytest.raises(dpsql.Refused, match="ledger_unavailable"):
        backup(path, tmp_path / "missing" / "safe.ledger")
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "safe.ledger",
        "safe.ledger.head",
        "shop.ledger",
        "shop.ledger.head",
    ]


def test_a_lost_head_is_recovered_by_the_owner(path: Path, plan: Plan) -> None:
    opened(path).reserve(plan, COUNT, "")
    noted = verify(path)
    head.beside(path).unlink()
    with pytest.raises(dpsql.Refused, match="ledger_corrupt"):
        opened(path)
    with pytest.raises(dpsql.Refused, match="ledger_rolled_back"):
        recover(path, "olga", Fraction(0), noted="7:abc")
    recover(path, "olga", Fraction(0), noted)
    assert opened(path).balance().spent.amount == plan.charge.amount
    assert [(state, who) for state, _, who, *_ in rows(path)] == [("reserved", ""), ("recovered", "olga")]
    opened(path).reserve(plan, COUNT, "")
    verify(path, noted)
    with pytest.raises(dpsql.Refused, match="nothing_to_recover"):
        recover(path, "olga")


def test_what_a_head_knows_to_be_lost_is_not_nothing(path: Path, plan: Plan) -> None:
    """Nor is it nothing of what an analyst has left: nobody knows who was charged."""
    with pytest.raises(dpsql.Refused, match="ledger_missing"):
        recover(path, "")
    analysts = {"ana": {"epsilon": 0.2}, "bob": {"epsilon": 0.1}, "olga": {"role": "owner"}}
    ledger = opened(path, analysts=analysts)
    ledger.reserve(plan, COUNT, "ana")
    old = path.read_bytes()
    ledger.reserve(plan, COUNT, "bob")
    path.write_bytes(old)
    with pytest.raises(dpsql.Refused, match=r"ledger_rolled_back: .* another row 3: rows are missing"):
        recover(path, "olga", Fraction(0))
    policy = read_policy(declare(analysts=analysts))
    for act in (lambda: recover(path, "bob", policy=policy), lambda: reset_failures(path, "bob", policy)):
        with pytest.raises(dpsql.Refused, match="role_may_not"):
            act()
    recover(path, "olga", Fraction(1, 10), policy=policy)
    with pytest.raises(dpsql.BudgetExhausted, match="of analyst 'bob'"):
        opened(path, analysts=analysts).reserve(plan, COUNT, "bob")
    verify(path)


@pytest.mark.parametrize("with_head", [True, False])
def test_a_restored_backup_is_charged_for_what_was_lost(
    path: Path, plan: Plan, tmp_path: Path, with_head: bool
) -> None:
    opened(path).reserve(plan, COUNT, "")
    safe = tmp_path / "safe.ledger"
    backup(path, safe)
    for _ in range(3):
        opened(path).reserve(plan, COUNT, "")
    shutil.copy(safe, path)
    if with_head:  # the pair is consistent in itself: only the owner knows
        shutil.copy(head.beside(safe), head.beside(path))
    else:
        with pytest.raises(dpsql.Refused, match="ledger_rolled_back"):
            opened(path)
    recover(path, "olga", Fraction(1, 2))
    spent = opened(path).balance().spent.amount
    assert spent == plan.charge.amount + 10**18 // 2 + 1
    verify(path)


def test_what_is_not_known_is_taken_as_lost(path: Path, plan: Plan) -> None:
    opened(path).reserve(plan, COUNT, "")
    head.beside(path).unlink()
    recover(path, "olga")
    assert opened(path).balance().left.amount == 0
    with pytest.raises(dpsql.BudgetExhausted):
        opened(path).reserve(plan, COUNT, "")
    verify(path)


def test_the_command_line(path: Path, plan: Plan) -> None:
    opened(path).reserve(plan, COUNT, "")
    good(path.parent, "ledger", "backup", "shop.ledger", "safe.ledger")
    last = Ledger(path, "shop", read_policy(declare())).last_charge()
    head.beside(path).unlink()
    hint = bad(path.parent, 3, "ledger", "verify", "shop.ledger")
    assert "has lost its head file" in hint and "dpsql ledger recover" in hint
    assert "from 0 to 1" in bad(path.parent, 2, "ledger", "recover", "shop.ledger", "--lost", "7")
    good(path.parent, "ledger", "recover", "shop.ledger", "--lost", "0.05", "--analyst", "olga")
    good(path.parent, "ledger", "verify", "shop.ledger")
    shown = good(path.parent, "ledger", "show", "shop.ledger")
    assert "recovered by olga, 5 % taken as lost" in shown
    # What was lost is no query that others are like.
    assert last is not None and Ledger(path, "shop", read_policy(declare())).last_charge() == last


def test_a_closed_session_refuses(tmp_path: Path) -> None:
    with duckdb.connect(str(tmp_path / "shop.duckdb")) as connection:
        connection.execute("CREATE TABLE visits AS SELECT 1 AS person, 7 AS spend, 40 AS age")
    db = dpsql.connect(tmp_path / "shop.duckdb", policy=declare(defaults={"epsilon": 0.1}))
    answer = db.sql(COUNT)
    db.close()
    db.close()
    calls = [
        lambda: db.sql(COUNT),
        lambda: db.sql("SHOW BUDGET"),
        lambda: db.explain(COUNT),
        lambda: db.rehearse(COUNT),
        lambda: db.budget,
        lambda: db.history,
        lambda: db.tables,
        lambda: db.sql("SHOW TABLES"),
        lambda: db.rehearse("DESCRIBE visits"),
    ]
    for call in calls:
        with pytest.raises(dpsql.Refused, match="session_closed"):
            call()
    assert len(answer.fetchall()) == 1  # what was answered stays
