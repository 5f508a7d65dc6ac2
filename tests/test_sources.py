"""Real files and real frames as tables: the schema never depends on a cell, and what is wrong is told to the owner."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dpsql

ROWS = 3000
CITIES = ["Bern", "Rome", "Oslo"]
QUERY = "SELECT city, count(*), sum(spend), avg(age) FROM visits JOIN people ON visits.person = people.id GROUP BY city"
COLUMNS: dict[str, Any] = {"spend": {"between": [0, 100]}, "city": {"in": CITIES}}
POLICY: dict[str, Any] = {
    "dataset": {"id": "visits"},
    "budget": {"epsilon": 1e12},
    "defaults": {"epsilon": 1e9, "max_rows_contributed": 10},
    "tables": {
        "people": {"person": "id", "max_rows_contributed": 1, "columns": {"age": {"between": [0, 120]}}},
        "visits": {"person": {"column": "person", "references": "people.id"}, "columns": COLUMNS},
    },
}
TYPED = {
    **POLICY,
    "tables": {
        "people": {
            "person": "id",
            "columns": {"id": {"type": "BIGINT"}, "age": {"type": "INTEGER", "between": [0, 120]}},
        },
        "visits": {
            **POLICY["tables"]["visits"],
            "columns": {
                "person": {"type": "BIGINT"}, "spend": {"type": "DECIMAL(10,2)", "between": [0, 100]},
                "city": {"in": CITIES}, "day": {"type": "DATE"},
            },
        },
    },
}  # fmt: skip


def people() -> pa.Table:
    return pa.table({"id": list(range(1000)), "age": [20 + i % 50 for i in range(1000)]})


def visits(count: int = ROWS) -> pa.Table:
    return pa.table(
        {
            "person": [i % 1000 for i in range(count)],
            "spend": [float(i % 90) for i in range(count)],
            "city": [CITIES[i % 3] for i in range(count)],
            "day": [datetime.date(2024, 1, 1 + i % 28) for i in range(count)],
        }
    )


def connect(visits: Any, people: Any, policy: dict[str, Any] = POLICY) -> dpsql.Session:
    return dpsql.connect({"visits": visits, "people": people}, policy=policy, ledger=":memory:")


EXACT = duckdb.connect()
EXACT.register("visits", visits())
EXACT.register("people", people())


def right(db: dpsql.Session) -> None:
    """With a huge epsilon the answer is the plain one."""
    mine = sorted(row for row in db.sql(QUERY) if row[0] is not None)
    theirs = sorted(EXACT.execute(QUERY).fetchall())
    assert [row[:2] for row in mine] == [row[:2] for row in theirs]
    for a, b in zip(mine, theirs, strict=True):
        assert [float(cell) for cell in a[2:]] == pytest.approx(b[2:])


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "visits" / "it's").mkdir(parents=True)
    table = visits()
    pq.write_table(table.slice(0, 1000), tmp_path / "visits" / "a.parquet")
    pq.write_table(table.slice(1000), tmp_path / "visits" / "it's" / "b.parquet")
    pq.write_table(people(), tmp_path / "people.parquet")
    for name, rows in (("a", table.slice(0, 1000)), ("it's/b", table.slice(1000))):
        rows.to_pandas().to_csv(tmp_path / "visits" / f"{name}.csv", index=False)
    people().to_pandas().to_csv(tmp_path / "people.tsv", index=False, sep="\t")
    return tmp_path


def test_parquet(files: Path) -> None:
    right(connect(files / "visits" / "**" / "*.parquet", str(files / "people.parquet")))


def test_csv(files: Path) -> None:
    right(connect(str(files / "visits" / "**" / "*.csv"), files / "people.tsv", TYPED))


@pytest.mark.parametrize(
    "frame", [lambda t: t, pl.DataFrame, lambda t: t.to_pandas()], ids=["arrow", "polars", "pandas"]
)
def test_frames(frame: Any) -> None:
    right(connect(frame(visits()), frame(people())))


def test_a_mixture(files: Path) -> None:
    right(connect(visits().to_pandas(), files / "people.parquet"))


def test_one_file_is_a_database(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its table has the file's name, and its ledger lies beside it."""
    monkeypatch.chdir(files)
    policy = {key: value for key, value in POLICY.items() if key != "dataset"}
    policy["tables"] = {"people": POLICY["tables"]["people"]}
    with dpsql.connect("people.parquet", policy=policy) as db:
        assert db.sql("SELECT count(*) FROM people").fetchall() == [(1000,)]
    assert (files / "people.ledger").exists()
    with pytest.raises(dpsql.Refused, match="session_closed"):
        db.sql("SELECT count(*) FROM people")


