"""What crosses the noise boundary, and the plan that says how.

`Summand` is sums of clipped integers; `Keys` says which groups are shown. `Linear`, `Ratio` and `Formula` are what is
computed from released sums: the same value renders the finishing SQL and gives the error bars.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import product
from typing import Literal

from sqlglot import exp

from dpsql import algebra
from dpsql.accountant import Charge, Currency
from dpsql.algebra import Expr
from dpsql.catalog import DOUBLE, LARGEST, VARCHAR, Domain, Type, Value, quoted
from dpsql.functions import Facts, Range
from dpsql.mechanisms import Approximate, Ladder, Mechanism, Sampled, Threshold, cost

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


Clips = Callable[[Expr, Range | None], Range]  # to which range the values of an expression are clipped; the query's own


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
class PrivateKeys:
    """The groups are in the data, and shown if enough persons have them: each column's name and type."""

    columns: tuple[tuple[str, Type], ...]


@dataclass(frozen=True)
class PublicKeys:
    """The groups: each column's name, type and all the values that are shown. Their product is known beforehand."""

    columns: tuple[tuple[str, Type, Domain], ...]

    @property
    def count(self) -> int:
        return math.prod(len(values) for _, _, values in self.columns)

    def table(self) -> exp.Subquery:
        """The table of all keys with their number `row`, under the name `keys`."""
        return exp.Subquery(this=exp.Var(this=self.text), alias=exp.TableAlias(this=algebra.identifier("keys")))

    @property
    def text(self) -> str:
        return text_of_keys(self.columns)


@lru_cache(maxsize=256)
def text_of_keys(columns: tuple[tuple[str, Type, Domain], ...], numbers: bool = False) -> str:
    """SQL for all keys and `row`; with `numbers` texts are 1, 2, 3 ... in the order of their domain."""
    shown, tables, row = [], [], ""
    for index, (column, type_, values) in enumerate(columns):
        cell = f'"d{index}"."i" + 1 AS INTEGER' if numbers and type_ == VARCHAR else f'"d{index}"."v" AS {type_.sql}'
        tables.append(f'({numbered(type_, values)}) AS "d{index}"')
        shown.append(f"CAST({cell}) AS {quoted(column)}")
        row = f'({row}) * {len(values)} + "d{index}"."i"' if row else f'"d{index}"."i"'
    return f'SELECT {", ".join(shown)}, {row} AS "row" FROM {" CROSS JOIN ".join(tables)}'


@lru_cache(maxsize=256)
def numbered(type_: Type, values: Domain) -> str:
    """SQL for values as texts "v" and their numbers "i". They are one constant: VALUES of a thousand rows takes 26 ms to parse."""
    texts = json.dumps([None if value is None else algebra.text_of(value, type_) for value in values])
    listed = f"CAST(CAST({algebra.literal(texts, VARCHAR).sql('duckdb')} AS JSON) AS VARCHAR[])"
    return f'SELECT unnest({listed}) AS "v", unnest(range({len(values)})) AS "i"'


Keys = PublicKeys | PrivateKeys


@dataclass(frozen=True)
class Block:
    """A summand for the native form: its axes as (grid, degree); for each column the powers and the factor."""

    kind: str
    axes: tuple[tuple[int, int], ...]
    columns: tuple[tuple[tuple[int, ...], int], ...]
    coarse: int
    weight: int
    whole: float


@dataclass(frozen=True)
class Limits:
    """What the native form of the limit pass is told: the numbers that stand in the SQL of the other. Made in `limit`."""

    rows: str  # SQL for each row's person, keys and values; "" if there is nothing to limit
    owners: tuple[
        str, ...
    ]  # SQL for references and persons, and for references to these, if rows have such in the place of persons
    persons: str  # SQL for the first column of `rows` alone, if it is read first to count each person's; else ""
    sums: str  # SQL for keys and sums of persons whom nothing limits; "" if that is known of none
    declared: str  # SQL for all public keys in order, "" without any
    keys: int
    private: bool
    hashed: Literal["", "keys", "pairs"]  # of what rows have a hash by which private keys are ranked
    norm: int
    max_rows: int
    max_groups: int
    in_groups: int
    blocks: tuple[Block, ...]
    names: tuple[str, ...]  # of the columns of integers
    enough: int | None = None  # so many persons of a private key are counted at the most; None: all


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


