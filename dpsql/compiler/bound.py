"""A range for what one person adds to a group: her rows become one row for each group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from dpsql.compiler.parse import BOUNDS
from dpsql.compiler.resolve import Resolved, asked_of
from dpsql.compiler.whose import WHOSE, describe, person
from dpsql.errors import Refused
from dpsql.kernel.algebra import Aggregate, Call, Column, Expr, Free, call, constant, typed
from dpsql.kernel.functions import Range
from dpsql.kernel.keys import LONGEST, values_of
from dpsql.kernel.relations import Group, Measure, Relation, measure
from dpsql.policy.catalog import DOUBLE, VARCHAR, fold

SHOWN = 100  # characters of what a measure is called by in notes


@dataclass(frozen=True)
class Bounded:
    """A resolved statement with the rows that are released: its own, or one of each person and group (`apart`)."""

    resolved: Resolved
    relation: Relation
    by: tuple[Expr, ...]  # the keys of `resolved`, as expressions of the relation
    me: frozenset[str] = frozenset()  # columns that hold the person
    apart: bool = False


def bound(resolved: Resolved, me: frozenset[str]) -> Bounded:
    """Where an aggregate has a range for what one person adds to a group, put a step of that person below all of them.

    The kernel groups by the person too (`Grouped.each`). The ranges are clips of the new rows. Texts that are too long for a
    key are together here, as they are later.
    """
    asked = asked_of(resolved)
    if all(aggregate.each is None for aggregate in asked):
        return Bounded(resolved, resolved.relation, resolved.keys, me)
    measures: dict[str, Measure] = {}

    def column(function: str, argument: Expr | None, clip: Range | None = None) -> Column:
        """A measure of her rows in a group, as a column of the new relation."""
        value = within(argument, clip) if argument is not None and clip is not None else argument
        made, ends = measured(function, value), f" in {float(clip[0]):g} .. {float(clip[1]):g}" if clip else ""
        text = f"{WHOSE}{function}({'*' if argument is None else describe(argument)}{ends})"
        word = next((word for word, same in measures.items() if same == made), None)
        known = {fold(word) for word in measures}  # to the engine case makes no other column
        word = word or (
            text if len(text) <= SHOWN and fold(text) not in known else f"{WHOSE}{function} {len(measures)}"
        )
        measures[word] = made
        return Column(word, made.facts)

    new = {aggregate: over_persons(aggregate, resolved, me, column) for aggregate in asked}
    keys = [short(key, resolved) for key in resolved.keys]
    named = tuple((f"g{i}", key) for i, key in enumerate(keys))
    group = Group(resolved.relation, named, tuple(measures.items()), each=True)
    made = replace(
        resolved,
        outputs=tuple(replace(o, expression=changed(o.expression, new)) for o in resolved.outputs),
        having=resolved.having and changed(resolved.having, new),
        qualify=resolved.qualify and changed(resolved.qualify, new),
        order=tuple(replace(o, by=changed(o.by, new)) for o in resolved.order),
    )
    by = tuple(Column(word, replace(key.facts, stored=False)) for word, key in named)
    return Bounded(made, group, by, apart=True)


def over_persons(
    aggregate: Aggregate, resolved: Resolved, me: frozenset[str], column: Callable[..., Column]
) -> Aggregate:
    """The same aggregate over what each person adds to a group.

    Without a range of its own, COUNT and SUM are sums over persons all the same, clipped to a range that is chosen privately.
    """
    name, facts = aggregate.name, aggregate.facts
    argument = aggregate.arguments[0] if aggregate.arguments else None
    there = None
    if argument is not None and aggregate.distinct and name == "count":
        there = person(argument, me, resolved.relation)
    if there is not None:  # each row is a person
        if not there:
            return Aggregate("count", (), facts)
        counted = call(">", column("count", there[0]), constant(0))
        return Aggregate("count", (call("CASE", counted, constant(True), constant(None)),), facts)
    if aggregate.distinct or (aggregate.each is None and name not in ("count", "count_if", "sum")):
        words = f"{name}(DISTINCT x)" if aggregate.distinct else name
        too = name == "avg" and not aggregate.distinct
        hint = f"Write avg(x, {BOUNDS[1]} => (0, 100)), or ask" if too else "Ask"
        what = f"{words} stands beside an aggregate with {BOUNDS[1]}, and is not made of what each person adds"
        raise Refused("bounds_mixed", what, f"{hint} for it in a query of its own.")
    each = column({"count_if": "sum"}.get(name, name), argument, aggregate.clip)
    return Aggregate("avg" if name == "avg" else "sum", (each,), facts, clip=aggregate.each)


def within(value: Expr, ends: Range) -> Expr:
    """A value clipped below the noise; NULL stays NULL, which LEAST and GREATEST skip, and NaN is NULL as elsewhere."""
    made, gone = value, call("IS NULL", value)
    if value.facts.type == DOUBLE:
        gone = call("OR", gone, call("isnan", value))
    for function, end in zip(("greatest", "least"), ends, strict=True):
        exact = constant(int(end) if end.denominator == 1 else end) if value.facts.type != DOUBLE else None
        made = call(function, made, exact or typed(end, DOUBLE))
    return call("CASE", gone, constant(None), made)


def measured(function: str, argument: Expr | None) -> Measure:
    try:
        return measure(function, argument)
    except Refused as error:
        if error.code not in ("limit_missing", "may_overflow"):
            raise
        raise Refused(error.code, error.message, f"Write {BOUNDS[0]} => (0, 100) too.") from None


def short(key: Expr, resolved: Resolved) -> Expr:
    """A key as groups have it later: a private text that is too long is no key, and NULL."""
    if key.facts.type != VARCHAR:
        return key
    known = values_of(key, resolved.relation)
    if known is not None and any(len(str(value).encode()) > LONGEST for value in known):
        what = f"{BOUNDS[1]} with declared keys of more than {LONGEST:,} bytes is not supported"
        raise Refused("bounds_invalid", what, "Group by left(x, 1000).")
    return key


def changed(expression: Expr, new: dict[Aggregate, Aggregate]) -> Expr:
    match expression:
        case Aggregate():
            return new[expression]
        case Call(_, arguments) | Free(_, arguments):
            return replace(expression, arguments=tuple(changed(argument, new) for argument in arguments))
        case _:
            return expression
