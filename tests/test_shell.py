"""The shell as scripts and people run it: statements, dot commands, flags, what is printed where, and how it ends."""

from __future__ import annotations

import doctest
import importlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import pytest
import shop

import dpsql
from dpsql.frontends.shell.dots import COMMANDS
from dpsql.frontends.shell.runner import Shell
from dpsql.frontends.shell.settings import Settings
from dpsql.frontends.shell.statements import complete, split, words

POLICY = """
[budget]
epsilon = 3.0
delta = 1e-6
[defaults]
epsilon = 0.5
max_epsilon = 1.0
max_rows_contributed = 1
[tables.visits]
person = "person"
[tables.visits.columns]
spend = { between = [0, 10] }
city = { in = ["north", "south"] }
[tables.towns]
public = true
[tables.numbers]
public = true
"""
COUNT = "SELECT city, count(*) AS n FROM visits GROUP BY city"
# Persons are counted at once, and what is computed from that takes minutes.
SLOW = "SELECT count(*) AS slow FROM (SELECT count(*) AS n FROM visits), numbers AS a, numbers AS b WHERE a.i + b.i > n"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("shell")
    with duckdb.connect(str(directory / "v.duckdb")) as connection:
        connection.execute(
            "CREATE TABLE visits AS SELECT i AS person, ['north', 'south'][1 + i % 2] AS city, i % 10 AS spend FROM range(20_000) t(i)"
        )
        connection.execute("CREATE TABLE towns AS SELECT * FROM (VALUES ('north', 1.5), ('south', NULL)) t(name, size)")
        connection.execute("CREATE TABLE numbers AS SELECT i FROM range(1_000_000) t(i)")
    (directory / "v.policy.toml").write_text(POLICY)
    return directory


@pytest.fixture
def here(made: Path, tmp_path: Path) -> Path:
    """A directory with a ledger of its own."""
    for name in ("v.duckdb", "v.policy.toml"):
        shutil.copy(made / name, tmp_path)
    return tmp_path


def run(directory: Path, *arguments: str, script: str | None = None, **more: str) -> tuple[int, str, str]:
    """The exit code, standard output and standard error."""
    done = subprocess.run(
        [sys.executable, "-m", "dpsql", "shell", *arguments],
        cwd=directory,
        env=os.environ | {"HOME": str(directory), "PYTHONIOENCODING": "utf-8", "XDG_CONFIG_HOME": ""} | more,
        input=script or "",
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout, done.stderr


class Talk:
    """A shell in this process, on the shop."""

    def __init__(self, session: dpsql.Session | None = None, **settings: object) -> None:
        self.out, self.err = io.StringIO(), io.StringIO()
        session = session or dpsql.connect(shop.database(shop.clean()), policy=shop.policy(), ledger=":memory:")
        self.shell = Shell(session, Settings(maxwidth=100, **settings), "shop", self.out, self.err)  # type: ignore[arg-type]

    def __call__(self, text: str) -> tuple[str, str]:
        """What a script prints as data, and what else."""
        self.shell.script(text)
        found = self.out.getvalue(), self.err.getvalue()
        for stream in (self.out, self.err):
            stream.seek(0)
            stream.truncate()
        return found


@pytest.fixture
def talk() -> Talk:
    return Talk()


@pytest.mark.parametrize("name", ["statements", "duckbox", "modes", "runner"])
def test_examples_in_docstrings(name: str) -> None:
    found = doctest.testmod(importlib.import_module(f"dpsql.frontends.shell.{name}"))
    assert found.attempted and not found.failed


# --- statements -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "statements", "rest"),
    [
        ("SELECT 1", [], "SELECT 1"),
        ("SELECT 1;SELECT 2 ; x", ["SELECT 1", "SELECT 2"], " x"),
        ("SELECT ';' || \"a;\" /* ; */ -- ;\n;", ["SELECT ';' || \"a;\" /* ; */ -- ;"], ""),
        ("SELECT $$;$$, $a$;$$;$a$, E'\\';' ;", ["SELECT $$;$$, $a$;$$;$a$, E'\\';'"], ""),
        ("SELECT 'it''s;", [], "SELECT 'it''s;"),
        ("SELECT /* ;", [], "SELECT /* ;"),
        (";; -- nothing\n;", [], ""),
    ],
)
def test_split(text: str, statements: list[str], rest: str) -> None:
    assert split(text) == (statements, rest)
    assert complete(text) == (rest != text and not rest.strip())


