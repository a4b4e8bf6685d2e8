"""Rounds that last, against closed forms and a literal simulator of clients, one by one."""

import heapq
import math
from dataclasses import dataclass

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats
from tests.algorithms.methods import BOUNDED, METHODS
from tests.participation.counting import is_plausible

import fedtide as ft
from fedtide.errors import InvalidInputError
from fedtide.participation import (
    PROCESSES,
    DeviceSpeeds,
    Full,
    PermutationOf,
    RandomDropout,
    Schedule,
    Sessions,
    Synchronous,
    Timing,
    Trace,
    UniformOf,
    Work,
)
from fedtide.participation.availability.base import AvailableClients
from fedtide.population import Population
from fedtide.randomness import uniforms

NO_WORK = Work(samples=np.zeros(1, dtype=np.int64), received=0, sent=0)


@dataclass
class Client:
    """A client with its intervals in seconds, which are repeated after `period` seconds."""

    intervals: list[tuple[float, float]]
    period: float | None

    def interval_end(self, time: float) -> float | None:
        """Return the end of the last interval that contains a time; None: it is away."""
        phase = time if self.period is None else time % self.period
        ends = [b for a, b in self.intervals if a <= phase < b]
        return time - phase + max(ends) if ends else None

    def leaves(self, time: float) -> float:
        began = time
        while (end := self.interval_end(time)) is not None:
            time = end
            if self.period is not None and time > began + 2 * self.period:
                return math.inf
        return time


def simulate(clients, timing, seconds, failing, seed, rounds):
    """Yield who was there, asked and reported, when, and the ends, of each round."""
    now, policy = 0.0, timing.policy
    choose = UniformOf(policy.size).start(Population(clients=len(clients)), seed)
    for t in range(rounds):
        for _ in range(10_000):
            there = [n for n, one in enumerate(clients) if one.interval_end(now) is not None]
            if there:
                break
            now = math.floor(now * 8 + 1) / 8  # intervals begin at eighths of seconds
        else:
            return
        asked = choose.select(t, AvailableClients(np.array(there)))
        events = [] if policy.deadline is None else [(now + policy.deadline, 2.0, -1, "deadline")]
        for n in asked.tolist():
            u = uniforms(seed, "duration", t, n).item()
            factor = math.exp(timing.devices.jitter * stats.norm.ppf(u))
            finish, leave = now + factor * seconds[n], clients[n].leaves(now)
            fails = finish > leave or failing(t, n)
            event = (min(finish, leave), u, n, "leaves" if fails else "reports")
            events.append(event)
        heapq.heapify(events)
        began, arrivals, waiting = now, {}, len(asked)
        while waiting:
            now, _, n, what = heapq.heappop(events)
            waiting -= 1
            if what == "deadline":
                break
            if what == "reports":
                arrivals[n] = now
            if len(arrivals) == policy.close_after:
                break
        yield there, asked.tolist(), arrivals, began, now


eighths = st.integers(0, 80).map(lambda k: k / 8)


@st.composite
def traces(draw):
    rows = [
        (client, *sorted(times))
        for client in range(4)
        for times in draw(st.lists(st.tuples(eighths, eighths), max_size=4))
    ]
    rows = [row for row in rows if row[1] < row[2]] or [(2, 0.5, 1.0)]
    last = max(end for *_, end in rows)
    return rows, draw(st.sampled_from([None, last, last + 1.5]))


@given(
    trace=traces(),
    policy=st.builds(
        Synchronous,
        size=st.integers(1, 4),
        close_after=st.none() | st.integers(1, 3),
        deadline=st.none() | st.sampled_from([0.125, 1.0, 7.0]),
    ),
    seconds=st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.25, 12.0]), min_size=4, max_size=4),
    jitter=st.sampled_from([0.0, 0.7]),
    failing=st.sampled_from([0.0, 0.4]),
)
@settings(deadline=None)
def test_rounds_are_those_of_a_literal_simulator(trace, policy, seconds, jitter, failing):
    rows, period = trace
    timing = Timing(policy, DeviceSpeeds(seconds_per_sample=seconds, jitter=jitter))
    dropout = RandomDropout(failing)
    frame = pl.DataFrame(rows, schema=["client", "start", "end"], orient="row")
    process = Trace(frame, round_seconds=1.0, repeat=period or False)
    population, work = Population(clients=4), Work(np.ones(4, dtype=np.int64), 0, 0)
    clients = [Client([(a, b) for n, a, b in rows if n == one], period) for one in range(4)]
    expected = simulate(
        clients, timing, seconds, lambda t, n: not dropout.draw_mask(5, t, np.array([n]))[0], 5, 12
    )
    running = timing.start(Schedule(process, dropout=dropout), population, work, 5)
    t = -1
    for t, (there, asked, arrivals, began, ended) in enumerate(expected):
        found = running.round(t)
        assert (found.available.tolist(), found.selected.tolist()) == (there, asked)
        assert found.reported.tolist() == sorted(arrivals)
        assert found.arrived.tolist() == pytest.approx([arrivals[n] for n in sorted(arrivals)])
        assert (found.started, found.ended) == pytest.approx((began, ended))
    if t < 11:
        with pytest.raises(InvalidInputError, match=f"^rounds: nobody .* at most {t + 1} rounds"):
            running.round(t + 1)


