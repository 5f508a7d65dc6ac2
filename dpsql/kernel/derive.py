"""From a request to what the kernel knows of it: the type, range and nullability of each column and expression.

Needs:   a request, which may be mistaken or hostile; the policy's tables with their schema
Gives:   the same relation in which each expression has its facts, and these are true of every cell; or a refusal
Proof:   by induction over the nodes. A column of a table has the facts of its scan (`relations.enforce`); a constant is its
         own range; a function's facts come from the table of functions; measures and windows have theirs (`measure`,
         `window`). Behind an outer join a column may be NULL. A set operation knows what is true on both sides. Nothing is
         taken from the request but names, values and shapes: each is looked up, or compared with a closed list
Checked: test_gate
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import NoReturn

from dpsql.errors import Refused
from dpsql.kernel import algebra, relations, request
from dpsql.kernel.algebra import Call, Column, Expr, Literal
from dpsql.kernel.functions import FUNCTIONS, Facts, element
from dpsql.kernel.functions.facts import hull
from dpsql.kernel.keys import LONGEST, values_of
from dpsql.kernel.relations import (
    Filter,
    Group,
    Join,
    Measure,
    Order,
    Over,
    Project,
    Relation,
    Scan,
    Stack,
    Unnest,
    Values,
    Windowed,
)
from dpsql.policy.catalog import VARCHAR, Interval, Table, Type, Value, encodable, fold
from dpsql.policy.catalog import Column as Stored

MAX_NODES, MAX_DEPTH = 200_000, 2_000  # of a request
AGGREGATES = frozenset((*relations.MEASURES, "first", "last"))
KINDS = ("inner", "left", "full", "semi", "anti")
COMBINATIONS = ("union all", "union", "intersect", "except")
OURS = "person:"  # how the kernel's own columns begin

Known = Mapping[str, Facts]  # the facts of each column of a relation


def invalid(what: str) -> NoReturn:
    raise Refused("request_invalid", f"the request for a release is not well formed: {what}", "This is a bug in dpsql.")


class Derivation:
    """Derives the facts of one request's nodes. `tables` are those of the policy and the released ones, by folded name."""

    def __init__(self, tables: Mapping[str, Table]) -> None:
        self.tables, self.nodes, self.depth = tables, 0, 0

    def enter(self) -> None:
        self.nodes += 1
        self.depth += 1
        if self.nodes > MAX_NODES or self.depth > MAX_DEPTH:
            raise Refused("too_deep", "the query is too long, or nested too deep", "Flatten it.")

    def relation(self, node: request.Relation) -> tuple[Relation, Known]:
        self.enter()
        made, known = self._relation(node)
        self.depth -= 1
        if len({*map(fold, known)}) < len(known) or any(fold(word).startswith(OURS) for word in known):
            invalid("a column's name stands twice, or is one of ours")
        return made, known

    def _relation(self, node: request.Relation) -> tuple[Relation, Known]:
        match node:
            case request.Rows(name, alias, columns):
                return self.rows(name, alias, columns)
            case request.Listed(columns, rows):
                return listed(columns, rows)
            case request.Joined(left, right, on, kind):
                return self.joined(left, right, on, kind)
            case request.Kept(source, condition):
                below, known = self.relation(source)
                return Filter(below, self.condition(condition, known)), known
            case request.Selected():
                return self.selected(node)
            case request.Grouped(source, keys, measures, each):
                below, known = self.relation(source)
                by = tuple((text(word), self.expression(e, known)) for word, e in keys)
                by = tuple((word, short(e, below)) for word, e in by) if each else by
                made = tuple((text(word), self.measure(m, known)) for word, m in measures)
                found = {word: replace(e.facts, stored=e.facts.stored and not each) for word, e in by}
                found |= {word: m.facts for word, m in made}
                distinct(word for word, _ in (*by, *made))
                return Group(below, by, made, each=each is True), found
            case request.Windows(source, columns):
                below, known = self.relation(source)
                added = tuple((text(word), self.window(one, known)) for word, one in columns)
                distinct((*known, *(word for word, _ in added), *(self.taken(source) - {*map(fold, known)})))
                return Windowed(below, added), {**known, **{word: one.facts for word, one in added}}
            case request.Combined(left, right, kind):
                return self.combined(left, right, kind)
            case request.Elements(source, list_, word, stay):
                below, known = self.relation(source)
                unnested = self.expression(list_, known)
                if unnested.facts.type.element is None:
                    invalid("what is unnested is no list")
                distinct((*known, text(word), *(self.taken(source) - {*map(fold, known)})))
                facts = element(unnested.facts)
                facts = replace(facts, nullable=True, stored=False) if stay else facts
                return Unnest(below, unnested, word, stay is True), {**known, word: facts}
            case _:
                invalid("an unknown relation")

    def rows(self, name: str, alias: str, columns: tuple[str, ...]) -> tuple[Relation, Known]:
        table = self.tables.get(fold(text(name)))
        if table is None:
            invalid("an unknown table")
        for word in columns:
            stored = table.columns.get(fold(text(word)))
            if stored is None or stored.name != word or stored.generated or stored.type.kind == "OTHER":
                invalid("an unknown column")
        distinct(columns)
        scan = Scan(table, text(alias), tuple(columns))
        return scan, {f"{alias}.{word}": relations.enforce(table, word) for word in columns}

    def joined(
        self, left: request.Relation, right: request.Relation, on: request.Expression | None, kind: str
    ) -> tuple[Relation, Known]:
        if kind not in KINDS:
            invalid("an unknown join")
        (one, mine), (two, theirs) = self.relation(left), self.relation(right)
        distinct((*mine, *theirs))
        if self.taken(left) & {*map(fold, theirs)} or self.taken(right) & {*map(fold, mine)}:
            invalid("a column has the name of another table's")
        condition = None if on is None else self.condition(on, {**mine, **theirs})
        made = Join(one, two, condition, kind)  # type: ignore[arg-type]
        if kind in ("semi", "anti"):
            return made, mine
        return made, {
            **(optional(mine) if kind == "full" else mine),
            **(theirs if kind == "inner" else optional(theirs)),
        }

    def selected(self, node: request.Selected) -> tuple[Project, Known]:
        if not isinstance(node, request.Selected):
            invalid("a set operation is of two selections")
        below, known = self.relation(node.source)
        columns = tuple((text(word), self.expression(e, known)) for word, e in node.columns)
        distinct(word for word, _ in columns)
        return Project(below, text(node.alias), columns), {w: Column(w, e.facts).facts for w, e in columns}

    def combined(self, left: request.Selected, right: request.Selected, kind: str) -> tuple[Relation, Known]:
        (one, mine), (two, theirs) = self.selected(left), self.selected(right)
        if kind not in COMBINATIONS or list(mine) != list(theirs) or not mine:  # leads go by names
            invalid("the sides of a set operation do not fit")
        known = {}
        for (word, a), b in zip(mine.items(), theirs.values(), strict=True):
            known[word] = relations.merged(word, a, b)
            if not known[word].type == a.type == b.type:
                invalid("the sides of a set operation have different types")
        return Stack(one, two, kind), known  # type: ignore[arg-type]

    def taken(self, node: request.Relation) -> frozenset[str]:
        """Names that columns beside this relation may not have: those of all columns of its tables, selected or not, by which the
        kernel knows whose a row is; and what is written in the place of no column at all."""
        match node:
            case request.Rows(name, alias):
                return frozenset(fold(f"{alias}.{word}") for word in ("", *self.tables[fold(name)].columns))
            case request.Joined(left, right, _, kind):
                return self.taken(left) | (frozenset() if kind in ("semi", "anti") else self.taken(right))
            case request.Kept(source) | request.Elements(source) | request.Windows(source):
                return self.taken(source)
            case request.Selected(_, _, columns):
                return frozenset() if columns else frozenset(("nothing",))
            case _:
                return frozenset()

    # --- expressions --------------------------------------------------------------------------------------------------

    def expression(self, node: request.Expression, known: Known) -> Expr:
        self.enter()
        match node:
            case request.Name(word):
                if word not in known:
                    invalid("an unknown column")
                made: Expr = Column(word, known[word])
            case request.Constant(value, type_):
                made = constant(value, type_)
            case request.Apply(function, arguments):
                if function not in FUNCTIONS:
                    invalid("an unknown function")
                made = applied(function, [self.expression(argument, known) for argument in arguments])
            case _:
                invalid("an unknown expression")
        self.depth -= 1
        return made

    def condition(self, node: request.Expression, known: Known) -> Expr:
        made = self.expression(node, known)
        if made.facts.type.kind not in ("BOOLEAN", "NULL"):
            invalid("a condition is neither true nor false")
        return made

    def order(self, terms: request.Order, known: Known) -> Order:
        return tuple((self.expression(e, known), down is True, first is True) for e, down, first in terms)

    def measure(self, node: request.Measured, known: Known) -> Measure:
        if node.function not in AGGREGATES:
            invalid("an unknown aggregate")
        argument = None if node.argument is None else self.expression(node.argument, known)
        if argument is None and (node.function != "count" or node.distinct):
            invalid("an aggregate without an argument")
        where = None if node.where is None else self.condition(node.where, known)
        order = self.order(node.order, known)
        return relations.measure(node.function, argument, node.distinct is True, where, order)

    def window(self, node: request.Window, known: Known) -> Over:
        frame = node.frame
        if frame is not None:
            kind, *ends = frame
            if kind not in ("ROWS", "RANGE") or any(not edge(end, kind) for end in ends) or len(ends) != 2:
                invalid("an unknown frame")
        arguments = tuple(self.expression(e, known) for e in node.arguments)
        partition = tuple(self.expression(e, known) for e in node.partition)
        return relations.window(node.function, arguments, partition, self.order(node.order, known), frame)


