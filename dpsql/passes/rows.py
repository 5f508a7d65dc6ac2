"""Everything below the noise: FROM, WHERE and subqueries, as a relation of the closed set."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from sqlglot import exp

from dpsql.algebra import Call, Column, Expr, call, constant, total
from dpsql.algebra import Literal as Constant
from dpsql.catalog import DOUBLE, HUGEINT, VARCHAR, Catalog, Table, Type, fold
from dpsql.errors import Refused
from dpsql.functions import Facts, element
from dpsql.passes.label import label
from dpsql.passes.lower import boolean, build, interval, number, operator, refuse, take
from dpsql.passes.parse import describe, parse, position
from dpsql.passes.series import series
from dpsql.relations import (
    MEASURES,
    PLACES,
    RANKS,
    Filter,
    Group,
    Join,
    Kind,
    Measure,
    Over,
    Project,
    Relation,
    Scan,
    Stack,
    Unnest,
    Values,
    Windowed,
    counted,
    enforce,
    measure,
    origin,
    scans,
)

MAX_TABLES = 8  # of one FROM: rows that multiply with every join would let a clock tell who is there
MAX_SCANS = 24  # of one statement, with every use of a CTE
OUTER = "outer:"  # marks a column of the query around a subquery


@dataclass
class Source:
    """What stands in FROM under one alias: a table of the policy, or a relation with named columns."""

    alias: str
    table: Table | None = None
    relation: Relation | None = None
    facts: dict[str, tuple[str, Facts]] = field(default_factory=dict)  # by folded name
    used: list[str] = field(default_factory=list)
    of: Expr | None = None  # the list whose elements it has

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
    numbers: int = 0
    views: int = 0
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
    joins: list[Joined] = field(default_factory=list)
    steps: list[Callable[[Relation], Relation]] = field(default_factory=list)
    first: Source | None = None
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
        if len(self.sources) > MAX_TABLES:
            refuse("too_many_tables", f"more than {MAX_TABLES} tables are joined", "Join fewer tables.", node)
        if self.context.tables > MAX_SCANS:
            refuse("too_many_tables", f"the query reads more than {MAX_SCANS} tables", "Read fewer of them.", node)

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
                ready = (j for j in waiting if j.source.of is None or places(j.source.of) <= known)
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
        if self.source.of is not None:
            spread = Unnest(relation, self.source.of, f"{self.source.alias}.{self.source.names()[0]}")
            return spread if on is None else Filter(spread, on)
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


def every(conditions: list[Expr]) -> Expr | None:
    result: Expr | None = None
    for condition in conditions:
        result = condition if result is None else call("AND", result, condition)
    return result


# --- columns and expressions of one row --------------------------------------------------------------------------------


def rows(node: exp.Expr, scope: Scope) -> Expr:
    """An expression of one row."""
    match node:
        case exp.Column():
            return column(node, scope)
        case exp.Placeholder():
            return scope.constant(node)
        case exp.Subquery():
            return scalar(node, scope)
        case exp.Window():
            refuse(
                "window_misplaced",
                "a window function stands where a row is needed",
                "Compute it in a subquery, or put the condition into QUALIFY.",
                node,
            )
        case exp.Anonymous() if fold(node.name) == "unnest":
            if id(node) in scope.elements:
                return scope.elements[id(node)]
            refuse(
                "unnest_misplaced",
                "unnest makes rows, and stands where a value is needed",
                "Write FROM t, unnest(t.list) AS u(x), or unnest one list in the SELECT of a subquery.",
                node,
            )
        case exp.AggFunc():
            refuse(
                "aggregate_misplaced",
                f"{describe(node)} stands where a row is needed",
                "Put conditions on aggregates into HAVING; aggregates cannot be nested.",
                node,
            )
        case _:
            return operator(node, lambda child: rows(child, scope))


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
        refuse(
            "column_unknown",
            f"no table of FROM has a column {name.name!r}",
            f"Did you mean {near[0]}?" if near else f"There are: {', '.join(names)}.",
            node,
        )
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


def columns_in(expression: Expr) -> Iterator[Column]:
    match expression:
        case Column():
            yield expression
        case Call(_, arguments, _):
            for argument in arguments:
                yield from columns_in(argument)
        case _:
            pass


def correlated(expression: Expr) -> bool:
    return any(found.name.startswith(OUTER) for found in columns_in(expression))


# --- FROM --------------------------------------------------------------------------------------------------------------

KINDS: dict[tuple[str, str], Kind] = {
    ("", ""): "inner",
    ("", "INNER"): "inner",
    ("", "CROSS"): "inner",
    ("LEFT", ""): "left",
    ("LEFT", "OUTER"): "left",
    ("RIGHT", ""): "left",
    ("RIGHT", "OUTER"): "left",
    ("FULL", ""): "full",
    ("FULL", "OUTER"): "full",
    ("", "SEMI"): "semi",
    ("", "ANTI"): "anti",
}


def read_from(from_: exp.Expr, joins: list[exp.Expr], scope: Scope) -> None:
    (node,) = take(from_, "this")
    scope.first = source(node, scope)
    if scope.first.of is not None:
        refuse("not_supported", "unnest comes first in FROM", "Name the table that has the list before it.", node)
    scope.add(scope.first, node)
    for join in joins:
        add_join(join, scope)


def add_join(join: exp.Expr, scope: Scope) -> None:
    joined, on, kind, using, side, method = take(join, "this", "on", "kind", "using", "side", "method")
    natural, comma = method == "NATURAL", not (on or using or kind or side or method)
    if (using or natural) and side in ("RIGHT", "FULL"):
        refuse("join_not_supported", f"{side} JOIN ... USING is not supported", "Write ON a.x = b.x.", joined)
    how = KINDS.get((side or "", kind or ""))
    wanted = 0 if kind == "CROSS" or comma else 1
    if how is None or (method and not natural) or [bool(on), bool(using), natural].count(True) != wanted:
        words = " ".join(word for word in (method, side, kind, "JOIN") if word)
        refuse(
            "join_not_supported",
            f"{words} is not supported" if words != "JOIN" else "a join without ON is not supported",
            "Write FROM a JOIN b ON a.person = b.person.",
            joined,
        )
    before = list(scope.sources)
    right = source(joined, scope)
    if right.of is not None and how != "inner":
        refuse("join_not_supported", f"{side or kind} JOIN unnest is not supported", "Write CROSS JOIN.", joined)
    scope.add(right, joined)
    steps = len(scope.steps)
    if on is not None:
        parts = [boolean(rows(part, scope), "JOIN ... ON", part) for part in split_where(on)]
    else:
        parts = [shared(using, before, right, scope, joined)] if using or natural else []
    if len(scope.steps) > steps or any(map(correlated, parts)):
        refuse("not_supported", "a subquery in JOIN ... ON is not supported", "Put it into WHERE.", joined)
    if how in ("semi", "anti"):  # its columns are seen by the condition only
        del scope.sources[fold(right.alias)]
    if side == "LEFT" or how == "full":
        scope.optional.add(fold(right.alias))
    if side == "RIGHT" or how == "full":
        scope.optional.update(before)
    scope.joins.append(Joined(right, parts, how, side == "RIGHT"))


def shared(using: list[exp.Identifier] | None, before: list[str], right: Source, scope: Scope, node: exp.Expr) -> Expr:
    """JOIN ... USING and NATURAL JOIN: the named columns, or all that both sides have, are equal and become one."""
    if using:
        names = [word.name for word in using]
    else:
        names = [name for name in right.names() if any(scope.sources[place].has(name) for place in before)]
    if not names:
        refuse("join_not_supported", "the tables of NATURAL JOIN have no column in common", "Write JOIN ... ON.", node)
    condition: Expr | None = None
    for name in names:
        places = [place for place in before if scope.sources[place].has(name)]
        if fold(name) in scope.merged:
            places = scope.merged[fold(name)][:1]
        if len(places) != 1 or not right.has(name):
            what = "is a column of several tables" if len(places) > 1 else "is not a column of both sides"
            code = "column_ambiguous" if len(places) > 1 else "column_unknown"
            refuse(code, f"{name!r} {what}", "Write JOIN ... ON.", node)
        sides: list[Expr] = [
            column(exp.column(name, place, quoted=True), scope) for place in (places[0], fold(right.alias))
        ]
        equal = build("=", sides, node)
        condition = equal if condition is None else build("AND", [condition, equal], node)
        scope.merged.setdefault(fold(name), list(places)).append(fold(right.alias))
    assert condition is not None
    return condition


def source(node: exp.Expr, scope: Scope) -> Source:
    match node:
        case exp.Table():
            return table(node, scope)
        case exp.Subquery():
            query, alias = take(node, "this", "alias")
            return derived(query, alias, scope, node)
        case exp.Values():
            rows_, alias = take(node, "expressions", "alias")
            return constants(rows_, alias, scope, node)
        case exp.Unnest() | exp.Lateral():
            return elements(node, scope)
        case _:
            refuse("not_supported", f"{describe(node)} in FROM is not supported", "Name a table.", node)


def short(alias: exp.Expr | None, default: str, node: exp.Expr) -> tuple[str, list[str]]:
    """The name of a source, and the names of its columns if there are any."""
    word, renamed = take(alias, "this", "columns") if alias is not None else (None, None)
    name = word.name if word is not None else default
    if "." in name or ":" in name or name.startswith("#"):  # these separate the parts of a generated name
        refuse("alias_invalid", f"{name!r} cannot be the name of a table in FROM", "Give it a plain alias.", node)
    return name, [column.name for column in renamed or []]


def table(node: exp.Table, scope: Scope) -> Source:
    name, schema, database, alias = take(node, "this", "db", "catalog", "alias")
    if isinstance(name, exp.Anonymous) and fold(name.name) in ("range", "generate_series") and not (schema or database):
        word, given = take(name, "this", "expressions")
        values = series(word, [interval(part) or rows(part, scope) for part in given], node)
        called, renamed = short(alias, fold(word), node)
        return public(called, renamed or [called], [[value] for value in values], node)
    if not isinstance(name, exp.Identifier):
        refuse("not_supported", f"{describe(name)} in FROM is not supported", "Name a table.", node)
    catalog = scope.context.catalog
    if not schema and not database and fold(name.name) in scope.ctes:
        query, ctes = scope.ctes[fold(name.name)]
        return derived(query, alias or exp.TableAlias(this=name), Scope(scope.context, ctes), node)
    written = ".".join(part.name for part in (database, schema, name) if part)
    parts = tuple(fold(part.name) for part in (database, schema, name) if part)
    found = catalog.table(written) or next(
        (
            t
            for t in catalog.tables.values()
            if len(parts) > 1 and tuple(fold(p) for p in t.path)[-len(parts) :] == parts
        ),
        None,
    )
    view = next((text for view, text in catalog.policy.views.items() if fold(view) == fold(written)), None)
    if found is None and view is not None:
        scope.context.views += 1
        if scope.context.views > MAX_SCANS:  # also if a view reads itself
            refuse("too_many_tables", f"the query reads more than {MAX_SCANS} views", "Read fewer of them.", node)
        parsed = parse(view)
        if parsed.marks:
            refuse(
                "view_invalid", f"the view {written!r} of the policy has parameters", "Ask the owner to fix it.", node
            )
        return derived(parsed.tree, alias or exp.TableAlias(this=name), Scope(scope.context, {}), node)
    if found is None:
        names = {**{fold(v): v for v in catalog.policy.views}, **{key: t.name for key, t in catalog.tables.items()}}
        near = difflib.get_close_matches(fold(written), [*names, *scope.ctes], n=1)
        refuse(
            "table_unknown",
            f"the policy has no table {written!r}",
            f"Did you mean {names.get(near[0], near[0])}?" if near else f"It has: {', '.join(names.values())}.",
            node,
        )
    called, renamed = short(alias, name.name, node)
    if renamed:
        refuse("not_supported", "new names for a table's columns are not supported", "Rename them in a subquery.", node)
    return Source(called, found)


def constants(lines: list[exp.Expr], alias: exp.Expr | None, scope: Scope, node: exp.Expr) -> Source:
    """VALUES: constant rows, each column of one type."""
    called, renamed = short(alias, "", node)
    return public(
        called, renamed, [[rows(cell, scope) for cell in take(line, "expressions")[0]] for line in lines], node
    )


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
        facts[fold(word)] = (word, Facts(column_[0].facts.type, False, range_, True))
    values = tuple(tuple(cell.value for cell in line if isinstance(cell, Constant)) for line in cells)
    return Source(called, relation=Values(tuple(named), values), facts=facts)


def elements(node: exp.Expr, scope: Scope) -> Source:
    """unnest(list), LATERAL unnest(list) or LATERAL (SELECT unnest(list) AS x): the elements of a list of each row."""
    inner, alias = take(node, "this", "alias") if isinstance(node, exp.Lateral) else (node, None)
    word = "unnest"
    if isinstance(inner, exp.Subquery):
        (query,) = take(inner, "this")
        items = take(query, "expressions")[0] if isinstance(query, exp.Select) else []
        inner, word = (items[0], label(items[0], top=True)) if len(items) == 1 else (query, word)
        if isinstance(inner, exp.Alias):
            inner, named = take(inner, "this", "alias")
            word = named.name
        alias = alias or exp.TableAlias(this=exp.to_identifier(scope.context.fresh()[1:]))
    if inner is node:
        lists, alias = take(inner, "expressions", "alias")
    elif isinstance(inner, exp.Unnest) or (isinstance(inner, exp.Anonymous) and fold(inner.name) == "unnest"):
        lists, _ = take(inner, "expressions", "this")
    else:
        refuse("not_supported", "this LATERAL is not supported", "Write LATERAL (SELECT unnest(list) AS x).", node)
    called, renamed = short(alias, "unnest", node)
    steps = len(scope.steps)
    found = unnested(lists, called, (renamed or [word])[0], scope, node)
    if len(renamed) > 1 or len(scope.steps) > steps:
        refuse("not_supported", "this unnest is not supported", "Write unnest(list) AS u(x), without a subquery.", node)
    return found


def unnested(lists: list[exp.Expr], alias: str, word: str, scope: Scope, node: exp.Expr) -> Source:
    found = rows(lists[0], scope) if len(lists) == 1 else None
    if found is None or found.facts.type.element is None or correlated(found):
        refuse(
            "type_mismatch",
            "unnest takes one list of the row",
            "Unnest a column that is a list; list_contains(list, x) tests it.",
            node,
        )
    return Source(alias, facts={fold(word): (word, element(found.facts))}, of=found)


# --- subqueries in FROM ------------------------------------------------------------------------------------------------


def derived(query: exp.Expr, alias: exp.Expr | None, scope: Scope, node: exp.Expr) -> Source:
    """A subquery, a CTE or a view: rows of single persons under a name."""
    called, renamed = short(alias, scope.context.fresh()[1:] if alias is None else "", node)
    project = lowered(query, called, scope)
    names = [word.partition(".")[2] for word, _ in project.columns]
    if len(renamed) > len(names) or len({fold(n) for n in names}) < len(names):
        refuse("duplicate_column", f"the columns of {called} do not have names of their own", "Use AS.", node)
    names = [*renamed, *names[len(renamed) :]]
    columns = tuple((f"{called}.{new}", e) for new, (_, e) in zip(names, project.columns, strict=True))
    facts = {
        fold(new): (new, replace(expression.facts, constant=None))
        for new, (_, expression) in zip(names, project.columns, strict=True)
    }
    weigh(project, called, names, scope.context, node)
    if isinstance(project, Stacked):
        relation: Relation = Stack(
            replace(project.left, columns=rename(project.left, columns)),
            replace(project.right, columns=rename(project.right, columns)),
            project.kind,
        )
    else:
        relation = replace(project, columns=columns)
    return Source(called, relation=relation, facts=facts)


MAX_WEIGHT = 5_000


def weigh(project: Project | Stacked, called: str, names: list[str], context: Context, node: exp.Expr) -> None:
    """The engine writes a subquery's expressions out wherever they are used: how long each is then."""
    sides = [project] if isinstance(project, Project) else [project.left, project.right]
    for place, new in enumerate(names):
        weights = [weight(side.columns[place][1], context) for side in sides]
        context.weights[f"{called}.{new}"] = max(weights)
        if max(weights) > MAX_WEIGHT:
            refuse("too_deep", f"the expression {new!r} is too long, with its subqueries", "Compute less in it.", node)


