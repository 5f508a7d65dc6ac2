"""Conditions, and the choice between values: comparisons, AND, OR, NOT, CASE, COALESCE, NULLIF, LEAST, GREATEST."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from functools import reduce

from sqlglot import exp

from dpsql.errors import Refused
from dpsql.kernel.functions.facts import (
    Facts,
    Function,
    Sides,
    again,
    any_null,
    binary,
    cast,
    fitting,
    holds,
    hull,
    invoke,
    mismatch,
    named,
    overflow,
    paren,
    plain_text,
    present,
    when,
)
from dpsql.policy.catalog import BOOLEAN, DOUBLE, INTERVAL, VARCHAR, Type

# --- predicates -----------------------------------------------------------------------------------------------------


def same_family(name: str, arguments: Sequence[Facts]) -> None:
    kinds = {argument.type.kind for argument in arguments}
    if kinds & {"OTHER", "NULL", "LIST"} or (len(kinds) > 1 and not all(a.type.numeric for a in arguments)):
        raise mismatch(name, arguments)


def meeting(name: str, arguments: Sequence[Facts]) -> Type:
    """The type to compare in. Numbers that no exact type holds are compared as doubles, which cannot raise."""
    target = DOUBLE if arguments[0].type.numeric else arguments[0].type
    if target == DOUBLE and all(argument.type != DOUBLE for argument in arguments):
        ranges = [argument.range for argument in arguments if argument.range is not None]
        low, high = min(r[0] for r in ranges), max(r[1] for r in ranges)
        if any(argument.size is not None for argument in arguments):  # then constants may be moved across
            high = sum((argument.bulk for argument in arguments), Fraction(0))
            low = -high
        with suppress(Refused):
            scale = max(argument.type.scale for argument in arguments)
            target = fitting(name, scale, (low, high), [argument.type for argument in arguments])
    return target


def aligned(name: str, sides: Sides, arguments: Sequence[Facts]) -> list[exp.Expr]:
    target = meeting(name, arguments)
    return [cast(s, a.type, target) for s, a in zip(sides, arguments, strict=True)]


def compared(name: str, build: Callable[[Sides], exp.Expr], sides: Sides, arguments: Sequence[Facts]) -> exp.Expr:
    """A comparison, IN or BETWEEN, of texts as of anything else; computed texts are never NULL where they are compared."""
    if arguments[0].type != VARCHAR or all(map(plain_text, sides)):
        return build(aligned(name, sides, arguments))
    if name == "BETWEEN":
        low, high = present(binary(exp.GTE), sides[:2]), present(binary(exp.LTE), (again(sides[0]), sides[2]))
        return paren(exp.And(this=low, expression=high))
    if name == "IN" and not all(map(plain_text, sides[1:])):
        tests = [present(binary(exp.EQ), [again(sides[0]), side]) for side in sides[1:]]
        return paren(reduce(lambda left, right: exp.Or(this=left, expression=right), tests))
    return present(build, sides)


def predicate(name: str, build: Callable[[Sides], exp.Expr]) -> Function:
    def facts(arguments: Sequence[Facts]) -> Facts:
        same_family(name, arguments)
        return Facts(BOOLEAN, any_null(arguments))

    return Function(name, facts, lambda sides, arguments, _: compared(name, build, sides, arguments), build)


def distinct(name: str, node: type[exp.Binary]) -> Function:
    """IS [NOT] DISTINCT FROM: never NULL. Computed texts are not NULL where they are compared, as in `compared`."""

    def facts(arguments: Sequence[Facts]) -> Facts:
        same_family(name, arguments)
        return Facts(BOOLEAN, False)

    def total(sides: Sides, arguments: Sequence[Facts], _: Facts) -> exp.Expr:
        if arguments[0].type != VARCHAR or all(map(plain_text, sides)):
            return binary(node)(aligned(name, sides, arguments))
        neither = exp.And(this=is_null([again(sides[0])]), expression=is_null([again(sides[1])]))
        same = exp.Coalesce(this=present(binary(exp.EQ), sides), expressions=[paren(neither)])
        return paren(exp.Not(this=same)) if node is exp.NullSafeNEQ else same

    return Function(name, facts, total, binary(node))


def logical(name: str, build: Callable[[Sides], exp.Expr]) -> Function:
    def facts(arguments: Sequence[Facts]) -> Facts:
        if any(argument.type != BOOLEAN for argument in arguments):
            raise mismatch(name, arguments)
        return Facts(BOOLEAN, any_null(arguments))

    return Function(name, facts, lambda sides, *_: build(sides), build)


def is_null(sides: Sides) -> exp.Expr:
    return paren(exp.Is(this=sides[0], expression=exp.Null()))


def chain(node: type[exp.Binary]) -> Callable[[Sides], exp.Expr]:
    """A long chain of AND or OR without a bracket for each link: the engine's parser has a limit on depth."""

    def build(sides: Sides) -> exp.Expr:
        left = sides[0]
        if isinstance(left, exp.Paren) and type(left.this) is node:
            left = left.this
        return paren(node(this=left, expression=sides[1]))

    return build


