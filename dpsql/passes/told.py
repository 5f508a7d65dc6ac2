"""What an analyst is told of a person's rows that become many, or are not found: notes and refusals. Nothing is decided here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction

from dpsql.catalog import Catalog, Reference, Table
from dpsql.errors import Refused
from dpsql.passes.scope import written
from dpsql.relations import Capped, Filter, Project, Relation, Scan, Unnest, Values, sources


def cuts(relation: Relation) -> Iterator[str]:
    """What an analyst should know of rows and elements that are left out."""
    if isinstance(relation, Capped):
        rows = "one row" if relation.most == 1 else f"{relation.most:,} rows"
        if relation.by:
            yield f"one row is joined with at most {rows} of {relation.alias} of the same person"
        else:
            over = "".join(f" divided by the number of rows of {scan.alias}" for scan in relation.per)
            yield f"at most {rows}{over} of one person in {relation.alias} count, as each becomes many"
    if isinstance(relation, Filter) and relation.note:
        yield relation.note
    if isinstance(relation, Unnest) and relation.most:
        yield f"of each list at most {relation.most:,} elements are unnested"
    for source in sources(relation):
        yield from cuts(source)


def multiplying(relation: Relation) -> Iterator[str]:
    """What the query calls the tables, lists and subqueries of a join."""
    match relation:
        case Scan() | Project():
            yield from [] if relation.alias.startswith("#") else [relation.alias]
        case Values(named):
            yield named[0][0].split(".")[0]
        case Unnest(source, _, column):
            yield from multiplying(source)
            yield column.split(".")[0] if not column.startswith("#") else "unnest"
        case _:
            for source in sources(relation):
                yield from multiplying(source)


def refusal(relation: Relation, most: int, stretch: Fraction) -> Refused:
    """What is said of a part that is too wide."""
    named = " and ".join(dict.fromkeys(multiplying(relation)))
    rows = f"{most:,} rows" + (
        f" with texts that are, or take, {float(stretch):g} times as long" if stretch > 1 else ""
    )
    return Refused(
        "join_too_wide",
        f"one row may become more than {rows}: {named} multiply each other",
        "Join on a column in which no value stands twice, GROUP BY in a subquery before the join, or unnest fewer lists.",
    )


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


def not_local(what: str, clause: str, leads: Iterable[str], relation: Relation) -> Refused:
    words = (written(relation, column) for column in leads)
    names = dict.fromkeys(".".join(word.split(".")[-2:]) for word in words if word)
    hint = f"Add one of these to {clause}: {', '.join(names)}." if names else "Keep the person's column in it."
    return Refused(
        "subquery_not_local",
        f"{what} puts rows of several persons together, which would have to be released first",
        hint,
    )
