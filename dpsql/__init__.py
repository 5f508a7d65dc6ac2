"""dpsql: SQL that an untrusted analyst may run on data about people."""

from dpsql.answer import Answer
from dpsql.errors import BudgetExhausted, Error, Failed, Refused
from dpsql.session import Session, connect

__version__ = "0.1.0"
__all__ = ["Answer", "BudgetExhausted", "Error", "Failed", "Refused", "Session", "connect"]
