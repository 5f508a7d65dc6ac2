"""The public Python interface, with the real libraries on the other side."""

from __future__ import annotations

import math
import sys
import threading
from html import escape
from pathlib import Path

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import shop

import dpsql
from dpsql import finish, session
from dpsql.compiler.program import Plan
from dpsql.kernel import release

GROUPED = "SELECT segment, count(*) AS n, avg(age) AS age FROM customer GROUP BY segment"


@pytest.fixture
def db() -> dpsql.Session:
    return dpsql.connect(shop.database(shop.clean()), policy=shop.policy(epsilon=100.0), ledger=":memory:")


def test_an_answer_reads_like_a_cursor(db: dpsql.Session) -> None:
    answer = db.sql(GROUPED)
    everything = list(answer)
    assert answer.columns == ("segment", "n", "age")
    assert answer.fetchone() == everything[0]
    assert answer.fetchmany(2) == everything[1:3]
    assert answer.fetchall() == everything[3:]
    assert answer.fetchone() is None
    assert len(answer) == 4 and list(answer) == everything
    assert [row[0] for row in everything] == ["business", "family", "student", None]


def test_an_answer_speaks_arrow(db: dpsql.Session) -> None:
    answer = db.sql(GROUPED)
    rows = list(answer)
    frame, table, polars = answer.df(), answer.arrow(), answer.pl()
    assert isinstance(frame, pd.DataFrame) and list(frame["n"]) == [row[1] for row in rows]
    assert isinstance(table, pa.Table) and table.column("age").to_pylist() == [row[2] for row in rows]
    assert isinstance(polars, pl.DataFrame) and polars.rows() == rows
    assert pa.table(answer).equals(table) and pl.DataFrame(answer).rows() == rows
    assert duckdb.connect().from_arrow(answer).fetchall() == rows


def test_error_bars_have_the_answers_shape(db: dpsql.Session) -> None:
    answer = db.sql(GROUPED + " ORDER BY n DESC LIMIT 2")
    assert [len(row) for row in answer.errors] == [3, 3]
    for row, bars, ends in zip(answer, answer.errors, answer.interval(0.95), strict=True):
        assert bars[0] is None and ends[0] is None
        assert bars[1] is not None and ends[1] is not None and ends[2] is not None
        assert ends[1][0] <= row[1] <= ends[1][1] and ends[2][0] <= row[2] <= ends[2][1]
        assert bars[1] == pytest.approx((ends[1][1] - ends[1][0]) / 2)
        assert ends[2][0] >= 16 and ends[2][1] <= 100
    wider, narrower = answer.interval(0.99), answer.interval(0.5)
    assert all(w[1] and n[1] and w[1][1] - w[1][0] > n[1][1] - n[1][0] for w, n in zip(wider, narrower, strict=True))
    with pytest.raises(ValueError):
        answer.interval(1.0)


QUERY = "SELECT count(*), sum(age), avg(age), sum(age) / count(*), 2 * count(*) - 7, count(*) * sum(age) FROM customer"


@pytest.mark.parametrize("policy", [shop.policy(), shop.pure()], ids=["gdp", "pure"])
def test_error_bars_cover(policy: dict[str, object]) -> None:
    """Of 400 answers about 95 % cover the exact value; a false alarm has probability below 1e-9 (binomial tail)."""
    db = dpsql.connect(shop.database(shop.clean()), policy=policy, ledger=":memory:")
    exact = shop.database(shop.clean()).execute(QUERY).fetchone()
    assert exact is not None
    hits = [0] * len(exact)
    for _ in range(400):
        (ends,) = db.sql(QUERY, epsilon=5.0).interval(0.95)
        for i, cell in enumerate(ends):
            assert cell is not None
            hits[i] += cell[0] <= exact[i] <= cell[1]
    assert all(count >= 350 for count in hits), hits


