"""A statement as the session runs it: releases of the kernel, and SQL that computes the answer from what they give.

`Linear`, `Ratio` and `Formula` are what is computed from released sums: the same value renders the finishing SQL and gives
the error bars.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

from dpsql.kernel.accountant import Charge, Currency
from dpsql.kernel.algebra import Aggregate, Expr
from dpsql.kernel.blocks import Axis, Summand
from dpsql.kernel.functions import Facts
from dpsql.kernel.mechanisms import Sampled, cost
from dpsql.kernel.noise import Release
from dpsql.policy.catalog import Type, Value


@dataclass(frozen=True)
class Linear:
    """A constant and multiples of released columns."""

    terms: Mapping[str, Fraction]
    constant: Fraction = Fraction(0)


@dataclass(frozen=True)
class Ratio:
    """A quotient of two linear forms, kept within `low` and `high` since an average of clipped values lies there."""

    over: Linear
    under: Linear
    low: Fraction
    high: Fraction


@dataclass(frozen=True)
class Formula:
    """Arithmetic of estimates: + - * /, sqrt, and `within` two ends.

    A quotient is NULL where the divisor is not above zero, and is kept within its ends, if it has any. `sample` takes a
    moment about the mean and the count n, and gives n / (n - 1) times the moment; NULL below two rows.
    """

    function: Literal["+", "-", "*", "/", "sqrt", "within", "sample"]
    parts: tuple[Estimate, ...]
    low: Fraction = Fraction(0)
    high: Fraction = Fraction(0)


Estimate = Linear | Ratio | Formula


@dataclass(frozen=True)
class Measures:
    """The released columns of a block, as an aggregate sees them: `places` says which axis each argument is."""

    block: Summand
    columns: tuple[str, ...]
    places: tuple[int | None, ...]

    def axis(self, argument: int) -> Axis:
        place = self.places[argument]
        assert place is not None
        return self.block.axes[place]

    def total(self, *powers: int) -> Linear:
        """The sum over the rows of the product of the arguments' t, each to its power. Without powers: the count."""
        raised = [0] * len(self.block.axes)
        for place, power in zip(self.places, powers, strict=False):
            if place is not None:
                raised[place] += power
        degrees = [axis.degree for axis in self.block.axes]
        unit = Fraction(self.block.coarse, self.block.whole)
        return Linear(
            {
                column: unit / self.block.factor(index) * math.prod(map(part, index, degrees, raised))
                for column, index in zip(self.columns, self.block.indices, strict=True)
            }
        )

    def mean(self, *powers: int) -> Ratio:
        return Ratio(self.total(*powers), self.total(), Fraction(0), Fraction(1))

    def sum(self, argument: int) -> Linear:
        """The sum of an argument's values."""
        axis, powers = self.axis(argument), [0] * len(self.places)
        powers[argument] = 1
        count, above = self.total().terms, self.total(*powers).terms
        return Linear({column: axis.low * count[column] + axis.span * above[column] for column in count})


def part(index: int, degree: int, power: int) -> Fraction:
    """How much of t^power there is in this part of an axis: t = t (t + (1 - t)), and so on."""
    return Fraction(math.perm(index, power), math.perm(degree, power)) if power else Fraction(1)


@dataclass(frozen=True)
class Rule:
    """An aggregate: what it takes and gives, to which degree it needs each argument, and its value from the measures."""

    name: str
    degrees: tuple[int, ...]
    facts: Callable[[tuple[Expr, ...]], Facts]
    estimate: Callable[[Measures], Estimate]
    aliases: tuple[str, ...] = ()
    distinct: bool = False  # whether it is answered over distinct values too


@dataclass(frozen=True)
class Output:
    """A column of the answer; `expression` has aggregates for leaves where it was computed from released sums."""

    name: str
    expression: Expr


@dataclass(frozen=True)
class Read:
    """What is computed from earlier releases of the statement: a table that a later one reads like a public one, or values
    that become its constants."""

    name: str
    query: str
    columns: tuple[tuple[str, Type], ...]
    key: tuple[str, ...] = ()

    @property
    def path(self) -> tuple[str, str, str]:
        return ("temp", "main", self.name)


Samples = tuple[tuple[Value, ...], ...]


@dataclass(frozen=True)
class Plan:
    """A release, and the finishing query over it. Constructed only by `finishing`.

    `waits` are queries over earlier releases of the statement, whose values this one is made with, and `given` makes it; here
    it is made with samples. `then` makes it anew once its limits are chosen.
    """

    release: Release
    outer: str
    outputs: tuple[Output, ...]
    estimates: Mapping[Aggregate, Estimate]
    notes: tuple[str, ...]
    then: Callable[[tuple[int, ...]], Plan] | None = field(default=None, repr=False, compare=False)
    waits: tuple[Read, ...] = ()
    given: Callable[[Samples], Plan] | None = field(default=None, repr=False, compare=False)
    reads: tuple[Read, ...] = ()
    why: str = ""  # for EXPLAIN: which of two noises was chosen

    @property
    def parts(self) -> tuple[Plan, ...]:
        """The releases of the statement: this one."""
        return (self,)

    @property
    def extremes(self) -> tuple[Plan, ...]:
        """Where limits are chosen first, the plans that follow the smallest and the largest of them."""
        if self.then is None:
            return ()
        return tuple(self.then(rungs) for rungs in self.release.ends)

    @property
    def charge(self) -> Charge:
        return self.release.charge

    @property
    def epsilon(self) -> Fraction:
        return self.release.epsilon

    @property
    def delta(self) -> Fraction:
        return self.release.delta

    @property
    def sampled(self) -> tuple[Sampled, ...]:
        return self.release.sampled


# Releases of one query by several sets of keys: the number of each, and which of all keys it has, in the order of its own.
Family = tuple[tuple[int, tuple[int, ...]], ...]


@dataclass(frozen=True)
class Program:
    """A statement over several releases, each a plan of its own: `outer` reads them as "release 0", "release 1", ..., and
    the public tables as "public NAME". Constructed only by `compose`."""

    parts: tuple[Plan, ...]
    outer: str
    tables: tuple[str, ...]  # public ones, by the policy's names
    currency: Currency
    families: tuple[Family, ...] = ()

    @property
    def sampled(self) -> tuple[Sampled, ...]:
        return tuple(one for plan in self.parts for one in plan.sampled)

    @property
    def charge(self) -> Charge:
        return cost(self.sampled, self.currency)

    @property
    def epsilon(self) -> Fraction:
        return max((plan.epsilon for plan in self.parts), default=Fraction(0))

    @property
    def delta(self) -> Fraction:
        return max((plan.delta for plan in self.parts), default=Fraction(0))

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(note for plan in self.parts for note in plan.notes))
