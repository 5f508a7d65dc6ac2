"""`dpsql init`: a policy in a few questions, checked and verified, and what could be asked then.

It is the owner's tool: it looks at the data when it verifies what was declared, and its figures are exact. What it writes into
the policy is what the owner says, never what it has seen.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from dpsql.compiler.program import Plan
from dpsql.errors import Error, Refused
from dpsql.explain import at_sizes, expected
from dpsql.policy.catalog import Described, Policy, Reference, Type, fold, read_policy
from dpsql.problems import problems, warnings
from dpsql.session import Session, connect, opened
from dpsql.suggest import Decided, owners, suggest
from dpsql.verify import Finding, once, verify

PLACE = re.compile(r"\s*([^.=]+(?:\.[^.=]+)*)\.([^.=]+?)\s*(?:=\s*(.*))?", re.DOTALL)
NUMBER = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?")
EXAMPLES = 5
ALIASES = {"INT": "INTEGER", "INT8": "BIGINT", "LONG": "BIGINT", "FLOAT8": "DOUBLE", "TEXT": "VARCHAR", "STRING": "VARCHAR", "BOOL": "BOOLEAN", "DATETIME": "TIMESTAMP"}  # fmt: skip


@dataclass(frozen=True)
class Flags:
    """What the command line has said already."""

    person: Sequence[str] = ()
    public: Sequence[str] = ()
    between: Sequence[str] = ()
    values: Sequence[str] = ()
    types: Sequence[str] = ()
    epsilon: str = ""
    delta: str = ""
    query_epsilon: str = ""
    max_rows: str = ""


# --- what is said -----------------------------------------------------------------------------------------------------


def decided(flags: Flags, tables: Sequence[Described]) -> Decided:
    """The flags, held against the schema."""
    known = {fold(table.name): table for table in tables}
    persons = dict(whose(text, known) for text in flags.person)
    public = frozenset(fold(table_of(name, known).name) for name in flags.public)
    types = {place: usable_type(value) for place, value in (placed(text, known) for text in flags.types)}
    columns: dict[tuple[str, str], str] = {place: f"type = {quote(value)}" for place, value in types.items()}
    for texts, how in ((flags.between, ranged), (flags.values, listed)):
        for text in texts:
            place, value = placed(text, known)
            type_ = types.get(place) or kind(known[place[0]], place[1])
            columns[place] = ", ".join(filter(None, (columns.get(place), how(value, Type(type_), text))))
    if twice := public & persons.keys():
        raise Refused("init_invalid", f"{min(twice)} has a person and is public", "Leave out one of the two.")
    columns |= keys_typed({**owners(known), **persons}, columns, known)
    return Decided(
        persons, public, frozenset(), columns, flags.epsilon, flags.delta, flags.query_epsilon, flags.max_rows
    )


def keys_typed(
    persons: Mapping[str, str | Reference], columns: Mapping[tuple[str, str], str], known: Mapping[str, Described]
) -> dict[tuple[str, str], str]:
    """Types for CSV columns on one side of a reference whose other side has one: both sides must have the same."""
    found: dict[tuple[str, str], str] = {}
    for name, link in persons.items():
        if not isinstance(link, Reference):
            continue
        for own, other in zip(link.columns, link.referenced, strict=True):
            ends = ((fold(name), fold(own)), (fold(link.table), fold(other)))
            for here, there in (ends, ends[::-1]):
                if not known[there[0]].untyped or there in columns:
                    continue
                given = columns.get(here, "")
                if known[here[0]].untyped and not given:
                    continue
                type_ = f"type = {quote(kind(known[here[0]], here[1]))}"
                found[there] = given if known[here[0]].untyped else type_
    return found


def whose(text: str, known: Mapping[str, Described]) -> tuple[str, str | Reference]:
    """`orders.customer`, or `orders.customer=customer.id` for a column that leads to another table."""
    (table, column), target = placed(text, known, optional=True)
    if not target:
        return table, written(known[table], column)
    (other, referenced), _ = placed(target, known, optional=True)
    return table, Reference((written(known[table], column),), known[other].name, (written(known[other], referenced),))


def placed(text: str, known: Mapping[str, Described], optional: bool = False) -> tuple[tuple[str, str], str]:
    """TABLE.COLUMN=VALUE: the folded names, and the value."""
    found = PLACE.fullmatch(text)
    if found is None or (not optional and not (found[3] or "").strip()):
        hint = "Write table.column" + (
            ", or table.column=other.column." if optional else "=VALUES, as orders.amount=0,500."
        )
        raise Refused("init_invalid", f"{text!r} names no column of a table", hint)
    table = table_of(found[1], known)
    return (fold(table.name), fold(written(table, found[2]))), (found[3] or "").strip()


def table_of(name: str, known: Mapping[str, Described]) -> Described:
    if fold(name.strip()) not in known:
        raise Refused(
            "init_invalid", f"there is no table {name!r}", f"There are: {', '.join(t.name for t in known.values())}."
        )
    return known[fold(name.strip())]


def written(table: Described, column: str) -> str:
    """A column as the schema writes it."""
    for name, _ in table.columns:
        if fold(name) == fold(column.strip()):
            return name
    names = ", ".join(name for name, _ in table.columns)
    raise Refused("init_invalid", f"{table.name} has no column {column!r}", f"It has: {names}.")


def kind(table: Described, column: str) -> str:
    return next(type_ for name, type_ in table.columns if fold(name) == fold(column))


def ranged(value: str, type_: Type, text: str) -> str:
    ends = [
        cell(end, type_) for end in re.split(r",|\.\.| to |(?<=\d)-(?=\d)" if type_.numeric else r",|\.\.| to ", value)
    ]
    if len(ends) != 2 or (type_.numeric and not all(map(NUMBER.fullmatch, ends))):
        hint = "Write the lowest and the highest value, with a comma between: 0,500."
        raise Refused("init_invalid", f"{text!r} is no range", hint)
    return f"between = [{', '.join(ends)}]"


def listed(value: str, type_: Type, text: str) -> str:
    return f"in = [{', '.join(cell(one, type_) for one in value.split(','))}]"


def cell(value: str, type_: Type) -> str:
    """A value as TOML; dates and texts are texts."""
    value = value.strip()
    return value if NUMBER.fullmatch(value) and type_.kind != "VARCHAR" else quote(value)


def quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


# --- what is asked ----------------------------------------------------------------------------------------------------


def asked(flags: Flags, tables: Sequence[Described]) -> Decided:
    """The owner's answers to a few questions; what a flag has said is not asked."""
    known = {fold(table.name): table for table in tables}
    said = decided(flags, tables)
    persons, public, columns, out = {**said.persons}, {*said.public}, {**said.columns}, set[str]()
    guesses = owners(known)
    click.echo(f"{len(tables)} tables: " + ", ".join(f"{t.name} ({len(t.columns)} columns)" for t in tables), err=True)
    click.echo("Whose are the rows? A column that names the person (id), one that leads to another table\n"
               "(customer=customer.id), `public` if it tells nothing about people, or `skip`.", err=True)  # fmt: skip
    for name, table in known.items():
        if name in persons or name in public:
            continue
        answer = ask(f"  {table.name}", shown(guesses.get(name)), lambda text, t=table: place_of(text, t, known))
        if answer == "skip":
            out.add(name)
        elif answer == "public":
            public.add(name)
        else:
            persons[name] = whose(f"{table.name}.{answer}", known)[1]
    click.echo("What may be in the columns? For numbers and dates the lowest and highest value (0,500), for texts the\n"
               "values to group by (open,sent). Say what you know of the world, not what is in the data: it is public.\n"
               "Enter leaves a column open.", err=True)  # fmt: skip
    for name, table in known.items():
        if name in public or name in out:
            continue
        taken = {fold(c) for c in table.key} | keys_of(persons.get(name))
        for column, declared in table.columns:
            if (name, fold(column)) in columns or fold(column) in taken:
                continue
            columns |= asked_column(table, column, declared, known)
    columns |= keys_typed(persons, columns, known)
    epsilon = flags.epsilon or ask("epsilon that all answers together may take", "1.0", number)
    rows = flags.max_rows or ask("rows of one person that count in full", "8", whole)
    return Decided(persons, frozenset(public), frozenset(out), columns, epsilon, said.delta, said.query_epsilon, rows)


