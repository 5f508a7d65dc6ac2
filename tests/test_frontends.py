"""The command line as people run it: real processes, real files, what is printed where, and how they end."""

import csv
import io
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import click
import duckdb
import pytest

from dpsql.frontends.cli import cli
from dpsql.frontends.demo import EXPLAINED, QUESTIONS, REFUSED, TWICE
from dpsql.frontends.proof import HEADINGS

POLICY = """
[budget]
epsilon = 3.0

[defaults]
epsilon = 0.5
max_rows_contributed = 1

[tables.visits]
person = "person"
[tables.visits.columns]
spend = { between = [0, 10] }
city = { in = ["north|west", "south"] }
"""
QUERY = "SELECT city, count(*) AS visits, avg(spend) AS average FROM visits GROUP BY city"


ANNOUNCED = "dpsql: a new ledger begins at "


def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """In a terminal of 120 columns, whatever the one is that the tests were started from. That a ledger begins is left out."""
    done = run_whole(directory, *arguments)
    lines = done.stderr.splitlines(keepends=True)
    done.stderr = "".join(line for line in lines if not line.startswith(ANNOUNCED))
    return done


def run_whole(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dpsql", *arguments]
    environment = os.environ | {"COLUMNS": "120", "PYTHONIOENCODING": "utf-8"}
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, encoding="utf-8")


def good(directory: Path, *arguments: str) -> str:
    """What a command that succeeds prints to standard output."""
    done = run(directory, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def bad(directory: Path, code: int, *arguments: str) -> str:
    """What a command that ends with this code prints to standard error; it has no data to print."""
    done = run(directory, *arguments)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "shop.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(
            "CREATE TABLE visits AS SELECT i::INT AS person, (i % 10)::INT AS spend, "
            "['north|west', 'south'][1 + i % 2] AS city FROM range(20_000) t(i)"
        )
    return path


@pytest.fixture
def shop(made: Path, tmp_path: Path) -> Path:
    """A directory with a database and its policy, for one test."""
    shutil.copy(made, tmp_path)
    (tmp_path / "shop.policy.toml").write_text(POLICY)
    return tmp_path


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The sample shop's directory, and what the demonstration printed."""
    directory = tmp_path_factory.mktemp("demo")
    return directory / "sample", good(directory, "demo", "--dir", "sample")


def test_demo(demo: tuple[Path, str]) -> None:
    """Questions with their answers, an explanation, a refusal, a total asked twice, an exhausted budget."""
    directory, printed = demo
    assert {file.name for file in directory.iterdir()} == {"shop.duckdb", "shop.policy.toml"}
    words = " ".join(printed.split())
    parts = (*(q for q, _ in QUESTIONS), EXPLAINED, REFUSED, TWICE, "budget exhausted", "The budget")
    sections = [words.index(text) for text in parts]
    assert len(QUESTIONS) >= 3 and sections == sorted(sections)
    for start, end in pairwise(sections[: len(QUESTIONS) + 1]):
        assert re.search(r"\d ± \d", words[start:end])
        assert "cost: epsilon 0.5" in words[start:end] and "% spent" in words[start:end]
    explained, refused, twice, exhausted, budget = (words[start:] for start in sections[len(QUESTIONS) :])
    assert re.match(r".*?cost [\d.]+ % of the budget: .*?error turnover: ± ", explained)
    assert re.match(r".*?refused \w+: .*?hint: ", refused)
    # Each draws noise of its own. The two may still be equal by chance, so that is not asserted.
    assert len(re.findall(r"\d[\d,]+ ± ", twice.removesuffix(exhausted))) == 2
    assert "hint: " in exhausted
    assert re.search(r"spent epsilon [\d.]+, .*left epsilon [\d.]+, .*total epsilon 3, ", budget)


