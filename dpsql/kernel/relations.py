"""The closed set of relations, and the locality lemma.

A relation R over a database D is *local* if it is the disjoint union, over persons p, of R(D|p), where D|p is the
public tables and p's own rows, if R of the public tables alone is empty, and if R(D|p) is a function of the bag of
p's rows. Each node's docstring is one case of the induction; the exhaustive `match` shows that there is no other.

`resolve` builds relations without persons; `track` puts the person into each node that has a place for her, and refuses
what is not local. A node without a person is then public.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache, reduce
from typing import Literal, assert_never

from sqlglot import exp

from dpsql.errors import Refused
from dpsql.kernel.algebra import Call, Column, Expr, call, conjuncts, identifier, literal, name, total
from dpsql.kernel.algebra import Literal as Constant
from dpsql.kernel.functions import Facts, brief, cast, element, holds, level, mismatch, paren, since, some, to_type
from dpsql.policy.catalog import (
    BIGINT,
    BOOLEAN,
    DOUBLE,
    HUGEINT,
    INTERVAL,
    ROWS,
    VARCHAR,
    Domain,
    Interval,
    Reference,
    Table,
    Type,
    Value,
    fold,
)
from dpsql.policy.catalog import Column as Stored


@dataclass(frozen=True)
class Scan:
    """The rows of a table, with declared ranges and domains enforced; `columns` are those that the query names.

    Public tables are the same in D and in D|p. A private table is local only once its rows have an owner: through
    `Owned`, or through a `Join` that `track` has seen to follow its reference.
    """

    table: Table
    alias: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Owned:
    """A private scan and the person of each row, found along `path`; the person's column is `person`.

    Local: a row is p's if its person column is p, or if it references a row that is p's. The joins look only at the
    row and at the rows that it references, all of them p's. A row that reaches none, or NULL, is left out. No row reaches two
    persons (`catalog.several`, which `track` asks), unless the owner has declared `shared`: then it is a copy for each, and
    D|p has p's copy. So with the public tables alone nothing is left.

    Tables that were prepared have the person in each row, and `prepare` has seen that there is no more than one. There she
    may be `read`: as PERSON, or as CODE, a number by which persons can only be told apart; and `few` or `many` leaves only
    persons with at most, or more than, so many rows in the table. With `nobody` the rows without a person are not yet left out,
    if each row has the person in it: whoever reads them does that.
    """

    scan: Scan
    path: tuple[tuple[Table, Reference], ...]
    root: Table
    read: str = ""
    few: int | None = None
    many: int | None = None
    nobody: bool = False

    @property
    def person(self) -> str:
        return f"person:{self.scan.alias}"


@dataclass(frozen=True)
class Values:
    """Constant rows of the query's own text: a public table."""

    columns: tuple[tuple[str, Type], ...]
    rows: tuple[tuple[Value, ...], ...]


Kind = Literal["inner", "left", "full", "semi", "anti"]


@dataclass(frozen=True)
class Join:
    """A join on a total predicate over the two rows.

    Local in these cases. Inner: one side is local and the other public, or is a private relation whose rows the predicate
    ties to the first side by their reference, so that every private row in an output row is p's (see `track`). Any kind:
    both sides are local and `persons` are their columns, which the join equates: a row meets only rows of its own person,
    so the join of D is the union of those of D|p, and what meets nothing (left, full, anti) meets nothing in D|p
    either. Left, semi, anti: the left side is local and the right side public, the same in D and in D|p. The person of
    a full join is that of either side, under the name `person`.
    """

    left: Relation
    right: Relation
    on: Expr | None
    kind: Kind = "inner"
    persons: tuple[str, str] | None = None
    person: str | None = None  # of a full join


@dataclass(frozen=True)
class Filter:
    """The rows for which a total predicate is true. Local: it looks at one row at a time."""

    source: Relation
    predicate: Expr
    note: str = ""  # what an analyst should know, if `track` has put it there


@dataclass(frozen=True)
class Project:
    """Total expressions of each row under new names, and the person. Local: it looks at one row at a time."""

    source: Relation
    alias: str
    columns: tuple[tuple[str, Expr], ...]
    person: str | None = None  # the person's column in the source; here it is called as `owner` says

    @property
    def owner(self) -> str:
        return f"person:{self.alias}"


Order = tuple[tuple[Expr, bool, bool], ...]  # descending, NULLs first


@dataclass(frozen=True)
class Measure:
    """An aggregate below the noise: a function of the bag of a person's rows, on integers or without arithmetic."""

    function: str
    argument: Expr | None
    distinct: bool
    filter: Expr | None
    facts: Facts
    order: Order = ()  # of the rows of which the first or the last is taken; all columns follow


@dataclass(frozen=True)
class Group:
    """One row for each person and key, with measures of her rows; without measures, her distinct keys.

    Local: a group holds rows of one person only, since she is among the keys; keys have one representation, and measures
    depend neither on the order of rows nor on how the engine adds up parts (see `measured`).
    """

    source: Relation
    keys: tuple[tuple[str, Expr], ...]
    measures: tuple[tuple[str, Measure], ...]
    person: str | None = None
    alone: bool = False  # the keys are the person, who so has one row
    each: bool = False  # the keys need not lead to the person, who is put among them all the same


Bound = int | Literal["unbounded"]  # rows from the current one: below zero before it, above zero behind it
Frame = tuple[Literal["ROWS", "RANGE"], Bound, Bound]


@dataclass(frozen=True)
class Over:
    """A window function over rows of one person: what it computes, its partition, order and frame of rows."""

    function: str
    arguments: tuple[Expr, ...]
    partition: tuple[Expr, ...]
    order: Order
    frame: Frame | None
    facts: Facts