def weight(expression: Expr, context: Context) -> int:
    return sum(
        context.weights.get(part.name, 1) if isinstance(part, exp.Column) else 1 for part in total(expression).walk()
    )


@dataclass(frozen=True)
class Stacked:
    """Two lowered queries with a set operation between them; `columns` have the facts of both."""

    left: Project
    right: Project
    kind: Literal["union all", "union", "intersect", "except"]
    columns: tuple[tuple[str, Expr], ...]


def rename(side: Project, columns: tuple[tuple[str, Expr], ...]) -> tuple[tuple[str, Expr], ...]:
    return tuple((new, expression) for (new, _), (_, expression) in zip(columns, side.columns, strict=True))


def lowered(query: exp.Expr, alias: str, scope: Scope) -> Project | Stacked:
    while isinstance(query, exp.Subquery):
        (query,) = take(query, "this")
    if isinstance(query, exp.Select):
        return lowered_select(query, alias, Scope(scope.context, with_ctes(query, scope.ctes), scope.parent))
    if not isinstance(query, exp.SetOperation):
        refuse("not_supported", f"{describe(query)} is not supported here", "Write a SELECT.", query)
    left, right, distinct, _ = take(query, "this", "expression", "distinct", "with_")
    ctes = with_ctes(query, scope.ctes)
    word = {exp.Union: "union", exp.Intersect: "intersect", exp.Except: "except"}.get(type(query))
    if word is None or (not distinct and word != "union"):
        refuse("not_supported", f"{describe(query)} ALL is not supported", "Leave ALL out.", query)
    sides = []
    for part in (left, right):
        side = lowered(part, alias, Scope(scope.context, ctes))
        sides.append(side if isinstance(side, Project) else flattened(side, alias))
    if len(sides[0].columns) != len(sides[1].columns):
        refuse("set_mismatch", f"the sides of {word.upper()} have different numbers of columns", "", query)
    merged = []
    for (name, a), (_, b) in zip(sides[0].columns, sides[1].columns, strict=True):
        merged.append((name, joint(name, a, b, query)))
    kind: Any = word if distinct else "union all"
    cast_sides = [
        replace(
            side,
            columns=tuple((n, fitted(e, m.facts.type)) for (n, e), (_, m) in zip(side.columns, merged, strict=True)),
        )
        for side in sides
    ]
    return Stacked(cast_sides[0], cast_sides[1], kind, tuple(merged))


