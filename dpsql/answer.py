"""The answer that an analyst gets: rows, error bars, loss. Everything in it has been released."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from dpsql.accountant import Loss
from dpsql.catalog import Type
from dpsql.plan import Plan, Program

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Row = tuple[Any, ...]


class Released(Protocol):
    """Released tables in a scratch database: how an answer reads itself."""

    @property
    def kept(self) -> str: ...
    def compute(self) -> list[Row] | None: ...
    def answer(self, names: tuple[str, ...]) -> Any: ...
    def rows(self) -> NDArray[np.int64]: ...
    def columns(self) -> Mapping[str, NDArray[np.float64]]: ...
    def stored(self) -> str: ...


class Answer:
    """Rows with error bars. Reads like a DB-API cursor, and like anything that speaks Arrow."""

    def __init__(
        self, columns: tuple[str, ...], loss: Loss, released: Released, plan: Plan | Program | None = None
    ) -> None:
        self.columns, self.loss, self._released = columns, loss, released
        self.plan = plan  # None for answers that are not about persons: EXPLAIN PRIVACY, SHOW BUDGET
        self.notes: tuple[str, ...] = plan.notes if plan else ()
        self._cursor: Iterator[Row] | None = None
        self._rows: list[Row] | None = None

    @property
    def kept(self) -> str:
        """Which table of the scratch database it is."""
        return self._released.kept

    def compute(self) -> None:
        """Run the finishing query now: what fails in it is then no answer."""
        self._rows = self._released.compute()

    @property
    def noisy(self) -> Mapping[str, NDArray[np.float64]]:
        """The columns that were released, from which the answer was computed."""
        return self._released.columns()

    def _all(self) -> list[Row]:
        if self._rows is None:
            self._rows = self._released.answer(self.columns).fetchall()
        return self._rows

    def fetchall(self) -> list[Row]:
        """The rows that have not been fetched yet."""
        return list(self._remaining())

    def fetchone(self) -> Row | None:
        return next(self._remaining(), None)

    def fetchmany(self, size: int = 1) -> list[Row]:
        return list(itertools.islice(self._remaining(), size))

    def _remaining(self) -> Iterator[Row]:
        if self._cursor is None:
            self._cursor = iter(self._all())
        return self._cursor

    def __iter__(self) -> Iterator[Row]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    @property
    def types(self) -> tuple[str, ...]:
        """DuckDB's names of the columns' types."""
        return tuple(str(type_) for type_ in self._released.answer(self.columns).types)

    def df(self) -> Any:
        """A pandas DataFrame."""
        return self._released.answer(self.columns).df()

    def pl(self) -> Any:
        """A polars DataFrame."""
        return self._released.answer(self.columns).pl()

    def arrow(self) -> Any:
        """A pyarrow Table."""
        return self._released.answer(self.columns).to_arrow_table()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._released.answer(self.columns).__arrow_c_stream__(requested_schema)

    def interval(self, confidence: float = 0.95) -> list[tuple[tuple[float, float] | None, ...]]:
        """Low and high for each cell that holds released aggregates or arithmetic of them, else None."""
        from dpsql.estimate import interval

        if not 0 < confidence < 1:
            raise ValueError("confidence must lie between 0 and 1")
        if not isinstance(self.plan, Plan):  # of what is computed from several releases nothing is known
            return [(None,) * len(self.columns)] * len(self)
        rows, released = self._released.rows(), self._released.columns()
        columns: list[list[tuple[float, float] | None]] = []
        for output in self.plan.outputs:
            found = interval(self.plan, output.expression, released, confidence)
            if found is None:
                columns.append([None] * len(rows))
            else:
                columns.append(list(zip(found[0][rows].tolist(), found[1][rows].tolist(), strict=True)))
        return list(zip(*columns, strict=True))

    @property
    def errors(self) -> list[tuple[float | None, ...]]:
        """Half the width of the 95 % interval, in the shape of the answer."""
        return [tuple(None if cell is None else (cell[1] - cell[0]) / 2 for cell in row) for row in self.interval()]

    def stored(self) -> str:
        """What was released, as text: kept by the ledger for queries that have an id."""
        return self._released.stored()

    def show(self) -> None:
        """Print the rows with their error bars."""
        import rich

        rich.print(self.table())

    def table(self) -> Any:
        """The rows with their error bars, for a terminal."""
        from rich.table import Table
        from rich.text import Text

        table = Table(caption=self._caption(), caption_justify="left")
        for index, name in enumerate(self.columns):
            table.add_column(Text(name), justify="right" if Type(self.types[index]).numeric else "left")
        for cells in self.cells():
            table.add_row(*(Text(cell) for cell in cells))
        return table

    def cells(self) -> list[list[str]]:
        """The rows as text, with the error bars beside the numbers."""
        return [
            [cell(value, error) for value, error in zip(row, bars, strict=True)]
            for row, bars in zip(self._all(), self.errors, strict=True)
        ]

    def _caption(self) -> str:
        if self.plan is None:
            return ""
        delta = f", delta {self.loss.delta:.3g}" if self.loss.delta else ""
        return f"± 95 %; epsilon {self.loss.epsilon:.4g}{delta}"

    def _repr_html_(self) -> str:
        from html import escape

        head = "".join(f"<th>{escape(name)}</th>" for name in self.columns)
        body = "".join(f"<tr>{''.join(f'<td>{escape(c)}</td>' for c in row)}</tr>" for row in self.cells())
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody><caption>{escape(self._caption())}</caption></table>"

    def __repr__(self) -> str:
        return f"<dpsql.Answer {len(self)} rows of {', '.join(self.columns)}; epsilon {self.loss.epsilon:.4g}>"


def cell(value: Any, error: float | None) -> str:
    """A number to the digits that its error bar supports, and the error bar.

    >>> cell(1234.5678, 12.3), cell(1000, 3.2), cell("x", None), cell(None, None)
    ('1,235 ± 12', '1,000.0 ± 3.2', 'x', 'NULL')
    """
    if value is None:
        return "NULL"
    if error is None:
        return str(value)
    if not math.isfinite(error):
        return f"{value:,.6g} ± ∞"
    return f"{value:,.{digits(error)}f} ± {error:,.{digits(error)}f}"


def digits(error: float | None) -> int:
    """How many digits after the point an error bar of this size leaves meaningful."""
    return max(0, min(12, 1 - math.floor(math.log10(error)))) if error else 0
