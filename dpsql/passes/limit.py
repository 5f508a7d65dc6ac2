"""What one person can add is bounded, in integers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import reduce
from typing import assert_never

from sqlglot import exp

from dpsql import algebra
from dpsql.algebra import Column, Expr, identifier, name, total
from dpsql.catalog import BIGINT, DOUBLE, HUGEINT, VARCHAR, Catalog, Type
from dpsql.functions import cast, to_type
from dpsql.passes.split import Split, domain_of
from dpsql.plan import Axis, Block, Limits, PrivateKeys, PublicKeys, Summand, Unknown
from dpsql.relations import Filter, Relation, select, steady

LONGEST = 1024  # bytes of a text that is a private key


@dataclass(frozen=True)
class Limited:
    split: Split
    max_rows: int
    max_groups: int
    sensitivities: tuple[int | Fraction, ...]
    inner: exp.Select
    unknowns: tuple[Unknown, ...]
    norm: int
    notes: tuple[str, ...]
    limits: Limits | None
    plain: exp.Select | None


def limit(split: Split, catalog: Catalog, norm: int) -> Limited:
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
             weight * sqrt(M). Blocks of values: see `values`
    Checked: test_lemmas (contributions, sensitivity)
    """
    declared, private = declared_limit(split, catalog), isinstance(split.keys, PrivateKeys)
    rows, groups = Unknown.count("rows"), Unknown.count("groups")
    max_rows = declared or int(split.picked.get(rows, rows.usual))
    max_groups = catalog.policy.defaults.max_groups_contributed or declared
    kinds = {s.kind for s in split.summands}
    there = split.keys.count if isinstance(split.keys, PublicKeys) else None
    counted = private or ("persons" in kinds and there != 1)
    missing = [
        *([rows] if not declared and kinds - {"persons"} else []),
        *([groups] if not max_groups and counted else []),
    ]
    max_groups = max_groups or int(split.picked.get(groups, groups.usual))
    in_groups = min(max_groups, declared or max_groups, there or max_groups)
    unknowns = (*split.unknowns, *missing)
    origin = "chosen privately" if rows in missing else "max_rows_contributed"
    notes = []
    if "rows" in kinds:
        notes.append(f"more than {max_rows} row{'s' * (max_rows > 1)} of one person count for less ({origin})")
    if "values" in kinds:
        notes.append(f"of one person's distinct values {max_rows} count ({origin})")
    if "persons" in kinds and in_groups < (there or max_groups):
        notes.append(f"a person in more than {in_groups} group{'s' * (in_groups > 1)} counts for less in each")
    sensitivities = tuple(
        s.weight * (root_of(in_groups, norm) if s.kind == "persons" else max_rows) for s in split.summands
    )
    inner = query(split, max_rows, max_groups, in_groups, norm)
    plain = plainly(split)
    limits = natively(split, max_rows, max_groups, in_groups, norm) if plain is None else None
    return Limited(split, max_rows, max_groups, sensitivities, inner, unknowns, norm, tuple(notes), limits, plain)


def root_of(groups: int, norm: int) -> Fraction:
    """The norm of a vector of so many ones, rounded up."""
    exact = math.isqrt(groups)
    if norm == 1 or exact * exact == groups:
        return Fraction(groups if norm == 1 else exact)
    return Fraction(math.isqrt(groups * 10**24) + 1, 10**12)


