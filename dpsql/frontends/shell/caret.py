"""An error as the shell shows it: the line of SQL with a caret, the message, the hint."""

from __future__ import annotations

import sys
from textwrap import fill

from rich.cells import cell_len

from dpsql.errors import BudgetExhausted, Error, Failed
from dpsql.frontends.shell.duckbox import plain

# What to type in the shell, by the code of an error, where the hint of the command line would not do.
TYPED = {
    "delta_invalid": "Leave --delta out, or start the shell with --delta 1e-8.",
    "epsilon_invalid": "Type `.epsilon 0.5`.",
    "epsilon_missing": "Type `.epsilon 0.5`.",
    "epsilon_too_large": "Ask for less: type `.epsilon 0.1`.",
    "limit_invalid": "Ask the owner to change the policy.",
    "schema_changed": "Leave with Ctrl-D and start again.",
    "session_closed": "Start the shell again.",
}
AROUND = 30  # characters before the caret, where a line is too long


def kind(error: Error) -> tuple[int, str]:
    """The exit code and the word for an error, as `dpsql sql` has them."""
    if isinstance(error, BudgetExhausted):
        return 4, "budget exhausted"
    return (5, "failed") if isinstance(error, Failed) else (3, "refused")


def told(error: Error, sql: str, limit: int = 80) -> str:
    """What is printed for an error of this statement."""
    from dpsql.frontends import cli

    error.locate(sql)
    message = f"{kind(error)[1]}: {error.code}: {error.message}"
    hint = TYPED.get(error.code, cli.TYPED.get(error.code, "{hint}")).replace("{hint}", error.hint)
    lines = [message, *[f"hint: {hint}"] * bool(hint)]
    if sys.stderr.isatty():  # what reads a pipe may look for whole lines
        lines = [fill(line, limit, subsequent_indent="  ", break_on_hyphens=False) for line in lines]
    return "\n".join([*pointed(sql, error, limit), *lines])


def pointed(sql: str, error: Error, limit: int) -> list[str]:
    """The line of the place and a caret under it, if the place is known."""
    lines = sql.splitlines()
    if error.line is None or error.column is None or not 1 <= error.line <= len(lines):
        return []
    start = f"LINE {error.line}: "
    text, at = lines[error.line - 1].replace("\t", " "), error.column - 1
    room = limit - len(start)
    if cell_len(text) > room:
        first = max(0, min(at - AROUND, len(text) - room + 3))
        text, at = "..." * bool(first) + text[first:], at - first + 3 * bool(first)
        text = text if cell_len(text) <= room else text[: room - 3] + "..."
    return [start + plain(text), " " * (len(start) + cell_len(plain(text[:at]))) + "^"]
