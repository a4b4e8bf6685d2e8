"""The rows of a log, indexed by round and by client, for audits and privacy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedtide.auditing.log.client_table import ClientTable, number_names
from fedtide.auditing.log.participation_log import (
    Floats,
    ParticipationLog,
    check_length,
    repeated_client,
)
from fedtide.auditing.log.refusals import count_refusals, format_reasons
from fedtide.errors import InvalidInputError, quantify
from fedtide.participation.log.columns import NOUNS, name_columns
from fedtide.participation.log.opening import FILE_SCHEMES, LogSource, OpenLog, open_log
from fedtide.participation.log.read import LogRows, read_rows
from fedtide.participation.log.schema import CLAIMED, STAGES
from fedtide.participation.log.tables import open_frame
from fedtide.validation import require_whole_number

Numbers = NDArray[np.float32]
OnProgress = Callable[[str, float], None]
"""Called with the name of the current step and the completed share of it."""

_MAX_NUMBER = 1e30
_SUM_OF_SHARES = (0.3, 3.0)
"""Between these, the typical sum of a round's weights is about 1."""


def read_participation_log(
    source: LogSource,
    clients: int | None = None,
    roster: ClientTable | None = None,
    columns: Mapping[str, str] | None = None,
    on_progress: OnProgress = lambda step, share: None,
    *,
    stages: Mapping[str, str] | None = None,
    where: Mapping[str, str] | None = None,
    ignore: Sequence[str] = (),
    round_seconds: float | None = None,
    time_zone: str | None = None,
    round_step: int | None = None,
    from_round: int = 0,
) -> ParticipationLog:
    """Read a participation log; rows may be in any order.

    Without stages, a row with weight or sample count 0 does not count as participation.

    Args:
        source: what `read_rows` reads, or the database URL of a ledger, such as
            sqlite:///ledger.db (with the federation's name after # if it holds several).
        clients: N. Numeric ids must then be 0..N − 1; string ids missing from the log get
            placeholder names. None: the clients of the roster, of the run, or of the log.
        roster: all clients of the federation.
        columns: as for `read_rows`. A column given as `weight` holds q_t^n, one given as `samples`
            sample counts, whatever its numbers.
        on_progress: progress callback.
        stages: as for `read_rows`, as are `where`, `ignore`, `time_zone` and `round_step`.
        where: see there.
        ignore: see there.
        round_seconds: see there; a client with several rows within a round counts once.
        time_zone: see there.
        round_step: see there.
        from_round: earlier rounds, by the numbers of the result, are left out; their clients stay.

    Raises:
        InvalidInputError: a log that cannot be used.
    """
    if clients is not None:
        require_whole_number("clients", clients)
        if roster is not None:
            raise InvalidInputError(
                "clients: the roster already gives the number of clients; leave one of the two out"
            )
    require_whole_number("from_round", from_round, 0)
    on_progress("reading", 0.0)
    is_ledger = isinstance(source, str) and "://" in source
    is_ledger = is_ledger and not str(source).startswith(FILE_SCHEMES)
    opened, sites = _open_ledger(str(source), from_round) if is_ledger else (open_log(source), None)
    rows = read_rows(
        opened,
        columns=columns,
        stages=stages,
        where=where,
        ignore=ignore,
        round_seconds=round_seconds,
        time_zone=time_zone,
        round_step=round_step,
    )
    on_progress("sorting", 0.0)
    final = rows.log.recorded or not {"weight", "samples"}.isdisjoint(columns or {})
    log = _index(rows, clients, roster, from_round, final, round_seconds is not None)
    if log.length < 2:
        hint = "an audit needs at least two rounds"
        if round_seconds is not None:
            hint = "make rounds shorter, or leave round_seconds out if the numbers count rounds"
        raise InvalidInputError(f"round: all rows are in round {log.first_round}; {hint}")
    if sites is not None and sites["step_weight"].null_count() < len(sites):
        names = log.names.cast(pl.String).rename("client").to_frame()
        found = names.join(sites, "client", "left", maintain_order="left")
        log = replace(log, updates=found.select("step_weight", "norm"))
    return log


