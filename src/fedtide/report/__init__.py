"""Tables, figures and HTML pages about runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedtide.report.api import write_report

__all__ = ["write_report"]


def __getattr__(name: str) -> object:
    """Import the function on first use: matplotlib takes a while."""
    if name == "write_report":
        from fedtide.report.api import write_report

        return write_report
    raise AttributeError(f"module 'fedtide.report' has no attribute {name!r}")
