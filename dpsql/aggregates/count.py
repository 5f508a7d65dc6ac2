"""COUNT(*) and COUNT(x): rows, or rows in which x is not NULL; with DISTINCT, values, or persons if x is the person."""

from __future__ import annotations

from dpsql.algebra import Expr
from dpsql.catalog import BIGINT
from dpsql.functions import Facts
from dpsql.plan import Measures, Rule


def facts(_: tuple[Expr, ...]) -> Facts:
    return Facts(BIGINT, nullable=False)


COUNT = Rule("count", (0,), facts, Measures.total, distinct=True)
