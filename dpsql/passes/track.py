"""Which column is the person."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import assert_never

from dpsql.algebra import Call, Column, Expr, conjuncts
from dpsql.catalog import Catalog, Reference, Type, fold, path_to_person
from dpsql.errors import Refused
from dpsql.passes.resolve import Resolved
from dpsql.passes.scope import MAX_TABLES
from dpsql.relations import (
    Filter,
    Group,
    Join,
    Owned,
    Project,
    Relation,
    Scan,
    Stack,
    Unnest,
    Values,
    Windowed,
    columns,
    origin,
    sources,
)

ME = ("person",)  # the label of columns that hold the person herself


@dataclass(frozen=True)
class Tracked:
    relation: Relation
    person: str
    resolved: Resolved
    keys: tuple[Expr, ...]  # those of `resolved`, as expressions of the relation
    me: frozenset[str] = frozenset()  # columns that hold the person herself
    apart: bool = False  # she has at most one row in each group


@dataclass(frozen=True)
class Lead:
    """Columns that lead to the person: she is their value (label ME), or owns a row of the label's table with this key."""

    label: tuple[str, ...]
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Located:
    """A relation that is local with `person` for its column, or would be once `pending` has its owners; else public."""

    relation: Relation
    person: str | None = None
    pending: Scan | None = None
    type: Type | None = None
    leads: tuple[Lead, ...] = ()


def track(resolved: Resolved, catalog: Catalog) -> Tracked:
    """Give every row its person, or refuse.

    Needs:   a relation of the closed set, without persons
    Gives:   the same relation with the person in each node that has a place for her; it is local, and `person` names her
    Proof:   by induction over the nodes; their docstrings say why each is local if its sources are. What is left to
             see is `join`: where a private side stays without owners of its own, the condition equates its reference
             with a lead of the other side. That side's row is p's and p owns a row with that key, so the row that
             references this key is p's too: all private rows of the output row are p's, and none of it is left in D
             without her. Everywhere else both sides have their owners, and the join equates them. That columns lead
             to the person is needed for the meaning only: where they do not, nothing would be found, so it is refused
    Checked: test_lemmas (locality)
    """
    narrow(resolved.relation)
    found = settled(locate(resolved.relation, catalog), catalog)
    if found.person is None:
        raise Refused(
            "public_only",
            "the query reads no table about persons",
            "Public tables alone are not answered yet; ask their owner for the file.",
        )
    keys = {key.name: key.name for key in resolved.keys if isinstance(key, Column)}
    if alone := renamed(
        found.leads, keys
    ):  # no threshold would ever show them: better to say so than to charge for nothing
        named = ", ".join(column.split(".")[-1] for column in alone[0].columns)
        raise Refused(
            "groups_of_persons",
            f"GROUP BY {named} makes groups of one person each, and these are never shown",
            "Group by something that many persons have in common, or count the groups: SELECT count(*) FROM (SELECT ... GROUP BY ...).",
        )
    me = frozenset(column for lead in found.leads if lead.label == ME for column in lead.columns)
    return Tracked(found.relation, found.person, resolved, resolved.keys, me)


def locate(relation: Relation, catalog: Catalog) -> Located:
    match relation:
        case Scan():
            return scanned(relation, catalog)
        case Values():
            return Located(relation)
        case Filter(source) | Unnest(source):
            found = locate(source, catalog)
            return replace(found, relation=replace(relation, source=found.relation))
        case Join():
            return joined(relation, locate(relation.left, catalog), locate(relation.right, catalog), catalog)
        case Project(source):
            found = settled(locate(source, catalog), catalog)
            made = replace(relation, source=found.relation, person=found.person)
            names = {e.name: word for word, e in relation.columns if isinstance(e, Column)}
            return replace(found, relation=made, person=found.person and made.owner, leads=renamed(found.leads, names))
        case Group(source, keys):
            found = settled(locate(source, catalog), catalog)
            names = {e.name: word for word, e in keys if isinstance(e, Column)}
            leads = renamed(found.leads, names)
            if found.person is not None and not leads:
                raise not_local("a GROUP BY, DISTINCT or aggregate in a subquery", "GROUP BY", found)
            me = {column for lead in found.leads if lead.label == ME for column in lead.columns}
            alone = found.person is not None and all(is_person(found.relation, key, me) for _, key in keys)
            made_ = replace(relation, source=found.relation, person=found.person, alone=alone)
            return replace(found, relation=made_, leads=leads)
        case Windowed(source, added):
            found = settled(locate(source, catalog), catalog)
            for _, over in added:
                names = {e.name: e.name for e in over.partition if isinstance(e, Column)}
                if found.person is not None and not renamed(found.leads, names):
                    raise not_local("a window function in a subquery", "PARTITION BY", found)
            return replace(found, relation=replace(relation, source=found.relation, person=found.person))
        case Stack(left, right):
            return stacked(relation, locate(left, catalog), locate(right, catalog))
        case Owned():
            raise AssertionError("owned twice")
        case _:
            assert_never(relation)


