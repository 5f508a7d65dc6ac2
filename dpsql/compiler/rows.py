"""Everything below the noise: FROM, WHERE and subqueries, as a relation of the closed set."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from sqlglot import exp

from dpsql.compiler.label import label
from dpsql.compiler.lower import boolean, build, interval, number, operator, refuse, size, take
from dpsql.compiler.parse import describe, parse, position
from dpsql.compiler.scope import (
    MAX_SCANS,
    OUTER,
    Joined,
    Scope,
    Source,
    column,
    correlated,
    every,
    expanded,
    mapped,
    outer,
    public,
    short,
    split_where,
    with_ctes,
)
from dpsql.compiler.series import series
from dpsql.compiler.stacks import Stacked, fitted, flattened, joint, rename, weigh
from dpsql.compiler.steps import aggregates, called, frame, is_aggregate, owner, windowed, windowed_call
from dpsql.errors import Refused
from dpsql.kernel.algebra import Call, Column, Expr, call, columns_in, constant
from dpsql.kernel.algebra import Literal as Constant
from dpsql.kernel.functions import element
from dpsql.kernel.relations import (
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
    Stack,
    Windowed,
    measure,
    origin,
    scans,
    window,
)
from dpsql.policy.catalog import BOOLEAN, INTERVAL, fold

MAX_COPIED = 5_000  # nodes of expressions that names of the SELECT list stand for

# --- expressions of one row --------------------------------------------------------------------------------------------


def rows(node: exp.Expr, scope: Scope, known: dict[int, tuple[exp.Expr, Expr]] | None = None) -> Expr:
    """An expression of one row. Some operators look at what is two levels below them: what is `known` is not lowered again, or
    each level would double the work. Nodes are kept, so that no other gets their number."""
    known = {} if known is None else known
    if id(node) in known:
        return known[id(node)][1]
    match node:
        case exp.Column() if not node.table and fold(node.name) in scope.either:
            sides = [exp.column(node.this.copy(), place, quoted=True) for place in scope.merged[fold(node.name)]]
            return build("coalesce", [column(side, scope) for side in sides], node)
        case exp.Column():
            return column(node, scope)
        case exp.Placeholder():
            return scope.constant(node)
        case exp.Subquery():
            if node not in scope.scalars:  # as a key it stands in GROUP BY and in the SELECT list
                scope.scalars[node] = scalar(node, scope)
            return scope.scalars[node]
        case exp.Exists():
            (query,) = take(node, "this")
            return found_any(node, query, None, scope)
        case exp.In() if node.args.get("query") is not None:
            this, query = take(node, "this", "query")
            return found_any(
                node, query, take(this, "expressions")[0] if isinstance(this, exp.Tuple) else [this], scope
            )
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
        case _ if is_aggregate(node):
            refuse(
                "aggregate_misplaced",
                f"{describe(node)} stands where a row is needed",
                "Put conditions on aggregates into HAVING; aggregates cannot be nested.",
                node,
            )
        case _:
            lowered = operator(node, lambda child: rows(child, scope, known))
            known[id(node)] = node, lowered
            return lowered


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
    if scope.first.of:
        refuse("not_supported", "unnest comes first in FROM", "Name the table that has the list before it.", node)
    scope.add(scope.first, node)
    for join in joins:
        add_join(join, scope)


def add_join(join: exp.Expr, scope: Scope) -> None:
    joined, on, kind, using, side, method = take(join, "this", "on", "kind", "using", "side", "method")
    natural, comma = method == "NATURAL", not (on or using or kind or side or method)
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
    true = isinstance(on, exp.Boolean) and take(on, "this")[0]
    if right.of and not (how == "inner" or (side == "LEFT" and true)):
        hint = "Write CROSS JOIN, or LEFT JOIN ... ON true, which keeps rows with an empty list."
        refuse("join_not_supported", f"this {side or kind} JOIN of unnest is not supported", hint, joined)
    scope.add(right, joined)
    steps = len(scope.steps)
    if on is not None:
        parts = [boolean(rows(part, scope), "JOIN ... ON", part) for part in split_where(on)]
    else:
        parts = [shared(using, before, right, side, scope, joined)] if using or natural else []
    if len(scope.steps) > steps or any(map(correlated, parts)):
        refuse("not_supported", "a subquery in JOIN ... ON is not supported", "Put it into WHERE.", joined)
    if how in ("semi", "anti"):  # its columns are seen by the condition only
        del scope.sources[fold(right.alias)]
    if side == "LEFT" or how == "full":
        scope.optional.add(fold(right.alias))
    if side == "RIGHT" or how == "full":
        scope.optional.update(before)
    scope.joins.append(Joined(right, parts, how, side == "RIGHT"))


def shared(
    using: list[exp.Identifier] | None, before: list[str], right: Source, side: str, scope: Scope, node: exp.Expr
) -> Expr:
    """JOIN ... USING and NATURAL JOIN: the named columns, or all that both sides have, are equal and become one.

    That one is the column of the side that stays, and of a FULL JOIN the one that is there.
    """
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
        known = [*scope.merged.get(fold(name), places), fold(right.alias)]
        scope.merged[fold(name)] = known if side != "RIGHT" else known[::-1]
        if fold(name) in scope.either or (side == "FULL" and len(known) > 2):
            hint = "Write ON, and coalesce(a.x, b.x, c.x)."
            refuse("join_not_supported", "FULL JOIN ... USING beside another USING is not supported", hint, node)
        if side == "FULL":
            scope.either.add(fold(name))
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
        parsed = parse(view, catalog.now)
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


def elements(node: exp.Expr, scope: Scope) -> Source:
    """unnest(list), LATERAL unnest(list) or LATERAL (SELECT unnest(list) AS x): the elements of a list of each row.

    LATERAL (SELECT x + 1 AS y) is values of each row: the elements of lists of one.
    """
    inner, alias = take(node, "this", "alias") if isinstance(node, exp.Lateral) else (node, None)
    word = "unnest"
    if isinstance(inner, exp.Subquery) and isinstance(inner.this, exp.Select) and not inner.this.args.get("from_"):
        (items,) = take(take(inner, "this")[0], "expressions")
        if not any(part.is_star or spreads(part) or part.find(exp.Query) or any(aggregates(part)) for part in items):
            called, renamed = short(alias, scope.context.fresh()[1:], node)
            selected = [pair for item in items for pair in expanded(item, scope)]
            names = [*renamed, *(name for name, _ in selected[len(renamed) :])]
            values = tuple(build("list_value", [rows(part, scope)], part) for _, part in selected)
            if (
                len({fold(name) for name in names}) < len(names)
                or len(names) > len(values)
                or any(map(correlated, values))
            ):
                refuse("not_supported", "this LATERAL is not supported", "Give each column a name.", node)
            facts = {fold(n): (n, element(v.facts)) for n, v in zip(names, values, strict=True)}
            return Source(called, facts=facts, of=values)
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


def spreads(node: exp.Expr) -> bool:
    return any(fold(found.name) == "unnest" for found in node.find_all(exp.Anonymous))


def unnested(lists: list[exp.Expr], alias: str, word: str, scope: Scope, node: exp.Expr) -> Source:
    found = rows(lists[0], scope) if len(lists) == 1 else None
    if found is None or found.facts.type.element is None or correlated(found):
        refuse(
            "type_mismatch",
            "unnest takes one list of the row",
            "Unnest a column that is a list; list_contains(list, x) tests it.",
            node,
        )
    return Source(alias, facts={fold(word): (word, element(found.facts))}, of=(found,))


# --- subqueries in FROM ------------------------------------------------------------------------------------------------


def derived(query: exp.Expr, alias: exp.Expr | None, scope: Scope, node: exp.Expr) -> Source:
    """A subquery, a CTE or a view: rows of single persons under a name."""
    called, renamed = short(alias, scope.context.fresh()[1:] if alias is None else "", node)
    scope.context.depth += 1
    if scope.context.depth > MAX_SCANS:  # said before they are read, each of which reads all below it
        refuse("too_many_tables", f"more than {MAX_SCANS} subqueries are nested", "Nest fewer of them.", node)
    try:
        project = lowered(query, called, scope)
    finally:
        scope.context.depth -= 1
    names = [word.partition(".")[2] for word, _ in project.columns]
    names = told_apart(names) if query.meta.get("bracketed") else names
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


def told_apart(names: list[str]) -> list[str]:
    """Names of a join in brackets, as the engine tells them apart: id, id_1, ..."""
    result: list[str] = []
    for name in names:
        known, number_, word = {fold(one) for one in result}, 0, name
        while fold(word) in known:
            number_ += 1
            word = f"{name}_{number_}"
        result.append(word)
    return result


def lowered(query: exp.Expr, alias: str, scope: Scope) -> Project | Stacked:
    while isinstance(query, exp.Subquery):
        (query,) = take(query, "this")
    if (found := constant_rows(query, scope)) is not None:
        made = public(alias, found[0], found[1], query)
        shown = ((f"{alias}.{word}", made.column(word, query)) for word in found[0])
        return Project(made.scan(), alias, tuple(shown))
    if isinstance(query, exp.Select):
        return lowered_select(query, alias, Scope(scope.context, with_ctes(query, scope.ctes), scope.parent))
    if not isinstance(query, exp.SetOperation):
        refuse("not_supported", f"{describe(query)} is not supported here", "Write a SELECT.", query)
    left, right, distinct, by_name, _ = take(query, "this", "expression", "distinct", "by_name", "with_")
    ctes = with_ctes(query, scope.ctes)
    word = {exp.Union: "union", exp.Intersect: "intersect", exp.Except: "except"}.get(type(query))
    if by_name and word != "union":
        refuse("not_supported", f"{describe(query)} BY NAME is not supported", "Order the columns.", query)
    if word is None or (not distinct and word != "union"):
        hint = "Without ALL each row is there once."
        refuse("not_supported", f"{describe(query)} ALL is not supported", hint, query)
    sides = []
    for part in (left, right):
        side = lowered(part, alias, Scope(scope.context, ctes))
        sides.append(side if isinstance(side, Project) else flattened(side, alias))
    if by_name:
        second = {fold(name): (name, e) for name, e in sides[1].columns}
        names = [fold(name) for name, _ in sides[0].columns]
        if len(names) != len(sides[1].columns) or set(names) != second.keys():
            hint = "Select the same names on both sides."
            refuse("set_mismatch", f"the sides of {word.upper()} BY NAME have different columns", hint, query)
        sides[1] = replace(sides[1], columns=tuple(second[name] for name in names))
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


# --- one SELECT below the noise ----------------------------------------------------------------------------------------


def constant_rows(query: exp.Expr, scope: Scope) -> tuple[list[str], list[list[Expr]]] | None:
    """Names and cells of SELECT of constants without FROM, of their UNION ALL, and of unnest of constants; else None."""
    while isinstance(query, exp.Subquery) and set(query.args) == {"this"}:
        query = query.this
    clauses = {word for word, value in query.args.items() if value}
    if isinstance(query, exp.Union) and clauses == {"this", "expression"}:
        left, right = (constant_rows(side, scope) for side in (query.this, query.expression))
        if left is None or right is None or len(left[0]) != len(right[0]):
            return None
        names, cells = left[0], left[1] + right[1]
    elif isinstance(query, exp.Select) and clauses == {"expressions"}:
        if any(i.is_star or i.find(exp.Window, exp.Query) or any(aggregates(i)) for i in query.expressions):
            return None
        items = [pair for item in query.expressions for pair in expanded(item, scope)]
        names, columns = [word for word, _ in items], [spread(node, scope) for _, node in items]
        cells = [[column_[i % len(column_)] for column_ in columns] for i in range(max(map(len, columns)))]
        if sum(len(column_) > 1 for column_ in columns) > 1:
            return None
    else:
        return None
    kinds = ({line[i].facts.type for line in cells} for i in range(len(names)))
    constant_ = all(isinstance(cell, Constant) for line in cells for cell in line)
    return (names, cells) if constant_ and all(len(kind) == 1 for kind in kinds) else None


def spread(node: exp.Expr, scope: Scope) -> list[Expr]:
    """The cells of an item: those of a series or a list behind unnest, else one."""
    if isinstance(node, exp.Anonymous) and fold(node.name) == "unnest" and len(node.expressions) == 1:
        (given,) = node.expressions
        if isinstance(given, exp.Anonymous) and fold(given.name) in ("range", "generate_series"):
            word, parts = take(given, "this", "expressions")
            return series(word, [interval(part) or rows(part, scope) for part in parts], node)
        if isinstance(given, exp.Array) and len(given.expressions) > 1:
            return [rows(part, scope) for part in take(given, "expressions")[0]]
        return [rows(given, scope), rows(given, scope)]  # no constant
    return [rows(node, scope)]


def lowered_select(tree: exp.Select, alias: str, scope: Scope) -> Project:
    """A SELECT of single persons' rows: row by row, grouped, with windows, distinct."""
    names = "expressions from_ joins where group having qualify distinct order limit offset with_".split()  # noqa: SIM905
    items, from_, joins, where, group, having, qualify, distinct, order, limit, offset, _ = take(tree, *names)
    if from_ is None and any(item.is_star for item in items):
        refuse("no_table", "the subquery has no FROM", "Name a table of the policy.", tree)
    if limit or offset:
        refuse(
            "limit_not_local",
            "LIMIT in a subquery looks at the rows of all persons",
            "Number the rows of each person: QUALIFY row_number() OVER (PARTITION BY person ORDER BY ...) <= 3.",
            tree,
        )
    if from_ is None:  # one row of constants
        scope.first = public(scope.context.fresh(), ["x"], [[constant(1)]], tree)
        scope.add(scope.first, tree)
    else:
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
    outputs: list[tuple[str, Expr]] = []
    for name, node in selected:  # as in DuckDB, what follows may call it by its name
        outputs.append((name, inside.lower(node)))
        inside.names[fold(name)] = outputs[-1][1]
    inside.names = {}
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
        place = inside.window(window("row_number", (), keys, tuple(terms), None))
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
    copied: int = 0
    windows: list[Over] = field(default_factory=list)
    filters: list[Expr] = field(default_factory=list)
    after: list[Expr] = field(default_factory=list)

    def __post_init__(self) -> None:
        plain = [node for clause in self.clauses if clause is not None for node in aggregates(clause)]
        self.grouped = self.group is not None or any(not windowed(node) and owner(node) is self.root for node in plain)
        if self.group is not None:
            (items, everything) = take(self.group, "expressions", "all")
            if everything and items:
                refuse("not_supported", "GROUP BY ALL takes no columns", "Leave one of them out.", self.group)
            if everything:
                items = [node for _, node in self.selected if all(windowed(a) for a in aggregates(node))]
                items = [node for node in items if not isinstance(node, exp.Literal)]  # it is no position here
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
            self.copied += size(self.names[fold(node.name)])
            if self.copied > MAX_COPIED:
                refuse("too_deep", "names of the SELECT list are used in each other too often", "Use a subquery.", node)
            return self.names[fold(node.name)]
        if isinstance(node, exp.Window):
            return self.window(self.over(node))
        if not self.grouped:
            return rows(node, self.scope) if not node.find(exp.Window) and not self.names else self.deeper(node)
        plain = not node.find(exp.Window) and not any(aggregates(node))
        if plain and not isinstance(node, exp.Literal | exp.Placeholder):
            try:
                lowered = rows(node, self.scope)
            except Refused:
                lowered = None
            if lowered is not None and lowered in self.keys:
                if isinstance(lowered, Constant):  # as it stands: the cells of a key may have another representation
                    return lowered
                return Column(f"g{self.keys.index(lowered)}", lowered.facts)
        if isinstance(node, exp.Filter) or is_aggregate(node):
            return self.aggregate(node)
        if isinstance(node, exp.Subquery) and not isinstance(rows(node, self.scope), Constant):
            what = "a subquery that is a value stands neither in GROUP BY nor in an aggregate"
            refuse("not_grouped", what, "Group by it, or compute it in a subquery.", node)
        if isinstance(node, exp.Column):
            column(node, self.scope)
            refuse("not_grouped", f"{node.name!r} stands neither in GROUP BY nor in an aggregate", "Group by it.", node)
        return self.deeper(node)

    def deeper(self, node: exp.Expr) -> Expr:
        match node:
            case exp.Column() | exp.Placeholder() | exp.Subquery():
                return rows(node, self.scope)
            case exp.Anonymous() if id(node) in self.scope.elements:
                return self.scope.elements[id(node)]
            case _:
                return operator(node, self.lower)

    def aggregate(self, node: exp.Expr) -> Expr:
        where: Expr | None = None
        if isinstance(node, exp.Filter):
            inner, condition = take(node, "this", "expression")
            where = boolean(rows(take(condition, "this")[0], self.scope), "FILTER", condition)
            node = inner
        form = called(node)
        try:
            argument = rows(form.argument, self.scope) if form.argument is not None else None
            for part in form.present:
                there = call("NOT", call("IS NULL", rows(part, self.scope)))
                where = there if where is None else call("AND", where, there)
            order = self.terms(form.order, self.scope)
            if form.name == "avg" and argument is not None and argument.facts.type == INTERVAL:
                mean = self.measured(measure("avg", call("epoch_us", argument), form.distinct, where))
                return call("INTERVAL OF", call("CAST", mean, constant("BIGINT")))
            made = measure(*self.numbered(form.name, argument, node), form.distinct, where, order)
        except Refused as error:
            raise Refused(error.code, error.message, error.hint, position(node)) from None
        return self.measured(made)

    def measured(self, made: Measure) -> Column:
        if made not in self.measures:
            self.measures.append(made)
        return Column(f"m{self.measures.index(made)}", made.facts)

    def terms(self, items: Iterable[exp.Expr], scope: Scope) -> tuple[tuple[Expr, bool, bool], ...]:
        return tuple(self.term(item, lambda part: rows(part, scope)) for item in items)

    def ordering(self, item: exp.Expr) -> tuple[Expr, bool, bool]:
        this, descending, nulls_first = take(item, "this", "desc", "nulls_first")
        if isinstance(this, exp.Literal) and not this.is_string:
            this = self.meant(this)
        if isinstance(this, exp.Column) and not this.args.get("table") and fold(this.name) in self.names:
            return self.names[fold(this.name)], bool(descending), bool(nulls_first)
        return self.lower(this), bool(descending), bool(nulls_first)

    def term(self, item: exp.Expr, lower: Callable[[exp.Expr], Expr]) -> tuple[Expr, bool, bool]:
        this, descending, first = take(item, "this", "desc", "nulls_first")
        return lower(this), bool(descending), bool(first)

    def numbered(self, name: str, argument: Expr | None, node: exp.Expr) -> tuple[str, Expr | None]:
        """Conditions are added up as 1 and 0, and count_if is such a sum; as the engine's it is NULL of no rows."""
        if name == "count_if" and argument is not None:
            name, argument = "sum", boolean(argument, "count_if", node)
        if argument is not None and name in ("sum", "avg") and argument.facts.type == BOOLEAN:
            argument = call("CAST", argument, constant("INTEGER"))
        return name, argument

    def over(self, node: exp.Window) -> Over:
        function, partition, order, spec, _ = take(node, "this", "partition_by", "order", "spec", "over")
        where: Expr | None = None
        if isinstance(function, exp.Filter):
            function, condition = take(function, "this", "expression")
            where = boolean(self.lower(take(condition, "this")[0]), "FILTER", condition)
        form = windowed_call(function)
        name, argument = form.name, self.lower(form.argument) if form.argument is not None else None
        extra = [self.lower(part) for part in form.rest]
        if where is not None:
            argument = call("CASE", where, argument or constant(1), constant(None))
        name, argument = self.numbered(name, argument, node)
        arguments = [argument] if argument is not None else []
        frame_ = frame(spec)
        steps = extra[:1] if name in ("lag", "lead", "nth_value", "ntile") else extra
        least = 1 if name in ("nth_value", "ntile") else -(2**31)
        whole = all(isinstance(e, Constant) and isinstance(e.value, int) and least <= e.value < 2**31 for e in steps)
        ranged = frame_ is not None and (name in RANKS or (frame_[0] == "RANGE" and name in PLACES))
        if name in ("last_value", "nth_value") and frame_ is None and order is not None:
            hint = "Write ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW, or AND UNBOUNDED FOLLOWING."
            refuse("not_supported", f"{name} without a frame ends with rows that are equal", hint, node)
        if form.distinct or form.order or not whole or ranged or (where is not None and name not in MEASURES):
            hint = "Leave the frame out." if name in RANKS else "Use a constant offset, and ROWS for a frame."
            refuse("not_supported", f"this form of {name} is not supported", hint, node)
        by = tuple(self.lower(part) for part in partition or [])
        # Here a number is a constant, and names of the SELECT list come last.
        terms = tuple(self.term(item, self.lower) for item in take(order, "expressions")[0]) if order else ()
        if name in PLACES and len(extra) > 1:  # what stands there where there is no such row
            extra[1] = fitted(extra[1], arguments[0].facts.type)
            arguments[0] = fitted(arguments[0], joint(name, arguments[0], extra[1], node).facts.type)
            extra[1] = fitted(extra[1], arguments[0].facts.type)
        return window(name, (*arguments, *extra), by, terms, frame_)

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
            keep_if(query, take(this, "expressions")[0] if isinstance(this, exp.Tuple) else [this], negated, scope)
        else:
            predicate = boolean(rows(part, scope), "WHERE", part)
            if correlated(predicate):
                outside.append(predicate)
            else:
                scope.require(predicate)
    return outside


