"""Magics for notebooks: `%load_ext dpsql`, `%dpsql shop.duckdb` to connect, and `%%dpsql` before a query."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from IPython.core.magic import Magics, line_cell_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring

from dpsql.errors import Error, Refused
from dpsql.session import Session, connect

FORMS = ("answer", "df", "pl", "arrow", "plot", "explain")


@magics_class
class DpsqlMagics(Magics):
    """One session for all cells, unless `--using` names another."""

    session: Session | None = None

    @magic_arguments()
    @argument(
        "database", nargs="?", help="Connect to this file. Without it and without a query: what is left of the budget."
    )
    @argument("--policy", help="The policy. Default: the database with the ending .policy.toml.")
    @argument("--ledger", help="The ledger. Default: the database with the ending .ledger.")
    @argument("--analyst", help="Who asks, if the policy names its analysts.")
    @argument("--using", help="A variable with a session of dpsql.connect.")
    @argument(
        "--to",
        choices=FORMS,
        default="answer",
        help="What the query gives: df, pl, arrow, plot, or what it would cost.",
    )
    @argument("--explain", action="store_true", help="What the query would cost: the same as --to explain.")
    @argument("--out", help="A variable that gets the result.")
    @argument("--errors", action="store_true", help="With df, pl, arrow: the ends of error bars as columns too.")
    @argument("--epsilon", type=float, help="The query's epsilon. Default: the policy's.")
    @argument("--delta", type=float, help="The query's delta. Default: the policy's.")
    @line_cell_magic
    def dpsql(self, line: str, cell: str | None = None) -> Any:
        """Connect (`%dpsql shop.duckdb`), or ask the query of the cell (`%%dpsql --to df --out sales`)."""
        options = parse_argstring(self.dpsql, line)
        try:
            if options.database is not None:
                self.session = opened(options)
            session = self._session(options.using)
            if cell is None:
                return session.budget if options.database is None else session.tables
            result = asked(session, cell, options)
        except Error as error:
            print_error(error)
            return None
        if options.out:
            assert self.shell is not None
            self.shell.user_ns[options.out] = result
            return None
        return result

    def _session(self, using: str | None) -> Session:
        assert self.shell is not None
        found = self.shell.user_ns.get(using) if using else self.session
        if not isinstance(found, Session):
            what = f"{using!r} is not a session" if using else "no database is connected"
            raise Refused(
                "not_connected", what, "Type %dpsql shop.duckdb first, or --using NAME of a dpsql.connect(…)."
            )
        return found


def opened(options: Any) -> Session:
    """The session that a line asks for."""
    policy = options.policy or Path(options.database).with_suffix(".policy.toml")
    return connect(options.database, policy=policy, ledger=options.ledger, analyst=options.analyst)


def asked(session: Session, query: str, options: Any) -> Any:
    """The answer to a cell, in the form that its line asks for."""
    parameters = {"epsilon": options.epsilon, "delta": options.delta}
    if options.explain or options.to == "explain":
        print(session.explain(query, **parameters))  # noqa: T201 - what a cell prints is its output
        return None
    answer = session.sql(query, **parameters)
    match options.to:
        case "df" | "pl" | "arrow":
            return getattr(answer, options.to)(errors=options.errors)
        case "plot":
            return answer.plot()
    return answer


def print_error(error: Error) -> None:
    """An error without a traceback: its text says everything."""
    import sys

    print(f"{type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201


def load(ipython: Any) -> None:
    """Give the magics to an IPython shell."""
    ipython.register_magics(DpsqlMagics)
