"""Completion: keywords, tables, columns, functions that are answered, declared values, dot commands; with what is declared as a hint."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from dpsql.compiler.aggregates import RULES
from dpsql.describe import ColumnFacts, TableFacts, shown
from dpsql.frontends.shell.dots import COMMANDS, MODES, SWITCHES, name
from dpsql.frontends.shell.runner import Shell
from dpsql.frontends.shell.statements import split
from dpsql.kernel.functions import NAMES
from dpsql.policy.catalog import fold

KEYWORDS = re.findall(
    r"\w+",
    """SELECT DISTINCT FROM WHERE GROUP BY HAVING ORDER LIMIT OFFSET JOIN LEFT RIGHT FULL INNER SEMI ANTI CROSS ON USING AS
    AND OR NOT IN BETWEEN LIKE ILIKE IS NULL CASE WHEN THEN ELSE END WITH UNION ALL EXCEPT INTERSECT EXISTS OVER PARTITION
    ROWS QUALIFY FILTER VALUES CAST ASC DESC TRUE FALSE INTERVAL DATE TIMESTAMP PIVOT EXPLAIN PRIVACY SHOW TABLES BUDGET
    DESCRIBE SUMMARIZE""",
)
TABLES_AFTER = {"from", "join", "describe", "summarize", "desc"}
WORD = re.compile(r'(?:(?P<table>\w+|"[^"]+")\.)?(?P<word>\w*)$')
VALUE = re.compile(
    r"""(?P<column>\w+|"[^"]+")\s*(?:=|<>|!=|IN\s*\((?:\s*'[^']*'\s*,)*)\s*'(?P<text>[^']*)$""", re.IGNORECASE
)
# After these a name comes, so that names are offered before its first letter.
EMPTY = re.compile(r"(?:\bUSING\s*\(\s*|\b(?:FROM|JOIN)\s+)$", re.IGNORECASE)
COMPARED = re.compile(r"(?:[<>=]|\b(?:AND|OR|NOT|BETWEEN|IN)\b)\s*$", re.IGNORECASE)
INSIDE = re.compile(rf"\b(?:{'|'.join(RULES)})\s*\([^()]*,\s*$", re.IGNORECASE)  # of an aggregate, behind an argument
BOUNDS = ("contribution_bounds_per_group => (", "contribution_bounds_per_row => (")
FILES = ("read", "output", "once")


