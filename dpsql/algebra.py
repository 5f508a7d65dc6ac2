"""The closed set of expressions and relations, and the locality lemma.

A relation R over a database D is *local* if it is the disjoint union, over persons p, of R(D|p), where D|p is the
public tables and p's own rows, if R of the public tables alone is empty, and if R(D|p) is a function of the bag of
p's rows. Each node's docstring is one case of the induction; the exhaustive `match` shows that there is no other.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import assert_never

from sqlglot import exp

from dpsql.catalog import BOOLEAN, DATE, DOUBLE, NULL, TIMESTAMP, VARCHAR, Reference, Table, Type, Value, fold
from dpsql.functions import FUNCTIONS, Facts, cast, paren

# --- expressions ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """A column of the relation below, by its unique name."""

    name: str
    facts: Facts


@dataclass(frozen=True)
class Literal:
    """A constant, re-emitted from its value and never from the analyst's text."""

    value: Value
    facts: Facts


@dataclass(frozen=True)
class Call:
    """A function of the allow-list. A function of the row alone, and total."""

    function: str
    arguments: tuple[Expr, ...]
    facts: Facts


@dataclass(frozen=True)
class Aggregate:
    """An aggregate over persons. It stands only above the noise, where `split` replaces it by released columns."""

    name: str
    argument: Expr | None
    facts: Facts


Expr = Column | Literal | Call | Aggregate


def call(function: str, *arguments: Expr) -> Call:
    facts = FUNCTIONS[function].facts([argument.facts for argument in arguments])
    return Call(function, arguments, facts)


def constant(value: Value) -> Literal:
    """A literal with the type that the engine would give it."""
    match value:
        case None:
            return Literal(None, Facts(NULL))
        case bool():
            return Literal(value, Facts(BOOLEAN, False, declared=True))
        case float():
            return Literal(value, Facts(DOUBLE, False, (Fraction(value), Fraction(value)), True))
        case int():
            sql = next(name for name in ("INTEGER", "BIGINT", "HUGEINT") if fits(value, Type(name)))
            return Literal(value, Facts(Type(sql), False, (Fraction(value), Fraction(value)), True))
        case Fraction():
            scale = next(s for s in range(39) if (value * 10**s).denominator == 1)
            width = max(len(str(abs(int(value * 10**scale)))), scale, 1)
            return Literal(value, Facts(Type(f"DECIMAL({width},{scale})"), False, (value, value), True))
        case str():
            return Literal(value, Facts(VARCHAR, False, declared=True))
        case datetime.datetime():
            return Literal(value, Facts(TIMESTAMP, False, declared=True))
        case datetime.date():
            return Literal(value, Facts(DATE, False, declared=True))
        case _:
            assert_never(value)


def fits(value: int, type_: Type) -> bool:
    return type_.range is not None and type_.range[0] <= value <= type_.range[1]


def literal(value: Value, type_: Type) -> exp.Expr:
    """SQL for a value of this type. Numbers are text with the sign inside: -128 is a TINYINT, but -(128) is not."""
    match value:
        case None:
            return exp.Null()
        case bool():
            return exp.Boolean(this=value)
        case float() | int() | Fraction() if type_.kind == "DOUBLE":
            text = repr(float(Fraction(value)))  # repr round-trips
        case float():
            raise AssertionError("a float of a type that is not DOUBLE")
        case int() | Fraction():
            assert type_.range is not None and type_.range[0] <= value <= type_.range[1]
            digits = str(abs(int(value * 10**type_.scale))).rjust(type_.scale + 1, "0")
            point = len(digits) - type_.scale
            text = ("-" if value < 0 else "") + digits[:point] + ("." + digits[point:] if type_.scale else "")
            if type_.sql == "INTEGER" and value >= 0:
                return exp.Literal.number(text)
        case str():
            return exp.Literal.string(value)
        case datetime.datetime():
            text = value.isoformat(sep=" ")
        case datetime.date():
            text = value.isoformat()
        case _:
            assert_never(value)
    return exp.Cast(this=exp.Literal.string(text), to=exp.DataType.build(type_.sql, dialect="duckdb"))


def identifier(word: str) -> exp.Identifier:
    return exp.to_identifier(word, quoted=True)


def name(column: str, table: str | None = None) -> exp.Column:
    return exp.column(identifier(column), table and identifier(table))


def total(expression: Expr) -> exp.Expr:
    """SQL for an expression below the noise: total for every row."""
    match expression:
        case Column(column, _):
            return name(column)
        case Literal(value, facts):
            return literal(value, facts.type)
        case Call(function, arguments, facts):
            rendered = [total(argument) for argument in arguments]
            return FUNCTIONS[function].total(rendered, [argument.facts for argument in arguments], facts)
        case Aggregate():
            raise AssertionError("an aggregate below the noise")
        case _:
            assert_never(expression)


def plain(expression: Expr, released: Callable[[Aggregate], exp.Expr]) -> exp.Expr:
    """SQL for an expression over released values: the engine's own operators and types."""
    match expression:
        case Column(column, _):
            return name(column)
        case Literal(value, facts):
            return literal(value, facts.type)
        case Call(function, arguments, _):
            return FUNCTIONS[function].plain([plain(argument, released) for argument in arguments])
        case Aggregate():
            return released(expression)
        case _:
            assert_never(expression)


def conjuncts(predicate: Expr) -> Iterator[Expr]:
    match predicate:
        case Call("AND", (left, right), _):
            yield from conjuncts(left)
            yield from conjuncts(right)
        case _:
            yield predicate


