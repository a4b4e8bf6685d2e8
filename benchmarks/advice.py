"""The advice of an audit, tested by training.

    python benchmarks/advice.py train [--laws NAME ...] [--methods NAME ...] [--problems NAME ...]
    python benchmarks/advice.py judge
    python benchmarks/advice.py write

For each law of `participation_laws` and each problem, `train` audits one log, trains every method
with the settings of that audit, on freshly drawn participation, and adds the runs to
records/advice.parquet; runs that are there already are not repeated. `judge` audits logs with the
current code, looks up the methods that the audit advises and writes the verdicts to
records/advice.json. `write` puts their counts and the misses into docs/audit-methods.md.

With --held-out, all three do the same for the laws that were not used to choose the methods,
with the record advice_held_out.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
import zlib
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from fedtide.algorithms import ALGORITHMS, Algorithm, ClientUpdates, Cohort, RoundDriver
from fedtide.auditing import Audit, audit
from fedtide.errors import InvalidInputError
from fedtide.population import Population
from fedtide.problems.datasets.catalogue import load
from fedtide.simulation.experiment import BUILDER
from participation_laws import CLIENTS, HELD_OUT, LAWS, Law, Numbers, Present

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "audit-methods.md"
ALL_LAWS = LAWS | HELD_OUT

TUNING, JUDGED = 0, (1, 2, 3, 4, 5)
LOGS = (101, 102, 103, 104, 105)
"""Seeds of the audited logs; trained settings are those of the first."""
LIGHT = ("fedavg", "fedau", "known-rates", "amplified", "auto")
"""Methods without a memory of every client's update."""
STEPS = 5
EVERY = 7
"""Rounds between evaluations, so that in the long run all phases of a cycle count equally."""
FLOOR = 0.005
"""Smaller differences do not count: half a percent of the initial excess loss, or half a point of
accuracy."""
Settings = dict[str, Any]
Ids = NDArray[np.int64]


@dataclass(frozen=True)
class LawSet:
    """Laws with a record and a table of their own.

    Args:
        name: of the record's files and of the table.
        laws: by name.
        grids: the local rates of each problem, the same for all methods.
    """

    name: str
    laws: dict[str, Law]
    grids: dict[str, tuple[float, ...]]

    @property
    def record(self) -> Path:
        """The runs: one row for each problem, law, settings, seed and local rate."""
        return HERE / "records" / f"{self.name}.parquet"

    @property
    def verdicts(self) -> Path:
        """The verdicts of the last `judge`."""
        return HERE / "records" / f"{self.name}.json"


KNOWN = LawSet(
    "advice",
    LAWS,
    {"quadratic": (0.01, 0.03, 0.1, 0.3), "digits": (0.1, 0.3, 1.0, 3.0, 10.0)},
)
UNSEEN = LawSet(
    "advice_held_out",
    HELD_OUT,
    {"quadratic": (0.01, 0.03, 0.1, 0.3), "digits": (0.3, 1.0, 3.0)},
)


class Problem(Protocol):
    """A learning problem of N clients."""

    rounds: ClassVar[int]
    start: torch.Tensor

    def __init__(self, seed: int) -> None:
        """Draw the problem of a seed."""

    def train(
        self, model: torch.Tensor, factors: torch.Tensor, extra: torch.Tensor, lr: float, ids: Ids
    ) -> torch.Tensor:
        """Return the changes of S clients in `STEPS` local steps from a model, (S, d).

        Args:
            model: (d,).
            factors: what multiplies their losses, (S,).
            extra: what is added to their gradients, (S, d).
            lr: the local rate.
            ids: of the clients, (S,).
        """

    def figures(self, models: torch.Tensor, wanted: Numbers) -> Numbers:
        """Return the wanted figure of models, (k, d), as (k,)."""


