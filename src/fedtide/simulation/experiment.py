"""The experiment: everything that determines a run, as one object or one YAML file."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from fedtide.algorithms import ALGORITHMS, Algorithm
from fedtide.differential_privacy import MECHANISMS, Mechanism
from fedtide.errors import InvalidInputError
from fedtide.participation import (
    DROPOUTS,
    POLICIES,
    PROCESSES,
    RATES,
    SELECTIONS,
    All,
    Availability,
    Dropout,
    NoDropout,
    RateLaw,
    Schedule,
    Selection,
    Synchronous,
    Timing,
)
from fedtide.problems import PARTITIONS, PROBLEMS, Partition, Problem, SetMetric
from fedtide.problems.datasets.catalogue import KNOWN
from fedtide.problems.models.network_building import MODEL_TYPES
from fedtide.problems.weighted_objective import Objective
from fedtide.simulation.experiment_files import override, read_yaml
from fedtide.spec import AtLeast, Builder, diff, fields, refuse_unknown_keys, spec, visit
from fedtide.training import PROJECTIONS, SCHEDULES, LocalTraining
from fedtide.training.devices import require_device
from fedtide.training.lr_schedules import LearningRateSchedule
from fedtide.training.projection import Projection
from fedtide.training.trainers.select import TrainerName

BUILDER = Builder(
    {
        Algorithm: ALGORITHMS,
        Availability: PROCESSES,
        RateLaw: RATES,
        Selection: SELECTIONS,
        Dropout: DROPOUTS,
        Synchronous: POLICIES,
        Mechanism: MECHANISMS,
        Problem: PROBLEMS,
        Partition: PARTITIONS,
        Projection: PROJECTIONS,
        LearningRateSchedule: SCHEDULES,
    },
    named_only=MODEL_TYPES | {"set": SetMetric},
)
"""Builds every class that an experiment file can name."""


HOW = (
    "checkpoint",
    "chunk",
    "compile",
    "device",
    "log",
    "max_stack_bytes",
    "record_iterates",
    "trainer",
)
"""The fields of an experiment that affect how it is computed, not what is learnt."""


Dtype = Literal["float32", "float64", "bfloat16"]

LogStage = Literal["available", "selected", "reported", "used"]

OnNonfinite = Literal["stop", "drop"]
"""Whether an update that is not finite stops the run or is dropped."""


_USUAL_INTERVAL = 10  # rounds between two evaluations
_EVALUATED_SHARE = 0.1  # samples evaluated for each that is trained on, at most
_LEAST_EVALUATIONS = 10  # evaluations of a run


@spec
class Evaluate:
    """When the model is evaluated.

    Args:
        every: in rounds, counted from the initial model; 0: only after the last round. None: every
            ten rounds; or, where an evaluation goes through more samples than a round of training,
            so rarely that at most a tenth as many samples are evaluated as are trained on, but at
            least ten times in a run.
        last: a number of rounds at the end of the run in which the model is evaluated every ten
            rounds, or as often as `every` says if that is more often; 0: none. Meant for results
            that are means over the last rounds of runs too long to evaluate this often throughout.
            `EarlyStopping` counts evaluations, so its patience runs out in fewer rounds there.
        clients: whether each client is evaluated as well; switch it off for millions of clients.
        personalise: local steps by which every client fine-tunes the final model on its own
            samples, for the columns `personalised_...` of the clients' table; 0: none. If clients
            have no test samples, these are measured on the samples used for fine-tuning.

    Raises:
        InvalidInputError: a negative number.
    """

    every: Annotated[int, AtLeast(0)] | None = None
    last: Annotated[int, AtLeast(0)] = 0
    clients: bool = True
    personalise: Annotated[int, AtLeast(0)] = 0

    def interval(self, rounds: int, cost: float) -> int:
        """Return the number of rounds between evaluations; 0: only the last round is evaluated.

        Args:
            rounds: the length of the run.
            cost: of an evaluation, in rounds of training.

        >>> usual = Evaluate()
        >>> [usual.interval(rounds, cost=3.3) for rounds in (1000, 500, 200)]
        [40, 40, 20]
        >>> usual.interval(1000, cost=0.5), Evaluate(every=25).interval(1000, cost=0.5)
        (10, 25)
        """
        if self.every is not None:
            return self.every
        affordable = math.ceil(cost / _EVALUATED_SHARE / _USUAL_INTERVAL) * _USUAL_INTERVAL
        return max(_USUAL_INTERVAL, min(affordable, rounds // _LEAST_EVALUATIONS))

    def is_due(self, ended: int, rounds: int, interval: int) -> bool:
        """Return whether the model is evaluated after `ended` of the run's `rounds`.

        >>> often_at_last = Evaluate(every=400, last=20)
        >>> [t for t in range(1001) if often_at_last.is_due(t, rounds=1000, interval=400)]
        [0, 400, 800, 990, 1000]
        """
        if ended == rounds or (interval and ended % interval == 0):
            return True
        return ended > rounds - self.last and ended % _USUAL_INTERVAL == 0


@spec
class Checkpoints:
    """When the checkpoints of a run with a folder are written; results do not depend on it.

    Args:
        seconds: between two checkpoints; or twenty times as long as the last one took to write, up
            to ten minutes, if that is more, so that checkpoints take about a twentieth of the run's
            time.
        every: additionally, after every so many rounds; None: by the clock alone.

    Raises:
        InvalidInputError: negative seconds, or less than one round.
    """

    seconds: Annotated[float, AtLeast(0)] = 30.0
    every: Annotated[int, AtLeast(1)] | None = None


@spec
class Experiment:
    """Everything that determines a run.

    Args:
        problem: what is learnt, and from which clients.
        participation: which clients are available in each round.
        algorithm: how updates become the next model.
        local: what a client does in a round.
        rounds: T >= 1.
        seed: of all random draws.
        name: shown in tables and figures.
        objective: the weights of Σ a_n F_n: "uniform" (a_n = 1 / N), "samples" (each client's share
            of all samples), or a weight per client, in a list or by name.
        selection: which of the available clients are selected.
        dropout: the dropout model: which of the selected clients report.
        timing: how long rounds last, with the available clients of that time; None: they have no
            duration.
        privacy: clipping of updates and noise on the method's sums (`fedtide.privacy`); the noise
            is drawn from `seed`, so anyone who knows the seed can subtract it. None: neither.
        evaluation: when the model is evaluated.
        dtype: of the model and the data. With "bfloat16", networks compute gradients in bfloat16
            (three digits), while the model, the updates and the evaluation are float32; faster on
            processors with matrix units for bfloat16.
        device: such as "cpu" or "cuda".
        trainer: "reference" (readable, slow), "stacked" (a chunk of clients at once), "compiled"
            (the same, compiled), "threaded" (one client per thread, for convolutions and recurrent
            layers on CPU), "threaded-compiled", or "auto", which measures them and reports its
            choice.
        compile: whether a trainer may compile the local steps, which takes seconds in the first
            round and, on CPU, needs a C++ compiler.
        on_nonfinite: what happens to an update that is not finite: "stop" ends the run, "drop"
            ignores the update and logs it as reported but not used.
        log: the lowest stage that the participation log keeps.
        checkpoint: when a run with a folder is saved.
        record_iterates: whether to keep x_0, ..., x_T.
        chunk: how many clients train and are absorbed together at most, such as 5 to share a cohort
            of 25 among five workers of a cluster; None: as many as `max_stack_bytes` allows.
        max_stack_bytes: the memory that the updates of clients trained together may take, and with
            `epochs` the plan of their minibatches. On a GPU the updates may always take a sixteenth
            of its memory; use `chunk` for less. Larger cohorts train in chunks, with the same
            result up to rounding. More than the default is slower, because such memory is allocated
            again in every round.

    Raises:
        InvalidInputError: a value outside its range.
    """

    problem: Problem
    participation: Availability
    algorithm: Algorithm[Any]
    local: LocalTraining
    rounds: Annotated[int, AtLeast(1)]
    seed: Annotated[int, AtLeast(0)] = 0
    name: str = "run"
    objective: Objective = "uniform"
    selection: Selection = field(default_factory=All)
    dropout: Dropout = field(default_factory=NoDropout)
    timing: Timing | None = None
    privacy: Mechanism | None = None
    evaluation: Evaluate = field(default_factory=Evaluate)
    dtype: Dtype = "float32"
    device: str = "cpu"
    trainer: TrainerName = "auto"
    compile: bool = True
    on_nonfinite: OnNonfinite = "stop"
    log: LogStage = "available"
    checkpoint: Checkpoints = field(default_factory=Checkpoints)
    record_iterates: bool = False
    chunk: Annotated[int, AtLeast(1)] | None = None
    max_stack_bytes: Annotated[int, AtLeast(1)] = 2**25

    def __post_init__(self) -> None:
        require_device(self.device)
        weights = {getattr(part, "weights", None) for _, _, part in visit(self.algorithm)}
        if isinstance(self.objective, str) and self.objective == "samples" and "data" in weights:
            raise InvalidInputError(
                "objective: samples, with weights: data of the algorithm, would weight clients by "
                "the square of their samples; give one of the two"
            )

    @property
    def schedule(self) -> Schedule:
        """The availability process, the selection and the dropout model together."""
        return Schedule(self.participation, self.selection, self.dropout)

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Experiment:
        """Return the experiment described by plain data (a parsed file), objects, or a mixture."""
        refuse_unknown_fields(plain, fields(cls))
        _refuse_dataset(plain.get("problem"))
        if isinstance(plain.get("seed"), list | tuple):
            raise InvalidInputError(f"seed: {plain['seed']!r:.60} are several; give them as seeds")
        experiment: Experiment = BUILDER.build(cls, dict(plain))
        return experiment

    @classmethod
    def load(cls, path: str | Path, overrides: Iterable[str] = ()) -> Experiment:
        """Return the experiment of a YAML file, with overrides such as `algorithm.cutoff=20`.

        Raises:
            InvalidInputError: the file cannot be read, or something in it cannot be used, such as
                several seeds.
        """
        plain = override(read_yaml(path), overrides)
        for key in ("base", *SWEEP_KEYS):
            if key in plain:
                raise InvalidInputError(
                    f"{key}: a file with this key describes several runs, or builds on another "
                    "file; run it with fedtide.sweep.run_sweep(Sweep.load(FILE), FOLDER), or in a "
                    "shell with fedtide run FILE"
                )
        return cls.from_dict(plain)

    def to_dict(self, in_memory: bool = False) -> dict[str, Any]:
        """Return the experiment as plain data, including all defaults.

        Args:
            in_memory: whether labels stand for what plain data cannot describe.

        Raises:
            InvalidInputError: a part that plain data cannot describe, unless `in_memory`.
        """
        plain: dict[str, Any] = BUILDER.to_plain(self, in_memory)
        return plain


def refuse_unknown_fields(given: Iterable[Any], known: Collection[str]) -> None:
    """Raise InvalidInputError if a key of an experiment is unknown, such as `lr` for `local.lr`."""
    refuse_unknown_keys(given, known, find=partial(BUILDER.find_key, Experiment))


def list_differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the dotted keys in which two experiments, as plain data, differ, with both values.

    A field that is missing because an earlier version wrote the experiment has its default.
    """
    return [*diff(_complete(before), _complete(now))]


def _complete(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return an experiment written by an earlier version, with the defaults of later fields.

    What cannot be built, such as data that were in memory, stays as it is.
    """
    completed = dict(plain)
    for name, known in fields(Experiment).items():
        if name not in plain and known.default is not None:
            completed[name] = BUILDER.to_plain(known.default())
        elif name in plain:
            with suppress(InvalidInputError):
                completed[name] = BUILDER.to_plain(BUILDER.build(known.kind, plain[name], name))
    return completed


def _refuse_dataset(problem: Any) -> None:
    """Raise InvalidInputError if the problem is the name of a data set."""
    name = problem.get("type") if isinstance(problem, Mapping) else problem
    if isinstance(name, str) and name in ("digits", *KNOWN):
        raise InvalidInputError(
            f"problem: {name!r} is a data set; give {{type: classification, dataset: {name}, "
            f"partition: ..., clients: ...}}, or in Python ft.problems.Classification({name!r}, "
            "partition, clients)"
        )


SWEEP_KEYS = ("seeds", "methods", "grid", "list", "strategy")
"""The keys that a file of several runs may have in addition to those of an experiment."""

REQUIRED = tuple(name for name, known in fields(Experiment).items() if known.is_required)
"""The keys that every experiment must have."""
