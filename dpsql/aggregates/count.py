"""COUNT(*) and COUNT(x): rows, or rows in which x is not NULL."""

from __future__ import annotations

from dpsql.algebra import Expr
from dpsql.catalog import BIGINT
from dpsql.functions import Facts
from dpsql.plan import Rule, Summand, count_of


def facts(argument: Expr | None) -> Facts:
    return Facts(BIGINT, nullable=False)


COUNT = Rule("count", facts, Summand.count, count_of)
