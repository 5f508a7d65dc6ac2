"""A line on standard error for what takes longer than a second: the phase, known beforehand, and the time since the start.

How far the engine has got depends on data, so it is not shown.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TextIO

Progress = Callable[[str, float], None]
AFTER = 1.0  # seconds


class Line:
    def __init__(self, stream: TextIO) -> None:
        self._stream, self._shown = stream, False

    def __call__(self, phase: str, seconds: float) -> None:
        """Say what is done now; with an empty phase, wipe the line."""
        if phase and seconds < AFTER:
            return
        if phase or self._shown:
            self._stream.write(f"\r\033[K{phase} … {seconds:.0f} s" if phase else "\r\033[K")
            self._stream.flush()
        self._shown = bool(phase)


def watched() -> Progress | None:
    """A line, if someone is there to see it: at a terminal or in a notebook."""
    kernel = sys.modules.get("ipykernel.kernelapp")
    return Line(sys.stderr) if sys.stderr.isatty() or (kernel and kernel.IPKernelApp.initialized()) else None