def _open_ledger(url: str, from_round: int) -> tuple[OpenLog, pl.DataFrame]:
    """Open a ledger, and summarise its clients since a round.

    Rows and the span of completed rounds are those of the same moment.
    """
    from fedtide.flower.ledger.ledger import (  # needs SQLAlchemy, an optional library
        read_history,
        summarise_sites,
    )

    frame, ended = read_history(url)
    span = (ended["round"][0], ended["round"][-1] + 1) if len(ended) else None
    sites = summarise_sites(frame.filter(pl.col("round") >= from_round))
    return OpenLog(open_frame("log", frame), recorded=True, span=span), sites


def _index(
    rows: LogRows,
    clients: int | None,
    roster: ClientTable | None,
    from_round: int,
    final: bool,
    timed: bool,
) -> ParticipationLog:
    """Return the log of the roster's clients, of 0..clients − 1, of the run's, or of those seen.

    Args:
        rows: of the log.
        clients: N.
        roster: all clients.
        from_round: earlier rounds are left out.
        final: whether weights are q_t^n, and samples counts, whatever their values.
        timed: whether rounds come from times, so that a client may have several rows in one.
    """
    if rows.log.span is None:
        raise InvalidInputError("log: it has no rows; give at least two rounds")
    first, end = rows.log.span
    check_length(end - first)
    frame, notes = rows.frame, [*rows.log.notes]
    for ours in ("weight", "samples"):
        if ours in frame and len(large := frame[ours].filter(frame[ours] >= _MAX_NUMBER)):
            raise InvalidInputError(f"{ours}: {large[0]} is too large; correct it")
    names, frame = _number_clients(frame, rows.log.clients, clients, roster, notes)
    frame, weightless = _drop_weightless(frame, notes)
    declared = _average_samples(frame, len(names))
    if first < from_round:
        notes.append(f"the rounds before round {from_round} are left out")
        frame, first = frame.filter(pl.col("round") >= from_round), from_round
        if frame.is_empty():
            raise InvalidInputError(
                f"from_round: no row is of round {from_round} or later; the last round of the log "
                f"is {end - 1}"
            )
    refusals = None
    if "reason" in frame:
        refusals = count_refusals(frame.select("round", "client", "stage", "reason"))
        claimed = pl.col("reason").eq_missing(CLAIMED) & (pl.col("stage") == "available")
        frame = frame.filter(~claimed).drop("reason")
    earlier: list[ParticipationLog | None] = [None, None, None]
    if timed or "stage" in frame:
        frame, earlier = _find_stages(frame, names, (first, end), rows.is_mapped, timed, notes)
    if refusals is not None and frame.is_empty():
        raise InvalidInputError(
            f"log: no update was used in {quantify(end - first, 'round')}: "
            f"{format_reasons(refusals.total())}; an audit needs updates that were used"
        )
    weights = _find_weights(frame, declared, final, rows.columns, notes)
    if roster is not None:
        notes.extend(roster.notes)
        declared = _complete_samples(declared, roster.samples, notes)
    rounds, codes = frame["round"].to_numpy(), frame["client"].to_numpy()
    log = ParticipationLog.from_entries(names, rounds, codes, (first, end), weights)
    return replace(
        log,
        samples=declared,
        available=earlier[0],
        selected=earlier[1],
        reported=earlier[2],
        complete=roster is not None or clients is not None or rows.log.clients is not None,
        refusals=refusals,
        weightless=weightless,
        notes=tuple(notes),
    )


def _number_clients(
    frame: pl.DataFrame,
    of_run: pl.Series | None,
    clients: int | None,
    roster: ClientTable | None,
    notes: list[str],
) -> tuple[pl.Series, pl.DataFrame]:
    """Return the names of all clients, and the rows with the clients' positions in them."""
    given = roster.names if roster is not None else of_run if clients is None else None
    seen = frame["client"].unique()
    names, positions = number_names(seen, given, clients)
    if given is None and clients and seen.dtype != pl.String and 0 not in seen and 1 in seen:
        notes.append(
            f"the ids are taken to be 0 to {clients - 1}, of which 0 never occurs; if they count "
            "from 1, give them with roster= or --roster"
        )
    codes = frame["client"].replace_strict(seen, positions, return_dtype=pl.Int32)
    return names, frame.with_columns(codes.alias("client"))


