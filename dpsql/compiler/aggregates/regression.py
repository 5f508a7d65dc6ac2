"""COVAR_*, CORR and REGR_* of (y, x): from the sums of products of s and t, which are y and x on their ranges from 0 to 1.

Only rows in which both are not NULL count. Where x or y does not vary, as far as the noise lets one see, the result is NULL.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from dpsql.compiler.aggregates.variance import numbers, spread, times
from dpsql.compiler.program import Estimate, Formula, Measures, Ratio
from dpsql.policy.catalog import Type

QUARTER = Fraction(1, 4)


def together(measures: Measures) -> Formula:
    """The covariance of s and t: at most a quarter, either way."""
    product = Formula("*", (measures.mean(1, 0), measures.mean(0, 1)))
    return Formula("within", (Formula("-", (measures.mean(1, 1), product)),), -QUARTER, QUARTER)


def covariance(measures: Measures) -> Formula:
    return times(measures.axis(0).span * measures.axis(1).span, together(measures))


def sample(measures: Measures) -> Formula:
    return Formula("sample", (covariance(measures), measures.total()))


def correlation(measures: Measures) -> Formula:
    spreads = Formula("*", (spread(measures, 0), spread(measures, 1)))
    return Formula("/", (together(measures), Formula("sqrt", (spreads,))), Fraction(-1), Fraction(1))


def slope(measures: Measures) -> Formula:
    """In units of y's range by x's; a variable of no range has no slope, and then the quotient is NULL anyway."""
    x, y = measures.axis(1), measures.axis(0)
    return times(y.span / (x.span or 1), Formula("/", (together(measures), spread(measures, 1))))


def mean(argument: int) -> Callable[[Measures], Ratio]:
    def estimate(measures: Measures) -> Ratio:
        axis = measures.axis(argument)
        return Ratio(measures.sum(argument), measures.total(), axis.low, axis.high)

    return estimate


def intercept(measures: Measures) -> Formula:
    return Formula("-", (mean(0)(measures), Formula("*", (slope(measures), mean(1)(measures)))))


def determination(measures: Measures) -> Formula:
    return Formula("*", (correlation(measures), correlation(measures)))


def squares(argument: int) -> Callable[[Measures], Estimate]:
    def estimate(measures: Measures) -> Estimate:
        return Formula("*", (measures.total(), times(measures.axis(argument).span ** 2, spread(measures, argument))))

    return estimate


PAIRS = numbers("regr_count", (0, 0), Measures.total)
COUNT = replace(PAIRS, facts=lambda arguments: replace(PAIRS.facts(arguments), type=Type("UINTEGER"), nullable=False))
REGRESSIONS = (
    numbers("covar_pop", (1, 1), covariance),
    numbers("covar_samp", (1, 1), sample),
    numbers("corr", (2, 2), correlation),
    numbers("regr_slope", (1, 2), slope),
    numbers("regr_intercept", (1, 2), intercept),
    numbers("regr_r2", (2, 2), determination),
    COUNT,
    numbers("regr_avgy", (1, 0), mean(0)),
    numbers("regr_avgx", (0, 1), mean(1)),
    numbers("regr_syy", (2, 0), squares(0)),
    numbers("regr_sxx", (0, 2), squares(1)),
    numbers("regr_sxy", (1, 1), lambda measures: Formula("*", (measures.total(), covariance(measures)))),
)