def test_words() -> None:
    assert words(""".mode "a b" 'c d' e "\\t" """) == [".mode", "a b", "c d", "e", "\t"]


def test_a_script_has_many_lines_and_the_last_needs_no_end(talk: Talk) -> None:
    out, _ = talk(".mode csv\nSELECT 1 AS a,\n  'x' AS b; SELECT 2 AS c;\n.headers off\nSELECT 3")
    assert out == "a,b\n1,x\nc\n2\n3\n"
    assert talk.shell.code == 0


# --- answers ----------------------------------------------------------------------------------------------------------


def test_a_box_has_bars_types_and_a_footer(talk: Talk) -> None:
    out, err = talk("SELECT status, count(*) AS n, avg(amount) AS mean FROM orders GROUP BY status;")
    lines = out.splitlines()
    assert [cell.strip() for cell in lines[2].strip("│").split("│")] == ["varchar", "int64", "double"]
    assert len({line.index("±") for line in lines[4:7]}) == 1
    assert re.fullmatch(r"  3 rows +3 columns", lines[-1])
    assert err.startswith("± is the noise at 95 %")
    assert "epsilon 1" in err
    assert "note: values of orders.amount were clipped to 0 .. 500" in err


def test_machines_get_plain_numbers_and_bounds_if_they_ask(talk: Talk) -> None:
    out, _ = talk(".mode csv\nSELECT status, count(*) AS n FROM orders GROUP BY status;\n")
    assert all(re.fullmatch(r"\w+,-?\d+", line) for line in out.splitlines()[1:])
    out, _ = talk(".errors on\n.mode json\nSELECT status, count(*) AS n, 1 AS one FROM orders GROUP BY status;\n")
    for row in json.loads(out):
        assert list(row) == ["status", "n", "n_low", "n_high", "one"]
        assert row["n_low"] < row["n"] < row["n_high"]


def test_several_releases_say_that_they_have_no_bars(talk: Talk) -> None:
    _, err = talk("SELECT count(*) AS n, (SELECT count(*) FROM customer) AS c FROM orders;")
    assert "no error bars" in err
    assert "no error bars" not in talk("SELECT * FROM country;")[1]


def test_what_is_free_has_no_price_under_it(talk: Talk) -> None:
    assert talk("SELECT 1 AS a;")[1] == ""
    assert talk("SHOW TABLES;")[1] == "note: declared in the policy and the schema; no row was looked at\n"


def test_errors_point_at_the_place(talk: Talk) -> None:
    out, err = talk("SELECT count(*)\n  FROM orders WHERE amont > 1;")
    assert (out, talk.shell.code) == ("", 3)
    where, caret, message, hint = err.splitlines()
    assert where == "LINE 2:   FROM orders WHERE amont > 1"
    assert where[caret.index("^") :].startswith("amont")
    assert message == "refused: column_unknown: no table of FROM has a column 'amont'"
    assert hint == "hint: Did you mean amount?"


def test_explain_is_explain_privacy(talk: Talk) -> None:
    out, _ = talk("EXPLAIN SELECT count(*) FROM orders; EXPLAIN PRIVACY SELECT count(*) FROM orders;")
    assert out.count("of the budget: epsilon 1") == 2
    assert talk.shell.session.budget.spent.amount == 0
    where, caret, *_ = talk("EXPLAIN SELECT amont FROM orders;")[1].splitlines()
    assert where[caret.index("^") :].startswith("amont")


def test_long_lines_are_cut_around_the_place(talk: Talk) -> None:
    talk.shell.settings.maxwidth = 60
    _, err = talk(f"SELECT {'1 + ' * 50}count(*) FROM orders WHERE amont > 1 AND {'1 = 1 AND ' * 20} true")
    where, caret, *_ = err.splitlines()
    assert len(where) <= 60
    assert where[caret.index("^") :].startswith("amont")


# --- dot commands -----------------------------------------------------------------------------------------------------


def test_every_command_is_in_the_help_and_in_the_docs(talk: Talk) -> None:
    out, _ = talk(".help")
    docs = (Path(__file__).parent.parent / "docs" / "shell.md").read_text(encoding="utf-8")
    asked = (
        "help tables schema mode headers nullvalue maxrows maxwidth timer output once read echo bail prompt highlight show columns "
        "exit budget cost explain history policy notes plot epsilon"
    )
    assert {*asked.split()} <= COMMANDS.keys()
    for name in COMMANDS:
        assert f".{name}" in out
        assert f"`.{name}" in docs


