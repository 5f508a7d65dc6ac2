"""Discrete Laplace noise: for pure epsilon."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Literal

from dpsql.kernel.accountant import Currency, Guarantee, above_zero, convert


@dataclass(frozen=True)
class Laplace:
    """Add an integer k with probability proportional to exp(-|k| / scale) to each integer.

    Needs:   integers of which one person moves the vector by at most `sensitivity` in L1; an exact sampler
    Gives:   epsilon-DP with epsilon = sensitivity / scale
    Proof:   P(f + k = y) / P(f' + k = y) = exp((|y - f'| - |y - f|) / scale) <= exp(|f - f'| / scale) coordinate by
             coordinate, and the exponents add up to the L1 distance; the scale is a binary fraction, so the quotient
             is computed exactly and then rounded up. Two persons whose vectors have L1 norm at most C are 2C apart
    Checked: test_mechanisms (sampler against the exact probabilities; the claim against them, over all outputs)
    """

    scale: float
    sensitivity: int | Fraction

    name: ClassVar[Literal["laplace"]] = "laplace"
    norm: ClassVar[Literal[1, 2]] = 1
    swap: ClassVar[int | Fraction] = 2  # how far apart two persons are, in what one may add
    guarantee: ClassVar[Guarantee] = "epsilon-DP"
    delta: ClassVar[Fraction] = Fraction(0)

    @classmethod
    def calibrate(cls, sensitivities: Sequence[int | Fraction], epsilon: Fraction) -> tuple[Laplace, ...]:
        """One mechanism for each block, the loss shared evenly: k blocks each have k times the scale."""
        return tuple(cls(round_up(len(sensitivities) * d / epsilon), d) for d in sensitivities)

    @property
    def loss(self) -> Fraction:
        return self.sensitivity / Fraction(self.scale)

    def cost(self, currency: Currency) -> Fraction:
        return convert(self.guarantee, self.loss, currency)

    @property
    def record(self) -> dict[str, str]:
        """As the ledger keeps it; `read` is its inverse."""
        return {"mechanism": self.name, "scale": self.scale.hex(), "sensitivity": str(self.sensitivity)}

    @classmethod
    def read(cls, record: Mapping[str, str]) -> Laplace:
        return cls(above_zero(float.fromhex(record["scale"])), above_zero(Fraction(record["sensitivity"])))

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise, in grid units."""
        q = math.exp(-1 / self.scale)
        return math.sqrt(2 * q) / -math.expm1(-1 / self.scale)


def round_up(exact: Fraction) -> float:
    """The smallest float that is not below: a scale that is too large is safe."""
    nearest = float(exact)
    return nearest if Fraction(nearest) >= exact else math.nextafter(nearest, math.inf)
