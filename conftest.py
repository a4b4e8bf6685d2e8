"""Skips modules and tests whose libraries come with an extra that is not installed."""

from importlib.util import find_spec

NEEDS = {
    "flwr": ["src/fedtide/flower/*", "tests/flower/*"],
    "sqlalchemy": [
        "src/fedtide/participation/log/ledger*.py",
        "src/fedtide/flower/*",
        "tests/flower/*",
        "src/fedtide/monitoring/*",
        "tests/monitoring/*",
    ],
    "zensical": ["tests/docs/*"],
    "prometheus_client": ["src/fedtide/monitoring/*", "tests/monitoring/*"],
}

missing = [library for library in NEEDS if find_spec(library) is None]
collect_ignore_glob = sorted({path for library in missing for path in NEEDS[library]})


def pytest_report_header() -> list[str]:
    """List what is skipped."""
    return [f"{library} is missing: {', '.join(NEEDS[library])} skipped" for library in missing]
