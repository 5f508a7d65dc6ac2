"""What is public about the tables is free, and the same whatever the data is."""

from __future__ import annotations

from typing import Any

import duckdb
import pytest
import shop

import dpsql

SCHEMA = """
CREATE TABLE people (id INTEGER PRIMARY KEY, age INTEGER, city VARCHAR, mood ENUM ('s3cret', 'x'), born DATE);
CREATE SCHEMA crm;
CREATE TABLE crm.visits (person BIGINT, "odd ""name" DOUBLE NOT NULL, kind VARCHAR);
CREATE TABLE nation (code INTEGER, name VARCHAR);
CREATE TABLE hidden (secret INTEGER);
"""
POLICY: dict[str, Any] = {
    "dataset": {"id": "shop"},
    "budget": {"epsilon": 1.0},
    "analysts": {"ana": {"epsilon": 1.0}, "vera": {"role": "viewer"}},
    "tables": {
        "people": {
            "person": "id",
            "key": ["id"],
            "max_rows_contributed": 1,
            "columns": {
                "age": {"between": [0, 99]},
                "city": {"in": ["Bern", "Oslo"]},
                "born": {"between": ["1900-01-01", "2020-12-31"]},
            },
        },
        "crm.visits": {"person": {"column": "person", "references": "people.id"}},
        "nation": {"public": True},
    },
    "views": {
        "adults": "SELECT id, age FROM people WHERE age >= 18",
        "old_adults": "SELECT age + 1 AS next FROM adults",
        "odd": "SELECT count(*, contribution_bounds_per_group => (0, 2)) AS n FROM people",
    },
}
ROWS = "INSERT INTO people SELECT i, i, 'Bern', 's3cret', NULL FROM range(30) t(i); INSERT INTO nation VALUES (1, 'x');"


def session(rows: str = ROWS, analyst: str = "ana") -> dpsql.Session:
    connection = duckdb.connect()
    connection.execute(SCHEMA + rows)
    return dpsql.connect(connection, policy=POLICY, ledger=":memory:", analyst=analyst)


@pytest.fixture(scope="module")
def db() -> dpsql.Session:
    return session()