def test_loss_and_budget_add_up(db: dpsql.Session) -> None:
    assert db.budget.spent.amount == 0 and db.budget.spent.epsilon == 0
    first = db.sql(GROUPED, epsilon=1.0)
    assert first.loss.epsilon == 1.0 and first.loss.currency == "mu^2" and first.loss.delta == 1e-8
    assert db.budget.spent.amount == pytest.approx(first.loss.amount)
    db.sql(GROUPED, epsilon=1.0)
    budget = db.budget
    assert budget.spent.amount == pytest.approx(2 * first.loss.amount)
    assert budget.spent.amount + budget.left.amount == pytest.approx(budget.total.amount)
    assert budget.total.epsilon == pytest.approx(100, rel=1e-6) and budget.total.delta == pytest.approx(1e-6)
    assert budget.analyst is None


def test_explain_is_free_and_says_what_is_charged(db: dpsql.Session) -> None:
    explained = db.explain(GROUPED, epsilon=0.25)
    assert db.budget.spent.amount == 0
    assert str(explained) == str(db.explain("EXPLAIN PRIVACY " + GROUPED, epsilon=0.25))
    answer = db.sql(GROUPED, epsilon=0.25)
    assert explained.loss == answer.loss and explained.plan == answer.plan
    assert explained.errors["n"] == pytest.approx(answer.errors[0][1])
    assert explained.errors["age"] is None and "segment" not in explained.errors


def test_commands_in_sql(db: dpsql.Session) -> None:
    """EXPLAIN PRIVACY and SHOW BUDGET are answers too, and free."""
    told = db.sql("explain privacy " + GROUPED)
    assert [row[0] for row in told] == str(db.explain(GROUPED)).splitlines() and told.loss.amount == 0
    db.sql(GROUPED)
    shown = db.sql(" SHOW budget; ")
    assert shown.columns[0] == "of" and shown.errors == [(None,) * 6]
    ((name, spent, left, total, _, part),) = list(shown)
    assert name == "dataset" and 0 < spent < total and left < total and 0 < part < 1
    assert list(db.sql("EXPLAIN\n" + GROUPED)) == list(db.sql("explain privacy " + GROUPED))
    with pytest.raises(dpsql.Refused):
        db.sql("EXPLAIN ANALYZE " + GROUPED)
    with pytest.raises(dpsql.Refused) as error:
        db.sql("EXPLAIN PRIVACY\n SELECT count(*), nothing FROM customer")
    assert (error.value.line, error.value.column) == (2, 19)


def test_a_budget_is_exhausted(db: dpsql.Session) -> None:
    while db.budget.left.epsilon > 60:
        db.sql(GROUPED, epsilon=60.0)
    spent = db.budget.spent
    with pytest.raises(dpsql.BudgetExhausted, match="budget_exhausted"):
        db.sql(GROUPED, epsilon=90.0)
    assert db.budget.spent == spent


@pytest.mark.parametrize("epsilon", [0, -1.0, math.nan, math.inf, True, "1", 1e-12, 1e30])
def test_bad_epsilon(db: dpsql.Session, epsilon: float) -> None:
    with pytest.raises(dpsql.Refused, match="epsilon_invalid"):
        db.sql(GROUPED, epsilon=epsilon)
    assert db.budget.spent.amount == 0


def test_arithmetic_that_leaves_the_numbers(db: dpsql.Session) -> None:
    """The error bar is unbounded, and everything can still be shown."""
    for expression in (
        "count(*) * 1e308 * 1e308",
        "avg(age) / 0",
        "sum(age) / count(*) * 1e200 * 1e200",
        "count(*) / 1e-320",
    ):
        query = f"SELECT {expression} AS x FROM customer"
        assert str(db.explain(query))
        answer = db.sql(query, epsilon=0.1)
        assert answer.errors == [(math.inf,)]
        assert "∞" in answer._repr_html_() or "NULL" in answer._repr_html_()


@pytest.mark.parametrize("query", [None, 5, b"SELECT 1", "SELECT count(*) FROM customer \ud800"])
def test_what_is_no_text(db: dpsql.Session, query: str) -> None:
    for ask in (db.sql, db.explain):
        with pytest.raises(dpsql.Refused, match="syntax"):
            ask(query)


def test_what_cannot_be_finished_is_refused_before_the_charge(db: dpsql.Session) -> None:
    with pytest.raises(dpsql.Refused, match=r"engine_cannot|too_deep|syntax"):
        db.sql("SELECT " + " + ".join(["count(*)"] * 800) + " FROM customer")
    assert db.budget.spent.amount == 0


