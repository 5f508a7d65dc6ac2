"""The README, the pages of docs/ and examples/: what stands there runs as written, is complete, and is up to date.

Blocks of one page run in order in one directory, which has the files of `dpsql demo --files`. ```text is output. A statement of
```sql behind which `-- refused: CODE` stands is refused with that code. ```toml is a policy, or parts of one.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import dpsql
from dpsql import dbapi
from dpsql.frontends.demo import sample
from dpsql.policy.catalog import KNOWN, read_policy
from dpsql.problems import problems

ROOT = Path(__file__).parent.parent
ELSEWHERE = {"shell.md"}  # its blocks run in test_shell
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SETUP = re.compile(r"(make|pip|git|cd) ")  # what changes the machine, or takes too long: its targets are checked
BASE = {
    "budget": {"epsilon": 1.0, "delta": 1e-6},
    "tables": {"customer": {"person": "id", "key": ["id"]}, "orders": {"person": "customer"}},
}


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATE = load(ROOT / "docs" / "generate.py")


def blocks(page: Path) -> list[tuple[str, str]]:
    text = page.read_text(encoding="utf-8")
    found = BLOCK.findall(text)
    assert text.count("```") == 2 * len(found), f"{page.name} has a block that is set in, or not closed"
    return found


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("sample")
    sample(directory)
    return directory


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the sample files, as the current one; `dpsql` and `python` are these."""
    commands = {"dpsql": f'"{sys.executable}" -m dpsql', "python": f'"{sys.executable}"'}
    (tmp_path / "bin").mkdir()
    for name, command in commands.items():
        (tmp_path / "bin" / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (tmp_path / "bin" / name).chmod(0o755)
    directory = tmp_path / "work"
    shutil.copytree(made, directory)
    for name, value in {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "COLUMNS": "120"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(directory)
    return directory


# --- blocks -----------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:pandas only supports SQLAlchemy")
@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in ELSEWHERE], ids=lambda page: page.stem)
def test_blocks_run(page: Path, here: Path) -> None:
    names: dict[str, Any] = {}
    printed = ""
    for kind, text in blocks(page):
        match kind:
            case "sh" if all(SETUP.match(line) for line in text.splitlines() if line.strip()):
                check_setup(text)
            case "sh":
                done = subprocess.run(["sh", "-eu"], input=text, capture_output=True, text=True, encoding="utf-8")
                assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
                printed += done.stdout
            case "python":
                exec(compile(text, page.name, "exec"), names)  # noqa: S102
            case "sql":
                check_sql(text)
            case "toml":
                check_policy(text)
            case "text":
                pass
            case _:
                pytest.fail(f"a block of {page.name} is of no known kind {kind!r}: mark output as text\n{text}")

    if page.name == "tutorial.md":
        check_tutorial(printed)


def check_tutorial(printed: str) -> None:
    """Private answers that are near the exact ones: some 104,700 rides in Bern count, at an average price of 4.50."""
    number = r"(-?[\d,.]+) ± [\d,.]+"
    rehearsed, real = re.findall(rf"Bern │ +{number} │ +{number} │", printed)
    assert float(rehearsed[0].replace(",", "")) < 60_000
    assert abs(float(real[0].replace(",", "")) - 104_700) < 4_000 and abs(float(real[1]) - 4.5) < 1
    assert printed.count("a rehearsal on synthetic rows") == 1 and 'person = "rider"' in printed
    assert re.search(r"^spent +epsilon 0\.[6-9]", printed, re.MULTILINE)
    assert Path("rides.ledger").exists() and Path("bikes.ledger").exists()


