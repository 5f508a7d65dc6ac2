"""The notebook in examples/ runs in a real kernel, and shows tables, frames, charts and refusals as its text says."""

from __future__ import annotations

import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import shop

import dpsql

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
if find_spec("ipykernel") is None:  # which is not imported here: dpsql would take this process for a notebook
    pytest.skip("ipykernel is not installed", allow_module_level=True)
NOTEBOOK = Path(__file__).parent.parent / "examples" / "first_questions.ipynb"


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """What each cell of the notebook has put out, by its first line."""
    directory = tmp_path_factory.mktemp("notebook")
    shutil.copy(NOTEBOOK, directory)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    paths = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))  # where the command dpsql is
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", paths)
        patch.setenv("JUPYTER_PLATFORM_DIRS", "1")
        nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": directory}}).execute()
    if keep := os.environ.get("DPSQL_KEEP_NOTEBOOK"):
        nbformat.write(notebook, keep)
    return {cell.source: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}


def output(cells: dict[str, list[Any]], start: str) -> Any:
    (found,) = (outputs for source, outputs in cells.items() if source.startswith(start))
    return found


def test_connecting_shows_the_tables(cells: dict[str, list[Any]]) -> None:
    (shown,) = (one for one in output(cells, "%load_ext") if one.output_type == "execute_result")
    assert "customer (person: id" in shown.data["text/plain"] and "between 0 and 500" in shown.data["text/plain"]


def test_an_answer_is_a_table_with_bars(cells: dict[str, list[Any]]) -> None:
    announced, shown = output(cells, "%%dpsql --epsilon 0.2")
    assert announced.name == "stderr" and "new ledger" in announced.text
    assert shown.data["text/html"].count("<svg") == 8 and "±" in shown.data["text/plain"]
    assert "note: " in shown.data["text/html"] and "epsilon 0.2" in shown.data["text/html"]


def test_explain_frame_and_chart(cells: dict[str, list[Any]]) -> None:
    (told,) = output(cells, "%%dpsql --to explain")
    assert told.text.startswith("cost  ") and "error     average" in told.text
    (frame,) = output(cells, "months.head")
    assert "orders_low" in frame.data["text/plain"] and not output(cells, "%%dpsql --to df")
    (chart,) = output(cells, "%%dpsql --to plot")
    assert "vega" in chart.data["text/html"]


def test_a_refusal_is_text_and_costs_nothing(cells: dict[str, list[Any]]) -> None:
    (said,) = output(cells, "%%dpsql\nSELECT customer")
    assert said.name == "stderr" and "hint: " in said.text and "Traceback" not in said.text
    (left,) = output(cells, "%dpsql")
    assert "% of the budget is left" in left.data["text/plain"]
    (frame,) = output(cells, "import dpsql")
    assert "low" in frame.data["text/plain"]


def test_explain_as_a_word_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell()
    shell.user_ns["db"] = dpsql.connect(shop.database(shop.clean()), policy=shop.policy(), ledger=":memory:")
    shell.run_cell("%load_ext dpsql")
    shell.run_cell_magic("dpsql", "--using db --explain", "SELECT count(*) FROM orders")
    assert capsys.readouterr().out.startswith("cost  ")


def test_without_a_connection(capsys: pytest.CaptureFixture[str]) -> None:
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell()
    shell.run_line_magic("load_ext", "dpsql")
    assert shell.run_line_magic("dpsql", "") is None
    assert "not_connected" in (said := capsys.readouterr().err) and "%dpsql shop.duckdb" in said
    shell.user_ns["db"] = 1
    shell.run_cell_magic("dpsql", "--using db", "SELECT 1")
    assert "'db' is not a session" in capsys.readouterr().err
