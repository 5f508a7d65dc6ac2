"""Values that were released, as constants of a later release."""

from __future__ import annotations

import math
import re
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

from sqlglot import exp

from dpsql.compiler.bind import spelt as constant
from dpsql.errors import Unfinished

WIDEST = 38  # digits of a decimal
MAX_PARTS = 64  # of a text with the character 0 in it
# For a value that is not known yet: one of its kind.
SAMPLES: dict[str, Any] = {
    "VARCHAR": "",
    "BOOLEAN": True,
    "DATE": date(2000, 1, 1),
    "TIMESTAMP": datetime(2000, 1, 1),
    "INTERVAL": timedelta(0),
    "DOUBLE": 1.5,
    "DECIMAL": Decimal("1.5"),
}


class Moment(NamedTuple):
    """A date or a timestamp of a year that Python does not have, as the engine writes it."""

    text: str
    kind: str


def filled(query: exp.Query, values: tuple[tuple[Any, ...], ...]) -> exp.Query:
    """A release with what it waited for: values of one column each, and a sample of their kind before them."""
    for node in list(query.find_all(exp.Placeholder)):
        sample, *given = values[int(node.name.split()[1])]
        known, test = [written(value) for value in given if value is not None], node.parent
        if node.name.endswith(" all"):
            assert isinstance(test, exp.In)
            test.set("expressions", known)
            parts = [*([test.copy()] if known else []), *([unknown(True)] if None in given else [])]
            test.replace(exp.Paren(this=exp.or_(*parts)) if parts else exp.Boolean(this=False))
        elif len(given) > 1:
            raise Unfinished("a subquery that is a value gave more than one row")
        else:
            node.replace(known[0] if known else unknown(sample))
    return query


def written(value: Any) -> exp.Expr:
    """A constant, also where none can be written: of a year before 1 or after 9999, not a number, infinite, or a text with the
    character 0 in it. The engine compares these as it compares them in a column."""
    match value:
        case Moment(text, kind):
            return read_by_engine(text, kind)
        case Decimal() if (
            value.as_tuple().exponent == -WIDEST
        ):  # the engine reads so many digits behind a point as a double
            return read_by_engine(f"{value:f}", f"DECIMAL({WIDEST},{WIDEST})")
        case float() if not math.isfinite(value):
            return read_by_engine(str(value), "DOUBLE")
        case str() if "\0" in value:
            parts: list[exp.Expr] = []
            for part in re.split("(\0)", value):
                zero = exp.Anonymous(this="chr", expressions=[exp.Literal.number(0)])
                parts += [zero if part == "\0" else exp.Literal.string(part)] if part else []
            if len(parts) > MAX_PARTS:
                raise Unfinished(f"a released text has more than {MAX_PARTS // 2} characters 0 in it")
            return exp.Anonymous(this="concat", expressions=parts) if len(parts) > 1 else parts[0]
        case _:
            return constant(value)


def read_by_engine(text: str, kind: str) -> exp.Expr:
    return exp.TryCast(this=exp.Literal.string(text), to=exp.DataType.build(kind, dialect="duckdb"))


def unknown(sample: Any) -> exp.Expr:
    """NULL, of the sample's type."""
    return exp.Case(ifs=[exp.If(this=exp.Boolean(this=False), true=constant(sample))])
