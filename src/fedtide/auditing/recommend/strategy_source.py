"""The Python source of a Flower strategy for a recommended method."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from fedtide.auditing.recommend.cohort_size import CohortSize

_CLASSES = {
    "fedavg": "FedAvg",
    "known-rates": "KnownRates",
    "auto": "Auto",
    "fedau": "FedAU",
    "fedvarp": "FedVARP",
    "mifa": "MIFA",
    "fedlaavg": "FedLaAvg",
    "scaffold": "Scaffold",
    "amplified-scaffold": "AmplifiedScaffold",
    "amplified": "Amplified",
    "gaussian": "Gaussian",
    "matrix-factorisation": "MatrixFactorisation",
}
"""The classes of `fedtide.algorithms` and `fedtide.privacy`, whose import would load PyTorch."""
_MOST_INLINE = 10
"""Up to this many names of clients are written in one line."""


def write_strategy(
    settings: dict[str, Any],
    clients: int | Sequence[str],
    objective: str | Sequence[float] = "uniform",
    privacy: dict[str, Any] | None = None,
    cohort: CohortSize | None = None,
) -> str:
    """Return Python source that makes the `FedTide` strategy of a method.

    Rates and factors are by name: without names, `FedTide` numbers clients as they join.

    Args:
        settings: the method as in an experiment file.
        clients: N, if the names are 0..N - 1, or the names in the order of the settings.
        objective: the wanted weights as in an experiment file; where they are not uniform, a
            comment says what the clients have to do.
        privacy: the mechanism as in an experiment file; None: none.
        cohort: how many clients are asked to train; None: all that are online.

    >>> print(write_strategy({"type": "known-rates", "rates": [0.5, 0.2]}, ["ann", "bob"]))
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
    cohort = cohort or CohortSize()
    inner = settings.get("inner", settings)
    names = [str(n) for n in range(clients)] if isinstance(clients, int) else list(clients)
    listed = str(clients) if isinstance(clients, int) else repr(names)
    classes = sorted({_CLASSES[one["type"]] for one in (settings, inner)})
    lines = [
        f"from fedtide.algorithms import {', '.join(classes)}",
        "from fedtide.flower import FedTide",
    ]
    if privacy is not None:
        module, _, name = privacy["type"].rpartition(":")
        lines.append(f"from {module or 'fedtide.privacy'} import {_CLASSES.get(name, name)}")
    lines.append("")
    if objective == "samples":
        lines += _comment(
            "Losses belong to the clients: in the client app, multiply the loss of each client by "
            "its share of all samples times the number of clients (docs/clients.md)"
        )
    elif objective != "uniform":
        lines += _comment(
            "Losses belong to the clients: in the client app, multiply the loss of each client by "
            "its factor (docs/clients.md); training then ends at the wanted weights"
        )
        factors = [float(f"{len(objective) * float(share):.6g}") for share in objective]
        lines += _write_by_name("loss_factors", names, factors)
    if "rates" in inner:
        lines += _comment(
            "These rates hold for clients chosen as in the log, as many in each round. FedTide "
            "draws uniformly from those online: where that differs, use Auto or FedAU"
        )
        lines += _write_by_name("rates", names, inner["rates"])
        listed = "list(rates)"
    elif not isinstance(clients, int) and len(names) > _MOST_INLINE:
        lines += ["clients = [", *(f"    {name!r}," for name in names), "]"]
        listed = "clients"
    arguments = [f"{name}={value}," for name, value in cohort.arguments.items()]
    lines += [
        *_comment(cohort.description),
        "strategy = FedTide(",
        f"    {_write_call(settings)},",
        f"    clients={listed},",
        *(f"    {argument}" for argument in arguments),
        '    state="state",',
        '    ledger="sqlite:///ledger.db",',
        *([] if privacy is None else [f"    privacy={_write_call(privacy)},"]),
        ")",
    ]
    return "\n".join(lines) + "\n"


def _comment(text: str) -> list[str]:
    """Return a sentence as comment lines."""
    return textwrap.wrap(
        text[:1].upper() + text[1:] + ".", 98, initial_indent="# ", subsequent_indent="# "
    )


def _write_by_name(variable: str, names: Iterable[str], values: Iterable[float]) -> list[str]:
    """Return the lines of a dict with a value for each client."""
    pairs = zip(names, values, strict=True)
    return [f"{variable} = {{", *(f"    {name!r}: {value!r}," for name, value in pairs), "}"]


def _write_call(settings: dict[str, Any]) -> str:
    arguments = []
    for name, value in settings.items():
        if name == "rates":
            arguments.append("rates=rates")
        elif name != "type":
            written = _write_call(value) if isinstance(value, dict) else repr(value)
            arguments.append(f"{name}={written}")
    name = settings["type"].rpartition(":")[2]
    return f"{_CLASSES.get(name, name)}({', '.join(arguments)})"
