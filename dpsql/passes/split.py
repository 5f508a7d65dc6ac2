"""Aggregates to summands before the noise, and one finishing query after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

from sqlglot import exp

from dpsql import algebra, catalog
from dpsql.algebra import Aggregate, Call, Column, Expr, Literal, conjuncts, identifier, name, plain
from dpsql.catalog import BOOLEAN, DOUBLE, Type, Value, fold
from dpsql.errors import Refused
from dpsql.functions import cast
from dpsql.passes.resolve import MAX_KEYS, RULES, Resolved, aggregates
from dpsql.passes.track import Tracked
from dpsql.plan import Estimate, Keys, Linear, Output, PrivateKeys, PublicKeys, Ratio, Summand


@dataclass(frozen=True)
class Split:
    tracked: Tracked
    keys: Keys
    summands: tuple[Summand, ...]
    estimates: Mapping[Aggregate, Estimate]
    outputs: tuple[Output, ...]
    outer: exp.Select
    notes: tuple[str, ...]


def split(tracked: Tracked) -> Split:
    """Choose as few blocks as answer all aggregates, and write the rest as SQL over what is released.

    Needs:   outputs, HAVING, ORDER BY that mention rows only inside aggregates and keys
    Gives:   summands over rows of the local relation; an `outer` query that reads the released table and the keys only
    Proof:   `plain` renders an expression from keys, constants and released columns; it has no case that reads a
             relation. Whether keys are public, and then which there are, is read off the policy and the text: the
             product of the declared domains, with NULL where a column may be NULL, whether or not any row has the key
    Checked: test_record_play, specs/*.md
    """
    resolved = tracked.resolved
    wanted = [
        *(o.expression for o in resolved.outputs),
        *([resolved.having] if resolved.having else []),
        *(o.by for o in resolved.order),
    ]
    # Sorted so that the plan is a function of the question and not of set order; pairs first, since they serve counts.
    found = sorted(set().union(*map(aggregates, wanted)), key=lambda a: (a.name == "count", repr(a)))
    summands: list[Summand] = []
    estimates: dict[Aggregate, Estimate] = {}
    for aggregate in found:
        rule = RULES[aggregate.name]
        needed = rule.summand(aggregate.argument)
        place = next((i for i, have in enumerate(summands) if serves(have, needed)), None)
        if place is None:
            place = len(summands)
            summands.append(needed)
        estimates[aggregate] = rule.estimate(summands[place], summands[place].columns(place))
    keys = find_keys(resolved)
    return Split(
        tracked,
        keys,
        tuple(summands),
        estimates,
        resolved.outputs,
        outer(resolved, keys, estimates),
        notes(resolved, keys, summands),
    )


def serves(have: Summand, needed: Summand) -> bool:
    """Whether a block answers for another: a pair of x also counts x, and counts rows where x cannot be NULL."""
    if have == needed:
        return True
    if not have.pair or needed.pair or have.value is None:
        return False
    return have.value == needed.value if needed.value is not None else not have.value.facts.nullable


def domain_of(key: Expr, resolved: Resolved) -> tuple[Value, ...] | None:
    """All values of a key, if they are public: those that are declared, or the truth values."""
    declared = column_of(key, resolved)
    if declared is not None and declared.domain is not None:
        nullable, values = declared.nullable, declared.domain
    elif key.facts.type == BOOLEAN:
        nullable, values = key.facts.nullable, (False, True)
    else:
        return None
    return (*values, None) if nullable and not rejects_null(resolved, key) else values


def column_of(key: Expr, resolved: Resolved) -> catalog.Column | None:
    if not isinstance(key, Column):
        return None
    alias, _, bare = key.name.partition(".")
    scan = next(s for s in algebra.scans(resolved.relation) if s.alias == alias)
    return scan.table.columns[fold(bare)]


def find_keys(resolved: Resolved) -> Keys:
    domains = [(f"k{i}", key.facts.type, domain_of(key, resolved)) for i, key in enumerate(resolved.keys)]
    keys = PublicKeys(tuple((name, type_, values) for name, type_, values in domains if values is not None))
    if len(keys.columns) < len(domains):  # one private column makes the whole key private
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
    match resolved.relation:
        case algebra.Filter(_, predicate):
            return any(
                part == Call("NOT", (algebra.call("IS NULL", key),), part.facts)
                or (
                    isinstance(part, Call)
                    and part.function in ("=", "!=", "<", "<=", ">", ">=", "IN", "BETWEEN")
                    and part.arguments[0] == key
                )
                for part in conjuncts(predicate)
            )
        case _:
            return False


def outer(resolved: Resolved, keys: Keys, estimates: Mapping[Aggregate, Estimate]) -> exp.Select:
    """The finishing query: keys and aggregates from what was released, then the analyst's own expressions on them.

    It carries `row`, the number of the key, along: rows without an ORDER BY come in the order of the keys, never in the
    engine's, and error bars find their row by it.
    """
    values = {aggregate: f"v{i}" for i, aggregate in enumerate(estimates)}
    columns = [name(f"k{i}") for i in range(len(resolved.keys))]
    released = exp.Table(this=identifier("released"))
    shown_values = (attempt(shown(estimates[a], a.facts.type)).as_(v, quoted=True) for a, v in values.items())
    base = exp.select(name("row"), *columns, *shown_values)
    if isinstance(keys, PublicKeys) and keys.columns:
        base = base.from_(keys.select().subquery(identifier("keys"))).join(released, using=[identifier("row")])
    else:
        base = base.from_(released)

    def render(expression: Expr) -> exp.Expr:
        rendered = plain(expression, lambda aggregate: name(values[aggregate]))
        return attempt(rendered) if isinstance(expression, Call) else rendered

    query = exp.select(
        *(render(o.expression).as_(f"c{i}", quoted=True) for i, o in enumerate(resolved.outputs)), name("row")
    )
    query = query.from_(base.subquery(identifier("base")))
    if resolved.having is not None:
        query = query.where(render(resolved.having))
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
        exp.Mul(
            this=exp.Cast(this=name(column), to=exp.DataType.build("DOUBLE")),
            expression=algebra.literal(factor, DOUBLE),
        )
        for column, factor in form.terms.items()
    ]
    return exp.Paren(this=reduce(lambda left, right: exp.Add(this=left, expression=right), terms))


def shown(estimate: Estimate, type_: Type) -> exp.Expr:
    """An estimate as a value of the type that the engine gives to the exact aggregate."""
    match estimate:
        case Linear():
            value = linear(estimate)
        case Ratio(over, under, low, high):
            # A noisy count may be zero or negative; at least one row is what an average can be of.
            count = function("greatest", linear(under), algebra.literal(1, DOUBLE))
            quotient = exp.Div(this=linear(over), expression=count, typed=False, safe=False)
            value = function(
                "least", function("greatest", quotient, algebra.literal(low, DOUBLE)), algebra.literal(high, DOUBLE)
            )
    if type_ == DOUBLE:
        return value
    rounded = exp.Round(this=value, decimals=exp.Literal.number(type_.scale))
    return cast(rounded, DOUBLE, type_)


def notes(resolved: Resolved, keys: Keys, summands: list[Summand]) -> tuple[str, ...]:
    result = [
        f"values of {describe(s.value)} were clipped to {float(s.low):g} .. {float(s.high):g}"
        for s in summands
        if s.pair and s.value is not None
    ]
    for key in resolved.keys if isinstance(keys, PublicKeys) else ():
        declared = column_of(key, resolved)
        if declared is not None and declared.domain is not None:
            rest = "counted under NULL" if None in (domain_of(key, resolved) or ()) else "left out"
            result.append(
                f"rows whose {declared.name} is not one of its {len(declared.domain)} declared values are {rest}"
            )
    return tuple(result)


def describe(expression: Expr) -> str:
    return plain(expression, lambda aggregate: name(aggregate.name)).sql("duckdb").replace('"', "")