# --- relations ------------------------------------------------------------------------------------------------------


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
    row and at the rows that it references, all of them p's; a row that reaches two persons is a copy for each, and
    one that reaches none, or NULL, is left out. So with the public tables alone nothing is left.
    """

    scan: Scan
    path: tuple[tuple[Table, Reference], ...]
    root: Table

    @property
    def person(self) -> str:
        return f"person:{self.scan.alias}"


@dataclass(frozen=True)
class Join:
    """Inner join on a total predicate over the two rows.

    Local if one side is local and the other is public, or is a private scan whose rows the predicate ties to the
    first side by their reference: then every private row in an output row is p's (see `track`).
    """

    left: Relation
    right: Relation
    on: Expr


@dataclass(frozen=True)
class Filter:
    """The rows for which a total predicate is true. Local: it looks at one row at a time."""

    source: Relation
    predicate: Expr


Relation = Scan | Owned | Join | Filter


def scans(relation: Relation) -> Iterator[Scan]:
    match relation:
        case Scan():
            yield relation
        case Owned(scan, _, _):
            yield scan
        case Join(left, right, _):
            yield from scans(left)
            yield from scans(right)
        case Filter(source, _):
            yield from scans(source)
        case _:
            assert_never(relation)


def enforce(table: Table, column: str) -> Facts:
    """What is known of a column after the scan: its declared range or domain, else its type's range."""
    declared = table.columns[fold(column)]
    type_ = DOUBLE if declared.type.kind == "DOUBLE" else declared.type
    if declared.between is not None and type_.numeric:
        # Clamping maps NaN to NULL, so only exact columns stay free of NULL.
        return Facts(type_, declared.nullable or type_ == DOUBLE, declared.between, True)
    if declared.domain is not None:
        numbers = [value for value in declared.domain if isinstance(value, Fraction)]
        return Facts(type_, True, (min(numbers), max(numbers)) if numbers else None, True)
    return Facts(type_, declared.nullable, type_.range)


def scan_column(table: Table, column: str) -> exp.Expr:
    declared = table.columns[fold(column)]
    type_ = enforce(table, column).type
    cell = cast(name(declared.name, "t"), declared.type, type_)
    if declared.between is not None:
        low, high = (literal(value, type_) for value in declared.between)
        arms: list[tuple[exp.Expr, exp.Expr]] = [(exp.Between(this=cell.copy(), low=low, high=high), cell.copy())]
        if type_ == DOUBLE:  # NaN is greater than everything in the engine; it must not become the upper end
            arms.append((exp.Anonymous(this="isnan", expressions=[cell.copy()]), exp.Null()))
        arms.append((exp.GT(this=cell.copy(), expression=high.copy()), high.copy()))
        arms.append((exp.LT(this=cell.copy(), expression=low.copy()), low.copy()))
        return exp.Case(ifs=[exp.If(this=test, true=value) for test, value in arms])
    if declared.domain is not None:
        known = exp.In(this=cell.copy(), expressions=[literal(value, type_) for value in declared.domain])
        return exp.Case(ifs=[exp.If(this=known, true=cell)])
    return cell


def base(table: Table, alias: str = "t") -> exp.Table:
    catalog, schema, leaf = (identifier(part) for part in table.path)
    return exp.Table(this=leaf, db=schema, catalog=catalog, alias=exp.TableAlias(this=identifier(alias)))


def owners(
    table: Table, columns: tuple[str, ...], path: tuple[tuple[Table, Reference], ...], root: Table
) -> exp.Select:
    """Rows (key_0, key_1, ..., person): who owns the rows of `table` with these key columns. Raw cells, no clamping."""
    keys = [name(table.columns[fold(c)].name, "t").as_(f"key_{i}", quoted=True) for i, c in enumerate(columns)]
    query = attribute(exp.select(*keys).from_(base(table)), table, path, root, "person")
    # A key that the owner declares is taken at his word: were it not one, a row would count once for each match.
    return query if table.key and set(table.key) <= set(columns) else query.distinct()


def attribute(
    query: exp.Select, table: Table, path: tuple[tuple[Table, Reference], ...], root: Table, person: str
) -> exp.Select:
    """Add the person's column to a query whose FROM is `table AS t`."""
    if not path:
        owner = name(str(table.person), "t")
        return query.select(owner.as_(person, quoted=True)).where(
            exp.Not(this=paren(exp.Is(this=owner.copy(), expression=exp.Null())))
        )
    (_, link), rest = path[0], path[1:]
    target = rest[0][0] if rest else root
    found = owners(target, link.referenced, rest, root).subquery(identifier("p"))
    on = exp.and_(
        *(
            exp.EQ(this=name(table.columns[fold(c)].name, "t"), expression=name(f"key_{i}", "p"))
            for i, c in enumerate(link.columns)
        )
    )
    return query.select(name("person", "p").as_(person, quoted=True)).join(found, on=on)


def select(relation: Relation) -> exp.Select:
    """SQL for a relation. Every column is quoted and unique, every table has its three-part name."""
    match relation:
        case Scan(table, alias, columns):
            return (
                exp.select(*(scan_column(table, c).as_(f"{alias}.{c}", quoted=True) for c in columns)).from_(
                    base(table)
                )
                if columns
                else exp.select(exp.Boolean(this=True).as_(f"{alias}.", quoted=True)).from_(base(table))
            )
        case Owned(scan, path, root):
            return attribute(select(scan), scan.table, path, root, relation.person)
        case Join(left, right, on):
            joined = select(right).subquery(identifier("r"))
            return exp.select("*").from_(select(left).subquery(identifier("l"))).join(joined, on=total(on))
        case Filter(source, predicate):
            return exp.select("*").from_(select(source).subquery(identifier("s"))).where(total(predicate))
        case _:
            assert_never(relation)
