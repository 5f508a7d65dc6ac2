"""The names that stand in FROM, and what they make of a relation, once all columns are known."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from sqlglot import exp

from dpsql.compiler.label import label
from dpsql.compiler.lower import refuse, take
from dpsql.kernel.algebra import Call, Column, Expr, call, columns_in
from dpsql.kernel.algebra import Literal as Constant
from dpsql.kernel.functions import Facts
from dpsql.kernel.relations import Filter, Join, Kind, Relation, Scan, Unnest, Values, enforce, scans
from dpsql.policy.catalog import Catalog, Table, fold

MAX_TABLES = 64  # of one statement, with every use of a CTE
MAX_PRIVATE = 8  # of one FROM: rows that multiply with every join would let a clock tell who is there
MAX_SCANS = 24  # with persons, of one statement; subqueries in each other; views
OUTER = "outer:"  # marks a column of the query around a subquery


@dataclass
class Source:
    """What stands in FROM under one alias: a table of the policy, or a relation with named columns."""

    alias: str
    table: Table | None = None
    relation: Relation | None = None
    facts: dict[str, tuple[str, Facts]] = field(default_factory=dict)  # by folded name
    used: list[str] = field(default_factory=list)
    of: tuple[Expr, ...] = ()  # the lists whose elements it has, one for each column

    @property
    def private(self) -> bool:
        """Whether it has rows of persons."""
        tables = [self.table] if self.relation is None else [scan.table for scan in scans(self.relation)]
        return any(table is not None and table.person is not None for table in tables)

    def names(self) -> list[str]:
        if self.table is not None:
            return [c.name for c in self.table.columns.values() if c.type.kind != "OTHER" and not c.generated]
        return [written for written, _ in self.facts.values()]

    def has(self, name: str) -> bool:
        return (self.table.column(name) is not None) if self.table is not None else fold(name) in self.facts

    def column(self, name: str, node: exp.Expr) -> Column:
        if self.table is None:
            written, facts = self.facts[fold(name)]
            return Column(f"{self.alias}.{written}", facts)
        known = self.table.column(name)
        assert known is not None
        if known.type.kind == "OTHER" or known.generated:
            what = "is computed by the database" if known.generated else f"has type {known.type.family}"
            refuse(
                "column_not_supported",
                f"column {known.name!r} {what}, which is not supported yet",
                "Use another column.",
                node,
            )
        if known.name not in self.used:
            self.used.append(known.name)
        return Column(f"{self.alias}.{known.name}", enforce(self.table, known.name))

    def scan(self) -> Relation:
        if self.table is None:
            assert self.relation is not None
            return self.relation
        return Scan(self.table, self.alias, tuple(self.used))


@dataclass
class Context:
    """What all parts of a statement share."""

    catalog: Catalog
    constants: dict[str, Constant]
    tables: int = 0
    scans: int = 0  # of tables with persons
    numbers: int = 0
    views: int = 0
    depth: int = 0  # of subqueries that are being read
    compared: int = 0  # subqueries that read the rows around them a second time
    weights: dict[str, int] = field(default_factory=dict)  # of columns of subqueries, by name

    def fresh(self) -> str:
        """An alias that no query can have."""
        self.numbers += 1
        return f"#{self.numbers}"


@dataclass
class Scope:
    """The sources of FROM under their aliases, and the steps that make the relation of it, once all columns are named."""

    context: Context
    ctes: dict[str, tuple[exp.Expr, dict[str, Any]]]
    parent: Scope | None = None
    sources: dict[str, Source] = field(default_factory=dict)
    optional: set[str] = field(default_factory=set)  # sources whose columns may be NULL through an outer join
    merged: dict[str, list[str]] = field(default_factory=dict)  # columns of USING, and the sources that they stand for
    either: set[str] = field(default_factory=set)  # those of a FULL JOIN, of which either may be NULL
    joins: list[Joined] = field(default_factory=list)
    steps: list[Callable[[Relation], Relation]] = field(default_factory=list)
    first: Source | None = None
    private: int = 0  # sources with rows of persons
    scalars: dict[exp.Expr, Expr] = field(default_factory=dict)  # what subqueries that are values stand for
    elements: dict[int, Column] = field(default_factory=dict)  # what calls of unnest in the SELECT list stand for

    @property
    def constants(self) -> dict[str, Constant]:
        return self.context.constants

    def add(self, source: Source, node: exp.Expr) -> None:
        alias = fold(source.alias)
        if alias in self.sources:
            refuse(
                "duplicate_alias",
                f"{source.alias!r} stands twice in FROM",
                "Give each table an alias of its own.",
                node,
            )
        self.sources[alias] = source
        self.context.tables += 1
        self.context.scans += source.table is not None and source.table.person is not None
        self.private += source.private
        if self.private > MAX_PRIVATE:
            what = f"more than {MAX_PRIVATE} tables about persons are joined"
            refuse("too_many_tables", what, "Join fewer tables.", node)
        if self.context.scans > MAX_SCANS:
            what = f"the query reads more than {MAX_SCANS} tables about persons"
            refuse("too_many_tables", what, "Read fewer of them.", node)
        if self.context.tables > MAX_TABLES:
            refuse("too_many_tables", f"the query reads more than {MAX_TABLES} tables", "Read fewer of them.", node)

    def unknown(self, node: exp.Column) -> bool:
        """Whether a name is no column of FROM, and so may be one of the SELECT list."""
        _, qualifier = take(node, "this", "table")
        return qualifier is None and not any(source.has(node.name) for source in self.sources.values())

    def constant(self, node: exp.Placeholder) -> Constant:
        """The constant that was given for a parameter. It has been in the marks since `parse`, so it is there."""
        return self.constants[fold(node.name)]

    def relation(self) -> Relation:
        """What the clauses read so far make; conditions of WHERE that tie two sources are conditions of their join."""
        assert self.first is not None
        relation, waiting = self.first.scan(), list(self.joins)
        if all(join.kind == "inner" for join in waiting):
            known, conditions = {fold(self.first.alias)}, [c for join in waiting for c in join.conditions]
            while waiting:
                # The first source that an equality ties to what is there, else the next in order.
                ready = (j for j in waiting if all(places(part) <= known for part in j.source.of))
                near = (j for j in ready if any(ties(c, known, fold(j.source.alias)) for c in conditions))
                join = next(near, waiting[0])
                waiting.remove(join)
                known.add(fold(join.source.alias))
                now = [c for c in conditions if places(c) <= known]
                conditions = [c for c in conditions if c not in now]
                relation = join.onto(relation, every(now))
        for join in waiting:
            relation = join.onto(relation, every(join.conditions))
        for step in self.steps:
            relation = step(relation)
        return relation

    def require(self, predicate: Expr) -> None:
        """A condition of WHERE: part of an inner join if it ties two sources, else a filter."""
        inner = all(join.kind == "inner" for join in self.joins)
        found = places(predicate)
        if inner and self.joins and found <= self.sources.keys() and ties(predicate, found, ""):
            self.joins[-1].conditions.append(predicate)
        elif self.steps and isinstance(last := self.steps[-1], partial) and last.func is keep:
            self.steps[-1] = partial(keep, predicate=call("AND", last.keywords["predicate"], predicate))
        else:
            self.steps.append(partial(keep, predicate=predicate))


@dataclass
class Joined:
    source: Source
    conditions: list[Expr]
    kind: Kind
    reverse: bool = False  # RIGHT JOIN: a LEFT JOIN with the sides exchanged

    def onto(self, relation: Relation, on: Expr | None) -> Relation:
        if self.source.of:
            for name, part in zip(self.source.names(), self.source.of, strict=True):
                relation = Unnest(relation, part, f"{self.source.alias}.{name}", self.kind == "left")
            return relation if on is None else Filter(relation, on)
        sides = (self.source.scan(), relation) if self.reverse else (relation, self.source.scan())
        return Join(*sides, on, self.kind)


def places(expression: Expr) -> set[str]:
    """The sources whose columns an expression has."""
    return {fold(found.name.partition(".")[0]) for found in columns_in(expression)}


def ties(condition: Expr, known: set[str], other: str) -> bool:
    """Whether a condition equates a column of one source with one of another."""
    match condition:
        case Call("=", (Column() as a, Column() as b), _):
            sides = places(a) | places(b)
            return len(sides) == 2 and sides <= known | {other} and (not other or other in sides)
        case _:
            return False


def every(conditions: Sequence[Expr]) -> Expr | None:
    result: Expr | None = None
    for condition in conditions:
        result = condition if result is None else call("AND", result, condition)
    return result


def keep(relation: Relation, predicate: Expr) -> Relation:
    return Filter(relation, predicate)


def column(node: exp.Column, scope: Scope) -> Column:
    name, qualifier = take(node, "this", "table")
    if not isinstance(name, exp.Identifier):
        refuse("select_star", "* selects rows, which are never shown", "Use COUNT(*), SUM(x) or AVG(x).", node)
    if qualifier is not None and fold(qualifier.name) not in scope.sources:
        if scope.parent is not None:
            return outer(column(node, scope.parent))
        refuse("table_unknown", f"{qualifier.name!r} is not a table of FROM", "Use the alias that stands there.", node)
    places = [fold(qualifier.name)] if qualifier is not None else list(scope.sources)
    found = [place for place in places if scope.sources[place].has(name.name)]
    if not found and scope.parent is not None:
        return outer(column(node, scope.parent))
    if not found:
        names = [known for place in places for known in scope.sources[place].names()]
        near = difflib.get_close_matches(name.name, names, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"There are: {', '.join(names)}."
        text = " A text has single quotes: " + name.name.replace("'", "''").join("''") + "."
        hint += text * bool(name.args.get("quoted") and not near)
        refuse("column_unknown", f"no table of FROM has a column {name.name!r}", hint, node)
    if len(found) > 1 and fold(name.name) in scope.merged:
        found = [place for place in found if place not in scope.merged[fold(name.name)][1:]]
    if len(found) > 1:
        refuse("column_ambiguous", f"{name.name!r} is a column of several tables", "Write table.column.", node)
    result = scope.sources[found[0]].column(name.name, node)
    if found[0] in scope.optional:
        result = replace(result, facts=replace(result.facts, nullable=True, stored=False))
    return result


def outer(found: Column) -> Column:
    return replace(found, name=OUTER + found.name)


def mapped(expression: Expr, change: Callable[[Column], Expr]) -> Expr:
    """The same expression with other columns."""
    match expression:
        case Column():
            return change(expression)
        case Call(_, arguments, _):
            return replace(expression, arguments=tuple(mapped(argument, change) for argument in arguments))
        case _:
            return expression


def correlated(expression: Expr) -> bool:
    return any(found.name.startswith(OUTER) for found in columns_in(expression))


# --- sources and their names -------------------------------------------------------------------------------------------


def short(alias: exp.Expr | None, default: str, node: exp.Expr) -> tuple[str, list[str]]:
    """The name of a source, and the names of its columns if there are any."""
    word, renamed = take(alias, "this", "columns") if alias is not None else (None, None)
    name = word.name if word is not None else default
    if "." in name or ":" in name or name.startswith("#"):  # these separate the parts of a generated name
        refuse("alias_invalid", f"{name!r} cannot be the name of a table in FROM", "Give it a plain alias.", node)
    return name, [column.name for column in renamed or []]


def public(called: str, renamed: list[str], cells: list[list[Expr]], node: exp.Expr) -> Source:
    names = renamed or [f"col{i}" for i in range(len(cells[0]))]
    if not called or any(len(line) != len(names) for line in cells):
        refuse(
            "values_invalid",
            "VALUES needs an alias, and rows of one length",
            "Write (VALUES (1, 'a')) AS t(x, y).",
            node,
        )
    named, facts = [], {}
    for i, word in enumerate(names):
        column_ = [line[i] for line in cells]
        types = {cell.facts.type for cell in column_}
        if not all(isinstance(cell, Constant) for cell in column_) or len(types) != 1:
            refuse("values_invalid", f"column {word!r} of VALUES is not of constants of one type", "Cast them.", node)
        ranges = [cell.facts.range for cell in column_]
        known = [r for r in ranges if r is not None]
        range_ = (min(r[0] for r in known), max(r[1] for r in known)) if len(known) == len(ranges) else None
        named.append((f"{called}.{word}", column_[0].facts.type))
        size = max((cell.facts.size for cell in column_ if cell.facts.size is not None), default=None)
        facts[fold(word)] = (word, Facts(column_[0].facts.type, False, range_, True, size))
    values = tuple(tuple(cell.value for cell in line if isinstance(cell, Constant)) for line in cells)
    return Source(called, relation=Values(tuple(named), values), facts=facts)


def with_ctes(query: exp.Expr, known: dict[str, Any]) -> dict[str, Any]:
    """The names that WITH defines, each with those that it may use itself."""
    result = dict(known)
    with_ = query.args.get("with_")
    if with_ is None:
        return result
    expressions, recursive = take(with_, "expressions", "recursive")
    if recursive:
        refuse("not_supported", "WITH RECURSIVE is not supported", "Write the steps out.", query)
    for cte in expressions:
        inner, alias = take(cte, "this", "alias")
        name, renamed = short(alias, "", cte)
        if renamed:
            inner = exp.Select(expressions=[exp.Star()], from_=exp.From(this=exp.Subquery(this=inner, alias=alias)))
        result[fold(name)] = (inner, dict(result))
    return result


def expanded(item: exp.Expr, scope: Scope) -> Iterator[tuple[str, exp.Expr]]:
    """An item of the SELECT list with its name; * is all columns of FROM."""
    if isinstance(item, exp.Alias):
        node, name = take(item, "this", "alias")
        yield name.name, node
        return
    star = isinstance(item, exp.Star) or (isinstance(item, exp.Column) and isinstance(item.this, exp.Star))
    if not star:
        yield label(item, top=True), item
        return
    take(item if isinstance(item, exp.Star) else item.this)
    only = fold(item.args["table"].name) if isinstance(item, exp.Column) and item.args.get("table") else None
    if only is not None and only not in scope.sources:
        refuse("table_unknown", f"{item.args['table'].name!r} is not a table of FROM", "", item)
    for place, found in scope.sources.items():
        for name in found.names() if only in (None, place) else ():
            if only is not None or place not in scope.merged.get(fold(name), [])[1:]:
                either = only is None and fold(name) in scope.either
                table = None if either else exp.to_identifier(found.alias, quoted=True)
                yield name, exp.column(exp.to_identifier(name, quoted=True), table)


def split_where(node: exp.Expr) -> list[exp.Expr]:
    while isinstance(node, exp.Paren):
        (node,) = take(node, "this")
    if isinstance(node, exp.And):
        return [part for side in node.flatten(unnest=False) for part in split_where(side)]
    return [node]
