# SPDX-License-Identifier: Apache-2.0
"""Who is told of gradients while a backward pass goes on, in which order and when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

import tensorbackend as tb
import tensorbackend.functions as F
import tensorbackend.links as L
from tensorbackend import optimizers
from tensorbackend.function.ready import listeners


class Notes:
    """Keeps what it is told, and the gradients at that time."""

    def __init__(self) -> None:
        self.told: list[tuple[str, list[str]]] = []
        self.grads: dict[str, float] = {}

    def begin(self, leaves: Sequence[tb.Variable]) -> None:
        self.told.append(("begin", [leaf.name for leaf in leaves]))

    def ready(self, leaf: tb.Variable) -> None:
        self.told.append(("ready", [leaf.name]))
        self.grads[leaf.name] = leaf.grad.item()

    def end(self) -> None:
        self.told.append(("end", []))

    def scaled(self, leaf: tb.Variable, before: np.ndarray) -> None:
        self.told.append(("scaled", [leaf.name]))
        self.grads[leaf.name] = before.item()


@pytest.fixture
def notes() -> Iterator[Notes]:
    made = Notes()
    listeners.add(made)
    yield made
    listeners.discard(made)


def leaf(name: str, value: float) -> tb.Variable:
    return tb.Variable(np.array(value, np.float32), name=name)


def test_listeners_are_told_in_the_order_in_which_they_came() -> None:
    """Those of two processes exchange gradients with each other, so it must not depend on addresses."""
    made = [Notes() for _ in range(20)]
    order = [made[k] for k in np.random.default_rng(0).permutation(20)]
    for notes in order:
        listeners.add(notes)
    try:
        assert [notes for notes in listeners if notes in made] == order
        told: list[Notes] = []
        for notes in made:
            notes.end = lambda notes=notes: told.append(notes)
        F.exp(leaf("x", 1)).backward()
        assert told == order
    finally:
        for notes in order:
            listeners.discard(notes)
    assert not set(made) & set(listeners)


def test_a_leaf_is_ready_after_its_last_function(notes: Notes) -> None:
    x, w, v = leaf("x", 2), leaf("w", 3), leaf("v", 5)
    hidden = F.tanh(x * w)                    # w is used twice: its gradient is whole when the first use is passed
    (hidden * v + F.exp(w)).backward()
    assert notes.told[0] == ("begin", ["v", "x", "w"])
    assert notes.told[1:] == [("ready", ["v"]), ("ready", ["x"]), ("ready", ["w"]), ("end", [])]
    assert notes.grads == {name: float(p.grad) for name, p in (("x", x), ("w", w), ("v", v))}
    np.testing.assert_allclose(notes.grads["w"], np.exp(3) + 5 * (1 - np.tanh(6) ** 2) * 2, rtol=1e-5)


def test_gradients_that_were_there_are_part_of_it(notes: Notes) -> None:
    x = leaf("x", 2)
    for _ in range(2):
        (x * x).backward()
    assert notes.grads == {"x": 8.0}


def test_leaves_without_gradients_are_not_ready(notes: Notes) -> None:
    class Cut(tb.FunctionNode):
        def forward(self, inputs: tuple) -> tuple:
            return inputs

        def backward(self, indexes: tuple, grads: tuple) -> tuple:
            return (None,)

    x, w, fixed = leaf("x", 2), leaf("w", 3), tb.Variable(np.float32(4), requires_grad=False, name="fixed")
    (x * fixed + Cut().apply((F.exp(w),))[0]).backward()
    assert sorted(notes.told[0][1]) == ["w", "x"]
    assert notes.told[1:] == [("ready", ["x"]), ("end", [])]
    assert w.grad is None


def test_an_optimizer_tells_what_it_divides_by_its_loss_scale(notes: Notes) -> None:
    net = L.Scale(W_shape=(1,))
    net.W.name = "W"
    opt = optimizers.SGD(0.5).setup(net).loss_scaling(scale=8.0)
    opt.update(lambda: F.sum(net(tb.Variable(np.full((1, 1), 3, np.float32)))))
    assert notes.told[1:] == [("ready", ["W"]), ("end", []), ("scaled", ["W"])]
    assert notes.grads == {"W": 24.0} and net.W.grad.item() == 3.0


def test_passes_of_grad_tell_nobody(notes: Notes) -> None:
    x = leaf("x", 2)
    tb.grad([x * x], [x])
    assert notes.told == []


def test_a_listener_that_nobody_holds_is_forgotten() -> None:
    listeners.add(Notes())
    assert not [listener for listener in listeners if isinstance(listener, Notes)]
