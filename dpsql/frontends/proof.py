"""The proof, printed from the docstrings in the order of the pipeline. Nothing is stored, so nothing drifts."""

from __future__ import annotations

import ast
import inspect
import io
import re
import tokenize
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from dpsql import ledger, prepare, sources
from dpsql.backends.duckdb import DuckDB, Shadow
from dpsql.finish import Scratch
from dpsql.kernel import accountant, derive, functions, plan
from dpsql.kernel.limits.native_form import natively, unlimited
from dpsql.kernel.limits.one_row import single
from dpsql.kernel.mechanisms import MECHANISMS
from dpsql.kernel.release import choose, release
from dpsql.session import Session

HEADINGS = ("Needs", "Gives", "Proof", "Checked")
OBLIGATIONS: tuple[object, ...] = (
    functions,
    plan.plan,
    derive,
    *plan.STEPS,
    natively,
    single,
    unlimited,
    Session.sql,
    sources,
    prepare,
    DuckDB.snapshot,
    Shadow.confirm,
    ledger,
    choose,
    release,
    *MECHANISMS,
    Scratch.finish,
    accountant,
)


def sections(thing: object) -> dict[str, str]:
    """The text under each of the four headings of a docstring."""
    text = inspect.getdoc(thing) or ""
    found = re.split(rf"^({'|'.join(HEADINGS)}):\s*", text, flags=re.MULTILINE)
    return {heading: inspect.cleandoc(body).strip() for heading, body in zip(found[1::2], found[2::2], strict=True)}


def title(thing: object) -> str:
    return str(getattr(thing, "__qualname__", getattr(thing, "__name__", "")).removeprefix("dpsql."))


def lines() -> Iterator[str]:
    yield inspect.getdoc(plan) or ""
    for thing in OBLIGATIONS:
        first = (inspect.getdoc(thing) or "").splitlines()[0]
        yield f"\n{title(thing)}: {first}"
        for heading, body in sections(thing).items():
            flowed = re.sub(r"\s*\n\s*", "\n           ", body)
            yield f"  {heading + ':':<9}{flowed}"
    yield "\nTrusted files, in lines of code: no blanks, comments, docstrings, imports or tests."
    for group, files in trusted().items():
        yield f"{sum(files.values()):7,}  {group}"
        yield from (f"{count:13,}  {name}" for name, count in files.items())
    yield f"         and sqlglot {version('sqlglot')}: its generator for DuckDB writes the SQL, which DuckDB's own parser then confirms"


PACKAGE = Path(__file__).parent.parent
# What has to be right for the promise to hold. All else may be wrong, and then an answer is.
BESIDE = ("policy/catalog.py", "ledger.py", "head.py", "run.py", "interrupt.py", "backends/duckdb.py")


def trusted() -> dict[str, dict[str, int]]:
    """The files that have to be right, with their lines of code, by what they are for."""
    kernel = sorted((PACKAGE / "kernel").rglob("*.py"))
    functions = [path for path in kernel if path.parent.name == "functions"]
    rust = sorted(PACKAGE.parent.glob("rust/*/src/*.rs"))  # where the sources lie beside the package
    groups = {
        "kernel": [path for path in kernel if path not in functions],
        "table of functions": functions,
        "beside it: policy, ledger, the run, the engine": [PACKAGE / name for name in BESIDE],
        "Rust": rust,
    }
    base = PACKAGE.parent
    return {
        group: {str(path.relative_to(base)): count for path in paths if (count := code_lines(path))}
        for group, paths in groups.items()
        if paths
    }


def code_lines(path: Path) -> int:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".rs":
        lines = (line.strip() for line in text.split("#[cfg(test)]\nmod tests")[0].splitlines())
        return sum(bool(line) and not line.startswith(("//", "use ")) for line in lines)
    beside: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            beside.update(range(node.lineno, (node.end_lineno or 0) + 1))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            beside.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    silent = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    tokens = (t for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.type not in silent)
    return len({line for token in tokens for line in range(token.start[0], token.end[0] + 1)} - beside)