@pytest.mark.parametrize("delta", [1e-5, 0.0, -1.0, 1.0, math.nan, math.inf, 1e-40])
def test_bad_delta(db: dpsql.Session, delta: float) -> None:
    with pytest.raises(dpsql.Refused, match="delta_invalid"):
        db.sql(GROUPED, delta=delta)


def test_other_refusals_of_a_call() -> None:
    connection = shop.database(shop.clean())
    limited = {**shop.policy(), "defaults": {"max_epsilon": 1.0}}
    db = dpsql.connect(connection, policy=limited, ledger=":memory:")
    for code, keywords in {"epsilon_missing": {}, "epsilon_too_large": {"epsilon": 1.5}}.items():
        with pytest.raises(dpsql.Refused, match=code):
            db.sql(GROUPED, **keywords)
    with pytest.raises(dpsql.Refused, match="limit_missing"):
        db.sql("SELECT " + ", ".join(f"sum(ubig - {i})" for i in range(9)) + " FROM item", epsilon=1.0)
    with pytest.raises(dpsql.Refused, match="parameter_unknown"):
        db.sql(GROUPED, [1], epsilon=1.0)
    without = {**shop.policy(), "budget": {"epsilon": 10.0}}
    pure = dpsql.connect(connection, policy=without, ledger=":memory:")
    with pytest.raises(dpsql.Refused, match="delta_invalid"):
        pure.sql(GROUPED, delta=1e-9)
    with pytest.raises(dpsql.Refused, match="delta_missing"):
        pure.sql("SELECT country, count(*) FROM orders GROUP BY country")
    with pytest.raises(dpsql.Refused, match="noise_too_large"):
        huge = {**shop.POLICY["orders"], "max_rows_contributed": 2**31 - 1}
        wide = {**shop.policy(), "tables": {**shop.POLICY, "orders": huge}}
        dpsql.connect(connection, policy=wide, ledger=":memory:").sql(
            "SELECT sum(weight) FROM orders", epsilon=1e-9, delta=1e-30
        )


def test_too_many_keys() -> None:
    """The product of the domains is bounded."""
    owner = duckdb.connect()
    owner.execute("CREATE TABLE t (id INTEGER, a INTEGER, b INTEGER)")
    domain = {"in": list(range(1500))}
    policy = {
        "dataset": {"id": "t"}, "budget": {"epsilon": 10.0}, "defaults": {"epsilon": 1.0, "max_rows_contributed": 1},
        "tables": {"t": {"person": "id", "columns": {"a": domain, "b": domain}}},
    }  # fmt: skip
    db = dpsql.connect(owner, policy=policy, ledger=":memory:")
    with pytest.raises(dpsql.Refused, match="too_many_keys"):
        db.sql("SELECT a, b, count(*) FROM t GROUP BY a, b")
    assert len(db.sql("SELECT a, count(*) FROM t GROUP BY a")) == 1501


@pytest.mark.parametrize("policy", [shop.policy(), shop.pure()], ids=["gdp", "pure"])
def test_private_keys(policy: dict[str, object]) -> None:
    """Large groups are shown, a group of one person hardly ever, and the charge has a delta."""
    rows = shop.clean(persons=400)
    rows["orders"].append((10**6, 7, "open", 1, 1.0, 1, None, "atlantis"))
    db = dpsql.connect(shop.database(rows), policy=policy, ledger=":memory:")
    answer = db.sql("SELECT country, count(*) AS n FROM orders GROUP BY country", epsilon=20.0)
    assert [row[0] for row in answer] == ["de", "fr", "it"]
    assert answer.plan is not None and answer.plan.release.threshold is not None
    assert any(f"about {answer.plan.release.threshold.least} persons" in note for note in answer.notes)
    assert db._ledger.balance().spent.delta == answer.plan.charge.delta > 0
    assert answer.loss.delta == 1e-8


