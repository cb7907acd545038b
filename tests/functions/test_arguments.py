# SPDX-License-Identifier: Apache-2.0
"""Calls that do not fit a signature: the argument is named, whatever the error from inside was."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import numpy as np
import pytest

import tensorbackend as tb
import tensorbackend.functions as F
import tensorbackend.links as L
from tensorbackend import gradient_check, initializers, optimizers, serializers
from tensorbackend.errors import is_complaint
from tensorbackend.iterators import BatchIterator, epoch_order

X = np.arange(6, dtype=np.float32).reshape(2, 3)
IMAGES = np.ones((2, 4, 4, 4), np.float32)


def takes_an_array_first() -> list[str]:
    found = []
    for name in F.__all__:
        parameters = [*inspect.signature(getattr(F, name)).parameters.values()]
        if parameters[0].annotation == "Array" and parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL:
            found.append(name)
    return found


@pytest.mark.parametrize("wrong", [None, "x", [1.0], object(), np.array([None])], ids=lambda x: type(x).__name__)
def test_every_function_refuses_what_is_no_array_in_its_own_words(wrong: object) -> None:
    names = takes_an_array_first()
    assert len(names) > 130
    for name in names:
        function = getattr(F, name)
        parameters = [*inspect.signature(function).parameters.values()]
        rest = [X if p.annotation == "Array" else 1 for p in parameters[1:] if p.default is p.empty]
        with pytest.raises((TypeError, ValueError, IndexError)) as caught:
            function(wrong, *rest)
        assert is_complaint(caught.value), (name, str(caught.value))


CASES = {
    "axes of a transpose": (lambda: F.transpose(X, axes=3), TypeError, ("transpose: axes", "3", "2 ints")),
    "a shape of one number": (lambda: F.broadcast_to(X, 3), TypeError, ("broadcast_to: shape", "int 3", "tuple of")),
    "None as a flag": (lambda: F.batch_matmul(IMAGES[0], IMAGES[0], transa=None), TypeError,
                       ("batch_matmul: transa", "None", "True or False")),
    "a word as a flag": (lambda: F.sum(X, 1, "no"), TypeError, ("sum: keepdims", "'no'", "True or False")),
    "None as an operand": (lambda: F.swish(X, beta=None), TypeError, ("swish: beta", "None")),
    "slopes of other channels": (lambda: F.swish(IMAGES, np.ones(3, np.float32)), TypeError,
                                 ("swish", "x.shape[1] == beta.shape[0]", "4 != 3")),
    "variances of another shape": (lambda: F.gaussian(X, X[:, :2]), TypeError,
                                   ("gaussian: shapes", "mean.shape = (2, 3) and ln_var.shape = (2, 2)")),
    "a state of another shape": (lambda: F.zoneout(X, X[:, :2]), TypeError,
                                 ("zoneout: shapes", "h.shape = (2, 3) and x.shape = (2, 2)")),
    "maxima of integers": (lambda: F.upsampling_2d(IMAGES.astype(int), np.zeros(IMAGES.shape, int), 2), TypeError,
                           ("upsampling_2d", "int64", "x.dtype is floating")),
    "softmax of nothing": (lambda: F.softmax(X[:, :0]), tb.ShapeError, ("softmax: nothing to choose from",)),
    "logsumexp of nothing": (lambda: F.logsumexp(X[:0], 0), tb.ShapeError, ("logsumexp: nothing to choose from",)),
    "a variable as a number": (lambda: F.contrastive(X, X, np.array([0, 1]), margin=tb.Variable(X)), TypeError,
                               ("contrastive: margin", "Variable (2, 3)", "a number")),
    "a tensor's axes": (lambda: F.tensordot(X, X.T, axes=None), TypeError, ("tensordot: axes", "None", "a pair")),
    "too many axes": (lambda: F.tensordot(X, X.T, axes=2**40), tb.ShapeError, ("tensordot: axes", "0 to the number")),
    "negative axes": (lambda: F.tensordot(X, X.T, axes=-1), tb.ShapeError, ("tensordot: axes", "-1")),
    "a mask": (lambda: F.dropout(X, mask=X.T), TypeError,
               ("dropout: shapes", "x.shape = (2, 3)", "mask.shape = (3, 2)")),
    "weights of another width": (lambda: F.linear(X, np.ones((4, 5), np.float32)), TypeError,
                                 ("linear: invalid inputs", "3 != 5, of x (2, 3) and W (4, 5)")),
    "a number for an array, before another": (lambda: F.linear(X, 2.0, X[0]), TypeError,
                                              ("linear: invalid inputs", "0 != 2", "W.ndim == 2")),
    "a number in a fused function": (lambda: tb.fused(lambda x: F.linear(x, 2.0, x[0]))(X), TypeError,
                                     ("linear: invalid inputs", "0 != 2", "W.ndim == 2")),
    "a number that a function of arrays fails at": (lambda: F.gaussian_kl_divergence(X, 0.0), TypeError,
                                                    ("gaussian_kl_divergence: ln_var", "float 0.0", "a NumPy array")),
    "a number alone": (lambda: F.exp(1.0), TypeError, ("exp: no array", "float 1.0", "an array or a variable")),
    "numbers alone": (lambda: F.maximum(np.float64(1), 2), TypeError, ("maximum: no array", "float 1.0, int 2")),
    "an expression": (lambda: F.einsum(None, X), TypeError, ("einsum: subscripts", "None", "a text")),
    "operands": (lambda: F.einsum("ij,jk->ik", X, 3), TypeError, ("einsum: operands", "int 3", "a NumPy array")),
    "what is broadcast": (lambda: F.broadcast(X, None), TypeError, ("broadcast: args", "None", "NumPy array")),
    "shapes that are broadcast": (lambda: F.broadcast(X, IMAGES), tb.ShapeError, ("broadcast", "(2, 3)")),
    "a device": (lambda: F.copy(X, "cpu"), TypeError, ("device", "'cpu'", "a backend")),
    "weights of a layer": (lambda: F.n_step_lstm(1, 0.0, X[None], X[None], 3, [], [X]), TypeError,
                           ("n_step_lstm: ws", "int 3", "a list of lists")),
    "dropout between layers": (lambda: F.n_step_rnn(1, "x", X[None], [], [], [X]), TypeError, ("dropout_ratio", "str")),
    "filters of depth": (lambda: F.depthwise_convolution_2d(IMAGES, X), tb.ShapeError, ("filters W", "(2, 3)")),
    "filters of places": (lambda: F.local_convolution_2d(IMAGES, X), tb.ShapeError, ("filters W", "(2, 3)")),
    "groups of a vector": (lambda: F.group_normalization(X[0], 1, X[0], X[0]), tb.ShapeError, ("(3,)", "(N, C, …)")),
    "sequences without length": (lambda: F.pad_sequence([np.float32(1)]), tb.ShapeError, ("pad_sequence", "()")),
    "steps of none": (lambda: F.transpose_sequence([np.float32(1)]), tb.ShapeError, ("transpose_sequence", "()")),
    "a label": (lambda: F.accuracy(X, np.array([0, 1]), "x"), TypeError, ("accuracy: ignore_label", "str")),
    "classes": (lambda: F.f1_score(X, np.array([0, 1]), -1), ValueError, ("label_num", "-1", "1 or more")),
    "no sampler": (lambda: F.negative_sampling(X, np.array([0, 1]), X, None, 2), TypeError,
                   ("negative_sampling: sampler", "None", "a function")),
    "samples": (lambda: F.negative_sampling(X, np.array([0, 1]), X, lambda shape: np.zeros(3), 2), tb.ShapeError,
                ("what sampler gave", "float64 of shape (3,)", "(2, 3)")),
    "fractions as samples": (lambda: F.negative_sampling(X, np.array([0, 1]), X, lambda shape: np.full(shape, 0.5), 2),
                             tb.ShapeError, ("what sampler gave", "float64 of shape (2, 3)")),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_refused(name: str) -> None:
    call, error, parts = CASES[name]
    with pytest.raises(error) as caught:
        call()
    assert is_complaint(caught.value) and all(part in str(caught.value) for part in parts), str(caught.value)


def test_errors_of_functions_that_users_pass_are_theirs() -> None:
    def sampler(shape: tuple[int, int]) -> np.ndarray:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="^mine$"):
        F.negative_sampling(X, np.array([0, 1]), X, sampler, 2)


def test_missing_arguments_are_pythons_own_error() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        F.leaky_relu()


def test_functions_are_pickled_by_name_and_keep_their_signature() -> None:
    assert pickle.loads(pickle.dumps(F.softmax)) is F.softmax
    assert str(inspect.signature(F.softmax)) == "(x: 'Array', axis: 'int' = 1) -> 'Variable'"
    assert F.softmax.__doc__


LINKS = {
    "Linear": lambda: L.Linear(None, 2), "Convolution2D": lambda: L.Convolution2D(None, 2, 3),
    "LSTM": lambda: L.LSTM(3), "BatchNormalization": lambda: L.BatchNormalization(3), "Scale": lambda: L.Scale(1, (3,)),
    "Bias": lambda: L.Bias(1, (3,)), "LayerNormalization": lambda: L.LayerNormalization(),
}  # fmt: skip


@pytest.mark.parametrize("wrong", [None, "x", [1.0], 3], ids=lambda x: type(x).__name__)
@pytest.mark.parametrize("name", LINKS)
def test_links_refuse_what_is_no_array(name: str, wrong: object) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        LINKS[name]()(wrong)
    assert is_complaint(caught.value), str(caught.value)


def test_errors_of_links_that_users_write_are_theirs() -> None:
    class Mine(tb.Link):
        def forward(self, x: Any) -> Any:
            return x.nothing

    with pytest.raises(AttributeError, match="^'NoneType' object has no attribute 'nothing'$"):
        Mine()(None)


def linear() -> Any:
    return L.Linear(3, 2)


def retaining(kind: type, what: str) -> None:
    class Mine(kind):
        pass

    getattr(Mine(), f"retain_{what}")(0)


OTHERS = {
    "copyparams": (lambda: linear().copyparams(None), ("copyparams: link", "NoneType", "a Link")),
    "addgrads": (lambda: linear().addgrads(X), ("addgrads: link", "ndarray", "a Link")),
    "add_persistent": (lambda: linear().add_persistent([1], 2), ("Linear: a name", "[1]", "a str")),
    "repeat": (lambda: linear().repeat(2.5), ("repeat: n_repeat", "2.5")),
    "repeated layers": (lambda: tb.Sequential(linear()).repeat(-1), ("repeat: n_repeat", "-1")),
    "addgrad": (lambda: tb.Variable(X).addgrad(X), ("addgrad", "ndarray", "a Variable")),
    "copydata": (lambda: tb.Variable(X).copydata(None), ("copydata", "NoneType", "a Variable")),
    "matmul": (lambda: tb.Variable(X) @ 3, ("matmul: b", "int 3", "a NumPy array")),
    "grad": (lambda: tb.grad(3, [tb.Variable(X)]), ("grad: outputs", "int", "a list of variables")),
    "fused": (lambda: tb.fused(3), ("fused", "int 3", "a function")),
    "using_config": (lambda: tb.using_config([1], 2).__enter__(), ("using_config: name", "[1]", "a str")),
    "update": (lambda: optimizers.SGD(0.1).setup(linear()).update(X), ("update: lossfun", "ndarray", "a function")),
    "a loss": (lambda: optimizers.SGD(0.1).setup(linear()).update(lambda: 3),
               ("update: what the loss function returned", "int", "a variable")),
    "retained inputs": (lambda: retaining(tb.FunctionNode, "inputs"), ("Mine: retain_inputs", "int 0", "a sequence")),
    "retained outputs": (lambda: retaining(tb.Function, "outputs"), ("Mine: retain_outputs", "int 0", "a sequence")),
    "clipping": (lambda: optimizers.GradientHardClipping(None, 1), ("GradientHardClipping: lower_bound", "NoneType")),
    "Constant": (lambda: initializers.Constant("x"), ("Constant: fill_value", "'x'", "a number")),
    "seed": (lambda: BatchIterator(X, 2, seed=np.ones((2, 3), int)), ("BatchIterator: seed", "ndarray")),
    "epoch_order": (lambda: epoch_order(4, np.ones((2, 3), int), 0), ("epoch_order: seed", "ndarray")),
    "save_npz": (lambda: serializers.save_npz(1, linear()), ("file", "int 1", "a path")),
    "load_npz": (lambda: serializers.load_npz(None, linear()), ("file", "None", "a path")),
    "ignore_names": (lambda: serializers.NpzDeserializer({}, ignore_names=3), ("ignore_names", "3", "a list")),
    "write_npz": (lambda: serializers.write_npz("x.npz", [X]), ("write_npz: arrays", "list", "a dict")),
    "function to check": (lambda: gradient_check.check_backward(3, X, X), ("check_backward: func", "int 3")),
    "parameters to check": (lambda: gradient_check.check_backward(F.tanh, X, X, X),
                            ("check_backward: params", "ndarray", "a list of variables")),
    "tolerance": (lambda: gradient_check.check_backward(F.tanh, X, X, atol="x"), ("check_backward: atol", "'x'")),
    "Autodiff": (lambda: tb.Autodiff(3.0, None), ("Autodiff: be", "NoneType", "the backend")),
    "axis of a user kernel": (lambda: tb.reduction("T x", "T y", "x", "a + b", "y = a", "0", "total")(X, axis={}),
                              ("axis",)),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_other_names_refuse_what_they_do_not_take(name: str) -> None:
    call, parts = OTHERS[name]
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    assert is_complaint(caught.value) and all(part in str(caught.value) for part in parts), str(caught.value)
