"""How long the devices of clients need for a round."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from fedtide.client_values import Name, order_by_id
from fedtide.population import Population
from fedtide.spec import AtLeast, Within, spec
from fedtide.validation import require_one_per_client

Floats = NDArray[np.float64]

PerClient = float | Sequence[float] | NDArray[np.float64] | Mapping[Name, float]
"""One number for all clients, or one for each: a list in the order of the ids, or by name."""

_BANDWIDTH = Within(0, math.inf, "(]", "give bytes per second")


@dataclass(frozen=True)
class Work:
    """What a client does in a round.

    Args:
        samples: k_n, how many samples go through its local steps, shape (N,).
        received: the bytes that it receives.
        sent: the bytes that it sends.
    """

    samples: NDArray[np.int64]
    received: int
    sent: int


@spec
class DeviceSpeeds:
    """Devices that need a constant time for a sample and for a byte, up to a jitter.

    Client n, asked in round t, reports after

        d_t^n = exp(σ e_t^n) (D / v_n + k_n c_n + U / w_n)

    seconds, where the e_t^n are independent and standard normal. k_n is the number of samples that
    go through its local steps in a round: steps × `batch_size` (or all of its samples, if these are
    fewer or there is no batch size), or epochs × all of its samples; a step of a client without
    samples counts as one. D and U are the bytes of the vectors that the method sends to a client
    and gets from it, a model and an update for most, at 4 bytes per number.

    Args:
        seconds_per_sample: c_n >= 0, of computing.
        download: v_n > 0, the client's bandwidth in bytes per second; inf: a download takes no
            time.
        upload: w_n, the same for what it sends.
        jitter: σ >= 0, the variation between the rounds of a client.

    Raises:
        InvalidInputError: a number out of range; in a run, not one for each client.
    """

    seconds_per_sample: Annotated[PerClient, AtLeast(0)] = 0.0
    download: Annotated[PerClient, _BANDWIDTH] = math.inf
    upload: Annotated[PerClient, _BANDWIDTH] = math.inf
    jitter: Annotated[float, AtLeast(0)] = 0.0

    def seconds(self, work: Work, population: Population) -> Floats:
        """Return the time that each client needs for this work without jitter, shape (N,).

        Raises:
            InvalidInputError: not one number for each client.

        >>> slow = DeviceSpeeds(seconds_per_sample=[0.1, 0.5], upload=100.0)
        >>> slow.seconds(Work(np.array([20, 20]), 400, 400), Population(clients=2))
        array([ 6., 14.])
        """

        def read(field: str, given: Any) -> Floats:
            values = np.asarray(order_by_id(field, given, population), dtype=np.float64)
            if values.ndim:
                require_one_per_client(field, values, population.clients)
            return values

        computing = work.samples * read("seconds_per_sample", self.seconds_per_sample)
        received = work.received / read("download", self.download)
        return np.asarray(received + computing + work.sent / read("upload", self.upload))

    def vary(self, seconds: Floats, u: Floats) -> Floats:
        """Return times with jitter, of which `u` are the quantiles."""
        if not self.jitter:
            return seconds
        from scipy.special import ndtri  # slow to import and rarely needed

        return np.asarray(seconds * np.exp(self.jitter * ndtri(u)))
