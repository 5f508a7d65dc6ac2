"""From aggregates to blocks: as few sums as answer all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from dpsql.compiler.aggregates import RULES
from dpsql.compiler.bound import Bounded
from dpsql.compiler.program import Estimate, Linear, Measures
from dpsql.compiler.resolve import asked_of
from dpsql.compiler.whose import person
from dpsql.kernel.algebra import Aggregate, Expr
from dpsql.kernel.blocks import Axis, Summand, Unknown, clip_of, most_steps
from dpsql.kernel.functions import Range
from dpsql.policy.catalog import DOUBLE

Picked = Mapping[Unknown, Fraction]


@dataclass(frozen=True)
class Wanted:
    """A block, and the range that the query itself gives each value of it."""

    block: Summand
    clips: tuple[Range | None, ...]


@dataclass(frozen=True)
class Blocks:
    """The blocks of a release, and for each aggregate the one that it comes from; None: the number of persons."""

    wanted: tuple[Wanted, ...]
    places: Mapping[Aggregate, int | None]

    def estimates(self, summands: tuple[Summand, ...]) -> dict[Aggregate, Estimate]:
        """What each aggregate is of the sums that are released."""
        found: dict[Aggregate, Estimate] = {}
        for aggregate, place in self.places.items():
            if place is None:
                found[aggregate] = Linear({"persons": Fraction(1)})
                continue
            block = summands[place]
            axes = [axis.value for axis in self.wanted[place].block.axes]
            places = tuple(axes.index(value) if value in axes else None for value in aggregate.arguments)
            found[aggregate] = RULES[aggregate.name].estimate(Measures(block, block.columns(place), places))
        return found


def blocks(bounded: Bounded, norm: int, private: bool) -> Blocks:
    """The largest first, since they serve the others; then in an order that is a function of the question.

    `private`: the groups are not known beforehand, so their persons are counted in any case.
    """
    asked = asked_of(bounded.resolved)
    needs = {aggregate: need(aggregate, bounded, norm, {}) for aggregate in asked}
    wanted: list[Wanted] = []
    places: dict[Aggregate, int | None] = {}
    holders: dict[Expr, list[int]] = {}  # the blocks that measure a value
    for aggregate in sorted(needs, key=lambda a: (*((-len(n.axes), -len(n.indices)) for n in [needs[a]]), repr(a))):
        needed = needs[aggregate]
        persons = needed.kind == "persons" or (bounded.apart and needed.kind == "rows")
        if persons and not needed.axes and private:
            places[aggregate] = None  # they are counted for the threshold anyway
            continue
        near = holders.get(needed.axes[0].value, []) if needed.axes else range(len(wanted))
        place = next((i for i in near if serves(wanted[i].block, needed)), None)
        if place is None:
            place = len(wanted)
            clips = tuple(aggregate.clip if axis.degree else None for axis in needed.axes)
            wanted.append(Wanted(needed, clips))
            for axis in needed.axes:
                holders.setdefault(axis.value, []).append(place)
        places[aggregate] = place
    return Blocks(tuple(wanted), places)


def need(aggregate: Aggregate, bounded: Bounded, norm: int, picked: Picked) -> Summand:
    """The smallest block that an aggregate comes from."""
    found = (
        person(aggregate.arguments[0], bounded.me, bounded.resolved.relation)
        if aggregate.distinct and aggregate.name == "count"
        else None
    )
    if found is not None:
        return Summand(tuple(Axis(value) for value in found), "persons", norm)
    degrees: dict[Expr, int] = {}
    for value, degree in zip(aggregate.arguments, RULES[aggregate.name].degrees, strict=False):
        degrees[value] = min(degrees.get(value, 0) + degree, 2)  # powers of one value add up; none is above two
    most = most_steps(sum(degrees.values()))
    axes = tuple(
        Axis.of(value, degree, clip_of(value, aggregate.clip, picked)[0], most) if degree else Axis(value)
        for value, degree in sorted(degrees.items(), key=repr)
        if degree or value.facts.nullable or aggregate.distinct
    )
    return Summand(axes, "values" if aggregate.distinct else "rows", norm)


def serves(have: Summand, needed: Summand) -> bool:
    """Whether a block answers for another: it measures all that the other does, of the same rows."""
    degrees = {axis.value: axis.degree for axis in needed.axes}
    ends = {axis.value: (axis.low, axis.high) for axis in needed.axes if axis.degree}
    rest = [axis.value for axis in have.axes if axis.value not in degrees]
    reach = {axis.value: axis.degree for axis in have.axes}
    # Where a value is measured NaN is left out, and COUNT does not do that. Declared columns have none, and arithmetic that
    # keeps within a range makes none.
    blurred = (
        axis.value
        for axis in have.axes
        if axis.degree and not degrees.get(axis.value) and axis.value.facts.type == DOUBLE
    )
    return (
        have.kind == needed.kind
        and all((axis.low, axis.high) == ends.get(axis.value, (axis.low, axis.high)) for axis in have.axes)
        and all(value in reach and reach[value] >= degree for value, degree in degrees.items())
        and not any(value.facts.nullable for value in rest)
        and all(value.facts.declared and value.facts.range is not None for value in blurred)
        and not (rest and have.kind != "rows")
    )