def is_near(values, mean, variance):
    """Test a mean of many independent values, with an error probability of 1e-6."""
    return abs(np.mean(values) - mean) < 4.9 * math.sqrt(variance / len(values))


SIZE, ROUNDS, MEAN = 12, 1500, 7.0


def exponential_rounds(**policy):
    """Return rounds in which no client with its exponential duration takes part twice."""
    clients = SIZE * ROUNDS
    seconds = np.random.default_rng(1).exponential(MEAN, clients)
    timing = Timing(Synchronous(SIZE, **policy), DeviceSpeeds(seconds))
    schedule, population = Schedule(Full(), PermutationOf(SIZE)), Population(clients=clients)
    running = timing.start(schedule, population, Work(np.ones(clients, np.int64), 0, 0), seed=2)
    return [running.round(t) for t in range(ROUNDS)]


@pytest.mark.parametrize("first", [None, 9, 1])
def test_exponential_rounds_take_harmonic_numbers(first):
    """The k-th of S exponential times has the mean m (H_S − H_{S−k}); the whole round, m H_S."""
    durations = [one.ended - one.started for one in exponential_rounds(close_after=first)]
    terms = 1 / np.arange(SIZE - (first or SIZE) + 1, SIZE + 1)
    assert is_near(durations, MEAN * terms.sum(), MEAN**2 * (terms**2).sum())


def test_a_deadline_lets_those_report_that_are_fast_enough():
    rounds = exponential_rounds(deadline=5.0)
    reports = sum(len(one.reported) for one in rounds)
    assert is_plausible(reports, SIZE * ROUNDS, 1 - math.exp(-5.0 / MEAN))
    assert max(one.ended - one.started for one in rounds) == pytest.approx(5.0)


def test_jitter_is_log_normal():
    timing = Timing(Synchronous(4000), DeviceSpeeds(3.0, jitter=0.8))
    running = timing.start(
        Schedule(Full()), Population(clients=4000), Work(np.full(4000, 2), 0, 0), seed=0
    )
    for t in range(2):
        found = running.round(t)
        logs = np.log(found.arrived - found.started)
        assert stats.kstest(logs, stats.norm(math.log(6.0), 0.8).cdf).pvalue > 1e-6


def residual_exponential(u, mean):
    return math.exp(-u / mean)


def residual_weibull(u, mean):
    """(1/m) ∫_u^∞ exp(−(x/λ)^k) dx, k = 0.6."""
    scale = mean / math.gamma(1 + 1 / 0.6)
    return special.gammaincc(1 / 0.6, (u / scale) ** 0.6)


def residual_log_normal(u, mean):
    """E max(X − u, 0) / m, σ = 1."""
    d = math.log(mean / u) + 0.5
    return stats.norm.cdf(d) - u / mean * stats.norm.cdf(d - 1)


@pytest.mark.parametrize(
    ("law", "shape", "residual"),
    [
        ("weibull", 1.0, residual_exponential),
        ("weibull", 0.6, residual_weibull),
        ("log-normal", 1.0, residual_log_normal),
    ],
)
def test_updates_are_lost_with_the_probability_of_the_residual_session(law, shape, residual):
    """Now, and long after the run has begun; each client is a trial with probability 1e-6."""
    clients, mean, u = 6000, 40.0, 25.0
    process, population = Sessions(0.4, mean, law, shape), Population(clients=clients)
    timing, work = Timing(Synchronous(clients), DeviceSpeeds(u)), Work(np.ones(clients, int), 0, 0)
    first = timing.start(Schedule(process), population, work, 3).round(0)
    presence = process.presence(population, 3)
    there = presence.at(1000.0)
    stay = np.count_nonzero(presence.ends_of(there) >= 1000.0 + u)
    for available, kept in ((len(first.selected), len(first.reported)), (len(there), stay)):
        assert is_plausible(available, clients, 0.4)
        assert is_plausible(kept, available, residual(u, mean))


