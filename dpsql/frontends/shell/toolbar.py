"""The line under what is typed: the budget as a bar, and what the statement would cost, computed while nobody waits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from dpsql import describe
from dpsql.errors import Error
from dpsql.explain import percent
from dpsql.frontends.shell.duckbox import clipped
from dpsql.frontends.shell.runner import Shell
from dpsql.frontends.shell.statements import complete, says, split
from dpsql.kernel.accountant import roughly
from dpsql.session import COMMAND, Budget

FREE = "free: it reads nothing about persons"
PAUSE = 0.3  # seconds without a key before a price is computed
WIDTH = 16
EIGHTHS = " ▏▎▍▌▋▊▉█"


@dataclass(frozen=True)
class Price:
    """What a statement would cost, in words; or why it would be refused."""

    text: str
    refused: bool = False


def bar(budget: Budget, width: int = WIDTH) -> str:
    """What is left of the budget, as a bar and in percent: of the analyst's part, if that is less."""
    part = left(budget)
    whole, eighths = divmod(round(part * width * 8), 8)
    drawn = ("█" * whole + EIGHTHS[eighths] * bool(eighths)).ljust(width)
    return f"budget ▕{drawn}▏ {percent(part)} left"


def left(budget: Budget) -> float:
    """The part of the budget that is left."""
    return min(1 - b.part for b in (budget, budget.analyst) if b is not None)


def about_facts(sql: str) -> bool:
    """Whether it asks what is public: EXPLAIN, SHOW, DESCRIBE, SUMMARIZE, information_schema."""
    commands = (COMMAND, describe.COMMAND)
    return any(one.match(sql) for one in commands) or describe.about_the_catalogue(sql) is not None


def price(shell: Shell, sql: str) -> Price:
    """The price of a statement. Free, and raises nothing of dpsql's."""
    with shell.lock:
        try:
            if about_facts(sql):
                return Price(FREE)
            found = shell.session.explain(sql, epsilon=shell.settings.epsilon, delta=shell.settings.delta)
        except Error as error:
            return Price(f"would be refused: {error.message}", refused=True)
    if not found.loss.amount:
        return Price(FREE)
    text = f"price {percent(found.price)} (ε {found.loss.epsilon:g})"
    if not found.repeats:
        return Price(f"{text}: more than is left", refused=True)
    return Price(f"{text}, room for {roughly(found.repeats)}")


class Watch:
    """Computes the price of what is typed, in a thread of its own, some time after the last key."""

    def __init__(self, shell: Shell, changed: Callable[[], None]) -> None:
        self.shell, self._changed = shell, changed
        self.budget = ""
        self.price = Price("")
        self._typed, self._event = "", threading.Event()
        self._ended = False
        self.refresh()
        self._thread = threading.Thread(target=self._serve, name="dpsql price", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread: it holds the session, which is closed next."""
        self._ended = True
        self._event.set()
        self._thread.join(5)

    def refresh(self) -> None:
        """Read the budget again: after each statement, and with each price, since others may spend too."""
        with self.shell.lock:
            try:
                self.budget = bar(self.shell.session.budget)
            except Error as error:
                self.budget = f"budget not known: {error.message}"

    def typed(self, text: str) -> None:
        """Hear what is typed."""
        if text != self._typed:
            self._typed = text
            self._event.set()

    def _serve(self) -> None:
        while True:
            self._event.wait()
            while self._event.is_set() and not self._ended:
                self._event.clear()
                self._event.wait(PAUSE)
            if self._ended:
                return
            text = self._typed
            try:
                found = self._priced(text)
                self.refresh()
            except Exception:  # noqa: BLE001 - the session may be closing; a price that is missing harms nobody
                continue
            if text == self._typed:
                self.price = found
                self._changed()

    def _priced(self, text: str) -> Price:
        """The price of the last statement of the text. A refusal is shown once the statement looks complete."""
        statements, rest = split(text)
        sql = rest if says(rest) else statements[-1] if statements else ""
        if not sql.strip() or sql.lstrip().startswith("."):
            return Price("")
        found = price(self.shell, sql.strip())
        return found if complete(text) or not found.refused else Price("")

    def line(self, width: int) -> str:
        """What the toolbar says, cut to the terminal's width; the reason of a refusal has a line of its own."""
        said = self.price.text
        between = "\n " if self.price.refused and len(self.budget) + len(said) + 4 > width else " │ "
        return "\n".join(clipped(line, width) for line in f" {self.budget}{between * bool(said)}{said}".split("\n"))
