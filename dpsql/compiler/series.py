"""range and generate_series of constants, which are public tables."""

from __future__ import annotations

import datetime
import re
from typing import Any

from sqlglot import exp

from dpsql.compiler.lower import refuse
from dpsql.kernel.algebra import Expr, Literal, constant, typed
from dpsql.policy.catalog import BIGINT, fold

MOST = 10_000
UNITS = ("week", "day", "hour", "minute", "second", "millisecond")
LENGTHS = {unit: datetime.timedelta(**{f"{unit}s": 1}) for unit in UNITS}


def series(word: str, given: list[Expr | str], node: exp.Expr) -> list[Expr]:
    """The values: whole numbers, or timestamps with steps of one length. An interval is given as its text."""
    start: Any
    stop: Any
    step: Any
    parts = [part.value if isinstance(part, Literal) else part for part in given]
    match [None if isinstance(part, bool) else part for part in parts]:
        case [int(stop)]:
            start, step = 0, 1
        case [int(start), int(stop)]:
            step = 1
        case [int(start), int(stop), int(step)] if step:
            pass
        case [datetime.date() as first, datetime.date() as last, str(text)] if length(text):
            start, stop, step = moment(first), moment(last), length(text)
        case _:
            hint = "Write range(0, 10), or range(DATE '2024-01-01', DATE '2024-02-01', INTERVAL 1 DAY)."
            refuse("series_invalid", f"{word} needs constants, and steps of one length", hint, node)
    whole, rest = divmod(stop - start, step)
    count = whole + (fold(word) == "generate_series" or rest != step * 0)
    if not 0 < count <= MOST or (isinstance(start, int) and max(abs(start), abs(stop)) >= 2**62):
        refuse("series_invalid", f"{word} has no rows, or more than {MOST}", "Use other ends or another step.", node)
    values = [start + i * step for i in range(count)]
    return [typed(value, BIGINT) if isinstance(value, int) else constant(value) for value in values]


def moment(day: datetime.date) -> datetime.datetime:
    return day if isinstance(day, datetime.datetime) else datetime.datetime(day.year, day.month, day.day)


def length(text: str) -> datetime.timedelta | None:
    number, _, unit = text.partition(" ")
    known = LENGTHS.get(unit.removesuffix("s"))
    return int(number) * known if known is not None and re.fullmatch("-?[1-9][0-9]{0,6}", number) else None