def flattened(stacked: Stacked, alias: str) -> Project:
    relation = Stack(
        stacked.left, replace(stacked.right, columns=rename(stacked.right, stacked.left.columns)), stacked.kind
    )
    return Project(relation, alias, tuple((n, Column(n, e.facts)) for n, e in stacked.columns))


def joint(name: str, a: Expr, b: Expr, node: exp.Expr) -> Column:
    """What is known of a column that has values of both sides."""
    left, right = a.facts, b.facts
    type_ = left.type
    if left.type.kind == right.type.kind == "INTEGER" and left.type.range and right.type.range:
        low, high = (f(a, b) for f, a, b in zip((min, max), left.type.range, right.type.range, strict=True))
        holding = [t for t in (left.type, right.type, HUGEINT) if t.range and t.range[0] <= low and high <= t.range[1]]
        type_ = holding[0]
    elif left.type != right.type:
        if not (left.type.numeric and right.type.numeric) or DOUBLE not in (left.type, right.type):
            types = f"{left.type.sql} and {right.type.sql}"
            refuse("set_mismatch", f"a column of the set operation has types {types}", "Cast one of them.", node)
        type_ = DOUBLE
    both = left.range is not None and right.range is not None
    range_ = None
    if both:
        assert left.range is not None and right.range is not None
        range_ = (min(left.range[0], right.range[0]), max(left.range[1], right.range[1]))
    size = max(left.growth, right.growth) if VARCHAR in (type_, type_.element) else None
    nullable, declared, copies = (
        left.nullable or right.nullable,
        left.declared and right.declared,
        max(left.copies, right.copies),
    )
    return Column(name, Facts(type_, nullable, range_, declared, size, copies=copies))


