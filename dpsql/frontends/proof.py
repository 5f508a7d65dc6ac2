"""The proof, printed from the docstrings in the order of the pipeline. Nothing is stored, so nothing drifts."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

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
