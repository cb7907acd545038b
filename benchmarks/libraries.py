# SPDX-License-Identifier: Apache-2.0
"""The contenders' libraries: how each is imported, fed with arrays, and made to run one line of arithmetic.

Every class turns the same NumPy arrays into its own (`array`) and Python text into a call (`function`, or
`contender` for an expression). A library that is not installed raises `Absent` when its class is made.
"""

from __future__ import annotations

import ast
import importlib
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from textwrap import indent
from typing import Any

import ml_dtypes
import numpy as np

from tensorbackend.backends import registry
from tensorbackend.bench import Absent, Contender

NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d*)?(?:[eE][-+]?\d+)?")
HALVES = ("float16", "bfloat16")


def library(name: str) -> Any:
    """The imported module, or `Absent` when it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Absent(f"{name} is not installed") from error


def dtype_of(name: str) -> np.dtype:
    """NumPy's dtype of that name, bfloat16 included."""
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def tolerance(dtype: str, least: float = 1e-4, epsilons: float = 4) -> float:
    """The error that results in `dtype` may have: so many of its epsilons, or `least` where that is more."""
    return max(least, epsilons * float(ml_dtypes.finfo(dtype_of(dtype)).eps))


def computed(make: Callable[[], Contender]) -> Callable[[], np.ndarray]:
    """The result of one call of a contender, which is made and called when the result is first asked for."""

    @cache
    def result() -> np.ndarray:
        contender = make()
        contender.call()
        return contender.result()

    return result


def largest(expected: Callable[[], np.ndarray]) -> Callable[[], float]:
    """The scale of errors that count as shares of the largest value."""
    return lambda: np.abs(expected()).max()


def images_first(x: np.ndarray) -> np.ndarray:
    """From the engine's order (maps, height, width, images) to (images, maps, height, width)."""
    return np.ascontiguousarray(x.transpose(3, 0, 1, 2))


def images_last(x: Any) -> np.ndarray:
    """And back, in float32."""
    return np.asarray(x, dtype=np.float32).transpose(1, 2, 3, 0)


def function(body: str, names: Mapping[str, Any], head: str = "") -> Callable[[], Any]:
    """`def call(): body`, with `names` as cells of an enclosing function: as fast as written by hand.

    `head` runs once, now; it and `body` are statements on one line or several.
    """
    inner = indent(body.strip(), " " * 8)
    text = f"def make({', '.join(names)}):\n    {head or 'pass'}\n    def call():\n{inner}\n    return call"
    scope: dict[str, Any] = {}
    exec(text, scope)
    return scope["make"](**names)


def with_named_numbers(text: str, dtype: np.dtype) -> tuple[str, dict[str, Any]]:
    """`text` with its numbers replaced by names of scalars of `dtype`, for libraries in which 0.5 means float64."""
    constants: dict[str, Any] = {}

    def name(match: re.Match[str]) -> str:
        key = f"k{len(constants)}"
        constants[key] = dtype.type(float(match[0]))
        return key

    return NUMBER.sub(name, text), constants


DEVICE: list[bool] = []


def use_device() -> None:
    """From now on PyTorch, JAX and CuPy compute on the CUDA device; libraries of the host are absent."""
    DEVICE.append(True)


def on_device() -> bool:
    """Whether the device is measured."""
    return bool(DEVICE)


class NumPy:
    """NumPy; halves too, through its own and ml_dtypes' scalar loops."""

    def __init__(self) -> None:
        self.functions = {name: getattr(np, name) for name in np.__all__ if callable(getattr(np, name))}
        self.functions |= {"linalg": np.linalg, "sig": lambda v: 1 / (1 + np.exp(-v))}
        try:
            self.functions["erf"] = importlib.import_module("scipy.special").erf
        except ImportError:
            pass

    def array(self, value: np.ndarray) -> np.ndarray:
        return value

    def contender(self, out: str, new: str, head: str, arrays: Mapping[str, np.ndarray], o: np.ndarray) -> Contender:
        names = self.functions | dict(arrays) | {"o": o, "t": np.empty_like(o), "k": np.empty(o.shape, bool)}
        return Contender("numpy", function(out, names, head), lambda: o, function(f"return {new}", names, head))


