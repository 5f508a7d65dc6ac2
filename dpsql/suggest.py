"""A first policy from what the catalogue says: names, types, primary and foreign keys. It touches no row."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dpsql.policy.catalog import Described, Reference, Type, fold

# Names of tables and columns that are likely to stand for persons. A guess, which the owner confirms or corrects.
PERSON = (
    "person|people|user|customer|client|patient|member|employee|student|pupil|household|subscriber|citizen|passenger|"
    "visitor|voter|worker|tenant|guest|driver|participant|respondent|cust"
)
TABLE = re.compile(rf"(.*_)?({PERSON})s?", re.ASCII)
COLUMN = re.compile(rf"(.*_)?({PERSON})(_?(id|key|sk|no|nr|num|number|uuid))?", re.ASCII)
WIDTH = 44


@dataclass(frozen=True)
class Decided:
    """What the owner has said already; tables and columns by folded name, ranges and values as TOML."""

    persons: Mapping[str, str | Reference] = field(default_factory=dict)
    public: frozenset[str] = frozenset()
    left_out: frozenset[str] = frozenset()
    columns: Mapping[tuple[str, str], str] = field(default_factory=dict)
    epsilon: str = ""
    delta: str = ""
    query_epsilon: str = ""
    max_rows: str = ""


def suggest(dataset: str, tables: Sequence[Described], decided: Decided = Decided()) -> str:  # noqa: B008 - it is frozen
    """A policy in TOML that can be read as it stands; what is not known is commented out and marked DECIDE.

    Needs:   names and types of tables and columns, their keys and references
    Gives:   a policy that protects no less than one written by hand: a table of which nothing says whose its rows are is
             left out, so it cannot be asked about
    Proof:   what a policy declares is a hint and no proof; this one only decides which questions are answered, and the
             owner reads it before anyone else does
    Checked: test_suggest
    """
    lines = [
        f"# A policy for {word(dataset)}, suggested from its schema: no row was looked at.",
        "# What is marked DECIDE is the owner's to decide, from knowledge about the data and not from the data themselves:",
        "# a policy is public.",
        "",
        "[dataset]",
        f"id = {json.dumps(dataset, ensure_ascii=False)}",
        note('# version = "1"', "DECIDE a name for this state of the data, and another when they change"),
        "",
        "[budget]",
        note(
            f"epsilon = {decided.epsilon or '1.0'}",
            "DECIDE " * (not decided.epsilon) + "what all answers together may reveal about one person",
        ),
        note(
            f"delta = {decided.delta or '1e-6'}",
            "DECIDE: " * (not decided.delta) + "less than one divided by the number of persons",
        ),
        'accounting = "gdp"',
        "",
        "[defaults]",
        note(f"epsilon = {decided.query_epsilon or '0.1'}", "of one query that names none"),
    ]
    if not decided.query_epsilon:
        lines.append(note("max_epsilon = 0.5", "DECIDE the most that one query may spend"))
    rows = f"max_rows_contributed = {decided.max_rows or 8}"
    lines.append(note(rows, "DECIDE: " * (not decided.max_rows) + "rows of one person beyond these count for less"))
    by_name = {fold(table.name): table for table in tables}
    persons = {**owners(by_name), **decided.persons}
    for table in tables:
        if (name := fold(table.name)) not in decided.left_out:
            lines += ["", *block(table, persons.get(name), decided)]
    return "\n".join(lines) + "\n"


def owners(tables: Mapping[str, Described]) -> dict[str, str | Reference]:
    """Whose the rows of each table probably are: a table of persons by its name, then what references it, then columns."""
    named = {name: key for name, table in tables.items() if (key := identity(table)) is not None}
    found: dict[str, str | Reference] = {
        name: key
        for name, key in named.items()
        if not any(fold(link.table) in named.keys() - {name} for link in tables[name].references)
    }
    follow(tables, found)
    for name, table in tables.items():
        likely = [column for column, type_ in table.columns if usable(type_) and COLUMN.fullmatch(fold(column))]
        if name not in found and likely:
            found[name] = likely[0]
    follow(tables, found)
    return found


def identity(table: Described) -> str | None:
    """The key of a table that by its name is one of persons."""
    if not TABLE.fullmatch(fold(table.name.split(".")[-1])):
        return None
    keys = table.key or tuple(column for column, _ in table.columns if fold(column) == "id")
    return keys[0] if len(keys) == 1 and usable(dict(table.columns)[keys[0]]) else None


def follow(tables: Mapping[str, Described], found: dict[str, str | Reference]) -> None:
    """References to a table whose rows are somebody's, as far as they reach. What has been found stays, so none is a circle."""
    for _ in tables:
        for name, table in tables.items():
            link = next((link for link in table.references if fold(link.table) in found.keys() - {name}), None)
            if name not in found and link is not None:
                found[name] = link