# How many arguments operators take that are called by no name; the others take two.
ONE, THREE = ("negate", "~", "NOT", "IS NULL", "- INTERVAL x", "INTERVAL OF"), ("BETWEEN", "TEXT[i:j]")


def applied(function: str, arguments: list[Expr]) -> Expr:
    """A call with as many arguments as the function takes: what it does not look at would have no facts."""
    row, count = FUNCTIONS[function], len(arguments)
    if row.arguments is not None:
        fits = count in row.arguments
    elif function == "CASE":
        fits = count >= 3 and count % 2 == 1
    elif function in ("IN", "LIKE", "ILIKE"):
        fits = 2 <= count <= (3 if "LIKE" in function else count)
    else:
        fits = count == (1 if function in ONE else 3 if function in THREE else 2)
    if not fits:
        invalid("a function with another number of arguments than it takes")
    try:
        return algebra.call(function, *arguments)
    except (AssertionError, TypeError, ValueError, AttributeError, IndexError, KeyError, ArithmeticError):
        invalid("arguments that a function does not take")


def edge(end: object, kind: str) -> bool:
    most = 10**9 if kind == "ROWS" else 1
    return end == "unbounded" or (isinstance(end, int) and not isinstance(end, bool) and abs(end) < most)


def text(word: object) -> str:
    if type(word) is not str or not encodable(word) or "\0" in word:
        invalid("a name is not a text")
    return word


