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
from dpsql import run
from dpsql._native import Noisy
from dpsql.kernel.noise import Release
from dpsql.kernel.release import choose, release

QUERIES = {name: [one.query for one in spec.every(name)] for name in spec.DATABASES}
KINDS = ("policy", "pure", "undeclared", "pure_undeclared")  # of policies


def transcript(
    connection: duckdb.DuckDBPyConnection, policy: dict[str, Any], queries: list[str], explained: bool = True
) -> list[str]:
    """Everything that an analyst gets to see who asks all queries of the specs, in order."""
    db = dpsql.connect(connection, policy=policy, ledger=":memory:")
    seen: list[str] = []
    for query in queries:
        try:
            if explained:
                seen.append(str(db.explain(query)))
            answer = db.sql(query)
            seen.append(repr((answer.columns, answer.types, list(answer), answer.errors, answer.interval(0.5))))
            seen.append(repr((answer.loss, answer.notes, answer.plan)))
        except dpsql.Error as error:
            seen.append(f"{type(error).__name__} {error}")
        seen.append(str(db.budget))
    return seen


CASES = [
    (name, kind, 0)
    for name in QUERIES
    for kind in KINDS
    if kind == "policy" or (name == "shop" and kind != "pure_undeclared")
]
LATER = [(name, kind, seed) for name in QUERIES for kind in KINDS for seed in (1, 2)]


@pytest.mark.parametrize(("name", "kind", "seed"), [*CASES, *(pytest.param(*c, marks=pytest.mark.long) for c in LATER)])
def test_record_play(name: str, kind: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[Noisy] = []
    picked: list[tuple[int, ...]] = []
    long = (name, kind, seed) in LATER  # EXPLAIN is made of the plan, which an answer has too
    step = 1 if long or (name, kind) == ("shop", "policy") else 3
    one, queries = spec.DATABASES[name], QUERIES[name][::step]
    rows, policy = one.wild(seed), getattr(one, kind)()

    def note(made: Release, *exact: Any) -> tuple[int, ...]:
        picked.append(choose(made, *exact))
        return picked[-1]

    def record(made: Release, *exact: Any) -> Noisy:
        recorded.append(release(made, *exact))
        return recorded[-1]

    monkeypatch.setattr(run, "release", record)
    monkeypatch.setattr(run, "choose", note)
    original = transcript(one.connect(rows), policy, queries, long)
    assert recorded
    person = one.persons(rows)[0]
    for neighbour in (one.without(rows, person), {}, one.only(rows, [person]))[: 3 if long else 1]:
        tape, choices = iter(recorded), iter(picked)

        def play(made: Release, *exact: Any, tape: Any = tape) -> Noisy:
            release(made, *exact)  # the exact query runs, and its noise is drawn and forgotten
            return next(tape)

        def repeat(made: Release, *exact: Any, choices: Any = choices) -> tuple[int, ...]:
            choose(made, *exact)
            rungs: tuple[int, ...] = next(choices)
            return rungs

        monkeypatch.setattr(run, "release", play)
        monkeypatch.setattr(run, "choose", repeat)
        assert transcript(one.connect(neighbour), policy, queries, long) == original
        assert next(tape, None) is None and next(choices, None) is None


def test_a_leak_is_found() -> None:
    """The test of the test: a plan that looks at the data gives itself away."""
    queries = QUERIES["shop"][:5]
    original = transcript(shop.database(shop.wild(0)), shop.policy(), queries)
    assert transcript(shop.database(shop.wild(0)), shop.policy(), queries) != original, (
        "noise should differ between two runs"
    )
