"""An answer as a chart with error bars. The kind follows from the types: a line over time, points over numbers, else bars."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpsql.errors import Refused
from dpsql.policy.catalog import Type

if TYPE_CHECKING:
    from dpsql.answer import Answer

BARS = "± is the noise at 95 %; clipping is not in it"
TIMES = ("DATE", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE")
MOST = 5_000  # rows, which is what Altair takes without more ado
WIDTH, WHISKER = 480, "#c05a2e"
ENDINGS = (".png", ".svg", ".html", ".json")


def plot(answer: Answer, path: str | None = None, y: str | None = None) -> Any:
    """The chart; `y` says which column is drawn, by default all that have error bars, one under the other."""
    try:
        import altair
    except ImportError:
        raise Refused("extra_missing", "plots need Altair", "Type: pip install '.[notebook]'") from None
    if path is not None and Path(path).suffix.lower() not in ENDINGS:
        hint = f"End its name with one of: {', '.join(ENDINGS)}."
        raise Refused("plot_not_supported", f"{path!r} is no file of a kind that charts are saved as", hint)
    intervals = answer.interval()
    drawn = [i for i in range(len(answer.columns)) if any(row[i] is not None for row in intervals)]
    if y is not None:
        if y not in answer.columns:
            raise Refused(
                "column_unknown", f"the answer has no column {y!r}", f"Use one of: {', '.join(answer.columns)}."
            )
        drawn = [answer.columns.index(y)]
    if not drawn or not len(answer):
        raise Refused("plot_not_supported", "there is no number to draw", "Select an aggregate: count(*).")
    keys = [i for i in range(len(answer.columns)) if i not in drawn and not any(row[i] for row in intervals)]
    rows = [
        {
            "value": number(row[i]),
            "low": number(cell[0]) if cell else None,
            "high": number(cell[1]) if cell else None,
            "key": label(row[keys[0]], answer.types[keys[0]]) if keys else answer.columns[i],
            "colour": " ".join(str(row[k]) for k in keys[1:]),
            "column": i,
        }
        for row, ends in list(zip(answer, intervals, strict=True))[:MOST]
        for i, cell in enumerate(ends)
        if i in drawn
    ]
    if keys:
        parts = [
            one(altair, [row for row in rows if row["column"] == i], answer, keys, answer.columns[i]) for i in drawn
        ]
    else:  # one row: its columns stand side by side
        parts = [one(altair, rows, answer, keys, "")]
    title = altair.TitleParams(text=BARS, anchor="start", fontSize=11, fontWeight="normal", color="gray")
    chart = altair.vconcat(*parts).properties(title=title)
    if path is not None:
        save(chart, path)
    # A notebook keeps a picture beside it: what shows that needs no network. The chart's class is not ours to extend.
    object.__setattr__(chart, "_repr_mimebundle_", partial(bundle, chart, chart._repr_mimebundle_))
    return chart


def bundle(chart: Any, usual: Callable[..., Any], *include: Any, **exclude: Any) -> Any:
    """What a notebook shows of a chart, with a picture of it."""
    found = usual(*include, **exclude)
    data, *more = found if isinstance(found, tuple) else (found,)
    with suppress(Exception):  # without vl-convert there is none
        chart.save(svg := StringIO(), format="svg")
        data = {**(data or {}), "image/svg+xml": svg.getvalue()}
    return (data, *more) if more else data


def one(altair: Any, rows: list[dict[str, Any]], answer: Answer, keys: list[int], title: str) -> Any:
    """The chart of one column: bars lie, so that their names can be read."""
    kind = answer.types[keys[0]] if keys else "VARCHAR"
    timed, numeric = kind in TIMES, Type(kind).numeric
    scale = "T" if timed else "Q" if numeric else "N"
    name = answer.columns[keys[0]] if keys else None
    base = altair.Chart(altair.Data(values=rows))
    if len(keys) > 1:
        base = base.encode(color=altair.Color("colour:N", title=", ".join(answer.columns[k] for k in keys[1:])))
    ends = (altair.Tooltip(f"{end}:Q") for end in ("value", "low", "high"))
    hints = [altair.Tooltip(f"key:{scale}", title=name or "column"), *ends]
    if scale == "N":
        base = base.encode(y=altair.Y("key:N", title=name, sort=None))
        if len(keys) > 1:
            base = base.encode(yOffset=altair.YOffset("colour:N"))
        shown = base.mark_bar().encode(x=altair.X("value:Q", title=title or None), tooltip=hints)
        bars = base.mark_errorbar(ticks=True, color=WHISKER).encode(
            x=altair.X("low:Q", title=title or None), x2="high:Q"
        )
        return altair.layer(shown, bars).properties(width=WIDTH)
    base = base.encode(x=altair.X(f"key:{scale}", title=name, scale=altair.Scale(zero=False)))
    high, value = {"y": altair.Y("low:Q", title=title), "y2": "high:Q"}, altair.Y("value:Q", title=title)
    if timed:
        layers = (
            base.mark_area(opacity=0.25).encode(**high),
            base.mark_line(point=True).encode(y=value, tooltip=hints),
        )
    else:
        points = base.mark_point(filled=True, size=40).encode(y=value, tooltip=hints)
        layers = (
            base.mark_errorbar(ticks=True, **({} if len(keys) > 1 else {"color": WHISKER})).encode(**high),
            points,
        )
    return altair.layer(*layers).properties(width=WIDTH)


def save(chart: Any, path: str) -> None:
    """Write the chart to a file."""
    try:
        chart.save(path)
    except ImportError:
        raise Refused("extra_missing", "PNG and SVG need vl-convert", "Type: pip install '.[notebook]'") from None
    except OSError as error:
        raise Refused(
            "plot_not_supported", f"{path!r} cannot be written: {error.strerror}", "Check the path."
        ) from None


def number(value: Any) -> float | None:
    """A number as JSON has it; an error bar without end is cut."""
    if value is None or not -1e300 < float(value) < 1e300:
        return None
    return float(value)


def label(value: Any, type_: str) -> Any:
    """A key as JSON has it."""
    if value is None:
        return "NULL" if not Type(type_).numeric and type_ not in TIMES else None
    return float(value) if Type(type_).numeric else str(value)
