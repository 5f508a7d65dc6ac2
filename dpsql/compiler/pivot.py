"""PIVOT with IN is a GROUP BY: each of the listed values is a column of its own, filtered to it."""

from __future__ import annotations

import math
from functools import reduce
from itertools import product
from typing import Any

from sqlglot import exp

from dpsql.compiler.label import label
from dpsql.compiler.lower import refuse, take
from dpsql.policy.catalog import fold

MAX_COLUMNS = 200


def expand(tree: exp.Query | exp.Pivot) -> exp.Query | exp.Pivot:
    """PIVOT as a statement, as a subquery and inside of another query becomes a SELECT. `unpivot` does SELECT * of it."""
    ctes = {fold(cte.alias): cte.this for cte in tree.find_all(exp.CTE)}
    for node in list(tree.find_all(exp.Pivot)):
        if isinstance(node.parent, exp.Subquery | exp.CTE) and node.arg_key == "this":
            node.replace(stated(node, ctes))
    for select in list(tree.find_all(exp.Select)):
        from_ = select.args.get("from_")
        if from_ is not None and from_.this.args.get("pivots") and not bare(select):
            source = from_.this
            named = source.args["pivots"][0].args.pop("alias", None)
            inner = pivoted_source(source, select, ctes)
            alias = named or source.args.get("alias") or exp.TableAlias(this=exp.to_identifier("pivoted"))
            from_.set("this", exp.Subquery(this=inner, alias=alias.copy()))
    return stated(tree, ctes) if isinstance(tree, exp.Pivot) else tree


def bare(select: exp.Select) -> bool:
    """SELECT * FROM t PIVOT (...), with ORDER BY and LIMIT at the most."""
    left = {clause for clause, value in select.args.items() if value} - {"expressions", "from_", "with_"}
    star = len(select.expressions) == 1 and isinstance(select.expressions[0], exp.Star)
    star = star and not select.args["from_"].this.args["pivots"][0].args.get("alias")
    return star and left <= {"order", "limit", "offset"}


def stated(tree: exp.Pivot, ctes: dict[str, exp.Expr]) -> exp.Select:
    """PIVOT t ON x IN (...) USING count(*) GROUP BY y, as a SELECT."""
    clauses = ("with_", "order", "limit", "offset")
    source, fields, using, group, *behind = take(tree, "this", "expressions", "using", "group", *clauses)
    select = pivoted(source, fields, using or [], group, tree, ctes)
    for clause, part in zip(clauses, behind, strict=True):
        select.set(clause, part)
    return select


def pivoted_source(source: exp.Expr, tree: exp.Expr, ctes: dict[str, exp.Expr]) -> exp.Select:
    """t PIVOT (...) in FROM, as a SELECT. The pivot is taken off the source."""
    pivots = source.args["pivots"]
    words = "expressions fields group columns unpivot default_on_null identify_pivot_strings prefixed_pivot_columns"
    using, fields, group, _, unpivoting, *_ = take(pivots[0], *words.split(), "pivot_column_naming")
    if unpivoting or len(pivots) > 1:
        refuse("not_supported", "UNPIVOT is not supported", "Write UNION ALL of one SELECT for each column.", tree)
    source.set("pivots", None)
    return pivoted(source.copy(), fields, using, group, tree, ctes)


def unpivot(tree: exp.Expr) -> exp.Expr:
    """The SELECT that SELECT * FROM t PIVOT (...) stands for. Others are left as they are."""
    ctes = {fold(cte.alias): cte.this for cte in tree.find_all(exp.CTE)}
    if isinstance(tree, exp.Pivot):
        return stated(tree, ctes)
    from_ = tree.args.get("from_")
    if from_ is None or not from_.this.args.get("pivots"):
        return tree
    select = pivoted_source(from_.this, tree, ctes)
    for clause in ("with_", "order", "limit", "offset"):
        select.set(clause, tree.args.get(clause))
    take(tree, "expressions", "from_", "with_", "order", "limit", "offset")
    return select


