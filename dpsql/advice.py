"""What would make a statement's answer less noisy at the same price: the same statement with a smaller limit, planned anew.

Only public facts are used: nothing is known of what persons have. So each line says for which data it would be a good idea.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import sqlglot
from sqlglot import TokenType

from dpsql.compiler.program import Plan, Program
from dpsql.errors import Refused
from dpsql.explain import expected, figure
from dpsql.kernel.keys import PrivateKeys

FEWER = 4  # times fewer rows of a person, or less of a sum, than the limit that stands
Again = Callable[..., Plan | Program]  # plans a statement; with `max_rows`, under another limit


def advice(query: str, plan: Plan | Program, again: Again) -> Iterator[str]:
    """At most three lines, the most useful first."""
    if not isinstance(plan, Plan) or not plan.release.noise:
        return
    found = list(per_group(query, plan, again))
    yield from found or fewer_rows(query, plan, again)
    for unknown in plan.release.unknowns if plan.then is not None else ():
        if unknown.what == "rows":
            yield "max_rows_contributed in the policy, or with the query: a limit that is known costs nothing to choose"
            break
    if isinstance(plan.release.keys, PrivateKeys):
        yield "the values to group by, declared in the policy (`in`): then all groups are shown, whoever has them"


def fewer_rows(query: str, plan: Plan, again: Again) -> Iterator[str]:
    """A smaller limit on the rows of one person."""
    limited = any(summand.kind != "persons" for summand in plan.release.summands) and not plan.release.apart
    if not limited or plan.release.max_rows < FEWER or plan.then is not None:
        return
    rows = plan.release.max_rows // FEWER
    if less := compared(plan, planned(again, query, rows)):
        yield f"max_rows_contributed={rows}, if few persons have more rows here: {less}"


def per_group(query: str, plan: Plan, again: Again) -> Iterator[str]:
    """A range for what one person adds to a group, where one sum is asked for."""
    sums = [aggregate for aggregate in plan.estimates if aggregate.name == "sum" and aggregate.each is None]
    axes = [axis for summand in plan.release.summands for axis in summand.axes if axis.degree]
    if len(sums) != 1 or len(axes) != 1 or plan.then is not None or plan.release.apart or plan.release.max_rows < 2:
        return
    times = max(plan.release.max_rows // (2 * FEWER), 1)
    low, high = (float(end * times) for end in (axes[0].low, axes[0].high))
    bounds = f"contribution_bounds_per_group => ({min(low, 0):g}, {max(high, 0):g})"
    text = with_argument(query, bounds)
    if text and (less := compared(plan, planned(again, text))):
        yield f"sum(…, {bounds}), if few persons add up to more in a group: {less}"


def planned(again: Again, *statement: object) -> Plan | Program | None:
    """The plan of a statement, or None if it is refused: then it is no advice."""
    try:
        return again(*statement)
    except Refused:
        return None


def with_argument(query: str, argument: str) -> str | None:
    """The query with one argument more in its only SUM; None if there is not just one."""
    tokens = sqlglot.tokenize(query, read="duckdb")
    starts = [i for i, token in enumerate(tokens[:-1]) if re.fullmatch("sum", token.text, re.IGNORECASE) and tokens[i + 1].token_type is TokenType.L_PAREN]  # fmt: skip
    if len(starts) != 1:
        return None
    depth = 0
    for token in tokens[starts[0] + 1 :]:
        depth += (token.token_type is TokenType.L_PAREN) - (token.token_type is TokenType.R_PAREN)
        if not depth:
            return f"{query[: token.start]}, {argument}{query[token.start :]}"
    return None


def compared(plan: Plan, other: Plan | Program | None) -> str:
    """The first error that is at least a third smaller under another plan; "" if none is."""
    if not isinstance(other, Plan):
        return ""
    new = expected(other)
    for name, (_, old) in expected(plan).items():
        if name in new and new[name][1] < 2 / 3 * old:
            return f"{name} {figure(new[name][1])} instead of {figure(old)}"
    return ""