def keep_if(query: exp.Expr, this: list[exp.Expr] | None, negated: bool, scope: Scope) -> None:
    """[NOT] EXISTS (query), or this [NOT] IN (query): a semi or an anti join."""
    if negated and this is not None and len(this) > 1:
        hint = "Write NOT EXISTS (SELECT ... WHERE inner.x = outer.x)."
        refuse("not_supported", "NOT IN of several columns is not supported", hint, query)
    while isinstance(query, exp.Subquery):
        (query,) = take(query, "this")
    on: list[Expr] = []
    alias = scope.context.fresh()
    if isinstance(query, exp.Select) and query.args.get("from_") and not grouped(query):
        relation, on = opened(query, alias, scope, this)
    else:
        found = lowered(query, alias, Scope(scope.context, scope.ctes))
        project = found if isinstance(found, Project) else flattened(found, alias)
        relation = project
        if this is not None:
            on = matches([rows(part, scope) for part in this], [Column(n, e.facts) for n, e in project.columns], query)
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
    if place is not None and (fold(place.alias) in scope.optional or place.of):
        return False
    found = origin(relation if place is None else place.scan(), side.name)
    if found is None or found[1]:
        return False
    persons = [table.person for table in scope.context.catalog.tables.values() if table.person is not None]
    names = {fold(c) for p in persons for c in ((p,) if isinstance(p, str) else p.columns)}
    return fold(found[0].name) in names