def near(rows: list[list[str]]) -> None:
    """The rows are those of the query, with noise: 10,000 in each city, averages 4 and 5."""
    found = {city: [float(visits), float(average)] for city, visits, average in rows}
    assert len(found) == len(rows) == 3
    for city, average in (("north|west", 4), ("south", 5)):
        assert abs(found[city][0] - 10_000) < 500
        assert abs(found[city][1] - average) < 0.5


def test_sql_for_people(shop: Path) -> None:
    done = run(shop, "sql", "shop.duckdb", QUERY)
    assert done.returncode == 0
    lines = [[cell.strip() for cell in re.split("[│┃]", line)[1:-1]] for line in done.stdout.splitlines()]
    head, *rows = [cells for cells in lines if cells]
    assert head == ["city", "visits", "average"]
    assert all(re.fullmatch(r"-?[\d,.]+ ± [\d,.]+", cell) for row in rows for cell in row[1:])
    near([[cell.split(" ± ")[0].replace(",", "") for cell in row] for row in rows])
    assert "epsilon 0.5" in done.stdout
    under = done.stdout.partition("└")[2].splitlines()[1:]
    assert under[:2] == ["± is the noise at 95 %; clipping is not in it", "epsilon 0.5"]
    assert all(line.startswith("note: ") for line in under[2:]) and len(set(under)) == len(under)
    assert "clipped to 0 .. 10" in done.stdout and done.stderr == ""
    assert "± is the noise at 95 %" in good(shop, "explain", "shop.duckdb", QUERY)


def test_one_form_at_a_time(shop: Path) -> None:
    assert "exclude each other" in bad(shop, 2, "sql", "shop.duckdb", QUERY, "--json", "--csv")
    assert not (shop / "shop.ledger").exists()


def test_hints_are_about_options(shop: Path) -> None:
    """Errors are the library's; what to type is the command line's."""
    assert "there is no database 'nope.duckdb'" in bad(shop, 3, "sql", "nope.duckdb", QUERY)
    assert "--policy" in bad(shop, 3, "sql", "shop.duckdb", QUERY, "--policy", "none.toml")
    assert "hint: Use --epsilon 0.5." in bad(shop, 3, "sql", "shop.duckdb", QUERY, "--epsilon", "-1")
    named = (shop / "shop.policy.toml").read_text() + "[analysts.ana]\nepsilon = 1\n"
    (shop / "named.toml").write_text(named)
    assert "hint: Use --analyst NAME. Pass one of: ana." in bad(
        shop, 3, "sql", "shop.duckdb", QUERY, "--policy", "named.toml"
    )


def test_a_policy_is_checked_whole(shop: Path) -> None:
    (shop / "bad.toml").write_text(POLICY.replace("[0, 10]", "[10, 0]").replace('"person"', '"person"\nkeys = ["x"]'))
    told = bad(shop, 3, "policy", "check", "bad.toml")
    assert "keys: unknown setting\nhint: Did you mean key?" in told and "low end is above" in told
    assert told.endswith("bad.toml: 2 problems\n")
    (shop / "much.toml").write_text(POLICY.replace("epsilon = 3.0", "epsilon = 30.0\ndelta = 0.01"))
    done = run(shop, "policy", "check", "much.toml")
    assert done.returncode == 0 and done.stderr.count("warning: budget.") == 2 and "1 table," in done.stdout


def not_json(word: str) -> NoReturn:
    raise AssertionError(f"{word} is not JSON")


def read_json(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text, parse_constant=not_json)
    return found


