"""Parameters to constants. They never become text: what `resolve` gets are literals of the algebra."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

from sqlglot import exp

from dpsql.compiler.parse import MAX_BYTES
from dpsql.errors import Refused
from dpsql.kernel import algebra
from dpsql.kernel.algebra import Literal, constant
from dpsql.policy.catalog import MOST_DAYS, Interval, Type, encodable, fold

ACCEPTED = "Pass an int or Decimal of at most 38 digits, a finite float, a str, a bool, a date, a timedelta, or a datetime without a zone."


def bind(marks: Mapping[str, int], parameters: object) -> dict[str, Literal]:
    """The constant for each mark of a query: `?` and `$1` from a list, `$name` from a dict.

    >>> {name: literal.value for name, literal in bind({"1": 30, "2": 40}, [7, "x"]).items()}
    {'1': 7, '2': 'x'}
    """
    given = named(parameters)
    size = sum(len(value.encode("utf-8", "replace")) for value in given.values() if isinstance(value, str))
    if size > MAX_BYTES:
        raise Refused("too_long", f"the parameters are longer than {MAX_BYTES} bytes", "Shorten them.")
    for name, position in marks.items():
        if name not in given:
            raise Refused(
                "parameter_missing",
                f"the query has ${name}, and no parameter was given for it",
                "Pass a list for ? and $1, a dict for $name: db.sql(query, [30]), db.sql(query, {'age': 30}).",
                position,
            )
    for name in given:
        if name not in marks:
            raise Refused(
                "parameter_unknown",
                f"a parameter was given for ${name}, which does not stand in the query",
                "Pass as many parameters as the query has, under the names that it has.",
            )
    return {name: typed(name, given[name], position) for name, position in marks.items()}


def named(parameters: object) -> dict[str, Any]:
    match parameters:
        case None:
            return {}
        case list() | tuple():
            return {str(number): value for number, value in enumerate(parameters, 1)}
        case Mapping() if all(isinstance(name, str) for name in parameters):
            if len({fold(name) for name in parameters}) == len(parameters):
                return {fold(name): value for name, value in parameters.items()}
    raise Refused(
        "parameter_invalid",
        "the parameters are neither a list nor a dict with a different name for each",
        "Pass a list for ? and $1, a dict for $name.",
    )


def typed(name: str, value: Any, position: int) -> Literal:
    """A constant of the type that the engine would give to this value."""
    match value:
        case bool():
            return constant(value)
        case int() if type(value) is int and abs(value) < 2**127:
            return constant(value)
        case float() if math.isfinite(number := float.__float__(value)):  # also numpy's
            return constant(number)
        case Decimal() if type(value) is Decimal and (exact := decimal(value)) is not None:
            return exact
        case str() if type(value) is str and encodable(value) and "\0" not in value:
            return constant(value)
        case datetime.datetime() if type(value) is datetime.datetime and value.tzinfo is None:
            return constant(value)
        case datetime.date() if type(value) is datetime.date:
            return constant(value)
        case datetime.timedelta() if type(value) is datetime.timedelta and abs(value.days) < MOST_DAYS:
            return constant(lasting(value))
    raise Refused(
        "parameter_invalid",
        f"parameter ${name}, of type {type(value).__name__}, cannot be used as a constant",
        "For NULL write x IS NULL." if value is None else ACCEPTED,
        position,
    )


def written(tree: exp.Query, constants: Mapping[str, Literal]) -> exp.Query:
    """The statement with its parameters written into it."""
    for node in list(tree.find_all(exp.Placeholder)):
        node.replace(spelt(constants[fold(node.name)].value))
    return tree


def spelt(value: Any) -> exp.Expr:
    """A constant as it would be written."""
    match value:
        case None:
            return exp.Anonymous(this="nullif", expressions=[exp.Literal.number(1), exp.Literal.number(1)])
        case datetime.date():
            kind = "TIMESTAMP" if isinstance(value, datetime.datetime) else "DATE"
            return exp.Cast(this=exp.Literal.string(str(value)), to=exp.DataType.build(kind, dialect="duckdb"))
        case datetime.timedelta():
            return spelt(lasting(value))
        case Interval():
            return exp.Cast(this=exp.Literal.string(value.text), to=exp.DataType.build("INTERVAL", dialect="duckdb"))
        case bool() | str():
            return exp.convert(value)
        case float():
            text = repr(value) if "e" in repr(value) else f"{value!r}e0"
        case Fraction():
            with localcontext(prec=60):
                text = f"{Decimal(value.numerator) / value.denominator:f}"
        case _:
            text = f"{value:f}" if isinstance(value, Decimal) else str(value)
    sign, digits = text.startswith("-"), exp.Literal.number(text.lstrip("-"))
    return exp.Paren(this=exp.Neg(this=digits)) if sign else digits


def lasting(value: datetime.timedelta) -> Interval:
    return Interval(0, value.days, value.seconds * 1_000_000 + value.microseconds)


def decimal(value: Decimal) -> Literal | None:
    """A DECIMAL with as many digits after the point as were given."""
    if not value.is_finite() or abs(value.adjusted()) > 40:
        return None
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    scale, exact = max(-exponent, 0), Fraction(value)
    width = max(len(digits) + max(exponent, 0), scale, 1)
    return algebra.typed(exact, Type(f"DECIMAL({width},{scale})")) if width <= 38 else None