def test_sessions_follow_from_the_client_and_not_from_the_questions():
    process, population = Sessions(rates=[0.0, 0.3, 0.6, 1.0], length=5.0), Population(clients=4)
    one, two = process.presence(population, 1), process.presence(population, 1)
    for time in np.arange(0, 300, 0.7):
        last = one.at(time)
    np.testing.assert_array_equal(two.at(time), last)
    np.testing.assert_array_equal(one.ends_of(last), two.ends_of(last))
    assert 3 in last
    assert 0 not in last
    assert np.isinf(one.ends_of(np.array([3])))


def test_only_availability_in_seconds_is_timed():
    timed = {"full", "trace", "sessions"}
    own = {name for name, kind in PROCESSES.items() if "presence" in vars(kind)}
    assert own == timed
    with pytest.raises(InvalidInputError, match=r"^participation\.type: Bernoulli says who"):
        Timing(Synchronous(1)).start(
            Schedule(PROCESSES["bernoulli"](0.5)), Population(clients=2), NO_WORK, 0
        )


@pytest.mark.parametrize("method", [*METHODS, *BOUNDED], ids=repr)
def test_without_durations_a_run_has_the_bits_of_one_without_a_clock(method, regression):
    fields = regression | {"algorithm": method, "participation": "full"}
    fields["problem"] |= {"clients": 4}
    timed = ft.simulate(**fields, timing={"policy": {"type": "synchronous", "size": 4}})
    plain = ft.simulate(**fields)
    assert timed.model.tobytes() == plain.model.tobytes()
    assert timed.metrics.drop("hours").equals(plain.metrics)
    assert timed.participation.drop("started", "time").equals(plain.participation)
    assert timed.metrics["hours"].to_list() == [0.0] * len(timed.metrics)


def test_the_size_of_a_policy_is_that_of_a_uniform_selection(regression):
    fields = regression | {"participation": "full", "dropout": RandomDropout(0.3)}
    timed = ft.simulate(**fields, timing=Timing(Synchronous(3)))
    plain = ft.simulate(**fields, selection=UniformOf(3))
    assert timed.participation.drop("started", "time").equals(plain.participation)


@pytest.mark.parametrize("local", [{"steps": 3, "batch_size": 20}, {"epochs": 2, "batch_size": 7}])
def test_a_round_takes_download_computation_and_upload(local):
    """Two users with 10 and 30 samples, a model of two numbers and SCAFFOLD's control variate."""
    users = ["ann"] * 10 + ["bob"] * 30
    data = pl.DataFrame({"user": users, "x": np.arange(40.0) / 40, "y": np.ones(40)})
    problem = ft.problems.Supervised(
        data, inputs=["x"], target="y", clients="user", model="logistic", loss="mse"
    )
    devices = DeviceSpeeds(
        seconds_per_sample={"bob": 0.5, "ann": 0.25}, download=[4.0, 16.0], upload=2.0
    )
    result = ft.simulate(
        problem=problem,
        participation=Full(),
        algorithm="scaffold",
        local={"lr": 0.1, **local},
        rounds=4,
        timing=Timing(Synchronous(2), devices),
        evaluation={"every": 1},
    )
    size = 4 * len(result.model)
    samples = (3 * 10, 3 * 20) if "steps" in local else (2 * 10, 2 * 30)
    ann = 2 * size / 4.0 + 0.25 * samples[0] + size / 2.0
    bob = 2 * size / 16.0 + 0.5 * samples[1] + size / 2.0
    log = result.participation.sort("round", "client")
    assert (log["time"] - log["started"]).to_list() == pytest.approx([ann, bob] * 4)
    hours = np.arange(5) * max(ann, bob) / 3600
    assert result.metrics["hours"].to_list() == pytest.approx(hours)


def test_a_trace_that_ends_too_early_is_found_before_anything_is_trained(regression):
    trace = Trace([{"client": 0, "start": 0, "end": 10.0}], round_seconds=1.0)
    fields = regression | {"participation": trace, "local": {"steps": 1, "lr": 0.1}}
    devices = DeviceSpeeds(seconds_per_sample=0.3)
    with pytest.raises(InvalidInputError, match=r"^rounds: nobody .* at most \d rounds"):
        ft.simulate(**fields, timing=Timing(Synchronous(1), devices))


def test_a_log_of_timed_rounds_is_audited_and_replayed(regression, tmp_path):
    sessions = Sessions(rates=0.5, length=100.0)
    timing = Timing(Synchronous(4, close_after=3), DeviceSpeeds(2.0, jitter=0.5))
    fields = regression | {"participation": sessions, "timing": timing, "rounds": 40}
    result = ft.simulate(**fields, out=tmp_path / "run")
    assert len(ft.audit(tmp_path / "run").log.starts) == 40 + 1
    del fields["timing"]
    replay = ft.participation.Replay(tmp_path / "run")
    again = ft.simulate(**fields | {"participation": replay})
    assert again.model.tobytes() == result.model.tobytes()
