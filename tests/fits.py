"""Whether counts fit probabilities, for tests of samplers."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

FALSE_ALARM = 1e-9


def fit(seen: np.ndarray, p: np.ndarray) -> float:
    """The G-test: the chance that true probabilities fit no better, by the tail of chi-square.

    Its tail is that of the Wilson-Hilferty transformation, which for few cells is above the truth: an alarm is then
    rarer than stated.
    """
    assert len(seen) == len(p) and abs(sum(p) - 1) < 1e-6
    if (seen[p == 0] > 0).any():
        return 0.0
    seen, expected = seen[p > 0], seen.sum() * p[p > 0]
    assert expected.min() >= 20 and len(expected) >= 2
    g = 2 * float(np.sum(seen * np.log(np.maximum(seen, 1) / expected)))
    unit = 2 / (9 * (len(expected) - 1))
    z = ((max(g, 0.0) / (len(expected) - 1)) ** (1 / 3) - (1 - unit)) / math.sqrt(unit)
    return math.erfc(z / math.sqrt(2)) / 2


def fit_draws(draws: np.ndarray, below: Callable[[float], float], scale: float) -> float:
    """The same for integers with P(draw <= k) = below(k), over some 200 cells that are narrow in the tails as well."""
    n, ends, shares = len(draws), [], [0.0]
    for k in np.unique(np.round(scale * np.linspace(-30, 30, 20_001))):
        share = below(k)
        needed = max(20 / n, min(share, 1 - share) / 10)
        if share - shares[-1] >= needed and 1 - share >= 20 / n:
            ends.append(k)
            shares.append(share)
    p = np.diff([*shares, 1.0])
    assert len(p) >= 3
    return fit(np.bincount(np.searchsorted(ends, draws), minlength=len(p)), p)