class CuPy:
    """CuPy, statement by statement as NumPy, or by `cupy.fuse`; only on a device."""

    def __init__(self) -> None:
        if not on_device():
            raise Absent("cupy needs a device")
        self.cupy = library("cupy")
        self.functions = {name: f for name in dir(self.cupy) if callable(f := getattr(self.cupy, name))}
        erf = importlib.import_module("cupyx.scipy.special").erf
        exp = self.cupy.exp
        self.functions |= {"linalg": self.cupy.linalg, "erf": erf, "sig": lambda v: 1 / (1 + exp(-v))}

    def array(self, value: np.ndarray) -> Any:
        if value.dtype == ml_dtypes.bfloat16:
            raise Absent("cupy computes nothing in bfloat16")
        return self.cupy.asarray(value)

    def contender(self, out: str, new: str, head: str, arrays: Mapping[str, np.ndarray], o: np.ndarray) -> Contender:
        there = self.array(o)
        names = self.functions | {k: self.array(v) for k, v in arrays.items()}
        names |= {"o": there, "t": self.cupy.empty_like(there), "k": self.cupy.empty(o.shape, bool)}
        return Contender("cupy", function(out, names, head), there.get, function(f"return {new}", names, head))

    def natural(self, new: str, head: str, arrays: Mapping[str, np.ndarray]) -> Contender:
        """A contender for the form that allocates, of expressions that cannot say where their result goes."""
        return self._returning("cupy", new, self.functions | {k: self.array(v) for k, v in arrays.items()}, head)

    def fused(self, new: str, head: str, arrays: Mapping[str, np.ndarray]) -> Contender:
        """A contender of one kernel, by `cupy.fuse`; it has no other than the form that allocates."""
        names = {k: self.array(v) for k, v in views(head, arrays).items()}
        parameters = [name for name in names if re.search(rf"\b{name}\b", new)]
        text = f"lambda {', '.join(parameters)}: {new}"
        fused = self.cupy.fuse(kernel_name="fused")(eval(text, dict(self.functions)))
        return self._returning("cupy.fuse", f"fused({', '.join(parameters)})", names | {"fused": fused}, "")

    def _returning(self, name: str, text: str, names: Mapping[str, Any], head: str) -> Contender:
        kept: list[Any] = [None]
        return Contender(name, function(f"kept[0] = {text}", {**names, "kept": kept}, head), lambda: kept[0].get())


class Torch:
    """PyTorch eager and, as `compiled`, through torch.compile; arrays share NumPy's memory, or lie on the device."""

    def __init__(self) -> None:
        self.torch = library("torch")
        if on_device():
            self.torch.set_default_device("cuda")
            self.torch.backends.cudnn.allow_tf32 = False  # products of float32 are float32's: so is torch's default
        self.torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", self.torch.get_num_threads())))
        self.torch.set_grad_enabled(False)
        torch = self.torch
        names = (
            "tanh exp where clip mul add sub div addcmul sigmoid gt clamp neg softmax log_softmax var argmax sum mean "
            "square sqrt amax cumsum"
        )
        self.functions = {name: getattr(torch, name) for name in names.split()}
        self.functions |= {"torch": torch, "sig": torch.sigmoid, "erf": torch.erf, "gelu": torch.nn.functional.gelu}

    def array(self, value: np.ndarray) -> Any:
        if value.dtype == ml_dtypes.bfloat16:
            return self.array(value.view(np.int16)).view(self.torch.bfloat16)
        tensor = self.torch.from_numpy(value)
        return tensor.cuda() if on_device() else tensor

    def numpy(self, tensor: Any) -> np.ndarray:
        tensor = tensor.detach().cpu()
        return (tensor.float() if tensor.dtype == self.torch.bfloat16 else tensor).numpy()

    def _names(self, arrays: Mapping[str, np.ndarray], o: np.ndarray) -> dict[str, Any]:
        out = self.torch.empty(o.shape, dtype=self.array(o[:0]).dtype)
        scratch = {"o": out, "t": out.clone(), "k": self.torch.empty(o.shape, dtype=self.torch.bool)}
        return self.functions | {k: self.array(v) for k, v in arrays.items()} | scratch

    def contender(self, out: str, new: str, head: str, arrays: Mapping[str, np.ndarray], o: np.ndarray) -> Contender:
        names = self._names(arrays, o)
        call, fresh = function(out, names, head), function(f"return {new}", names, head)
        return Contender("torch", call, lambda: self.numpy(names["o"]), fresh)

    def compiled(self, new: str, head: str, arrays: Mapping[str, np.ndarray], o: np.ndarray) -> Contender:
        names = self._names(arrays, o)
        parameters = {k: names[k] for k in (*arrays, "o")}
        text = f"lambda {', '.join(parameters)}: o.copy_({substitute(new, head)})"
        compiled = self.torch.compile(eval(text, dict(self.functions)))
        call = function(f"f({', '.join(parameters)})", parameters | {"f": compiled})
        return Contender("torch.compile", call, lambda: self.numpy(names["o"]))