def asked_column(
    table: Described, column: str, declared: str, known: Mapping[str, Described]
) -> dict[tuple[str, str], str]:
    place, typed = (fold(table.name), fold(column)), ""
    if table.untyped:
        declared = ask(f"  type of {table.name}.{column}", "VARCHAR", usable_type)
        typed = f"type = {quote(declared)}" if declared != "VARCHAR" else ""
    type_ = Type(declared)
    how = (
        ranged if type_.numeric or type_.kind in ("DATE", "TIMESTAMP") else listed if type_.kind == "VARCHAR" else None
    )
    if how is None:
        return {place: typed} if typed else {}

    def checked(text: str) -> str:
        return how(text, type_, text) if text else ""

    found = ask(f"  {table.name}.{column} ({declared})", "", checked)
    line = ", ".join(filter(None, (typed, found)))
    return {place: line} if line else {}


def ask(question: str, default: str, check: object) -> str:
    """The answer to a question, asked again until it can be used."""
    assert callable(check)
    while True:
        answer = click.prompt(question, default=default, show_default=bool(default), err=True).strip()
        try:
            return str(check(answer))
        except Refused as error:
            click.echo(f"    {error.message}. {error.hint}", err=True)


def number(text: str) -> str:
    if not NUMBER.fullmatch(text) or float(text) <= 0:
        raise Refused("init_invalid", f"{text!r} is not a number above zero", "Write 1.0.")
    return text


