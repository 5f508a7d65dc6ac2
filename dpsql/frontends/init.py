"""`dpsql init`: a policy in a few questions, checked and verified, and what could be asked then.

It is the owner's tool: it looks at the data when it verifies what was declared, and its figures are exact. What it writes into
the policy is what the owner says, never what it has seen.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from types import MappingProxyType

import click
import duckdb

from dpsql.compiler.program import Plan
from dpsql.errors import Error, Refused
from dpsql.explain import at_sizes, expected
from dpsql.history import recorded
from dpsql.ledger import terms
from dpsql.policy.catalog import Described, Policy, Reference, Type, fold, read_policy
from dpsql.problems import problems, warnings
from dpsql.session import Session, connect, opened
from dpsql.sources import DELIMITERS
from dpsql.suggest import COLUMN, Decided, owners, suggest, word
from dpsql.verify import Finding, line, once, verify

PLACE = re.compile(r"\s*([^.=]+(?:\.[^.=]+)*)\.([^.=]+?)\s*(?:=\s*(.*))?", re.DOTALL)
NUMBER = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?")
EXAMPLES = 5
ALIASES = {"INT": "INTEGER", "INT8": "BIGINT", "LONG": "BIGINT", "FLOAT8": "DOUBLE", "TEXT": "VARCHAR", "STRING": "VARCHAR", "BOOL": "BOOLEAN", "DATETIME": "TIMESTAMP"}  # fmt: skip


@dataclass(frozen=True)
class Flags:
    """What the command line has said already."""

    person: Sequence[str] = ()
    public: Sequence[str] = ()
    public_anyway: Sequence[str] = ()
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
    sure = frozenset(fold(table_of(name, known).name) for name in flags.public_anyway)
    public = frozenset(fold(table_of(name, known).name) for name in flags.public)
    for name in sorted(public - sure - persons.keys()):
        if (found := person_in(known[name], persons, known)) is not None:
            column, other, its = found
            what = f"{known[name].name} is to be public, and its column {column} is named like the person of {other}"
            hint = f"Say whose its rows are: --person {known[name].name}.{column}={other}.{its}; or, if it tells nothing about people: --public-anyway {known[name].name}"
            raise Refused("init_invalid", what, hint)
    public |= sure
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


def person_in(
    table: Described, said: Mapping[str, str | Reference], known: Mapping[str, Described]
) -> tuple[str, str, str] | None:
    """A column named as the person of another table: the column, that table and its column."""
    guessed = {name: who for name, who in owners(known).items() if name not in said and isinstance(who, str)}
    for name, who in {**said, **guessed}.items():
        for own in keys_of(who) - {"id"} if name != fold(table.name) else ():
            for column, _ in table.columns:
                if fold(column) == own:
                    return column, known[name].name, written(known[name], own)
    return None


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
    if "." not in text.partition("=")[0] and len(known) == 1:
        text = f"{next(iter(known.values())).name}.{text}"
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
    if type_.kind == "TIMESTAMP" and re.fullmatch(r'"\d{4}-\d\d-\d\d"', ends[1]):
        ends[1] = f'{ends[1][:-1]} 23:59:59.999999"'  # all of the last day
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


def likely_types(files: Sequence[Path]) -> dict[tuple[str, str], str]:
    """For each column of CSV files the type that its first values have: what is proposed to the owner, who decides."""
    found: dict[tuple[str, str], str] = {}
    for path in files:
        if (delimiter := DELIMITERS.get(path.suffix.lower())) is None:
            continue
        with suppress(duckdb.Error), duckdb.connect() as connection:
            rows = connection.read_csv(str(path), header=True, sep=delimiter, sample_size=1000)
            for column, type_ in zip(rows.columns, map(str, rows.types), strict=True):
                known = Type(type_).kind in ("INTEGER", "DECIMAL", "DOUBLE", "DATE", "TIMESTAMP", "BOOLEAN")
                found[fold(path.stem), fold(column)] = type_ if known else "VARCHAR"
    return found


def asked(
    flags: Flags, tables: Sequence[Described], likely: Mapping[tuple[str, str], str] = MappingProxyType({})
) -> Decided:
    """The owner's answers to a few questions; what a flag has said is not asked. `likely` are types for CSV columns."""
    known = {fold(table.name): table for table in tables}
    said = decided(flags, tables)
    persons, public, columns, out = {**said.persons}, {*said.public}, {**said.columns}, set[str]()
    guesses = owners(known)
    click.echo(
        f"{len(tables)} table{'s' * (len(tables) != 1)}: "
        + ", ".join(f"{t.name} ({len(t.columns)} columns)" for t in tables),
        err=True,
    )
    click.echo("Whose are the rows? A column that names the person (id), one that leads to another table\n"
               "(customer=customer.id), `public` if it tells nothing about people, or `skip`.", err=True)  # fmt: skip
    for name, table in known.items():
        if name in persons or name in public:
            continue
        say(f"{table.name}: {', '.join(f'{column} {type_}' for column, type_ in table.columns)}", "  ")
        found = person_in(table, persons, known)
        offered = f"{found[0]}={found[1]}.{found[2]}" if found and name not in guesses else shown(guesses.get(name))
        answer = ask(f"  {table.name}", offered, lambda text, t=table: place_of(text, t, known))
        if answer == "public" and found is not None:
            column, other, its = found
            say(
                f"{table.name}.{column} is named like the person of {other}. If it is the same person, these rows are theirs.",
                "    ",
            )
            link = f"{column}={other}.{its}"
            answer = ask(
                f"  {table.name}: {link}, or `public` all the same",
                link,
                lambda text, t=table: place_of(text, t, known),
            )
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
            columns |= asked_column(table, column, declared, likely.get((name, fold(column)), "VARCHAR"))
    columns |= keys_typed(persons, columns, known)
    epsilon = flags.epsilon or ask("epsilon that all answers together may take", "1.0", number)
    each = flags.query_epsilon or ask("epsilon of one query that names none", f"{float(epsilon) / 20:g}", number)
    rows = flags.max_rows or ask("rows of one person that count in full", "8", whole)
    return Decided(persons, frozenset(public), frozenset(out), columns, epsilon, said.delta, each, rows)