def grouped(query: exp.Select) -> bool:
    own = [
        node for node in query.walk() if (isinstance(node, exp.Window) or is_aggregate(node)) and owner(node) is query
    ]
    return any(query.args.get(word) for word in ("group", "having", "distinct", "qualify", "limit", "with_")) or bool(
        own
    )


def matches(these: list[Expr], columns: list[Any], node: exp.Expr) -> list[Expr]:
    """That each value equals its column."""
    if len(columns) != len(these):
        many = "one column" if len(these) == 1 else f"{len(these)} columns"
        refuse("set_mismatch", f"the subquery of IN must have {many}", f"Select {many}.", node)
    return [build("=", [this, column_], node) for this, column_ in zip(these, columns, strict=True)]


def opened(query: exp.Select, alias: str, scope: Scope, this: list[exp.Expr] | None) -> tuple[Project, list[Expr]]:
    """A subquery whose conditions may name columns of the query around it: these conditions become the join's."""
    items, from_, joins, where = take(query, "expressions", "from_", "joins", "where")
    inner = Scope(scope.context, scope.ctes, scope)
    for item in items:  # of EXISTS (SELECT ...) nothing else is read
        if isinstance(item, exp.Star):
            take(item)
        elif spreads(item):
            refuse("unnest_misplaced", "unnest makes rows, and stands where none are read", "Put it into FROM.", item)
    read_from(from_, joins or [], inner)
    conditions: list[Expr] = []
    if where is not None:
        conditions += add_where(take(where, "this")[0], inner)
    if this is not None:
        found = [rows(take(i, "this", "alias")[0] if isinstance(i, exp.Alias) else i, inner) for i in items]
        conditions[:0] = matches([outer_of(rows(part, scope)) for part in this], found, query)
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