def test_the_instance_has_no_way_out() -> None:
    db = connect(visits(), people())
    with pytest.raises(duckdb.PermissionException):
        db._backend._owner.execute("SELECT * FROM read_csv('x.csv')")  # type: ignore[union-attr]
    assert db._backend._owner.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal").fetchall() == []  # type: ignore[union-attr]


# --- nothing about the schema depends on a cell -------------------------------------------------------------------------


def seen(db: dpsql.Session) -> list[str]:
    """What an analyst sees without being charged."""
    result = [str(db.explain(QUERY)), repr(db._schemas)]
    for query in ("SELECT sum(day) FROM visits", "SELECT count(*) FROM visits WHERE nothing = 1"):
        try:
            result.append(str(db.explain(query)))
        except dpsql.Refused as refusal:
            result.append(str(refusal))
    return result


HEAD = "person,spend,city,day\n"


@pytest.mark.parametrize(
    "rows",
    [
        "",
        "1,2,Bern,2024-01-01\n",
        "1,2,Bern,soon\n",
        "x;y,z\tw,'q',\n",
        '"1","a, ""b""\nc",,\n',
        "\n1,2,3,4\n",
        "# 1,2,3,4\n",
        "NaN,inf,-0.0,0001-01-01\n" * 3000,
    ],
)
def test_the_schema_of_csv_does_not_depend_on_cells(tmp_path: Path, rows: str) -> None:
    """Neither types nor delimiter nor header are guessed."""
    (tmp_path / "visits.csv").write_text(HEAD + rows)
    (tmp_path / "other.csv").write_text(HEAD + "7,7,Oslo,2024-02-02\n")
    try:
        mine = seen(connect(tmp_path / "visits.csv", people(), TYPED))
    except dpsql.Refused as refusal:  # the owner is told
        assert refusal.code == "source_unreadable"
    else:
        assert mine == seen(connect(tmp_path / "other.csv", people(), TYPED))


def test_the_schema_of_objects_does_not_depend_on_cells() -> None:
    def frame(**cells: list[Any]) -> pd.DataFrame:
        return pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in cells.items()})

    first = frame(person=[1, 2], spend=[1.5, 2], city=["Bern", None], day=[datetime.date(2024, 1, 1), None])
    second = frame(person=["x", {"a": 1}], spend=[None, None], city=[1, 2], day=[b"y", float("nan")])
    assert seen(connect(first, people(), TYPED)) == seen(connect(second, people(), TYPED))


def test_a_category_does_not_show_its_values() -> None:
    table = visits().to_pandas()
    table["city"] = pd.Categorical(table["city"], categories=["Bern", "Rome", "Oslo", "secret"])
    db = connect(table, people())
    right(db)
    assert "secret" not in "".join(seen(db))


