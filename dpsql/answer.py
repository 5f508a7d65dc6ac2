"""The answer that an analyst gets: rows, error bars, loss. Everything in it has been released."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from dpsql import bars
from dpsql.bars import Shown, layout, with_ends
from dpsql.compiler.program import Plan, Program
from dpsql.errors import Refused
from dpsql.kernel.accountant import Loss
from dpsql.policy.catalog import Type

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Row = tuple[Any, ...]
Ends = tuple[float, float]  # of an error bar
BARS = "± is the noise at 95 %; clipping is not in it"
PLAIN = re.compile(r"U?(?:TINY|SMALL)INT|U?INTEGER|BIGINT|BOOLEAN|FLOAT|DOUBLE|(?:STRUCT|MAP)\(.*|.*\]", re.DOTALL)
SHOWN = 40  # rows, unless told otherwise


class Released(Protocol):
    """Released tables in a scratch database: how an answer reads itself."""

    @property
    def kept(self) -> str: ...
    def compute(self) -> list[Row] | None: ...
    def answer(self, names: tuple[str, ...]) -> Any: ...
    def beside(self, shown: Sequence[Shown], ends: Mapping[tuple[int, str], list[float | None]]) -> Any: ...
    def rows(self) -> NDArray[np.int64]: ...
    def columns(self) -> Mapping[str, NDArray[np.float64]]: ...
    def stored(self) -> str: ...


class Answer:
    """Rows with error bars. Reads like a DB-API cursor, and like anything that speaks Arrow."""

    def __init__(
        self, columns: tuple[str, ...], loss: Loss, released: Released, plan: Plan | Program | None = None
    ) -> None:
        self.loss, self._released = loss, released
        self.plan = plan  # None for answers that are not about persons: EXPLAIN PRIVACY, SHOW BUDGET
        self.notes: tuple[str, ...] = plan.notes if plan else ()
        self._shown = layout(columns)
        self._cursor: Iterator[Row] | None = None
        self._rows: list[Row] | None = None
        self._bars: dict[float, list[tuple[Ends | None, ...]]] = {}

    def place(self, ends: Sequence[bars.Ends]) -> None:
        """Show the ends of error bars as columns, where the query has asked for them."""
        if ends:
            self._shown, self._rows = layout(self.columns, ends), None

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(one.name for one in self._shown)

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
            self._rows = self._relation().fetchall()
        return self._rows

    def fetchall(self) -> list[Row]:
        """The rows that have not been fetched yet."""
        return list(self._remaining())

    def fetchone(self) -> Row | None:
        """The next row, or None."""
        return next(self._remaining(), None)

    def fetchmany(self, size: int = 1) -> list[Row]:
        """The next rows, so many."""
        return list(itertools.islice(self._remaining(), size))

    def _remaining(self) -> Iterator[Row]:
        if self._cursor is None:
            self._cursor = iter(self._all())
        return self._cursor

    def __iter__(self) -> Iterator[Row]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def _relation(self, errors: bool = False) -> Any:
        """The rows in the scratch database; with `errors` also the ends of error bars, as NAME_low and NAME_high."""
        shown: tuple[Shown, ...] = self._shown
        if errors:
            barred = [any(cell is not None for cell in column) for column in self._ends()]
            shown = with_ends(shown, barred)
        if not any(one.end for one in shown):
            return self._released.answer(self.columns)
        ends: dict[tuple[int, str], list[float | None]] = {
            (one.column, one.end): [cell and cell[one.end == "high"] for cell in self._ends()[one.column]]
            for one in shown
            if one.end
        }
        return self._released.beside(shown, ends)

    @property
    def types(self) -> tuple[str, ...]:
        """DuckDB's names of the columns' types."""
        return tuple(str(type_) for type_ in self._relation().types)

    @property
    def description(self) -> tuple[tuple[Any, ...], ...]:
        """The columns as PEP 249 describes them: name, type, and five times None."""
        return tuple((name, type_, *[None] * 5) for name, type_ in zip(self.columns, self.types, strict=True))

    def df(self, *, errors: bool = False) -> Any:
        """A pandas DataFrame; with `errors` it has NAME_low and NAME_high behind each column with error bars."""
        needs("pandas")
        return self._relation(errors).df()

    def pl(self, *, errors: bool = False) -> Any:
        """A polars DataFrame, as `df`."""
        needs("polars")
        return self._relation(errors).pl()

    def arrow(self, *, errors: bool = False) -> Any:
        """A pyarrow Table, as `df`."""
        needs("pyarrow")
        return self._relation(errors).to_arrow_table()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._relation().__arrow_c_stream__(requested_schema)

    def json(self) -> str:
        """Columns, rows, errors, loss and notes as JSON. An error bar without end is null, and so is NaN."""
        cells, errors = ([[scalar(cell) for cell in row] for row in table] for table in (self, self.errors))
        told = {"columns": self.columns, "rows": cells, "errors": errors, "loss": vars(self.loss), "notes": self.notes}
        return json.dumps(told)

    def plot(self, path: str | None = None, *, y: str | None = None) -> Any:
        """A chart with error bars (Altair): bars, a line over time, or points. `path` saves it as PNG, SVG, HTML or JSON."""
        from dpsql.plot import plot

        return plot(self, path, y)

    def _ends(self, confidence: float = 0.95) -> list[tuple[Ends | None, ...]]:
        """Low and high for each cell, by column, in the order in which they were computed."""
        if confidence not in self._bars:
            self._bars[confidence] = self._computed(confidence)
        return self._bars[confidence]

    def _computed(self, confidence: float) -> list[tuple[Ends | None, ...]]:
        from dpsql.estimate import interval

        if not 0 < confidence < 1:
            raise ValueError("confidence must lie between 0 and 1")
        if not isinstance(self.plan, Plan):  # of what is computed from several releases nothing is known
            return [(None,) * len(self)] * len(self.columns)
        rows, released = self._released.rows(), self._released.columns()
        columns: list[tuple[Ends | None, ...]] = []
        for output in self.plan.outputs:
            found = interval(self.plan, output.expression, released, confidence)
            if found is None:
                columns.append((None,) * len(rows))
            else:
                columns.append(tuple(zip(found[0][rows].tolist(), found[1][rows].tolist(), strict=True)))
        return columns

    def interval(self, confidence: float = 0.95) -> list[tuple[Ends | None, ...]]:
        """Low and high for each cell that holds released aggregates or arithmetic of them, else None."""
        columns = self._ends(confidence)
        shown = [(None,) * len(columns[0]) if one.end else columns[one.column] for one in self._shown]
        return list(zip(*shown, strict=True))

    @property
    def errors(self) -> list[tuple[float | None, ...]]:
        """How far each value lies from the farther end of its 95 % interval, in the shape of the answer."""
        return [tuple(map(reach, *both)) for both in zip(self._all(), self.interval(), strict=True)]

    def stored(self) -> str:
        """What was released, as text: kept by the ledger for queries that have an id."""
        return self._released.stored()

    def show(self, rows: int | None = SHOWN) -> None:
        """Print so many rows with their error bars, and the notes under them; None for all rows."""
        import rich

        rich.print(self.table(rows))

    def table(self, rows: int | None = SHOWN) -> Any:
        """The rows with their error bars, for a terminal; of more than `rows` the first and the last."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table()
        for name, type_ in zip(self.columns, self.types, strict=True):
            table.add_column(Text(name), justify="right" if Type(type_).numeric else "left")
        for cells in self.excerpt(rows):
            table.add_row(*(Text(cell) for cell in cells))
        return Group(table, *(Text(line) for line in self.remarks(rows)))

    def excerpt(self, rows: int | None = SHOWN) -> list[list[str]]:
        """The cells of so many rows, with a row of dots where some are left out."""
        cells, dots = self.cells(), ["·"] * len(self.columns)
        return [dots if place is None else cells[place] for place in self.places(rows)]

    def places(self, rows: int | None = SHOWN) -> list[int | None]:
        """Which rows are shown where there is room for so many; None stands for those that are left out."""
        if rows is None or len(self) <= rows:
            return list(range(len(self)))
        first, last = parts(rows)
        return [*range(first), None, *range(len(self) - last, len(self))]

    def remarks(self, rows: int | None = None) -> list[str]:
        """What stands under the table: rows that are left out, what ± is, the loss, and the notes, each once."""
        lines = []
        if rows is not None and len(self) > rows:
            lines.append(f"{len(self) - sum(parts(rows)):,} of {len(self):,} rows are left out")
        if self.plan is not None:
            bars = any(ends is not None for column in self._ends() for ends in column)
            delta = f", delta {self.loss.delta:.3g}" if self.loss.delta else ""
            lines += [BARS] * bars + [f"epsilon {self.loss.epsilon:.4g}{delta}"]
        return list(dict.fromkeys([*lines, *(f"note: {note}" for note in self.notes)]))

    def cells(self) -> list[list[str]]:
        """The rows as text, with the error bars beside the numbers."""
        return [
            [cell(value, error) for value, error in zip(row, bars, strict=True)]
            for row, bars in zip(self._all(), self.errors, strict=True)
        ]

    def texts(self, json: bool = False) -> list[Row]:
        """The rows as the engine writes them, as text or each cell as JSON; None for NULL."""
        told = self._relation()
        cells = (written(f"#{i}", str(type_), json) for i, type_ in enumerate(told.types, 1))
        found: list[Row] = told.project(", ".join(f"{cell} AS c{i}" for i, cell in enumerate(cells))).fetchall()
        return found

    def _repr_html_(self) -> str:
        from dpsql.html import html

        return html(self)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        from rich.console import Console

        console = Console(width=100, color_system=None, force_jupyter=False)
        with console.capture() as capture:
            console.print(self.table())
        return {"text/html": self._repr_html_(), "text/plain": capture.get()}

    def __str__(self) -> str:
        return self._repr_mimebundle_()["text/plain"].rstrip()

    def __repr__(self) -> str:
        return f"<dpsql.Answer {len(self)} rows of {', '.join(self.columns)}; epsilon {self.loss.epsilon:.4g}>"


