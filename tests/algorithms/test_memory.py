"""Client memories against a plain dictionary."""

import os
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtide.algorithms import MIFA
from fedtide.algorithms._client_memory import ClientMemory
from fedtide.algorithms.serialization import from_tensors, to_tensors

from .driver import Quadratics, drive, random_table

HAS_FILES = pytest.mark.skipif(
    sys.platform == "win32", reason="no file that is mapped can be removed on Windows"
)
COHORTS = st.lists(st.lists(st.integers(0, 19), unique=True), max_size=8)


def written(memory, cohorts):
    """Write cohort by cohort; returns the memory and what a dictionary remembers."""
    kept = {}
    for t, cohort in enumerate(cohorts):
        rows = torch.arange(len(cohort) * 2.0).view(-1, 2) + 100 * (t + 1)
        memory = memory.write(torch.tensor(cohort, dtype=torch.int64), rows)
        kept |= dict(zip(cohort, rows, strict=True))
    return memory, kept


def check(memory, kept):
    expected = torch.stack([kept.get(n, torch.zeros(2)) for n in range(20)])
    assert torch.equal(memory.read(torch.arange(20)), expected)
    assert memory.seen == len(kept)


@given(COHORTS)
def test_it_remembers_the_latest_row_of_each_client(cohorts):
    memory, kept = written(ClientMemory.empty(20, torch.zeros(2)), cohorts)
    check(memory, kept)
    assert len(memory.rows) <= 2 * max(1, memory.seen)


@given(COHORTS, COHORTS)
def test_it_adds_to_the_rows_of_seen_and_of_new_clients(before, after):
    """Also where the rows of clients before it was cleared lay."""
    memory = written(ClientMemory.empty(20, torch.zeros(2)), before)[0].cleared()
    kept = {}
    for t, cohort in enumerate(after):
        clients = torch.tensor(cohort, dtype=torch.int64)
        rows = torch.arange(len(cohort) * 2.0, dtype=torch.float64).view(-1, 2) + t
        memory = memory.add(clients, rows)
        kept |= {n: kept.get(n, 0) + row for n, row in zip(cohort, rows.float(), strict=True)}
        assert torch.equal(
            memory.subtracted_from(rows.float(), clients),
            rows.float() - memory.read(clients),
        )
    check(memory, kept)


@HAS_FILES
@given(COHORTS, COHORTS)
@settings(max_examples=30)
def test_in_a_file_it_is_the_same_and_can_be_restored(tmp_path_factory, before, after):
    folder = tmp_path_factory.mktemp("memory")
    memory, kept = written(ClientMemory.empty(20, torch.zeros(2), str(folder)), before)
    check(memory, kept)
    fresh = ClientMemory.empty(20, torch.zeros(2), str(folder))
    packed = {name: tensor.clone() for name, tensor in memory.to_tensors().items()}
    restored = fresh.from_tensors(packed)
    check(restored, kept)
    again, more = written(restored, after)
    check(again, kept | more)
    assert restored.rows.data_ptr() == fresh.rows.data_ptr()
    assert os.listdir(folder) == []


@HAS_FILES
def test_a_method_with_its_memory_in_a_file_does_the_same(tmp_path):
    rng = np.random.default_rng(0)
    problem, table = Quadratics.random(rng, 4), random_table(rng, 12, 4)
    in_ram = drive(MIFA(), problem, table)
    in_file = drive(MIFA(memory_folder=str(tmp_path / "new")), problem, table)
    np.testing.assert_array_equal(in_ram.iterates, in_file.iterates)
    restored = from_tensors(in_file.state, to_tensors(in_ram.state))
    everyone = torch.arange(4)
    assert torch.equal(restored.memory.read(everyone), in_ram.state.memory.read(everyone))