def fitted(expression: Expr, type_: Type) -> Expr:
    return expression if expression.facts.type == type_ else call("CAST", expression, constant(type_.sql))


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


# --- one SELECT below the noise ----------------------------------------------------------------------------------------


def lowered_select(tree: exp.Select, alias: str, scope: Scope) -> Project:
    """A SELECT of single persons' rows: row by row, grouped, with windows, distinct."""
    names = "expressions from_ joins where group having qualify distinct order limit offset with_".split()  # noqa: SIM905
    items, from_, joins, where, group, having, qualify, distinct, order, limit, offset, _ = take(tree, *names)
    if from_ is None:
        refuse("no_table", "the subquery has no FROM", "Name a table of the policy.", tree)
    if limit or offset:
        refuse(
            "limit_not_local",
            "LIMIT in a subquery looks at the rows of all persons",
            "Number the rows of each person: QUALIFY row_number() OVER (PARTITION BY person ORDER BY ...) <= 3.",
            tree,
        )
    read_from(from_, joins or [], scope)
    if where is not None and add_where(take(where, "this")[0], scope):
        refuse(
            "not_supported",
            "a subquery of this kind cannot name columns of the query around it",
            "Use EXISTS, or IN without GROUP BY, DISTINCT and windows.",
            where,
        )
    selected = [pair for item in items for pair in expanded(item, scope)]
    inside = Inside(scope, group, selected, [having, qualify, order, *items])
    inside.grouped |= having is not None
    spread_out(items, tree, inside)
    outputs = [(name, inside.lower(node)) for name, node in selected]
    if having is not None:
        unwindowed = [not node.find(exp.Window) for _, node in selected]
        inside.names = {fold(name): e for (name, e), early in zip(outputs, unwindowed, strict=True) if early}
        inside.filters.append(boolean(inside.lower(take(having, "this")[0]), "HAVING", having))
    inside.names = {fold(name): expression for name, expression in outputs}
    if qualify is not None:
        inside.after.append(boolean(inside.lower(take(qualify, "this")[0]), "QUALIFY", qualify))
    on = take(distinct, "on")[0] if distinct is not None else None
    terms = [inside.ordering(item) for item in take(order, "expressions")[0]] if order is not None else []
    if on is not None and qualify is not None:
        refuse("not_supported", "DISTINCT ON with QUALIFY is not supported", "Put one of them into a subquery.", tree)
    if on is not None:
        keys = tuple(inside.lower(key) for key in take(on, "expressions")[0])
        place = inside.window(Over("row_number", (), keys, tuple(terms), None, POSITIVE))
        inside.after.append(call("=", place, constant(1)))
    relation = inside.relation()
    columns = tuple((f"{alias}.{name}", expression) for name, expression in outputs)
    if distinct is not None and on is None:
        numbered = tuple((f"g{i}", expression) for i, (_, expression) in enumerate(columns))
        relation = Group(relation, numbered, ())
        columns = tuple((name, Column(f"g{i}", e.facts)) for i, (name, e) in enumerate(columns))
    return Project(relation, alias, columns)


