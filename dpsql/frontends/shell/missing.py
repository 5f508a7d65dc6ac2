"""What only the terminal needs."""

from __future__ import annotations

from importlib.util import find_spec

from dpsql.errors import Refused


def needed() -> None:
    """Refuse if what the extra installs is not there."""
    for name in ("prompt_toolkit", "pygments"):
        if find_spec(name) is None:
            hint = "Type `pip install '.[shell]'`; or run statements with -c, -f or from standard input."
            raise Refused("extra_missing", f"the shell at a terminal needs {name}", hint)
