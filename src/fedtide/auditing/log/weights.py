"""Participation weights and sample counts of a log: which of the two a column holds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedtide.auditing.log.columns import name_columns
from fedtide.auditing.log.participation_log import Floats
from fedtide.errors import InvalidInputError

Numbers = NDArray[np.float32]
"""One number for each row, shape (E,); NaN where it is missing."""

_COUNT_SUM = 10.0
"""Whole-numbered weights are sample counts if they typically sum to at least this in a round."""
_ROWS = 1 << 20
"""Rows processed at a time, as a copy of all in double precision takes memory."""
_ALIKE = "the clients of a round count alike"
_KEEP_HINT = f"{name_columns({'weight': 'NAME'})} keeps them as they are"
_SUM_OF_SHARES = (0.3, 3.0)
"""Between these, the typical sum of a round's weights is about 1."""


def find_weights(
    rounds: NDArray[np.integer],
    weights: Numbers | None,
    counts: Numbers | None,
    own_counts: Numbers | None,
    weights_are_final: bool,
    notes: list[str],
) -> tuple[Numbers | None, Numbers | None]:
    """Return q_t^n of each used row, and the sample counts behind it; None where unknown.

    Weights are kept only if every used row has one. They are dropped if all are 1, or all are equal
    with sums far above 1: then they only mark who took part.

    Args:
        rounds: of the used rows, shape (E,).
        weights: the log's weights; None: it has none.
        counts: the log's sample counts; None: it has none.
        own_counts: for each row the mean count of its client, NaN without one; None: there are
            none.
        weights_are_final: whether a weight is q_t^n even if it looks like a sample count.
        notes: gets notes on how columns are read, and what is not used.
    """
    if weights is not None and _has_all("weights", "used", weights, notes):
        if weights_are_final:
            return weights, counts
        is_constant = len(weights) > 0 and bool((weights == weights[0]).all())
        if is_constant and weights[0] == 1 and (np.bincount(rounds - rounds.min()) > 1).any():
            notes.append(f"the weights are all 1: {_ALIKE}")
            return None, None
        typical = _find_typical_sum(rounds, weights)
        if typical >= _COUNT_SUM and _find_fraction(weights) is None:
            counts = weights
            notes.append(
                "the weights are whole numbers that sum to far more than 1 in a round: read as "
                f"sample counts, and divided by their sum in each round; {_KEEP_HINT}"
            )
        elif is_constant and typical > _SUM_OF_SHARES[1]:
            # Weights 1/N, which are q_t^n of a server that divides by N, sum to at most 1.
            notes.append(f"the weights are all {weights[0]:.6g}: {_ALIKE}; {_KEEP_HINT}")
            return None, None
        else:
            if not _SUM_OF_SHARES[0] <= typical <= _SUM_OF_SHARES[1]:
                notes.append(
                    f"the weights typically sum to {typical:.3g} in a round, not to about 1, and "
                    "rounds with a larger sum count for more; if the server divides by the sum, "
                    "divide the weights of each round by it"
                )
            return weights, counts
    counts = _fill_counts(counts, own_counts, notes)
    if counts is None or not _has_all("sample counts", "used as weights", counts, notes):
        return None, counts
    return _normalise_by_round(rounds, counts), counts


def _has_all(what: str, how: str, numbers: Numbers, notes: list[str]) -> bool:
    """Return whether no number is missing; note it if only some are."""
    missing = int(np.isnan(numbers).sum())
    if 0 < missing < len(numbers):
        notes.append(
            f"the {what} are not {how}: {missing:,} of {len(numbers):,} used rows "
            f"{'has' if missing == 1 else 'have'} none"
        )
    return missing == 0


def _fill_counts(
    counts: Numbers | None, own_counts: Numbers | None, notes: list[str]
) -> Numbers | None:
    """Return the sample counts, with the client's mean where one is missing; note how many.

    Otherwise one unreadable count would decide that none is used. They stay as they are if a client
    has no count at all.
    """
    if counts is None or own_counts is None:
        return counts
    missing = np.isnan(counts)
    filled = int(missing.sum())
    if not filled or np.isnan(own_counts[missing]).any():
        return counts
    notes.append(
        f"{filled:,} of {len(counts):,} used rows {'has' if filled == 1 else 'have'} no sample "
        "count: the mean count of the same client is used"
    )
    return np.where(missing, own_counts, counts)


