"""The command line. Data goes to standard output, everything else to standard error."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar

import click

import dpsql
from dpsql.errors import BudgetExhausted, Error, Failed, Interrupted, Refused

EXIT: dict[type[Error], int] = {Refused: 3, BudgetExhausted: 4, Failed: 5}
COLUMNS = ("at (UTC)", "analyst", "state", "charge", "part", "statement")
F = TypeVar("F", bound=Callable[..., Any])


class Commands(click.Group):
    """Every error of dpsql becomes its message, its hint and its exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except Error as error:
            kind = next(kind for kind in EXIT if isinstance(error, kind))
            word = {Refused: "refused", BudgetExhausted: "budget exhausted", Failed: "failed"}[kind]
            click.echo(f"{word}: {error}", err=True)
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

    if Path(db).suffix.lower() in SUFFIXES and sys.stderr.isatty():
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
    if not Path(db).name:
        raise Refused("database_missing", f"there is no database {db!r}", "Pass the path of a file.")
    found = policy if policy is not None else Path(db).with_suffix(".policy.toml")
    loading(db)
    return dpsql.connect(db, policy=found, ledger=ledger, analyst=analyst)


def scalar(cell: Any) -> Any:
    """A cell as JSON knows it: decimals are numbers, an unbounded error bar is null, dates are text."""
    if isinstance(cell, Decimal):
        cell = float(cell)
    if isinstance(cell, float) and not math.isfinite(cell):
        return None
    return cell if cell is None or isinstance(cell, bool | int | float | str) else str(cell)


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
    help="Where the sample shop is kept.",
)
def demo(directory: Path) -> None:
    """Make a sample shop and answer questions about it.

    \b
    Example:
      dpsql demo --dir /tmp/shop
    """
    from rich.console import Console

    from dpsql.frontends.demo import demo as run

    run(directory, Console())


@cli.command()
@database
@click.argument("query")
@privacy
@click.option(
    "--rehearse", is_flag=True, help="On synthetic rows made from the policy: nothing is charged, no real row is used."
)
@click.option("--id", "query_id", help="Names the query: asked again under this name, it is not charged again.")
@click.option("--json", "form", flag_value="json", help="An object with columns, rows, errors and loss.")
@click.option("--csv", "form", flag_value="csv", help="Comma-separated values with a header, without error bars.")
@click.option("--markdown", "form", flag_value="markdown", help="A Markdown table with error bars.")
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
    query_id: str | None,
    form: str | None,
) -> None:
    """Answer a QUERY on the database DB, and charge for it.

    DB is a DuckDB file, or a Parquet or CSV file: then it has one table, with the file's name.

    \b
    Examples:
      dpsql sql shop.duckdb "SELECT status, count(*) FROM orders GROUP BY status"
      dpsql sql shop.duckdb "SELECT avg(amount) FROM orders" --epsilon 0.1 --json
      dpsql sql shop.duckdb "SELECT avg(amount) FROM orders" --rehearse
    """
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
        )
    match form:
        case "json":
            loss = vars(answer.loss)
            rows, errors = ([[scalar(c) for c in row] for row in table] for table in (answer, answer.errors))
            click.echo(
                json.dumps(
                    {"columns": answer.columns, "rows": rows, "errors": errors, "loss": loss, "notes": answer.notes}
                )
            )
        case "csv":
            import csv

            writer = csv.writer(sys.stdout)
            writer.writerow(answer.columns)
            writer.writerows(answer)
        case "markdown":
            escaped = [[c.replace("|", "\\|") for c in row] for row in (list(answer.columns), *answer.cells())]
            for number, row in enumerate(escaped):
                click.echo(f"| {' | '.join(row)} |")
                if number == 0:
                    click.echo("|" + " --- |" * len(row))
        case _:
            answer.show()
    if form is None:
        for note in answer.notes:
            click.echo(f"note: {note}", err=True)


@cli.command()
@database
@click.argument("query")
@privacy
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
) -> None:
    """Say what a QUERY would cost and how exact it would be. Free.

    \b
    Example:
      dpsql explain shop.duckdb "SELECT avg(amount) FROM orders" --epsilon 0.1
    """
    explained = session(db, policy, ledger, analyst).explain(
        query,
        epsilon=epsilon,
        delta=delta,
        weights=weights,
        max_rows_contributed=max_rows,
        max_groups_contributed=max_groups,
    )
    click.echo(str(explained))


@cli.command()
@database
def budget(db: str, policy: str | None, ledger: str | None, analyst: str | None) -> None:
    """Show what has been spent and what is left.

    \b
    Example:
      dpsql budget shop.duckdb
    """
    click.echo(str(session(db, policy, ledger, analyst).budget))


