"""How aggregates and windows over one person's rows are written."""

from __future__ import annotations

from typing import Any

from sqlglot import exp

from dpsql.passes.lower import refuse, take
from dpsql.passes.parse import describe
from dpsql.relations import RANKS


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
