"""The command line. Data goes to standard output, everything else to standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

import dpsql
from dpsql.errors import BudgetExhausted, Error, Failed, Interrupted, Refused
from dpsql.frontends.shell.options import shell

if TYPE_CHECKING:
    from dpsql.policy.catalog import Described, Policy
    from dpsql.verify import Finding

EXIT: dict[type[Error], int] = {Refused: 3, BudgetExhausted: 4, Failed: 5}
F = TypeVar("F", bound=Callable[..., Any])


# What to type, by the code of an error, where the library's hint speaks of Python. `{hint}` is that hint.
TYPED = {
    "analyst_unknown": "Use --analyst NAME. {hint}",
    "database_in_use": "Close it there.",
    "database_not_supported": "Give the path of a DuckDB, Parquet or CSV file.",
    "delta_invalid": "Use --delta 1e-8, or leave it out.",
    "epsilon_invalid": "Use --epsilon 0.5.",
    "epsilon_missing": "Use --epsilon 0.5.",
    "limit_invalid": "Use --max-rows 8 or --max-groups 8.",
    "parameter_missing": "Write the value into the query.",
    "policy_unreadable": "Use --policy FILE, TOML or JSON, or make one: `dpsql init DB`.",
    "query_id_invalid": "Use --id with a UUID.",
    "setting_not_supported": "Give the path of the database.",
    "source_not_supported": "Give the path of one DuckDB, Parquet or CSV file.",
    "timeout_invalid": "Use --timeout with no more than max_seconds.",
    "weights_invalid": "Use --weights 2,1.",
}
NO_DELTA = (
    "Use --delta 1e-30: then it gets Laplace noise, which needs no delta. If one person counts in dozens of groups or "
    "aggregates, use a smaller --max-groups too, or ask for fewer at a time. Or ask the owner to allow more."
)


def in_words(error: Error) -> str:
    """An error with a hint for whoever types commands."""
    from dpsql.ledger import WITHOUT_DELTA  # loaded where there is an error of a ledger

    typed = NO_DELTA if error.hint == WITHOUT_DELTA else TYPED.get(error.code, "{hint}")
    typed = "{hint}" if "`dpsql init " in error.hint else typed  # with the name of the file
    error.hint = typed.replace("{hint}", error.hint)
    return str(error)


class Commands(click.Group):
    """Every error of dpsql becomes its message, its hint and its exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except Error as error:
            kind = next(kind for kind in EXIT if isinstance(error, kind))
            word = {Refused: "refused", BudgetExhausted: "budget exhausted", Failed: "failed"}[kind]
            click.echo(f"{word}: {in_words(error)}", err=True)
            ctx.exit(EXIT[kind])
        except Interrupted as error:
            click.echo(f"interrupted: {error}", err=True)
            ctx.exit(130)


def database(command: F) -> F:
    for option in (
        click.option("--analyst", help="Who asks, if the policy names its analysts."),
        click.option("--ledger", type=click.Path(), help="The ledger file. [default: DB with the ending .ledger]"),
        click.option("--policy", type=click.Path(), help="The policy. [default: DB with the ending .policy.toml]"),
        click.argument("db", type=click.Path()),
    ):
        command = option(command)
    return command


def loading(db: str) -> None:
    """Say that a file is about to be read into memory, to whoever watches."""
    from dpsql.sources import SUFFIXES  # it loads the engine, which --help does not need

    if (Path(db).suffix.lower() in SUFFIXES or Path(db).is_dir()) and sys.stderr.isatty():
        click.echo(f"reading {db} into memory ...", err=True)


class Weights(click.ParamType[list[float]]):
    name = "weights"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> list[float]:
        try:
            return [float(weight) for weight in value.split(",")]
        except ValueError:
            self.fail(f"{value!r} is not a list of numbers: write 2,1", param, ctx)


def privacy(command: F) -> F:
    for option in (
        click.option("--max-groups", type=int, help="Of one person's groups so many count. [default: the policy's]"),
        click.option("--max-rows", type=int, help="More rows of one person count for less. [default: the policy's]"),
        click.option("--weights", type=Weights(), help="For several releases: the parts of the budget, as 2,1."),
        click.option("--delta", type=float, help="The query's delta. [default: the policy's]"),
        click.option("--epsilon", type=float, help="The query's epsilon. [default: the policy's]"),
    ):
        command = option(command)
    return command


