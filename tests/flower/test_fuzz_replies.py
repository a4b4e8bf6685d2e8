"""Hostile replies: each is used as a checked update, or rejected in one printable line."""

import io
import logging
import math
import pickle
import random
import zipfile
from collections import Counter
from contextlib import suppress

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

import fedtide as ft
from fedtide.flower.arrays import vector_to_arrays
from fedtide.flower.server.reply_validation import (
    DeclinedReplyError,
    RejectedReplyError,
    ReplyValidator,
)
from fedtide.flower.server.transport import PendingReply
from fedtide.participation.log.schema import REASONS
from fedtide.problems.layout import Layout

from .driver import N, deploy, federation, node_of, rows
from .fake_grid import FakeGrid

pytestmark = pytest.mark.fuzz

A = ft.algorithms
LAYOUT = Layout({"weight": (2, 3), "bias": (3,), "scale": ()})
NODE, CLIENT, ROUND = 77, 1, 4
NAMES = [
    "", " ", "x", "weight", "bias", "lr", "steps", "num-examples", "clients", "client", "config",
    "arrays", "update", "gradients", "metrics", "server-round", "declined", "lost", "followed",
    "__class__", "../../etc/passwd", "日本", "a\nINFO: b", "\x1b[2J\x07", "\u202e", "\ud800",
    "%s%n", "{0.__class__}", "n" * 200, "n" * 201, "n" * 50_000, "\0",
]  # fmt: skip
NUMBERS = [
    0, -1, 1, 2, 3, 0.5, -0.0, 0.1, 1e-9, 1e-10, 1e-320, 1e6, 1e7, 1e9, 1e9 + 1, 1e12, 1e12 + 1,
    1e19, 1e100, 1e101, 1e300, -1e300, math.nan, math.inf, -math.inf, 2**31, 2**63 - 1, -(2**63),
    2**64 - 1, 10**400,
]  # fmt: skip
SHAPES = [
    (), (0,), (1,), (3,), (6,), (2, 3), (3, 2), (2, 0), (3, 1), (1, 2, 3), (1,) * 30, (9_999,),
]  # fmt: skip
DTYPES = ["<f2", "<f4", "<f8", ">f8", "<f16", "<i8", "|u1", "|b1", "<c8", "<U3", "|S5", "<M8[s]"]
FILLS = [
    0.0, -0.0, 1.0, 5e-324, 1e-45, 5e18, -5e18, 1e19, 4e153, -4e153, 1e154, 1e200, 1.7e308,
    math.nan, math.inf, -math.inf,
]  # fmt: skip


@pytest.fixture(autouse=True)
def _without_flowers_own_log():
    """Flower logs, raw, that a record of the same name is replaced while replies are made here."""

    def is_about_replies(record):
        return record.module != "recorddict"

    logger = logging.getLogger("flwr")
    logger.addFilter(is_about_replies)
    yield
    logger.removeFilter(is_about_replies)


def hostile_bytes(draw: random.Random) -> bytes:
    """Return what claims to be a NumPy file."""
    good = io.BytesIO()
    np.save(good, np.ones(draw.choice(SHAPES)))
    content = good.getvalue()
    how = draw.randrange(6)
    if how == 0:
        return draw.randbytes(draw.choice([0, 1, 6, 10, 200]))
    if how == 1:
        return content[: draw.randrange(len(content))]
    if how == 2:
        at = draw.randrange(min(len(content), 140))
        return content[:at] + draw.randbytes(draw.choice([1, 2, 9])) + content[at + 1 :]
    if how == 3:
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr("arr_0.npy", content)
        return archive.getvalue()
    if how == 4:
        return pickle.dumps([1, 2])
    shape = draw.choice(["(1000000000,)", "(1000000000000000,)", "(-1,)", "(3,)"])
    header = (
        f"{{'descr': '{draw.choice(['<f8', '|O'])}', 'fortran_order': False, 'shape': {shape}}}"
    )
    header = draw.choice([header, header, "(" * 5000, "{}", "1"]).encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + draw.randbytes(24)


