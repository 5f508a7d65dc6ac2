"""Requests: what the compiler knows of rows, without what it believes about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from dpsql.compiler.blocks import Wanted
from dpsql.kernel import request
from dpsql.kernel.algebra import Aggregate, Call, Column, Expr, Free, Literal
from dpsql.kernel.relations import (
    Capped,
    Filter,
    Group,
    Join,
    Measure,
    Order,
    Over,
    Owned,
    Project,
    Relation,
    Scan,
    Stack,
    Unnest,
    Values,
    Windowed,
    scans,
)
from dpsql.policy.catalog import Table


def expression(node: Expr) -> request.Expression:
    match node:
        case Column(word):
            return request.Name(word)
        case Literal(value, facts):
            return request.Constant(value, facts.type.sql)
        case Call(function, arguments):
            return request.Apply(function, tuple(map(expression, arguments)))
        case Aggregate() | Free():
            raise AssertionError("an aggregate below the noise")
        case _:
            assert_never(node)


def relation(node: Relation) -> request.Relation:
    match node:
        case Scan(table, alias, columns):
            return request.Rows(table.name, alias, columns)
        case Values(columns_, rows):
            return request.Listed(tuple((word, type_.sql) for word, type_ in columns_), rows)
        case Join(left, right, on, kind):
            return request.Joined(relation(left), relation(right), None if on is None else expression(on), kind)
        case Filter(source, predicate):
            return request.Kept(relation(source), expression(predicate))
        case Project():
            return selected(node)
        case Group(source, keys, measures):
            by = tuple((word, expression(key)) for word, key in keys)
            made = tuple((word, measured(one)) for word, one in measures)
            return request.Grouped(relation(source), by, made, node.each)
        case Windowed(source, added):
            return request.Windows(relation(source), tuple((word, window(over)) for word, over in added))
        case Stack(left, right, kind_):
            return request.Combined(selected(left), selected(right), kind_)
        case Unnest(source, list_, column, stay):
            return request.Elements(relation(source), expression(list_), column, stay)
        case Owned() | Capped():
            raise AssertionError("only the kernel says whose rows they are")
        case _:
            assert_never(node)


def selected(node: Project) -> request.Selected:
    return request.Selected(relation(node.source), node.alias, tuple((w, expression(e)) for w, e in node.columns))


def ordering(order: Order) -> request.Order:
    return tuple((expression(e), descending, first) for e, descending, first in order)


def measured(one: Measure) -> request.Measured:
    argument, where = (None if e is None else expression(e) for e in (one.argument, one.filter))
    return request.Measured(one.function, argument, one.distinct, where, ordering(one.order))


def window(over: Over) -> request.Window:
    arguments, partition = (tuple(map(expression, part)) for part in (over.arguments, over.partition))
    return request.Window(over.function, arguments, partition, ordering(over.order), over.frame)


def block(wanted: Wanted) -> request.Block:
    axes = zip(wanted.block.axes, wanted.clips, strict=True)
    asked = (request.Asked(expression(axis.value), axis.degree, clip) for axis, clip in axes)
    return request.Block(tuple(asked), wanted.block.kind)


def released(tables: Sequence[Table]) -> tuple[request.Released, ...]:
    """The tables among these that are made of earlier releases."""
    return tuple(
        request.Released(one.name, tuple((c.name, c.type.sql) for c in one.columns.values()), one.key)
        for one in tables
        if one.path[0] == "temp"
    )


def tables_of(node: Relation) -> tuple[Table, ...]:
    return tuple({scan.table.name: scan.table for scan in scans(node)}.values())
