"""A leaderboard that is small enough for tests."""

from pathlib import Path

import fedtide.leaderboard.spec as spec
from fedtide.simulation.experiment_files import read_yaml

FILE = Path(spec.__file__).with_name("leaderboard.yaml")


def plain_board(**changes):
    """Return the plain data of two methods under two patterns, on a tiny quadratic problem."""
    whole = read_yaml(FILE)
    problem = whole["problems"]["quadratic"]
    problem["problem"] |= {"clients": 6, "dimension": 3, "noise": 0.1}
    return (
        whole
        | {
            "clients": 6,
            "rounds": 9,
            "steps": 2,
            "seeds": [1, 2, 3],
            "every": 2,
            "problems": {"quadratic": problem},
            "patterns": {
                "even": {
                    "title": "two at random",
                    "source": "this test",
                    "participation": {"type": "uniform", "size": 2},
                },
                "turns": {
                    "title": "three groups in turn",
                    "source": "this test",
                    "participation": {"type": "group-cycle", "groups": 3, "rounds": 2},
                    "period": 6,
                },
            },
            "methods": {name: whole["methods"][name] for name in ("fedavg", "amplified")},
        }
        | changes
    )


def small_board(**changes):
    """Return the leaderboard of `plain_board`."""
    return spec.parse_leaderboard(plain_board(**changes))
