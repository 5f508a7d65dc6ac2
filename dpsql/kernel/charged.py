"""That a release has been paid for: a ticket for each, which is used once.

Only the ledger makes tickets, when a charge is durable, and a rehearsal, whose tickets are good for synthetic rows alone.
A backend and `release` ask for one. As with queries, this guards against mistakes and not against hostile code.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from weakref import WeakSet

from dpsql.kernel.accountant import Charge
from dpsql.kernel.exact import issued
from dpsql.kernel.noise import Release

_sold: WeakSet[Ticket] = WeakSet()


class Ticket:
    """Good for one release of this price, and for the choice of its limits before.

    The release that is run may be another object than the one that was paid for: its limits have been chosen since, or the
    values that it waited for are known. It never costs more, or it is refused.
    """

    def __init__(self, charge: Charge, choosing: bool, synthetic: bool) -> None:
        self.charge, self.synthetic = charge, synthetic
        self._steps = ["run", "noise", *(["run", "noise"] if choosing else [])][::-1]

    def use(self, step: str, release: Release, synthetic: bool | None = None) -> None:
        """Take one step: first the queries run, then noise is added."""
        issued(release, Release)
        if self not in _sold or not self._steps or self._steps.pop() != step:
            raise AssertionError("a release needs a charge of its own, and is made once")
        if release.charge != self.charge or (synthetic is not None and synthetic != self.synthetic):
            raise AssertionError("a release costs another amount than was charged for it")
        if release.choosing and len(self._steps) < 2:
            raise AssertionError("limits are chosen once")


def sell(releases: Iterable[Any], synthetic: bool = False) -> tuple[Ticket, ...]:
    """A ticket for each release. Only the ledger and the rehearsal call it."""
    made = []
    for release in releases:
        issued(release, Release)
        ticket = Ticket(release.charge, release.choosing, synthetic)
        _sold.add(ticket)
        made.append(ticket)
    return tuple(made)
