"""A recommended method, and how to run it: as an experiment, and as a strategy for Flower."""

from __future__ import annotations

import reprlib
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fedtide.auditing.recommend.cohort_size import CohortSize, Settings

Memory = Literal["light", "heavy"]

_SHORT = reprlib.Repr()
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = 8
_SHORT.maxstring = _SHORT.maxother = 1000
_CLASSES = {
    "fedavg": "FedAvg",
    "known-rates": "KnownRates",
    "auto": "Auto",
    "fedau": "FedAU",
    "fedvarp": "FedVARP",
    "scaffold": "Scaffold",
    "amplified-scaffold": "AmplifiedScaffold",
    "gaussian": "Gaussian",
    "matrix-factorisation": "MatrixFactorisation",
}
"""The classes of `fedtide.algorithms` and `fedtide.privacy`, whose import would load PyTorch."""
_MOST_INLINE = 10
"""Up to this many names of clients are written in one line."""


@dataclass(frozen=True)
class Advice:
    """A recommended method.

    The JSON of an audit has `experiment` and `strategy` instead of the fields that they are made
    from.

    Args:
        algorithm: its `type` in an experiment file.
        parameters: its parameters there.
        reasons: why it is advised, in sentences.
        needs: what it needs of the server and the clients, in sentences.
        memory: "light", O(N + d), or "heavy", O(N d).
        memory_floats: numbers stored by the server beyond the model.
        message_floats: numbers sent to and from a participant per round, together.
        objective: `objective` of an experiment that trains for the wanted weights.
        clients: the clients' names in the order of `parameters`, or N if they are 0..N − 1.
        privacy: the mechanism with which it trains, as in an experiment file; None: none.
        cohort: how many clients the log asks to train in each round.
    """

    algorithm: str
    parameters: dict[str, Any]
    reasons: list[str]
    memory: Memory
    memory_floats: int
    message_floats: int
    needs: list[str] = field(default_factory=list)
    objective: str | tuple[float, ...] = "uniform"
    clients: int | tuple[str, ...] = 0
    privacy: Settings | None = None
    cohort: CohortSize = field(default_factory=CohortSize)

    def __repr__(self) -> str:
        """Return the fields; of rates, weights and names, the first few."""
        fields = (f"{name}={_SHORT.repr(value)}" for name, value in vars(self).items())
        return f"Advice({', '.join(fields)})"

    @property
    def settings(self) -> Settings:
        """The method as `algorithm:` of an experiment file."""
        return {"type": self.algorithm, **self.parameters}

    @property
    def experiment(self) -> dict[str, Any]:
        """Arguments of `ft.simulate`, or lines of an experiment file.

        These are `algorithm` and, unless they are the defaults, `objective` and `privacy`.
        Values for each client are by name where clients have names, since an experiment may number
        them in another order.
        """
        experiment: dict[str, Any] = {"algorithm": self.settings}
        if "rates" in self.parameters:
            rates = self._by_name(self.parameters["rates"])
            experiment["algorithm"] = self.settings | {"rates": rates}
        if self.objective != "uniform":
            given = self.objective
            experiment["objective"] = given if isinstance(given, str) else self._by_name(given)
        if self.privacy is not None:
            experiment["privacy"] = self.privacy
        return experiment

    @property
    def strategy(self) -> str:
        """Python source that makes the `FedTide` strategy of this method for Flower."""
        return write_strategy(self)

    @property
    def names(self) -> list[str]:
        """The clients' names; their numbers, if they have none."""
        known = self.clients
        return [str(n) for n in range(known)] if isinstance(known, int) else list(known)

    def _by_name(self, values: Sequence[float]) -> list[float] | dict[str, float]:
        """Return a value for each client, by name if clients have names."""
        if isinstance(self.clients, int):
            return list(values)
        return dict(zip(self.clients, values, strict=True))


