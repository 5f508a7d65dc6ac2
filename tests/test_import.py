"""Loading dpsql, or the command line's help, loads neither the engine nor the parser nor numpy."""

from __future__ import annotations

import subprocess
import sys

import pytest

import dpsql


@pytest.mark.parametrize("module", ["dpsql", "dpsql.frontends.cli"])
def test_nothing_heavy_is_loaded(module: str) -> None:
    heavy = "{'duckdb', 'sqlglot', 'numpy', 'dpsql._native'}"
    code = f"import sys, {module}; print(sorted({heavy} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_names() -> None:
    assert set(dpsql.__all__) <= set(dir(dpsql))
    assert all(getattr(dpsql, name).__name__ == name for name in dpsql.__all__)
    with pytest.raises(AttributeError):
        dpsql.nothing  # noqa: B018
