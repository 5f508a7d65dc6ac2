"""Exact to noisy: the only place where exact values are held, and the only importer of the native module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from dpsql import _native
from dpsql._native import Keys, Noisy, Totals
from dpsql.errors import Failed
from dpsql.kernel.charged import Ticket
from dpsql.kernel.exact import ExactQuery
from dpsql.kernel.keys import PublicKeys
from dpsql.kernel.noise import Release


class Stream(Protocol):
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


Run = Callable[[ExactQuery], Stream]


def limited(release: Release, run: Run) -> Totals:
    """The exact integers of a release, out of Python's reach.

    Needs:   `run`, which gives the results of queries. Of each pass `rows` has each row's person (or what leads to the person,
             and `owners` where it leads), keys and values, `persons` the persons of these rows or of more, and `sums` are of
             persons whom nothing limits; `keys` are all public keys
    Gives:   for each key what the persons' limited rows add up to, in the order of the release's noise, with private keys before it;
             for a choice, its scores
    Proof:   native calls read the streams and limit what persons add, with the limits that the sensitivities are for; one more
             puts what several have found beside one another, by key. A table of another size or with a NULL is an error
    Checked: test_limit, test_lemmas
    """
    exact = release.exact
    if exact.choosing is not None:
        return Totals(run(exact.choosing))
    declared = listed(exact.keys, run) if exact.keys else None
    found = []
    for one in exact.passes:
        rows, sums, persons = (run(query) if query else None for query in (one.rows, one.sums, one.persons))
        owners = [run(query) for query in one.owners]
        found.append(_native.limit(rows, sums, declared, one.limits, owners, persons))
    first, *others = found
    keys = 0 if isinstance(release.keys, PublicKeys) else len(release.keys.columns)
    return first.beside(others, keys, list(release.noise)) if others else first


def release(made: Release, totals: Totals, ticket: Ticket) -> Noisy:
    """Add a release's noise to its exact integers.

    Needs:   the totals of this release; a ticket for it
    Gives:   the totals with noise of the release's mechanisms and scales in every cell, and of private keys only the rows
             whose noisy number of persons reaches the threshold
    Proof:   one native call draws each cell's noise on its own and returns only noisy rows. It is given the mechanisms that
             were charged, for which the ticket stands. Totals have one cell for each of the scales, or it is an error
    Checked: test_mechanisms, test_record_play
    """
    ticket.use("noise", made)
    noise = list(made.noise.values())
    least = made.threshold.least if made.threshold else None
    noisy = totals.with_noise(noise[0].name, [mechanism.scale for mechanism in noise], least)
    if isinstance(made.keys, PublicKeys) and len(noisy) != made.keys.count:
        raise Failed
    return noisy


LISTED = 2**24  # characters of SQL whose keys are kept
_lists: dict[str, Keys] = {}


def listed(query: ExactQuery, run: Run) -> Keys:
    """Public keys by the SQL that lists them. It reads no table, so it always gives the same: the last ones are kept for later
    queries."""
    found = _lists.get(query.sql)
    if found is None:
        found = _lists[query.sql] = Keys(run(query))
        for old in list(_lists):
            if old != query.sql and sum(map(len, list(_lists))) > LISTED:
                _lists.pop(old, None)
    return found


def choose(made: Release, totals: Totals, ticket: Ticket) -> tuple[int, ...]:
    """Choose the limits that are not declared: for each the number of its rung.

    Needs:   for each rung of each ladder minus the number of persons above it; a ticket for the release
    Gives:   for each ladder a rung with the probability that `mechanisms.Ladder` is charged for
    Proof:   one native call draws each choice on its own; a table of another size is an error
    Checked: test_ladder, test_record_play
    """
    ticket.use("noise", made)
    assert made.ladder is not None
    return tuple(totals.choose(made.ladder.rate, [unknown.prior for unknown in made.unknowns]))


__all__ = ["Noisy", "Totals", "choose", "limited", "release"]
