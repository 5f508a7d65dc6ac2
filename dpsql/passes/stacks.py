"""Two subqueries with a set operation between them, and how long their expressions are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from sqlglot import exp

from dpsql.algebra import Column, Expr, call, constant, total
from dpsql.catalog import DOUBLE, HUGEINT, INTERVAL, VARCHAR, Type
from dpsql.functions import Facts
from dpsql.passes.lower import refuse
from dpsql.passes.scope import Context
from dpsql.relations import Project, Stack


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
    left, right = a.facts, b.facts
    type_ = left.type
    if left.type.kind == right.type.kind == "INTEGER" and left.type.range and right.type.range:
        low, high = (f(a, b) for f, a, b in zip((min, max), left.type.range, right.type.range, strict=True))
        holding = [t for t in (left.type, right.type, HUGEINT) if t.range and t.range[0] <= low and high <= t.range[1]]
        type_ = holding[0]
    elif left.type != right.type:
        if not (left.type.numeric and right.type.numeric) or DOUBLE not in (left.type, right.type):
            types = f"{left.type.sql} and {right.type.sql}"
            refuse("set_mismatch", f"a column of the set operation has types {types}", "Cast one of them.", node)
        type_ = DOUBLE
    both = left.range is not None and right.range is not None
    range_ = None
    if both:
        assert left.range is not None and right.range is not None
        range_ = (min(left.range[0], right.range[0]), max(left.range[1], right.range[1]))
    size = max(left.growth, right.growth) if VARCHAR in (type_, type_.element) else None
    size = max(left.stretch, right.stretch) if type_ == INTERVAL else size
    nullable, declared = left.nullable or right.nullable, left.declared and right.declared
    return Column(name, Facts(type_, nullable, range_, declared, size, copies=max(left.copies, right.copies)))


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
