"""What one person can add is bounded, in integers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import reduce
from typing import Literal, assert_never

from sqlglot import exp

from dpsql import algebra
from dpsql.algebra import Column, Expr, identifier, name, total
from dpsql.catalog import BIGINT, DOUBLE, HUGEINT, VARCHAR, Catalog, Type, fold, quoted
from dpsql.functions import cast, to_type
from dpsql.passes.single import bounding, settled, single, uses
from dpsql.passes.split import Split, domain_of
from dpsql.plan import Axis, Block, Limits, PrivateKeys, PublicKeys, Summand, Unknown, numbered, text_of_keys
from dpsql.relations import Filter, Group, Join, Owned, Project, Relation, Scan, Windowed, select, sources, steady

LONGEST = 1024  # bytes of a text that is a private key


@dataclass(frozen=True)
class Limited:
    split: Split
    max_rows: int
    max_groups: int
    in_groups: int
    sensitivities: tuple[int | Fraction, ...]
    unknowns: tuple[Unknown, ...]
    norm: int
    notes: tuple[str, ...]
    limits: Limits | None

    def reference(self) -> exp.Select:
        """The SQL form."""
        return query(self.split, self.max_rows, self.max_groups, self.in_groups, self.norm)


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
             weight * sqrt(M). Blocks of values: see `values`. Where a person has one row at the most (`single`), C = 1 is no
             limit but a fact, and so is M = 1 where all her rows have the same keys
    Checked: test_lemmas (contributions, sensitivity)
    """
    private, one, same = isinstance(split.keys, PrivateKeys), single(split.tracked.relation), same_group(split)
    declared = 1 if one else declared_limit(split, catalog)
    rows, groups = Unknown.count("rows"), Unknown.count("groups")
    max_rows = declared or int(split.picked.get(rows, rows.usual))
    max_groups = 1 if same else catalog.policy.defaults.max_groups_contributed or declared
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
    if one:
        notes.append("a person has one row at the most")
    elif "rows" in kinds:
        notes.append(f"more than {max_rows} row{'s' * (max_rows > 1)} of one person count for less ({origin})")
    if "values" in kinds and not one:
        notes.append(f"of one person's distinct values {max_rows} count ({origin})")
    if "persons" in kinds and in_groups < (there or max_groups) and not same:
        notes.append(f"a person in more than {in_groups} group{'s' * (in_groups > 1)} counts for less in each")
    sensitivities = tuple(
        s.weight * (root_of(in_groups, norm) if s.kind == "persons" else max_rows) for s in split.summands
    )
    limits = natively(split, max_rows, max_groups, in_groups, norm)
    return Limited(split, max_rows, max_groups, in_groups, sensitivities, unknowns, norm, tuple(notes), limits)


def same_group(split: Split) -> bool:
    """Whether all rows of a person have the same keys."""
    known = settled(split.tracked.relation)
    return all(uses(key) <= known for key in split.tracked.resolved.keys)


def root_of(groups: int, norm: int) -> Fraction:
    """The norm of a vector of so many ones, rounded up."""
    exact = math.isqrt(groups)
    if norm == 1 or exact * exact == groups:
        return Fraction(groups if norm == 1 else exact)
    return Fraction(math.isqrt(groups * 10**24) + 1, 10**12)


