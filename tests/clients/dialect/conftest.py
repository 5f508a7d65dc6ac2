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