def test_long_texts_are_no_keys() -> None:
    """Else the size of what is hidden would decide whether a query ends."""
    owner = duckdb.connect()
    owner.execute(
        "CREATE TABLE t AS SELECT i AS id, CASE WHEN i % 2 = 0 THEN 'a' ELSE repeat('x', 5000) || i % 7 END AS s FROM range(4000) r(i)"
    )
    policy = {"dataset": {"id": "t"}, "budget": {"epsilon": 1e9, "delta": 1e-6}, "defaults": {"epsilon": 1e6, "max_rows_contributed": 1}, "tables": {"t": {"person": "id"}}}  # fmt: skip
    db = dpsql.connect(owner, policy=policy, ledger=":memory:")
    assert db.sql("SELECT s, count(*) FROM t GROUP BY s").fetchall() == [("a", 2000), (None, 2000)]


def test_the_values_of_an_enum_are_not_told() -> None:
    owner = duckdb.connect()
    owner.execute("CREATE TABLE t (id INTEGER, e ENUM ('secret', 'b'), l ENUM ('secret', 'b')[])")
    policy = {"dataset": {"id": "t"}, "budget": {"epsilon": 1.0}, "tables": {"t": {"person": "id"}}}
    db = dpsql.connect(owner, policy=policy, ledger=":memory:")
    for column in "el":
        with pytest.raises(dpsql.Refused, match="ENUM") as refusal:
            db.explain(f"SELECT count({column}) FROM t", epsilon=0.1)
        assert "secret" not in str(refusal.value)


def test_analysts_are_held_to_their_part() -> None:
    connection = shop.database(shop.clean())
    policy = {**shop.policy(epsilon=10.0), "analysts": {"ana": {"epsilon": 2.0}, "bob": {"epsilon": 9.0}}}
    with pytest.raises(dpsql.Refused, match="analyst_unknown"):
        dpsql.connect(connection, policy=policy, ledger=":memory:")
    with pytest.raises(dpsql.Refused, match="analyst_unknown"):
        dpsql.connect(connection, policy=policy, ledger=":memory:", analyst="eve")
    db = dpsql.connect(connection, policy=policy, ledger=":memory:", analyst="ana")
    db.sql(GROUPED, epsilon=1.0)
    budget = db.budget
    assert budget.analyst is not None and budget.analyst.total.epsilon == pytest.approx(2.0, rel=1e-6)
    assert budget.analyst.spent.amount == budget.spent.amount > 0
    with pytest.raises(dpsql.BudgetExhausted, match="ana"):
        db.sql(GROUPED, epsilon=3.0)


def test_show(db: dpsql.Session, capsys: pytest.CaptureFixture[str]) -> None:
    answer = db.sql(GROUPED)
    answer.show()
    out = capsys.readouterr().out
    assert "segment" in out and "±" in out and "NULL" in out
    html = answer._repr_html_()
    assert html.count("<tr>") == 5 and "±" in html
    assert "4 rows" in repr(answer)


def test_a_session_closes(db: dpsql.Session) -> None:
    with db:
        answer = db.sql(GROUPED)
    assert len(answer.fetchall()) == 4


def test_roles(tmp_path: Path) -> None:
    """A viewer sees and rehearses, an analyst asks and sees her own queries, an owner sees all of them."""
    connection = shop.database(shop.clean())
    analysts = {"ana": {"epsilon": 5.0}, "olga": {"role": "owner"}, "vic": {"role": "viewer"}}
    policy = {**shop.policy(epsilon=100.0), "analysts": analysts}
    ana, olga, vic = (
        dpsql.connect(connection, policy=policy, ledger=tmp_path / "x.ledger", analyst=name) for name in analysts
    )
    ana.sql(GROUPED)
    with pytest.raises(dpsql.Refused, match="role_may_not"):
        vic.sql(GROUPED)
    with pytest.raises(dpsql.Refused, match="role_may_not"):
        _ = vic.history
    assert vic.explain(GROUPED).repeats > 0 and len(vic.rehearse(GROUPED)) == 4 and vic.budget.spent.amount > 0
    olga.sql(GROUPED, epsilon=20.0)
    assert [run.analyst for run in olga.history] == ["ana", "olga"]
    (run,) = ana.history
    assert (run.statement, run.state, run.analyst) == (GROUPED, "settled", "ana") and 0 < run.part < 1