def test_sql_as_json(shop: Path) -> None:
    done = run(shop, "sql", "shop.duckdb", QUERY, "--epsilon", "0.25", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = read_json(done.stdout)
    assert found["columns"] == ["city", "visits", "average"]
    near(found["rows"])
    assert all(error[0] is None and error[1] > 0 and error[2] > 0 for error in found["errors"])
    assert len(found["errors"]) == 3
    assert (found["loss"]["epsilon"], found["loss"]["delta"], found["loss"]["currency"]) == (0.25, 0, "epsilon")
    assert found["notes"]


def test_json_of_an_error_bar_without_end(shop: Path) -> None:
    """Nobody is in this group, so the quotient could be anything; JSON has no word for infinity."""
    query = "SELECT sum(spend) / count(*) AS quotient FROM visits WHERE spend > 10"
    found = read_json(good(shop, "sql", "shop.duckdb", query, "--epsilon", "0.001", "--json"))
    assert found["columns"] == ["quotient"]
    assert len(found["rows"]) == len(found["errors"]) == 1


def test_json_numbers_are_numbers(demo: tuple[Path, str]) -> None:
    """Also those of DECIMAL columns."""
    directory, _ = demo
    found = read_json(good(directory, "sql", "shop.duckdb", "SELECT sum(amount) FROM orders", "--json"))
    assert isinstance(found["rows"][0][0], int | float)
    assert math.isfinite(found["errors"][0][0])


def test_sql_as_csv(shop: Path) -> None:
    head, *rows = csv.reader(io.StringIO(good(shop, "sql", "shop.duckdb", QUERY, "--csv")))
    assert head == ["city", "visits", "average"]
    near(rows)


def test_sql_as_markdown(shop: Path) -> None:
    lines = good(shop, "sql", "shop.duckdb", QUERY, "--markdown").splitlines()
    head, rule, *rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    assert head == ["city", "visits", "average"]
    assert rule == ["---"] * 3
    near([[row[0].replace("\\|", "|"), *(cell.split(" ± ")[0].replace(",", "") for cell in row[1:])] for row in rows])


def test_explain_and_budget_are_free(shop: Path) -> None:
    explained = good(shop, "explain", "shop.duckdb", QUERY, "--epsilon", "0.25")
    assert "epsilon 0.25" in explained
    assert "17 rows" in good(shop, "explain", "shop.duckdb", QUERY, "--max-rows", "17", "--max-groups", "3")
    assert "17 rows" in good(shop, "sql", "shop.duckdb", QUERY, "--max-rows", "17", "--rehearse", "--json")
    assert re.search(r"error +visits: ± [\d.]+", explained)
    assert "SELECT" not in explained and '"main"."visits"' in good(shop, "explain", "shop.duckdb", QUERY, "--sql")
    assert "of a family of 4" in good(shop, "explain", "shop.duckdb", QUERY, "--more")
    assert read_json(good(shop, "explain", "shop.duckdb", QUERY, "--json"))["releases"][0]["errors"]["visits"]["1000"]
    assert "exclude each other" in bad(shop, 2, "explain", "shop.duckdb", QUERY, "--json", "--sql")
    first = good(shop, "budget", "shop.duckdb")
    assert re.search(r"^100 % of the budget is left$.*^spent +epsilon 0,", first, re.MULTILINE | re.DOTALL)
    good(shop, "sql", "shop.duckdb", QUERY)
    second = good(shop, "budget", "shop.duckdb")
    assert re.search(
        r"^[\d.]+ % of the budget is left; room for \d.*^spent +epsilon 0.5,.*^left +epsilon 2.5,.*^total +epsilon 3,",
        second,
        re.MULTILINE | re.DOTALL,
    )
    assert (shop / "shop.ledger").exists()
    told = read_json(good(shop, "budget", "shop.duckdb", "--json"))
    assert told["total"]["epsilon"] == 3 and 0 < told["part"] < 1


def test_a_policy_that_is_missing_names_the_file(shop: Path) -> None:
    (shop / "shop.policy.toml").unlink()
    assert "`dpsql init shop.duckdb`" in bad(shop, 3, "sql", "shop.duckdb", QUERY)


def test_a_rehearsal_is_free(shop: Path) -> None:
    done = run(shop, "sql", "shop.duckdb", QUERY, "--rehearse")
    assert done.returncode == 0 and "±" in done.stdout
    assert done.stdout.count("note: a rehearsal on synthetic rows") == 1
    assert "a rehearsal" in read_json(good(shop, "sql", "shop.duckdb", QUERY, "--rehearse", "--json"))["notes"][0]
    assert re.search(r"^spent +epsilon 0,", good(shop, "budget", "shop.duckdb"), re.MULTILINE)


def test_policy_check(shop: Path) -> None:
    assert "1 table" in good(shop, "policy", "check", "shop.policy.toml")
    (shop / "bad.toml").write_text("[budget]\nepsilon = -1\n")
    assert "budget.epsilon" in bad(shop, 3, "policy", "check", "bad.toml")
    assert bad(shop, 3, "policy", "check", "missing.toml").startswith("refused: policy_unreadable")


def test_proof(tmp_path: Path) -> None:
    """Each step of the compiler and each mechanism states all four headings."""
    printed = good(tmp_path, "proof")
    steps = [step for step in re.split(r"\n\n(?=\w[\w.]*: )", printed)[1:] if not step.startswith("Theorem: ")]
    names = {step.split(":")[0].split(".")[-1] for step in steps}
    assert {
        "derive",
        "find_rows",
        "track",
        "ask",
        "limit",
        "allot",
        "ledger",
        "accountant",
        "Laplace",
        "Gaussian",
    } <= names
    for step in steps:
        assert [heading for heading in HEADINGS if f"  {heading}:" not in step] == [], step.splitlines()[0]


@pytest.mark.parametrize(
    "arguments",
    [
        ["sql", "shop.duckdb"],
        ["sql", "shop.duckdb", QUERY, "--epsilon", "much"],
        ["nonsense"],
        ["budget", "shop.duckdb", "--nonsense"],
    ],
    ids=" ".join,
)
def test_usage_errors_are_2(shop: Path, arguments: list[str]) -> None:
    assert "Usage: dpsql" in bad(shop, 2, *arguments)
    assert not (shop / "shop.ledger").exists()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["sql", "shop.duckdb", "SELECT * FROM visits"], "select_star"),
        (["explain", "shop.duckdb", "SELECT spend, count(*) FROM visits GROUP BY spend"], "delta_missing"),
        (["sql", "shop.duckdb", QUERY, "--epsilon", "nan"], "epsilon_invalid"),
        (["sql", "shop.duckdb", QUERY, "--max-rows", "0"], "limit_invalid"),
        (["sql", "shop.duckdb", QUERY, "--policy", "missing.toml"], "policy_unreadable"),
        (["sql", "shop.duckdb", QUERY, "--ledger", "missing/x.ledger"], "ledger_unavailable"),
        (["sql", "missing.duckdb", QUERY, "--policy", "shop.policy.toml"], "database_missing"),
        (["sql", "shop.policy.toml", QUERY, "--policy", "shop.policy.toml"], "database_unreadable"),
        (["sql", "", QUERY], r"\w+"),
    ],
    ids=str,
)
def test_refusals_are_3(shop: Path, arguments: list[str], code: str) -> None:
    error = bad(shop, 3, *arguments)
    assert re.match(f"refused: ({code}): ", error)
    assert "\nhint: " in error


