"""What a plan would do, in words: read off the plan, so it cannot say anything else than what would run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from dpsql.accountant import UNIT, Loss, composed, loss_of, roughly, units
from dpsql.algebra import Aggregate
from dpsql.answer import BARS
from dpsql.consistent import DISAGREE, fitting
from dpsql.estimate import interval, shape
from dpsql.mechanisms import Approximate, Later, Threshold, more_for
from dpsql.passes.split import describe
from dpsql.plan import Linear, Plan, Program, PublicKeys, Summand, Unknown

TYPICAL_DELTA = Fraction(1, 10**6)  # for a budget that has none


@dataclass(frozen=True)
class Explanation:
    """What would run, which noise, what error to expect, what it would cost and what would be left."""

    plan: Plan | Program
    loss: Loss
    left: Loss
    repeats: int  # how often it still fits
    budget_delta: Fraction

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
        """The half width of the 95 % interval of each aggregate; None where it depends on the answer."""
        return errors(self.plan) if isinstance(self.plan, Plan) else {}

    def displays(self) -> Iterator[str]:
        family = self.group(4)
        yield f"cost      of a family of 4 together: epsilon {family.epsilon:.4g}, delta {family.delta:.3g}"
        if self.together is not None:
            delta = float(self.budget_delta or TYPICAL_DELTA)
            yield (
                f"cost      of {roughly(self.repeats)} of these, fixed beforehand: epsilon {self.together:.4g} "
                f"at delta {delta:.3g} by advanced composition; the ledger promises the sum"
            )

    def labels(self) -> Iterator[str]:
        """What the error bars are, where there are any."""
        if any(errors(part) for part in self.plan.parts):
            yield f"error     {BARS}"

    def __str__(self) -> str:
        plan = self.plan
        delta = f", delta {float(plan.delta):.3g}" if plan.delta else ""
        cost = f"cost      epsilon {float(plan.epsilon):g}{delta}: {self.loss.currency} {self.loss.amount:.6g}; "
        lines = [f"{cost}the budget has room for {roughly(self.repeats)} more like this", *self.displays()]
        if isinstance(plan, Plan):
            return "\n".join([*lines, *release(plan), *self.labels(), *queries(plan)])
        if not plan.parts:
            lines.append("release   none: public tables alone are free")
        for index, part in enumerate(plan.parts):
            amount = part.charge.amount / UNIT
            lines.append(f"release   {index}, for {self.loss.currency} {amount:.6g}{after(part)}")
            lines += release(part)
        lines += self.labels()
        for family in plan.families:
            members = [plan.parts[number] for number, _ in family]
            fit = fitting(members, [axes for _, axes in family])
            if fit:
                lines.append(f"totals    of rows agree in releases {', '.join(str(family[i][0]) for i in fit)}")
            elif len(family) > 1:
                lines.append(f"totals    {DISAGREE}")
        for index, part in enumerate(plan.parts):
            lines += [f"release {index}", *queries(part)]
        return "\n".join([*lines, "outer", f"  {plan.outer}"])


def errors(plan: Plan) -> dict[str, float | None]:
    zeros = {column: np.zeros(1) for column in plan.noise}
    result: dict[str, float | None] = {}
    for output in plan.outputs:
        found = interval(plan, output.expression, zeros, 0.95)
        if found is not None:
            constant = isinstance(shape(plan, output.expression, zeros), Linear)
            # What it is computed with besides may be released before, and is only a sample here.
            constant = constant and (isinstance(output.expression, Aggregate) or not plan.waits)
            result[output.name] = float(found[1][0] - found[0][0]) / 2 if constant else None
    return result


def after(plan: Plan) -> str:
    """The releases that one is made with, or reads."""
    reads = " ".join(read.query for read in (*plan.waits, *plan.reads))
    found = sorted({int(number) for number in re.findall(r'"release (\d+)"', reads)})
    return f", after {', '.join(map(str, found))}" if found else ""


def release(plan: Plan) -> Iterator[str]:
    """What is released: groups, limit, choice, noise and the error to expect."""
    shown = "one"
    if plan.threshold:
        shown = (
            f"those with about {plan.threshold.least:,} persons or more; at most {plan.threshold.keys:,} of one person"
        )
    elif isinstance(plan.keys, PublicKeys) and plan.keys.columns:
        shown = f"{plan.keys.count:,}, all of them shown" + ", each with noise of its own" * bool(plan.noise)
    yield f"groups    {shown}"
    if any(summand.kind != "persons" for summand in plan.summands) and not plan.apart:
        yield f"limit     a person counts as {plan.max_rows:,} row{'s' * (plan.max_rows > 1)} at the most"
    elif plan.noise:
        yield "limit     a person counts once in a group"
    for unknown in plan.unknowns if plan.then is not None else ():
        assert plan.ladder is not None
        yield (
            f"choice    {named(unknown)} is not declared: chosen privately first, for {plan.charge.currency} "
            f"{float(plan.ladder.loss):.3g}; here as if it were {float(unknown.usual):g}"
        )
    if plan.why:
        yield f"choice    {plan.why}"
    for summand, mechanism in zip(plan.summands, plan.mechanisms, strict=True):
        unit, what = described(summand)
        unit = "persons" if plan.apart else unit
        yield f"noise     {mechanism.name}, deviation {mechanism.deviation / summand.weight:.4g} {unit} ({what})"
    for name, error in errors(plan).items():
        yield f"error     {name}: " + (f"± {error:,.4g}" if error is not None else "depends on the answer")
    yield from (f"note      {note}" for note in plan.notes)


def queries(plan: Plan) -> Iterator[str]:
    first = ["first", f"  {plan.climb}"] if plan.then is not None else []
    limits, runs = plan.limits, list[str]()
    if limits is not None:
        parts = (
            (limits.sums, "added up by the engine, as there is nothing to limit; the same as"),
            *((sql, "says whose the rows are of") for sql in limits.owners),
            (limits.persons, "says how many rows each person has"),
            (limits.rows, "limited and added up natively, as by"),
        )
        runs = [line for sql, how in parts if sql for line in (f"  {sql}", how)]
    yield from (*first, "inner", *runs, f"  {plan.inner}", "outer", f"  {plan.outer}")


def described(summand: Summand) -> tuple[str, str]:
    """The unit of a block, and what it measures."""
    measured = [axis for axis in summand.axes if axis.degree]
    ends = " and ".join(f"{float(axis.low):g} .. {float(axis.high):g}" for axis in measured)
    word = {1: "count", 2: "pair"}.get(len(summand.indices), "moments")
    unit = {"rows": "rows", "values": "distinct values", "persons": "persons"}[summand.kind]
    return unit, f"{word}, clipped to {ends}" if measured else word


def named(unknown: Unknown) -> str:
    match unknown.what:
        case "rows" | "groups":
            return f"max_{unknown.what}_contributed"
        case "low" | "high":
            assert unknown.value is not None
            return f"the {unknown.what} end of {describe(unknown.value)}"
