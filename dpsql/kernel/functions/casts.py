"""CAST and TRY_CAST. What does not fit, or is not a number or a date, is NULL: where DuckDB's CAST would raise, too."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from sqlglot import exp

from dpsql.errors import Refused
from dpsql.kernel.functions.dates import seen, window
from dpsql.kernel.functions.facts import Facts, Function, Range, Sides, again, holds, invoke, to_type, when
from dpsql.kernel.functions.intervals import brief, some
from dpsql.kernel.functions.numbers import rounded
from dpsql.policy.catalog import BOOLEAN, DAY, DOUBLE, INTERVAL, LARGEST, Type

# The kinds from which there is a way to each kind. All others are refused.
NUMBER = ("BOOLEAN", "INTEGER", "DECIMAL", "DOUBLE", "VARCHAR")
MOMENT = ("VARCHAR", "DATE", "TIMESTAMP")
WAYS = dict.fromkeys(NUMBER[:4], NUMBER) | {"DATE": MOMENT, "TIMESTAMP": MOMENT, "INTERVAL": ("VARCHAR", "INTERVAL")}
WAYS["VARCHAR"] = (*NUMBER[:4], *MOMENT, "INTERVAL")


def target_of(arguments: Sequence[Facts]) -> Type:
    source, name = arguments[0].type, arguments[1].constant
    assert isinstance(name, str)
    target = Type(name)
    exact = target.kind == "DECIMAL" and target.width == target.scale and source.kind == "BOOLEAN"  # the engine has 0.1
    if source.kind not in WAYS.get(target.kind, ()) or exact or target.sql == "FLOAT":
        raise Refused(
            "type_mismatch",
            f"there is no CAST from {source.sql} to {target.sql}",
            "Cast between numbers, texts, BOOLEAN, DATE and TIMESTAMP; of an INTERVAL take epoch(x).",
        )
    return target


def range_of(a: Facts, target: Type) -> Range | None:
    """The range after the cast, before what does not fit is left out."""
    if a.type == BOOLEAN:
        return Fraction(0), Fraction(1)
    if a.range is None or target == DOUBLE:
        return a.range
    if a.type != DOUBLE:
        return rounded(a.range[0], target.scale), rounded(a.range[1], target.scale)
    # The ends as doubles, in units of the target. The engine multiplies before it rounds, which is off by 2^-52 of it.
    low, high = (Fraction(end) * 10**target.scale for end in clip_ends(a.range))
    slack = max(abs(low), abs(high)) / 2**50
    slack = slack if slack > Fraction(1, 4) else Fraction(0)
    return Fraction(math.floor(low - slack), 10**target.scale), Fraction(math.ceil(high + slack), 10**target.scale)


def clip_ends(range_: Range) -> tuple[float, float]:
    """The ends of a double's range as doubles, and not larger than any exact number."""
    low, high = (float(min(max(end, Fraction(-LARGEST)), Fraction(LARGEST))) for end in range_)
    return low, high


def fits(a: Facts, target: Type) -> bool:
    """Whether a plain cast cannot raise: ranges of doubles are hints and prove nothing."""
    if target.kind in ("BOOLEAN", "VARCHAR"):
        return a.type.kind != "VARCHAR"
    if target == DOUBLE or a.type.kind in ("DOUBLE", "VARCHAR"):
        return target == DOUBLE and a.type.kind != "VARCHAR"
    range_ = range_of(a, target)
    return range_ is not None and holds(target, target.scale, range_)


def cast_facts(arguments: Sequence[Facts]) -> Facts:
    a, target = arguments[0], target_of(arguments)
    if target == a.type:
        return replace(a, constant=None)
    if target == INTERVAL:
        return some()
    nullable = a.nullable or not fits(a, target)
    if target.kind in ("BOOLEAN", "VARCHAR") or (a.type.kind == "VARCHAR" and not target.numeric):
        return Facts(target, nullable)
    if a.type.kind in ("DATE", "TIMESTAMP"):
        inner = seen(a)
        low, high = inner.range or (Fraction(0), Fraction(0))
        whole = (low * DAY, high * DAY) if target.kind == "TIMESTAMP" else (Fraction(low // DAY), Fraction(high // DAY))
        return Facts(target, inner.nullable, whole, inner.declared)
    above = a.range is None and a.type.kind in ("INTEGER", "DECIMAL")  # above the noise nothing is known
    range_ = None if above else range_of(a, target) or target.range
    if range_ is not None and target.range is not None:
        low, high = max(range_[0], target.range[0]), min(range_[1], target.range[1])
        range_ = (low, max(low, high))
    size = None if a.size is None or not a.type.numeric or target == DOUBLE else a.size + 1
    return Facts(target, nullable, range_, a.declared or a.type == BOOLEAN, size, ends=a.ends)


def cast_total(sides: Sides, arguments: Sequence[Facts], _: Facts) -> exp.Expr:
    a, target = arguments[0], target_of(arguments)
    value = sides[0]
    if target == a.type:
        return value
    if target == INTERVAL:
        return brief(to_type(value, target.sql, exp.TryCast))
    if a.type.kind in ("DATE", "TIMESTAMP") and target.kind != "VARCHAR":
        return to_type(window(value, a), target.sql)
    if a.type == DOUBLE and a.range is not None and target.kind in ("INTEGER", "DECIMAL"):
        # The range of a double is a hint, that of an exact number is a proof. NaN is above infinity, and NULL.
        low, high, top = (to_type(exp.Literal.string(repr(end)), "DOUBLE") for end in (*clip_ends(a.range), math.inf))
        clamped = invoke("least", invoke("greatest", value, low), high)
        value = when((exp.LTE(this=again(value), expression=top), clamped))
    return to_type(value, target.sql, exp.Cast if fits(a, target) else exp.TryCast)


CASTS = (
    Function("CAST", cast_facts, cast_total, lambda s: to_type(s[0], s[1].name)),
    Function("TRY_CAST", cast_facts, cast_total, lambda s: to_type(s[0], s[1].name, exp.TryCast)),
)
