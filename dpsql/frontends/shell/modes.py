"""Output modes for machines and documents: character for character as DuckDB's shell writes them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from rich.cells import cell_len

from dpsql.frontends.shell.settings import Settings

Cells = Sequence[str | None]
FLAG = re.compile("[\U0001f1e6-\U0001f1ff]{2}")
JOINED = re.compile("\u200d.?|[\ufe00-\ufe0f\U0001f3fb-\U0001f3ff]")
QUOTED = re.compile("[\x00-\x1f\"'\x7f-\U0010ffff]")


@dataclass(frozen=True)
class Table:
    """An answer as text."""

    names: tuple[str, ...]
    numeric: tuple[bool, ...]
    rows: Sequence[Cells]


def width(text: str) -> int:
    """How wide DuckDB's shell takes the last line of a text to be: characters that are drawn as one are as wide as the first.

    >>> width("日本"), width("a\\tb"), width("long\\nab")
    (4, 9, 2)
    """
    return cell_len(JOINED.sub("", FLAG.sub(".", text.rpartition("\n")[2].expandtabs(8))))


def write(table: Table, settings: Settings) -> Iterator[str]:
    """The table as the mode has it, in pieces. In the JSON modes the cells are JSON already."""
    return WAYS[settings.mode](table, settings)


def filled(row: Cells, settings: Settings) -> list[str]:
    return [settings.nullvalue if cell is None else cell for cell in row]


def as_csv(table: Table, settings: Settings) -> Iterator[str]:
    def cell(text: str) -> str:
        if QUOTED.search(text) or settings.between in text:
            return '"' + text.replace('"', '""') + '"'
        return text

    for row in (*[table.names] * settings.headers, *table.rows):
        yield settings.between.join(map(cell, filled(row, settings))) + "\n"


def as_list(table: Table, settings: Settings) -> Iterator[str]:
    if settings.headers:
        yield settings.between.join(table.names) + "\n"
    for row in table.rows:
        yield settings.between.join(filled(row, settings)) + "\n"


def objects(table: Table) -> Iterator[str]:
    names = [json.dumps(name, ensure_ascii=False) for name in table.names]
    for row in table.rows:
        cells = ("null" if cell is None else cell for cell in row)
        yield "{" + ",".join(f"{name}:{cell}" for name, cell in zip(names, cells, strict=True)) + "}"


def as_json(table: Table, settings: Settings) -> Iterator[str]:
    start = "["
    for text in objects(table):
        yield start + text
        start = ",\n"
    yield "]\n" if table.rows else "[]\n"


def as_jsonlines(table: Table, settings: Settings) -> Iterator[str]:
    for text in objects(table):
        yield text + "\n"
    if not table.rows:
        yield "\n"


def as_line(table: Table, settings: Settings) -> Iterator[str]:
    most = max(5, *(len(name.encode()) for name in table.names))
    for number, row in enumerate(table.rows):
        yield "\n" * bool(number)
        for name, cell in zip(table.names, filled(row, settings), strict=True):
            yield f"{' ' * (most - len(name.encode()))}{name} = {cell}\n"


def as_html(table: Table, settings: Settings) -> Iterator[str]:
    def row(cells: Cells, tag: str) -> str:
        texts = (escape(cell).replace("&#x27;", "&#39;") for cell in filled(cells, settings))
        return f"<tr>{''.join(f'<{tag}>{text}</{tag}>{chr(10)}' for text in texts)}</tr>\n"

    if settings.headers:
        yield row(table.names, "th")
    for cells in table.rows:
        yield row(cells, "td")


def padded(text: str, wide: int) -> str:
    return text + " " * (wide - width(text))


def centred(text: str, wide: int) -> str:
    left = (wide - width(text)) // 2
    return " " * left + padded(text, wide - left)


def measured(names: Cells, rows: Sequence[Cells]) -> list[int]:
    return [max(width(row[i] or "") for row in (names, *rows)) for i in range(len(names))]


def as_markdown(table: Table, settings: Settings) -> Iterator[str]:
    names, *rows = ([cell.replace("|", "\\|") for cell in filled(row, settings)] for row in (table.names, *table.rows))
    wide = measured(names, rows)
    yield f"| {' | '.join(map(centred, names, wide))} |\n"
    rule = ("-" * (w + 1) + ":" if right else "-" * (w + 2) for w, right in zip(wide, table.numeric, strict=True))
    yield f"|{'|'.join(rule)}|\n"
    for row in rows:
        yield f"| {' | '.join(map(padded, row, wide))} |\n"


def as_table(table: Table, settings: Settings) -> Iterator[str]:
    return boxed(list(table.names), [filled(row, settings) for row in table.rows], "+++", "+++", "+++", "-", "|")


def as_box(table: Table, settings: Settings) -> Iterator[str]:
    names, *rows = ([c.replace("\n", "\\n") for c in filled(row, settings)] for row in (table.names, *table.rows))
    return boxed(names, rows, "┌┬┐", "├┼┤", "└┴┘", "─", "│")


def boxed(
    names: list[str], rows: list[list[str]], top: str, middle: str, bottom: str, across: str, down: str
) -> Iterator[str]:
    wide = measured(names, rows)

    def rule(ends: str) -> str:
        return ends[0] + ends[1].join(across * (w + 2) for w in wide) + ends[2] + "\n"

    between = f" {down} "
    yield rule(top)
    yield f"{down} {between.join(map(centred, names, wide))} {down}\n"
    yield rule(middle)
    for row in rows:
        yield f"{down} {between.join(map(padded, row, wide))} {down}\n"
    yield rule(bottom)


WAYS: dict[str, Callable[[Table, Settings], Iterator[str]]] = {
    "csv": as_csv,
    "json": as_json,
    "jsonlines": as_jsonlines,
    "markdown": as_markdown,
    "list": as_list,
    "line": as_line,
    "html": as_html,
    "box": as_box,
    "table": as_table,
}