def whole(text: str) -> str:
    if not text.isdecimal() or not int(text):
        raise Refused("init_invalid", f"{text!r} is not a whole number above zero", "Write 8.")
    return text


def usable_type(text: str) -> str:
    name = ALIASES.get(text.upper(), text.upper())
    if Type(name).kind in ("OTHER", "NULL", "LIST"):
        raise Refused(
            "init_invalid", f"{text!r} is no type", "Write INTEGER, DOUBLE, DATE, TIMESTAMP, BOOLEAN or VARCHAR."
        )
    return name


def place_of(text: str, table: Described, known: Mapping[str, Described]) -> str:
    if text not in ("skip", "public"):
        whose(f"{table.name}.{text}", known)
    return text


def shown(guess: str | Reference | None) -> str:
    match guess:
        case None:
            return "skip"
        case str(column):
            return column
        case Reference(columns, target, referenced):
            return f"{columns[0]}={target}.{referenced[0]}" if len(columns) == 1 else "skip"


def keys_of(person: str | Reference | None) -> set[str]:
    return {fold(c) for c in ((person,) if isinstance(person, str) else person.columns if person else ())}


# --- what comes of it -------------------------------------------------------------------------------------------------


def run(db: Path, tables: Sequence[Described], said: Decided, out: Path, force: bool, keep: bool) -> bool:
    """Write the policy, check it, verify it on the data, and say what could be asked. Whether nothing grave was found.

    If it does not fit the data it is not written; with `keep` a draft of it stays.
    """
    if out.exists() and not force:
        hint = "Use --force to write it anew, or --out FILE."
        raise Refused("policy_exists", f"there is a policy {str(out)!r} already", hint)
    text = suggest(db.name, tables, said)
    draft = out.with_name(f"{out.name}.draft")
    draft.write_text(text, encoding="utf-8")
    try:
        if wrong := problems(draft):
            raise wrong[0]
        policy = read_policy(draft)
        if not policy.tables:
            hint = "Say whose the rows are: --person visits.visitor, or --public visits."
            raise Refused("init_invalid", "no table would be in the policy", hint)
        opened(db, policy)  # that it fits the data's schema
        draft.replace(out)
    except Refused as error:
        if keep and error.code != "init_invalid":  # nothing that was answered is lost
            error.hint = (
                f"{error.hint} What you said is in {draft}: correct it there, and rename it to {out.name}.".strip()
            )
        else:
            draft.unlink()
        raise
    for table in tables:
        bare = [name for name, _ in table.columns if (fold(table.name), fold(name)) not in said.columns]
        if table.untyped and bare:
            told = f"{table.name} is a CSV file, and these columns are text: {', '.join(bare)}"
            click.echo(f"hint: {told}. For another type: --type {table.name}.{bare[0]}=INTEGER", err=True)
    click.echo(f"{out}: written; what is marked DECIDE is yours to decide", err=True)
    for warning in warnings(out):
        click.echo(f"warning: {warning}", err=True)
    findings, single = verified(db, policy)
    for finding in findings:
        if not finding.holds:
            click.echo(f"no   {finding.place}: {finding.claim}" + (f": {finding.more}" if finding.more else ""))
    if any(finding.place.endswith("max_rows_contributed") and not finding.holds for finding in findings):
        told = "counts and sums of rows will be too low by about the rows beyond the limit, and no error bar shows it"
        click.echo(f"warning: {told}. A larger --max-rows takes away less and adds noise.", err=True)
    for name in single:
        line = f"max_rows_contributed = 1 under [tables.{name}]"
        click.echo(f"hint: each person has one row of {name}. If that is always so, add {line}: less noise.", err=True)
    good = sum(finding.holds for finding in findings)
    click.echo(f"{good} of {len(findings)} declarations hold on the data (exact, for you as the owner)", err=True)
    with connect(db, policy=out, ledger=":memory:") as session:
        examples(db, out, session)
    return not any(finding.grave and not finding.holds for finding in findings)


