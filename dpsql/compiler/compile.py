"""From SQL text to requests for releases and what is computed from them.

Compiling is a pure function of the text, its parameters and public metadata; it never touches data. Nothing here is trusted:
the kernel derives anew whatever a request's privacy depends on. A statement that is not one release is composed of several.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from fractions import Fraction
from typing import Literal

from sqlglot import exp

from dpsql.compiler import requests
from dpsql.compiler.around import spread
from dpsql.compiler.bind import bind, written
from dpsql.compiler.blocks import blocks
from dpsql.compiler.bound import bound
from dpsql.compiler.compose import Compiler, compose, not_one_for_each
from dpsql.compiler.finishing import notes, outer
from dpsql.compiler.given import filled
from dpsql.compiler.names import name_apart
from dpsql.compiler.parse import Parsed, apart, parse
from dpsql.compiler.pivot import unpivot
from dpsql.compiler.prefer import prefer
from dpsql.compiler.program import Plan, Program, Read
from dpsql.compiler.resolve import Resolved, asked_of, resolve
from dpsql.compiler.sets import has_sets
from dpsql.compiler.shapes import groups_alone
from dpsql.errors import Refused
from dpsql.kernel import plan as kernel
from dpsql.kernel.keys import PrivateKeys, find_keys
from dpsql.kernel.mechanisms import Gaussian, Laplace
from dpsql.kernel.noise import Release
from dpsql.kernel.persons import track
from dpsql.kernel.plan import follow
from dpsql.kernel.request import Request
from dpsql.policy.catalog import Catalog, Value, fold

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
    limits: tuple[int | None, int | None] = (None, None),
) -> Plan | Program:
    """The plan of a statement; `shares` are the parts of the budget that its releases get; `now` is what its clocks say.

    `limits` are the caller's own, on one person's rows and groups.
    """
    try:
        owner, catalog = catalog, replace(catalog.limited(*limits), now=now)
        price = Price(epsilon, delta, max_rows=limits[0], max_groups=limits[1])
        parsed = parse(text, now)
        try:
            plan = release(replace(parsed, tree=spread(parsed)), catalog, owner, price, parameters)
        except Refused as error:
            refusal = error
        else:
            if shares is not None and len(shares) != 1:
                raise not_one_for_each(1, shares)
            return plan
        return composed(parse(text, now), catalog, owner, price, parameters, refusal, shares)
    except Refused as error:
        error.locate(text)
        raise
    except RecursionError:
        raise Refused("too_deep", "the query is nested too deep", "Flatten it.") from None


def composed(
    parsed: Parsed,
    catalog: Catalog,
    owner: Catalog,
    price: Price,
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
            release(apart(query), known, owner, price)
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
            return release(apart(query.copy()), known, owner, replace(price, part=part), hidden=hidden)

        def given(values: tuple[tuple[Value, ...], ...]) -> Plan:
            made = tuple((sample, *found) for sample, found in zip(samples, values, strict=True))
            filled_in = apart(filled(query.copy(), made))
            return release(filled_in, known, owner, replace(price, part=part, waiting=True), hidden=hidden)

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
        leads(resolve(apart(query), catalog), catalog)
    except Refused as error:
        return error.code != "subquery_not_local"
    return True


def leads(resolved: Resolved, catalog: Catalog) -> frozenset[str]:
    """The columns that hold the person, by the kernel's word; what is not local is refused."""
    values = tuple(argument for aggregate in asked_of(resolved) for argument in aggregate.arguments)
    return track(resolved.relation, resolved.keys, values, catalog).me


@dataclass(frozen=True)
class Price:
    """What a release may cost: the statement's epsilon and delta, and its part of them; and the limits of the call."""

    epsilon: Fraction
    delta: Fraction
    part: Fraction = Fraction(1)
    waiting: bool = False
    max_rows: int | None = None
    max_groups: int | None = None


def release(
    parsed: Parsed, catalog: Catalog, owner: Catalog, price: Price, parameters: object = None, hidden: bool = False
) -> Plan:
    """The plan of one release. `catalog` has the tables that were released before, `owner` is what the kernel believes.

    In a pure ledger that has a delta it gets the noise that errs less (`prefer`). Where limits are chosen first that is
    decided before, by the limits that an explanation takes: how they are chosen depends on the norm. A release that waits
    for values is charged the same with either noise, so these may decide.
    """
    pure = owner.policy.budget.accounting == "pure"
    first: Literal["laplace", "gaussian"] = "laplace" if pure else "gaussian"
    resolved = resolve(parsed, catalog, parameters)
    bounded = bound(resolved, leads(resolved, catalog))
    keys = find_keys(resolved.relation, resolved.keys, hidden)
    norm = (Laplace if pure else Gaussian).norm
    found = blocks(bounded, norm, isinstance(keys, PrivateKeys))
    request = Request(
        requests.relation(bounded.relation),
        tuple(map(requests.expression, bounded.by)),
        tuple(map(requests.block, found.wanted)),
        price.epsilon,
        price.delta,
        first,
        requests.released(requests.tables_of(bounded.relation)),
        hidden,
        None in found.places.values(),
        price.part,
        price.waiting,
        # One of several is measured in the same way whichever noise it gets, so that levels of a ROLLUP can agree.
        price.part != 1,
        price.max_rows,
        price.max_groups,
    )

    def finished(made: Release) -> Plan:
        estimates = found.estimates(made.summands)
        said = (*notes(bounded, made.keys, found.wanted, made.summands), *made.notes)
        query = outer(bounded.resolved, estimates).sql("duckdb", comments=False, copy=False)
        then = (lambda rungs: finished(follow(made, rungs))) if made.choosing else None
        return Plan(made, query, bounded.resolved.outputs, estimates, said, then)

    plan = finished(kernel.plan(request, owner))
    if pure and price.delta and plan.release.noise:
        with suppress(Refused):  # it would be larger than any answer
            plan = prefer(plan, finished(kernel.plan(replace(request, noise="gaussian"), owner)))
    return plan