def test_an_exhausted_budget_is_4(shop: Path) -> None:
    good(shop, "sql", "shop.duckdb", QUERY, "--epsilon", "3")
    assert bad(shop, 4, "sql", "shop.duckdb", QUERY).startswith("budget exhausted: ")


def test_a_failure_is_5_and_says_nothing_and_is_charged(shop: Path) -> None:
    """A block of the table is damaged on disk, which the engine finds out while it reads."""
    database = shop / "shop.duckdb"
    with duckdb.connect(str(database)) as connection:
        found = connection.execute("SELECT max(block_id) FROM pragma_storage_info('visits')").fetchone()
        size = connection.execute("SELECT block_size FROM pragma_database_size()").fetchone()
    assert found is not None
    assert size is not None
    content = bytearray(database.read_bytes())
    content[3 * 4096 + found[0] * size[0] + 5000] ^= 255  # three headers, then the blocks with their checksums
    database.write_bytes(content)
    error = bad(shop, 5, "sql", "shop.duckdb", QUERY)
    assert error.startswith("failed: failed: the query failed or took too long while it ran; its charge stands\n")
    assert re.search(r"^spent +epsilon 0.5,", good(shop, "budget", "shop.duckdb"), re.MULTILINE)


def test_analysts(shop: Path) -> None:
    (shop / "shop.policy.toml").write_text(POLICY + "[analysts.ana]\nepsilon = 0.6\n")
    assert "ana" in bad(shop, 3, "sql", "shop.duckdb", QUERY)
    good(shop, "sql", "shop.duckdb", QUERY, "--analyst", "ana")
    assert "ana" in bad(shop, 4, "sql", "shop.duckdb", QUERY, "--analyst", "ana")
    assert re.search(
        "your allocation:\n.*\n +spent +epsilon 0.5,", good(shop, "budget", "shop.duckdb", "--analyst", "ana")
    )


