"""AVG(x): the sum over the count, both from one pair."""

from __future__ import annotations

from dpsql.aggregates.sum import summand
from dpsql.algebra import Expr
from dpsql.catalog import DOUBLE
from dpsql.functions import Facts, mismatch
from dpsql.plan import Ratio, Rule, Summand, count_of, sum_of


def facts(argument: Expr | None) -> Facts:
    assert argument is not None
    if not argument.facts.type.numeric:
        raise mismatch("avg", [argument.facts])
    return Facts(DOUBLE)


def estimate(block: Summand, columns: tuple[str, ...]) -> Ratio:
    return Ratio(sum_of(block, columns), count_of(block, columns), block.low, block.high)


AVG = Rule("avg", facts, summand, estimate)
