"""What a recorded result was computed with: the versions of the software, and the processor."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_NAMES = {"torch": "PyTorch", "numpy": "NumPy", "python": "Python"}


def versions(packages: Iterable[str] = ("fedtide", "torch")) -> str:
    """Return the versions of packages, or of "python", as text, without build information.

    >>> versions(["numpy", "python"]).split()[::2]
    ['NumPy', 'Python']
    """
    return ", ".join(f"{_NAMES.get(one, one)} {_version(one)}" for one in packages)


def _version(package: str) -> str:
    if package == "python":
        return platform.python_version()
    try:
        return version(package).partition("+")[0]
    except PackageNotFoundError:  # code run from a source folder
        return "(not installed)"


@cache
def machine() -> str:
    """Return the processor, with its family and model on Linux, and the number of cores."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    facts = {name.strip(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
    name = facts.get("model name") or platform.processor() or platform.machine()
    exact = [f"{fact} {facts[fact]}" for fact in ("cpu family", "model") if fact in facts]
    return ", ".join([name, *exact, f"{os.cpu_count()} cores"])