def needs(module: str) -> None:
    """Refuse, with what to install, where a package is missing that dpsql does not need itself."""
    try:
        import_module(module)
    except ImportError:
        raise Refused("extra_missing", f"this needs {module}", f"Type: pip install {module}") from None


def written(cell: str, type_: str, json: bool) -> str:
    """SQL for a cell as text, or as JSON: there a number that JSON's readers might round is a text, as in DuckDB's shell."""
    if not json or type_ == "JSON":
        return f"CAST({cell} AS VARCHAR)"
    return f"CAST(to_json({cell if PLAIN.fullmatch(type_) else f'CAST({cell} AS VARCHAR)'}) AS VARCHAR)"


def parts(rows: int) -> tuple[int, int]:
    """Of so many rows that are shown: how many of the first ones, and how many of the last.

    >>> parts(40), parts(3), parts(0)
    ((20, 20), (2, 1), (0, 0))
    """
    return max(rows, 0) - max(rows, 0) // 2, max(rows, 0) // 2


def reach(value: Any, ends: Ends | None) -> float | None:
    """How far a value lies from the farther end of its interval: where it is not in the middle, half the width is too little.

    >>> reach(20, (0.0, 20.0)), reach(7, (5.0, 10.0)), reach(1, (-math.inf, 4.0)), reach("x", None), reach(None, (0.0, 1.0))
    (20.0, 3.0, inf, None, None)
    """
    if value is None or ends is None:
        return None
    middle = float(value)
    return max(middle - ends[0], ends[1] - middle) if math.isfinite(middle) else math.inf


