"""What one person can add is bounded, in integers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from sqlglot import exp

from dpsql import algebra
from dpsql.algebra import Expr, Filter, Relation, identifier, name, total
from dpsql.catalog import BIGINT, DOUBLE, HUGEINT, VARCHAR, Catalog
from dpsql.errors import Refused
from dpsql.functions import cast
from dpsql.passes.split import Split, domain_of
from dpsql.plan import PrivateKeys, PublicKeys, Summand

LONGEST = 1024  # bytes of a text that is a private key


@dataclass(frozen=True)
class Limited:
    split: Split
    max_rows: int
    max_groups: int
    inner: exp.Select


def limit(split: Split, catalog: Catalog, norm: int) -> Limited:
    """Scale each person's rows down to `max_rows_contributed` and add up integers.

    Needs:   a local relation with a person column; summands over its rows; the norm that the noise is for (1 or 2)
    Gives:   `inner`, integers for each key and block; one person moves block i by at most weight_i * max_rows in that
             norm, over all keys together, and no row makes the query raise
    Proof:   Let C = max_rows, n_g the person's rows in group g and r >= ||n|| an integer (`root`). Per row the CASE's
             arms put a into 0 .. grid, whatever the value is (NULL and NaN: the row is not counted in this block). The
             person's sums are A_g <= N_g = weight * (rows counted) <= weight * n_g. If ||n|| <= C they stay, else they
             become N'_g = floor(N_g C / r), A'_g = floor(A_g C / r) <= N'_g, B'_g = N'_g - A'_g >= 0. So A' + B' = N'
             and N'_g <= weight * n_g * C / r, hence ||A', B'||_p <= ||N'||_p <= weight * C for p = 1 and p = 2. All of
             it is a function of the person's bag of rows: counts and sums of integers, one integer norm, one fixed
             expression. Adding or removing the person adds or removes exactly her A', B'. Sizes: a person has fewer
             than 2^63 rows, weight < 2^31 and C < 2^31, so everything stays below 2^127. Private keys: before all this
             she keeps at most `max_groups` of her (person, key) pairs, the first in the order of a hash of the pair and
             then of the key, and the others are deleted, so that a key exists only through pairs that count; `persons`
             counts her once in each key that she keeps
    Checked: test_lemmas (contributions, sensitivity)
    """
    max_rows = find_limit(split, catalog)
    # Not declared: someone with more groups than this has more rows than max_rows, and counts for less anyway.
    max_groups = catalog.policy.defaults.max_groups_contributed or max_rows
    return Limited(split, max_rows, max_groups, inner(split, max_rows, max_groups, norm))


def find_limit(split: Split, catalog: Catalog) -> int:
    tables = split.tracked.resolved.tables
    default = catalog.policy.defaults.max_rows_contributed
    found = [t.max_rows_contributed or default for t in tables if t.person is not None]
    if None in found:
        raise Refused(
            "limit_missing",
            "the policy does not say how many rows of one person may count",
            "Ask the owner to add max_rows_contributed = 32 to [defaults] in the policy.",
        )
    return max(limit for limit in found if limit is not None)


def number(value: int) -> exp.Expr:
    return exp.Literal.number(value)


def huge(expression: exp.Expr) -> exp.Expr:
    return exp.Cast(this=expression, to=exp.DataType.build("HUGEINT", dialect="duckdb"))


def step(word: str) -> exp.Table:
    return exp.Table(this=identifier(word))


def times(value: exp.Expr, factor: int) -> exp.Expr:
    return exp.Mul(this=value, expression=number(factor)) if factor != 1 else value


def total_of(expression: exp.Expr) -> exp.Expr:
    return exp.Coalesce(this=exp.Sum(this=expression), expressions=[number(0)])


def inner(split: Split, max_rows: int, max_groups: int, norm: int) -> exp.Select:
    """rows -> grid -> pairs (person and key) -> ranked -> kept -> norms -> guesses -> roots -> limited -> totals by key."""
    keys = [name(column[0]) for column in split.keys.columns]
    columns = [c for i, s in enumerate(split.summands) for c in s.columns(i)]
    match split.keys:
        case PublicKeys(declared) if declared:
            totals = exp.select(*keys, *(total_of(name(c)).as_(c, quoted=True) for c in columns))
            totals = totals.from_(step("limited")).group_by(*keys)
            on = exp.and_(*(exp.NullSafeEQ(this=name(k.name, "keys"), expression=name(k.name, "totals")) for k in keys))
            cells = (exp.Coalesce(this=name(c, "totals"), expressions=[number(0)]) for c in columns)
            query = exp.select(*(huge(cell).as_(c, quoted=True) for c, cell in zip(columns, cells, strict=True)))
            query = query.from_(split.keys.select().subquery(identifier("keys")))
            query = query.join(totals.subquery(identifier("totals")), on=on, join_type="left")
            query = query.order_by(exp.Ordered(this=name("row", "keys"), desc=False, nulls_first=False))
        case PublicKeys():
            query = exp.select(*(huge(total_of(name(c))).as_(c, quoted=True) for c in columns)).from_(step("limited"))
        case PrivateKeys():
            persons = huge(exp.Count(this=exp.Star())).as_("persons", quoted=True)
            query = exp.select(*keys, persons, *(huge(total_of(name(c))).as_(c, quoted=True) for c in columns))
            query = query.from_(step("limited")).group_by(*keys)
        case _:
            assert_never(split.keys)
    made = steps(split, max_rows, max_groups, norm)
    query.set(
        "with_", exp.With(expressions=[exp.CTE(this=s, alias=exp.TableAlias(this=identifier(a))) for a, s in made])
    )
    return query


def steps(split: Split, max_rows: int, max_groups: int, norm: int) -> list[tuple[str, exp.Select]]:
    keys = [column[0] for column in split.keys.columns]
    by_person = [name("person"), *(name(k) for k in keys)]
    blocks = list(enumerate(split.summands))
    private = isinstance(split.keys, PrivateKeys)

    rows = exp.select(
        name(split.tracked.person).as_("person", quoted=True),
        *(
            (canonical(key) if private else total(key)).as_(f"k{i}", quoted=True)
            for i, key in enumerate(split.tracked.resolved.keys)
        ),
        *(row_value(s).as_(f"x{i}", quoted=True) for i, s in blocks if s.value is not None),
    )
    rows = rows.from_(algebra.select(shown_rows(split)).subquery(identifier("s")))
    grid = exp.select(
        *by_person, *(grid_value(s, f"x{i}").as_(f"x{i}", quoted=True) for i, s in blocks if s.value is not None)
    )
    pairs = exp.select(*by_person, huge(exp.Count(this=exp.Star())).as_("n", quoted=True))
    for i, s in blocks:
        counted: exp.Expr = name(f"x{i}") if s.value is not None else exp.Star()
        pairs = pairs.select(huge(exp.Count(this=counted)).as_(f"c{i}", quoted=True))
        if s.pair:
            pairs = pairs.select(huge(total_of(name(f"x{i}"))).as_(f"a{i}", quoted=True))
    n = name("n")
    one: exp.Expr = exp.Mul(this=n, expression=n.copy()) if norm == 2 else n
    whole = exp.Window(this=exp.Sum(this=one), partition_by=[name("person")]) if keys else one
    order = [exp.Anonymous(this="hash", expressions=by_person), *(name(k) for k in keys)]
    place = exp.Window(
        this=exp.RowNumber(),
        partition_by=[name("person")],
        order=exp.Order(expressions=[exp.Ordered(this=o, desc=False, nulls_first=False) for o in order]),
    )
    ranked = exp.select(exp.Star(), place.as_("place", quoted=True)).from_(step("pairs"))
    few = exp.LTE(this=name("place"), expression=number(max_groups))
    kept = exp.select(exp.Star()).from_(step("ranked")).where(few)
    norms = exp.select(exp.Star(), whole.as_("size", quoted=True))
    guess = cast(exp.Ceil(this=exp.Sqrt(this=cast(name("size"), HUGEINT, DOUBLE))), DOUBLE, HUGEINT)
    guesses = exp.select(exp.Star(), guess.as_("guess", quoted=True)) if norm == 2 else exp.select(exp.Star())
    roots = exp.select(exp.Star(), root(norm).as_("root", quoted=True))
    limited = exp.select(*by_person)
    for i, s in blocks:
        all_of_it = scaled(f"c{i}", s.weight, max_rows, norm)
        if s.pair:
            above = scaled(f"a{i}", s.fine, max_rows, norm)
            rest = exp.Sub(this=all_of_it, expression=above.copy())
            limited = limited.select(above.as_(f"a{i}", quoted=True), rest.as_(f"b{i}", quoted=True))
        else:
            limited = limited.select(all_of_it.as_(f"n{i}", quoted=True))
    return [
        ("rows", rows),
        ("grid", grid.from_(step("rows"))),
        ("pairs", pairs.from_(step("grid")).group_by(*(k.copy() for k in by_person))),
        *([("ranked", ranked), ("kept", kept)] if private else []),
        ("norms", norms.from_(step("kept" if private else "pairs"))),
        ("guesses", guesses.from_(step("norms"))),
        ("roots", roots.from_(step("guesses"))),
        ("limited", limited.from_(step("roots"))),
    ]


def canonical(key: Expr) -> exp.Expr:
    """One representation for values that the engine groups together: else the key would show whose row came first."""
    value = total(key)
    if key.facts.type == VARCHAR:  # hidden keys must not fill the memory: a long text is no key, and counts under NULL
        short = exp.LTE(this=exp.Anonymous(this="strlen", expressions=[value]), expression=number(LONGEST))
        return exp.Case(ifs=[exp.If(this=short, true=value.copy())])
    if key.facts.type != DOUBLE:
        return value
    nan = exp.Anonymous(this="isnan", expressions=[value])
    zero = exp.EQ(this=value.copy(), expression=algebra.literal(0, DOUBLE))
    arms = [(nan, cast(exp.Literal.string("nan"), VARCHAR, DOUBLE)), (zero, algebra.literal(0, DOUBLE))]
    return exp.Case(ifs=[exp.If(this=test, true=one) for test, one in arms], default=value.copy())


def shown_rows(split: Split) -> Relation:
    """Rows of keys that are not shown would only use up the person's limit."""
    relation = split.tracked.relation
    for key in split.tracked.resolved.keys if isinstance(split.keys, PublicKeys) else ():
        if None not in (domain_of(key, split.tracked.resolved) or (None,)):
            relation = Filter(relation, algebra.call("NOT", algebra.call("IS NULL", key)))
    return relation


