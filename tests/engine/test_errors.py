# SPDX-License-Identifier: Apache-2.0
"""What is refused: the type of each error, that it names what was given and expected, and that nothing was written."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import tensorbackend
from tensorbackend import Backend, BackendError, DTypeError, ShapeError, testing


def read_only(be: Any) -> Any:
    """A tensor that must not be written: on read-only host memory, where the backend's memory is the host's."""
    if be.device_type == 0:
        return be.view(np.broadcast_to(np.float32(7), (3, 4)))
    tensor = be.full((3, 4), 7)
    tensor.storage.writable = False
    return tensor


@dataclass
class Bench:
    """A backend, another one, and tensors to do something wrong with."""

    be: Any
    other: Any
    t: Any = field(init=False)
    u: Any = field(init=False)
    n: Any = field(init=False)
    flat: Any = field(init=False)
    foreign: Any = field(init=False)
    cube: Any = field(init=False)
    frozen: Any = field(init=False)

    def __post_init__(self) -> None:
        be = self.be
        self.t = be.array(np.arange(12.0).reshape(3, 4), name="t")
        self.u = be.array(np.ones((2, 4)))
        self.n = be.array([[1, 2, 3]], dtype=np.int8)
        self.flat = be.array(np.arange(4.0), min_dims=0)
        self.cube = be.array(np.arange(24.0).reshape(2, 3, 4))
        self.foreign = self.other.ones((3, 4))
        self.frozen = read_only(be)

    def values(self) -> list[np.ndarray]:
        """All numbers of all tensors."""
        return [x.get() for x in (self.t, self.u, self.n, self.flat, self.cube, self.foreign, self.frozen)]


@pytest.fixture
def bench(backend: Backend) -> Any:
    """A bench on `backend`, with a second backend that is closed afterwards."""
    other = Backend.allocate_backend("cpu", jit=False)
    yield Bench(backend, other)
    other.cleanup_backend()


Call = Callable[[Bench], Any]
CASES: dict[str, tuple[Call, type[Exception], tuple[str, ...]]] = {}


def refused(name: str, call: Call, error: type[Exception], *parts: str) -> None:
    """A case: `call` raises `error`, whose text contains all `parts`."""
    CASES[name] = call, error, parts


def gradients(b: Bench) -> Any:
    """Gradients of squares of `b.t`."""
    return tensorbackend.Autodiff(b.t * b.t, b.be)


def steps(b: Bench, before: Any) -> None:
    """One step of a recurrent layer of three units, after the given states."""
    be = b.be
    be.compound_rnn_unroll_fprop(be.ones((3, 3)), before, [b.t], [b.t], be.ones((3, 1)), 3, 1, None, be.tanh)


class Layer:
    """A layer that fills `b.t`, whatever is asked of it."""

    def __init__(self, b: Bench) -> None:
        self.b = b

    def fprop(self, *args: Any, **kwargs: Any) -> None:
        self.b.t.fill(0)

    bprop = allocate = fprop


def merged(b: Bench, method: str, layers: Any, scale: Any = 1.0) -> None:
    """A call of a container of layers, of which the last is called first on the way back."""
    if method == "bprop_mergebroadcast":
        betas = [0.0] * len(layers)
        try:
            b.be.bprop_mergebroadcast(None, layers, layers, b.t, b.u, (3,), 1.0, 0.5, [scale] * len(layers), betas)
        finally:
            assert betas == [0.0] * len(layers)
    elif method == "bprop_mergesum":
        b.be.bprop_mergesum(None, scale, 0.0, layers, b.t, b.u)
    elif method == "fprop_mergesum":
        b.be.fprop_mergesum(None, b.t, False, layers, b.u, (3,))
    else:
        b.be.fprop_mergebroadcast(None, b.t, False, b.u, layers, (3,))


def buffer(b: Bench, size: Any) -> None:
    """A buffer of activations of a backend with a batch size."""
    b.other.bsz = 4
    try:
        b.other.iobuf(size)
    finally:
        b.other.bsz = None


def regions(b: Bench, images: Any) -> None:
    """One region of one map of 3 x 4, pooled into one number."""
    be = b.be
    be.roipooling_fprop(images, be.ones((1, 5)), be.empty((1, 1)), be.empty((1, 1), np.int32), 1, 1, 3, 4, 1, 1, 1.0)


def write(b: Bench, key: Any, value: Any) -> None:
    """`b.t[key] = value`, as an expression."""
    b.t[key] = value


ALL = slice(None)

# Shapes

refused("add", lambda b: b.t + b.u, ShapeError, "add", "(3, 4)", "(2, 4)", "expected")
refused("assign a tensor", lambda b: write(b, ALL, b.u), ShapeError, "(2, 4)", "(3, 4)")
refused("assign a tree", lambda b: write(b, ALL, b.u * 2), ShapeError, "(2, 4)", "(3, 4)")
refused("assign more axes", lambda b: write(b, ALL, b.cube[:, :, :]), ShapeError, "(2, 3, 4)", "(3, 4)")
refused("assign rows under an axis", lambda b: write(b, ALL, b.cube[:1, :2]), ShapeError, "(2, 4)", "(3, 4)")
refused("assign columns under an axis", lambda b: write(b, (ALL, slice(2)), b.cube[:1] * 2), ShapeError, "(3, 2)")
refused("assign many under an axis", lambda b: write(b, (0, 0), b.be.sum(b.cube, axis=0)), ShapeError, "(1, 1)")
refused("assign an array", lambda b: write(b, ALL, np.ones((4, 4))), ShapeError, "(4, 4)", "12 elements")
refused("assign a list", lambda b: write(b, 0, [1, 2, 3]), ShapeError, "(3,)", "4 elements")
refused("set", lambda b: b.t.set(np.ones(11)), ShapeError, "(11,)", "12 elements")
refused("fancy assign", lambda b: write(b, [0, 1], np.ones((3, 4))), ShapeError, "(3, 4)", "(2, 4)")
refused("out", lambda b: b.be.add(b.u, 1, out=b.t), ShapeError, "(2, 4)", "(3, 4)")
refused("where", lambda b: b.be.where(b.t, b.u, b.t), ShapeError, "where", "(2, 4)")
refused("reshape", lambda b: b.t.reshape(5, 5), ShapeError, "(3, 4)", "12 elements", "(5, 5)")
refused("reshape two unknowns", lambda b: b.t.reshape(-1, -1), ShapeError, "(3, 4)", "(-1, -1)")
refused("reshape a transpose", lambda b: b.t.T.reshape(12), ShapeError, "strides", "be.copy")
refused("share", lambda b: b.t.share((4, 4)), ShapeError, "48", "64", "(4, 4)")
refused("dimension_reorder", lambda b: b.t.dimension_reorder((0, 0)), ShapeError, "(0, 0)", "each axis once")
refused("dimension_reorder by a number", lambda b: b.t.dimension_reorder(1), TypeError, "dimension_reorder", "1")
refused("item", lambda b: b.t.item(), ShapeError, "(3, 4)", "one element")
refused("broadcast", lambda b: b.be.broadcast_to(b.t, (2, 4)), ShapeError, "(3, 4)", "(2, 4)")
refused("broadcast down", lambda b: b.be.broadcast_to(b.cube, (3, 4)), ShapeError, "(2, 3, 4)", "(3, 4)")
refused("1-D array", lambda b: b.t + np.ones(4), ShapeError, "(4,)", "(1, 4)", "(4, 1)", "reshape")
refused("array before tensor", lambda b: np.ones(4) + b.t, ShapeError, "(4,)", "(1, 4)", "(4, 1)")
refused("0-D of nothing", lambda b: b.be.max(b.be.zeros((0, 3))), ShapeError, "(0, 3)", "length > 0")
refused("argmin of nothing", lambda b: b.be.argmin(b.be.zeros((3, 0)), axis=1), ShapeError, "(3, 0)")
refused("flexible", lambda b: b.be.evaluate(b.be.rand()), ShapeError, "rand", "combine it with a tensor")
refused("lengths of random numbers", lambda b: b.be.rand((2, 3)), TypeError, "rand: out", "tuple", "shape=(2, 3)")
refused("lengths of normal numbers", lambda b: b.be.randn(2, 3), TypeError, "randn: out", "int", "shape=(2, 3)")
refused("flexible reduction", lambda b: b.be.sum(b.be.rand()), ShapeError, "sum", "not known")
refused("flexible transpose", lambda b: b.be.rand().T, ShapeError, "ndim", "not known")
refused("flexible ndim", lambda b: (b.be.rand() + 1).ndim, ShapeError, "ndim", "not known")
refused("flexible size", lambda b: b.be.onehot(b.n, 0).size, ShapeError, "size", "not known")
refused("flexible length", lambda b: len(b.be.onehot(b.n, 0)), ShapeError, "len", "not known")
refused("flexible tree", lambda b: tensorbackend.Autodiff(b.be.rand() * 2, b.be), ShapeError, "Autodiff", "not known")
refused("flexible onehot", lambda b: b.be.evaluate(b.be.onehot(b.n, 0)), ShapeError, "not known")
refused("onehot of a matrix", lambda b: b.be.onehot(b.be.zeros((2, 3), dtype=int), 0), ShapeError, "(2, 3)", "(1, n)")
refused("negative length", lambda b: b.be.zeros((2, -1)), ShapeError, "(2, -1)", "0 or more")
refused("rank 17", lambda b: b.be.zeros((1,) * 17), ShapeError, "17", "16")
refused("rank by new axes", lambda b: b.t[(None,) * 15], ShapeError, "17", "16")
refused("rank by reshape", lambda b: b.t.reshape((1,) * 15 + (3, 4)), ShapeError, "17", "16")
refused("fractional length", lambda b: b.be.empty((2.5, 3)), TypeError, "(2.5, 3)", "int")
refused("ragged list", lambda b: b.be.array([[1, 2], [3]]), ShapeError, "equal length")
refused("assign a ragged list", lambda b: write(b, ALL, [[1, 2], [3]]), ShapeError, "equal length")
refused("stretched target", lambda b: b.be.broadcast_to(b.t[:1], (3, 4)).fill(1), ValueError, "strides", "be.copy")

refused("fractional reshape", lambda b: b.t.reshape(2.0, 6), TypeError, "(2.0, 6)", "int")

# Axes

for _name in ("sum", "prod", "max", "min", "argmax", "argmin", "any", "all", "mean", "var", "std"):
    refused(f"{_name} axis", lambda b, f=_name: getattr(b.be, f)(b.t, axis=2), ShapeError, "axis=2", "-2 to 1")
refused("axis twice", lambda b: b.be.sum(b.t, axis=(0, -2)), ShapeError, "(0, -2)", "once")
refused("axis by name", lambda b: b.be.sum(b.t, axis="rows"), ShapeError, "'rows'", "int")
refused("take axis", lambda b: b.be.take(b.t, [0], 5), ShapeError, "axis=5", "-2 to 1")
refused("cumsum axis", lambda b: b.be.cumsum(b.t, -3), ShapeError, "axis=-3", "-2 to 1")
refused("broadcast to a negative length", lambda b: b.be.broadcast_to(b.t, (-1, 3, 4)), ShapeError, "-1, 3, 4", "0 or")
refused("broadcast of a tree", lambda b: b.be.broadcast_to(b.t + 1, (-1, 3, 4)), ShapeError, "-1, 3, 4", "0 or more")
refused("broadcast to many axes", lambda b: b.be.broadcast_to(b.t, (1,) * 15 + (3, 4)), ShapeError, "17", "at most 16")
for _name in ("reshape", "transpose", "broadcast_to"):
    refused(f"{_name} int", lambda b, n=_name: getattr(b.be, n)(b.t, 12), TypeError, _name, "12", "several ints")
for _ord in (0, -1, "fro", None):
    refused(f"norm {_ord}", lambda b, o=_ord: b.be.norm(b.t, 0, ord=o), ValueError, "norm", repr(_ord), "above 0")
for _axis in (None, (), (0, 1)):
    refused(f"cumsum {_axis}", lambda b, a=_axis: b.be.cumsum(b.t, a), ShapeError, "not one axis", str(_axis))
for _axis in ((), (0, 1)):
    refused(f"take {_axis}", lambda b, a=_axis: b.be.take(b.t, [0], a), ShapeError, "not one axis", str(_axis))
refused("transpose by None", lambda b: b.t.transpose(None), TypeError, "transpose", "None", "several ints")
refused("transpose of a tree by None", lambda b: (b.t + 1).transpose(1, None), TypeError, "transpose", "(1, None)")
refused("transpose", lambda b: b.t.transpose(0, 2), ShapeError, "(0, 2)", "each axis once")
refused("onehot axis", lambda b: b.be.onehot(b.n, 2), ShapeError, "axis=2", "0 for (classes, n)")

# Indices

refused("index", lambda b: b.t[3], IndexError, "3", "-3 to 2")
refused("index of a list", lambda b: b.be.evaluate(b.t[[3]]), IndexError, "take: a place out of range", "3")
refused("take out of range", lambda b: b.be.take(b.t, [0, 4], 1, out=b.be.zeros((3, 2))), IndexError, "a place", "4")
refused("take of nothing", lambda b: b.be.evaluate(b.t[:0][[0]]), IndexError, "take: a place out of range", "0")
refused("take into a tensor", lambda b: write(b, (ALL, slice(2)), b.be.take(b.t, [0, 4], 1)), IndexError, "4")
refused("take of fractions", lambda b: b.be.take(b.t, [0.5], 0), DTypeError, "[0.5]", "integers")
refused("take by floats", lambda b: b.be.take(b.t, b.t, 0), DTypeError, "integers")
refused("scatter out of range", lambda b: write(b, ([0, 3], [0, 0]), 1), IndexError, "3")
refused("too many indices", lambda b: b.t[0, 0, 0], IndexError, "3 for 2 axes")
refused("a list for no axes", lambda b: b.be.ones((), min_dims=0)[[0]], IndexError, "1 for 0 axes")
refused("two ellipses", lambda b: b.t[..., ...], IndexError, "ellipsis")
refused("tree by arrays", lambda b: (b.t + 1)[[0, 1]], TypeError, "be.evaluate")

# Types

refused("bits of floats", lambda b: b.t & 1, DTypeError, "bits", "float32")
refused(
    "bits of types without a common integer",
    lambda b: b.be.zeros(2, dtype="uint64") & b.be.zeros(2, dtype="int64"),
    DTypeError,
    "uint64 and int64, whose common type is float64",
)
refused("shift of floats", lambda b: b.n << 1.5, DTypeError, "float")
refused("onehot of floats", lambda b: b.be.onehot(b.t[0], 0), DTypeError, "float32", "int")
refused("complex type", lambda b: b.be.zeros((2, 2), dtype="complex64"), DTypeError, "complex64", "float32")
refused("type by a wrong name", lambda b: b.be.zeros((2, 2), dtype="float23"), DTypeError, "float23", "float32")
refused("type of another kind", lambda b: b.be.zeros((2, 2), dtype=["x"]), DTypeError, "x")
for _name, _value in {
    "complex": np.array([1j]),
    "string": "abc",
    "object": np.array([object()]),
    "none": None,
    "date": np.array(["2020-01-01"], "M8[D]"),
    "dictionary": {"a": 1},
}.items():
    refused(f"array of {_name}", lambda b, v=_value: b.be.array(v), DTypeError, "expected", "numbers")
    refused(f"assign {_name}", lambda b, v=_value: write(b, ALL, v), DTypeError, "expected", "numbers")
    refused(f"scatter {_name}", lambda b, v=_value: write(b, [0], v), DTypeError, "expected", "numbers")
for _value in (np.str_("1"), np.bytes_(b"1"), np.complex64(1), np.datetime64("2020-01-01"), np.timedelta64(1, "s")):
    for _where, _key in {"": slice(None), " at a row": 0, " at an index array": [0]}.items():
        refused(
            f"assign {_value.dtype}{_where}", lambda b, k=_key, v=_value: write(b, k, v), DTypeError, str(_value.dtype)
        )
refused("add complex array", lambda b: b.t + np.ones((3, 4), complex), DTypeError, "complex128")
refused("array of a huge int", lambda b: b.be.array([1, 2**70]), DTypeError, "beyond 64 bits", f"{2**70}")
refused("array of int objects", lambda b: b.be.array(np.array([1, 2], object)), DTypeError, "not numbers", "object")
refused("add object array", lambda b: b.t + np.full((3, 4), None), DTypeError, "object")
refused("add complex number", lambda b: b.t + np.complex64(1), DTypeError, "complex64")
for _name, _call in {
    "op": lambda b, out: b.be.exp(b.t, out=out),
    "two operands": lambda b, out: b.be.add(b.t, b.t, out=out),
    "reduction": lambda b, out: b.be.sum(b.t, axis=0, out=out),
    "composite": lambda b, out: b.be.clip(b.t, 0, 1, out=out),
    "product": lambda b, out: b.be.dot(b.t, b.t.T, out=out),
    "transpose": lambda b, out: b.t.transpose(out=out),
    "evaluate": lambda b, out: b.be.evaluate(b.t, out=out),
}.items():
    refused(f"{_name} into an array", lambda b, f=_call: f(b, np.zeros((3, 4))), TypeError, "out", "ndarray", "tensor")
    refused(f"{_name} into a tree", lambda b, f=_call: f(b, b.t + 1), TypeError, "out", "OpTreeNode", "tensor")
refused("onehot of an array", lambda b: b.be.onehot(np.arange(3), 0), DTypeError, "ndarray", "tensor")
refused("add string", lambda b: b.be.add(b.t, "a"), TypeError, "str", "tensors, nodes, numbers")
refused("string operand", lambda b: b.t + "a", TypeError, "str")
refused("list operand", lambda b: b.t + [1, 2], TypeError, "list")
refused("None operand", lambda b: None * b.t, TypeError, "NoneType")
refused("no tensor", lambda b: b.be.relu("3"), TypeError, "relu: operand", "str", "a number")
refused("truth", lambda b: bool(b.t), TypeError, "(3, 4)", "be.any")

refused("product of an array", lambda b: b.be.compound_dot(b.t.get(), b.t.T, b.t), TypeError, "ndarray", "tensors")
refused("product of a tree", lambda b: b.be.batched_dot(b.cube + 1, b.t.T, b.t), TypeError, "OpTreeNode", "be.evaluate")
refused("sign product of a tree", lambda b: b.be.xnor_compound_dot(b.t + 1, b.t.T, b.t), TypeError, "be.evaluate")

# Numbers

refused("too large", lambda b: b.n.fill(128), OverflowError, "128", "-128 to 127")
refused("negative of unsigned", lambda b: b.be.zeros((1, 3), dtype="uint8").fill(-1), OverflowError, "-1", "0 to 255")
refused("NumPy integer too large", lambda b: b.n.fill(np.int64(300)), OverflowError, "300", "127")
refused("too large in a tree", lambda b: b.n._assign(b.n + 300), OverflowError, "300", "127")
refused("too large for a float", lambda b: b.t.fill(10**400), OverflowError, "1329 bits", "float32")
refused(
    "too large for a tree of floats", lambda b: b.t._assign(b.t * -(10**400)), OverflowError, "1329 bits", "float32"
)
refused("too long to print", lambda b: b.n.fill(10**5000), OverflowError, "16610 bits", "127")

# Memory

refused("read-only", lambda b: b.frozen.fill(1), ValueError, "read-only", "be.copy")
refused("read-only view", lambda b: b.frozen[1:].T.fill(1), ValueError, "read-only")
refused("read-only scatter", lambda b: b.frozen[[0]].fill(1), ValueError, "read-only")
refused("read-only out", lambda b: b.be.exp(b.t, out=b.frozen), ValueError, "read-only")
refused("read-only product", lambda b: b.be.compound_dot(b.t, b.t.T, b.frozen[:, :3]), ValueError, "read-only")
refused("out of memory", lambda b: b.be.empty(2**60), MemoryError, str(2**62))
refused("beyond any memory", lambda b: b.be.empty(2**62), MemoryError, str(2**64))
refused("asbuffer", lambda b: b.t.T.asbuffer(), ShapeError, "C order", "be.copy")
refused("asarray without copy", lambda b: b.t.__array__(np.float64, copy=False), ValueError, "float32", "float64")

# Backends

refused("other backend's tensor", lambda b: write(b, ALL, b.foreign), BackendError, "one backend", "other.get()")
refused("other backend's tree", lambda b: write(b, ALL, b.foreign + 1), BackendError, "one backend")
refused("operand of another backend", lambda b: b.t + b.foreign, BackendError, "one backend", "be.array")
for _name, _key in {
    "a mask": lambda b: b.other.array(b.t.get() > 5, dtype=bool),
    "a tree": lambda b: b.foreign > 0,
    "places": lambda b: b.other.array([0, 2], dtype=np.int64, min_dims=0),
    "a mask of an axis": lambda b: (slice(None), b.other.array([1, 0, 1, 0], dtype=bool, min_dims=0)),
    "places on two axes": lambda b: ([0, 1], b.other.array([0, 2], dtype=np.int64, min_dims=0)),
}.items():
    for _verb, _run in (("read", lambda b, k: b.t[k]), ("write", lambda b, k: write(b, k, 1))):
        refused(f"{_verb}: {_name} of another backend", lambda b, k=_key, run=_run: run(b, k(b)), BackendError,
                "another backend", "one backend")  # fmt: skip
refused("product across backends", lambda b: b.be.dot(b.t, b.foreign.T), BackendError, "one backend")
refused("method across backends", lambda b: b.other.add(b.t, 1), BackendError, "backend")
refused("unknown backend", lambda b: Backend.allocate_backend("cpux"), ValueError, "'cpux'", "cpu")
refused("gradients by one tensor", lambda b: gradients(b).get_grad_tensor(b.t), TypeError, "a list of tensors", "try")
refused("gradients into one tensor", lambda b: gradients(b).back_prop_grad([b.t], b.frozen), TypeError, "a list")
refused("steps of a buffer", lambda b: steps(b, b.t), TypeError, "h_prev_s", "Tensor", "a list of tensors")
refused("no steps", lambda b: steps(b, None), TypeError, "h_prev_s", "NoneType", "a list of tensors")
refused("padding of a pool", lambda b: b.be.pool_layer(np.float32, "max", 1, 1, W=4, S=2, pad_w=2), ShapeError,
        "pool_layer: padding of W", "windows of 2")  # fmt: skip
refused("words of floats", lambda b: b.be.compound_bprop_lut(1, b.u, b.u, None, b.t, None), DTypeError, "ed  integers")
refused("operands of an op", lambda b: tensorbackend.OpTreeNode.build("add", b.t, None), TypeError, "1 operands", "2")
refused("unknown op", lambda b: tensorbackend.OpTreeNode.build("tan2", b.t, None), TypeError, "'tan2'")
refused("unknown setting", lambda b: tensorbackend.config.debugg, AttributeError, "'debugg'", "debug")
refused("default type", lambda b: Backend.allocate_backend("cpu", default_dtype="int8"), ValueError, "int8", "float32")
refused("new default type", lambda b: setattr(b.be, "default_dtype", "float64"), AttributeError, "float64", "datatype")
for _far in (1.5, -0.1, math.nan):
    refused(f"keep {_far}", lambda b, x=_far: b.be.dropout(x), ValueError, "dropout: keep", str(_far), "0 to 1")
    refused(f"mask at {_far}", lambda b, x=_far: b.be.make_binary_mask(b.t, x), ValueError, "keepthresh", "0 to 1")
refused("stdv -1", lambda b: b.be.fill_normal(b.t, 0, -1), ValueError, "fill_normal: stdv", "-1", "0 or more")
refused("min_dims", lambda b: Backend.allocate_backend("cpu", min_dims=3), ValueError, "3", "0, 1 or 2")
refused("min_dims of a float", lambda b: Backend.allocate_backend("cpu", min_dims=2.0), ValueError, "2.0", "0, 1 or 2")
refused("compat_mode", lambda b: Backend.allocate_backend("cpu", compat_mode="x"), ValueError, "'x'", "'caffe'")
refused("histogram bins", lambda b: b.be.set_hist_buffers(0, 0), ValueError, "0", "1 or more")
refused("batch size", lambda b: b.other.iobuf(5), ValueError, "None", "be.bsz")
refused("steps of a buffer", lambda b: buffer(b, (3, None)), TypeError, "lengths must be integers", "(3, None)")
refused("a buffer of words", lambda b: buffer(b, ("a", "b")), TypeError, "lengths must be integers", "('a', 'b')")
for _wrong in (2.5, np.float32(2), np.int64(7), np.True_, [1, 2]):
    refused(f"type {_wrong!r}", lambda b, x=_wrong: b.be.zeros(3, dtype=x), DTypeError, "dtype", repr(_wrong))
refused("a tensor as a type", lambda b: b.be.zeros(3, b.t), DTypeError, "dtype: not an element type", "float32")

# Operands of methods that are no tensors, layers or numbers of runs

for _wrong in (None, 3, np.ones((3, 4)), "x"):
    _kind = type(_wrong).__name__
    refused(f"add_fc_bias to {_kind}", lambda b, x=_wrong: b.be.add_fc_bias(x, b.t), TypeError, "add_fc_bias", _kind)
    refused(f"update_fc_bias into {_kind}", lambda b, x=_wrong: b.be.update_fc_bias(b.t, x), TypeError, _kind)
    refused(f"fill_normal {_kind}", lambda b, x=_wrong: b.be.fill_normal(x), TypeError, "fill_normal", _kind)
    refused(f"mask {_kind}", lambda b, x=_wrong: b.be.make_binary_mask(x), TypeError, "make_binary_mask", _kind)
    refused(f"binarize into {_kind}", lambda b, x=_wrong: b.be.binarize(b.t, x), TypeError, "binarize", _kind)
    refused(f"pool with {_kind}", lambda b, x=_wrong: b.be.fprop_pool(x, b.t, b.t), TypeError, _kind, "be.pool_layer")
    refused(f"lrn with {_kind}", lambda b, x=_wrong: b.be.fprop_lrn(x, b.t, b.t, b.t), TypeError, _kind, "be.lrn_layer")
    refused(f"conv with {_kind}", lambda b, x=_wrong: b.be.fprop_conv(x, b.t, b.t, b.t), TypeError, _kind, "conv_layer")
for _wrong in (3, np.ones((3, 4)), "x"):
    _kind = type(_wrong).__name__
    for _method in ("exp", "sum", "softmax", "mean", "Relu"):
        call = lambda b, m=_method, x=_wrong: getattr(b.be, m)(b.t, out=x)  # noqa: E731
        refused(f"{_method} into {_kind}", call, TypeError, "out", _kind, "a tensor")
    refused(f"add into {_kind}", lambda b, x=_wrong: b.be.add(b.t, 1, out=x), TypeError, "out", _kind, "a tensor")
refused("add into a tree", lambda b: b.be.add(b.t, 1, out=b.t * 2), TypeError, "out", "OpTreeNode", "a tensor")
refused("add_fc_bias of None", lambda b: b.be.add_fc_bias(b.t, None), TypeError, "NoneType")
refused("skip of None", lambda b: b.be.fprop_skipnode(None, b.t, 1.0), TypeError, "fprop_skipnode: x", "NoneType")
refused("skip into None", lambda b: b.be.bprop_skipnode(b.t, None, 1.0, 1.0), TypeError, "deltas", "NoneType")
for _wrong in (2.5, None, "2", np.ones(2)):
    _copy = lambda b, n=_wrong: b.be.copy_transpose(b.t, b.be.empty((4, 3)), repeat=n)  # noqa: E731
    refused(f"repeat {type(_wrong).__name__}", _copy, TypeError, "copy_transpose: repeat", type(_wrong).__name__)
for _count in (0, -3):
    _again = lambda b, n=_count: b.be.copy_transpose(b.t, b.be.empty((4, 3)), repeat=n)  # noqa: E731
    refused(f"repeat {_count}", _again, ValueError, "copy_transpose: repeat", f"{_count}", "1, or more")
for _method, _call in {
    "iobuf": lambda b: b.be.iobuf(3, parallelism="data"),
    "shared_iobuf_size": lambda b: b.be.shared_iobuf_size(3, "data"),
    "distribute_data": lambda b: b.be.distribute_data(b.t, "data"),
    "allocate_new_deltas": lambda b: b.be.allocate_new_deltas(b.t, (3,), "data"),
}.items():
    refused(f"parallelism of {_method}", _call, ValueError, f"{_method}: parallelism", "'data'", "Data, Model")
for _repeat in ("x", 2.5, [1]):
    refused(f"explain {_repeat}", lambda b, n=_repeat: b.be.explain(b.t * 2, repeat=n), TypeError, "explain: repeat")
refused("explain no run", lambda b: b.be.explain(b.t * 2, repeat=0), ValueError, "explain: repeat", "0")
for _wrong in ("x", [1, 2], (1,), b"x"):
    _kind = type(_wrong).__name__
    refused(f"times {_kind}", lambda b, x=_wrong: b.t * x, TypeError, "mul: operands", _kind, "np.array")
    refused(f"{_kind} times", lambda b, x=_wrong: x * b.t, TypeError, "mul: operands", _kind, "np.array")
    refused(f"{_kind} plus a tree", lambda b, x=_wrong: x + (b.t * 2), TypeError, "add: operands", _kind)
    refused(f"slope {_kind}", lambda b, x=_wrong: b.be.leaky_relu(b.t, x), TypeError, "leaky_relu: slope", _kind)
    refused(f"alpha {_kind}", lambda b, x=_wrong: b.be.elu(b.t, x), TypeError, "elu: alpha", _kind)
    refused(f"rtol {_kind}", lambda b, x=_wrong: b.be.isclose(b.t, b.t, x), TypeError, "isclose: rtol", _kind)
    refused(f"slope of ReLU {_kind}", lambda b, x=_wrong: b.be.fprop_relu(None, b.t, x), TypeError, "slope", _kind)
    refused(f"stdv {_kind}", lambda b, x=_wrong: b.be.fill_normal(b.t, 0, x), TypeError, "fill_normal: stdv", _kind)
    refused(f"keep {_kind}", lambda b, x=_wrong: b.be.dropout(x), TypeError, "dropout: keep", _kind)
    refused(f"Relu of {_kind}", lambda b, x=_wrong: b.be.Relu(x, b.t), TypeError, "Relu: ary", _kind)
    refused(f"bprop_relu of {_kind}", lambda b, x=_wrong: b.be.bprop_relu(None, x, b.t, b.t, 0), TypeError, _kind)
    refused(f"reshape {_kind}", lambda b, x=_wrong: b.be.reshape(x, (3, 4)), TypeError, "reshape", _kind, "a tensor")
    refused(f"transpose {_kind}", lambda b, x=_wrong: b.be.transpose(x, (1, 0)), TypeError, "transpose", _kind)
    refused(f"capture {_kind}", lambda b, x=_wrong: b.be.capture(x), TypeError, "capture: fn", _kind, "a function")
    refused(f"convolution with {_kind}", lambda b, x=_wrong: b.be.conv(x, b.t, b.t), TypeError, "conv: layer", _kind)
    refused(f"mark {_kind}", lambda b, x=_wrong: b.be.record_mark(x), TypeError, "record_mark: marker", "init_mark")
    refused(f"time of {_kind}", lambda b, x=_wrong: b.be.get_time(x, x), TypeError, "get_time: start", "be.init_mark")
    refused(f"wait for {_kind}", lambda b, x=_wrong: b.be.synchronize_mark(x), TypeError, "synchronize_mark: marker")
    refused(f"states {_kind}", lambda b, x=_wrong: steps(b, x), TypeError, "compound_rnn_unroll_fprop: h_prev_s")
    refused(f"outputs of {_kind}", lambda b, x=_wrong: b.be.allocate_new_outputs(x, None), TypeError, "method allocate")
    for _method in ("fprop_mergesum", "bprop_mergesum", "fprop_mergebroadcast", "bprop_mergebroadcast"):
        refused(f"{_method} of {_kind}", lambda b, m=_method, x=_wrong: merged(b, m, [Layer(b), x]), TypeError,
                f"{_method}: layers[1]", f"a method {_method[:5]}")  # fmt: skip
    refused(f"merged by {_kind}", lambda b, x=_wrong: merged(b, "bprop_mergesum", [Layer(b)], x), TypeError, "alpha")
    refused(f"branches by {_kind}", lambda b, x=_wrong: merged(b, "bprop_mergebroadcast", [Layer(b)], x), TypeError,
            "bprop_mergebroadcast: alphas[0]", _kind)  # fmt: skip
refused("no layers", lambda b: merged(b, "fprop_mergesum", None), TypeError, "layers", "NoneType", "a list")
refused("states in an array", lambda b: steps(b, np.array(1.0)), TypeError, "h_prev_s", "ndarray", "a list of tensors")
refused("buffer of a float", lambda b: b.be.consume(0.0, [b.t.get()], [None]), ValueError, "consume: buf_index", "0.0")
refused("buffer for a tuple", lambda b: b.be.consume(0, [b.t.get()], (None,)), TypeError, "consume: devlist", "a list")
refused("matmul without a shape", lambda b: b.be.matmul(b.be.rand(), b.t), ShapeError, "shape is not known", "rand")
refused("matmul by no shape", lambda b: b.be.matmul(b.t, b.be.rand() + 1), ShapeError, "shape is not known", "rand")
refused("regions of random maps", lambda b: regions(b, b.be.rand()), ShapeError, "size of images", "None", "(1, 3, 4)")
refused("entry of none", lambda b: b.be.evaluate(b.be.take(b.be.empty((0, 4)), [1], 0)), IndexError,
        "take: a place out of range", "an axis of length 0")  # fmt: skip
refused("hist of a list", lambda b: b.t.hist([1]), TypeError, "hist: tag", "[1]", "a name")
refused("buffers", lambda b: b.be.consume(0, None, [None, None]), TypeError, "consume: hostlist", "None", "entry 0")
refused("one buffer", lambda b: b.be.consume(1, [b.t.get()] * 2, [None]), TypeError, "consume: devlist", "entry 1")
refused("body of a kernel", lambda b: b.be.elementwise("T x", "T y", 3, "k"), TypeError, "elementwise", "int 3")
refused("one text of macros", lambda b: b.be.elementwise("T x", "T y", "y = x", "k", options="-DA=1"), TypeError,
        "elementwise: options", "'-DA=1'", "a list")  # fmt: skip
refused("parameters of a reduction", lambda b: b.be.reduction([], "T y", "x", "a + b", "y = a", "0", "k"), TypeError,
        "reduction", "list []", "a str")  # fmt: skip
refused("identity of a reduction", lambda b: b.be.reduction("T x", "T y", "x", "a", "y = a", None, "k"), TypeError,
        "reduction: identity", "None")  # fmt: skip
refused("ragged scale", lambda b: b.be.compound_dot(b.t, b.t.T, b.be.empty((3, 3)), alpha=[[1, 2], [3]]), TypeError,
        "compound_dot: alpha", "list", "a number")  # fmt: skip
refused("delete a row", lambda b: b.t.__delitem__(0), TypeError, "del: the elements of a tensor stay", "be.copy")
refused("word as an index", lambda b: b.t["x"], IndexError, "index", "'x'", "ints, slices")
refused("write at a word", lambda b: write(b, "x", 1), IndexError, "index", "'x'", "ints, slices")
refused("fractions as an index", lambda b: b.t[np.array([0.5])], IndexError, "index", "arrays of ints")
refused("mask of another shape", lambda b: b.t[np.ones((4, 4), bool)], IndexError, "index", "(3, 4)")
refused("ragged index", lambda b: b.t[[[0, 1], [0]]], ShapeError, "indices", "rows of equal length")
for _wrong in (-1, 3, 2**70, b"x", 2.5, "x"):
    refused(f"view of {_wrong!r} axes", lambda b, n=_wrong: b.other.view(np.ones(3), min_dims=n), ValueError,
            "min_dims", repr(_wrong), "0, 1 or 2")  # fmt: skip
refused("DLPack of objects", lambda b: b.other.from_dlpack(np.array([None])), BufferError, "from_dlpack", "host memory")
refused("repeat a tensor", lambda b: b.be.compound_dot(b.t, b.t.T, b.be.empty((3, 3)), repeat=b.t), TypeError, "repeat")
refused("sums elsewhere", lambda b: b.be.compound_dot(b.t, b.u.T, b.cube[0, :, :2], bsum=b.other.empty((3, 1))),
        BackendError, "one backend")  # fmt: skip


def scaled(b: Bench, method: str, **numbers: Any) -> None:
    """A pass of pooling, normalisation or convolution of `b.t` into `b.cube`, with such numbers."""
    images, out = b.t, b.cube[0]
    if method == "fprop_conv":
        b.be.fprop_conv(b.be.conv_layer("float32", 4, 3, 3), images, b.be.ones((3, 3)), out, relu=True, **numbers)
    elif method == "fprop_lrn":
        b.be.fprop_lrn(b.be.lrn_layer("float32", 4, 3, J=3), images, out, b.be.empty((3, 4)), **numbers)
    else:
        getattr(b.be, method)(b.be.pool_layer("float32", "avg", 4, 3), images, out, **numbers)


for _method, _names in (("fprop_pool", "alpha beta"), ("bprop_pool", "alpha beta"), ("fprop_conv", "alpha beta slope"),
                        ("fprop_lrn", "alpha beta ascale bpower")):  # fmt: skip
    for _name in _names.split():
        for _wrong in (None, "2", np.ones(2), 1j):
            call = lambda b, m=_method, n=_name, x=_wrong: scaled(b, m, **{n: x})  # noqa: E731
            _kind = type(_wrong).__name__
            refused(f"{_method} {_name} {_kind}", call, TypeError, f"{_method}: {_name}", _kind, "a number")
        call = lambda b, m=_method, n=_name: scaled(b, m, **{n: b.be.ones((1, 1))})  # noqa: E731
        refused(f"{_method} {_name} a tensor", call, TypeError, f"{_method}: {_name}", "a number")
        call = lambda b, m=_method, n=_name: scaled(b, m, **{n: 10**400})  # noqa: E731
        refused(f"{_method} {_name} large", call, OverflowError, f"{_method}: {_name}", "1329 bits", "fits float64")

refused("an axis of no axes", lambda b: b.be.sum(b.be.array(3.0, min_dims=0), axis=0), ShapeError, "rank 0", "no axes")
refused("arange of too many", lambda b: b.be.arange(1e30), ValueError, "0 to 1e+30 by 1")

# Drivers

refused("two drivers", lambda b: Backend.allocate_backend("gpu:emulator", driver="pycuda"), ValueError, "gpu:emulator",
        "'pycuda'", "'emulator'")  # fmt: skip

# Seeds

for _seed in (-1, 2**32, 1.5, "7", [1]):
    refused(f"seed {_seed!r}", lambda b, s=_seed: b.be.gen_rng(s), ValueError, repr(_seed), "2^32")
    make = lambda b, s=_seed: Backend.allocate_backend("cpu", rng_seed=s)  # noqa: E731
    refused(f"constructor seed {_seed!r}", make, ValueError, repr(_seed), "2^32")


@pytest.mark.parametrize("case", CASES)
def test_refused_and_nothing_written(bench, case) -> None:
    call, error, parts = CASES[case]
    before = bench.values()
    with pytest.raises(error) as caught:
        call(bench)
    text = str(caught.value)
    for part in parts:
        assert part in text
    for now, then in zip(bench.values(), before):
        np.testing.assert_array_equal(now, then)


@pytest.mark.parametrize("case", CASES)
def test_refused_again_when_it_is_remembered(bench, case) -> None:
    """Structures and plans are remembered: an error must not leave a half-made one behind."""
    call, error, _ = CASES[case]
    texts = []
    for _ in range(2):
        with pytest.raises(error) as caught:
            call(bench)
        texts.append(str(caught.value))
    assert texts[0] == texts[1]


def test_statements_work_after_errors(bench) -> None:
    for call, error, _ in CASES.values():
        with pytest.raises(error):
            call(bench)
    bench.t[:] = bench.t * 2 + np.ones((3, 4))
    np.testing.assert_array_equal(bench.t.get(), np.arange(12.0).reshape(3, 4) * 2 + 1)


def test_errors_are_the_usual_ones_too() -> None:
    assert issubclass(ShapeError, ValueError)
    assert issubclass(DTypeError, TypeError)
    assert issubclass(BackendError, RuntimeError)
    assert issubclass(tensorbackend.CompileError, RuntimeError)


# A closed backend


CLOSED: dict[str, Call] = {
    "fill": lambda b: b.t.fill(1),
    "assign": lambda b: write(b, ALL, b.u),
    "assign a view": lambda b: write(b, 0, 1),
    "assign an array": lambda b: write(b, ALL, np.ones((3, 4))),
    "scatter": lambda b: write(b, [0, 1], 1),
    "mask": lambda b: write(b, np.ones((3, 4), bool), 1),
    "pick": lambda b: b.t[[0, 1]],
    "operator": lambda b: b.t + 1,
    "reflected": lambda b: 1 - b.t,
    "method": lambda b: b.be.exp(b.t),
    "reduction": lambda b: b.be.sum(b.t),
    "composite": lambda b: b.be.softmax(b.t, axis=1),
    "dot": lambda b: b.be.dot(b.t, b.u.T),
    "compound_dot": lambda b: b.be.compound_dot(b.u, b.t.T, b.t[:2, :3]),
    "zeros": lambda b: b.be.zeros((2, 2)),
    "empty": lambda b: b.be.empty((2, 2)),
    "array": lambda b: b.be.array([1.0]),
    "view": lambda b: b.be.view(np.zeros(3)),
    "copy": lambda b: b.be.copy(b.t),
    "rand": lambda b: b.be.rand(out=b.t),
    "fill_normal": lambda b: b.be.fill_normal(b.t),
    "hist": lambda b: b.t.hist("x"),
    "take": lambda b: b.be.take(b.t, [0], 0),
    "evaluate": lambda b: b.be.evaluate(b.t),
    "iobuf": lambda b: b.be.iobuf(3),
    "scratch": lambda b: b.be.scratch_buffer(0),
}


@pytest.mark.parametrize("kind", testing.backend_kinds())
def test_a_closed_backend_can_be_read_and_no_more(kind) -> None:
    be = testing.make_backend(kind, rng_seed=0)
    be.bsz = 4
    b = Bench(be, Backend.allocate_backend("cpu", jit=False))
    tree, view, picked = b.t + 1, b.t.T[::2], be.take(b.t, [0], 0)
    before = b.values()
    be.cleanup_backend()
    be.cleanup_backend()
    assert be.closed
    for name, call in CLOSED.items():
        with pytest.raises(BackendError, match="closed"):
            call(b)
            pytest.fail(f"{name} was taken", pytrace=False)
    for call in (lambda: be.evaluate(tree), lambda: picked.fill(1)):
        with pytest.raises(BackendError, match="closed"):
            call()
    with pytest.raises(BackendError, match="closed"):
        b.foreign[:] = b.t
    for now, then in zip(b.values(), before):
        np.testing.assert_array_equal(now, then)
    np.testing.assert_array_equal(view.get(), before[0].T[::2])
    assert "closed" in repr(be)
    assert "(3, 4)" in repr(b.t)