def is_person(relation: Relation, key: Expr, me: set[str]) -> bool:
    """Whether a column is the person in every row: behind an outer join it may be NULL in some."""
    found = origin(relation, key.name) if isinstance(key, Column) and key.name in me else None
    return found is not None and not found[1]


def not_local(what: str, clause: str, found: Located) -> Refused:
    names = dict.fromkeys(".".join(c.split(".")[-2:]) for lead in found.leads for c in lead.columns)
    hint = f"Add one of these to {clause}: {', '.join(names)}." if names else "Keep the person's column in it."
    return Refused(
        "subquery_not_local",
        f"{what} puts rows of several persons together, which would have to be released first",
        hint,
    )


def renamed(leads: tuple[Lead, ...], names: dict[str, str]) -> tuple[Lead, ...]:
    """The leads whose columns are all still there, under their new names."""
    kept = (lead for lead in leads if all(column in names for column in lead.columns))
    return tuple(Lead(lead.label, tuple(names[column] for column in lead.columns)) for lead in kept)


# --- scans --------------------------------------------------------------------------------------------------------------


def scanned(scan: Scan, catalog: Catalog) -> Located:
    table = scan.table
    if table.person is None:
        return Located(scan)
    path = path_to_person(table, catalog.tables)
    root = catalog.tables[fold(list(path_to_person(table, catalog.tables))[-1][1].table)] if next(path, None) else table
    type_ = root.columns[fold(str(root.person))].type
    leads = [Lead(*found) for found in leads_of(scan, catalog)]
    if isinstance(table.person, str):
        owned = Owned(scan, (), table)
        return Located(owned, owned.person, None, type_, tuple(leads))
    return Located(scan, None, scan, type_, tuple(leads))