def asked_column(table: Described, column: str, declared: str, likely: str) -> dict[tuple[str, str], str]:
    place, typed = (fold(table.name), fold(column)), ""
    if table.untyped:
        declared = ask(f"  type of {table.name}.{column}", likely, usable_type)
        typed = f"type = {quote(declared)}" if declared != "VARCHAR" else ""
    type_ = Type(declared)
    how = (
        ranged if type_.numeric or type_.kind in ("DATE", "TIMESTAMP") else listed if type_.kind == "VARCHAR" else None
    )
    if how is None:
        return {place: typed} if typed else {}

    def checked(text: str) -> str:
        return how(text, type_, text) if text else ""

    what = "values to group by" if how is listed else "lowest and highest value"
    found = ask(f"  {what} of {table.name}.{column} ({declared})", "", checked)
    line = ", ".join(filter(None, (typed, found)))
    return {place: line} if line else {}


def say(text: str, indent: str = "") -> None:
    """Say something, in lines that end at words."""
    width = shutil.get_terminal_size((80, 24)).columns
    click.echo(fill(text, width, initial_indent=indent, subsequent_indent=indent + "  "), err=True)


def ask(question: str, default: str, check: object) -> str:
    """The answer to a question, asked again until it can be used."""
    assert callable(check)
    while True:
        answer = click.prompt(question, default=default, show_default=bool(default), err=True).strip()
        try:
            return str(check(answer))
        except Refused as error:
            say(f"{error.message}. {error.hint}", "    ")


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
        _, who = whose(f"{table.name}.{text}", known)
        if isinstance(who, Reference) and fold(who.table) == fold(table.name):
            hint = f"Name a column of another table, as customer=customer.id, or {table.name}'s own column alone."
            raise Refused("init_invalid", f"{text!r} leads to its own table", hint)
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
        if not re.search(r"^\[tables\.", text, re.MULTILINE):
            table = tables[0]
            likely = next(
                (c for c, _ in table.columns if COLUMN.fullmatch(fold(c)) or fold(c).endswith("id")),
                table.columns[0][0],
            )
            hint = f"Say whose the rows are: --person {table.name}.{likely}, or --public {table.name}."
            raise Refused("init_invalid", "no table would be in the policy", hint)
        if wrong := problems(draft):
            raise wrong[0]
        policy = read_policy(draft)
        opened(db, policy)  # that it fits the data's schema
        charged(db, policy, keep)
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
            click.echo(line(finding))
    if any(finding.place.endswith("max_rows_contributed") and not finding.holds for finding in findings):
        told = "counts and sums of rows will be too low by about the rows beyond the limit, and no error bar shows it"
        click.echo(f"warning: {told}. A larger --max-rows takes away less and adds noise.", err=True)
    for name in single:
        head = f"[tables.{word(name)}]\n"
        if keep and click.confirm(
            f"Each person has one row of {name}. Is that always so? It means less noise", True, err=True
        ):
            out.write_text(out.read_text("utf-8").replace(head, f"{head}max_rows_contributed = 1\n", 1), "utf-8")
        elif not keep:
            add = f"add max_rows_contributed = 1 under [tables.{name}]"
            say(f"hint: each person has one row of {name}. If that is always so, {add}: less noise.")
    good = sum(finding.holds for finding in findings)
    click.echo(f"{good} of {len(findings)} declarations hold on the data (exact, for you as the owner)", err=True)
    with connect(db, policy=out, ledger=":memory:") as session:
        examples(db, out, session)
    return not any(finding.grave and not finding.holds for finding in findings)


def charged(db: Path, policy: Policy, keep: bool) -> None:
    """Warn where the ledger beside the database was begun for other persons or another budget: it wins over the policy."""
    book = db.with_suffix(".ledger")
    if not book.exists():
        return
    try:
        entries = [entry for entry in recorded(book).entries if entry.state in ("opened", "raised", "declared")]
        known, new = (json.loads(text) for text in (entries[-1].text, terms(policy.dataset or db.name, policy)))
    except Error:
        return
    persons = [
        name for name, who in known["persons"].items() if who is not None and new["persons"].get(name, who) != who
    ]
    differs = [*(f"other persons of {name}" for name in persons), *(f"another {key}" for key in ("dataset", "epsilon", "delta", "accounting", "neighbours") if known[key] != new[key])]  # fmt: skip
    if not differs:
        return
    say(f"warning: the ledger {book} was begun with {', '.join(differs)}, and it wins: queries will be refused. Restore "
         "what it was begun with, record a larger budget (dpsql ledger raise), or begin another: --ledger OTHER.")  # fmt: skip
    if keep and not click.confirm("Write the policy all the same?", False, err=True):
        raise Refused("init_invalid", "the policy was not written", "Answer as before, or use another ledger.")


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
    click.echo("\nWhat could be asked now, with the error to expect:")
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
