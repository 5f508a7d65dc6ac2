"""Weighted choice and noisy maxima, through the real native module, against their exact probabilities."""

from __future__ import annotations

import math
from typing import Any

import duckdb
import numpy as np
import pytest

from dpsql._native import choose, quantile, select


def scores(*values: int) -> Any:
    rows = ", ".join(f"({i}, {value}::HUGEINT)" for i, value in enumerate(values))
    return duckdb.connect().sql(f"SELECT v FROM (VALUES {rows}) t(i, v) ORDER BY i")


@pytest.mark.parametrize(
    ("values", "rate", "weights", "expected"),
    [
        ((0, 1, 2), 1.0, [1, 1, 1], [0.090031, 0.244728, 0.665241]),
        (  # the ladder on (1, 3, 5, 9, 40), with prior C^-2
            (-4, -4, -3, -2, -1, -1, 0),
            0.5,
            [4**j for j in range(6, -1, -1)],
            [0.704620, 0.176155, 0.072608, 0.029927, 0.012335, 0.003084, 0.001271],
        ),
        ((10**9, -(10**9), 10**9 - 1), 1e-3, [1, 2**127, 2**100], [0.0, 0.0, 1.0]),
    ],
)
def test_probabilities(values: tuple[int, ...], rate: float, weights: list[int], expected: list[float]) -> None:
    n, table = 20_000, scores(*values).to_arrow_table()
    seen = np.bincount([choose(table, rate, [weights])[0] for _ in range(n)], minlength=len(values))
    assert all(abs(s - n * p) < 6.2 * math.sqrt(n * p * (1 - p)) + 0.1 for s, p in zip(seen, expected, strict=True))


def test_scores_far_apart() -> None:
    assert choose(scores(-(2**120), 2**120, 0), 1e-30, [[2**128 - 1, 1, 2**128 - 1]]) == [1]
    assert choose(scores(7), 5e-324, [[1]]) == [0]


def test_several_at_once() -> None:
    far = scores(0, 10**9, 10**9, 0, 0, 7, 10**9)
    assert choose(far, 1.0, [[1, 1], [9, 1, 1], [1], [1]]) == [1, 0, 0, 0]
    with pytest.raises(ValueError, match="needs a weight"):
        choose(scores(1, 2, 3), 1.0, [[1, 1], []])


@pytest.mark.parametrize(
    ("sql", "rate", "weights", "text"),
    [
        ("SELECT 7::HUGEINT", 0.0, [1], "finite and above zero"),
        ("SELECT 7::HUGEINT", -1.0, [1], "finite and above zero"),
        ("SELECT 7::HUGEINT", math.nan, [1], "finite and above zero"),
        ("SELECT 7::HUGEINT", math.inf, [1], "finite and above zero"),
        ("SELECT 7::HUGEINT", 1.0, [0], "needs a weight"),
        ("SELECT 7::HUGEINT", 1.0, [-1], "needs a weight"),
        ("SELECT 7::HUGEINT", 1.0, [2**128], "needs a weight"),
        ("SELECT 7::HUGEINT", 1.0, [1.5], "needs a weight"),
        ("SELECT 7::HUGEINT", 1.0, [1, 1], "needs a weight"),
        ("SELECT 7::HUGEINT WHERE false", 1.0, [], "needs a weight"),
        ("SELECT 7::BIGINT", 1.0, [1], "one column of decimal128"),
        ("SELECT 7::HUGEINT, 7::HUGEINT", 1.0, [1], "one column of decimal128"),
        ("SELECT NULL::HUGEINT", 1.0, [1], "is NULL"),
        ("SELECT (2::HUGEINT ** 121)::HUGEINT", 1.0, [1], "larger than 2\\^120"),
        ("SELECT ('seven' || i)::HUGEINT FROM range(9) t(i)", 1.0, [1], "could not be read"),
    ],
)
def test_bad_input(sql: str, rate: float, weights: list[Any], text: str) -> None:
    with pytest.raises(ValueError, match=text) as caught:
        choose(duckdb.connect().sql(sql), rate, [weights])
    assert "seven" not in str(caught.value)


def places(sql: str, noise: Any, rate: float, k: int = 1) -> np.ndarray:
    connection = duckdb.connect()
    connection.register("chosen", select(connection.sql(sql), noise, rate, k))
    read: np.ndarray = connection.sql("SELECT place::BIGINT AS place FROM chosen").fetchnumpy()["place"]
    return read


@pytest.mark.parametrize(
    ("noise", "scores", "expected"),
    [
        ("gumbel", "[0, 1, 2]", [0.090031, 0.244728, 0.665241]),
        ("exponential", "[0, 1, 2]", [0.059370, 0.175642, 0.764988]),
        ("laplace", "[7, 6]", [1 - 0.75 / math.e, 0.75 / math.e]),
        ("gumbel", "[4]", [1.0]),
    ],
)
def test_many_vectors(noise: str, scores: str, expected: list[float]) -> None:
    n = 300_000
    chosen = places(f"SELECT {scores}::HUGEINT[] FROM range({n})", noise, 1.0)
    assert len(chosen) == n
    seen = np.bincount(chosen, minlength=len(expected))
    assert all(abs(s - n * p) < 6.2 * math.sqrt(n * p * (1 - p)) + 0.1 for s, p in zip(seen, expected, strict=True))


