"""Minibatches, losses, gradients and evaluation against literal computations."""

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, log_loss
from torch import nn

from fedtide.errors import InvalidInputError
from fedtide.problems.augmentation import augment
from fedtide.problems.base import BatchPlan
from fedtide.problems.classification import Classification
from fedtide.problems.datasets.catalogue import load
from fedtide.problems.partitions.base import Partition, StoredShards
from fedtide.problems.partitions.partitioners import Dirichlet, Iid, MajorityClass, Natural

CPU, FLOAT = torch.device("cpu"), torch.float64
DROPOUT = {"type": "cnn", "channels": [4], "kernel": 3, "padding": 1, "dropout": 0.3}


def prepare(*arguments, seed=1, dtype=FLOAT, **options):
    return Classification(*arguments, **options).prepare(seed, CPU, dtype)


def plan_for(task, clients, steps=3, batch=4, masked=False, seed=0):
    draw = np.random.default_rng(seed)
    clients = np.array(clients)
    shape = (steps, len(clients), batch)
    return BatchPlan(
        clients=clients,
        step_index=draw.integers(2**62, size=shape[:2]),
        positions=draw.integers(task.population.samples[clients][:, None], size=shape),
        mask=np.arange(batch) < draw.integers(1, batch + 1, size=shape[:2])[..., None]
        if masked
        else None,
    )


def stack(batches):
    """Return the parts of the batches, stacked over the steps."""
    return [torch.stack(part) for part in zip(*batches, strict=True)]


def test_batches_contain_the_planned_samples():
    task = prepare("digits", Dirichlet(0.5), 20)
    data = load("digits")
    plan = plan_for(task, [3, 11], masked=True)
    x, y, mask = stack(task.batches(plan))
    assert x.shape == (3, 2, 4, 1, 8, 8)
    for place in np.ndindex(3, 2, 4):
        client = plan.clients[place[1]]
        held = task.data.shards.held_by(client)
        sample = held[plan.positions[place]]
        assert y[place] == data.train.labels[sample]
        assert np.array_equal(x[place], data.train.features[sample])
    assert np.array_equal(mask, plan.mask)


def test_one_batch_can_serve_all_steps():
    for names in (None, ["flip"]):
        task = prepare("digits", Iid(), 20, augment=names)
        step_index = np.arange(6).reshape(3, 2)
        positions = np.tile(np.arange(4), (1, 2, 1))
        x, y = stack(task.batches(BatchPlan(np.array([3, 11]), step_index, positions)))
        assert x.shape[:3] == (3, 2, 4)
        assert torch.equal(y[0], y[1])
        assert torch.equal(x[0], x[1]) == (names is None)


def test_augmented_batches_are_the_plain_ones_augmented():
    names = ["pad-crop", "flip"]
    plain, changed = (prepare("digits", Iid(), 20, augment=a) for a in (None, names))
    plan = plan_for(plain, [0, 7])
    x, y = stack(plain.batches(plan))
    z, y_changed = stack(changed.batches(plan))
    assert torch.equal(z, augment(x, names, torch.from_numpy(plan.keys)))
    assert not torch.equal(z, x)
    assert torch.equal(y, y_changed)


@pytest.mark.parametrize("model", ["logistic", DROPOUT])
def test_padding_does_not_count_in_the_loss(model):
    task = prepare("digits", Iid(), 20, model=model)
    plan = plan_for(task, [4], steps=1, batch=6)
    x, y, *key = (part[0, 0] for part in stack(task.batches(plan)))
    params = task.layout.unflatten(task.start)
    mask = torch.tensor([True, True, False, True, False, False])
    gradient = torch.func.grad(task.loss)(params, x, y, mask, *key)
    logits = task.model(params, (x,), *key)
    if not key:
        expected = torch.func.grad(task.loss)(params, x[mask], y[mask])
        for name in params:
            assert torch.allclose(gradient[name], expected[name], rtol=1e-12, atol=1e-14)
    loss = nn.functional.cross_entropy(logits[mask], y[mask])
    assert task.loss(params, x, y, mask, *key).item() == pytest.approx(loss.item(), rel=1e-12)