def test_public_facts(talk: Talk) -> None:
    out, _ = talk(".tables c%\n.schema orders\n.policy orders\n")
    assert out.startswith("country   (public)\ncustomer  (person: id")
    assert re.search(r"\n    amount DECIMAL\(10,2\), +-- between 0 and 500\n", out)
    assert re.search(r"\n    status VARCHAR NOT NULL, +-- in open, sent, back\n", out)
    assert "neighbours add-remove" in talk(".policy")[0]
    assert talk(".tables nothing")[1] == "error: no table is like 'nothing'\nhint: Type `.tables`.\n"


@pytest.mark.parametrize(
    ("typed", "offers"),
    [
        ("SELECT count(*) FROM ", "orders"),
        ("SELECT count(*) FROM orders JOIN customer USING (", "id"),
        ("SELECT r.", "amount"),
        ("SELECT r. FROM orders AS r", "amount"),
        ("SELECT count(*) FROM orders WHERE amount > ", "amount"),
        ("SELECT sum(amount, ", "contribution_bounds_per_group => ("),
    ],
)
def test_names_before_their_first_letter(talk: Talk, typed: str, offers: str) -> None:
    pytest.importorskip("prompt_toolkit")
    from prompt_toolkit.completion import CompleteEvent
    from prompt_toolkit.document import Document

    from dpsql.frontends.shell.completion import Names

    at = typed.index(". FROM") + 1 if ". FROM" in typed else len(typed)
    found = Names(talk.shell).get_completions(Document(typed, at), CompleteEvent(text_inserted=True))
    assert offers in [one.text for one in found]


def test_what_newcomers_type(talk: Talk) -> None:
    assert ".echo or .errors or .exit" in talk(".e")[1]
    assert "Did you mean SELECT where SELEC stands?" in talk("SELEC 1;")[1]
    assert "Did you mean FROM where FORM stands?" in talk("SELECT count(*) FORM orders;")[1]
    assert ".exit leaves" in talk("1;")[1].replace("`", "")
    assert ".budget" in talk("help;")[0] and talk("exit;\n.tables")[0] == "" and talk("quit\n.tables")[0] == ""


def test_price_budget_and_history(talk: Talk) -> None:
    assert talk(".cost")[1].startswith("error: there is no last statement")
    out, _ = talk(".cost SELECT count(*) FROM orders;\n.explain SELECT count(*) FROM orders")
    assert re.match(r"price less than 0.01 % \(ε 1\), room for more than a million\ncost ", out)
    before = talk.shell.session.budget.spent.amount
    assert before == 0
    talk("SELECT count(*) FROM orders;")
    out, _ = talk(".cost\n.budget\n.history")
    assert "▕████████████████▏ 100 % left" in out
    assert "SELECT count(*) FROM orders" in out
    assert "settled" in out
    assert talk(".cost SELECT nothing FROM orders")[0].startswith("would be refused: ")
    for sql in ("SELECT 1", "SHOW TABLES", "DESCRIBE orders", "SHOW BUDGET", "EXPLAIN SELECT count(*) FROM orders",
                "SELECT * FROM information_schema.tables"):  # fmt: skip
        assert talk(f".cost {sql}")[0] == "free: it reads nothing about persons\n"


def test_epsilon_is_that_of_the_following_statements(talk: Talk) -> None:
    assert "epsilon 0.2" in talk(".epsilon 0.2\nSELECT count(*) FROM orders;")[1]
    assert talk(".epsilon")[0] == "epsilon: 0.2\n"
    assert talk(".epsilon default\n.epsilon")[0] == "epsilon: 1 (the policy's)\n"
    assert "is not a number greater than zero" in talk(".epsilon none")[1]
    assert talk.shell.code == 2


def test_plot(talk: Talk) -> None:
    assert "there is no last answer" in talk(".plot")[1]
    talk("SELECT status, count(*) AS n, count(*) - 100 AS less FROM orders GROUP BY status;")
    head, *bars = talk(".plot")[0].splitlines()
    assert (head.strip(), len(bars)) == ("n", 3)
    assert all(re.search(r"[●├┤─]+ .*-?\d+(\.\d)? ± +\d+", line) for line in bars), bars
    assert talk(".plot less")[0].splitlines()[0].strip() == "less"
    assert "has no column of numbers 'status'" in talk(".plot status")[1]
    talk("SELECT name, vat FROM country;")
    bars = talk(".plot")[0].splitlines()[1:]
    assert [bar.split()[0] for bar in bars] == ["de", "fr", "it"]
    assert len(bars[0].split()[1]) < len(bars[1].split()[1]) < len(bars[2].split()[1])