def session(db: str, policy: str | None, ledger: str | None, analyst: str | None) -> dpsql.Session:
    found = policy_of(db, policy)
    loading(db)
    return dpsql.connect(db, policy=found, ledger=ledger, analyst=analyst)


def policy_of(db: str | Path, policy: str | None) -> str | Path:
    """The policy that is given, or the one beside the database; first of all there must be a database."""
    from dpsql.session import companion, missing

    if not str(db) or not (Path(db).exists() or any(mark in str(db) for mark in "*?[")):
        raise missing(Path(db))
    found = companion(Path(db), ".policy.toml") if policy is None else Path(policy)
    if policy is None and not found.exists():
        what = f"cannot read the policy {str(found)!r}: No such file or directory"
        raise Refused("policy_unreadable", what, f"Use --policy FILE, TOML or JSON, or make one: `dpsql init {db}`.")
    return policy if policy is not None else found


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(dpsql.__version__, prog_name="dpsql")
def cli() -> None:
    """SQL that an untrusted analyst may run on data about people.

    \b
    Examples:
      dpsql demo
      dpsql sql shop.duckdb "SELECT status, count(*) FROM orders GROUP BY status" --epsilon 0.5
      dpsql explain shop.duckdb "SELECT avg(amount) FROM orders"
      dpsql budget shop.duckdb
      dpsql ledger show shop.ledger

    \b
    Exit codes: 0 answered, 2 usage, 3 refused, 4 budget exhausted, 5 failed.
    Ctrl-C ends a query; its charge stands, and the exit code is 130.
    Tab completion: eval "$(_DPSQL_COMPLETE=bash_source dpsql)" (or zsh_source, fish_source).
    """


@cli.command()
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    default=Path("dpsql-demo"),
    show_default=True,
    help="Where the sample data are kept.",
)
@click.option("--files", is_flag=True, help="Only make the sample data: the shop, and the files of the tutorial.")
def demo(directory: Path, files: bool) -> None:
    """Make a sample shop and answer questions about it.

    \b
    Examples:
      dpsql demo --dir /tmp/shop
      dpsql demo --files --dir .
    """
    from rich.console import Console

    from dpsql.frontends.demo import demo as run
    from dpsql.frontends.demo import sample

    if files:
        for path in sample(directory):
            click.echo(path)
    else:
        run(directory, Console())


@cli.command()
@database
@click.argument("query")
@privacy
@click.option(
    "--rehearse", is_flag=True, help="On synthetic rows made from the policy: nothing is charged, no real row is used."
)
@click.option(
    "--timeout", type=float, help="Seconds after which it is ended; its charge stands. [default: the policy's]"
)
@click.option("--id", "query_id", help="Names the query: asked again under this name, it is not charged again.")
@click.option("--json", "as_json", is_flag=True, help="An object with columns, rows, errors and loss.")
@click.option("--csv", "as_csv", is_flag=True, help="Comma-separated values with a header, without error bars.")
@click.option("--markdown", "as_markdown", is_flag=True, help="A Markdown table with error bars.")
@click.option("--rows", type=click.IntRange(0), help="Of a long table print so many rows. [default: 40]")
def sql(
    db: str,
    policy: str | None,
    ledger: str | None,
    analyst: str | None,
    query: str,
    epsilon: float | None,
    delta: float | None,
    weights: list[float] | None,
    max_rows: int | None,
    max_groups: int | None,
    rehearse: bool,
    timeout: float | None,
    query_id: str | None,
    as_json: bool,
    as_csv: bool,
    as_markdown: bool,
    rows: int | None,
) -> None:
    """Answer a QUERY on the database DB, and charge for it.

    DB is a DuckDB file, or a Parquet or CSV file: then it has one table, with the file's name.

    \b
    Examples:
      dpsql sql shop.duckdb "SELECT status, count(*) FROM orders GROUP BY status"
      dpsql sql shop.duckdb "SELECT avg(amount) FROM orders" --epsilon 0.1 --json
      dpsql sql shop.duckdb "SELECT avg(amount) FROM orders" --rehearse
    """
    forms = [form for form, wanted in (("json", as_json), ("csv", as_csv), ("markdown", as_markdown)) if wanted]
    if len(forms) > 1:
        raise click.UsageError(f"--{forms[0]} and --{forms[1]} exclude each other")
    opened = session(db, policy, ledger, analyst)
    if rehearse:
        answer = opened.rehearse(
            query,
            epsilon=epsilon,
            delta=delta,
            weights=weights,
            max_rows_contributed=max_rows,
            max_groups_contributed=max_groups,
        )
    else:
        answer = opened.sql(
            query,
            epsilon=epsilon,
            delta=delta,
            query_id=query_id,
            weights=weights,
            max_rows_contributed=max_rows,
            max_groups_contributed=max_groups,
            timeout=timeout,
        )
    match forms:
        case ["json"]:
            click.echo(answer.json())
        case ["csv"]:
            import csv

            writer = csv.writer(sys.stdout)
            writer.writerow(answer.columns)
            writer.writerows(answer)
            for line in answer.remarks():
                click.echo(line, err=True)
        case ["markdown"]:
            escaped = [[c.replace("|", "\\|") for c in row] for row in (list(answer.columns), *answer.cells())]
            for number, row in enumerate(escaped):
                click.echo(f"| {' | '.join(row)} |")
                if number == 0:
                    click.echo("|" + " --- |" * len(row))
        case _:
            answer.show() if rows is None else answer.show(rows)


