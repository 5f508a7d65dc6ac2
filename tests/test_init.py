"""`dpsql init`: from a file without a policy to questions that are answered, by flags or by questions in a terminal."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

import dpsql
from dpsql.frontends.init import likely_types, ranged
from dpsql.policy.catalog import Type, read_policy

DPSQL = Path(sys.executable).parent / "dpsql"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """Rides as Parquet, riders as CSV, and both in a DuckDB file."""
    (tmp_path / "data").mkdir()
    with duckdb.connect(str(tmp_path / "shop.duckdb")) as connection:
        connection.execute("CREATE TABLE riders AS SELECT i AS rider, 1950 + i % 50 AS born FROM range(900) t(i)")
        connection.execute(
            "CREATE TABLE rides AS SELECT i % 1000 AS rider, ['Bern', 'Oslo'][1 + i % 2] AS city, i % 60 AS price, "
            "DATE '2024-01-01' + (i % 300)::INT AS day FROM range(5000) t(i)"
        )
        connection.execute(f"COPY rides TO '{tmp_path}/data/rides.parquet'")
        connection.execute(f"COPY riders TO '{tmp_path}/data/riders.csv'")
    return tmp_path


def run(here: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([DPSQL, *words], cwd=here, capture_output=True, text=True, stdin=subprocess.DEVNULL)


FLAGS = ("--person", "rides.rider", "--between", "rides.price=0,60", "--values", "rides.city=Bern,Oslo", "--between", "rides.day=2024-01-01,2024-12-31", "--max-rows", "5", "--epsilon", "4", "--query-epsilon", "1")  # fmt: skip


def test_flags(here: Path) -> None:
    file = "data/rides.parquet"
    done = run(here, "init", file, *FLAGS)
    assert done.returncode == 0, done.stderr
    assert "SELECT city, count(*) FROM rides GROUP BY city\n      ± " in done.stdout and "dpsql shell" in done.stderr
    policy = read_policy(here / "data" / "rides.policy.toml")
    assert (policy.budget.epsilon, policy.defaults.epsilon) == (4, 1)
    for query in re.findall(r"^  (SELECT .*)$", done.stdout, re.MULTILINE):
        assert run(here, "sql", file, query, "--epsilon", "0.2").returncode == 0
    assert (
        "too low" not in done.stderr
        and "too low" in run(here, "init", file, *FLAGS, "--max-rows", "2", "--force").stderr
    )
    again = run(here, "init", file)
    assert again.returncode == 3 and "policy_exists" in again.stderr and "--force" in again.stderr
    assert run(here, "init", file, *FLAGS, "--force").returncode == 0


def test_a_directory_is_a_database(here: Path) -> None:
    """CSV columns have the types that are named; a rider without rides, and rides without a rider, are found."""
    done = run(here, "init", "data", *FLAGS[2:], "--person", "rides.rider=riders.rider", "--person", "riders.rider",
               "--type", "riders.rider=BIGINT", "--type", "riders.born=INTEGER", "--between", "riders.born=1900,2024")  # fmt: skip
    assert (
        done.returncode == 3 and "fails  tables.rides.person: rider finds a row of riders in every row" in done.stdout
    )
    assert "each person has one row of riders" in done.stderr and "one row of rides" not in done.stderr
    with dpsql.connect(here / "data", policy=here / "data.policy.toml", ledger=":memory:") as db:
        ((n,),) = db.sql(
            "SELECT count(*) FROM rides JOIN riders ON rides.rider = riders.rider WHERE born >= 1950", epsilon=1.0
        )
        assert abs(n - 4500) < 500
    assert run(here, "sql", "data", "SELECT count(*) FROM riders").returncode == 0
    done = run(
        here, "init", "data", "--yes", "--person", "riders.rider", "--person", "rides.rider=riders.rider", "--force"
    )
    assert (
        "rider = { type = " in (here / "data.policy.toml").read_text() and "these columns are text: born" in done.stderr
    )
    assert run(here / "data", "sql", ".", "SELECT count(*) FROM riders", "--ledger", "x.ledger").returncode == 0
    (here / "data" / "riders.tsv").write_text("rider\n1\n")
    assert "source_twice" in run(here, "sql", "data", "SELECT count(*) FROM riders").stderr
    (here / "empty").mkdir()
    assert "source_missing" in run(here, "init", "empty").stderr


def test_questions_in_a_terminal(here: Path) -> None:
    """Every question has a default; what cannot be used is asked again."""
    answers = ["public", "nobody", "rider", "Bern,Oslo", "0..60", "oops", "", "2.5", "1.5", "7"]
    policy = typed(here, ["init", "shop.duckdb"], answers)
    assert "there is no" not in policy and 'city = { in = ["Bern", "Oslo"] }' in policy and "public = true" in policy
    assert (
        "price = { between = [0, 60] }" in policy and "max_rows_contributed = 7" in policy and "epsilon = 2.5" in policy
    )


def test_a_table_with_persons_is_not_public_silently(here: Path) -> None:
    words = ("init", "shop.duckdb", "--yes", "--person", "riders.rider", "--public", "rides")
    done = run(here, *words)
    assert done.returncode == 3 and "--person rides.rider=riders.rider" in done.stderr, done.stderr
    assert "--public-anyway rides" in done.stderr and not (here / "shop.policy.toml").exists()
    assert run(here, *words[:-2], "--public-anyway", "rides").returncode == 0


def test_one_table_needs_no_name_and_hints_name_columns(here: Path) -> None:
    assert run(here, "init", "data/rides.parquet", "--person", "rider", "--epsilon", "4").returncode == 0
    (here / "people.csv").write_text("member_id,age\n1,7\n")
    done = run(here, "init", "people.csv", "--between", "people.age=0,9", "--type", "people.age=INTEGER")
    assert done.returncode == 3 or "member_id" in (here / "people.policy.toml").read_text()
    (here / "things.csv").write_text("size,thing_id\n1,7\n")
    assert "--person things.thing_id" in run(here, "init", "things.csv").stderr


def test_the_ledger_beside_it_is_looked_at(here: Path) -> None:
    words = ("init", "data/rides.parquet", "--person", "rider", "--force")
    assert "warning: the ledger" not in run(here, *words, "--epsilon", "4").stderr
    assert run(here, "sql", "data/rides.parquet", "SELECT count(*) FROM rides").returncode == 0
    assert "another epsilon" in run(here, *words, "--epsilon", "3").stderr


def test_types_of_csv_columns_are_proposed(here: Path) -> None:
    (here / "t.csv").write_text("id,x,day,name\n1,2.5,2024-01-01,a\n")
    found = likely_types([here / "t.csv", here / "data" / "rides.parquet"])
    assert {column: type_ for (_, column), type_ in found.items()} == {
        "id": "BIGINT", "x": "DOUBLE", "day": "DATE", "name": "VARCHAR"
    }  # fmt: skip


def test_the_last_day_is_whole() -> None:
    assert ranged("2024-01-01,2024-12-31", Type("TIMESTAMP"), "") == 'between = ["2024-01-01", "2024-12-31 23:59:59.999999"]'  # fmt: skip
    assert ranged("2024-01-01,2024-12-31", Type("DATE"), "") == 'between = ["2024-01-01", "2024-12-31"]'


def test_public_with_a_persons_column_is_asked_about(here: Path) -> None:
    policy = typed(
        here, ["init", "shop.duckdb"], ["nobody", "rider", "public", "", "oops", *[""] * 7, "n"], 3
    )  # some rides have no rider
    assert 'person = { column = "rider", references = "riders.rider" }' in policy and "public = true" not in policy
    assert "epsilon = 0.05 " in policy  # a twentieth


def typed(here: Path, words: list[str], answers: list[str], code: int = 0) -> str:
    """Type the answers into a terminal; the policy that comes of it."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [DPSQL, *words], cwd=here, stdin=follower, stdout=follower, stderr=follower, close_fds=True
    )
    os.close(follower)
    os.write(leader, "".join(f"{answer}\n" for answer in answers).encode())
    seen = b""
    while True:
        try:
            seen += os.read(leader, 4096)
        except OSError:  # the other side is gone
            break
    assert process.wait(60) == code, seen.decode()
    assert "has no column 'nobody'" in seen.decode() and "is no range" in seen.decode(), seen.decode()
    return (here / "shop.policy.toml").read_text()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--person", "rides"), "init_invalid"),
        (("--person", "ride.rider"), "init_invalid"),
        (("--person", "rides.ridr"), "init_invalid"),
        (("--between", "rides.price=0"), "init_invalid"),
        (("--between", "rides.price=a,b"), "init_invalid"),
        (("--between", "rides.price=9,1", "--person", "rides.rider"), "policy_invalid"),
        (("--person", "rides.rider", "--public", "rides"), "init_invalid"),
        (("--person", "rides.rider", "--epsilon", "many"), ""),
    ],
)
def test_nothing_is_written_where_something_is_wrong(here: Path, words: tuple[str, ...], code: str) -> None:
    done = run(here, "init", "data/rides.parquet", *words)
    assert done.returncode == 3 and code in done.stderr and "hint: " in done.stderr
    assert sorted(path.name for path in (here / "data").iterdir()) == ["riders.csv", "rides.parquet"]
