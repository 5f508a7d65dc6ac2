"""Which parts of the budget the releases of a statement get, so that what it shows has the smallest error."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from types import MappingProxyType

from sqlglot import exp

from dpsql.compiler.program import Linear, Plan
from dpsql.kernel.algebra import Aggregate, Column, Literal
from dpsql.policy.catalog import fold

LEAST = Fraction(1, 20)  # of an even part


Trees = Mapping[str, exp.CTE]  # what WITH has defined over releases


def shares(outer: exp.Query, plans: Sequence[Plan], ctes: Trees = MappingProxyType({})) -> tuple[Fraction, ...]:
    """Even parts, unless the releases are put under one another or added up: then their errors have one unit.

    With an even part let release i have the deviation d_i. With a part s_i its variance is in proportion to d_i^2 / s_i^p,
    p being 1 for Gaussian noise (a part of mu^2) and 2 for Laplace noise (of epsilon). The sum of these is smallest where
    s_i is in proportion to d_i^(2 / (p + 1)). Whatever the parts are, they add up to one.
    """
    even = (Fraction(1, max(len(plans), 1)),) * len(plans)
    weights = stacked(outer, ctes) or added(outer, plans, ctes)
    if not plans or weights is None or set(weights) != set(range(len(plans))):
        return even
    deviations = [deviation(plan) for plan in plans]
    known = [abs(weights[i]) * d for i, d in enumerate(deviations) if d]
    if len(known) < len(plans) or not all(map(math.isfinite, known)) or not min(known) > 0:
        return even
    power = 2 / 3 if plans[0].charge.currency == "epsilon" else 1.0
    parts = [Fraction((d / max(known)) ** power).limit_denominator(10**6) for d in known]
    total = sum(parts)
    if min(parts) < LEAST * total / len(parts):  # noise that is small anyway may stay so
        parts = [max(part, LEAST * total / len(parts)) for part in parts]
    return tuple(part / sum(parts) for part in parts)


def number(query: exp.Expr, ctes: Trees) -> int | None:
    """Which release a query shows as it is, perhaps under other names and beside constants."""
    query = query.unnest()
    clauses = ("where", "group", "having", "qualify", "distinct", "limit", "joins")
    if not isinstance(query, exp.Select) or any(query.args.get(clause) for clause in clauses):
        return None
    plain = all(isinstance(item.unalias(), exp.Star | exp.Column | exp.Literal) for item in query.expressions)
    from_ = query.args.get("from_")
    return source(from_.this, ctes) if plain and from_ is not None else None


def source(node: exp.Expr, ctes: Trees) -> int | None:
    if isinstance(node, exp.Subquery):
        return number(node.this, ctes)
    if node.name in ctes:
        return number(ctes[node.name].this, ctes)
    found = re.fullmatch(r"release (\d+)", node.name)
    return int(found[1]) if found else None


def stacked(outer: exp.Expr, ctes: Trees) -> dict[int, float] | None:
    """The releases of a UNION ALL."""
    if not isinstance(outer, exp.Union) or outer.args.get("distinct"):
        found = number(outer, ctes)
        return None if found is None else {found: 1.0}
    sides = [stacked(side.unnest(), ctes) for side in (outer.this, outer.expression)]
    return None if None in sides else {i: 1.0 for side in sides for i in side or ()}


def added(outer: exp.Expr, plans: Sequence[Plan], ctes: Trees) -> dict[int, float] | None:
    """The releases that one value is a sum or a difference of, and how often each counts."""
    if not isinstance(outer, exp.Select) or len(outer.expressions) != 1:
        return None
    if any(outer.args.get(clause) for clause in ("where", "group", "having", "qualify", "distinct")):
        return None
    from_ = outer.args.get("from_")
    read = [from_.this, *(join.this for join in outer.args.get("joins") or ())] if from_ is not None else []
    columns: dict[tuple[str, str], set[int | None]] = {}
    for one in read:
        found = source(one, ctes)
        for output in plans[found].outputs if found is not None else ():
            for table in ("", fold(one.alias_or_name)):
                columns.setdefault((table, fold(output.name)), set()).add(found)

    def terms(node: exp.Expr, factor: float) -> dict[int, float] | None:
        match node:
            case exp.Paren():
                return terms(node.this, factor)
            case exp.Neg():
                return terms(node.this, -factor)
            case exp.Add() | exp.Sub():
                sign = -1.0 if isinstance(node, exp.Sub) else 1.0
                left, right = terms(node.this, factor), terms(node.expression, sign * factor)
                if left is None or right is None:
                    return None
                return {i: left.get(i, 0.0) + right.get(i, 0.0) for i in {**left, **right}}
            case exp.Mul(this=exp.Literal(is_string=False) as constant, expression=rest):
                return terms(rest, factor * float(constant.this))
            case exp.Mul(this=rest, expression=exp.Literal(is_string=False) as constant):
                return terms(rest, factor * float(constant.this))
            case exp.Div(this=rest, expression=exp.Literal(is_string=False) as constant) if float(constant.this):
                return terms(rest, factor / float(constant.this))
            case exp.Literal() if not node.is_string:
                return {}
            case exp.Subquery():
                found = number(node.this, ctes)
                return None if found is None else {found: factor}
            case exp.Column():
                owners = columns.get((fold(node.table), fold(node.name)), {None})
                return {i: factor for i in owners if i is not None} if len(owners) == 1 and None not in owners else None
            case _:
                return None

    return terms(outer.expressions[0].unalias(), 1.0)


def deviation(plan: Plan) -> float | None:
    """The root of the sum of the variances of what a release shows; None if that depends on the answer."""
    total = 0.0
    for output in plan.outputs:
        match output.expression:
            case Column() | Literal():
                continue  # a key, or a label
            case Aggregate() as aggregate if isinstance(form := plan.estimates[aggregate], Linear):
                total += sum(
                    (float(part) * plan.release.noise[column].deviation) ** 2 for column, part in form.terms.items()
                )
            case _:
                return None
    return math.sqrt(total)
