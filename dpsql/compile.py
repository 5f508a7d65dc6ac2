"""The passes in order. Compiling is a pure function of the text, its parameters and public metadata; it never touches data.

Theorem: a plan's release is (epsilon, delta)-DP for adding or removing one person with all of her rows (or for replacing
her by another, if the policy says so), at the price of `plan.charge`. Proof: each line's Gives is the next line's Needs;
`allot` ends with the claim; what follows (`outer`) is post-processing of released values. Limits that are not declared are
released first, and `then` makes the plan anew with them: the last passes again, which take them as they take declared ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

from dpsql.catalog import Catalog
from dpsql.errors import Refused
from dpsql.mechanisms import Gaussian, Laplace
from dpsql.passes.allot import allot
from dpsql.passes.climb import climb
from dpsql.passes.limit import limit
from dpsql.passes.parse import parse
from dpsql.passes.resolve import resolve
from dpsql.passes.split import split
from dpsql.passes.track import track
from dpsql.plan import Plan, Unknown

PASSES = (parse, resolve, track, split, limit, climb, allot)


def compile(text: str, catalog: Catalog, epsilon: Fraction, delta: Fraction, parameters: object = None) -> Plan:
    norm = (Laplace if catalog.policy.budget.accounting == "pure" else Gaussian).norm
    try:
        parsed = parse(text)
        resolved = resolve(parsed, catalog, parameters)
        tracked = track(resolved, catalog)

        def follow(picked: Mapping[Unknown, Fraction]) -> Plan:
            parts = split(tracked, picked, norm)
            limited = limit(parts, catalog, norm)
            climbed = climb(limited)
            return allot(climbed, catalog, epsilon, delta)

        plan = follow({})
        if not plan.unknowns:
            return plan
        return replace(
            plan, then=lambda rungs: follow({u: u.rungs[i] for u, i in zip(plan.unknowns, rungs, strict=True)})
        )
    except Refused as error:
        error.locate(text)
        raise
    except RecursionError:
        raise Refused("too_deep", "the query is nested too deep", "Flatten it.") from None
