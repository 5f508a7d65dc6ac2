"""The samplers, through the real native module, against the exact distributions they claim.

Each fit is a G-test that rejects a true claim with probability about 1e-9. It has power: the same test, on
as many draws, rejects noise whose scale is off by 2 % (1 % in the long tests), where the statistic lies
more than five of its standard deviations above the threshold.
"""

import inspect
import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Literal

import duckdb
import numpy as np
import pytest
from fits import FALSE_ALARM, fit_draws

from dpsql import _native
from dpsql._native import Noisy, add_noise, add_truncated, flips, words_drawn
from dpsql.kernel.accountant import delta_of_mu
from dpsql.kernel.mechanisms import Gaussian, Laplace

Mechanism = Literal["laplace", "sliced_laplace", "gaussian"]
MECHANISMS: tuple[Mechanism, ...] = ("laplace", "sliced_laplace", "gaussian")
SILENT = 2.0**-200  # noise of this scale is zero, but for one draw in exp(2^190)


def exact(sql: str) -> Any:
    return duckdb.connect().sql(sql)


def values(noisy: Noisy, column: str = "v") -> np.ndarray:
    connection = duckdb.connect()
    connection.register("noisy", noisy)
    read: np.ndarray = connection.sql(f"SELECT {column}::BIGINT AS v FROM noisy").fetchnumpy()["v"]
    return read


def draw(mechanism: Mechanism, scale: float, n: int) -> np.ndarray:
    return values(add_noise(exact(f"SELECT 0::HUGEINT AS v FROM range({n})"), mechanism, [scale]))


def at_most(mechanism: Mechanism, scale: float) -> Callable[[float], float]:
    """k -> P(noise <= k)."""
    if mechanism == "gaussian":
        return lambda k: math.erfc(-(k + 0.5) / scale / math.sqrt(2)) / 2
    q = math.exp(-1 / scale)
    return lambda k: q**-k / (1 + q) if k < 0 else 1 - q ** (k + 1) / (1 + q)


def p_value(draws: np.ndarray, mechanism: Mechanism, scale: float) -> float:
    return fit_draws(draws, at_most(mechanism, scale), scale)


@pytest.mark.parametrize(
    ("mechanism", "scale", "p0"),
    [
        ("laplace", 1, 0.46211715726),
        ("laplace", 10, 0.04995837496),
        ("gaussian", 1, 0.382924922548),
        ("gaussian", 4.224679, 0.094211391506),
        ("gaussian", 10, 0.039877611677),
    ],
)
def test_share_of_zero(mechanism: Mechanism, scale: float, p0: float) -> None:
    below = at_most(mechanism, scale)
    assert below(0) - below(-1) == pytest.approx(p0, rel=1e-10)
    n = 100_000
    zeros = np.count_nonzero(draw(mechanism, scale, n) == 0)
    assert abs(zeros - n * p0) < 6.2 * math.sqrt(n * p0 * (1 - p0))


@pytest.mark.parametrize("scale", [0.3, 1, 7.5, 1e3])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_fit(mechanism: Mechanism, scale: float) -> None:
    n = 1_000_000
    draws = draw(mechanism, scale, n)
    assert p_value(draws, mechanism, scale) > FALSE_ALARM
    assert p_value(draw(mechanism, scale * 1.02, n), mechanism, scale) < FALSE_ALARM
    for apart in (1, 2, 255, 256):  # neighbours, and lanes of one word
        assert abs(np.corrcoef(draws[:-apart], draws[apart:])[0, 1]) < 6.2 / math.sqrt(n)


