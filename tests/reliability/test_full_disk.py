"""A full disk: one sentence, nothing damaged, and the run can be resumed."""

import os
import subprocess

import pytest
import torch

import fedtide as ft
from fedtide.algorithms._client_memory import ClientMemory
from fedtide.simulation.checkpoint import load_newest

PAGE = 4096


@pytest.fixture
def disk(tmp_path):
    """Return a file system of 1 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    if not is_root or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a small file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def run(fields, out):
    """Run an experiment and return the error message, empty if there is none."""
    try:
        ft.simulate(**fields, out=out)
    except ft.InvalidInputError as error:
        return str(error)
    return ""


@pytest.mark.process
def test_a_run_on_a_full_disk_ends_in_one_sentence_and_resumes(disk, fields, results, whole):
    """The disk is full at the first file, at the last, and at those between."""
    refused = 0
    for pages in range(0, 40, 2):
        out, filler = disk / "run", disk / "filler"
        out.mkdir()
        space = os.statvfs(disk)
        filler.write_bytes(b"x" * (space.f_bavail - pages) * PAGE)
        message = run(fields, out)
        if message:
            refused += 1
            assert message.startswith(f"out: {out}")
            assert "No space left on device" in message
            assert "\n" not in message
            assert not list(out.rglob(".*.part"))
        rounds = [int(file.stem) for file in out.glob("checkpoints/*.safetensors")]
        kept = load_newest(out / "checkpoints")
        assert (kept.round if kept else None) == max(rounds, default=None)
        filler.unlink()
        ft.simulate(**fields, out=out, resume=True)
        assert results(out) == results(whole)
        subprocess.run(["rm", "-r", str(out)], check=True)
    assert 5 < refused < 20


def test_the_client_memory_on_a_full_disk_keeps_its_rows(disk):
    """26 rows of 40,000 bytes fit on a megabyte: they stay, and no SIGBUS ends the process."""
    memory, row = ClientMemory.empty(100, torch.zeros(10_000), str(disk)), torch.ones(1, 10_000)
    for client in range(26):
        memory = memory.write(torch.tensor([client]), row * client)
    with pytest.raises(ft.InvalidInputError, match=r"^memory_folder: .* 40,000.*; free disk space"):
        memory.write(torch.tensor([26]), row)
    assert torch.equal(memory.read(torch.arange(26)), row * torch.arange(26.0)[:, None])