def test_capacity_in_words(db: dpsql.Session) -> None:
    """EXPLAIN and the budget say how many more there is room for; as many fit, and no more."""
    for query in (GROUPED, "SELECT country, count(*) FROM orders GROUP BY country"):
        room = db.explain(query, epsilon=30.0).repeats
        assert f"room for {room} more like this" in str(db.explain(query, epsilon=30.0))
        assert db.budget.room is None or db.budget.room == db._ledger.balance().room(db._ledger.last_charge())  # type: ignore[arg-type]
        for _ in range(room):
            db.sql(query, epsilon=30.0)
        with pytest.raises(dpsql.BudgetExhausted):
            db.sql(query, epsilon=30.0)
        assert db.budget.room == 0 and "room for 0 more like the last query" in str(db.budget)
        db = dpsql.connect(shop.database(shop.clean()), policy=shop.policy(epsilon=100.0), ledger=":memory:")


def test_the_capacity_is_the_analysts_own() -> None:
    policy = {**shop.pure(), "analysts": {"ana": {"epsilon": 2.0}, "bob": {"epsilon": 9.0}}}
    db = dpsql.connect(shop.database(shop.clean()), policy=policy, ledger=":memory:", analyst="ana")
    assert db.explain(GROUPED, epsilon=0.5).repeats == 4


def test_group_privacy_and_composition_are_shown() -> None:
    """For k persons: k epsilon, and delta from the threshold itself; advanced composition for what is fixed beforehand."""
    policy = shop.policy(accounting="pure", epsilon=1.0)
    db = dpsql.connect(shop.database(shop.clean()), policy=policy, ledger=":memory:")
    query = "SELECT country, count(DISTINCT customer) FROM orders GROUP BY country"
    explained = db.explain(query, epsilon=0.01, max_groups_contributed=1)
    one, four, many = (explained.group(k) for k in (1, 4, 10**6))
    assert (one.epsilon, four.epsilon) == (pytest.approx(0.01), pytest.approx(0.04))
    assert explained.plan.release.threshold is not None and one.delta == pytest.approx(
        float(explained.plan.release.threshold.delta)
    )
    assert one.delta < four.delta < 17 * one.delta and many.delta == 1
    assert explained.repeats == 100 and explained.together is None  # with a delta it is not epsilon-DP
    assert "of a family of 4 together: epsilon 0.04" in explained.more and "advanced" not in explained.more
    alone = db.explain("SELECT count(DISTINCT customer) FROM orders", epsilon=0.01)
    assert alone.together is not None and 0.35 < alone.together < 0.4 and "advanced composition" in alone.more
    gaussian = db.explain(query, epsilon=0.01, max_groups_contributed=16)  # k mu, which is more than k epsilon
    assert gaussian.group(1).epsilon == 0.01 and gaussian.group(1).delta == pytest.approx(1e-8, rel=0.01)
    assert 0.042 < gaussian.group(4).epsilon < 0.043 and "epsilon 0.04275" in gaussian.more
    assert gaussian.together is None and gaussian.repeats == 100 and "choice    gaussian noise" in str(gaussian)
    gdp = dpsql.connect(shop.database(shop.clean()), policy=shop.policy(), ledger=":memory:").explain(GROUPED)
    assert gdp.together is None and gdp.group(1).epsilon == pytest.approx(1.0, rel=1e-6)
    assert gdp.group(2).amount == pytest.approx(4 * gdp.loss.amount)


@pytest.mark.parametrize("accounting", ["pure", "gdp", "zcdp"])
def test_what_waits_is_explained_by_its_charge(accounting: str) -> None:
    """The noise of a sample says nothing of that which will be drawn; what is charged covers both."""
    policy = shop.policy(accounting=accounting, epsilon=100.0)
    db = dpsql.connect(shop.database(shop.clean()), policy=policy, ledger=":memory:")
    totals = "SELECT status, count(*) AS n FROM orders GROUP BY status"
    query = f"SELECT count(*) FROM orders WHERE status IN (SELECT status FROM ({totals}) WHERE n > 9)"
    explained = db.explain(query, epsilon=1.0)
    charge = explained.plan.charge
    assert any(part.waits for part in explained.plan.parts) and charge.delta > 0 and explained.together is None
    assert "advanced" not in str(explained)
    one, four, many = (explained.group(k) for k in (1, 4, 10**6))
    assert one.delta == pytest.approx(charge.delta / 10**18 if accounting == "pure" else float(explained.plan.delta))
    assert one.delta < four.delta < 1 and many.delta == 1
    if accounting == "pure":  # k steps from neighbour to neighbour
        assert four.epsilon == 4 and four.delta <= one.delta * 4 * math.e**3


