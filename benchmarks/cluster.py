"""One run on a Ray cluster: what share of the time is not training.

A cluster of two nodes with one core each is started on this machine. Paper 001's CNN for CIFAR-10
trains 25 and 100 clients a round, alone and on one and two workers, all with the same seed; the
models must be equal bit for bit.

    python benchmarks/cluster.py [--rounds 5]

The record is benchmarks/records/cluster.json.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from fedtide.simulation.cluster.ray_cluster import RayCluster, open_cluster
from fedtide.simulation.experiment import Experiment
from fedtide.simulation.loop import Run
from measuring import Section, machine
from workload import Workload

RECORD = Path(__file__).parent / "records" / "cluster.json"
COHORTS = (25, 100)
WORKERS = (1, 2)
CHUNK = 5


def measure(rounds: int) -> Iterator[dict[str, Any]]:
    """Yield a row for every cohort and number of workers; 0 workers: alone."""
    with TemporaryDirectory() as name, local_cluster() as address:
        workload(COHORTS[0]).write_data(Path(name))
        for cohort in COHORTS:
            experiment = workload(cohort).experiment(Path(name), "threaded", chunk=CHUNK)
            alone, row = run_rounds(experiment, rounds, None, 0)
            yield row
            for workers in WORKERS:
                with open_cluster(address, workers) as cluster:
                    shared, row = run_rounds(experiment, rounds, cluster, workers)
                assert torch.equal(shared.driver.output, alone.driver.output)
                yield row


def workload(cohort: int) -> Workload:
    """Return the workload of `benchmarks/cnn.py` with another cohort."""
    return Workload(cohort, 5, 16, "cnn-001-cifar10", (3, 32, 32), clients=100, samples=80)


def run_rounds(
    experiment: Experiment, rounds: int, cluster: RayCluster | None, workers: int
) -> tuple[Run, dict[str, Any]]:
    """Run a first round, in which workers start, and measure the following ones."""
    run = Run(experiment, cluster=cluster)
    run.round()
    pool = None if cluster is None else cluster.start_workers(experiment, "threaded")
    trained = 0.0 if pool is None else pool.training_seconds
    began = time.perf_counter()
    for _ in range(rounds):
        run.round()
    seconds = time.perf_counter() - began
    clients = experiment.participation.size
    row = {"clients": clients, "workers": workers, "seconds": seconds / rounds}
    if pool is not None:
        busy = (pool.training_seconds - trained) / workers
        row["share_not_training"] = 1 - busy / seconds
    return run, row


@contextmanager
def local_cluster() -> Iterator[str]:
    """Yield the address of a cluster of two nodes with one core each on this machine."""
    from ray.cluster_utils import Cluster  # the page is written from the record without Ray

    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    node = {"num_cpus": 1, "object_store_memory": 2**29}
    cluster = Cluster(True, head_node_args={**node, "include_dashboard": False})
    try:
        cluster.add_node(**node)
        yield cluster.address
    finally:
        cluster.shutdown()


def section(record: dict[str, Any]) -> Section:
    """Return the record as a table."""
    rounds = record["rounds"]
    after = "The round" if rounds == 1 else f"{rounds} rounds"
    found = Section(
        "One run on a cluster",
        "Paper 001's CNN for CIFAR-10, 5 local steps of 16 samples, chunks of "
        f"{record['chunk']} clients, threaded, one core per worker, on a Ray cluster of two local "
        "nodes; the models are those of a run alone, bit for bit. Not training: the share of the "
        "workers' time in which they do not train, because they wait for messages, for the last "
        "chunk or for the run's own process, which has no core of its own here. "
        f"{after} after the first. `python benchmarks/cluster.py`, "
        f"{record['machine']}.",
        ("clients a round", "workers", "s per round", "not training"),
    )
    for row in record["rows"]:
        share = row.get("share_not_training")
        found.rows.append(
            (
                f"{row['clients']}",
                f"{row['workers'] or 'alone'}",
                f"{row['seconds']:.2f}",
                "" if share is None else f"{share:.0%}",
            )
        )
    loads = [row["load"] for row in record["rows"]]
    if max(loads) > 1.5 * len(WORKERS):
        found.notes.append(
            f"The machine was busy with other work (load average {min(loads):.0f} to "
            f"{max(loads):.0f} on {os.cpu_count()} cores): the seconds say little, the shares more."
        )
    return found


def main() -> None:
    """Measure, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds")
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    record: dict[str, Any] = {
        "machine": machine(),
        "chunk": CHUNK,
        "rounds": rounds,
        "seed": 0,
        "rows": [],
    }
    for row in measure(rounds):
        record["rows"].append({**row, "load": os.getloadavg()[0]})
        RECORD.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    print(section(record).markdown())


if __name__ == "__main__":
    main()
