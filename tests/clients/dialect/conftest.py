"""Run SQLAlchemy's own suite: `make clients`, or `pytest -c tests/clients/dialect/setup.cfg tests/clients/dialect`."""

import sys
from pathlib import Path

import pytest
from sqlalchemy.dialects import registry

sys.path.insert(0, str(Path(__file__).parent))
for name in ("dpsqlsuite", "dpsqlsuite.dpsql"):
    registry.register(name, "harness", "SuiteDialect")
pytest.register_assert_rewrite("sqlalchemy.testing.assertions")

from sqlalchemy.testing.plugin.pytestplugin import *  # noqa: E402, F403

# What fails, and why it stays so. Each is held to fail: what begins to work leaves the list.
KNOWN = {
    "test_null_bound_comparison": "NULL is not a parameter: x IS NULL is to be written",
    "test_string_length_reflection": "DuckDB's texts have no length",
    "test_autoincrement": "keys are not counted by dpsql",
    "test_long_convention_name[ix": "indexes have no names to reflect",
    "test_get_view_names[False": "views are those of the policy, which is read when connecting",
    "test_has_table_cache": "the suite's tables change behind the session",
    "ReturningGuardsTest": "what writes is the owner's, and DuckDB has RETURNING",
    "test_floordiv_numeric": "arithmetic of decimals is DuckDB's",
    "test_truediv_divisor[numeric_38": "arithmetic of decimals is DuckDB's",
    "test_truediv_numeric": "arithmetic of decimals is DuckDB's",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for name, why in KNOWN.items():
            if name in item.nodeid:
                item.add_marker(pytest.mark.xfail(reason=why))
