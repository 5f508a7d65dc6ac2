"""The ways in which dpsql says no. Errors are data: every front-end renders the same four fields."""

from __future__ import annotations

import re
from difflib import get_close_matches


class Error(Exception):
    """What every dpsql error has: a stable code, a message, a hint, and the place in the query's text."""

    def __init__(self, code: str, message: str, hint: str = "", position: int | None = None) -> None:
        super().__init__(code, message, hint, position)
        self.code, self.message, self.hint, self.position = code, message, hint, position
        self.line: int | None = None
        self.column: int | None = None
        self.word = ""  # that the error is about, where its place is not known

    def locate(self, text: str) -> None:
        """Say in which line and column of the text the place is."""
        if self.position is None and self.word:
            found = re.search(rf"(?<!\w){re.escape(self.word)}(?!\w)", text, re.IGNORECASE)
            self.position = found.start() if found else None
        if self.position is not None and self.line is None:
            before = text[: self.position]
            self.line, self.column = before.count("\n") + 1, self.position - before.rfind("\n")

    def __str__(self) -> str:
        place = f" (at line {self.line}, column {self.column})" if self.line is not None else ""
        return f"{self.code}: {self.message}{place}" + (f"\nhint: {self.hint}" if self.hint else "")


class Refused(Error):
    """Decided before any data was read, from public facts only, so it may explain itself in full."""


# What the engine says of SQL over releases, and what we call it: the code, the message, and the hint.
ENGINE_SAYS = (
    (r'Referenced column "(.+?)" (?:was )?not found', "column_unknown", "no table of FROM has a column {0!r}"),
    (r'does not have a column named "(.+?)"', "column_unknown", "no table of FROM has a column {0!r}"),
    (r'Referenced table "(.+?)" not found', "table_unknown", "{0!r} is not a table of FROM"),
    (
        r'Ambiguous reference to (?:column name|table) "(.+?)"',
        "column_ambiguous",
        "{0!r} is a column of several tables",
    ),
    (r'column "(.+?)" must appear in the GROUP BY', "not_grouped", "{0!r} is neither in GROUP BY nor in an aggregate"),
    (
        r"(cannot contain aggregates|cannot be nested)",
        "aggregate_misplaced",
        "an aggregate stands where a row is needed",
    ),
    (r"(cannot contain window functions)", "window_misplaced", "a window function stands where a row is needed"),
    (r"No function matches the given name and argument types '(.+?)'", "type_mismatch", "there is no {0}"),
)
HINTS = {
    "column_ambiguous": "Write table.column.",
    "not_grouped": "Group by it or aggregate it.",
    "aggregate_misplaced": "Put conditions on aggregates into HAVING; aggregates cannot be nested.",
    "window_misplaced": "Compute it in a subquery, or put the condition into QUALIFY.",
    "type_mismatch": "Count its arguments, and cast them: CAST(x AS DOUBLE).",
}


CLAUSES = (
    "SELECT",
    "FROM",
    "WHERE",
    "GROUP",
    "HAVING",
    "ORDER",
    "LIMIT",
    "JOIN",
    "EXPLAIN",
    "DESCRIBE",
    "SHOW",
    "WITH",
)


def spelling(text: str, otherwise: str = "Check the spelling and the brackets.") -> str:
    """A hint for a word that looks like a keyword which the text has not.

    >>> spelling("SELEC 1", "?"), spelling("SELECT count(*) FORM t", "?"), spelling("SELECT (1", "?")
    ('Did you mean SELECT where SELEC stands?', 'Did you mean FROM where FORM stands?', '?')
    """
    words = re.findall(r"[^\W\d]\w*", re.sub(r"--[^\n]*|'[^']*'|\"[^\"]*\"", " ", text))
    missing = [clause for clause in CLAUSES if clause not in map(str.upper, words)]
    for word in words[:1000]:
        if word.upper() not in CLAUSES and (near := get_close_matches(word.upper(), missing, 1, 0.75)):
            return f"Did you mean {near[0]} where {word} stands?"
    return otherwise


def of_engine(said: str) -> Refused:
    """What the engine says when it binds SQL over releases, which are not there yet: it knows of names and types alone."""
    for pattern, code, message in ENGINE_SAYS:
        if found := re.search(pattern, said):
            near = re.search(r'Candidate (?:bindings|tables): "(.+?)"', said)
            hint = f"Did you mean {near[1]}?" if near else HINTS.get(code, "Check its name.")
            refusal = Refused(code, message.format(found[1]), hint)
            refusal.word = re.split(r"[(.]", found[1])[0] if '"' in pattern or code == "type_mismatch" else ""
            return refusal
    what = said.partition("\n")[0].partition(": ")[2]
    return Refused("engine_cannot", f"the engine cannot finish this query: {what}", "Simplify it.")


class BudgetExhausted(Error):
    """The ledger has not enough left. Nothing was read and nothing was charged."""


class Failed(Error):
    """Something went wrong after data was touched, or took too long. The text is constant, since the cause may depend on data."""

    def __init__(self) -> None:
        super().__init__(
            "failed",
            "the query failed or took too long while it ran; its charge stands",
            "Ask the owner of the data: the reason may depend on the data, so it is not shown. Failures are counted: after "
            "max_failures of them statements are refused.",
        )


class Unfinished(Failed):
    """What was to be computed from releases failed. They are charged and public, so the reason may be told."""

    def __init__(self, what: str, charged: bool = True) -> None:
        self.what = what
        told = (
            "the releases are charged, but what is computed from them"
            if charged
            else "nothing is charged, but the query"
        )
        Error.__init__(self, "unfinished", f"{told} failed: {what}", "Correct that part; `rehearse` tries it for free.")


class Interrupted(KeyboardInterrupt):
    """Ctrl-C while data was being read. A KeyboardInterrupt, so that it ends what Ctrl-C ends; its text is constant."""

    def __init__(self) -> None:
        super().__init__("the query was interrupted; its charge stands")
