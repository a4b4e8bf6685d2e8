"""More than 100 faults drawn at random: ledger and model stay those of the replies that counted.

The federations run on the stand-in for Flower's grid, with Flower's own decoding of replies. What
must have counted is told by the grid, which delivered the replies, and the model is computed anew
from the ledger.
"""

import errno
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Error, Message

import fedtide as ft
from fedtide.errors import InvalidInputError
from fedtide.flower.ledger import ledger_tables
from fedtide.flower.ledger.ledger import Ledger, read_rounds
from fedtide.flower.server.discovery import Discovery
from fedtide.flower.server.session import TrainingSession
from fedtide.flower.server.transport import Transport

from .driver import TASK, Killed, N, deploy, federation, kill_in_call, model, rows, update_of
from .fake_grid import Node, WireGrid
from .test_reply_validation import LIES
from .test_transport import CORRUPTIONS

pytestmark = pytest.mark.fuzz

A = ft.algorithms
METHODS = [A.FedAvg(), A.MIFA(), A.FedVARP()]
SEEDS, ROUNDS, TIMEOUT = 12, 10, 30.0


LIED = (
    "more samples than exist",
    "negative samples",
    "half a step",
    "nan",
    "too large",
    "a shape that broadcasts",
    "another round",
    "no metrics",
)
HOSTILE = {name: LIES[name][1] for name in LIED}
CORRUPT = {corrupt.__name__: corrupt for corrupt in CORRUPTIONS}
HARMLESS = ["mute", "slow", "twice", "twice, later"]
CLIENT_FAULTS = [*HARMLESS, "error", *HOSTILE, *CORRUPT]
SERVER_FAULTS = ["kill", "kill", "disk full", "ledger locked", "damaged checkpoint"]
WORDS = {"disk full": "No space left", "ledger locked": "database is locked"}
CALLS = [
    (Transport, "send"),
    (Transport, "collect"),
    (TrainingSession, "end_round"),
    (TrainingSession, "save"),
    (Ledger, "commit"),
]


class FaultyGrid(WireGrid):
    """A grid whose nodes fail by a plan, and which knows what it delivered.

    Args:
        nodes: of all submissions.
        plan: what fails, from `draw_plan`.
        submission: its number.
        now: when it begins.

    The plan also notes the faults that `happened`, the requests, `asked` (submission, round,
    client), and the replies, `delivered` (the same, the round asked, whether the reply is good).
    """

    def __init__(self, nodes: dict[int, Node], plan: dict, submission: int, now: float) -> None:
        super().__init__(nodes, self._deliver)
        self.plan, self.submission, self.now, self.round = plan, submission, now, 0
        self.fault: dict[str, str] = {}
        self.wall = lambda time: time + sum(by for at, by in plan["clock"] if at <= time)
        self.replayed: list = []

    def get_nodes(self):
        for node in self.nodes.values():
            if node.free_at == np.inf and self.now > node.muted_at + 40:
                node.started = node.free_at = self.now
        return super().get_nodes()

    def _push(self, message: Message) -> str:
        node = self.nodes[message.metadata.dst_node_id]
        fault = self.plan["replies"].get((node.config["partition-id"], node.handled), "")
        fault = fault if message.metadata.message_type == "train" else ""
        if fault and node.online(max(self.now, node.free_at)):
            self.plan["happened"].append(fault)
        if message.metadata.message_type == "train":
            asked = (self.submission, self.round, node.config["partition-id"])
            self.plan["asked"].append(asked)
        node.muted_at = self.now
        node.seconds = lambda number: {"mute": np.inf, "slow": 70.0}.get(fault, 3.0)
        node.fault = fault
        message_id = super()._push(message)
        self.fault[message_id] = fault
        return message_id

    def _answer(self, node: Node, message: Message) -> Message:
        if node.fault == "error":
            return Message(Error(2, "no data\nTraceback"), reply_to=message)
        reply = super()._answer(node, message)
        return HOSTILE.get(node.fault, lambda same: same)(reply)

    def _deliver(self, reply: Message, objects: dict) -> None:
        fault = self.fault[reply.metadata.reply_to_message_id]
        node = self.nodes.get(reply.metadata.src_node_id)
        if reply.metadata.message_type == "train" and node is not None and reply.has_content():
            client, asked = node.config["partition-id"], int(reply.metadata.group_id) - 1
            good = not fault or fault in HARMLESS
            event = (self.submission, self.round, client, asked, good)
            self.plan["delivered"].append(event)
        if fault in CORRUPT:
            CORRUPT[fault](reply, objects)

    def PullMessages(self, request):
        response = super().PullMessages(request)
        again, self.replayed = self.replayed, []
        pulled = zip(response.messages_list, response.message_object_trees, strict=True)
        for message, tree in list(pulled):
            fault = self.fault[message.metadata.reply_to_message_id]
            if fault == "twice":
                again.append((message, tree))
            if fault == "twice, later":
                self.replayed.append((message, tree))
        for message, tree in again:
            response.messages_list.append(message)
            response.message_object_trees.append(tree)
        return response


def draw_plan(draws: np.random.Generator) -> dict[str, Any]:
    faults = draws.permutation(CLIENT_FAULTS)[:9]
    places = [(int(draws.integers(N)), int(number)) for number in draws.integers(1, 9, len(faults))]
    return {
        "replies": dict(zip(places, map(str, faults), strict=True)),
        "offline": [(int(draws.integers(N)), draws.uniform(1_005, 1_100)) for _ in range(2)],
        "clock": [(draws.uniform(1_000, 1_100), draws.choice([-3600.0, 3600.0]))],
        "server": list(map(str, draws.permutation(SERVER_FAULTS)[:2])),
        "happened": ["clock", "offline", "offline"],
        "failed": [],
        "asked": [],
        "delivered": [],
    }


