"""Dates and timestamps. Every function sees only the years 1 to 9999: all else, infinity too, is NULL before it gets there."""

from __future__ import annotations

import calendar
import datetime
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from sqlglot import exp

from dpsql.kernel.functions import intervals
from dpsql.kernel.functions.facts import (
    Facts,
    Function,
    Sides,
    again,
    any_null,
    between,
    binary,
    cast,
    constant_needed,
    guarded,
    invoke,
    mismatch,
    named,
    overflow,
    paren,
    to_type,
    when,
)
from dpsql.kernel.functions.numbers import integers
from dpsql.kernel.functions.text import constant_text, grown
from dpsql.policy.catalog import (
    BIGINT,
    DATE,
    DAY,
    DOUBLE,
    INTERVAL,
    MOST_DAYS,
    MOST_MONTHS,
    TIMESTAMP,
    UNITS,
    VARCHAR,
    Interval,
    Type,
)

EPOCH = datetime.datetime(1970, 1, 1)


def since(value: datetime.date) -> Fraction:
    """A date in days, a timestamp in microseconds since 1970."""
    if isinstance(value, datetime.datetime):
        return Fraction((value - EPOCH) // datetime.timedelta(microseconds=1))
    return Fraction((value - EPOCH.date()).days)


WINDOW: dict[str, tuple[datetime.date, datetime.date]] = {
    "DATE": (datetime.date.min, datetime.date.max),
    "TIMESTAMP": (datetime.datetime.min, datetime.datetime.max),
}


def outside(value: Facts) -> bool:
    """Whether a value may lie outside of the years 1 to 9999."""
    low, high = map(since, WINDOW[value.type.kind])
    return value.range is None or not low <= value.range[0] <= value.range[1] <= high


def seen(value: Facts) -> Facts:
    """What is known of a date once what lies outside is NULL."""
    if not outside(value):
        return value
    low, high = map(since, WINDOW[value.type.kind])
    if value.range is not None:
        low, high = min(max(low, value.range[0]), high), max(min(high, value.range[1]), low)
    return replace(value, nullable=True, range=(low, max(low, high)), size=None)


def inner(side: exp.Expr, value: Facts) -> exp.Expr:
    """What a function sees of a date or an interval: these are brief enough as they are."""
    return side if value.type == INTERVAL else window(side, value)


def window(side: exp.Expr, value: Facts) -> exp.Expr:
    if not outside(value):
        return side
    low, high = (to_type(exp.Literal.string(str(end)), value.type.sql) for end in WINDOW[value.type.kind])
    return guarded(side, low, high)


def dated(name: str, arguments: Sequence[Facts], first: int = 0) -> list[Facts]:
    """What is known of the arguments from the first date on."""
    if any(value.type not in (DATE, TIMESTAMP) for value in arguments[first:]):
        raise mismatch(name, arguments)
    return [seen(value) for value in arguments[first:]]


def moments(value: Facts) -> tuple[datetime.datetime, datetime.datetime]:
    """The ends of a range within the years 1 to 9999."""
    assert value.range is not None
    unit = DAY if value.type == DATE else 1
    low, high = (EPOCH + datetime.timedelta(microseconds=int(end * unit)) for end in value.range)
    return low, high


# --- units and parts --------------------------------------------------------------------------------------------------

PARTS: dict[str, tuple[int, int]] = {
    "quarter": (1, 4),
    "month": (1, 12),
    "week": (1, 53),
    "day": (1, 31),
    "dayofweek": (0, 6),
    "isodow": (1, 7),
    "dayofyear": (1, 366),
    "hour": (0, 23),
    "minute": (0, 59),
    "second": (0, 59),
}
# Parts with too many values to be keys of their own, or that are none for date_part.
FINE: dict[str, tuple[int, int]] = {
    "era": (1, 1),
    "millisecond": (0, 59_999),
    "microsecond": (0, 59_999_999),
    "nanosecond": (0, 59_999_999_000),
    "days_in_month": (28, 31),
}
# What grows with the date: its values at the ends.
GROWING: dict[str, Callable[[datetime.datetime], Fraction | int]] = {
    "year": lambda at: at.year,
    "decade": lambda at: at.year // 10,
    "century": lambda at: (at.year - 1) // 100 + 1,
    "millennium": lambda at: (at.year - 1) // 1000 + 1,
    "isoyear": lambda at: at.isocalendar().year,
    "epoch": lambda at: since(at) / 10**6,
    "yearweek": lambda at: at.isocalendar().year * 100 + at.isocalendar().week,
    "julian": lambda at: since(at) / DAY + 2_440_588,
    "epoch_ms": lambda at: since(at) / 1000,
    "epoch_us": lambda at: since(at),
    "epoch_ns": lambda at: since(at) * 1000,
}
# Nanoseconds since 1970 are a BIGINT: others are NULL.
NANO = datetime.datetime(1677, 9, 22), datetime.datetime(2262, 4, 11)
ALIASES = {"dayofmonth": "day", "weekday": "dayofweek", "weekofyear": "week"}
SYNONYMS = ALIASES | {"dow": "dayofweek", "doy": "dayofyear"} | {f"{unit}s": unit for unit in UNITS}


def unit_of(name: str, argument: Facts, known: Sequence[str] = tuple(UNITS)) -> str:
    text = argument.constant
    word = text.lower() if isinstance(text, str) and text.isascii() else ""
    word = SYNONYMS.get(word, word)
    if word not in known:
        raise constant_needed(name, f"a constant unit out of {', '.join(known)}", f"Write {name}('month', ...).")
    return word


def start(unit: str, at: datetime.datetime) -> datetime.datetime:
    """The beginning of the unit that a moment lies in. Weeks begin on Monday, as the year 1 did."""
    kind, length = UNITS[unit]
    if kind == "months":
        month = ((at.year * 12 + at.month - 1) // length) * length
        return datetime.datetime(month // 12, month % 12 + 1, 1)
    return at - (at - datetime.datetime.min) % step(kind, length)


def step(kind: str, length: int) -> datetime.timedelta:
    return datetime.timedelta(microseconds=length * (DAY if kind == "days" else 1))


def trunc_facts(arguments: Sequence[Facts]) -> Facts:
    unit = unit_of("date_trunc", arguments[0])
    if arguments[1].type == INTERVAL:
        return intervals.cut(arguments[1])
    (a,) = dated("date_trunc", arguments, 1)
    low, high = (since(start(unit, end)) for end in moments(a))
    return Facts(TIMESTAMP, a.nullable, (low, high), a.declared)


def between_facts(arguments: Sequence[Facts]) -> Facts:
    """date_diff: how many beginnings of a unit lie between two moments."""
    unit, (a, b) = unit_of("date_diff", arguments[0]), dated("date_diff", arguments, 1)
    if a.type != b.type:
        raise mismatch("date_diff", arguments[1:])
    first, last = moments(a), moments(b)
    kind, length = UNITS[unit]
    if kind == "months":
        (x0, x1), (y0, y1) = (((m.year * 12 + m.month - 1) // length for m in ends) for ends in (first, last))
        low, high = y0 - x1, y1 - x0
    else:
        low, high = (last[0] - first[1]) // step(kind, length) - 1, (last[1] - first[0]) // step(kind, length) + 1
    return Facts(BIGINT, a.nullable or b.nullable, (Fraction(low), Fraction(high)), a.declared and b.declared)


def complete_facts(arguments: Sequence[Facts]) -> Facts:
    """date_sub: how many units fit between two moments, which is no more than there are beginnings."""
    found = between_facts(arguments)
    assert found.range is not None
    return replace(found, range=(min(found.range[0], Fraction(0)), max(found.range[1], Fraction(0))))


def by_unit(name: str, arity: int, facts: Callable[[Sequence[Facts]], Facts], alias: str) -> Function:
    def total(sides: Sides, arguments: Sequence[Facts], _: Facts) -> exp.Expr:
        unit = exp.Literal.string(unit_of(name, arguments[0]))
        return invoke(name, unit, *map(inner, sides[1:], arguments[1:]))

    return named(name, (arity, arity), facts, total, alias)


def part_facts(name: str, arguments: Sequence[Facts]) -> Facts:
    if arguments[0].type == INTERVAL:
        return intervals.part_facts(name, arguments[0])
    (a,) = dated(name, arguments)
    if name in GROWING:
        first, last = (Fraction(GROWING[name](end)) for end in moments(a))
        if name in ("epoch", "julian"):
            return Facts(DOUBLE, a.nullable, (first, last), a.declared)
        return Facts(BIGINT, a.nullable, (Fraction(math.floor(first)), Fraction(math.ceil(last))), a.declared)
    low, high = PARTS.get(name) or FINE[name]
    return Facts(BIGINT, a.nullable, (Fraction(low), Fraction(high)), True)


def part(name: str) -> Function:
    aliases = (other for other, known in ALIASES.items() if known == name)
    return named(name, (1, 1), lambda a: part_facts(name, a), lambda s, a, _: taken(name, s[0], a[0]), *aliases)


def taken(name: str, side: exp.Expr, a: Facts) -> exp.Expr:
    return intervals.part(name, side) if a.type == INTERVAL else invoke(name, window(side, a))


def nano_facts(arguments: Sequence[Facts]) -> Facts:
    found = part_facts("epoch_ns", arguments)
    if arguments[0].type == INTERVAL:
        return found
    assert found.range is not None
    low, high = (1000 * since(end) for end in NANO)
    range_ = max(low, min(found.range[0], high)), min(high, max(found.range[1], low))
    return replace(found, nullable=True, range=range_)


def nano(sides: Sides, arguments: Sequence[Facts], _: Facts) -> exp.Expr:
    if arguments[0].type == INTERVAL:
        return intervals.part("epoch_ns", sides[0])
    ends = (end.date() if arguments[0].type == DATE else end for end in NANO)
    low, high = (to_type(exp.Literal.string(str(end)), arguments[0].type.sql) for end in ends)
    return invoke("epoch_ns", guarded(sides[0], low, high))


def named_part(argument: Facts) -> str:
    return unit_of("date_part", argument, ("year", *PARTS, *list(GROWING)[1:6]))


# --- sums -------------------------------------------------------------------------------------------------------------


def few(value: Facts) -> Facts:
    """A number of days that may be added: others are NULL."""
    assert value.range is not None
    low, high = (min(max(end, Fraction(-MOST_DAYS)), Fraction(MOST_DAYS)) for end in value.range)
    return value if (low, high) == value.range else replace(value, nullable=True, range=(low, high), size=None)


def shift(name: str, node: type[exp.Binary], sign: int) -> Function:
    """DATE + days and DATE - days."""

    def facts(arguments: Sequence[Facts]) -> Facts:
        a, n = arguments
        if a.type != DATE or n.type.kind != "INTEGER":
            raise mismatch(name[-1], arguments)
        if n.range is None:  # above the noise
            return Facts(DATE)
        day, days = seen(a), few(n)
        assert day.range is not None and days.range is not None
        added = [sign * end for end in days.range]
        size = day.bulk + days.bulk
        if size >= 2**31 - 2:  # the engine's dates are days in an INTEGER
            raise overflow(name[-1])
        range_ = day.range[0] + min(added), day.range[1] + max(added)
        return Facts(DATE, day.nullable or days.nullable, range_, day.declared and days.declared, size)

    def total(sides: Sides, arguments: Sequence[Facts], _: Facts) -> exp.Expr:
        (a, n), number = arguments, sides[1]
        if few(n) != n:
            most = exp.Literal.number(MOST_DAYS)
            number = guarded(number, exp.Neg(this=most), most.copy())
        return binary(node)((window(sides[0], a), cast(number, n.type, Type("INTEGER"))))

    return Function(name, facts, total, binary(node))


def difference_facts(arguments: Sequence[Facts]) -> Facts:
    if any(argument.type != DATE for argument in arguments):
        raise mismatch("-", arguments)
    a, b = map(seen, arguments)
    assert a.range is not None and b.range is not None
    range_ = a.range[0] - b.range[1], a.range[1] - b.range[0]
    return Facts(BIGINT, any_null((a, b)), range_, a.declared and b.declared, a.bulk + b.bulk)


def passed_facts(arguments: Sequence[Facts]) -> Facts:
    """TIMESTAMP - TIMESTAMP: days, and a time with the same sign."""
    a, b = dated("-", arguments)
    if a.type != TIMESTAMP or b.type != TIMESTAMP:
        raise mismatch("-", arguments)
    assert a.range is not None and b.range is not None
    return intervals.some(
        any_null((a, b)), (a.range[0] - b.range[1], a.range[1] - b.range[0]), a.declared and b.declared
    )


def age_facts(arguments: Sequence[Facts]) -> Facts:
    """Fewer than 10,000 years, 31 days, and a time."""
    a, b = dated("age", arguments)
    return intervals.some(any_null((a, b)))


def move(name: str, node: type[exp.Binary], sign: int, *called: Any) -> Function:
    """DATE and TIMESTAMP plus or minus an interval, which gives a TIMESTAMP."""

    def facts(arguments: Sequence[Facts]) -> Facts:
        (a,), length = dated(name[0], arguments[:1]), arguments[1]
        if length.type != INTERVAL:
            raise mismatch(name[0], arguments)
        if length.range is None:  # above the noise
            return Facts(TIMESTAMP)
        # A number of months is 30.436875 days each, five days more or less.
        each, slack, fixed = Fraction(146_097, 4_800) * DAY, Fraction(5 * DAY), length.constant
        if isinstance(fixed, Interval):
            ends = [sign * (fixed.months * each + fixed.days * DAY + fixed.microseconds)] * 2
            slack = slack if fixed.months else Fraction(0)
        else:
            slack += length.stretch * MOST_MONTHS * (each - 30 * DAY)
            ends = sorted(sign * end for end in length.range)
        assert a.range is not None
        low, high = (end * (DAY if a.type == DATE else 1) for end in a.range)
        return Facts(
            TIMESTAMP,
            a.nullable or length.nullable,
            (low + ends[0] - slack, high + ends[1] + slack),
            a.declared and length.declared,
        )

    return Function(name, facts, lambda s, a, _: binary(node)((window(s[0], a[0]), s[1])), binary(node), *called)


# --- texts, and dates made of numbers ---------------------------------------------------------------------------------


def last_day(arguments: Sequence[Facts]) -> Facts:
    (a,) = dated("last_day", arguments)
    days = (at.date().replace(day=calendar.monthrange(at.year, at.month)[1]) for at in moments(a))
    low, high = map(since, days)
    return Facts(DATE, a.nullable, (low, high), a.declared)


def word(name: str) -> Function:
    """dayname and monthname."""

    def facts(arguments: Sequence[Facts]) -> Facts:
        return Facts(VARCHAR, dated(name, arguments)[0].nullable)

    return named(name, (1, 1), facts, lambda s, a, _: invoke(name, *map(window, s, a)))


FORMAT = r"(?s:[^%]|%-[dmyHIMSj]|%[aAbBcdfgGHIjmMpSuUVwWxXyY%])+"


def check_format(name: str, argument: Facts) -> None:
    text = constant_text(name, argument, "format")
    if len(text) > 50 or not re.fullmatch(FORMAT, text):
        raise constant_needed(name, "a short format of dates", f"Write {name}(x, '%Y-%m-%d').")


def formatted(arguments: Sequence[Facts]) -> Facts:
    """strftime(x, format), or the other way around. A letter of the format becomes at most 20 bytes."""
    where = int(arguments[1].type == VARCHAR)
    at = dated("strftime", [arguments[1 - where]])
    check_format("strftime", arguments[where])
    return grown(at, Fraction(4))


def formatted_total(sides: Sides, arguments: Sequence[Facts], _: Facts) -> exp.Expr:
    return invoke(
        "strftime", *(s if a.type == VARCHAR else window(s, a) for s, a in zip(sides, arguments, strict=True))
    )


def parsed(name: str) -> Function:
    """strptime and try_strptime: what is not of this format is NULL."""

    def facts(arguments: Sequence[Facts]) -> Facts:
        if arguments[0].type != VARCHAR:
            raise mismatch(name, arguments)
        check_format(name, arguments[1])
        return Facts(TIMESTAMP)

    return named(name, (2, 2), facts, lambda s, *_: invoke("try_strptime", *s))


def counted(name: str, kind: Type, unit: int, most: str) -> Function:
    """A date or a timestamp from a number of units since 1970; or from year, month and day, see `make_date_total`."""

    def ends() -> tuple[int, int]:
        low, high = (int(since(end)) for end in WINDOW[kind.sql])
        return -(-low // unit), high // unit

    def facts(arguments: Sequence[Facts]) -> Facts:
        if name == "epoch_ms" and arguments[0].type in (DATE, TIMESTAMP, INTERVAL):
            return part_facts(name, arguments)
        integers(name, arguments, BIGINT if len(arguments) > 1 else Type(most))
        if len(arguments) == 3 or arguments[0].range is None:
            low, high = map(since, WINDOW[kind.sql])
            return Facts(kind, True, (low, high))
        low, high = (unit * min(max(end, Fraction(ends()[0])), Fraction(ends()[1])) for end in arguments[0].range)
        return Facts(kind, True, (low, high), arguments[0].declared)

    def total(sides: Sides, arguments: Sequence[Facts], result: Facts) -> exp.Expr:
        if len(sides) == 3:
            return make_date_total(sides, arguments)
        if result.type == BIGINT:
            return taken(name, sides[0], arguments[0])
        return invoke(name, cast(between(sides[0], *ends()), arguments[0].type, Type(most)))

    return named(name, (1, 1), facts, total)


def make_date_total(sides: Sides, arguments: Sequence[Facts]) -> exp.Expr:
    """The first of the month, and so many days after it, if the month has so many."""
    year, month, day = (
        cast(between(side, 1, most), a.type, type_)
        for side, a, most, type_ in zip(
            sides, arguments, (9999, 12, 31), (BIGINT, BIGINT, Type("INTEGER")), strict=True
        )
    )
    first = invoke("make_date", year, month, to_type(exp.Literal.number(1), "BIGINT"))
    there = exp.LTE(this=day, expression=invoke("day", invoke("last_day", again(first))))
    after = exp.Sub(this=when((there, again(day))), expression=exp.Literal.number(1))
    return binary(exp.Add)((first, paren(after)))


def bucket(arguments: Sequence[Facts]) -> Facts:
    """The beginning of a bucket is at most its width before."""
    width, (a,) = intervals.constant_of("time_bucket", arguments[0]), dated("time_bucket", arguments, 1)
    if width.length <= 0 or (width.months and (width.days or width.microseconds)):
        raise constant_needed("time_bucket", "months, or days and time, above zero", "Write INTERVAL 1 MONTH.")
    assert a.range is not None
    low = a.range[0] - math.ceil((width.length + width.months * DAY) / (DAY if a.type == DATE else 1))
    return Facts(a.type, a.nullable, (low, a.range[1]), a.declared)


DATES = (
    *(part(name) for name in (*GROWING, *PARTS, *FINE) if name not in ("epoch_ms", "epoch_ns")),
    named("epoch_ns", (1, 1), nano_facts, nano),
    named(
        "date_part",
        (2, 2),
        lambda a: part_facts(named_part(a[0]), a[1:]),
        lambda s, a, _: taken(named_part(a[0]), s[1], a[1]),
        "datepart",
    ),
    by_unit("date_trunc", 2, trunc_facts, "datetrunc"),
    by_unit("date_diff", 3, between_facts, "datediff"),
    by_unit("date_sub", 3, complete_facts, "datesub"),
    named("last_day", (1, 1), last_day, lambda s, a, _: invoke("last_day", *map(window, s, a))),
    word("dayname"),
    word("monthname"),
    named("strftime", (2, 2), formatted, formatted_total),
    parsed("strptime"),
    parsed("try_strptime"),
    replace(counted("make_date", DATE, 1, "INTEGER"), arguments=range(1, 4, 2)),
    counted("make_timestamp", TIMESTAMP, 1, "BIGINT"),
    counted("make_timestamp_ms", TIMESTAMP, 1000, "BIGINT"),
    counted("epoch_ms", TIMESTAMP, 1000, "BIGINT"),
    named("time_bucket", (2, 2), bucket, lambda s, a, _: invoke("time_bucket", s[0], window(s[1], a[1]))),
    named("age", (2, 2), age_facts, lambda s, a, _: invoke("age", *map(window, s, a))),
    shift("DATE +", exp.Add, 1),
    shift("DATE -", exp.Sub, -1),
    Function("DATE - DATE", difference_facts, lambda s, a, _: binary(exp.Sub)([*map(window, s, a)]), binary(exp.Sub)),
    Function("MOMENT - MOMENT", passed_facts, lambda s, a, _: binary(exp.Sub)([*map(window, s, a)]), binary(exp.Sub)),
    move("+ INTERVAL", exp.Add, 1, range(2, 3), ("date_add",)),
    move("- INTERVAL", exp.Sub, -1),
)
