"""The claims that the project makes about itself: proof obligations, refusal codes. (What the docs say: test_docs.)"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dpsql.compiler import compile as compiler
from dpsql.frontends.proof import HEADINGS, OBLIGATIONS, lines, sections, title
from dpsql.kernel.mechanisms import MECHANISMS

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
