# SPDX-License-Identifier: Apache-2.0
# ruff: noqa
"""Written by `./dev docs` from the source beside it and the op table: edit those."""

import functools
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, ClassVar
import numpy as np
from tensorbackend import ops
from tensorbackend.backends import watch
from tensorbackend.backends.allocation import Allocation
from tensorbackend.backends.expressions import Expressions
from tensorbackend.backends.histograms import Histograms
from tensorbackend.backends.locks import Lock
from tensorbackend.backends.marks import Marks
from tensorbackend.backends.random_numbers import RandomNumbers
from tensorbackend.backends.scratch import ScratchMemory
from tensorbackend.backends.statements import FuseBlock
from tensorbackend.backends.user_methods import UserKernels
from tensorbackend.errors import ShapeError, nearest
from tensorbackend.graph.keys import exact
from tensorbackend.graph.optree import OpTreeNode
from tensorbackend.graph.plan import Plan, Statement
from tensorbackend.graph.structure import Structure
from tensorbackend.graph.tensor import Storage, Tensor
from tensorbackend.primitives.conv import Convolution
from tensorbackend.primitives.gated import Gated
from tensorbackend.primitives.geometry import positive
from tensorbackend.primitives.hooks import LayerHooks
from tensorbackend.primitives.linear import LinearAlgebra
from tensorbackend.primitives.lookup import LookupTables
from tensorbackend.primitives.lrn import ResponseNorm
from tensorbackend.primitives.norm import Normalization
from tensorbackend.primitives.pool import Pooling
from tensorbackend.primitives.recurrent import Recurrent
from tensorbackend.primitives.regions import Regions
from tensorbackend.backends.capture import Recorder
from tensorbackend.backends.program import Program
from tensorbackend.backends.user import ElementwiseKernel, ReductionKernel
from tensorbackend.backends.xp import ArrayModule
from tensorbackend.explain import Explanation

__all__ = ['Backend', 'Block']

class _Backends(dict[str, Any]):
    def __getitem__(self, name: str) -> type[Backend]: ...
    def get(self, name: str, default: Any=None) -> Any: ...
    def values(self) -> Any: ...
    def items(self) -> Any: ...
    def copy(self) -> dict[str, Any]: ...

class Block():
    epoch, minibatch, fprop, bprop, update = range(5)

