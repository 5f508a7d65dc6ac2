"""Which groups are shown: those whose noisy number of persons reaches a threshold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from statistics import NormalDist
from typing import Any, ClassVar

from dpsql.kernel.accountant import SLACK, Currency, log_phi
from dpsql.kernel.mechanisms.gaussian import Gaussian
from dpsql.kernel.mechanisms.laplace import Laplace


@dataclass(frozen=True)
class Threshold:
    """Show a key if persons + noise >= least, where the count of persons is noised by `noise`.

    Needs:   for each key the number of persons who have it; a person has at most `keys` keys and counts once in each;
             the sums released beside it cover keys that others have as well
    Gives:   showing the keys that pass costs `delta` and nothing else: the release is that of the noise on the keys
             that both neighbours have, up to an event of probability `delta`
    Proof:   let D' be D with one person more. Keys that only D' has exist through her alone: at most `keys`, each with one
             person. Couple the noise of all other keys. Each of hers passes with probability p = P(1 + noise >= least),
             independently, so none does except with probability 1 - (1 - p)^keys = delta; and then what is shown is a
             function of the noisy vector on the common keys. The noise is an integer: for round(N(0, s^2)) the tail is
             P(N >= least - 3/2), for the discrete Laplace q^(least - 1) / (1 + q) with q = exp(-1 / scale). The count may be
             the sum of two integers that are noised alike, a pair. Two rounded Gaussians are below two Gaussians and 1,
             which bounds the tail; two discrete Laplaces sum to m >= 0 with probability
             ((1 - q) / (1 + q))^2 q^m (m + 1 + 2 q^2 / (1 - q^2)), of which the code has the sum from least - 1 on.
             Replacing a person: each of D and D' may have keys of its own. Let M be what is released on the keys of both,
             without the others, and d, d' <= delta the chances that D or D' shows one of its own. What D releases lies in
             a set S with probability x <= (1 - d) P(M(D) in S) + d, what D' releases with y >= (1 - d') P(M(D') in S). If
             P(M(D) in S) <= r P(M(D') in S) + e, then x <= r y (1 - d) / (1 - d') + e + d <= r y + e + max(d, d') as
             long as r y <= 1 - d'; and else r y + d' > 1 >= x. The same holds over many releases with the sum of the
             deltas, since the chance that no key of its own is ever shown is at least 1 - that sum
    Checked: test_threshold
    """

    least: int
    keys: int
    noise: Gaussian | Laplace
    pair: bool = False

    name: ClassVar[str] = "threshold"

    @classmethod
    def calibrate(cls, noise: Gaussian | Laplace, keys: int, delta: Fraction, pair: bool = False) -> Threshold:
        """The smallest threshold that costs at most this delta."""
        each = -math.expm1(math.log1p(-float(delta)) / keys)
        if isinstance(noise, Gaussian):
            guess = 1.5 - noise.scale * NormalDist().inv_cdf(each)
        else:
            guess = 1 - noise.scale * (math.log(each) + math.log1p(math.exp(-1 / noise.scale)))
        # The guess is good to a few units; where it is not, the step grows, and then the smallest is found by halving.
        below, least, step = 1, max(2, math.floor(guess) - 1), 1
        while cls(least, keys, noise, pair).delta > delta:
            below, least, step = least, least + step, 2 * step
        while least - below > 1 and step > 1:
            middle = (below + least) // 2
            below, least = (middle, least) if cls(middle, keys, noise, pair).delta > delta else (below, middle)
        return cls(least, keys, noise, pair)

    def cost(self, currency: Currency) -> Fraction:
        return self.noise.cost(currency)

    @property
    def record(self) -> dict[str, Any]:
        """As the ledger keeps it; `read` is its inverse."""
        return {
            "mechanism": self.name,
            "least": self.least,
            "keys": self.keys,
            "noise": self.noise.record,
            "pair": self.pair,
        }

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Threshold:
        noise = {kind.name: kind for kind in (Gaussian, Laplace)}[record["noise"]["mechanism"]]
        least, keys = record["least"], record["keys"]
        if not all(type(number) is int and number > 0 for number in (least, keys)):
            raise ValueError("a threshold or a number of keys is not a whole number above zero")
        return cls(least, keys, noise.read(record["noise"]), record["pair"])

    @property
    def enough(self) -> int:
        """From so many persons on a key is shown in any case, but for a chance below 1e-9. So where they are only compared with
        `least`, min(persons, enough) may be noised instead: one person moves that by no more, key by key, as min is 1-Lipschitz."""
        return self.least + math.ceil(self.noise.scale * (6 if isinstance(self.noise, Gaussian) else 21))

    @property
    def delta(self) -> Fraction:
        """What it costs, rounded up."""
        return self.delta_for(1)

    def delta_for(self, persons: int) -> Fraction:
        """What it costs a group: of their keys, `persons` times as many, each may count all of them."""
        scale, above = self.noise.scale, self.least - persons
        if isinstance(self.noise, Gaussian):
            log_tail = log_phi((1 - above) / scale / math.sqrt(2)) if self.pair else log_phi((0.5 - above) / scale)
        elif above > 0:
            q = math.exp(-1 / scale)
            log_tail = -above / scale - math.log1p(q)
            if self.pair:
                log_tail += math.log(-math.expm1(-1 / scale) * (above + 1) + 2 * q * q / (1 + q) + q) - math.log1p(q)
        else:
            log_tail = 0.0
        tail = math.exp(log_tail) * (1 + SLACK)
        none = persons * self.keys * math.log1p(-tail) if tail < 1 else -math.inf
        return Fraction(min(max(-math.expm1(none) * (1 + SLACK), 5e-324), 1.0))
