"""Names that users give to runs and methods, and that become folders below the output folder."""

from pathlib import PurePosixPath, PureWindowsPath

import pytest

from fedtide import validation
from fedtide.errors import InvalidInputError
from fedtide.validation import require_folder_name


@pytest.mark.parametrize("system", [PurePosixPath, PureWindowsPath])
def test_a_name_lies_below_the_output_folder(system, monkeypatch):
    """On Windows, C: and what follows it are a path of their own."""
    monkeypatch.setattr(validation, "PurePath", system)
    for name in ("a/b", "/a", "..", ".a", "a\\b", " .", "a\n", "C:x", "a=0.1, é"):
        if name == "a=0.1, é" or (name, system) == ("C:x", PurePosixPath):
            require_folder_name("name", name)
        else:
            with pytest.raises(InvalidInputError, match=r"name: .* cannot be a folder name"):
                require_folder_name("name", name)