def test_top_k_is_peeling() -> None:
    """The pair (first, second) has the probability of two exponential mechanisms, one after the other."""
    n, weights = 200_000, np.exp([0.0, 1.0, 2.0])
    pairs = places(f"SELECT [0, 1, 2]::HUGEINT[] FROM range({n})", "gumbel", 1.0, 2).reshape(n, 2)
    for i in range(3):
        for j in {0, 1, 2} - {i}:
            p = weights[i] / weights.sum() * weights[j] / (weights.sum() - weights[i])
            seen = np.count_nonzero((pairs == (i, j)).all(axis=1))
            assert abs(seen - n * p) < 6.2 * math.sqrt(n * p)


@pytest.mark.parametrize("noise", ["gumbel", "exponential", "laplace"])
def test_shapes(noise: Any) -> None:
    assert list(places("SELECT (i = 777_777)::INT::HUGEINT FROM range(1_000_000) t(i)", noise, 1e6)) == [777_777]
    assert len(places("SELECT 5::HUGEINT FROM range(1_000_000)", noise, 1.0)) == 1  # a million equal scores
    assert list(places("SELECT 5::HUGEINT", noise, 1.0)) == [0]
    assert len(places("SELECT 5::HUGEINT WHERE false", noise, 1.0)) == 0
    ragged = "SELECT list_transform(range(i % 3), lambda x: (-x)::HUGEINT) FROM range(300) t(i) ORDER BY i"
    assert list(places(ragged, noise, 1e6)) == [0] * 200
    for rate in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="finite and above zero"):
            places("SELECT 5::HUGEINT", noise, rate)


@pytest.mark.parametrize(
    ("sql", "noise", "k", "text"),
    [
        ("SELECT [7]::BIGINT[]", "gumbel", 1, "one column of decimal128"),
        ("SELECT [7, NULL]::HUGEINT[]", "gumbel", 1, "is NULL"),
        ("SELECT NULL::HUGEINT[]", "gumbel", 1, "is NULL"),
        ("SELECT 7::HUGEINT", "gumbel", 0, "k at least 1"),
        ("SELECT 7::HUGEINT", "laplace", 2, "k at least 1"),
        ("SELECT 7::HUGEINT", "uniform", 1, "noise must be"),
    ],
)
def test_bad_selection(sql: str, noise: str, k: int, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        places(sql, noise, 1.0, k)


def test_quantile_cells() -> None:
    """The median of (2, 0, 4, 4) rows in cells of widths (1, 2, 1, 3): against the formula."""
    n, epsilon, widths = 20_000, 0.7, [1, 2, 1, 3]
    utilities = np.array([-3.0, -3.0, 0.0, -1.0])  # rank 5 of 10
    p = np.array(widths) * np.exp(epsilon * utilities)
    p /= p.sum()
    table = scores(2, 0, 4, 4).to_arrow_table()
    seen = np.bincount([quantile(table, 1, 2, epsilon, widths) for _ in range(n)], minlength=4)
    assert (abs(seen - n * p) < 6.2 * np.sqrt(n * p * (1 - p))).all()


def test_quantile_of_many_cells() -> None:
    """A million cells, of which one has all rows: with ties the cell is exact."""
    rows = duckdb.connect().sql(
        "SELECT CASE WHEN i = 123_456 THEN 10_000 ELSE 0 END::HUGEINT FROM range(1_000_000) t(i)"
    )
    assert quantile(rows, 9, 10, 1.0, [1] * 1_000_000) == 123_456


@pytest.mark.parametrize(
    ("over", "under", "rows", "text"),
    [(3, 2, (1, 1), "between 0 and 1"), (1, 2, (1, -1), "larger than 2\\^120"), (0, 0, (1, 1), "between 0 and 1")],
)
def test_bad_quantile(over: int, under: int, rows: tuple[int, ...], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        quantile(scores(*rows), over, under, 1.0, [1, 1])


@pytest.mark.parametrize("noise", ["gumbel", "exponential", "laplace"])
def test_a_million_ragged_vectors(noise: Any) -> None:
    """In one call: vector i has i % 4 candidates, the last of which is far ahead; empty ones give nothing."""
    n, connection = 1_000_000, duckdb.connect()
    ragged = f"SELECT list_transform(range(i % 4), lambda x: (1000 * x)::HUGEINT) FROM range({n}) t(i) ORDER BY i"
    connection.register("chosen", select(connection.sql(ragged), noise, 1.0))
    read = connection.sql("SELECT vector::BIGINT AS vector, place::BIGINT AS place FROM chosen").fetchnumpy()
    vectors = np.arange(n)[np.arange(n) % 4 > 0]
    assert np.array_equal(read["vector"], vectors) and np.array_equal(read["place"], vectors % 4 - 1)
