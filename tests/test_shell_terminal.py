"""The shell in a real terminal: tmux types, and what it shows is read back."""

from __future__ import annotations

import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from test_shell import POLICY, SLOW

from dpsql.frontends.shell.picture import Terminal, svg

pytestmark = pytest.mark.skipif(not shutil.which("tmux"), reason="tmux is not on PATH: `apt-get install tmux`")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("terminal")
    with duckdb.connect(str(path / "v.duckdb")) as connection:
        connection.execute(
            "CREATE TABLE visits AS SELECT i AS person, ['north', 'south'][1 + i % 2] AS city, i % 10 AS spend FROM range(20_000) t(i)"
        )
        connection.execute("CREATE TABLE towns AS SELECT 'north' AS name")
        connection.execute("CREATE TABLE numbers AS SELECT i FROM range(1_000_000) t(i)")
    (path / "v.policy.toml").write_text(POLICY)
    return path


@pytest.fixture
def terminal(directory: Path) -> Iterator[Terminal]:
    command = [sys.executable, "-m", "dpsql", "shell", "v.duckdb", "--ledger", f"{time.monotonic_ns()}.ledger"]
    made = Terminal(command, directory)
    try:
        made.wait("100 % left")
        yield made
    finally:
        made.close()


def test_a_session(terminal: Terminal) -> None:
    terminal.type("SELECT city, count(*) AS n,")
    terminal.key("Enter")
    terminal.wait("  ...>")
    terminal.type("avg(sp")
    screen = terminal.wait("between 0 and 10")  # the hint beside the column
    assert re.search(r"spend +\w+ between 0 and 10", screen)
    terminal.key("Tab")
    terminal.wait("avg(spend")
    terminal.type(") FROM visits GROUP BY city")
    screen = terminal.wait("price ")
    assert re.search(r"budget ▕█{16}▏ 100 % left │ price [\d.]+ % \(ε 0.5\), room for \d+", screen)
    assert "±" not in screen
    terminal.type(";")
    terminal.key("Enter")
    screen = terminal.wait("3 columns")
    assert len(re.findall(r"│ (?:north|south) +│ +[\d,.]+ ± +[\d,.]+ │ +[\d.]+ ± +[\d.]+ │", screen)) == 2
    assert max(map(len, screen.splitlines())) <= 80
    terminal.wait(lambda shown: bool(re.search(r"▏ 9\d\.\d % left", shown)))
    terminal.key("C-d")
    terminal.wait("ended: 0")


def test_a_refusal_is_told_before_and_after_enter(terminal: Terminal) -> None:
    terminal.type("SELECT avg(spent) FROM visits")
    time.sleep(1)
    assert "refused" not in terminal.screen()  # it may become another statement
    terminal.type(";")
    terminal.wait("would be refused: no table of FROM has a column 'spent'")
    terminal.key("Enter")
    lines = terminal.wait("hint: Did you mean spend?").splitlines()
    where = next(number for number, line in enumerate(lines) if line.startswith("LINE 1: "))
    assert lines[where][lines[where + 1].index("^") :].startswith("spent")
    assert lines[where + 2].startswith("refused: column_unknown: ")


def test_ctrl_c_clears_what_is_typed_and_ends_what_runs(terminal: Terminal) -> None:
    terminal.type("SELECT nothing")
    terminal.wait("SELECT nothing")
    terminal.key("C-c")
    terminal.wait(lambda shown: "SELECT nothing" not in shown)
    terminal.type(f"{SLOW};")
    terminal.key("Enter")
    terminal.wait("a new ledger begins")
    time.sleep(1)
    terminal.key("C-c")
    terminal.wait("its charge stands")
    terminal.wait(lambda shown: bool(re.search(r"▏ 9\d\.\d % left", shown)))
    terminal.type("SELECT 1 AS works;")
    terminal.key("Enter")
    terminal.wait("│ works │")
    terminal.key("C-d")
    terminal.wait("ended: 0")


def test_values_tables_commands_and_history(terminal: Terminal, directory: Path) -> None:
    terminal.type("FROM to")
    terminal.wait("public table")
    terminal.key("Tab")
    terminal.wait("FROM towns")
    terminal.key("Enter")  # takes it, and begins no line
    terminal.wait(lambda shown: "public table" not in shown)
    assert "...>" not in terminal.screen()
    terminal.key("C-c")
    terminal.type("SELECT count(*) FROM visits WHERE city = 'n")
    terminal.wait("declared for city")
    terminal.key("C-c")
    terminal.type(".hist")
    terminal.wait("List what was asked before")
    terminal.key("C-c")
    terminal.type("SELECT 42 AS answer;")
    terminal.key("Enter")
    terminal.wait("│ answer │")
    terminal.key("Up")
    terminal.wait(lambda shown: shown.count("SELECT 42 AS answer;") == 2)
    terminal.key("C-c")
    terminal.type(".exit 3")
    terminal.key("Enter")
    terminal.wait("ended: 3")
    kept = directory / ".dpsql_history"
    assert "+SELECT 42 AS answer;" in kept.read_text().splitlines()
    assert kept.stat().st_mode & 0o777 == 0o600


def test_a_picture(terminal: Terminal) -> None:
    terminal.type("SELECT 42 AS answer;")
    terminal.key("Enter")
    terminal.wait("│ answer │")
    drawn = svg(terminal.screen(colours=True), 80)
    assert drawn.startswith("<svg")
    assert "answer" in drawn