def spread_out(items: list[exp.Expr], tree: exp.Select, inside: Inside) -> None:
    """unnest in a SELECT list: its rows are made behind WHERE, and the call stands for the element."""
    calls = [node for item in items for node in item.find_all(exp.Anonymous) if fold(node.name) == "unnest"]
    calls = [node for node in calls if owner(node) is tree]
    if not calls:
        return
    if len(calls) > 1 or inside.grouped or tree.args.get("qualify") or any(i.find(exp.Window) for i in items):
        refuse(
            "not_supported",
            "unnest stands beside another one, a group or a window",
            "Unnest one list in a subquery of its own.",
            calls[0],
        )
    scope = inside.scope
    made = Joined(
        unnested(take(calls[0], "expressions", "this")[0], scope.context.fresh(), "x", scope, tree), [], "inner"
    )
    scope.elements[id(calls[0])] = made.source.column("x", calls[0])
    scope.steps.append(lambda relation: made.onto(relation, None))


POSITIVE = Facts(Type("BIGINT"), False, measure("count", None).facts.range)


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
                yield (
                    name,
                    exp.column(exp.to_identifier(name, quoted=True), exp.to_identifier(found.alias, quoted=True)),
                )


@dataclass
class Inside:
    """Lowering of the expressions of one SELECT below the noise: groups and windows become steps of the relation."""

    scope: Scope
    group: exp.Expr | None
    selected: list[tuple[str, exp.Expr]]
    clauses: list[exp.Expr | None]
    names: dict[str, Expr] = field(default_factory=dict)
    keys: list[Expr] = field(default_factory=list)
    measures: list[Measure] = field(default_factory=list)
    windows: list[Over] = field(default_factory=list)
    filters: list[Expr] = field(default_factory=list)
    after: list[Expr] = field(default_factory=list)

    def __post_init__(self) -> None:
        plain = [node for clause in self.clauses if clause is not None for node in clause.find_all(exp.AggFunc)]
        self.grouped = self.group is not None or any(not windowed(node) and owner(node) is self.root for node in plain)
        if self.group is not None:
            (items, everything) = take(self.group, "expressions", "all")
            if everything and items:
                refuse("not_supported", "GROUP BY ALL takes no columns", "Leave one of them out.", self.group)
            if everything:
                items = [
                    node for _, node in self.selected if not any(not windowed(a) for a in node.find_all(exp.AggFunc))
                ]
            for item in items:
                key = rows(self.meant(item), self.scope)
                if key not in self.keys:
                    self.keys.append(key)

    @property
    def root(self) -> exp.Expr | None:
        return next((clause.find_ancestor(exp.Select) for clause in self.clauses if clause is not None), None)

    def meant(self, item: exp.Expr) -> exp.Expr:
        """What GROUP BY 1 or GROUP BY alias stands for."""
        if isinstance(item, exp.Literal) and not item.is_string:
            place = number(item.this, item).value
            if not isinstance(place, int) or not 1 <= place <= len(self.selected):
                refuse("position_invalid", f"GROUP BY {item.this} is not a column of the SELECT list", "", item)
            return self.selected[place - 1][1]
        if isinstance(item, exp.Column) and self.scope.unknown(item):
            return next((node for name, node in self.selected if fold(name) == fold(item.name)), item)
        return item

    def lower(self, node: exp.Expr) -> Expr:
        known = isinstance(node, exp.Column) and not node.args.get("table") and fold(node.name) in self.names
        if known and isinstance(node, exp.Column) and self.scope.unknown(node):  # columns come before aliases
            take(node, "this", "table")
            return self.names[fold(node.name)]
        if isinstance(node, exp.Window):
            return self.window(self.over(node))
        if not self.grouped:
            return rows(node, self.scope) if not node.find(exp.Window) and not self.names else self.deeper(node)
        if not node.find(exp.AggFunc, exp.Window) and not isinstance(node, exp.Literal | exp.Placeholder):
            try:
                lowered = rows(node, self.scope)
            except Refused:
                lowered = None
            if lowered is not None and lowered in self.keys:
                return Column(f"g{self.keys.index(lowered)}", lowered.facts)
        if isinstance(node, exp.AggFunc | exp.Filter):
            return self.aggregate(node)
        if isinstance(node, exp.Column):
            column(node, self.scope)
            refuse("not_grouped", f"{node.name!r} stands neither in GROUP BY nor in an aggregate", "Group by it.", node)
        return self.deeper(node)

    def deeper(self, node: exp.Expr) -> Expr:
        match node:
            case exp.Column():
                return column(node, self.scope)
            case exp.Placeholder():
                return self.scope.constant(node)
            case exp.Subquery():
                return scalar(node, self.scope)
            case _:
                return operator(node, self.lower)

    def aggregate(self, node: exp.Expr) -> Column:
        where: Expr | None = None
        if isinstance(node, exp.Filter):
            inner, condition = take(node, "this", "expression")
            where = boolean(rows(take(condition, "this")[0], self.scope), "FILTER", condition)
            node = inner
        name, argument, distinct = called(node)
        try:
            made = measure(name, rows(argument, self.scope) if argument is not None else None, distinct, where)
        except Refused as error:
            raise Refused(error.code, error.message, error.hint, position(node)) from None
        if made not in self.measures:
            self.measures.append(made)
        return Column(f"m{self.measures.index(made)}", made.facts)

    def ordering(self, item: exp.Expr) -> tuple[Expr, bool, bool]:
        this, descending, nulls_first = take(item, "this", "desc", "nulls_first")
        if isinstance(this, exp.Literal) and not this.is_string:
            this = self.meant(this)
        if isinstance(this, exp.Column) and not this.args.get("table") and fold(this.name) in self.names:
            return self.names[fold(this.name)], bool(descending), bool(nulls_first)
        return self.lower(this), bool(descending), bool(nulls_first)

    def over(self, node: exp.Window) -> Over:
        function, partition, order, spec, _ = take(node, "this", "partition_by", "order", "spec", "over")
        name, argument, distinct, *rest = windowed_call(function)
        arguments = tuple(self.lower(part) for part in ([argument] if argument is not None else []))
        extra = tuple(self.lower(part) for part in rest)
        if distinct or any(not isinstance(e, Constant) or not isinstance(e.value, int) for e in extra):
            refuse("not_supported", f"this form of {name} is not supported", "Use a constant offset.", node)
        by = tuple(self.lower(part) for part in partition or [])
        terms: tuple[tuple[Expr, bool, bool], ...] = ()
        if order is not None:  # here a number is a constant, and names of the SELECT list come last
            parts = [take(item, "this", "desc", "nulls_first") for item in take(order, "expressions")[0]]
            terms = tuple((self.lower(this), bool(descending), bool(first)) for this, descending, first in parts)
        facts = POSITIVE
        if name in ("lag", "lead", "first_value", "last_value"):
            facts = replace(arguments[0].facts, nullable=True, constant=None, stored=False)
        elif name in MEASURES:
            facts = replace(measure(name, arguments[0] if arguments else None).facts, nullable=name != "count")
        if name in ("sum", "avg"):
            counted(arguments[0].facts)
        return Over(name, (*arguments, *extra), by, terms, frame(spec), facts)

    def window(self, over: Over) -> Column:
        if over not in self.windows:
            self.windows.append(over)
        return Column(f"w{self.windows.index(over)}", over.facts)

    def relation(self) -> Relation:
        relation = self.scope.relation()
        if self.grouped:
            keys = tuple((f"g{i}", key) for i, key in enumerate(self.keys))
            relation = Group(relation, keys, tuple((f"m{i}", made) for i, made in enumerate(self.measures)))
        for predicate in self.filters:
            relation = Filter(relation, predicate)
        if self.windows:
            relation = Windowed(relation, tuple((f"w{i}", over) for i, over in enumerate(self.windows)))
        for predicate in self.after:
            relation = Filter(relation, predicate)
        return relation