@pytest.mark.parametrize("accounting", ["pure", "gdp", "zcdp"])
@pytest.mark.parametrize("neighbours", ["add-remove", "replace"])
def test_every_ledger_answers(accounting: str, neighbours: str) -> None:
    policy = shop.policy(epsilon=100.0, accounting=accounting, neighbours=neighbours)
    db = dpsql.connect(shop.database(shop.clean(persons=400)), policy=policy, ledger=":memory:")
    for query in (GROUPED, "SELECT country, count(*) AS n FROM orders GROUP BY country"):
        assert len(db.sql(query, epsilon=20.0)) >= 3
    currency = {"pure": "epsilon", "gdp": "mu^2", "zcdp": "rho"}[accounting]
    budget = db.budget
    assert budget.spent.currency == currency and 20 < budget.spent.epsilon < 60
    assert budget.total.epsilon == pytest.approx(100.0, rel=1e-6)


def test_limits_of_the_caller(db: dpsql.Session) -> None:
    """They stand in place of the policy's, in the exact query and in the noise; the same number is the same plan."""
    query, keyed = "SELECT count(*) FROM orders", "SELECT country, count(*) FROM orders GROUP BY country"
    usual, wide = db.explain(query), db.explain(query, max_rows_contributed=50)
    assert isinstance(usual.plan, Plan) and isinstance(wide.plan, Plan)
    weight = usual.plan.release.summands[0].weight
    assert wide.plan.release.mechanisms[0].sensitivity == 50 * weight != usual.plan.release.mechanisms[0].sensitivity
    assert "50 rows" in str(wide) and wide.plan.release.text != usual.plan.release.text
    assert wide.plan.charge.amount == pytest.approx(usual.plan.charge.amount)
    again = db.explain(query, max_rows_contributed=int(usual.plan.release.mechanisms[0].sensitivity / weight))
    assert again.plan.release.text == usual.plan.release.text and again.plan.charge == usual.plan.charge
    few = db.explain(keyed, max_groups_contributed=2)
    assert (
        isinstance(few.plan, Plan) and few.plan.release.threshold is not None and few.plan.release.threshold.keys == 2
    )
    assert str(db.explain(keyed)) != str(few)
    assert "50 rows" in "".join(str(row) for row in db.sql(f"EXPLAIN PRIVACY {query}", max_rows_contributed=50))
    assert "50 rows" in " ".join(db.rehearse(query, max_rows_contributed=50).notes)
    first = db.sql(query, query_id="a", max_rows_contributed=50)
    assert list(db.sql(query, query_id="a", max_rows_contributed=50)) == list(first)
    with pytest.raises(dpsql.Refused):  # the id stands for another question
        db.sql(query, query_id="a", max_rows_contributed=51)
    for wrong in (0, -1, 2**31, 1.5, True, "8"):
        for word in ("max_rows_contributed", "max_groups_contributed"):
            with pytest.raises(dpsql.Refused) as refusal:
                db.explain(query, **{word: wrong})  # type: ignore[arg-type]
            assert refusal.value.code == "limit_invalid"