@dataclass(frozen=True)
class Windowed:
    """The same rows with one more column for each window function.

    Local: the person is in every PARTITION BY. Functions that see an order get one over all columns of the source, so
    that only rows that are equal in everything can change places; sums are of integers.
    """

    source: Relation
    columns: tuple[tuple[str, Over], ...]
    person: str | None = None


@dataclass(frozen=True)
class Stack:
    """The rows of both sides, or those that set operations leave of them.

    Local: both sides carry their person as a column, so the union, intersection or difference is that of each person's
    rows. Two public sides are a public table.
    """

    left: Project
    right: Project
    kind: Literal["union all", "union", "intersect", "except"]


@dataclass(frozen=True)
class Unnest:
    """Each row once for each of the first `most` elements of a list that is a total expression of it, with the element; else
    not at all, or once with NULL if it is to `stay`.

    Local: it looks at one row at a time.
    """

    source: Relation
    list: Expr
    column: str
    stay: bool = False
    most: int = 0  # set by `track`; 0: the list is written out in the query


@dataclass(frozen=True)
class Capped:
    """At most `most` rows of each person and each value of the columns `by`: the first in the order of a hash of all columns, and
    then of the columns themselves.

    Local: which rows stay depends on the rows of that person alone. Rows that are equal in all columns are the same to
    whoever reads them, so it does not matter which of them stays.
    """

    source: Relation
    alias: str  # what the query calls it, for notes
    person: str
    most: int
    by: tuple[str, ...] = ()


Relation = Scan | Owned | Values | Join | Filter | Project | Group | Windowed | Stack | Unnest | Capped


def sources(relation: Relation) -> tuple[Relation, ...]:
    match relation:
        case Scan() | Values():
            return ()
        case Owned(scan, _, _):
            return (scan,)
        case Join() | Stack():
            return (relation.left, relation.right)
        case Filter() | Project() | Group() | Windowed() | Unnest() | Capped():
            return (relation.source,)
        case _:
            assert_never(relation)


def scans(relation: Relation) -> Iterator[Scan]:
    if isinstance(relation, Scan):
        yield relation
    for source in sources(relation):
        yield from scans(source)


def columns(relation: Relation) -> dict[str, Type]:
    """The columns by name, without persons."""
    match relation:
        case Scan(table, alias, names):
            return {f"{alias}.{column}": enforce(table, column).type for column in names}
        case Owned(scan, _, _):
            return columns(scan)
        case Values(named, _):
            return dict(named)
        case Join(left, right, _, kind):
            return columns(left) | ({} if kind in ("semi", "anti") else columns(right))
        case Filter(source) | Capped(source):
            return columns(source)
        case Project():
            return {word: expression.facts.type for word, expression in relation.columns}
        case Group(_, keys, measures):
            return {word: e.facts.type for word, e in keys} | {word: m.facts.type for word, m in measures}
        case Windowed(source, added):
            return columns(source) | {word: over.facts.type for word, over in added}
        case Stack(left):
            return columns(left)
        case Unnest(source, list_, column):
            return columns(source) | {column: element(list_.facts).type}
        case _:
            assert_never(relation)


def filters(relation: Relation) -> Iterator[Expr]:
    """Conditions that hold for every row."""
    match relation:
        case Filter(source, predicate):
            yield predicate
            yield from filters(source)
        case Unnest(source) | Capped(source):
            yield from filters(source)
        case Join(left, right, on, kind):
            if kind != "full":
                yield from filters(left)
            if kind == "inner":
                yield from filters(right)
                yield from [] if on is None else [on]
        case _:
            pass


def origin(relation: Relation, column: str) -> tuple[Stored, bool] | None:
    """The column of a table that a column is, and whether an outer join may have made it NULL."""
    match relation:
        case Scan(table, alias):
            return table.columns[fold(column.removeprefix(f"{alias}."))], False
        case Owned(scan):
            return origin(scan, column)
        case Filter(source) | Windowed(source) | Unnest(source) | Capped(source):
            return origin(source, column) if column in columns(source) else None
        case Project(source, _, named):
            expression = dict(named)[column]
            return origin(source, expression.name) if isinstance(expression, Column) else None
        case Group(source, keys):
            key = dict(keys).get(column)
            return origin(source, key.name) if isinstance(key, Column) else None
        case Join(left, right, _, kind):
            first = column in columns(left)
            found = origin(left if first else right, column)
            return found and (found[0], found[1] or kind == "full" or (kind == "left" and not first))
        case Values() | Stack():
            return None
        case _:
            assert_never(relation)


def merged(name: str, left: Facts, right: Facts) -> Facts:
    """What is known of a column that has values of both sides."""
    type_ = left.type
    if left.type.kind == right.type.kind == "INTEGER" and left.type.range and right.type.range:
        low, high = (f(a, b) for f, a, b in zip((min, max), left.type.range, right.type.range, strict=True))
        holding = [t for t in (left.type, right.type, HUGEINT) if t.range and t.range[0] <= low and high <= t.range[1]]
        type_ = holding[0]
    elif left.type != right.type:
        if not (left.type.numeric and right.type.numeric) or DOUBLE not in (left.type, right.type):
            types = f"{left.type.sql} and {right.type.sql}"
            raise Refused("set_mismatch", f"a column of the set operation has types {types}", "Cast one of them.")
        type_ = DOUBLE
    range_ = None
    if left.range is not None and right.range is not None:
        range_ = (min(left.range[0], right.range[0]), max(left.range[1], right.range[1]))
    size = max(left.growth, right.growth) if VARCHAR in (type_, type_.element) else None
    size = max(left.stretch, right.stretch) if type_ == INTERVAL else size
    nullable, declared = left.nullable or right.nullable, left.declared and right.declared
    return Facts(type_, nullable, range_, declared, size, copies=max(left.copies, right.copies))


