"""A picture of a real session in a real terminal: `python -m dpsql.frontends.shell.picture > docs/images/shell.svg`.

It makes the sample shop, types into the shell in tmux, and draws what the terminal shows.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.text import Text

KEYS = (
    "SELECT segment, count(*) AS orders, avg(amount) AS average",
    "FROM orders JOIN customer ON orders.customer = customer.id",
    "GROUP BY segment;",
)
NEXT = "SELECT status, count(*) FROM orders GROUP BY status"


class Terminal:
    """A program in tmux, on a server of its own."""

    def __init__(self, command: list[str], directory: Path, width: int = 80, height: int = 24) -> None:
        self._name, self._directory = f"dpsql-{os.getpid()}-{time.monotonic_ns()}", directory
        size = ("-x", str(width), "-y", str(height))
        home = {"HOME": str(directory), "LC_ALL": "C.UTF-8", "TERM": "xterm-256color"}
        variables = [part for name, value in home.items() for part in ("-e", f"{name}={value}")]
        self._tmux(
            "-f",
            "/dev/null",
            "new-session",
            "-d",
            *size,
            *variables,
            f"{shlex.join(command)}; echo ended: $?; sleep 600",
        )

    def _tmux(self, *arguments: str) -> str:
        command = ["tmux", "-u", "-L", self._name, *arguments]
        return subprocess.run(
            command, cwd=self._directory, capture_output=True, text=True, encoding="utf-8", check=True
        ).stdout

    def type(self, text: str) -> None:
        self._tmux("send-keys", "-l", "--", text[:-1] + text[-1].replace(";", "\\;"))  # which would end tmux's command

    def key(self, *names: str) -> None:
        self._tmux("send-keys", *names)

    def screen(self, colours: bool = False) -> str:
        return self._tmux("capture-pane", "-p", *["-e", "-N"] * colours)

    def wait(self, shown: Callable[[str], bool] | str, seconds: float = 30.0) -> str:
        """The screen, once it shows this."""
        end = time.monotonic() + seconds
        while True:
            screen = self.screen()
            if shown in screen if isinstance(shown, str) else shown(screen):
                return screen
            if time.monotonic() > end:
                raise TimeoutError(f"not shown: {shown}\n{screen}")
            time.sleep(0.05)

    def close(self) -> None:
        self._tmux("kill-server")


def session(directory: Path, width: int, height: int) -> str:
    """What the terminal shows at the end of a session on the sample shop, with its colours."""
    from dpsql.frontends.demo import make

    make(directory)
    terminal = Terminal(
        [sys.executable, "-m", "dpsql", "shell", "shop.duckdb", "--ledger", ":memory:"], directory, width, height
    )
    try:
        terminal.wait("left")
        for line in KEYS:
            terminal.type(line)
            terminal.key("Enter")
        terminal.wait("3 columns")
        terminal.type(".plot average")
        terminal.key("Enter")
        terminal.wait("●")
        terminal.type(NEXT)
        terminal.wait("price")
        return terminal.screen(colours=True)
    finally:
        terminal.close()


def svg(screen: str, width: int) -> str:
    """A screen as SVG."""
    console = Console(record=True, width=width, file=open(os.devnull, "w"))  # noqa: SIM115
    lines = Text.from_ansi(screen.rstrip("\n")).split("\n")
    console.print(Text("\n").join(line for line in lines if line.plain.strip()))
    drawn = console.export_svg(title="dpsql shell shop.duckdb", unique_id="shell")
    return re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)  # of fonts that would be fetched from elsewhere


def main(width: int = 96, height: int = 44) -> None:
    with tempfile.TemporaryDirectory() as directory:
        sys.stdout.write(svg(session(Path(directory), width, height), width))


if __name__ == "__main__":
    main()
