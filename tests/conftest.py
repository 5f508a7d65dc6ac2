"""Options and fixtures that several tests share."""

from __future__ import annotations

import pytest
import shop

import dpsql


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-specs", action="store_true", help="rewrite the expectations in tests/specs")


@pytest.fixture(scope="session")
def clean() -> dpsql.Session:
    """A session on the clean shop."""
    return dpsql.connect(shop.database(shop.clean()), policy=shop.policy(), ledger=":memory:")