def row_value(summand: Summand) -> exp.Expr:
    """The row's value in steps from `low`, as a DOUBLE that may still be anything; for a count, the value itself."""
    assert summand.value is not None
    value = total(summand.value)
    if not summand.pair:
        return value
    if summand.low and summand.value.facts.type != DOUBLE:  # exactly, before large numbers lose their last digits
        shifted = algebra.call("-", summand.value, algebra.constant(summand.low))
        value = cast(total(shifted), shifted.facts.type, DOUBLE)
    else:
        value = cast(value, summand.value.facts.type, DOUBLE)
        if summand.low:
            value = exp.Paren(this=exp.Sub(this=value, expression=algebra.literal(summand.low, DOUBLE)))
    if summand.step != 1:
        value = exp.Div(this=value, expression=algebra.literal(summand.step, DOUBLE), typed=False, safe=False)
    return exp.Round(this=value)


def grid_value(summand: Summand, column: str) -> exp.Expr:
    """The value on the grid: NULL, or an integer in 0 .. grid."""
    x = name(column)
    if not summand.pair:
        return x
    arms = [
        (exp.Between(this=x, low=number(0), high=number(summand.grid)), cast(x.copy(), DOUBLE, BIGINT)),
        (exp.Anonymous(this="isnan", expressions=[x.copy()]), exp.Null()),
        (exp.GT(this=x.copy(), expression=number(summand.grid)), number(summand.grid)),
        (exp.LT(this=x.copy(), expression=number(0)), number(0)),
    ]
    return exp.Case(ifs=[exp.If(this=test, true=value) for test, value in arms])


def root(norm: int) -> exp.Expr:
    """An integer that is not below the norm: its square is checked against `size`, so rounding cannot hurt."""
    size = name("size")
    if norm == 1:
        return size
    more = exp.Paren(this=exp.Add(this=name("guess"), expression=number(1)))
    arms = [
        (exp.GTE(this=exp.Mul(this=g, expression=g.copy()), expression=size.copy()), g.copy())
        for g in (name("guess"), more)
    ]
    return exp.Case(ifs=[exp.If(this=test, true=value) for test, value in arms], default=size.copy())


def scaled(column: str, factor: int, max_rows: int, norm: int) -> exp.Expr:
    """factor * column, and if the person is above the limit times max_rows / root, rounded down."""
    within = exp.LTE(this=name("size"), expression=number(max_rows**norm))
    down = exp.IntDiv(this=exp.Paren(this=times(name(column), factor * max_rows)), expression=name("root"))
    return exp.Case(ifs=[exp.If(this=within, true=times(name(column), factor))], default=down)
