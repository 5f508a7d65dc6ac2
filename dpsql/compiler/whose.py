"""What an aggregate is about, in words of the query and as a person."""

from __future__ import annotations

import re

from dpsql.kernel import algebra
from dpsql.kernel.algebra import Aggregate, Call, Column, Expr, Literal, name, plain
from dpsql.kernel.relations import Relation, origin

WHOSE = "one person's "  # how columns are called that `bound` has made


def person(value: Expr, me: frozenset[str], relation: Relation) -> tuple[Expr, ...] | None:
    """What must not be NULL for a row to count its person, if the value is the person, or NULL; else None.

    The person is never NULL, unless an outer join has found no row of theirs.
    """
    match value:
        case Call("CASE", (condition, Column() as column, Literal(None)), _):
            found = person(column, me, relation)
            shown = algebra.call("CASE", condition, algebra.constant(True), algebra.constant(None))
            return None if found is None else (value,) if found else (shown,)
        case Column() if value.name in me:
            found_at = origin(relation, value.name)
            return () if found_at is not None and not found_at[1] else (value,)
        case _:
            return None


def describe(expression: Expr) -> str:
    """An expression in words of the query. Subqueries without a name have a number of ours, which is left out."""
    written = plain(expression, lambda found: name(found.name) if isinstance(found, Aggregate) else None).sql("duckdb")
    return re.sub(r'"\d+\.', '"', written).replace('"', "")
