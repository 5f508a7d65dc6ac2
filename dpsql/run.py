"""One release from its charge to its noisy values. Whatever goes wrong on the way is dropped where it arose."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Protocol

from dpsql.compiler.program import Plan
from dpsql.interrupt import interruptible
from dpsql.kernel.charged import Ticket
from dpsql.kernel.noise import Release
from dpsql.kernel.release import Noisy, Totals, choose, release

Tick = Callable[[str], None]


class Engine(Protocol):
    """What a backend's snapshot does for a release."""

    def totals(self, release: Release, ticket: Ticket) -> Totals: ...
    def interrupt(self) -> None: ...


def noisy(
    plan: Plan, engine: Engine, ticket: Ticket | None, tick: Tick, end: float = math.inf
) -> tuple[Plan, Noisy | None, tuple[int, ...]] | None:
    """What is released, with the plan that it was released by: if limits are chosen first, the one that follows the choice.

    None if anything went wrong after the charge, whatever it was: the reason may depend on the data.
    """
    rungs: tuple[int, ...] = ()
    if not plan.release.noise:  # the groups are public, and nothing is asked about them
        return plan, None, rungs
    assert ticket is not None
    if plan.then is not None:
        first, stop = plan.release, engine.interrupt
        choosing = partial(tick, "choosing limits for release")
        chosen = interruptible(lambda: choose(first, engine.totals(first, ticket), ticket), stop, choosing, end)
        if chosen is None:
            return None
        plan, rungs = plan.then(chosen), chosen
    made = plan.release
    try:
        found = interruptible(
            lambda: release(made, engine.totals(made, ticket), ticket),
            engine.interrupt,
            partial(tick, "computing release"),
            end,
        )
    finally:
        tick("")
    return None if found is None else (plan, found, rungs)
