"""Noise that is charged before its scale is known."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import NormalDist
from typing import Any, ClassVar

from dpsql.kernel.accountant import SLACK, Currency, Guarantee, above_zero, convert, log_phi
from dpsql.kernel.mechanisms.approximate import Approximate
from dpsql.kernel.mechanisms.gaussian import Gaussian
from dpsql.kernel.mechanisms.laplace import Laplace
from dpsql.kernel.mechanisms.threshold import Threshold


@dataclass(frozen=True)
class Later:
    """What the noise may cost that follows a limit which is chosen privately first.

    Needs:   whichever limit is chosen, the noise is calibrated to losses that add up to at most `loss`, and deltas to `delta`
    Gives:   a charge that covers it, and does not depend on the choice
    Proof:   `allot` asserts `covers` for the noise that it calibrates, before the choice and again after it. Gaussian noise in a
             pure ledger is one `Approximate`, whose epsilon and delta count here
    Checked: test_allot, test_ladder, test_history (what was drawn stands beside the answer), test_threshold (groups)
    """

    guarantee: Guarantee
    loss: Fraction
    delta: Fraction

    name: ClassVar[str] = "later"

    def covers(self, drawn: Iterable[Laplace | Gaussian | Threshold | Approximate]) -> bool:
        noises = [(one.noise if isinstance(one, Threshold) else one, one.delta) for one in drawn]
        lost, delta = sum((noise.loss for noise, _ in noises), Fraction(0)), sum((d for _, d in noises), Fraction(0))
        return (
            all(noise.guarantee == self.guarantee for noise, _ in noises) and lost <= self.loss and delta <= self.delta
        )

    def delta_for(self, persons: int) -> Fraction:
        """What it costs a group at the most, whatever will be drawn: at `persons` times epsilon, or times mu.

        epsilon-DP, up to delta: k steps from neighbour to neighbour add up to delta (1 + e^epsilon + ... + e^((k - 1) epsilon)),
        and k times the last of these is no less than what a `Threshold` says once it is known.
        mu-GDP: the delta is that of a threshold. Keys that only the group has number k `keys` or fewer. With one person in each,
        one of them is shown with probability k delta or less; with k in each their counts are (k - 1) sqrt(k keys) away
        from that, and those of the threshold's noise are mu-GDP at sqrt(keys).
        """
        if persons == 1 or not self.delta:
            return self.delta
        k, start = persons, persons * float(self.delta)
        if start >= 1:
            return Fraction(1)
        if self.guarantee == "mu-GDP":
            most = log_phi(NormalDist().inv_cdf(start) + (k - 1) * math.sqrt(k * self.loss))
        else:
            most = math.log(start) + (k - 1) * float(self.loss)
        return Fraction(min(math.exp(min(most, 0.0)) * (1 + SLACK), 1.0))

    def cost(self, currency: Currency) -> Fraction:
        return convert(self.guarantee, self.loss, currency)

    @property
    def record(self) -> dict[str, str]:
        """As the ledger keeps it; `read` is its inverse."""
        known = {"mechanism": self.name, "guarantee": self.guarantee}
        return {**known, "loss": str(self.loss), "delta": str(self.delta)}

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Later:
        delta = Fraction(record["delta"])
        if delta < 0:
            raise ValueError("a delta is below zero")
        return cls(record["guarantee"], above_zero(Fraction(record["loss"])), delta)


def together(several: Sequence[Later]) -> Later:
    """What several may cost: losses add up, and so do deltas."""
    loss, delta = (sum(parts, Fraction(0)) for parts in zip(*((one.loss, one.delta) for one in several), strict=True))
    return Later(several[0].guarantee, loss, delta)