def _find_typical_sum(rounds: NDArray[np.integer], weights: Numbers) -> float:
    """Return the median of the positive sums of the weights of a round; 1 if there are none."""
    if not len(rounds):
        return 1.0
    first = rounds.min()
    sums = np.zeros(int(rounds.max() - first) + 1)
    for low in range(0, len(rounds), _ROWS):
        part = rounds[low : low + _ROWS] - first
        sums += np.bincount(part, weights[low : low + _ROWS], len(sums))
    return float(np.median(sums[sums > 0])) if sums.any() else 1.0


def _normalise_by_round(rounds: NDArray[np.integer], counts: Numbers) -> Numbers:
    """Return each count divided by the sum of its round; 0 in a round without samples."""
    if not len(rounds):
        return counts
    shifted = rounds - rounds.min()
    sums = np.bincount(shifted, counts)
    shares: Numbers = (counts / np.where(sums > 0, sums, 1.0)[shifted]).astype(np.float32)
    return shares


def average_by_client(
    clients: NDArray[np.int32], samples: Numbers | None, size: int
) -> Floats | None:
    """Return each client's mean sample count, (N,), NaN without one; None if there are none.

    A 0 says that a client did not train in a round, and nothing about its size.
    """
    if samples is None or not (given := samples > 0).any():
        return None
    sums = np.bincount(clients[given], samples[given], minlength=size)
    rows = np.bincount(clients[given], minlength=size)
    return np.where(rows > 0, sums / np.maximum(rows, 1), np.nan)


def complete_samples(
    samples: Floats | None, of_roster: Floats | None, notes: list[str]
) -> Floats | None:
    """Return the sample counts of a log, (N,), with those of the roster where the log has none.

    Args:
        samples: of the log, NaN where it has none; None: it has none at all.
        of_roster: likewise.
        notes: gets a note on what is taken from the roster.
    """
    if of_roster is not None and not np.isnan(of_roster).all():
        lacking = np.ones(len(of_roster), dtype=np.bool_) if samples is None else np.isnan(samples)
        taken = int((lacking & ~np.isnan(of_roster)).sum())
        notes.append(
            f"the roster gives the sample count of {taken:,} client{'' if taken == 1 else 's'} "
            "without one in the log"
            if taken
            else "the sample counts of the roster are not used: the log has those of its clients"
        )
        if taken:
            samples = np.where(lacking, of_roster, np.nan if samples is None else samples)
    return samples


def check_counts(counts: Numbers, notes: list[str]) -> None:
    """Refuse sample counts in which a point separates thousands; note other fractions.

    Raises:
        InvalidInputError: numbers of which a point surely separates thousands.
    """
    if (fraction := _find_fraction(counts)) is not None:
        said = f"some sample counts are not whole numbers, such as {fraction:g}"
        remedy = "write counts without a thousands separator"
        if _are_separated(counts):
            raise InvalidInputError(f"samples: {said}; {remedy}")
        notes.append(f"{said}: {remedy}")


def _find_fraction(numbers: Numbers) -> float | None:
    """Return a number that is not a whole one; None: there is none."""
    for low in range(0, len(numbers), _ROWS):
        part = numbers[low : low + _ROWS]
        odd = part[np.isfinite(part) & (part != np.round(part))]
        if len(odd):
            return float(odd[0])
    return None


def _are_separated(counts: Numbers) -> bool:
    """Return whether these are surely whole numbers with a point that separates thousands.

    Of 300 and 1.080, only the first can be a count, and none reaches 1000. Counts like 312.5 beside
    300, or 0.5, may be intended.

    >>> [_are_separated(np.array([300.0, x, np.nan])) for x in (1.08, 312.5)]
    [True, False]
    """
    known = counts[np.isfinite(counts)].astype(np.float64)
    odd = known[known != np.round(known)]
    in_thousands = np.abs(odd - np.round(odd, 3)) <= 1e-7 * odd  # counts are float32
    return bool(
        len(odd) and in_thousands.all() and odd.min() > 1 and odd.max() < 100 <= known.max() < 1000
    )