def block(table: Described, person: str | Reference | None, decided: Decided) -> Iterator[str]:
    head, name = f"tables.{word(table.name)}", fold(table.name)
    sure = name in decided.persons
    key = [f"key = [{', '.join(map(quote, table.key))}]"] if table.key else []
    off, known = "", {fold(column) for column in table.key}
    match person:
        case _ if name in decided.public:
            yield f"[{head}]"
            yield note("public = true", "it tells nothing about any person")
        case None:
            off = "# "
            yield note(f"# [{head}]", "DECIDE: nothing says whose its rows are, so it is left out. Either")
            yield note("# public = true", "  it tells nothing about any person, or")
            yield note('# person = "COLUMN"', "  this column identifies the person")
        case str(column):
            known.add(fold(column))
            yield f"[{head}]"
            yield note(
                f"person = {quote(column)}",
                "each value stands for one person"
                if sure
                else "DECIDE: does each value stand for one person, in all tables?",
            )
            if table.key == (column,):
                yield note("max_rows_contributed = 1", "since each person has one row")
        case Reference(columns, target, referenced):
            known |= {fold(column) for column in columns}
            yield f"[{head}]"
            if len(columns) == 1:
                link = f"{{ column = {quote(columns[0])}, references = {quote(f'{target}.{referenced[0]}')} }}"
            else:
                many, others = ", ".join(map(quote, columns)), ", ".join(referenced)
                link = f"{{ columns = [{many}], references = {quote(f'{target}({others})')} }}"
            yield note(f"person = {link}", "its rows belong to whom that row belongs to")
    yield from (off + line for line in key)
    yield f"{off}[{head}.columns]"
    for name, type_ in table.columns:
        if line := decided.columns.get((fold(table.name), fold(name))):
            yield f"{word(name)} = {{ {line} }}"
        elif table.untyped:
            yield note(f'# {word(name)} = {{ type = "INTEGER" }}', "DECIDE its type, or it is text; then between or in")
        elif fold(name) not in known and fold(table.name) not in decided.public:
            yield column_line(name, Type(type_))


def column_line(name: str, type_: Type) -> str:
    match type_.kind:
        case "INTEGER" | "DECIMAL" | "DOUBLE":
            return note(
                f"# {word(name)} = {{ between = [LOW, HIGH] }}", f"DECIDE a range, to sum or average ({type_.sql})"
            )
        case "VARCHAR":
            return note(f'# {word(name)} = {{ in = ["A", "B"] }}', "DECIDE the values, to group by them (VARCHAR)")
        case "DATE" | "TIMESTAMP":
            return note(f"# {word(name)} = {{ between = [2000-01-01, 2030-12-31] }}", f"DECIDE ({type_.sql})")
        case "INTERVAL":
            return note(f'# {word(name)} = {{ between = ["0 hours", "2 days"] }}', "DECIDE, to average it (INTERVAL)")
        case "BOOLEAN":
            return f"# {word(name)} can be grouped by as it is (BOOLEAN)"
        case "LIST":
            return f"# {word(name)} can be unnested as it is ({type_.sql})"
        case _:
            return f"# {word(name)} cannot be used yet ({type_.sql.split('(')[0]})"


def usable(type_: str) -> bool:
    return Type(type_).kind in ("INTEGER", "VARCHAR") or type_ == "UUID"


def note(line: str, remark: str) -> str:
    """
    >>> note("x = 1", "why")[:5], note("x = 1", "why").index("#")
    ('x = 1', 44)
    """
    return f"{line:<{WIDTH - 1}} # {remark}".replace("\n", " ")


def quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def word(name: str) -> str:
    """A name as a TOML key: bare where it can be."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else quote(name)
