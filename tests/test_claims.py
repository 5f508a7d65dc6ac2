"""The claims that the project makes about itself: proof obligations, refusal codes, the README."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpsql import compile as compiler
from dpsql.frontends.proof import HEADINGS, OBLIGATIONS, lines, sections, title
from dpsql.mechanisms import MECHANISMS

ROOT = Path(__file__).parent.parent
TESTS = {path.stem: path.read_text() for path in (ROOT / "tests").glob("*.py")}
SPECS = {str(path): path.read_text() for path in (ROOT / "tests" / "specs").rglob("*.md")}


@pytest.mark.parametrize("thing", OBLIGATIONS, ids=title)
def test_four_headings(thing: object) -> None:
    found = sections(thing)
    assert tuple(found) == HEADINGS
    assert all(found.values())


def test_every_pass_and_mechanism_is_in_the_proof() -> None:
    assert {*compiler.PASSES, *MECHANISMS} <= set(OBLIGATIONS)
    body = (ROOT / "dpsql" / "compile.py").read_text().split("def compile(")[1]
    calls = [name for name in re.findall(r"= (\w+)\(|return (\w+)\(", body) for name in name if name]
    steps = [step.__name__ for step in compiler.PASSES]
    assert [name for name in calls if name in steps] == steps


@pytest.mark.parametrize("thing", OBLIGATIONS, ids=title)
def test_checked_names_real_tests(thing: object) -> None:
    """What a docstring says checks it exists: a test file, or a spec."""
    checked = sections(thing)["Checked"]
    names = re.findall(r"\b(test_\w+|specs/[\w*.]+)", checked)
    assert names
    for name in names:
        if name.startswith("specs/"):
            assert list((ROOT / "tests").glob(name))
        else:
            assert name in TESTS


def test_each_stage_is_made_in_its_own_pass() -> None:
    stages = {
        "Parsed": "parse",
        "Resolved": "resolve",
        "Tracked": "track",
        "Split": "split",
        "Limited": "limit",
        "Plan": "allot",
    }
    for path in (ROOT / "dpsql").rglob("*.py"):
        for stage, home in stages.items():
            if re.search(rf"(?<![\w.]){stage}\((?!Protocol)", path.read_text().replace(f"class {stage}", "")):
                assert path.stem == home, f"{stage} is constructed in {path}"


def test_each_refusal_code_has_a_spec_or_a_test() -> None:
    """Codes of the compiler stand in the specs, those of policy, ledger and backends in a test."""
    codes = {"passes": set(), "rest": set()}  # type: dict[str, set[str]]
    for path in (ROOT / "dpsql").rglob("*.py"):
        found = re.findall(r"(?:Refused|refuse|BudgetExhausted)\(\s*\"(\w+)\"", path.read_text())
        codes["passes" if path.parent.name == "passes" else "rest"].update(found)
    text = "".join(TESTS.values()) + "".join(SPECS.values())
    assert not {code for code in codes["passes"] | codes["rest"] if code not in text}


def test_proof_prints() -> None:
    text = "\n".join(lines())
    assert text.count("Proof:") == len(OBLIGATIONS) + 1  # and the theorem's own


def test_trusted_base_is_small() -> None:
    """An afternoon's reading: about 4,900 lines of Python; and the table of functions for another.

    The native form of the limit pass is 3,150 lines more, half of it for types and memory; the SQL form says what it must give.
    What is not limited (single, native, prepare: 550 lines) is new work for whoever reads the proof; test_single and test_prepare
    compare it with what would be limited.

    The Rust of all mechanisms is two afternoons: some 1,700 lines of code, and 650 that say what each needs and gives and
    why. What a query runs today (noise, choice) is half of it; no file needs another mechanism's to be understood.
    The table has a cap of its own: some 235 rows, each with its types, its range and its total form, to be read one by one.
    It holds every function that can be made total (test_names), and grows by 5 lines for each of the last ninety.
    """
    names = "compile algebra relations passes/track passes/growth passes/bound passes/climb passes/measure passes/single passes/native passes/limit passes/allot mechanisms/laplace mechanisms/gaussian accountant release prepare ledger"
    python = sum(len((ROOT / "dpsql" / f"{name}.py").read_text().splitlines()) for name in names.split())
    table = sum(len(path.read_text().splitlines()) for path in (ROOT / "dpsql" / "functions").glob("*.py"))
    rust = sum(
        len(path.read_text().split("#[cfg(test)]\nmod tests")[0].splitlines())
        for path in (ROOT / "rust" / "noise").rglob("*.rs")
    )
    limits = sum(
        len(path.read_text().split("#[cfg(test)]\nmod tests")[0].splitlines())
        for path in (ROOT / "rust" / "limit").rglob("*.rs")
    )
    assert python < 5_050 and table < 2_740 and rust < 2_650 and limits < 3_200


def test_readme_commands() -> None:
    """The README's two commands are targets of the Makefile, and its long command too."""
    readme, makefile = (ROOT / "README.md").read_text(), (ROOT / "Makefile").read_text()
    for target in re.findall(r"make (\w+)", readme):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    assert {"demo", "test", "long"} <= set(re.findall(r"make (\w+)", readme))


def test_readme_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The README's Python runs as it stands, on the demo's database."""
    from dpsql.frontends.demo import make

    make(tmp_path)
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    exec(compile(block, "README.md", "exec"), {})  # noqa: S102


def test_readme_ten_minutes(tmp_path: Path) -> None:
    """From a Parquet file to a private answer: the README's commands as they stand, typed into a shell."""
    (block,) = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    rows = range(90_000)
    columns = {"person": [i % 30_000 for i in rows], "city": [["Bern", "Oslo", "Rome"][i % 3] for i in rows]}
    pq.write_table(pa.table({**columns, "spend": [float(i % 80) for i in rows]}), tmp_path / "visits.parquet")
    command = tmp_path / "bin" / "dpsql"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m dpsql "$@"\n')
    command.chmod(0o755)
    environment = os.environ | {"PATH": f"{command.parent}:{os.environ['PATH']}", "COLUMNS": "120"}
    done = subprocess.run(["sh", "-e"], input=block, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert 'person = "person"' in done.stdout and "no  " not in done.stdout
    assert done.stdout.count("a rehearsal on synthetic rows") == 1
    number = r"(-?[\d,.]+) ± [\d,.]+"
    rehearsed, real = re.findall(rf"Bern │ +{number} │ +{number} │", done.stdout)
    assert float(rehearsed[0].replace(",", "")) < 10_000
    assert abs(float(real[0].replace(",", "")) - 30_000) < 2_000 and abs(float(real[1]) - 39.5) < 5
    assert re.search(r"^spent +epsilon 0\.[12]", done.stdout, re.MULTILINE)
    assert (tmp_path / "visits.ledger").exists()
