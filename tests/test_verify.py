"""The owner's check on the data: exact, one line for each declaration, and a record for the version that was declared."""

from __future__ import annotations

import datetime
import math
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_frontends import good, run

from dpsql.history import recorded
from dpsql.ledger import Ledger
from dpsql.policy.catalog import read_policy
from dpsql.session import opened
from dpsql.verify import verify

POLICY = """
[dataset]
id = "shop"
version = "2024-06"
[budget]
epsilon = 1.0
[tables.people]
person = "id"
key = ["id"]
[tables.people.columns]
age = { between = [0, 120] }
weight = { between = [0.5, 200] }
city = { in = ["Bern", "it's"] }
born = { between = [1900-01-01, 2024-12-31] }
[tables.visits]
person = { column = "person", references = "people.id" }
key = ["person", "n"]
"""
GOOD_PEOPLE = [
    (1, 20, 60.0, "Bern", datetime.date(1999, 1, 1)),
    (2, None, None, None, None),
    (3, 120, 0.5, "it's", None),
]
GOOD_VISITS = [(1, 1), (1, 2), (2, 1)]
CLAIMS = {
    "id is unique": "tables.people.key",
    "id is never": "tables.people.person",
    "age": "tables.people.columns.age.between",
    "weight": "tables.people.columns.weight.between",
    "city": "tables.people.columns.city.in",
    "born": "tables.people.columns.born.between",
    "person, n": "tables.visits.key",
    "person finds a": "tables.visits.person",
    "person finds no": "tables.visits.person",
}


def database(people: list[Any], visits: list[Any], target: str = ":memory:") -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(target)
    connection.execute("CREATE TABLE people (id INTEGER, age INTEGER, weight DOUBLE, city VARCHAR, born DATE)")
    connection.execute("CREATE TABLE visits (person INTEGER, n INTEGER)")
    connection.executemany("INSERT INTO people VALUES (?, ?, ?, ?, ?)", people)
    connection.executemany("INSERT INTO visits VALUES (?, ?)", visits)
    return connection


def no(people: list[Any], visits: list[Any], tmp_path: Path) -> set[str]:
    """The claims that do not hold."""
    (tmp_path / "p.toml").write_text(POLICY)
    backend, _, catalog = opened(database(people, visits), read_policy(tmp_path / "p.toml"))
    with backend.snapshot() as snapshot:
        findings = list(verify(catalog, snapshot.ask))
    names = [next(name for name in CLAIMS if finding.claim.startswith(name)) for finding in findings]
    assert [CLAIMS[name] for name in names] == [finding.place for finding in findings] and len(names) == len(CLAIMS)
    return {name for name, finding in zip(names, findings, strict=True) if not finding.holds}


def test_all_hold(tmp_path: Path) -> None:
    assert no(GOOD_PEOPLE, GOOD_VISITS, tmp_path) == set()


@pytest.mark.parametrize(
    ("person", "claims"),
    [
        ((1, 5, 60.0, None, None), {"id is unique", "person finds no"}),
        ((None, 5, 60.0, None, None), {"id is unique", "id is never"}),
        ((4, -1, 60.0, None, None), {"age"}),
        ((4, 121, 0.25, None, None), {"age", "weight"}),
        ((4, 5, math.nan, None, None), {"weight"}),
        ((4, 5, math.inf, None, None), {"weight"}),
        ((4, 5, 1.0, "bern", None), {"city"}),
        ((4, 5, 1.0, None, datetime.date(2025, 1, 1)), {"born"}),
    ],
)
def test_a_person_who_breaks_a_declaration(person: Any, claims: set[str], tmp_path: Path) -> None:
    assert no([*GOOD_PEOPLE, person], GOOD_VISITS, tmp_path) == claims


@pytest.mark.parametrize(
    ("visit", "claims"),
    [
        ((1, 1), {"person, n"}),
        ((1, None), {"person, n"}),
        ((9, 1), {"person finds a"}),
        ((None, 1), {"person, n", "person finds a"}),
    ],
)
def test_a_visit_that_breaks_a_declaration(visit: Any, claims: set[str], tmp_path: Path) -> None:
    assert no(GOOD_PEOPLE, [*GOOD_VISITS, visit], tmp_path) == claims


def test_the_command(tmp_path: Path) -> None:
    database(GOOD_PEOPLE, [*GOOD_VISITS, (1, 1)], str(tmp_path / "shop.duckdb")).close()
    (tmp_path / "shop.policy.toml").write_text(POLICY)
    done = run(tmp_path, "policy", "verify", "shop.duckdb")
    assert done.returncode == 3  # a key that does not hold
    assert "for the owner of the data: these answers are exact and not private" in done.stderr
    assert "fails  tables.visits.key: person, n is unique and never NULL" in done.stdout.splitlines()
    assert done.stdout.count("holds  ") == len(CLAIMS) - 1
    assert "recorded in shop.ledger for version '2024-06': 1 key" in done.stderr
    ledger = Ledger(tmp_path / "shop.ledger", "shop", read_policy(tmp_path / "shop.policy.toml"))
    assert ledger.verified("2024-06") == {("people", frozenset({"id"}))}
    assert ledger.verified("2024-07") == ledger.verified(None) == frozenset()


def test_how_much_lies_beyond(tmp_path: Path) -> None:
    """Shares of rows and of persons, for ranges and for limits; these are no error."""
    people = [(i, 200 if i < 2 else 20, None, None, None) for i in range(10)]
    database(
        people, [(i, n) for i in range(10) for n in range(7 if i == 0 else 1)], str(tmp_path / "shop.duckdb")
    ).close()
    limits = "max_rows_contributed = 4\n[tables.people.columns]"
    (tmp_path / "shop.policy.toml").write_text(
        POLICY.replace("[tables.people.columns]", limits) + "max_rows_contributed = 4\n"
    )
    lines = good(tmp_path, "policy", "verify", "shop.duckdb").splitlines()
    assert [line for line in lines if line.startswith("fails")] == [
        "fails  tables.people.columns.age.between: age lies in its range, or is NULL: "
        "20 % of the rows, of 20 % of the persons, are outside",
        "fails  tables.visits.max_rows_contributed: nobody has more than 4 rows of visits: "
        "10 % of the persons have more, and 18.8 % of the rows are beyond it",
    ]


def test_nothing_is_recorded_without_a_version(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1, 1], "age": [7, 700]}), tmp_path / "people.parquet")
    policy = '[budget]\nepsilon = 1.0\n[tables.people]\nperson = "id"\n[tables.people.columns]\nage = { between = [0, 120] }\n'
    (tmp_path / "people.policy.toml").write_text(policy)
    assert good(tmp_path, "policy", "verify", "people.parquet").splitlines() == [
        "holds  tables.people.person: id is never NULL",
        "fails  tables.people.columns.age.between: age lies in its range, or is NULL: "
        "50 % of the rows, of 100 % of the persons, are outside",
    ]
    assert not (tmp_path / "people.ledger").exists()
    (tmp_path / "people.policy.toml").write_text('[dataset]\nversion = "1"\n' + policy)
    good(tmp_path, "policy", "verify", "people.parquet", "--ledger", "elsewhere.ledger")
    assert recorded(tmp_path / "elsewhere.ledger").dataset == "people.parquet"
