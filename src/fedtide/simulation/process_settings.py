"""The settings of a process on which results depend: those that workers take over, and a record."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch

from fedtide.cache_folder import keep_compiled
from fedtide.provenance import machine
from fedtide.training import devices


@dataclass(frozen=True)
class ProcessSettings:
    """The settings of a process on which the results of a run depend.

    Args:
        folder: the working directory, where relative paths of data and user modules start.
        dtype: PyTorch's default.
        precision: of `torch.set_float32_matmul_precision`.
        determinism: PyTorch's mode: 0, 1 (warns), or 2 (must use deterministic algorithms).
    """

    folder: str
    dtype: torch.dtype
    precision: str
    determinism: int

    @classmethod
    def current(cls) -> Self:
        """Return the settings of this process."""
        precision = torch.get_float32_matmul_precision()
        determinism = torch.get_deterministic_debug_mode()
        return cls(str(Path.cwd()), torch.get_default_dtype(), precision, determinism)

    def apply(self) -> None:
        """Apply the settings to this process; without access to `folder`, it stays where it is."""
        with suppress(OSError):
            os.chdir(self.folder)
        torch.set_default_dtype(self.dtype)
        torch.set_float32_matmul_precision(self.precision)
        # setting it takes seconds: it imports TorchInductor
        if self.determinism != torch.get_deterministic_debug_mode():
            keep_compiled()
            torch.use_deterministic_algorithms(
                self.determinism > 0, warn_only=self.determinism == 1
            )


Execution = dict[str, Any]
"""The trainer, the threads, the machine, its instruction set, and the GPU if there is one."""


def describe_execution(trainer: str, device: str) -> Execution:
    """Return how this process computes; with a cluster, training happens in other processes.

    Args:
        trainer: its name.
        device: where the models train.

    >>> list(describe_execution("stacked", "cpu"))
    ['trainer', 'threads', 'machine', 'instructions']
    """
    found = {
        "trainer": trainer,
        "threads": torch.get_num_threads(),
        "machine": machine(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
    }
    return found if device == "cpu" else {**found, "device": devices.describe(device)}