# --- scans and their persons ------------------------------------------------------------------------------------------


def enforce(table: Table, column: str) -> Facts:
    """What is known of a column after the scan: its declared range or domain, else its type's range."""
    declared = table.columns[fold(column)]
    type_ = {"FLOAT": DOUBLE, "FLOAT[]": DOUBLE.list}.get(declared.type.sql, declared.type)
    if type_ == INTERVAL:
        ends = bounds(declared.between) if declared.between is not None else None
        return replace(some(True, ends, True) if ends else some(), stored=True)
    if declared.between is not None:
        # Clamping maps NaN to NULL, so only exact columns stay free of NULL.
        return Facts(type_, declared.nullable or type_ == DOUBLE, bounds(declared.between), True, stored=True)
    if declared.domain is not None:
        return Facts(type_, True, bounds_of(declared.domain), True, stored=True)
    natural = type_.range is not None and type_.range[0] == 0
    return Facts(type_, declared.nullable, type_.range, ends=(natural, False), stored=True)


@lru_cache(maxsize=256)
def bounds_of(domain: Domain) -> tuple[Fraction, Fraction] | None:
    return bounds(domain)


def bounds(values: Iterable[Value]) -> tuple[Fraction, Fraction] | None:
    """The least and the greatest of values that have a place on the line."""
    places = [
        since(value) if isinstance(value, datetime.date) else value.length if isinstance(value, Interval) else value
        for value in values
        if isinstance(value, Fraction | datetime.date | Interval)
    ]
    return (min(places), max(places)) if places else None


def scan_column(table: Table, column: str) -> exp.Expr:
    declared = table.columns[fold(column)]
    type_ = enforce(table, column).type
    cell = cast(name(declared.name, "t"), declared.type, type_)
    if declared.between is not None:
        low, high = (literal(value, type_) for value in declared.between)
        found = brief(cell.copy()) if type_ == INTERVAL else cell.copy()
        arms: list[tuple[exp.Expr, exp.Expr]] = [(exp.Between(this=cell.copy(), low=low, high=high), found)]
        if type_ == DOUBLE:  # NaN is greater than everything in the engine; it must not become the upper end
            arms.append((exp.Anonymous(this="isnan", expressions=[cell.copy()]), exp.Null()))
        arms.append((exp.GT(this=cell.copy(), expression=high.copy()), high.copy()))
        arms.append((exp.LT(this=cell.copy(), expression=low.copy()), low.copy()))
        return exp.Case(ifs=[exp.If(this=test, true=value) for test, value in arms])
    if declared.domain is not None:
        known = exp.In(this=cell.copy(), expressions=[literal(value, type_) for value in declared.domain])
        return exp.Case(ifs=[exp.If(this=known, true=cell)])
    return brief(cell) if type_ == INTERVAL else cell


def base(table: Table, alias: str = "t") -> exp.Table:
    catalog, schema, leaf = (identifier(part) for part in table.path)
    return exp.Table(this=leaf, db=schema, catalog=catalog, alias=exp.TableAlias(this=identifier(alias)))


def owners(
    table: Table, columns: tuple[str, ...], path: tuple[tuple[Table, Reference], ...], root: Table, once: bool = True
) -> exp.Select:
    """Rows (key_0, key_1, ..., person): who owns the rows of `table` with these key columns. Raw cells, no clamping.

    Each stands there `once`, or else whoever reads them sees to it.
    """
    keys = [
        name(table.columns[fold(c)].name, "t").as_(f"key_{i}", quoted=True, copy=False) for i, c in enumerate(columns)
    ]
    query = attribute(exp.select(*keys, copy=False).from_(base(table), copy=False), table, path, root, "person")
    # A key that is declared may still stand there twice, and a row would count once for each match.
    unique = any(key <= set(map(fold, columns)) for key in table.unique)
    return query if unique or not once else query.distinct(copy=False)


def referring(table: Table, own: str, target: Table, other: str) -> exp.Expr:
    """A cell of `table AS t` as the type that it references. A number that this type cannot hold is NULL: it finds nobody."""
    cell, goal = table.columns[fold(own)], target.columns[fold(other)]
    here = name(cell.name, "t")
    return here if cell.type == goal.type else to_type(here, goal.type.sql, exp.TryCast)


def attribute(
    query: exp.Select, table: Table, path: tuple[tuple[Table, Reference], ...], root: Table, person: str
) -> exp.Select:
    """Add the person's column to a query whose FROM is `table AS t`."""
    if not path:
        owner = name(str(table.person), "t")
        return query.select(owner.as_(person, quoted=True, copy=False), copy=False).where(
            exp.Not(this=paren(exp.Is(this=owner.copy(), expression=exp.Null()))), copy=False
        )
    (_, link), rest = path[0], path[1:]
    target = rest[0][0] if rest else root
    found = owners(target, link.referenced, rest, root).subquery(identifier("p"), copy=False)
    on = exp.and_(
        *(
            exp.EQ(this=referring(table, own, target, other), expression=name(f"key_{i}", "p"))
            for i, (own, other) in enumerate(zip(link.columns, link.referenced, strict=True))
        ),
        copy=False,
    )
    return query.select(name("person", "p").as_(person, quoted=True, copy=False), copy=False).join(
        found, on=on, copy=False
    )


# --- rendering --------------------------------------------------------------------------------------------------------