@pytest.mark.long
@pytest.mark.parametrize("scale", [0.3, 1, 7.5, 1e3, 1e6, 1e9])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_fit_long(mechanism: Mechanism, scale: float) -> None:
    n = 10_000_000
    assert p_value(draw(mechanism, scale, n), mechanism, scale) > FALSE_ALARM
    assert p_value(draw(mechanism, scale * 1.01, n), mechanism, scale) < FALSE_ALARM


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_noise_is_added(mechanism: Mechanism) -> None:
    rows = "SELECT 1000000000000::HUGEINT AS v, (-i)::HUGEINT AS w FROM range(300000) t(i)"
    noisy = add_noise(exact(rows), mechanism, [5.0, SILENT])
    assert len(noisy) == 300_000
    near = values(noisy)
    assert abs(near - 10**12).max() < 1000 and len(np.unique(near)) > 20
    assert np.array_equal(values(noisy, "w"), -np.arange(300_000))  # in order, over many batches
    assert np.array_equal(values(noisy), near)  # a second reading draws nothing


def test_the_result_is_decimal() -> None:
    noisy = add_noise(exact('SELECT 1::HUGEINT AS "a b"'), "laplace", [SILENT])
    connection = duckdb.connect()
    connection.register("noisy", noisy)
    assert [(name, str(kind)) for name, kind, *_ in connection.sql("FROM noisy").description] == [
        ("a b", "DECIMAL(38,0)")
    ]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_calls_and_columns_differ(mechanism: Mechanism) -> None:
    rows = "SELECT 0::HUGEINT AS v, 0::HUGEINT AS w FROM range(100)"
    first, second = (add_noise(exact(rows), mechanism, [1e6, 1e6]) for _ in range(2))
    drawn = [values(noisy, column) for noisy in (first, second) for column in ("v", "w")]
    assert len(np.unique(np.concatenate(drawn))) > 390


@pytest.mark.parametrize(("n", "first", "second"), [(20, 1e6, 1e9), (400_000, 30.0, 30.0)])
def test_a_fork_draws_its_own(n: int, first: float, second: float) -> None:
    """Also where threads drew for the parent and both use its table of this scale."""
    script = f"""
import os, sys, duckdb
from dpsql._native import add_noise
zeros = duckdb.connect(config={{"threads": 1}}).sql("SELECT 0::HUGEINT AS v FROM range({n})")
zeros = add_noise(zeros, "laplace", [{first}])
child = os.fork()
if child:
    os.waitpid(child, 0)
connection = duckdb.connect(config={{"threads": 1}})
connection.register("noisy", add_noise(zeros, "laplace", [{second}]))
print(connection.sql("SELECT v::BIGINT FROM noisy LIMIT 1000").fetchall(), flush=True)
os._exit(0)
"""
    command = [sys.executable, "-c", script]
    output = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    child, parent = output.splitlines()
    assert child != parent


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_no_rows(mechanism: Mechanism) -> None:
    noisy = add_noise(exact("SELECT 0::HUGEINT AS v WHERE false"), mechanism, [1.0])
    assert len(noisy) == 0 and len(values(noisy)) == 0


@pytest.mark.parametrize("scale", [math.nan, 0.0, -1.0, math.inf, -math.inf, 2.0**101, 2.0**-201])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_bad_scale(mechanism: Mechanism, scale: float) -> None:
    with pytest.raises(ValueError, match="noise scale must lie"):
        add_noise(exact("SELECT 0::HUGEINT AS v"), mechanism, [scale])


@pytest.mark.parametrize(
    ("sql", "scales", "text"),
    [
        ("SELECT 7::BIGINT", [1.0], "decimal128"),
        ("SELECT 7::DOUBLE", [1.0], "decimal128"),
        ("SELECT 7::DECIMAL(38, 1)", [1.0], "decimal128"),
        ("SELECT 7::DECIMAL(9, 0)", [1.0], "decimal128"),
        ("SELECT 7::HUGEINT, 'seven'", [1.0, 1.0], "decimal128"),
        ("SELECT 7::HUGEINT", [], "one noise scale for each column"),
        ("SELECT 7::HUGEINT", [1.0, 1.0], "one noise scale for each column"),
        ("SELECT CASE WHEN i < 5000 THEN 7::HUGEINT END FROM range(5001) t(i)", [1.0], "is NULL"),
        ("SELECT (2::HUGEINT ** 121)::HUGEINT", [1.0], "larger than 2\\^120"),
        ("SELECT -(2::HUGEINT ** 121)::HUGEINT", [1.0], "larger than 2\\^120"),
        ("SELECT ('seven' || i)::HUGEINT FROM range(9) t(i)", [1.0], "could not be read"),
    ],
)
def test_bad_input(sql: str, scales: list[float], text: str) -> None:
    with pytest.raises(ValueError, match=text) as caught:
        add_noise(exact(sql), "laplace", scales)
    assert "seven" not in str(caught.value)
    assert caught.value.__cause__ is None and caught.value.__context__ is None


