"""Synchronous rounds: the server asks clients, waits, moves the model and asks again."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedtide.spec import AtLeast, Positive, spec

Floats = NDArray[np.float64]


@spec
class Synchronous:
    """The server asks some of the available clients and waits; then it moves the model.

    A round ends as soon as `close_after` clients have reported, the deadline has passed, or all
    that were asked have reported or left. Those that have not reported by then stop, their updates
    are lost, and they can be asked in the next round, which begins at once.

    To ask 130 clients for 100 reports, as in Bonawitz et al., "Towards Federated Learning at Scale"
    (2019), is `Synchronous(size=130, close_after=100)`.

    Args:
        size: the number of clients that are asked: uniformly sampled from those that the selection
            selects, or all of them if they are fewer.
        close_after: the number of reports after which a round ends; of clients that finish at the
            same time, random ones count. None: it waits for all.
        deadline: the seconds after which it ends; None: never.

    Raises:
        InvalidInputError: a size or a number of reports below 1, a deadline that is not positive;
            in a run, a size above N.
    """

    size: Annotated[int, AtLeast(1)]
    close_after: Annotated[int | None, AtLeast(1)] = None
    deadline: Annotated[float | None, Positive] = None

    def end_round(
        self, start: float, finish: Floats, reports: NDArray[np.bool_], ties: Floats
    ) -> tuple[NDArray[np.bool_], float]:
        """Return who reports in time, shape (S,), and when the round ends.

        Args:
            start: when the clients were asked.
            finish: when each reports or leaves, shape (S,).
            reports: whether it reports then, or leaves, shape (S,).
            ties: different numbers that decide among clients that finish at the same time, (S,).

        >>> policy, ties = Synchronous(size=3, close_after=2), np.arange(3.0)
        >>> policy.end_round(0.0, np.array([7.0, 2.0, 5.0]), np.array([True, True, False]), ties)
        (array([ True,  True, False]), 7.0)
        """
        end = float(finish.max(initial=start))
        if self.deadline is not None:
            end = min(end, start + self.deadline)
        in_time = reports & (finish <= end)
        if self.close_after is not None and np.count_nonzero(in_time) >= self.close_after:
            order = np.lexsort((ties, finish))
            first = order[in_time[order]][: self.close_after]
            end = float(finish[first[-1]])
            in_time = np.isin(np.arange(len(finish)), first)
        return in_time, end