@cli.group(name="ledger")
def ledger_commands() -> None:
    """Look into a ledger: commands for the owner of the data.

    \b
    Examples:
      dpsql ledger show shop.ledger
      dpsql ledger verify shop.ledger
      dpsql ledger raise shop.ledger --policy shop.policy.toml
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

    A run is `settled` when its answer left. A run that stayed `reserved` was charged, and no answer left.

    \b
    Examples:
      dpsql ledger show shop.ledger
      dpsql ledger show shop.ledger --json
      dpsql ledger show shop.ledger --persons 4
    """
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

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
    table = Table(*(Column(name, no_wrap=name != "statement", overflow="fold") for name in COLUMNS))
    for run in found.runs:
        charge = f"{run.charge.currency} {run.charge.amount / 1e18:.4g}" + (
            f", delta {run.charge.delta / 1e18:.2g}" if run.charge.delta else ""
        )
        table.add_row(
            *map(
                Text, (run.at[:19].replace("T", " "), run.analyst, run.state, charge, f"{run.part:.2%}", run.statement)
            )
        )
    Console().print(table)
    click.echo(found.chart())
    whose = f" by {persons} persons together" if persons > 1 else ""
    click.echo(f"spent{whose}: epsilon {spent.epsilon:.4g}, delta {spent.delta:.3g}")


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
    from dpsql.catalog import read_policy
    from dpsql.ledger import raise_budget

    declared = read_policy(policy)
    raise_budget(file, declared, analyst)
    click.echo(f"{file}: epsilon {float(declared.budget.epsilon):g}, delta {float(declared.budget.delta):g}", err=True)


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
    """Check that a policy FILE is well formed.

    \b
    Example:
      dpsql policy check shop.policy.toml
    """
    from dpsql.catalog import read_policy

    found = read_policy(file)
    click.echo(
        f"{file}: {len(found.tables)} tables, epsilon {float(found.budget.epsilon):g}, {found.budget.accounting} accounting"
    )


@policy_commands.command()
@click.argument("db", type=click.Path())
def suggest(db: str) -> None:
    """Print a first policy for DB, from its schema and its keys.

    No row is looked at. What is marked DECIDE is yours to decide; until then it is commented out, or cautious.
    DB is a DuckDB file, or a Parquet or CSV file.

    \b
    Example:
      dpsql policy suggest shop.duckdb
    """
    from dpsql.backends import DuckDB
    from dpsql.catalog import Described
    from dpsql.sources import DELIMITERS, SUFFIXES, describe
    from dpsql.suggest import suggest as write

    file = Path(db)
    if file.suffix.lower() in SUFFIXES:
        tables: tuple[Described, ...] = (
            Described(file.stem, describe(file.stem, file), untyped=file.suffix.lower() in DELIMITERS),
        )
    else:
        with DuckDB(db).snapshot() as snapshot:
            tables = snapshot.everything()
    click.echo(write(file.name, tables), nl=False)


@policy_commands.command()
@click.argument("db", type=click.Path())
@click.option("--policy", type=click.Path(), help="The policy. [default: DB with the ending .policy.toml]")
@click.option("--record", type=click.Path(path_type=Path), help="[default: DB with the ending .verified.json]")
def verify(db: str, policy: str | None, record: Path | None) -> None:
    """Check on the data of DB whether the policy's declarations hold.

    For the owner of the data: the answers are exact, so they are not private. Each line is yes or no, the place in the
    policy, and what was checked. A no is not a danger (ranges and values are enforced, rows that find nobody are left
    out), but it says that answers will be biased. If the policy has a [dataset] version, the keys and references that
    hold for it are recorded in a file, for later versions of dpsql; nothing relies on them yet.

    \b
    Example:
      dpsql policy verify shop.duckdb
    """
    from dpsql.catalog import read_policy
    from dpsql.session import opened
    from dpsql.verify import record as keep
    from dpsql.verify import verify as check

    declared = read_policy(policy if policy is not None else Path(db).with_suffix(".policy.toml"))
    loading(db)
    backend, _, catalog = opened(db, declared)
    click.echo("for the owner of the data: these answers are exact and not private", err=True)
    findings = []
    with backend.snapshot() as snapshot:
        for finding in check(catalog, snapshot.holds):
            findings.append(finding)
            click.echo(f"{'yes' if finding.holds else 'no':<4} {finding.place}: {finding.claim}")
    if declared.version is None:
        click.echo('not recorded: the policy has no [dataset] version = "..."', err=True)
    else:
        file = record or Path(db).with_suffix(".verified.json")
        keep(file, declared.dataset or Path(db).name, declared.version, catalog, findings)
        click.echo(f"recorded for version {declared.version!r} in {file}", err=True)


@cli.command()
@click.argument("db", type=click.Path(path_type=Path))
@click.option("--policy", type=click.Path(), help="The policy. [default: DB with the ending .policy.toml]")
def prepare(db: Path, policy: str | None) -> None:
    """Write a copy of DB's tables in which limits are cheap, beside it, as DB.prepared.

    For the owner of the data. Rows lie together by person, so that queries limit only the few persons who have many. The copy
    is used in the place of DB by whoever opens DB from then on, until DB or the persons and keys of the policy change. It
    has all rows of the policy's tables and the permissions of DB. Prepare again after each change; delete the copy if you do
    not want it any more.

    \b
    Example:
      dpsql prepare shop.duckdb
    """
    from dpsql.catalog import read_policy
    from dpsql.prepare import prepare as write

    declared = read_policy(policy if policy is not None else db.with_suffix(".policy.toml"))
    target = write(db, declared, lambda text: click.echo(text, err=True))
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


def main() -> None:
    cli(prog_name="dpsql")
