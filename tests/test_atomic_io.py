"""Files that are written: what stands at their path already, and why writing fails."""

import errno
import os
import stat
import threading
from pathlib import Path

import matplotlib.figure
import polars as pl
import pytest
import safetensors.torch
import torch

from fedtide import atomic_io
from fedtide.atomic_io import write_atomically, write_frame, write_text
from fedtide.errors import InvalidInputError
from fedtide.participation.log.tables import write_table
from fedtide.plotting.saving import save_figure
from fedtide.simulation.run_folder import RunFolder

TENSORS = {"x": torch.arange(3.0)}
FRAME = pl.DataFrame({"round": [0, 1]})

WRITERS = {
    "text": lambda path: write_text(path, "new\n"),
    "parquet": lambda path: write_frame(path, FRAME),
    "csv": lambda path: write_table("out", path.with_suffix(".csv"), FRAME),
    "figure": lambda path: save_figure(matplotlib.figure.Figure(), path.with_suffix(".png")),
    "tensors": lambda path: write_atomically(
        path, lambda draft: safetensors.torch.save_file(TENSORS, draft)
    ),
}


def path_of(kind, folder):
    """Return the path below `folder` to which the writer of this kind writes when given `a`."""
    return folder / {"csv": "a.csv", "figure": "a.png"}.get(kind, "a")


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


_LINKS = pytest.mark.skipif(os.name != "posix", reason="links need a privilege on Windows")
_MODES = pytest.mark.skipif(os.name != "posix", reason="file modes")


@pytest.mark.skipif(os.name != "posix", reason="named pipes")
@pytest.mark.parametrize("kind", WRITERS)
def test_the_reader_of_a_named_pipe_gets_the_file(kind, tmp_path):
    for name in ("plain", "piped"):
        (tmp_path / name).mkdir()
    plain, pipe = path_of(kind, tmp_path / "plain"), path_of(kind, tmp_path / "piped")
    WRITERS[kind](plain.with_name("a"))
    os.mkfifo(pipe)
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    WRITERS[kind](pipe.with_name("a"))
    reader.join(30)
    assert read == [plain.read_bytes()]
    assert pipe.is_fifo()
    assert [*pipe.parent.iterdir()] == [pipe]


@_LINKS
@pytest.mark.parametrize("kind", WRITERS)
def test_a_link_stays_and_its_target_is_written(kind, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "links").mkdir()
    target, link = tmp_path / "folder" / "target", path_of(kind, tmp_path / "links")
    target.write_text("old")
    link.symlink_to(Path("..", "folder", "target"))
    WRITERS[kind](link.with_name("a"))
    assert link.is_symlink()
    assert target.read_bytes() not in (b"old", b"")
    assert [*link.parent.iterdir(), *target.parent.iterdir()] == [link, target]


@_MODES
@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("bits", [0o600, 0o444])
def test_a_file_keeps_its_mode(bits, kind, tmp_path):
    path = path_of(kind, tmp_path)
    path.write_text("old")
    path.chmod(bits)
    WRITERS[kind](tmp_path / "a")
    assert path.read_bytes() != b"old"
    assert mode(path) == bits


@_MODES
def test_what_replaces_a_private_file_is_never_readable_by_others(tmp_path):
    path, modes = tmp_path / "a", []
    path.write_text("old")
    path.chmod(0o600)

    def write(draft):
        with draft.open("w") as file:
            modes.append(mode(draft))
            file.write("new")

    write_atomically(path, write)
    assert (path.read_text(), modes) == ("new", [0o600])


# Failures.


def full_in_python(_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def full_in_rust(_):
    """Libraries in Rust give the cause in their message alone."""
    reason = os.strerror(errno.ENOSPC)
    raise pl.exceptions.ComputeError(f"parquet: {reason} (os error {errno.ENOSPC})")


@pytest.mark.parametrize(
    ("name", "write", "is_full"),
    [
        ("a", full_in_python, True),
        ("a", full_in_rust, True),
        ("folder", lambda draft: draft.write_text(""), False),
        ("no/such/a", lambda draft: draft.write_text(""), False),
    ],
)
def test_a_full_disk_is_told_from_other_causes(name, write, is_full, tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(InvalidInputError, match=r"^out: .* cannot be written \(.*\); ") as error:
        write_atomically(tmp_path / name, write)
    assert ("disk space" in str(error.value)) is is_full
    assert [*tmp_path.rglob("*")] == [tmp_path / "folder"]


def test_windows_waits_until_the_file_is_closed(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic_io, "_IS_WINDOWS", True)
    replace, attempts = Path.replace, []

    def replace_at_third_attempt(draft, path):
        attempts.append(path)
        if len(attempts) < 3:
            raise PermissionError(errno.EACCES, "Access is denied")
        return replace(draft, path)

    monkeypatch.setattr(Path, "replace", replace_at_third_attempt)
    write_text(tmp_path / "a", "new")
    assert (tmp_path / "a").read_bytes() == b"new"
    assert [*tmp_path.iterdir()] == [tmp_path / "a"]


def test_lines_end_alike_on_all_systems(tmp_path, monkeypatch):
    """Text mode of Windows writes CR and LF."""

    def open_as_on_windows(path, mode="r", buffering=-1, encoding=None, errors=None, newline=None):
        ends = newline if "b" in mode or newline is not None else "\r\n"
        return open(path, mode, buffering, encoding, errors, ends)

    monkeypatch.setattr(Path, "open", open_as_on_windows)
    write_text(tmp_path / "a", "one\ntwo\n")
    write_table("out", tmp_path / "a.csv", FRAME)
    folder = RunFolder(tmp_path)
    folder.start_live_metrics([{"round": 0}])
    folder.add_live_metrics({"round": 1})
    for file in tmp_path.iterdir():
        assert b"\r" not in file.read_bytes(), file