def plainly(split: Split) -> exp.Select | None:
    """COUNT(DISTINCT person) without groups: there is nothing to limit, and the engine's own count is the answer.

    Needs:   a local relation with a person column, never NULL
    Gives:   the row of `inner`, or None where something else is asked
    Proof:   without groups a person has one pair at the most, so of the cells of `once` she adds `weight` if one of her rows
             counts, and else nothing: all together add `weight` for each person with such a row. It takes no declaration
    Checked: test_lemmas (both forms), test_limit
    """
    if split.keys.columns or not split.summands or any(s.kind != "persons" for s in split.summands):
        return None
    blocks = list(enumerate(split.summands))
    cells = (there(axis).as_(x, quoted=True) for i, s in blocks for x, axis in zip(inputs(i), s.axes, strict=False))
    query = exp.select()
    for i, s in blocks:
        person: exp.Expr = name("person")
        if s.axes:
            counts = exp.and_(*(name(x) for x, _ in zip(inputs(i), s.axes, strict=False)))
            person = exp.Case(ifs=[exp.If(this=counts, true=person)])
        count = exp.Count(this=exp.Distinct(expressions=[person]))
        query = query.select(times(huge(count), s.weight).as_(s.columns(i)[0], quoted=True))
    return with_steps(query.from_(step("rows")), [("rows", rows_of(split, *cells))])


def there(axis: Axis) -> exp.Expr:
    """Whether a row has a value."""
    return exp.Not(this=exp.Paren(this=exp.Is(this=total(axis.value), expression=exp.Null())))


WIDEST = 36  # columns of the native form
FINEST = 2**53  # grids of it


def natively(split: Split, max_rows: int, max_groups: int, in_groups: int, norm: int) -> Limits | None:
    """The same pass for `rust/limit`: the engine gives `rows`, and the rest is done there. None if only SQL can.

    Needs:   the split of which `query` makes SQL, and the same limits
    Gives:   what `limit_and_add_noise` needs to find the rows of `inner`, number for number
    Proof:   `rows` is the step of that name with values still to be clipped, which is one comparison; for private keys it
             has the engine's own hash of the pair, so that both forms rank alike. The other steps are the same integer
             arithmetic on the same numbers (rust/limit). Which form runs depends on the text and on types alone
    Checked: test_lemmas (both forms), test_limit
    """
    summands, keys = split.summands, [column[0] for column in split.keys.columns]
    blocks = tuple(
        Block(
            s.kind,
            tuple((axis.grid, axis.degree) for axis in s.axes),
            tuple((index, s.factor(index)) for index in s.indices),
            s.coarse,
            s.weight,
            shared(s.weight, in_groups),
        )
        for s in summands
    )
    types = {column[1].kind for column in split.keys.columns}
    if (
        (not summands and isinstance(split.keys, PublicKeys))
        or any(s.kind == "values" for s in summands)
        or types - {"BOOLEAN", "INTEGER", "DECIMAL", "DOUBLE", "VARCHAR", "DATE", "TIMESTAMP"}
        or sum(len(block.columns) for block in blocks) > WIDEST
        or any(axis.grid > FINEST for s in summands for axis in s.axes)
    ):
        return None
    private = isinstance(split.keys, PrivateKeys)
    cells = (
        (row_value(axis) if axis.degree else there(axis)).as_(x, quoted=True)
        for i, s in enumerate(summands)
        for x, axis in zip(inputs(i), s.axes, strict=False)
    )
    rows, declared = rows_of(split, *cells), ""
    if private:
        pair = [name(word) for word in ("person", *keys)]
        hash_ = exp.Anonymous(this="hash", expressions=pair).as_("hash", quoted=True)
        values = (name(x) for i, s in enumerate(summands) for x, _ in zip(inputs(i), s.axes, strict=False))
        rows = with_steps(exp.select(*pair, hash_, *values).from_(step("rows"), copy=False), [("rows", rows)])
    elif keys:
        assert isinstance(split.keys, PublicKeys)
        cast_keys = (to_type(name(key), type_.sql).as_(key, quoted=True) for key, type_, _ in split.keys.columns)
        values = (name(x) for i, s in enumerate(summands) for x, _ in zip(inputs(i), s.axes, strict=False))
        rows = with_steps(
            exp.select(name("person"), *cast_keys, *values).from_(step("rows"), copy=False), [("rows", rows)]
        )
        order = exp.Ordered(this=name("row"), desc=False, nulls_first=False)
        table = split.keys.select().subquery(identifier("keys"), copy=False)
        known = exp.select(*(name(key) for key in keys)).from_(table, copy=False).order_by(order, copy=False)
        declared = known.sql("duckdb", comments=False, copy=False)
    names = [c for i, s in enumerate(summands) for c in s.columns(i)]
    return Limits(
        rows.sql("duckdb", comments=False, copy=False),
        declared,
        len(keys),
        private,
        norm,
        max_rows,
        max_groups,
        in_groups,
        blocks,
        (*(["persons"] if private else []), *names),
    )


