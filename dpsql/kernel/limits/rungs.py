"""For limits that are not declared: how many persons are above each rung of a ladder."""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from dpsql.errors import Refused
from dpsql.kernel import algebra
from dpsql.kernel.algebra import Expr, name, total
from dpsql.kernel.blocks import Unknown
from dpsql.kernel.functions import cast
from dpsql.kernel.limits.grid import huge, number, rows_of, shown_rows, step, total_of, with_steps
from dpsql.kernel.limits.limit import Limited
from dpsql.policy.catalog import BIGINT, DOUBLE, HUGEINT

MOST = 16  # ladders in one statement: they share one part of the budget
ENDS: dict[str, type[exp.AggFunc]] = {"high": exp.Max, "low": exp.Min}


@dataclass(frozen=True)
class Climbed:
    limited: Limited
    query: exp.Select | None


def climb(limited: Limited) -> Climbed:
    """Count the persons above each rung of each ladder.

    Needs:   a local relation with a person column; the limits that are not declared, each with its rungs
    Gives:   `query`, one row for each rung of each ladder in order: minus the number of persons above it. Adding a person
             lowers each by 0 or 1, and no row makes the query raise. None if all limits are declared, or picked
    Proof:   a person is one row of `persons`: the norm of her row counts, and her largest and smallest values, are functions
             of her bag of rows (integer sums, and extremes of doubles without NaN, which have no order). One fixed
             expression of these is her place, the number of rungs below her, and she counts for the rungs before it; so
             she adds 0 or 1 to each, whatever the rounding in that expression. Sizes: she has fewer than 2^63 rows, so
             sums of squares stay below 2^126; doubles do not raise, and are clamped before they become integers
    Checked: test_lemmas (ladders), test_ladder
    """
    unknowns = limited.unknowns
    if not unknowns or limited.question.picked:
        return Climbed(limited, None)
    if len(unknowns) > MOST:
        raise Refused(
            "limit_missing",
            f"{len(unknowns)} limits of this query are not declared, and at most {MOST} are chosen privately in one",
            "Ask the owner to declare ranges with `between`, or sum fewer columns at once.",
        )
    values = list(dict.fromkeys(unknown.value for unknown in unknowns if unknown.value is not None))
    numbers = (named(cast(total(value), value.facts.type, DOUBLE), f"x{i}") for i, value in enumerate(values))
    rows = rows_of(limited.question, shown_rows(limited.question), *numbers)
    by_person = [name("person"), *(name(column[0]) for column in limited.question.keys.columns)]
    n = name("n")
    size = exp.Sum(this=exp.Mul(this=n, expression=n.copy()) if limited.norm == 2 else n)
    known = [when(exp.Not(this=function("isnan", name(f"x{i}"))), name(f"x{i}")) for i in range(len(values))]
    pairs = exp.select(
        *by_person,
        named(huge(exp.Count(this=exp.Star())), "n"),
        *(named(end(this=x.copy()), f"{word}{i}") for i, x in enumerate(known) for word, end in ENDS.items()),
    )
    persons = exp.select(
        named(size, "size"),
        named(exp.Count(this=exp.Star()), "groups"),
        *(named(end(this=name(f"{word}{i}")), f"{word}{i}") for i in range(len(values)) for word, end in ENDS.items()),
    )
    distances = exp.select(*(named(distance(u, values, limited.norm), f"y{i}") for i, u in enumerate(unknowns)))
    powers = exp.select(*(c for i in range(len(unknowns)) for c in (name(f"y{i}"), named(power(f"y{i}"), f"k{i}"))))
    places = exp.select(*(named(place(u, f"y{i}", f"k{i}"), f"m{i}") for i, u in enumerate(unknowns)))
    tallies = [
        exp.select(named(number(i), "ladder"), named(name(f"m{i}"), "place"), named(exp.Count(this=exp.Star()), "n"))
        .from_(step("places"))
        .group_by(name(f"m{i}"))
        for i in range(len(unknowns))
    ]
    rungs = exp.select(
        numbered("ladder", [i for i, unknown in enumerate(unknowns) for _ in unknown.rungs]),
        numbered("rung", [j for unknown in unknowns for j in range(len(unknown.rungs))]),
    )
    made: list[tuple[str, exp.Query]] = [
        ("rows", rows),
        ("pairs", pairs.from_(step("rows")).group_by(*(k.copy() for k in by_person))),
        ("persons", persons.from_(step("pairs")).group_by(name("person"))),
        ("distances", distances.from_(step("persons"))),
        ("powers", powers.from_(step("distances"))),
        ("places", places.from_(step("powers"))),
        ("tallies", exp.union(*tallies, distinct=False) if len(tallies) > 1 else tallies[0]),
        ("rungs", rungs),
    ]
    above = exp.and_(
        exp.EQ(this=name("ladder", "tallies"), expression=name("ladder", "rungs")),
        exp.GT(this=name("place", "tallies"), expression=name("rung", "rungs")),
    )
    order = [name(word, "rungs") for word in ("ladder", "rung")]
    query = (
        exp.select(named(exp.Neg(this=huge(total_of(name("n", "tallies")))), "above"))
        .from_(step("rungs"))
        .join(step("tallies"), on=above, join_type="left")
        .group_by(*order)
        .order_by(*(exp.Ordered(this=o.copy(), desc=False, nulls_first=False) for o in order))
    )
    return Climbed(limited, with_steps(query, made))


