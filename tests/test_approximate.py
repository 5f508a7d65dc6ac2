"""Gaussian noise for an epsilon and a delta: the claim against high-precision arithmetic and dp-accounting, and the record."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import pytest
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian
from hypothesis import given, settings
from hypothesis import strategies as st
from test_accountant import precise, true_delta
from test_history import resealed

import dpsql
from dpsql.compiler.program import Plan
from dpsql.history import recorded, verify
from dpsql.kernel.accountant import CURRENCIES, mu_of, units
from dpsql.kernel.mechanisms import Approximate, Gaussian, Laplace, Threshold, cost, read, write
from dpsql.ledger import Entry

HALF = Fraction(1, 2)


def approximate(epsilon: Fraction, noise: Fraction, blocks: list[int], keys: int = 0) -> Approximate:
    """All that epsilon and the delta `noise` allow, half of it for a threshold if there are keys."""
    mu2 = Fraction(mu_of(epsilon, noise)) ** 2 * (HALF if keys else 1)
    drawn: list[Gaussian | Threshold] = list(Gaussian.calibrate(blocks, mu2))
    if keys:
        (persons,) = Gaussian.calibrate([keys], mu2)
        drawn.append(Threshold.calibrate(persons, keys, noise))
    return Approximate(epsilon, noise, tuple(drawn))


PARAMETERS = [("1e-9", "1e-30"), ("1e-6", "1e-8"), ("0.1", "1e-6"), ("1", "1e-6"), ("20", "1e-9"), ("1e9", "1e-8"), ("1e20", "1e-3")]  # fmt: skip


@pytest.mark.parametrize(("epsilon", "delta"), PARAMETERS)
@pytest.mark.parametrize("blocks", [[1], [1, 2**20, 7]])
def test_claim(epsilon: str, delta: str, blocks: list[int]) -> None:
    """What was drawn is (epsilon, delta)-DP in 60 digits, and hardly less; with a little less noise it is refused."""
    made = approximate(Fraction(epsilon), Fraction(delta), blocks)
    mu = precise(made.mu2) ** HALF
    assert true_delta(mu, precise(made.epsilon)) <= precise(made.noise)
    if Fraction(1, 10**6) <= made.epsilon < 10**6:  # beyond, rounding is wider
        assert true_delta(mu * (1 + 1e-7), precise(made.epsilon)) > precise(made.noise)
    assert (made.cost("epsilon"), made.delta) == (Fraction(epsilon), Fraction(delta))
    less = tuple(Gaussian(one.scale * (1 - 1e-8), one.sensitivity) for one in made.drawn if isinstance(one, Gaussian))
    with pytest.raises(ValueError, match="costs more"):
        Approximate(made.epsilon, made.noise, less)


@pytest.mark.parametrize("persons", [1, 2, 4, 30])
def test_groups(persons: int) -> None:
    """k persons: k mu, at the same delta for the noise and the threshold's own; as dp-accounting has it."""
    made = approximate(Fraction(1), Fraction(1, 10**6), [1], keys=3)
    sigma = 1 / (persons * math.sqrt(made.mu2))
    wanted = get_epsilon_gaussian(sigma, float(made.noise), 1e-9)
    assert float(made.epsilon_for(persons)) == pytest.approx(wanted, rel=1e-6)
    assert made.epsilon_for(persons) >= persons * made.epsilon
    _, threshold = made.drawn
    assert isinstance(threshold, Threshold)
    assert made.delta_for(persons) == made.noise + threshold.delta_for(persons)


@settings(deadline=None, max_examples=60)
@given(
    st.fractions(Fraction(1, 10**6), 100),
    st.integers(2, 15).map(lambda n: Fraction(1, 10**n)),
    st.lists(st.integers(1, 2**50), max_size=5),
    st.integers(1, 9),
)
def test_record(epsilon: Fraction, delta: Fraction, blocks: list[int], keys: int) -> None:
    made = approximate(epsilon, delta, blocks, keys)
    assert read(write([made])) == (made,)
    charge = cost([made, made], "epsilon")
    assert (charge.amount, charge.delta) == (units(2 * epsilon), units(2 * made.delta))