def select(relation: Relation) -> exp.Query:
    """SQL for a relation. Every column is quoted and unique, every table has its three-part name."""
    match relation:
        case Scan(table, alias, names):
            found = [scan_column(table, c).as_(f"{alias}.{c}", quoted=True, copy=False) for c in names]
            return exp.select(
                *(found or [exp.Boolean(this=True).as_(f"{alias}.", quoted=True, copy=False)]), copy=False
            ).from_(base(table), copy=False)
        case Owned(scan, path, root, read, few, many, nobody):
            rows = select(scan)
            assert isinstance(rows, exp.Select)
            if path and not read:
                return attribute(rows, scan.table, path, root, relation.person)
            who, count = name(read or str(scan.table.person), "t"), name(ROWS, "t")
            conditions: list[exp.Expr] = (
                [] if nobody else [exp.Not(this=paren(exp.Is(this=who, expression=exp.Null())))]
            )
            conditions += [exp.LTE(this=count, expression=exp.Literal.number(few))] if few is not None else []
            conditions += [exp.GT(this=count, expression=exp.Literal.number(many))] if many is not None else []
            shown_person = who.copy().as_(relation.person, quoted=True, copy=False)
            return rows.select(shown_person, copy=False).where(*conditions, copy=False)
        case Values(named, rows_):
            cells = [
                exp.Tuple(expressions=[typed(v, t) for v, (_, t) in zip(row, named, strict=True)]) for row in rows_
            ]
            alias_ = exp.TableAlias(this=identifier("v"), columns=[identifier(word) for word, _ in named])
            return exp.select("*", copy=False).from_(exp.Values(expressions=cells, alias=alias_), copy=False)
        case Join(_, _, Call() as on, "inner") if split := apart(relation, on):
            slow, rest = split
            return above(replace(relation, on=rest), slow)
        case Join(left, right, on, kind, persons, person):
            parts = [total(on)] if on is not None else []
            if persons is not None:
                parts.append(exp.EQ(this=name(persons[0]), expression=name(persons[1])))
            query = exp.select("*", copy=False).from_(inside(left, "l"), copy=False)
            if person is not None and persons is not None:
                either = exp.Coalesce(this=name(persons[0]), expressions=[name(persons[1])])
                query = query.select(either.as_(person, quoted=True, copy=False), copy=False)
            if not parts and kind == "inner":
                return query.join(inside(right, "r"), join_type="cross", copy=False)
            parts = parts or [exp.true()]
            return query.join(
                inside(right, "r"),
                on=exp.and_(*parts, copy=False),
                join_type=None if kind == "inner" else kind,
                copy=False,
            )
        case Filter(source, predicate) if split := apart(source, predicate):
            slow, rest = split
            return above(source if rest is None else Filter(source, rest), slow)
        case Filter(source, predicate):
            return (
                exp.select("*", copy=False).from_(inside(source, "s"), copy=False).where(total(predicate), copy=False)
            )
        case Project(source, _, named_, person):
            shown = [total(expression).as_(word, quoted=True, copy=False) for word, expression in named_]
            if person is not None:
                shown.append(name(person).as_(relation.owner, quoted=True, copy=False))
            return exp.select(
                *(shown or [exp.Boolean(this=True).as_("nothing", quoted=True, copy=False)]), copy=False
            ).from_(inside(source, "s"), copy=False)
        case Group(source, keys, measures, person):
            by = [steady(total(key), key.facts.type) for _, key in keys]
            shown = [key.as_(word, quoted=True, copy=False) for key, (word, _) in zip(by, keys, strict=True)]
            every = columns(source)
            shown += [measured(measure, every).as_(word, quoted=True, copy=False) for word, measure in measures]
            # The engine would take a bare number for a position.
            by = [to_type(key, "INTEGER") if isinstance(key, exp.Literal) and not key.is_string else key for key in by]
            if person is not None:
                shown, by = [name(person), *shown], [name(person), *by]
            query = exp.select(*shown, copy=False).from_(inside(source, "s"), copy=False)
            return query.group_by(*(key.copy() for key in by), copy=False)
        case Windowed(source, added, person):
            every = columns(source)
            shown = [windowed(over, person, every).as_(word, quoted=True, copy=False) for word, over in added]
            return exp.select("*", *shown, copy=False).from_(inside(source, "s"), copy=False)
        case Stack(left, right, kind):
            sides = [select(side) if kind == "union all" else steadied(side) for side in (left, right)]
            combine = {"intersect": exp.intersect, "except": exp.except_}.get(kind, exp.union)
            stacked = combine(*sides, distinct=kind != "union all")
            return exp.select("*", copy=False).from_(stacked.subquery(identifier("u"), copy=False), copy=False)
        case Unnest(source, list_, column, stay, most):
            elements = total(list_)
            if most:
                ends = [exp.Literal.number(1), exp.Literal.number(most)]
                elements = exp.Anonymous(this="list_slice", expressions=[elements, *ends])
            if stay:
                length = exp.Anonymous(this="array_length", expressions=[elements.copy()])
                some = exp.GT(this=length, expression=exp.Literal.number(0))
                elements = exp.Case(ifs=[exp.If(this=some, true=elements)], default=exp.Array(expressions=[exp.Null()]))
            each = exp.Anonymous(this="unnest", expressions=[elements]).as_(column, quoted=True, copy=False)
            return exp.select("*", each, copy=False).from_(inside(source, "s"), copy=False)
        case Capped(source, _, owner, most, by_):
            terms = ties(columns(source))
            hashed = exp.Anonymous(this="hash", expressions=[term.this.copy() for term in terms])
            terms = [exp.Ordered(this=hashed, desc=False, nulls_first=False), *terms] if terms else []
            order = exp.Order(expressions=terms) if terms else None
            number = exp.Window(this=exp.RowNumber(), partition_by=list(map(name, (owner, *by_))), order=order)
            within = exp.LTE(this=number, expression=exp.Literal.number(most))
            capped = exp.select("*", copy=False).from_(inside(source, "s"), copy=False)
            capped.set("qualify", exp.Qualify(this=within))
            return capped
        case _:
            assert_never(relation)


