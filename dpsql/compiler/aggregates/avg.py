"""AVG(x): the sum over the count, both from one block."""

from __future__ import annotations

from dpsql.compiler.program import Measures, Ratio, Rule
from dpsql.errors import Refused
from dpsql.kernel.algebra import Expr
from dpsql.kernel.functions import Facts, mismatch
from dpsql.policy.catalog import BOOLEAN, DOUBLE, INTERVAL


def facts(arguments: tuple[Expr, ...]) -> Facts:
    (of,) = (argument.facts for argument in arguments)
    if of.type == BOOLEAN:
        raise Refused("type_mismatch", "avg does not apply to BOOLEAN", "Write avg(x::INT).")
    if of.type == INTERVAL:
        return Facts(INTERVAL)
    if not of.type.numeric:
        refusal = mismatch("avg", [of])
        if of.type.kind == "VARCHAR":
            refusal.hint = (
                "If these texts are numbers, write avg(TRY_CAST(x AS DOUBLE)), or ask the owner to declare a type."
            )
        raise refusal
    return Facts(DOUBLE)


def estimate(measures: Measures) -> Ratio:
    axis = measures.axis(0)
    return Ratio(measures.sum(0), measures.total(), axis.low, axis.high)


AVG = Rule("avg", (1,), facts, estimate, aliases=("mean",), distinct=True)
