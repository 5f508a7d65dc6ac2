"""How fast the exact noise is beside numpy's insecure one, and OpenDP's, in one run.

python benches/noise.py [--quick] [--json]

Each figure is a ratio of rates on one core, numpy or OpenDP being 1; `threads_speedup` is two cores over one, and
`bits_...` are the random bits for each draw (for each candidate, where one of many is chosen), counted.
OpenDP is heavy, so it is no dependency of ours: `pip install opendp==0.16.0` into the environment first, else its
figures are left out.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from collections.abc import Callable
from functools import partial
from threading import Thread
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from dpsql._native import add_noise, add_truncated, flips, respond, select, words_drawn

Mechanism = Literal["laplace", "gaussian"]
MECHANISMS: tuple[Mechanism, ...] = ("gaussian", "laplace")
LIKE = {"gaussian": "normal", "laplace": "laplace"}
SCALES = (1.0, 4.2, 30.0, 1e3, 1e6, 1e9)


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def least(runs: list[Callable[[], object]], times: int) -> list[float]:
    """Of each the least of many: what others do on the machine only adds. In turn, as its clock changes."""
    return [min(each) for each in zip(*([seconds(run) for run in runs] for _ in range(times)), strict=True)]


def zeros(n: int) -> Any:
    return pa.table({"v": pa.array(np.zeros(n, dtype=np.int64)).cast(pa.decimal128(38, 0))})


def anew(column: Any, mechanism: Mechanism, scale: float) -> Callable[[], object]:
    """With another scale each time, for which nothing is prepared."""
    scales = itertools.count(scale, scale / 2**30)
    return lambda: add_noise(column, mechanism, [next(scales)])


def normals(threads: int) -> None:
    """2,000,000 of numpy's, by so many threads, each into an array that stays in its cache."""

    def fill(times: int) -> None:
        draw, array = np.random.default_rng(), np.empty(20_000)
        for _ in range(times):
            draw.standard_normal(out=array)

    started = [Thread(target=fill, args=(100 // threads,)) for _ in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()


def bits(run: Callable[[], object], n: int) -> float:
    """Random bits for each of n draws, counted."""
    before = words_drawn()
    run()
    return 64 * (words_drawn() - before) / n


def opendp(mechanism: Mechanism, scale: float, n: int) -> Callable[[], object] | None:
    try:
        import opendp.prelude as dp
    except ImportError:
        return None
    dp.enable_features("contrib")
    space = (
        dp.vector_domain(dp.atom_domain(T="i64")),
        dp.l1_distance(T="i64") if mechanism == "laplace" else dp.l2_distance(T="f64"),
    )
    made = dp.m.make_laplace(*space, scale) if mechanism == "laplace" else dp.m.make_gaussian(*space, scale)
    data = [0] * n
    return lambda: made(data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="end within a minute")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = parser.parse_args()
    times, n = (20, 100_000) if options.quick else (200, 100_000)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[:1])
    print(f"load of the machine before: {os.getloadavg()[0]:.2f}")
    draw, figures, column = np.random.default_rng(), dict[str, float](), zeros(n)
    for mechanism in MECHANISMS:
        ratios, theirs = {}, getattr(draw, LIKE[mechanism])
        for scale in SCALES:
            numpy, ours = least([partial(theirs, 0, scale, n), anew(column, mechanism, scale)], times)
            ratios[scale] = numpy / ours
            print(
                f"{mechanism} {scale:<8g} {n / ours / 1e6:6.1f} M/s, numpy {n / numpy / 1e6:6.1f} M/s: {numpy / ours:5.2f} x"
            )
        figures[f"{mechanism}_vs_numpy"] = min(ratios.values())
        if peer := opendp(mechanism, 1e3, few := 2_000):
            slow, ours = least([peer, partial(add_noise, column, mechanism, [1e3])], 5)
            figures[f"{mechanism}_vs_opendp"] = slow / few / (ours / n)
    scores = np.random.default_rng().integers(0, 100, 1_000_000)
    table = pa.table({"v": pa.array(scores).cast(pa.decimal128(38, 0))})
    kinds: tuple[Literal["gumbel", "exponential", "laplace"], ...] = ("gumbel", "exponential", "laplace")
    gumbel: Callable[[], object] = lambda: np.argmax(scores + np.random.gumbel(size=len(scores)))  # noqa: E731
    numpy, *each = least([gumbel, *(partial(select, table, noise, 1.0) for noise in kinds)], 5)
    figures |= {f"noisy_max_{noise}_vs_numpy": numpy / ours for noise, ours in zip(kinds, each, strict=True)}
    figures["noisy_max_vs_numpy"] = figures["noisy_max_gumbel_vs_numpy"]
    # So many at one scale that a table of it pays, which is then kept: half a word for each.
    many, fewer = zeros(2_000_000), times // 5
    for mechanism in MECHANISMS:
        ratios = {}
        for values, again in ((many, fewer), (column, times)):
            size = len(values)
            theirs = partial(getattr(draw, LIKE[mechanism]), 0, 2.0, size)
            numpy, ours = least([theirs, partial(add_noise, values, mechanism, [2.0])], again)
            ratios[size] = numpy / ours
            print(f"tabled {mechanism} 2, {size} at once: {size / ours / 1e6:6.1f} M/s: {numpy / ours:5.2f} x")
        figures[f"tabled_{mechanism}_vs_numpy"] = min(ratios.values())
    figures["tabled_vs_numpy"] = min(figures["tabled_gaussian_vs_numpy"], figures["tabled_laplace_vs_numpy"])
    sliced = partial(add_noise, many, "sliced_laplace", [30.0])
    numpy, ours = least([partial(draw.laplace, 0, 30.0, 2_000_000), sliced], fewer)
    figures["sliced_vs_numpy"] = numpy / ours

    def on(threads: int, work: Callable[[], object]) -> None:
        os.sched_setaffinity(0, cores[:threads])
        work()

    # Beside what the machine gives to two threads that share nothing: its cores may be halves of one.
    ours_many = partial(add_noise, many, "gaussian", [1e3])
    works: list[tuple[int, Callable[[], object]]]
    works = [(1, ours_many), (2, ours_many), (1, partial(normals, 1)), (2, partial(normals, 2))]
    one, two, alone, both = least([partial(on, *work) for work in works], fewer)
    figures |= {"threads_speedup": one / two, "threads_speedup_of_numpy": alone / both}
    os.sched_setaffinity(0, cores)
    n = 1_000_000
    million, ones = zeros(n), pa.table({"v": pa.array(np.ones(n, dtype=np.int64)).cast(pa.decimal128(38, 0))})
    runs: dict[str, Callable[[], object]] = {
        "gaussian": partial(add_noise, million, "gaussian", [1e3]),
        "laplace": partial(add_noise, million, "laplace", [1e3]),
        "tabled_gaussian": partial(add_noise, million, "gaussian", [2.0]),
        "tabled_laplace": partial(add_noise, million, "laplace", [2.0]),
        "sliced_laplace": partial(add_noise, million, "sliced_laplace", [30.0]),
        "truncated_laplace": partial(add_truncated, million, 1e3, 3000),
        "flip": partial(flips, 1, 3, n),
        "response_of_2": partial(respond, ones, 2, 1.0),
        "response_of_5": partial(respond, ones, 5, 1.0),
        "gumbel": partial(select, table, "gumbel", 1.0),
        "exponential": partial(select, table, "exponential", 1.0),
        "noisy_max_laplace": partial(select, table, "laplace", 1.0),
    }
    figures |= {f"bits_{name}": bits(run, n) for name, run in runs.items()}
    for name, figure in figures.items():
        print(f"{name:<32} {figure:8.2f}")
    if options.json:
        print(json.dumps({name: round(figure, 3) for name, figure in figures.items()}))


if __name__ == "__main__":
    main()