def test_no_other_noise_and_no_other_ledger() -> None:
    made = approximate(Fraction(1), Fraction(1, 10**6), [1])
    for currency in set(CURRENCIES.values()) - {"epsilon"}:
        with pytest.raises(ValueError, match="as it is"):
            made.cost(currency)
    for drawn in ((Laplace(1.0, 1),), (Threshold(30, 1, Laplace(1.0, 1)),), ()):
        with pytest.raises(ValueError):
            Approximate(Fraction(1), Fraction(1, 10**6), drawn)
    for epsilon, noise in ((0, HALF), (-1, HALF), (1, 0), (1, 1), (1, 2)):
        with pytest.raises(ValueError):
            Approximate(Fraction(epsilon), Fraction(noise), made.drawn)
    with pytest.raises(ValueError, match="no pure epsilon"):  # alone it cannot be charged there
        cost(made.drawn, "epsilon")


# --- in a ledger ------------------------------------------------------------------------------------------------------

QUERY = "SELECT day, count(DISTINCT person) AS n FROM visits GROUP BY day"


def asked(path: Path, declared: bool, neighbours: str) -> Plan:
    """A person is on 20 days: from that many on Gaussian noise is smaller."""
    policy = {
        "dataset": {"id": "visits"},
        "budget": {"epsilon": 3.0, "delta": 3e-6, "accounting": "pure", "neighbours": neighbours},
        "defaults": {"max_rows_contributed": 20, "epsilon": 1.0, "delta": 1e-6},
        "tables": {"visits": {"person": "person", "columns": {"day": {"in": list(range(20))}} if declared else {}}},
    }
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE visits AS SELECT i % 900 AS person, i // 900 AS day FROM range(18000) t(i)")
        with dpsql.connect(connection, policy=policy, ledger=path) as db:
            plan = db.explain(QUERY).plan
            assert isinstance(plan, Plan) and "choice    gaussian noise" in str(db.explain(QUERY))
            for _ in range(3):
                answer = db.sql(QUERY)
                assert len(answer) >= 20 and answer.loss.delta == 1e-6
                assert all(abs(n - 900) < 300 for day, n in answer.fetchall() if day is not None)
            assert db.budget.left.amount == 0
            with pytest.raises(dpsql.BudgetExhausted):
                db.sql(QUERY)
            assert db.history[0].charge == plan.charge
    return plan


@pytest.mark.parametrize("neighbours", ["add-remove", "replace"])
@pytest.mark.parametrize("declared", [True, False])
def test_a_ledger_verifies(tmp_path: Path, declared: bool, neighbours: str) -> None:
    path = tmp_path / "visits.ledger"
    plan = asked(path, declared, neighbours)
    (one,) = plan.sampled
    assert isinstance(one, Approximate) and (plan.release.threshold is None) == declared and verify(path)
    assert plan.charge.amount == units(Fraction(1)) and plan.charge.delta <= units(Fraction(1, 10**6))
    alone, family = recorded(path).spent(), recorded(path).spent(4)
    assert alone.epsilon == 3 and alone.delta == pytest.approx(3 * plan.charge.delta / 10**18)
    assert family.epsilon == pytest.approx(3 * float(one.epsilon_for(4))) and family.epsilon > 12
    assert family.delta == pytest.approx(3 * float(one.delta_for(4)))