def leads_of(scan: Scan, catalog: Catalog) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Only columns as they are stored: a declared range or domain changes cells, and then equality proves nothing."""
    table = scan.table

    def raw(words: tuple[str, ...]) -> bool:
        declared = [table.columns[fold(word)] for word in words]
        return all(column.between is None and column.domain is None for column in declared)

    def names(words: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(f"{scan.alias}.{table.columns[fold(word)].name}" for word in words)

    if isinstance(table.person, str) and raw((table.person,)):
        yield ME, names((table.person,))
    if isinstance(table.person, Reference) and raw(table.person.columns):
        link = table.person
        yield label(link), names(link.columns)
        target = catalog.tables[fold(link.table)]
        if isinstance(target.person, str) and [fold(c) for c in link.referenced] == [fold(target.person)]:
            yield ME, names(link.columns)
    for other in catalog.tables.values():
        link_ = other.person
        if isinstance(link_, Reference) and fold(link_.table) == fold(table.name) and raw(link_.referenced):
            yield label(link_), names(link_.referenced)


def label(link: Reference) -> tuple[str, ...]:
    return (fold(link.table), *(fold(column) for column in link.referenced))


def settled(found: Located, catalog: Catalog) -> Located:
    """The same with owners for the scan that has none yet."""
    if found.pending is None:
        return found
    path = tuple(path_to_person(found.pending.table, catalog.tables))
    owned = Owned(found.pending, path, catalog.tables[fold(path[-1][1].table)])
    return replace(found, relation=own(found.relation, owned), person=owned.person, pending=None)


def own(relation: Relation, owned: Owned) -> Relation:
    match relation:
        case Scan():
            return owned if relation == owned.scan else relation
        case Filter(source) | Unnest(source):
            return replace(relation, source=own(source, owned))
        case Join(left, right, _, kind):
            if kind != "inner":  # a pending scan is on the left side of what is not an inner join
                return replace(relation, left=own(left, owned))
            return replace(relation, left=own(left, owned), right=own(right, owned))
        case _:
            return relation


# --- joins --------------------------------------------------------------------------------------------------------------


def joined(join: Join, left: Located, right: Located, catalog: Catalog) -> Located:
    mine, theirs = (found.person is not None or found.pending is not None for found in (left, right))
    equal = frozenset(equalities(join.on)) if join.on is not None else frozenset()
    made = replace(join, left=left.relation, right=right.relation)
    both = (*left.leads, *right.leads) if join.kind in ("inner", "left", "full") else left.leads
    if not theirs:
        if mine and join.kind == "full":
            raise Refused("join_not_local", "a FULL JOIN with a public table shows rows of nobody", "Use LEFT JOIN.")
        return replace(left, relation=made, leads=both)
    if not mine:
        if join.kind != "inner":
            raise Refused(
                "join_not_local",
                "a public table is joined such that its rows stay although nobody has them",
                "Put the table about persons on the side that stays, or use JOIN.",
            )
        return replace(right, relation=made, leads=both)
    if join.kind == "inner":
        if right.pending is not None and tied(right, left, equal):
            return replace(left, relation=made, leads=both)
        if left.pending is not None and tied(left, right, equal):
            return replace(right, relation=made, leads=both)
    if left.type != right.type or not any(
        a.label == b.label and equates(a, b, equal) for a in left.leads for b in right.leads
    ):
        shown = [", ".join(dict.fromkeys(named(found.relation))) or "a subquery" for found in (left, right)]
        raise Refused(
            "join_not_local",
            f"the join of {shown[0]} and {shown[1]} does not follow a reference of the policy",
            "Join tables about persons on the columns by which one references the other, or on the person.",
        )
    left, right = settled(left, catalog), settled(right, catalog)
    assert left.person is not None and right.person is not None
    person = f"{left.person}|{right.person}" if join.kind == "full" else None
    made = replace(join, left=left.relation, right=right.relation, persons=(left.person, right.person), person=person)
    return Located(made, person or left.person, None, left.type, both)


def named(relation: Relation) -> Iterator[str]:
    """What the query calls the tables and subqueries of a join."""
    match relation:
        case Scan() | Project():
            yield from [] if relation.alias.startswith("#") else [relation.alias]
        case _:
            for source in sources(relation):
                yield from named(source)


def tied(child: Located, parent: Located, equal: frozenset[frozenset[str]]) -> bool:
    """Whether the pending side's reference is equated with a lead of the other side."""
    assert child.pending is not None and isinstance(child.pending.table.person, Reference)
    wanted = label(child.pending.table.person)
    prefix = f"{fold(child.pending.alias)}."
    own_leads = [a for a in child.leads if a.label == wanted and all(fold(c).startswith(prefix) for c in a.columns)]
    links = [fold(f"{child.pending.alias}.{c}") for c in child.pending.table.person.columns]
    own_leads = [a for a in own_leads if [fold(c) for c in a.columns] == links]
    return any(a.label == b.label and equates(a, b, equal) for a in own_leads for b in parent.leads)


def equates(a: Lead, b: Lead, equal: frozenset[frozenset[str]]) -> bool:
    return all(frozenset((fold(x), fold(y))) in equal for x, y in zip(a.columns, b.columns, strict=True))


def equalities(on: Expr) -> Iterator[frozenset[str]]:
    """The pairs of columns that a condition equates."""
    for part in conjuncts(on):
        match part:
            case Call("=", (Column(a, _), Column(b, _)), _):
                yield frozenset((fold(a), fold(b)))


