"""What dot commands and flags set, and where files of the shell lie."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

SEPARATORS = {"csv": ","}


@dataclass
class Settings:
    """As DuckDB's shell has them, and ours."""

    mode: str = "duckbox"
    headers: bool = True
    nullvalue: str = "NULL"
    separator: str | None = None  # None: that of the mode
    maxrows: int = 40
    maxwidth: int = 0  # 0: that of the terminal, or 80
    columnwise: bool = False
    timer: bool = False
    echo: bool = False
    bail: bool = False
    highlight: bool = True
    notes: bool = True
    errors: bool = False
    main: str = "dpsql> "
    more: str = "  ...> "
    epsilon: float | None = None
    delta: float | None = None

    @property
    def between(self) -> str:
        """What stands between columns."""
        return self.separator if self.separator is not None else SEPARATORS.get(self.mode, "|")


def rc() -> Path | None:
    """The file that is read first: ~/.dpsqlrc, or dpsql/rc where XDG keeps settings; None if there is none."""
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return next((path for path in (Path.home() / ".dpsqlrc", config / "dpsql" / "rc") if path.is_file()), None)


def history() -> Path:
    """Where typed statements are kept, for nobody else to read."""
    state = os.environ.get("XDG_STATE_HOME")
    path = Path(state) / "dpsql" / "history" if state else Path.home() / ".dpsql_history"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    return path