def met(
    inside: Inside, alias: str, equal: list[tuple[Expr, Expr]], others: list[Expr], scope: Scope, node: exp.Expr
) -> Callable[[Relation], Relation]:
    """A subquery that is tied by more than equalities: measures of the rows that each of the outer values meets.

    The outer values are the distinct ones of each person; they are joined with the subquery's rows, grouped by themselves, and
    looked up by the rows around. So nothing new has to be local.
    """
    scope.context.compared += 1
    if scope.context.compared > 1:  # the rows around are read twice, and with another one four times
        hint = "Put one of them into a query of its own."
        refuse("not_supported", "two subqueries are compared with the query around them", hint, node)
    ties_ = [call("=", mine, outer_of(theirs)) for mine, theirs in equal] + others
    wanted = list(dict.fromkeys(c for tie in ties_ for c in columns_in(tie) if c.name.startswith(OUTER)))
    mark = scope.context.fresh()
    cells = {c: Column(f"{mark}.o{i}", c.facts) for i, c in enumerate(wanted)}
    bare = [replace(c, name=c.name.removeprefix(OUTER)) for c in wanted]
    on = every([mapped(tie, lambda c: cells.get(c, c)) for tie in ties_])
    inner = inside.scope.relation()
    found = tuple((f"{alias}.k{i}", Column(f"g{i}", c.facts)) for i, c in enumerate(wanted))
    found += tuple((f"{alias}.m{i}", Column(f"m{i}", made.facts)) for i, made in enumerate(inside.measures))
    same = every([build("=", [c, Column(f"{alias}.k{i}", c.facts)], node) for i, c in enumerate(bare)])

    def step(relation: Relation) -> Relation:
        distinct = Group(relation, tuple((f"g{i}", c) for i, c in enumerate(bare)), ())
        pairs = Project(distinct, mark, tuple((c.name, Column(f"g{i}", c.facts)) for i, c in enumerate(cells.values())))
        keys = tuple((f"g{i}", c) for i, c in enumerate(cells.values()))
        measures = tuple((f"m{i}", made) for i, made in enumerate(inside.measures))
        grouped_ = Group(Join(pairs, inner, on), keys, measures)
        return Join(relation, Project(grouped_, alias, found), same, "left")

    return step


