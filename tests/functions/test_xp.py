# SPDX-License-Identifier: Apache-2.0
"""Layer code that is written once: the array module of a backend, and tensors that behave as NumPy's arrays."""

from __future__ import annotations

import math

import numpy as np
import pytest

import tensorbackend as tb
import tensorbackend.functions as F
from tensorbackend import dtypes, testing
from tensorbackend.errors import ShapeError
from tensorbackend.function import arrays

pytestmark = pytest.mark.rehearsed

A = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
B = np.array([[0.5, -1.0, 2.0], [1.5, 0.0, -2.5]], np.float32)
RECIPES = {
    "operators": lambda xp, a, b: (a + b) * 2 - a / (b + 4) + a**2 - 1,
    "comparison": lambda xp, a, b: (a > b) * 1.0 + (a != b),
    "matmul": lambda xp, a, b: a @ b.T,
    "matmul of vectors": lambda xp, a, b: a @ b[0] + a[:, 0] @ a @ b[1],
    "floor and rest": lambda xp, a, b: a // 2 + a % 2,
    "unary": lambda xp, a, b: -a + abs(b),
    "methods": lambda xp, a, b: a.sum(axis=0) + b.mean(0) + a.max() - b.min(axis=1).sum() + a.var() + a.prod(0),
    "ddof": lambda xp, a, b: (
        xp.var(a, ddof=1) + b.std(0, ddof=1) + xp.std(b, (0, 1), None, None, 1) + a.var(1, ddof=3)[0]
    ),
    "of one element": lambda xp, a, b: xp.var(a[:1], 0, ddof=1) + a[:1].std(0, keepdims=True, ddof=2),
    "from a value on": lambda xp, a, b: (
        a.sum(0, initial=2) + xp.prod(b, 0, initial=3) + a.max(initial=9) + xp.min(b, axis=0, initial=-1, keepdims=True)
    ),
    "from a value on, of nothing": lambda xp, a, b: a[:0].max(0, initial=9) + xp.min(a[:, :0], initial=-1) + a[0],
    "in C's order": lambda xp, a, b: (
        xp.reshape(a, (3, 2), order="C").ravel("C") + a.T.reshape(6, order="C") + b.flatten("C")
    ),
    "places": lambda xp, a, b: xp.where(a > 2)[0] + xp.where(b > 1.9)[1].sum(),
    "copy": lambda xp, a, b: xp.copy(a) + xp.copy([1, 2, 3]),
    "divmod": lambda xp, a, b: xp.divmod(a, 4)[0] + xp.divmod(b, a)[1],
    "keepdims": lambda xp, a, b: a / a.sum(axis=1, keepdims=True),
    "positions": lambda xp, a, b: b.argmax(axis=1) + b.argmin(1),
    "astype": lambda xp, a, b: b.astype(xp.int32).astype("float64"),
    "reshape": lambda xp, a, b: a.T.reshape(-1) + b.reshape(3, 2).ravel() + b.T.ravel(),
    "transpose": lambda xp, a, b: a.reshape(1, 2, 3).transpose(2, 0, 1).squeeze() + b.T,
    "dot": lambda xp, a, b: a.dot(b.T) + xp.dot(a, b.T) + xp.dot(2, 3),
    "elementwise": lambda xp, a, b: xp.exp(-a) + xp.log(a) + xp.sqrt(a) + xp.tanh(b) + xp.sin(a) * xp.cos(b),
    "more": lambda xp, a, b: xp.log1p(a) + xp.expm1(b) + xp.square(b) + xp.abs(b) + xp.sign(b),
    "two": lambda xp, a, b: xp.maximum(a, b) + xp.minimum(a, 2) + xp.where(a > 2, a, b) + xp.clip(b, -1, 1),
    "reductions": lambda xp, a, b: xp.sum(a, axis=(0, 1)) + xp.mean(a) + xp.var(b, axis=0) + xp.max(a, axis=0),
    "truth": lambda xp, a, b: xp.all(a > 0) * 1.0 + xp.any(b > 9) + xp.isnan(a).sum() + xp.isfinite(a).sum(),
    "concatenate": lambda xp, a, b: xp.concatenate([a, b], axis=1) + xp.concatenate((a, b, a))[:2, :1],
    "concatenate all": lambda xp, a, b: xp.concatenate([a.T, b[0], b.sum()[None]], axis=None),
    "stack": lambda xp, a, b: xp.stack([a, b], axis=1),
    "expand": lambda xp, a, b: xp.expand_dims(a, 1) + xp.squeeze(b[:, xp.newaxis, :], 1) + a[:, None],
    "expand twice": lambda xp, a, b: xp.expand_dims(a, (0, -2)) + xp.expand_dims(b[0], [0]),
    "broadcast": lambda xp, a, b: xp.broadcast_to(a[0], (4, 3)) * 1,
    "makers": lambda xp, a, b: xp.zeros((2, 3)) + xp.ones_like(a) + xp.full((3,), 2.0) + xp.eye(2, 3),
    "eye": lambda xp, a, b: xp.eye(3, k=1) + xp.eye(3, 3, -2) + xp.eye(3),
    "eyes": lambda xp, a, b: xp.concatenate(
        [xp.eye(n, m, k).ravel() for n in (0, 1, 3) for m in (None, 0, 1, 4) for k in range(-4, 6)]
    ),
    "moveaxis": lambda xp, a, b: xp.moveaxis(a[None], (0, -1), (2, 0)) + xp.moveaxis(b, 0, 1)[None, 0, :, None],
    "arange": lambda xp, a, b: a[xp.arange(2), xp.arange(2)] + xp.arange(2),
    "array": lambda xp, a, b: xp.array([1, 2, 3]) + xp.asarray(a),
    "cumsum": lambda xp, a, b: xp.cumsum(a, axis=1) + a.cumsum(0),
    "cumprod": lambda xp, a, b: xp.cumprod(a, axis=1) + xp.cumprod(a)[-1],
    "sort": lambda xp, a, b: xp.sort(b, axis=0) + xp.sort(a - 2 * b) + xp.sort(b, None)[:3],
    "argsort": lambda xp, a, b: xp.argsort(b) + xp.argsort(b % 2, axis=0) + xp.argsort(-a, axis=None)[3:],
    "pad": lambda xp, a, b: xp.pad(a, ((1, 0), (0, 2)), "constant", constant_values=7),
    "tensordot": lambda xp, a, b: xp.tensordot(a, b, axes=([1], [1])) + xp.tensordot(a, b.T, 1),
    "tensordot by NumPy's integers": lambda xp, a, b: (
        xp.tensordot(a, b, (np.int64(1),) * 2) + xp.tensordot(a, b.T, np.int8(1))
    ),
    "einsum jacobian": lambda xp, a, b: xp.einsum("ij,ik->ijk", a, b),
    "einsum contraction": lambda xp, a, b: xp.einsum("ik,ikj->ij", a, xp.einsum("ij,ik->ijk", a, b)),
    "einsum rows": lambda xp, a, b: xp.einsum("ijk,ijl->kl", a[None], b[None]),
    "einsum product": lambda xp, a, b: xp.einsum("ij,ik->jk", a, b) + xp.einsum("ijl,kl->ijk", a[None], b).sum(),
    "einsum back": lambda xp, a, b: xp.einsum("ik,jk", a, b),
    "einsum, optimised": lambda xp, a, b: xp.einsum("ij,kj->ik", a, b, optimize=True),
    "einsum diagonal": lambda xp, a, b: xp.einsum("ii->i", a @ b.T) + xp.einsum("ij->", a),
    "swap": lambda xp, a, b: xp.swapaxes(a, 0, 1) + xp.moveaxis(b, 0, 1) + xp.transpose(a),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", RECIPES)
def test_code_written_once_gives_what_numpy_gives(name, be) -> None:
    xp = np if be is None else be.xp
    expected = RECIPES[name](np, A, B)
    found = RECIPES[name](xp, xp.array(A), xp.array(B))
    assert found.shape == np.shape(expected)
    testing.assert_allclose(found, expected)


@pytest.mark.parametrize("dtype", dtypes.FLOATS, ids=str)
def test_nan_is_sorted_last(be, dtype) -> None:
    if be is None:
        pytest.skip("NumPy leaves NaN of bfloat16 anywhere")
    x = be.xp.array(np.array([3, np.nan, -1, -np.nan, np.inf, -1]), dtype)
    testing.assert_allclose(be.xp.sort(x), np.array([-1, -1, 3, np.inf, np.nan, np.nan]))
    assert be.xp.sort(x).dtype == dtype
    assert be.xp.argsort(x).get().tolist() == [2, 5, 0, 4, 1, 3]


@pytest.fixture
def xp(be):
    """The array module of the test's arrays."""
    return np if be is None else be.xp


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric", "wrap"])
def test_padding_is_numpys(mode, xp) -> None:
    random = np.random.RandomState(len(mode))
    for dtype in (np.float32, np.int16, np.bool_, np.float16):
        for _ in range(4):
            x = random.randint(0, 99, random.randint(1, 5, random.randint(1, 4))).astype(dtype)
            for widths in (random.randint(0, 8, (x.ndim, 2)), random.randint(0, 3, 2).tolist(), 3, 0):
                found, expected = xp.pad(xp.array(x), widths, mode), np.pad(x, widths, mode)
                assert found.dtype == dtype and found.shape == expected.shape
                assert (arrays.to_cpu(found) == expected).all()
    kept = xp.array(A)
    padded = xp.pad(kept, 0, mode)
    padded += 1
    assert (arrays.to_cpu(kept) == A).all()


@pytest.mark.parametrize(
    ("shape", "widths", "mode", "text"),
    [
        ((2, 3), 1, "mean", "pad: mode\n.*'mean'\n.*reflect"),
        ((2, 3), -1, "edge", "pad: widths\n.*-1\n.*0 or more"),
        ((2, 3), (1, 2, 3), "constant", "pad: widths\n.*\n.*or 2 pairs"),
        ((2, 0), 1, "reflect", r"pad: reflect of no entries\n.*\(2, 0\)"),
    ],
)
def test_padding_that_cannot_be_is_refused(shape, widths, mode, text, be) -> None:
    with pytest.raises(ValueError, match=text):
        F.pad(np.ones(shape), widths, mode)
    if be is not None:
        with pytest.raises(ValueError, match=text):
            be.xp.pad(np.ones(shape), widths, mode)


def test_arrays_change_in_place(xp) -> None:
    a = xp.array(A)
    alias, row = a, a[1]
    a += 1
    a *= xp.array(B)
    a[:, 0] -= 5
    a /= 2
    expected = (A + 1) * B
    expected[:, 0] -= 5
    expected /= 2
    assert alias is a
    testing.assert_allclose(a, expected)
    testing.assert_allclose(row, expected[1])


@pytest.mark.parametrize("key", [np.s_[:], np.s_[:, 0], 1, np.s_[:, ::-2], np.s_[0:0]], ids=str)
@pytest.mark.parametrize("shape", [(1,), (3,), (2,), (2, 1), (1, 3), (2, 3), (1, 2, 3), (3, 2), (6,), (0, 3)], ids=str)
def test_host_values_are_broadcast_as_numpy_does_it(key, shape, xp) -> None:
    values = np.arange(1, 1 + math.prod(shape)).reshape(shape)
    expected, a = A.copy(), xp.array(A)
    try:
        expected[key] = values
    except ValueError:
        with pytest.raises(ValueError):
            a[key] = values
    else:
        a[key] = values
    testing.assert_allclose(a, expected)


def test_a_list_is_broadcast_where_it_is_assigned(xp) -> None:
    a = xp.array(A)
    a[:] = [7, 8, 9]
    testing.assert_allclose(a, np.array([[7, 8, 9]] * 2, np.float32))


@pytest.mark.parametrize("values", [[7, 8, 9], [[7], [8]], A * 2], ids=["row", "column", "whole"])
def test_full_of_an_array_is_broadcast(values, xp) -> None:
    given = np.asarray(values, np.float32)
    for of in (given, xp.array(given)):
        testing.assert_allclose(xp.full((2, 3), of, np.float32), np.full((2, 3), given))
        testing.assert_allclose(xp.full_like(xp.array(A), of), np.full((2, 3), given))
    with pytest.raises(ValueError):
        xp.full((2, 3), np.ones((3, 2)))


def test_lists_and_numbers_are_taken_for_arrays(xp) -> None:
    listed = A.astype(np.int64).tolist()
    for like in (xp.zeros_like, xp.ones_like, xp.empty_like, lambda a: xp.full_like(a, 7)):
        assert [(like(a).shape, like(a).dtype) for a in (listed, 3)] == [((2, 3), np.int64), ((), np.int64)]
    for moved in (xp.swapaxes(listed, 0, 1), xp.moveaxis(listed, 0, 1)):
        testing.assert_allclose(moved, A.T)
    assert xp.broadcast_to([5], 4).shape == (4,)
    assert sorted(int(n) for n in xp.random.permutation([7, 8, 9])) == [7, 8, 9]


@pytest.mark.parametrize("number", [np.float64(2), np.float32(2), np.int64(2), 2.0], ids=repr)
def test_numpys_scalars_change_no_type(number, be, xp) -> None:
    """Those of NumPy's arrays they do."""
    for dtype in ("float16", "float32"):
        x = xp.ones((2, 3), dtype=dtype)
        made = [x * number, number - x, x**number, xp.multiply(x, number), xp.maximum(number, x)]
        made.append(xp.where(x > 0, x, number))
        assert {y.dtype for y in made} == {x.dtype if be is not None else np.result_type(x, number)}


def test_a_diagonal_is_added_to(xp) -> None:
    a, places = xp.zeros((2, 3, 3)), xp.arange(3)
    a[:, places, places] += xp.array(A)
    a[:, places, places] += 1
    expected = np.zeros((2, 3, 3))
    expected[:, np.arange(3), np.arange(3)] = A + 1
    testing.assert_allclose(a, expected)


@pytest.mark.parametrize("wanted", ["float16", "float64"])
def test_an_array_of_another_type_is_not_taken_as_it_is(wanted, xp) -> None:
    a = xp.array(A)
    for dtype in (wanted, np.dtype(wanted), getattr(np, wanted)):  # NumPy takes the type float64 for None
        for make in (xp.asarray, xp.ascontiguousarray):
            made = make(a, dtype)
            assert (made.dtype, make(made, dtype).dtype) == (np.dtype(wanted),) * 2
            testing.assert_allclose(made, A)


def test_results_have_memory_of_their_own(xp) -> None:
    a = xp.array(A)
    b = a * 2
    c = b + 1
    b[:] = 0
    a += 100
    testing.assert_allclose(c, A * 2 + 1)


@pytest.mark.parametrize("axis", [4, -5])
@pytest.mark.parametrize(
    "call",
    [
        lambda xp, x, axis: xp.squeeze(x, axis),
        lambda xp, x, axis: xp.squeeze(x[0, 0, 0], axis),
        lambda xp, x, axis: xp.expand_dims(x, axis),
        lambda xp, x, axis: xp.moveaxis(x, axis, 0),
        lambda xp, x, axis: xp.moveaxis(x, 0, axis),
        lambda xp, x, axis: xp.swapaxes(x, axis, 0),
        lambda xp, x, axis: xp.concatenate([x, x], axis),
        lambda xp, x, axis: xp.stack([x, x], axis),
        lambda xp, x, axis: xp.tensordot(x, x, ([axis], [0])),
    ],
)
def test_an_axis_out_of_range_is_no_other_axis(call, axis, xp) -> None:
    with pytest.raises((ValueError, IndexError), match="axis|index"):
        call(xp, xp.ones((1, 1, 1)), axis)


def test_stack_names_itself() -> None:
    be = tb.Backend.allocate_backend("cpu", jit=False)
    with pytest.raises(ShapeError, match="^stack: no such axis[\\s\\S]*rank 3"):
        be.xp.stack([be.ones((2, 3)), np.ones((2, 3))], 3)
    with pytest.raises(TypeError, match="^stack: no inputs"):
        F.stack([])


def test_what_does_not_go_together_is_not_concatenated(xp) -> None:
    for given in ([], [xp.ones((2, 3)), xp.ones(3)]):
        with pytest.raises(ValueError, match="concatenat|dimension"):
            xp.concatenate(given, 1)


@pytest.mark.parametrize(
    ("types", "kind"),
    [(("bfloat16", "int32"), "bfloat16"), (("float16", "bfloat16"), "float32"), (("uint8", "int8"), "int16")],
)
def test_arrays_are_concatenated_as_they_promote(types, kind, be) -> None:
    if be is None:  # NumPy has rules of its own
        return
    parts = [be.xp.ones(2, dtype) for dtype in types]
    whole = be.xp.concatenate(parts)
    assert whole.dtype.name == kind == sum(parts).dtype.name
    assert whole.tolist() == [1, 1, 1, 1]


def test_masks_and_places_pick_copies(xp) -> None:
    a = xp.array(A)
    picked = a[a > 2]
    picked += 100
    rows = a[[1, 0, 1]]
    rows *= 0
    testing.assert_allclose(a, A)
    a[a > 4] = 0
    testing.assert_allclose(a, np.where(A > 4, 0, A))


def test_numbers_of_single_elements(xp) -> None:
    a = xp.array([3])
    assert int(a[0]) == 3 and bool(a[0] == 3) and float(a[0]) == 3.0 and [10, 20, 30, 40][a[0]] == 40
    with pytest.raises(ValueError):
        bool(xp.array(A))


def test_random_numbers_are_drawn_at_the_call(xp) -> None:
    mask = xp.random.rand(3, 4)
    testing.assert_allclose(mask + 0, mask * 1)
    assert mask.shape == (3, 4) and float(mask.min()) >= 0 and float(mask.max()) < 1
    assert not bool((mask == xp.random.rand(3, 4)).all())
    assert xp.random.normal(2.0, 0.5, size=(5,)).shape == (5,) and xp.random.randn(2).shape == (2,)
    whole = xp.random.randint(2, 5, size=(100,))
    assert whole.dtype == np.int64 and int(whole.min()) == 2 and int(whole.max()) == 4
    assert sorted(np.asarray(xp.random.permutation(4)).tolist()) == [0, 1, 2, 3]
    assert 3 <= float(xp.random.uniform(3, 4)) < 4


@pytest.mark.parametrize("low, high", [(-(2**63), 2**63), (0, 2**40), (2**60, 2**60 + 5), (-(2**55), 3 - 2**55)])
def test_random_integers_of_large_ranges(low, high, xp) -> None:
    drawn = xp.random.randint(low, high, size=(400,), dtype=np.int64).tolist()
    assert all(low <= n < high for n in drawn)
    assert len(set(drawn)) == min(high - low, 400)
    assert {n % 2 for n in drawn} == {0, 1}


@pytest.mark.parametrize("low, high, dtype", [(0, 257, "uint8"), (-1, 3, "uint64"), (0, 2**31 + 1, "int32")])
def test_random_integers_that_the_type_lacks_are_refused(low, high, dtype, xp) -> None:
    assert int(xp.random.randint(255, 256, dtype="uint8")) == 255
    with pytest.raises(ValueError):
        xp.random.randint(low, high, 5, dtype=dtype)


def test_the_module_of_arguments(be, array) -> None:
    expected = np if be is None else be.xp
    x = array([1.0])
    for arguments in ((x,), (tb.Variable(x), None), (2.0, x)):
        assert tb.get_array_module(*arguments) is expected
    assert tb.get_array_module(1.0, None) is np
    assert tb.Variable(x).xp is expected


# ExpAdd in four forms


class NewSplit(tb.FunctionNode):
    """exp(x) + exp(y), with a forward for each device."""

    def forward_cpu(self, inputs):
        self.retain_inputs((0, 1))
        x, y = inputs
        return (np.exp(x) + np.exp(y),)

    def forward_gpu(self, inputs):
        self.retain_inputs((0, 1))
        xp = tb.get_array_module(*inputs)
        x, y = inputs
        return (xp.exp(x) + xp.exp(y),)

    def backward(self, target_input_indexes, grad_outputs):
        x, y = self.get_retained_inputs()
        (gz,) = grad_outputs
        return gz * F.exp(x), gz * F.exp(y)


class NewUnified(tb.FunctionNode):
    """exp(x) + exp(y), written once."""

    forward = NewSplit.forward_gpu
    backward = NewSplit.backward


class OldSplit(tb.Function):
    """exp(x) + exp(y), in the old style."""

    def forward_cpu(self, inputs):
        x, y = inputs
        return (np.exp(x) + np.exp(y),)

    def backward_cpu(self, inputs, grad_outputs):
        x, y = inputs
        (gz,) = grad_outputs
        return gz * np.exp(x), gz * np.exp(y)

    def forward_gpu(self, inputs):
        xp = tb.get_array_module(*inputs)
        x, y = inputs
        return (xp.exp(x) + xp.exp(y),)

    def backward_gpu(self, inputs, grad_outputs):
        xp = tb.get_array_module(*inputs)
        x, y = inputs
        (gz,) = grad_outputs
        return gz * xp.exp(x), gz * xp.exp(y)


class OldUnified(tb.Function):
    """exp(x) + exp(y), in the old style, written once."""

    forward = OldSplit.forward_gpu
    backward = OldSplit.backward_gpu


@pytest.mark.parametrize("form", [NewSplit, NewUnified, OldSplit, OldUnified])
def test_expadd_in_four_forms(form, array) -> None:
    x, y = tb.Variable(array(A)), tb.Variable(array(B))
    z = form().apply((x, y))[0] if issubclass(form, tb.FunctionNode) else form()(x, y)
    z.grad = array(A)
    z.backward()
    testing.assert_allclose(z, np.exp(A) + np.exp(B), rtol=1e-5)
    testing.assert_allclose(x.grad, A * np.exp(A), rtol=1e-5)
    testing.assert_allclose(y.grad, A * np.exp(B), rtol=1e-5)


class UserDropout(tb.Function):
    """Dropout as a user writes it."""

    def forward(self, inputs):
        (x,) = inputs
        if not tb.config.train:
            return (x,)
        xp = tb.get_array_module(x)
        self.mask = ((xp.random.rand(*x.shape) >= 0.5) * 2.0).astype(x.dtype)
        return (x * self.mask,)

    def backward(self, inputs, grad_outputs):
        return (grad_outputs[0] * self.mask,)


def test_a_dropout_written_by_a_user(array, host) -> None:
    x = tb.Variable(array(np.ones((40, 40))))
    y = UserDropout()(x)
    F.sum(y).backward()
    assert (host(x.grad) == host(y)).all() and 0.9 < host(y).mean() < 1.1 and y.dtype == np.float32
    with tb.using_config("train", False):
        assert (host(UserDropout()(x)) == 1).all()


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        (lambda xp, a: xp.roll(a, "x"), ("roll: ", "float32 (3,), 'x'", "roll(a", "shift")),
        (lambda xp, a: xp.einsum(3, a), ("einsum: ", "3, float32 (3,)", "einsum(")),
        (lambda xp, a: xp.may_share_memory(a, 3), ("may_share_memory: ", "float32 (3,), 3")),
        (lambda xp, a: xp.stack(3), ("stack: ", "given     3", "stack(")),
        (lambda xp, a: xp.median(a, axis=7), ("median: ", "float32 (3,), axis=7", "median(")),
        (lambda xp, a: xp.random.randint("a", 5, (2,)), ("randint: ", "'a', 5, (2,)", "randint(low")),
        (
            lambda xp, a: xp.sum(a, where=1),
            ("sum: got an unexpected keyword argument 'where'", "where=1", "sum(a", "initial"),
        ),
        (lambda xp, a: xp.max(a, 0, nan=1), ("max: got an unexpected keyword argument 'nan'", "max(a", "keepdims")),
        (lambda xp, a: xp.copy(a).sum(where=1), ("sum() got an unexpected keyword argument 'where'",)),
        (lambda xp, a: xp.einsum("i", a, fast=1), ("einsum: got an unexpected keyword argument 'fast'", "optimize")),
        (lambda xp, a: xp.reshape(a, -1, order="F"), ("reshape: order of the elements", "'F'", "'C'")),
        (lambda xp, a: xp.copy(a).ravel("F"), ("ravel: order of the elements", "'F'", "'C'")),
        (lambda xp, a: xp.where(a > 1, a), ("where: one of x and y", "both, or neither")),
        (lambda xp, a: xp.std(a, ddof="x"), ("std: ddof", "'x'", "a number")),
        (lambda xp, a: xp.copy(a).max(initial=[1]), ("max: initial", "[1]", "a number")),
        (lambda xp, a: xp.tril(a, "x"), ("tril: ", "float32 (3,), 'x'", "tril(")),
    ],
)
def test_errors_from_inside_say_what_was_given_and_what_the_function_takes(call, parts) -> None:
    be = tb.Backend.allocate_backend("cpu", jit=False)
    with pytest.raises((TypeError, ValueError)) as caught:
        call(be.xp, be.ones(3, min_dims=0))
    assert all(part in str(caught.value) for part in parts), str(caught.value)
    with pytest.raises(TypeError, match="missing 2 required positional arguments"):
        be.xp.roll()
    be.cleanup_backend()


def test_elementwise_functions_take_out_by_its_place_and_no_more(xp) -> None:
    if xp is np:
        pytest.skip("NumPy's own")
    a, out = xp.array([0.13, -0.26, 1.37], dtype="float32"), xp.zeros(3, dtype="float32")
    assert xp.exp(a, out) is out
    np.testing.assert_allclose(out.get(), np.exp(a.get()), rtol=1e-6)
    assert xp.maximum(a, 0, out) is out and out.get().min() == 0
    with pytest.raises(TypeError, match="1 operands"):
        xp.exp(a, 1, 2, 3)
    with pytest.raises(TypeError, match="2 operands"):
        xp.add(a)
    with pytest.raises(TypeError, match="a tensor"):
        xp.exp(a, 5)


def test_rounding_to_decimals(xp) -> None:
    if xp is np:
        pytest.skip("NumPy's own")
    values = np.array([0.126, -2.65, 13.78, 1250.0], np.float32)
    for decimals in (0, 1, 2, -2):
        np.testing.assert_allclose(xp.round(xp.array(values), decimals).get(), np.round(values, decimals), rtol=1e-6)
    with pytest.raises(ValueError, match="decimals of integers"):
        xp.round(xp.array([1, 2]), 1)