def unlimited(split: Split, relation: Relation, one: bool) -> exp.Select:
    """Sums by key where there is nothing to limit: the engine's own aggregates.

    Needs:   `one`: each person has at most `max_rows` rows and all blocks are of rows, or has one row. Else: all rows of a
             person have the same keys, and all blocks are of persons
    Gives:   keys and sums, as `inner` has them for these persons
    Proof:   with n <= max_rows rows in all, the norm of a person's counts is at most max_rows, so nothing of hers is scaled:
             she adds `factor` times what her rows add, and with one row in one group `weight` if it counts. All together add the sums
             over rows. And where all of a person's rows have the same keys she has one pair, and adds `weight` if one of
             her rows counts: all together add that for each person with such a row
    Checked: test_lemmas (both forms), test_limit, test_single, test_prepare
    """
    blocks = list(enumerate(split.summands))
    cells = (row_value(axis).as_(x, quoted=True) for i, s in blocks for x, axis in zip(inputs(i), s.axes, strict=False))
    keys, person = [name(column[0]) for column in split.keys.columns], name("person")
    grid = exp.select(person, *keys, *(column for i, s in blocks for column in grids(i, s))).from_(step("rows"))
    sums, private = exp.select(*keys), isinstance(split.keys, PrivateKeys)
    if private:
        everyone = exp.Star() if one else exp.Distinct(expressions=[name("person")])
        sums = sums.select(huge(exp.Count(this=everyone)).as_("persons", quoted=True))
    for i, s in blocks:
        if one:
            columns = zip(s.columns(i), s.indices, measured(i, s), strict=True)
            sums = sums.select(*(times(c.this, s.factor(index)).as_(word, quoted=True) for word, index, c in columns))
            continue
        there = [present(name(x)) for x, _ in zip(inputs(i), s.axes, strict=False)]
        counted = exp.Case(ifs=[exp.If(this=exp.and_(*there), true=person.copy())]) if there else person.copy()
        count = huge(exp.Count(this=exp.Distinct(expressions=[counted])))
        sums = sums.select(times(count, s.weight).as_(s.columns(i)[0], quoted=True))
    sums = sums.from_(step("grid"))
    sums = sums.group_by(*keys) if keys else sums
    words = [*(["persons"] if private else []), *(c for i, s in blocks for c in s.columns(i))]
    rows = rows_of(split, as_stored(split, relation), *cells)
    return with_steps(
        by_number(split, "added", [], [name(word) for word in words]), [("rows", rows), ("grid", grid), ("added", sums)]
    )


def by_number(split: Split, source: str, before: Sequence[exp.Expr], after: Sequence[exp.Expr]) -> exp.Select:
    """A step's columns, with the keys between them: declared texts by their numbers, others with the types that declared ones have.

    Texts are looked up by the engine, which does that once for each entry of a dictionary and not for each row.
    """
    if isinstance(split.keys, PrivateKeys):
        keys: list[exp.Expr] = [name(word) for word, _ in split.keys.columns]
        return exp.select(*before, *keys, *after, copy=False).from_(step(source), copy=False)
    shown, joins = list[exp.Expr](), list[exp.Join]()
    for i, (word, type_, values) in enumerate(split.keys.columns):
        if type_ != VARCHAR:
            shown.append(to_type(name(word), type_.sql).as_(word, quoted=True))
            continue
        number_: exp.Expr = to_type(name("i", f"d{i}"), "INTEGER")
        if None in values:  # what is not declared counts as NULL
            number_ = exp.Coalesce(this=number_, expressions=[number(values.index(None))])
        shown.append(number_.as_(word, quoted=True))
        table = exp.Subquery(this=exp.Var(this=numbered(type_, values)), alias=exp.TableAlias(this=identifier(f"d{i}")))
        on = exp.EQ(this=name(word, source), expression=name("v", f"d{i}"))
        joins.append(exp.Join(this=table, on=on, side="LEFT" if None in values else None))
    query = exp.select(*before, *shown, *after, copy=False).from_(step(source), copy=False)
    for join in joins:
        query = query.join(join, copy=False)
    return query


def present(value: exp.Expr) -> exp.Expr:
    return exp.Not(this=exp.Paren(this=exp.Is(this=value, expression=exp.Null())))


WIDEST = 36  # columns of the native form
FINEST = 2**53  # grids of it


