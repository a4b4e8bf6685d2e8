"""The structure of the package: imports point one way, and names are found once."""

import ast
import importlib
import inspect
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

import fedtide

ROOT = Path(fedtide.__file__).parent
APPS = ROOT / "examples"
FILES = sorted(file for file in ROOT.rglob("*.py") if file.parent.parent != APPS)

BASICS = {
    "activity",
    "errors",
    "validation",
    "randomness",
    "population",
    "client_values",
    "atomic_io",
    "cache_folder",
    "locking",
    "metric_direction",
    "provenance",
    "spec",
    "import_paths",
    "device_copies",
    "text_files",
    "yaml_text",
    "student_interval",
    "summary_text",
    "html_page",
}
LEDGER = "flower.ledger"
"""A package of its own, which audits and the monitor read without Flower."""

MAY_IMPORT = {
    "participation": set(),
    "algorithms": set(),
    "problems": set(),
    "examples": set(),
    "plotting": set(),
    "theory": set(),
    "training": {"problems", "algorithms"},
    "differential_privacy": {"algorithms"},
    "privacy": {"differential_privacy", "auditing"},
    "simulation": {
        "participation",
        "algorithms",
        "differential_privacy",
        "problems",
        "training",
        "plotting",
    },
    "callbacks": {"simulation"},
    "testing": {"participation", "algorithms", "problems", "training", "simulation"},
    "auditing": {
        "participation",
        "algorithms",
        "differential_privacy",
        "problems",
        "training",
        "simulation",
        "theory",
        "plotting",
        LEDGER,
    },
    LEDGER: {"participation"},
    "monitoring": {"participation", "auditing", LEDGER},
    "flower": {
        LEDGER,
        "participation",
        "algorithms",
        "differential_privacy",
        "problems",
        "training",
        "simulation",
        "auditing",
        "monitoring",
        "examples",
    },
    "tracking": {"simulation", "report"},
    "report": {
        "simulation",
        "participation",
        "algorithms",
        "plotting",
        "auditing",
        "differential_privacy",
    },
    "sweep": {"simulation", "tracking"},
    "papers": {
        "participation",
        "algorithms",
        "problems",
        "training",
        "simulation",
        "sweep",
        "report",
        "theory",
        "plotting",
    },
    "leaderboard": {
        "participation",
        "problems",
        "training",
        "simulation",
        "sweep",
        "plotting",
    },
}
"""What each package may import besides itself and the basics; all others are on top of them."""

PRIVATE = {
    "torch._inductor": "training/trainers/_graph_capture.py",
    "torch.fx": "training/trainers/_graph_capture.py",
}
"""Private interfaces, and the only module that may use them."""

DRIVEN = {"absorb", "instruct", "choose_cohort"}
"""The methods of an algorithm that the driver of a round calls."""


@cache
def nodes(file):
    """Return the nodes of a file's syntax tree."""
    return list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))


@cache
def imported(file):
    """Return the dotted names that a file imports, anywhere in the file."""
    names = set()
    for node in nodes(file):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def packages_imported(file):
    """Return the packages of fedtide that a file imports."""
    names = {name.removeprefix("fedtide.") for name in imported(file) if name[:8] == "fedtide."}
    return {LEDGER if name.startswith(LEDGER) else name.split(".")[0] for name in names}


def package(file):
    """Return the package of a file, or the name of a module at the top level."""
    if LEDGER.replace(".", "/") in file.relative_to(ROOT).as_posix():
        return LEDGER
    return file.relative_to(ROOT).parts[0].removesuffix(".py")


@pytest.mark.parametrize("name", MAY_IMPORT)
def test_a_package_imports_only_the_packages_below_it(name):
    allowed = {name} | BASICS | MAY_IMPORT[name]
    for file in FILES:
        if package(file) == name:
            used = packages_imported(file)
            assert used <= allowed, f"{file.relative_to(ROOT)} imports {sorted(used - allowed)}"


@pytest.mark.parametrize("name", sorted(BASICS))
def test_the_basics_import_only_each_other(name):
    for file in FILES:
        if package(file) == name:
            assert packages_imported(file) <= BASICS


def test_every_package_is_listed():
    packages = {path.name for path in ROOT.iterdir() if (path / "__init__.py").exists()}
    assert packages <= set(MAY_IMPORT) | BASICS | {"cli"}


def test_imports_have_no_cycle():
    below = {name: set(others) for name, others in MAY_IMPORT.items()}
    while below:
        free = {name for name, others in below.items() if not others & set(below)}
        assert free, f"a cycle among {sorted(below)}"
        below = {name: others for name, others in below.items() if name not in free}


def test_participation_needs_no_torch_and_algorithms_read_no_files():
    for file in FILES:
        libraries = {name.split(".")[0] for name in imported(file)}
        if package(file) == "participation":
            assert "torch" not in libraries
        if package(file) == "algorithms":
            assert "polars" not in libraries


def test_module_names_are_unique():
    names = Counter(file.name for file in FILES)
    repeated = {name for name, count in names.items() if count > 1}
    assert repeated <= {"__init__.py", "base.py", "api.py"}


@pytest.mark.parametrize("interface", PRIVATE)
def test_private_interfaces_are_used_in_one_module_only(interface):
    for file in FILES:
        if interface in file.read_text(encoding="utf-8"):
            assert file.relative_to(ROOT).as_posix() == PRIVATE[interface]


def test_algorithms_are_driven_in_one_place():
    """Only the driver of a round, and algorithms that wrap others, call their methods."""
    for file in FILES:
        if package(file) == "algorithms":
            continue
        for node in nodes(file):
            called = node.func if isinstance(node, ast.Call) else None
            if isinstance(called, ast.Attribute) and called.attr in DRIVEN:
                owner = ast.unparse(called.value)
                assert "algorithm" not in owner, f"{file}: {owner}.{called.attr}"


def documented_modules():
    """Return the dotted names of the modules that can be imported here."""
    names = [".".join(file.relative_to(ROOT.parent).with_suffix("").parts) for file in FILES]
    return [name.removesuffix(".__init__") for name in names]


def test_every_public_method_is_documented_or_overrides_a_documented_one():
    for name in documented_modules():
        try:
            module = importlib.import_module(name)
        except ImportError:  # the library of an extra is missing
            continue
        for _, cls in inspect.getmembers(module, inspect.isclass):
            if cls.__module__ != name or cls.__name__.startswith("_"):
                continue
            for method, value in vars(cls).items():
                if not method.startswith("_") and (callable(value) or isinstance(value, property)):
                    assert inspect.getdoc(getattr(cls, method)), f"{name}: {cls.__name__}.{method}"
