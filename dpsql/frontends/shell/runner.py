"""Runs statements and dot commands: data to one stream, everything else to the other, and an exit code."""

from __future__ import annotations

import re
import shutil
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from textwrap import fill
from typing import TextIO

import click

from dpsql.answer import Answer
from dpsql.compiler.program import Plan
from dpsql.errors import Error, Interrupted
from dpsql.frontends.shell import caret, duckbox
from dpsql.frontends.shell.modes import Table, write
from dpsql.frontends.shell.settings import Settings
from dpsql.frontends.shell.statements import BARE, says, split
from dpsql.policy.catalog import Type
from dpsql.session import Session

USAGE, INTERRUPTED = 2, 130
DEEP = 16  # files that read files
STARTS = re.compile(r"\s*(?:SELECT|FROM|WITH|EXPLAIN|DESCRIBE|SHOW|SUMMARIZE|VALUES|PIVOT|\()", re.IGNORECASE)
UNKNOWN_BARS = "note: these numbers have noise; what is computed from several releases has no error bars"


class Misused(Exception):
    """A dot command that is wrong: what was found, and what to type."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class Shell:
    """One session, its settings, and where it prints."""

    def __init__(
        self, session: Session, settings: Settings, name: str = "", out: TextIO | None = None, err: TextIO | None = None
    ) -> None:
        self.session, self.settings, self.name = session, settings, name
        self.out, self.err = out or sys.stdout, err or sys.stderr
        self.target: TextIO | None = None  # of .output
        self.once: TextIO | None = None
        self.last: Answer | None = None
        self.said = ""  # the last statement
        self.code, self.done = 0, False
        self.interactive = False
        self.lock = threading.RLock()  # a session is used by one thread at a time
        self._depth = 0
        self._strict = False

    # --- what is run --------------------------------------------------------------------------------------------------

    def scripts(self, commands: Sequence[str], files: Sequence[str]) -> int:
        """Run commands and files that were given as options: the first error ends them, as in DuckDB's shell."""
        self._strict = True
        for text in commands:
            self.script(text)
        for path in files:
            self.file(Path(path))
        return self.code

    def file(self, path: Path) -> None:
        """Run a file."""
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            return self.misused(Misused(f"cannot read {str(path)!r}: {why}", "Check the path."))
        if self._depth == DEEP:
            return self.misused(Misused(f"{DEEP} files read each other", "Take out a .read."))
        self._depth += 1
        self.script(text)
        self._depth -= 1

    def script(self, text: str | TextIO) -> int:
        """Run statements and dot commands, each as it comes; the last statement needs no semicolon. The exit code so far."""
        pending = ""
        for line in StringIO(text) if isinstance(text, str) else text:
            if self.done:
                return self.code
            bare = BARE.fullmatch(line)
            if not says(pending) and (line.lstrip().startswith(".") or bare):
                self.command(f".{bare['word'].lower()}" if bare else line.strip())
                continue
            statements, pending = split(pending + line)
            for statement in statements:
                if not self.done:
                    self.statement(statement)
        if says(pending) and not self.done:
            self.statement(pending.strip())
        return self.code

    def command(self, line: str) -> None:
        """Run a dot command."""
        from dpsql.frontends.shell.dots import run

        if self.settings.echo:
            self.say(line)
        try:
            with self.lock:
                run(self, line)
        except Misused as error:
            self.misused(error)
        except Error as error:
            self.failed(error, "")
        except KeyboardInterrupt as error:
            self.interrupted(error)

    def statement(self, sql: str) -> None:
        """Answer one statement."""
        if self.settings.echo:
            self.say(f"{sql};")
        start, used = time.perf_counter(), time.process_time()
        self.said = sql
        before: float | None = None
        try:
            with self.lock:
                before = self.session.budget.spent.amount
                answer = self.session.sql(sql, epsilon=self.settings.epsilon, delta=self.settings.delta)
                self.last = answer
                self.show(answer)
        except Error as error:
            self.failed(error, sql)
        except KeyboardInterrupt as error:
            self.interrupted(error, before)
        if self.settings.timer:
            taken, busy = time.perf_counter() - start, time.process_time() - used
            self.say(f"Run Time (s): real {taken:.3f} cpu {busy:.3f}")

    # --- what is printed ----------------------------------------------------------------------------------------------

    @property
    def width(self) -> int:
        """The columns there are: as set, else those of the terminal, else 80."""
        return self.settings.maxwidth or shutil.get_terminal_size((80, 24)).columns

    def show(self, answer: Answer) -> None:
        """Print an answer in the mode that is set, and the notes under it."""
        if self.settings.mode != "duckbox":
            self.data(write(self.table(answer), self.settings))
        elif answer.columns == ("explain",):
            self.data(f"{line}\n" for (line,) in answer)
        else:
            limits = (self.settings.maxrows, self.width)
            lines = duckbox.draw(self.columns(answer), len(answer), *limits, self.settings.columnwise)
            self.data(f"{line}\n" for line in lines)
        if self.settings.notes:
            for line in self.remarks(answer):
                wide = self.err.isatty() and len(line) > self.width
                self.say(fill(line, self.width, subsequent_indent="  ", break_on_hyphens=False) if wide else line)

    def remarks(self, answer: Answer) -> list[str]:
        """The notes under an answer."""
        if answer.plan is None or (not isinstance(answer.plan, Plan) and not answer.plan.parts):
            return [f"note: {note}" for note in answer.notes]
        return [*answer.remarks(), *[UNKNOWN_BARS] * (not isinstance(answer.plan, Plan))]

    def columns(self, answer: Answer) -> list[duckbox.Column]:
        """The columns with ± beside noisy numbers, and everything else as the engine writes it."""
        errors, made = answer.errors, list[duckbox.Column]()
        rows = [
            [
                (self.settings.nullvalue if text is None else text) if error is None else noisy
                for text, noisy, error in zip(*both, strict=True)
            ]
            for both in zip(answer.texts(), answer.cells(), errors, strict=True)
        ]
        for i, (name, type_) in enumerate(zip(answer.columns, answer.types, strict=True)):
            bars, cells, right = (
                any(row[i] is not None for row in errors),
                [row[i] for row in rows],
                Type(type_).numeric,
            )
            cells = duckbox.level(cells) if bars else cells
            made.append(duckbox.Column(name, duckbox.short(type_), cells, right, whole=right))
        return made

    def table(self, answer: Answer) -> Table:
        """The answer as text for machines: plain numbers, and with .errors the ends of their intervals."""
        as_json = self.settings.mode in ("json", "jsonlines")
        numeric = [Type(type_).numeric or type_ == '"NULL"' for type_ in answer.types]
        names, rows = list(answer.columns), [list(row) for row in answer.texts(json=as_json)]
        if self.settings.errors:
            found = answer.interval()
            for i in reversed([i for i in range(len(names)) if any(cells[i] is not None for cells in found)]):
                names[i + 1 : i + 1] = [f"{names[i]}_low", f"{names[i]}_high"]
                numeric[i + 1 : i + 1] = [True, True]
                for row, cells in zip(rows, found, strict=True):
                    row[i + 1 : i + 1] = [end_text(end) for end in cells[i] or (None, None)]
        return Table(tuple(names), tuple(numeric), rows)

    def data(self, pieces: Iterable[str]) -> None:
        """Print data to where it goes."""
        with self.sink() as stream:
            for piece in pieces:
                stream.write(piece)
            stream.flush()

    @contextmanager
    def sink(self) -> Iterator[TextIO]:
        if self.once is None:
            yield self.target or self.out
            return
        stream, self.once = self.once, None
        with stream:
            yield stream

    def say(self, text: str) -> None:
        """Print what is not data."""
        self.out.flush()
        self.err.write(text + "\n")
        self.err.flush()

    # --- what goes wrong ----------------------------------------------------------------------------------------------

    def failed(self, error: Error, sql: str) -> None:
        if error.code in ("syntax", "select_only") and not error.hint.startswith("Did you mean"):
            error.hint += " `.help` lists commands, `.exit` leaves." * (not STARTS.match(sql))
        code, word = caret.kind(error)
        text = caret.told(error, sql, self.width)
        if self.settings.highlight and self.err.isatty():
            text = text.replace(f"{word}:", click.style(f"{word}:", fg="red", bold=True), 1)
        self.wrong(code, text)

    def misused(self, error: Misused) -> None:
        self.wrong(USAGE, f"error: {error}" + f"\nhint: {error.hint}" * bool(error.hint))

    def wrong(self, code: int, text: str) -> None:
        self.say(text)
        self.code = self.code or code
        if self._strict or self.settings.bail:
            self.done = not self.interactive

    def interrupted(self, error: KeyboardInterrupt, before: float | None = None) -> None:
        """Say whether the statement that Ctrl-C ended is charged; it ends a script too."""
        if self.interactive:
            self.err.write("\n")  # the terminal has shown ^C
        if isinstance(error, Interrupted):
            self.say(f"interrupted: {error}")
        elif before is not None and self.session.budget.spent.amount == before:
            self.say("interrupted: nothing was charged")
        else:
            self.say("interrupted: `.budget` says what is left")
        self.code = self.code or INTERRUPTED
        self.done = not self.interactive


def end_text(end: float | None) -> str | None:
    """An end of an interval as a number; None where it is not bounded.

    >>> end_text(1.5), end_text(float("inf"))
    ('1.5', None)
    """
    return repr(end) if end is not None and abs(end) < float("inf") else None
