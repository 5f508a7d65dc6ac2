"""Aggregates to summands before the noise, and one finishing query after it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date
from fractions import Fraction
from functools import lru_cache, reduce
from typing import assert_never

from sqlglot import exp

from dpsql import algebra, catalog
from dpsql.aggregates import RULES
from dpsql.algebra import Aggregate, Call, Column, Expr, Free, Literal, conjuncts, identifier, name, plain
from dpsql.catalog import BIGINT, BOOLEAN, DOUBLE, INTERVAL, VARCHAR, Domain, Interval, Type
from dpsql.errors import Refused
from dpsql.functions import PARTS, Facts, Range, cast, to_type
from dpsql.passes.free import frees
from dpsql.passes.resolve import MAX_KEYS, Resolved, aggregates
from dpsql.passes.track import Tracked
from dpsql.plan import (
    Axis,
    Clips,
    Estimate,
    Formula,
    Keys,
    Linear,
    Measures,
    Output,
    PrivateKeys,
    PublicKeys,
    Ratio,
    Summand,
    Unknown,
)
from dpsql.relations import filters, origin

STEPS, STEPS_OF_MOMENTS = 2**30, 2**20  # of the grid of a value that has no fewer
WHOSE = "one person's "  # how columns are called that `bound` has made
LONGEST = 1024  # bytes of a text that is a private key
DATE_PARTS = {*PARTS, "year", "date_part"}


@dataclass(frozen=True)
class Split:
    tracked: Tracked
    keys: Keys
    summands: tuple[Summand, ...]
    estimates: Mapping[Aggregate, Estimate]
    outputs: tuple[Output, ...]
    outer: exp.Select
    notes: tuple[str, ...]
    unknowns: tuple[Unknown, ...]
    picked: Mapping[Unknown, Fraction]


def split(tracked: Tracked, picked: Mapping[Unknown, Fraction], norm: int, hidden: bool = False) -> Split:
    """Choose as few blocks as answer all aggregates, and write the rest as SQL over what is released.

    Needs:   the norm that the noise is for (1 or 2); outputs, HAVING, ORDER BY that mention rows only inside aggregates and keys
    Gives:   summands over rows of the local relation; an `outer` query that reads the released table and the keys only
    Proof:   the clips are public: declared, of the query's text, or `picked` by an earlier release. `plain` renders an expression from keys, constants and released columns; it has no case that reads a
             relation. Whether keys are public, and then which there are, is read off the policy and the text: the
             product of the declared domains, with NULL where a column may be NULL, whether or not any row has the key
    Checked: test_record_play, specs/*.md
    """
    resolved = tracked.resolved
    shown = (o.expression for o in resolved.outputs)
    wanted = [e for e in (*shown, resolved.having, resolved.qualify, *(o.by for o in resolved.order)) if e]
    unknowns: dict[Unknown, None] = {}
    chosen: set[tuple[Expr, Fraction, Fraction]] = set()

    def clips(value: Expr, told: Range | None) -> Range:
        facts = value.facts
        if told is not None:  # where the values are known to lie they end in a narrower range still
            sure = facts.range if facts.declared or facts.type != DOUBLE else None
            return told if sure is None else (clamped(sure[0], told), clamped(sure[1], told))
        if facts.declared and facts.range is not None:
            return facts.range
        found = Unknown.ends(value)
        unknowns.update(dict.fromkeys(found))
        ends = [picked.get(unknown, unknown.usual) for unknown in found]
        low, high = (-ends[0], ends[1]) if len(ends) == 2 else (Fraction(0), ends[0])
        chosen.add((value, low, high))
        return low, high

    keys = find_keys(resolved, hidden)
    asked = sorted(set().union(*map(aggregates, wanted)), key=repr)  # the same in every process: limits are numbered
    needs = {aggregate: need(aggregate, tracked, clips, norm) for aggregate in asked}
    summands: list[Summand] = []
    estimates: dict[Aggregate, Estimate] = {}
    holders: dict[Expr, list[int]] = {}  # the blocks that measure a value
    # The largest first, since they serve the others; then in an order that is a function of the question.
    for aggregate in sorted(needs, key=lambda a: (*((-len(n.axes), -len(n.indices)) for n in [needs[a]]), repr(a))):
        needed = needs[aggregate]
        persons = needed.kind == "persons" or (tracked.apart and needed.kind == "rows")
        if persons and not needed.axes and isinstance(keys, PrivateKeys):
            estimates[aggregate] = Linear({"persons": Fraction(1)})  # they are counted for the threshold anyway
            continue
        near = holders.get(needed.axes[0].value, []) if needed.axes else range(len(summands))
        place = next((i for i in near if serves(summands[i], needed)), None)
        if place is None:
            place = len(summands)
            summands.append(needed)
            for axis in needed.axes:
                holders.setdefault(axis.value, []).append(place)
        block = summands[place]
        axes = [axis.value for axis in block.axes]
        places = tuple(axes.index(value) if value in axes else None for value in aggregate.arguments)
        estimates[aggregate] = RULES[aggregate.name].estimate(Measures(block, block.columns(place), places))
    return Split(
        tracked,
        keys,
        tuple(summands),
        estimates,
        resolved.outputs,
        outer(resolved, estimates),
        notes(tracked, keys, summands, chosen),
        tuple(unknowns),
        picked,
    )


def need(aggregate: Aggregate, tracked: Tracked, clips: Clips, norm: int) -> Summand:
    """The smallest block that an aggregate comes from."""
    found = person(aggregate.arguments[0], tracked) if aggregate.distinct and aggregate.name == "count" else None
    if found is not None:
        return Summand(tuple(Axis(value) for value in found), "persons", norm)
    degrees: dict[Expr, int] = {}
    for value, degree in zip(aggregate.arguments, RULES[aggregate.name].degrees, strict=False):
        degrees[value] = min(degrees.get(value, 0) + degree, 2)  # powers of one value add up; none is above two
    most = STEPS if sum(degrees.values()) == 1 else STEPS_OF_MOMENTS
    axes = tuple(
        Axis.of(value, degree, clips(value, aggregate.clip), most) if degree else Axis(value)
        for value, degree in sorted(degrees.items(), key=repr)
        if degree or value.facts.nullable or aggregate.distinct
    )
    return Summand(axes, "values" if aggregate.distinct else "rows", norm)


def clamped(value: Fraction, ends: Range) -> Fraction:
    return min(max(value, ends[0]), ends[1])


def person(value: Expr, tracked: Tracked) -> tuple[Expr, ...] | None:
    """What must not be NULL for a row to count its person, if the value is the person, or NULL; else None.

    She is never NULL, unless an outer join has found no row of hers.
    """
    match value:
        case Call("CASE", (condition, Column() as column, Literal(None)), _):
            found = person(column, tracked)
            shown = algebra.call("CASE", condition, algebra.constant(True), algebra.constant(None))
            return None if found is None else (value,) if found else (shown,)
        case Column() if value.name in tracked.me:
            found_at = origin(tracked.resolved.relation, value.name)
            return () if found_at is not None and not found_at[1] else (value,)
        case _:
            return None


def serves(have: Summand, needed: Summand) -> bool:
    """Whether a block answers for another: it measures all that the other does, of the same rows."""
    degrees = {axis.value: axis.degree for axis in needed.axes}
    ends = {axis.value: (axis.low, axis.high) for axis in needed.axes if axis.degree}
    rest = [axis.value for axis in have.axes if axis.value not in degrees]
    reach = {axis.value: axis.degree for axis in have.axes}
    # Where a value is measured NaN is left out, and COUNT does not do that. Declared columns have none, and arithmetic that
    # keeps within a range makes none.
    blurred = (
        axis.value
        for axis in have.axes
        if axis.degree and not degrees.get(axis.value) and axis.value.facts.type == DOUBLE
    )
    return (
        have.kind == needed.kind
        and all((axis.low, axis.high) == ends.get(axis.value, (axis.low, axis.high)) for axis in have.axes)
        and all(value in reach and reach[value] >= degree for value, degree in degrees.items())
        and not any(value.facts.nullable for value in rest)
        and all(value.facts.declared and value.facts.range is not None for value in blurred)
        and not (rest and have.kind != "rows")
    )


def domain_of(key: Expr, resolved: Resolved) -> Domain | None:
    """All values of a key, if they are public: those that are declared, or that follow from the text."""
    values = values_of(key, resolved)
    if values is None:
        return None
    for part in required(resolved):  # rows with other values are left out whatever they are
        match part:
            case Call("=" | "IN", (first, *listed), _) if first == key and all(
                isinstance(one, Literal) and one.facts.type.kind == key.facts.type.kind for one in listed
            ):
                kept = {one.value for one in listed if isinstance(one, Literal)}
                values = Domain(value for value in values if value in kept) or values
    declared = column_of(key, resolved)
    nullable = declared.nullable if declared is not None else key.facts.nullable
    return with_null(values) if nullable and not rejects_null(resolved, key) else values


@lru_cache(maxsize=256)
def with_null(values: Domain) -> Domain:
    return Domain((*values, None))


def values_of(key: Expr, resolved: Resolved) -> Domain | None:
    """The values of an expression other than NULL, if the policy and the text say which there are."""
    declared = column_of(key, resolved)
    if declared is not None and declared.domain is not None:
        return declared.domain
    if key.facts.type == BOOLEAN:
        return Domain((False, True))
    match key:
        case Literal(value, _):
            return Domain(() if value is None else (value,))
        case Call("CASE", arguments, _):
            parts: tuple[Expr, ...] = (*arguments[1::2], arguments[-1])
        case Call("coalesce", arguments, _):
            parts = arguments
        case Call("nullif", (first, _), _):
            parts = (first,)
        case Call(name, _, Facts(type=type_, range=(low, high), declared=True)) if (
            name in DATE_PARTS and type_ == BIGINT
        ):
            return Domain(range(int(low), int(high) + 1))
        case _:
            return None
    found = [values_of(part, resolved) for part in parts]
    return None if None in found else Domain(dict.fromkeys(value for values in found for value in values or ()))


def column_of(key: Expr, resolved: Resolved) -> catalog.Column | None:
    if not isinstance(key, Column):
        return None
    found = origin(resolved.relation, key.name)
    if found is None:
        return None
    declared, optional = found
    return replace(declared, nullable=declared.nullable or optional)


@lru_cache(maxsize=256)
def once(values: Domain, type_: Type) -> Domain:
    if type_ == DOUBLE:
        doubles = (
            None if v is None else float(Fraction(v)) + 0.0 for v in values if not isinstance(v, str | date | Interval)
        )
        return Domain(dict.fromkeys(doubles))
    return Domain({None if v is None else algebra.text_of(v, type_): v for v in values}.values())


def find_keys(resolved: Resolved, hidden: bool = False) -> Keys:
    """Public keys where all values are known; `hidden` ones are shown only if enough persons have them all the same."""
    domains = [(f"k{i}", key.facts.type, domain_of(key, resolved)) for i, key in enumerate(resolved.keys)]
    # One key for one value of the key's type: 0.1 and 1e-1 are the same DOUBLE, and a key that stands twice counts twice.
    keys = PublicKeys(
        tuple((name, type_, once(values, type_)) for name, type_, values in domains if values is not None)
    )
    if len(keys.columns) < len(domains) or (hidden and domains):  # one private column makes the whole key private
        return PrivateKeys(tuple((name, type_) for name, type_, _ in domains))
    if keys.count > MAX_KEYS:
        raise Refused(
            "too_many_keys",
            f"the GROUP BY has {keys.count} possible keys, more than {MAX_KEYS}",
            "Group by fewer columns, or declare smaller domains.",
        )
    return keys


def rejects_null(resolved: Resolved, key: Expr) -> bool:
    """Whether WHERE visibly keeps NULL out of a key: a comparison of the key itself is never true of NULL."""
    return any(
        part == Call("NOT", (algebra.call("IS NULL", key),), part.facts)
        or (
            isinstance(part, Call)
            and part.function in ("=", "!=", "<", "<=", ">", ">=", "IN", "BETWEEN")
            and part.arguments[0] == key
        )
        for part in required(resolved)
    )


def required(resolved: Resolved) -> Iterator[Expr]:
    """The conditions that every row meets."""
    return (part for predicate in filters(resolved.relation) for part in conjuncts(predicate))


def outer(resolved: Resolved, estimates: Mapping[Aggregate, Estimate]) -> exp.Select:
    """The finishing query: keys and aggregates from what was released, then the analyst's own expressions on them.

    "released" has `row`, the keys, and the noisy columns. It carries `row`, the number of the key, along: rows without an ORDER BY come in the order of the keys, never in the
    engine's, and error bars find their row by it.
    """
    values = {aggregate: f"v{i}" for i, aggregate in enumerate(estimates)}
    columns = [name(f"k{i}") for i in range(len(resolved.keys))]
    released: exp.Table | exp.Subquery = exp.Table(this=identifier("released"))
    means: list[Ratio] = []
    for estimate in estimates.values():
        means += (mean for mean in ratios(estimate) if isinstance(estimate, Formula) and mean not in means)
    if means:  # each stands many times in a formula
        parts = (value_of(mean, []).as_(f"q{i}", quoted=True) for i, mean in enumerate(means))
        released = exp.select(exp.Star(), *parts).from_(released).subquery(identifier("means"))
    shown_values = (attempt(shown(estimates[a], a.facts.type, means)).as_(v, quoted=True) for a, v in values.items())
    base = exp.select(name("row"), *columns, *shown_values).from_(released)

    windows: dict[Free, str] = {}

    def known(expression: Aggregate | Free) -> exp.Expr | None:
        found = values[expression] if isinstance(expression, Aggregate) else windows.get(expression)
        return None if found is None else name(found)

    def render(expression: Expr) -> exp.Expr:
        rendered = plain(expression, known)
        return rendered if isinstance(rendered, exp.Column | exp.Literal) else attempt(rendered)

    table = base.subquery(identifier("base"))
    outputs = [o.expression for o in resolved.outputs]
    everything = (*outputs, resolved.qualify, *(o.by for o in resolved.order))
    found = [free for expression in everything for free in frees(expression) if free.window]
    if found:  # they see the groups that HAVING has left
        computed = {free: plain(free, known) for free in dict.fromkeys(found)}
        windows.update({free: f"w{i}" for i, free in enumerate(computed)})
        added = (window.as_(windows[free], quoted=True) for free, window in computed.items())
        windowed = exp.select(exp.Star(), *added).from_(table)
        windowed = windowed.where(render(resolved.having)) if resolved.having is not None else windowed
        table = windowed.subquery(identifier("windowed"))

    query = exp.select(*(render(o).as_(f"c{i}", quoted=True) for i, o in enumerate(outputs)), name("row"))
    query = query.from_(table)
    if (condition := resolved.qualify if found else resolved.having) is not None:
        query = query.where(render(condition))
    # A constant orders nothing, and the engine would take it for a position; a term that stands twice says no more.
    terms = dict.fromkeys(item for item in resolved.order if not isinstance(item.by, Literal))
    ordered = [exp.Ordered(this=render(i.by), desc=i.descending, nulls_first=i.nulls_first) for i in terms]
    ordered.append(exp.Ordered(this=name("row"), desc=False, nulls_first=False))
    query.set("order", exp.Order(expressions=ordered))
    if resolved.limit is not None:
        query = query.limit(resolved.limit)
    return query.offset(resolved.offset) if resolved.offset else query


def function(word: str, *arguments: exp.Expr) -> exp.Expr:
    return exp.Anonymous(this=word, expressions=list(arguments))


def attempt(expression: exp.Expr) -> exp.Expr:
    """Arithmetic on noisy numbers may overflow; that is no one's secret, and the cell is NULL."""
    return function("try", expression)


def linear(form: Linear) -> exp.Expr:
    """A linear form of released columns as a DOUBLE."""
    terms: list[exp.Expr] = [
        exp.Mul(this=to_type(name(column), "DOUBLE"), expression=algebra.literal(factor, DOUBLE))
        for column, factor in form.terms.items()
        if factor
    ]
    if form.constant or not terms:
        terms.append(algebra.literal(form.constant, DOUBLE))
    return exp.Paren(this=reduce(lambda left, right: exp.Add(this=left, expression=right), terms))


def ratios(estimate: Estimate) -> Iterator[Ratio]:
    match estimate:
        case Ratio():
            yield estimate
        case Formula(_, parts, _, _):
            for part in parts:
                yield from ratios(part)


def value_of(estimate: Estimate, means: list[Ratio]) -> exp.Expr:
    """An estimate as a DOUBLE; some ratios are columns already."""
    match estimate:
        case Linear():
            return linear(estimate)
        case Ratio() if estimate in means:
            return name(f"q{means.index(estimate)}")
        case Ratio(over, under, low, high):
            # A noisy count may be zero or negative; at least one row is what an average can be of.
            count = function("greatest", linear(under), algebra.literal(1, DOUBLE))
            return within(exp.Div(this=linear(over), expression=count, typed=False, safe=False), low, high)
        case Formula(operation, parts, low, high):
            sides = [value_of(part, means) for part in parts]
    match operation:
        case "+" | "-" | "*":
            node = {"+": exp.Add, "-": exp.Sub, "*": exp.Mul}[operation]
            return exp.Paren(this=node(this=sides[0], expression=sides[1]))
        case "/":
            quotient: exp.Expr = exp.Div(this=sides[0], expression=sides[1], typed=False, safe=False)
            positive = exp.GT(this=sides[1].copy(), expression=algebra.literal(0, DOUBLE))
            kept = within(quotient, low, high) if low < high else quotient
            return exp.Case(ifs=[exp.If(this=positive, true=kept)])
        case "sqrt":
            return exp.Sqrt(this=sides[0])
        case "within":
            return within(sides[0], low, high)
        case (
            "sample"
        ):  # n / (n - 1) = 1 + 1 / (n - 1), of two rows at the least; a noisy number of rows is no whole one
            rest = exp.Paren(this=exp.Sub(this=sides[1], expression=algebra.literal(1, DOUBLE)))
            one = algebra.literal(1, DOUBLE)
            more = exp.Div(this=one, expression=function("greatest", rest, one.copy()), typed=False, safe=False)
            grown = exp.Mul(this=sides[0], expression=exp.Paren(this=exp.Add(this=one.copy(), expression=more)))
            enough = exp.GTE(this=sides[1].copy(), expression=algebra.literal(1.5, DOUBLE))
            return exp.Case(ifs=[exp.If(this=enough, true=grown)])
        case _:
            assert_never(operation)


def within(value: exp.Expr, low: Fraction, high: Fraction) -> exp.Expr:
    """A value that is not NULL, between two ends."""
    ends = [algebra.literal(end, DOUBLE) for end in (low, high)]
    return function("least", function("greatest", value, ends[0]), ends[1])


def shown(estimate: Estimate, type_: Type, means: list[Ratio]) -> exp.Expr:
    """An estimate as a value of the type that the engine gives to the exact aggregate."""
    value = value_of(estimate, means)
    if type_ == DOUBLE:
        return value
    rounded = exp.Round(this=value, decimals=exp.Literal.number(type_.scale))
    return cast(rounded, DOUBLE, type_)


def of_condition(value: Expr) -> bool:
    """Whether it is a condition as a number, which nothing can clip."""
    return isinstance(value, Call) and value.function == "CAST" and value.arguments[0].facts.type == BOOLEAN


def notes(
    tracked: Tracked, keys: Keys, summands: list[Summand], chosen: set[tuple[Expr, Fraction, Fraction]]
) -> tuple[str, ...]:
    resolved = tracked.resolved
    whose = "what one person adds" + " to a group" * bool(resolved.keys)
    clipped = (
        (
            f"{whose}, {describe(axis.value).removeprefix(WHOSE)}, is"
            if tracked.apart
            else f"values of {describe(axis.value)} were"
        )
        + f" clipped to {float(axis.low):g} .. {float(axis.high):g}"
        + " (chosen privately: no range is declared)" * ((axis.value, axis.low, axis.high) in chosen)
        for s in summands
        for axis in s.axes
        if axis.degree and not of_condition(axis.value)
    )
    result = list(dict.fromkeys(clipped))
    result += (
        f"{word} is FLOAT and is compared as DOUBLE, where 0.1 is 0.10000000149: compare round({word}, 6)"
        for word in (describe(Column(word, Facts(DOUBLE))) for word in floats(resolved))
    )
    for key in resolved.keys if isinstance(keys, PrivateKeys) else ():
        if key.facts.type == VARCHAR and long(key) and values_of(key, resolved) is None:
            result.append(f"texts of {describe(key)} with more than {LONGEST} bytes are counted under NULL")
        match key:
            case Call("epoch_us", (span,), _) if span.facts.type == INTERVAL and not span.facts.declared:
                result.append(f"intervals of {describe(span)} with more than 10,000 years are counted under NULL")
    for key in resolved.keys if isinstance(keys, PublicKeys) else ():
        declared = column_of(key, resolved)
        if declared is not None and declared.domain is not None:
            rest = "counted under NULL" if None in (domain_of(key, resolved) or ()) else "left out"
            result.append(
                f"rows whose {declared.name} is not one of its {len(declared.domain)} declared values are {rest}"
            )
    return tuple(result)


def floats(resolved: Resolved) -> list[str]:
    """Columns of the type FLOAT that conditions compare with constants."""
    compared = (
        column
        for part in required(resolved)
        if isinstance(part, Call) and part.function in ("=", "!=", "IN", "IS NOT DISTINCT FROM")
        if any(isinstance(argument, Literal) for argument in part.arguments)
        for column in part.arguments
    )
    found = ((c.name, origin(resolved.relation, c.name)) for c in compared if isinstance(c, Column))
    return list(dict.fromkeys(word for word, of in found if of is not None and of[0].type.sql == "FLOAT"))


def long(key: Expr) -> bool:
    """Whether a text may have more bytes than a key has: one that is stored, or made of such."""
    if isinstance(key, Column):
        return key.facts.type == VARCHAR
    return isinstance(key, Call) and any(map(long, key.arguments))


def describe(expression: Expr) -> str:
    """An expression in words of the query. Subqueries without a name have a number of ours, which is left out."""
    written = plain(expression, lambda found: name(found.name) if isinstance(found, Aggregate) else None).sql("duckdb")
    return re.sub(r'"\d+\.', '"', written).replace('"', "")
