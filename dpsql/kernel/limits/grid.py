"""Rows with their persons and keys, and what they add up to on grids of integers: SQL that all forms of the limits share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

from sqlglot import exp

from dpsql.kernel import algebra
from dpsql.kernel.algebra import Column, Expr, identifier, name, total
from dpsql.kernel.blocks import Axis, Summand
from dpsql.kernel.functions import cast, to_type
from dpsql.kernel.keys import LONGEST, PrivateKeys, PublicKeys, domain_of
from dpsql.kernel.question import Question
from dpsql.kernel.relations import Filter, Relation, select, steady
from dpsql.policy.catalog import BIGINT, DOUBLE, HUGEINT, VARCHAR, Type

SHORT = 64  # bytes of a text that is told apart by itself; a SHA-256 has as many digits


def number(value: int) -> exp.Expr:
    return exp.Literal.number(value)


def huge(expression: exp.Expr) -> exp.Expr:
    return to_type(expression, "HUGEINT")


def step(word: str) -> exp.Table:
    return exp.Table(this=identifier(word))


def times(value: exp.Expr, factor: int) -> exp.Expr:
    return exp.Mul(this=value, expression=number(factor)) if factor != 1 else value


def total_of(expression: exp.Expr) -> exp.Expr:
    return exp.Coalesce(this=exp.Sum(this=expression), expressions=[number(0)])


def with_steps(query: exp.Select, made: Sequence[tuple[str, exp.Query]]) -> exp.Select:
    tables = [exp.CTE(this=select, alias=exp.TableAlias(this=identifier(word))) for word, select in made]
    query.set("with_", exp.With(expressions=tables))
    return query


def rows_of(question: Question, relation: Relation, *values: exp.Expr) -> exp.Select:
    """The rows of a relation, each with its person and its keys."""
    private = isinstance(question.keys, PrivateKeys)
    keys = ((canonical(key) if private else total(key)).as_(f"k{i}", quoted=True) for i, key in enumerate(question.by))
    rows = exp.select(name(question.person).as_("person", quoted=True), *keys, *values)
    return rows.from_(select(relation).subquery(identifier("s"), copy=False), copy=False)


def canonical(key: Expr) -> exp.Expr:
    """One representation for values that the engine groups together: else the key would show whose row came first."""
    value = total(key)
    if key.facts.type == VARCHAR:  # hidden keys must not fill the memory: a long text is no key, and counts under NULL
        short = exp.LTE(this=exp.Anonymous(this="strlen", expressions=[value]), expression=number(LONGEST))
        return exp.Case(ifs=[exp.If(this=short, true=value.copy())])
    return steady(value, key.facts.type)


def shown_rows(question: Question) -> Relation:
    """Rows of keys that are not shown would only use up the person's limit."""
    relation, (below, meanings) = question.relation, question.meant
    for meant, key in zip(meanings, question.by, strict=True) if isinstance(question.keys, PublicKeys) else ():
        if None not in (domain_of(meant, below) or (None,)):
            relation = Filter(relation, algebra.call("NOT", algebra.call("IS NULL", key)))
    return relation


def inputs(block: int) -> tuple[str, str]:
    """The columns with the values of a block's axes."""
    return f"x{block}", f"y{block}"


def whole_value(axis: Axis) -> Column | None:
    """The row's value if it is stored as a whole number and counts in steps of one from zero. It may still be anything."""
    value, type_ = axis.value, axis.value.facts.type
    whole = type_.kind == "INTEGER" and type_ != HUGEINT and axis.degree and axis.step == 1 and not axis.low
    return value if whole and isinstance(value, Column) and value.facts.stored else None


def short(axis: Axis) -> bool:
    """Whether values are stored with at most 15 digits and count in steps of the last one: a DOUBLE holds those exactly.

    With X below 2^50 steps, X / 10^s and ten to the s times that are off by X / 2^51 at the most, so that rounding gives X. So
    values can be shifted before they are clipped.
    """
    type_ = axis.value.facts.type
    decimal = isinstance(axis.value, Column) and axis.value.facts.stored and type_.kind == "DECIMAL"
    return bool(decimal and axis.degree and type_.width <= 15 and axis.step * 10**type_.scale == 1)


def own_steps(summand: Summand) -> bool:
    """Whether a block is one value that is stored as a whole number or a short decimal and counts in steps of its last digit.

    Then its sums are exact in the value's own type, and can be shifted to `low` when they are made. A range that is empty, or
    that the caller gave, may lie outside of the type: no value of the type is in it.
    """
    if summand.coarse > 1 or [axis.degree for axis in summand.axes] != [1]:
        return False
    (axis,) = summand.axes
    type_, stored = axis.value.facts.type, isinstance(axis.value, Column) and axis.value.facts.stored
    whole = type_.kind == "INTEGER" and type_ != HUGEINT and axis.step == 1
    meet = type_.range is not None and axis.low <= type_.range[1] and type_.range[0] <= axis.high
    return bool(stored and meet and axis.span and (whole or short(axis)) and (axis.low / axis.step).denominator == 1)