def shared(weight: int, most: int) -> float:
    """What a person counts in all groups together, in L2, if she is in too many."""
    return weight * math.sqrt(most) * (1 - 2**-40)


def declared_limit(split: Split, catalog: Catalog) -> int | None:
    """What the policy says of the tables that are read; None if it says nothing of one of them."""
    tables = split.tracked.resolved.tables
    default = catalog.policy.defaults.max_rows_contributed
    found = [t.max_rows_contributed or default for t in tables if t.person is not None]
    known = [limit for limit in found if limit is not None]
    return max(known) if len(known) == len(found) else None


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


def query(split: Split, max_rows: int, max_groups: int, in_groups: int, norm: int) -> exp.Select:
    """rows -> grid -> pairs (person and key) -> ranked -> kept -> norms -> guesses -> roots -> limited -> totals by key."""
    keys = [name(column[0]) for column in split.keys.columns]
    columns = [c for i, s in enumerate(split.summands) for c in s.columns(i)]
    made = steps(split, max_rows, max_groups, in_groups, norm)
    claimed = [i for i, s in enumerate(split.summands) if s.kind == "values"]
    for i in claimed:
        made += values(split, i, max_rows)
    if claimed:
        made.append(("added", with_values(split, claimed)))
    source = step("added" if claimed else "limited")
    match split.keys:
        case PublicKeys() if not columns:  # there is nothing to ask about anyone
            return split.keys.select()
        case PublicKeys(declared) if declared:
            totals = exp.select(*keys, *(total_of(name(c)).as_(c, quoted=True) for c in columns))
            totals = totals.from_(source).group_by(*keys)
            on = exp.and_(*(exp.NullSafeEQ(this=name(k.name, "keys"), expression=name(k.name, "totals")) for k in keys))
            cells = (exp.Coalesce(this=name(c, "totals"), expressions=[number(0)]) for c in columns)
            query = exp.select(*(huge(cell).as_(c, quoted=True) for c, cell in zip(columns, cells, strict=True)))
            declared_keys = split.keys.select().subquery(identifier("keys"), copy=False)
            query = query.from_(declared_keys, copy=False)
            query = query.join(totals.subquery(identifier("totals")), on=on, join_type="left", copy=False)
            query = query.order_by(exp.Ordered(this=name("row", "keys"), desc=False, nulls_first=False), copy=False)
        case PublicKeys():
            query = exp.select(*(huge(total_of(name(c))).as_(c, quoted=True) for c in columns)).from_(source)
        case PrivateKeys():
            persons = huge(exp.Count(this=name("person")))
            query = exp.select(*keys, persons.as_("persons", quoted=True))
            query = query.select(*(huge(total_of(name(c))).as_(c, quoted=True) for c in columns))
            query = query.from_(source).group_by(*keys)
            if claimed:  # a key that nobody has kept is none
                query = query.having(exp.GT(this=persons.copy(), expression=number(0)))
        case _:
            assert_never(split.keys)
    return with_steps(query, made)


def with_steps(query: exp.Select, made: Sequence[tuple[str, exp.Query]]) -> exp.Select:
    tables = [exp.CTE(this=select, alias=exp.TableAlias(this=identifier(word))) for word, select in made]
    query.set("with_", exp.With(expressions=tables))
    return query


