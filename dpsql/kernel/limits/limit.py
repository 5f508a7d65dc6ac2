"""What one person can add is bounded, in integers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from sqlglot import exp

from dpsql.kernel.blocks import Unknown
from dpsql.kernel.fan_out import cuts
from dpsql.kernel.keys import PrivateKeys, PublicKeys
from dpsql.kernel.limits.grid import claimed, inputs, row_value, rows_of, shown_rows
from dpsql.kernel.limits.native_form import Limits, natively
from dpsql.kernel.limits.one_row import same_group, single
from dpsql.kernel.question import Question
from dpsql.policy.catalog import Catalog, fold, on_the_way


@dataclass(frozen=True)
class Limited:
    question: Question
    max_rows: int
    max_groups: int
    in_groups: int
    sensitivities: tuple[int | Fraction, ...]
    unknowns: tuple[Unknown, ...]
    norm: int
    notes: tuple[str, ...]
    limits: tuple[Limits, ...]
    even: bool  # one factor for all rows of a person, whatever groups they are in

    def rows(self) -> str:
        """All rows with their persons, keys and values, as SQL that is the same whether or not the data is prepared."""
        return rows_of(self.question, shown_rows(self.question), *cells(self.question)).sql("duckdb", comments=False)


def limit(question: Question, catalog: Catalog, norm: int) -> Limited:
    """Scale each person's rows down to `max_rows_contributed` and add up integers.

    Needs:   a local relation with a person column; summands over its rows; the norm that the noise is for (1 or 2)
    Gives:   `limits`, passes that give integers for each key and block; one person moves block i by at most
             `sensitivities[i]` in that norm, over all keys together, and no row makes a query raise
    Proof:   Let C = max_rows, n_g the person's rows in group g, n the vector of these, and r >= ||n|| an integer. Each value
             is clipped into 0 .. grid, whatever it is (NULL and NaN: the row is not counted in this block), so a row
             adds integers >= 0 whose norm is at most `weight` (see `Summand`; rounding them down makes them smaller). By
             the triangle inequality the person's sums V_g have ||V_g|| <= weight * n_g. If ||n|| <= C they stay, else they
             become floor(V C / r), cell by cell, of norm at most weight * ||n|| * C / r <= weight * C. All of
             it is a function of the person's bag of rows: counts and sums of integers, one integer norm, one fixed
             expression. Adding or removing the person adds or removes exactly that. Sizes: a person has fewer than 2^50
             rows (a query over more does not end), weight < 2^45 and C < 2^31, so everything stays below 2^127.
             Private keys: before all this the person keeps at most `max_groups` of their keys, the first in the
             order of a hash of person and key and then of the key, and the others are left out, so that a key exists only
             where someone keeps it; `persons` counts the person once in each key that they keep.
             Blocks of persons: the person adds `weight` to each of the G groups in which they count, and if these are more than
             M = min(max_groups, C, all groups there are) only floor(weight * M / G), or in L2 weight * sqrt(M / G) less
             one part in 2^40, which is more than a root, a quotient and a cast lose: in norm at most weight * M, or
             weight * sqrt(M).
             Blocks of values: the person keeps at most C of their claims (a key and a value), the first in the order of a
             hash of person and claim and then of the claim: a function of their own rows, whoever else there is. What is added up
             is the union of what persons keep, each claim once. So the person adds at most C claims to it, and takes none away;
             each is like one row, of norm at most `weight`: the block moves by at most weight * C in either norm.
             Where a person has one row at the most (`single`), C = 1 is no limit but a fact, and so is M = 1 where all of
             their rows have the same keys. Where they have one row at the most in each group (`apart`), ||n|| is at most the norm
             of as many ones as there are groups, or as they keep; C is M's, rounded up, and what they add is within both
    Checked: test_lemmas (contributions, sensitivity)
    """
    private, one, same = isinstance(question.keys, PrivateKeys), single(question.relation), same_group(question)
    declared = 1 if one else declared_limit(question, catalog)
    rows, groups = Unknown.count("rows"), Unknown.count("groups")
    max_rows = declared or int(question.picked.get(rows, rows.usual))
    max_groups = 1 if same else catalog.policy.defaults.max_groups_contributed or declared
    kinds = {s.kind for s in question.summands}
    there = question.keys.count if isinstance(question.keys, PublicKeys) else None
    apart = question.apart
    counted = private or (("persons" in kinds or apart) and there != 1)
    missing = [
        *([rows] if not declared and kinds - {"persons"} and not apart else []),
        *([groups] if not max_groups and counted else []),
    ]
    max_groups = max_groups or int(question.picked.get(groups, groups.usual))
    in_groups = min(max_groups, declared or max_groups, there or max_groups)
    if apart:  # one row in each group: it is groups that are limited
        max_rows = math.ceil(root_of(in_groups, norm))
    most = min(Fraction(max_rows), root_of(there or max_groups, norm)) if apart else max_rows
    unknowns = (*question.unknowns, *missing)
    origin = "chosen privately" if rows in missing else "max_rows_contributed"
    notes = list[str]()
    if one:
        notes.append("a person has one row at the most")
    elif "rows" in kinds and not apart:
        notes.append(f"more than {max_rows} row{'s' * (max_rows > 1)} of one person count for less ({origin})")
    if "values" in kinds and not one:
        notes.append(f"of one person's distinct values {max_rows} count ({origin})")
    reach = max_rows**norm if apart else in_groups
    if ("persons" in kinds or apart) and reach < (there or max_groups) and not same:
        notes.append(f"a person in more than {reach} group{'s' * (reach > 1)} counts for less in each")
    notes += dict.fromkeys(cuts(question.relation))
    reached = {fold(t.name): t for table in question.tables for t in on_the_way(table, catalog.tables)}
    notes += [
        f"a row of {t.name} that reaches several persons counts for each of them" for t in reached.values() if t.shared
    ]
    sensitivities = tuple(
        s.weight * (root_of(in_groups, norm) if s.kind == "persons" else most) for s in question.summands
    )
    limits = natively(question, max_rows, max_groups, in_groups, norm)
    # In L1 the norm of a person's rows is their number, and so it is where all of them are in one group.
    even = (one or same or norm == 1) and not apart
    return Limited(question, max_rows, max_groups, in_groups, sensitivities, unknowns, norm, tuple(notes), limits, even)


def cells(question: Question) -> Iterator[exp.Expr]:
    """What rows have for each axis of each block."""
    for i, summand in enumerate(question.summands):
        for word, axis in zip(inputs(i), summand.axes, strict=False):
            value = claimed(axis) if summand.kind == "values" else row_value(axis)
            yield value.as_(word, quoted=True)


def root_of(groups: int, norm: int) -> Fraction:
    """The norm of a vector of so many ones, rounded up."""
    exact = math.isqrt(groups)
    if norm == 1 or exact * exact == groups:
        return Fraction(groups if norm == 1 else exact)
    return Fraction(math.isqrt(groups * 10**24) + 1, 10**12)


def declared_limit(question: Question, catalog: Catalog) -> int | None:
    """What the policy says of the tables that are read; None if it says nothing of one of them."""
    tables = question.tables
    default = catalog.policy.defaults.max_rows_contributed
    found = [t.max_rows_contributed or default for t in tables if t.person is not None]
    known = [limit for limit in found if limit is not None]
    return max(known) if len(known) == len(found) else None