# --- help -------------------------------------------------------------------------------------------------------------


def commands(command: click.Command, name: str, parent: click.Context | None = None) -> Iterator[tuple[str, str]]:
    """Every command's full name and its help."""
    context = click.Context(command, parent, name, **command.context_settings)
    yield context.command_path, command.get_help(context)
    if isinstance(command, click.Group):
        for part in command.list_commands(context):
            below = command.get_command(context, part)
            assert below is not None
            yield from commands(below, part, context)


def examples(text: str) -> list[str]:
    block = re.search(r"^ *Examples?:\n((?: +dpsql .*\n)+)", text, re.MULTILINE)
    return [line.strip() for line in block[1].splitlines()] if block else []


COMMANDS = dict(commands(cli, "dpsql"))
EXAMPLES = {example.split(" | ")[0] for text in COMMANDS.values() for example in examples(text)}


def test_help(tmp_path: Path) -> None:
    printed = good(tmp_path, "sql", "--help")
    assert printed.split() == COMMANDS["dpsql sql"].split()
    assert "Exit codes: 0 answered, 2 usage, 3 refused, 4 budget exhausted, 5 failed." in good(tmp_path, "-h")


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_an_example(name: str) -> None:
    assert any(example.startswith(name) for example in examples(COMMANDS[name] + "\n"))


# The demonstration itself has been run already; a head that was noted and a budget that was raised are in test_history.
NOTED = tuple(f"dpsql ledger {word} --noted" for word in ("verify shop.ledger", "recover shop.ledger --lost 0.05"))
APART = ("dpsql demo", "dpsql ledger raise", *NOTED)


@pytest.mark.parametrize("example", sorted(e for e in EXAMPLES if not e.startswith(APART)))
def test_examples_work_in_the_sample_shop(demo: tuple[Path, str], example: str) -> None:
    """But for the demonstration itself, which has been run already."""
    for file in ("visits.parquet", "people.csv"):
        duckdb.sql(f"COPY (SELECT 1 AS person_id, 2 AS spend) TO '{demo[0] / file}'")
    duckdb.sql(f"COPY (SELECT 1 AS rider, 2 AS price) TO '{demo[0] / 'rides.parquet'}'")
    if not (demo[0] / "shop.ledger").exists():  # the first charge makes it, and the demonstration keeps none
        good(demo[0], "sql", "shop.duckdb", "SELECT count(*) FROM orders", "--epsilon", "0.1")
    made = ("--force", "--out", "made.policy.toml") if example.startswith("dpsql init") else ()
    assert good(demo[0], *shlex.split(example)[1:], *made)


def test_a_new_ledger_is_announced(shop: Path) -> None:
    """When the first charge makes it, and not before or again; on standard error."""
    told = [
        run_whole(shop, *arguments).stderr for arguments in (["budget", "shop.duckdb"], ["sql", "shop.duckdb", QUERY])
    ]
    assert ANNOUNCED not in told[0] and f"{ANNOUNCED}shop.ledger, with nothing spent" in told[1]
    assert ANNOUNCED not in run_whole(shop, "sql", "shop.duckdb", QUERY).stderr
