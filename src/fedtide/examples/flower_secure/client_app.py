"""A site: it trains, weights its update by FedAU's ω of its own rounds, and sends ω·Δ masked."""

from dataclasses import replace
from pathlib import Path

import torch
from flwr.app import Context
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from torch import Tensor

from fedtide.differential_privacy.noise_source import standard_normals
from fedtide.flower import TrainRequest, Update
from fedtide.flower.clients.store import encode_update

SIZE, STEPS, LR = 10, 5, 0.05
CLIP = 64.0
"""The largest ω·|Δ| of a coordinate that can be masked, not counting noise."""
MIN_SITES = 3
"""In a sum of two updates, each site could compute the other's."""
NORM = 1.0
"""The largest norm of an update, if noise is added."""
HONEST_SITES = 2
"""At least this many of the sites in a sum add the noise that they should."""


def secret(site: int) -> Tensor:
    """Return the site's private data; the model learns only the average of all sites."""
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(site), dtype=torch.float64)


def is_available(site: int, t: int) -> bool:
    """Return whether a site takes part in round t: site 0 always, site 3 in every fourth."""
    return t % (1 + site % 4) == 0


def train(x: Tensor, site: int) -> Update:
    """Return Δ of local gradient steps on F(y) = |y - e|² / 2."""
    y = x
    for _ in range(STEPS):
        y = y - LR * (y - secret(site))
    return Update({"x": y - x}, samples=1, lr=LR, steps=STEPS)


def noise_share(size: int, noise_multiplier: float, cutoff: int) -> Tensor:
    """Return a site's share of the noise on a sum: the shares of HONEST_SITES suffice.

    More sites make the noise larger. Lost sites do not make it too small, as sums of fewer than
    MIN_SITES are never unmasked.
    """
    return noise_deviation(noise_multiplier, cutoff) * standard_normals(size, 0, seed=None)


def noise_deviation(noise_multiplier: float, cutoff: int) -> float:
    """Return the deviation of a share: that of the sum is z K C, as one site changes it by K C."""
    return noise_multiplier * cutoff * NORM / HONEST_SITES**0.5


def largest_masked(noise_multiplier: float, cutoff: int) -> float:
    """Return the largest number that can be masked; noise exceeds its part once in 10^15 draws."""
    return CLIP + 8 * noise_deviation(noise_multiplier, cutoff)


def clip_update(update: Update) -> Update:
    """Return the update with a norm of at most NORM."""
    delta = update.update["x"]
    return replace(update, update={"x": delta * min(1.0, NORM / max(float(delta.norm()), NORM))})


class Site(NumPyClient):
    """The client of Flower's legacy workflow."""

    def __init__(self, context: Context) -> None:
        self._site = int(context.node_config["partition-id"])
        self._memory = Path(str(context.run_config["memory"])) / f"site-{self._site}"
        self._noise_multiplier = float(context.run_config.get("noise-multiplier", 0.0))

    def get_properties(self, config):
        """Tell the server whether the site takes part."""
        return {"available": is_available(self._site, config["round"])}

    def fit(self, parameters, config):
        """Train; every site sends the weight 1, so that it reveals nothing."""
        request = TrainRequest(
            config["round"], accepted_round=config["accepted-round"], form=config["form"]
        )
        update = train(torch.from_numpy(parameters[0]), self._site)
        if self._noise_multiplier:
            update = clip_update(update)
        weighted = encode_update(update, request, self._memory).update["x"]
        cutoff = int(request.form.removeprefix("fedau-"))
        if self._noise_multiplier:
            weighted = weighted + noise_share(len(weighted), self._noise_multiplier, cutoff)
        if not float(weighted.abs().max()) <= largest_masked(self._noise_multiplier, cutoff):
            raise ValueError("the update would be clipped, or is not finite; raise CLIP")
        return [weighted.numpy()], 1, {}


def refuse_small_sums(message, context, call_next):
    """Help to unmask only sums of enough updates: sites can be lost after they were selected.

    A site is either present or lost; the shares of both kinds would unmask its update.
    """
    config = message.content.config_records.get(RECORD_KEY_CONFIGS, {})
    active = set(config.get(Key.ACTIVE_NODE_ID_LIST, []))
    lost = set(config.get(Key.DEAD_NODE_ID_LIST, []))
    if config.get(Key.STAGE) == Stage.UNMASK and (len(active) < MIN_SITES or active & lost):
        raise ValueError(
            f"the sum is of fewer than {MIN_SITES} updates, or a site is both present and lost"
        )
    return call_next(message, context)


app = ClientApp(lambda context: Site(context).to_client(), mods=[refuse_small_sums, secaggplus_mod])