@dataclass(frozen=True)
class Plan:
    """All that is needed to run: exact integer query, noise, finishing query, charge. Constructed only by `allot`."""

    reference: Callable[[], str] = field(repr=False, compare=False)  # makes `inner`, which most queries do not need
    tables: frozenset[tuple[str, str, str]]
    keys: Keys
    summands: tuple[Summand, ...]
    mechanisms: tuple[Mechanism, ...]
    threshold: Threshold | None
    outer: str
    outputs: tuple[Output, ...]
    estimates: Mapping[algebra.Aggregate, Estimate]
    max_rows: int
    epsilon: Fraction
    delta: Fraction
    charge: Charge
    notes: tuple[str, ...]
    apart: bool = False  # a row is what one person adds to a group
    even: bool = False  # how much a person's rows count for does not depend on the groups that they are in
    # Limits that are chosen first: what is asked for them, how they are chosen, and the plan that follows the choice.
    unknowns: tuple[Unknown, ...] = ()
    ladder: Ladder | None = None
    climb: str = ""
    sampled: tuple[Sampled, ...] = ()  # all that is charged: the ledger keeps it, and computes the charge again from it
    then: Callable[[tuple[int, ...]], Plan] | None = field(default=None, repr=False, compare=False)
    # Queries over earlier releases of the statement, whose values this one is made with, and how. It is made with samples here.
    waits: tuple[Read, ...] = ()
    given: Callable[[tuple[tuple[Value, ...], ...]], Plan] | None = field(default=None, repr=False, compare=False)
    reads: tuple[Read, ...] = ()
    # What runs in place of `inner`: rows from the engine, limited and added up natively. None: `inner` itself runs.
    limits: Limits | None = None
    covered: Approximate | None = (
        None  # Gaussian noise in a pure ledger, with the epsilon and delta that it is charged for
    )
    why: str = ""  # for EXPLAIN: which of two noises was chosen

    @property
    def exact(self) -> tuple[str, ...]:
        """The queries whose results are released."""
        if self.limits is None:
            return (self.inner,)
        limits = self.limits
        return tuple(filter(None, (limits.rows, *limits.owners, limits.persons, limits.sums, limits.declared)))

    @cached_property
    def inner(self) -> str:
        """The SQL form of the limits: what runs where there is no native one, and what that must equal everywhere."""
        return self.reference()

    @property
    def parts(self) -> tuple[Plan, ...]:
        """The releases of the statement: this one."""
        return (self,)

    @property
    def extremes(self) -> tuple[Plan, ...]:
        """Where limits are chosen first, the plans that follow the smallest and the largest of them."""
        if self.then is None:
            return ()
        lowest, highest = (tuple(i for _ in self.unknowns) for i in (0, -1))
        return self.then(lowest), self.then(highest)

    @property
    def noise(self) -> dict[str, Mechanism]:
        """The mechanism of each released column, in the order of `inner`; the persons of private keys come first."""
        persons: dict[str, Mechanism] = {"persons": self.threshold.noise} if self.threshold else {}
        return persons | {
            column: mechanism
            for index, (summand, mechanism) in enumerate(zip(self.summands, self.mechanisms, strict=True))
            for column in summand.columns(index)
        }

    @property
    def drawn(self) -> tuple[Sampled, ...]:
        """The noise, once the limits are known."""
        return (self.covered,) if self.covered else (*self.mechanisms, *([self.threshold] if self.threshold else []))

    @property
    def noises(self) -> tuple[Mechanism, ...]:
        """The mechanisms that are charged: one for each block, and that of the threshold."""
        return (*self.mechanisms, *([self.threshold.noise] if self.threshold else []))


# Releases of one query by several sets of keys: the number of each, and which of all keys it has, in the order of its own.
Family = tuple[tuple[int, tuple[int, ...]], ...]


@dataclass(frozen=True)
class Program:
    """A statement over several releases, each a plan of its own: `outer` reads them as "release 0", "release 1", ..., and
    the public tables as "public NAME". Constructed only by `compose`."""

    parts: tuple[Plan, ...]
    outer: str
    tables: tuple[tuple[str, str], ...]  # public ones, and where they are
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
