"""Rows that may reach several persons: refused unless it is known that they do not, or the owner accepts it."""

from __future__ import annotations

import random
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pytest
from sql_form import inner
from test_frontends import run
from test_lemmas import assert_within

import dpsql
from dpsql.compiler.compile import compile
from dpsql.compiler.program import Plan
from dpsql.kernel.keys import PublicKeys
from dpsql.policy.catalog import build, read_policy

OWNERS, MOVES = (
    "CREATE TABLE owners (account INTEGER, person INTEGER{})",
    "CREATE TABLE moves (account INTEGER, amount INTEGER)",
)
QUERIES = [
    "SELECT count(*) FROM moves",
    "SELECT sum(amount) FROM moves",
    "SELECT amount, count(*), sum(amount) FROM moves GROUP BY amount",
    "SELECT count(*) FROM moves JOIN owners USING (account)",
    "SELECT count(*) FROM moves m WHERE EXISTS (SELECT 1 FROM owners o WHERE o.account = m.account)",
    "SELECT count(*) FROM (SELECT o.person, count(*) AS n FROM moves m JOIN owners o ON o.account = m.account GROUP BY o.person)",
]


def policy(shared: bool = False, **more: Any) -> dict[str, Any]:
    moves: dict[str, Any] = {
        "person": {"column": "account", "references": "owners.account"},
        "columns": {"amount": {"between": [0, 3]}},
    }
    return {
        "dataset": {"id": "bank", **more},
        "budget": {"epsilon": 100.0, "delta": 1e-6},
        "defaults": {"epsilon": 0.5, "max_rows_contributed": 8},
        "tables": {"owners": {"person": "person"}, "moves": moves | ({"shared": True} if shared else {})},
    }


def bank(owners: list[tuple[int, int]], moves: list[tuple[int, int]], key: str = "") -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute(OWNERS.format(key))
    connection.execute(MOVES)
    for table, rows in (("owners", owners), ("moves", moves)):
        for row in rows:
            connection.execute(f"INSERT INTO {table} VALUES (?, ?)", row)
    return connection


@pytest.mark.parametrize("query", QUERIES)
def test_refused_where_nothing_is_known(query: str) -> None:
    with pytest.raises(dpsql.Refused, match="persons_not_verified") as caught:
        dpsql.connect(bank([], []), policy=policy(), ledger=":memory:").explain(query)
    assert "ALTER TABLE owners ADD PRIMARY KEY (account)" in caught.value.hint and "shared = true" in caught.value.hint


def test_a_reference_to_the_person_needs_nothing() -> None:
    known = policy()
    known["tables"] = {
        "owners": {"person": "person"},
        "orders": {"person": {"column": "buyer", "references": "owners.person"}},
        "payments": {"person": {"column": "payer", "references": "orders.buyer"}},  # whose value is the person too
    }
    connection = bank([(1, 1), (1, 2)], [])
    connection.execute("CREATE TABLE orders AS SELECT 1 AS buyer; CREATE TABLE payments AS SELECT 1 AS payer")
    db = dpsql.connect(connection, policy=known, ledger=":memory:")
    for table in ("orders", "payments"):
        assert db.explain(f"SELECT count(*) FROM {table}").plan.charge.amount


def test_a_shared_table_on_the_way_says_nothing_of_others() -> None:
    """Rows that refer to one row of a shared table would be copied with it: who owns them is said for each table."""
    known = policy(shared=True)
    known["tables"]["tags"] = {"person": {"column": "move", "references": "moves.id"}}
    connection = bank([(1, 1), (1, 2)], [])
    connection.execute("ALTER TABLE moves ADD COLUMN id INTEGER; CREATE TABLE tags AS SELECT 1 AS move")
    connection.execute("CREATE UNIQUE INDEX one ON moves (id)")
    known["dataset"]["version"] = "1"
    with pytest.raises(dpsql.Refused, match="persons_not_verified") as caught:
        dpsql.connect(connection, policy=known, ledger=":memory:").explain("SELECT count(*) FROM tags")
    assert "a row of tags may reach several persons" in caught.value.message and "[tables.tags]" in caught.value.hint
    known["tables"]["tags"]["shared"] = True
    assert dpsql.connect(connection, policy=known, ledger=":memory:").explain("SELECT count(*) FROM tags").plan