def test_without_delta_left_there_is_laplace_noise() -> None:
    """What the refusal says works: a delta at which Laplace noise is smaller costs none; in many groups, a smaller limit too."""
    policy = {
        "dataset": {"id": "visits"},
        "budget": {"epsilon": 9.0, "delta": 1e-6, "accounting": "pure"},
        "defaults": {"max_rows_contributed": 100, "max_groups_contributed": 20, "epsilon": 1.0, "delta": 1e-6},
        "tables": {"visits": {"person": "person", "columns": {"day": {"in": list(range(200))}}}},
    }
    private = "SELECT person % 7, count(*) FROM visits GROUP BY 1"
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE visits AS SELECT i % 900 AS person, i // 900 AS day FROM range(18000) t(i)")
        with dpsql.connect(connection, policy=policy, ledger=":memory:") as db:
            db.sql(QUERY)
            for query, hint in ((QUERY, "Pass delta=1e-30"), (private, "Ask for a smaller epsilon or delta")):
                with pytest.raises(dpsql.BudgetExhausted, match="too little delta") as caught:
                    db.sql(query)
                assert hint in caught.value.hint
            with pytest.raises(dpsql.BudgetExhausted, match="% left") as caught:
                db.sql(QUERY, epsilon=8.5)
            assert "smaller epsilon" in caught.value.hint
            assert db.sql(QUERY, delta=1e-30).loss.delta == 0
            with pytest.raises(dpsql.BudgetExhausted, match="max_groups_contributed"):
                db.sql(QUERY, delta=1e-30, max_groups_contributed=100)
            assert db.sql(QUERY, max_groups_contributed=2).loss.delta == 0
            assert db.budget.spent.delta == 1e-6 and db.budget.spent.amount == pytest.approx(3)


def test_an_id_whose_query_had_other_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answered by a version that always chose Laplace noise: it is refused, and the reason is true."""
    policy = {
        "dataset": {"id": "visits"},
        "budget": {"epsilon": 3.0, "delta": 3e-6, "accounting": "pure"},
        "defaults": {"max_rows_contributed": 20, "epsilon": 1.0, "delta": 1e-6},
        "tables": {"visits": {"person": "person", "columns": {"day": {"in": list(range(20))}}}},
    }
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE visits AS SELECT i % 900 AS person, i // 900 AS day FROM range(18000) t(i)")
        with monkeypatch.context() as patch:
            patch.setattr("dpsql.compiler.compile.prefer", lambda laplace, gaussian: laplace)
            with dpsql.connect(connection, policy=policy, ledger=tmp_path / "visits.ledger") as db:
                db.sql(QUERY, query_id="q")
        with dpsql.connect(connection, policy=policy, ledger=tmp_path / "visits.ledger") as db:
            with pytest.raises(dpsql.Refused, match="by a version that chose other noise") as caught:
                db.sql(QUERY, query_id="q")
            assert caught.value.code == "query_differs" and db.budget.spent.amount == 1


def with_more(change: Callable[[dict[str, Any]], Any]) -> Callable[[Entry], Entry]:
    def changed(entry: Entry) -> Entry:
        (record,) = json.loads(entry.mechanisms)
        change(record)
        return entry._replace(mechanisms=json.dumps([record]))

    return changed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda record: record.update(epsilon="2"), "charge does not follow"),
        (lambda record: record.update(noise="1/10000"), "charge does not follow"),
        (lambda record: record.update(epsilon="99/100"), "damaged"),  # its noise would not be enough
        (lambda record: record["drawn"][0].update(sensitivity="99999999"), "damaged"),
        (lambda record: record.update(drawn=[]), "damaged"),
        (lambda record: record.update(epsilon="-1"), "damaged"),
        (lambda record: record.update(epsilon="1/0"), "damaged"),
        (lambda record: record.update(epsilon="1e999"), "damaged"),
    ],
)
def test_a_row_that_was_changed(tmp_path: Path, change: Callable[[dict[str, Any]], Any], message: str) -> None:
    """By one who can make the chain anew: the charge must follow from the record, and the record from its noise."""
    path = tmp_path / "visits.ledger"
    asked(path, True, "add-remove")
    resealed(path, with_more(lambda record: None), 2)
    assert verify(path)
    resealed(path, with_more(change), 2)
    with pytest.raises(dpsql.Refused, match=message) as caught:
        verify(path)
    assert caught.value.code == "ledger_corrupt"