QUICK = {"=", "!=", "<", "<=", ">", ">=", "BETWEEN", "AND", "OR", "NOT", "IS NULL", "+", "-", "*"}
EVERYTHING = 2**63 - 1  # rows: more than any engine has


def apart(relation: Relation, predicate: Expr) -> tuple[list[Expr], Expr | None] | None:
    """The conditions that compute something slow of both sides of a join in the relation, and the others; None without such."""
    known = list(conjuncts(predicate))
    slow = [one for one in known if meet(relation, names_in(one), is_slow(one))]
    rest = [one for one in known if one not in slow]
    return (slow, reduce(lambda x, y: call("AND", x, y), rest) if rest else None) if slow else None


def above(relation: Relation, slow: list[Expr]) -> exp.Query:
    """The rows for which slow conditions are true. The engine looks at them above the join, where it can be interrupted: within
    a join it tries two thousand rows with all rows of a person in one step. A LIMIT that leaves out nothing keeps them there.
    """
    rows = select(relation).subquery(identifier("j"), copy=False)
    everything = exp.select("*", copy=False).from_(rows, copy=False).limit(EVERYTHING, copy=False)
    kept = exp.select("*", copy=False).from_(everything.subquery(identifier("s"), copy=False), copy=False)
    return kept.where(*map(total, slow), copy=False)


def meet(relation: Relation, words: frozenset[str], slow: bool) -> bool:
    """Whether something slow that is computed of these columns is computed of both sides of a join."""
    match relation:
        case Project(source, _, named):
            used = [expression for word, expression in named if word in words]
            return meet(source, frozenset().union(*map(names_in, used)), slow or any(map(is_slow, used)))
        case Join(left, right):
            sides = [(side, words & columns(side).keys()) for side in (left, right)]
            if all(found for _, found in sides):
                return slow
            return any(meet(side, found, slow) for side, found in sides if found)
        case Filter(source) | Windowed(source) | Unnest(source) | Capped(source):
            return meet(source, words & columns(source).keys(), slow)
        case Group(source, keys):
            used = [expression for word, expression in keys if word in words]
            return meet(source, frozenset().union(*map(names_in, used)), slow or any(map(is_slow, used)))
        case Stack(left, right):  # whose columns are called as those of the left
            order = [word for word, _ in left.columns]
            others = frozenset(right.columns[order.index(word)][0] for word in words if word in order)
            return meet(left, words, slow) or meet(right, others, slow)
        case _:
            return False


def names_in(expression: Expr) -> frozenset[str]:
    if isinstance(expression, Column):
        return frozenset((expression.name,))
    arguments = expression.arguments if isinstance(expression, Call) else ()
    return frozenset().union(*map(names_in, arguments))


def is_slow(expression: Expr) -> bool:
    """Whether it takes more than some nanoseconds: it calls more than comparisons and sums, or more than a few of these."""
    calls, waiting = 0, [expression]
    for one in waiting:
        if isinstance(one, Call):
            if one.function not in QUICK:
                return True
            calls += 1
            waiting.extend(one.arguments)
    return calls > 16


def inside(relation: Relation, alias: str) -> exp.Subquery:
    return select(relation).subquery(identifier(alias), copy=False)


def typed(value: Value, type_: Type) -> exp.Expr:
    """A literal that has its type also where it is NULL."""
    shown = literal(value, type_)
    return shown if isinstance(shown, exp.Cast) else written(shown, type_)


def written(expression: exp.Expr, type_: Type) -> exp.Expr:
    return exp.Cast(this=expression, to=exp.DataType.build(type_.sql, dialect="duckdb"))


def steady(value: exp.Expr, type_: Type) -> exp.Expr:
    """One representation for values that the engine takes for equal: else it would show which row came first."""
    if type_.kind == "LIST":
        raise Refused("list_not_supported", "lists are not compared with each other", "Unnest them, or use len(list).")
    if type_ == INTERVAL:  # 30 days are a month
        return level(value)
    if type_ != DOUBLE:
        return value
    nan = exp.Anonymous(this="isnan", expressions=[value.copy()])
    zero = exp.EQ(this=value.copy(), expression=literal(0, DOUBLE))
    arms = [(nan, cast(exp.Literal.string("nan"), VARCHAR, DOUBLE)), (zero, literal(0, DOUBLE))]
    return exp.Case(ifs=[exp.If(this=test, true=one) for test, one in arms], default=value)


def steadied(side: Project) -> exp.Query:
    shown = [steady(name(word), type_).as_(word, quoted=True, copy=False) for word, type_ in columns(side).items()]
    owner = [name(side.owner)] if side.person is not None else []
    return exp.select(*shown, *owner, copy=False).from_(inside(side, "s"), copy=False)


# --- measures: aggregates of one person's rows ------------------------------------------------------------------------

STEPS = 2**62  # of a DOUBLE from zero to the next power of two above its range
MANY = Fraction(2**63)  # more rows than anyone has
COUNTED = Fraction(2**53)  # and so are these (`limit` takes 2^50): twice a count is a BIGINT as well
SPREADS = ("var_pop", "var_samp", "stddev_pop", "stddev_samp")
MEASURES = ("count", "sum", "avg", "min", "max", "bool_and", "bool_or", *SPREADS)
FEW = 2**31  # rows and steps of a variance: the squares of so many numbers of this size add up to 2^124 at the most


