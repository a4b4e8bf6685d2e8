"""What a method needs of reports: whether they may be late, their form, what is in them."""

from __future__ import annotations

from collections.abc import Iterator

from fedtide.algorithms import MIFA, Algorithm, FedLaAvg, FedVARP, Switch
from fedtide.algorithms._wrapper import Wrapper
from fedtide.algorithms.client_side_memory import ClientSideMemory
from fedtide.errors import InvalidInputError


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
    if isinstance(algorithm, ClientSideMemory):
        return takes_late(algorithm.method)
    if isinstance(algorithm, Wrapper):
        return takes_late(algorithm.inner)
    return isinstance(algorithm, MIFA | FedLaAvg | FedVARP)


def reads_steps(algorithm: Algorithm) -> bool:
    """Say whether a method divides updates by the local learning rate or the number of steps.

    >>> from fedtide.algorithms import FedAvg, Scaffold
    >>> reads_steps(Scaffold()), reads_steps(FedAvg())
    (True, False)
    """
    return any(part.requires_plain_sgd or isinstance(part, FedLaAvg) for part in _parts(algorithm))


def form_of(algorithm: Algorithm) -> str:
    """Return in which form clients are to report: that of `ClientSideMemory`, or "" for Δ as it is.

    Raises:
        InvalidInputError: `ClientSideMemory` within a Switch, whose clients would have to forget in the middle.
    """
    inner = algorithm
    while isinstance(inner, Wrapper):
        inner = inner.inner
    if isinstance(inner, ClientSideMemory):
        return inner.form
    if any(isinstance(part, ClientSideMemory) for part in _parts(algorithm)):
        raise InvalidInputError(
            "algorithm: Switch cannot hold ClientSideMemory; use the plain method there"
        )
    return ""


def _parts(algorithm: Algorithm) -> Iterator[Algorithm]:
    """Yield a method and all that it is made of."""
    yield algorithm
    for value in vars(algorithm).values():
        if isinstance(value, Algorithm):
            yield from _parts(value)
