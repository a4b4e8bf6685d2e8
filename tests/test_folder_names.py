"""Names that users give to runs and methods, and that become folders below the output folder."""

from pathlib import PurePosixPath, PureWindowsPath

import pytest

from fedtide import validation
from fedtide.errors import InvalidInputError
from fedtide.validation import require_folder_name

SYSTEMS = {"posix": PurePosixPath, "windows": PureWindowsPath}


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize(
    "name", ["a/b", "/a", "a/", "..", ".a", "a\\b", "\\\\host\\x", " .", "a\n"]
)
def test_a_name_that_is_a_path_is_refused(name, system, monkeypatch):
    monkeypatch.setattr(validation, "PurePath", SYSTEMS[system])
    with pytest.raises(InvalidInputError, match=r"name: .* cannot be a folder name"):
        require_folder_name("name", name)


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_name_lies_below_the_output_folder(system, monkeypatch):
    """On Windows, C: and what follows it are a path of their own."""
    monkeypatch.setattr(validation, "PurePath", SYSTEMS[system])
    for name in ("fedau", "C:elsewhere", "C:", "lr=0.1, steps=5", "größe"):
        path = SYSTEMS[system]("runs") / name
        if path.parent == SYSTEMS[system]("runs") and path.name == name:
            require_folder_name("name", name)
        else:
            with pytest.raises(InvalidInputError, match="cannot be a folder name"):
                require_folder_name("name", name)
