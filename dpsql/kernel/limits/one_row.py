"""Where a person has only one row, or only one group: then there is nothing to limit."""

from __future__ import annotations

from dpsql.kernel.algebra import Call, Column, Expr, Literal, conjuncts
from dpsql.kernel.question import Question
from dpsql.kernel.relations import (
    Capped,
    Filter,
    Group,
    Join,
    Owned,
    Project,
    Relation,
    Scan,
    Unnest,
    Windowed,
    columns,
    scans,
)
from dpsql.policy.catalog import DOUBLE, INTERVAL, fold


def bounding(relation: Relation) -> Owned | Group | None:
    """A part of the relation that has at least as many rows of each person as the whole; None if none is known.

    Filters, caps, semi and anti joins leave rows out, projections and windows keep them, a GROUP BY has no more groups than rows.
    A join with a table, of which at most one row fits, does not multiply them.
    """
    match relation:
        case Owned():
            return relation
        case Group(source):
            return relation if relation.alone else bounding(source)
        case Filter(source) | Project(source) | Windowed(source) | Capped(source):
            return bounding(source)
        case Join(left, right, on, kind):
            if kind in ("semi", "anti") or (kind in ("inner", "left") and one_fits(right, on)):
                return bounding(left)
            return bounding(right) if kind == "inner" and one_fits(left, on) else None
        case _:
            return None


def one_fits(side: Relation, on: Expr | None) -> bool:
    """Whether the condition equates something with a column of this side in which no value stands twice."""
    match side:
        case Filter(source):
            return one_fits(source, on)
        case Owned(scan, ()):
            return one_fits(scan, on)
        case Scan(table, alias):
            unique = {
                f"{alias}.{column.name}"
                for key in table.unique
                if len(key) == 1
                and (column := table.columns[next(iter(key))]).between is None
                and column.domain is None  # these change cells
            }
            here = columns(side)
            return on is not None and any(
                a.name in unique
                and a.name in here
                and b.name not in here
                and a.facts.type == b.facts.type not in (DOUBLE, INTERVAL)  # which may be equal and not the same
                for part in conjuncts(on)
                if isinstance(part, Call) and part.function == "="
                for a, b in (part.arguments, part.arguments[::-1])
                if isinstance(a, Column) and isinstance(b, Column)
            )
        case _:
            return False


def single(relation: Relation) -> bool:
    """Whether each person has at most one row.

    Needs:   a local relation; `Table.unique`, columns of which the engine enforces, or the owner has verified for this version of the
             data, that no value stands twice
    Gives:   True only if no person has two rows in the relation, whatever rows there are
    Proof:   by induction over the nodes (`bounding`) no person has more rows than in one part of it: that is grouped by
             the person alone, or is a table whose person stands in a unique column. It is read off the text and the
             schema, so it holds for neighbours alike
    Checked: test_single, test_lemmas (contributions)
    """
    match bounding(relation):
        case Group():
            return True
        case Owned(scan, ()):
            return frozenset((fold(str(scan.table.person)),)) in scan.table.unique
        case _:
            return False


def settled(relation: Relation) -> frozenset[str]:
    """Columns that have the same value in all rows of a person.

    In an inner join of private sides all rows of an output row are one person's, so what is settled on a side stays so.
    """
    if not any(scan.table.person is not None for scan in scans(relation)):
        return frozenset()
    if single(relation):
        return frozenset(columns(relation))
    match relation:
        case Filter(source) | Windowed(source) | Unnest(source) | Capped(source):
            return settled(source)
        case Join(left, right, _, kind) if kind != "full":
            return settled(left) | (settled(right) if kind == "inner" else frozenset())
        case Project(source, _, named):
            known = settled(source)
            return frozenset(word for word, expression in named if uses(expression) <= known)
        case Group(source, keys):
            known = settled(source)
            return frozenset(word for word, expression in keys if uses(expression) <= known)
        case _:
            return frozenset()


def same_group(question: Question) -> bool:
    """Whether all rows of a person have the same keys."""
    known = settled(question.relation)
    return all(uses(key) <= known for key in question.by)


def uses(expression: Expr) -> frozenset[str]:
    """The columns that an expression is computed from."""
    match expression:
        case Column(word):
            return frozenset((word,))
        case Literal():
            return frozenset()
        case _:
            return frozenset().union(*map(uses, expression.arguments))
