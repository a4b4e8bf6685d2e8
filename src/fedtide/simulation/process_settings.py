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

    The precision settings are None if the script uses `torch.backends.*.fp32_precision`: PyTorch
    then refuses to report them, and the worker keeps its own.

    Args:
        folder: the working directory, where relative paths of data and user modules start.
        dtype: PyTorch's default.
        matmul_precision: of `torch.set_float32_matmul_precision`.
        tf32_convolutions: whether convolutions may use TF32.
        deterministic: whether PyTorch must use deterministic algorithms.
        warns_only: whether PyTorch only warns if an operation has none.
    """

    folder: str
    dtype: torch.dtype
    matmul_precision: str | None
    tf32_convolutions: bool | None
    deterministic: bool
    warns_only: bool

    @classmethod
    def current(cls) -> Self:
        """Return the settings of this process."""
        matmul_precision = tf32_convolutions = None
        with suppress(RuntimeError):
            matmul_precision = torch.get_float32_matmul_precision()
        with suppress(RuntimeError):
            tf32_convolutions = torch.backends.cudnn.allow_tf32
        return cls(
            str(Path.cwd()),
            torch.get_default_dtype(),
            matmul_precision,
            tf32_convolutions,
            *_determinism(),
        )

    def apply(self) -> None:
        """Apply the settings to this process; without access to `folder`, it stays where it is."""
        with suppress(OSError):
            os.chdir(self.folder)
        torch.set_default_dtype(self.dtype)
        if self.matmul_precision is not None:
            torch.set_float32_matmul_precision(self.matmul_precision)
        if self.tf32_convolutions is not None:
            torch.backends.cudnn.allow_tf32 = self.tf32_convolutions
        determinism = (self.deterministic, self.warns_only)
        if determinism != _determinism():  # setting it takes seconds: it imports TorchInductor
            keep_compiled()
            torch.use_deterministic_algorithms(self.deterministic, warn_only=self.warns_only)


def _determinism() -> tuple[bool, bool]:
    """Return whether PyTorch must use deterministic algorithms, and whether it only warns."""
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
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
