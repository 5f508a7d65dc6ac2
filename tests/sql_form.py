"""The limits in SQL alone: the reference that the native form is held against, number for number.

It is the plainest form of what `limit` proves: for each person and key one row, then norms, then integer division, then sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import assert_never

from sqlglot import exp

from dpsql.kernel import algebra
from dpsql.kernel.algebra import Column, identifier, name
from dpsql.kernel.functions import cast
from dpsql.kernel.keys import PrivateKeys, PublicKeys
from dpsql.kernel.limits.grid import (
    grids,
    huge,
    inputs,
    measured,
    number,
    place_of,
    present,
    row_value,
    rows_of,
    shared,
    shown_rows,
    step,
    times,
    total_of,
    with_steps,
)
from dpsql.kernel.limits.limit import cells
from dpsql.kernel.noise import Release
from dpsql.kernel.question import Question, ask, find_rows
from dpsql.policy.catalog import DOUBLE, HUGEINT


def reference(release: Release) -> exp.Select:
    """What gives the same integers as the passes of a release: from its request, its blocks and the numbers of its limits.

    Of private keys no more persons are counted than are enough for the release.
    """
    first, request = release.limits[0], release.request
    rows = find_rows(request, release.catalog.limited(request.max_rows, request.max_groups))
    asked = replace(ask(request, rows, first.norm, {}), summands=release.summands)
    return query(asked, first.max_rows, first.max_groups, first.in_groups, first.norm, first.enough)


def inner(release: Release) -> str:
    return reference(release).sql("duckdb", comments=False, copy=False)


def query(
    question: Question, max_rows: int, max_groups: int, in_groups: int, norm: int, enough: int | None
) -> exp.Select:
    """rows -> grid -> pairs (person and key) -> ranked -> kept -> norms -> guesses -> roots -> limited -> totals by key."""
    keys = [name(column[0]) for column in question.keys.columns]
    columns = [c for i, s in enumerate(question.summands) for c in s.columns(i)]
    made = steps(question, max_rows, max_groups, in_groups, norm)
    distinct = [i for i, s in enumerate(question.summands) if s.kind == "values"]
    for i in distinct:
        made += values(question, i, max_rows)
    if distinct:
        made.append(("added", with_values(question, distinct)))
    source = step("added" if distinct else "limited")
    match question.keys:
        case PublicKeys(declared) if declared:
            totals = exp.select(*keys, *(total_of(name(c)).as_(c, quoted=True) for c in columns))
            totals = totals.from_(source).group_by(*keys)
            on = exp.and_(*(exp.NullSafeEQ(this=name(k.name, "keys"), expression=name(k.name, "totals")) for k in keys))
            cells = (exp.Coalesce(this=name(c, "totals"), expressions=[number(0)]) for c in columns)
            query = exp.select(*(huge(cell).as_(c, quoted=True) for c, cell in zip(columns, cells, strict=True)))
            query = query.from_(question.keys.table(), copy=False)
            query = query.join(totals.subquery(identifier("totals")), on=on, join_type="left", copy=False)
            query = query.order_by(exp.Ordered(this=name("row", "keys"), desc=False, nulls_first=False), copy=False)
        case PublicKeys():
            query = exp.select(*(huge(total_of(name(c))).as_(c, quoted=True) for c in columns)).from_(source)
        case PrivateKeys():
            persons = huge(exp.Count(this=name("person")))
            counted: exp.Expr = persons
            if enough is not None:
                counted = exp.Anonymous(this="least", expressions=[persons, number(enough)])
            query = exp.select(*keys, counted.as_("persons", quoted=True))
            query = query.select(*(huge(total_of(name(c))).as_(c, quoted=True) for c in columns))
            query = query.from_(source).group_by(*keys)
            if distinct:  # a key that nobody has kept is none
                query = query.having(exp.GT(this=persons.copy(), expression=number(0)))
        case _:
            assert_never(question.keys)
    return with_steps(query, made)


def steps(question: Question, max_rows: int, max_groups: int, in_groups: int, norm: int) -> list[tuple[str, exp.Query]]:
    keys = [column[0] for column in question.keys.columns]
    by_person = [name("person"), *(name(k) for k in keys)]
    blocks = list(enumerate(question.summands))
    private = isinstance(question.keys, PrivateKeys)

    rows = rows_of(question, shown_rows(question), *cells(question))
    by_rows = [(i, s) for i, s in blocks if s.kind != "values"]
    grid = exp.select(*by_person, *(column for i, s in by_rows for column in grids(i, s)))
    pairs = exp.select(*by_person, huge(exp.Count(this=exp.Star())).as_("n", quoted=True))
    pairs = pairs.select(*(column for i, s in by_rows for column in measured(i, s)))
    n = name("n")
    one: exp.Expr = exp.Mul(this=n, expression=n.copy()) if norm == 2 else n
    order = [place_of(by_person), *(name(k) for k in keys)]
    ranked = exp.select(exp.Star(), place(order).as_("place", quoted=True)).from_(step("pairs"))
    few = exp.LTE(this=name("place"), expression=number(max_groups))
    kept = exp.select(exp.Star()).from_(step("ranked")).where(few)
    wholes = [("size", one), *((f"g{i}", counts(f"n{i}")) for i, s in blocks if s.kind == "persons")]
    if keys:
        wholes = [(w, exp.Window(this=exp.Sum(this=part), partition_by=[name("person")])) for w, part in wholes]
    norms = exp.select(exp.Star(), *(part.as_(word, quoted=True) for word, part in wholes))
    guess = cast(exp.Ceil(this=exp.Sqrt(this=cast(name("size"), HUGEINT, DOUBLE))), DOUBLE, HUGEINT)
    guesses = exp.select(exp.Star(), guess.as_("guess", quoted=True)) if norm == 2 else exp.select(exp.Star())
    roots = exp.select(exp.Star(), root(norm).as_("root", quoted=True))
    scales: list[exp.Expr] = []
    for i, s in blocks:
        for column, index in zip(s.columns(i), s.indices, strict=True):
            match s.kind:
                case "rows":
                    cell = scaled(column, s.factor(index), max_rows, norm)
                case "persons":
                    cell = once(column, f"g{i}", s.weight, in_groups, norm)
                case "values":
                    cell = number(0)
            scales.append(cell.as_(column, quoted=True))
    limited = exp.select(*by_person, *scales)
    return [
        ("rows", rows),
        ("grid", grid.from_(step("rows"))),
        ("pairs", pairs.from_(step("grid")).group_by(*(k.copy() for k in by_person))),
        *([("ranked", ranked), ("kept", kept)] if private else []),
        ("norms", norms.from_(step("kept" if private else "pairs"))),
        ("guesses", guesses.from_(step("norms"))),
        ("roots", roots.from_(step("guesses"))),
        ("limited", limited.from_(step("roots"))),
    ]


def values(question: Question, block: int, max_rows: int) -> list[tuple[str, exp.Query]]:
    """rows -> claims (person, key and value) -> placed -> claimed (key and value) -> values (on the grid).

    A person keeps at most `max_rows` of her claims, the first in the order of a hash and then of the claim itself: a
    function of her own rows, whoever else there is. `claimed` is the union of what persons keep. So adding a person adds at
    most max_rows pairs of a key and a value to it, and takes none away; each is like one row, of norm at most `weight`: the
    block moves by at most weight * max_rows in either norm, over all keys together.
    """
    (axis,), (x, _) = question.summands[block].axes, inputs(block)
    keys = [name(column[0]) for column in question.keys.columns]
    claim = [name("person"), *keys, name(x)]
    known = present(name(x))
    few = exp.LTE(this=name("place"), expression=number(max_rows))
    order = place([place_of(claim), *keys, name(x)])
    itself = replace(axis, value=Column(x, axis.value.facts))
    return [
        (f"claims{block}", exp.select(*claim).distinct().from_(step("rows")).where(known)),
        (f"placed{block}", exp.select(exp.Star(), order.as_("place", quoted=True)).from_(step(f"claims{block}"))),
        (f"claimed{block}", exp.select(*keys, name(x)).distinct().from_(step(f"placed{block}")).where(few)),
        (f"values{block}", exp.select(*keys, row_value(itself).as_(x, quoted=True)).from_(step(f"claimed{block}"))),
    ]


def with_values(question: Question, blocks: list[int]) -> exp.Query:
    """Each person's limited cells, and below them those of values, which are no one's alone."""
    keys = [name(column[0]) for column in question.keys.columns]
    parts: list[exp.Query] = [exp.select(exp.Star()).from_(step("limited"))]
    for block in blocks:
        grid = exp.select(*keys, *grids(block, question.summands[block])).from_(step(f"values{block}"))
        sums = exp.select(*keys, *measured(block, question.summands[block])).from_(grid.subquery(identifier("grid")))
        cells = [
            times(name(column), s.factor(index)) if i == block else number(0)
            for i, s in enumerate(question.summands)
            for column, index in zip(s.columns(i), s.indices, strict=True)
        ]
        sums = sums.group_by(*keys) if keys else sums
        parts.append(exp.select(exp.Null(), *keys, *cells).from_(sums.subquery(identifier("sums"))))
    return exp.union(*parts, distinct=False)


def place(order: Sequence[exp.Expr]) -> exp.Window:
    """A number for each of a person's rows, in this order."""
    terms = [exp.Ordered(this=term.copy(), desc=False, nulls_first=False) for term in order]
    return exp.Window(this=exp.RowNumber(), partition_by=[name("person")], order=exp.Order(expressions=terms))