SIMPLE = re.compile(r"[A-Z][A-Z0-9_ ]*(\[\])?|DECIMAL\([0-9]{1,2}, ?[0-9]{1,2}\)(\[\])?", re.ASCII)


def type_of(name: object) -> Type:
    """A type by its name, which can be nothing else than a name: it is written into SQL."""
    type_ = Type(text(name))
    if not SIMPLE.fullmatch(type_.sql) or type_.sql.startswith("FLOAT"):
        invalid("an unknown type")
    inner = type_.element or type_
    if type_.sql.startswith("DECIMAL") and (inner.kind != "DECIMAL" or not 1 <= inner.width <= 38):
        invalid("an unknown type")
    return type_


def distinct(words: Iterable[str]) -> None:
    """The engine folds names before it compares them."""
    folded = [fold(text(word)) for word in words]
    if len(set(folded)) < len(folded):
        invalid("a name stands twice")


def optional(known: Known) -> dict[str, Facts]:
    """Columns that an outer join may make NULL."""
    return {word: replace(facts, nullable=True, stored=False) for word, facts in known.items()}


def short(key: Expr, below: Relation) -> Expr:
    """A key as groups have it: a private text that is too long is no key, and counts under NULL."""
    if key.facts.type != VARCHAR:
        return key
    known = values_of(key, below)
    if known is None:
        long = algebra.call("<=", algebra.call("strlen", key), algebra.constant(LONGEST))
        return algebra.call("CASE", long, key, algebra.constant(None))
    if any(len(str(value).encode()) > LONGEST for value in known):
        invalid("a declared text that is too long for a key")
    return key


