"""Charts follow the types of an answer, show its error bars, and are saved as what the file's name says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import shop

import dpsql

altair = pytest.importorskip("altair")


@pytest.fixture(scope="module")
def db() -> dpsql.Session:
    return dpsql.connect(shop.database(shop.clean()), policy=shop.policy(epsilon=1000.0), ledger=":memory:")


def marks(chart: Any) -> list[str]:
    """The marks of the layers of each part of a chart."""
    drawn = json.loads(chart.to_json())
    return [layer["mark"]["type"] for part in drawn["vconcat"] for layer in part["layer"]]


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("SELECT status, count(*) AS n FROM orders GROUP BY status", ["bar", "errorbar"]),
        ("SELECT status, count(*) AS n, avg(amount) FROM orders GROUP BY status", ["bar", "errorbar"] * 2),
        ("SELECT count(*) AS n, sum(quantity) AS s FROM orders", ["bar", "errorbar"]),
        ("SELECT date_trunc('month', placed) AS month, count(*) FROM orders GROUP BY 1", ["area", "line"]),
        ("SELECT tier, count(*) FROM customer GROUP BY tier", ["errorbar", "point"]),
        ("SELECT tier, segment, count(*) FROM customer GROUP BY ALL", ["errorbar", "point"]),
    ],
)
def test_kinds(db: dpsql.Session, query: str, wanted: list[str]) -> None:
    answer = db.sql(query, epsilon=50.0)
    assert len(answer) and marks(answer.plot()) == wanted


def test_ends_are_those_of_the_answer(db: dpsql.Session) -> None:
    answer = db.sql("SELECT status, count(*) AS n FROM orders GROUP BY status")
    rows = answer.plot().to_dict()["data"]["values"]
    assert [(row["low"], row["high"]) for row in rows] == [cells[1] for cells in answer.interval()]
    assert [row["value"] for row in rows] == [row[1] for row in answer] and rows[0]["key"] == answer.fetchone()[0]  # type: ignore[index]


def test_files(db: dpsql.Session, tmp_path: Path) -> None:
    answer = db.sql("SELECT status, count(*) AS n FROM orders GROUP BY status")
    for ending, start in ((".png", b"\x89PNG"), (".svg", b"<svg"), (".html", b"<"), (".json", b"{")):
        answer.plot(str(tmp_path / f"chart{ending}"))
        assert (tmp_path / f"chart{ending}").read_bytes().lstrip().startswith(start)


@pytest.mark.parametrize(
    ("query", "path", "y", "code"),
    [
        ("SELECT count(*) AS n FROM orders", "chart.doc", None, "plot_not_supported"),
        ("SELECT count(*) AS n FROM orders", "/nowhere/chart.svg", None, "plot_not_supported"),
        ("SELECT count(*) AS n FROM orders", None, "m", "column_unknown"),
        ("SELECT 1 AS n", None, None, "plot_not_supported"),
    ],
)
def test_refused(db: dpsql.Session, query: str, path: str | None, y: str | None, code: str) -> None:
    with pytest.raises(dpsql.Refused) as error:
        db.sql(query).plot(path, y=y)
    assert error.value.code == code and error.value.hint


def test_without_the_extra(db: dpsql.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "altair", None)
    with pytest.raises(dpsql.Refused, match=r"extra_missing.*\n.*pip install '.\[notebook\]'"):
        db.sql("SELECT count(*) FROM orders").plot()


def test_a_notebook_keeps_a_picture(db: dpsql.Session) -> None:
    pytest.importorskip("vl_convert")
    shown = db.sql("SELECT status, count(*) AS n FROM orders GROUP BY status", epsilon=1.0).plot()._repr_mimebundle_()
    shown = shown[0] if isinstance(shown, tuple) else shown
    assert shown["image/svg+xml"].startswith("<svg")
