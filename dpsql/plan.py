"""What crosses the noise boundary, and the plan that says how.

`Summand` is sums of clipped integers; `Keys` says which groups are shown. `Linear` and `Ratio` are what is computed
from released sums: the same value renders the finishing SQL and gives the error bars.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from sqlglot import exp

from dpsql import algebra
from dpsql.accountant import Charge
from dpsql.algebra import Expr
from dpsql.catalog import DOUBLE, Type, Value
from dpsql.functions import Facts
from dpsql.mechanisms import Mechanism, Threshold

FINE = 2**20  # a person's sums are scaled down in steps no coarser than this part of a row


@dataclass(frozen=True)
class Summand:
    """One block of a person's vector. A row adds nothing, or non-negative integers that add up to `weight`.

    A count has one column: each row (with a `value` that is not NULL, if there is one) adds `weight`. A pair has two:
    a row whose value is x adds a = (x - low) / (high - low) and b = 1 - a, in units of `weight`; so COUNT, SUM and AVG
    of x all come from it, at the price of one. Either way a row's L1 norm is `weight` and its L2 norm no more.
    """

    value: Expr | None
    low: Fraction = Fraction(0)
    high: Fraction = Fraction(0)
    grid: int = 1  # steps from low to high; 0 steps are a count
    pair: bool = False

    @staticmethod
    def count(value: Expr | None) -> Summand:
        return Summand(value if value is not None and value.facts.nullable else None)

    @staticmethod
    def of(value: Expr) -> Summand:
        """The pair of a numeric expression: on its own steps where there are few, else on 2^30 of equal width."""
        assert value.facts.range is not None
        low, high = value.facts.range
        steps = (high - low) * 10**value.facts.type.scale
        exact = value.facts.type != DOUBLE and steps <= 2**30
        return Summand(value, low, high, max(int(steps), 1) if exact else 2**30, pair=True)

    @property
    def fine(self) -> int:
        return -(-FINE // self.grid)

    @property
    def weight(self) -> int:
        return self.grid * self.fine

    @property
    def step(self) -> Fraction:
        return (self.high - self.low) / self.grid or Fraction(1)

    def columns(self, index: int) -> tuple[str, ...]:
        return (f"a{index}", f"b{index}") if self.pair else (f"n{index}",)


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


Estimate = Linear | Ratio


@dataclass(frozen=True)
class Rule:
    """An aggregate: what it takes and gives, the block that it needs, and its value from the block's columns."""

    name: str
    facts: Callable[[Expr | None], Facts]
    summand: Callable[[Expr | None], Summand]
    estimate: Callable[[Summand, tuple[str, ...]], Estimate]


def count_of(summand: Summand, columns: tuple[str, ...]) -> Linear:
    return Linear({column: Fraction(1, summand.weight) for column in columns})


def sum_of(summand: Summand, columns: tuple[str, ...]) -> Linear:
    above, below = columns
    return Linear({above: summand.high / summand.weight, below: summand.low / summand.weight})


@dataclass(frozen=True)
class PrivateKeys:
    """The groups are in the data, and shown if enough persons have them: each column's name and type."""

    columns: tuple[tuple[str, Type], ...]


@dataclass(frozen=True)
class PublicKeys:
    """The groups: each column's name, type and all the values that are shown. Their product is known beforehand."""

    columns: tuple[tuple[str, Type, tuple[Value, ...]], ...]

    @property
    def count(self) -> int:
        return math.prod(len(values) for _, _, values in self.columns)

    def select(self) -> exp.Select:
        """SQL for the table of all keys with their number `row`."""
        query, row = exp.Select(), None
        for index, (column, type_, values) in enumerate(self.columns):
            rows = [
                exp.Tuple(expressions=[exp.Literal.number(i), typed(value, type_)]) for i, value in enumerate(values)
            ]
            alias = exp.TableAlias(
                this=algebra.identifier(f"d{index}"), columns=[algebra.identifier(c) for c in ("i", column)]
            )
            table = exp.Values(expressions=rows, alias=alias)
            query = query.from_(table) if index == 0 else query.join(table, join_type="cross")
            query = query.select(algebra.name(column, f"d{index}"))
            place: exp.Expr = algebra.name("i", f"d{index}")
            row = (
                place
                if row is None
                else exp.Add(
                    this=exp.Paren(this=exp.Mul(this=exp.Paren(this=row), expression=exp.Literal.number(len(values)))),
                    expression=place,
                )
            )
        assert row is not None
        return query.select(row.as_("row", quoted=True))


def typed(value: Value, type_: Type) -> exp.Expr:
    """A literal that has its type also where it is NULL."""
    shown = algebra.literal(value, type_)
    if isinstance(shown, exp.Cast):
        return shown
    return exp.Cast(this=shown, to=exp.DataType.build(type_.sql, dialect="duckdb"))


Keys = PublicKeys | PrivateKeys


@dataclass(frozen=True)
class Output:
    """A column of the answer; `expression` has aggregates for leaves where it was computed from released sums."""

    name: str
    expression: Expr


@dataclass(frozen=True)
class Plan:
    """All that is needed to run: exact integer query, noise, finishing query, charge. Constructed only by `allot`."""

    inner: str
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
    def noises(self) -> tuple[Mechanism, ...]:
        """The mechanisms that are charged: one for each block, and that of the threshold."""
        return (*self.mechanisms, *([self.threshold.noise] if self.threshold else []))