def found_any(node: exp.Expr, query: exp.Expr, this: list[exp.Expr] | None, scope: Scope) -> Expr:
    """EXISTS (query) and this IN (query) as a value of the row: whether the rows that it meets are more than none.

    IN is unknown where nothing is equal and something is NULL; here it is false, which is the same only where a row is kept
    or not. So elsewhere both sides must not be NULL.
    """
    kept_ = this is None or kept_or_not(node)
    if node in scope.scalars and kept_:
        return scope.scalars[node]
    while isinstance(query, exp.Subquery):
        (query,) = take(query, "this")
    if isinstance(query, exp.Select) and any(map(spreads, query.expressions)):
        refuse("unnest_misplaced", "unnest makes rows, and stands where none are read", "Put it into FROM.", node)
    if not isinstance(query, exp.Select) or not query.args.get("from_") or grouped(query):
        word = scope.context.fresh()[1:]
        names = [exp.to_identifier(f"c{i}") for i in range(len(this or ()))]
        alias = exp.TableAlias(this=exp.to_identifier(word, quoted=True), columns=names)
        shown: list[exp.Expr] = [exp.column(name.copy(), word, quoted=True) for name in names]
        shown = shown or [exp.Literal.number(1)]
        query = exp.Select(expressions=shown, from_=exp.From(this=exp.Subquery(this=query.copy(), alias=alias)))
    listed, query = query.expressions, query.copy()
    query.set("expressions", [exp.Count(this=exp.Star(), big_int=True)])
    number_ = scalar(exp.Subquery(this=query), scope, None if this is None else (this, listed), kept_)
    scope.scalars[node] = call(">", number_, constant(0))
    return scope.scalars[node]


