"""The finishing query: what the analyst asked for, computed from what was released."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from functools import reduce
from typing import assert_never

from sqlglot import exp

from dpsql.compiler.blocks import Wanted
from dpsql.compiler.bound import Bounded
from dpsql.compiler.free import frees
from dpsql.compiler.program import Estimate, Formula, Linear, Ratio
from dpsql.compiler.resolve import Resolved
from dpsql.compiler.whose import WHOSE, describe
from dpsql.kernel import algebra
from dpsql.kernel.algebra import Aggregate, Call, Column, Expr, Free, Literal, identifier, name, plain
from dpsql.kernel.blocks import Summand
from dpsql.kernel.functions import Facts, cast, to_type
from dpsql.kernel.keys import LONGEST, Keys, PrivateKeys, PublicKeys, column_of, domain_of, required, values_of
from dpsql.kernel.relations import origin
from dpsql.policy.catalog import BOOLEAN, DOUBLE, INTERVAL, VARCHAR, Type


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


def notes(bounded: Bounded, keys: Keys, wanted: Sequence[Wanted], summands: Sequence[Summand]) -> tuple[str, ...]:
    resolved = bounded.resolved
    relation = resolved.relation
    whose = "what one person adds" + " to a group" * bool(resolved.keys)
    clipped = (
        (
            f"{whose}, {describe(axis.value).removeprefix(WHOSE)}, is"
            if bounded.apart
            else f"values of {describe(axis.value)} were"
        )
        + f" clipped to {float(axis.low):g} .. {float(axis.high):g}"
        + " (chosen privately: no range is declared)" * (clip is None and not ranged(axis.value.facts))
        for w, s in zip(wanted, summands, strict=True)
        for clip, axis in zip(w.clips, s.axes, strict=True)
        if axis.degree and not of_condition(axis.value)
    )
    result = list(dict.fromkeys(clipped))
    result += (
        f"{word} is FLOAT and is compared as DOUBLE, where 0.1 is 0.10000000149: compare round({word}, 6)"
        for word in (describe(Column(word, Facts(DOUBLE))) for word in floats(resolved))
    )
    for key in resolved.keys if isinstance(keys, PrivateKeys) else ():
        if key.facts.type == VARCHAR and long(key) and values_of(key, relation) is None:
            result.append(f"texts of {describe(key)} with more than {LONGEST} bytes are counted under NULL")
        match key:
            case Call("epoch_us", (span,), _) if span.facts.type == INTERVAL and not span.facts.declared:
                result.append(f"intervals of {describe(span)} with more than 10,000 years are counted under NULL")
    for key in resolved.keys if isinstance(keys, PublicKeys) else ():
        declared = column_of(key, relation)
        if declared is not None and declared.domain is not None:
            rest = "counted under NULL" if None in (domain_of(key, relation) or ()) else "left out"
            result.append(
                f"rows whose {declared.name} is not one of its {len(declared.domain)} declared values are {rest}"
            )
    return tuple(result)


def of_condition(value: Expr) -> bool:
    """Whether it is a condition as a number, which nothing can clip."""
    return isinstance(value, Call) and value.function == "CAST" and value.arguments[0].facts.type == BOOLEAN


def ranged(facts: Facts) -> bool:
    return facts.declared and facts.range is not None


def floats(resolved: Resolved) -> list[str]:
    """Columns of the type FLOAT that conditions compare with constants."""
    compared = (
        column
        for part in required(resolved.relation)
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