def test_bad_arguments() -> None:
    bad: Any = object()
    with pytest.raises(ValueError, match="could not be read"):
        add_noise(bad, "laplace", [1.0])
    unknown: Any = "uniform"
    with pytest.raises(ValueError, match="mechanism must be"):
        add_noise(exact("SELECT 7::HUGEINT"), unknown, [1.0])


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("exponent", [-200, -40, -3, 30, 50])
def test_extreme_scales(mechanism: Mechanism, exponent: int) -> None:
    drawn = abs(draw(mechanism, 2.0**exponent, 1000).astype(float))
    if exponent < -2:
        assert (drawn.max() <= 12) if exponent == -3 else (drawn == 0).all()
    else:
        assert 0.4 < np.median(drawn) / 2.0**exponent < 1


def test_few_and_many_at_once() -> None:
    """The tables that serve many values at one scale and the bins that serve few give the same distribution."""
    for mechanism, n in (("laplace", 60_000), ("gaussian", 250_000)):
        few = np.concatenate([draw(mechanism, 1.3, n // 3) for _ in range(12)])
        assert p_value(few, mechanism, 1.3) > FALSE_ALARM
        assert p_value(draw(mechanism, 1.3, 4 * n), mechanism, 1.3) > FALSE_ALARM


@pytest.mark.parametrize(("scale", "bound"), [(1.0, 3), (3.0, 10), (50.0, 4), (2.0, 0)])
def test_truncated(scale: float, bound: int) -> None:
    n = 300_000
    drawn = values(add_truncated(exact(f"SELECT 0::HUGEINT AS v FROM range({n})"), scale, bound))
    weights = np.exp(-abs(np.arange(-bound, bound + 1)) / scale)
    p = weights / weights.sum()
    seen = np.bincount(drawn + bound, minlength=len(p))
    assert (abs(seen - n * p) <= 6.2 * np.sqrt(n * p * (1 - p)) + 1e-6).all()


@pytest.mark.parametrize("exponent", [-200, -40, 20, 50, 60, 100])
def test_extremes_of_truncated(exponent: int) -> None:
    drawn = values(add_truncated(exact("SELECT 0::HUGEINT AS v FROM range(2000)"), 2.0**exponent, 2**40))
    assert abs(drawn).max() <= 2**40
    if exponent < 0:
        assert (drawn == 0).all()
    else:  # of a scale far above the bound the distribution is uniform
        median = np.median(abs(drawn)) / min(0.69 * 2.0**exponent, 2.0**39)
        assert 0.7 < median < 1.4
    for scale in (math.nan, -1.0, 0.0):
        with pytest.raises(ValueError, match="noise scale must lie"):
            add_truncated(exact("SELECT 0::HUGEINT AS v"), scale, 1)


@pytest.mark.parametrize("mechanism", ["laplace", "gaussian"])
def test_largest_scales(mechanism: Mechanism) -> None:
    """Noise beyond 64 bits is exact as well: its low bits are fair, its size is that of the scale."""
    for exponent in (60, 100):
        connection = duckdb.connect()
        connection.register(
            "noisy", add_noise(exact("SELECT 0::HUGEINT AS v FROM range(2000)"), mechanism, [2.0**exponent])
        )
        drawn = [int(v) for (v,) in connection.sql("SELECT v::HUGEINT FROM noisy").fetchall()]
        assert 0.5 < sorted(map(abs, drawn))[1000] / 2.0**exponent < 0.9
        assert all(abs(sum(v >> bit & 1 for v in drawn) - 1000) < 6.2 * math.sqrt(500) for bit in (0, 1, 31))


def test_what_does_not_fit_draws_nothing() -> None:
    """A value that is too large in the last row of the last column is found before the first word is drawn."""
    rows = "SELECT 1::HUGEINT AS v, CASE WHEN i < 999 THEN 1 ELSE {} END::HUGEINT AS w FROM range(1000) t(i)"
    table = exact(rows.format(2**121)).to_arrow_table()
    before = words_drawn()
    for mechanism in MECHANISMS:
        with pytest.raises(ValueError, match="larger than 2"):
            add_noise(table, mechanism, [1.0, 1.0])
    assert words_drawn() == before
    add_noise(exact(rows.format(1)).to_arrow_table(), "laplace", [1.0, 1.0])
    assert words_drawn() >= before + 1000  # half a word each, from a table that is kept


def test_words_are_counted() -> None:
    before = words_drawn()
    flips(1, 3, 1000)
    assert before + 1000 <= words_drawn() < before + 1002


def test_no_seed() -> None:
    """No function has a parameter for a seed, and none takes one that it does not name."""
    functions = [name for name in _native.__all__ if name != "Noisy"]
    assert len(functions) >= 9
    for name in functions:
        signature = inspect.signature(getattr(_native, name))
        assert not {"seed", "rng", "random", "key", "state", "bits"} & set(signature.parameters)
        assert all(p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in signature.parameters.values())


def test_bad_bound() -> None:
    with pytest.raises(ValueError, match="bound on the noise"):
        add_truncated(exact("SELECT 0::HUGEINT AS v"), 1.0, 2**62 + 1)
    with pytest.raises(ValueError, match="sliced noise"):
        add_noise(exact("SELECT 0::HUGEINT AS v"), "sliced_laplace", [2.0**51])


# --- the claim against the exact probabilities ------------------------------------------------------------------------


@pytest.mark.parametrize("distance", [1, 3, 10])
@pytest.mark.parametrize("scale", [0.3, 1.0, 7.5, 40.0])
def test_laplace_claim(scale: float, distance: int) -> None:
    """Over all outputs, no likelihood ratio between neighbours exceeds e^epsilon, and the worst one reaches it."""
    claimed = float(Laplace(scale, distance).loss)
    outputs = range(-500, 501)
    ratios = [(abs(y) - abs(y - distance)) / scale for y in outputs]  # log P(y | f') / P(y | f)
    assert max(map(abs, ratios)) <= claimed * (1 + 1e-12)
    assert max(map(abs, ratios)) == pytest.approx(claimed, rel=1e-9)


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 3.0])
@pytest.mark.parametrize(("scale", "distance"), [(1.0, 1), (4.224679, 1), (10.0, 3), (25.0, 40)])
def test_gaussian_claim(scale: float, distance: int, epsilon: float) -> None:
    """The exact hockey-stick divergence of the rounded noise is at most that of mu-GDP with the charged mu."""
    mu = math.sqrt(Gaussian(scale, distance).loss)

    def log_mass(k: int) -> float:
        low, high = (abs(k) - 0.5) / scale / math.sqrt(2), (abs(k) + 0.5) / scale / math.sqrt(2)
        mass = (math.erfc(low) - math.erfc(high)) / 2 if k else math.erf(high)
        return math.log(mass) if mass > 0 else -math.inf

    span = range(-int(12 * scale) - distance, int(12 * scale) + distance + 1)
    delta = math.fsum(max(math.exp(log_mass(k - distance)) - math.exp(epsilon + log_mass(k)), 0.0) for k in span)
    assert delta <= delta_of_mu(mu, epsilon) * (1 + 1e-9) + 1e-15
