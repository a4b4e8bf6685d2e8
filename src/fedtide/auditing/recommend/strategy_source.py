"""The Python source of a Flower strategy for a recommended method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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


def write_strategy(
    settings: dict[str, Any],
    clients: int | Sequence[str],
    objective: str | Sequence[float] = "uniform",
    privacy: dict[str, Any] | None = None,
) -> str:
    """Return Python source that makes the `FedTide` strategy of a method.

    Args:
        settings: the method as in an experiment file.
        clients: N, or the names of the clients in the order of the settings.
        objective: the wanted weights as in an experiment file; where they are not uniform, a
            comment says what the clients have to do.
        privacy: the mechanism as in an experiment file; None: none.

    >>> print(write_strategy({"type": "fedau", "cutoff": 50}, 5))
    from fedtide.algorithms import FedAU
    from fedtide.flower import FedTide
    <BLANKLINE>
    strategy = FedTide(
        FedAU(cutoff=50),
        clients=5,
        state="state",
        ledger="sqlite:///ledger.db",
    )
    <BLANKLINE>
    """
    classes = sorted({_CLASSES[one["type"]] for one in (settings, settings.get("inner", settings))})
    lines = [
        f"from fedtide.algorithms import {', '.join(classes)}",
        "from fedtide.flower import FedTide",
    ]
    if privacy is not None:
        module, _, name = privacy["type"].rpartition(":")
        lines.append(f"from {module or 'fedtide.privacy'} import {_CLASSES.get(name, name)}")
    lines.append("")
    if objective == "samples":
        lines += [
            "# Losses belong to the clients: in the client app, multiply the loss of each client",
            "# by its share of all samples times the number of clients.",
        ]
    elif objective != "uniform":
        factors = [float(f"{len(objective) * float(share):.6g}") for share in objective]
        lines += [
            "# Losses belong to the clients: in the client app, multiply the loss of each client",
            "# by its factor, in the order of `clients`; training then ends at the wanted weights.",
        ]
        lines.append(f"loss_factors = {factors}")
    lines += [
        "strategy = FedTide(",
        f"    {_write_call(settings)},",
        f"    clients={clients if isinstance(clients, int) else list(clients)!r},",
        '    state="state",',
        '    ledger="sqlite:///ledger.db",',
        *([] if privacy is None else [f"    privacy={_write_call(privacy)},"]),
        ")",
    ]
    return "\n".join(lines) + "\n"


def _write_call(settings: dict[str, Any]) -> str:
    arguments = [
        f"{name}={_write_call(value) if isinstance(value, dict) else repr(value)}"
        for name, value in settings.items()
        if name != "type"
    ]
    name = settings["type"].rpartition(":")[2]
    return f"{_CLASSES.get(name, name)}({', '.join(arguments)})"
