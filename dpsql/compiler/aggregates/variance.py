"""VAR_POP, VAR_SAMP, STDDEV_POP and STDDEV_SAMP, from the sums of t and t^2, where t is x on its range from 0 to 1."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from dpsql.compiler.program import Estimate, Formula, Linear, Measures, Rule
from dpsql.kernel.algebra import Expr
from dpsql.kernel.functions import Facts, mismatch
from dpsql.policy.catalog import DOUBLE


def numbers(
    name: str, degrees: tuple[int, ...], estimate: Callable[[Measures], Estimate], *aliases: str, distinct: bool = False
) -> Rule:
    """An aggregate of numbers that gives a DOUBLE."""

    def facts(arguments: tuple[Expr, ...]) -> Facts:
        if not all(argument.facts.type.numeric for argument in arguments):
            raise mismatch(name, [argument.facts for argument in arguments])
        return Facts(DOUBLE)

    return Rule(name, degrees, facts, estimate, aliases, distinct)


def spread(measures: Measures, argument: int = 0) -> Formula:
    """The variance of an argument's t: of values between 0 and 1 it is no more than a quarter."""
    once = tuple(int(i == argument) for i in range(len(measures.places)))
    mean, square = measures.mean(*once), measures.mean(*(2 * power for power in once))
    return Formula("within", (Formula("-", (square, Formula("*", (mean, mean)))),), Fraction(0), Fraction(1, 4))


def times(factor: Fraction, estimate: Estimate) -> Formula:
    return Formula("*", (Linear({}, factor), estimate))


def population(measures: Measures) -> Formula:
    return times(measures.axis(0).span ** 2, spread(measures))


def sample(measures: Measures) -> Formula:
    return Formula("sample", (population(measures), measures.total()))


def root(of: Callable[[Measures], Formula]) -> Callable[[Measures], Formula]:
    return lambda measures: Formula("sqrt", (of(measures),))


VARIANCES = (
    numbers("var_pop", (2,), population, distinct=True),
    numbers("var_samp", (2,), sample, "variance", distinct=True),
    numbers("stddev_pop", (2,), root(population), distinct=True),
    numbers("stddev_samp", (2,), root(sample), "stddev", distinct=True),
)
