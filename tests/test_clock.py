"""The time of a statement: one constant, taken once, part of the request."""

from __future__ import annotations

import datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from shop import SHOP, database, policy
from test_parse import catalog

import dpsql
from dpsql import session as sessions
from dpsql.compiler.compile import compile
from dpsql.policy.catalog import read_policy
from dpsql.session import rounded

RECENT = "SELECT count(*) AS n FROM orders WHERE placed > now() - INTERVAL 30 DAY"
FIRST = datetime.datetime(2021, 2, 1, 12, 34, 56)


class Clock:
    """A clock that stands still."""

    moment = FIRST


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(sessions, "here", lambda: made.moment)
    return made


def connect(**defaults: Any) -> dpsql.Session:
    declared = policy()
    declared["defaults"] = {**declared.get("defaults", {}), **defaults}
    return dpsql.connect(database(SHOP.clean()), policy=declared, ledger=":memory:")


def test_each_statement_has_the_time_of_its_own(clock: Clock) -> None:
    db = connect()
    before = db.sql(RECENT, epsilon=1e12).fetchall()
    clock.moment = FIRST + datetime.timedelta(days=365)
    after = db.sql(RECENT, epsilon=1e12).fetchall()
    assert before[0][0] > 0 and after == [(0,)]


def test_it_is_rounded_down_to_the_clock_of_the_policy(clock: Clock) -> None:
    db = connect()
    (row,) = db.sql("SELECT now() AS a, current_timestamp AS b, today() AS c, current_date AS d, now()")
    hour = datetime.datetime(2021, 2, 1, 12)
    assert tuple(row) == (hour, hour, hour.date(), hour.date(), hour)
    assert db.explain(RECENT).plan.parts[0].release.text.count("2021-02-01 12:00:00") == 1
    (row,) = connect(clock="1 day").sql("SELECT now()")
    assert tuple(row) == (datetime.datetime(2021, 2, 1),)
    assert len(db.rehearse(RECENT).fetchall()) == 1


@pytest.mark.parametrize("given", ["soon", "", 3600, "1 month", "0 hours", "400 days", "-1 hour"])
def test_a_clock_that_is_none_is_refused(given: object) -> None:
    with pytest.raises(dpsql.Refused, match=r"defaults\.clock"):
        read_policy({"budget": {"epsilon": 1}, "defaults": {"clock": given}, "tables": {}})


def test_weeks_begin_on_mondays() -> None:
    week = read_policy({"budget": {"epsilon": 1}, "defaults": {"clock": "7 days"}, "tables": {}}).defaults.clock
    assert rounded(datetime.datetime(2024, 5, 17, 9), week) == datetime.datetime(2024, 5, 13)


def test_a_repeated_id_has_the_answer_of_the_first_asking(clock: Clock) -> None:
    db = connect()
    first = db.sql(RECENT, query_id="recent").fetchall()
    spent = db.budget.spent
    clock.moment = FIRST + datetime.timedelta(days=365)
    assert db.sql(RECENT, query_id="recent").fetchall() == first
    assert db.budget.spent == spent
    with pytest.raises(dpsql.Refused, match="query_differs"):
        db.sql(RECENT.replace("30", "31"), query_id="recent")


def test_views_have_it_too(clock: Clock) -> None:
    declared = policy()
    declared["views"] = {"recent": "SELECT * FROM orders WHERE placed > now() - INTERVAL 30 DAY"}
    db = dpsql.connect(database(SHOP.clean()), policy=declared, ledger=":memory:")
    before = db.sql("SELECT count(*) FROM recent", epsilon=1e12).fetchall()
    clock.moment = FIRST + datetime.timedelta(days=365)
    after = db.sql("SELECT count(*) FROM recent", epsilon=1e12).fetchall()
    assert before[0][0] > 0 and after == [(0,)]


def test_compiling_has_no_clock_of_its_own() -> None:
    with pytest.raises(dpsql.Refused, match="time_unknown"):
        compile(RECENT, catalog("gdp"), Fraction(1), Fraction(1, 10**8))
    made = compile(RECENT, catalog("gdp"), Fraction(1), Fraction(1, 10**8), now=FIRST)
    assert "2021-02-01 12:34:56" in made.parts[0].release.text
    passes = Path(sessions.__file__).parent / "compiler"
    assert not any("datetime.now" in file.read_text() for file in passes.glob("*.py"))