def as_digits(axis: Axis) -> exp.Expr | None:
    """A short decimal less `low`, whose digits are the steps from there: as the engine stores it, so that nothing is computed but the
    difference, which has one digit more at the most. None of other values."""
    type_ = axis.value.facts.type
    if not short(axis) or (axis.low / axis.step).denominator > 1 or abs(axis.low / axis.step) >= 10**type_.width:
        return None
    low = algebra.literal(axis.low, type_)
    return exp.Paren(this=exp.Sub(this=total(axis.value), expression=low)) if axis.low else total(axis.value)


def row_value(axis: Axis) -> exp.Expr:
    """The row's value in steps from `low`: a whole number, or a DOUBLE that may still be anything; for degree 0, the value itself."""
    if (exact := whole_value(axis)) is not None:
        return total(exact)
    value = total(axis.value)
    if not axis.degree:
        return value
    facts = axis.value.facts
    if axis.low and short(axis):
        steps = exp.Round(
            this=exp.Mul(this=cast(value, facts.type, DOUBLE), expression=algebra.literal(1 / axis.step, DOUBLE))
        )
        return exp.Paren(this=exp.Sub(this=steps, expression=algebra.literal(axis.low / axis.step, DOUBLE)))
    if axis.low and facts.type != DOUBLE and facts.declared and (shifted := lowered(axis)).facts.type.width <= 38:
        value = cast(total(shifted), shifted.facts.type, DOUBLE)
    else:
        value = cast(value, facts.type, DOUBLE)
        if axis.low:
            value = exp.Paren(this=exp.Sub(this=value, expression=algebra.literal(axis.low, DOUBLE)))
    if axis.step != 1:  # engines divide slower
        value = exp.Mul(this=value, expression=algebra.literal(1 / axis.step, DOUBLE))
    return exp.Round(this=value)


def lowered(axis: Axis) -> algebra.Call:
    """The value less `low`, exactly: large numbers do not lose their last digits. Its type may be wider than the engine has."""
    return algebra.call("-", axis.value, algebra.constant(axis.low))


def grid_value(axis: Axis, column: str, type_: Type) -> exp.Expr:
    """The value on the grid: NULL, or an integer in 0 .. grid."""
    x = name(column)
    if not axis.degree:
        return x
    exact = whole_value(axis)
    made = exact.facts.type if exact is not None else DOUBLE
    arms: list[tuple[exp.Expr, exp.Expr]] = [
        (exp.Between(this=x, low=number(0), high=number(axis.grid)), cast(x.copy(), made, type_)),
        *([(exp.Anonymous(this="isnan", expressions=[x.copy()]), exp.Null())] if made == DOUBLE else []),
        (exp.GT(this=x.copy(), expression=number(axis.grid)), number(axis.grid)),
        (exp.LT(this=x.copy(), expression=number(0)), number(0)),
    ]
    return exp.Case(ifs=[exp.If(this=test, true=value) for test, value in arms])


def in_range(axis: Axis, column: str) -> exp.Expr:
    """The value itself, clipped: NULL, or between `low` and `high`.

    No value of the type lies beyond the type's own range, so clipping to an end that does changes nothing, and neither does
    clipping to the end of the type in its place.
    """
    type_ = axis.value.facts.type
    assert type_.range is not None and axis.low <= type_.range[1] and type_.range[0] <= axis.high
    ends = max(axis.low, type_.range[0]), min(axis.high, type_.range[1])
    x, (low, high) = name(column), (algebra.literal(end, type_) for end in ends)
    arms: list[tuple[exp.Expr, exp.Expr]] = [
        (exp.Between(this=x, low=low, high=high), x.copy()),
        (exp.GT(this=x.copy(), expression=high.copy()), high.copy()),
        (exp.LT(this=x.copy(), expression=low.copy()), low.copy()),
    ]
    return exp.Case(ifs=[exp.If(this=test, true=value) for test, value in arms])