def natively(split: Split, max_rows: int, max_groups: int, in_groups: int, norm: int) -> Limits | None:
    """The same pass for `rust/limit`: the engine gives `rows`, and the rest is done there. None if only SQL can.

    Needs:   the split of which `query` makes SQL, and the same limits
    Gives:   what `limit_and_add_noise` needs to find the rows of `inner`, number for number
    Proof:   `rows` is the step of that name with values still to be clipped, which is one comparison; for private keys it
             has the engine's own hash of the pair, so that both forms rank alike. Rows with other keys than the declared ones
             are left out there (`as_stored`). The other steps are the same integer arithmetic on the same numbers
             (rust/limit). Which form runs depends on the text and on the schema alone
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
    private, declared = isinstance(split.keys, PrivateKeys), ""
    rows, sums = parted(split, max_rows)
    if keys and isinstance(split.keys, PublicKeys):
        shown = ", ".join(map(quoted, keys))
        declared = (
            f'SELECT {shown} FROM ({text_of_keys(split.keys.columns, numbers=True)}) AS "keys" ORDER BY "row" ASC'
        )
    names = [c for i, s in enumerate(summands) for c in s.columns(i)]
    return Limits(
        text_of(rows),
        text_of(sums),
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


def text_of(query: exp.Select | None) -> str:
    return query.sql("duckdb", comments=False, copy=False) if query is not None else ""


def parted(split: Split, max_rows: int) -> tuple[exp.Select | None, exp.Select | None]:
    """SQL for the rows that need limits, and for the sums of those that do not; from the text and the schema alone.

    In a prepared table it is known how many rows each person has. Those with few are within the limits whatever is asked of
    them, since no relation that the table bounds has more rows of hers; only the others are limited.
    """
    relation, kinds = split.tracked.relation, {s.kind for s in split.summands}
    if single(relation):
        return None, unlimited(split, relation, one=True)
    if kinds <= {"persons"} and same_group(split):
        return None, unlimited(split, relation, one=False)
    base = bounding(relation)
    if isinstance(split.keys, PrivateKeys) or not isinstance(base, Owned) or not base.scan.table.prepared:
        return streamed(split, relation), None
    coded = replace(base, coded=owners_in(relation) == 1)  # else a join would compare numbers with persons
    if kinds != {"rows"}:
        return streamed(split, changed(relation, base, coded)), None
    light, heavy = replace(coded, few=max_rows), replace(coded, many=max_rows)
    rows = streamed(split, changed(relation, base, heavy))
    return rows, unlimited(split, changed(relation, base, light), one=True)


def owners_in(relation: Relation) -> int:
    return isinstance(relation, Owned) + sum(map(owners_in, sources(relation)))


def changed(relation: Relation, old: Owned, new: Owned) -> Relation:
    """The relation with another node in the place of this one."""
    match relation:
        case Owned():
            return new if relation is old else relation
        case Filter(source) | Project(source) | Windowed(source) | Group(source):
            return replace(relation, source=changed(source, old, new))
        case Join(left, right):
            return replace(relation, left=changed(left, old, new), right=changed(right, old, new))
        case _:
            return relation


def streamed(split: Split, relation: Relation) -> exp.Select:
    """Each row's person, keys, for private ones the hash that ranks them, and values."""
    blocks = list(enumerate(split.summands))
    cells = (
        (row_value(axis) if axis.degree else present(total(axis.value))).as_(x, quoted=True)
        for i, s in blocks
        for x, axis in zip(inputs(i), s.axes, strict=False)
    )
    after: list[exp.Expr] = [name(x) for i, s in blocks for x, _ in zip(inputs(i), s.axes, strict=False)]
    if isinstance(split.keys, PrivateKeys):
        pair = [name(word) for word in ("person", *(word for word, _ in split.keys.columns))]
        after = [place_of(pair).as_("hash", quoted=True), *after]
    made = [("rows", rows_of(split, as_stored(split, relation), *cells))]
    return with_steps(by_number(split, "rows", [name("person")], after), made)


