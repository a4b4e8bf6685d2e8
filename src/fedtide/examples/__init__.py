"""Examples that ship with the package: experiment files, a log, and Flower apps in folders.

`fedtide examples` lists and copies them; `fedtide run` and `fedtide sweep` take the name of an
experiment instead of a file. `tasks` has the data and networks of some experiments; a copied
experiment names the copied modules.
"""

from __future__ import annotations

import re
import shutil
import tomllib
from pathlib import Path

from fedtide.atomic_io import make_folder, write_text
from fedtide.errors import InvalidInputError, did_you_mean

_ROOT = Path(__file__).parent
_LOG = _ROOT / "log.csv"
_TASKS = "fedtide.examples.tasks"
_BASE = re.compile(r"^base:\s*(\S+)", re.MULTILINE)
_MODULE = re.compile(rf"{re.escape(_TASKS)}\.(\w+)")
_TEXT = re.compile(r"\w+\.txt")


def list_examples() -> dict[str, str]:
    """Return the first sentence of every example's description, by name.

    >>> list_examples()["fashion"]
    "Fashion-MNIST with 250 clients and the partition of FedAU's paper."
    """
    files = sorted(_ROOT.glob("*.yaml"))
    found = {file.stem: _describe(file) for file in files}
    found[_LOG.stem] = "A log of who took part, to audit: 40 sites in 150 rounds."
    return found | {app.name: _describe_app(app) for app in _list_apps()}


def find_example(file: Path) -> Path:
    """Return `file`, or the bundled experiment of this name if there is no such file.

    Raises:
        InvalidInputError: neither a file nor an experiment has this name, which has no suffix; or
            it is that of a Flower app.
    """
    if file.is_file() or len(file.parts) != 1:
        return file
    experiments = {path.stem: path for path in _ROOT.glob("*.yaml")}
    if file.name in experiments or file.suffix or file.exists():
        return experiments.get(file.name, file)
    if file.name in [app.name for app in _list_apps()]:
        raise InvalidInputError(
            f"{file.name}: is a Flower app, not an experiment; copy it with fedtide examples "
            f"{file.name}, or see fedtide flower demo"
        )
    raise InvalidInputError(
        f"{file.name}: no file and no example has this name; "
        f"{did_you_mean(file.name, sorted(experiments))}"
    )


def copy_example(name: str, folder: Path) -> list[Path]:
    """Copy an example, and the files that it builds on, into a folder; return the copies.

    A copy that names modules of `tasks` names their copies next to it. Files that already have the
    content of a copy, such as those that two examples share, stay.

    Raises:
        InvalidInputError: no such example, or a copy would replace a file with other content.
    """
    if name not in list_examples():
        raise InvalidInputError(f"name: unknown {name!r}; {did_you_mean(name, list_examples())}")
    if name == _LOG.stem:
        sources = [_LOG]
    elif (_ROOT / name).is_dir():
        sources = [_ROOT / name]
    else:
        sources = _list_files(_ROOT / f"{name}.yaml")
    copies = [folder / source.name for source in sources]
    for source, copy in zip(sources, copies, strict=True):
        if copy.exists() and not _is_copy(source, copy):
            raise InvalidInputError(f"out: {copy} exists; choose another folder with --out")
    make_folder(folder)
    for source, copy in zip(sources, copies, strict=True):
        if source.is_dir():
            shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
        elif not copy.exists():
            write_text(copy, _text_of_copy(source))
    return copies


def _list_apps() -> list[Path]:
    """Return the folders of the Flower apps."""
    return sorted(file.parent for file in _ROOT.glob("*/pyproject.toml"))


def _text_of_copy(source: Path) -> str:
    return source.read_text(encoding="utf-8").replace(f"{_TASKS}.", "")


def _is_copy(source: Path, copy: Path) -> bool:
    """Return whether a file has the content of a copy of `source`; a folder never does."""
    is_file = source.is_file() and copy.is_file()
    return is_file and copy.read_text("utf-8", errors="replace") == _text_of_copy(source)


def _list_files(file: Path) -> list[Path]:
    """Return a file and those that it names, directly or indirectly, each once."""
    text = file.read_text(encoding="utf-8")
    named = [_ROOT / base for base in _BASE.findall(text)]
    named += [_ROOT / "tasks" / f"{module}.py" for module in _MODULE.findall(text)]
    named += [path for name in _TEXT.findall(text) if (path := file.with_name(name)).is_file()]
    inner = (part for path in named for part in _list_files(path))
    return list(dict.fromkeys([file, *inner]))


def _describe_app(folder: Path) -> str:
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return f"{project['description'].rstrip('.')} (a Flower app)."


def _describe(file: Path) -> str:
    """Return the first sentence of a file's leading comment or docstring."""
    text = file.read_text(encoding="utf-8")
    comment = " ".join(
        line.lstrip("# ").strip() for line in text.split("\n#\n")[0].splitlines() if line[:1] == "#"
    )
    text = comment or text.partition('"""')[2].partition('"""')[0]
    return re.split(r"(?<=[.?])\s", " ".join(text.split()), maxsplit=1)[0]