def windowed(node: exp.Expr) -> bool:
    """Whether an aggregate is the function of a window, and not inside of one."""
    parent = node.parent.parent if isinstance(node.parent, exp.Filter) else node.parent
    return isinstance(parent, exp.Window) and parent.this in (node, node.parent)


def owner(node: exp.Expr) -> exp.Expr | None:
    return node.find_ancestor(exp.Select)


AGGREGATES: dict[type[exp.Expr], str] = {
    exp.Count: "count",
    exp.Sum: "sum",
    exp.Avg: "avg",
    exp.Min: "min",
    exp.Max: "max",
    exp.LogicalAnd: "bool_and",
    exp.LogicalOr: "bool_or",
}
WINDOWS: dict[type[exp.Expr], str] = {
    exp.RowNumber: "row_number",
    exp.Rank: "rank",
    exp.DenseRank: "dense_rank",
    exp.Lag: "lag",
    exp.Lead: "lead",
    exp.FirstValue: "first_value",
    exp.LastValue: "last_value",
}


def called(node: exp.Expr) -> tuple[str, exp.Expr | None, bool]:
    """An aggregate's name, its argument, and whether it is DISTINCT."""
    name = AGGREGATES.get(type(node))
    if name is None:
        refuse(
            "not_supported",
            f"{describe(node)} of one person's rows is not supported",
            "Use count, sum, avg, min, max, bool_and or bool_or.",
            node,
        )
    this, _, more = take(node, "this", "big_int", "expressions")
    if more:
        refuse("not_supported", f"{name} takes one argument", "Count its arguments.", node)
    if isinstance(this, exp.Distinct):
        expressions = take(this, "expressions")[0]
        if len(expressions) != 1:
            refuse("not_supported", "DISTINCT of several columns is not supported", "Use one.", node)
        return name, expressions[0], True
    if isinstance(this, exp.Star):
        take(this)
        this = None
    if this is None and name != "count":
        refuse("not_supported", f"{name} needs an argument", "", node)
    return name, this, False