def steps(split: Split, max_rows: int, max_groups: int, in_groups: int, norm: int) -> list[tuple[str, exp.Query]]:
    keys = [column[0] for column in split.keys.columns]
    by_person = [name("person"), *(name(k) for k in keys)]
    blocks = list(enumerate(split.summands))
    private = isinstance(split.keys, PrivateKeys)

    cells = (
        (row_value(axis) if s.kind != "values" else steady(total(axis.value), axis.value.facts.type)).as_(
            x, quoted=True
        )
        for i, s in blocks
        for x, axis in zip(inputs(i), s.axes, strict=False)
    )
    rows = rows_of(split, *cells)
    by_rows = [(i, s) for i, s in blocks if s.kind != "values"]
    grid = exp.select(*by_person, *(column for i, s in by_rows for column in grids(i, s)))
    pairs = exp.select(*by_person, huge(exp.Count(this=exp.Star())).as_("n", quoted=True))
    pairs = pairs.select(*(column for i, s in by_rows for column in measured(i, s)))
    n = name("n")
    one: exp.Expr = exp.Mul(this=n, expression=n.copy()) if norm == 2 else n
    order = [exp.Anonymous(this="hash", expressions=by_person), *(name(k) for k in keys)]
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
    limited = exp.select(*by_person)
    for i, s in blocks:
        for column, index in zip(s.columns(i), s.indices, strict=True):
            match s.kind:
                case "rows":
                    cell = scaled(column, s.factor(index), max_rows, norm)
                case "persons":
                    cell = once(column, f"g{i}", s.weight, in_groups, norm)
                case "values":
                    cell = number(0)
            limited = limited.select(cell.as_(column, quoted=True))
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


def rows_of(split: Split, *values: exp.Expr) -> exp.Select:
    """The rows that count, each with its person and its keys."""
    private = isinstance(split.keys, PrivateKeys)
    keys = (
        (canonical(key) if private else total(key)).as_(f"k{i}", quoted=True)
        for i, key in enumerate(split.tracked.resolved.keys)
    )
    rows = exp.select(name(split.tracked.person).as_("person", quoted=True), *keys, *values)
    return rows.from_(select(shown_rows(split)).subquery(identifier("s"), copy=False), copy=False)


def canonical(key: Expr) -> exp.Expr:
    """One representation for values that the engine groups together: else the key would show whose row came first."""
    value = total(key)
    if key.facts.type == VARCHAR:  # hidden keys must not fill the memory: a long text is no key, and counts under NULL
        short = exp.LTE(this=exp.Anonymous(this="strlen", expressions=[value]), expression=number(LONGEST))
        return exp.Case(ifs=[exp.If(this=short, true=value.copy())])
    return steady(value, key.facts.type)


def shown_rows(split: Split) -> Relation:
    """Rows of keys that are not shown would only use up the person's limit."""
    relation = split.tracked.relation
    for key in split.tracked.resolved.keys if isinstance(split.keys, PublicKeys) else ():
        if None not in (domain_of(key, split.tracked.resolved) or (None,)):
            relation = Filter(relation, algebra.call("NOT", algebra.call("IS NULL", key)))
    return relation


def inputs(block: int) -> tuple[str, str]:
    """The columns with the values of a block's axes."""
    return f"x{block}", f"y{block}"


def row_value(axis: Axis) -> exp.Expr:
    """The row's value in steps from `low`, as a DOUBLE that may still be anything; for degree 0, the value itself."""
    value = total(axis.value)
    if not axis.degree:
        return value
    facts = axis.value.facts
    if axis.low and facts.type != DOUBLE and facts.declared:  # exactly, before large numbers lose their last digits
        shifted = algebra.call("-", axis.value, algebra.constant(axis.low))
        value = cast(total(shifted), shifted.facts.type, DOUBLE)
    else:
        value = cast(value, facts.type, DOUBLE)
        if axis.low:
            value = exp.Paren(this=exp.Sub(this=value, expression=algebra.literal(axis.low, DOUBLE)))
    if axis.step != 1:
        value = exp.Div(this=value, expression=algebra.literal(axis.step, DOUBLE), typed=False, safe=False)
    return exp.Round(this=value)