# --- the choice between values ----------------------------------------------------------------------------------------


def common(name: str, values: Sequence[Facts]) -> Type:
    """The type that the engine gives to a choice between these, or a wider one that holds them all."""
    same_family(name, values)
    types = [value.type for value in values]
    if not types[0].numeric:
        return types[0]
    if DOUBLE in types:
        return DOUBLE
    scale, ranges = max(type_.scale for type_ in types), hull([value.range for value in values])
    if any(type_.kind == "DECIMAL" for type_ in types):
        width = max(type_.width - type_.scale for type_ in types) + scale
        chosen = Type(f"DECIMAL({min(width, 38)},{scale})")
        if ranges is not None and not holds(chosen, scale, ranges):
            raise overflow(name)
        return chosen
    # A constant takes the type of the others where it fits.
    fixed = [v for v in values if v.constant is None] or values
    wanted = hull([v.type.range if v in fixed else v.range for v in values])
    preferred = sorted({v.type for v in fixed}, key=lambda type_: type_.range or (0, 0), reverse=True)
    for room in (wanted, ranges):
        with suppress(Refused):
            if room is not None:
                return fitting(name, 0, room, preferred)
    raise overflow(name)


def choice(name: str, values: Sequence[Facts], nullable: bool) -> Facts:
    """One of the values: its range is their hull, and it is declared if they all are.

    The engine may replace it by that one, which makes it part of that one's arithmetic: its size is the largest.
    """
    known = [value for value in values if value.type.kind != "NULL"]
    if not known:
        raise mismatch(name, values)
    type_ = common(name, known)
    ends = all(v.bounded[0] for v in known), all(v.bounded[1] for v in known)
    size = max(v.stretch for v in known) if type_ == INTERVAL else None
    if type_ not in (DOUBLE, INTERVAL) and any(v.size is not None for v in known):
        size = max(v.growth if type_ == VARCHAR else v.bulk for v in known if v.size is not None or v.range is not None)
    return Facts(type_, nullable, hull([v.range for v in known]), all(ends), size, ends=ends)


def converted(sides: Sides, arguments: Sequence[Facts], type_: Type) -> list[exp.Expr]:
    return [cast(s, a.type, type_) if a.type.numeric else s for s, a in zip(sides, arguments, strict=True)]


def case_facts(arguments: Sequence[Facts]) -> Facts:
    """Condition, value, condition, value, ..., and the value of ELSE."""
    conditions, values = arguments[:-1:2], [*arguments[1::2], arguments[-1]]
    if any(condition.type != BOOLEAN for condition in conditions):
        raise mismatch("CASE WHEN", conditions)
    return choice("CASE", values, any_null(values))


def case(sides: Sides) -> exp.Expr:
    return when(*zip(sides[:-1:2], sides[1::2], strict=True), default=sides[-1])


def case_total(sides: Sides, arguments: Sequence[Facts], result: Facts) -> exp.Expr:
    values = converted(sides, arguments, result.type)
    return case([side if i % 2 == 0 and i < len(sides) - 1 else values[i] for i, side in enumerate(sides)])


def coalesce(sides: Sides) -> exp.Expr:
    return exp.Coalesce(this=sides[0], expressions=list(sides[1:]))