def place_of(pair: Sequence[exp.Expr]) -> exp.Expr:
    """By what a person's groups are ranked: 32 bits of the engine's hash, since each row carries them."""
    hash_ = exp.Anonymous(this="hash", expressions=list(pair))
    return to_type(exp.BitwiseRightShift(this=hash_, expression=number(32)), "UINTEGER")


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
            return exp.select("*").from_(split.keys.table(), copy=False)
        case PublicKeys(declared) if declared:
            totals = exp.select(*keys, *(total_of(name(c)).as_(c, quoted=True) for c in columns))
            totals = totals.from_(source).group_by(*keys)
            on = exp.and_(*(exp.NullSafeEQ(this=name(k.name, "keys"), expression=name(k.name, "totals")) for k in keys))
            cells = (exp.Coalesce(this=name(c, "totals"), expressions=[number(0)]) for c in columns)
            query = exp.select(*(huge(cell).as_(c, quoted=True) for c, cell in zip(columns, cells, strict=True)))
            query = query.from_(split.keys.table(), copy=False)
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
    rows = rows_of(split, shown_rows(split), *cells)
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


def rows_of(split: Split, relation: Relation, *values: exp.Expr) -> exp.Select:
    """The rows of a relation, each with its person and its keys."""
    private = isinstance(split.keys, PrivateKeys)
    keys = (
        (canonical(key) if private else total(key)).as_(f"k{i}", quoted=True)
        for i, key in enumerate(split.tracked.resolved.keys)
    )
    rows = exp.select(name(split.tracked.person).as_("person", quoted=True), *keys, *values)
    return rows.from_(select(relation).subquery(identifier("s"), copy=False), copy=False)


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


def as_stored(split: Split, relation: Relation) -> Relation:
    """The rows with public keys and values as they are stored, where nothing else looks at them.

    The scan makes NULL of a value that is not declared, and a row whose key is not declared is left out. The native form does
    both when it looks the key up, so that the engine need not compare each row with a long list. The scan also puts
    values into their range, and the grid does it again.
    """
    axes = [axis for summand in split.summands for axis in summand.axes]
    keys = split.tracked.resolved.keys
    for key in keys if isinstance(split.keys, PublicKeys) else ():
        if isinstance(key, Column) and not any(key.name in uses(axis.value) for axis in axes):
            relation = stored_as(relation, key.name, "domain")
    for value in {axis.value for axis in axes if isinstance(axis.value, Column)}:
        used = [axis for axis in axes if value.name in uses(axis.value)]
        if not any(value.name in uses(key) for key in keys) and all(map(clipped_again, used)):
            relation = stored_as(relation, value.name, "between")
    return relation


def clipped_again(axis: Axis) -> bool:
    """Whether values out of range end where the scan would have put them. Exact ones must not be shifted before that."""
    facts = axis.value.facts
    ranged = facts.declared and facts.range == (axis.low, axis.high)
    return isinstance(axis.value, Column) and axis.degree > 0 and ranged and (facts.type == DOUBLE or not axis.low)


def stored_as(relation: Relation, column: str, what: Literal["domain", "between"]) -> Relation:
    """The relation without a declaration of a column, unless something in it looks at the column."""
    match relation:
        case Scan(table, alias, names):
            found = [fold(cell) for cell in names if f"{alias}.{cell}" == column]
            columns = table.columns
            free = {
                cell: replace(columns[cell], domain=None) if what == "domain" else replace(columns[cell], between=None)
                for cell in found
            }
            return replace(relation, table=replace(table, columns={**table.columns, **free}))
        case Owned(scan):
            changed = stored_as(scan, column, what)
            assert isinstance(changed, Scan)
            return replace(relation, scan=changed)
        case Filter(source, predicate) if column not in uses(predicate):
            return replace(relation, source=stored_as(source, column, what))
        case Join(left, right, on) if on is None or column not in uses(on):
            return replace(relation, left=stored_as(left, column, what), right=stored_as(right, column, what))
        case _:
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
    if axis.step != 1:  # engines divide slower
        value = exp.Mul(this=value, expression=algebra.literal(1 / axis.step, DOUBLE))
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
    known = present(name(x))
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