@pytest.mark.parametrize("key", [", PRIMARY KEY (account)", ", UNIQUE (account)", ", UNIQUE (account, person)"])
def test_a_constraint_of_the_engine_is_enough(key: str) -> None:
    db = dpsql.connect(bank([(1, 1)], [], key), policy=policy(), ledger=":memory:")
    if "person" not in key:
        assert db.explain(QUERIES[0]).plan.charge.amount
        return
    with pytest.raises(dpsql.Refused, match="persons_not_verified"):  # two owners of one account are allowed by it
        db.explain(QUERIES[0])


def test_composite_keys() -> None:
    connection = duckdb.connect()
    connection.execute("CREATE TABLE lines (a INTEGER, b INTEGER, c INTEGER, person INTEGER, UNIQUE (a, b))")
    connection.execute("CREATE TABLE returns (a INTEGER, b INTEGER)")
    tables = {
        "lines": {"person": "person"},
        "returns": {"person": {"columns": ["a", "b"], "references": "lines(a, b)"}},
    }
    db = dpsql.connect(connection, policy=policy() | {"tables": tables}, ledger=":memory:")
    assert db.explain("SELECT count(*) FROM returns").plan.charge.amount


def test_the_hint_works(tmp_path: Path) -> None:
    """A file whose owners hold no constraint: the owner verifies it for a version, and the record is for that version alone."""
    path = tmp_path / "bank.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(OWNERS.format(""))
        connection.execute(MOVES)
        connection.execute("INSERT INTO owners SELECT range, range FROM range(100)")
        connection.execute("INSERT INTO moves SELECT range % 100, range % 4 FROM range(300)")
    text = '[dataset]\nid = "bank"\nversion = "1"\n[budget]\nepsilon = 10\n[defaults]\nepsilon = 0.5\nmax_rows_contributed = 8\n'
    text += '[tables.owners]\nperson = "person"\n[tables.moves]\nperson = { column = "account", references = "owners.account" }\n'
    (tmp_path / "bank.policy.toml").write_text(text)
    refused = run(tmp_path, "sql", "bank.duckdb", QUERIES[0])
    assert refused.returncode == 3 and "`dpsql policy verify bank.duckdb`" in refused.stderr
    assert run(tmp_path, "policy", "verify", "bank.duckdb").returncode == 0
    assert run(tmp_path, "sql", "bank.duckdb", QUERIES[0]).returncode == 0
    (tmp_path / "bank.policy.toml").write_text(text.replace('version = "1"', 'version = "2"'))
    assert "persons_not_verified" in run(tmp_path, "sql", "bank.duckdb", QUERIES[0]).stderr
    with duckdb.connect(str(path)) as connection:
        connection.execute("INSERT INTO owners VALUES (7, 1000)")
    assert run(tmp_path, "policy", "verify", "bank.duckdb").returncode == 3
    assert "persons_not_verified" in run(tmp_path, "sql", "bank.duckdb", QUERIES[0]).stderr


def test_prepare_verifies_too(tmp_path: Path) -> None:
    path = tmp_path / "bank.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(OWNERS.format(""))
        connection.execute(MOVES)
        connection.execute("INSERT INTO owners SELECT range, range FROM range(100)")
    text = '[dataset]\nid = "bank"\nversion = "1"\n[budget]\nepsilon = 10\n[defaults]\nepsilon = 0.5\nmax_rows_contributed = 8\n'
    text += '[tables.owners]\nperson = "person"\n[tables.moves]\nperson = { column = "account", references = "owners.account" }\n'
    (tmp_path / "bank.policy.toml").write_text(text)
    done = run(tmp_path, "prepare", "bank.duckdb")
    assert done.returncode == 0 and "recorded in bank.ledger for version '1': 1 key" in done.stderr
    assert run(tmp_path, "sql", "bank.duckdb", QUERIES[0]).returncode == 0
    (tmp_path / "bank.duckdb.prepared").unlink()
    assert run(tmp_path, "sql", "bank.duckdb", QUERIES[0]).returncode == 0  # by the record


def test_frames_are_looked_at_when_they_are_loaded() -> None:
    moves = pd.DataFrame({"account": [1, 2], "amount": [1, 2]})
    for accounts, one in (([1, 2], True), ([1, 1], False)):
        owners = pd.DataFrame({"account": accounts, "person": [1, 2]})
        with dpsql.connect({"owners": owners, "moves": moves}, policy=policy(), ledger=":memory:") as db:
            if one:
                assert db.explain(QUERIES[0]).plan.charge.amount
            else:
                with pytest.raises(
                    dpsql.Refused, match=r"persons_not_verified[^$]*The owner loads owners with one row"
                ):
                    db.explain(QUERIES[0])