def sum_of_own(block: int, summand: Summand) -> list[exp.Expr]:
    """The same as `measured` from values as they are: the sum of what they are above `low` is their sum less that of `low`."""
    (axis,), x = summand.axes, name(inputs(block)[0])
    scale, count = axis.value.facts.type.scale, huge(exp.Count(this=x.copy()))
    above = huge(times(total_of(x), 10**scale))
    if axis.low:
        above = exp.Paren(this=exp.Sub(this=above, expression=times(count.copy(), int(axis.low / axis.step))))
    below = exp.Paren(this=exp.Sub(this=times(count, axis.grid), expression=above.copy()))
    return [column.as_(word, quoted=True) for word, column in zip(summand.columns(block), (above, below), strict=True)]


def grids(block: int, summand: Summand) -> list[exp.Expr]:
    type_ = BIGINT if summand.whole < 2**62 else HUGEINT  # products must fit
    return [
        grid_value(axis, x, type_).as_(x, quoted=True) for x, axis in zip(inputs(block), summand.axes, strict=False)
    ]


def measured(block: int, summand: Summand) -> list[exp.Expr]:
    """What rows on the grid add up to in each column of a block, before `factor`."""
    values = [(name(x), axis) for x, axis in zip(inputs(block), summand.axes, strict=False)]
    if summand.coarse == 1 and [axis.degree for axis in summand.axes] == [1]:  # one sum and one count give both columns
        ((x, axis),) = values
        above = huge(total_of(x))
        whole = exp.Mul(this=huge(exp.Count(this=x.copy())), expression=number(axis.grid))
        pair = (above, exp.Paren(this=exp.Sub(this=whole, expression=above.copy())))
        return [column.as_(word, quoted=True) for word, column in zip(summand.columns(block), pair, strict=True)]
    gaps = [exp.Is(this=x, expression=exp.Null()) for x, _ in values]
    missing = exp.or_(*gaps) if gaps else exp.false()
    result: list[exp.Expr] = []
    for index in summand.indices:
        parts: list[exp.Expr] = []
        for k, (x, axis) in zip(index, values, strict=True):
            rest = exp.Paren(this=exp.Sub(this=number(axis.grid), expression=x.copy()))
            parts += [x.copy()] * k + [rest] * (axis.degree - k) + [number(2)] * (axis.degree == 2 and k == 1)
        if parts:
            added = reduce(lambda left, right: exp.Mul(this=left, expression=right.copy()), parts)
            if summand.coarse > 1:
                added = exp.IntDiv(this=exp.Paren(this=added), expression=number(summand.coarse))
            if any(not axis.degree for _, axis in values):
                added = exp.Case(ifs=[exp.If(this=missing.copy(), true=exp.Null())], default=added)
            result.append(total_of(added))
        elif len(values) > 1:
            counted = exp.Case(ifs=[exp.If(this=missing.copy(), true=exp.Null())], default=exp.Boolean(this=True))
            result.append(exp.Count(this=counted))
        else:
            result.append(exp.Count(this=values[0][0].copy() if values else exp.Star()))
    return [
        column.as_(word, quoted=True) for word, column in zip(summand.columns(block), map(huge, result), strict=True)
    ]


def present(value: exp.Expr) -> exp.Expr:
    return exp.Not(this=exp.Paren(this=exp.Is(this=value, expression=exp.Null())))


def claimed(axis: Axis) -> exp.Expr:
    """A value that counts once: one representation for all that the engine takes for equal, and of a type that can be a key natively.

    Long texts must not fill the memory: their place is taken by a hash that no other text is known to have, and none of the short ones
    is as long.
    """
    value, type_ = total(axis.value), axis.value.facts.type
    match type_.kind:
        case "VARCHAR":
            size = exp.Anonymous(this="strlen", expressions=[value])
            hashed = exp.Anonymous(this="sha256", expressions=[value.copy()])
            few = exp.LT(this=size, expression=number(SHORT))
            return exp.Case(ifs=[exp.If(this=few, true=value.copy())], default=hashed)
        case "INTERVAL":
            return exp.Anonymous(this="epoch_us", expressions=[value])
        case "OTHER" | "NULL":
            return to_type(value, "VARCHAR")
        case _:
            return steady(value, type_)


def hash_of(keys: Sequence[exp.Expr]) -> exp.Expr:
    return exp.Anonymous(this="hash", expressions=list(keys))


def place_of(pair: Sequence[exp.Expr]) -> exp.Expr:
    """By what a person's groups are ranked: 32 bits of the engine's hash, since each row carries them."""
    person, *keys = pair
    hash_ = exp.Anonymous(this="hash", expressions=[person, hash_of(keys)])
    return to_type(exp.BitwiseRightShift(this=hash_, expression=number(32)), "UINTEGER")


def shared(weight: int, most: int) -> float:
    """What a person counts in all groups together, in L2, if she is in too many."""
    return weight * math.sqrt(most) * (1 - 2**-40)
