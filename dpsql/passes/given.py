"""Values that were released, as constants of a later release."""

from __future__ import annotations

import math
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from sqlglot import exp

from dpsql.errors import Unfinished
from dpsql.passes.bind import spelt as constant

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


def filled(query: exp.Query, values: tuple[tuple[Any, ...], ...]) -> exp.Query:
    """A release with what it waited for: values of one column each, and a sample of their kind before them."""
    for node in list(query.find_all(exp.Placeholder)):
        sample, *given = values[int(node.name.split()[1])]
        found = [value if usable(value) else None for value in given]
        known, test = [constant(value) for value in found if value is not None], node.parent
        if node.name.endswith(" all"):
            assert isinstance(test, exp.In)
            test.set("expressions", known)
            parts = [*([test.copy()] if known else []), *([unknown(True)] if None in found else [])]
            test.replace(exp.Paren(this=exp.or_(*parts)) if parts else exp.Boolean(this=False))
        elif len(found) > 1:
            raise Unfinished("a subquery that is a value gave more than one row")
        else:
            node.replace(known[0] if known else unknown(sample))
    return query


def usable(value: Any) -> bool:
    """Not a number is no number, as it would be in a column; and there is no constant for a text with a zero in it."""
    return not (isinstance(value, float) and not math.isfinite(value)) and not (
        isinstance(value, str) and "\0" in value
    )


def unknown(sample: Any) -> exp.Expr:
    """NULL, of the sample's type."""
    return exp.Case(ifs=[exp.If(this=exp.Boolean(this=False), true=constant(sample))])