@pytest.mark.parametrize("query", [*QUERIES, "SELECT count(*) FROM owners a JOIN owners b USING (account, person)"])
def test_what_was_looked_at_shapes_no_plan(query: str) -> None:
    """One more owner of an account: EXPLAIN says the same, as it does for all neighbours."""
    moves, told = pd.DataFrame({"account": [1, 2, 3] * 50, "amount": [1] * 150}), set[str]()
    for joint in (0, 1):
        owners = pd.DataFrame({"account": [1, 2, 3] + [3] * joint, "person": [1, 2, 3] + [9] * joint})
        with dpsql.connect({"owners": owners, "moves": moves}, policy=policy(shared=True), ledger=":memory:") as db:
            told.add(str(db.explain(query)))
    assert len(told) == 1


# --- lemmas: what one person moves, under both kinds of neighbours ------------------------------------------------------


def exact(connection: duckdb.DuckDBPyConnection, plan: Plan) -> dict[tuple[Any, ...], tuple[int, ...]]:
    rows = connection.execute(inner(plan.release)).fetchall()
    if isinstance(plan.release.keys, PublicKeys):
        return {(number,): row for number, row in enumerate(rows)}
    width = len(plan.release.keys.columns)
    return {tuple(map(repr, row[:width])): row[width:] for row in rows}


def compiled(connection: duckdb.DuckDBPyConnection, shared: bool, query: str) -> Plan:
    from dpsql.backends import DuckDB

    declared = read_policy(policy(shared))
    with DuckDB(connection).snapshot() as snapshot:
        catalog = build(declared, snapshot.schemas(declared.tables))
    made = compile(query, catalog, Fraction(1), Fraction(1, 10**8))
    assert isinstance(made, Plan)
    return made


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_what_one_person_moves(shared: bool, seed: int) -> None:
    """One owner of an account: all rows that reach the person go with them, as the promise says. Several owners: only the
    person's own copies go, which is what `shared` accepts."""
    r = random.Random(seed)
    persons = range(8)
    owners = [(account, r.choice(persons)) for account in range(12)]
    owners += [(r.randrange(12), r.choice(persons)) for _ in range(20)] if shared else []
    moves = [(r.choice([0, 0, *range(14)]), r.randrange(5)) for _ in range(150)]
    key = "" if shared else ", UNIQUE (account)"
    whole = bank(owners, moves, key)
    plans = [compiled(whole, shared, query) for query in QUERIES]
    found = [exact(whole, plan) for plan in plans]
    for person in persons:
        left = [row for row in owners if row[1] != person]
        # A move whose account has nobody left is gone with the last of them; without `shared` that is each that reaches them.
        gone = {account for account, _ in owners} - {account for account, _ in left}
        if not shared:
            assert gone == {account for account, who in owners if who == person}
        smaller = bank(left, [row for row in moves if row[0] not in gone], key)
        for plan, before in zip(plans, found, strict=True):
            assert_within(plan, before, exact(smaller, plan))


def test_composite_keys_are_verified(tmp_path: Path) -> None:
    path = tmp_path / "shop.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(
            "CREATE TABLE lines AS SELECT range // 2 AS a, range % 2 AS b, range AS person FROM range(40)"
        )
        connection.execute("CREATE TABLE returns AS SELECT range // 2 AS a, range % 2 AS b FROM range(40)")
    text = '[dataset]\nversion = "1"\n[budget]\nepsilon = 10\n[defaults]\nepsilon = 0.5\nmax_rows_contributed = 8\n'
    text += '[tables.lines]\nperson = "person"\n[tables.returns]\nperson = { columns = ["a", "b"], references = "lines(a, b)" }\n'
    (tmp_path / "shop.policy.toml").write_text(text)
    question = "SELECT count(*) FROM returns"
    assert "persons_not_verified" in run(tmp_path, "sql", "shop.duckdb", question).stderr
    assert run(tmp_path, "policy", "verify", "shop.duckdb").returncode == 0
    assert run(tmp_path, "sql", "shop.duckdb", question).returncode == 0
