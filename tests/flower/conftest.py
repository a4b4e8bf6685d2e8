"""The apps that Flower's own processes run are no modules of these tests."""

import pytest

collect_ignore = ["app"]


@pytest.fixture
def quick(monkeypatch):
    """Let Flower look for work more often than once a second."""
    monkeypatch.setenv("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", "0.2")