def constant(value: Value, name: str) -> Literal:
    """A constant of a type that holds it: it is rendered from its value alone."""
    type_ = type_of(name)
    if value is None and type_.kind not in ("OTHER", "LIST"):
        return Literal(None, Facts(type_))
    exact: bool
    match value:
        case bool():
            exact = type_.kind == "BOOLEAN"
        case int() | Fraction():
            low, high = type_.range or (Fraction(0), Fraction(-1))
            steps = Fraction(value) * 10**type_.scale
            exact = (low <= value <= high and steps.denominator == 1) or (
                type_.sql == "DOUBLE" and abs(Fraction(value)) < 10**300
            )
        case float():
            exact = type_.sql == "DOUBLE" and math.isfinite(value)
        case str():
            exact = type_.kind == "VARCHAR" and encodable(value)
        case datetime.datetime():
            exact = type_.kind == "TIMESTAMP" and value.tzinfo is None
        case datetime.date():
            exact = type_.kind == "DATE"
        case Interval():
            exact = type_.kind == "INTERVAL" and value.brief
        case _:
            exact = False
    if not exact:
        invalid("a constant does not have its type")
    return algebra.typed(value, type_)


def listed(columns: tuple[tuple[str, str], ...], rows: tuple[tuple[Value, ...], ...]) -> tuple[Relation, Known]:
    """Constant rows: a column's range is that of its cells."""
    types = [type_of(type_) for _, type_ in columns]
    if not rows or not columns or any(len(row) != len(columns) for row in rows):
        invalid("rows of constants have different lengths")
    known = {}
    distinct(word for word, _ in columns)
    for place, (word, type_) in enumerate(columns):
        cells = [constant(row[place], type_).facts for row in rows if row[place] is not None]
        range_ = hull([cell.range for cell in cells])
        size = max((cell.size for cell in cells if cell.size is not None), default=None)
        known[word] = Facts(types[place], len(cells) < len(rows), range_, True, size)
        if types[place].kind in ("OTHER", "LIST") or (not cells and types[place].kind != "NULL"):
            invalid("a column of constants has no type")
    names = tuple((word, type_) for (word, _), type_ in zip(columns, types, strict=True))
    return Values(names, tuple(tuple(row) for row in rows)), known


def released(tables: Iterable[request.Released]) -> dict[str, Table]:
    """Tables that are made of earlier releases: public, with these columns. Whoever loads them compares."""
    found = {}
    for one in tables:
        distinct(word for word, _ in one.columns)
        columns = {fold(word): Stored(word, type_of(type_)) for word, type_ in one.columns}
        if not fold(text(one.name)).startswith("released ") or not set(map(fold, one.key)) <= columns.keys():
            invalid("a released table has an unknown name or key")
        found[fold(one.name)] = Table(one.name, ("temp", "main", one.name), columns, None, tuple(one.key))
    return found


__all__ = ["Call", "Derivation", "released"]
