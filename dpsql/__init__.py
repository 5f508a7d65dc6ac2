"""dpsql: SQL that an untrusted analyst may run on data about people."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dpsql.errors import BudgetExhausted, Error, Failed, Refused

if TYPE_CHECKING:
    from dpsql.answer import Answer
    from dpsql.session import Session, connect

__version__ = "0.1.0"
__all__ = ["Answer", "BudgetExhausted", "Error", "Failed", "Refused", "Session", "connect"]

# The engine, the parser and numpy take most of a second to load, and nobody needs them before the first connection.
LATER = {"Answer": "dpsql.answer", "Session": "dpsql.session", "connect": "dpsql.session"}


def __getattr__(name: str) -> Any:
    if name not in LATER:
        raise AttributeError(f"module 'dpsql' has no attribute {name!r}")
    return getattr(import_module(LATER[name]), name)


def load_ipython_extension(ipython: Any) -> None:
    """What `%load_ext dpsql` calls."""
    from dpsql.frontends.notebook import load

    load(ipython)


def __dir__() -> list[str]:
    return sorted({*globals(), *LATER})