def cell(value: Any, error: float | None) -> str:
    """A number to the digits that its error bar supports, and the error bar.

    >>> cell(1234.5678, 12.3), cell(1000, 3.2), cell("x", None), cell(None, None)
    ('1,235 ± 12', '1,000.0 ± 3.2', 'x', 'NULL')
    >>> cell(37.7613, math.inf), cell(0.012345, math.inf), cell(1234.5, math.inf), cell(math.nan, math.inf)
    ('38 ± ∞', '0.012 ± ∞', '1,200 ± ∞', 'nan ± ∞')
    """
    if value is None:
        return "NULL"
    if error is None:
        return str(value)
    if not math.isfinite(error):
        value = float(f"{value:.2g}")
        return f"{value:,.{digits(value) if math.isfinite(value) else 0}f} ± ∞"
    return f"{value:,.{digits(error)}f} ± {error:,.{digits(error)}f}"


def scalar(value: Any) -> Any:
    """A cell as JSON knows it: decimals are numbers, an unbounded error bar is null, dates are text."""
    if isinstance(value, Decimal):
        value = float(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def digits(error: float | None) -> int:
    """How many digits after the point an error bar of this size leaves meaningful."""
    return max(0, min(12, 1 - math.floor(math.log10(abs(error))))) if error else 0
