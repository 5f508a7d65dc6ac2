"""Which column is the person."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import assert_never

from dpsql.algebra import Call, Column, Expr, Filter, Join, Owned, Relation, Scan, conjuncts, scans
from dpsql.catalog import Catalog, Reference, fold, path_to_person
from dpsql.errors import Refused
from dpsql.passes.resolve import Resolved


@dataclass(frozen=True)
class Tracked:
    relation: Relation
    person: str
    resolved: Resolved


def track(resolved: Resolved, catalog: Catalog) -> Tracked:
    """Give every row its person, or refuse.

    Needs:   a relation of the closed algebra: scans joined left to right, filtered
    Gives:   the same relation with one scan, the top, made `Owned`; it is local, and `person` names its person
    Proof:   by induction over the joins each output row holds exactly one row of the top, and each other private row
             in it is tied by its own reference to a row already there, or is the referenced row itself. So if the
             top's row is p's then all private rows in the output row are p's: the output row is in R(D|p), and for
             no other person unless it is a copy for that one. Filters look at one row. Public tables alone give nothing,
             since the top is empty
    Checked: test_lemmas (locality)
    """
    top = find_top(resolved.relation, resolved)
    if top is None:
        raise Refused(
            "public_only",
            "the query reads no table about persons",
            "Public tables alone are not answered yet; ask their owner for the file.",
        )
    path = tuple(path_to_person(top.table, catalog.tables))
    root = path[-1][1].table if path else top.table.name
    owned = Owned(top, path, catalog.tables[fold(root)])
    return Tracked(own(resolved.relation, owned), owned.person, resolved)


def find_top(relation: Relation, resolved: Resolved) -> Scan | None:
    """The scan through which all the others are owned."""
    match relation:
        case Scan():
            return relation if relation.table.person is not None else None
        case Filter(source, _):
            return find_top(source, resolved)
        case Join(left, Scan() as right, on):
            top = find_top(left, resolved)
            if right.table.person is None or top is None:
                narrow(right, on)
                return top or (right if right.table.person is not None else None)
            if any(follows(right, other, on) for other in scans(left)):
                return top
            if follows(top, right, on):
                return right
            names = f"{', '.join(s.alias for s in scans(left))} and {right.alias}"
            raise Refused(
                "join_not_local",
                f"the join of {names} does not follow a reference of the policy",
                "Join tables about persons on the columns by which one references the other.",
            )
        case Join() | Owned():
            raise AssertionError("resolve builds left-deep joins of scans")
        case _:
            assert_never(relation)


def follows(child: Scan, parent: Scan, on: Expr) -> bool:
    """Whether the condition holds only where the child's row references the parent's row."""
    link = child.table.person
    if not isinstance(link, Reference) or fold(link.table) != fold(parent.table.name):
        return False
    equal = set(equalities(on))
    return all(
        raw(child, own)
        and raw(parent, other)
        and frozenset((fold(f"{child.alias}.{own}"), fold(f"{parent.alias}.{other}"))) in equal
        for own, other in zip(link.columns, link.referenced, strict=True)
    )


def equalities(on: Expr) -> Iterator[frozenset[str]]:
    """The pairs of columns that a condition equates."""
    for part in conjuncts(on):
        match part:
            case Call("=", (Column(a, _), Column(b, _)), _):
                yield frozenset((fold(a), fold(b)))


def narrow(right: Scan, on: Expr) -> None:
    """A join without an equality could make one person's rows many and the query slow, which a clock would tell."""

    def mine(column: str) -> bool:
        return column.startswith(f"{fold(right.alias)}.")

    if not any(len(pair) == 2 and sum(map(mine, pair)) == 1 for pair in equalities(on)):
        raise Refused(
            "join_too_wide",
            f"the join with {right.alias} equates none of its columns with one of the tables before it",
            "Join public tables on a column: ON country.name = orders.country AND ...",
        )


def raw(scan: Scan, column: str) -> bool:
    """A declared range or domain changes cells, and then equality of columns is not equality of references."""
    declared = scan.table.columns[fold(column)]
    return declared.between is None and declared.domain is None


def own(relation: Relation, owned: Owned) -> Relation:
    match relation:
        case Scan():
            return owned if relation == owned.scan else relation
        case Filter(source, _):
            return replace(relation, source=own(source, owned))
        case Join(left, right, _):
            return replace(relation, left=own(left, owned), right=own(right, owned))
        case Owned():
            raise AssertionError("owned twice")
        case _:
            assert_never(relation)
