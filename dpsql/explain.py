"""What a plan would do, in words: read off the plan, so it cannot say anything else than what would run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from dpsql.accountant import UNIT, Loss, composed, loss_of, roughly, units
from dpsql.estimate import interval, shape
from dpsql.passes.split import describe
from dpsql.plan import Linear, Plan, PublicKeys, Summand, Unknown

TYPICAL_DELTA = Fraction(1, 10**6)  # for a budget that has none


@dataclass(frozen=True)
class Explanation:
    """What would run, which noise, what error to expect, what it would cost and what would be left."""

    plan: Plan
    loss: Loss
    left: Loss
    repeats: int  # how often it still fits
    budget_delta: Fraction

    def group(self, persons: int) -> Loss:
        """What a group of several persons who come or go together loses (group privacy)."""
        threshold = self.plan.threshold
        charge = replace(self.plan.charge, delta=units(threshold.delta_for(persons)) if threshold else 0)
        noise = self.plan.delta - (threshold.delta if threshold else 0)
        return loss_of(charge, noise, persons)

    @property
    def together(self) -> float | None:
        """The epsilon of all that fit, by optimal composition, were they fixed beforehand; None where the ledger does as well."""
        if self.plan.charge.currency != "epsilon" or not self.repeats:
            return None
        return composed(Fraction(self.plan.charge.amount, UNIT), self.repeats, self.budget_delta or TYPICAL_DELTA)

    @property
    def errors(self) -> dict[str, float | None]:
        """The half width of the 95 % interval of each aggregate; None where it depends on the answer."""
        zeros = {column: np.zeros(1) for column in self.plan.noise}
        result: dict[str, float | None] = {}
        for output in self.plan.outputs:
            found = interval(self.plan, output.expression, zeros, 0.95)
            if found is not None:
                constant = isinstance(shape(self.plan, output.expression, zeros), Linear)
                result[output.name] = float(found[1][0] - found[0][0]) / 2 if constant else None
        return result

    def displays(self) -> Iterator[str]:
        family = self.group(4)
        yield f"cost      of a family of 4 together: epsilon {family.epsilon:.4g}, delta {family.delta:.3g}"
        if self.together is not None:
            delta = float(self.budget_delta or TYPICAL_DELTA)
            yield (
                f"cost      of {roughly(self.repeats)} of these, fixed beforehand: epsilon {self.together:.4g} "
                f"at delta {delta:.3g} by advanced composition; the ledger promises the sum"
            )

    def __str__(self) -> str:
        plan = self.plan
        delta = f", delta {float(plan.delta):.3g}" if plan.delta else ""
        shown = "one"
        if plan.threshold:
            shown = f"those with about {plan.threshold.least:,} persons or more; at most {plan.threshold.keys:,} of one person"
        elif isinstance(plan.keys, PublicKeys) and plan.keys.columns:
            shown = f"{plan.keys.count:,}, all of them shown" + ", each with noise of its own" * bool(plan.noise)
        lines = [
            f"cost      epsilon {float(plan.epsilon):g}{delta}: {self.loss.currency} {self.loss.amount:.6g}; "
            f"the budget has room for {roughly(self.repeats)} more like this",
            *self.displays(),
            f"groups    {shown}",
        ]
        if any(summand.kind != "persons" for summand in plan.summands):
            lines.append(f"limit     a person counts as {plan.max_rows:,} row{'s' * (plan.max_rows > 1)} at the most")
        elif plan.noise:
            lines.append("limit     a person counts once in a group")
        for unknown in plan.unknowns if plan.then is not None else ():
            assert plan.ladder is not None
            lines.append(
                f"choice    {named(unknown)} is not declared: chosen privately first, for {self.loss.currency} "
                f"{float(plan.ladder.loss):.3g}; here as if it were {float(unknown.usual):g}"
            )
        for summand, mechanism in zip(plan.summands, plan.mechanisms, strict=True):
            unit, what = described(summand)
            lines.append(
                f"noise     {mechanism.name}, deviation {mechanism.deviation / summand.weight:.4g} {unit} ({what})"
            )
        for name, error in self.errors.items():
            lines.append(f"error     {name}: " + (f"± {error:,.4g}" if error is not None else "depends on the answer"))
        lines += [f"note      {note}" for note in plan.notes]
        first = ["first", f"  {plan.climb}"] if plan.then is not None else []
        return "\n".join([*lines, *first, "inner", f"  {plan.inner}", "outer", f"  {plan.outer}"])


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
