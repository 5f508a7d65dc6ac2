"""Exact to noisy: the only place where exact values are held, and the only importer of the native module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from dpsql import _native
from dpsql._native import Keys, Noisy, add_noise, limit_and_add_noise
from dpsql.errors import Failed
from dpsql.kernel.keys import PublicKeys
from dpsql.kernel.noise import Release


class Stream(Protocol):
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


def release(plan: Release, run: Callable[[str], Stream]) -> Noisy:
    """Add a release's noise to exact integers: those that its inner query gave, or that its rows add up to.

    Needs:   `run`, which gives the results of `plan.exact`. Of `plan.inner` one row for each key, integer columns in the order
             of `plan.noise`, and private keys before them; of `plan.limits` each row's person (or what leads to her,
             and where it leads), keys and values, the persons of these rows or of more, sums of persons whom nothing limits, and all public keys. A durable charge
    Gives:   the totals with noise of the plan's mechanisms and scales in every cell, and of private keys only the rows
             whose noisy number of persons reaches the threshold; the exact table is gone
    Proof:   one native call reads the stream, limits what persons add where SQL has not done it, draws each cell's noise on
             its own and returns only noisy rows; it is given the limits that the sensitivities are for and the mechanisms
             that were charged, and a table of another size or with a NULL is an error
    Checked: test_mechanisms, test_record_play, test_limit
    """
    noise = list(plan.noise.values())
    least = plan.threshold.least if plan.threshold else None
    kind, scales = noise[0].name, [mechanism.scale for mechanism in noise]
    if plan.limits is None:
        noisy = add_noise(run(plan.inner), kind, scales, least)
    else:
        limits = plan.limits
        texts = (limits.rows, limits.sums, limits.persons)
        rows, sums, persons = (run(sql) if sql else None for sql in texts)
        owners = [run(sql) for sql in limits.owners]
        declared = listed(limits.declared, run) if limits.declared else None
        noisy = limit_and_add_noise(rows, sums, declared, limits, kind, scales, least, owners, persons)
    if isinstance(plan.keys, PublicKeys) and len(noisy) != plan.keys.count:
        raise Failed
    return noisy


LISTED = 2**24  # characters of SQL whose keys are kept
_lists: dict[str, Keys] = {}


def listed(text: str, run: Callable[[str], Stream]) -> Keys:
    """Public keys by the SQL that lists them. It reads no table, so it always gives the same: the last ones are kept for later
    queries."""
    found = _lists.get(text)
    if found is None:
        found = _lists[text] = Keys(run(text))
        for old in list(_lists):
            if old != text and sum(map(len, list(_lists))) > LISTED:
                _lists.pop(old, None)
    return found


def choose(plan: Release, exact: Stream) -> tuple[int, ...]:
    """Choose the limits that are not declared: for each the number of its rung.

    Needs:   the rows of `plan.climb`: for each rung of each ladder minus the number of persons above it; a durable charge
    Gives:   for each ladder a rung with the probability that `mechanisms.Ladder` is charged for; the exact table is gone
    Proof:   one native call reads the stream and draws each choice on its own; a table of another size is an error
    Checked: test_ladder, test_record_play
    """
    assert plan.ladder is not None
    return tuple(_native.choose(exact, plan.ladder.rate, [unknown.prior for unknown in plan.unknowns]))


__all__ = ["Noisy", "choose", "release"]
