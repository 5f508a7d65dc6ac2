"""Ten million draws of each mechanism fit its exact probabilities, and those of a scale that is off by 1 % do not.

A true claim is rejected with probability at most about 1e-9. Where a mechanism has a rate instead of a scale, it is the
inverse, and scores lie about one scale apart. What has neither, as randomized response, is drawn where 1 % can be told
at all from ten million draws: with epsilon 1/1000 it would take 10^14.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import permutations
from typing import Any, Literal

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from fits import FALSE_ALARM, fit, fit_draws

from dpsql._native import add_noise, add_truncated, choose, flips, quantile, respond, select, show

N = 10_000_000
SCALES = (0.3, 1, 7.5, 1e3, 1e6, 1e9)
INTEGER = pa.decimal128(38, 0)
Noise = Literal["gumbel", "exponential", "laplace"]
pytestmark = pytest.mark.long


def check(counts: Callable[[float], np.ndarray], p: np.ndarray) -> None:
    """`counts` of outcomes, with the parameter times the given number."""
    seen = counts(1.0)
    assert seen.sum() == N and fit(seen, p) > FALSE_ALARM
    assert fit(counts(1.01), p) < FALSE_ALARM


def column(noisy: Any, name: str) -> np.ndarray:
    connection = duckdb.connect()
    connection.register("noisy", noisy)
    read: np.ndarray = connection.sql(f"SELECT {name}::BIGINT AS v FROM noisy").fetchnumpy()["v"]
    return read


def of_two(count: int) -> np.ndarray:
    return np.array([N - count, count])


@pytest.mark.parametrize("scale", SCALES)
def test_truncated(scale: float) -> None:
    bound = math.ceil(3 * scale)
    zeros, q = duckdb.sql(f"SELECT 0::HUGEINT AS v FROM range({N})").to_arrow_table(), math.exp(-1 / scale)

    def free(k: float) -> float:
        return q**-k / (1 + q) if k < 0 else 1 - q ** (k + 1) / (1 + q)

    low, high = free(-bound - 1), free(bound)

    def below(k: float) -> float:
        return min(max((free(k) - low) / (high - low), 0.0), 1.0)

    assert fit_draws(column(add_truncated(zeros, scale, bound), "v"), below, scale) > FALSE_ALARM
    assert fit_draws(column(add_truncated(zeros, scale * 1.01, bound), "v"), below, scale) < FALSE_ALARM


def test_truncated_below_its_scale() -> None:
    """Where draws are from the uniform distribution: by the mean size, as few cells have the power."""
    scale, bound = 100.0, 99
    zeros, k = duckdb.sql(f"SELECT 0::HUGEINT AS v FROM range({N})").to_arrow_table(), np.arange(-bound, bound + 1)
    p = np.exp(-abs(k) / scale)
    p /= p.sum()
    mean, square = (p * abs(k)).sum(), (p * k**2).sum()
    most = 6.11 * math.sqrt((square - mean**2) / N)
    drawn = column(add_truncated(zeros, scale, bound), "v")
    assert abs(abs(drawn).mean() - mean) < most and fit(np.bincount(drawn + bound), p) > FALSE_ALARM
    assert abs(abs(column(add_truncated(zeros, scale * 1.01, bound), "v")).mean() - mean) > most


def integers(values: list[int], times: int) -> Any:
    """These again and again, as decimals: 16 bytes each, which a cast would take long to make."""
    halves = np.array([(value, value >> 63) for value in values], dtype=np.int64)
    buffer = pa.py_buffer(np.tile(halves, (times, 1)).tobytes())
    return pa.Array.from_buffers(INTEGER, len(values) * times, [None, buffer])


def selected(noise: Noise, scores: list[int], k: int) -> Callable[[float], np.ndarray]:
    """How often each outcome is seen at a rate; its number is in base 3 for k > 1."""
    n = N // 4
    ends = np.arange(0, len(scores) * n + 1, len(scores), dtype=np.int32)
    table = pa.table({"v": pa.ListArray.from_arrays(pa.array(ends), integers(scores, n))})

    def count(rate: float) -> np.ndarray:
        places = pa.table(select(table, noise, rate, k))["place"].to_numpy().astype(np.int64).reshape(n, k)
        return np.bincount(places @ 3 ** np.arange(k)[::-1], minlength=3**k)

    return lambda rate: np.array(sum(count(rate) for _ in range(4)))


def selection(noise: Noise, x: float) -> np.ndarray:
    """The probabilities of three candidates with scores 0, x and 2 x; for Laplace noise, of 0 and x."""
    if noise == "laplace":
        p = (0.5 + x / 4) * math.exp(-x)
        return np.array([p, 1 - p, 0])
    weights = np.exp(x * np.array([-2.0, -1.0, 0.0]))
    if noise == "gumbel":
        return np.array(weights / weights.sum())
    shares = np.zeros(3)
    for order in permutations(range(3)):  # permute and flip: the first whose coin falls so
        left = 1 / 6
        for i in order:
            shares[i] += left * weights[i]
            left *= 1 - weights[i]
    return shares


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("noise", ["gumbel", "exponential", "laplace"])
def test_selection(noise: Noise, scale: float) -> None:
    """The exponential mechanism, permute-and-flip and report-noisy-max with Laplace noise."""
    step = math.ceil(scale)
    scores = [0, step, 2 * step][: 2 if noise == "laplace" else 3]
    counts = selected(noise, scores, 1)
    check(lambda off: counts(1 / (scale * off)), selection(noise, step / scale))


@pytest.mark.parametrize("scale", [0.3, 1, 1e6])
def test_top_two(scale: float) -> None:
    step = math.ceil(scale)
    weights = selection("gumbel", step / scale)
    pairs = np.array(
        [[0 if i == j else weights[i] * weights[j] / (1 - weights[i]) for j in range(3)] for i in range(3)]
    )
    counts = selected("gumbel", [0, step, 2 * step], 2)
    check(lambda off: counts(1 / (scale * off)), pairs.flatten())


@pytest.mark.parametrize("scale", SCALES)
def test_weighted_choice(scale: float) -> None:
    step, n = math.ceil(scale), N // 10
    weights = np.array([7, 3, 1]) * np.exp(step / scale * np.arange(3))
    scores = pa.table({"v": integers([0, step, 2 * step], n)})
    lists = [[7, 3, 1]] * n

    def counts(off: float) -> np.ndarray:
        chosen = (choose(scores, 1 / (scale * off), lists) for _ in range(10))
        return np.array(sum(np.bincount(each, minlength=3) for each in chosen))

    check(counts, weights / weights.sum())


def test_quantile_cells() -> None:
    """The median of rows in cells of unequal width; a person moves each rank by one half."""
    scale, rows, widths = 7.5, [20, 0, 40, 30], [1, 2, 1, 3]
    table = pa.table({"v": integers(rows, 1)})
    weights = np.array(widths) * np.exp(np.array([-25.0, -25.0, 0.0, -15.0]) / scale)  # rank 45

    def counts(off: float) -> np.ndarray:
        chosen = (quantile(table, 1, 2, 1 / (scale * off), widths) for _ in range(N))
        return np.bincount(np.fromiter(chosen, dtype=np.int64, count=N), minlength=4)

    check(counts, weights / weights.sum())


@pytest.mark.parametrize("epsilon", [1.0, 2.0, 1 / 0.3])
@pytest.mark.parametrize("k", [2, 5])
def test_randomized_response(k: int, epsilon: float) -> None:
    answers = duckdb.sql(f"SELECT 1::HUGEINT AS v FROM range({N})").to_arrow_table()
    p = np.full(k, 1 / (k - 1 + math.exp(epsilon)))
    p[1] *= math.exp(epsilon)
    check(lambda off: np.bincount(column(respond(answers, k, epsilon / off), "answer"), minlength=k), p)


@pytest.mark.parametrize(
    ("over", "under", "exp", "p"),
    [
        (10**6, 3 * 10**6, False, 1 / 3),
        (9 * 10**5, 10**6, False, 0.9),
        (10**8, 10**12, False, 1e-4),
        (10**6, 10**6, True, math.exp(-1)),
        (3 * 10**5, 10**6, True, math.exp(-0.3)),
        (4 * 10**6, 10**6, True, math.exp(-4)),
    ],
)
def test_events(over: int, under: int, exp: bool, p: float) -> None:
    def counts(off: float) -> np.ndarray:
        return of_two(int(column(flips(round(over * off), under, N, exp=exp), "event").sum()))

    if p == 1e-4:  # 1 % of so few cannot be told
        assert fit(counts(1.0), np.array([1 - p, p])) > FALSE_ALARM
    else:
        check(counts, np.array([1 - p, p]))


@pytest.mark.parametrize(("epsilon", "persons"), [(1.0, 12), (1.0, 13), (1.0, 14), (0.3, 35), (1 / 0.3, 5)])
def test_optimal_partition_selection(epsilon: float, persons: int) -> None:
    """The chance of a key by the recursion, in floating point."""
    keys = duckdb.sql(f"SELECT i AS k, {persons}::HUGEINT AS n FROM range({N}) t(i)").to_arrow_table()
    p = 0.0
    for _ in range(persons):
        p = min(math.exp(epsilon) * p + 1e-6, 1 - math.exp(-epsilon) * (1 - p - 1e-6), 1.0)
    check(lambda off: of_two(len(show(keys, epsilon / off, 1e-6))), np.array([1 - p, p]))


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("mechanism", ["laplace", "gaussian"])
def test_threshold(mechanism: Literal["laplace", "gaussian"], scale: float) -> None:
    """Keys of one person are shown with the probability of the tail."""
    least = 1 + math.ceil(scale)
    keys = duckdb.sql(f"SELECT i AS k, 1::HUGEINT AS n FROM range({N}) t(i)").to_arrow_table()
    if mechanism == "gaussian":
        p = math.erfc((least - 1.5) / scale / math.sqrt(2)) / 2
    else:
        q = math.exp(-1 / scale)
        p = q ** (least - 1) / (1 + q)
    check(lambda off: of_two(len(add_noise(keys, mechanism, [scale * off], least))), np.array([1 - p, p]))
