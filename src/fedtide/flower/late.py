"""What a method needs of a report: whether it may be late, and what must be in it."""

from __future__ import annotations

from collections.abc import Iterator

from fedtide.algorithms import MIFA, Algorithm, FedLaAvg, FedVARP, Switch
from fedtide.algorithms.wrapper import Wrapper


def takes_late(algorithm: Algorithm) -> bool:
    """Say whether a method uses an update that arrives after the round that it was asked in.

    MIFA, FedLaAvg and FedVARP keep the latest update of every client, however old it is: a late one
    is newer than what they have. All others average updates of this round's model, and Scaffold and
    AmplifiedScaffold read gradients at it: they drop what is late. What wraps a method does as the
    method does.

    >>> from fedtide.algorithms import Amplified, FedAU
    >>> takes_late(Amplified(period=5, factor=2.0, inner=MIFA())), takes_late(FedAU())
    (True, False)
    """
    if isinstance(algorithm, Switch):
        return takes_late(algorithm.first) and takes_late(algorithm.second)
    if isinstance(algorithm, Wrapper):
        return takes_late(algorithm.inner)
    return isinstance(algorithm, MIFA | FedLaAvg | FedVARP)


def reads_steps(algorithm: Algorithm) -> bool:
    """Say whether a method divides updates by the local learning rate or the number of steps.

    >>> from fedtide.algorithms import FedAvg, Scaffold
    >>> reads_steps(Scaffold()), reads_steps(FedAvg())
    (True, False)
    """
    return any(part.raw_gradients or isinstance(part, FedLaAvg) for part in _parts(algorithm))


def _parts(algorithm: Algorithm) -> Iterator[Algorithm]:
    """Yield a method and all that it is made of."""
    yield algorithm
    for value in vars(algorithm).values():
        if isinstance(value, Algorithm):
            yield from _parts(value)
