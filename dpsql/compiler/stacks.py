"""Two subqueries with a set operation between them, and how long their expressions are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from sqlglot import exp

from dpsql.compiler.lower import refuse
from dpsql.compiler.parse import position
from dpsql.compiler.scope import Context
from dpsql.errors import Refused
from dpsql.kernel.algebra import Column, Expr, call, constant, total
from dpsql.kernel.relations import Project, Stack, merged
from dpsql.policy.catalog import Type


@dataclass(frozen=True)
class Stacked:
    """Two lowered queries with a set operation between them; `columns` have the facts of both."""

    left: Project
    right: Project
    kind: Literal["union all", "union", "intersect", "except"]
    columns: tuple[tuple[str, Expr], ...]


def rename(side: Project, columns: tuple[tuple[str, Expr], ...]) -> tuple[tuple[str, Expr], ...]:
    return tuple((new, expression) for (new, _), (_, expression) in zip(columns, side.columns, strict=True))


def flattened(stacked: Stacked, alias: str) -> Project:
    relation = Stack(
        stacked.left, replace(stacked.right, columns=rename(stacked.right, stacked.left.columns)), stacked.kind
    )
    return Project(relation, alias, tuple((n, Column(n, e.facts)) for n, e in stacked.columns))


def joint(name: str, a: Expr, b: Expr, node: exp.Expr) -> Column:
    """What is known of a column that has values of both sides."""
    try:
        return Column(name, merged(name, a.facts, b.facts))
    except Refused as error:
        raise Refused(error.code, error.message, error.hint, position(node)) from None


def fitted(expression: Expr, type_: Type) -> Expr:
    return expression if expression.facts.type == type_ else call("CAST", expression, constant(type_.sql))


MAX_WEIGHT = 5_000


def weigh(project: Project | Stacked, called: str, names: list[str], context: Context, node: exp.Expr) -> None:
    """The engine writes a subquery's expressions out wherever they are used: how long each is then."""
    sides = [project] if isinstance(project, Project) else [project.left, project.right]
    for place, new in enumerate(names):
        weights = [weight(side.columns[place][1], context) for side in sides]
        context.weights[f"{called}.{new}"] = max(weights)
        if max(weights) > MAX_WEIGHT:
            refuse("too_deep", f"the expression {new!r} is too long, with its subqueries", "Compute less in it.", node)


def weight(expression: Expr, context: Context) -> int:
    return sum(
        context.weights.get(part.name, 1) if isinstance(part, exp.Column) else 1 for part in total(expression).walk()
    )