def measure(
    function: str, argument: Expr | None, distinct: bool = False, where: Expr | None = None, order: Order = ()
) -> Measure:
    """Type and range of an aggregate below the noise; what would depend on order, or could overflow, is refused."""
    if function == "count":
        return Measure(function, argument, distinct, where, Facts(BIGINT, False, (Fraction(0), COUNTED)))
    assert argument is not None
    facts = argument.facts
    if distinct and function not in ("min", "max"):
        raise Refused(
            "not_supported", f"{function}(DISTINCT x) of one person is not supported", "Use count(DISTINCT x)."
        )
    if function in ("bool_and", "bool_or"):
        if facts.type != BOOLEAN:
            raise mismatch(function, [facts])
        return Measure(function, argument, False, where, Facts(BOOLEAN))
    if function in ("min", "max"):
        if facts.type.kind in ("LIST", "OTHER", "NULL"):
            raise mismatch(function, [facts])
        return Measure(
            function, argument, False, where, Facts(facts.type, True, facts.range, facts.declared, facts.size)
        )
    if function in ("first", "last"):
        if facts.type.kind in ("OTHER", "NULL"):
            raise mismatch(function, [facts])
        return Measure(function, argument, False, where, kept(facts), order)
    if facts.type == INTERVAL:
        hint = f"Write to_seconds({function}(epoch(x)))."
        raise Refused("type_mismatch", f"{function} of one person does not apply to INTERVAL", hint)
    if not facts.type.numeric:
        raise mismatch(function, [facts])
    if facts.range is None:
        raise Refused(
            "limit_missing",
            f"{function} of one person's rows needs a range for its argument",
            "Bound it: least(greatest(x, LOW), HIGH).",
        )
    if facts.type == DOUBLE:
        most = max(map(abs, facts.range))
        if most > 10**200 or 0 < most < Fraction(1, 10**200):
            raise Refused(
                "may_overflow", "a sum of these numbers may leave the range of DOUBLE", "Bound it, or scale it."
            )
    if function in SPREADS:
        on_steps(argument, facts)
        width = facts.range[1] - facts.range[0]
        most = width if function.startswith("stddev") else width * width
        return Measure(function, argument, False, where, Facts(DOUBLE, True, (Fraction(0), most), facts.declared))
    if function == "avg":
        counted(facts)
        return Measure(function, argument, False, where, Facts(DOUBLE, True, facts.range, facts.declared))
    low, high = (end * MANY for end in facts.range)
    ends = (min(low, Fraction(0)), max(high, Fraction(0)))
    if facts.type == DOUBLE:
        return Measure(function, argument, False, where, Facts(DOUBLE, True, ends))
    type_ = Type(f"DECIMAL(38,{facts.type.scale})") if facts.type.scale else HUGEINT
    return Measure(function, argument, False, where, Facts(type_, True, ends, size=counted(facts) * MANY))


def kept(facts: Facts) -> Facts:
    """What is known of a value that is taken from one of several rows, or from none."""
    return replace(facts, nullable=True, constant=None, stored=False)


def counted(facts: Facts) -> Fraction:
    """The largest magnitude of an exact number, which must be small enough that any number of rows adds up."""
    assert facts.range is not None
    most = max(Fraction(1), *map(abs, facts.range))
    scale = facts.type.scale
    fits = most * 10**scale < 10**18 if scale else holds(BIGINT, 0, facts.range)
    if facts.type != DOUBLE and not fits:
        raise Refused(
            "may_overflow",
            "a sum of these numbers may not fit into any exact type",
            "Bound it: least(greatest(x, LOW), HIGH).",
        )
    return most


def measured(measure: Measure, every: dict[str, Type]) -> exp.Expr:
    """SQL for a measure: it is the same for any order of rows, and for any way in which the engine splits them.

    Integers and decimals are added up as integers of at most 2^63 each: 2^63 of them make 2^126, which has 38 digits.
    Doubles are first put on a grid of integers up to 2^62. Of a first or last row there is but one, but for rows that are equal
    in all columns. Extremes and counts of distinct values take one
    representation of each value.
    """
    argument = measure.argument
    if argument is None:
        return exp.Count(this=exp.Star() if measure.filter is None else chosen(exp.Literal.number(1), measure.filter))
    type_ = argument.facts.type
    value = total(argument)
    if type_.kind != "LIST" and not (type_ == INTERVAL and measure.function in ("first", "last")):
        value = steady(value, type_)
    match measure.function:
        case "first" | "last":
            terms = [*ordered(measure.order), *ties(every)]
            first = exp.Anonymous(this=measure.function, expressions=[exp.Order(this=value, expressions=terms)])
            where = None if measure.filter is None else exp.Where(this=total(measure.filter))
            return first if where is None else exp.Filter(this=first, expression=where)
        case "count" if measure.distinct:
            return exp.Count(this=exp.Distinct(expressions=[chosen(value, measure.filter)]))
        case "count":
            return exp.Count(this=chosen(total(argument), measure.filter))
        case "min" | "max":
            return (exp.Min if measure.function == "min" else exp.Max)(this=chosen(value, measure.filter))
        case "bool_and" | "bool_or":
            return exp.Anonymous(this=measure.function, expressions=[chosen(value, measure.filter)])
    if measure.function in SPREADS:
        return spread(measure.function, argument, measure.filter)
    return added_up(measure.function, argument, measure.facts.type, measure.filter)