def distance(unknown: Unknown, values: list[Expr], norm: int) -> exp.Expr:
    """How far a person goes, in units of the ladder's base; nobody is above its top, so that the top is never worse."""
    match unknown.what:
        case "rows":
            size = cast(name("size"), HUGEINT, DOUBLE)
            reach: exp.Expr = exp.Sqrt(this=size) if norm == 2 else size
        case "groups":
            reach = cast(name("groups"), BIGINT, DOUBLE)
        case "low" | "high":
            assert unknown.value is not None
            reach = name(f"{unknown.what}{values.index(unknown.value)}")
            reach = exp.Neg(this=reach) if unknown.what == "low" else reach
    reach = exp.Div(this=reach, expression=algebra.literal(unknown.base, DOUBLE), typed=False, safe=False)
    top = algebra.literal(unknown.rungs[-1] / unknown.base, DOUBLE)
    return when(exp.GT(this=reach, expression=top), top.copy(), reach.copy())


def power(column: str) -> exp.Expr:
    """The largest power of two that is not above, for distances above one."""
    log = exp.Floor(this=function("log2", name(column)))
    return when(exp.GT(this=name(column), expression=number(1)), function("pow", number(2), log))


def place(unknown: Unknown, y: str, k: str) -> exp.Expr:
    """The number of rungs that a person is above: two for each doubling, and those of the last one."""

    def beyond(limit: exp.Expr) -> exp.Expr:
        return when(exp.GT(this=name(y), expression=limit), number(1), number(0))

    doublings = exp.Mul(this=number(2), expression=function("log2", name(k)))
    further = exp.Mul(this=name(k), expression=algebra.literal(1.5, DOUBLE))
    steps: exp.Expr = exp.Add(this=exp.Add(this=doublings, expression=beyond(name(k))), expression=beyond(further))
    steps = when(exp.GT(this=name(y), expression=number(1)), steps, number(0))
    first = beyond(algebra.literal(unknown.smallest / unknown.base, DOUBLE))
    steps = exp.Add(this=first, expression=steps)
    return cast(exp.Round(this=steps), DOUBLE, HUGEINT)


def named(expression: exp.Expr, word: str) -> exp.Expr:
    return expression.as_(word, quoted=True)


def function(word: str, *arguments: exp.Expr) -> exp.Expr:
    return exp.Anonymous(this=word, expressions=list(arguments))


def when(test: exp.Expr, value: exp.Expr, otherwise: exp.Expr | None = None) -> exp.Expr:
    return exp.Case(ifs=[exp.If(this=test, true=value)], default=otherwise)


def numbered(word: str, numbers: list[int]) -> exp.Expr:
    return named(function("unnest", function("list_value", *map(number, numbers))), word)
