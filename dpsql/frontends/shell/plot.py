"""A drawing of an answer in text: bars from zero, and error bars where there is noise."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.cells import cell_len, set_cell_size

from dpsql.answer import Answer, cell, parts, reach
from dpsql.errors import Refused
from dpsql.frontends.shell.duckbox import level, plain
from dpsql.policy.catalog import Type

LABEL = 24  # columns at the most


def plot(answer: Answer, name: str | None, rows: int, limit: int) -> Iterator[str]:
    """The lines of a plot of one column, by default the first noisy one, else the first number."""
    numeric = [i for i, type_ in enumerate(answer.types) if Type(type_).numeric]
    noisy = [i for i in numeric if any(bars[i] is not None for bars in answer.errors)]
    if name is not None:
        found = [i for i in numeric if answer.columns[i].lower() == name.lower()]
        if not found:
            hint = f"It has: {', '.join(answer.columns[i] for i in numeric)}." if numeric else "Ask for a number."
            raise Refused("column_unknown", f"the last answer has no column of numbers {name!r}", hint)
    elif not (found := noisy or numeric):
        raise Refused("column_unknown", "the last answer has no column of numbers", "Ask for a count.")
    (column, *_) = found
    texts = answer.texts()
    labels = [" ".join(row[i] or "NULL" for i in range(len(row)) if i not in {column, *noisy}) for row in texts]
    bars = [(row[column], ends[column]) for row, ends in zip(answer, answer.interval(), strict=True)]
    if len(bars) > rows:
        first, last = parts(rows)
        labels, bars = ([*some[:first], *some[len(some) - last :]] for some in (labels, bars))
    wide = min(LABEL, max(map(cell_len, labels), default=0))
    said = level([cell(value, reach(value, ends)) for value, ends in bars])
    room = max(10, limit - wide - max(map(len, said), default=0) - 4)
    reached = [0.0]
    for value, ends in bars:
        if value is not None:
            reached += [end for end in (float(value), *(ends or ())) if math.isfinite(end)]
    low, high = min(reached), max(reached)
    step = (high - low) / (room - 1) or 1.0

    def place(number: float) -> int:
        return round((min(max(number, low), high) - low) / step)

    yield f"{' ' * wide}  {plain(answer.columns[column])}"
    for label, (value, ends), text in zip(labels, bars, said, strict=True):
        cells = [" "] * room
        if value is not None and not math.isnan(value):
            zero, end = place(0), place(float(value))
            for i in range(min(zero, end), max(zero, end) + 1):
                cells[i] = "█"
            if ends is not None:
                left, right = map(place, ends)
                cells[left : right + 1] = "─" * (right + 1 - left)
                cells[left], cells[right], cells[end] = "├", "┤", "●"
        cells[place(0)] = "│" if cells[place(0)] == " " else cells[place(0)]
        yield f"{set_cell_size(plain(label), wide)}  {''.join(cells)}  {text}".rstrip()
    if len(answer) > len(bars):
        yield f"{len(answer) - len(bars):,} of {len(answer):,} rows are left out"