def windowed_call(node: exp.Expr) -> tuple[Any, ...]:
    name = WINDOWS.get(type(node))
    if name is None:
        return called(node)
    this, offset, more = take(node, "this", "offset", "expressions")
    if not more and (this is None) == (name in (*RANKS, "row_number")):
        return (name, this, False, *([offset] if offset is not None else []))
    refuse("not_supported", f"this form of {name} is not supported", "See DuckDB's documentation.", node)


def frame(spec: exp.Expr | None) -> tuple[str, str] | None:
    if spec is None:
        return None
    kind, start, start_side, end, end_side = take(spec, "kind", "start", "start_side", "end", "end_side")

    def bound(value: Any, side: str | None) -> str:
        if isinstance(value, exp.Literal) and value.this.isdigit() and len(value.this) < 10:
            return f"{value.this} {side}"
        if value == "UNBOUNDED":
            return f"UNBOUNDED {side}"
        if (value == "CURRENT ROW" or value is None) and not side:
            return "CURRENT ROW"
        refuse("not_supported", "this frame is not supported", "Write ROWS BETWEEN 2 PRECEDING AND CURRENT ROW.", spec)

    if kind != "ROWS":
        refuse("not_supported", f"frames of {kind} are not supported", "Write ROWS BETWEEN ... AND ...", spec)
    return bound(start, start_side), bound(end, end_side)


# --- WHERE, and the subqueries in it ----------------------------------------------------------------------------------


def add_where(node: exp.Expr, scope: Scope) -> list[Expr]:
    """Each condition of WHERE becomes a filter, or part of a join; EXISTS and IN become joins that keep or drop rows.

    Returned are the conditions that name columns of the query around this one.
    """
    outside: list[Expr] = []
    for part in split_where(node):
        negated, test = False, part
        while isinstance(test, exp.Not | exp.Paren):
            negated ^= isinstance(test, exp.Not)
            (test,) = take(test, "this")
        if isinstance(test, exp.Exists):
            keep_if(take(test, "this")[0], None, negated, scope)
        elif isinstance(test, exp.In) and test.args.get("query") is not None:
            this, query = take(test, "this", "query")
            keep_if(query, this, negated, scope)
        else:
            predicate = boolean(rows(part, scope), "WHERE", part)
            if correlated(predicate):
                outside.append(predicate)
            else:
                scope.require(predicate)
    return outside


def keep(relation: Relation, predicate: Expr) -> Relation:
    return Filter(relation, predicate)


def keep_if(query: exp.Expr, this: exp.Expr | None, negated: bool, scope: Scope) -> None:
    """[NOT] EXISTS (query), or this [NOT] IN (query): a semi or an anti join."""
    while isinstance(query, exp.Subquery):
        (query,) = take(query, "this")
    on: list[Expr] = []
    alias = scope.context.fresh()
    if isinstance(query, exp.Select) and not grouped(query):
        relation, on = opened(query, alias, scope, this)
    else:
        found = lowered(query, alias, Scope(scope.context, scope.ctes))
        project = found if isinstance(found, Project) else flattened(found, alias)
        relation = project
        if this is not None:
            on = [matches(rows(this, scope), [(n, Column(n, e.facts)) for n, e in project.columns], query)]
    condition: Expr | None = None
    for part in on:
        condition = part if condition is None else call("AND", condition, part)
    kind: Kind = "anti" if negated else "semi"
    if this is not None and negated and on and isinstance(on[0], Call):
        # NOT IN is true only if no comparison is true or unknown. Persons are never unknown.
        unknown = [side for side in on[0].arguments if side.facts.nullable]
        if any(scan.table.person is not None for scan in scans(relation)):
            if not all(leads(side, scope, relation) for side in unknown):
                refuse(
                    "not_supported",
                    "NOT IN is supported only for the person, or for values that cannot be NULL",
                    "Write NOT EXISTS (SELECT ... WHERE inner.x = outer.x).",
                    query,
                )
        else:
            matched: Expr = on[0]
            for side in unknown:
                matched = call("OR", matched, call("IS NULL", side))
            condition = every([matched, *on[1:]])
    scope.steps.append(lambda outer_: Join(outer_, relation, condition, kind))


def leads(side: Expr, scope: Scope, relation: Relation) -> bool:
    """Whether a column holds the person, or leads to her, as it is stored: rows where it is NULL belong to nobody."""
    if not isinstance(side, Column):
        return False
    place = scope.sources.get(fold(side.name.partition(".")[0]))
    if place is not None and (fold(place.alias) in scope.optional or place.of is not None):
        return False
    found = origin(relation if place is None else place.scan(), side.name)
    if found is None or found[1]:
        return False
    persons = [table.person for table in scope.context.catalog.tables.values() if table.person is not None]
    names = {fold(c) for p in persons for c in ((p,) if isinstance(p, str) else p.columns)}
    return fold(found[0].name) in names


