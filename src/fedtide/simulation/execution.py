"""How a run was computed: what affects the last bits of its result, but not what it learns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fedtide.provenance import machine
from fedtide.training import devices

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


def continue_executions(before: Sequence[Execution], now: Execution) -> list[Execution]:
    """Return the executions of a continued run; `now` is appended only if it differs from the last.

    >>> continue_executions([{"threads": 1}], {"threads": 1})
    [{'threads': 1}]
    >>> continue_executions([{"threads": 1}], {"threads": 2})
    [{'threads': 1}, {'threads': 2}]
    """
    return [*before, *([] if before and before[-1] == now else [now])]
