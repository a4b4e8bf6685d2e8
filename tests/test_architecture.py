"""The rooms of the house: arrows point one way, and files stay small."""

import ast
from pathlib import Path

import pytest

import fedtide

ROOT = Path(fedtide.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

GROUND = {"errors", "files", "checks", "randomness", "population"}
MAY_IMPORT = {
    "participation": set(),
    "algorithms": set(),
    "problems": set(),
    "theory": set(),
    "training": {"problems"},
    "audit": {"participation", "algorithms", "problems", "training", "simulation", "theory"},
    "simulation": {"participation", "algorithms", "problems", "training"},
    "flower": {"participation", "algorithms", "problems", "training", "simulation", "audit"},
    "sweep": {"simulation", "tracking"},
    "tracking": {"simulation", "report"},
    "report": {"simulation", "participation", "algorithms", "audit"},
    "papers": {
        "participation",
        "algorithms",
        "problems",
        "training",
        "simulation",
        "sweep",
        "report",
        "theory",
    },
}
"""What each room may import, besides itself and the ground; what is not named here sits on top."""


def imported(file):
    """Return the dotted names of fedtide that a file imports, wherever in the file."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in names if name.split(".")[0] == "fedtide"}


def room(file):
    """Return the room of a file, or the name of a module that stands in none."""
    return file.relative_to(ROOT).parts[0].removesuffix(".py")


@pytest.mark.parametrize("name", MAY_IMPORT)
def test_a_room_imports_only_what_it_stands_on(name):
    allowed = {name} | GROUND | MAY_IMPORT[name]
    for file in FILES:
        if room(file) == name:
            used = {path.split(".")[1] for path in imported(file)}
            assert used <= allowed, f"{file.relative_to(ROOT)} imports {sorted(used - allowed)}"


@pytest.mark.parametrize("name", sorted(GROUND))
def test_the_ground_imports_only_itself(name):
    used = {path.split(".")[1] for path in imported(ROOT / f"{name}.py")}
    assert used <= GROUND - {name}


def test_every_room_is_named_here():
    rooms = {path.name for path in ROOT.iterdir() if (path / "__init__.py").exists()}
    assert rooms <= set(MAY_IMPORT)


def test_the_arrows_make_no_circle():
    below = {name: set(others) for name, others in MAY_IMPORT.items()}
    while below:
        free = {name for name, others in below.items() if not others & set(below)}
        assert free, f"a circle among {sorted(below)}"
        below = {name: others for name, others in below.items() if name not in free}


def test_participation_needs_no_torch_and_algorithms_read_no_files():
    for file in FILES:
        text = file.read_text(encoding="utf-8")
        if room(file) == "participation":
            assert "import torch" not in text
            assert "from torch" not in text
        if room(file) == "algorithms":
            assert "polars" not in text


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_every_module_is_small(file):
    assert len(file.read_text(encoding="utf-8").splitlines()) < 400


def test_functions_are_short():
    """Half of them within about 8 lines of code, and nearly all below 30 with their signature."""
    lengths = sorted(
        _code_lines(node)
        for file in FILES
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    )
    assert lengths[len(lengths) // 2] <= 10
    assert lengths[len(lengths) * 95 // 100] < 30


def _code_lines(function):
    """Return the lines of a function without its docstring."""
    first = function.body[0]
    documented = ast.get_docstring(function) is not None
    docstring = first.end_lineno - first.lineno + 1 if documented else 0
    return function.end_lineno - function.lineno + 1 - docstring
