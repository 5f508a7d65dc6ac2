"""Blocks: what a row adds to a release, in integers that are not negative."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import Literal

from dpsql.kernel.algebra import Expr
from dpsql.kernel.functions import Range
from dpsql.policy.catalog import DOUBLE, LARGEST

FINE = 2**20  # a person's sums are scaled down in steps no coarser than this part of a row
COARSE = 2**36  # and no finer than this, before they are stretched
STRETCH = (15, 28)


@dataclass(frozen=True)
class Unknown:
    """A limit that the policy does not declare: how many rows or groups of a person count, or how low or high values go.

    It is chosen from `rungs`: the smallest limit, then base, 1.5 base, 2 base, 3 base, 4 base and so on, with a prior for
    the lower ones, since too large a limit means more noise for sure. Whole numbers stay whole.
    """

    what: Literal["rows", "groups", "low", "high"]
    value: Expr | None
    smallest: Fraction
    base: Fraction
    most: Fraction
    usual: Fraction  # the rung that an explanation takes, before one is chosen

    @staticmethod
    def count(what: Literal["rows", "groups"]) -> Unknown:
        return Unknown(what, None, Fraction(1), Fraction(2), Fraction(2**24), Fraction(16))

    @staticmethod
    def ends(value: Expr) -> tuple[Unknown, ...]:
        """How high values go, and how low if they may be negative."""
        base = Fraction(1, 2**9) if value.facts.type == DOUBLE else Fraction(2)
        low, high = value.facts.range or (-Fraction(LARGEST), Fraction(LARGEST))
        below, above = (min(max(end, base), base * 2**61) for end in (-low, high))
        up = Unknown("high", value, base / 2, base, above, min(base * 2**9, above))
        return (up,) if low >= 0 else (Unknown("low", value, Fraction(0), base, below, Fraction(0)), up)

    @property
    def rungs(self) -> tuple[Fraction, ...]:
        found = [self.base, self.base * Fraction(3, 2)]
        while found[-2] < self.most:
            found.append(found[-2] * 2)
        return (self.smallest, *found)

    @property
    def prior(self) -> tuple[int, ...]:
        """Rung^-2 as integers; a limit of zero counts as half of the base."""
        steps = [max(rung / self.base, Fraction(1, 2)) for rung in self.rungs]
        return tuple(int(2**125 / step**2) for step in steps)


@dataclass(frozen=True)
class Axis:
    """A value that a block measures: clipped, and on a grid of equal steps. Degree 0 says only that it is not NULL."""

    value: Expr
    degree: int = 0
    low: Fraction = Fraction(0)
    high: Fraction = Fraction(0)
    grid: int = 1  # steps from low to high

    @staticmethod
    def of(value: Expr, degree: int, clip: Range, most: int) -> Axis:
        """The axis of a numeric expression: on its own steps where there are few, else on `most` of equal width."""
        low, high = clip
        steps = (high - low) * 10**value.facts.type.scale
        exact = value.facts.type != DOUBLE and steps <= most
        return Axis(value, degree, low, high, max(int(steps), 1) if exact else most)

    @property
    def span(self) -> Fraction:
        return self.high - self.low

    @property
    def step(self) -> Fraction:
        return self.span / self.grid or Fraction(1)


@dataclass(frozen=True)
class Summand:
    """One block of a person's vector: to what a row adds how much, in integers that are not negative.

    Let t = (x - low) / (high - low), between 0 and 1. A row adds 1 if there are no axes or only axes of degree 0; for an
    axis of degree 1 it adds (t, 1 - t), for one of degree 2 it adds (t^2, 2 t (1 - t), (1 - t)^2), and for two axes all
    products of these; in units of `weight`, rounded down. It adds nothing if a value is NULL. So COUNT, SUM and AVG of x
    come from one block, and its variance too, at the price of one.

    A row's L1 norm is at most `weight`, since the parts add up to one; its L2 norm is no more. In L2 there is room in the
    middle of three: with p = t (1 - t) <= 1/4 we have t^4 + (2 c p)^2 + (1 - t)^4 = 1 - 4 p + (2 + 4 c^2) p^2 <= 1 for
    c^2 <= 7/2. So for the norm 2 it counts c = 28/15 times as much as the outer ones. Norms of products multiply.

    Of `values` a row is not one of the table: it is a value that someone has in this group, whoever has it. Of `persons`
    it is a person in a group.
    """

    axes: tuple[Axis, ...] = ()
    kind: Literal["rows", "values", "persons"] = "rows"
    norm: int = 1

    @property
    def indices(self) -> tuple[tuple[int, ...], ...]:
        """For each column the power of t in it, for each axis."""
        return tuple(product(*(range(axis.degree, -1, -1) for axis in self.axes)))

    @property
    def whole(self) -> int:
        """What all parts of one row add up to on the grids."""
        return math.prod(axis.grid**axis.degree for axis in self.axes)

    @property
    def coarse(self) -> int:
        """What each part is divided by, so that sums stay small."""
        return -(-self.whole // COARSE)

    def factor(self, index: tuple[int, ...]) -> int:
        """What each part is multiplied with."""
        fine = -(-FINE // -(-self.whole // self.coarse))
        outer, middle = STRETCH if self.norm == 2 else (1, 1)
        parts = (middle if k == 1 else outer for k, axis in zip(index, self.axes, strict=True) if axis.degree == 2)
        return fine * math.prod(parts)

    @property
    def weight(self) -> int:
        return -(-self.whole // self.coarse) * self.factor((0,) * len(self.axes))

    def columns(self, index: int) -> tuple[str, ...]:
        match len(self.indices):
            case 1:
                return (f"n{index}",)
            case 2:
                return (f"a{index}", f"b{index}")
            case many:
                return tuple(f"m{index}_{k}" for k in range(many))


STEPS, STEPS_OF_MOMENTS = 2**30, 2**20  # of the grid of a value that has no fewer
KINDS = ("rows", "values", "persons")


def clip_of(value: Expr, told: Range | None, picked: Mapping[Unknown, Fraction]) -> tuple[Range, tuple[Unknown, ...]]:
    """To which range a value is clipped: the query's own, else the declared one, else one that is chosen privately.

    Limits that are to be chosen come with it. The range is public: it is read off the text, the policy and earlier choices.
    """
    facts = value.facts
    if told is not None:  # where the values are known to lie they end in a narrower range still
        sure = facts.range if facts.declared or facts.type != DOUBLE else None
        return (told if sure is None else (within(sure[0], told), within(sure[1], told))), ()
    if facts.declared and facts.range is not None:
        return facts.range, ()
    unknowns = Unknown.ends(value)
    ends = [picked.get(unknown, unknown.usual) for unknown in unknowns]
    return ((-ends[0], ends[1]) if len(ends) == 2 else (Fraction(0), ends[0])), unknowns


def within(value: Fraction, ends: Range) -> Fraction:
    return min(max(value, ends[0]), ends[1])


def most_steps(degrees: int) -> int:
    """How fine a grid may be where the powers of a block's values add up to `degrees`, so that sums of products stay small."""
    return STEPS if degrees == 1 else STEPS_OF_MOMENTS
