"""An answer as HTML: the table with its error bars drawn, the notes and the price under it. For notebooks, light or dark."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING, Any

from dpsql.policy.catalog import Type

if TYPE_CHECKING:
    from dpsql.answer import Answer, Ends

WIDTH, HEIGHT = 120, 14  # of a drawn error bar, in pixels
BAR, WHISKER = "#7aa6d8", "#c05a2e"


def html(answer: Answer, most: int = 40) -> str:
    """The whole of it, in one element without scripts; of more than `most` rows the first and the last."""
    intervals, rows = answer.interval(), list(answer)
    scales = [scale([row[i] for row in intervals]) for i in range(len(answer.columns))]
    numeric = [Type(type_).numeric for type_ in answer.types]
    heads = "".join(
        f'<th style="text-align:{"right" if number else "left"}">{escape(name)}</th>' + "<th></th>" * (ends is not None)
        for name, number, ends in zip(answer.columns, numeric, scales, strict=True)
    )
    body = []
    for cells, place in zip(answer.excerpt(most), answer.places(most), strict=True):
        row = []
        for i, cell in enumerate(cells):
            row.append(f'<td style="text-align:{"right" if numeric[i] else "left"}">{escape(cell)}</td>')
            if (ends := scales[i]) is not None:
                drawn = bar(rows[place][i], intervals[place][i], ends) if place is not None else ""
                row.append(f"<td>{drawn}</td>")
        body.append(f"<tr>{''.join(row)}</tr>")
    under = "".join(f"<div>{escape(line)}</div>" for line in answer.remarks(most))
    return (
        f"<div><table><thead><tr>{heads}</tr></thead><tbody>{''.join(body)}</tbody></table>"
        f'<div style="opacity:.75;font-size:90%">{under}</div></div>'
    )


def scale(column: list[Ends | None]) -> tuple[float, float] | None:
    """From where to where the bars of a column are drawn: from zero or below; None where there is nothing to draw."""
    ends = [end for cell in column if cell is not None for end in cell if math.isfinite(end)]
    if not ends or not any(ends):
        return None
    return min(0.0, *ends), max(0.0, *ends)


def bar(value: Any, ends: Ends | None, across: tuple[float, float]) -> str:
    """A bar from zero to the value, and a line from one end of the interval to the other."""
    if ends is None or value is None:
        return ""
    low, high = across

    def at(number: float) -> float:
        return round((min(max(float(number), low), high) - low) / ((high - low) or 1.0) * (WIDTH - 2) + 1, 1)

    left, right = sorted((at(0.0), at(value)))
    middle = HEIGHT / 2
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="error bar">'
        f'<rect x="{left}" y="3" width="{max(right - left, 0.5)}" height="{HEIGHT - 6}" fill="{BAR}"/>'
        f'<path d="M{at(ends[0])} {middle}H{at(ends[1])}M{at(ends[0])} 4V{HEIGHT - 4}M{at(ends[1])} 4V{HEIGHT - 4}" '
        f'stroke="{WHISKER}" stroke-width="1.5" fill="none"/></svg>'
    )