def counts(column: str) -> exp.Expr:
    """One if a person counts in a group, else zero."""
    some = exp.GT(this=name(column), expression=number(0))
    return exp.Case(ifs=[exp.If(this=some, true=number(1))], default=number(0))


def once(column: str, groups: str, weight: int, most: int, norm: int) -> exp.Expr:
    """A person in a group where she counts: `weight`, or less if she counts in more than `most` groups."""
    if norm == 1:
        less: exp.Expr = exp.IntDiv(this=number(weight * most), expression=name(groups))
    else:
        whole = algebra.literal(Fraction(shared(weight, most)), DOUBLE)
        root = exp.Sqrt(this=cast(name(groups), HUGEINT, DOUBLE))
        less = cast(exp.Floor(this=exp.Div(this=whole, expression=root, typed=False, safe=False)), DOUBLE, HUGEINT)
    arms = [
        (exp.EQ(this=name(column), expression=number(0)), number(0)),
        (exp.LTE(this=name(groups), expression=number(most)), number(weight)),
    ]
    return exp.Case(ifs=[exp.If(this=test, true=value) for test, value in arms], default=less)


def root(norm: int) -> exp.Expr:
    """An integer that is not below the norm: its square is checked against `size`, so rounding cannot hurt."""
    size = name("size")
    if norm == 1:
        return size
    more = exp.Paren(this=exp.Add(this=name("guess"), expression=number(1)))
    arms = [
        (exp.GTE(this=exp.Mul(this=g, expression=g.copy()), expression=size.copy()), g.copy())
        for g in (name("guess"), more)
    ]
    return exp.Case(ifs=[exp.If(this=test, true=value) for test, value in arms], default=size.copy())


def scaled(column: str, factor: int, max_rows: int, norm: int) -> exp.Expr:
    """factor * column, and if the person is above the limit times max_rows / root, rounded down."""
    within = exp.LTE(this=name("size"), expression=number(max_rows**norm))
    down = exp.IntDiv(this=exp.Paren(this=times(name(column), factor * max_rows)), expression=name("root"))
    return exp.Case(ifs=[exp.If(this=within, true=times(name(column), factor))], default=down)