def test_settings(talk: Talk) -> None:
    out, err = talk(
        ".mode csv\n.mode\n.nullvalue -\n.timer on\n.echo on\nSELECT NULL AS a;\n.echo off\n.timer off\n.show"
    )
    assert out.startswith("current output mode: csv\na\n-\n")
    assert "SELECT NULL AS a;\n" in err
    assert re.search(r"Run Time \(s\): real \d+\.\d{3} cpu \d+\.\d{3}", err)
    assert "\n      mode: csv\n" in out
    assert '\n nullvalue: "-"\n' in out
    talk(".notes off\n.mode duckbox")
    assert talk("SELECT count(*) FROM orders;")[1] == ""
    assert "clipping" in talk(".notes")[0]
    assert talk(".prompt 'a> ' 'b> '")[0] == ""
    assert (talk.shell.settings.main, talk.shell.settings.more) == ("a> ", "b> ")


def test_output_goes_to_files(talk: Talk, tmp_path: Path) -> None:
    one, other = tmp_path / "one.csv", tmp_path / "other.csv"
    out, _ = talk(
        f".mode csv\n.once {one}\nSELECT 1 AS a;\nSELECT 2 AS b;\n.output {other}\nSELECT 3 AS c;\n.output\nSELECT 4 AS d;"
    )
    assert out == "b\n2\nd\n4\n"
    assert (one.read_text(), other.read_text()) == ("a\n1\n", "c\n3\n")
    assert "cannot write" in talk(f".output {tmp_path}/no/such")[1]
    assert "not to programs" in talk(".once |less")[1]


def test_files_are_read(talk: Talk, tmp_path: Path) -> None:
    script = tmp_path / "s.sql"
    script.write_text(".mode csv\nSELECT 1 AS a;")
    assert talk(f".read {script}")[0] == "a\n1\n"
    script.write_text(f".read {script}")
    assert "read each other" in talk(f".read {script}")[1]
    assert "cannot read" in talk(".read nothing.sql")[1]


def test_wrong_commands(talk: Talk) -> None:
    assert talk(".tabels")[1] == "error: there is no command .tabels\nhint: Did you mean .tables?\n"
    assert "Did you mean .help or .headers?" in talk(".he")[1]
    assert "is neither on nor off" in talk(".bail maybe")[1]
    assert "Use one of: duckbox, csv" in talk(".mode xml")[1]
    assert ".columns takes no arguments" in talk(".columns 3")[1]
    assert talk.shell.code == 2


# --- as a process -----------------------------------------------------------------------------------------------------


def test_exit_codes(here: Path) -> None:
    assert run(here, "v.duckdb", "-c", COUNT)[0] == 0
    assert run(here, "v.duckdb", "-c", "SELECT nothing FROM visits")[0] == 3
    assert run(here, "v.duckdb", "-c", ".nonsense")[0] == 2
    assert run(here, "v.duckdb", "-nonsense")[0] == 2
    assert run(here, "v.duckdb", "-c", ".exit 7", "-c", COUNT)[:2] == (7, "")
    script = ".epsilon 1\n" + f"{COUNT};\n" * 20
    code, out, err = run(here, "v.duckdb", "-csv", "-noheader", script=script)
    assert code == 4
    assert "budget exhausted: " in err
    assert 0 < len(out.splitlines()) < 40
    (here / "tight.toml").write_text(POLICY.replace("max_epsilon = 1.0", "max_seconds = 0.5"))
    code, out, err = run(here, "v.duckdb", "--policy", "tight.toml", "--ledger", "t.ledger", "-c", SLOW)
    assert (code, out) == (5, "")
    assert "failed: " in err


def test_errors_end_commands_and_files_but_not_standard_input(here: Path) -> None:
    (here / "s.sql").write_text("SELECT nope;\nSELECT 2 AS b;")
    assert run(here, "v.duckdb", "-csv", "-c", "SELECT nope", "-c", "SELECT 2 AS b")[:2] == (3, "")
    assert run(here, "v.duckdb", "-csv", "-f", "s.sql")[:2] == (3, "")
    assert run(here, "v.duckdb", "-csv", script="SELECT nope;\nSELECT 2 AS b;")[:2] == (3, "b\n2\n")
    assert run(here, "v.duckdb", "-csv", "-bail", script="SELECT nope;\nSELECT 2 AS b;")[:2] == (3, "")
    assert run(here, "v.duckdb", "-csv", script=".bail on\nSELECT nope;\nSELECT 2 AS b;")[:2] == (3, "")