def grid_value(axis: Axis, column: str, type_: Type) -> exp.Expr:
    """The value on the grid: NULL, or an integer in 0 .. grid."""
    x = name(column)
    if not axis.degree:
        return x
    arms = [
        (exp.Between(this=x, low=number(0), high=number(axis.grid)), cast(x.copy(), DOUBLE, type_)),
        (exp.Anonymous(this="isnan", expressions=[x.copy()]), exp.Null()),
        (exp.GT(this=x.copy(), expression=number(axis.grid)), number(axis.grid)),
        (exp.LT(this=x.copy(), expression=number(0)), number(0)),
    ]
    return exp.Case(ifs=[exp.If(this=test, true=value) for test, value in arms])


def grids(block: int, summand: Summand) -> list[exp.Expr]:
    type_ = BIGINT if summand.whole < 2**62 else HUGEINT  # products must fit
    return [
        grid_value(axis, x, type_).as_(x, quoted=True) for x, axis in zip(inputs(block), summand.axes, strict=False)
    ]


def measured(block: int, summand: Summand) -> list[exp.Expr]:
    """What rows on the grid add up to in each column of a block, before `factor`."""
    values = [(name(x), axis) for x, axis in zip(inputs(block), summand.axes, strict=False)]
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


def values(split: Split, block: int, max_rows: int) -> list[tuple[str, exp.Query]]:
    """rows -> claims (person, key and value) -> placed -> claimed (key and value) -> values (on the grid).

    A person keeps at most `max_rows` of her claims, the first in the order of a hash and then of the claim itself: a
    function of her own rows, whoever else there is. `claimed` is the union of what persons keep. So adding a person adds at
    most max_rows pairs of a key and a value to it, and takes none away; each is like one row, of norm at most `weight`: the
    block moves by at most weight * max_rows in either norm, over all keys together.
    """
    (axis,), (x, _) = split.summands[block].axes, inputs(block)
    keys = [name(column[0]) for column in split.keys.columns]
    claim = [name("person"), *keys, name(x)]
    known = exp.Not(this=exp.Paren(this=exp.Is(this=name(x), expression=exp.Null())))
    few = exp.LTE(this=name("place"), expression=number(max_rows))
    order = place([exp.Anonymous(this="hash", expressions=claim), *keys, name(x)])
    itself = replace(axis, value=Column(x, axis.value.facts))
    return [
        (f"claims{block}", exp.select(*claim).distinct().from_(step("rows")).where(known)),
        (f"placed{block}", exp.select(exp.Star(), order.as_("place", quoted=True)).from_(step(f"claims{block}"))),
        (f"claimed{block}", exp.select(*keys, name(x)).distinct().from_(step(f"placed{block}")).where(few)),
        (f"values{block}", exp.select(*keys, row_value(itself).as_(x, quoted=True)).from_(step(f"claimed{block}"))),
    ]


def with_values(split: Split, blocks: list[int]) -> exp.Query:
    """Each person's limited cells, and below them those of values, which are no one's alone."""
    keys = [name(column[0]) for column in split.keys.columns]
    parts: list[exp.Query] = [exp.select(exp.Star()).from_(step("limited"))]
    for block in blocks:
        grid = exp.select(*keys, *grids(block, split.summands[block])).from_(step(f"values{block}"))
        sums = exp.select(*keys, *measured(block, split.summands[block])).from_(grid.subquery(identifier("grid")))
        cells = [
            times(name(column), s.factor(index)) if i == block else number(0)
            for i, s in enumerate(split.summands)
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
