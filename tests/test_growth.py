"""How many rows one person's rows become: the bound itself, and queries that were written to break it.

That no person has more rows than the bound, and that what is cut depends on that person alone, is in test_lemmas (growth).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

import dpsql

POLICY: dict[str, Any] = {
    "dataset": {"id": "growth"},
    "budget": {"epsilon": 100.0, "delta": 1e-3},
    "defaults": {"epsilon": 0.5, "max_rows_contributed": 4},
    "tables": {
        "people": {"person": "id"},
        "events": {"person": "id"},
        "bios": {"person": "id"},
        "visits": {"person": "id"},
        "notes": {"person": "id"},
        "holes": {"person": "id"},
        "wide": {"person": "id"},
        "long": {"person": "id"},
        "kinds": {"public": True},
        "many": {"public": True},
    },
}
VICTIM = 7
LONG = 250  # elements of the victim's list: three times unnested they were 15 million rows, of strings of 100 bytes


def database(victim: bool) -> duckdb.DuckDBPyConnection:
    """Persons with short lists and few rows; the victim has long ones and many, or is not there."""
    connection = duckdb.connect(config={"memory_limit": "1GB", "threads": 2})
    connection.execute("CREATE TABLE people (id INTEGER, l VARCHAR[], age INTEGER)")
    connection.execute("CREATE TABLE events (id INTEGER, kind INTEGER, t VARCHAR)")
    connection.execute("CREATE TABLE kinds AS SELECT range % 40 AS kind, range % 2 AS parity FROM range(80)")
    connection.execute("CREATE TABLE many AS SELECT range AS n FROM range(2000)")
    connection.execute("INSERT INTO people SELECT 1000 + range, [repeat('x', 100)], range % 90 FROM range(500)")
    connection.execute("INSERT INTO events SELECT 1000 + range % 500, range % 40, repeat('y', 100) FROM range(2000)")
    connection.execute(
        "CREATE TABLE bios AS SELECT 1000 + range AS id, repeat('b', 100) AS bio, [range] AS l FROM range(500)"
    )
    connection.execute("CREATE TABLE visits AS SELECT 1000 + range % 500 AS id, range AS t FROM range(5000)")
    connection.execute("CREATE TABLE notes AS SELECT id, bio, l, 0 AS t FROM bios")
    connection.execute("CREATE TABLE holes AS SELECT 1000 + range % 500 AS id, range AS t, ['a'] AS l FROM range(5000)")
    connection.execute("CREATE TABLE wide AS SELECT 1000 + range AS id, ['x'] AS l FROM range(500)")
    connection.execute("CREATE TABLE long AS SELECT 1000 + range AS id, 'b' AS bio FROM range(500)")
    if victim:
        connection.execute(
            f"INSERT INTO holes SELECT {VICTIM}, range, CASE WHEN range = 0 THEN list_append(list_resize([NULL::VARCHAR], 100000), 'a') END FROM range(3000)"
        )
        connection.execute(f"INSERT INTO wide SELECT {VICTIM}, [repeat('x', 200000)]")
        connection.execute(f"INSERT INTO long SELECT {VICTIM}, repeat('b', 20000000)")
        connection.execute(
            f"INSERT INTO notes SELECT {VICTIM}, CASE WHEN range > 0 THEN 'b' ELSE repeat('b', 2000000) END, CASE WHEN range > 0 THEN [1] ELSE range(200000) END, range FROM range(3000)"
        )
        connection.execute(f"INSERT INTO bios SELECT {VICTIM}, repeat('b', 20000), range(20000)")
        connection.execute(f"INSERT INTO visits SELECT {VICTIM}, range FROM range(20000)")
        connection.execute(
            f"INSERT INTO people SELECT {VICTIM}, list_transform(range({LONG}), lambda i: repeat('x', 100) || i), 50"
        )
        connection.execute(
            f"INSERT INTO events SELECT {VICTIM}, range % 40, repeat('y', 100) || range FROM range(4000)"
        )
    return connection


@pytest.fixture(scope="module")
def sessions() -> Iterator[tuple[dpsql.Session, dpsql.Session]]:
    both = [dpsql.connect(database(there), policy=POLICY, ledger=":memory:") for there in (True, False)]
    yield both[0], both[1]


ARMS = " UNION ALL ".join(f"SELECT id, bio || '{i}' AS b FROM long" for i in range(20))
HOSTILE = [
    # A list that a GROUP BY carries, three times.
    "SELECT count(DISTINCT x || y || z) FROM (SELECT id, first(l ORDER BY age) AS l FROM people GROUP BY id) p, unnest(p.l) AS a(x), unnest(p.l) AS b(y), unnest(p.l) AS c(z)",
    # A list that is stored, three times; and once more behind a window.
    "SELECT count(*) FROM people p, unnest(p.l) AS a(x), unnest(p.l) AS b(y), unnest(p.l) AS c(z)",
    "SELECT max_x, count(*) FROM (SELECT id, max(x) OVER (PARTITION BY id) AS max_x, l FROM people p, unnest(p.l) AS a(x)) q, unnest(q.l) AS b(y), unnest(q.l) AS c(z) GROUP BY max_x",
    # Lists that the query makes longer.
    "SELECT count(*) FROM (SELECT id, list_concat(l, l, l, l) AS l FROM people) p, unnest(p.l) AS a(x), unnest(list_concat(p.l, p.l)) AS b(y)",
    f"SELECT count(*) FROM (SELECT id, string_split(CASE WHEN id = {VICTIM} THEN repeat('a,', 1000) ELSE '' END, ',') AS l FROM people) p, unnest(p.l) AS a(x), unnest(p.l) AS b(y)",
    # One person's rows by each other: 4,000 * 4,000 * 4,000.
    "SELECT count(DISTINCT a.t || b.t || c.t) FROM events a JOIN events b ON a.id = b.id JOIN events c ON a.id = c.id",
    "SELECT count(*) FROM events a JOIN events b USING (id) JOIN people p USING (id), unnest(p.l) AS u(x)",
    "SELECT count(*) FROM events a LEFT JOIN events b ON a.id = b.id AND a.t < b.t",
    "SELECT count(*) FROM events a WHERE EXISTS (SELECT 1 FROM events b WHERE a.id = b.id AND a.t || b.t = b.t || a.t AND a.t > b.t)",
    # By public tables, where only the victim's rows get that far.
    f"SELECT count(*) FROM (SELECT * FROM people WHERE id = {VICTIM}) p JOIN many a ON a.n >= p.age JOIN many b ON b.n >= p.age",
    f"SELECT count(*) FROM (SELECT * FROM people WHERE id = {VICTIM}) p CROSS JOIN many a CROSS JOIN many b CROSS JOIN many c",
    f"SELECT count(*) FROM (SELECT * FROM people WHERE id = {VICTIM}) p, range(1000000) AS r(x), range(1000) AS s(y)",
    f"SELECT count(*) FROM people p JOIN (SELECT a.n FROM many a CROSS JOIN many b CROSS JOIN many c) m ON p.age = m.n WHERE p.id = {VICTIM}",
    # By long texts and lists, made longer or repeated.
    "SELECT count(DISTINCT repeat(bio, 60) || x || y) FROM bios, range(1000) AS r(x), range(1000) AS s(y)",
    "SELECT count(DISTINCT repeat(bio, 60) || x || y) FROM (SELECT * FROM bios WHERE id <= 1000) b, range(100) AS r(x), range(100) AS s(y)",
    "SELECT count(*) FROM (SELECT * FROM bios WHERE id <= 1000) b, range(1000) AS r(x), range(15) AS s(y) WHERE sha256(repeat(bio, 60) || x || y) LIKE 'a%'",
    "SELECT count(DISTINCT bio || t) FROM bios JOIN visits USING (id)",
    "SELECT count(DISTINCT repeat(bio, 60) || t) FROM bios JOIN visits USING (id)",
    "SELECT count(DISTINCT array_to_string(string_split(bio, 'b'), 'bbbb') || t) FROM bios JOIN visits USING (id)",
    "SELECT count(*) FROM (SELECT id, t, max(len(list_append(l, t))) OVER (PARTITION BY id ORDER BY t) AS m FROM bios JOIN visits USING (id)) q WHERE m > 1",
    "SELECT count(*) FROM (SELECT id, t, max(bio || t) OVER (PARTITION BY id ORDER BY t) AS m FROM bios JOIN visits USING (id)) q WHERE m > 'b'",
    "SELECT count(*) FROM (SELECT id, last(l ORDER BY t) AS l FROM (SELECT id, l, t FROM bios JOIN visits USING (id)) GROUP BY id) q, unnest(q.l) AS u(x)",
    "SELECT count(*) FROM (SELECT l, x FROM bios b, unnest(b.l) AS u(x)) q WHERE list_contains(list_reverse(q.l), q.x)",
    # By windows that give one row's text or list to all rows of the person.
    "SELECT count(*) FROM (SELECT id, first_value(bio) OVER (PARTITION BY id ORDER BY t) AS f FROM notes) q WHERE length(f || f || f) > 5",
    "SELECT count(DISTINCT f || t) FROM (SELECT id, t, max(bio) OVER (PARTITION BY id) AS f FROM notes) q",
    "SELECT count(*) FROM (SELECT id, last_value(l) OVER (PARTITION BY id ORDER BY t ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) AS f FROM notes) q WHERE len(list_concat(f, f)) > 5",
    # By equalities of computed texts, which the engine does not look up but computes for each pair.
    "SELECT count(*) FROM notes e WHERE EXISTS (SELECT 1 FROM notes v WHERE v.id = e.id AND v.bio || 'x' = e.bio || 'y')",
    "SELECT count(*) FROM notes e WHERE bio || 'q' IN (SELECT v.bio || 'x' FROM notes v WHERE v.id = e.id)",
    # By lists of NULLs and of empty texts, which have no text but take room.
    "SELECT count(*) FROM holes, range(10000) AS r(x) WHERE t = 0 AND list_contains(list_sort(list_append(l, x::VARCHAR)), 'a')",
    "SELECT count(*) FROM (SELECT id, first_value(l) OVER (PARTITION BY id ORDER BY t) AS f, t FROM holes) q WHERE len(list_sort(list_append(f, t::VARCHAR))) > 5",
    # By lists that are unnested behind a join, and not before it.
    "SELECT count(DISTINCT x || r.n) FROM wide, range(10000) AS r(n), unnest(wide.l) AS u(x)",
    # By long texts that are repeated few times, and lengthened.
    "SELECT count(DISTINCT repeat(bio, 60) || x) FROM long, range(100) AS r(x)",
    "SELECT count(DISTINCT repeat(bio, 60)) FROM long",
    f"SELECT count(DISTINCT repeat(b, 60) || x) FROM ({ARMS}) q, range(50) AS r(x)",
    # By unions of a table with itself.
    "WITH a AS (SELECT id, kind FROM events UNION ALL SELECT id, kind FROM events), b AS (SELECT * FROM a UNION ALL SELECT * FROM a) SELECT count(*) FROM b JOIN b AS c USING (id) JOIN b AS d USING (id)",
]


def test_lists_of_nulls_are_there() -> None:
    connection = duckdb.connect()
    connection.execute(
        "CREATE TABLE people AS SELECT range::INT AS id, [NULL::VARCHAR] AS l, 0 AS age FROM range(1000)"
    )
    policy = {
        **POLICY,
        "defaults": {"epsilon": 1e6, "max_rows_contributed": 3000},
        "tables": {"people": {"person": "id"}},
    }
    policy["budget"] = {"epsilon": 1e9, "delta": 1e-3}
    db = dpsql.connect(connection, policy=policy, ledger=":memory:")
    query = "SELECT count(*) FROM people, range(1000) AS r(x) WHERE len(l) = 1"
    ((found,), (true,)) = db.sql(query).fetchone(), connection.execute(query).fetchone()
    assert found == pytest.approx(true, abs=100)


def outcome(db: dpsql.Session, query: str) -> tuple[object, ...]:
    """All that an analyst sees but for the noisy values."""
    try:
        answer = db.sql(query, epsilon=1e-9)
    except dpsql.Error as error:
        return type(error), error.code, error.message, error.hint
    return answer.columns, len(answer.fetchall()), answer.loss, answer.notes


@pytest.mark.parametrize("query", HOSTILE)
def test_amplifiers(sessions: tuple[dpsql.Session, dpsql.Session], query: str) -> None:
    """With a gigabyte of memory: the same whether the victim is there, and no failure."""
    with_victim, without = (outcome(db, query) for db in sessions)
    assert with_victim == without and with_victim[0] is not dpsql.Failed


@pytest.mark.parametrize(
    ("query", "note"),
    [
        ("SELECT count(*) FROM people p, unnest(p.l) AS a(x)", "of each list at most 10,000 elements are unnested"),
        (HOSTILE[1], "of each list at most 100 elements are unnested"),
        (HOSTILE[5], "one row is joined with at most 30 rows of b of the same person"),
        ("SELECT count(*) FROM people p, unnest([p.age, 1]) AS a(x)", None),
        ("SELECT count(*) FROM events e JOIN kinds k ON e.kind = k.kind", None),
        (
            "SELECT count(*) FROM (SELECT max(bio) OVER (PARTITION BY id) AS m, t FROM notes) WHERE m > 'b'",
            None,  # what has more than 4,096 bytes is left out: what is usual stands in the README
        ),
        (HOSTILE[15], "rows of bios are left out whose bio has more than 275 bytes"),
    ],
)
def test_what_is_cut_is_said(sessions: tuple[dpsql.Session, dpsql.Session], query: str, note: str | None) -> None:
    found = [
        line
        for line in sessions[1].explain(query).plan.notes
        if (" at most " in line or " left out " in line) and "groups" not in line
    ]
    assert (note in found) if note else not found


SEVEN_TABLES, EIGHT_TABLES = (
    f"events {' '.join(f'JOIN events e{i} USING (id)' for i in range(more))}" for more in (6, 7)
)
SEVEN = " ".join(f"CROSS JOIN unnest(p.l) AS u{i}(x{i})" for i in range(7))


@pytest.mark.parametrize(
    ("query", "fits"),
    [
        (f"SELECT count(*) FROM {SEVEN_TABLES}", True),  # one row meets ten of each other table
        (f"SELECT count(*) FROM {EIGHT_TABLES}", False),
        (f"SELECT count(*) FROM people p {SEVEN}", False),
        (f"SELECT count(*) FROM {EIGHT_TABLES.replace('events', '(SELECT id FROM events GROUP BY id) g', 1)}", True),
        # What matters is how often a value stands in a public table: 2 rows of a kind, 40 of a parity, 2,000 in all.
        ("SELECT count(*) FROM events e JOIN kinds a USING (kind) JOIN kinds b USING (kind) JOIN many ON n < 9", True),
        (
            "SELECT count(*) FROM events e JOIN kinds a USING (kind) JOIN kinds b USING (parity) JOIN many ON n < 9",
            True,
        ),
        ("SELECT count(*) FROM people p JOIN many a ON a.n > p.age JOIN many b ON b.n > p.age", False),
        ("SELECT count(*) FROM people p JOIN many a ON a.n > p.age JOIN many b ON b.n = a.n", True),
        ("SELECT count(*) FROM people p JOIN many a ON a.n = p.age + 1 JOIN many b ON b.n = a.n + 1", True),
        ("SELECT count(*) FROM people p JOIN many a ON a.n > p.age JOIN many b ON b.n + 0 = a.n", True),
        ("SELECT count(*) FROM people p JOIN many a ON a.n > p.age JOIN many b ON b.n + a.n = 5", False),
        ("SELECT count(*) FROM people p JOIN (SELECT n // 2 AS n FROM many GROUP BY 1) b ON b.n = p.age", True),
    ],
)
def test_bound(sessions: tuple[dpsql.Session, dpsql.Session], query: str, fits: bool) -> None:
    if fits:
        sessions[1].explain(query)
        return
    with pytest.raises(dpsql.Refused, match="join_too_wide"):
        sessions[1].explain(query)


def test_unique_keys_need_no_cap(tmp_path: Path) -> None:
    """Where the engine lets no value stand twice, a join with it multiplies nothing; else one side is cut."""
    policy = POLICY | {"tables": {"people": {"person": "id"}, "events": {"person": "id"}}}
    for key, cut in (("PRIMARY KEY", False), ("", True)):
        with duckdb.connect(str(tmp_path / f"{cut}.duckdb")) as connection:
            connection.execute(f"CREATE TABLE people (id INTEGER {key}, age INTEGER)")
            connection.execute("CREATE TABLE events (id INTEGER, kind INTEGER)")
        db = dpsql.connect(tmp_path / f"{cut}.duckdb", policy=policy, ledger=":memory:")
        found = db.explain("SELECT count(*) FROM events e JOIN people p ON e.id = p.id").plan
        assert (
            any("is joined with" in line for line in found.notes) == cut == ("row_number" in found.release.text.lower())
        )


def test_constants_that_are_equal_to_the_engine_alone(sessions: tuple[dpsql.Session, dpsql.Session]) -> None:
    """'30 days' and '29 days 24 hours' are two values to us, and one to the engine: 500 spellings meet one row."""
    spellings = ", ".join(f"(INTERVAL '{30 - i} days {24 * i} hours')" for i in range(500))
    joins = " ".join(f"JOIN v v{i} ON CASE WHEN p.id > 0 THEN to_days(30) END = v{i}.k" for i in range(4))
    with pytest.raises(dpsql.Refused, match="join_too_wide"):
        sessions[0].explain(f"WITH v(k) AS (VALUES {spellings}) SELECT count(*) FROM people p {joins}")


def test_a_public_table_that_grows() -> None:
    """A plan is for the rows that were there when it was made: after a change it is made anew, and refused if too many meet."""
    owner = database(victim=True)
    query = "SELECT count(*) FROM people p JOIN kinds a ON a.kind = p.age JOIN kinds b ON b.kind = p.age JOIN kinds c ON c.kind = p.age"
    db = dpsql.connect(owner, policy=POLICY, ledger=":memory:")
    db.sql(query)
    owner.execute("INSERT INTO kinds SELECT 50, 0 FROM range(3000)")
    with pytest.raises(dpsql.Refused, match="data_changed"):
        db.sql(query)
    with pytest.raises(dpsql.Refused, match="join_too_wide"):
        db.sql(query)
    owner.execute("DROP TABLE kinds")
    with pytest.raises(dpsql.Refused, match="schema_changed"):
        db.explain("SELECT count(*) FROM people p JOIN kinds k ON k.parity = p.age")


@pytest.mark.parametrize("file", [False, True])
def test_a_public_table_that_is_rewritten(tmp_path: Path, file: bool) -> None:
    """With as many rows as before: it is counted again, in the snapshot of the statement, before anything is charged."""
    path = str(tmp_path / "growth.duckdb") if file else ":memory:"
    owner = duckdb.connect(path)
    owner.execute("CREATE TABLE people AS SELECT range AS id, range % 90 AS age FROM range(500)")
    owner.execute("CREATE TABLE kinds AS SELECT range AS kind FROM range(3000)")
    policy = POLICY | {"tables": {"people": {"person": "id"}, "kinds": {"public": True}}}
    if file:
        owner.close()
    db = dpsql.connect(path if file else owner, policy=policy, ledger=":memory:")
    joins = " ".join(f"JOIN kinds k{i} ON k{i}.kind = p.age" for i in range(2))
    db.sql(f"SELECT count(*) FROM people p {joins}")
    spent = db.budget.spent.amount
    if file:
        owner = duckdb.connect(path)
    owner.execute("UPDATE kinds SET kind = 5")
    if file:
        owner.close()
    for code in ("data_changed", "join_too_wide"):
        with pytest.raises(dpsql.Refused, match=code):
            db.sql(f"SELECT count(*) FROM people p {joins}")
    assert db.budget.spent.amount == spent