def hostile_array(draw: random.Random) -> Array:
    if draw.random() < 0.3:
        stype = draw.choice(["numpy.ndarray", "numpy.ndarray", "torch", "\n", ""])
        shape = draw.choice([(3,), (), (10**18,), (-1,)])
        return Array(draw.choice(["float64", "", "\n"]), shape, stype, hostile_bytes(draw))
    values = np.full(draw.choice(SHAPES), draw.choice(FILLS))
    with np.errstate(all="ignore"):
        return Array(values.astype(draw.choice(["<f4", "<f8", *DTYPES])))


def hostile_value(draw: random.Random, metric: bool):
    """Return a number or a list of numbers; for a ConfigRecord also truths, text and bytes."""
    kinds = [NUMBERS] if metric else [NUMBERS, [True, False], NAMES, [b"", b"\n" * 300]]
    values = draw.choice(kinds)
    value = draw.choice(values)
    if draw.random() < 0.2:
        same = [other for other in values if type(other) is type(value)]
        return draw.choices(same, k=draw.choice([0, 1, 1, 3, 3, 3, 500, 10_001]))
    return value


def hostile_record(draw: random.Random):
    how, size = draw.randrange(3), draw.choice([0, 1, 1, 2, 5, 5, 102])
    names = [draw.choice(NAMES) if size < 100 else f"{draw.choice('ab')}{i}" for i in range(size)]
    if how == 0:
        return ArrayRecord({name: hostile_array(draw) for name in names[:5]})
    kind = MetricRecord if how == 1 else ConfigRecord
    if size > 100:
        return kind(dict.fromkeys(names, draw.choice(NUMBERS)))
    return kind({name: hostile_value(draw, metric=how == 1) for name in names})


def damage(content: RecordDict, draw: random.Random) -> None:
    """Change one thing of a reply."""
    name = draw.choice([*content, *content, draw.choice(NAMES)])
    record, how = content.get(name), draw.randrange(8)
    if how == 0 or record is None:
        content[name] = hostile_record(draw)
    elif how == 1:
        del content[name]
    elif how == 2:
        content[draw.choice(NAMES)] = content.pop(name)
    elif isinstance(record, ArrayRecord):
        key = draw.choice([*record, *record, draw.choice(NAMES)])
        if how == 3 and key in record:
            del record[key]
        elif how == 4 and key in record:
            record[draw.choice(NAMES)] = record.pop(key)
        elif how >= 5 and key in LAYOUT.shapes:
            value, dtype = draw.choice(FILLS), draw.choice(["<f2", "<f4", "<f8", "<f16"])
            for one in [key] if how < 7 else LAYOUT.shapes:
                with np.errstate(all="ignore"):
                    record[one] = Array(np.full(LAYOUT.shapes[one], value).astype(dtype))
        else:
            record[key] = hostile_array(draw)
    else:
        key = draw.choice([*record, *record, draw.choice(NAMES)])
        record[key] = hostile_value(draw, metric=isinstance(record, MetricRecord))


def hostile_reply(reply: Message, draw: random.Random) -> Message:
    """Return a reply with up to five changes, or another one in its place."""
    if draw.random() < 0.03:
        error = Error(draw.choice([-1, 0, 2, 6, 2**31]), draw.choice([*NAMES, "\n" * 999]))
        reply.__dict__.update(_error=error, _content=None)
    elif draw.random() < 0.01:
        reply.__dict__.update(_content=RecordDict({n: hostile_record(draw) for n in NAMES[:9]}))
    else:
        for _ in range(draw.choice([0, 1, 1, 1, 2, 5])):
            damage(reply.content, draw)
    if draw.random() < 0.02:
        reply.metadata.__dict__["_src_node_id"] = draw.choice([0, 1, NODE + 1, 2**63])
    return reply


def honest_reply(sent: torch.Tensor, draw: random.Random) -> Message:
    """Return what a client of fedtide sends, or an ordinary one of Flower."""
    request = Message(RecordDict(), NODE, "train")
    own = vector_to_arrays(sent + torch.linspace(-1, 1, LAYOUT.size).to(sent), LAYOUT)
    metrics = MetricRecord({"num-examples": 20, "lr": 0.1, "steps": 5, "train_loss": 0.7})
    content = RecordDict(
        {draw.choice(["arrays", "arrays", "update", "m"]): own, "metrics": metrics}
    )
    if draw.random() < 0.95:
        content["gradients"] = vector_to_arrays(sent, LAYOUT)
        claims = {"server-round": ROUND + 1, "client": "site-b", "followed": True}
        content["config"] = ConfigRecord(claims)
    return Message(content, reply_to=request)