class Quadratic:
    """F_n(x) = ½ (x − e_n)ᵀ A_n (x − e_n) in 20 dimensions; the centers of a class are near.

    A_n has eigenvalues from 0.1 to 1, and gradients are exact. The figure is the excess loss
    [F(x) − F(x*)] / [F(x_0) − F(x*)] with F = Σ a_n F_n.
    """

    rounds = 500

    def __init__(self, seed: int) -> None:
        random, d = np.random.default_rng([20, seed]), 20
        bases = np.linalg.qr(random.normal(size=(CLIENTS, d, d)))[0]
        values = np.exp(random.uniform(np.log(0.1), 0, (CLIENTS, d)))
        classes = random.normal(0.5, 1.0, (10, d))[np.arange(CLIENTS) * 10 // CLIENTS]
        self.centers = random.normal(classes, 0.3)
        self.start = torch.zeros(d, dtype=torch.float64)
        self.matrices = np.einsum("nij,nj,nkj->nik", bases, values, bases)

    def train(
        self, model: torch.Tensor, factors: torch.Tensor, extra: torch.Tensor, lr: float, ids: Ids
    ) -> torch.Tensor:
        matrices = torch.from_numpy(self.matrices[ids]) * factors[:, None, None]
        offset = model - torch.from_numpy(self.centers[ids])
        moved = offset
        for _ in range(STEPS):
            moved = moved - lr * ((matrices @ moved[:, :, None])[:, :, 0] + extra)
        return moved - offset

    def figures(self, models: torch.Tensor, wanted: Numbers) -> Numbers:
        mean = np.einsum("n,nij->ij", wanted, self.matrices)
        slope = np.einsum("n,nij,nj->i", wanted, self.matrices, self.centers)
        best = np.linalg.solve(mean, slope)
        gaps = models.numpy() - best
        return np.asarray(np.einsum("ki,ij,kj->k", gaps, mean, gaps) / (best @ mean @ best))


class Digits:
    """Logistic regression on scikit-learn's digits; 95% of a client's samples are of its class.

    Minibatches have 8 samples. The figure is the test error on the clients' own mixtures of
    classes, Σ a_n error_n.
    """

    rounds = 400

    def __init__(self, seed: int) -> None:
        data, self._random = load("digits"), np.random.default_rng([64, seed])
        labels = data.train.labels
        owners = labels * (CLIENTS // 10) + self._random.integers(CLIENTS // 10, size=len(labels))
        anyone = self._random.random(len(labels)) < 0.05
        owners = np.where(anyone, self._random.integers(CLIENTS, size=len(labels)), owners)
        held = [np.flatnonzero(owners == n) for n in range(CLIENTS)]
        self._sizes = np.array([len(samples) for samples in held])
        self._samples = np.stack([np.resize(samples, self._sizes.max()) for samples in held])
        self._inputs, self._test = (_with_bias(part.features) for part in (data.train, data.test))
        self._targets = torch.nn.functional.one_hot(torch.from_numpy(labels)).float()
        self._test_labels = data.test.labels
        shares = np.stack([np.bincount(labels[samples], minlength=10) for samples in held])
        self._shares = shares / self._sizes[:, None]
        self.start = torch.zeros(650)

    def train(
        self, model: torch.Tensor, factors: torch.Tensor, extra: torch.Tensor, lr: float, ids: Ids
    ) -> torch.Tensor:
        chosen = self._random.random((STEPS, len(ids), 8)) * self._sizes[ids][:, None]
        chosen = self._samples[ids[:, None], chosen.astype(np.int64)]
        first = model.view(1, 65, 10)
        moved, extra = first.repeat(len(ids), 1, 1), extra.view(-1, 65, 10)
        scales = factors.float()[:, None, None] / 8
        for step in torch.from_numpy(chosen):
            inputs, targets = self._inputs[step], self._targets[step]
            slopes = ((inputs @ moved).softmax(dim=2) - targets) * scales
            moved = moved - lr * (inputs.transpose(1, 2) @ slopes + extra)
        return (moved - first).reshape(len(ids), -1)

    def figures(self, models: torch.Tensor, wanted: Numbers) -> Numbers:
        outputs = self._test @ models.view(len(models), 65, 10)
        right = outputs.argmax(dim=2).numpy() == self._test_labels
        of_class = np.stack([right[:, self._test_labels == c].mean(axis=1) for c in range(10)])
        errors = 1 - (wanted @ self._shares) @ of_class
        return np.where(np.isfinite(outputs.sum(dim=(1, 2)).numpy()), errors, np.inf)


PROBLEMS: dict[str, type[Problem]] = {"quadratic": Quadratic, "digits": Digits}


def train(name: str, law: str, settings: Settings, seed: int, lr: float) -> float:
    """Return the figure of a run.

    It is the mean over evaluations in the last quarter of the rounds; infinite where the run
    diverges, or cannot begin, as with rates of 0. All methods see the same participation and the
    same minibatches.
    """
    problem, wanted = PROBLEMS[name](seed), wanted_weights(law)
    # Σ a_n F_n is the mean of N a_n F_n; weights by samples are a_n themselves.
    factors = torch.from_numpy(CLIENTS * wanted)
    if settings.get("weights") == "data":
        factors = torch.ones(CLIENTS, dtype=torch.float64)
    try:
        method = BUILDER.build(Algorithm, settings)
        driver = RoundDriver(method, problem.start, Population(CLIENTS, samples=wanted))
    except InvalidInputError as error:
        print(f"  {law}, {key(settings)}: {error}", flush=True)
        return np.inf
    samples, kept = torch.from_numpy(wanted), []
    for t, row in enumerate(draw(law, problem.rounds, seed)):
        if row.any():
            clients = torch.from_numpy(np.flatnonzero(row))
            order = driver.instruct(clients)
            extra = order.correction
            if extra is None:
                extra = order.model.new_zeros(len(clients), len(problem.start))
            deltas = problem.train(order.model, factors[clients], extra, lr, clients.numpy())
            weights, steps = Cohort.uniform(clients).weights, torch.full((len(clients),), STEPS)
            driver.absorb(ClientUpdates(clients, weights, deltas, lr, steps, samples[clients]))
        driver.step(lr)
        if 4 * t >= 3 * problem.rounds and (problem.rounds - 1 - t) % EVERY == 0:
            kept.append(driver.output)
    with np.errstate(invalid="ignore", over="ignore"):
        figure = float(problem.figures(torch.stack(kept), wanted).mean())
    return figure if np.isfinite(figure) else np.inf


def wanted_weights(law: str) -> Numbers:
    """Return a_n, shape (N,)."""
    declared = ALL_LAWS[law].declared
    return np.full(CLIENTS, 1 / CLIENTS) if declared is None else declared


def _with_bias(features: Any) -> torch.Tensor:
    inputs = torch.as_tensor(features, dtype=torch.float32).flatten(start_dim=1)
    return torch.cat([inputs, torch.ones(len(inputs), 1)], dim=1)


def draw(law: str, rounds: int, seed: int) -> Present:
    """Return who is present under a law, shape (T, N)."""
    return ALL_LAWS[law].draw(np.random.default_rng([zlib.crc32(law.encode()), seed]), rounds)


def audit_law(law: str, rounds: int, seed: int) -> Audit:
    """Return the audit of a log of the law, which declares samples if their shares are wanted."""
    t, n = np.nonzero(draw(law, rounds, seed))
    log = pl.DataFrame({"round": t, "client": n})
    if ALL_LAWS[law].declared is not None:
        log = log.with_columns(samples=np.round(10_000 * wanted_weights(law))[n])
    return audit(log, clients=CLIENTS)


def candidates(result: Audit) -> list[Settings]:
    """Return the advised algorithms, best first, and those that are trained besides."""
    listed = [advice.experiment["algorithm"] for advice in result.advice]
    period = result.regularity.period or 50
    others: list[Settings] = [
        {"type": "fedavg"},
        {"type": "mifa"},
        {"type": "scaffold"},
        {"type": "amplified", "period": period, "factor": 2.0, "inner": {"type": "fedavg"}},
        {"type": "amplified-scaffold", "period": period, "factor": 1.5},
    ]
    types = {settings["type"] for settings in listed}
    return listed + [settings for settings in others if settings["type"] not in types]


def key(settings: Settings) -> str:
    """Return the settings in one line, with a hash instead of lists such as rates."""

    def shorten(value: Any) -> Any:
        if isinstance(value, list):
            digits = " ".join(f"{number:.3g}" for number in value)
            return hashlib.sha256(digits.encode()).hexdigest()[:8]
        if isinstance(value, dict):
            return {name: shorten(part) for name, part in sorted(value.items())}
        return value

    return json.dumps(shorten(settings))


RUN = ("problem", "law", "settings", "seed", "lr")


def train_all(laws: LawSet, problems: list[str], chosen: list[str], methods: list[str]) -> None:
    """Train what the record lacks; no methods: all."""
    rows = pl.read_parquet(laws.record)
    known = set(rows.select(RUN).iter_rows())
    for problem, law in product(problems, chosen):
        began, found = time.process_time(), []
        listed = candidates(audit_law(law, PROBLEMS[problem].rounds, LOGS[0]))
        listed = [one for one in listed if not methods or one["type"] in methods]
        for settings, seed, lr in product(listed, (TUNING, *JUDGED), laws.grids[problem]):
            run = (problem, law, key(settings), seed, lr)
            if run not in known:
                found.append((*run, train(problem, law, settings, seed, lr)))
        rows = rows.vstack(pl.DataFrame(found, schema=rows.schema, orient="row"))
        rows.sort(RUN).write_parquet(laws.record, compression="zstd")
        print(f"{problem}, {law}: {time.process_time() - began:.0f} s", flush=True)


def list_figures(laws: LawSet, problem: str, law: str) -> dict[str, Numbers]:
    """Return the figures of all settings at their tuned rates, by judged seed."""
    rows, found = pl.read_parquet(laws.record).filter(problem=problem, law=law), {}
    for (settings,), runs in rows.group_by("settings", maintain_order=True):
        tuning = runs.filter(seed=TUNING).sort("figure", "lr")
        if len(tuning) < len(laws.grids[problem]):
            continue
        judged = runs.filter(pl.col("seed").is_in(JUDGED), lr=tuning["lr"][0]).sort("seed")
        if len(judged) == len(JUDGED):
            found[str(settings)] = judged["figure"].to_numpy()
    return found


@dataclass(frozen=True)
class Verdict:
    """The outcome of the advice on one law and problem.

    Args:
        problem: its name.
        law: its name.
        memory: whether methods that keep an update of every client are allowed.
        advised: the method that the audit of the first log advises, as in the record.
        value: its mean over the judged seeds.
        best: the best of all trained methods.
        best_value: its mean.
        fedavg: the mean of averaging over the cohort.
        logs: in how many of the audited logs the method advised is within a tenth of the best one,
            or `FLOOR`; first: whether it is in the first.
        worse: whether it is worse than FedAvg by more than `FLOOR` and by more than twice the
            standard error of the difference.
    """

    problem: str
    law: str
    memory: bool
    advised: str
    value: float
    best: str
    best_value: float
    fedavg: float
    logs: int
    first: bool
    worse: bool


def judge(problem: str, law: str, laws: LawSet) -> list[Verdict]:
    """Return the verdicts on one law and problem, with and without memory.

    Settings that were not trained, such as other periods, stand for those of the same method.

    Raises:
        LookupError: a method is missing in the record.
    """
    audits = [audit_law(law, PROBLEMS[problem].rounds, seed) for seed in LOGS]
    trained = list_figures(laws, problem, law)
    fedavg = trained[key({"type": "fedavg"})]
    verdicts = []
    for memory in (True, False):
        found = {k: v for k, v in trained.items() if memory or json.loads(k)["type"] in LIGHT}
        best = min(found, key=lambda settings: float(found[settings].mean()))
        bound = 1.1 * float(found[best].mean()) + FLOOR
        advised = [_look_up(audit, memory, found) for audit in audits]
        within = [bool(found[one].mean() <= bound) for one in advised]
        value, excess = found[advised[0]], found[advised[0]] - fedavg
        error = float(excess.std(ddof=1)) / len(excess) ** 0.5
        verdicts.append(
            Verdict(
                problem,
                law,
                memory,
                advised[0],
                float(value.mean()),
                best,
                float(found[best].mean()),
                float(fedavg.mean()),
                sum(within),
                within[0],
                bool(excess.mean() > max(FLOOR, 2 * error)),
            )
        )
    return verdicts


def _look_up(result: Audit, memory: bool, found: dict[str, Numbers]) -> str:
    """Return the advised settings as in the record."""
    settings = next(
        one.experiment["algorithm"] for one in result.advice if memory or one.memory == "light"
    )
    same = [one for one in found if _name(json.loads(one)) == _name(settings)]
    if not same:
        raise LookupError(f"{key(settings)} is not in the record; train it")
    return key(settings) if key(settings) in same else same[0]


def _name(settings: Settings) -> tuple[Any, ...]:
    """Return what identifies a method, without its numeric settings."""
    inner = settings.get("inner")
    return settings["type"], settings.get("weights"), inner and _name(inner)


def render(verdicts: list[Verdict]) -> str:
    """Return the part of docs/audit-methods.md that is generated: counts, and the misses."""
    lines = [
        "| methods | advised for the first log within 10% | for five logs | worse than FedAvg |",
        "|---|---|---|---|",
    ]
    for memory, name in ((True, "all"), (False, "without a memory of every client's update")):
        some = [one for one in verdicts if one.memory is memory]
        first, logs = sum(one.first for one in some), sum(one.logs for one in some)
        worse = sum(one.worse for one in some) or "none"
        total = len(LOGS) * len(some)
        lines.append(f"| {name} | {first} of {len(some)} | {logs} of {total} | {worse} |")
    misses = [one for one in verdicts if not one.first]
    if misses:
        lines += ["", "| miss | advised | its value | best | its value | FedAvg |"]
        lines.append("|---|---|---|---|---|---|")
    for one in misses:
        where = f"{one.law}, {one.problem}{'' if one.memory else ', without memory'}"
        cells = [
            where,
            describe(json.loads(one.advised)),
            f"{one.value:.3f}",
            describe(json.loads(one.best)),
            f"{one.best_value:.3f}",
            f"{one.fedavg:.3f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def describe(settings: Settings) -> str:
    """Return a method with its settings, without lists of rates.

    >>> describe({"type": "amplified-scaffold", "period": 9, "factor": 1.5})
    'amplified-scaffold (period 9, factor 1.5)'
    """
    shown = [
        f"{k} {v}" for k, v in sorted(settings.items(), reverse=True) if k not in ("type", "rates")
    ]
    return settings["type"] + (f" ({', '.join(shown)})" if shown else "")


def load_verdicts(path: Path) -> list[Verdict]:
    """Return the verdicts of the last `judge`."""
    return [Verdict(**one) for one in json.loads(path.read_text(encoding="utf-8"))]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("train", "judge", "write"))
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--problems", nargs="+", default=list(PROBLEMS), choices=PROBLEMS)
    parser.add_argument("--laws", nargs="+", default=[], choices=ALL_LAWS)
    parser.add_argument("--methods", nargs="+", default=[], choices=ALGORITHMS)
    given = parser.parse_args()
    laws = UNSEEN if given.held_out else KNOWN
    chosen = [law for law in laws.laws if law in given.laws or not given.laws]
    torch.set_num_threads(1)
    if given.command == "train":
        train_all(laws, given.problems, chosen, given.methods)
    elif given.command == "judge":
        judged = [judge(problem, law, laws) for problem, law in product(given.problems, chosen)]
        verdicts = [one for pair in judged for one in pair]
        print(render(verdicts))
        if not given.laws and given.problems == list(PROBLEMS):
            text = json.dumps([asdict(one) for one in verdicts], indent=1)
            laws.verdicts.write_text(text + "\n", encoding="utf-8")
    else:
        page, text = PAGE.read_text(encoding="utf-8"), render(load_verdicts(laws.verdicts))
        begin, end = f"<!-- {laws.name}: begin -->", f"<!-- {laws.name}: end -->"
        before, rest = page.split(begin)
        page = f"{before}{begin}\n{text}\n{end}{rest.split(end)[1]}"
        PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
