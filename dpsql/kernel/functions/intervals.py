"""Intervals: months, days and microseconds, which the engine keeps apart.

An interval below the noise has a size s: no more than s * 120,000 months, and neither its days, nor its microseconds, nor all of
it, a month having 30 days, are longer than s * 11.6 million days. A scan leaves those of size 1, all others being NULL (`brief`).
Sizes add up, and none is above 6: then months, days and microseconds are numbers that the engine has, also where a date moves by
them, and also all of them in microseconds. Whatever the size, writing an interval as days and time (`level`) keeps it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from sqlglot import exp

from dpsql.kernel.functions.facts import (
    LENGTHS,
    Facts,
    Function,
    Range,
    Sides,
    again,
    any_null,
    between,
    binary,
    cast,
    constant_needed,
    guarded,
    holds,
    invoke,
    mismatch,
    named,
    numbers,
    overflow,
    paren,
    to_type,
    when,
)
from dpsql.kernel.functions.numbers import integers
from dpsql.policy.catalog import BIGINT, DAY, DOUBLE, INTERVAL, MOST_DAYS, MOST_MONTHS, TIMESTAMP, UNITS, Interval

LONGEST = 30 * MOST_MONTHS + 2 * MOST_DAYS  # days, of an interval of size 1
SPAN: Range = Fraction(-LONGEST * DAY), Fraction(LONGEST * DAY)


def some(nullable: bool = True, range_: Range = SPAN, declared: bool = False, size: int | Fraction = 1) -> Facts:
    """An interval of this size, and so no longer than it may be."""
    low, high = (min(max(end, size * SPAN[0]), size * SPAN[1]) for end in range_)
    return Facts(INTERVAL, nullable, (low, high), declared, Fraction(size))


def brief(side: exp.Expr) -> exp.Expr:
    """Any interval, if it is of size 1; else NULL. Of whichever interval, its years, days and hours are BIGINTs."""
    ends = (("year", MOST_MONTHS // 12 - 1), ("day", MOST_DAYS), ("hour", MOST_DAYS * 24 - 1))
    tests = [
        exp.Between(
            this=invoke(name, again(side)), low=exp.Neg(this=exp.Literal.number(most)), high=exp.Literal.number(most)
        )
        for name, most in ends
    ]
    return when((exp.and_(*tests, copy=False), side))


def level(side: exp.Expr) -> exp.Expr:
    """As days and time: one representation for all intervals that the engine takes for equal."""
    return level_of(invoke("epoch_us", side))


def level_of(microseconds: exp.Expr) -> exp.Expr:
    start = to_type(exp.Literal.string("1970-01-01"), TIMESTAMP.sql)
    return binary(exp.Sub)((invoke("make_timestamp", microseconds), start))


def intervals(name: str, arguments: Sequence[Facts]) -> None:
    if any(argument.type != INTERVAL for argument in arguments):
        raise mismatch(name, arguments)


def added(name: str, node: type[exp.Binary], sign: int) -> Function:
    """INTERVAL + INTERVAL and INTERVAL - INTERVAL."""

    def facts(arguments: Sequence[Facts]) -> Facts:
        intervals(name[-1], arguments)
        a, b = arguments
        if a.range is None or b.range is None:  # above the noise
            return Facts(INTERVAL)
        size = a.stretch + b.stretch
        if size > LENGTHS:
            raise overflow(name[-1])
        ends = [sign * end for end in b.range]
        range_ = a.range[0] + min(ends), a.range[1] + max(ends)
        return some(any_null(arguments), range_, a.declared and b.declared, size)

    return Function(name, facts, lambda s, *_: binary(node)(s), binary(node))


def negated(arguments: Sequence[Facts]) -> Facts:
    (a,) = arguments
    intervals("-", arguments)
    return some(a.nullable, (-a.range[1], -a.range[0]), a.declared, a.stretch) if a.range else Facts(INTERVAL)


def times(name: str, node: type[exp.Binary]) -> Function:
    """INTERVAL * number and INTERVAL / number: NULL where the result would not be of size 1, and of a zero divisor."""

    def facts(arguments: Sequence[Facts]) -> Facts:
        intervals(name[-1], arguments[:1])
        numbers(name[-1], arguments[1:])
        # Fractions of months become days, those of days become hours.
        return some(range_=(2 * SPAN[0], 2 * SPAN[1]), size=2) if arguments[0].range else Facts(INTERVAL)

    def total(sides: Sides, arguments: Sequence[Facts], _: Facts) -> exp.Expr:
        (x, n), room = sides, arguments[1].type.range
        whole = node is exp.Mul and arguments[1].type.kind == "INTEGER" and bool(room and holds(BIGINT, 0, room))
        ends = (
            to_type(exp.Literal.string(end), DOUBLE.sql)
            for end in (("-1e15", "1e15") if whole else ("-1e308", "1e308"))
        )
        n = guarded(cast(n, arguments[1].type, DOUBLE), *ends)  # so it is finite
        factor = invoke("abs", again(n))
        if node is exp.Div:
            zero = exp.EQ(this=again(n), expression=exp.Literal.number(0))
            n = when((paren(exp.Not(this=zero)), again(n)))
            factor = divided(exp.Literal.number(1), invoke("abs", again(n)))
        months = exp.Add(
            this=exp.Mul(this=exp.Literal.number(12), expression=invoke("year", again(x))),
            expression=invoke("month", again(x)),
        )
        hours = exp.Add(this=invoke("abs", invoke("hour", again(x))), expression=exp.Literal.number(1))
        parts = (
            (invoke("abs", paren(months)), MOST_MONTHS),
            (invoke("abs", invoke("day", again(x))), MOST_DAYS),
            (paren(hours), MOST_DAYS * 24),
        )
        tests = [
            exp.LTE(this=exp.Mul(this=part, expression=factor.copy()), expression=exp.Literal.number(end))
            for part, end in parts
        ]
        x = when((exp.and_(*tests, copy=False), x))
        return build((x, to_type(n, "BIGINT") if whole else n))

    def build(sides: Sides) -> exp.Expr:
        return binary(exp.Mul)(sides) if node is exp.Mul else divided(*sides)

    return Function(name, facts, total, build)


def divided(a: exp.Expr, b: exp.Expr) -> exp.Expr:
    return paren(exp.Div(this=a, expression=b, typed=False, safe=False))


# --- parts ------------------------------------------------------------------------------------------------------------

# The largest of each part, of an interval of any size or of size 1.
WITHIN = {"month": 11, "minute": 59, "second": 59, "millisecond": 59_999, "microsecond": 59_999_999}
WITHIN |= {"nanosecond": 59_999_999_000}
ALL = {"year": 10_000, "decade": 1_000, "century": 100, "millennium": 10, "day": LONGEST, "hour": LONGEST * 24}
IN_ALL = {"epoch": 1_000_000, "epoch_ms": 1000, "epoch_us": 1}
LAST_NANO = 9_200_000_000_000_000  # microseconds


def part_facts(name: str, a: Facts) -> Facts:
    if name in WITHIN:
        return Facts(BIGINT, a.nullable, (Fraction(-WITHIN[name]), Fraction(WITHIN[name])), True)
    if name == "quarter":
        return Facts(BIGINT, a.nullable, (Fraction(-2), Fraction(4)), True)
    if a.range is None:
        return Facts(DOUBLE if name == "epoch" else BIGINT)
    if name in ALL:
        return Facts(BIGINT, a.nullable, (-a.stretch * ALL[name], a.stretch * ALL[name]))
    if name == "epoch_ns":
        low, high = (1000 * min(max(end, Fraction(-LAST_NANO)), Fraction(LAST_NANO)) for end in a.range)
        return Facts(BIGINT, True, (low, high), a.declared)
    if name not in IN_ALL:
        raise mismatch(name, [a])
    low, high = (end / IN_ALL[name] for end in a.range)
    if name == "epoch":  # where years of months have 365.25 days
        ends = [end + math.trunc(end / (360 * 86_400)) * Fraction(453_600) for end in (low, high)]
        return Facts(DOUBLE, a.nullable, (min(low, ends[0]), max(high, ends[1])), a.declared)
    # Days and microseconds are cut off apart, so it may be one more or less.
    return Facts(BIGINT, a.nullable, (Fraction(math.floor(low)), Fraction(math.ceil(high))), a.declared)


def part(name: str, side: exp.Expr) -> exp.Expr:
    if name != "epoch_ns":
        return invoke(name, side)
    short = between(invoke("epoch_us", side), -LAST_NANO, LAST_NANO)
    return binary(exp.Mul)((short, to_type(exp.Literal.number(1000), "BIGINT")))


def cut(a: Facts) -> Facts:
    """date_trunc(unit, x): months, days and microseconds are no larger than they were. But those of another sign may be gone."""
    if a.range is None:
        return Facts(INTERVAL)
    size = 2 * a.stretch
    if size > LENGTHS:
        raise overflow("date_trunc")
    return some(a.nullable, (size * SPAN[0], size * SPAN[1]), size=size)


# --- from numbers and texts -------------------------------------------------------------------------------------------

LONG = {"millennia": ("months", 12_000), "centuries": ("months", 1_200), "decades": ("months", 120)}
LONG |= {f"{unit}s": size for unit, size in UNITS.items()}
MOST = {"months": MOST_MONTHS, "days": MOST_DAYS, "microseconds": MOST_DAYS * DAY}


def lasting(unit: str) -> Function:
    """to_days(n) and the like: NULL for what would not be of size 1."""
    name, (kind, each) = f"to_{unit}", LONG[unit]
    most, real = MOST[kind] // each, unit in ("seconds", "milliseconds")
    length = each * Interval(**{kind: 1}).length

    def facts(arguments: Sequence[Facts]) -> Facts:
        (n,) = arguments
        if real:
            numbers(name, arguments)
        else:
            integers(name, arguments, BIGINT)
        if n.range is None and n.type != DOUBLE:  # above the noise
            return Facts(INTERVAL)
        known = n.range if n.range is not None and n.type != DOUBLE else (Fraction(-most), Fraction(most))
        low, high = (min(max(end, Fraction(-most)), Fraction(most)) for end in known)
        slack = 1 + most * length / 2**50 if real else 0  # the engine computes in DOUBLE, and rounds
        nullable = n.nullable or n.type == DOUBLE or (low, high) != n.range
        return some(nullable, (low * length - slack, high * length + slack), n.declared and n.type != DOUBLE)

    def total(sides: Sides, arguments: Sequence[Facts], _: Facts) -> exp.Expr:
        (n,), (side,) = arguments, sides
        if real:
            ends = (to_type(exp.Literal.string(str(end)), DOUBLE.sql) for end in (-most, most))
            return invoke(name, guarded(cast(side, n.type, DOUBLE), *ends))
        return invoke(name, cast(between(side, -most, most), n.type, BIGINT))

    return named(name, (1, 1), facts, total)


def constant_of(name: str, argument: Facts) -> Interval:
    if not isinstance(argument.constant, Interval):
        raise constant_needed(name, "a constant INTERVAL", f"Write {name}(INTERVAL 1 MONTH, x).")
    return argument.constant


def normal_facts(arguments: Sequence[Facts]) -> Facts:
    """Months, with days below 30 and a time of day: no longer than it was, but with more months."""
    intervals("normalized_interval", arguments)
    (a,) = arguments
    if a.range is None:
        return Facts(INTERVAL)
    size = 4 * a.stretch
    if size > LENGTHS:
        raise overflow("normalized_interval")
    return some(a.nullable, a.range, a.declared, size)


def of_facts(arguments: Sequence[Facts]) -> Facts:
    if arguments[0].type != BIGINT:
        raise mismatch("INTERVAL", arguments)
    return some()


INTERVALS = (
    added("INTERVAL +", exp.Add, 1),
    added("INTERVAL -", exp.Sub, -1),
    times("INTERVAL *", exp.Mul),
    times("INTERVAL /", exp.Div),
    Function("- INTERVAL x", negated, lambda s, *_: paren(exp.Neg(this=s[0])), lambda s: paren(exp.Neg(this=s[0]))),
    *(lasting(unit) for unit in LONG),
    named("normalized_interval", (1, 1), normal_facts),
    Function("INTERVAL OF", of_facts, lambda s, *_: level_of(between(s[0], *map(int, SPAN))), lambda s: level_of(s[0])),
)
