"""Every spec is compared as text, and executed: with a huge epsilon the answer is DuckDB's own."""

from __future__ import annotations

import datetime
import math
from functools import cache
from typing import Any

import duckdb
import pytest
import spec

import dpsql
from dpsql.answer import BARS
from dpsql.compiler.parse import parse
from dpsql.compiler.program import Plan
from dpsql.explain import formatted
from dpsql.kernel.keys import PublicKeys

EVERY = spec.every()
WIDE = {"epsilon": 1.0, "max_rows_contributed": 64, "max_groups_contributed": 64}


@cache
def plain(name: str) -> duckdb.DuckDBPyConnection:
    return spec.DATABASES[name].connect(spec.DATABASES[name].clean())


@cache
def session(name: str, wide: bool = False) -> dpsql.Session:
    one = spec.DATABASES[name]
    # At the same epsilon and limits the noise of a pure ledger is far smaller: the shop shows that the other's is small too.
    # The clean shop keeps within its limits; the noise of wider ones would show in its small groups.
    policy = {**one.pure(), "defaults": WIDE} if wide and name != "shop" else one.policy()
    return dpsql.connect(plain(name), policy=policy, ledger=":memory:")


def outcome(session: dpsql.Session, query: str) -> dict[str, str]:
    """What becomes of a query, under the names of the blocks that may stand behind it."""
    try:
        explained = session.explain(query)
    except dpsql.Refused as refusal:
        return {"refused": f"{refusal}\n"}
    plan = explained.plan
    shown = {"outer": [plan.outer]}
    if isinstance(plan, Plan):
        exact = [query.sql for query in plan.release.exact.all]
        shown = {"first": [plan.release.climb], "exact": exact, **shown}
    pretty = {name: ";\n\n".join(map(formatted, filter(None, texts))) for name, texts in shown.items()}
    pretty = {name: f"{text}\n" for name, text in pretty.items() if text}
    # What is the same in every explanation is not repeated in every spec; what would be cheaper is in test_explain.
    usual = ("cost", "left", "cheaper")
    lines = [line for line in explained.lines if not line.startswith(usual) and not line.endswith(BARS)]
    return {"plan": "\n".join(lines) + "\n", **pretty}


@pytest.mark.parametrize("one", EVERY, ids=str)
def test_text(one: spec.Spec, request: pytest.FixtureRequest) -> None:
    actual = outcome(session(one.database.name), one.query)
    if request.config.getoption("--update-specs"):
        spec.update(one, actual)
    else:
        assert any(kind != "duckdb" for kind, _ in one.expected), (
            "no expectation: run pytest --update-specs and read what it wrote"
        )
        for kind, text in one.expected:
            assert kind == "duckdb" or actual.get(kind) == text


@pytest.mark.parametrize("one", [one for one in EVERY if not one.refused], ids=str)
def test_answer(one: spec.Spec) -> None:
    """Names, types, number of rows, order and values are those of the plain query."""
    answer = session(one.database.name, wide=True).sql(one.query, epsilon=1e12)
    exact = plain(one.database.name).sql(one.plain)
    assert answer.columns == tuple(exact.columns)
    assert answer.types == tuple(str(type_) for type_ in exact.types)
    mine, theirs = answer.fetchall(), exact.fetchall()
    ordered = bool(parse(one.query, spec.NOW).tree.args.get("order"))
    if not ordered:
        mine, theirs = sorted(mine, key=repr), sorted(theirs, key=repr)
    public = answer.plan is not None and any(isinstance(part.release.keys, PublicKeys) for part in answer.plan.parts)
    if public and len(mine) > len(theirs):  # groups without rows are shown too
        mine = [row for row in mine if 0 not in row or any(all(map(close, row, other)) for other in theirs)]
    assert len(mine) == len(theirs)
    for row, wanted in zip(mine, theirs, strict=True):
        for cell, value in zip(row, wanted, strict=True):
            assert close(cell, value), (row, wanted)
    assert all(bar is None or bar >= 0 for bars in answer.errors for bar in bars)


def close(cell: Any, value: Any) -> bool:
    if isinstance(value, datetime.timedelta) and isinstance(cell, datetime.timedelta):
        cell, value = cell.total_seconds(), value.total_seconds()
    if isinstance(value, bool) or (not isinstance(value, int | float) and not hasattr(value, "as_tuple")):
        return bool(cell == value)
    return isinstance(cell, type(value)) and math.isclose(cell, value, rel_tol=1e-3, abs_tol=1e-6)
