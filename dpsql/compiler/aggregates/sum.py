"""SUM(x), of x clipped to its range; COUNT_IF(p) is the sum of p."""

from __future__ import annotations

from dpsql.compiler.program import Linear, Measures, Rule
from dpsql.errors import Refused
from dpsql.kernel.algebra import Expr
from dpsql.kernel.functions import Facts, mismatch
from dpsql.policy.catalog import BOOLEAN, DOUBLE, HUGEINT, INTERVAL, Type


def facts(arguments: tuple[Expr, ...]) -> Facts:
    (of,) = (argument.facts for argument in arguments)
    if of.type == INTERVAL:  # nor does the engine's
        raise Refused("type_mismatch", "sum does not apply to INTERVAL", "Write to_seconds(sum(epoch(x))).")
    if not of.type.numeric and of.type != BOOLEAN:
        raise mismatch("sum", [of])
    exact = {"INTEGER": HUGEINT, "BOOLEAN": HUGEINT, "DECIMAL": Type(f"DECIMAL(38,{of.type.scale})")}
    return Facts(exact.get(of.type.kind, DOUBLE))


def condition(arguments: tuple[Expr, ...]) -> Facts:
    if arguments[0].facts.type != BOOLEAN:
        raise mismatch("count_if", [arguments[0].facts])
    return Facts(HUGEINT)


def estimate(measures: Measures) -> Linear:
    return measures.sum(0)


SUM = Rule("sum", (1,), facts, estimate, distinct=True)
COUNT_IF = Rule("count_if", (1,), condition, estimate, aliases=("countif",))