def verified(db: Path, policy: Policy) -> tuple[list[Finding], list[str]]:
    """Each declaration held against the data, and the tables of which each person has one row though the policy says more."""
    from rich.console import Console

    backend, _, catalog = opened(db, policy)
    findings, single = [], []
    with backend.snapshot() as snapshot, Console(stderr=True).status("verifying on the data") as status:
        for finding in verify(catalog, snapshot.ask):
            status.update(f"verifying on the data: {finding.place}")
            findings.append(finding)
        for table in catalog.tables.values():
            more = (table.max_rows_contributed or policy.defaults.max_rows_contributed or 2) > 1
            if isinstance(table.person, str) and more and snapshot.ask(once(table, (table.person,)))[0]:
                single.append(table.name)
    return findings, single


def examples(db: Path, out: Path, session: Session) -> None:
    """What analysts could ask, with the error to expect. Free: it is read off the policy."""
    told = [(query, error) for query in questions(session) if (error := foretold(session, query))][:EXAMPLES]
    click.echo("\nWhat could be asked now, with the error to expect:", err=True)
    for query, error in told:
        click.echo(f"  {query}\n      {error}")
    usual = "" if out == db.with_suffix(".policy.toml") else f" --policy {out}"
    click.echo(
        f'\nNext:\n  dpsql explain {db} "{told[0][0] if told else "SELECT …"}"{usual}\n  dpsql shell {db}{usual}',
        err=True,
    )


def questions(session: Session) -> Iterator[str]:
    """Simple questions about the tables with persons."""
    for table in session.tables:
        if table.rows_of != "persons":
            continue
        name = quoted(table.name)
        yield f"SELECT count(*) FROM {name}"
        for column in table.columns:
            type_ = Type(column.type)
            if column.values is not None:
                yield f"SELECT {quoted(column.name)}, count(*) FROM {name} GROUP BY {quoted(column.name)}"
            elif column.between and type_.numeric:
                yield f"SELECT avg({quoted(column.name)}) FROM {name}"
            elif column.between and type_.kind in ("DATE", "TIMESTAMP"):
                yield f"SELECT date_trunc('month', {quoted(column.name)}) AS month, count(*) FROM {name} GROUP BY month"


def quoted(name: str) -> str:
    """A name in SQL, in quotes where it needs them."""
    return name if re.fullmatch(r"[a-z_][a-z0-9_]*", name) else '"' + name.replace('"', '""') + '"'


def foretold(session: Session, query: str) -> str:
    """The errors of a query, or nothing if it cannot be asked."""
    try:
        plan = session.explain(query).plan
    except Error:
        return ""
    assert isinstance(plan, Plan)
    groups = f"; groups from about {plan.release.threshold.least:,} persons on" if plan.release.threshold else ""
    return ", ".join(at_sizes(sizes) for sizes in expected(plan).values()) + groups


def interactive() -> bool:
    """Whether somebody is there to answer."""
    return sys.stdin.isatty() and sys.stderr.isatty()
