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
"""Seeds of the audited logs; settings are those of the first."""
LIGHT = ("fedavg", "fedau", "known-rates", "amplified", "auto")
"""Methods without a memory of every client's update."""
COUPLED = "auto"
"""The method that treats the coordinates of a model together."""
STEPS = 5
EVERY = 7
"""Rounds between evaluations, so that in the long run all phases of a cycle count equally."""
FLOOR = 0.005
"""Smaller differences do not count: half a percent of the initial excess loss, or half a point of
accuracy."""
Settings = dict[str, Any]
Ids = NDArray[np.int64]
Rates = tuple[float, ...]


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
    grids: dict[str, Rates]

    @property
    def record(self) -> Path:
        """The runs."""
        return HERE / "records" / f"{self.name}.parquet"

    @property
    def verdicts(self) -> Path:
        """The verdicts of the last `judge`."""
        return HERE / "records" / f"{self.name}.json"

    @property
    def marks(self) -> tuple[str, str]:
        """The lines of the page before and after the table."""
        return f"<!-- {self.name}: begin -->", f"<!-- {self.name}: end -->"


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

Run = tuple[str, str, str, int]
"""Problem, law, settings and seed."""


class Problem(Protocol):
    """A learning problem: N clients, and for each of M methods R models, one for each local rate.

    The methods work coordinate by coordinate, so each trains its R models at once without mixing
    them: the local rate γ_r scales the gradients of model r, and the methods are told a rate of 1.
    """

    rounds: ClassVar[int]
    rates: Rates
    start: torch.Tensor

    def __init__(self, seed: int, rates: Rates) -> None:
        """Draw the problem of a seed, for models of these local rates."""

    def local_changes(
        self, models: torch.Tensor, scales: torch.Tensor, pushes: torch.Tensor, clients: Ids
    ) -> torch.Tensor:
        """Return the changes of S clients in `STEPS` local steps, (M, S, R d).

        Args:
            models: where they start, (M, R d).
            scales: what multiplies their losses, (M, S).
            pushes: what is added to their gradients, (M, S, R d).
            clients: their numbers, (S,).
        """

    def figures(self, models: torch.Tensor, wanted: Numbers) -> Numbers:
        """Return the wanted figure of models, (k, R d), by rate, (k, R)."""