@cli.command()
@database
@click.argument("query")
@privacy
@click.option("--more", is_flag=True, help="All lines, not the sixteen that matter most.")
@click.option("--sql", "as_sql", is_flag=True, help="The generated SQL.")
@click.option("--json", "as_json", is_flag=True, help="An object with price, errors, noise, limits and notes.")
def explain(
    db: str,
    policy: str | None,
    ledger: str | None,
    analyst: str | None,
    query: str,
    epsilon: float | None,
    delta: float | None,
    weights: list[float] | None,
    max_rows: int | None,
    max_groups: int | None,
    more: bool,
    as_sql: bool,
    as_json: bool,
) -> None:
    """Say what a QUERY would cost and how exact it would be. Free.

    \b
    Examples:
      dpsql explain shop.duckdb "SELECT avg(amount) FROM orders" --epsilon 0.1
      dpsql explain shop.duckdb "SELECT avg(amount) FROM orders" --sql
    """
    if more + as_sql + as_json > 1:
        raise click.UsageError("--more, --sql and --json exclude each other")
    explained = session(db, policy, ledger, analyst).explain(
        query,
        epsilon=epsilon,
        delta=delta,
        weights=weights,
        max_rows_contributed=max_rows,
        max_groups_contributed=max_groups,
    )
    if as_json or as_sql:
        click.echo(explained.json() if as_json else explained.sql)
    else:
        click.echo((explained.more if more else str(explained)).replace("max_rows_contributed=", "--max-rows "))


@cli.command()
@database
@click.option("--json", "as_json", is_flag=True, help="An object with spent, left, total and part.")
def budget(db: str, policy: str | None, ledger: str | None, analyst: str | None, as_json: bool) -> None:
    """Show what has been spent and what is left.

    \b
    Examples:
      dpsql budget shop.duckdb
      dpsql budget shop.duckdb --json
    """
    found = session(db, policy, ledger, analyst).budget
    click.echo(json.dumps(asdict(found)) if as_json else str(found))


@cli.group(name="ledger")
def ledger_commands() -> None:
    """Look into a ledger: commands for the owner of the data.

    \b
    Examples:
      dpsql ledger show shop.ledger
      dpsql ledger verify shop.ledger
      dpsql ledger raise shop.ledger --policy shop.policy.toml
      dpsql ledger reset-failures shop.ledger
      dpsql ledger backup shop.ledger shop-2026-11-18.ledger
      dpsql ledger recover shop.ledger --lost 0.05
    """


