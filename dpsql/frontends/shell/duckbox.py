"""The default output: a box as DuckDB draws it, with ± beside noisy numbers, cut in the middle where it does not fit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len as width
from rich.cells import set_cell_size

from dpsql.answer import parts

SHORT = {
    "TINYINT": "int8",
    "SMALLINT": "int16",
    "INTEGER": "int32",
    "BIGINT": "int64",
    "HUGEINT": "int128",
    "UTINYINT": "uint8",
    "USMALLINT": "uint16",
    "UINTEGER": "uint32",
    "UBIGINT": "uint64",
    "UHUGEINT": "uint128",
    '"NULL"': "null",
}
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
SLACK = 3  # rows more than asked for are shown whole: the dots would take as many
NARROW = 20  # texts are cut to this before columns are hidden
LEAST = 5


@dataclass(frozen=True)
class Column:
    """A column as it is drawn."""

    name: str
    type: str
    cells: Sequence[str]
    right: bool = False
    whole: bool = False  # a number that has lost digits would be another number

    @property
    def wide(self) -> int:
        return max(width(text) for text in (self.name, self.type, *self.cells, ""))

    @property
    def least(self) -> int:
        return max((width(cell) for cell in self.cells), default=1) if self.whole else min(self.wide, LEAST)


def short(type_: str) -> str:
    """The name of a type as DuckDB's shell shows it.

    >>> short("BIGINT"), short("INTEGER[]"), short("DECIMAL(10,2)")
    ('int64', 'int32[]', 'decimal(10,2)')
    """
    return re.sub(r'\w+|"NULL"', lambda word: SHORT.get(word[0], word[0].lower()), type_)


def plain(text: str) -> str:
    r"""A text without what moves the cursor.

    >>> plain("a\nb")
    'a\\nb'
    """
    return CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


def level(cells: Sequence[str]) -> list[str]:
    """Cells of a noisy column, with the ± below each other."""
    halves = [cell.partition(" ± ") for cell in cells]
    left, right = (max((len(half[i]) for half in halves if half[1]), default=0) for i in (0, 2))
    return [f"{value:>{left}} ± {error:>{right}}" if sign else value for value, sign, error in halves]


def across(columns: Sequence[Column], most: int) -> list[Column]:
    """The same answer with a column for each row."""
    count = len(columns[0].cells)
    shown = range(count) if count <= most else [*range(parts(most)[0]), *range(count - parts(most)[1], count)]
    turned = [Column("Column", "", [c.name for c in columns]), Column("Type", "", [c.type for c in columns])]
    return turned + [Column(f"Row {i + 1}", "", [c.cells[i].strip() for c in columns], right=True) for i in shown]


def draw(columns: Sequence[Column], rows: int, most: int, limit: int, turned: bool = False) -> Iterator[str]:
    """The lines of a box. Of more than `most` rows the first and last are drawn, in at most `limit` columns of the terminal."""
    count = len(columns)
    columns = [replace(c, name=plain(c.name), cells=[plain(cell) for cell in c.cells]) for c in columns]
    cut = False
    if turned and rows:
        cut, columns = rows > most, across(columns, most)
    elif rows > most + SLACK:
        first, last = parts(most)
        cut, columns = True, [replace(c, cells=[*c.cells[:first], *c.cells[rows - last :]]) for c in columns]
    wide, shown = fit(columns, limit)
    hidden = len(shown) < len(columns)
    if hidden:
        middle = (len(shown) + 1) // 2
        lines = len(columns[0].cells)
        columns = [columns[i] for i in shown]
        columns.insert(middle, Column("…", "…" if columns[0].type else "", ["…"] * lines))
        wide = [wide[i] for i in shown]
        wide.insert(middle, 1)
    yield rule("┌┬┐", wide)
    yield line([centred(clipped(c.name, w), w) for c, w in zip(columns, wide, strict=True)])
    if any(c.type for c in columns):
        yield line([centred(clipped(c.type, w), w) for c, w in zip(columns, wide, strict=True)])
    if rows:
        yield rule("├┼┤", wide)
    for number in range(len(columns[0].cells)):
        if cut and not turned and number == parts(most)[0]:
            yield from [line([dot(c, w) for c, w in zip(columns, wide, strict=True)])] * SLACK
        yield line([placed(c, c.cells[number], w) for c, w in zip(columns, wide, strict=True)])
    yield rule("└┴┘", wide)
    seen = len(shown) - 2 if turned and rows else most
    left = counted(rows, "row") + (f" ({seen:,} shown)" if cut or (turned and hidden) else "")
    right = counted(count, "column") + (f" ({len(shown)} shown)" if hidden and not turned else "")
    yield f"  {left}{' ' * max(2, sum(wide) + 3 * len(wide) - 3 - len(left) - len(right))}{right}"


def counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


def rule(ends: str, wide: Sequence[int]) -> str:
    return ends[0] + ends[1].join("─" * (w + 2) for w in wide) + ends[2]


def line(cells: Sequence[str]) -> str:
    return f"│ {' │ '.join(cells)} │"


def dot(column: Column, wide: int) -> str:
    return centred("·", wide) if not column.right else " " * (wide - 1) + "·"


def placed(column: Column, cell: str, wide: int) -> str:
    text = clipped(cell, wide)
    return " " * (wide - width(text)) + text if column.right else padded(text, wide)


def padded(text: str, wide: int) -> str:
    return text + " " * (wide - width(text))


def centred(text: str, wide: int) -> str:
    left = (wide - width(text)) // 2
    return " " * left + padded(text, wide - left)


def clipped(text: str, wide: int) -> str:
    return text if width(text) <= wide else set_cell_size(text, wide - 1) + "…"


def fit(columns: Sequence[Column], limit: int) -> tuple[list[int], list[int]]:
    """How wide each column is, and which are shown: texts are cut first, then columns in the middle are left out."""
    wish = [column.wide for column in columns]
    wide, shown = list(wish), list(range(len(columns)))

    def over() -> int:
        dots = 4 * (len(shown) < len(columns))
        return sum(wide[i] + 3 for i in shown) + 1 + dots - limit

    def narrow(least: int) -> None:
        while over() > 0:
            i = max(shown, key=lambda i: wide[i] - max(least, columns[i].least))
            bound = max(least, columns[i].least)
            if wide[i] <= bound:
                return
            rest = [wide[j] for j in shown if j != i]
            wide[i] = max(bound, min(wide[i] - 1, max(wide[i] - over(), max(rest, default=0))))

    narrow(NARROW)
    while over() > 0 and len(shown) > 2:
        del shown[len(shown) // 2]
    narrow(LEAST)
    for i in shown:
        wide[i] += max(0, min(wish[i] - wide[i], -over()))
    return wide, shown
