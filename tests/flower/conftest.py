"""Shared fixtures; the apps in `app` are run by Flower's own processes and are no tests."""

import signal

import pytest

collect_ignore = ["app"]


@pytest.fixture
def url(tmp_path) -> str:
    """Return the URL of a ledger."""
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@pytest.fixture
def hangups_end_processes():
    """Let SIGHUP end the processes that a test starts, which under nohup would ignore it."""
    former = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, former)
