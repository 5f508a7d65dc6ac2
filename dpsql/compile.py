"""The passes in order. Compiling is a pure function of the text, its parameters and public metadata; it never touches data.

Theorem: a plan's release is (epsilon, delta)-DP for adding or removing one person with all of her rows (or for replacing
her by another, if the policy says so), at the price of `plan.charge`. Proof: each line's Gives is the next line's Needs;
`allot` ends with the claim; what follows (`outer`) is post-processing of released values. Limits that are not declared are
released first, and `then` makes the plan anew with them: the last passes again, which take them as they take declared ones.
A statement that is not one release is composed of several.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from fractions import Fraction

from sqlglot import exp

from dpsql.catalog import Catalog, Value, fold
from dpsql.compose import Compiler, compose, not_one_for_each
from dpsql.errors import Refused
from dpsql.mechanisms import Gaussian, Laplace
from dpsql.passes.allot import allot
from dpsql.passes.around import spread
from dpsql.passes.bind import bind, written
from dpsql.passes.bound import bound
from dpsql.passes.climb import climb
from dpsql.passes.given import filled
from dpsql.passes.limit import limit
from dpsql.passes.names import name_apart
from dpsql.passes.parse import Parsed, apart, parse
from dpsql.passes.pivot import unpivot
from dpsql.passes.resolve import resolve
from dpsql.passes.sets import has_sets
from dpsql.passes.shapes import groups_alone
from dpsql.passes.split import split
from dpsql.passes.track import track
from dpsql.plan import Plan, Program, Read, Unknown
from dpsql.prefer import prefer

MAX_TRIES = 64  # queries that are tried as releases, so that nested ones do not take for ever
OF_PROGRAMS = (
    "rows_with_released",
    "too_many_releases",
    "delta_missing",
    "name_reserved",
    "weights_invalid",
    "groups_all_shown",
    "bounds_misplaced",
)
FINAL = ("join_too_wide", "too_many_tables", "groups_of_persons")  # what is so however it is taken apart
OF_ROWS = ("subquery_not_local", "not_grouped", "select_star", "no_aggregate")  # what the first refusal says better
PASSES = (parse, resolve, track, bound, split, limit, climb, allot)


def query_of(view: str, now: datetime | None) -> exp.Query | None:
    parsed = parse(view, now)
    return parsed.tree if isinstance(parsed.tree, exp.Query) and not parsed.marks else None


def compile(
    text: str,
    catalog: Catalog,
    epsilon: Fraction,
    delta: Fraction,
    parameters: object = None,
    shares: tuple[Fraction, ...] | None = None,
    now: datetime | None = None,
) -> Plan | Program:
    """The plan of a statement; `shares` are the parts of the budget that its releases get; `now` is what its clocks say."""
    try:
        catalog = replace(catalog, now=now)
        parsed = parse(text, now)
        try:
            plan = release(replace(parsed, tree=spread(parsed)), catalog, epsilon, delta, parameters)
        except Refused as error:
            refusal = error
        else:
            if shares is not None and len(shares) != 1:
                raise not_one_for_each(1, shares)
            return plan
        return composed(parse(text, now), catalog, epsilon, delta, parameters, refusal, shares)
    except Refused as error:
        error.locate(text)
        raise
    except RecursionError:
        raise Refused("too_deep", "the query is nested too deep", "Flatten it.") from None


def composed(
    parsed: Parsed,
    catalog: Catalog,
    epsilon: Fraction,
    delta: Fraction,
    parameters: object,
    refusal: Refused,
    shares: tuple[Fraction, ...] | None,
) -> Program:
    """The releases of a statement that is none itself; if it cannot be taken apart, it is refused as it was."""

    tries = iter(range(MAX_TRIES))

    def single(query: exp.Query, known: Catalog) -> bool:
        if next(tries, None) is None:
            raise Refused("too_many_releases", "too many queries are nested in each other", "Ask for less at a time.")
        try:
            release(apart(query), known, epsilon, delta)
        except Refused:
            return False
        return True

    def whole(query: exp.Query, known: Catalog) -> bool:
        if single(query.copy(), known):
            return True
        try:
            compose(query, known, compiler, refusal)
        except Refused as error:
            if error.code == "too_many_releases":
                raise
            return False
        return True

    def plan(
        query: exp.Query, known: Catalog, part: Fraction, waits: tuple[Read, ...], samples: tuple[Value, ...]
    ) -> Plan:
        hidden = groups_alone(query)
        if not waits:
            return release(apart(query.copy()), known, epsilon, delta, None, part, hidden=hidden)

        def given(values: tuple[tuple[Value, ...], ...]) -> Plan:
            made = tuple((sample, *found) for sample, found in zip(samples, values, strict=True))
            filled_in = apart(filled(query.copy(), made))
            return release(filled_in, known, epsilon, delta, None, part, waiting=True, hidden=hidden)

        return replace(given(tuple((value,) for value in samples)), waits=waits, given=given)

    compiler = Compiler(local, single, whole, plan)
    tree = unpivot(spread(parsed))
    if not isinstance(tree, exp.Query):
        raise refusal
    tree = written(tree, bind(parsed.marks, parameters))
    sets = has_sets(tree)
    opened = iter(range(MAX_TRIES))

    def view(word: str) -> exp.Query | None:
        text = next((text for name, text in catalog.policy.views.items() if fold(name) == word), None)
        if text is None or word in catalog.tables:
            return None
        if next(opened, None) is None or (found := query_of(text, catalog.now)) is None:
            raise refusal  # it has been read before, and said so
        return found

    name_apart(tree, view)
    try:
        return compose(tree, catalog, compiler, refusal, shares)
    except Refused as error:
        better = error.code in OF_PROGRAMS or not isinstance(tree, exp.Select) or sets
        better = better and refusal.code not in FINAL
        better = better or (refusal.code == "subquery_not_local" and error.code not in OF_ROWS)
        raise error if better else refusal from None


def local(query: exp.Query, catalog: Catalog) -> bool:
    """Whether all that a query aggregates are rows of single persons. Another mistake in it is not for us to find."""
    try:
        track(resolve(apart(query), catalog), catalog)
    except Refused as error:
        return error.code != "subquery_not_local"
    return True


def release(
    parsed: Parsed,
    catalog: Catalog,
    epsilon: Fraction,
    delta: Fraction,
    parameters: object = None,
    part: Fraction = Fraction(1),
    waiting: bool = False,
    hidden: bool = False,
) -> Plan:
    """The plan of one release.

    In a pure ledger that has a delta it gets the noise that errs less (`prefer`). Where limits are chosen first that is
    decided before, by the limits that an explanation takes: how they are chosen depends on the norm. A release that waits
    for values is charged the same with either noise, so these may decide.
    """
    pure = catalog.policy.budget.accounting == "pure"
    first = (Laplace if pure else Gaussian).norm
    resolved = resolve(parsed, catalog, parameters)
    tracked = track(resolved, catalog)
    bounded = bound(tracked)

    def follow(picked: Mapping[Unknown, Fraction], norm: int = first) -> Plan:
        # One of several is measured in the same way whichever noise it gets, so that levels of a ROLLUP can agree.
        parts = split(bounded, picked, norm if part == 1 else first, hidden)
        limited = limit(parts, catalog, norm)
        climbed = climb(limited)
        return allot(climbed, catalog, epsilon, delta, part, waiting)

    plan = follow({})
    if pure and delta and plan.noise:
        with suppress(Refused):  # it would be larger than any answer
            plan = prefer(plan, follow({}, Gaussian.norm))
    if not plan.unknowns:
        return plan
    known, norm = plan.unknowns, plan.noises[0].norm
    return replace(plan, then=lambda rungs: follow({u: u.rungs[i] for u, i in zip(known, rungs, strict=True)}, norm))
