"""Rounded Gaussian noise: for sessions of many queries, and for vectors of many parts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Literal

from dpsql.kernel.accountant import Currency, Guarantee, above_zero, convert


@dataclass(frozen=True)
class Gaussian:
    """Add round(N(0, scale^2)) to each integer.

    Needs:   integers of which one person moves the vector by at most `sensitivity` in L2; an exact sampler
    Gives:   mu-GDP with mu = sensitivity / scale, hence a charge of mu^2
    Proof:   for an integer f, f + round(N) = round(f + N): rounding is post-processing of the continuous Gaussian
             mechanism, which is (D2 / scale)-GDP. Blocks with sensitivities d_i and scales s_i are one Gaussian
             mechanism on the vector divided by s_i, whose squared L2 sensitivity is at most the sum of (d_i / s_i)^2. Two
             persons with non-negative vectors v, w of L2 norm at most C are apart by the root of
             |v|^2 + |w|^2 - 2 v.w <= 2 C^2
    Checked: test_mechanisms (sampler against the exact probabilities), test_accountant
    """

    scale: float
    sensitivity: int | Fraction

    name: ClassVar[Literal["gaussian"]] = "gaussian"
    norm: ClassVar[Literal[1, 2]] = 2
    swap: ClassVar[int | Fraction] = Fraction(math.isqrt(2 * 10**24) + 1, 10**12)  # two persons' distance, rounded up
    guarantee: ClassVar[Guarantee] = "mu-GDP"
    delta: ClassVar[Fraction] = Fraction(0)

    @classmethod
    def calibrate(cls, sensitivities: Sequence[int | Fraction], mu2: Fraction) -> tuple[Gaussian, ...]:
        """One mechanism for each block, mu^2 shared evenly: k blocks each have sqrt(k) times the scale."""
        mu, grow = math.sqrt(mu2), math.nextafter(math.sqrt(len(sensitivities)), math.inf)
        return tuple(cls(math.nextafter(float(d) / mu * grow, math.inf) * (1 + 2**-50), d) for d in sensitivities)

    @property
    def loss(self) -> Fraction:
        return (self.sensitivity / Fraction(self.scale)) ** 2

    def cost(self, currency: Currency) -> Fraction:
        return convert(self.guarantee, self.loss, currency)

    @property
    def record(self) -> dict[str, str]:
        """As the ledger keeps it; `read` is its inverse."""
        return {"mechanism": self.name, "scale": self.scale.hex(), "sensitivity": str(self.sensitivity)}

    @classmethod
    def read(cls, record: Mapping[str, str]) -> Gaussian:
        return cls(above_zero(float.fromhex(record["scale"])), above_zero(Fraction(record["sensitivity"])))

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise, in grid units."""
        return math.sqrt(self.scale**2 + 1 / 12)