class Jax:
    """JAX through XLA; the output goes into a donated array."""

    def __init__(self) -> None:
        self.jax = library("jax")
        self.jax.config.update("jax_enable_x64", True)
        jnp = self.jax.numpy
        self.functions = {name: getattr(jnp, name) for name in dir(jnp) if callable(getattr(jnp, name))}
        self.functions |= {"jax": self.jax, "sig": self.jax.nn.sigmoid, "erf": self.jax.lax.erf}

    def array(self, value: np.ndarray) -> Any:
        return self.jax.numpy.array(value)

    def contender(self, new: str, head: str, arrays: Mapping[str, np.ndarray], o: np.ndarray) -> Contender:
        arguments = ", ".join(arrays)
        text = substitute(new, head)
        fresh = self.jax.jit(eval(f"lambda {arguments}: {text}", dict(self.functions)))
        into = self.jax.jit(
            eval(f"lambda o, {arguments}: {text}", dict(self.functions)), donate_argnums=0, keep_unused=True
        )
        return self.donating(into, fresh, self.array(o), [self.array(v) for v in arrays.values()])

    def donating(self, into: Callable, fresh: Callable | None, o: Any, arrays: list[Any]) -> Contender:
        """A contender that calls `o = into(o, *arrays)`, where `o` is an array or a tuple of them, and donated."""

        def call() -> None:
            nonlocal o
            o = into(o, *arrays)

        def result() -> np.ndarray:
            parts = self.jax.tree_util.tree_leaves(o)
            return np.concatenate([np.asarray(p, dtype=np.float64).ravel() for p in parts])

        new = fresh and (lambda: self.jax.block_until_ready(fresh(*arrays)))
        return Contender("jax", call, result, new, finish=lambda: self.jax.block_until_ready(o))


class NumExpr:
    """numexpr; numbers become scalars of the arrays' type, since it reads 0.5 as float64."""

    def __init__(self) -> None:
        self.numexpr = library("numexpr")
        self.numexpr.set_num_threads(int(os.environ.get("NUMEXPR_NUM_THREADS", self.numexpr.ncores)))

    def contender(self, text: str | None, head: str, arrays: Mapping[str, np.ndarray], o: np.ndarray) -> Contender:
        """A contender for `text`, in which the axis of a reduction stays a number."""
        if text is None:
            raise Absent("numexpr cannot say this expression")
        if o.dtype.name in HALVES:
            raise Absent(f"numexpr has no {o.dtype.name}")
        text, constants = (text, {}) if "axis=" in text else with_named_numbers(text, o.dtype)
        names = {**views(head, arrays), **constants}
        evaluate = self.numexpr.evaluate

        def call() -> None:
            evaluate(text, names, out=o)

        return Contender("numexpr", call, lambda: o, lambda: evaluate(text, names))


class Numba:
    """numba's explicit loops over one or two axes, on all threads from 2^14 elements up."""

    def __init__(self) -> None:
        self.numba = library("numba")

    def contender(self, text: str, head: str, arrays: Mapping[str, np.ndarray], o: np.ndarray) -> Contender:
        if o.dtype.name in HALVES:
            raise Absent(f"numba has no {o.dtype.name} on the CPU")
        read = {k: v for k, v in views(head, arrays).items() if re.search(rf"\b{k}\b", text)}
        text, constants = with_named_numbers(text, o.dtype)
        for name, array in read.items():
            index = "i" if o.ndim == 1 else ", ".join("0" if n == 1 else i for n, i in zip(array.shape, "ij"))
            text = re.sub(rf"\b{name}\b", f"{name}[{index}]", text)
        kernel = _numba_loops(text, tuple(read), tuple(constants.items()), o.ndim, o.dtype.type(1), o.size >= 1 << 14)
        operands = list(read.values())
        return Contender(
            "numba", lambda: kernel(o, *operands), lambda: o, lambda: kernel(np.empty(o.shape, o.dtype), *operands)
        )

    def rows(self, body: str | None, x: np.ndarray, o: np.ndarray) -> Contender:
        """A contender that runs `body` for every row `r` = `x[i]`, on all threads."""
        if body is None:
            raise Absent("no numba form written")
        if len(x) > 1 << 20:
            raise Absent("numba's form is for long rows")
        if x.dtype.name in HALVES:
            raise Absent(f"numba has no {x.dtype.name} on the CPU")
        kernel = _numba_rows(body)
        c = x.dtype.type(1e-5)
        return Contender("numba", lambda: kernel(x, o, c), lambda: o, lambda: kernel(x, np.empty_like(o), c))


@cache
def _numba_rows(body: str) -> Callable[..., Any]:
    numba = importlib.import_module("numba")
    scope: dict[str, Any] = {"np": np, "prange": numba.prange}
    exec(f"def kernel(x, o, c):\n    for i in prange(x.shape[0]):\n        r = x[i]; {body}", scope)
    return numba.njit(parallel=True)(scope["kernel"])


