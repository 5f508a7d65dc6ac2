"""How aggregates and windows over one person's rows are written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from dpsql.compiler.aggregates import RULES
from dpsql.compiler.lower import refuse, take, told
from dpsql.compiler.parse import EXTREMES, describe
from dpsql.kernel.relations import RANKS, Bound, Frame
from dpsql.policy.catalog import fold

AGGREGATES: dict[type[exp.Expr], str] = {
    exp.Count: "count",
    exp.Sum: "sum",
    exp.Avg: "avg",
    exp.Min: "min",
    exp.Max: "max",
    exp.LogicalAnd: "bool_and",
    exp.LogicalOr: "bool_or",
}
NAMED = {word: word for word in ("first", "last", "count_if", "var_pop", "var_samp", "stddev_pop", "stddev_samp")}
NAMED |= {"mean": "avg", "any_value": "min", "countif": "count_if", "variance": "var_samp", "stddev": "stddev_samp"}
NAMED |= {word: "arg_min" if "min" in word else "arg_max" for word in EXTREMES}
OTHERS = {"median", "mode", "quantile_cont", "quantile_disc", "list", "array_agg", "string_agg", "product", "histogram"}
WINDOWS: dict[type[exp.Expr], str] = {
    exp.RowNumber: "row_number",
    exp.Rank: "rank",
    exp.DenseRank: "dense_rank",
    exp.Lag: "lag",
    exp.Lead: "lead",
    exp.FirstValue: "first_value",
    exp.LastValue: "last_value",
}
NAMED_WINDOWS = {word: word for word in ("ntile", "percent_rank", "cume_dist", "nth_value")}
NAMED_WINDOWS |= {"first": "first_value", "last": "last_value"}


@dataclass(frozen=True)
class Form:
    """An aggregate or a window function as it is written."""

    name: str
    argument: exp.Expr | None = None
    distinct: bool = False
    rest: tuple[exp.Expr, ...] = ()  # further arguments of a window function
    order: tuple[exp.Expr, ...] = ()  # of the rows of which the first or last is taken
    present: tuple[exp.Expr, ...] = ()  # what must not be NULL in them


def is_aggregate(node: exp.Expr) -> bool:
    named = fold(node.name) if isinstance(node, exp.Anonymous) else ""
    return isinstance(node, exp.AggFunc) or named in NAMED or named in RULES or named in OTHERS


def aggregates(node: exp.Expr) -> Iterator[exp.Expr]:
    """Those of an expression, without those of its subqueries."""
    parts = node.walk(prune=lambda part: isinstance(part, exp.Query))
    return (found for found in parts if is_aggregate(found))


def windowed(node: exp.Expr) -> bool:
    """Whether an aggregate is the function of a window, and not inside of one."""
    parent = node.parent.parent if isinstance(node.parent, exp.Filter) else node.parent
    return isinstance(parent, exp.Window) and parent.this in (node, node.parent)


def owner(node: exp.Expr) -> exp.Expr | None:
    return node.find_ancestor(exp.Select)


def called(node: exp.Expr) -> Form:
    """An aggregate of one person's rows."""
    told(node)
    if isinstance(node, exp.Anonymous) and fold(node.name) in NAMED:
        return named(node, NAMED[fold(node.name)], take(node, "this", "expressions")[1])
    name = AGGREGATES.get(type(node))
    if name is None:
        refuse(
            "not_supported",
            f"{describe(node)} of one person's rows is not supported",
            "Use count, sum, avg, min, max, bool_and, bool_or, var_samp, stddev_samp or first(x ORDER BY y).",
            node,
        )
    this, _, more = take(node, "this", "big_int", "expressions")
    if more:
        refuse("not_supported", f"{name} takes one argument", "Count its arguments.", node)
    if isinstance(this, exp.Distinct):
        expressions = take(this, "expressions")[0]
        if len(expressions) != 1:
            refuse("not_supported", "DISTINCT of several columns is not supported", "Use one.", node)
        return Form(name, expressions[0], True)
    if isinstance(this, exp.Star):
        take(this)
        this = None
    if this is None and name != "count":
        refuse("not_supported", f"{name} needs an argument", "", node)
    return Form(name, this)


def named(node: exp.Anonymous, name: str, given: list[exp.Expr]) -> Form:
    match name, given:
        case (("first" | "last"), [exp.Order() as ordered]):
            this, terms = take(ordered, "this", "expressions")
            return Form(name, this, order=tuple(terms))
        case (("first" | "last"), [_]):
            refuse("not_supported", f"{name} of one person's rows needs an order", f"Write {name}(x ORDER BY y).", node)
        case (("arg_min" | "arg_max"), [this, by]) if not isinstance(by, exp.Order):
            term = exp.Ordered(this=by.copy(), desc=name == "arg_max", nulls_first=False)
            return Form("first", this, order=(term,), present=(this, by))
        case _, [this] if name not in ("arg_min", "arg_max") and not isinstance(this, exp.Distinct | exp.Order):
            return Form(name, this)
        case _:
            refuse("not_supported", f"this form of {describe(node)} is not supported", "Count its arguments.", node)


def windowed_call(node: exp.Expr) -> Form:
    if isinstance(node, exp.Anonymous) and fold(node.name) in NAMED_WINDOWS:
        name, given = NAMED_WINDOWS[fold(node.name)], take(node, "this", "expressions")[1] or []
        wanted = {"ntile": 1, "percent_rank": 0, "cume_dist": 0, "nth_value": 2}.get(name, 1)
        if len(given) == wanted and not any(isinstance(part, exp.Order | exp.Distinct) for part in given):
            first = 0 if name == "ntile" else 1
            return Form(name, next(iter(given[:first]), None), rest=tuple(given[first:]))
    elif type(node) in WINDOWS:
        name = WINDOWS[type(node)]
        this, offset, default, more = take(node, "this", "offset", "default", "expressions")
        if not more and (this is None) == (name in (*RANKS, "row_number")):
            return Form(name, this, rest=tuple(part for part in (offset, default) if part is not None))
    else:
        return called(node)
    refuse("not_supported", f"this form of {name} is not supported", "See DuckDB's documentation.", node)


def frame(spec: exp.Expr | None) -> Frame | None:
    if spec is None:
        return None
    kind, start, start_side, end, end_side = take(spec, "kind", "start", "start_side", "end", "end_side")

    def bound(value: Any, side: str | None, outside: str) -> Bound:
        if isinstance(value, exp.Literal) and value.this.isdigit() and len(value.this) < 10 and kind == "ROWS":
            return -int(value.this) if side == "PRECEDING" else int(value.this)
        if value == "UNBOUNDED" and side == outside:
            return "unbounded"
        if (value == "CURRENT ROW" or value is None) and not side:
            return 0
        refuse("not_supported", "this frame is not supported", "Write ROWS BETWEEN 2 PRECEDING AND CURRENT ROW.", spec)

    if kind not in ("ROWS", "RANGE"):
        refuse("not_supported", f"frames of {kind} are not supported", "Write ROWS BETWEEN ... AND ...", spec)
    return kind, bound(start, start_side, "PRECEDING"), bound(end, end_side, "FOLLOWING")
