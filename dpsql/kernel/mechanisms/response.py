"""Randomized response: each person's answer is noised on its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from dpsql.kernel.accountant import Currency


@dataclass(frozen=True)
class Response:
    """Keep an answer out of `categories` with probability e^epsilon / (categories - 1 + e^epsilon), else tell another.

    Needs:   one answer of each person, from 0 to `categories` - 1; an exact sampler
    Gives:   epsilon-DP for each answer, whatever is known of the others
    Proof:   the truth has probability p, any other answer q = p e^-epsilon, so no output is more than e^epsilon times as
             likely under one truth as under another. Of n answers, c of them true for a category, n q + c (p - q) are
             expected to name it: (seen - n q) / (p - q) is unbiased, with variance
             (c p (1 - p) + (n - c) q (1 - q)) / (p - q)^2
    Checked: test_response
    """

    categories: int
    epsilon: float

    name: ClassVar[str] = "response"
    currency: ClassVar[Currency] = "epsilon"

    @property
    def loss(self) -> Fraction:
        return Fraction(self.epsilon)

    @property
    def truth(self) -> float:
        return 1 / (1 + (self.categories - 1) * math.exp(-self.epsilon))

    def estimate(self, seen: Sequence[int]) -> list[float]:
        """How many persons each category has, from how often it was named."""
        lie = self.truth * math.exp(-self.epsilon)
        return [(count - sum(seen) * lie) / (self.truth - lie) for count in seen]

    def variance(self, persons: int, true: float) -> float:
        """Of the estimate for a category that has so many of all persons."""
        lie = self.truth * math.exp(-self.epsilon)
        spread = true * self.truth * (1 - self.truth) + (persons - true) * lie * (1 - lie)
        return spread / (self.truth - lie) ** 2
