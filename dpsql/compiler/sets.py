"""GROUPING SETS, ROLLUP and CUBE: one query for each set of keys, and the rows of all of them under one another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

from sqlglot import exp

from dpsql.compiler.aggregates import RULES
from dpsql.compiler.label import label
from dpsql.compiler.lower import refuse
from dpsql.policy.catalog import fold

MAX_SETS = 16
ROWS = "with all sets"  # what the rows of all sets are called


@dataclass(frozen=True)
class Sets:
    """For each set which keys it has, and its query; and how the statement reads the rows of all: `outer` has no FROM yet."""

    keys: int
    sets: tuple[tuple[tuple[int, ...], exp.Select], ...]
    values: int
    outer: exp.Select

    def stacked(self, parts: list[exp.Query]) -> exp.Query:
        """The rows of all sets: keys that a set does not have are NULL, and `grouping i` is 1 for them."""
        arms: list[exp.Query] = []
        for (held, _), part in zip(self.sets, parts, strict=True):
            cells = [
                column(f"key {i}") if i in held else exp.alias_(exp.Null(), f"key {i}", quoted=True)
                for i in range(self.keys)
            ]
            marks = [
                exp.alias_(exp.Literal.number(int(i not in held)), f"grouping {i}", quoted=True)
                for i in range(self.keys)
            ]
            values = [column(f"value {i}") for i in range(self.values)]
            arms.append(exp.select(*cells, *marks, *values).from_(part.subquery(exp.to_identifier("part"))))
        stack = arms[0]
        for arm in arms[1:]:
            stack = exp.union(stack, arm, distinct=False, copy=False)
        outer = self.outer.copy()
        outer.set("from_", exp.From(this=stack.subquery(exp.to_identifier(ROWS, quoted=True))))
        return outer


def has_sets(query: exp.Expr) -> bool:
    group = query.args.get("group")
    return group is not None and any(
        isinstance(item, exp.GroupingSets | exp.Rollup | exp.Cube) for item in group.expressions
    )


def column(word: str) -> exp.Expr:
    return exp.column(exp.to_identifier(word, quoted=True))


def sets_of(query: exp.Select, own: Callable[[exp.Column], bool] | None, known: tuple[int, ...] = ()) -> Sets:
    """Take a query apart by its sets of keys. `own` knows whether a name is a column of the query's tables, if it is known;
    rows without one of the `known` keys are left out at all levels.

    Its SELECT list, HAVING, QUALIFY and ORDER BY are written anew over keys and aggregates, which each set's query has as
    columns: what they compute is computed after the release.
    """
    for item in list(query.expressions):
        if not isinstance(item, exp.Alias | exp.Column):
            item.replace(exp.alias_(item.copy(), label(item), quoted=True))
    sets: list[list[exp.Expr]] = [[]]
    for item in query.args["group"].expressions:
        sets = [a + b for a, b in product(sets, listed(item))]
        if len(sets) > MAX_SETS:
            refuse("too_many_releases", f"the GROUP BY has more than {MAX_SETS} sets of keys", "Use fewer keys.", item)
    reading = Reading()
    places = [tuple(dict.fromkeys(reading.key(meaning(key, query, own)) for key in keys)) for keys in sets]
    shown = [
        exp.alias_(reading.over(item.unalias().copy()), item.alias_or_name, quoted=True) for item in query.expressions
    ]
    outer = exp.Select(expressions=shown)
    reading.aliases = {fold(item.alias_or_name) for item in query.expressions}
    for clause in ("having", "qualify", "order", "limit", "offset", "distinct"):
        if (node := query.args.get(clause)) is not None:
            if clause in ("having", "qualify", "order"):
                node = reading.over(node.copy())
            outer.set(
                "where" if clause == "having" else clause, exp.Where(this=node.this) if clause == "having" else node
            )
    made = []
    for held in places:
        one = query.copy()
        for clause in ("having", "qualify", "order", "limit", "offset", "distinct", "group"):
            one.set(clause, None)
        for i in known:
            there = exp.Not(this=exp.Paren(this=exp.Is(this=reading.keys[i].copy(), expression=exp.Null())))
            one.where(there, copy=False)
        cells = [exp.alias_(reading.keys[i].copy(), f"key {i}", quoted=True) for i in held]
        cells += [exp.alias_(value.copy(), f"value {i}", quoted=True) for i, value in enumerate(reading.values)]
        one.set("expressions", cells)
        if held:
            one.set("group", exp.Group(expressions=[reading.keys[i].copy() for i in held]))
        made.append((held, one))
    return Sets(len(reading.keys), tuple(made), len(reading.values), outer)


def listed(item: exp.Expr) -> list[list[exp.Expr]]:
    """The sets of keys that an element of GROUP BY stands for."""
    match item:
        case exp.GroupingSets():
            return [one for part in item.expressions for one in listed(part)]
        case exp.Rollup():
            parts = [one for part in item.expressions for one in listed(part)]
            return [[key for part in parts[:n] for key in part] for n in range(len(parts), -1, -1)]
        case exp.Cube():
            parts = [one for part in item.expressions for one in listed(part)]
            chosen = product((True, False), repeat=len(parts)) if len(parts) < 8 else [(True,) * len(parts)] * 99
            return [[key for use, part in zip(uses, parts, strict=True) if use for key in part] for uses in chosen]
        case exp.Tuple():
            return [list(item.expressions)]
        case exp.Paren():
            return listed(item.this)
        case _:
            return [[item]]


def meaning(key: exp.Expr, query: exp.Select, own: Callable[[exp.Column], bool] | None) -> exp.Expr:
    """What a key stands for: a place in the SELECT list, a column, or a name in the SELECT list."""
    key = key.unnest()
    if isinstance(key, exp.Literal) and not key.is_string:
        place = int(key.this) if str(key.this).isdigit() else 0
        if not 1 <= place <= len(query.expressions):
            refuse("position_invalid", f"GROUP BY {key.this} is not a column of the SELECT list", "", key)
        return unaliased(query.expressions[place - 1])
    if isinstance(key, exp.Column) and not key.table and not (own is not None and own(key)):
        for item in query.expressions:
            if isinstance(item, exp.Alias) and fold(item.alias) == fold(key.name):
                return unaliased(item)
    return key


def unaliased(item: exp.Expr) -> exp.Expr:
    found: exp.Expr = item.this if isinstance(item, exp.Alias) else item
    return found


def same(a: exp.Expr, b: exp.Expr) -> bool:
    """A column is known by its name, and by its table where both say which."""
    if isinstance(a, exp.Column) and isinstance(b, exp.Column):
        return fold(a.name) == fold(b.name) and (not a.table or not b.table or fold(a.table) == fold(b.table))
    return a == b


class Reading:
    """Expressions over groups, read from columns `key i`, `grouping i` and `value i`."""

    def __init__(self) -> None:
        self.keys: list[exp.Expr] = []
        self.values: list[exp.Expr] = []
        self.aliases: set[str] = set()  # names that ORDER BY and the like take from the SELECT list

    def place(self, node: exp.Expr) -> int | None:
        return next((i for i, key in enumerate(self.keys) if same(key, node)), None)

    def key(self, node: exp.Expr) -> int:
        """The number of a key, which may be new."""
        if (found := self.place(node)) is not None:
            return found
        self.keys.append(node)
        return len(self.keys) - 1

    def over(self, node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Subquery | exp.Query | exp.Exists):
            return node
        if isinstance(node, exp.Column) and not node.table and fold(node.name) in self.aliases:
            return node
        if (place := self.place(node)) is not None:
            return column(f"key {place}")
        if isinstance(node, exp.Anonymous) and fold(node.name) in ("grouping", "grouping_id"):
            return self.grouping(node)
        inner = node.this if isinstance(node, exp.Filter) else node
        if isinstance(inner, exp.Count | exp.Sum | exp.Avg) or (
            isinstance(inner, exp.Anonymous) and fold(inner.name) in RULES
        ):
            if node not in self.values:
                self.values.append(node.copy())
            return column(f"value {self.values.index(node)}")
        self.children(node.this if isinstance(node, exp.Window) else node)
        if isinstance(node, exp.Window):  # what stands before OVER is no aggregate over persons, its arguments are
            for part in ("partition_by", "order", "spec"):
                below = node.args.get(part)
                for one in below if isinstance(below, list) else [below] if below is not None else []:
                    one.replace(self.over(one.copy()))
        return node

    def children(self, node: exp.Expr) -> None:
        for child in list(node.iter_expressions()):
            child.replace(self.over(child.copy()))

    def grouping(self, node: exp.Anonymous) -> exp.Expr:
        """A bit for each key: whether this row's set does not have it; the first key's is the highest."""
        total: exp.Expr = exp.Literal.number(0)
        for argument in node.expressions:
            if (place := self.place(argument)) is None:
                refuse("not_grouped", "GROUPING takes keys of the GROUP BY", "Name one of them.", node)
            mark = column(f"grouping {place}")
            total = exp.Add(this=exp.Mul(this=exp.Paren(this=total), expression=exp.Literal.number(2)), expression=mark)
        return exp.Cast(this=exp.Paren(this=total), to=exp.DataType.build("BIGINT"))
