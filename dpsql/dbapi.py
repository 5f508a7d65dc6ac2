"""The door for drivers: PEP 249, the Python database API 2.0, in process.

    connection = dpsql.dbapi.connect("shop.duckdb", policy="shop.policy.toml")
    cursor = connection.cursor()
    cursor.execute("SELECT count(*) FROM orders WHERE amount > ?", [100])
    cursor.fetchall(), cursor.errors

Each `execute` is charged. Nothing is ever written, so `commit` and `rollback` have nothing to do.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from dpsql import errors, session
from dpsql.answer import Answer, Row
from dpsql.kernel.accountant import Loss

apilevel = "2.0"
threadsafety = 1  # threads may share the module, but not connections: their cursors are not locked
paramstyle = "qmark"  # also $1, and $name with a dict


# --- errors -----------------------------------------------------------------------------------------------------------


class Warning(Exception):
    """There are none: what an analyst should know is in `notes`."""


class Error(errors.Error):
    """An error as PEP 249 sorts them; `code`, `message`, `hint` and `position` are those of dpsql."""


class InterfaceError(Error):
    """A connection or a cursor is used after it was closed."""


class DatabaseError(Error):
    """All others."""


class DataError(DatabaseError):
    """What is computed from releases failed. They are charged."""


class OperationalError(DatabaseError):
    """The budget, the ledger, the policy, the files; or a failure while data was read, which is charged."""


class IntegrityError(DatabaseError):
    """Never raised: nothing is written."""


class InternalError(DatabaseError):
    """Never raised: failures are OperationalError, since their cause may depend on data."""


class ProgrammingError(DatabaseError):
    """The SQL or its parameters are wrong."""


class NotSupportedError(DatabaseError):
    """The SQL is right, and dpsql cannot answer it."""


# By the code's first words, then by its last; what is left is about the query.
OPERATIONAL = ("analyst", "data", "dataset", "database", "ledger", "persons", "policy", "role", "schema", "source")
FAILING = ("table_missing", "column_missing", "table_undeclared", "too_many_failures", "query_unfinished")
UNSUPPORTED = ("not_supported", "not_local", "select_only", "engine_cannot", "may_overflow")


def kind_of(error: errors.Error) -> type[Error]:
    """The class of PEP 249 that an error belongs to.

    >>> kind_of(errors.Refused("join_not_local", "")).__name__, kind_of(errors.Refused("syntax", "")).__name__
    ('NotSupportedError', 'ProgrammingError')
    """
    code = error.code
    if isinstance(error, errors.Unfinished):
        return DataError
    if not isinstance(error, errors.Refused) or code.split("_")[0] in OPERATIONAL or code in FAILING:
        return OperationalError
    if code == "session_closed":
        return InterfaceError
    return NotSupportedError if code.endswith(UNSUPPORTED) else ProgrammingError


def sort(error: errors.Error) -> NoReturn:
    """Raise the error as one of PEP 249."""
    sorted_ = kind_of(error)(error.code, error.message, error.hint, error.position)
    sorted_.line, sorted_.column = error.line, error.column
    raise sorted_ from error


# --- types ------------------------------------------------------------------------------------------------------------


class Kind:
    """Equal to the name of each of DuckDB's types that are of this kind."""

    def __init__(self, *kinds: str) -> None:
        self.kinds = frozenset(kinds)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Kind):
            return self.kinds == other.kinds
        return isinstance(other, str) and other.partition("(")[0] in self.kinds

    def __hash__(self) -> int:
        return hash(self.kinds)


