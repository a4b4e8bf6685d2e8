"""A run whose callbacks are told what happens."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType

from fedtide.simulation.callbacks import Callback, RunView
from fedtide.simulation.loop import Run


class WatchedRun(AbstractContextManager["WatchedRun"]):
    """A run that tells its callbacks what happens; as a context manager, it reports errors as well.

    Args:
        run: the run.
        callbacks: the callbacks.
        out: its folder; None in memory.

    Attributes:
        view: the run as one more callback would see it.
    """

    def __init__(self, run: Run, callbacks: Sequence[Callback], out: Path | None = None) -> None:
        self.run, self.view = run, RunView(run, out)
        self._watchers = [(callback, self.view.for_another()) for callback in callbacks]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            for callback, view in self._watchers:
                callback.on_error(view, error)

    @property
    def is_over(self) -> bool:
        """Whether all rounds have ended, or a callback has stopped the run."""
        ended = self.run.ended
        return ended == self.run.experiment.rounds or (ended > 0 and bool(self.view.stopped))

    def start(self) -> None:
        """Evaluate the initial model, if the experiment asks for it."""
        for callback, view in self._watchers:
            callback.on_start(view)
        self._evaluate_if_due()

    def advance(self) -> None:
        """Run a round and evaluate if that is due."""
        self.run.round()
        self._evaluate_if_due()
        for callback, view in self._watchers:
            callback.on_round_end(view)

    def finish(self) -> None:
        """Evaluate the last model of a run that was stopped between two evaluations."""
        if not self.run.is_evaluated:
            self._evaluate()

    def tell_end(self) -> None:
        """Tell the callbacks that the results are complete."""
        for callback, view in self._watchers:
            callback.on_end(view)

    def _evaluate_if_due(self) -> None:
        if self.run.is_evaluation_due:
            self._evaluate()

    def _evaluate(self) -> None:
        self.run.evaluate()
        for callback, view in self._watchers:
            callback.on_evaluation(view)
