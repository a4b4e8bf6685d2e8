"""Reconciles state, ledger and privacy accounting after a crash, and rolls a federation back."""

from __future__ import annotations

from logging import getLogger
from pathlib import Path

from fedtide.errors import InvalidInputError, quantify
from fedtide.flower.ledger.ledger import Ledger
from fedtide.flower.ledger.ledger_maintenance import prune_ledger
from fedtide.flower.server.session import PUBLISHED, TrainingSession
from fedtide.locking import lock_folder
from fedtide.simulation.checkpoint import load
from fedtide.simulation.run_folder import numbered

log = getLogger("flwr")


def reconcile(training: TrainingSession, ledger: Ledger | None, private: bool) -> None:
    """Make the ledger agree with the state after a crash, or after damage to the state.

    A round missing from the ledger is added. A round in the ledger but not in the state was in the
    newest checkpoint, which is damaged: it is removed from the ledger, and repeated.

    A private round is never repeated: its model may have been published, and a second one, with
    fresh noise, would reveal more about its clients than is accounted for. Nor does private
    training resume with a ledger that lacks its rounds, as `spent` would not count them.

    Args:
        training: restored from the newest checkpoint that could be read.
        ledger: of the federation; None: none.
        private: whether the method adds noise.

    Raises:
        InvalidInputError: they belong to different trainings; all checkpoints of several rounds are
            damaged, and training would start over and remove what might still be rescued by hand;
            or the last round is lost, and is private.
    """
    if private:
        _require_all_rounds(training, ledger)
    all_damaged = training.saved > 1 and training.round == 0
    if ledger is not None:
        _reconcile_ledger(training, ledger, private, repeats=not all_damaged)
    if all_damaged:
        raise InvalidInputError(
            f"state: {training.folder} had {training.saved} rounds, and all its checkpoints are "
            "damaged; restore a backup, or give another folder to begin again"
        )
    if private:
        training.mark_published()


def _require_all_rounds(training: TrainingSession, ledger: Ledger | None) -> None:
    """Raise InvalidInputError if a private round has ended after which no state can be read."""
    ended = training.round
    known = max(training.saved, training.published, 0 if ledger is None else ledger.ended)
    if ledger is not None and known and not (training.saved or training.published):
        raise InvalidInputError(
            f"state: {training.folder} is empty, and the ledger has {quantify(known, 'round')} of "
            f"{ledger.federation!r}, in which its clients have lost privacy; give the folder of "
            "these rounds, or begin again under another name, with a budget reduced by what was "
            "spent (fedtide.privacy.spent)"
        )
    if known > ended:
        raise InvalidInputError(
            f"state: round {known} has ended, and the newest state that can be read is that after "
            f"round {ended}; with privacy no round may be repeated, as its model would be published"
            " twice and counted once: restore the newest file, or begin again in another folder, "
            "with a budget reduced by what was spent (fedtide.privacy.spent)"
        )


def _reconcile_ledger(
    training: TrainingSession, ledger: Ledger, private: bool, repeats: bool
) -> None:
    """Make the ledger have the rounds of the state.

    Args:
        training: see `reconcile`.
        ledger: see `reconcile`.
        private: see `reconcile`.
        repeats: whether a single round that the state lacks may be repeated.
    """
    ended, logged = training.round, ledger.ended
    if logged == ended + 1 and training.saved and repeats:
        log.warning(
            "Round %d is removed from the ledger and repeated: the state after it is lost", logged
        )
        ledger.undo(ended)
    elif logged > ended or ((logged or private) and logged < ended - 1):
        hint = "restore those that belong together, or choose another name for the federation"
        if private:
            hint = (
                "restore those that belong together, or give the ledger with which the training "
                "began: its clients' privacy loss follows from all of its rounds"
            )
        raise InvalidInputError(
            f"ledger: it has {quantify(logged, 'round')} of {ledger.federation!r}, the state has "
            f"{ended}; {hint}"
        )
    elif not logged and ended > 1:
        log.warning(
            "The ledger has no rounds of %r, and the state has %d: if they are in another ledger, "
            "or under another name, stop the run at once, and give that one",
            ledger.federation,
            ended,
        )
    if ended:
        ledger.commit(ended - 1, training.entries, training.ended_at)


def roll_back(folder: Path, ledger: str, ended: int) -> None:
    """Return a federation that does not run to the state after its first `ended` rounds.

    If this is interrupted, the next submission is refused until it has been done again.

    Args:
        folder: of the state.
        ledger: its URL, as in `read_ledger`.
        ended: how many rounds remain.

    Raises:
        InvalidInputError: a run is using the state; there is no intact state after these rounds; or
            the training is private.
    """
    with lock_folder(folder, "state", "stop it first (flwr stop)"):
        if (folder / PUBLISHED).exists():
            raise InvalidInputError(
                f"state: {folder} is of a federation with privacy, whose rounds cannot be undone: "
                "their models may have been published; begin another one with an earlier model"
            )
        states = {int(file.stem): file for file in numbered(folder, "safetensors")}
        if ended not in states or load(states[ended]) is None:
            there = ", ".join(map(str, states)) or "none"
            raise InvalidInputError(
                f"rounds: {folder} has no intact state after {quantify(ended, 'round')}; it has "
                f"those after {there} (keep_every says which are kept)"
            )
        for later in sorted(states, reverse=True):
            if later > ended:
                states[later].unlink()
        prune_ledger(ledger, 0, ended)