def added_up(
    function: str,
    argument: Expr,
    type_: Type,
    where: Expr | None = None,
    apply: Callable[[exp.Expr], exp.Expr] = lambda function: function,
) -> exp.Expr:
    """sum or avg of exact numbers: the values, or their places on a grid.

    What the grid has rounded off must not show where a sum is compared with the values themselves: it is put between the ends
    that n values from their least to their greatest can have. Of one or two values, or of equal ones, that is the sum.
    """
    number, step = on_grid(argument)
    number = chosen(number, where)
    summed, count = apply(exp.Sum(this=number)), written(apply(exp.Count(this=number.copy())), DOUBLE)
    if step is None:
        return written(summed, type_) if function == "sum" else quotient(written(summed, DOUBLE), count)
    value, zero = total(argument), literal(0, DOUBLE)
    nan = exp.Anonymous(this="isnan", expressions=[value.copy()])
    arms = [(nan, exp.Null()), (exp.EQ(this=value.copy(), expression=zero), zero.copy())]
    cell = chosen(exp.Case(ifs=[exp.If(this=test, true=one) for test, one in arms], default=value), where)
    low, high = apply(exp.Min(this=cell)), apply(exp.Max(this=cell.copy()))
    rest = paren(exp.Sub(this=count.copy(), expression=literal(1, DOUBLE)))
    ends = [
        exp.Add(this=one.copy(), expression=exp.Mul(this=rest.copy(), expression=other.copy()))
        for one, other in ((high, low), (low, high))
    ]
    result = between(exp.Mul(this=written(summed, DOUBLE), expression=literal(step, DOUBLE)), ends[0], ends[1])
    return result if function == "sum" else between(quotient(result, count.copy()), low.copy(), high.copy())


def spread(
    function: str,
    argument: Expr,
    where: Expr | None = None,
    apply: Callable[[exp.Expr], exp.Expr] = lambda function: function,
) -> exp.Expr:
    """Variances and deviations from integers that are exact: n * sum(x * x) - sum(x) * sum(x) of up to 2^31 rows."""
    number, step = on_steps(argument, argument.facts)
    number = chosen(number, where)
    count = written(apply(exp.Count(this=number)), HUGEINT)
    summed = apply(exp.Sum(this=number.copy()))
    squares = apply(exp.Sum(this=exp.Mul(this=paren(number.copy()), expression=paren(number.copy()))))
    over = exp.Sub(
        this=exp.Mul(this=count, expression=squares), expression=exp.Mul(this=summed, expression=summed.copy())
    )
    least = 2 if function.endswith("samp") else 1
    rows = paren(exp.Sub(this=count.copy(), expression=exp.Literal.number(least - 1)))
    under = written(paren(exp.Mul(this=count.copy(), expression=rows)), DOUBLE)
    result: exp.Expr = exp.Mul(this=quotient(written(paren(over), DOUBLE), under), expression=literal(step**2, DOUBLE))
    result = exp.Sqrt(this=result) if function.startswith("stddev") else result
    few = exp.Between(this=count.copy(), low=exp.Literal.number(least), high=exp.Literal.number(FEW))
    return exp.Case(ifs=[exp.If(this=few, true=result)])


def on_steps(argument: Expr, facts: Facts) -> tuple[exp.Expr, Fraction]:
    """A row's value as a whole number of at most 2^31 steps, and their length."""
    assert facts.range is not None
    if facts.type == DOUBLE:
        number, length = on_grid(argument, FEW)
        assert length is not None
        return number, length
    if max(map(abs, facts.range)) * 10**facts.type.scale > FEW:
        raise Refused(
            "may_overflow",
            "the squares of these numbers may not fit into any exact type",
            "Bound it: least(greatest(x, LOW), HIGH).",
        )
    step = Fraction(1, 10**facts.type.scale)
    if facts.type.scale:
        scaled = exp.Mul(this=cast(total(argument), facts.type, DOUBLE), expression=literal(1 / step, DOUBLE))
        return written(exp.Round(this=scaled), BIGINT), step
    return cast(total(argument), facts.type, BIGINT), step


def quotient(summed: exp.Expr, count: exp.Expr) -> exp.Expr:
    return paren(exp.Div(this=summed, expression=count, typed=False, safe=False))


def between(value: exp.Expr, low: exp.Expr, high: exp.Expr) -> exp.Expr:
    """A value between two ends; NULL if all are, as they are of no values."""
    above = exp.Anonymous(this="greatest", expressions=[value, low])
    return exp.Anonymous(this="least", expressions=[above, high])


def chosen(value: exp.Expr, where: Expr | None) -> exp.Expr:
    return value if where is None else exp.Case(ifs=[exp.If(this=total(where), true=value)])


def on_grid(argument: Expr, steps: int = STEPS) -> tuple[exp.Expr, Fraction | None]:
    """A row's value as an exact number to add up: itself, or a DOUBLE's place on a grid and the length of its steps.

    The steps are a power of two, so whole numbers and all others that are not a thousand times smaller than the largest
    keep all their bits.
    """
    facts = argument.facts
    assert facts.range is not None
    if facts.type != DOUBLE:
        narrow = Type(f"DECIMAL(18,{facts.type.scale})") if facts.type.scale else BIGINT
        return cast(total(argument), facts.type, narrow), None
    most = max(Fraction(1, 10**200), *map(abs, facts.range))
    step = Fraction(2) ** (math.frexp(float(most))[1] + 1 - steps.bit_length())
    value, ends = total(argument), [exp.Literal.number(str(steps)), exp.Literal.number(str(-steps))]
    place = exp.Round(this=exp.Div(this=value.copy(), expression=literal(step, DOUBLE), typed=False, safe=False))
    arms = [
        (exp.Is(this=value.copy(), expression=exp.Null()), exp.Null()),
        (exp.Anonymous(this="isnan", expressions=[value.copy()]), exp.Null()),
        (exp.Between(this=place, low=ends[1], high=ends[0]), written(place.copy(), BIGINT)),
        (exp.GT(this=place.copy(), expression=ends[0].copy()), ends[0].copy()),
    ]
    return exp.Case(ifs=[exp.If(this=test, true=one) for test, one in arms], default=ends[1].copy()), step