def test_a_minibatch_of_padding_has_gradient_zero():
    task = prepare("digits", Iid(), 20)
    x, y = (part[0, 0] for part in stack(task.batches(plan_for(task, [4], steps=1))))
    params = task.layout.unflatten(task.start)
    gradient = torch.func.grad(task.loss)(params, x, y, torch.zeros(4, dtype=torch.bool))
    assert not any(g.any() for g in gradient.values())


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("model", ["mlp", DROPOUT])
def test_losses_stack_over_clients(model, masked):
    task = prepare("digits", Dirichlet(0.5), 20, model=model)
    batch = next(iter(task.batches(plan_for(task, [2, 5, 9], masked=masked))))
    params = task.layout.unflatten(task.start + 0.1 * torch.randn(3, len(task.start)))
    gradients = torch.func.vmap(torch.func.grad(task.loss))(params, *batch)
    for client in range(3):
        own = {name: p[client].clone().requires_grad_() for name, p in params.items()}
        loss = task.loss(own, *(part[client] for part in batch))
        for name, gradient in zip(own, torch.autograd.grad(loss, own.values()), strict=True):
            assert torch.allclose(gradients[name][client], gradient, rtol=1e-9, atol=1e-12)


def test_evaluation_equals_scikit_learn():
    task = prepare("digits", MajorityClass(0.3), 15, model=DROPOUT)
    data, x = load("digits"), task.start * 1.5
    params = task.layout.unflatten(x)

    def probabilities(rows):
        features = torch.from_numpy(rows.features).double()
        return task.model.evaluate(params, (features,)).softmax(1).detach().numpy()

    train, test = probabilities(data.train), probabilities(data.test)
    result = task.evaluate(x)
    classes = np.arange(10)
    for name, rows, probability in (("train", data.train, train), ("test", data.test, test)):
        loss = log_loss(rows.labels, probability, labels=classes)
        assert result.metrics[f"{name}_loss"] == pytest.approx(loss, rel=1e-9)
        accuracy = accuracy_score(rows.labels, probability.argmax(1))
        assert result.metrics[f"{name}_accuracy"] == pytest.approx(accuracy)
    right = test.argmax(1) == data.test.labels
    for client in range(15):
        own = task.data.shards.held_by(client)
        labels = data.train.labels[own]
        loss = log_loss(labels, train[own], labels=classes)
        assert result.clients["loss"][client] == pytest.approx(loss, rel=1e-9)
        accuracy = accuracy_score(labels, train[own].argmax(1))
        assert result.clients["accuracy"][client] == pytest.approx(accuracy)
        weighted = sum(
            np.mean(labels == label) * right[data.test.labels == label].mean() for label in classes
        )
        assert result.clients["class_weighted_test_accuracy"][client] == pytest.approx(weighted)
    assert result.metrics["loss"] == pytest.approx(result.clients["loss"].mean())


def test_classes_without_test_samples_are_excluded(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    train = {"image": [[1.0], [2.0], [3.0], [4.0]], "label": [0, 1, 2, 2]}
    pq.write_table(pa.table(train), tmp_path / "train.parquet")
    pq.write_table(pa.table({"image": [[1.0]], "label": [0]}), tmp_path / "test.parquet")
    task = prepare(tmp_path, Natural("label"), 3)
    accuracy = task.evaluate(task.start).clients["class_weighted_test_accuracy"]
    assert accuracy[0] in (0, 1)
    assert np.isnan(accuracy[1:]).all()


class AllToOneClient(Partition):
    def split(self, labels, clients, seed, columns=None):
        return StoredShards.from_owners(np.zeros(len(labels), dtype=np.int64), clients)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"clients": 0}, "^clients: 0 .*; give"),
        ({"partition": "iid"}, "^partition: 'iid' .*; give"),
        ({"clients": 1438}, "^clients: 1438 .*; give at most 1437"),
        ({"partition": AllToOneClient()}, "^clients: 9 of 10 .*client 1.*; give"),
        ({"normalise": [0.5]}, "normalise: "),
        ({"normalise": [0.5, 0]}, "normalise: "),
        ({"model": "cnn-003-cifar10"}, "^model: .*too small.*; use"),
        ({"model": {"type": "torch.nn:Linear", "arguments": {"in_features": 9, "out_features": 9}}},
         "^model: .*features of shape.*; choose"),
    ],
)  # fmt: skip
def test_invalid_inputs_name_the_field(arguments, complaint):
    given = {"dataset": "digits", "partition": Iid(), "clients": 10, **arguments}
    with pytest.raises(InvalidInputError, match=complaint):
        prepare(**given)
