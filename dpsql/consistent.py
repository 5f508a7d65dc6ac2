"""Totals that equal the sums of their parts, over several noisy tables of the same counts and sums."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING

from dpsql.compiler.program import Plan
from dpsql.kernel.keys import PublicKeys

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Table = NDArray[np.float64]

Axes = tuple[int, ...]
DISAGREE = "may differ from the sums of their parts: what persons add is limited for each level on its own"


def consistent(levels: Sequence[tuple[Axes, Table, float]]) -> list[Table]:
    """The tables that fit all levels best by least squares, weighted by their variances, and agree with each other.

    Needs:   for each level the axes of a common product that it has, in order, its table over them, and its variance
    Gives:   the tables of the best estimate of the cells: each is the sum of it over the axes that the level lacks
    Proof:   Let A_S sum a table x of all n cells over the axes that are not in S. The best x solves M x = r with
             M = sum w_S A_S' A_S and r = sum w_S A_S' y_S. Tables that are constant along the axes outside of B, and have
             mean zero along those in B, are orthogonal for different B and span everything. On them A_S' A_S multiplies
             by the number of cells that A_S adds up if B is within S, and gives 0 if not, since then a mean along B is
             taken; so M multiplies by `stretch`. The part of r there is sum w_S c_S, c_S being y_S averaged over S
             without B and centred along B. Only noisy values are read: post-processing
    Checked: test_consistent (against least squares by brute force)
    """
    import numpy as np

    sizes = {axis: size for axes, table, _ in levels for axis, size in zip(axes, table.shape, strict=True)}
    every = tuple(sorted(sizes))
    sorted_ = [
        (tuple(sorted(axes)), np.transpose(table, np.argsort(axes)), 1 / variance) for axes, table, variance in levels
    ]

    def added(held: Axes) -> float:
        """How many cells are added up for one of the level with these axes."""
        return float(np.prod([sizes[axis] for axis in every if axis not in held], dtype=float))

    parts: dict[Axes, Table] = {}
    for within in sorted(
        {sub for axes, _, _ in sorted_ for n in range(len(axes) + 1) for sub in combinations(axes, n)}
    ):
        total, stretch = np.zeros([sizes[axis] for axis in within]), 0.0
        for axes, table, weight in sorted_:
            if set(within) <= set(axes):
                mean = table.mean(axis=tuple(i for i, axis in enumerate(axes) if axis not in within))
                for i in range(len(within)):
                    mean = mean - mean.mean(axis=i, keepdims=True)
                total, stretch = total + weight * mean, stretch + weight * added(axes)
        parts[within] = total / stretch
    result = []
    for axes, table, _ in levels:
        held = tuple(sorted(axes))
        best = np.zeros([sizes[axis] for axis in held])
        for within, part in parts.items():
            if set(within) <= set(held):
                best = best + part.reshape([sizes[axis] if axis in within else 1 for axis in held])
        best = best * added(held)
        result.append(np.transpose(best, np.argsort(np.argsort(axes))).reshape(table.shape))
    return result


def fitting(plans: Sequence[Plan], axes: Sequence[Axes]) -> list[int]:
    """Which levels of one query by several sets of keys can agree: all groups are shown, over one product of keys, and a row
    counts for the same in each of them.

    It does where nothing is chosen, and a person with too many rows is scaled down by one factor for all levels. In L2 the
    factor depends on how the rows are spread over the groups, so a total is not the sum of its parts.
    """
    public = [
        i
        for i, plan in enumerate(plans)
        if isinstance(plan.release.keys, PublicKeys) and plan.release.even and not plan.release.unknowns
    ]
    domains: dict[int, object] = {}
    for i in public:
        if (
            plans[i].release.summands != plans[public[0]].release.summands
            or plans[i].release.max_rows != plans[public[0]].release.max_rows
        ):
            return []
        for axis, (_, *domain) in zip(axes[i], plans[i].release.keys.columns, strict=True):
            if domains.setdefault(axis, domain) != domain:
                return []
    added = any(summand.kind == "rows" for i in public[:1] for summand in plans[i].release.summands)
    return public if added and len(public) > 1 else []


def agreed(plans: Sequence[Plan], axes: Sequence[Axes], columns: Sequence[dict[str, Table]]) -> list[dict[str, Table]]:
    """The released columns of levels that fit, made to agree where rows were added up.

    Where one level has all keys, counts are whole in it, and sums on the grid of their values; the others add these up.
    """
    import numpy as np

    keys = [plan.release.keys.columns for plan in plans if isinstance(plan.release.keys, PublicKeys)]
    shapes = [tuple(len(values) for _, _, values in columns_) for columns_ in keys]
    domains = {axis for held in axes for axis in held}
    result = [dict(one) for one in columns]
    whole = next((i for i, held in enumerate(axes) if len(held) == len(domains)), None)
    for block, summand in enumerate(plans[0].release.summands):
        if summand.kind != "rows":  # a person, or a value, that is in two groups is one in their total
            continue
        names = summand.columns(block)
        for name in names:
            tables = [one[name].reshape(shape) for one, shape in zip(columns, shapes, strict=True)]
            # Noise on whole numbers vanishes where a query may cost very much; any weights do then, but not infinite ones.
            deviations = [max(plan.release.mechanisms[block].deviation, 1e-6) for plan in plans]
            made = consistent([(h, t, d * d) for h, t, d in zip(axes, tables, deviations, strict=True)])
            for one, table in zip(result, made, strict=True):
                one[name] = table
        if whole is None or len(names) > 2 or summand.coarse > 1:
            continue
        finest, unit = result[whole], summand.factor(summand.indices[0])
        if len(names) == 2:
            count = np.round((finest[names[0]] + finest[names[1]]) / summand.weight) * summand.weight
            finest[names[0]] = np.round(finest[names[0]] / unit) * unit
            finest[names[1]] = count - finest[names[0]]
        else:
            finest[names[0]] = np.round(finest[names[0]] / summand.weight) * summand.weight
        for held, one in zip(axes, result, strict=True):
            for name in names:
                lacking = tuple(i for i, axis in enumerate(axes[whole]) if axis not in held)
                left = [axis for axis in axes[whole] if axis in held]
                one[name] = np.transpose(finest[name].sum(axis=lacking), [left.index(axis) for axis in held])
    return [{name: table.reshape(-1) for name, table in one.items()} for one in result]
