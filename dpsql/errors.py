"""The ways in which dpsql says no. Errors are data: every front-end renders the same four fields."""

from __future__ import annotations


class Error(Exception):
    """What every dpsql error has: a stable code, a message, a hint, and the place in the query's text."""

    def __init__(self, code: str, message: str, hint: str = "", position: int | None = None) -> None:
        super().__init__(code, message, hint, position)
        self.code, self.message, self.hint, self.position = code, message, hint, position
        self.line: int | None = None
        self.column: int | None = None

    def locate(self, text: str) -> None:
        """Say in which line and column of the text the place is."""
        if self.position is not None:
            before = text[: self.position]
            self.line, self.column = before.count("\n") + 1, self.position - before.rfind("\n")

    def __str__(self) -> str:
        place = f" (at line {self.line}, column {self.column})" if self.line is not None else ""
        return f"{self.code}: {self.message}{place}" + (f"\nhint: {self.hint}" if self.hint else "")


class Refused(Error):
    """Decided before any data was read, from public facts only, so it may explain itself in full."""


class BudgetExhausted(Error):
    """The ledger has not enough left. Nothing was read and nothing was charged."""


class Failed(Error):
    """Something went wrong after data was touched. The text is constant, since the cause may depend on data."""

    def __init__(self) -> None:
        super().__init__(
            "failed",
            "the query failed while it ran; its charge stands",
            "Ask the owner of the data: the reason may depend on the data, so it is not shown.",
        )


class Unfinished(Failed):
    """What was to be computed from releases failed. They are charged and public, so the reason may be told."""

    def __init__(self, what: str) -> None:
        Error.__init__(
            self,
            "unfinished",
            f"the releases are charged, but what is computed from them failed: {what}",
            "Correct that part; `rehearse` tries it for free.",
        )


class Interrupted(KeyboardInterrupt):
    """Ctrl-C while data was being read. A KeyboardInterrupt, so that it ends what Ctrl-C ends; its text is constant."""

    def __init__(self) -> None:
        super().__init__("the query was interrupted; its charge stands")
