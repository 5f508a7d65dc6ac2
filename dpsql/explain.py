"""What a plan would do, in words: read off the plan, so it cannot say anything else than what would run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpsql.accountant import Loss
from dpsql.estimate import interval, shape
from dpsql.plan import Linear, Plan, PublicKeys


@dataclass(frozen=True)
class Explanation:
    """What would run, which noise, what error to expect, what it would cost and what would be left."""

    plan: Plan
    loss: Loss
    left: Loss
    repeats: int

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

    def __str__(self) -> str:
        plan = self.plan
        delta = f", delta {float(plan.delta):.3g}" if plan.delta else ""
        shown = "one"
        if plan.threshold:
            shown = f"those with about {plan.threshold.least:,} persons or more; at most {plan.threshold.keys:,} of one person"
        elif isinstance(plan.keys, PublicKeys) and plan.keys.columns:
            shown = f"{plan.keys.count:,}, all of them shown, each with noise of its own"
        lines = [
            f"cost      epsilon {float(plan.epsilon):g}{delta}: {self.loss.currency} {self.loss.amount:.6g}; "
            f"the budget has room for {self.repeats:,} of these",
            f"groups    {shown}",
            f"limit     a person counts as {plan.max_rows:,} row{'s' * (plan.max_rows > 1)} at the most",
        ]
        for summand, mechanism in zip(plan.summands, plan.mechanisms, strict=True):
            what = f"pair, clipped to {float(summand.low):g} .. {float(summand.high):g}" if summand.pair else "count"
            lines.append(
                f"noise     {mechanism.name}, deviation {mechanism.deviation / summand.weight:.4g} rows ({what})"
            )
        for name, error in self.errors.items():
            lines.append(f"error     {name}: " + (f"± {error:,.4g}" if error is not None else "depends on the answer"))
        lines += [f"note      {note}" for note in plan.notes]
        return "\n".join([*lines, "inner", f"  {plan.inner}", "outer", f"  {plan.outer}"])
