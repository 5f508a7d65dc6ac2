"""What stands around groups in one SELECT, written as a query around another: DISTINCT of groups, LIMIT 10%, PIVOT in FROM."""

from __future__ import annotations

from sqlglot import exp

from dpsql.compiler.label import label
from dpsql.compiler.parse import Parsed
from dpsql.compiler.pivot import expand
from dpsql.compiler.resolve import has_aggregate
from dpsql.policy.catalog import fold

CLAUSES = ("with_", "distinct", "order", "limit", "offset")


def spread(parsed: Parsed) -> exp.Query | exp.Pivot:
    """The same statement, with a subquery for what has to be released before the rest of it."""
    tree = expand(parsed.tree)
    if not isinstance(tree, exp.Select):
        return tree
    limit = tree.args.get("limit")
    share = limit is not None and limit.args.get("limit_options") is not None
    groups = tree.args.get("group") is not None or any(map(has_aggregate, tree.expressions))
    if not (tree.args.get("distinct") or share) or not groups or any(item.is_star for item in tree.expressions):
        return tree
    names = [item.alias or label(item, top=True) for item in tree.expressions]
    if len(set(map(fold, names))) < len(names):
        return tree
    items = [item.unalias() for item in tree.expressions]
    known = {item.sql("duckdb"): name for item, name in zip(items, names, strict=True)}

    def outside(node: exp.Expr) -> exp.Expr:
        name = known.get(node.sql("duckdb")) if not isinstance(node, exp.Literal) else None
        return exp.column(name, quoted=True) if name is not None else node

    outer = exp.Select(expressions=[exp.Star()])
    for clause in CLAUSES:
        part = tree.args.get(clause)
        tree.set(clause, None)
        outer.set(clause, part.transform(outside) if part is not None and clause != "with_" else part)
    tree.set("expressions", [exp.alias_(item, name, quoted=True) for item, name in zip(items, names, strict=True)])
    outer.set("from_", exp.From(this=tree.subquery("q", copy=False)))
    return outer
