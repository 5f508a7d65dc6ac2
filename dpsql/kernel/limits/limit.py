"""What one person can add is bounded, in integers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import assert_never

from sqlglot import exp

from dpsql.kernel import algebra
from dpsql.kernel.algebra import Column, identifier, name
from dpsql.kernel.blocks import Unknown
from dpsql.kernel.fan_out import cuts
from dpsql.kernel.functions import cast
from dpsql.kernel.keys import PrivateKeys, PublicKeys
from dpsql.kernel.limits.grid import (
    claimed,
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
from dpsql.kernel.limits.native_form import Limits, natively
from dpsql.kernel.limits.one_row import same_group, single
from dpsql.kernel.question import Question
from dpsql.policy.catalog import DOUBLE, HUGEINT, Catalog, fold, on_the_way


@dataclass(frozen=True)
class Limited:
    question: Question
    max_rows: int
    max_groups: int
    in_groups: int
    sensitivities: tuple[int | Fraction, ...]
    unknowns: tuple[Unknown, ...]
    norm: int
    notes: tuple[str, ...]
    limits: tuple[Limits, ...]
    even: bool  # one factor for all rows of a person, whatever groups they are in

    def inner(self, enough: int | None = None) -> exp.Select:
        """The SQL form; of private keys no more than `enough` persons are counted."""
        return query(self.question, self.max_rows, self.max_groups, self.in_groups, self.norm, enough)

    def reference(self, enough: int | None) -> str:
        return self.inner(enough).sql("duckdb", comments=False, copy=False)


def limit(question: Question, catalog: Catalog, norm: int) -> Limited:
    """Scale each person's rows down to `max_rows_contributed` and add up integers.

    Needs:   a local relation with a person column; summands over its rows; the norm that the noise is for (1 or 2)
    Gives:   `inner`, integers for each key and block; one person moves block i by at most `sensitivities[i]` in that
             norm, over all keys together, and no row makes the query raise
    Proof:   Let C = max_rows, n_g the person's rows in group g and r >= ||n|| an integer (`root`). Per row the CASE's
             arms put each value into 0 .. grid, whatever it is (NULL and NaN: the row is not counted in this block), so it
             adds integers >= 0 whose norm is at most `weight` (see `Summand`; rounding them down makes them smaller). By
             the triangle inequality the person's sums V_g have ||V_g|| <= weight * n_g. If ||n|| <= C they stay, else they
             become floor(V C / r), cell by cell, of norm at most weight * ||n|| * C / r <= weight * C. All of
             it is a function of the person's bag of rows: counts and sums of integers, one integer norm, one fixed
             expression. Adding or removing the person adds or removes exactly that. Sizes: a person has fewer than 2^50
             rows (a query over more does not end), weight < 2^45 and C < 2^31, so everything stays below 2^127.
             Private keys: before all this she keeps at most `max_groups` of her (person, key) pairs, the first in the
             order of a hash of the pair and then of the key, and the others are deleted, so that a key exists only
             through pairs that count; `persons` counts her once in each key that she keeps.
             Blocks of persons: she adds `weight` to each of the G groups in which she counts, and if these are more than
             M = min(max_groups, C, all groups there are) only floor(weight * M / G), or in L2 weight * sqrt(M / G) less
             one part in 2^40, which is more than a root, a quotient and a cast lose: in norm at most weight * M, or
             weight * sqrt(M). Blocks of values: see `values`. Where a person has one row at the most (`single`), C = 1 is no
             limit but a fact, and so is M = 1 where all her rows have the same keys. Where she has one row at the most in each
             group (`apart`), ||n|| is at most the norm of as many ones as there are groups, or as she keeps; C is M's, rounded up,
             and what she adds is within both
    Checked: test_lemmas (contributions, sensitivity)
    """
    private, one, same = isinstance(question.keys, PrivateKeys), single(question.relation), same_group(question)
    declared = 1 if one else declared_limit(question, catalog)
    rows, groups = Unknown.count("rows"), Unknown.count("groups")
    max_rows = declared or int(question.picked.get(rows, rows.usual))
    max_groups = 1 if same else catalog.policy.defaults.max_groups_contributed or declared
    kinds = {s.kind for s in question.summands}
    there = question.keys.count if isinstance(question.keys, PublicKeys) else None
    apart = question.apart
    counted = private or (("persons" in kinds or apart) and there != 1)
    missing = [
        *([rows] if not declared and kinds - {"persons"} and not apart else []),
        *([groups] if not max_groups and counted else []),
    ]
    max_groups = max_groups or int(question.picked.get(groups, groups.usual))
    in_groups = min(max_groups, declared or max_groups, there or max_groups)
    if apart:  # one row in each group: it is groups that are limited
        max_rows = math.ceil(root_of(in_groups, norm))
    most = min(Fraction(max_rows), root_of(there or max_groups, norm)) if apart else max_rows
    unknowns = (*question.unknowns, *missing)
    origin = "chosen privately" if rows in missing else "max_rows_contributed"
    notes = list[str]()
    if one:
        notes.append("a person has one row at the most")
    elif "rows" in kinds and not apart:
        notes.append(f"more than {max_rows} row{'s' * (max_rows > 1)} of one person count for less ({origin})")
    if "values" in kinds and not one:
        notes.append(f"of one person's distinct values {max_rows} count ({origin})")
    reach = max_rows**norm if apart else in_groups
    if ("persons" in kinds or apart) and reach < (there or max_groups) and not same:
        notes.append(f"a person in more than {reach} group{'s' * (reach > 1)} counts for less in each")
    notes += dict.fromkeys(cuts(question.relation))
    reached = {fold(t.name): t for table in question.tables for t in on_the_way(table, catalog.tables)}
    notes += [
        f"a row of {t.name} that reaches several persons counts for each of them" for t in reached.values() if t.shared
    ]
    sensitivities = tuple(
        s.weight * (root_of(in_groups, norm) if s.kind == "persons" else most) for s in question.summands
    )
    limits = natively(question, max_rows, max_groups, in_groups, norm)
    # In L1 the norm of a person's rows is their number, and so it is where all of them are in one group.
    even = (one or same or norm == 1) and not apart
    return Limited(question, max_rows, max_groups, in_groups, sensitivities, unknowns, norm, tuple(notes), limits, even)


def root_of(groups: int, norm: int) -> Fraction:
    """The norm of a vector of so many ones, rounded up."""
    exact = math.isqrt(groups)
    if norm == 1 or exact * exact == groups:
        return Fraction(groups if norm == 1 else exact)
    return Fraction(math.isqrt(groups * 10**24) + 1, 10**12)


def declared_limit(question: Question, catalog: Catalog) -> int | None:
    """What the policy says of the tables that are read; None if it says nothing of one of them."""
    tables = question.tables
    default = catalog.policy.defaults.max_rows_contributed
    found = [t.max_rows_contributed or default for t in tables if t.person is not None]
    known = [limit for limit in found if limit is not None]
    return max(known) if len(known) == len(found) else None


def query(
    question: Question, max_rows: int, max_groups: int, in_groups: int, norm: int, enough: int | None = None
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
        case PublicKeys() if not columns:  # there is nothing to ask about anyone
            return exp.select("*").from_(question.keys.table(), copy=False)
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

    cells = (
        (row_value(axis) if s.kind != "values" else claimed(axis)).as_(x, quoted=True)
        for i, s in blocks
        for x, axis in zip(inputs(i), s.axes, strict=False)
    )
    rows = rows_of(question, shown_rows(question), *cells)
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