def pivoted(
    source: exp.Expr,
    fields: list[exp.Expr],
    using: list[exp.Expr],
    group: exp.Expr | None,
    node: exp.Expr,
    ctes: dict[str, exp.Expr],
) -> exp.Select:
    lists: list[list[tuple[exp.Expr, str]]] = []
    for field in fields if isinstance(fields, list) else [node]:
        if not isinstance(field, exp.In) or not field.expressions:
            hint = "Which values there are is known only to the data: write ON x IN ('a', 'b')."
            refuse("pivot_needs_values", "PIVOT needs the list of its values", hint, field)
        value, options = take(field, "this", "expressions")
        named = [take(o, "this", "alias") if isinstance(o, exp.PivotAlias) else [o, None] for o in options]
        texts = [written(o) for o, _ in named]
        if len(set(texts)) < len(texts) or len({isinstance(o, exp.Literal) and o.is_string for o, _ in named}) > 1:
            refuse("pivot_needs_values", "PIVOT needs different values of one type", "List each of them once.", field)
        lists.append(
            [
                (exp.EQ(this=value.copy(), expression=o), a.name if a else t)
                for (o, a), t in zip(named, texts, strict=True)
            ]
        )
    measures: list[list[Any]] = [take(m, "this", "alias") if isinstance(m, exp.Alias) else [m, None] for m in using]
    if not measures:
        measures = [[exp.Count(this=exp.Star(), big_int=True), None]]
    if math.prod(map(len, lists)) * len(measures) > MAX_COLUMNS:
        refuse("too_many_columns", f"PIVOT makes more than {MAX_COLUMNS} columns", "List fewer values.", node)
    keys = take(group, "expressions")[0] if group is not None else others(source, [*fields, *using], node, ctes)
    items = list(keys)
    for options in product(*lists):
        for measure, alias in measures:
            tests = (test.copy() for test, _ in options)
            condition = reduce(lambda left, right: exp.And(this=left, expression=right), tests)
            words = [word for _, word in options] + (
                [alias.name if alias else label(measure)] if alias or measures[1:] else []
            )
            shown = exp.Filter(this=measure.copy(), expression=exp.Where(this=condition))
            items.append(exp.alias_(shown, "_".join(words), quoted=True))
    grouping = exp.Group(expressions=[key.copy() for key in keys]) if keys else None
    return exp.Select(expressions=items, from_=exp.From(this=source), group=grouping)


def written(value: exp.Expr) -> str:
    """The name of the column for a value: a text, a whole number, true or false."""
    match value:
        case exp.Literal() if value.is_string or value.name.isdigit():
            return str(value.this)
        case exp.Neg(this=exp.Literal(this=digits)) if digits.isdigit():
            return f"-{digits}"
        case exp.Boolean():
            return "true" if value.this else "false"
    refuse("pivot_needs_values", "PIVOT needs texts, whole numbers or booleans", "Write ON x IN ('a', 'b').", value)


def others(source: exp.Expr, used: list[exp.Expr], node: exp.Expr, ctes: dict[str, exp.Expr]) -> list[exp.Expr]:
    """Without GROUP BY a PIVOT groups by all columns that it does not use."""
    query = source.this if isinstance(source, exp.Subquery) else ctes.get(fold(source.name))
    if not isinstance(query, exp.Select) or any(not item.alias_or_name or item.is_star for item in query.expressions):
        refuse(
            "pivot_needs_group",
            "PIVOT would group by all other columns",
            "Write GROUP BY, or PIVOT a subquery that lists its columns.",
            node,
        )
    gone = {fold(column.name) for part in used for column in part.find_all(exp.Column)}
    names = [item.alias_or_name for item in query.expressions]
    return [exp.column(name, quoted=True) for name in names if fold(name) not in gone]