def grouped(query: exp.Select) -> bool:
    own = [node for node in query.find_all(exp.AggFunc, exp.Window) if owner(node) is query]
    return any(query.args.get(word) for word in ("group", "having", "distinct", "qualify", "limit", "with_")) or bool(
        own
    )


def matches(this: Expr, columns: list[tuple[str, Column]], node: exp.Expr) -> Expr:
    if len(columns) != 1:
        refuse("set_mismatch", "the subquery of IN must have one column", "Select one column.", node)
    return build("=", [this, columns[0][1]], node)


def opened(query: exp.Select, alias: str, scope: Scope, this: exp.Expr | None) -> tuple[Project, list[Expr]]:
    """A subquery whose conditions may name columns of the query around it: these conditions become the join's."""
    items, from_, joins, where = take(query, "expressions", "from_", "joins", "where")
    inner = Scope(scope.context, scope.ctes, scope)
    if from_ is None:
        refuse("no_table", "the subquery has no FROM", "Name a table of the policy.", query)
    for star in items:  # of EXISTS (SELECT * ...) nothing else is read
        if isinstance(star, exp.Star):
            take(star)
    read_from(from_, joins or [], inner)
    conditions: list[Expr] = []
    if where is not None:
        conditions += add_where(take(where, "this")[0], inner)
    if this is not None:
        if len(items) != 1:
            refuse("set_mismatch", "the subquery of IN must have one column", "Select one column.", query)
        item = take(items[0], "this", "alias")[0] if isinstance(items[0], exp.Alias) else items[0]
        sides = [outer_of(rows(this, scope)), rows(item, inner)]
        conditions.insert(0, build("=", sides, query))
    needed = list(dict.fromkeys(c for e in conditions for c in columns_in(e) if not c.name.startswith(OUTER)))
    names = {found: Column(f"{alias}.c{i}", found.facts) for i, found in enumerate(needed)}

    def settled(found: Column) -> Expr:
        if found.name.startswith(OUTER):
            return replace(found, name=found.name.removeprefix(OUTER))
        return names[found]

    project = Project(inner.relation(), alias, tuple((new.name, found) for found, new in names.items()))
    return project, [mapped(condition, settled) for condition in conditions]


def outer_of(expression: Expr) -> Expr:
    return mapped(expression, outer)


def split_where(node: exp.Expr) -> list[exp.Expr]:
    while isinstance(node, exp.Paren):
        (node,) = take(node, "this")
    if isinstance(node, exp.And):
        return [part for side in node.flatten(unnest=False) for part in split_where(side)]
    return [node]


def scalar(node: exp.Subquery, scope: Scope) -> Expr:
    """(SELECT aggregate FROM ... WHERE inner = outer): grouped by the inner sides, and joined on them."""
    (query,) = take(node, "this")
    items, from_, joins, where = take(query, "expressions", "from_", "joins", "where")
    if not isinstance(query, exp.Select) or from_ is None or len(items) != 1:
        refuse("not_supported", "this subquery is not supported", "Select one aggregate of one person's rows.", node)
    inner = Scope(scope.context, scope.ctes, scope)
    read_from(from_, joins or [], inner)
    equal: list[tuple[Expr, Expr]] = []
    for tie in add_where(take(where, "this")[0], inner) if where is not None else []:
        match tie:
            case Call("=", (a, b), _) if correlated(a) != correlated(b):
                mine, theirs = (b, a) if correlated(a) else (a, b)
                equal.append((mine, mapped(theirs, lambda c: replace(c, name=c.name.removeprefix(OUTER)))))
            case _:
                refuse(
                    "not_supported",
                    "a subquery that is a value may be tied to the query around it only by equalities",
                    "Write WHERE inner.column = outer.column.",
                    node,
                )
    item = take(items[0], "this", "alias")[0] if isinstance(items[0], exp.Alias) else items[0]
    inside = Inside(inner, None, [], [items[0]])
    inside.grouped, inside.keys = True, [mine for mine, _ in equal]
    value = inside.lower(item)
    if not equal or not inside.measures:
        refuse(
            "subquery_not_local",
            "a subquery over all persons would have to be released first, which is not supported yet",
            "Tie it to the person: (SELECT max(b.x) FROM b WHERE b.person = a.person).",
            node,
        )
    alias = scope.context.fresh()
    if any(found.name.startswith("g") for found in columns_in(value)):
        refuse("not_supported", "a subquery that is a value has only aggregates in it", "Leave the column out.", node)
    columns = (
        *((f"{alias}.m{i}", Column(f"m{i}", made.facts)) for i, made in enumerate(inside.measures)),
        *((f"{alias}.k{i}", Column(f"g{i}", k.facts)) for i, (k, _) in enumerate(equal)),
    )
    project = Project(inside.relation(), alias, columns)
    condition: Expr | None = None
    for i, (mine, theirs) in enumerate(equal):
        same = build("=", [theirs, Column(f"{alias}.k{i}", mine.facts)], node)
        condition = same if condition is None else call("AND", condition, same)
    scope.steps.append(lambda relation: Join(relation, project, condition, "left"))

    def found_or_not(one: Column) -> Expr:
        """A measure of nothing is NULL, and a count of nothing is zero."""
        made = inside.measures[int(one.name[1:])]
        column_ = Column(f"{alias}.{one.name}", replace(made.facts, nullable=True))
        return call("coalesce", column_, constant(0)) if made.function == "count" else column_

    return mapped(value, found_or_not)


__all__ = ["PLACES", "Context", "Scope", "add_where", "column", "read_from", "rows"]
