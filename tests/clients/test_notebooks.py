"""JupySQL and marimo over dpsql, each as its users would: by URL and by connection. Run by `make clients`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dpsql.frontends.demo import make

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("sql")
pytest.importorskip("marimo")
URL = "dpsql:///shop.duckdb?policy=shop.policy.toml"
GROUPED = "SELECT segment, count(*) AS n FROM customer GROUP BY segment"
MARIMO = f"""
import marimo
app = marimo.App()

@app.cell
def _():
    import dpsql.dbapi, marimo as mo, sqlalchemy
    frames = [
        mo.sql("{GROUPED}", engine=sqlalchemy.create_engine("{URL}"), output=False),
        mo.sql("{GROUPED}", engine=dpsql.dbapi.connect("shop.duckdb"), output=False),
    ]
    print([frame.columns for frame in frames], [len(frame) for frame in frames])
    return

if __name__ == "__main__":
    app.run()
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return make(tmp_path).parent


def run(place: Path, *cells: str) -> list[Any]:
    """The last output of each cell."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, allow_errors=True, resources={"metadata": {"path": place}}).execute()
    return [cell.outputs[-1] if cell.outputs else None for cell in notebook.cells]


def test_jupysql(place: Path) -> None:
    *_, rows, bars, tables, refused = run(
        place,
        "%load_ext sql\n%config SqlMagic.autopandas = True",
        f"%sql {URL}",
        f"%%sql\n{GROUPED}",
        "%sql SELECT avg(age) AS a, DP_INTERVAL_LOW(a) AS low FROM customer",
        "%sqlcmd tables",
        "%sql SELECT id FROM customer",
    )
    assert "business" in rows["data"]["text/plain"] and "low" in bars["data"]["text/plain"]
    assert "customer" in str(tables["data"]) and "hint: Rows about persons are never shown" in str(refused)


def test_marimo(place: Path) -> None:
    (place / "notebook.py").write_text(MARIMO)
    done = subprocess.run([sys.executable, "notebook.py"], cwd=place, capture_output=True, text=True)
    assert done.stdout.strip().endswith("[['segment', 'n'], ['segment', 'n']] [4, 4]"), done.stderr
