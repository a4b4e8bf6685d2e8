"""Fixtures of the monitor's tests."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from fedtide.monitoring.monitor import Monitor
from fedtide.monitoring.server import serve


@pytest.fixture
def url(tmp_path) -> str:
    """Return the URL of a ledger."""
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@pytest.fixture
def serving() -> Iterator[Callable[[Monitor], str]]:
    """Return a function that serves a monitor until the test ends, and returns its address."""
    with ExitStack() as stack:
        yield lambda monitor: stack.enter_context(serve(monitor, port=0)).url
