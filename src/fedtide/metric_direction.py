"""What the names of metrics tell: which are better when lower, and which are shares."""

from __future__ import annotations

import re
from collections.abc import Mapping

_LOWER = re.compile(
    r"(^|_)(loss|error|err|mse|rmse|mae|mape|nll|perplexity|brier|cost|regret|distance|std)(_|$)"
)
_SHARE = re.compile(r"(^|_)(accuracy|recall|precision)(_|$)")
_CLIENTS = re.compile(r"client_(?P<base>.+)_(p10|p50|p90|worst_tenth)")
_PART = re.compile(r"(personalised|train|test|participation)_(?P<base>.+)")


def lower_is_better(metric: str, declared: Mapping[str, bool] | None = None) -> bool:
    """Return whether a smaller value of a metric is better.

    A standard deviation over the clients is always better when lower. Otherwise the direction is
    the one declared for the metric, or for the one it is derived from (`client_NAME_p90`,
    `test_NAME`). Without a declaration, the name decides: losses and errors are better when lower,
    everything else when higher.

    Args:
        metric: the name of a metric, or of the spread of one over the clients.
        declared: the known directions, by the name of the metric.

    >>> [lower_is_better(m) for m in ("client_loss_p90", "mse", "test_accuracy")]
    [True, True, False]
    >>> lower_is_better("client_bits_worst_tenth", {"bits": True})
    True
    """
    if re.fullmatch(r"client_.+_std", metric):
        return True
    for name in _names(metric):
        if declared is not None and name in declared:
            return declared[name]
    return _LOWER.search(metric) is not None


def is_share(metric: str) -> bool:
    """Return whether a metric is a share from 0 to 1, which is shown in per cent.

    >>> [is_share(metric) for metric in ("client_accuracy_std", "loss")]
    [True, False]
    """
    return _SHARE.search(metric) is not None


def base_metric(metric: str) -> str:
    """Return the metric that another one is derived from, or the metric itself.

    >>> base_metric("client_test_mae_p90")
    'mae'
    """
    return _names(metric)[-1]


def _names(metric: str) -> list[str]:
    """Return the metric and those that it is derived from, the nearest first."""
    names = [metric]
    for pattern in (_CLIENTS, _PART, _PART):
        if match := pattern.fullmatch(names[-1]):
            names.append(match["base"])
    return names
