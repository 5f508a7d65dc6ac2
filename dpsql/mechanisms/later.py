"""Noise that is charged before its scale is known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

from dpsql.accountant import Currency, Guarantee, convert
from dpsql.mechanisms.approximate import Approximate
from dpsql.mechanisms.gaussian import Gaussian
from dpsql.mechanisms.laplace import Laplace
from dpsql.mechanisms.threshold import Threshold


@dataclass(frozen=True)
class Later:
    """What the noise may cost that follows a limit which is chosen privately first.

    Needs:   whichever limit is chosen, the noise is calibrated to losses that add up to at most `loss`, and deltas to `delta`
    Gives:   a charge that covers it, and does not depend on the choice
    Proof:   `allot` asserts `covers` for the noise that it calibrates, before the choice and again after it. Gaussian noise in a
             pure ledger is one `Approximate`, whose epsilon and delta count here
    Checked: test_allot, test_ladder, test_history (what was drawn stands beside the answer)
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

    def cost(self, currency: Currency) -> Fraction:
        return convert(self.guarantee, self.loss, currency)

    @property
    def record(self) -> dict[str, str]:
        """As the ledger keeps it; `read` is its inverse."""
        known = {"mechanism": self.name, "guarantee": self.guarantee}
        return {**known, "loss": str(self.loss), "delta": str(self.delta)}

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Later:
        return cls(record["guarantee"], Fraction(record["loss"]), Fraction(record["delta"]))


def together(several: Sequence[Later]) -> Later:
    """What several may cost: losses add up, and so do deltas."""
    loss, delta = (sum(parts, Fraction(0)) for parts in zip(*((one.loss, one.delta) for one in several), strict=True))
    return Later(several[0].guarantee, loss, delta)