def _drop_weightless(frame: pl.DataFrame, notes: list[str]) -> tuple[pl.DataFrame, int]:
    """Return the rows without those of weight 0, which move no model, and how many these were.

    Tables with a row for every client in each round mark absent clients like this. Stages show
    them anyway, and a client that reported with weight 0 was not lost.
    """
    given = [n for n in ("weight", "samples") if n in frame and frame[n].null_count() < len(frame)]
    if "stage" in frame or not given:
        return frame, 0
    weightless = (frame[given[0]] == 0).fill_null(False)
    count = int(weightless.sum())
    if count in (0, len(frame)):
        return frame, 0
    notes.append(
        f"{count:,} of {len(frame):,} used rows {'has' if count == 1 else 'have'} the "
        f"{NOUNS[given[0]]} 0, which does not count as participation"
    )
    return frame.filter(~weightless), count


def _average_samples(frame: pl.DataFrame, clients: int) -> Floats | None:
    """Return each client's mean sample count, (N,), NaN without one; None if there are none.

    A 0 says that a client did not train in a round, and nothing about its size.
    """
    given = frame.filter(pl.col("samples") > 0) if "samples" in frame else frame.clear()
    if given.is_empty():
        return None
    means = given.group_by("client").agg(pl.col("samples").mean())
    declared = np.full(clients, np.nan)
    declared[means["client"].to_numpy()] = means["samples"].to_numpy()
    return declared


def _find_stages(
    frame: pl.DataFrame,
    names: pl.Series,
    span: tuple[int, int],
    is_mapped: bool,
    timed: bool,
    notes: list[str],
) -> tuple[pl.DataFrame, list[ParticipationLog | None]]:
    """Return the rows of used clients, and who was available, selected and reported.

    A client may have several rows in a round, one for each stage; the last stage counts. If values
    of the log were mapped to stages, it may have several for a stage before the last, and if the
    log has times, several of each. Earlier stages are known only as far as the log has rows of
    them.
    """
    used = len(STAGES) - 1
    stages = np.full(len(frame), used, dtype=np.uint8)
    if "stage" in frame:
        stages = frame["stage"].to_physical().to_numpy()
    shifted = frame["round"].to_numpy() - span[0]
    keys = (shifted * len(names) + frame["client"].to_numpy()) * len(STAGES) + stages
    order = np.argsort(keys, kind="stable")
    pairs, stages = keys[order] // len(STAGES), stages[order]
    last = np.append(pairs[1:] != pairs[:-1], True)
    repeated = np.flatnonzero(~last[:-1] & (stages[1:] == stages[:-1]))
    if timed:
        if count := int((~last).sum()) if "stage" not in frame else len(repeated):
            notes.append(
                f"{count:,} of {len(frame):,} rows {'repeats' if count == 1 else 'repeat'} a "
                "client within a round, which counts once"
                + ("; the weights are therefore not used" if "weight" in frame else "")
            )
            frame = frame.drop("weight", strict=False)
    elif len(repeated := repeated[(stages[repeated] == used) | (not is_mapped)]):
        t, n = divmod(int(pairs[repeated[0]]), len(names))
        raise repeated_client(names[n], span[0] + t)

    def index(lowest: int) -> ParticipationLog:
        rounds, clients = np.divmod(pairs[last & (stages >= lowest)], len(names))
        entries = (rounds + span[0], clients.astype(np.int32))
        return ParticipationLog.from_entries(names, *entries, span)

    has = [bool((stages == stage).any()) for stage in range(used)]
    has[1] |= has[2]  # the selected ones are known if those that reported are
    earlier = [index(stage) if has[stage] else None for stage in range(used)]
    kept = np.zeros(len(frame), dtype=np.bool_)  # in the order of the log
    kept[order[last & (stages == used)]] = True
    return frame.filter(pl.Series(kept)), earlier