STRING = Kind("VARCHAR", "ENUM", "UUID", "JSON")
BINARY = Kind("BLOB", "BIT")
NUMBER = Kind(
    *(f"{sign}{size}INT" for sign in ("", "U") for size in ("TINY", "SMALL", "BIG", "HUGE")),
    *("INTEGER", "UINTEGER", "DECIMAL", "FLOAT", "DOUBLE", "BOOLEAN"),
)
DATETIME = Kind("DATE", "TIME", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE", "INTERVAL")
ROWID = Kind()

Date, Time, Timestamp, Binary = datetime.date, datetime.time, datetime.datetime, bytes
DateFromTicks, TimestampFromTicks = datetime.date.fromtimestamp, datetime.datetime.fromtimestamp


def TimeFromTicks(ticks: float) -> datetime.time:
    """The time of day, so many seconds after 1970 began."""
    return datetime.datetime.fromtimestamp(ticks).time()


# --- connections ------------------------------------------------------------------------------------------------------


def connect(
    database: Any,
    policy: str | Path | Mapping[str, Any] | None = None,
    ledger: str | Path | None = None,
    analyst: str | None = None,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
) -> Connection:
    """Open a database as `dpsql.connect` does. The policy is by default the file beside it that ends in .policy.toml.

    `epsilon` and `delta` are those of each query; by default the policy's.
    """
    try:
        opened = session.connect(database, policy=policy, ledger=ledger, analyst=analyst)
    except errors.Error as error:
        sort(error)
    return Connection(opened, epsilon=epsilon, delta=delta)


class Connection:
    """A session, as PEP 249 wants it."""

    Warning, Error, InterfaceError, DatabaseError = Warning, Error, InterfaceError, DatabaseError
    DataError, OperationalError, IntegrityError = DataError, OperationalError, IntegrityError
    InternalError, ProgrammingError, NotSupportedError = InternalError, ProgrammingError, NotSupportedError

    def __init__(self, session: session.Session, *, epsilon: float | None = None, delta: float | None = None) -> None:
        """Of a session that is open; closing the connection closes it."""
        self.session, self.epsilon, self.delta = session, epsilon, delta
        self.closed = False

    def check(self) -> None:
        """Refuse to work once closed."""
        if self.closed:
            raise InterfaceError("connection_closed", "the connection is closed", "Connect again.")

    def cursor(self) -> Cursor:
        """Make a cursor."""
        self.check()
        return Cursor(self)

    def commit(self) -> None:
        """Do nothing: nothing is written, and a charge is durable before the answer."""
        self.check()

    def rollback(self) -> None:
        """Do nothing: a charge is never given back."""
        self.check()

    def close(self) -> None:
        """Let go of everything. Closing twice is closing once."""
        self.closed = True
        self.session.close()

    def __enter__(self) -> Connection:
        self.check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Cursor:
    """Asks one query after the other, and reads the last answer."""

    def __init__(self, connection: Connection) -> None:
        self.connection, self.arraysize, self.closed = connection, 1, False
        self._answer: Answer | None = None

    def check(self) -> None:
        """Refuse to work once closed."""
        self.connection.check()
        if self.closed:
            raise InterfaceError("cursor_closed", "the cursor is closed", "Make another one.")

    @property
    def answer(self) -> Answer:
        """The last answer, with everything that dpsql knows about it."""
        self.check()
        if self._answer is None:
            raise ProgrammingError("nothing_asked", "no query has been answered yet", "Call execute first.")
        return self._answer

    def execute(self, operation: str, parameters: object = None, **options: Any) -> Cursor:
        """Answer a query, and charge for it. `options` are those of `Session.sql`: epsilon, query_id, timeout, …

        `parameters` are a sequence for `?` and `$1`, or a dict for `$name`. An empty one is none.
        """
        self.check()
        self._answer = None
        options = {"epsilon": self.connection.epsilon, "delta": self.connection.delta, **options}
        try:
            self._answer = self.connection.session.sql(operation, parameters or None, **options)
        except errors.Error as error:
            sort(error)
        return self

    def executemany(self, operation: str, seq_of_parameters: object) -> NoReturn:
        """Refuse: it is for writing, and nothing is written."""
        self.check()
        hint = "Call execute for each list of parameters: each is an answer, and is charged."
        raise NotSupportedError("not_supported", "executemany has no answers to give", hint)

    @property
    def description(self) -> tuple[tuple[Any, ...], ...] | None:
        """Name, type and five times None for each column; None before the first answer."""
        return self._answer.description if self._answer is not None else None

    @property
    def rowcount(self) -> int:
        """How many rows the last answer has; -1 before the first."""
        return len(self._answer) if self._answer is not None else -1

    def fetchone(self) -> Row | None:
        """The next row, or None."""
        return self.answer.fetchone()

    def fetchmany(self, size: int | None = None) -> list[Row]:
        """The next rows: so many, or `arraysize`."""
        return self.answer.fetchmany(self.arraysize if size is None else size)

    def fetchall(self) -> list[Row]:
        """The rows that have not been fetched yet."""
        return self.answer.fetchall()

    def __iter__(self) -> Iterator[Row]:
        return iter(self.fetchone, None)

    def __next__(self) -> Row:
        row = self.fetchone()
        if row is None:
            raise StopIteration
        return row

    @property
    def errors(self) -> list[tuple[float | None, ...]]:
        """How far each value of the last answer lies from the farther end of its 95 % interval; None where there is no noise."""
        return self.answer.errors

    def interval(self, confidence: float = 0.95) -> list[tuple[tuple[float, float] | None, ...]]:
        """Low and high for each cell of the last answer; None where there is no noise."""
        return self.answer.interval(confidence)

    @property
    def loss(self) -> Loss:
        """What the last answer cost."""
        return self.answer.loss

    @property
    def notes(self) -> tuple[str, ...]:
        """What an analyst should know about the last answer."""
        return self.answer.notes

    def setinputsizes(self, sizes: object) -> None:
        """Do nothing, as PEP 249 allows."""
        self.check()

    def setoutputsize(self, size: int, column: int | None = None) -> None:
        """Do nothing, as PEP 249 allows."""
        self.check()

    def close(self) -> None:
        """Let go of the last answer."""
        self.closed, self._answer = True, None

    def __enter__(self) -> Cursor:
        self.check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