@ledger_commands.command(name="verify")
@click.argument("file", type=click.Path())
@click.option("--noted", metavar="HEAD", help="A head that an earlier `verify` printed: it must lie in the past.")
def verify_ledger(file: str, noted: str | None) -> None:
    """Check every row of a ledger FILE: hashes, charges, sums, and the head beside it. Prints the head.

    Note the head somewhere else: if the ledger and its .head file are both replaced by older copies, only that shows it.

    \b
    Examples:
      dpsql ledger verify shop.ledger
      dpsql ledger verify shop.ledger --noted 12:5f0c...
    """
    from dpsql.history import verify

    head = verify(file, noted)
    click.echo(head)
    click.echo(f"{file}: all rows are as they were written", err=True)


@ledger_commands.command()
@click.argument("file", type=click.Path())
@click.option("--persons", type=click.IntRange(1), default=1, help="Of how many persons together, as a group.")
@click.option("--json", "as_json", is_flag=True, help="An object with the runs and what was spent.")
def show(file: str, persons: int, as_json: bool) -> None:
    """List who asked what, when and at what charge, and draw what was spent over time.

    A run is `settled` when its answer left, and `failed` when it ended without one. A run that stayed `reserved` was charged,
    and its process ended before either.

    \b
    Examples:
      dpsql ledger show shop.ledger
      dpsql ledger show shop.ledger --json
      dpsql ledger show shop.ledger --persons 4
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    from dpsql.answer import scalar
    from dpsql.explain import percent
    from dpsql.history import recorded

    found = recorded(file)
    spent = found.spent(persons)
    if as_json:
        runs = [{**vars(run), "charge": {**vars(run.charge), "unit": 1e-18}} for run in found.runs]
        click.echo(
            json.dumps(
                {
                    "dataset": found.dataset,
                    "head": found.head,
                    "persons": persons,
                    "spent": {name: scalar(value) for name, value in vars(spent).items()},
                    "budgets": found.budgets,
                    "runs": runs,
                }
            )
        )
        return
    named, tight = any(run.analyst for run in found.runs), any(run.charge.delta for run in found.runs)
    names = ("at (UTC)", *["analyst"] * named, "state", spent.currency, *["delta"] * tight, "part")
    table = Table(*(Column(name, no_wrap=True) for name in names), Column("statement", overflow="fold"))
    table.box, table.padding = SIMPLE_HEAD, (0, 1, 0, 0)
    for run in found.runs:
        charges = [f"{run.charge.amount / 1e18:.3g}", *[f"{run.charge.delta / 1e18:.2g}"] * tight]
        part, at = percent(run.part).replace("less than", "<"), run.at[:16].replace("T", " ")
        cells = (at, *[run.analyst] * named, run.state, *charges, part, " ".join(run.statement.split()))
        table.add_row(*map(Text, cells))
    Console().print(table)
    for at, who, act, more in found.acts:
        click.echo(f"{at[:19].replace('T', ' ')} {act} by {who or 'the owner'}{', ' * bool(more)}{more}")
    click.echo(found.chart(70))  # 80 columns with the scale
    whose = f" by {persons} persons together" if persons > 1 else ""
    click.echo(f"spent{whose}: epsilon {spent.epsilon:.4g}, delta {spent.delta:.3g}")


beside = click.option(
    "--policy",
    type=click.Path(),
    help="The policy, which says who is an owner. [default: FILE with .policy.toml, if there]",
)


def declared_beside(file: str, policy: str | None) -> Policy | None:
    """The policy that goes with a ledger, if there is one."""
    from dpsql.policy.catalog import read_policy

    found = Path(policy) if policy else Path(file).with_suffix(".policy.toml")
    return read_policy(found) if policy or found.exists() else None


@ledger_commands.command(name="raise")
@click.argument("file", type=click.Path())
@click.option("--policy", type=click.Path(), required=True, help="The policy, with the larger budget.")
@click.option("--analyst", default="", help="Who raises it: an owner, if the policy names its analysts.")
def raise_(file: str, policy: str, analyst: str) -> None:
    """Record in a ledger FILE that the budget is now that of the policy. It can only become larger.

    \b
    Example:
      dpsql ledger raise shop.ledger --policy shop.policy.toml
    """
    from dpsql.policy.catalog import read_policy
    from dpsql.upkeep import raise_budget

    declared = read_policy(policy)
    raise_budget(file, declared, analyst)
    click.echo(f"{file}: epsilon {float(declared.budget.epsilon):g}, delta {float(declared.budget.delta):g}", err=True)


@ledger_commands.command(name="reset-failures")
@click.argument("file", type=click.Path())
@beside
@click.option("--analyst", default="", help="Who does it: an owner, if the policy names its analysts.")
def reset_failures(file: str, policy: str | None, analyst: str) -> None:
    """Let statements be asked again after too many have failed or taken too long.

    Each failure tells an analyst something that no noise covers: whether the data made it fail. Look at the failed statements
    first: `dpsql ledger show FILE` marks them.

    \b
    Example:
      dpsql ledger reset-failures shop.ledger
    """
    from dpsql.upkeep import reset_failures as reset

    click.echo(f"{file}: {reset(file, analyst, declared_beside(file, policy))} failures are forgiven")


@ledger_commands.command()
@click.argument("file", type=click.Path())
@click.argument("target", type=click.Path())
def backup(file: str, target: str) -> None:
    """Copy a ledger FILE and its head to TARGET, whole, while it is in use. Prints the head.

    After a loss: copy TARGET and TARGET.head back to the place of the ledger, and say what may have been charged since the
    backup with `dpsql ledger recover FILE --lost PART`. Without that, these charges would be forgotten.

    \b
    Example:
      dpsql ledger backup shop.ledger shop-2026-11-18.ledger
    """
    from dpsql.upkeep import backup as copy

    click.echo(copy(file, target))
    click.echo(f"{target}: copied, with {Path(target).name}.head", err=True)


class Part(click.ParamType[Fraction]):
    name = "part"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> Fraction:
        try:
            found = Fraction(value)
        except (ValueError, ZeroDivisionError):
            found = Fraction(-1)
        if not 0 <= found <= 1:
            self.fail(f"{value!r} is not a part of the budget: write a number from 0 to 1", param, ctx)
        return found


@ledger_commands.command()
@click.argument("file", type=click.Path())
@click.option(
    "--lost", type=Part(), help="The part of the budget that may have been charged since. [default: all that is left]"
)
@click.option("--noted", metavar="HEAD", help="A head that an earlier `verify` printed: it must lie in the past.")
@beside
@click.option("--analyst", default="", help="Who does it: an owner, if the policy names its analysts.")
def recover(file: str, lost: Fraction | None, noted: str | None, policy: str | None, analyst: str) -> None:
    """Take a ledger FILE into use again whose head file is lost, or that was restored from a backup.

    Every row is checked first. Charges that came after the last row are gone, so the part of the budget that they may have
    taken is charged again: all that is left, unless you know better. If only the head file is lost, and FILE is the newest
    copy, say --lost 0. What you say is recorded in the ledger.

    \b
    Examples:
      dpsql ledger recover shop.ledger --lost 0
      dpsql ledger recover shop.ledger --lost 0.05 --noted 12:5f0c...
    """
    from dpsql.upkeep import recover as repair

    row = repair(file, analyst, lost, noted, declared_beside(file, policy))
    click.echo(f"{row.number}:{row.hash}")
    click.echo(f"{file}: in use again; {row.amount / row.total:.2%} of the budget is charged as lost", err=True)


@cli.group(name="policy")
def policy_commands() -> None:
    """Work on a policy: commands for the owner of the data.

    \b
    Examples:
      dpsql policy suggest shop.duckdb
      dpsql policy check shop.policy.toml
      dpsql policy verify shop.duckdb
    """


@policy_commands.command()
@click.argument("file", type=click.Path())
def check(file: str) -> None:
    """Find everything that is wrong with a policy FILE, as far as it can be found without the data.

    All problems are listed, and the exit code is then 3. A budget that promises little is a warning.

    \b
    Example:
      dpsql policy check shop.policy.toml
    """
    from dpsql.policy.catalog import read_policy
    from dpsql.problems import problems, warnings

    if wrong := problems(file):
        for problem in wrong:
            click.echo(f"refused: {in_words(problem)}", err=True)
        click.echo(f"{file}: {len(wrong)} problem{'s' * (len(wrong) > 1)}", err=True)
        sys.exit(EXIT[Refused])
    found = read_policy(file)
    for warning in warnings(file):
        click.echo(f"warning: {warning}", err=True)
    click.echo(
        f"{file}: {len(found.tables)} table{'s' * (len(found.tables) != 1)}, epsilon {float(found.budget.epsilon):g}, {found.budget.accounting} accounting"
    )


def described(paths: list[Path]) -> tuple[Described, ...]:
    """The tables of a DuckDB file, or of Parquet and CSV files, without a policy."""
    from dpsql.backends import DuckDB
    from dpsql.policy.catalog import Described
    from dpsql.sources import DELIMITERS, SUFFIXES, describe

    if all(path.suffix.lower() in SUFFIXES for path in paths):
        stems = [path.stem.lower() for path in paths]
        if twice := [path for number, path in enumerate(paths) if path.stem.lower() in stems[:number]]:
            hint = "Each table has its file's name: rename one of them."
            raise Refused("source_twice", f"two files would be the table {twice[0].stem!r}", hint)
        return tuple(
            Described(path.stem, describe(path.stem, path), untyped=path.suffix.lower() in DELIMITERS) for path in paths
        )
    if len(paths) > 1:
        raise click.UsageError(
            "a DuckDB file has all its tables already: give it alone, or several Parquet and CSV files"
        )
    with DuckDB(paths[0]).snapshot() as snapshot:
        return snapshot.everything()


@policy_commands.command()
@click.argument("files", type=click.Path(), nargs=-1, required=True)
def suggest(files: tuple[str, ...]) -> None:
    """Print a first policy for FILES, from their schema and their keys.

    No row is looked at. What is marked DECIDE is yours to decide; until then it is commented out, or cautious.
    FILES are one DuckDB file, or Parquet and CSV files: each is a table with the file's name.

    \b
    Examples:
      dpsql policy suggest shop.duckdb
      dpsql policy suggest visits.parquet people.csv
    """
    from dpsql.sources import files_of
    from dpsql.suggest import suggest as write

    paths = [path for file in files for path in files_of(Path(file))]
    tables = described(paths)
    click.echo(write(", ".join(path.name for path in paths), tables), nl=False)


def found_in(db: str, policy: Policy) -> Iterator[Finding]:
    """What verifying a policy on the data of DB finds, one after the other."""
    from dpsql.session import opened
    from dpsql.verify import verify

    backend, _, catalog = opened(db, policy)
    with backend.snapshot() as snapshot:
        yield from verify(catalog, snapshot.ask)


@policy_commands.command()
@database
@click.pass_context
def verify(ctx: click.Context, db: str, policy: str | None, ledger: str | None, analyst: str | None) -> None:
    """Check on the data of DB whether the policy's declarations hold.

    For the owner of the data: the answers are exact, so they are not private. Each line says `holds` or `fails`, the place in the
    policy, what was checked, and how many rows and persons it does not hold for. Ranges, values and limits are enforced whether
    they hold or not; `fails` says that answers will be biased. A key, a reference or a person that does not hold is an error:
    exit code 3. If the policy has a [dataset] version, the keys that hold are recorded in the ledger for that version. Queries
    rely on them: change the version whenever the data change.

    \b
    Example:
      dpsql policy verify shop.duckdb
    """
    from dpsql.policy.catalog import read_policy
    from dpsql.upkeep import record
    from dpsql.verify import line

    declared = read_policy(policy_of(db, policy))
    loading(db)
    click.echo("for the owner of the data: these answers are exact and not private", err=True)
    findings = []
    for finding in found_in(db, declared):
        findings.append(finding)
        click.echo(line(finding))
    click.echo(
        record(ledger or Path(db).with_suffix(".ledger"), Path(db).name, declared, findings, analyst or ""), err=True
    )
    if any(finding.grave and not finding.holds for finding in findings):
        ctx.exit(EXIT[Refused])


@cli.command()
@click.argument("db", type=click.Path(path_type=Path))
@click.option(
    "--person", multiple=True, metavar="T.C", help="Whose rows: orders.customer, or orders.customer=customer.id."
)
@click.option("--public", multiple=True, metavar="TABLE", help="A table that tells nothing about people.")
@click.option(
    "--public-anyway", multiple=True, metavar="TABLE", help="Public though a column is named like one with persons."
)
@click.option("--between", multiple=True, metavar="T.C=LOW,HIGH", help="The range of a column: orders.amount=0,500.")
@click.option("--values", multiple=True, metavar="T.C=A,B", help="The values to group by: orders.status=open,sent.")
@click.option("--type", "types", multiple=True, metavar="T.C=TYPE", help="The type of a column of a CSV file.")
@click.option("--epsilon", default="", help="What all answers together may reveal. [default: 1.0]")
@click.option("--delta", default="", help="Less than one divided by the number of persons. [default: 1e-6]")
@click.option("--query-epsilon", default="", help="Of one query that names none. [default: 0.1]")
@click.option("--max-rows", default="", help="Rows of one person beyond these count for less. [default: 8]")
@click.option("--out", type=click.Path(path_type=Path), help="The policy. [default: DB with the ending .policy.toml]")
@click.option("--force", is_flag=True, help="Replace a policy that is there.")
@click.option("--yes", is_flag=True, help="Ask nothing: take the flags, and what names and keys suggest.")
@click.pass_context
def init(ctx: click.Context, /, db: Path, out: Path | None, force: bool, yes: bool, **flags: Any) -> None:
    """Make a policy for DB in a few questions, check and verify it, and say what could be asked.

    DB is a DuckDB file, a Parquet or CSV file, or a directory of such files: each is a table with the file's name.
    Without a terminal, or with --yes, nothing is asked.

    \b
    Examples:
      dpsql init shop.duckdb
      dpsql init rides.parquet --yes --person rides.rider --between rides.price=0,100 --max-rows 20
      dpsql init shop.duckdb --yes --public region --values orders.status=open,sent
    """
    from dpsql.frontends.init import Flags, asked, decided, interactive, likely_types, run
    from dpsql.session import missing
    from dpsql.sources import files_of

    if not db.exists():
        raise missing(db)
    db = db.resolve() if db.is_dir() else db  # which has a name then
    out = out or db.with_suffix(".policy.toml")
    if out.exists() and not force:
        raise Refused("policy_exists", f"there is a policy {str(out)!r} already", "Use --force, or --out FILE.")
    tables = described(files := files_of(db))
    said = Flags(**flags)
    ask = interactive() and not yes
    if not run(db, tables, asked(said, tables, likely_types(files)) if ask else decided(said, tables), out, force, ask):
        ctx.exit(EXIT[Refused])


@cli.command()
@click.argument("db", type=click.Path(path_type=Path))
@click.option("--policy", type=click.Path(), help="The policy. [default: DB with the ending .policy.toml]")
@click.option("--ledger", type=click.Path(), help="The ledger file. [default: DB with the ending .ledger]")
@click.option("--analyst", default="", help="Who does it: an owner, if the policy names its analysts.")
def prepare(db: Path, policy: str | None, ledger: str | None, analyst: str) -> None:
    """Write a copy of DB's tables in which limits are cheap, beside it, as DB.prepared.

    For the owner of the data. Rows lie together by person, so that queries limit only the few persons who have many. The copy
    is used in the place of DB by whoever opens DB from then on, until DB or the persons and keys of the policy change. It
    has all rows of the policy's tables and the permissions of DB. Prepare again after each change; delete the copy if you do
    not want it any more. If the policy has a [dataset] version, `policy verify` is run too, and its record is kept.

    \b
    Example:
      dpsql prepare shop.duckdb
    """
    from dpsql.policy.catalog import read_policy
    from dpsql.prepare import prepare as write

    declared = read_policy(policy_of(db, policy))
    target = write(db, declared, lambda text: click.echo(text, err=True))
    if declared.version is not None:
        from dpsql.upkeep import record

        findings = list(found_in(str(db), declared))
        click.echo(record(ledger or db.with_suffix(".ledger"), db.name, declared, findings, analyst), err=True)
    click.echo(f"used in the place of {db} from now on, until that changes:", err=True)
    click.echo(target)


@cli.command()
def proof() -> None:
    """Print the proof of privacy, step by step, from the code.

    \b
    Example:
      dpsql proof | less
    """
    from dpsql.frontends.proof import lines

    for line in lines():
        click.echo(line)


cli.add_command(shell)


def main() -> None:
    cli(prog_name="dpsql")
