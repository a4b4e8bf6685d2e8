"""Fingerprints of data and networks: a function of the content, and of nothing else."""

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

from fedtide.errors import InvalidInputError
from fedtide.spec import fingerprint, is_data


def frame(values, names=("x", "y")):
    return pl.DataFrame({name: [*values, None] for name in names})


class Samples(torch.utils.data.Dataset):
    def __init__(self, x):
        self.x = x

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"x": torch.tensor(self.x[i]), "tokens": [1, 2][: i % 2 + 1], "y": i}


def network(x):
    net = nn.Sequential(nn.Linear(len(x), 2), nn.BatchNorm1d(2))
    for parameter in net.parameters():
        nn.init.ones_(parameter)
    net[0].weight.data[0] = torch.tensor(x)
    return net


def hugging_face(x):
    from datasets import Dataset

    return Dataset.from_dict({"x": x, "y": list(range(len(x)))})


def pandas(x):
    import pandas as pd

    return pd.DataFrame({"x": x, "word": list(map(str, x)), "list": [[v] for v in x]})


KINDS = {
    "NumPy": np.array,
    "objects": lambda x: np.array([str(v) for v in x], dtype=object),
    "bfloat16": lambda x: torch.tensor(x, dtype=torch.bfloat16),
    "columns": lambda x: {"x": np.array(x), "tokens": [[1]] * len(x)},
    "Polars": frame,
    "Arrow": lambda x: frame(x).to_arrow(),
    "pandas": pandas,
    "Hugging Face": hugging_face,
    "PyTorch": Samples,
    "tensors": lambda x: torch.utils.data.TensorDataset(torch.tensor(x), torch.zeros(len(x))),
    "network": network,
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_fingerprint_is_a_function_of_the_content(kind):
    make = KINDS[kind]
    x = [1.0, 2.0, 300.0]
    assert is_data(make(x))
    assert fingerprint(make(x)) == fingerprint(make([*x]))
    others = [make(y) for y in ([1.0, 2.0, 400.0], [2.0, 1.0, 300.0], [1.0, 2.0])]
    assert len({fingerprint(thing) for thing in (make(x), *others)}) == 4


def test_types_and_names_belong_to_the_content():
    things = [
        np.zeros(2),
        np.zeros(2, dtype=np.float32),
        np.zeros((2, 1)),
        torch.zeros(2),
        {"x": np.zeros(2)},
        {"y": np.zeros(2)},
        {"x": np.zeros(2), "y": np.zeros(2)},
        {"x": np.array([0.0, 0.0]), "y": [0, 0]},
        frame([0]),
        frame([0], ("x", "z")),
        frame([0.0]),
    ]
    assert len({fingerprint(thing) for thing in things}) == len(things)


class Net(nn.Module):
    def __init__(self, k, buffer=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.k = nn.Linear(3, 1), k
        self.register_buffer("hidden", torch.tensor(buffer), persistent=False)

    def forward(self, x):
        return self.k * self.linear(x)


def layer(**changed):
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(4, **{"nhead": 2, "dim_feedforward": 4} | changed)


def filled(net):
    for parameter in net.parameters():
        nn.init.ones_(parameter)
    return net


def tied(same):
    net = nn.Sequential(Net(1), Net(1))
    if same:
        net[1].linear = net[0].linear
    return net


@pytest.mark.parametrize(
    "makers",
    [
        [lambda k=k: Net(k) for k in (1, 2, 2.0, "2", None)],
        [lambda p=p: nn.Sequential(Net(1), nn.Dropout(p)) for p in (0.1, 0.2)],
        [layer, lambda: layer(nhead=4), lambda: layer(norm_first=True)],
        [layer, lambda: layer(dropout=0.2), lambda: layer(activation="gelu")],
        [lambda: Net(1), lambda: Net(1, 1.0)],
        [lambda: nn.utils.parametrizations.weight_norm(layer().linear1)],
        [lambda n=n: filled(nn.LSTM(2, 2, n)) for n in (1, 2)],
        [lambda: tied(False), lambda: tied(True)],
    ],
)
def test_attributes_of_the_modules_belong_to_a_network(makers):
    first, second = ([fingerprint(make()) for make in makers] for _ in range(2))
    assert first == second
    assert len(set(first)) == len(makers)


def test_networks_whose_code_has_no_name_are_refused():
    class Local(Net):
        pass

    with pytest.raises(InvalidInputError, match=r"^out: "):
        fingerprint(Local(1))


class Doubled(torch.utils.data.TensorDataset):
    def __init__(self, factor):
        super().__init__(torch.ones(3, 1))
        self.factor = factor

    def __getitem__(self, i):
        return tuple(self.factor * part for part in super().__getitem__(i))


def test_data_sets_derived_from_tensors_are_hashed_by_their_items():
    assert fingerprint(Doubled(2)) == fingerprint(Doubled(2)) != fingerprint(Doubled(3))