COMMANDS = [
    "DESCRIBE people",
    "describe people ;",
    "DESC people",
    "SHOW people",
    "SHOW TABLES",
    "SHOW ALL TABLES;",
    "DESCRIBE",
    "SUMMARIZE people",
    'SUMMARIZE "People"',
    "DESCRIBE crm.visits",
    'DESCRIBE "crm"."visits";',
    "DESCRIBE memory.crm.visits",
    "SUMMARIZE TABLE nation",
    "DESCRIBE adults",
    "DESCRIBE odd",
    "SELECT * FROM information_schema.tables ORDER BY table_name",
    "SELECT table_name, column_name FROM information_schema.columns WHERE data_type LIKE '%INT%' ORDER BY ALL;",
    "SELECT t.table_name, count(*) AS n FROM information_schema.tables t JOIN INFORMATION_SCHEMA.COLUMNS c "
    "USING (table_name) GROUP BY ALL HAVING n > 2 ORDER BY n DESC LIMIT 2",
    "WITH c AS (SELECT * FROM information_schema.columns) SELECT count(*) FROM c WHERE is_nullable = 'NO'",
    "SELECT * FROM information_schema.columns WHERE false",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_free_and_the_same_on_every_database(command: str) -> None:
    seen = set()
    for rows in (ROWS, ROWS.replace("range(30)", "range(29)"), ""):
        with session(rows, "vera") as db:
            answer = db.sql(command)
            seen.add(repr((answer.columns, answer.types, answer.fetchall(), answer.notes, answer.loss, db.tables)))
            assert answer.loss.epsilon == answer.loss.amount == db.budget.spent.amount == 0
            assert db.rehearse(command).columns == answer.columns
    (text,) = seen
    assert "s3cret" not in text and "hidden" not in text


def test_describe(db: dpsql.Session) -> None:
    answer = db.sql("DESCRIBE people")
    assert answer.columns == ("column_name", "column_type", "null", "key", "default", "extra")
    assert answer.fetchall() == [
        ("id", "INTEGER", "NO", "PRI", None, "the person"),
        ("age", "INTEGER", "YES", None, None, "between 0 and 99"),
        ("city", "VARCHAR", "YES", None, None, "in Bern, Oslo"),
        ("mood", "ENUM", "YES", None, None, None),
        ("born", "DATE", "YES", None, None, "between 1900-01-01 and 2020-12-31"),
    ]
    person, odd, _ = db.sql('DESCRIBE crm."visits"').fetchall()
    assert person[-1] == "leads to the person: people.id" and odd[:3] == ('odd "name', "DOUBLE", "NO")
    assert db.sql("DESCRIBE adults").fetchall()[1][:2] == ("age", "INTEGER")
    assert [row[0] for row in db.sql("DESCRIBE old_adults")] == ["next"]
    assert db.sql("DESCRIBE odd").fetchall() == []  # in words of ours, which no engine can read


def test_summarize(db: dpsql.Session) -> None:
    rows = {row[0]: row[2:] for row in db.sql("SUMMARIZE people")}
    assert rows["age"] == ("0", "99", None, None)
    assert rows["city"] == (None, None, "Bern, Oslo", None)
    assert rows["id"] == (None, None, None, "the person")


def test_show_tables(db: dpsql.Session) -> None:
    assert db.sql("SHOW TABLES").fetchall() == [
        ("adults", "a view", "", 2),
        ("crm.visits", "persons", "person -> people.id", 3),
        ("nation", "public", "", 2),
        ("odd", "a view", "", 0),
        ("old_adults", "a view", "", 1),
        ("people", "persons", "id", 5),
    ]


def test_information_schema_is_as_the_engine_has_it(db: dpsql.Session) -> None:
    plain = duckdb.connect()
    plain.execute(SCHEMA)
    query = (
        "SELECT table_schema, table_name, column_name, ordinal_position, is_nullable, data_type "
        "FROM information_schema.columns WHERE table_name IN ('visits', 'nation') ORDER BY ALL"
    )
    answer, wanted = db.sql(query), plain.execute(query)
    assert answer.fetchall() == wanted.fetchall()
    assert {row[0] for row in db.sql("SELECT table_name FROM information_schema.tables")} == {
        "people", "visits", "nation", "adults", "old_adults", "odd",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("query", "code", "hint"),
    [
        ("DESCRIBE peple", "table_unknown", "Did you mean people?"),
        ("DESCRIBE hidden", "table_unknown", "It has: "),
        ("SUMMARIZE crm.visit", "table_unknown", "Did you mean crm.visits?"),
        ("SELECT * FROM information_schema.column", "table_unknown", "Did you mean information_schema.columns?"),
        ("SELECT * FROM information_schema.schemata", "table_unknown", "Use information_schema.tables"),
        ("SELECT * FROM information_schema.tables, people", "not_supported", "two queries"),
        ("SELECT * FROM information_schema.tables, read_csv('/etc/passwd')", "not_supported", ""),
        ("SELECT * FROM information_schema.tables, 'x.csv'", "not_supported", ""),
        ("SELECT getenv('HOME') FROM information_schema.tables", "function_unknown", ""),
        ("SELECT now() FROM information_schema.tables", "function_unknown", ""),
        ("SELECT nothing FROM information_schema.tables", "column_unknown", ""),
        ("DROP TABLE information_schema.tables", "syntax", ""),
    ],
)
def test_refusals(db: dpsql.Session, query: str, code: str, hint: str) -> None:
    with pytest.raises(dpsql.Refused) as caught:
        db.sql(query)
    assert caught.value.code == code and hint in caught.value.hint


def test_tables(db: dpsql.Session) -> None:
    assert [table.name for table in db.tables] == ["people", "crm.visits", "nation", "adults", "old_adults", "odd"]
    people = db.tables.named("PEOPLE")
    assert (
        people.person == "id" and people.columns[1].between == (0, 99) and people.columns[2].values == ("Bern", "Oslo")
    )
    text = repr(db.tables)
    assert text.startswith("people (person: id, 1 row of one person)\n  id    INTEGER  the person\n")
    assert "nation (public)" in text and "s3cret" not in text


def test_a_literal_is_not_the_catalogue(db: dpsql.Session) -> None:
    assert db.explain("SELECT count(*) FROM people WHERE city = 'information_schema.tables'", epsilon=0.1)


def test_a_query_over_the_catalogue_ends() -> None:
    """It is free, so it must not take for ever."""
    from dpsql import describe

    many = ", ".join(f"information_schema.columns c{i}" for i in range(8))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(describe, "SECONDS", 1)
        db = dpsql.connect(shop.database(shop.clean()), policy=shop.policy(), ledger=":memory:")
        with pytest.raises(dpsql.Refused, match="engine_cannot"):
            db.sql(f"SELECT count(*) FROM {many} WHERE c0.column_name || c1.column_name < c7.column_name")
