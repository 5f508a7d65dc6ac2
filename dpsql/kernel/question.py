"""A request with everything that the kernel has derived of it: whose rows, which groups, which sums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from dpsql.errors import Refused
from dpsql.kernel import request as asked
from dpsql.kernel.algebra import Column, Expr, total
from dpsql.kernel.blocks import KINDS, Axis, Summand, Unknown, clip_of, most_steps
from dpsql.kernel.derive import Derivation, invalid, released
from dpsql.kernel.functions import Range
from dpsql.kernel.keys import Keys, find_keys
from dpsql.kernel.persons import track
from dpsql.kernel.relations import Group, Relation, scans, steady
from dpsql.policy.catalog import DOUBLE, HUGEINT, LARGEST, Catalog, Table, Type, fold

WHOLE_KINDS = {"BOOLEAN", "INTEGER", "DECIMAL", "DOUBLE", "VARCHAR", "DATE", "TIMESTAMP"}  # types that groups may have


@dataclass(frozen=True)
class Question:
    """Rows with their persons, the groups, and the blocks that are summed for each of them."""

    relation: Relation
    person: str
    by: tuple[Expr, ...]  # the keys of the groups
    meant: tuple[Relation, tuple[Expr, ...]]  # the same keys where it is read off which values they have
    keys: Keys
    summands: tuple[Summand, ...]
    tables: tuple[Table, ...]
    apart: bool  # a person has at most one row in each group
    unknowns: tuple[Unknown, ...]
    picked: Mapping[Unknown, Fraction]


@dataclass(frozen=True)
class Rows:
    """What does not depend on limits that are chosen later."""

    relation: Relation
    person: str
    by: tuple[Expr, ...]
    meant: tuple[Relation, tuple[Expr, ...]]
    keys: Keys
    tables: tuple[Table, ...]
    apart: bool
    values: tuple[tuple[Expr, ...], ...]  # of each block


def find_rows(request: asked.Request, catalog: Catalog) -> Rows:
    """Types, persons and groups of a request.

    Needs:   a request; the policy's catalogue, which only the owner decides on
    Gives:   a local relation with its person; which groups there are; `apart` only if no person has two rows in a group
    Proof:   facts by `derive`, persons by `track`, groups by `find_keys`. A relation that is grouped by the person and by keys,
             of which the groups are these keys in their order, has one row for each person and group
    Checked: test_gate, test_lemmas
    """
    derivation = Derivation({**catalog.tables, **released(request.tables)})
    relation, known = derivation.relation(request.relation)
    by = tuple(derivation.expression(key, known) for key in request.keys)
    values = tuple(tuple(derivation.expression(a.value, known) for a in block.axes) for block in request.blocks)
    for key in by:
        if key.facts.type.kind not in WHOLE_KINDS or key.facts.type == HUGEINT:
            if key.facts.type.kind == "LIST":
                steady(total(key), key.facts.type)
            raise Refused("key_not_supported", f"GROUP BY {key.facts.type.sql} is not supported", "Write a CAST.")
    traced = track(relation, by, tuple(value for block in values for value in block), catalog)
    apart, meant = False, (relation, by)
    if isinstance(relation, Group) and relation.each:
        apart, meant = True, (relation.source, tuple(e for _, e in relation.keys))
        if [e.name if isinstance(e, Column) else "" for e in by] != [word for word, _ in relation.keys]:
            invalid("rows of each person and group have other groups than the release")
    keys = find_keys(*meant, request.hidden is True)
    names = dict.fromkeys(fold(scan.table.name) for scan in scans(relation))
    tables = tuple(derivation.tables[name] for name in names)
    return Rows(traced.relation, traced.person, by, meant, keys, tables, apart, values)


def ask(request: asked.Request, rows: Rows, norm: int, picked: Mapping[Unknown, Fraction]) -> Question:
    """The blocks of a request, with public ranges for all that they sum.

    Needs:   the norm that rows are measured for (1 or 2); limits that an earlier release has chosen
    Gives:   summands; what is not declared and not picked yet
    Proof:   ranges are declared, of the query's text, or chosen by an earlier release, so they are public (`clip_of`)
    Checked: test_gate, test_lemmas
    """
    unknowns: dict[Unknown, None] = {}
    summands = []
    for block, values in zip(request.blocks, rows.values, strict=True):
        degrees: list[int] = [a.degree for a in block.axes]
        if (
            block.kind not in KINDS
            or len(degrees) > 2
            or any(type(degree) is not int or not 0 <= degree <= 2 for degree in degrees)
            or (block.kind == "values" and len(degrees) != 1)
            or (block.kind == "persons" and (any(degrees) or len(degrees) > 1))
            or len(set(values)) < len(values)
        ):
            invalid("an unknown block")
        axes = []
        for a, value in zip(block.axes, values, strict=True):
            if not a.degree:
                axes.append(Axis(value))
                continue
            if not value.facts.type.numeric:
                invalid("only numbers are summed")
            clip, more = clip_of(value, told(a.clip, value.facts.type), picked)
            unknowns.update(dict.fromkeys(more))
            axes.append(Axis.of(value, a.degree, clip, most_steps(sum(degrees))))
        summands.append(Summand(tuple(axes), block.kind, norm))
    found = (rows.relation, rows.person, rows.by, rows.meant, rows.keys, tuple(summands), rows.tables, rows.apart)
    return Question(*found, tuple(unknowns), picked)


def told(clip: Any, type_: Type) -> Range | None:
    """The query's own range: two numbers that values of this type can be."""
    if clip is None:
        return None
    low, high = clip
    if type(low) is not Fraction or type(high) is not Fraction or not low <= high or not type_.numeric:
        invalid("a range is not two numbers")
    ends = [abs(end) for end in (low, high)]
    if any(end > LARGEST or 0 < end < Fraction(1, LARGEST) for end in ends):
        invalid("a range is too wide")
    scaled = [end * 10**type_.scale for end in ends]
    if type_ != DOUBLE and any(end.denominator > 1 or end >= 10**18 for end in scaled):
        invalid("a range does not end at values of its type")
    return low, high
