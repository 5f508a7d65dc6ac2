"""The command `dpsql shell`: DuckDB's flags, with one dash or two."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

MODES = ("csv", "json", "jsonlines", "markdown", "box", "table", "line", "list", "html")


Command = Callable[..., Any]


def both(name: str, help: str, *into: str, **more: Any) -> Callable[[Command], Command]:
    """An option that is written `-name`, as DuckDB's are, or `--name`."""
    return click.option(f"-{name}", f"--{name}", *into, help=help, **more)


def modes(command: Command) -> Command:
    for mode in reversed(MODES):
        command = both(mode, f"Print answers as {mode}.", "mode", flag_value=mode, default="duckbox")(command)
    return command


@click.command(name="shell")
@click.argument("db", type=click.Path())
@click.option("--policy", type=click.Path(), help="The policy. [default: DB with the ending .policy.toml]")
@click.option("--ledger", type=click.Path(), help="The ledger file. [default: DB with the ending .ledger]")
@click.option("--analyst", help="Who asks, if the policy names its analysts.")
@click.option("--epsilon", type=float, help="The epsilon of each statement. [default: the policy's]")
@click.option("--delta", type=float, help="The delta of each statement. [default: the policy's]")
@click.option("-c", "commands", multiple=True, metavar="COMMAND", help="Run COMMAND and exit. May be repeated.")
@click.option("-f", "files", multiple=True, type=click.Path(), metavar="FILE", help="Run FILE and exit.")
@both("init", "Read FILE in place of ~/.dpsqlrc.", type=click.Path(), metavar="FILE")
@modes
@both("header", "Turn headers on.", "headers", flag_value=True, default=True)
@both("noheader", "Turn headers off.", "headers", flag_value=False)
@both("separator", "Between columns, in the modes csv and list.", metavar="TEXT")
@both("nullvalue", "In place of NULL.", metavar="TEXT")
@both("bail", "Stop after an error.", is_flag=True)
@both("batch", "Read standard input as a script, even from a terminal.", is_flag=True)
@both("echo", "Print statements before they run.", is_flag=True)
@click.option("--errors", is_flag=True, help="Put NAME_low and NAME_high beside noisy columns (95 %).")
@click.pass_context
def shell(ctx: click.Context, /, db: str, **given: Any) -> None:
    """Ask questions on the database DB in a shell that works like DuckDB's.

    At a terminal, `dpsql shell DB` has completion, history, and a line with the budget and the price of what you type.
    Otherwise it runs standard input as a script. A statement ends with a semicolon. `.help` lists the commands.

    \b
    Examples:
      dpsql shell shop.duckdb -c "SELECT status, count(*) FROM orders GROUP BY status"
      dpsql shell shop.duckdb -c ".cost SELECT avg(amount) FROM orders"
      dpsql shell shop.duckdb -csv --errors -c "SELECT status, count(*) AS n FROM orders GROUP BY status"
    """
    ctx.exit(opened(db, given))


def opened(db: str, given: dict[str, Any]) -> int:
    """Run the shell; the exit code."""
    from dpsql.errors import Refused
    from dpsql.frontends import cli
    from dpsql.frontends.shell.runner import Shell
    from dpsql.frontends.shell.settings import Settings, rc

    settings = Settings(
        mode=given["mode"],
        headers=given["headers"],
        separator=given["separator"],
        bail=given["bail"],
        echo=given["echo"],
        errors=given["errors"],
        epsilon=given["epsilon"],
        delta=given["delta"],
    )
    if given["nullvalue"] is not None:
        settings.nullvalue = given["nullvalue"]
    scripted = bool(given["commands"] or given["files"])
    interactive = not scripted and not given["batch"] and sys.stdin.isatty()
    if interactive:
        from dpsql.frontends.shell.missing import needed

        needed()
    if given["policy"] is None and Path(db).exists() and not Path(db).with_suffix(".policy.toml").exists():
        hint = f"Type `dpsql init {db}` to write one, or name it: `dpsql shell {db} --policy FILE`."
        raise Refused("policy_missing", f"{db} has no policy, which says who the persons are", hint)
    session = cli.session(db, given["policy"], given["ledger"], given["analyst"])
    with session:
        made = Shell(session, settings, name=Path(db).stem)
        if (init := Path(given["init"]) if given["init"] else rc()) is not None:
            made.file(init)
            made.code = 0 if not settings.bail else made.code
        if made.done:
            return made.code
        if scripted:
            return made.scripts(given["commands"], given["files"])
        if interactive:
            from dpsql.frontends.shell.prompt import Prompt

            return Prompt(made).run()
        try:
            return made.script(sys.stdin)
        except KeyboardInterrupt as error:  # while it waits for a line
            made.interrupted(error)
            return made.code
