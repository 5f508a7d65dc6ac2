"""Gaussian noise in a ledger that adds up epsilons and deltas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

from dpsql.kernel.accountant import SLACK, Currency, Guarantee, epsilon_of, mu_of
from dpsql.kernel.mechanisms.gaussian import Gaussian
from dpsql.kernel.mechanisms.laplace import Laplace
from dpsql.kernel.mechanisms.threshold import Threshold


@dataclass(frozen=True)
class Approximate:
    """All Gaussian noise of one release, for one epsilon and one delta: `noise`, beside which its threshold has its own.

    Needs:   Gaussian blocks of one vector, fixed before any of them is drawn; at most one threshold, on the same keys
    Gives:   (epsilon, noise + the threshold's delta)-DP, and a charge of just that
    Proof:   the blocks, that of the threshold's persons among them, are one mu-GDP mechanism, mu^2 being the sum of their
             losses (`Gaussian`). It is (epsilon, noise)-DP if and only if delta_of_mu(mu, epsilon) <= noise, which holds for
             all mu up to mu_of(epsilon, noise); that is asserted when a record is made and again when it is read, so what a
             ledger holds says by itself that its charge is enough. mu_of is rounded down by SLACK, of which half is
             left for a machine that rounds in another way. The threshold adds its delta (`Threshold`, with r = e^epsilon and
             e = noise). k persons who come or go together move the vector k times as far: k mu, and (epsilon_for(k), noise)
    Checked: test_approximate
    """

    epsilon: Fraction
    noise: Fraction
    drawn: tuple[Gaussian | Laplace | Threshold, ...]

    name: ClassVar[str] = "approximate"
    guarantee: ClassVar[Guarantee] = "epsilon-DP"  # up to its delta

    def __post_init__(self) -> None:
        if not (self.epsilon > 0 and 0 < self.noise < 1 and self.drawn):
            raise ValueError("there is no noise, or no epsilon or delta for it")
        if self.mu2 > Fraction(mu_of(self.epsilon, self.noise)) ** 2 * (1 + Fraction(SLACK)):
            raise ValueError("the noise costs more than its epsilon and delta")

    @property
    def loss(self) -> Fraction:
        return self.epsilon

    @property
    def mu2(self) -> Fraction:
        blocks = [one.noise if isinstance(one, Threshold) else one for one in self.drawn]
        if not all(isinstance(block, Gaussian) for block in blocks):
            raise ValueError("Laplace noise is charged as it is")
        return sum((block.loss for block in blocks), Fraction(0))

    def cost(self, currency: Currency) -> Fraction:
        if currency != "epsilon":
            raise ValueError("in other ledgers Gaussian noise is charged as it is")
        return self.epsilon

    @property
    def delta(self) -> Fraction:
        return self.delta_for(1)

    def delta_for(self, persons: int) -> Fraction:
        """What it costs a group, at `epsilon_for` as many."""
        return self.noise + sum(one.delta_for(persons) for one in self.drawn if isinstance(one, Threshold))

    def epsilon_for(self, persons: int) -> Fraction:
        """More than `persons` times epsilon, since the noise's delta stays."""
        return self.epsilon if persons == 1 else Fraction(epsilon_of(persons**2 * self.mu2, self.noise))

    @property
    def record(self) -> dict[str, Any]:
        """As the ledger keeps it; `read` is its inverse."""
        known = {"mechanism": self.name, "epsilon": str(self.epsilon), "noise": str(self.noise)}
        return {**known, "drawn": [one.record for one in self.drawn]}

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Approximate:
        kinds: dict[str, type[Gaussian] | type[Threshold]] = {kind.name: kind for kind in (Gaussian, Threshold)}
        drawn = tuple(kinds[one["mechanism"]].read(one) for one in record["drawn"])
        return cls(Fraction(record["epsilon"]), Fraction(record["noise"]), drawn)
