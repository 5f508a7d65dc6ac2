"""Forms of SQL as other forms that mean the same: clocks, GROUP BY (), joins in brackets, what all arms of an OR have in common."""

from __future__ import annotations

import datetime
import re

from sqlglot import exp

from dpsql.compiler.aggregates import RULES
from dpsql.errors import Refused
from dpsql.policy.catalog import fold

MOMENTS = frozenset(
    "now get_current_timestamp current_timestamp transaction_timestamp localtimestamp current_localtimestamp".split()  # noqa: SIM905
)
DAYS = frozenset(("today", "current_date"))
CLOCKS: dict[type[exp.Expr], str] = {
    exp.CurrentTimestamp: "current_timestamp",
    exp.Localtimestamp: "localtimestamp",
    exp.CurrentDate: "current_date",
}
ASKED = re.compile(rf"\b({'|'.join(sorted(MOMENTS | DAYS))})\b", re.IGNORECASE)


def asks_time(text: str) -> bool:
    """Whether a text may ask for the time: what is made of it is then of one moment only."""
    return ASKED.search(text) is not None


def write_time_out(tree: exp.Expr, now: datetime.datetime | None, at: int | None = None) -> None:
    """now() and current_date as constants: the time of the statement, in UTC, which is the same wherever it stands."""
    for node in list(tree.find_all(exp.Anonymous, *CLOCKS)):
        word = CLOCKS.get(type(node), fold(node.name))
        given = [value for key, value in node.args.items() if key != "this" or not isinstance(node, exp.Anonymous)]
        if word not in MOMENTS | DAYS or any(given):
            continue
        if now is None:
            hint = "Pass it as a parameter: WHERE d >= ?."
            raise Refused("time_unknown", "the time of the statement is not known here", hint, at)
        value, kind = (now, "TIMESTAMP") if word in MOMENTS else (now.date(), "DATE")
        made: exp.Expr = exp.Cast(this=exp.Literal.string(str(value)), to=exp.DataType.build(kind, dialect="duckdb"))
        called = word if type(node) in CLOCKS else f"{word}()"
        made.meta["called"] = called
        shown = isinstance(node.parent, exp.Select) and node.arg_key == "expressions"
        node.replace(exp.alias_(made, called, quoted=True) if shown else made)


def group_by_nothing(group: exp.Group) -> None:
    """GROUP BY () is one group of everything, which it is without that too; beside keys it says nothing."""
    keys = [item for item in group.expressions if not (isinstance(item, exp.Tuple) and not item.expressions)]
    if len(keys) == len(group.expressions):
        return
    group.set("expressions", keys)
    select = group.parent
    if not any(group.args.values()) and isinstance(select, exp.Select):
        if not any(map(summed, select.expressions)):
            what = "GROUP BY () stands where nothing is aggregated"
            raise Refused("syntax", what, "Add an aggregate: SELECT count(*).")
        select.set("group", None)


def summed(item: exp.Expr) -> bool:
    named = (fold(call.name) in RULES for call in item.find_all(exp.Anonymous))
    return item.find(exp.AggFunc) is not None or any(named)


def write_brackets_out(node: exp.Subquery) -> None:
    """(t JOIN u USING (k)) AS q is (SELECT * FROM t JOIN u USING (k)) AS q; without a name it is as without the brackets."""
    table, parent = node.this, node.parent
    joins = table.args.get("joins") if isinstance(table, exp.Table | exp.Subquery) else None
    if not joins or not isinstance(parent, exp.From | exp.Join):
        return
    if node.args.get("alias") is not None:
        table.set("joins", None)
        made = exp.Select(expressions=[exp.Star()], from_=exp.From(this=table), joins=joins)
        made.meta["bracketed"] = True
        node.set("this", made)
    elif isinstance(parent, exp.From) and isinstance(parent.parent, exp.Select) and not node.args.get("joins"):
        select = parent.parent
        table.set("joins", None)
        parent.set("this", table)
        select.set("joins", [*joins, *(select.args.get("joins") or [])])


def take_common_out(node: exp.Or) -> None:
    """(a.id = b.id AND p) OR (a.id = b.id AND q) is a.id = b.id AND (p OR q), also where something is NULL."""
    arms = [list(parts(arm)) for arm in node.flatten()]
    common = [part for part in arms[0] if equal(part) and all(equal(part) in map(equal, arm) for arm in arms[1:])]
    if not common:
        return
    known = set(map(equal, common))
    rest = [[part.copy() for part in arm if equal(part) not in known] for arm in arms]
    either = [exp.Paren(this=exp.or_(*(exp.and_(*arm) for arm in rest)))] if all(rest) else []
    node.replace(exp.Paren(this=exp.and_(*(part.copy() for part in common), *either)))


def parts(node: exp.Expr) -> list[exp.Expr]:
    """The conditions of which all must be true."""
    node = node.unnest()
    return [*parts(node.this), *parts(node.expression)] if isinstance(node, exp.And) else [node]


def equal(node: exp.Expr) -> frozenset[str] | None:
    """The two columns that a condition equates."""
    if not isinstance(node, exp.EQ) or not all(isinstance(s, exp.Column) for s in (node.this, node.expression)):
        return None
    return frozenset(fold(side.sql("duckdb")) for side in (node.this, node.expression))


def of_rows(node: exp.Expr) -> bool:
    """Whether a condition is one of WHERE or of a join, however deep in AND and brackets."""
    at = node.parent
    while isinstance(at, exp.And | exp.Paren):
        at = at.parent
    return isinstance(at, exp.Where | exp.Join)


def write_out(tree: exp.Expr, now: datetime.datetime | None) -> None:
    """All of them."""
    write_time_out(tree, now)
    for group in list(tree.find_all(exp.Group)):
        group_by_nothing(group)
    for bracket in list(tree.find_all(exp.Subquery)):
        write_brackets_out(bracket)
    for either in [node for node in tree.find_all(exp.Or) if of_rows(node)]:
        take_common_out(either)