# --- windows over one person's rows -----------------------------------------------------------------------------------

RANKS = ("rank", "dense_rank", "percent_rank", "cume_dist")  # equal rows get the same, so they need no further order
PLACES = ("row_number", "lag", "lead", "first_value", "last_value", "nth_value", "ntile")


def ordered(order: Order) -> list[exp.Expr]:
    return [
        exp.Ordered(this=steady(total(e), e.facts.type), desc=descending, nulls_first=first)
        for e, descending, first in order
    ]


def ties(every: dict[str, Type]) -> list[exp.Expr]:
    """All columns: rows that are still equal are equal in everything. The text of a double tells 0.0 from -0.0, and that of an
    interval a month from 30 days, which compare as equal."""
    loose = {DOUBLE, DOUBLE.list, INTERVAL}
    cells = (written(name(c), VARCHAR) if t in loose else name(c) for c, t in every.items())
    return [exp.Ordered(this=cell, desc=False, nulls_first=False) for cell in cells]


def window(
    function: str, arguments: tuple[Expr, ...], partition: tuple[Expr, ...], order: Order, frame: Frame | None
) -> Over:
    """Type and range of a window function over one person's rows; what would depend on the engine's order is refused."""
    value, extra = (None, arguments) if function == "ntile" else (next(iter(arguments), None), arguments[1:])
    most = {"ntile": 1, "lag": 2, "lead": 2, "nth_value": 1}.get(function, 0)
    steps = extra[:1] if most else ()
    least = 1 if function in ("nth_value", "ntile") else -(2**31)
    whole = all(
        isinstance(e, Constant) and type(e.value) is int and least <= e.value < 2**31 and e.facts.type.kind == "INTEGER"
        for e in steps
    )
    alone = function == "row_number" or function in RANKS
    known = alone or function in MEASURES or function in PLACES
    needed = (function in ("ntile", "nth_value")) <= (len(extra) == 1) and (
        alone or function in ("count", "ntile") or value is not None
    )
    ranged = frame is not None and (function in RANKS or (frame[0] == "RANGE" and function in PLACES))
    if not known or len(extra) > most or not whole or not needed or (alone and arguments) or ranged:
        raise Refused("not_supported", f"this form of {function} is not supported", "Use a constant offset.")
    facts = Facts(BIGINT, False, (Fraction(0), COUNTED))
    if function in ("percent_rank", "cume_dist"):
        facts = Facts(DOUBLE, False, (Fraction(0), Fraction(1)))
    elif function in MEASURES:
        facts = replace(measure(function, value).facts, nullable=function != "count")
        if function in ("sum", "avg") and value is not None:
            counted(value.facts)
    elif value is not None and not alone:
        both = merged(function, value.facts, extra[1].facts) if len(extra) > 1 else value.facts
        if both.type != value.facts.type or any(e.facts.type != both.type for e in extra[1:]):
            raise mismatch(function, [value.facts, *(e.facts for e in extra[1:])])
        facts = kept(both)
    return Over(function, arguments, partition, order, frame, facts)


def end_of(end: Bound, side: str) -> tuple[str, str]:
    """An end of a frame; without a number it is on this side of all rows."""
    if end == "unbounded":
        return "UNBOUNDED", side
    return ("CURRENT", "ROW") if end == 0 else (str(abs(end)), "PRECEDING" if end < 0 else "FOLLOWING")


def windowed(over: Over, person: str | None, every: dict[str, Type]) -> exp.Expr:
    """SQL for a window function; see `Windowed` for why it does not depend on the engine's order."""
    by = [*([name(person)] if person is not None else []), *(steady(total(e), e.facts.type) for e in over.partition)]
    order = ordered(over.order)
    spec = None
    if over.function in PLACES or (
        over.frame is not None and over.frame[0] == "ROWS"
    ):  # a RANGE ends with all equal rows
        order += ties(every)
    if over.frame is not None:
        kind, *ends = over.frame
        start, end = (end_of(end, side) for end, side in zip(ends, ("PRECEDING", "FOLLOWING"), strict=True))
        spec = exp.WindowSpec(kind=kind, start=start[0], start_side=start[1], end=end[0], end_side=end[1])
    window = exp.Window(partition_by=by, order=exp.Order(expressions=order) if order else None, spec=spec)

    def apply(function: exp.Expr) -> exp.Expr:
        made = window.copy()
        made.set("this", function)
        return made

    arguments = [total(argument) for argument in over.arguments]
    match over.function:
        case "count":
            return apply(exp.Count(this=arguments[0] if arguments else exp.Star()))
        case "min" | "max":
            (argument,) = over.arguments
            value = steady(arguments[0], argument.facts.type)
            return apply((exp.Min if over.function == "min" else exp.Max)(this=value))
        case "sum" | "avg":
            (argument,) = over.arguments
            return added_up(over.function, argument, over.facts.type, apply=apply)
        case "var_pop" | "var_samp" | "stddev_pop" | "stddev_samp":
            return spread(over.function, over.arguments[0], apply=apply)
        case _:
            return apply(exp.Anonymous(this=over.function, expressions=arguments))
