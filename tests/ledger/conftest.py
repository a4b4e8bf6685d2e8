"""Databases without tables: SQLite files, and PostgreSQL if a server is installed."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from .postgres import POSTGRES, Server, find_programs, run_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    folder = find_programs()
    if folder is None:
        pytest.skip("PostgreSQL is not installed: initdb is not on the PATH")
    if find_spec("psycopg") is None:
        pytest.skip("no driver for PostgreSQL: pip install 'psycopg[binary]'")
    with run_server(folder) as running:
        yield running


@pytest.fixture(params=["sqlite", POSTGRES])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of a database without tables."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.db'}"
    return request.getfixturevalue("postgres").database()
