"""SUM(x), of x clipped to its declared range."""

from __future__ import annotations

from dpsql.algebra import Expr
from dpsql.catalog import DOUBLE, HUGEINT, Type
from dpsql.functions import Facts, mismatch
from dpsql.plan import Rule, Summand, sum_of


def facts(argument: Expr | None) -> Facts:
    assert argument is not None
    if not argument.facts.type.numeric:
        raise mismatch("sum", [argument.facts])
    exact = {"INTEGER": HUGEINT, "DECIMAL": Type(f"DECIMAL(38,{argument.facts.type.scale})")}
    return Facts(exact.get(argument.facts.type.kind, DOUBLE))


def summand(argument: Expr | None) -> Summand:
    assert argument is not None
    return Summand.of(argument)


SUM = Rule("sum", facts, summand, sum_of)
