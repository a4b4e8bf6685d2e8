"""Databases without tables: SQLite files, and PostgreSQL if a server is installed."""

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from .postgres import POSTGRES, find_programs, run_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[Callable[[], str]]:
    folder = find_programs()
    if folder is None:
        pytest.skip("PostgreSQL is not installed: initdb is not on the PATH")
    if find_spec("psycopg") is None:
        pytest.skip("no driver for PostgreSQL: pip install 'psycopg[binary]'")
    with run_server(folder) as running:
        yield running


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@pytest.fixture(params=["sqlite", POSTGRES])
def url(request: pytest.FixtureRequest, file_url: str) -> str:
    """Return the URL of a database without tables."""
    if request.param == "sqlite":
        return file_url
    return request.getfixturevalue("postgres")()
