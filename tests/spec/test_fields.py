"""Constructors check the types of their arguments: the error names the field and what it takes."""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import polars as pl
import pytest
import torch
from numpy.typing import NDArray

import fedtide as ft
from fedtide import algorithms as a
from fedtide import participation as p
from fedtide import problems
from fedtide.problems.models import Imported
from fedtide.spec import spec

QUADRATIC = problems.Quadratic([[[1.0]]], [[0.0]])
RUN = {"problem": QUADRATIC, "participation": "full", "algorithm": "fedavg", "rounds": 1}
RUN |= {"local": {"steps": 1}}


@pytest.mark.parametrize(
    ("make", "start"),
    [
        (lambda: ft.LocalTraining(steps=1, lr="0.1"), "lr: '0.1' is of type str; give a number"),
        (lambda: ft.LocalTraining(steps=True), "steps: True is of type bool; give a whole number"),
        (lambda: ft.LocalTraining(steps=2.0), "steps: "),
        (lambda: ft.LocalTraining(steps=1, lr=10**400), "lr: "),
        (lambda: ft.LocalTraining(steps=1, projection=1), "projection: "),
        (lambda: a.FedAU(groups=[0, None]), "groups[1]: None is of type NoneType; give "),
        (lambda: a.FedAU(groups="ann"), "groups: "),
        (lambda: a.Amplified(5, 2.0, inner="fedavg"), "inner: "),
        (lambda: a.FedAvg(weights="meen"), "weights: unknown 'meen'; did you mean 'mean'?"),
        (lambda: p.Bernoulli(rates=None), "rates: "),
        (lambda: p.Bernoulli(rates={"ann": 1.5}), "rates: 1.5 is not within [0, 1]"),
        (lambda: p.Uniform(2**63), "size: "),
        (lambda: p.SubsetLaw([[0], [0.5]], [0.5, 0.5]), "subsets[1][0]: "),
        (lambda: p.Trace(7, 60.0), "file: "),
        (lambda: p.Replay(pl.Series([1])), "log: "),
        (lambda: ft.simulate(**RUN, objective={"ann": 1.0}), "objective: no client is called "),
        (lambda: ft.simulate(**RUN | {"rounds": True}), "rounds: "),
        (lambda: ft.simulate(**RUN, dtype="float16"), "dtype: unknown 'float16'; did you mean "),
        (lambda: ft.simulate(**RUN, objective=[0.5, "a"]), "objective[1]: "),
    ],
)
def test_the_error_names_the_field_and_what_it_takes(make, start):
    with pytest.raises(ft.InvalidInputError) as error:
        make()
    assert str(error.value).startswith(start)


def test_numbers_and_arrays_of_every_library_are_accepted():
    """As Python's: what code asks for by type, such as a decay instead of "mean", is found."""
    local = ft.LocalTraining(steps=np.int64(2), lr=np.float32(0.5), momentum=0)
    assert local == ft.LocalTraining(steps=2, lr=0.5)
    assert type(local.lr) is float
    assert type(a.FedAU(average=Fraction(1, 2)).average) is float
    for make in (tuple, np.array, torch.tensor, pl.Series):
        assert list(p.Bernoulli(make([1.0, 0.5])).rates) == [1, 0.5]
        assert list(a.KnownRates(rates=make([1.0, 0.5])).rates) == [1, 0.5]
    assert a.FedAU(groups=range(3)).groups == range(3)
    assert ft.Ball(radius=1.0, center=np.zeros(2)).center == (0.0, 0.0)


# The decorator itself.


@spec
class Base:
    number: float

    def __post_init__(self):
        if self.number < 0:
            raise ft.InvalidInputError("number: negative; give another")


@spec
class Derived(Base):
    words: Sequence[str] = ()
    kind: Literal["a", "b"] | None = None
    array: NDArray[Any] | None = None
    how: Callable[[int], int] | None = None
    options: Mapping[str, Any] | None = None


def test_fields_and_checks_are_inherited():
    with pytest.raises(ft.InvalidInputError, match=r"^number: '1' is of type str"):
        Derived("1")
    with pytest.raises(ft.InvalidInputError, match=r"^number: negative"):
        Derived(-1)


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("words", [["x"], (), np.array(["x"]), "xy"], [3, [3], {"x"}, b"x", np.zeros(2)]),
        ("kind", ["a", None], ["c", 3, ["a"], np.array(["a"])]),
        ("array", [[1], np.zeros(2), torch.zeros(2), None], [1, "x", np.array(1.0), {}]),
        ("how", [len, int, None], [3, "len"]),
        ("options", [{}, {"a": 1}, None], [[], "a"]),
    ],
)
def test_each_kind_of_annotation(field, good, bad):
    for value in good:
        Derived(1, **{field: value})
    for value in bad:
        with pytest.raises(ft.InvalidInputError, match=rf"^{field}"):
            Derived(1, **{field: value})


def test_equality_is_that_of_the_fields():
    assert Derived(1, ["x"]) == Derived(1.0, ["x"])
    assert Derived(1, ["x"]) != Derived(1, ["y"])
    assert Derived(1) != Base(1)
    assert hash(Derived(1, ("x",))) == hash(Derived(1, ("x",)))
    assert Derived(1, array=np.zeros(2)) == Derived(1, array=np.zeros(2))
    assert Derived(1, array=np.zeros(2)) != Derived(1, array=np.ones(2))


def test_changing_what_was_given_does_not_change_an_object():
    rates, groups, subsets = np.array([0.5, 0.25]), ["a", "b"], [[0], [0, 1]]
    named, tensor, arguments = {"ann": 0.5}, torch.tensor([0.5, 0.25]), {"widths": [2, 3]}
    objective = [1.0]
    made = [
        p.Bernoulli(rates=rates).rates,
        p.Bernoulli(rates=tensor).rates,
        a.FedAU(groups=groups).groups,
        p.Bernoulli(rates=named).rates,
        p.SubsetLaw(subsets=subsets, probabilities=[0.5, 0.5]).subsets,
        Imported("torch.nn:Linear", arguments).arguments,
        ft.Experiment.from_dict({**RUN, "objective": objective}).objective,
    ]
    rates[:] = 7.0
    tensor[:] = 7.0
    groups[0] = "c"
    named["ann"] = 7.0
    subsets[1][0] = 7
    arguments["widths"][0] = 7
    objective[0] = 7.0
    assert made[0].tolist() == made[1].tolist() == [0.5, 0.25]
    assert made[2:] == [["a", "b"], {"ann": 0.5}, [[0], [0, 1]], {"widths": [2, 3]}, [1.0]]
    with pytest.raises(ValueError, match="read-only"):
        made[0][:] = 7.0


def test_data_and_networks_are_not_copied():
    columns, net = {"x": np.zeros((4, 2)), "y": np.zeros(4)}, torch.nn.Linear(2, 1)
    given = {"inputs": "x", "clients": 2, "partition": problems.Iid(), "loss": "mse"}
    problem = problems.Supervised(columns, model=net, **given)
    assert problem.train is columns
    assert problem.train["x"].flags.writeable
    assert problem.model is net
