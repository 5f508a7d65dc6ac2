"""COUNT(*) and COUNT(x): rows, or rows in which x is not NULL; with DISTINCT, values, or persons if x is the person."""

from __future__ import annotations

from dpsql.compiler.program import Measures, Rule
from dpsql.kernel.algebra import Expr
from dpsql.kernel.functions import Facts
from dpsql.policy.catalog import BIGINT


def facts(_: tuple[Expr, ...]) -> Facts:
    return Facts(BIGINT, nullable=False)


COUNT = Rule("count", (0,), facts, Measures.total, distinct=True)
