"""The threshold of private keys: what it claims against exact tails, and what the native module shows."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import duckdb
import pytest

from dpsql._native import add_noise, show
from dpsql.kernel.mechanisms import Gaussian, Laplace, Later, Threshold


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
    assert tail(made.noise, made.enough - made.least + 2) < 1e-9  # that noise takes so many below it


@pytest.mark.parametrize(
    ("keys", "scale", "expected"), [(1, 4.346044, 22.349207), (4, 8.692088, 46.002415), (16, 17.384177, 95.401813)]
)
def test_vectors(keys: int, scale: float, expected: float) -> None:
    """The published continuous thresholds; the integer one needs half a step more, and rounds up."""
    made = Threshold.calibrate(Gaussian(scale, 1), keys, Fraction("4.5e-7"))
    assert made.least == math.ceil(expected + 0.5)


@pytest.mark.parametrize("persons", [1, 2, 4, 30])
@pytest.mark.parametrize("keys", [1, 3, 100])
@pytest.mark.parametrize("loss", ["1e-6", "0.05", "1", "30"])
@pytest.mark.parametrize("kind", [Gaussian, Laplace])
def test_groups_before_it_is_known(kind: type[Gaussian] | type[Laplace], loss: str, keys: int, persons: int) -> None:
    """What is charged before the threshold is known says no less of a group than whichever threshold it will be."""
    later = Later(kind.guarantee, Fraction(loss), Fraction(1, 10**7))
    (noise,) = kind.calibrate([keys if kind is Laplace else math.isqrt(keys - 1) + 1], later.loss)
    made = Threshold.calibrate(noise, keys, later.delta)
    assert later.covers([made]) and made.delta_for(persons) <= later.delta_for(persons) <= 1
    assert later.delta_for(1) == later.delta


@pytest.mark.parametrize("delta", ["1e-12", "1e-6", "0.05"])
@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0, 16.0])
@pytest.mark.parametrize("kind", [Gaussian, Laplace])
def test_pair(kind: type[Gaussian] | type[Laplace], scale: float, delta: str) -> None:
    """The tail of a sum of two noises against their convolution: never below it, and for Laplace equal to it."""
    made = Threshold.calibrate(kind(scale, 1), 4, Fraction(delta), pair=True)
    reach = made.least + int(45 * scale) + 45
    one = [tail(made.noise, k + 1) for k in range(reach)]  # P(noise >= k)
    single = [a - b for a, b in pairwise(one)]
    below = math.fsum(p * one[made.least - 1 + k] for k, p in enumerate(single) if k and made.least - 1 + k < reach)
    above = math.fsum(
        p * (one[t] if t >= 0 else 1 - one[1 - t])
        for k, p in enumerate(single)
        if (t := made.least - 1 - k) > -reach + 1
    )
    truth = -math.expm1(4 * math.log1p(-(below + above)))
    assert truth <= float(made.delta) * (1 + 1e-9) and made.delta <= Fraction(delta)
    if kind is Laplace:
        assert float(made.delta) == pytest.approx(truth, rel=1e-6)
        assert made.least == 2 or Threshold(made.least - 1, 4, made.noise, True).delta > Fraction(delta)


@pytest.mark.parametrize(("keys", "expected"), [(1, 16.278690), (4, 67.986074), (16, 292.326039)])
def test_pair_vectors(keys: int, expected: float) -> None:
    """The published continuous thresholds of a Laplace pair; the integer ones need half a step more, and round up."""
    made = Threshold.calibrate(Laplace(float(keys), 1), keys, Fraction("1e-6"), pair=True)
    assert 0 <= made.least - expected < 1.5


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


# --- keys alone: the optimal rule --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("persons", "p"),
    [(0, 0.0), (1, 1e-6), (10, 0.0128183), (13, 0.257474), (14, 0.699887), (20, 0.999257), (10**9, 1.0)],
)
def test_optimal_selection(persons: int, p: float) -> None:
    """As many keys are shown as the published probabilities say, and nothing but keys."""
    n = 200_000
    keys = duckdb.connect().sql(f"SELECT 'key ' || i AS k, i AS j, {persons}::HUGEINT FROM range({n}) t(i)")
    shown = show(keys, 1.0, 1e-6)
    assert abs(len(shown) - n * p) <= 6.2 * math.sqrt(n * p * (1 - p)) + 4 * (persons == 1)
    connection = duckdb.connect()
    connection.register("shown", shown)
    assert connection.sql("FROM shown").columns == ["k", "j"]
    assert connection.sql("SELECT count(DISTINCT k) FROM shown WHERE k = 'key ' || j").fetchall() == [(len(shown),)]


@pytest.mark.parametrize(
    ("sql", "epsilon", "delta", "text"),
    [
        ("SELECT 5::HUGEINT", 1.0, 1e-6, "must be keys"),
        ("SELECT 'k', 5::BIGINT", 1.0, 1e-6, "must be keys"),
        ("SELECT 'k', NULL::HUGEINT", 1.0, 1e-6, "is NULL"),
        ("SELECT 'k', 5::HUGEINT", 0.0, 1e-6, "finite and above zero"),
        ("SELECT 'k', 5::HUGEINT", 1.0, 0.0, "delta must lie"),
        ("SELECT 'k', 5::HUGEINT", 1.0, 1.0, "delta must lie"),
        ("SELECT 'k', 5::HUGEINT", 1e-9, 1e-9, "epsilon not be too small"),
    ],
)
def test_bad_selection(sql: str, epsilon: float, delta: float, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        show(duckdb.connect().sql(sql), epsilon, delta)
