"""The threshold of private keys: what it claims against exact tails, and what the native module shows."""

from __future__ import annotations

import math
from fractions import Fraction

import duckdb
import pytest

from dpsql._native import add_noise
from dpsql.mechanisms import Gaussian, Laplace, Threshold


def tail(noise: Gaussian | Laplace, least: int) -> float:
    """P(1 + noise >= least) from the probabilities of single values."""
    if isinstance(noise, Gaussian):
        return math.erfc((least - 1.5) / noise.scale / math.sqrt(2)) / 2
    q = math.exp(-1 / noise.scale)
    return math.fsum((1 - q) / (1 + q) * q**k for k in range(least - 1, least + int(60 * noise.scale) + 60))


@pytest.mark.parametrize("delta", ["1e-15", "1e-9", "4.5e-7", "1e-3", "0.2"])
@pytest.mark.parametrize("keys", [1, 4, 16, 1000])
@pytest.mark.parametrize("scale", [0.05, 0.7, 4.346044, 17.384177, 800.0])
@pytest.mark.parametrize("kind", [Gaussian, Laplace])
def test_claim(kind: type[Gaussian] | type[Laplace], scale: float, keys: int, delta: str) -> None:
    """It costs no more than it may, what it claims is not below the truth, and one less would cost too much."""
    made = Threshold.calibrate(kind(scale, 1), keys, Fraction(delta))
    truth = -math.expm1(keys * math.log1p(-tail(made.noise, made.least)))
    assert truth <= made.delta * (1 + Fraction(1, 10**9)) and made.delta <= Fraction(delta)
    assert float(made.delta) == pytest.approx(truth, rel=1e-6)
    assert made.least == 2 or Threshold(made.least - 1, keys, made.noise).delta > Fraction(delta)


@pytest.mark.parametrize(
    ("keys", "scale", "expected"), [(1, 4.346044, 22.349207), (4, 8.692088, 46.002415), (16, 17.384177, 95.401813)]
)
def test_vectors(keys: int, scale: float, expected: float) -> None:
    """The published continuous thresholds; the integer one needs half a step more, and rounds up."""
    made = Threshold.calibrate(Gaussian(scale, 1), keys, Fraction("4.5e-7"))
    assert made.least == math.ceil(expected + 0.5)


@pytest.mark.parametrize("kind", [Gaussian, Laplace])
def test_groups_of_one_person(kind: type[Gaussian] | type[Laplace]) -> None:
    """Of a million keys with one person each, as many are shown as the tail says, within six deviations."""
    n, made = 1_000_000, Threshold.calibrate(kind(3.0, 1), 1, Fraction("0.01"))
    exact = duckdb.connect().sql(
        f"SELECT 'key ' || i AS k, 1::HUGEINT AS persons, 5::HUGEINT AS n0 FROM range({n}) t(i)"
    )
    shown = add_noise(exact, made.noise.name, [made.noise.scale, 1.0], made.least)
    p = tail(made.noise, made.least)
    assert abs(len(shown) - n * p) < 6 * math.sqrt(n * p)
    connection = duckdb.connect()
    connection.register("shown", shown)
    assert connection.sql("SELECT min(persons) FROM shown").fetchall()[0][0] >= made.least
    assert connection.sql("SELECT count(DISTINCT k), count(DISTINCT n0) > 3 FROM shown").fetchall() == [
        (len(shown), True)
    ]


@pytest.mark.parametrize("scale", [1e14, 1e19, 1e25])
def test_huge_noise_ends(scale: float) -> None:
    """A guess that is far off is mended in few steps."""
    made = Threshold.calibrate(Laplace(scale, 1), 10**6, Fraction("1e-9"))
    assert 0 < made.delta <= Fraction("1e-9")


def test_keys_need_a_threshold() -> None:
    """Keys never pass without one, and a threshold needs keys."""
    connection = duckdb.connect()
    for columns, least in (("'k' AS k, 1::HUGEINT AS n", None), ("1::HUGEINT AS n", 2)):
        with pytest.raises(ValueError, match="keys only with a threshold"):
            add_noise(connection.sql(f"SELECT {columns}"), "laplace", [1.0], least)
