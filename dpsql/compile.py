"""The passes in order. Compiling is a pure function of the text, its parameters and public metadata; it never touches data.

Theorem: a plan's release is (epsilon, delta)-DP for adding or removing one person with all of her rows, at the price
of `plan.charge`. Proof: each line's Gives is the next line's Needs; `allot` ends with the claim; what follows (`outer`)
is post-processing of released values.
"""

from __future__ import annotations

from fractions import Fraction

from dpsql.catalog import Catalog
from dpsql.errors import Refused
from dpsql.mechanisms import Gaussian, Laplace
from dpsql.passes.allot import allot
from dpsql.passes.limit import limit
from dpsql.passes.parse import parse
from dpsql.passes.resolve import resolve
from dpsql.passes.split import split
from dpsql.passes.track import track
from dpsql.plan import Plan

PASSES = (parse, resolve, track, split, limit, allot)


def compile(text: str, catalog: Catalog, epsilon: Fraction, delta: Fraction, parameters: object = None) -> Plan:
    norm = (Laplace if catalog.policy.budget.accounting == "pure" else Gaussian).norm
    try:
        parsed = parse(text)
        resolved = resolve(parsed, catalog, parameters)
        tracked = track(resolved, catalog)
        parts = split(tracked)
        limited = limit(parts, catalog, norm)
        return allot(limited, catalog, epsilon, delta)
    except RecursionError:
        raise Refused("too_deep", "the query is nested too deep", "Flatten it.") from None