def _find_weights(
    frame: pl.DataFrame,
    declared: Floats | None,
    final: bool,
    columns: Mapping[str, str],
    notes: list[str],
) -> Numbers | None:
    """Return q_t^n of each used row; None if the log does not have that of each.

    Sample counts are divided by their sum in the round. Where one is missing, the mean count of
    the same client stands in for it: otherwise one missing count would decide that none is used.

    Args:
        frame: the used rows.
        declared: the mean sample count of each client.
        final: whether weights are q_t^n, and samples counts, whatever their values.
        columns: the log's own names.
        notes: gets notes on what is not used.
    """
    if "weight" in frame and _has_all("weights", "used", frame["weight"], notes):
        if not final:
            _check_weights(frame, columns["weight"])
        return np.asarray(frame["weight"], dtype=np.float32)
    if "samples" not in frame or frame["samples"].null_count() == len(frame):
        return None
    counts = frame["samples"]
    odd = counts.filter(counts.is_not_null() & (counts != counts.round()))
    if len(odd) and not final:
        name = columns["samples"]
        raise InvalidInputError(
            f"samples: {odd[0]:g} is no number of samples (column {name!r}); write counts without "
            f"a thousands separator, or, if it is meant, name the column with "
            f"{name_columns({'samples': name})}"
        )
    own = pl.Series(np.full(len(frame), np.nan) if declared is None else declared[frame["client"]])
    filled = counts.fill_null(own).fill_nan(None)
    if not _has_all("sample counts", "used as weights", filled, notes):
        return None
    if missing := counts.null_count():
        notes.append(
            f"{missing:,} of {len(counts):,} used rows {'has' if missing == 1 else 'have'} no "
            "sample count: the mean count of the same client is used"
        )
    rounds = frame["round"].to_numpy() - frame["round"].min()
    sums = np.bincount(rounds, filled.to_numpy())
    shares: Floats = filled.to_numpy() / np.where(sums > 0, sums, 1.0)[rounds]
    return shares.astype(np.float32)


def _has_all(what: str, how: str, numbers: pl.Series, notes: list[str]) -> bool:
    """Return whether no number is missing; note it if only some are."""
    missing = numbers.null_count()
    if 0 < missing < len(numbers):
        notes.append(
            f"the {what} are not {how}: {missing:,} of {len(numbers):,} used rows "
            f"{'has' if missing == 1 else 'have'} none"
        )
    return missing == 0


def _check_weights(frame: pl.DataFrame, name: str) -> None:
    """Raise InvalidInputError unless the weights of a round sum to about 1."""
    sums = frame.group_by("round").agg(pl.col("weight").sum(), pl.len())
    positive = sums.filter(pl.col("weight") > 0)["weight"].to_numpy()
    typical = float(np.median(positive)) if len(positive) else 1.0
    ones = bool((frame["weight"] == 1).all()) and bool((sums["len"] > 1).any())
    if ones or not _SUM_OF_SHARES[0] <= typical <= _SUM_OF_SHARES[1]:
        what = "are all 1" if ones else f"typically sum to {typical:.3g} in a round, not to about 1"
        raise InvalidInputError(
            f"weight: the weights {what}; if they are sample counts, say so with "
            f"{name_columns({'samples': name})}, if they are the weights with which updates are "
            f"added, with {name_columns({'weight': name})}, and if the clients of a round count "
            f"alike, leave them out with ignore=[{name!r}] or --ignore {name}"
        )


def _complete_samples(
    samples: Floats | None, of_roster: Floats | None, notes: list[str]
) -> Floats | None:
    """Return the sample counts of a log, (N,), with those of the roster where the log has none."""
    if of_roster is None or np.isnan(of_roster).all():
        return samples
    own = np.full(len(of_roster), np.nan) if samples is None else samples
    taken = int((np.isnan(own) & ~np.isnan(of_roster)).sum())
    if not taken:
        notes.append(
            "the sample counts of the roster are not used: the log has those of its clients"
        )
        return samples
    notes.append(
        f"the roster gives the sample count of {quantify(taken, 'client')} without one in the log"
    )
    return np.where(np.isnan(own), of_roster, own)
