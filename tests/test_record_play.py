"""The same transcript on D, on D' and on the empty database, with each release replaced by the one recorded on D.

Then everything that an analyst sees must be equal to the byte: SQL, scales, charge, schema, errors, rows, error bars. What
is left is the exact input of each release, which test_lemmas bounds.
"""

from __future__ import annotations

from typing import Any

import duckdb
import pytest
import shop
import spec

import dpsql
from dpsql import session as sessions
from dpsql._native import Noisy
from dpsql.plan import Plan
from dpsql.release import choose, release

QUERIES = [one.query for one in spec.every()]
POLICIES = {"gdp": shop.policy(), "pure": shop.pure(), "undeclared": shop.undeclared()}


def transcript(connection: duckdb.DuckDBPyConnection, policy: dict[str, Any]) -> list[str]:
    """Everything that an analyst gets to see who asks all queries of the specs, in order."""
    db = dpsql.connect(connection, policy=policy, ledger=":memory:")
    seen: list[str] = []
    for query in QUERIES:
        try:
            seen.append(str(db.explain(query)))
            answer = db.sql(query)
            seen.append(repr((answer.columns, answer.types, list(answer), answer.errors, answer.interval(0.5))))
            seen.append(repr((answer.loss, answer.notes, answer.plan)))
        except dpsql.Error as error:
            seen.append(f"{type(error).__name__} {error}")
        seen.append(str(db.budget))
    return seen


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_record_play(seed: int, policy: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[Noisy] = []
    picked: list[tuple[int, ...]] = []
    rows = shop.wild(seed)

    def note(plan: Plan, exact: Any) -> tuple[int, ...]:
        picked.append(choose(plan, exact))
        return picked[-1]

    def record(plan: Plan, exact: Any) -> Noisy:
        recorded.append(release(plan, exact))
        return recorded[-1]

    monkeypatch.setattr(sessions, "release", record)
    monkeypatch.setattr(sessions, "choose", note)
    original = transcript(shop.database(rows), policy)
    assert recorded
    person = next(row[0] for row in rows["customer"] if row[0] is not None)
    for neighbour in (shop.without(rows, person), {}, shop.only(rows, [person]))[: 2 + seed]:
        tape, choices = iter(recorded), iter(picked)

        def play(plan: Plan, exact: Any, tape: Any = tape) -> Noisy:
            release(plan, exact)  # the exact query runs, and its noise is drawn and forgotten
            return next(tape)

        def repeat(plan: Plan, exact: Any, choices: Any = choices) -> tuple[int, ...]:
            choose(plan, exact)
            rungs: tuple[int, ...] = next(choices)
            return rungs

        monkeypatch.setattr(sessions, "release", play)
        monkeypatch.setattr(sessions, "choose", repeat)
        assert transcript(shop.database(neighbour), policy) == original
        assert next(tape, None) is None and next(choices, None) is None


def test_a_leak_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test of the test: a plan that looks at the data gives itself away."""
    monkeypatch.setattr(f"{__name__}.QUERIES", QUERIES[:5])
    original = transcript(shop.database(shop.wild(0)), shop.policy())
    assert transcript(shop.database(shop.wild(0)), shop.policy()) != original, "noise should differ between two runs"
