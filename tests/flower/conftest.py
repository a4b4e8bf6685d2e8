"""Shared fixtures; the apps in `app` are run by Flower's own processes and are no tests."""

import pytest

collect_ignore = ["app"]


@pytest.fixture
def url(tmp_path) -> str:
    """Return the URL of a ledger."""
    return f"sqlite:///{tmp_path / 'ledger.db'}"