def kept_or_not(node: exp.Expr) -> bool:
    """Whether unknown is as good as false there: in WHERE, FILTER, CASE WHEN and count_if, however deep in AND and OR."""
    below = node
    while isinstance(below.parent, exp.And | exp.Or | exp.Paren):
        below = below.parent
    at = below.parent
    if isinstance(at, exp.If):
        return at.this is below and (not isinstance(at.parent, exp.Case) or at.parent.this is None)
    return isinstance(at, exp.Where) or (isinstance(at, exp.Anonymous) and fold(at.name) in ("count_if", "countif"))


def scalar(
    node: exp.Subquery, scope: Scope, listed: tuple[list[exp.Expr], list[exp.Expr]] | None = None, kept: bool = True
) -> Expr:
    """(SELECT aggregate FROM ... WHERE inner = outer): grouped by the inner sides, and joined on them.

    (SELECT x FROM ... ORDER BY y LIMIT 1) is first(x ORDER BY y). `listed` are expressions of the row, and those of the
    subquery that equal them.
    """
    (query,) = take(node, "this")
    names = ("expressions", "from_", "joins", "where", "order", "limit")
    items, from_, joins, where, order, limit = take(query, *names)
    if isinstance(query, exp.Select) and not (from_ or where or limit) and len(items) == 1:  # an expression of the row
        return rows(items[0].unalias(), scope)
    if not isinstance(query, exp.Select) or from_ is None or len(items) != 1:
        refuse("not_supported", "this subquery is not supported", "Select one aggregate of one person's rows.", node)
    inner = Scope(scope.context, scope.ctes, scope)
    read_from(from_, joins or [], inner)
    equal: list[tuple[Expr, Expr]] = []
    others: list[Expr] = []
    found = add_where(take(where, "this")[0], inner) if where is not None else []
    if listed is not None:
        these = [outer_of(rows(part, scope)) for part in listed[0]]
        those = [rows(take(i, "this", "alias")[0] if isinstance(i, exp.Alias) else i, inner) for i in listed[1]]
        if not kept and any(side.facts.nullable for side in (*these, *those)):
            hint = "Write EXISTS or NOT EXISTS (SELECT 1 FROM ... WHERE inner.x = outer.x)."
            refuse(
                "not_supported", "IN (SELECT ...) of values that may be NULL stands inside NOT or a value", hint, node
            )
        found = [*matches(these, those, query), *found]
    for tie in found:
        match tie:
            case Call("=", (a, b), _) if correlated(a) != correlated(b):
                mine, theirs = (b, a) if correlated(a) else (a, b)
                equal.append((mine, mapped(theirs, lambda c: replace(c, name=c.name.removeprefix(OUTER)))))
            case Call("<" | "<=" | ">" | ">=" | "!=", _, _):  # never true of NULL, as equalities
                others.append(tie)
            case _:
                refuse(
                    "not_supported",
                    "a subquery that is a value may be tied to the query around it only by comparisons",
                    "Write WHERE inner.column = outer.column.",
                    node,
                )
    item = take(items[0], "this", "alias")[0] if isinstance(items[0], exp.Alias) else items[0]
    inside = Inside(inner, None, [], [items[0]])
    inside.grouped, inside.keys = True, [mine for mine, _ in equal]
    if limit is not None and others:  # each row would sort all that it meets
        hint = "Use a window: first_value(x) OVER (PARTITION BY person ORDER BY y)."
        refuse("not_supported", "LIMIT in a subquery that is tied by more than equalities is not supported", hint, node)
    if limit is not None:
        terms = take(order, "expressions")[0] if order is not None else []
        one = limit.expression
        places_ = any(isinstance(term.this, exp.Literal) for term in terms)
        if not isinstance(one, exp.Literal) or one.this != "1" or not terms or places_ or any(aggregates(item)):
            hint = "Write (SELECT x FROM ... WHERE inner.person = outer.person ORDER BY y LIMIT 1)."
            refuse("not_supported", "this LIMIT in a subquery that is a value is not supported", hint, node)
        value: Expr = inside.measured(measure("first", rows(item, inner), order=inside.terms(terms, inner)))
    elif order is not None:
        refuse("not_supported", "ORDER BY without LIMIT 1 in a subquery that is a value", "Leave it out.", node)
    else:
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
    if others:
        scope.steps.append(met(inside, alias, equal, others, scope, node))
    else:
        project = Project(inside.relation(), alias, columns)
        same = [build("=", [t, Column(f"{alias}.k{i}", m.facts)], node) for i, (m, t) in enumerate(equal)]
        scope.steps.append(lambda relation: Join(relation, project, every(same), "left"))

    def found_or_not(one: Column) -> Expr:
        """A measure of nothing is NULL, and a count of nothing is zero."""
        made = inside.measures[int(one.name[1:])]
        column_ = Column(f"{alias}.{one.name}", replace(made.facts, nullable=True))
        return call("coalesce", column_, constant(0)) if made.function == "count" else column_

    return mapped(value, found_or_not)
