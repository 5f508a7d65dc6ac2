"""One release by its stages, as the compiler and the kernel make it."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from dpsql.compiler.compile import Price, release
from dpsql.compiler.parse import Parsed
from dpsql.compiler.program import Plan
from dpsql.kernel.limits.limit import Limited, limit
from dpsql.kernel.mechanisms import Gaussian
from dpsql.kernel.question import Question, ask, find_rows
from dpsql.policy.catalog import Catalog


def planned(
    parsed: Parsed,
    catalog: Catalog,
    epsilon: Fraction = Fraction(1),
    delta: Fraction = Fraction(1, 10**8),
    hidden: bool = False,
    **price: Any,
) -> Plan:
    return release(parsed, catalog, catalog, Price(epsilon, delta, **price), hidden=hidden)


def question(plan: Plan, norm: int | None = None) -> Question:
    """What is asked by a plan, measured for the norm of its noise."""
    made = plan.release
    norm = norm or (made.noises[0].norm if made.noise else Gaussian.norm)
    return ask(made.request, find_rows(made.request, made.catalog), norm, {})


def limited(plan: Plan) -> Limited:
    made = plan.release
    norm = made.noises[0].norm if made.noise else Gaussian.norm
    return limit(question(plan), made.catalog, norm)
