"""PIVOT with IN is a GROUP BY: each of the listed values is a column of its own, filtered to it."""

from __future__ import annotations

import math
from functools import reduce
from itertools import product
from typing import Any

from sqlglot import exp

from dpsql.catalog import fold
from dpsql.passes.label import label
from dpsql.passes.lower import refuse, take

MAX_COLUMNS = 200


def unpivot(tree: exp.Expr) -> exp.Expr:
    """The SELECT that a PIVOT stands for: PIVOT t ON ..., and SELECT * FROM t PIVOT (...). Others are left as they are."""
    if isinstance(tree, exp.Pivot):
        source, fields, using, group, with_ = take(tree, "this", "expressions", "using", "group", "with_")
        select = pivoted(source, fields, using or [], group, tree)
        select.set("with_", with_)
        return select
    from_ = tree.args.get("from_")
    pivots = from_.this.args.get("pivots") if from_ is not None else None
    if from_ is None or not pivots:
        return tree
    (star,) = tree.expressions if len(tree.expressions) == 1 else (None,)
    if not isinstance(star, exp.Star) or len(pivots) != 1 or tree.args.get("joins") or tree.args.get("where"):
        refuse("not_supported", "PIVOT inside of another query is not supported", "Write SELECT * FROM it.", pivots[0])
    words = "expressions fields group columns unpivot default_on_null identify_pivot_strings prefixed_pivot_columns"
    using, fields, group, _, unpivoting, *_ = take(pivots[0], *words.split(), "pivot_column_naming")
    if unpivoting:
        refuse("not_supported", "UNPIVOT is not supported", "Write UNION ALL of one SELECT for each column.", tree)
    from_.this.set("pivots", None)
    select = pivoted(from_.this, fields, using, group, tree)
    for clause in ("with_", "order", "limit", "offset"):
        select.set(clause, tree.args.get(clause))
    take(tree, "expressions", "from_", "with_", "order", "limit", "offset")
    return select


def pivoted(
    source: exp.Expr, fields: list[exp.Expr], using: list[exp.Expr], group: exp.Expr | None, node: exp.Expr
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
    keys = take(group, "expressions")[0] if group is not None else others(source, [*fields, *using], node)
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


def others(source: exp.Expr, used: list[exp.Expr], node: exp.Expr) -> list[exp.Expr]:
    """Without GROUP BY a PIVOT groups by all columns that it does not use."""
    query = source.this if isinstance(source, exp.Subquery) else None
    if not isinstance(query, exp.Select) or any(not item.alias_or_name or item.is_star for item in query.expressions):
        refuse(
            "pivot_needs_group",
            "PIVOT would group by all other columns",
            "Write GROUP BY, or list columns in a subquery.",
            node,
        )
    gone = {fold(column.name) for part in used for column in part.find_all(exp.Column)}
    names = [item.alias_or_name for item in query.expressions]
    return [exp.column(name, quoted=True) for name in names if fold(name) not in gone]
