"""What a plan would do, in words: read off the plan, so it cannot say anything else than what would run."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from textwrap import wrap
from typing import Any

import numpy as np
import sqlglot

from dpsql.answer import BARS
from dpsql.compiler.program import Plan, Program
from dpsql.compiler.whose import describe
from dpsql.consistent import DISAGREE, fitting
from dpsql.estimate import interval, middle
from dpsql.kernel.accountant import UNIT, Loss, composed, loss_of, roughly, units
from dpsql.kernel.blocks import Summand, Unknown
from dpsql.kernel.keys import PublicKeys
from dpsql.kernel.mechanisms import Approximate, Later, Threshold, more_for

TYPICAL_DELTA = Fraction(1, 10**6)  # for a budget that has none
SIZES = (1_000, 100_000)  # rows of a group, where the error depends on them
LINES, COLUMNS = 16, 80  # of an explanation, unless all are asked for


@dataclass(frozen=True, repr=False)
class Explanation:
    """What would run, which noise, what error to expect, what it would cost and what would be left.

    As text it has at most sixteen lines. `more` has all of them, `sql` what would run, `json()` the same as data.
    """

    plan: Plan | Program
    loss: Loss
    left: Loss
    repeats: int  # how often it still fits
    budget_delta: Fraction
    price: float = 0.0  # the part of the budget that it takes
    share: float = 0.0  # the part of the budget that is left before it
    tighter: str = ""  # "delta" where that runs out first
    cheaper: tuple[str, ...] = ()  # what would make it less noisy at the same price

    def group(self, persons: int) -> Loss:
        """What a group of several persons who come or go together loses (group privacy)."""
        # By what is charged: the plan of a release that waits is a sample, and which noise it will get is not known.
        sampled = self.plan.sampled
        costly = [one for one in sampled if isinstance(one, Threshold | Approximate | Later)]
        charge = replace(self.plan.charge, delta=units(sum((one.delta_for(persons) for one in costly), Fraction(0))))
        noise = self.plan.delta - sum(one.delta for one in costly)
        return loss_of(charge, noise, persons, more_for(persons, sampled))

    @property
    def together(self) -> float | None:
        """The epsilon of all that fit, by optimal composition, were they fixed beforehand; None where the ledger does as well,
        or where they are not epsilon-DP."""
        if self.plan.charge.currency != "epsilon" or not self.repeats or self.plan.charge.delta:
            return None
        return composed(Fraction(self.plan.charge.amount, UNIT), self.repeats, self.budget_delta or TYPICAL_DELTA)

    @property
    def errors(self) -> dict[str, float | None]:
        """How far the 95 % interval of each aggregate reaches from the value; None where it depends on the answer."""
        if not isinstance(self.plan, Plan):
            return {}
        return {name: low if math.isclose(low, high) else None for name, (low, high) in expected(self.plan).items()}

    def cost(self) -> list[str]:
        """The price, and what is left, in parts of the budget and in numbers."""
        plan = self.plan
        if not plan.sampled:
            return ["cost      nothing: no table about persons is read"]
        delta = f", delta {float(plan.delta):.3g}" if plan.delta else ""
        asked = f"epsilon {float(plan.epsilon):g}{delta} ({self.loss.currency} {self.loss.amount:.6g})"
        first = f"; {self.tighter} runs out first" if self.tighter else ""
        return [
            f"cost      {percent(self.price)} of the budget: {asked}",
            f"left      {percent(self.share)} of the budget, room for {roughly(self.repeats)} more like this{first}",
        ]

    def groups(self) -> Iterator[str]:
        """The price for several persons, and of several queries."""
        family = self.group(4)
        yield f"cost      of a family of 4 together: epsilon {family.epsilon:.4g}, delta {family.delta:.3g}"
        if self.together is not None:
            delta = float(self.budget_delta or TYPICAL_DELTA)
            yield (
                f"cost      of {roughly(self.repeats)} of these, fixed beforehand: epsilon {self.together:.4g} "
                f"at delta {delta:.3g} by advanced composition; the ledger promises the sum"
            )

    @property
    def lines(self) -> list[str]:
        """Everything but the SQL; what matters most comes first."""
        plan = self.plan
        found = self.cost()
        for index, part in enumerate(plan.parts):
            if isinstance(plan, Program):
                found.append(f"release   {index}, for {percent(self.part(part))} of the price{after(part)}")
            found += release(part)
        if isinstance(plan, Program):
            found += totals(plan)
        found += [f"cheaper   {line}" for line in self.cheaper]
        if any(expected(part) for part in plan.parts):
            found.append(f"error     {BARS}")
        return [*found, *(f"note      {note}" for note in plan.notes)]

    def part(self, part: Plan) -> float:
        return part.charge.amount / self.plan.charge.amount if self.plan.charge.amount else 0.0

    @property
    def more(self) -> str:
        """Everything but the SQL, as text."""
        return "\n".join([*self.lines, *(self.groups() if self.plan.sampled else ())])

    @property
    def sql(self) -> str:
        """What would run: the exact queries, and what is computed from what they release; formatted."""
        plan = self.plan
        if isinstance(plan, Plan):
            return "\n".join(queries(plan))
        parts = [line for index, part in enumerate(plan.parts) for line in (f"-- release {index}", *queries(part))]
        return "\n".join([*parts, "-- computed from the releases and public tables", formatted(plan.outer)])

    def json(self) -> str:
        """The same as data."""
        family = self.group(4) if self.plan.sampled else None
        return json.dumps(
            {
                "loss": vars(self.loss),
                "part_of_budget": self.price,
                "part_left": self.share,
                "repeats": self.repeats,
                "family_of_4": vars(family) if family else None,
                "releases": [described(part) for part in self.plan.parts],
                "cheaper": self.cheaper,
                "notes": self.plan.notes,
                "text": self.lines,
            }
        )

    def _rank(self, line: str) -> bool:
        """Whether a line of a long explanation can wait. The lines of a release stay together."""
        word = line.split(None, 1)[0]
        if isinstance(self.plan, Program):
            return word not in ("cost", "left", "cheaper", "note")
        return word in ("noise", "error")

    def __str__(self) -> str:
        lines = [*folded(self.lines)]
        if len(lines) > LINES:  # what is clipped and hidden, and what would be cheaper, before the noise of each column
            lines = [*folded(sorted(self.lines, key=self._rank))]
        if len(lines) > LINES:
            rest = len(lines) - LINES + 1
            lines[LINES - 1 :] = [f"more      {rest} more lines: --more, or .more in Python"]
        return "\n".join(lines)

    __repr__ = __str__


def folded(lines: Iterable[str]) -> Iterator[str]:
    """Lines that fit a terminal."""
    for line in lines:
        yield from wrap(line, COLUMNS, subsequent_indent=" " * 10, break_on_hyphens=False)


def percent(part: float) -> str:
    """A part of the budget, to two digits that count.

    >>> percent(0.02571), percent(0.981), percent(0), percent(0.00001), percent(0.99999), percent(1)
    ('2.6 %', '98.1 %', '0 %', 'less than 0.01 %', '99.9 %', '100 %')
    """
    if part in (0, 1):
        return f"{part:.0%}".replace("%", " %")
    if part < 1e-4:
        return "less than 0.01 %"
    digits = max(1, 1 - math.floor(math.log10(part)) - 2)
    return f"{math.floor(part * 10 ** (digits + 2) + 0.5 * (part < 0.999)) / 10**digits:g} %"


def expected(plan: Plan) -> dict[str, tuple[float, float]]:
    """How far the 95 % interval of each aggregate reaches from the value, in groups of typical sizes."""
    columns = typical(plan)
    result: dict[str, tuple[float, float]] = {}
    for output in plan.outputs:
        found = interval(plan, output.expression, columns, 0.95) if columns else None
        if found is not None:
            value = middle(plan, output.expression, columns)
            small, large = np.maximum(value - found[0], found[1] - value).tolist()
            result[output.name] = (small, large)
    return result


def typical(plan: Plan) -> dict[str, np.ndarray[Any, np.dtype[np.float64]]]:
    """What would be released of groups of typical sizes, were values spread evenly: half of them at a quarter of their range,
    half at three quarters."""
    sizes = np.array(SIZES, dtype=np.float64)
    columns = dict.fromkeys(plan.release.noise, sizes)
    for index, summand in enumerate(plan.release.summands):
        for name, powers in zip(summand.columns(index), summand.indices, strict=True):
            spots = product((0.25, 0.75), repeat=len(powers))
            parts = [
                math.prod(
                    math.comb(axis.degree, k) * t**k * (1 - t) ** (axis.degree - k)
                    for t, k, axis in zip(spot, powers, summand.axes, strict=True)
                )
                for spot in spots
            ]
            columns[name] = sizes * (sum(parts) / len(parts) * summand.factor(powers) * summand.whole / summand.coarse)
    return columns


def after(plan: Plan) -> str:
    """The releases that one is made with, or reads."""
    reads = " ".join(read.query for read in (*plan.waits, *plan.reads))
    found = sorted({int(number) for number in re.findall(r'"release (\d+)"', reads)})
    return f", after {', '.join(map(str, found))}" if found else ""


def totals(plan: Program) -> Iterator[str]:
    """Which of several releases agree with each other."""
    for family in plan.families:
        members = [plan.parts[number] for number, _ in family]
        fit = fitting(members, [axes for _, axes in family])
        if fit:
            yield f"totals    of rows agree in releases {', '.join(str(family[i][0]) for i in fit)}"
        elif len(family) > 1:
            yield f"totals    {DISAGREE}"


def release(plan: Plan) -> Iterator[str]:
    """What is released: groups, limit, choice, noise and the error to expect."""
    shown = "one"
    if plan.release.threshold:
        shown = f"those with about {plan.release.threshold.least:,} persons or more; at most {plan.release.threshold.keys:,} of one person"
    elif isinstance(plan.release.keys, PublicKeys) and plan.release.keys.columns:
        shown = f"{plan.release.keys.count:,}, all of them shown" + ", each with noise of its own" * bool(
            plan.release.noise
        )
    yield f"groups    {shown}"
    if any(summand.kind != "persons" for summand in plan.release.summands) and not plan.release.apart:
        yield f"limit     a person counts as {limited(plan)}"
    elif plan.release.noise:
        yield "limit     a person counts once in a group"
    for unknown in plan.release.unknowns if plan.then is not None else ():
        assert plan.release.ladder is not None
        yield (
            f"choice    {named(unknown)} is not declared: chosen privately first, for {plan.charge.currency} "
            f"{float(plan.release.ladder.loss):.3g}; here as if it were {float(unknown.usual):g}"
        )
    if plan.why:
        yield f"choice    {plan.why}"
    for summand, mechanism in zip(plan.release.summands, plan.release.mechanisms, strict=True):
        unit, what = measured(summand)
        unit = "persons" if plan.release.apart else unit
        yield f"noise     {mechanism.name}, deviation {mechanism.deviation / summand.weight:.4g} {unit} ({what})"
    for name, sizes in expected(plan).items():
        yield f"error     {name}: {at_sizes(sizes)}"


def limited(plan: Plan) -> str:
    """How much one person counts for: over several groups Gaussian noise limits the norm of their numbers of rows."""
    most, grouped = plan.release.max_rows, bool(plan.release.keys.columns)
    rows = f"{most:,} row{'s' * (most > 1)}"
    if grouped and any(mechanism.name == "gaussian" for mechanism in plan.release.mechanisms):
        return f"{rows} at the most in one group, or {most / 2:,g} in each of four groups (the norm is {most:,})"
    return f"{rows} at the most" + ", in all groups together" * grouped


def at_sizes(sizes: tuple[float, float]) -> str:
    """An error, or the errors that go with typical sizes.

    >>> at_sizes((875.4, 875.4)), at_sizes((109.31, 1.0931))
    ('± 875.4', 'about ± 109.3 for 1,000 rows in a group, ± 1.093 for 100,000')
    """
    small, large = map(figure, sizes)
    return small if small == large else f"about {small} for {SIZES[0]:,} rows in a group, {large} for {SIZES[1]:,}"


def figure(error: float) -> str:
    """An error bar to four digits.

    >>> figure(309346.2), figure(0.012345), figure(math.inf)
    ('± 309,300', '± 0.01235', 'anything')
    """
    if not math.isfinite(error):
        return "anything"
    return f"± {float(f'{error:.4g}'):,.0f}" if error >= 1000 else f"± {error:.4g}"


def described(plan: Plan) -> dict[str, Any]:
    """One release as data."""
    return {
        "groups": plan.release.keys.count if isinstance(plan.release.keys, PublicKeys) else None,
        "shown_from_persons": plan.release.threshold.least if plan.release.threshold else None,
        "max_rows": plan.release.max_rows,
        "chosen_first": [named(unknown) for unknown in plan.release.unknowns] if plan.then is not None else [],
        "noise": [
            {"name": mechanism.name, "deviation": mechanism.deviation / summand.weight, "of": measured(summand)}
            for summand, mechanism in zip(plan.release.summands, plan.release.mechanisms, strict=True)
        ],
        "errors": {
            name: {str(rows): error if math.isfinite(error) else None for rows, error in zip(SIZES, sizes, strict=True)}
            for name, sizes in expected(plan).items()
        },
    }


def formatted(sql: str) -> str:
    """Generated SQL, for people to read."""
    return sqlglot.transpile(sql, read="duckdb", write="duckdb", pretty=True)[0]


def queries(plan: Plan) -> Iterator[str]:
    """The SQL of a release, with what each query is for as a comment above it."""
    runs: list[tuple[str, str]] = (
        [("limits are chosen from this first", plan.release.climb)] if plan.then is not None else []
    )
    for limits in plan.release.limits:
        rows = "rows, which are limited and added up natively"
        runs += [("whose the rows are", sql) for sql in limits.owners]
        runs += [
            ("how many rows each person has", limits.persons),
            ("rows with values, of which each counts once, limited natively" if limits.values else rows, limits.rows),
            ("added up by the engine, as there is nothing to limit", limits.sums),
        ]
    runs += [("computed from the release", plan.outer)]
    for what, sql in runs:
        if sql:
            yield f"-- {what}\n{formatted(sql)};"


def measured(summand: Summand) -> tuple[str, str]:
    """The unit of a block, and what it measures."""
    axes = [axis for axis in summand.axes if axis.degree]
    ends = " and ".join(f"{float(axis.low):g} .. {float(axis.high):g}" for axis in axes)
    word = {1: "count", 2: "pair"}.get(len(summand.indices), "moments")
    unit = {"rows": "rows", "values": "distinct values", "persons": "persons"}[summand.kind]
    return unit, f"{word}, clipped to {ends}" if axes else word


def named(unknown: Unknown) -> str:
    match unknown.what:
        case "rows" | "groups":
            return f"max_{unknown.what}_contributed"
        case "low" | "high":
            assert unknown.value is not None
            return f"the {unknown.what} end of {describe(unknown.value)}"