def nullif_facts(arguments: Sequence[Facts]) -> Facts:
    same_family("NULLIF", arguments)
    return replace(arguments[0], nullable=True, constant=None)


def nullif_total(sides: Sides, arguments: Sequence[Facts], _: Facts) -> exp.Expr:
    same = compared("NULLIF", binary(exp.EQ), sides, arguments)
    return when((same, exp.Null()), default=again(sides[0]))


ANY = Fraction(-(10**308)), Fraction(10**308)  # a double of which nothing is known


def extreme(name: str) -> Function:
    """LEAST and GREATEST skip NULL: a value that cannot be NULL bounds the result, whatever the others are.

    So LEAST(GREATEST(x, 0), 100) has declared ends also where x has none.
    """

    def facts(arguments: Sequence[Facts]) -> Facts:
        found = choice(name, arguments, all(a.nullable for a in arguments))
        known = [a for a in arguments if a.type.kind != "NULL"]
        if not found.type.numeric or any(a.range is None and a.type.kind != "DOUBLE" for a in known):
            return found
        inner, outer = (1, 0) if name == "least" else (0, 1)  # the end that is cut off, and the other one
        pick, other = (min, max) if name == "least" else (max, min)
        ranges = [a.range or ANY for a in known]
        sure = [(r[inner], a.bounded[inner]) for r, a in zip(ranges, known, strict=True) if not a.nullable]
        edge = pick(end for end, _ in sure) if sure else other(r[inner] for r in ranges)
        sharp = any(flag for _, flag in sure) if sure else found.bounded[inner]
        rest = pick(r[outer] for r in ranges)
        range_ = (rest, edge) if name == "least" else (edge, rest)
        ends = (found.bounded[0], sharp) if name == "least" else (sharp, found.bounded[1])
        return replace(found, range=(min(range_), max(range_)), declared=all(ends), ends=ends)

    def total(sides: Sides, arguments: Sequence[Facts], result: Facts) -> exp.Expr:
        found = converted(sides, arguments, result.type)
        if result.type != INTERVAL:
            return invoke(name, *found)
        # The engine compares months before days there: LEAST('400000 days', '1 month') is 400000 days, which it then takes to
        # be less than a month, and leaves out a guard.
        return reduce(lambda one, two: picked(name, one, two), found)

    return named(name, (1, 99), facts, total)


def picked(name: str, one: exp.Expr, two: exp.Expr) -> exp.Expr:
    """The lesser or the greater of two values; NULL is none."""
    test = (exp.LT if name == "least" else exp.GT)(this=again(two), expression=again(one))
    gaps = [(exp.Is(this=again(side), expression=exp.Null()), other) for side, other in ((one, two), (two, one))]
    return when(*((test_, other.copy()) for test_, other in gaps), (test, two), default=one)


COMPARISONS: dict[str, type[exp.Binary]] = {
    "=": exp.EQ,
    "!=": exp.NEQ,
    "<": exp.LT,
    "<=": exp.LTE,
    ">": exp.GT,
    ">=": exp.GTE,
}
LOGIC = (
    *(predicate(name, binary(node)) for name, node in COMPARISONS.items()),
    predicate("IN", lambda s: paren(exp.In(this=s[0], expressions=list(s[1:])))),
    predicate("BETWEEN", lambda s: paren(exp.Between(this=s[0], low=s[1], high=s[2]))),
    distinct("IS DISTINCT FROM", exp.NullSafeNEQ),
    distinct("IS NOT DISTINCT FROM", exp.NullSafeEQ),
    logical("AND", chain(exp.And)),
    logical("OR", chain(exp.Or)),
    logical("NOT", lambda s: paren(exp.Not(this=s[0]))),
    Function("IS NULL", lambda _: Facts(BOOLEAN, nullable=False), lambda s, *_: is_null(s), is_null),
    Function("CASE", case_facts, case_total, case),
    Function(
        "coalesce",
        lambda a: choice("COALESCE", a, all(value.nullable for value in a)),
        lambda s, a, r: coalesce(converted(s, a, r.type)),
        coalesce,
        range(1, 100),
        ("ifnull",),
    ),
    named("nullif", (2, 2), nullif_facts, nullif_total),
    extreme("least"),
    extreme("greatest"),
)