def check_vector(x: torch.Tensor, sent: torch.Tensor) -> None:
    assert (x.shape, x.dtype) == (sent.shape, sent.dtype)
    largest = math.sqrt(np.finfo(sent.numpy().dtype).max)
    assert np.linalg.norm(x.numpy().astype(np.float64)) <= largest


def check_metrics(metrics: dict) -> None:
    assert len(metrics) <= 100
    assert all(name.isprintable() and 0 < len(name) <= 200 for name in metrics)
    numbers = [v for value in metrics.values() for v in (value if type(value) is list else [value])]
    assert len(numbers) <= 10_000
    assert all(type(v) is float and abs(v) <= 1e100 for v in numbers)


def check_count(value: object, low: int, high: int) -> None:
    assert type(value) is int
    assert low <= value <= high


def answer(validator: ReplyValidator, reply: Message, pending: PendingReply):
    """Return what is used of a reply, or why nothing is; any other exception is raised."""
    try:
        return validator.validate(reply, pending)
    except DeclinedReplyError:
        return "declined"
    except RejectedReplyError as error:
        assert error.reason in REASONS  # noqa: PT017
        return str(error)


@pytest.mark.parametrize("part", range(4))
def test_ten_thousand_replies_are_used_or_rejected(part):
    """The ranges of what is used are those of docs/deploy-security.md."""
    FakeGrid({})  # Flower stamps messages with the identity of a task
    draw, used, rejected = random.Random(part), 0, set()
    dtype = [torch.float32, torch.float64][part % 2]
    unit = torch.linspace(-2, 3, LAYOUT.size, dtype=dtype)
    edge = math.sqrt(torch.finfo(dtype).max / 40)  # so large a model is one, and twice it is not
    for _ in range(2500):
        sent = unit * draw.choice([1.0, 1.0, edge])
        reads_steps, asks, plain = (draw.random() < 0.5 for _ in range(3))
        requested = draw.choice([0.0, 0.1])
        validator = ReplyValidator(LAYOUT, ["site-a", "site-b"], reads_steps, {ROUND: sent})
        pending = PendingReply(
            "m", NODE, "train", CLIENT, ROUND, 0.0, plain and not asks, requested, asks
        )
        reply = hostile_reply(honest_reply(sent, draw), draw)
        with suppress(DeclinedReplyError, RejectedReplyError):
            measured = validator.read_metrics(reply, pending)
            check_count(measured[0], 1, 10**12)
            check_metrics(measured[1])
        update = answer(validator, reply, pending)
        if isinstance(update, str):
            assert update.isprintable()
            assert 0 < len(update) <= 201
            rejected.add(update.split(":")[0][:12])
            continue
        used += 1
        assert (update.client, update.round) == (CLIENT, ROUND)
        check_vector(update.update, sent)
        if asks:
            check_vector(update.gradients, sent)
        check_count(update.samples, 1, 10**12)
        check_count(update.steps, int(reads_steps), 10**9)
        low, high = (requested, requested) if requested else (1e-9, 1e6)
        assert low <= update.lr <= high if reads_steps else update.lr == 0
        check_metrics(update.metrics)
    assert used > 250
    assert len(rejected) > 20


@pytest.mark.parametrize(
    "method",
    [A.FedAvg(weights="data"), A.Scaffold(), A.Scaffold(option=1), A.FedLaAvg()],
    ids=repr,
)
def test_a_federation_with_hostile_clients_goes_on(method, url, caplog):
    """Its state stays finite, every honest update of every round is used, and no line is forged."""
    draw, grid = random.Random(7), federation()

    def tamper(reply: Message) -> Message:
        return hostile_reply(reply, draw) if reply.metadata.message_type == "train" else reply

    for n in range(2):
        node_of(grid, n).tamper = tamper
    strategy = deploy(grid, method, rounds=30, ledger=url)
    assert bool(torch.isfinite(strategy.training.output).all())
    stages = Counter((client, stage) for _, client, stage, _ in rows(url))
    assert [stages[str(n), "used"] for n in range(2, N)] == [30] * (N - 2)
    assert all(0 < stages[client, "used"] < 30 for client in "01")
    lines = [record.getMessage() for record in caplog.records]
    assert all(line.replace("\t", "").isprintable() and len(line) < 1200 for line in lines)