def test_cells_that_do_not_fit_are_null(tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text("id,age\n1,30\n2,thirty\n3,\n4,1e99\nfour,40\n5,50\n")
    db = connect(visits(), tmp_path / "people.csv", TYPED)
    assert db.sql("SELECT count(*), count(age), sum(age) FROM people").fetchall() == [(5, 2, 80)]


def test_moments(tmp_path: Path) -> None:
    """Of any unit and with a time zone: TIMESTAMP in UTC."""
    zoned = pa.array([0, 3_600_000_000, None], pa.timestamp("us", "Europe/Berlin"))
    table = pa.table({"id": [1, 2, 3], "zoned": zoned, "nano": pa.array([0, 1, 2], pa.timestamp("ns"))})
    pq.write_table(table, tmp_path / "t.parquet")
    policy = {**POLICY, "tables": {"t": {"person": "id"}}}
    with dpsql.connect(tmp_path / "t.parquet", policy=policy) as db:
        query = "SELECT count(*) FROM t WHERE zoned < '1970-01-01 00:30:00' AND nano < '1970-01-02'"
        assert db.sql(query).fetchall() == [(1,)]


# --- refusals -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("short.csv", HEAD + "1,2,Bern,2024-01-01\n1,s3cret\n"),
        ("long.csv", HEAD + "1,2,Bern,2024-01-01,s3cret\n"),
        ("quote.csv", HEAD + '1,2,"s3cret" x,2024-01-01\n'),
        ("empty.csv", ""),
        ("nameless.csv", "person,,city,day\n"),
        ("twice.csv", "person,PERSON,city,day\n"),
        ("bytes.csv", b"person,sp\xffnd,city,day\n"),
        ("bytes2.csv", HEAD.encode() + b"1,2,s3cret\xff,\n"),
        ("text.parquet", "s3cret"),
    ],
)
def test_a_malformed_file_is_the_owners_business(tmp_path: Path, name: str, content: str | bytes) -> None:
    """It is named, and where it is wrong, but not what stands there."""
    (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(dpsql.Refused) as refusal:
        connect(tmp_path / name, people(), TYPED)
    assert refusal.value.code == "source_unreadable" and name in refusal.value.message
    assert "s3cret" not in str(refusal.value)
    assert refusal.value.__context__ is None or refusal.value.__suppress_context__
    if name == "short.csv":
        assert "line 3" in refusal.value.message


def test_files_of_one_table_have_one_header(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(HEAD)
    (tmp_path / "b.csv").write_text("person,city,spend,day\n")
    with pytest.raises(dpsql.Refused, match="another header"):
        connect(tmp_path / "*.csv", people(), TYPED)


@pytest.mark.parametrize(
    ("source", "code"),
    [
        (42, "source_not_supported"),
        (None, "source_not_supported"),
        ([1, 2], "source_not_supported"),
        (pl.LazyFrame({"a": [1]}), "source_not_supported"),
        (visits().to_reader(), "source_not_supported"),
        ("s3://bucket/x.parquet", "source_not_supported"),
        ("nothing.parquet", "source_missing"),
        ("*.nothing", "source_missing"),
        (__file__, "source_not_supported"),
    ],
)
def test_what_is_no_source(source: Any, code: str) -> None:
    with pytest.raises(dpsql.Refused, match=code):
        connect(source, people())


def test_other_refusals() -> None:
    both = {"visits": visits(), "people": people()}
    with pytest.raises(dpsql.Refused, match="needs a name"):
        dpsql.connect("visits/*.parquet", policy=POLICY, ledger=":memory:")
    with pytest.raises(dpsql.Refused, match="ledger_missing"):
        dpsql.connect(both, policy=POLICY)
    with pytest.raises(dpsql.Refused, match="dataset_missing"):
        dpsql.connect(both, policy={k: v for k, v in POLICY.items() if k != "dataset"}, ledger=":memory:")
    with pytest.raises(dpsql.Refused, match="table_undeclared"):
        dpsql.connect({**both, "more": people()}, policy=POLICY, ledger=":memory:")
    with pytest.raises(dpsql.Refused, match="source_twice"):
        dpsql.connect({**both, "PEOPLE": people()}, policy=POLICY, ledger=":memory:")
    with pytest.raises(dpsql.Refused, match="table_missing"):
        dpsql.connect({"people": people()}, policy=POLICY, ledger=":memory:")


@pytest.mark.parametrize(
    "type_", ["INT", "VARCHAR; DROP TABLE x", "DECIMAL(39,2)", "DECIMAL(2,3)", "BLOB", "ENUM('a')", 7]
)
def test_types_that_cannot_be_declared(type_: Any) -> None:
    tables = {**TYPED["tables"], "people": {"person": "id", "columns": {"id": {"type": type_}}}}
    with pytest.raises(dpsql.Refused, match=r"people.columns.id.type"):
        connect(visits(), people(), {**TYPED, "tables": tables})


def test_a_declared_type_is_held_against_a_database() -> None:
    owner = duckdb.connect()
    owner.execute("CREATE TABLE people (id BIGINT, age VARCHAR)")
    policy = {**TYPED, "tables": {"people": TYPED["tables"]["people"]}}
    with pytest.raises(dpsql.Refused, match="INTEGER is declared, but the column is VARCHAR"):
        dpsql.connect(owner, policy=policy, ledger=":memory:")


@pytest.mark.parametrize(("own", "goal"), [("int8", "uint64"), ("uint64", "int8"), ("int64", "int32")])
def test_references_between_frames_and_files_of_other_widths(tmp_path: Path, own: str, goal: str) -> None:
    policy = {
        "dataset": {"id": "shop"},
        "budget": {"epsilon": 1000.0},
        "defaults": {"epsilon": 10.0, "max_rows_contributed": 2},
        "tables": {"buyer": {"person": "id"}, "orders": {"person": {"column": "b", "references": "buyer.id"}}},
    }
    buyer = pa.table({"id": pa.array(range(100), goal)})
    orders = pd.DataFrame({"b": list(range(120))}).astype({"b": own})
    pq.write_table(buyer, tmp_path / "buyer.parquet")
    for source in (buyer, tmp_path / "buyer.parquet"):
        with dpsql.connect({"buyer": source, "orders": orders}, policy=policy, ledger=":memory:") as db:
            for query in ("FROM orders", "FROM orders JOIN buyer ON orders.b = buyer.id"):
                assert abs(db.sql(f"SELECT count(*) {query}").fetchall()[0][0] - 100) < 15
                assert db.rehearse(f"SELECT count(*) {query}").fetchall()
