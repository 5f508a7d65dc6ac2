"""The proof, printed from the docstrings in the order of the pipeline. Nothing is stored, so nothing drifts."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

from dpsql import accountant, functions, ledger, prepare, sources
from dpsql import compile as compiler
from dpsql.backends.duckdb import DuckDB, Shadow
from dpsql.compose import Composer
from dpsql.finish import Scratch
from dpsql.mechanisms import MECHANISMS
from dpsql.passes.free import free
from dpsql.passes.native import natively, unlimited
from dpsql.passes.single import single
from dpsql.release import choose, release
from dpsql.session import Session

HEADINGS = ("Needs", "Gives", "Proof", "Checked")
OBLIGATIONS: tuple[object, ...] = (
    functions,
    *compiler.PASSES,
    natively,
    single,
    unlimited,
    free,
    Composer,
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
    yield inspect.getdoc(compiler) or ""
    for thing in OBLIGATIONS:
        first = (inspect.getdoc(thing) or "").splitlines()[0]
        yield f"\n{title(thing)}: {first}"
        for heading, body in sections(thing).items():
            flowed = re.sub(r"\s*\n\s*", "\n           ", body)
            yield f"  {heading + ':':<9}{flowed}"