def narrow(relation: Relation) -> None:
    """Joins without an equality multiply one person's rows by whole tables, and two of them would let a clock tell it."""
    if degree(relation) > MAX_TABLES:
        raise Refused("too_many_tables", f"more than {MAX_TABLES} tables are joined", "Join fewer tables.")
    found = list(wide(relation))
    if len(found) > 1:
        raise Refused(
            "join_too_wide",
            f"the joins with {' and '.join(found)} equate none of their columns with one of the tables before them",
            "At most one join may: add a column, as in ON a.x = b.x AND a.y = b.y",
        )


def degree(relation: Relation) -> int:
    """How many tables' rows may multiply: what is grouped first does not."""
    match relation:
        case Join() if relation.kind not in ("semi", "anti"):
            return degree(relation.left) + degree(relation.right)
        case Join(left):
            return max(degree(left), degree(relation.right))
        case Unnest(source, list_):
            return degree(source) + (not one_element(list_))
        case Group(source):
            return 1 if degree(source) <= MAX_TABLES else degree(source)
        case _:
            return max((degree(source) for source in sources(relation)), default=1)


def stored(relation: Relation, column: str) -> bool:
    """Whether an equality with this column is one: it is stored, or a constant that stands once."""
    match relation:
        case Values(named, rows):
            place = [word for word, _ in named].index(column)
            return len({row[place] for row in rows}) == len(rows)
        case Scan(table, alias) if (
            table.path[0] == "temp"
        ):  # of releases: how often a value stands is the analyst's choice
            return table.key == (column.removeprefix(f"{alias}."),)
        case Filter(source) | Windowed(source):
            return column in columns(source) and stored(source, column)
        case Project(source, _, named):
            expression = dict(named)[column]
            return isinstance(expression, Column) and stored(source, expression.name)
        case Unnest(source, list_, word):
            one = list_ if column == word else Column(column, list_.facts)
            return isinstance(one, Column) and stored(source, one.name)
        case Join(left, right):
            return stored(left if column in columns(left) else right, column)
        case Group():
            return True
        case Stack(left, right):
            return stored(left, column) and stored(right, column)
        case _:
            return True


def one_row(relation: Relation) -> bool:
    """Whether it is one row of constants, which multiplies nothing."""
    return (
        len(relation.rows) == 1
        if isinstance(relation, Values)
        else (isinstance(relation, Project) and one_row(relation.source))
    )


def one_element(list_: Expr) -> bool:
    return isinstance(list_, Call) and list_.function == "list_value" and len(list_.arguments) == 1


def wide(relation: Relation) -> Iterator[str]:
    alone = isinstance(relation, Join) and any(map(one_row, (relation.left, relation.right)))
    if isinstance(relation, Join) and relation.kind not in ("semi", "anti") and not alone:
        left, right = ({fold(c) for c in columns(side)} for side in (relation.left, relation.right))
        pairs = equalities(relation.on) if relation.on is not None else ()
        names = {fold(c): c for side in (relation.left, relation.right) for c in columns(side)}
        if not any(
            len(pair) == 2 and pair & left and pair & right and all(stored(relation, names[c]) for c in pair)
            for pair in pairs
        ):
            yield next((c.split(".")[0] for c in columns(relation.right)), "a table")
    # A list that is stored is like a table of its elements that the row is joined with; others may have any length.
    if isinstance(relation, Unnest) and not stored(relation, relation.column) and not one_element(relation.list):
        yield relation.column.split(".")[0]
    for source in sources(relation):
        yield from wide(source)


def stacked(stack: Stack, left: Located, right: Located) -> Located:
    if (left.person is None) != (right.person is None):
        raise Refused(
            "set_not_local",
            "a table about persons and a public one are put together",
            "Rows of nobody would be among those of persons; ask for them apart.",
        )
    if left.type != right.type:
        raise Refused("set_not_local", "the persons of the two sides have different types", "")
    leads = tuple(lead for lead in left.leads if lead in right.leads)
    if left.person is not None and stack.kind != "union all" and not leads:
        raise Refused(
            "set_not_local",
            f"{stack.kind.upper()} compares rows of several persons",
            "Have the person among the columns of both sides, in the same place.",
        )
    assert isinstance(left.relation, Project) and isinstance(right.relation, Project)
    return replace(left, relation=replace(stack, left=left.relation, right=right.relation), leads=leads)
