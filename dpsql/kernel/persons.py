"""Which column is the person."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import assert_never

from dpsql.errors import Refused
from dpsql.kernel.algebra import Call, Column, Expr, conjuncts
from dpsql.kernel.fan_out import STEPS, Growth, equated, expressions, length, lengthens, parts, refusal
from dpsql.kernel.relations import (
    Capped,
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
    origin,
    scans,
    sources,
)
from dpsql.policy.catalog import Catalog, Reference, Table, Type, fold, path_to_person, several

ME = ("person",)  # the label of columns that hold the person herself


@dataclass(frozen=True)
class Tracked:
    relation: Relation
    person: str
    me: frozenset[str] = frozenset()  # columns that hold the person


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


OTHERS = (
    "the persons of the two sides have different types",
    'The owner gives them one type, or has one lead to the other: person = { column = "id", references = "people.id" }.',
)


def track(relation: Relation, keys: tuple[Expr, ...], values: tuple[Expr, ...], catalog: Catalog) -> Tracked:
    """Give every row its person, or refuse.

    Needs:   a relation of the closed set, without persons; the keys of its groups, and the values that are summed
    Gives:   the same relation with the person in each node that has a place for her; it is local, and `person` names her
    Proof:   by induction over the nodes; their docstrings say why each is local if its sources are. What is left to
             see is `join`: where a private side stays without owners of its own, the condition equates its reference
             with a lead of the other side. That side's row is p's and p owns a row with that key, so the row that
             references this key is p's too: all private rows of the output row are p's, and none of it is left in D
             without her. Everywhere else both sides have their owners, and the join equates them. That columns lead
             to the person is needed for the meaning only: where they do not, nothing would be found, so it is refused.
             Where a join would multiply the rows of a person by each other, one side is cut to so many rows of each
             person and value of the columns that the join equates (`Capped`), and lists are cut before they are unnested: both are local, so one row of a person becomes at
             most WIDEST rows (`Growth`), or the statement is refused. Rows with texts that are too long for being repeated so
             often are left out, which is a filter
    Checked: test_lemmas (locality, growth)
    """
    for scan in scans(relation):
        if scan.table.path[0] != "temp" and (found_ := several(scan.table, catalog.tables)) is not None:
            raise not_one_person(*found_, catalog)
    computed = [*expressions(relation), *parts(*keys, *values)]
    stretch = lengthens(computed)
    for elements, most in STEPS:
        growth = Growth(catalog, elements, most, stretch)
        found = settled(locate(relation, growth), growth)
        if growth.fits(found.relation):
            break
    else:
        raise refusal(growth.too_wide(found.relation) or found.relation, stretch)
    uses = Counter(e.name for e in computed if isinstance(e, Column))
    found = replace(found, relation=growth.shortened(found.relation, uses))
    if found.person is None:
        raise Refused("public_only", "the query reads no table about persons", "Count rows of a table about persons.")
    by = {key.name: key.name for key in keys if isinstance(key, Column)}
    if alone := renamed(
        found.leads, by
    ):  # no threshold would ever show them: better to say so than to charge for nothing
        named = ", ".join(column.split(".")[-1] for column in alone[0].columns)
        raise Refused(
            "groups_of_persons",
            f"GROUP BY {named} makes groups of one person each, and these are never shown",
            "Group by something that many persons have in common, or count the groups: SELECT count(*) FROM (SELECT ... GROUP BY ...).",
        )
    me = frozenset(column for lead in found.leads if lead.label == ME for column in lead.columns)
    return Tracked(found.relation, found.person, me)


def not_one_person(table: Table, link: Reference, catalog: Catalog) -> Refused:
    columns, version = ", ".join(link.referenced), catalog.policy.version is not None
    many = f"ALTER TABLE {link.table} ADD PRIMARY KEY ({columns})"
    verify = f"dpsql policy verify {catalog.place}" + " --policy POLICY" * (not catalog.place)
    first = f"`{verify}`" if version else f'`{verify}` once the policy has [dataset] version = "1"'
    does = f"runs {first if catalog.place else f'`{many}`'}"
    does = f"loads {link.table} with one row for each" if catalog.loaded else does
    return Refused(
        "persons_not_verified",
        f"a row of {table.name} may reach several persons: nothing says that no two rows of {link.table} have the same {columns}",
        f"The owner {does}, or declares shared = true in [tables.{table.name}] if such rows "
        "are to count for each of these persons.",
    )


def locate(relation: Relation, growth: Growth) -> Located:
    match relation:
        case Scan():
            return scanned(relation, growth.catalog)
        case Values():
            return Located(relation)
        case Filter(source):
            found = locate(source, growth)
            return replace(found, relation=replace(relation, source=found.relation))
        case Unnest(source, list_):
            found = locate(source, growth)
            most = 0 if length(list_) else growth.elements
            return replace(found, relation=replace(relation, source=found.relation, most=most))
        case Join():
            return joined(relation, locate(relation.left, growth), locate(relation.right, growth), growth)
        case Project(source):
            found = settled(locate(source, growth), growth)
            made = replace(relation, source=found.relation, person=found.person)
            names = {e.name: word for word, e in relation.columns if isinstance(e, Column)}
            return replace(found, relation=made, person=found.person and made.owner, leads=renamed(found.leads, names))
        case Group(source, keys):
            found = settled(locate(source, growth), growth)
            names = {e.name: word for word, e in keys if isinstance(e, Column)}
            leads = renamed(found.leads, names)
            if found.person is not None and not leads and not relation.each:
                raise not_local("a GROUP BY, DISTINCT or aggregate in a subquery", "GROUP BY", found)
            me = {column for lead in found.leads if lead.label == ME for column in lead.columns}
            alone = found.person is not None and all(is_person(found.relation, key, me) for _, key in keys)
            made_ = replace(relation, source=found.relation, person=found.person, alone=alone)
            return replace(found, relation=made_, leads=leads)
        case Windowed(source, added):
            found = settled(locate(source, growth), growth)
            for _, over in added:
                names = {e.name: e.name for e in over.partition if isinstance(e, Column)}
                if found.person is not None and not renamed(found.leads, names):
                    raise not_local("a window function in a subquery", "PARTITION BY", found)
            return replace(found, relation=replace(relation, source=found.relation, person=found.person))
        case Stack(left, right):
            return stacked(relation, locate(left, growth), locate(right, growth))
        case Owned() | Capped():
            raise AssertionError("tracked twice")
        case _:
            assert_never(relation)


def is_person(relation: Relation, key: Expr, me: set[str]) -> bool:
    """Whether a column is the person in every row: behind an outer join it may be NULL in some."""
    found = origin(relation, key.name) if isinstance(key, Column) and key.name in me else None
    return found is not None and not found[1]


def not_local(what: str, clause: str, found: Located) -> Refused:
    words = (written(found.relation, column) for lead in found.leads for column in lead.columns)
    names = dict.fromkeys(".".join(word.split(".")[-2:]) for word in words if word)
    hint = f"Add one of these to {clause}: {', '.join(names)}." if names else "Keep the person's column in it."
    return Refused(
        "subquery_not_local",
        f"{what} puts rows of several persons together, which would have to be released first",
        hint,
    )


def written(relation: Relation, column: str) -> str:
    """What the query calls a column; "" for one that only we have a name for."""
    match relation:
        case Group(source, keys) if column in dict(keys):
            key = dict(keys)[column]
            return written(source, key.name) if isinstance(key, Column) else ""
        case Filter(source) | Windowed(source) | Capped(source):
            return written(source, column)
        case _:
            return column if "." in column and not column.startswith("#") else ""


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


def settled(found: Located, growth: Growth) -> Located:
    """The same with owners for the scan that has none yet."""
    if found.pending is None:
        return found
    tables = growth.catalog.tables
    path = tuple(path_to_person(found.pending.table, tables))
    owned = Owned(found.pending, path, tables[fold(path[-1][1].table)])
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


def joined(join: Join, left: Located, right: Located, growth: Growth) -> Located:
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
    many = growth.multiplies(made)
    of_left, of_right = equated(made)
    inner, refers = join.kind == "inner", right.pending is not None and tied(right, left, equal)
    one_left, one_right = told_apart(left.relation, of_left), told_apart(right.relation, of_right)
    # What is cut: the side of which one row is meant to meet each row of the other, so that nothing is lost if it does.
    kept = inner or join.kind == "left"
    first = many and ((kept and one_left > one_right) or (inner and one_left == one_right and refers))
    if inner and (first or not many) and refers:
        left = settled(left, growth) if many else left
        made = replace(made, left=capped(left, of_left, growth)) if many else made
        return replace(left, relation=made, leads=both)
    if inner and not first and left.pending is not None and tied(left, right, equal):
        right = settled(right, growth) if many else right
        made = replace(made, right=capped(right, of_right, growth)) if many else made
        return replace(right, relation=made, leads=both)
    led = any(a.label == b.label and equates(a, b, equal) for a in left.leads for b in right.leads)
    if led and left.type != right.type:
        raise Refused("join_not_local", *OTHERS)
    if not led:
        shown = [", ".join(dict.fromkeys(named(found.relation))) or "a subquery" for found in (left, right)]
        raise Refused(
            "join_not_local",
            f"the join of {shown[0]} and {shown[1]} does not follow a reference of the policy",
            "Join tables about persons on the columns by which one references the other, or on the person: JOIN visits USING (person).",
        )
    left, right = settled(left, growth), settled(right, growth)
    assert left.person is not None and right.person is not None
    person = f"{left.person}|{right.person}" if join.kind == "full" else None
    made = replace(join, left=left.relation, right=right.relation, persons=(left.person, right.person), person=person)
    if many:
        left_, right_ = (
            (capped(left, of_left, growth), made.right) if first else (made.left, capped(right, of_right, growth))
        )
        made = replace(made, left=left_, right=right_)
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


def told_apart(relation: Relation, by: frozenset[str]) -> bool:
    """Whether the policy says that no two rows of a person agree on these columns. That proves nothing: if so, one is kept."""
    match relation:
        case Filter(source):
            return told_apart(source, by)
        case Owned(scan) | (Scan() as scan):
            table, here = scan.table, {fold(word.removeprefix(f"{scan.alias}.")) for word in by}
            one = table.max_rows_contributed == 1 and isinstance(table.person, str)
            keys = [frozenset(map(fold, table.key)), frozenset([fold(str(table.person))] if one else [])]
            return any(key and key <= here for key in keys)
        case _:
            return False


def capped(found: Located, by: frozenset[str], growth: Growth) -> Relation:
    """The relation with no more rows of each person, and of each value of the columns `by`, than `growth` allows: so many
    meet one row of the other side of a join."""
    assert found.person is not None
    alias = " and ".join(dict.fromkeys(named(found.relation))) or "a subquery"
    most = 1 if told_apart(found.relation, by) else growth.most
    return Capped(found.relation, alias, found.person, most, tuple(sorted(by)))


def stacked(stack: Stack, left: Located, right: Located) -> Located:
    if (left.person is None) != (right.person is None):
        raise Refused(
            "set_not_local",
            "a table about persons and a public one are put together",
            "Rows of nobody would be among those of persons; ask for them apart.",
        )
    if left.type != right.type:
        raise Refused("set_not_local", *OTHERS)
    leads = tuple(lead for lead in left.leads if lead in right.leads)
    if left.person is not None and stack.kind != "union all" and not leads:
        raise Refused(
            "set_not_local",
            f"{stack.kind.upper()} compares rows of several persons",
            "Have the person among the columns of both sides, in the same place.",
        )
    assert isinstance(left.relation, Project) and isinstance(right.relation, Project)
    return replace(left, relation=replace(stack, left=left.relation, right=right.relation), leads=leads)
