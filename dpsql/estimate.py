"""Error bars: what is known of the exact answer from the released one and the public scale of the noise.

They cover the noise and not the clipping. Sums are linear in the released columns; for a ratio Fieller's interval is
used; any other arithmetic gets a first-order interval around the released value, and none where a count in it may be zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from dpsql.compiler.program import Estimate, Formula, Linear, Plan, Ratio
from dpsql.kernel.algebra import Aggregate, Call, Column, Expr, Free, Literal
from dpsql.kernel.mechanisms import Laplace, Mechanism

Array = NDArray[np.float64]
Ends = tuple[Array, Array]
ANY = (Fraction(-(10**400)), Fraction(10**400))


@dataclass(frozen=True)
class Smooth:
    """Values and their derivatives by the released columns, for what is neither linear nor a ratio."""

    value: Array
    slopes: Mapping[str, Array]


Form = Linear | Ratio | Formula | Smooth


def interval(plan: Plan, expression: Expr, released: Mapping[str, Array], confidence: float) -> Ends | None:
    """Low and high for each key, or None where the expression is not arithmetic of aggregates."""
    with np.errstate(all="ignore"):
        found = bounds(plan, expression, released, confidence)
    if found is None:
        return None
    # Arithmetic that has left the floating numbers bounds nothing.
    return np.nan_to_num(found[0], nan=-math.inf, posinf=math.inf, neginf=-math.inf), np.nan_to_num(
        found[1], nan=math.inf, posinf=math.inf, neginf=-math.inf
    )


def number(exact: Fraction) -> float:
    """The nearest float; infinite where there is none."""
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def bounds(plan: Plan, expression: Expr, released: Mapping[str, Array], confidence: float) -> Ends | None:
    match expression:
        case Call("round", (inner, *digits), _):  # of what is noisy: half a unit more on either side
            places = digits[0].facts.constant if digits else 0
            found = bounds(plan, inner, released, confidence)
            half = 0.5 * 10.0 ** -int(places) if isinstance(places, int) else math.inf
            return found and (found[0] - half, found[1] + half)
    form = shape(plan, expression, released)
    if form is None or (isinstance(form, Linear) and not form.terms):
        return None
    variance = {column: mechanism.deviation**2 for column, mechanism in plan.release.noise.items()}
    z = quantile(plan.release.noises[0], confidence)
    rounding = 0.0 if expression.facts.type.sql == "DOUBLE" else 0.5 * 10.0**-expression.facts.type.scale
    match form:
        case Linear():
            half = z * math.sqrt(covariance(form, form, variance)) + rounding
            value = evaluate(form, released)
            if rounding:  # around what is shown, so that it lies in the middle
                value = np.round(value, expression.facts.type.scale)
            return value - half, value + half
        case Ratio() | Formula():
            return around(form, released, variance, z)
        case Smooth():
            low, high = around(form, released, variance, z)
            return low - rounding, high + rounding


def middle(plan: Plan, expression: Expr, released: Mapping[str, Array]) -> Array:
    """The value that an interval is around."""
    match expression:
        case Call("round", (inner, *_), _):
            return middle(plan, inner, released)
    form = shape(plan, expression, released)
    assert form is not None
    with np.errstate(all="ignore"):
        return smooth(form, released).value


def around(
    form: Ratio | Formula | Smooth, released: Mapping[str, Array], variance: Mapping[str, float], z: float
) -> Ends:
    """The interval of what is not linear."""
    match form:
        case Ratio():
            return fieller(form, released, variance, z)
        case Smooth(value, slopes):
            half = z * np.sqrt(sum(slope**2 * variance[column] for column, slope in slopes.items()))
            return value - half, value + half
        case Formula("sqrt", (Formula() as inner,)):
            low, high = around(inner, released, variance, z)
            return np.sqrt(np.maximum(low, 0)), np.sqrt(np.maximum(high, 0))
        case Formula("*", (Formula() as inner, other)) if inner == other:
            low, high = around(inner, released, variance, z)
            least = np.maximum(np.maximum(low, -high), 0)  # zero if it lies between
            return least**2, np.maximum(low**2, high**2)
        case Formula("*", (Linear(terms, factor), Formula() as inner)) if not terms and factor >= 0:
            low, high = around(inner, released, variance, z)
            return low * number(factor), high * number(factor)
    low, high = around(smooth(form, released), released, variance, z)
    for under in counts(form):
        unsure = evaluate(under, released) <= z * math.sqrt(covariance(under, under, variance))
        low, high = np.where(unsure, -math.inf, low), np.where(unsure, math.inf, high)
    if form.low < form.high:
        low, high = np.nan_to_num(low, nan=-math.inf), np.nan_to_num(high, nan=math.inf)
        return np.clip(low, number(form.low), number(form.high)), np.clip(high, number(form.low), number(form.high))
    return low, high


def counts(form: Estimate) -> Iterator[Linear]:
    """What is divided by inside of a formula, as far as it is linear."""
    match form:
        case Ratio(_, under, _, _):
            yield under
        case Formula(_, parts, _, _):
            for part in parts:
                yield from counts(part)


def quantile(mechanism: Mechanism, confidence: float) -> float:
    """Standard deviations on either side that hold the noise with this confidence.

    One Laplace has the heavier tail of the two; a sum of Laplaces lies in between, so it gets slightly more than it needs.
    """
    normal = NormalDist().inv_cdf((1 + confidence) / 2)
    return max(normal, -math.log(1 - confidence) / math.sqrt(2)) if isinstance(mechanism, Laplace) else normal


def covariance(a: Linear, b: Linear, variance: Mapping[str, float]) -> float:
    return sum(number(a.terms[c]) * number(b.terms[c]) * variance[c] for c in a.terms if c in b.terms)


def evaluate(form: Linear, released: Mapping[str, Array]) -> Array:
    size = len(next(iter(released.values())))
    return sum((number(f) * released[c] for c, f in form.terms.items()), np.full(size, number(form.constant)))


def fieller(form: Ratio, released: Mapping[str, Array], variance: Mapping[str, float], z: float) -> Ends:
    """All t for which over - t * under is within z deviations of zero; the clip range where that is unbounded."""
    s, c = evaluate(form.over, released), evaluate(form.under, released)
    a = c**2 - z**2 * covariance(form.under, form.under, variance)
    b = s * c - z**2 * covariance(form.over, form.under, variance)
    root = np.sqrt(np.maximum(b**2 - a * (s**2 - z**2 * covariance(form.over, form.over, variance)), 0))
    low, high = (
        (-math.inf if form.low == ANY[0] else number(form.low)),
        (math.inf if form.high == ANY[1] else number(form.high)),
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        bounded = (a > 0) & (c > 0)
        return (
            np.where(bounded, np.clip((b - root) / a, low, high), low),
            np.where(bounded, np.clip((b + root) / a, low, high), high),
        )


# --- the form of an expression ----------------------------------------------------------------------------------------


def shape(plan: Plan, expression: Expr, released: Mapping[str, Array]) -> Form | None:
    match expression:
        case Aggregate():
            return plan.estimates[expression]
        case Literal(value, facts) if facts.type.numeric and isinstance(value, int | float | Fraction):
            return Linear({}, Fraction(value))
        case Call(function, arguments, _):
            forms = [shape(plan, argument, released) for argument in arguments]
            known = [form for form in forms if form is not None]
            return combine(function, known, released) if len(known) == len(forms) else None
        case Column() | Literal() | Free():
            return None


def combine(function: str, forms: list[Form], released: Mapping[str, Array]) -> Form | None:
    forms = [smooth(form, released) if isinstance(form, Formula) else form for form in forms]
    match function, forms:
        case "negate", [a]:
            return scale(a, Fraction(-1))
        case ("+", [Linear() as a, Linear() as b]):
            return add(a, b)
        case ("-", [Linear() as a, Linear() as b]):
            return add(a, Linear({c: -f for c, f in b.terms.items()}, -b.constant))
        case "*", [a, Linear(terms, constant)] if not terms:
            return scale(a, constant)
        case "*", [Linear(terms, constant), a] if not terms:
            return scale(a, constant)
        case "/", [a, Linear(terms, constant)] if not terms and constant:
            return scale(a, 1 / constant)
        case "/", [Linear() as a, Linear() as b]:
            return Ratio(a, b, *ANY)
        case (("+" | "-" | "*" | "/"), [a, b]):
            return chain(function, smooth(a, released), smooth(b, released))
        case _:
            return None


def add(a: Linear, b: Linear) -> Linear:
    zero = Fraction(0)
    return Linear(
        {c: a.terms.get(c, zero) + b.terms.get(c, zero) for c in {**a.terms, **b.terms}}, a.constant + b.constant
    )


def scale(form: Form, factor: Fraction) -> Form:
    match form:
        case Linear(terms, constant):
            return Linear({c: f * factor for c, f in terms.items()}, constant * factor)
        case Ratio(over, under, low, high):
            ends = sorted(
                end if end in ANY and factor > 0 else -end if end in ANY else end * factor for end in (low, high)
            )
            scaled = scale(over, factor)
            assert isinstance(scaled, Linear)
            return Ratio(scaled, under, ends[0], ends[1])
        case Smooth(value, slopes):
            return Smooth(value * number(factor), {c: slope * number(factor) for c, slope in slopes.items()})
        case Formula():
            raise AssertionError("a formula is smooth before it is combined")


def smooth(form: Form, released: Mapping[str, Array]) -> Smooth:
    match form:
        case Smooth():
            return form
        case Linear():
            value = evaluate(form, released)
            return Smooth(value, {c: np.full(len(value), number(f)) for c, f in form.terms.items()})
        case Ratio(over, under, _, _):
            return chain("/", smooth(over, released), smooth(under, released))
        case Formula(function, parts, low, high):
            sides = [smooth(part, released) for part in parts]
    match function:
        case "sqrt":
            root = np.sqrt(sides[0].value)
            return Smooth(root, {c: slope / (2 * root) for c, slope in sides[0].slopes.items()})
        case "within":
            return Smooth(np.clip(sides[0].value, number(low), number(high)), sides[0].slopes)
        case "sample":
            less = chain("-", sides[1], Smooth(np.ones_like(sides[1].value), {}))
            return chain("/", chain("*", *sides), less)
        case _:
            return chain(function, *sides)


def chain(function: str, a: Smooth, b: Smooth) -> Smooth:
    rules: dict[str, Callable[[Array, Array], tuple[Array, Array, Array]]] = {
        "+": lambda x, y: (x + y, np.ones_like(x), np.ones_like(x)),
        "-": lambda x, y: (x - y, np.ones_like(x), -np.ones_like(x)),
        "*": lambda x, y: (x * y, y, x),
        "/": lambda x, y: (x / y, 1 / y, -x / y**2),
    }
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        value, by_a, by_b = rules[function](a.value, b.value)
        slopes = {c: by_a * slope for c, slope in a.slopes.items()}
        for column, slope in b.slopes.items():
            slopes[column] = slopes.get(column, np.zeros_like(value)) + by_b * slope
    return Smooth(value, slopes)
