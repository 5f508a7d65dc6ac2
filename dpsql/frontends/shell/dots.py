"""The dot commands: DuckDB's, and those about budget, price and noise."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction
from pathlib import Path
from textwrap import fill
from typing import TextIO

from dpsql.describe import TableFacts
from dpsql.explain import percent
from dpsql.frontends.shell.duckbox import Column, draw
from dpsql.frontends.shell.modes import WAYS
from dpsql.frontends.shell.runner import Misused, Shell
from dpsql.frontends.shell.statements import words
from dpsql.policy.catalog import quoted

MODES = ("duckbox", *WAYS)
SWITCHES = {
    "bail": ("bail", "Stop after an error."),
    "echo": ("echo", "Print statements before they run."),
    "errors": ("errors", "Put NAME_low and NAME_high beside noisy columns, in all modes but duckbox."),
    "headers": ("headers", "Turn headers on or off."),
    "highlight": ("highlight", "Turn colours on or off."),
    "timer": ("timer", "Print how long each statement took."),
}


@dataclass(frozen=True)
class Dot:
    """A dot command: what follows its name, what it does, and how."""

    arguments: str
    help: str
    run: Callable[[Shell, str], None]


COMMANDS: dict[str, Dot] = {}
SHORT = {"quit": "exit"}


def dot(name: str, arguments: str, help: str) -> Callable[[Callable[[Shell, str], None]], Callable[[Shell, str], None]]:
    def register(run: Callable[[Shell, str], None]) -> Callable[[Shell, str], None]:
        COMMANDS[name] = Dot(arguments, help, run)
        return run

    return register


def run(shell: Shell, line: str) -> None:
    """Run a line that begins with a dot."""
    name, _, rest = line.strip().removeprefix(".").partition(" ")
    name = SHORT.get(name.lower().rstrip(";"), name.lower().rstrip(";"))
    if name not in COMMANDS:
        begun = [one for one in (*COMMANDS, *SHORT) if name and one.startswith(name)]
        if len(begun) != 1:
            near = begun or get_close_matches(name, COMMANDS, 3)
            hint = f"Did you mean {' or '.join(f'.{one}' for one in near)}?" if near else "Type `.help`."
            raise Misused(f"there is no command .{name}", hint)
        name = SHORT.get(begun[0], begun[0])
    COMMANDS[name].run(shell, rest.strip())


def only(rest: str, most: int, name: str) -> list[str]:
    """The arguments, of which there may be so many."""
    found = words(rest.removesuffix(";"))
    if len(found) > most:
        raise Misused(f".{name} takes {most or 'no'} argument{'s' * (most != 1)}", f"Type `{usage(name)}`.")
    return found


def usage(name: str) -> str:
    return f".{name} {COMMANDS[name].arguments}".strip()


def told(shell: Shell, text: str) -> None:
    """Print what was asked for."""
    shell.data([text + "\n"])


# --- what DuckDB's shell has ------------------------------------------------------------------------------------------


@dot("help", "?COMMAND?", "Show this list, or one command.")
def help_(shell: Shell, rest: str) -> None:
    asked = [name.removeprefix(".") for name in only(rest, 1, "help")]
    found = [name for name in sorted(COMMANDS) if not asked or asked[0] in name]
    if not found:
        raise Misused(f"there is no command .{asked[0]}", "Type `.help`.")
    lines = (f"{usage(name):<20} {COMMANDS[name].help}" for name in found)
    told(shell, "\n".join(fill(line, max(40, shell.width), subsequent_indent=" " * 21) for line in lines))


def switch(name: str) -> None:
    """A command that turns a setting on or off."""
    setting, what = SWITCHES[name]

    @dot(name, "on|off", what)
    def turn(shell: Shell, rest: str) -> None:
        setattr(shell.settings, setting, on(rest, name))


def on(rest: str, name: str) -> bool:
    wanted = {"on": True, "1": True, "yes": True, "true": True, "off": False, "0": False, "no": False, "false": False}
    if (found := rest.removesuffix(";").strip().lower()) not in wanted:
        raise Misused(f"{found or 'nothing'} is neither on nor off", f"Type `.{name} on` or `.{name} off`.")
    return wanted[found]


for _name in SWITCHES:
    switch(_name)


def like(pattern: str, name: str) -> bool:
    """Whether a name fits a pattern of LIKE."""
    parts = {"%": ".*", "_": "."}
    return bool(re.fullmatch("".join(parts.get(c) or re.escape(c) for c in pattern), name, re.IGNORECASE))


def matching(shell: Shell, rest: str, name: str) -> list[TableFacts]:
    asked = only(rest, 1, name)
    tables = sorted(shell.session.tables, key=lambda table: table.name)
    found = [table for table in tables if not asked or like(asked[0], table.name)]
    if asked and not found:
        raise Misused(f"no table is like {asked[0]!r}", "Type `.tables`.")
    return found


@dot("tables", "?PATTERN?", "List the tables, and whose their rows are.")
def tables(shell: Shell, rest: str) -> None:
    found = matching(shell, rest, "tables")
    wide = max((len(table.name) for table in found), default=0)
    told(
        shell,
        "\n".join(f"{table.name:<{wide}}  {str(table).splitlines()[0][len(table.name) + 1 :]}" for table in found),
    )


@dot("schema", "?PATTERN?", "Show the tables with types, and what the policy declares.")
def schema(shell: Shell, rest: str) -> None:
    told(shell, "\n".join(created(table) for table in matching(shell, rest, "schema")))


def created(table: TableFacts) -> str:
    """A table as CREATE TABLE, with what is declared as comments."""
    head = f"-- {str(table).splitlines()[0]}"
    if not table.columns:
        return f"{head}\n-- the columns of this view are not known here"
    columns = [f"{name(c.name)} {c.type}{'' if c.nullable else ' NOT NULL'}" for c in table.columns]
    columns = [f"    {column}{',' * (i < len(columns))}" for i, column in enumerate(columns, 1)]
    wide = max(map(len, columns))
    lines = (
        f"{column:<{wide}}  -- {c}" if str(c) else column for column, c in zip(columns, table.columns, strict=True)
    )
    kind = "VIEW" if table.rows_of == "a view" else "TABLE"
    return "\n".join([head, f"CREATE {kind} {name(table.name)} (", *lines, ");"])


def name(word: str) -> str:
    return word if re.fullmatch(r"[A-Za-z_]\w*", word) else quoted(word)


@dot("mode", "?MODE?", f"Set the output mode: {', '.join(MODES[:5])}, ...")
def mode(shell: Shell, rest: str) -> None:
    asked = only(rest, 1, "mode")
    if not asked:
        return told(shell, f"current output mode: {shell.settings.mode}")
    if asked[0].lower() not in MODES:
        raise Misused(f"there is no mode {asked[0]!r}", f"Use one of: {', '.join(MODES)}.")
    shell.settings.mode, shell.settings.separator = asked[0].lower(), None


@dot("nullvalue", "TEXT", "Print TEXT in place of NULL.")
def nullvalue(shell: Shell, rest: str) -> None:
    shell.settings.nullvalue = "".join(only(rest, 1, "nullvalue"))


@dot("separator", "TEXT", "Print TEXT between columns, in the modes csv and list.")
def separator(shell: Shell, rest: str) -> None:
    shell.settings.separator = "".join(only(rest, 1, "separator"))


def whole(shell: Shell, rest: str, name: str) -> int | None:
    asked = only(rest, 1, name)
    if not asked:
        told(shell, f"current {name}: {getattr(shell.settings, name)}")
        return None
    if not asked[0].isdecimal():
        raise Misused(f"{asked[0]!r} is not a number", f"Type `.{name} 80`.")
    return int(asked[0])


@dot("maxrows", "?COUNT?", "Show so many rows in the mode duckbox; of more, the first and the last.")
def maxrows(shell: Shell, rest: str) -> None:
    if (count := whole(shell, rest, "maxrows")) is not None:
        shell.settings.maxrows = count


@dot("maxwidth", "?COUNT?", "Draw a duckbox so wide at the most; 0 is the width of the terminal.")
def maxwidth(shell: Shell, rest: str) -> None:
    if (count := whole(shell, rest, "maxwidth")) is not None:
        shell.settings.maxwidth = count


@dot("columns", "", "Draw a duckbox with a column for each row of the answer.")
def columns(shell: Shell, rest: str) -> None:
    only(rest, 0, "columns")
    shell.settings.columnwise = True


@dot("rows", "", "Draw a duckbox with a row for each row of the answer, as at the start.")
def rows(shell: Shell, rest: str) -> None:
    only(rest, 0, "rows")
    shell.settings.columnwise = False


def file(rest: str, name: str) -> TextIO | None:
    asked = only(rest, 1, name)
    if not asked:
        return None
    if asked[0].startswith("|"):
        raise Misused("output goes to files, not to programs", f"Type `.{name} FILE`.")
    try:
        return Path(asked[0]).expanduser().open("w", encoding="utf-8", newline="")
    except OSError as error:
        raise Misused(f"cannot write {asked[0]!r}: {error.strerror}", "Check the path.") from None


@dot("output", "?FILE?", "Write answers to FILE, or to the terminal again.")
def output(shell: Shell, rest: str) -> None:
    opened = file(rest, "output")
    if shell.target is not None:
        shell.target.close()
    shell.target = opened


@dot("once", "FILE", "Write the next answer to FILE.")
def once(shell: Shell, rest: str) -> None:
    opened = file(rest, "once")
    if opened is None:
        raise Misused(".once needs a file", "Type `.once FILE`.")
    if shell.once is not None:
        shell.once.close()
    shell.once = opened


@dot("read", "FILE", "Run FILE.")
def read(shell: Shell, rest: str) -> None:
    asked = only(rest, 1, "read")
    if not asked:
        raise Misused(".read needs a file", "Type `.read FILE`.")
    shell.file(Path(asked[0]).expanduser())


@dot("prompt", "MAIN ?MORE?", "Replace the prompts.")
def prompt(shell: Shell, rest: str) -> None:
    asked = only(rest, 2, "prompt")
    shell.settings.main = asked[0] if asked else "dpsql> "
    shell.settings.more = asked[1] if len(asked) > 1 else "  ...> "


@dot("show", "", "Show all settings.")
def show(shell: Shell, rest: str) -> None:
    only(rest, 0, "show")
    settings = {"separator": shell.settings.between, "filename": shell.name, "output": "stdout"}
    if shell.target is not None:
        settings["output"] = shell.target.name
    for key, value in vars(shell.settings).items():
        settings.setdefault(key, setting(value) if key not in ("main", "more", "nullvalue") else f'"{value}"')
    told(shell, "\n".join(f"{key:>10}: {value}" for key, value in sorted(settings.items())))


def setting(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "the policy's" if value is None else str(value)


@dot("exit", "?CODE?", "Leave. So do .quit and Ctrl-D.")
def exit_(shell: Shell, rest: str) -> None:
    asked = only(rest, 1, "exit")
    if asked and not asked[0].isdecimal():
        raise Misused(f"{asked[0]!r} is not an exit code", "Type `.exit 0`.")
    shell.code, shell.done = int(asked[0]) if asked else shell.code, True


# --- what is ours -----------------------------------------------------------------------------------------------------


def asked_sql(shell: Shell, rest: str, name: str) -> str:
    """The statement that is asked about: by default the last one."""
    sql = rest.removesuffix(";").strip() or shell.said
    if not sql:
        raise Misused("there is no last statement", f"Type `.{name} SELECT ...`.")
    return sql


@dot("budget", "", "Show what is spent and what is left. Free.")
def budget(shell: Shell, rest: str) -> None:
    from dpsql.frontends.shell.toolbar import bar

    only(rest, 0, "budget")
    found = shell.session.budget
    told(shell, f"{bar(found)}\n{found}")


@dot("cost", "?SQL?", "Show the price of a statement, by default of the last one. Free.")
def cost(shell: Shell, rest: str) -> None:
    from dpsql.frontends.shell.toolbar import price

    told(shell, price(shell, asked_sql(shell, rest, "cost")).text)


@dot("explain", "?SQL?", "Show what a statement would do, its noise and its price. Free.")
def explain(shell: Shell, rest: str) -> None:
    found = shell.session.explain(
        asked_sql(shell, rest, "explain"), epsilon=shell.settings.epsilon, delta=shell.settings.delta
    )
    told(shell, str(found))


@dot("epsilon", "?NUMBER?", "Set the epsilon of the statements that follow; `default` is the policy's.")
def epsilon(shell: Shell, rest: str) -> None:
    asked, policy = only(rest, 1, "epsilon"), shell.session.policy.defaults.epsilon
    if not asked:
        own = f"{float(policy):g} (the policy's)" if policy else "not set"
        return told(shell, f"epsilon: {shell.settings.epsilon:g}" if shell.settings.epsilon else f"epsilon: {own}")
    if asked[0].lower() == "default":
        shell.settings.epsilon = None
        return None
    try:
        found = float(asked[0])
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise Misused(f"{asked[0]!r} is not a number greater than zero", "Type `.epsilon 0.2`.")
    shell.settings.epsilon = found


@dot("history", "?COUNT?", "List what was asked before, when, and at what part of the budget.")
def history(shell: Shell, rest: str) -> None:
    asked = only(rest, 1, "history")
    if asked and not asked[0].isdecimal():
        raise Misused(f"{asked[0]!r} is not a number", "Type `.history 20`.")
    runs = shell.session.history[-int(asked[0]) if asked and int(asked[0]) else 0 :]
    cells = [(r.at[:19].replace("T", " "), r.state, percent(r.part), " ".join(r.statement.split())) for r in runs]
    names = ("at (UTC)", "state", "part", "statement")
    made = [Column(title, "", [row[i] for row in cells], right=i == 2, whole=i < 3) for i, title in enumerate(names)]
    told(shell, "\n".join(draw(made, len(runs), len(runs), shell.width)))


@dot("policy", "?TABLE?", "Show the budget, the limits, and what is declared of the tables.")
def policy(shell: Shell, rest: str) -> None:
    asked = only(rest, 1, "policy")
    found, tables = shell.session.policy, shell.session.tables
    if asked:
        return told(shell, str(tables.named(asked[0])))
    b, d = found.budget, found.defaults
    told(
        shell,
        f"budget    epsilon {float(b.epsilon):g}, delta {float(b.delta):g}, accounting {b.accounting}, neighbours {b.neighbours}\n"
        f"statement epsilon {shown(d.epsilon)}, at the most {shown(found.max_epsilon(shell.session.analyst))}; "
        f"{float(d.max_seconds):g} seconds\n"
        f"a person  {d.max_rows_contributed or 'not limited by a default:'} rows, {d.max_groups_contributed or 'all'} groups "
        "of an answer; a table may say otherwise\n\n" + repr(tables),
    )


def shown(number: Fraction | None) -> str:
    return "any" if number is None else f"{float(number):g}"


@dot("notes", "?on|off?", "Print the notes of the last answer; or turn those under answers on or off.")
def notes(shell: Shell, rest: str) -> None:
    if rest:
        shell.settings.notes = on(rest, "notes")
    elif shell.last is None:
        raise Misused("there is no last answer", "Ask something first.")
    else:
        told(shell, "\n".join(shell.remarks(shell.last)) or "it has no notes")


@dot("plot", "?COLUMN?", "Draw the last answer, with error bars.")
def plot(shell: Shell, rest: str) -> None:
    from dpsql.frontends.shell.plot import plot as lines

    asked = only(rest, 1, "plot")
    if shell.last is None:
        raise Misused("there is no last answer", "Ask something first.")
    told(shell, "\n".join(lines(shell.last, asked[0] if asked else None, shell.settings.maxrows, shell.width)))