class Backend(Allocation, Expressions, RandomNumbers, UserKernels, Histograms, Marks, LinearAlgebra, Convolution, Pooling, ResponseNorm, Normalization, Recurrent, Gated, LookupTables, Regions, LayerHooks, ScratchMemory, ABC):
    bench_records: deque[watch.BenchRecord]
    _hist_rows: list[tuple[str, Tensor]]
    _events: tuple[Any, Any] | None
    _recorder: Recorder | None
    _user_kernels: dict[tuple, ElementwiseKernel | ReductionKernel]
    _default_dtype: Any
    enable_winograd: Any
    scratch_size: Any
    _most_scratch: Any
    compat_mode: Any
    min_dims: Any
    _bench: Any
    device_id: Any
    num_devices: Any
    use_pinned_mem: Any
    bsz: Any
    round_mode: Any
    deterministic: Any
    structures: Any
    _block: Any
    hist_bins: Any
    hist_offset: Any
    _turn: Any
    _lock: Any
    backends: ClassVar[dict[str, type[Backend]]]
    backend_name: ClassVar[str]
    device_type: ClassVar[int]
    _views_host: ClassVar[bool]
    default_dtypes: ClassVar[tuple[np.dtype, ...]]
    tensor_cls: ClassVar[type[Tensor]]
    def __init_subclass__(cls, **keywords: Any) -> None: ...
    def __init__(self, rng_seed: int | None=None, default_dtype: Any=np.float32, hist_bins: int=64, hist_offset: int=-48, compat_mode: str | None=None, num_devices: int | None=None, stochastic_round: bool | int | None=None, device_id: int | None=None, deterministic: bool | None=None, min_dims: int=2, bench: bool=False, enable_winograd: bool | int=True, scratch_size: int=0) -> None: ...
    @property
    def default_dtype(self) -> np.dtype: ...
    @default_dtype.setter
    def default_dtype(self, asked: Any) -> None: ...
    def _default_type(self, asked: Any) -> np.dtype: ...
    @staticmethod
    def backend_choices() -> list[str]: ...
    @staticmethod
    def allocate_backend(name: str, **kargs: Any) -> Backend: ...
    def __copy__(self) -> Backend: ...
    def __deepcopy__(self, memo: dict) -> Backend: ...
    def __reduce__(self) -> Any: ...
    @property
    def closed(self) -> bool: ...
    def cleanup_backend(self) -> None: ...
    @property
    def _min_dims(self) -> int: ...
    @property
    def bench(self) -> bool: ...
    @bench.setter
    def bench(self, wanted: bool) -> None: ...
    @functools.cached_property
    def xp(self) -> ArrayModule: ...
    def __repr__(self) -> str: ...
    def output_dim(self, X: int, S: int, padding: int | tuple[int, int], strides: int, pooling: bool=False, dilation: int=1) -> int: ...
    def set_caffe_compat(self) -> None: ...
    def check_caffe_compat(self) -> bool: ...
    def begin(self, block: int, identifier: int) -> None: ...
    def end(self, block: int, identifier: int) -> None: ...
    def execute(self, optree: Any, out: Tensor | None=None) -> Tensor: ...
    def evaluate(self, expr: Any, out: Tensor | None=None, dtype: Any=None) -> Tensor: ...
    def _assign(self, target: Tensor, value: Any) -> None: ...
    def explain(self, what: Any, *arguments: Any, repeat: int | None=None) -> Explanation: ...
    def capture(self, fn: Callable, *args: Any) -> Program: ...
    def fuse(self) -> FuseBlock: ...
    def _assign_together(self, statements: Sequence[tuple[Tensor, Any]]) -> tuple[Plan, list[Tensor], list[Any]]: ...
    def _runs_steps(self, cell: Any, run: Any, dtype: np.dtype) -> bool: ...
    @property
    def _watched(self) -> bool: ...
    def _run_group(self, plan: Plan, targets: list[Tensor], leaves: list[Any]) -> None: ...
    def _planned(self, plan: Plan) -> Any: ...
    def _tensor_at(self, layout: Structure, address: int) -> Tensor: ...
    def _array_at(self, ref: Any, address: int) -> np.ndarray: ...
    def _record_repeats(self, name: str, runs: int, milliseconds: float, flops: int) -> tuple[float, float]: ...
    @property
    def _has_graphs(self) -> bool: ...
    def _graph(self, run: Callable[[], None]) -> Callable[[], None]: ...
    def _arena_of_recipe(self, nbytes: int) -> tuple[int, int, Any] | None: ...
    def _forget_plans(self) -> None: ...
    def _forget_recipes(self) -> None: ...
    def _take_lock(self, turn: Lock) -> None: ...
    def _stand_aside(self, aside: bool) -> None: ...
    def _host_access(self) -> None: ...
    def _flush(self) -> None: ...
    def _scatter_rounded(self, target: Tensor, key: Any, value: Any) -> None: ...
    def _host_value(self, target: Tensor, value: Any) -> Any: ...
    def _rounded(self, target: Tensor, value: Any) -> OpTreeNode: ...
    def _statement_key(self, target: Tensor, value: Any) -> tuple[tuple, list[Any]]: ...
    def _call(self, op: ops.Op, params: tuple, outputs: list[Tensor], inputs: list[Tensor]) -> None: ...
    def _run_statement(self, target: Tensor, value: Any) -> None: ...
    def _schedule(self, key: tuple, statements: list[Statement], leaves: list[list[Any]]) -> Plan: ...
    def _fit(self, target: Tensor, value: Any) -> Any: ...
    def _run_planned(self, run: Any, targets: list[Tensor], leaves: list[Any]) -> None: ...
    def _gather(self, tensor: Tensor, key: Any) -> Tensor: ...
    def _scatter(self, tensor: Tensor, key: Any, value: Any) -> None: ...
    @abstractmethod
    def _allocate(self, nbytes: int) -> Storage: ...
    def _given_memory(self, memory: Any, nbytes: int) -> Storage: ...
    def _trim(self) -> None: ...
    @abstractmethod
    def _upload(self, tensor: Tensor, values: np.ndarray) -> None: ...
    def _host_view(self, tensor: Tensor) -> np.ndarray: ...
    @abstractmethod
    def _download(self, tensor: Tensor) -> np.ndarray: ...
    @abstractmethod
    def _run_plan(self, plan: Plan, targets: list[Tensor], leaves: list[Any]) -> None: ...
    @abstractmethod
    def _close(self) -> None: ...
    def add(self, a: Any, b: Any, out: Tensor | None = None) -> Any:
        """x + y."""
    def subtract(self, a: Any, b: Any, out: Tensor | None = None) -> Any:
        """x - y."""
    def multiply(self, a: Any, b: Any, out: Tensor | None = None) -> Any:
        """x y."""
    def divide(self, a: Any, b: Any, out: Tensor | None = None) -> Any:
        """x / y; true division of integers too. Edge cases: x/0 is an infinity, 0/0 NaN."""
    def true_divide(self, a: Any, b: Any, out: Tensor | None = None) -> Any:
        """x / y; true division of integers too. Edge cases: x/0 is an infinity, 0/0 NaN."""
    def power(self, a: Any, b: Any, out: Tensor | None = None) -> Any:
        """x to the power y. Edge cases: negative base with fractional exponent NaN; integers wrap, and a negative exponent gives 0 unless the base is 1 or -1."""
    def floor_divide(self, a: Any, b: Any, out: Tensor | None = None) -> Any:
        """The largest integer not above x / y. Edge cases: integer x//0 is 0."""
    def remainder(self, a: Any, b: Any, out: Tensor | None = None) -> Any:
        """x - y floor(x / y), with the sign of y. Edge cases: integer x % 0 is 0; a float's is NaN."""
    def mod(self, a: Any, b: Any, out: Tensor | None = None) -> Any:
        """x - y floor(x / y), with the sign of y. Edge cases: integer x % 0 is 0; a float's is NaN."""
    def maximum(self, a: Any, b: Any, out: Tensor | None = None) -> Any:
        """The larger of x and y. Edge cases: NaN from either side passes; a tie gives the whole gradient to both."""
    def minimum(self, a: Any, b: Any, out: Tensor | None = None) -> Any:
        """The smaller of x and y. Edge cases: NaN from either side passes; a tie gives the whole gradient to both."""
    def arctan2(self, a: Any, b: Any, out: Tensor | None = None) -> Any:
        """The angle of the point (y, x): arctan of x / y."""
    def where(self, a: Any, b: Any, c: Any, out: Tensor | None = None) -> Any:
        """y where the condition x is not zero, else z."""
    def equal(self, a: Any, b: Any, out: Tensor | None = None) -> Any:
        """1 where x == y, else 0. Edge cases: 0 if either is NaN."""
    def not_equal(self, a: Any, b: Any, out: Tensor | None = None) -> Any:
        """1 where x != y, else 0. Edge cases: 1 if either is NaN."""
    def less(self, a: Any, b: Any, out: Tensor | None = None) -> Any:
        """1 where x < y, else 0. Edge cases: 0 if either is NaN."""
    def less_equal(self, a: Any, b: Any, out: Tensor | None = None) -> Any:
        """1 where x <= y, else 0. Edge cases: 0 if either is NaN."""
    def greater(self, a: Any, b: Any, out: Tensor | None = None) -> Any:
        """1 where x > y, else 0. Edge cases: 0 if either is NaN."""
    def greater_equal(self, a: Any, b: Any, out: Tensor | None = None) -> Any:
        """1 where x >= y, else 0. Edge cases: 0 if either is NaN."""
    def logical_and(self, a: Any, b: Any, out: Tensor | None = None) -> Any:
        """1 where both are not zero."""
    def logical_or(self, a: Any, b: Any, out: Tensor | None = None) -> Any:
        """1 where either is not zero."""
    def logical_xor(self, a: Any, b: Any, out: Tensor | None = None) -> Any:
        """1 where just one is not zero."""
    def logical_not(self, a: Any, out: Tensor | None = None) -> Any:
        """1 where x is zero."""
    def finite(self, a: Any, out: Tensor | None = None) -> Any:
        """1 where x is neither infinite nor NaN."""
    def isfinite(self, a: Any, out: Tensor | None = None) -> Any:
        """1 where x is neither infinite nor NaN."""
    def isnan(self, a: Any, out: Tensor | None = None) -> Any:
        """1 where x is NaN."""
    def isinf(self, a: Any, out: Tensor | None = None) -> Any:
        """1 where x is infinite."""
    def bitwise_and(self, a: Any, b: Any, out: Tensor | None = None) -> Any:
        """x & y, bit by bit."""
    def bitwise_or(self, a: Any, b: Any, out: Tensor | None = None) -> Any:
        """x | y, bit by bit."""
    def bitwise_xor(self, a: Any, b: Any, out: Tensor | None = None) -> Any:
        """x ^ y, bit by bit."""
    def left_shift(self, a: Any, b: Any, out: Tensor | None = None) -> Any:
        """x shifted left by y bits. Edge cases: counts outside the width give 0."""
    def right_shift(self, a: Any, b: Any, out: Tensor | None = None) -> Any:
        """x shifted right by y bits, keeping the sign. Edge cases: counts outside the width give 0, or -1 for negative x."""
    def bitwise_not(self, a: Any, out: Tensor | None = None) -> Any:
        """Every bit of x flipped; of a truth value, its opposite."""
    def invert(self, a: Any, out: Tensor | None = None) -> Any:
        """Every bit of x flipped; of a truth value, its opposite."""
    def negative(self, a: Any, out: Tensor | None = None) -> Any:
        """-x; unsigned integers wrap."""
    def absolute(self, a: Any, out: Tensor | None = None) -> Any:
        """|x|. Edge cases: the most negative integer wraps to itself."""
    def fabs(self, a: Any, out: Tensor | None = None) -> Any:
        """|x|. Edge cases: the most negative integer wraps to itself."""
    def abs(self, a: Any, out: Tensor | None = None) -> Any:
        """|x|. Edge cases: the most negative integer wraps to itself."""
    def sgn(self, a: Any, out: Tensor | None = None) -> Any:
        """-1, 0 or 1. Edge cases: 0 for both zeros; NaN stays NaN."""
    def sign(self, a: Any, out: Tensor | None = None) -> Any:
        """-1, 0 or 1. Edge cases: 0 for both zeros; NaN stays NaN."""
    def rint(self, a: Any, out: Tensor | None = None) -> Any:
        """The nearest integer, halves to even."""
    def round(self, a: Any, out: Tensor | None = None) -> Any:
        """The nearest integer, halves to even."""
    def floor(self, a: Any, out: Tensor | None = None) -> Any:
        """The largest integer not above x."""
    def ceil(self, a: Any, out: Tensor | None = None) -> Any:
        """The smallest integer not below x."""
    def trunc(self, a: Any, out: Tensor | None = None) -> Any:
        """x without its fraction."""
    def square(self, a: Any, out: Tensor | None = None) -> Any:
        """x squared."""
    def sqrt(self, a: Any, out: Tensor | None = None) -> Any:
        """The square root. Edge cases: negative: NaN."""
    def exp(self, a: Any, out: Tensor | None = None) -> Any:
        """e to the x. Edge cases: overflow: infinity."""
    def exp2(self, a: Any, out: Tensor | None = None) -> Any:
        """2 to the x. Edge cases: overflow: infinity."""
    def expm1(self, a: Any, out: Tensor | None = None) -> Any:
        """exp(x) - 1, exact for small x."""
    def log(self, a: Any, out: Tensor | None = None) -> Any:
        """The natural logarithm. Edge cases: 0: -infinity; negative: NaN."""
    def log2(self, a: Any, out: Tensor | None = None) -> Any:
        """The logarithm to base 2. Edge cases: 0: -infinity; negative: NaN."""
    def log10(self, a: Any, out: Tensor | None = None) -> Any:
        """The logarithm to base 10. Edge cases: 0: -infinity; negative: NaN."""
    def log1p(self, a: Any, out: Tensor | None = None) -> Any:
        """ln(1 + x), exact for small x. Edge cases: -1: -infinity; below: NaN."""
    def safelog(self, a: Any, out: Tensor | None = None) -> Any:
        """max(ln x, -50), and -50 for x <= 0. Edge cases: NaN stays NaN."""
    def sig(self, a: Any, out: Tensor | None = None) -> Any:
        """The logistic function 1 / (1 + exp(-x)). Edge cases: never overflows."""
    def sigmoid(self, a: Any, out: Tensor | None = None) -> Any:
        """The logistic function 1 / (1 + exp(-x)). Edge cases: never overflows."""
    def sig2(self, a: Any, out: Tensor | None = None) -> Any:
        """1 / (1 + 2^-x)."""
    def tanh(self, a: Any, out: Tensor | None = None) -> Any:
        """The hyperbolic tangent."""
    def tanh2(self, a: Any, out: Tensor | None = None) -> Any:
        """(2^2x - 1) / (2^2x + 1). Edge cases: tends to -1 and 1."""
    def erf(self, a: Any, out: Tensor | None = None) -> Any:
        """The error function, 2/sqrt(pi) times the integral of exp(-t^2) to x."""
    def erfc(self, a: Any, out: Tensor | None = None) -> Any:
        """1 - erf(x), exact for large x."""
    def sin(self, a: Any, out: Tensor | None = None) -> Any:
        """The sine of x radians. Edge cases: infinity: NaN."""
    def cos(self, a: Any, out: Tensor | None = None) -> Any:
        """The cosine of x radians. Edge cases: infinity: NaN."""
    def tan(self, a: Any, out: Tensor | None = None) -> Any:
        """The tangent of x radians. Edge cases: infinity: NaN."""
    def arcsin(self, a: Any, out: Tensor | None = None) -> Any:
        """The inverse sine, in radians. Edge cases: |x| > 1: NaN."""
    def arccos(self, a: Any, out: Tensor | None = None) -> Any:
        """The inverse cosine, in radians. Edge cases: |x| > 1: NaN."""
    def arctan(self, a: Any, out: Tensor | None = None) -> Any:
        """The inverse tangent, in radians."""
    def sinh(self, a: Any, out: Tensor | None = None) -> Any:
        """The hyperbolic sine."""
    def cosh(self, a: Any, out: Tensor | None = None) -> Any:
        """The hyperbolic cosine."""
    def arcsinh(self, a: Any, out: Tensor | None = None) -> Any:
        """The inverse hyperbolic sine."""
    def arccosh(self, a: Any, out: Tensor | None = None) -> Any:
        """The inverse hyperbolic cosine. Edge cases: x < 1: NaN."""
    def arctanh(self, a: Any, out: Tensor | None = None) -> Any:
        """The inverse hyperbolic tangent. Edge cases: 1: infinity; |x| > 1: NaN."""
    def nearest_power_of_two(self, a: Any, out: Tensor | None = None) -> Any:
        """sgn(x) 2^rint(log2 |x|): the power of two nearest in the logarithm, 0 for 0."""
    def sum(self, a: Any, axis: Any = None, out: Tensor | None = None, keepdims: bool = True) -> Any:
        """The sum over the axes. Edge cases: halves add up in float32, float32 pairwise or wider; integers in 64 bits; of nothing 0."""
    def prod(self, a: Any, axis: Any = None, out: Tensor | None = None, keepdims: bool = True) -> Any:
        """The product over the axes. Edge cases: of nothing 1; where x is 0, the gradient is right to the second order."""
    def max(self, a: Any, axis: Any = None, out: Tensor | None = None, keepdims: bool = True) -> Any:
        """The largest over the axes. Edge cases: NaN passes; every tied element gets the gradient; of nothing: ShapeError."""
    def min(self, a: Any, axis: Any = None, out: Tensor | None = None, keepdims: bool = True) -> Any:
        """The smallest over the axes. Edge cases: NaN passes; every tied element gets the gradient; of nothing: ShapeError."""
    def argmax(self, a: Any, axis: Any = 1, out: Tensor | None = None, keepdims: bool = True) -> Any:
        """The first position of the largest. Edge cases: the first NaN wins; of nothing: ShapeError."""
    def argmin(self, a: Any, axis: Any = 1, out: Tensor | None = None, keepdims: bool = True) -> Any:
        """The first position of the smallest. Edge cases: the first NaN wins; of nothing: ShapeError."""
    def any(self, a: Any, axis: Any = None, out: Tensor | None = None, keepdims: bool = True) -> Any:
        """1 where any element is not zero. Edge cases: of nothing 0."""
    def all(self, a: Any, axis: Any = None, out: Tensor | None = None, keepdims: bool = True) -> Any:
        """1 where every element is not zero. Edge cases: of nothing 1."""
    def reciprocal(self, a: Any, out: Tensor | None = None) -> Any:
        """1 / a."""
    def clip(self, a: Any, a_min: Any, a_max: Any, out: Tensor | None = None) -> Any:
        """min(max(a, a_min), a_max); NaN stays NaN."""
    def rsqrt(self, a: Any, out: Tensor | None = None) -> Any:
        """1 / sqrt(a)."""
    def relu(self, a: Any, out: Tensor | None = None) -> Any:
        """max(a, 0)."""
    def leaky_relu(self, a: Any, slope: float = 0.01, out: Tensor | None = None) -> Any:
        """a where a > 0, else slope a."""
    def elu(self, a: Any, alpha: float = 1.0, out: Tensor | None = None) -> Any:
        """a where a > 0, else alpha (exp(a) - 1) (Clevert et al. 2016)."""
    def gelu(self, a: Any, approximate: bool = False, out: Tensor | None = None) -> Any:
        """a times the normal distribution function at a (Hendrycks and Gimpel 2016); `approximate` by tanh."""
    def softplus(self, a: Any, out: Tensor | None = None) -> Any:
        """ln(1 + exp(a)), without overflow."""
    def silu(self, a: Any, out: Tensor | None = None) -> Any:
        """a / (1 + exp(-a)), also called swish."""
    def hard_sigmoid(self, a: Any, out: Tensor | None = None) -> Any:
        """clip(0.2 a + 0.5, 0, 1)."""
    def isclose(self, a: Any, b: Any, rtol: float = 1e-05, atol: float = 1e-08, out: Tensor | None = None) -> Any:
        """1 where |a - b| <= atol + rtol |b|; an infinity is close to itself alone."""
    def norm(self, a: Any, axis: Any = None, keepdims: bool = True, ord: float = 2, out: Tensor | None = None) -> Any:
        """The vector norm over the axes: (sum |a|^ord)^(1/ord); `ord` 1, 2, inf, or another positive number."""
    def logsumexp(self, a: Any, axis: Any = None, keepdims: bool = True, out: Tensor | None = None) -> Any:
        """ln of the sum of exp(a), without overflow; -infinity where all a are."""
    def softmax(self, a: Any, axis: Any = None, out: Tensor | None = None) -> Any:
        """exp(a - max a) / sum exp(a - max a) over `axis` (None: all)."""
    def log_softmax(self, a: Any, axis: Any = None, out: Tensor | None = None) -> Any:
        """The logarithm of softmax: a - max a - ln sum exp(a - max a)."""
    def broadcast_to(self, x: Any, shape: tuple[int, ...], out: Tensor | None = None) -> Any:
        """`x` repeated along its axes of length 1 to `shape`."""