def arrange(fault: str, draws: np.random.Generator, patch: Any, url: str) -> None:
    """Let the server fail once in the submission that follows."""
    number, after = int(draws.integers(1, 5)), bool(draws.integers(2))
    if fault in ("kill", "damaged checkpoint"):
        owner, name = CALLS[draws.integers(len(CALLS))]
        kill_in_call(patch, owner, name, number, after)
    save, commit, calls = ft.simulation.checkpoint.safetensors.torch.save_file, Ledger._add, []

    def fail_to_save(*arguments: Any) -> None:
        calls.append(1)
        if len(calls) == number:
            raise OSError(errno.ENOSPC, "No space left on device")
        save(*arguments)

    def find_locked(self: Ledger, *arguments: Any) -> None:
        calls.append(1)
        with sqlite3.connect(url.removeprefix("sqlite:///")) as other:
            if len(calls) == number:
                other.execute("BEGIN IMMEDIATE")
            commit(self, *arguments)

    if fault == "disk full":
        patch.setattr("safetensors.torch.save_file", fail_to_save)
    if fault == "ledger locked":
        patch.setattr(ledger_tables, "_PATIENCE", 0)
        patch.setattr(Ledger, "_add", find_locked)


def damage(state: Path) -> None:
    for path in sorted(state.glob("*.safetensors"))[-1:]:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)


def run_with_faults(seed: int, folder: Path, monkeypatch: Any) -> tuple[dict, dict, FaultyGrid]:
    """Run a federation, submitting it again after each failure; return its plan and executions."""
    draws = np.random.default_rng(seed)
    plan, executed = draw_plan(draws), {}
    url, state = f"sqlite:///{folder / 'ledger.db'}", folder / "state"
    nodes = federation().nodes
    for client, since in plan["offline"]:
        (node,) = [n for n in nodes.values() if n.config["partition-id"] == client]
        node.online = lambda now, since=since: not since <= now < since + 25
    now, submission, ended = 1_000.0, 0, None
    while ended is None:
        grid = FaultyGrid(nodes, plan, submission, now)
        fault = plan["server"].pop() if plan["server"] else ""
        with monkeypatch.context() as patch:
            wait = Discovery.wait_for_nodes

            def begin(self, t, *rest, grid=grid, wait=wait):
                grid.round, executed[t] = t, grid.submission
                wait(self, t, *rest)

            patch.setattr(Discovery, "wait_for_nodes", begin)
            arrange(fault, draws, patch, url)
            options = {"timeout": TIMEOUT, "state": state, "ledger": url}
            try:
                ended = deploy(grid, METHODS[seed % 3], ROUNDS, **options)
            except (Killed, InvalidInputError) as error:
                plan["failed"].append((fault, str(error)))
        if fault == "damaged checkpoint":
            damage(state)
        now, submission = grid.now + 5.0, submission + 1
    return plan, executed, ended


def replay(method: Any, used: list[tuple[int, int, int]]) -> np.ndarray:
    """Return the model for the updates in a ledger, written out."""
    history, memory = [TASK.start.numpy()], np.zeros((N, 3))
    for t in range(ROUNDS):
        x = history[-1]
        updates = {n: update_of(n, history[asked]) for r, n, asked in used if r == t}
        if isinstance(method, A.FedAvg) and updates:
            x = x + np.mean(list(updates.values()), axis=0)
        if isinstance(method, A.FedVARP) and updates:
            x = (
                x
                + memory.mean(axis=0)
                + np.mean([u - memory[n] for n, u in updates.items()], axis=0)
            )
        for n, update in updates.items():
            memory[n] = update
        if isinstance(method, A.MIFA):
            x = x + memory.mean(axis=0)
        history.append(x)
    return history[-1]


def test_faults_at_random_change_neither_ledger_nor_model(tmp_path, monkeypatch, caplog):
    happened = []
    for seed in range(SEEDS):
        folder, method = tmp_path / str(seed), METHODS[seed % 3]
        folder.mkdir()
        url = f"sqlite:///{folder / 'ledger.db'}"
        plan, executed, strategy = run_with_faults(seed, folder, monkeypatch)
        happened += plan["happened"] + [fault for fault, _ in plan["failed"]]
        assert all(WORDS.get(fault, "") in text for fault, text in plan["failed"])

        assert read_rounds(url)["round"].to_list() == list(range(ROUNDS))
        found = [(t, int(n), t if asked is None else asked, s) for t, n, s, asked in rows(url)]
        used = [(t, n, asked) for t, n, asked, stage in found if stage == "used"]
        valid = [
            (t, n, asked)
            for submission, t, n, asked, good in plan["delivered"]
            if executed[t] == submission
            and good
            and (method.traits.accepts_stale_updates or asked == t)
        ]
        assert sorted(used) == sorted(valid), f"seed {seed}"
        reached = {(s, t, n) for s, t, n, *_ in plan["asked"] + plan["delivered"]}
        expected = {(t, n) for s, t, n in reached if executed[t] == s}
        assert {(t, n) for t, n, _, stage in found if stage != "available"} == expected
        np.testing.assert_allclose(model(strategy), replay(method, used), rtol=1e-9)
    assert len(happened) >= 100
    assert set(happened) >= {*CLIENT_FAULTS, *SERVER_FAULTS}
    assert [record for record in caplog.records if record.exc_info] == []
    assert all(len(record.getMessage().splitlines()) == 1 for record in caplog.records)