def check_setup(text: str) -> None:
    """Targets of make and extras of pip exist."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for target in re.findall(r"^make (\w+)", text, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    for extra in re.findall(r"\[(\w+)\]", text):
        assert extra in project["optional-dependencies"]


def check_sql(text: str) -> None:
    """On the sample shop, whose budget here is large, as each page has more questions than one would pay for."""
    policy = tomllib.loads(Path("shop.policy.toml").read_text(encoding="utf-8"))
    policy["budget"]["epsilon"] = 1000.0
    with dpsql.connect("shop.duckdb", policy=policy, ledger=":memory:") as db:
        for statement, refused in re.findall(r"(\S.*?);(?:[ \t]*-- refused: (\w+))?", text + ";", re.DOTALL):
            if not re.sub(r"--.*", "", statement).strip():
                continue
            if refused:
                with pytest.raises(dpsql.Refused) as error:
                    db.sql(statement)
                assert error.value.code == refused
            else:
                assert db.sql(statement).columns


def check_policy(text: str) -> None:
    given = tomllib.loads(text)
    policy = given if "budget" in given and "tables" in given else merged(BASE, given)
    assert [str(problem) for problem in problems(policy)] == []
    read_policy(policy)


def merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    both = {key: merged(one[key], other[key]) for key in one.keys() & other.keys() if isinstance(other[key], Mapping)}
    return {**one, **other, **both}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run(path: Path, here: Path) -> None:
    """In an empty directory; each says what it does. (The notebook runs in test_notebook.)"""
    empty = here.parent / "empty"
    empty.mkdir()
    done = subprocess.run([sys.executable, str(path)], cwd=empty, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) > 10 and "±" in done.stdout
    assert path.name in (ROOT / "README.md").read_text(encoding="utf-8")
    assert load(path).__doc__


def test_a_page_with_blocks_says_how_its_files_are_made() -> None:
    for page in PAGES:
        if any(kind in ("sql", "python") or (kind == "sh" and "dpsql " in text) for kind, text in blocks(page)):
            assert "dpsql demo" in page.read_text(encoding="utf-8"), page.name


# --- completeness -----------------------------------------------------------------------------------------------------


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def test_generated_parts_are_up_to_date() -> None:
    for path in sorted((ROOT / "docs").glob("*.md")):
        text = path.read_text(encoding="utf-8")
        assert text == GENERATE.generated(text), f"{path.name}: type python docs/generate.py"


def test_every_policy_key_is_documented() -> None:
    """Each has a row with type, default, what it does and an example, in the part of its kind; and no other key has one."""
    heads = {
        "dataset": "[dataset]",
        "budget": "[budget]",
        "defaults": "[defaults]",
        "analyst": "[analysts.NAME]",
        "table": "[tables.NAME]",
        "person": "person",
        "column": "[tables.NAME.columns]",
    }
    parts = dict(re.findall(r"^## `([^`]+)`.*?$(.*?)(?=^## |\Z)", page("policy.md"), re.DOTALL | re.MULTILINE))
    assert {name.strip("[]").split(".")[0] for name in parts} == {*KNOWN["top level"].split(), "person"}
    for kind, head in heads.items():
        rows = re.findall(r"^\| `(\w+)` \|(?: [^|]+ \|){4}$", parts[head], re.MULTILINE)
        assert rows == KNOWN[kind].split(), kind


def test_every_error_code_is_documented() -> None:
    documented = {code for group in GENERATE.said().values() for code in group}
    assert documented == set(GENERATE.codes()), "docs/errors.toml says when each comes"
    assert set(re.findall(r"^### `(\w+)`$", page("errors.md"), re.MULTILINE)) == documented


def test_every_command_is_documented() -> None:
    names = [name for name, _ in GENERATE.commands()]
    assert len(names) > 15
    for name in names:
        assert f"\n## {name}\n" in page("cli.md")


def test_the_guides_mention_every_command() -> None:
    """Not only the reference, which is generated."""
    guides = "".join(path.read_text(encoding="utf-8") for path in PAGES if path.name != "cli.md")
    assert [name for name, _ in GENERATE.commands() if name not in guides] == []


def test_every_public_name_is_documented() -> None:
    text = page("python.md")
    for name in dpsql.__all__:
        assert re.search(rf"\b{name}\b", text), name
    for of, called in ((dpsql.Session, "db"), (dpsql.Answer, "answer")):
        for name, member in vars(of).items():
            if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
                assert f"`{called}.{name}" in text, name
                assert member.__doc__, name
    drivers = [name for name, value in vars(dbapi).items() if getattr(value, "__module__", "") == "dpsql.dbapi"]
    for name in ["apilevel", "threadsafety", "paramstyle", *drivers]:
        if not name.startswith("_") and name not in ("kind_of", "sort", "Kind"):
            assert re.search(rf"\b{name}\b", text), name
    assert "%load_ext dpsql" in text and "dpsql:///" in text


def test_links_lead_somewhere() -> None:
    """Links between pages, to headings and to files; those that leave the project are not followed."""
    for path in PAGES:
        text = BLOCK.sub("", path.read_text(encoding="utf-8"))
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            if link.startswith(("http:", "https:")):
                continue
            file, _, anchor = link.partition("#")
            target = (path.parent / file).resolve() if file else path
            assert target.exists(), f"{path.name}: {link}"
            if path.parent.name == "docs":
                assert target.is_relative_to(ROOT / "docs"), f"{path.name}: {link} is not on the site"
            if anchor:
                assert anchor in anchors(target), f"{path.name}: {link}"


def anchors(target: Path) -> set[str]:
    """The names of a page's headings."""
    heads = re.findall(r"^#+ (.+)$", BLOCK.sub("", target.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", head.lower())).strip("-") for head in heads}


def test_files_that_are_named_exist() -> None:
    """Commands like `python benches/x.py --flag` name files and flags that are there, `pytest tests/x.py` tests."""
    for path in PAGES:
        for spelled in re.findall(
            r"`([^`\n]*\b(?:benches|tests|examples|docs)/[^`\n]*)`", path.read_text(encoding="utf-8")
        ):
            for name in re.findall(r"(?:benches|tests|examples|docs)/[\w./]*\w", spelled):
                assert (ROOT / name).exists() or re.search(r"\bx\.|NAME", name), f"{path.name}: {name}"
            if script := re.match(r"python ((?:benches|examples|docs)/\w+\.py) (.+)", spelled):
                source = (ROOT / script[1]).read_text(encoding="utf-8")
                for flag in re.findall(r"--\w[\w-]*", script[2]):
                    assert flag in source, f"{path.name}: {spelled}"


def test_the_site_lists_every_page() -> None:
    listed = set(re.findall(r"\b(\w+\.md)\b", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    assert listed == {path.name for path in (ROOT / "docs").glob("*.md")}


def test_the_readme_is_one_screen() -> None:
    """It names the two commands, and only commands that exist."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.splitlines()) <= 90
    assert {"demo", "test"} <= set(re.findall(r"make (\w+)", readme))
    names = {name for name, _ in GENERATE.commands()}
    for path in PAGES:
        for spelled in re.findall(r"(?<!%)\bdpsql (?:(?:ledger|policy) )?[a-z][a-z-]*\b", " ".join(quoted(path))):
            assert spelled in names, f"{path.name}: {spelled}"


def quoted(path: Path) -> list[str]:
    """What stands in a page as code within the text."""
    return re.findall(r"`([^`\n]*\bdpsql [^`\n]*)`", BLOCK.sub("", path.read_text(encoding="utf-8")))
