"""That a release has been paid for: a ticket for each, which is used once.

Only the ledger makes tickets, when a charge is durable, and a rehearsal, whose tickets are good for synthetic rows alone.
A backend and `release` ask for one. As with queries, this guards against mistakes and not against hostile code.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from weakref import WeakSet

from dpsql.kernel.exact import issued
from dpsql.kernel.noise import Release

_sold: WeakSet[Ticket] = WeakSet()


class Ticket:
    """Good for one release of this price, and for the choice of its limits before.

    The release that is run may be another object than the one that was paid for: its limits have been chosen since, or the
    values that it waited for are known. It never costs more, or it is refused.
    """

    def __init__(self, release: Release, synthetic: bool) -> None:
        self.synthetic, self._at = synthetic, release
        self._steps = ["run", "noise", *(["run", "noise"] if release.choosing else [])][::-1]

    def use(self, step: str, release: Release, synthetic: bool | None = None) -> None:
        """Take one step: first the queries run, then noise is added."""
        issued(release, Release)
        if self not in _sold or not self._steps or self._steps.pop() != step:
            raise AssertionError("a release needs a charge of its own, and is made once")
        if synthetic is not None and synthetic != self.synthetic:
            raise AssertionError("a rehearsal is of synthetic rows, and nothing else is")
        if release is not self._at and not self._follows(release):
            raise AssertionError("this release is not the one that was charged for")
        if release.choosing and len(self._steps) < 2:
            raise AssertionError("limits are chosen once")
        self._at = release

    def _follows(self, release: Release) -> bool:
        """Whether it is the same release with its limits chosen, or with the values that it waited for, before anything has run."""
        before = self._at
        if release.charge != before.charge or release.catalog is not before.catalog:
            return False
        if release.chosen:
            return before.choosing and release.request == before.request
        waiting = release.request.waiting and before.request.waiting
        untouched = len(self._steps) == (3 if before.choosing else 1)  # this step is taken already
        return waiting and untouched and release.choosing == before.choosing and not before.chosen


def sell(releases: Iterable[Any], synthetic: bool = False) -> tuple[Ticket, ...]:
    """A ticket for each release. Only the ledger and the rehearsal call it."""
    made = []
    for release in releases:
        issued(release, Release)
        ticket = Ticket(release, synthetic)
        _sold.add(ticket)
        made.append(ticket)
    return tuple(made)
