"""Which noise a release gets in a ledger that adds up epsilons and deltas: Laplace or Gaussian."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import geometric_mean

from dpsql.compiler.program import Linear, Plan


def prefer(laplace: Plan, gaussian: Plan) -> Plan:
    """The plan with the smaller error; where both err alike the first, whose noise costs no delta.

    Each of them is sound and is charged for itself, and nothing is read but the two plans: the text and the policy.
    """
    plan, other = (gaussian, laplace) if error(gaussian) < error(laplace) * (1 - 1e-9) else (laplace, gaussian)
    facts = []
    if plan.release.threshold and other.release.threshold:
        least = f"about {plan.release.threshold.least:,} persons on, and not from {other.release.threshold.least:,} on"
        facts.append(f"groups are shown from {least}")
    if sizes(plan):
        ratio = geometric_mean(sizes(plan)) / geometric_mean(sizes(other))
        facts.append(f"it is {ratio:.3g} x as large as {name(other)} noise")
    return replace(plan, why=f"{name(plan)} noise: {'; '.join(facts)}")


def error(plan: Plan) -> float:
    """The error to expect, in a unit that is the same for both.

    Public keys: the geometric mean of the noise's deviations over the blocks, as it does not matter then in which unit each is.

    Private keys: a hidden group loses everything, and how many are hidden depends on the data; so take it that groups are
    as words are (Zipf): those with more than n persons are in proportion to 1/n. Then the squared errors of the hidden
    ones, n^2 each, add up to the threshold T, and those of the shown ones to s^2 / T, s being the deviation: for each
    value that is shown T + s^2 / T, both in persons. For this s is divided by the rows that a person has in a group: limits
    are for those who have most, so it is taken as a quarter of `max_rows` over `max_groups`, and one row at the least.
    """
    if plan.release.threshold is None:
        return geometric_mean(sizes(plan))
    least = plan.release.threshold.least
    return least * max(len(sizes(plan)), 1) + math.fsum(size**2 / least for size in sizes(plan))


def sizes(plan: Plan) -> list[float]:
    """The deviation of each value that is shown: in rows, or for private keys in what one person has in a group."""
    each = (
        max(plan.release.max_rows / plan.release.threshold.keys / 4, 1.0)
        if plan.release.threshold and not plan.release.apart
        else 1.0
    )
    found = [
        mechanism.deviation / summand.weight / (1.0 if summand.kind == "persons" else each)
        for summand, mechanism in zip(plan.release.summands, plan.release.mechanisms, strict=True)
    ]
    if plan.release.threshold and any(
        isinstance(form, Linear) and "persons" in form.terms for form in plan.estimates.values()
    ):
        found.append(plan.release.threshold.noise.deviation)
    return [max(size, 1e-300) for size in found]  # noise of a huge epsilon vanishes


def name(plan: Plan) -> str:
    return plan.release.noises[0].name