@cache
def _numba_loops(
    text: str, names: tuple[str, ...], constants: tuple[tuple[str, Any], ...], ndim: int, one: Any, parallel: bool
) -> Callable[..., Any]:
    numba = importlib.import_module("numba")
    scope = {"prange": numba.prange, **dict(constants)}
    scope |= {name: numba.njit(f) for name, f in _scalar_functions(one).items()}
    scope |= {name: getattr(math, name) for name in ("exp", "log", "tanh", "erf", "sqrt")}
    loops = "for i in prange(o.shape[0]):"
    loops += "\n        o[i] = " if ndim == 1 else "\n        for j in range(o.shape[1]):\n            o[i, j] = "
    exec(f"def kernel(o, {', '.join(names)}):\n    {loops}{text}", scope)
    return numba.njit(parallel=parallel)(scope["kernel"])


def _scalar_functions(one: Any) -> dict[str, Callable[..., Any]]:
    """What numba's scalar mathematics lacks; `one` carries the type, since a plain 1 would widen float32."""
    return {
        "sig": lambda v: one / (one + math.exp(-v)),
        "square": lambda v: v * v,
        "where": lambda c, a, b: a if c else b,
        "clip": lambda v, low, high: min(max(v, low), high),
    }


def substitute(text: str, head: str) -> str:
    """`text` with the names that `head` assigns replaced by what they stand for."""
    for name, value in _assignments(head):
        text = re.sub(rf"\b{name}\b", f"({value})", text)
    return text


def views(head: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays and the views of them that `head` names."""
    return {**arrays, **{name: eval(value, dict(arrays)) for name, value in _assignments(head)}}


def _assignments(head: str) -> list[list[str]]:
    return [[part.strip() for part in line.split("=", 1)] for line in head.split(";") if line.strip()]


class Engine:
    """This project: `jit=True` compiled, `jit=False` the NumPy interpreter. Shapes are taken as asked (min_dims=0)."""

    def __init__(self, backend: str, threads: int, jit: bool) -> None:
        self.name = "tensorbackend" if jit else "interpreter"
        host = {} if on_device() else {"jit": jit, "threads": threads}
        self.be = registry.allocate(backend, min_dims=0, rng_seed=0, **host)

    def known(self, text: str) -> dict[str, Any]:
        """The backend's methods that `text` calls, by name; `Absent` when the engine lacks one."""
        calls = [node.func for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
        called = {function.id for function in calls if isinstance(function, ast.Name)}
        lacking = sorted(name for name in called if not hasattr(self.be, name))
        if lacking:
            raise Absent(f"the engine has no {', '.join(lacking)}")
        return {name: getattr(self.be, name) for name in called}

    def array(self, value: np.ndarray) -> Any:
        return self.be.array(value, dtype=value.dtype)

    def contender(self, text: str, head: str, arrays: Mapping[str, np.ndarray], o: np.ndarray) -> Contender:
        """A contender for `o[:] = text`; its natural form makes a new tensor."""
        tensors = {k: self.array(v) for k, v in arrays.items()}
        contender = self.statements(f"o[:] = {text}", tensors, o, head)
        names = self.known(f"evaluate({text})") | tensors
        return replace(contender, allocate=function(f"return evaluate({text})", names, head))

    def statements(self, body: str, tensors: Mapping[str, Any], o: np.ndarray, head: str = "") -> Contender:
        """A contender that runs `body`, which writes `o`."""
        out = self.be.empty(o.shape, dtype=o.dtype)
        names = self.known(body) | dict(tensors) | {"o": out}
        return Contender(self.name, function(body, names, head), out.get, kind="ours")


@cache
def _backend(name: str, threads: int, rng_seed: int | None = 0, **settings: Any) -> Any:
    host = {"threads": threads} if name == "cpu" else {}
    return registry.allocate(name, rng_seed=rng_seed, **host, **settings)


def interpreter(threads: int = 1) -> Any:
    """The CPU's interpreter, made once."""
    return _backend("cpu", threads, jit=False)


def backend(options: Any, jit: bool = True, **settings: Any) -> Any:
    """The backend with a script's options, made once; the interpreter without `jit`."""
    return _backend(options.backend, options.threads, **settings) if jit else interpreter(options.threads)


def own(run: Callable[[], object], result: Callable[[], Any], jit: bool = True) -> Contender:
    """A contender that is this project: compiled, or with `jit=False` the interpreter. No ratio is to either."""
    return Contender("tensorbackend" if jit else "interpreter", run, result, kind="ours")


@cache
def _engine(backend: str, threads: int, jit: bool) -> Engine:
    return Engine(backend, threads, jit)


def engine(options: Any, jit: bool) -> Engine:
    """The engine with a script's options, made once."""
    return _engine(options.backend, options.threads, jit)
