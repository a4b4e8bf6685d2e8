"""A site: it trains, weighs its update by FedAU's ω of its own rounds, and sends ω·Δ masked."""

from pathlib import Path

import torch
from flwr.app import Context
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from torch import Tensor

from fedtide.flower import TrainRequest, Update
from fedtide.flower.client.store import remembered

SIZE, STEPS, LR = 10, 5, 0.05
CLIP = 64.0
"""The largest ω·|Δ| of a coordinate that can be masked."""


def secret(site: int) -> Tensor:
    """Return what a site knows, and nobody else is to know: what is learnt is their average."""
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(site), dtype=torch.float64)


def comes(site: int, t: int) -> bool:
    """Say whether a site takes part in round t: site 0 always, site 3 in every fourth."""
    return t % (1 + site % 4) == 0


def train(x: Tensor, site: int) -> Update:
    """Return Δ of local gradient steps on F(y) = |y - e|² / 2."""
    y = x
    for _ in range(STEPS):
        y = y - LR * (y - secret(site))
    return Update({"x": y - x}, samples=1, lr=LR, steps=STEPS)


class Site(NumPyClient):
    """What Flower's legacy workflow talks to."""

    def __init__(self, context: Context) -> None:
        self._site = int(context.node_config["partition-id"])
        self._memory = Path(str(context.run_config["memory"])) / f"site-{self._site}"

    def get_properties(self, config):
        """Say whether the site takes part."""
        return {"comes": comes(self._site, config["round"])}

    def fit(self, parameters, config):
        """Train; the weight 1 says nothing of the site."""
        asked = TrainRequest(config["round"], accepted=config["accepted"], form=config["form"])
        sent = remembered(train(torch.from_numpy(parameters[0]), self._site), asked, self._memory)
        if float(sent.update["x"].abs().max()) > CLIP:
            raise ValueError("the update would be clipped: raise CLIP")
        return [sent.update["x"].numpy()], 1, {}


app = ClientApp(lambda context: Site(context).to_client(), mods=[secaggplus_mod])
