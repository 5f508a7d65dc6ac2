"""Randomized response: the sampler against its exact probabilities, the estimator against the truth."""

from __future__ import annotations

import math
from fractions import Fraction

import duckdb
import numpy as np
import pytest

from dpsql._native import flips, respond
from dpsql.kernel.mechanisms.response import Response


def answers(sql: str, k: int, epsilon: float) -> np.ndarray:
    connection = duckdb.connect()
    connection.register("noisy", respond(connection.sql(sql), k, epsilon))
    read: np.ndarray = connection.sql("SELECT answer::BIGINT AS answer FROM noisy").fetchnumpy()["answer"]
    return read


@pytest.mark.parametrize(("k", "epsilon"), [(2, 1.0), (3, 0.5), (10, 2.0)])
def test_probabilities_and_estimate(k: int, epsilon: float) -> None:
    """Each answer has its probability; the estimates lie within six deviations of the truth; the claim is the ratio."""
    made, n = Response(k, epsilon), 400_000
    true = [n // 2, n - n // 2, *[0] * (k - 2)]
    noisy = answers(f"SELECT (i % 2)::HUGEINT FROM range({n}) t(i) ORDER BY i", k, epsilon)
    lie = (1 - made.truth) / (k - 1)
    assert made.loss == Fraction(epsilon) and math.log(made.truth / lie) == pytest.approx(epsilon)
    for truth in (0, 1):
        seen = np.bincount(noisy[truth::2], minlength=k)
        for answer, count in enumerate(seen):
            p = made.truth if answer == truth else lie
            assert abs(count - n / 2 * p) < 6.2 * math.sqrt(n / 2 * p * (1 - p))
    for estimate, truth in zip(made.estimate(np.bincount(noisy, minlength=k).tolist()), true, strict=True):
        assert abs(estimate - truth) < 6.2 * math.sqrt(made.variance(n, truth))


def test_variance() -> None:
    """The stated variance is that of the estimates, over many small samples."""
    made, n, times = Response(4, 1.0), 50, 20_000
    noisy = answers(f"SELECT (i % 50 < 20)::INT::HUGEINT FROM range({n * times}) t(i) ORDER BY i", 4, 1.0)
    estimates = [made.estimate(np.bincount(sample, minlength=4).tolist())[1] for sample in noisy.reshape(times, n)]
    assert np.mean(estimates) == pytest.approx(20, abs=6.2 * math.sqrt(made.variance(n, 20) / times))
    assert np.var(estimates) == pytest.approx(made.variance(n, 20), rel=0.07)


@pytest.mark.parametrize(
    ("sql", "k", "epsilon", "text"),
    [
        ("SELECT 2::HUGEINT", 2, 1.0, "not one of the k"),
        ("SELECT -1::HUGEINT", 2, 1.0, "not one of the k"),
        ("SELECT 0::HUGEINT", 1, 1.0, "not one of the k"),
        ("SELECT 0::HUGEINT", 2, 0.0, "finite and above zero"),
        ("SELECT 0::HUGEINT", 2, math.nan, "finite and above zero"),
        ("SELECT 0::BIGINT", 2, 1.0, "one column of decimal128"),
        ("SELECT NULL::HUGEINT", 2, 1.0, "is NULL"),
    ],
)
def test_bad_input(sql: str, k: int, epsilon: float, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        answers(sql, k, epsilon)


@pytest.mark.parametrize(
    ("over", "under", "exp", "p"),
    [(1, 3, False, 1 / 3), (2**100, 2**101, False, 0.5), (3, 2, True, math.exp(-1.5)), (0, 1, True, 1.0)],
)
def test_events(over: int, under: int, exp: bool, p: float) -> None:
    n, connection = 1_000_000, duckdb.connect()
    connection.register("events", flips(over, under, n, exp=exp))
    seen = connection.sql("SELECT count(*) FILTER (event) FROM events").fetchall()[0][0]
    assert abs(seen - n * p) <= 6.2 * math.sqrt(n * p * (1 - p))


def test_no_such_probability() -> None:
    for over, under, exp in ((2, 1, False), (0, 0, False), (1, 0, True)):
        with pytest.raises(ValueError, match="between 0 and 1"):
            flips(over, under, 1, exp=exp)
