"""Above the noise: any SQL of the engine over released values, windows included."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from sqlglot import exp

from dpsql.compiler.lower import OVER_PERSONS, interval, over_persons, refuse, take, told, unknown
from dpsql.compiler.parse import describe
from dpsql.kernel.algebra import Expr, Free, Literal
from dpsql.policy.catalog import fold

# What may stand there beside the functions that are called by name.
NODES = (
    *(exp.Binary, exp.Unary, exp.Case, exp.Cast, exp.In, exp.Between, exp.Window, exp.Anonymous, exp.If),
    *(exp.Null, exp.Array, exp.Struct, exp.Bracket, exp.Map, exp.ToMap),
)
# Parts of a node that are no values themselves.
STRUCTURE = (
    exp.If,
    exp.WindowSpec,
    exp.Order,
    exp.Ordered,
    exp.Where,
    exp.Distinct,
    exp.IgnoreNulls,
    exp.RespectNulls,
    exp.Slice,
    exp.PropertyEQ,
)
WRITTEN = (exp.DataType, exp.Identifier, exp.Var)
# Rows that are equal in a window's order would come as the engine likes: for some functions the window is ordered further;
# for others, whose frame holds all equal rows, only the values in it.
BY_PLACE = (exp.RowNumber, exp.Lag, exp.Lead)
BY_VALUE = (exp.FirstValue, exp.LastValue)
VALUE_NAMES = {"nth_value", "first", "last", "list", "array_agg", "any_value", "arbitrary"}
# A short text with one of these in it could take all memory or time; printf and format have widths in theirs.
GROWING = frozenset(
    "repeat range generate_series lpad rpad list_resize array_resize levenshtein editdist3 damerau_levenshtein".split()  # noqa: SIM905
) | {"array_repeat", "list_repeat", "list_cosine_distance", "combinations", "permutations"}
FORMATS = {"printf", "format"}


def free(node: exp.Expr, lower: Callable[[exp.Expr], Expr]) -> Free:
    """A node as it is, with its values lowered: what reads rows is in there, and stays refused or aggregated.

    Needs:   a node whose values stand above the noise
    Gives:   SQL over keys, aggregates and constants
    Proof:   every part of the node is either a word of its own (`WRITTEN`), a list of such parts (`STRUCTURE`), or a value,
             and values are lowered; there is no case for a query, a table or a column
    Checked: test_free, specs/finishing.md, test_record_play
    """
    window = isinstance(node, exp.Window)
    if window:
        told(function_of(node))
    if isinstance(node, exp.AggFunc) or (isinstance(node, exp.Anonymous) and fold(node.name) in OVER_PERSONS):
        over_persons(node)
    if not isinstance(node, NODES) or (isinstance(node, exp.In) and not node.expressions):
        refuse("not_supported", f"{describe(node)} is not supported here", "Leave it out.", node)
    if isinstance(node, exp.Anonymous):
        named(node)
    if (length := interval(node)) is not None:
        node = spelt(length)
    values: list[Expr] = []

    def outline(part: Any, called: bool = False) -> Any:
        match part:
            case list():
                return [outline(one) for one in part]
            case exp.Expr() if called or isinstance(part, STRUCTURE):
                inside = called and isinstance(part, exp.Filter | exp.IgnoreNulls | exp.RespectNulls)
                return type(part)(**{k: outline(v, inside and k == "this") for k, v in part.args.items()})
            case exp.Star() if not any(part.args.values()) and isinstance(part.parent, exp.Count):
                return exp.Star()
            case exp.Expr() if isinstance(part, WRITTEN) and not part.find(exp.Query, exp.Column, exp.Func):
                return part.copy()
            case exp.Expr() if (length := interval(part)) is not None:
                return spelt(length)
            case exp.Expr():
                values.append(lower(part))
                if isinstance(part.parent, exp.WindowSpec) and not isinstance(values[-1], Literal):
                    refuse("not_supported", "a window's frame needs constants", "Write ROWS 6 PRECEDING.", node)
                if window and any(found.window for found in frees(values[-1])):
                    refuse("not_supported", "a window inside a window is not supported", "Use one of them.", node)
                return exp.Placeholder(this=str(len(values) - 1))
            case _:
                return part

    tree = type(node)(**{k: outline(v, window and k == "this") for k, v in node.args.items()})
    if window:
        untie(tree)
    return Free(tree, tuple(values), window)


def named(node: exp.Anonymous) -> None:
    """Operators have no names: called by one, DuckDB 2.0.0 does not look at the types of their arguments, and crashes."""
    told(node)
    word = fold(node.name)
    star = any(isinstance(part, exp.Star) for part in node.expressions)  # cout(*)
    if not re.fullmatch("[a-z][a-z0-9_]*", word) or word in GROWING or star:
        unknown(node)
    text = node.expressions[0] if node.expressions and word in FORMATS else None
    if word in FORMATS and (not isinstance(text, exp.Literal) or re.search(r"[0-9]{4}|[*]|\{[^}]*\{", text.name)):
        hint = "Write printf('%8.2f', x) or format('{:,}', x)."
        refuse("constant_invalid", f"{word} needs a constant text with small widths", hint, node)


def function_of(window: exp.Expr) -> exp.Expr:
    """What stands before OVER, without FILTER and IGNORE NULLS."""
    word: exp.Expr = window.this
    while isinstance(word, exp.Filter | exp.IgnoreNulls | exp.RespectNulls):
        word = word.this
    return word


def untie(window: exp.Expr) -> None:
    """Order what is equal by the number of its key."""
    word = function_of(window)
    name = fold(word.name) if isinstance(word, exp.Anonymous) else ""
    row = exp.Ordered(this=exp.column("row", quoted=True), desc=False, nulls_first=False)
    terms = [term.copy() for term in take(window.args["order"], "expressions")[0]] if window.args.get("order") else []
    spec = window.args.get("spec")
    if isinstance(word, BY_PLACE) or name == "ntile" or (spec is not None and spec.args.get("kind") == "ROWS"):
        window.set("order", exp.Order(expressions=[*terms, row]))
    elif isinstance(word, BY_VALUE):
        word.set("this", exp.Order(this=word.this, expressions=[*terms, row]))
    elif name in VALUE_NAMES:
        *front, last = word.expressions
        word.set("expressions", [*front, exp.Order(this=last, expressions=[*terms, row])])


def spelt(length: str) -> exp.Cast:
    """An interval as the engine reads it."""
    return exp.Cast(this=exp.Literal.string(length), to=exp.DataType.build("INTERVAL", dialect="duckdb"))


def frees(expression: Expr | None) -> list[Free]:
    """All of them inside an expression."""
    match expression:
        case Free(_, arguments):
            return [expression, *(found for argument in arguments for found in frees(argument))]
        case Literal():
            return []
    return [found for argument in getattr(expression, "arguments", ()) for found in frees(argument)]