def test_lists_of_keys_are_kept_within_bounds(db: dpsql.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no room for more than one list of public keys, each query still has its own."""
    for module in (finish, release):
        monkeypatch.setattr(module, "LISTED", 0)
    monkeypatch.setattr(release, "_lists", {})
    for table, column, first in (
        ("orders", "status", "open"),
        ("customer", "segment", "business"),
        ("orders", "status", "open"),
    ):
        answer = db.sql(f"SELECT {column}, count(*) FROM {table} GROUP BY 1")
        assert answer.fetchall()[0][0] == first
        tables = db._scratch.connection.execute("SELECT count(*) FROM duckdb_tables() WHERE table_name LIKE 'keys%'")
        assert tables.fetchall() == [(1,)] and len(release._lists) == 1


def test_answers_stay_when_their_keys_are_gone(db: dpsql.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finish, "LISTED", 0)
    first = db.sql("SELECT segment, count(*) AS n FROM customer GROUP BY segment")
    db.sql("SELECT status, count(*) AS n FROM orders GROUP BY status")
    assert first.arrow().column("segment").to_pylist() == [row[0] for row in first]


@pytest.mark.parametrize("keys", ["status", "country"])  # public and private ones
def test_an_answer_is_the_same_whether_its_rows_are_many_or_few(
    keys: str, db: dpsql.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few rows are read at once, for many a table is made; each way to read them gives the same, in any order."""
    query = f"SELECT {keys}, count(*) AS n, sum(quantity) AS s, INTERVAL 1 DAY AS day FROM orders GROUP BY 1 ORDER BY n DESC"
    db.sql(query, query_id="a", epsilon=20)
    found = []
    for few in (0, 2_000):
        monkeypatch.setattr(finish, "FEW", few)
        for at_first in ("arrow", "types", "errors"):
            answer = db.sql(query, query_id="a", epsilon=20)
            _ = answer.arrow() if at_first == "arrow" else getattr(answer, at_first)
            assert answer.arrow().column("n").to_pylist() == list(answer.df()["n"]) == [row[1] for row in answer]
            found.append((list(answer), answer.types, answer.errors, answer.stored(), answer.arrow().to_pylist()))
    assert found == found[:1] * 6 and len(found[0][0]) == 3
    assert found[0][1] == ("VARCHAR", "BIGINT", "HUGEINT", "INTERVAL")


def test_what_fails_in_another_thread_changes_no_answer(
    db: dpsql.Session, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A run that fails lets go of the scratch database, in which this statement has its releases."""
    few, many = ("SELECT count(*) AS n FROM customer WHERE age < 0", "SELECT count(*) AS n FROM customer")
    query = f"SELECT a.n, b.n FROM ({few}) AS a, ({many}) AS b"
    others: list[object] = []

    def meanwhile() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(db._ledger, "settle", lambda *_: 1 // 0)
            with pytest.raises(dpsql.Failed):
                db.sql(many, epsilon=0.5)
        for _ in range(5):  # tables in a new one, which have the same names as those of the statement
            others.append(db.sql(many, epsilon=0.5).arrow())

    noisy = session.noisy

    def interfered(*arguments: object) -> object:
        if threading.current_thread() is threading.main_thread():
            other = threading.Thread(target=meanwhile)
            other.start()
            other.join()
        return noisy(*arguments)  # type: ignore[arg-type]

    scratch = db._finisher()
    monkeypatch.setattr(session, "noisy", interfered)
    ((a, b),) = db.sql(query, epsilon=50.0).fetchall()
    assert len(others) == 10 and abs(a) < 10 and abs(b - 60) < 10
    assert db._finisher() is not scratch
    monkeypatch.setattr(finish.Scratch, "combine", lambda *_: 1 // 0)
    kept = db._finisher()
    with pytest.raises(dpsql.Failed):  # its own is the one before by then
        db.sql(query, epsilon=1.0)
    assert db._scratch is not None and db._scratch is not kept


def test_the_order_in_which_private_keys_came_is_not_kept(db: dpsql.Session) -> None:
    answer = db.sql("SELECT country, count(*) FROM orders GROUP BY country", epsilon=20)
    with answer._released._see() as cursor, pytest.raises(duckdb.CatalogException):  # type: ignore[attr-defined]
        cursor.execute('SELECT * FROM "noisy"')


def test_answers_that_have_the_same_columns_are_kept_apart(db: dpsql.Session) -> None:
    """One cursor sees what was released for all of them, one after another."""
    answers = [
        db.sql(f"SELECT {key}, count(*) AS n FROM customer GROUP BY 1", epsilon=0.1)
        for key in ("segment", "segment", "tier")
    ]
    for answer in (*answers, *reversed(answers)):
        rows = [row[1] for row in answer]
        assert answer.arrow().column("n").to_pylist() == rows
        assert [sum(ends) / 2 for _, ends in answer.interval() if ends] == pytest.approx(rows, abs=1)
    assert db._scratch is not None and len(db._scratch._desks) == 1


def test_long_answers_are_cut_in_the_middle(capsys: pytest.CaptureFixture[str]) -> None:
    """At 40 rows unless told; notes and what ± is stand under the table, once, on the screen and in HTML."""
    connection = duckdb.connect()
    connection.execute("CREATE TABLE t AS SELECT i AS p, i % 100 AS k FROM range(1000) t(i)")
    tables = {"t": {"person": "p", "max_rows_contributed": 1, "columns": {"k": {"in": list(range(100))}}}}
    policy = {"dataset": {"id": "x"}, "budget": {"epsilon": 9.0}, "tables": tables}
    with dpsql.connect(connection, policy=policy, ledger=":memory:") as db:
        answer = db.sql("SELECT k, count(*) AS n FROM t WHERE k IS NOT NULL GROUP BY k ORDER BY k", epsilon=1)
        size = len(answer)
        assert size >= 100
        for rows, shown in ((..., 40), (10, 10), (None, size), (0, 0)):
            answer.show() if rows is ... else answer.show(rows=rows)  # type: ignore[arg-type]
            printed = capsys.readouterr().out
            left = size - shown
            assert sum("±" in line and "│" in line for line in printed.splitlines()) == shown
            assert (f"{left:,} of {size:,} rows are left out" in printed) == (left > 0)
            under = printed.partition("└")[2].splitlines()[1:]
            assert under.count("± is the noise at 95 %; clipping is not in it") == 1
            for note in answer.notes:
                assert " ".join(under).count(f"note: {note}") == 1
        html = answer._repr_html_()
        assert html.count("<tr>") == 1 + 40 + 1 and f"{size - 40} of {size} rows are left out" in html
        assert html.count("± is the noise at 95 %; clipping is not in it") == 1
        assert all(html.count(f"note: {escape(note)}") == 1 for note in answer.notes)
        assert "± is the noise at 95 %; clipping is not in it" in str(db.explain("SELECT count(*) FROM t", epsilon=1))


def test_what_reads_like_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    db = dpsql.connect(shop.database(shop.clean()), policy=shop.policy(), ledger=":memory:")
    assert repr(db.history) == "nothing was asked yet"
    answer = db.sql("SELECT count(*) AS n FROM orders", epsilon=0.1)
    assert "settled" in repr(db.history) and len(repr(db.history).splitlines()) == 1
    assert "±" in str(answer) and "epsilon 0.1" in str(answer)
    for form, module in (("df", "pandas"), ("pl", "polars"), ("arrow", "pyarrow")):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(dpsql.Refused, match="extra_missing"):
            getattr(answer, form)()


@pytest.mark.parametrize(
    ("query", "hint"),
    [
        ("SELECT median(amount) FROM orders", "SELECT count_if(amount <= 20) / count(*) FROM orders"),
        (
            "SELECT mode(status) FROM orders",
            "SELECT status, count(*) AS n FROM orders GROUP BY status ORDER BY n DESC LIMIT 1",
        ),
        ("SELECT approx_count_distinct(status) FROM orders", "count(DISTINCT status)"),
        ("SELECT max(amount) FROM orders", "count_if(amount > 20)"),
        ("SELECT avg(status) FROM orders", "avg(TRY_CAST(x AS DOUBLE))"),
    ],
)
def test_hints_work_when_typed(db: dpsql.Session, query: str, hint: str) -> None:
    with pytest.raises(dpsql.Refused) as refused:
        db.explain(query)
    assert hint in refused.value.hint
    asked = (
        hint.replace("x AS", "status AS")
        if hint.startswith("SELECT")
        else f"SELECT {hint} FROM orders".replace("(x", "(status")
    )
    if "TRY_CAST" not in asked:
        assert db.explain(asked).loss.amount
    assert not any("CAST" in note for note in db.explain("SELECT avg((amount > 20)::INT) FROM orders").plan.notes)