def test_data_and_the_rest_are_apart(here: Path) -> None:
    _, out, err = run(here, "v.duckdb", "--csv", "--echo", "-c", COUNT, "--epsilon", "0.25", "--delta", "1e-9")
    assert out.startswith("city,n\nnorth,")
    assert err.startswith(f"{COUNT};\n")
    assert "epsilon 0.25, delta 1e-09" in err
    _, out, _ = run(here, "v.duckdb", "-box", "-markdown", "--nullvalue", "-", "-c", "FROM towns")
    assert out == "| name  | size |\n|-------|-----:|\n| north | 1.5  |\n| south | -    |\n"


def test_a_box_that_is_piped_has_80_columns(here: Path) -> None:
    text = "SELECT 'a long text of more than twenty characters' AS a, " + ", ".join(
        f"{i} AS column_{i}" for i in range(20)
    )
    (here / "s.sql").write_text(text)
    _, out, _ = run(here, "v.duckdb", "-f", "s.sql", COLUMNS="")
    assert max(map(len, out.splitlines())) <= 80
    assert "…" in out
    assert "21 columns (" in out
    _, out, _ = run(here, "v.duckdb", "-f", "s.sql", COLUMNS="400")
    assert "column_9" in out


def test_the_rc_file_is_read_first(here: Path) -> None:
    (here / ".dpsqlrc").write_text(".mode csv\n")
    (here / "other").write_text(".mode list\n")
    (here / "dpsql").mkdir()
    (here / "dpsql" / "rc").write_text(".mode json\n")
    asked = ("v.duckdb", "-c", "SELECT 1 AS a, 2 AS b")
    assert run(here, *asked)[1] == "a,b\n1,2\n"
    assert run(here, *asked, "-init", "other")[1] == "a|b\n1|2\n"
    (here / ".dpsqlrc").unlink()
    assert run(here, *asked, XDG_CONFIG_HOME=str(here))[1] == '[{"a":1,"b":2}]\n'


def test_without_a_policy_it_says_what_to_type(here: Path) -> None:
    (here / "v.policy.toml").unlink()
    code, out, err = run(here, "v.duckdb", "-c", "SELECT 1")
    assert (code, out) == (3, "")
    assert err.startswith("refused: policy_missing: ")
    assert "Type `dpsql init v.duckdb` to write one, or name it: `dpsql shell v.duckdb --policy FILE`." in err
    assert "there is no database" in run(here, "none.duckdb", "-c", "SELECT 1")[2]


def test_scripts_need_no_extra(here: Path) -> None:
    code = (
        "import sys; sys.modules['prompt_toolkit'] = sys.modules['pygments'] = None; "
        "from dpsql.frontends.cli import main; sys.argv = ['dpsql', 'shell', 'v.duckdb', '-csv', '-c', 'SELECT 1 AS a']; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=here, capture_output=True, text=True, check=True)
    assert done.stdout == "a\n1\n"


def test_a_terminal_needs_the_extra() -> None:
    code = (
        "import sys; sys.modules['prompt_toolkit'] = None\nfrom dpsql.errors import Refused\n"
        "from dpsql.frontends.shell.missing import needed\ntry: needed()\nexcept Refused as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("extra_missing: ")
    assert "pip install '.[shell]'" in done.stdout


def test_ctrl_c_ends_a_script_and_says_what_is_charged(here: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "dpsql", "shell", "v.duckdb", "-c", SLOW, "-c", "SELECT 1 AS never"],
        cwd=here, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not (here / "v.ledger").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, ""), err
    assert "interrupted: the query was interrupted; its charge stands" in err


def test_docs_run(tmp_path: Path) -> None:
    """Each sh block of the page runs as written, in the order of the page."""
    docs = (Path(__file__).parent.parent / "docs" / "shell.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```sh\n(.*?)```", docs, re.DOTALL)
    assert len(blocks) > 3
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    for block in blocks:
        done = subprocess.run(
            ["bash", "-euc", block], cwd=tmp_path, env=os.environ | {"PATH": path, "HOME": str(tmp_path)},
            stdin=subprocess.DEVNULL, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, (block, done.stdout, done.stderr)