class Quadratic:
    """F_n(x) = ½ (x − e_n)ᵀ A_n (x − e_n) in 20 dimensions; the centers of a class are near.

    A_n has eigenvalues from 0.1 to 1, and gradients are exact. The figure is the excess loss
    [F(x) − F(x*)] / [F(x_0) − F(x*)] with F = Σ a_n F_n.
    """

    rounds = 500

    def __init__(self, seed: int, rates: Rates) -> None:
        self.rates = rates
        random, d = np.random.default_rng([20, seed]), 20
        bases = np.linalg.qr(random.normal(size=(CLIENTS, d, d)))[0]
        values = np.exp(random.uniform(np.log(0.1), 0, (CLIENTS, d)))
        classes = random.normal(0.5, 1.0, (10, d))[np.arange(CLIENTS) * 10 // CLIENTS]
        self.centers = random.normal(classes, 0.3)
        self.start = torch.zeros(d * len(rates), dtype=torch.float64)
        self._bases, self._values = torch.from_numpy(bases), torch.from_numpy(values)

    @property
    def matrices(self) -> Numbers:
        """A_n, shape (N, d, d)."""
        found = torch.einsum("nij,nj,nkj->nik", self._bases, self._values, self._bases)
        return np.asarray(found.numpy())

    def local_changes(
        self, models: torch.Tensor, scales: torch.Tensor, pushes: torch.Tensor, clients: Ids
    ) -> torch.Tensor:
        """In the basis of A_n, each coordinate z moves by −γ λ z − push in each step."""
        methods, size = scales.shape
        bases, shape = self._bases[clients], (size, methods * len(self.rates), -1)
        scaled = scales.T[:, :, None] * torch.tensor(self.rates, dtype=torch.float64)
        slopes = self._values[clients][:, None, :] * scaled.reshape(*shape[:2], 1)
        offsets = models.view(1, *shape[1:]) - torch.from_numpy(self.centers[clients])[:, None]
        first, pushes = offsets @ bases, pushes.transpose(0, 1).reshape(shape) @ bases
        moved = first
        for _ in range(STEPS):
            moved = moved - slopes * moved - pushes
        changes = (moved - first) @ bases.transpose(1, 2)
        return changes.view(size, methods, -1).transpose(0, 1)

    def figures(self, models: torch.Tensor, wanted: Numbers) -> Numbers:
        matrices, x = self.matrices, models.numpy().reshape(len(models), len(self.rates), -1)
        mean = np.einsum("n,nij->ij", wanted, matrices)
        best = np.linalg.solve(mean, np.einsum("n,nij,nj->i", wanted, matrices, self.centers))
        excess = np.einsum("kri,ij,krj->kr", x - best, mean, x - best)
        return np.asarray(excess / (best @ mean @ best))


class Digits:
    """Logistic regression on scikit-learn's digits; 95% of a client's samples are of its class.

    Minibatches have 8 samples. The figure is the test error on the clients' own mixtures of
    classes, Σ a_n error_n.
    """

    rounds = 400

    def __init__(self, seed: int, rates: Rates) -> None:
        self.rates = rates
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
        self.shares = np.stack([np.bincount(labels[samples], minlength=10) for samples in held])
        self.shares = self.shares / self._sizes[:, None]
        self.start = torch.zeros(650 * len(rates))

    def local_changes(
        self, models: torch.Tensor, scales: torch.Tensor, pushes: torch.Tensor, clients: Ids
    ) -> torch.Tensor:
        methods, size = scales.shape
        heads = methods * len(self.rates)  # the last dimension: softmax over others is faster
        first = models.view(methods, 650, -1).transpose(0, 1).reshape(1, 65, -1)
        pushes = pushes.view(methods, size, 650, -1).permute(1, 2, 0, 3).reshape(size, 65, -1)
        factors = scales.T[:, :, None] * torch.tensor(self.rates) / 8
        factors = factors.reshape(size, 1, 1, heads).float()
        chosen = self._random.random((STEPS, size, 8)) * self._sizes[clients][:, None]
        chosen = self._samples[clients[:, None], chosen.astype(np.int64)]
        moved = first.repeat(size, 1, 1)
        for step in torch.from_numpy(chosen):
            inputs, targets = self._inputs[step], self._targets[step][:, :, :, None]
            outputs = (inputs @ moved).view(size, 8, 10, heads)
            slopes = outputs.softmax(dim=2).sub_(targets).mul_(factors).view(size, 8, -1)
            moved.baddbmm_(inputs.transpose(1, 2), slopes, alpha=-1).sub_(pushes)
        changes = moved.sub_(first).view(size, 650, methods, -1).permute(2, 0, 1, 3)
        return changes.reshape(methods, size, -1)

    def figures(self, models: torch.Tensor, wanted: Numbers) -> Numbers:
        outputs = self._test @ models.view(len(models), 65, -1)
        outputs = outputs.view(len(models), len(self._test), 10, len(self.rates))
        right = outputs.argmax(dim=2).numpy() == self._test_labels[:, None]
        of_class = [right[:, self._test_labels == c].mean(axis=1) for c in range(10)]
        errors = 1 - np.einsum("c,ckr->kr", wanted @ self.shares, of_class)
        return np.where(np.isfinite(outputs.sum(dim=(1, 2))), errors, np.inf)


PROBLEMS: dict[str, type[Problem]] = {"quadratic": Quadratic, "digits": Digits}


def train(name: str, law: str, listed: list[Settings], seed: int, rates: Rates) -> Numbers:
    """Return the figure of a run of each method at each local rate, (M, R).

    A figure is the mean over evaluations in the last quarter of the rounds; infinite where the run
    diverges. All methods see the same participation and the same minibatches.
    """
    problem = PROBLEMS[name](seed, rates)
    present = draw(law, problem.rounds, seed)
    wanted = wanted_weights(law)
    # Σ a_n F_n is the mean of N a_n F_n; weights by samples are a_n themselves.
    by_samples = torch.tensor([settings.get("weights") == "data" for settings in listed])
    scales = torch.where(by_samples[:, None], 1.0, torch.from_numpy(CLIENTS * wanted))
    population = Population(CLIENTS, samples=wanted)
    drivers = [
        RoundDriver(BUILDER.build(Algorithm, settings), problem.start, population)
        for settings in listed
    ]
    models: list[list[torch.Tensor]] = [[] for _ in drivers]
    for t, row in enumerate(present):
        clients = np.flatnonzero(row)
        if len(clients):
            _run_cohort(problem, drivers, scales, wanted, clients)
        for driver, kept in zip(drivers, models, strict=True):
            driver.step(1.0)
            if 4 * t >= 3 * problem.rounds and (problem.rounds - 1 - t) % EVERY == 0:
                kept.append(driver.output)
    with np.errstate(invalid="ignore", over="ignore"):
        figures = [problem.figures(torch.stack(kept), wanted).mean(axis=0) for kept in models]
    return np.where(np.isfinite(figures), figures, np.inf)


def _run_cohort(
    problem: Problem,
    drivers: list[RoundDriver[Any]],
    scales: torch.Tensor,
    wanted: Numbers,
    clients: Ids,
) -> None:
    """Train a cohort for each method, and pass on the updates."""
    ids = torch.from_numpy(clients)
    cohort = Cohort.uniform(ids)
    orders = [driver.instruct(ids) for driver in drivers]
    models = torch.stack([order.model for order in orders])
    none = models.new_zeros(len(ids), models.shape[1])
    pushes = [none if order.correction is None else order.correction for order in orders]
    changes = problem.local_changes(models, scales[:, ids], torch.stack(pushes), clients)
    steps, samples = torch.full((len(ids),), STEPS), torch.from_numpy(wanted)[ids]
    for driver, deltas in zip(drivers, changes, strict=True):
        driver.absorb(ClientUpdates(ids, cohort.weights, deltas, 1.0, steps, samples))


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


class Record:
    """The runs so far: one row for each problem, law, settings, seed and local rate."""

    SCHEMA: ClassVar = {
        "problem": pl.String,
        "law": pl.String,
        "settings": pl.String,
        "seed": pl.Int32,
        "lr": pl.Float64,
        "figure": pl.Float64,
    }

    def __init__(self, laws: LawSet) -> None:
        self._path, self.grids = laws.record, laws.grids
        known = pl.DataFrame(schema=self.SCHEMA)
        self.rows = pl.read_parquet(self._path) if self._path.exists() else known
        self._known = set(self.rows.drop("figure").iter_rows())
        self._saved = time.monotonic()

    def missing(self, run: Run, rates: Rates) -> Rates:
        """Return the rates at which a run is not in the record."""
        return tuple(lr for lr in rates if (*run, lr) not in self._known)

    def add(self, run: Run, rates: Rates, figures: Numbers) -> None:
        """Add a run at several rates; the file is written every half a minute."""
        rows = [(*run, lr, figure) for lr, figure in zip(rates, figures, strict=True)]
        self.rows = self.rows.vstack(pl.DataFrame(rows, schema=self.SCHEMA, orient="row"))
        self._known |= {row[:-1] for row in rows}
        if time.monotonic() - self._saved > 30:
            self.save()

    def save(self) -> None:
        """Write the file."""
        self._path.parent.mkdir(exist_ok=True)
        self.rows.sort("problem", "law", "settings", "seed", "lr").write_parquet(
            self._path, compression="zstd"
        )
        self._saved = time.monotonic()

    def list_figures(self, problem: str, law: str) -> dict[str, Numbers]:
        """Return the figures of all settings at their tuned rates, by judged seed."""
        rows, found = self.rows.filter(problem=problem, law=law), dict[str, Numbers]()
        for (settings,), runs in rows.group_by("settings", maintain_order=True):
            tuning = runs.filter(seed=TUNING).sort("figure", "lr")
            if len(tuning) < len(self.grids[problem]):
                continue
            judged = runs.filter(pl.col("seed").is_in(JUDGED), lr=tuning["lr"][0]).sort("seed")
            if len(judged) == len(JUDGED):
                found[str(settings)] = judged["figure"].to_numpy()
        return found


def train_all(record: Record, problems: list[str], laws: list[str], methods: list[str]) -> None:
    """Train what the record lacks; no methods: all."""
    for problem in problems:
        grid = record.grids[problem]
        for law in laws:
            began = time.process_time()
            result = audit_law(law, PROBLEMS[problem].rounds, LOGS[0])
            asked = [s for s in candidates(result) if not methods or s["type"] in methods]
            for seed in (TUNING, *JUDGED):
                runs = [(problem, law, key(settings), seed) for settings in asked]
                missing = [record.missing(run, grid) for run in runs]
                for rates in sorted({rates for rates in missing if rates}):
                    chosen = [place for place, lacked in enumerate(missing) if lacked == rates]
                    listed = [asked[place] for place in chosen]
                    found = train_or_fail(problem, law, listed, seed, rates)
                    for place, figures in zip(chosen, found, strict=True):
                        record.add(runs[place], rates, figures)
            print(f"{problem}, {law}: {time.process_time() - began:.0f} s", flush=True)
    record.save()


def train_or_fail(
    problem: str, law: str, listed: list[Settings], seed: int, rates: Rates
) -> Numbers:
    """Train; settings that cannot be run, such as rates of 0, have an infinite figure.

    Auto's scale of a coordinate depends on all others, so it cannot train all rates as one model.
    """
    coupled = [settings["type"] == COUPLED for settings in listed]
    if any(coupled) and (len(listed) > 1 or len(rates) > 1):
        parts = [
            np.hstack([train_or_fail(problem, law, [settings], seed, (lr,)) for lr in rates])
            for settings in listed
            if settings["type"] == COUPLED
        ]
        others = [settings for settings in listed if settings["type"] != COUPLED]
        found = np.empty((len(listed), len(rates)))
        found[np.array(coupled)] = np.vstack(parts)
        if others:
            found[~np.array(coupled)] = train_or_fail(problem, law, others, seed, rates)
        return found
    try:
        return train(problem, law, listed, seed, rates)
    except InvalidInputError as error:
        if len(listed) == 1:
            print(f"  {law}, {key(listed[0])}: {error}", flush=True)
            return np.full((1, len(rates)), np.inf)
        return np.vstack([train_or_fail(problem, law, [one], seed, rates) for one in listed])


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


def judge(problem: str, law: str, record: Record) -> list[Verdict]:
    """Return the verdicts on one law and problem, with and without memory.

    Settings that were not trained, such as other periods, stand for those of the same method.

    Raises:
        LookupError: a method is missing in the record.
    """
    audits = [audit_law(law, PROBLEMS[problem].rounds, seed) for seed in LOGS]
    trained = record.list_figures(problem, law)
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


def judge_all(record: Record, problems: list[str], laws: list[str]) -> list[Verdict]:
    """Judge, print and return all verdicts."""
    verdicts = []
    for problem in problems:
        for law in laws:
            try:
                verdicts += judge(problem, law, record)
            except LookupError as error:
                print(f"{problem}, {law}: {error}")
    print(render(verdicts))
    return verdicts


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


def replace_generated(page: str, text: str, marks: tuple[str, str]) -> str:
    """Return the page with the text between the marks."""
    begin, end = marks
    before, rest = page.split(begin)
    return f"{before}{begin}\n\n{text}\n\n{end}{rest.split(end)[1]}"


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
    chosen = UNSEEN if given.held_out else KNOWN
    laws = [law for law in chosen.laws if law in given.laws or not given.laws]
    torch.set_num_threads(1)
    if given.command == "train":
        train_all(Record(chosen), given.problems, laws, given.methods)
    elif given.command == "judge":
        verdicts = judge_all(Record(chosen), given.problems, laws)
        if not given.laws and given.problems == list(PROBLEMS):
            text = json.dumps([asdict(one) for one in verdicts], indent=1)
            chosen.verdicts.write_text(text + "\n", encoding="utf-8")
    else:
        text = render(load_verdicts(chosen.verdicts))
        page = replace_generated(PAGE.read_text(encoding="utf-8"), text, chosen.marks)
        PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