class Names(Completer):
    """What may stand at the cursor."""

    def __init__(self, shell: Shell) -> None:
        self.tables = tuple(shell.session.tables)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        before = document.text_before_cursor
        if before.lstrip().startswith("."):
            return self.of_dots(before.lstrip())
        sql, after = split(before)[1], document.text_after_cursor
        whole = sql + after.partition(";")[0]
        if value := VALUE.search(sql):
            return self.of_values(value["column"].strip('"'), value["text"], whole)
        if sql.count("'") % 2:
            return ()
        found = WORD.search(sql)
        assert found is not None
        asked = complete_event.completion_requested or any(one.search(sql) for one in (EMPTY, COMPARED, INSIDE))
        if not found["word"] and not found["table"] and not asked:
            return ()
        return self.of_sql(sql[: found.start()], found, whole)

    def of_dots(self, line: str) -> Iterator[Completion]:
        command, space, rest = line[1:].partition(" ")
        if not space:
            for one, dot in sorted(COMMANDS.items()):
                if one.startswith(command.lower()):
                    yield Completion(one, -len(command), display=f".{one}", display_meta=dot.help)
            return
        choices: dict[str, str] = {}
        if command == "mode":
            choices = dict.fromkeys(MODES, "output mode")
        elif command in SWITCHES or command == "notes":
            choices = dict.fromkeys(("on", "off"), "")
        elif command in ("tables", "schema", "policy"):
            choices = {table.name: about(table) for table in self.tables}
        for one, hint in choices.items():
            if one.lower().startswith(rest.lower()):
                yield Completion(one, -len(rest), display_meta=hint)

    def of_values(self, column: str, begun: str, sql: str) -> Iterator[Completion]:
        """The declared values of a column."""
        for one in self.columns(sql):
            if fold(one.name) == fold(column) and one.values is not None:
                for value in map(shown, one.values):
                    if value.lower().startswith(begun.lower()) and value != "NULL":
                        yield Completion(
                            value.replace("'", "''") + "'",
                            -len(begun),
                            display=value,
                            display_meta=f"declared for {one.name}",
                        )
                return

    def of_sql(self, before: str, found: re.Match[str], sql: str) -> Iterator[Completion]:
        word, last = found["word"], re.findall(r"[\w.]+|\S", before)[-1:]
        begun = word.lower()
        if found["table"]:
            table = self.aliases(sql).get(fold(found["table"].strip('"')))
            # An alias that FROM has not named yet may be any table's.
            yield from offered(of_columns(table.columns if table else self.columns(sql)), begun)
            return
        if re.search(r"\bUSING\s*\(\s*$", before, re.IGNORECASE):
            yield from offered(of_columns(self.shared(sql)), begun)
            return
        if INSIDE.search(before):
            yield from offered(dict.fromkeys(BOUNDS, "limits of your own: (0, 100)"), begun)
        tables = {name(table.name): about(table) for table in self.tables}
        if last and last[0].lower() in TABLES_AFTER:
            yield from offered(tables, begun)
            return
        seen: set[str] = set()
        functions = dict.fromkeys([f"{one}(" for one in sorted(RULES)], "aggregate, with noise")
        functions |= dict.fromkeys([f"{one}(" for one in sorted(NAMES) if re.fullmatch(r"[a-z]\w*", one)], "function")
        keywords = {keyword if not word.islower() else keyword.lower(): "" for keyword in KEYWORDS}
        groups = (of_columns(self.columns(sql)), functions, keywords, tables)
        for group in groups if begun else groups[:1]:
            for one in offered(group, begun):
                if one.text.lower() not in seen:
                    seen.add(one.text.lower())
                    yield one

    def aliases(self, sql: str) -> dict[str, TableFacts]:
        """The tables of a statement, by the names that it uses for them."""
        found = {}
        for table in self.tables:
            pattern = rf'(?:\b(?:from|join)|,)\s+(?:\w+\.)*"?{re.escape(table.name)}"?(?:\s+(?:as\s+)?(?P<alias>\w+))?'
            for use in re.finditer(pattern, sql, re.IGNORECASE):
                found[fold(table.name)] = table
                if use["alias"] and use["alias"].upper() not in KEYWORDS:
                    found[fold(use["alias"])] = table
        return found

    def shared(self, sql: str) -> list[ColumnFacts]:
        """Columns that several of the statement's tables have; all, where none is."""
        found = self.columns(sql)
        names = [fold(one.name) for one in found]
        return [one for one in found if names.count(fold(one.name)) > 1] or found

    def columns(self, sql: str) -> list[ColumnFacts]:
        """The columns of the statement's tables, or of all tables where it names none."""
        tables = {table.name: table for table in self.aliases(sql).values()}
        return [column for table in tables.values() or self.tables for column in table.columns]


def of_columns(columns: Iterable[ColumnFacts]) -> dict[str, str]:
    found: dict[str, str] = {}
    for column in columns:
        found.setdefault(name(column.name), " ".join([column.type, str(column)]).strip())
    return found


def about(table: TableFacts) -> str:
    return "public table" if table.rows_of == "public" else f"person: {table.person}" if table.person else table.rows_of


def offered(choices: dict[str, str], begun: str) -> Iterator[Completion]:
    for text, hint in choices.items():
        if text.strip('"').lower().startswith(begun):
            yield Completion(text, -len(begun), display_meta=hint)
