"""Several runs of one experiment in one process, whose cohorts are trained as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor

from fedtide.simulation.lockstep import Lockstep
from fedtide.simulation.simulate import Result, execute
from fedtide.training.joint import Ask, Asked, JointTraining

Execute = Callable[..., Result]
"""What is called like `execute`."""


def execute_together(runs: Sequence[Callable[[Execute], None]]) -> None:
    """Run these, which differ in their seeds only; each ends, fails and is saved on its own.

    Args:
        runs: each calls what it is given as it would `execute`, and catches what that raises.
    """
    training = JointTraining()
    turns: Lockstep[Asked, Tensor] = Lockstep(training.answer)

    def member(owner: int, run: Callable[[Execute], None]) -> Callable[[Ask], None]:
        return lambda ask: run(partial(execute, choose=training.chooser(owner, ask)))

    turns.run([member(owner, run) for owner, run in enumerate(runs)])
