"""The claims that the project makes about itself: proof obligations, refusal codes. (What the docs say: test_docs.)"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dpsql.frontends.proof import HEADINGS, OBLIGATIONS, lines, sections, title, trusted
from dpsql.kernel import plan
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
    assert {*plan.STEPS, *MECHANISMS} <= set(OBLIGATIONS)


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
        "Tracked": "persons",
        "Question": "question",
        "Limited": "limit",
        "Release": "noise",
    }
    for path in (ROOT / "dpsql").rglob("*.py"):
        for stage, home in stages.items():
            if "compiler" in path.parts and stage == "Release":  # a release of the statement, and not the kernel's
                continue
            if re.search(rf"(?<![\w.]){stage}\((?!Protocol)", path.read_text().replace(f"class {stage}", "")):
                assert path.stem == home, f"{stage} is constructed in {path}"


def test_each_refusal_code_has_a_spec_or_a_test() -> None:
    """Codes of the compiler stand in the specs, those of policy, ledger and backends in a test."""
    codes = {"passes": set(), "rest": set()}  # type: dict[str, set[str]]
    for path in (ROOT / "dpsql").rglob("*.py"):
        found = re.findall(r"(?:Refused|refuse|BudgetExhausted)\(\s*\"(\w+)\"", path.read_text())
        codes["passes" if path.parent.name == "compiler" else "rest"].update(found)
    text = "".join(TESTS.values()) + "".join(SPECS.values())
    assert not {code for code in codes["passes"] | codes["rest"] if code not in text}


def test_proof_prints() -> None:
    text = "\n".join(lines())
    assert text.count("Proof:") == len(OBLIGATIONS) + 1  # and the theorem's own


def test_trusted_lines_are_counted() -> None:
    """`dpsql proof` counts what has to be right, and the README quotes it; the kernel has a cap."""
    counts = {group: sum(files.values()) for group, files in trusted().items()}
    python = sum(count for group, count in counts.items() if group != "Rust")
    readme = (ROOT / "README.md").read_text()
    assert f"{round(python, -2):,} lines of Python and {round(counts['Rust'], -2):,} of Rust" in readme
    assert counts["kernel"] < 3_650  # to be brought below 3,000
    assert {"dpsql/kernel/derive.py", "dpsql/ledger.py", "dpsql/backends/duckdb.py"} <= {
        name for files in trusted().values() for name in files
    }