def write_strategy(advice: Advice) -> str:
    """Return Python source that makes the `FedTide` strategy of a method.

    Rates and factors are by name: without names, `FedTide` numbers clients as they join.

    >>> rates = {"rates": [0.5, 0.2]}
    >>> advice = Advice("known-rates", rates, [], "light", 0, 0, clients=("ann", "bob"))
    >>> print(write_strategy(advice))
    from fedtide.algorithms import KnownRates
    from fedtide.flower import FedTide
    <BLANKLINE>
    # These rates hold for clients chosen as in the log, as many in each round. FedTide draws
    # uniformly from those online: where that differs, use Auto or FedAU.
    rates = {
        'ann': 0.5,
        'bob': 0.2,
    }
    # All clients that are online are asked to train; fraction_train asks a share of them.
    strategy = FedTide(
        KnownRates(rates=rates),
        clients=list(rates),
        state="state",
        ledger="sqlite:///ledger.db",
    )
    <BLANKLINE>
    """
    lines = [
        f"from fedtide.algorithms import {_CLASSES[advice.algorithm]}",
        "from fedtide.flower import FedTide",
    ]
    if advice.privacy is not None:
        module, _, name = advice.privacy["type"].rpartition(":")
        lines.append(f"from {module or 'fedtide.privacy'} import {_CLASSES.get(name, name)}")
    lines += ["", *_write_objective(advice)]
    clients = advice.clients
    listed = str(clients) if isinstance(clients, int) else repr(advice.names)
    if "rates" in advice.parameters:
        lines += _comment(
            "These rates hold for clients chosen as in the log, as many in each round. FedTide "
            "draws uniformly from those online: where that differs, use Auto or FedAU"
        )
        lines += _write_by_name("rates", advice.names, advice.parameters["rates"])
        listed = "list(rates)"
    elif not isinstance(clients, int) and len(clients) > _MOST_INLINE:
        lines += ["clients = [", *(f"    {name!r}," for name in clients), "]"]
        listed = "clients"
    lines += [
        *_comment(advice.cohort.description),
        "strategy = FedTide(",
        f"    {_write_call(advice.settings)},",
        f"    clients={listed},",
        *(f"    {name}={value}," for name, value in advice.cohort.arguments.items()),
        '    state="state",',
        '    ledger="sqlite:///ledger.db",',
        *([] if advice.privacy is None else [f"    privacy={_write_call(advice.privacy)},"]),
        ")",
    ]
    return "\n".join(lines) + "\n"


def _write_objective(advice: Advice) -> list[str]:
    """Return what the clients have to do for the wanted weights, as comments and factors."""
    share = "its share of all samples times the number of clients"
    losses = "Losses belong to the clients: in the client app, multiply the loss of each client by"
    if advice.objective == "uniform":
        return []
    if isinstance(advice.objective, str):
        return _comment(f"{losses} {share} (docs/clients.md)")
    lines = _comment(
        f"{losses} its factor (docs/clients.md); training then ends at the wanted weights"
    )
    factors = [float(f"{len(advice.objective) * float(a):.6g}") for a in advice.objective]
    return lines + _write_by_name("loss_factors", advice.names, factors)


def _comment(text: str) -> list[str]:
    """Return a sentence as comment lines."""
    return textwrap.wrap(
        text[:1].upper() + text[1:] + ".", 98, initial_indent="# ", subsequent_indent="# "
    )


def _write_by_name(variable: str, names: Iterable[str], values: Iterable[float]) -> list[str]:
    """Return the lines of a dict with a value for each client."""
    pairs = zip(names, values, strict=True)
    return [f"{variable} = {{", *(f"    {name!r}: {value!r}," for name, value in pairs), "}"]


def _write_call(settings: Settings) -> str:
    """Return the call of a class; rates are a variable."""
    arguments = [
        "rates=rates" if name == "rates" else f"{name}={value!r}"
        for name, value in settings.items()
        if name != "type"
    ]
    name = settings["type"].rpartition(":")[2]
    return f"{_CLASSES.get(name, name)}({', '.join(arguments)})"
