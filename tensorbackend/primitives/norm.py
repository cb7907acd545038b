# SPDX-License-Identifier: Apache-2.0
"""Batch, layer and group normalisation: both passes, as groups of statements over one space.

A group becomes one kernel in which a row goes through all passes while it is in cache: means and variances, then what
follows from them; every backend makes that kernel itself. Variances are sums of squares of distances from a number near
the mean (Chan, Golub and LeVeque 1983): elements far from 0 and close together lose nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tensorbackend import dtypes
from tensorbackend.errors import DTypeError, ShapeError, complain
from tensorbackend.graph import composite, ranges
from tensorbackend.graph.keys import exact
from tensorbackend.graph.optree import Operators, apply
from tensorbackend.graph.tensor import Tensor
from tensorbackend.ops import OPS
from tensorbackend.primitives import operands
from tensorbackend.primitives.steps import Steps

__all__ = ["Normalization"]

SHORT, LONG = 1 << 9, 1 << 12
"""Elements of a row up to which its variance takes a pass of its own over what is in cache, on a host and on a device:
where it takes none, a kernel before looks at a sample of each row."""
FEW = 1 << 16
"""Elements of all rows up to which a host takes longer for such a kernel than for the pass."""
SAMPLE = 64
"""One of so many elements of a long row is looked at for a number near its mean."""
ROWS_OF_A_DEVICE = 128
"""Rows from which on a device with thousands of threads is busy with one block of them a row."""
FLOPS = 10
"""Operations for each element, about."""

Axes = tuple[int, ...]
Statements = list[tuple[Tensor, Any]]


class _Moments(NamedTuple):
    """The moments of rows. The mean is `near` + `rest` (None: 0), a number that is held exactly and a small one;
    `bounded`: of at most sqrt(2 SAMPLE) standard deviations."""

    near: Any
    rest: Any
    variance: Any
    bounded: bool = False

    @property
    def mean(self) -> Any:
        """The mean, rounded to the type that computes."""
        return self.near if self.rest is None else self.near + self.rest

    def away(self, x: Any) -> Any:
        """Distances from the mean."""
        return x - self.near if self.rest is None else x - self.near - self.rest

    def scaled(self, x: Any, scale: Any, offset: Any) -> Any:
        """Distances from the mean times `scale`, plus `offset`: one subtraction less where `rest` is bounded."""
        if self.bounded:
            return (x - self.near) * scale + (offset - self.rest * scale)
        return self.away(x) * scale + offset


def _total(x: Any, axes: Axes) -> Any:
    return apply(OPS["sum"], x, params=(axes,))


def _product(a: Any, b: Any, binary: bool = False) -> Any:
    """a b, or a times the power of two that is nearest to b."""
    return a * (apply(OPS["pow2near"], b) if binary else b)


def _count(x: Tensor, axes: Axes) -> int:
    return math.prod(x.shape[a] for a in axes)


def _is_apart(x: Tensor, axes: Axes) -> bool:
    """Whether sums are computed by a kernel of their own: where few long rows would leave threads idle, and where a
    kernel over x has nothing to run over."""
    fewest = ROWS_OF_A_DEVICE if x.backend.device_type == 1 else 2
    return not x.size or _count(x, axes) > LONG and x.size < fewest * _count(x, axes)


def _computed(steps: Steps, dtype: np.dtype, *values: Any) -> list[Tensor]:
    """Values over one space in tensors of their own."""
    made = [steps.new(value.shape, dtypes.compute(dtype)) for value in values]
    steps.assign(list(zip(made, values)))
    return made


def _sums(steps: Steps, x: Tensor, axes: Axes, *values: Any) -> list[Any]:
    """The sums of values over axes of x's space: nodes, or tensors where they are computed apart."""
    sums = [_total(value, axes) for value in values]
    return _computed(steps, x.dtype, *sums) if _is_apart(x, axes) else sums


def _first(steps: Steps, x: Tensor, axes: Axes, count: int) -> Tensor:
    """The first elements along axes."""
    return steps.part(x, tuple(slice(0, count) if a in axes else slice(None) for a in range(len(x.shape))))


def _moments(steps: Steps, x: Tensor, axes: Axes, kept: bool, binary: bool = False) -> _Moments:
    """The moments over axes; `kept`: x is not overwritten. The square of `binary` is x times a power of two.

    Distances are from the first element, or for long rows from the mean of one element in `SAMPLE`. That one is at most
    sqrt(2 SAMPLE) standard deviations from the mean of all, so the variance, one difference of two sums, is right to
    some SAMPLE roundings whatever the numbers.
    """
    count = _count(x, axes)
    shortest = LONG if x.backend.device_type == 1 or x.size <= FEW else SHORT
    if count <= shortest or binary:
        near = _first(steps, x, axes, 1)
        near = near if kept else _computed(steps, x.dtype, near)[0]
        rest = _total(x - near, axes) / float(count)
        away = x - near - rest
        return _Moments(near, rest, _total(_product(away, away, binary), axes) / float(count))
    longest = max(axes, key=lambda a: x.shape[a])
    sample = _first(steps, x, (longest,), max(x.shape[longest] // SAMPLE, 1))
    (near,) = _computed(steps, x.dtype, composite.mean(sample, axes))
    away = x - near
    total, squares = _sums(steps, x, axes, away, away * away)
    rest = total / float(count)
    return _Moments(near, rest, composite.maximum(squares / float(count) - rest * rest, 0.0), bounded=True)


def _moments_around(steps: Steps, x: Tensor, axes: Axes, mean: Any, binary: bool) -> _Moments:
    """The moments over axes where the mean is given."""
    away = x - mean
    (squares,) = _sums(steps, x, axes, _product(away, away, binary))
    return _Moments(mean, None, squares / float(_count(x, axes)))


def _normalised(x: Tensor, by: _Moments, gamma: Any, beta: Any, eps: float, binary: bool = False) -> Any:
    """gamma (x - mean) / sqrt(variance + eps) + beta."""
    scale = composite.rsqrt(by.variance + eps)
    if binary:
        return _product(_product(by.away(x), scale, True), gamma, True) + beta
    return by.scaled(x, scale * gamma, beta)


def _added(value: Any, y: Tensor, accumbeta: float, relu: bool) -> Any:
    """The value, after the ReLU if asked, and y's old content times `accumbeta`."""
    value = composite.relu(value) if relu else value
    return value if accumbeta == 0 else value + y * accumbeta


def _assign(steps: Steps, x: Tensor, axes: Axes, rows: Statements, whole: tuple[Tensor, Any]) -> None:
    """Assign results of rows, and what has x's space, in one kernel if there is one."""
    if _is_apart(x, axes):
        steps.assign(rows)
        rows = []
    steps.assign([*rows, whole])


# Operands


class _Operands:
    """What a call reads and writes, checked; `operands[letter]` is a tensor of the shape in which kernels see it: a
    view, or a copy where there is no such view."""

    def __init__(self, backend: Any, name: str, dtype: np.dtype, columns: tuple[int, ...]) -> None:
        self.backend, self.name, self.dtype, self.columns = backend, name, dtype, columns
        self.given: dict[str, operands.Shaped] = {}
        self.seen: dict[str, Tensor] = {}
        self.written: tuple[str, ...] = ()
        self.over = ""

    def take(self, shape: tuple[int, ...], dtype: np.dtype | None = None, **named: Any) -> None:
        """Operands of one size and type (None: x's). Raises `TypeError`, `DTypeError`, `ShapeError`, `BackendError`."""
        operands.check(self.name, dtype or self.dtype, **{letter: (x, shape) for letter, x in named.items()})
        for letter, x in named.items():
            operands.check_home(self.backend, x)
            self.given[letter] = (x, shape)

    def take_columns(self, **named: Any) -> None:
        """Operands with one element for each row, of the type that computes."""
        self.take(self.columns, dtypes.compute(self.dtype), **named)

    def writes(self, *letters: str, over: str) -> None:
        """Name those that are written; the first may be the very memory of `over`. Raises `ValueError` for overlaps."""
        self.written, self.over = letters, over
        for letter in letters:
            out, _ = self.given[letter]
            others = {k: x for k, (x, _) in self.given.items() if k != letter}
            if letter == letters[0] and _is_same(out, others[over]):
                del others[over]
            operands.check_output(f"{self.name}: {letter}", out, *others.values())

    @property
    def kept(self) -> bool:
        """Whether what may be overwritten is not."""
        return not _is_same(self.given[self.written[0]][0], self.given[self.over][0])

    def __getitem__(self, letter: str) -> Tensor:
        found = self.seen.get(letter)
        if found is None:
            x, shape = self.given[letter]
            view = x if x.shape == shape else composite.reshape(x, shape)
            found = self.seen[letter] = view if isinstance(view, Tensor) else self.backend.evaluate(view)
        return found

    def run(self, repeat: int, body: Callable[[Steps], None], *form: Any) -> tuple[float, float] | None:
        """Run the call, or time it; results that are in copies go where they belong. `form` are its numbers."""
        tensors = [self[letter] for letter in self.given]
        plain = all(type(number) in (bool, int, float) for number in form) and not self.backend._watched
        plain = plain and not (self.backend.round_mode or any(x.rounding for x in tensors))
        first = {id(x): number for number, x in reversed(list(enumerate(tensors)))}
        which = tuple((x.structure, first[id(x)]) for x in tensors)
        key = (self.name, self.kept, exact(form), *which) if plain else None

        def once() -> None:
            steps = self.backend.structures.plans.get(key) if plain else None
            if steps is not None:
                steps.again(tensors)
                return
            steps = Steps(self.backend, tensors)
            body(steps)
            if plain:
                steps.remember(key)

        work = FLOPS * math.prod(self.given["x"][1])
        times = operands.repeated(self.backend, repeat, once, work, self.name)
        for letter in self.written:
            out, shape = self.given[letter]
            if out.shape != shape and not isinstance(composite.reshape(out, shape), Tensor):
                operands.assign(out, self[letter])
        return times


def _is_same(x: Any, y: Any) -> bool:
    """Whether both are tensors and one view of one memory."""
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        return False
    return (x.address, x.shape, x.strides) == (y.address, y.shape, y.strides)


def _check_factors(name: str, eps: Any, rho: Any = 0.0) -> None:
    """Raise `TypeError` or `ValueError` for what is added to variances, and for the share that averages keep."""
    operands.check_numbers(name, eps=eps, rho=rho)
    ranges.check(name, "0 or more, and finite", eps=eps)
    ranges.check(name, "0 to 1", rho=rho)


def _check_operand(name: str, letter: str, x: Any) -> None:
    if not isinstance(x, Operators):
        raise TypeError(complain(f"{name}: {letter}", type(x).__name__, "a tensor", "be.array(x)"))
    if not dtypes.is_float(x.dtype):
        raise DTypeError(complain(f"{name}: type of {letter}", str(x.dtype), "a float type"))
    if x.shape is None or len(x.shape) != 2:
        raise ShapeError(complain(f"{name}: shape of {letter}", f"{x.shape}", "two axes", "x.reshape(K, -1)"))


def _batch(backend: Any, name: str, x: Any, **others: Any) -> _Operands:
    """The operands of a batch normalisation: x (K, n), and others of its size and type."""
    _check_operand(name, "x", x)
    at = _Operands(backend, name, x.dtype, (x.shape[0], 1))
    at.take(x.shape, x=x, **others)
    return at


class _Groups(_Operands):
    """The operands of a group normalisation, in the shape (groups, maps of a group, pixels, images)."""

    axes = (1, 2)

    def __init__(self, backend: Any, name: str, x: Any, gamma: Any, groups: int, **others: Any) -> None:
        _check_operand(name, "x", x)
        _check_operand(name, "gamma", gamma)
        maps, (rows, images) = math.prod(gamma.shape), x.shape
        if not isinstance(groups, (int, np.integer)) or groups < 1 or maps % groups:
            raise ShapeError(complain(f"{name}: groups", f"{groups!r} of {maps} maps", f"a divisor of {maps}"))
        if not maps or rows % maps:
            given = f"x {x.shape}, gamma of {maps} elements"
            raise ShapeError(complain(f"{name}: shapes", given, "x (maps pixels, images), a gamma for each map"))
        groups = int(groups)
        super().__init__(backend, name, x.dtype, (groups, maps // groups, 1, 1))
        _check_some(name, rows, x.shape)
        self.take((groups, maps // groups, rows // maps, images), x=x, **others)
        self.rows = (groups, 1, 1, images)

    def fprop(self, mean: Any, var: Any, gamma: Any, beta: Any, eps: float, accumbeta: float, relu: bool,
              repeat: int) -> tuple[float, float] | None:  # fmt: skip
        """The forward pass, as `compound_fprop_gn` says."""
        operands.check_numbers(self.name, accumbeta=accumbeta)
        _check_factors(self.name, eps)
        self.take_columns(gamma=gamma, beta=beta)
        self.take(self.rows, dtypes.compute(self.dtype), mean=mean, var=var)
        self.writes("y", "mean", "var", over="x")

        def run(steps: Steps) -> None:
            by = _moments(steps, self["x"], self.axes, self.kept)
            value = _normalised(self["x"], by, self["gamma"], self["beta"], eps)
            rows = [(self["mean"], by.mean), (self["var"], by.variance)]
            _assign(steps, self["x"], self.axes, rows, (self["y"], _added(value, self["y"], accumbeta, relu)))

        return self.run(repeat, run, eps, accumbeta, relu)

    def bprop(self, grad_gamma: Any, grad_beta: Any, mean: Any, var: Any, gamma: Any, eps: float,
              repeat: int) -> tuple[float, float] | None:  # fmt: skip
        """The backward pass, as `compound_bprop_gn` says."""
        _check_factors(self.name, eps)
        self.take_columns(gamma=gamma, grad_gamma=grad_gamma, grad_beta=grad_beta)
        self.take(self.rows, dtypes.compute(self.dtype), mean=mean, var=var)
        self.writes("delta_out", "grad_gamma", "grad_beta", over="delta_in")

        def run(steps: Steps) -> None:
            x, error, count = self["x"], self["delta_in"], float(_count(self["x"], self.axes))
            scale = composite.rsqrt(self["var"] + eps)
            hat = (x - self["mean"]) * scale
            by_gamma, by_beta = _total(hat * error, (2, 3)), _total(error, (2, 3))
            steps.assign([(self["grad_gamma"], by_gamma), (self["grad_beta"], by_beta)])
            slope = error * self["gamma"]
            total, along = _sums(steps, x, self.axes, slope, hat * slope)
            delta = (slope - (hat * along + total) * (1.0 / count)) * scale
            _assign(steps, x, self.axes, [], (self["delta_out"], delta))

        return self.run(repeat, run, eps)


def _check_some(name: str, count: int, shape: tuple[int, ...]) -> None:
    if count == 0:
        raise ShapeError(complain(f"{name}: nothing to take moments of", f"x {shape}", "at least one element a row"))


def _batch_moments(steps: Steps, at: _Operands, compute_batch_sum: bool, binary: bool) -> _Moments:
    x = at["x"]
    if compute_batch_sum:
        return _moments(steps, x, (1,), at.kept, binary)
    return _moments_around(steps, x, (1,), at["xsum"] / float(x.shape[1]), binary)


def _running(at: _Operands, by: _Moments, rho: float, compute_batch_sum: bool) -> Statements:
    """What training leaves of a batch: its sums and variances, and the running averages."""
    sums = [(at["xsum"], by.mean * float(at["x"].shape[1]))] if compute_batch_sum else []
    averages = [(at[k], at[k] * rho + value * (1 - rho)) for k, value in (("gmean", by.mean), ("gvar", by.variance))]
    return [*sums, (at["xvar"], by.variance), *averages]


class Normalization:
    """Batch, layer and group normalisation; `Backend` inherits it."""

    def compound_fprop_bn(self, x: Any, xsum: Any, xvar: Any, gmean: Any, gvar: Any, gamma: Any, beta: Any, y: Any,
                          eps: float, rho: float, compute_batch_sum: bool, accumbeta: float = 0.0, relu: bool = False,
                          threads: Any = None, repeat: int = 1, binary: bool = False, inference: bool = False,
                          outputs: Any = None, layer: Any = None) -> tuple[float, float] | None:  # fmt: skip
        """y = r(gamma (x - mean) / sqrt(var + eps) + beta) + accumbeta y, with r = max(·, 0) if `relu`.

        x (K, n), a row for each map; y of its size and type, which may be x itself. All others (K, 1), in float32, or
        float64 for such an x. Training: `xsum` becomes the sums of rows (`compute_batch_sum`) or gives them, `xvar`
        their variances (by n); gmean = rho gmean + (1 - rho) mean, and so gvar. `inference` takes mean and variance
        from `gmean` and `gvar`, and writes y alone. `binary`: a product takes the power of two nearest to its second
        factor, a square is such a product. `repeat` > 1 runs it as often, for timing: (milliseconds, GFLOP/s).
        `threads`, `outputs` and `layer` have no effect. Raises `ShapeError`, `DTypeError`, and `ValueError` for memory
        that overlaps.
        """
        operands.check_numbers("compound_fprop_bn", accumbeta=accumbeta)
        _check_factors("compound_fprop_bn", eps, rho)
        at = _batch(self, "compound_fprop_bn", x, y=y)
        at.take_columns(gamma=gamma, beta=beta, gmean=gmean, gvar=gvar)
        if inference:
            at.writes("y", over="x")
        else:
            _check_some(at.name, x.shape[1], x.shape)
            at.take_columns(xsum=xsum, xvar=xvar)
            at.writes("y", *(["xsum"] if compute_batch_sum else []), "xvar", "gmean", "gvar", over="x")

        def run(steps: Steps) -> None:
            by = _Moments(at["gmean"], None, at["gvar"])
            by = by if inference else _batch_moments(steps, at, compute_batch_sum, binary)
            rows = [] if inference else _running(at, by, rho, compute_batch_sum)
            value = _normalised(at["x"], by, at["gamma"], at["beta"], eps, binary)
            _assign(steps, at["x"], (1,), rows, (at["y"], _added(value, at["y"], accumbeta, relu)))

        return at.run(repeat, run, eps, rho, bool(compute_batch_sum), accumbeta, relu, binary, inference)

    def compound_bprop_bn(self, delta_out: Any, grad_gamma: Any, grad_beta: Any, delta_in: Any, x: Any, xsum: Any,
                          xvar: Any, gamma: Any, eps: float, threads: Any = None, repeat: int = 1, binary: bool = False,
                          layer: Any = None) -> tuple[float, float] | None:  # fmt: skip
        """The gradients of training by x, gamma and beta, from the error `delta_in` of its result.

        With h = (x - mean) / sqrt(var + eps): grad_gamma = sum h delta_in and grad_beta = sum delta_in along rows,
        delta_out = (delta_in - (h grad_gamma + grad_beta) / n) gamma / sqrt(var + eps), which may be delta_in itself.
        x, `xsum` and `xvar` are those of `compound_fprop_bn`, and so are types, shapes, `binary`, `repeat` and errors.
        """
        _check_factors("compound_bprop_bn", eps)
        at = _batch(self, "compound_bprop_bn", x, delta_in=delta_in, delta_out=delta_out)
        at.take_columns(grad_gamma=grad_gamma, grad_beta=grad_beta, xsum=xsum, xvar=xvar, gamma=gamma)
        at.writes("delta_out", "grad_gamma", "grad_beta", over="delta_in")

        def run(steps: Steps) -> None:
            images, error, count = at["x"], at["delta_in"], float(max(x.shape[1], 1))
            scale = composite.rsqrt(at["xvar"] + eps)
            hat = _product(images - at["xsum"] / count, scale, binary)
            by_beta, by_gamma = _sums(steps, images, (1,), error, _product(hat, error, binary))
            away = error - (_product(hat, by_gamma, binary) + by_beta) * (1.0 / count)
            delta = _product(_product(away, at["gamma"], binary), scale, binary)
            rows = [(at["grad_gamma"], by_gamma), (at["grad_beta"], by_beta)]
            _assign(steps, images, (1,), rows, (at["delta_out"], delta))

        return at.run(repeat, run, eps, binary)

    def compound_fprop_gn(self, x: Any, mean: Any, var: Any, gamma: Any, beta: Any, y: Any, groups: int, eps: float,
                          accumbeta: float = 0.0, relu: bool = False,
                          repeat: int = 1) -> tuple[float, float] | None:  # fmt: skip
        """Group normalisation (Wu and He 2018): y = r(gamma (x - mean) / sqrt(var + eps) + beta) + accumbeta y.

        x (maps pixels, images); each image's maps are cut into `groups` that follow each other, of which `mean` and
        `var` (groups, images) become the moments. gamma and beta (maps, 1); y is of x's size and type and may be x.
        As many groups as maps are instance normalisation. `relu`, `repeat`, types and errors as `compound_fprop_bn`.
        """
        at = _Groups(self, "compound_fprop_gn", x, gamma, groups, y=y)
        return at.fprop(mean, var, gamma, beta, eps, accumbeta, relu, repeat)

    def compound_bprop_gn(self, delta_out: Any, grad_gamma: Any, grad_beta: Any, delta_in: Any, x: Any, mean: Any,
                          var: Any, gamma: Any, groups: int, eps: float,
                          repeat: int = 1) -> tuple[float, float] | None:  # fmt: skip
        """The gradients of group normalisation by x, gamma and beta, from the error `delta_in` of its result.

        `mean` and `var` are those of `compound_fprop_gn`; delta_out may be delta_in itself. The rest as there.
        """
        at = _Groups(self, "compound_bprop_gn", x, gamma, groups, delta_in=delta_in, delta_out=delta_out)
        return at.bprop(grad_gamma, grad_beta, mean, var, gamma, eps, repeat)

    def compound_fprop_ln(self, x: Any, mean: Any, var: Any, gamma: Any, beta: Any, y: Any, eps: float,
                          accumbeta: float = 0.0, relu: bool = False,
                          repeat: int = 1) -> tuple[float, float] | None:  # fmt: skip
        """Layer normalisation (Ba et al. 2016): group normalisation with one group; `mean` and `var` (1, images).

        x (features, images) with gamma and beta (features, 1); or fewer of them, one for each map of some pixels.
        """
        at = _Groups(self, "compound_fprop_ln", x, gamma, 1, y=y)
        return at.fprop(mean, var, gamma, beta, eps, accumbeta, relu, repeat)

    def compound_bprop_ln(self, delta_out: Any, grad_gamma: Any, grad_beta: Any, delta_in: Any, x: Any, mean: Any,
                          var: Any, gamma: Any, eps: float, repeat: int = 1) -> tuple[float, float] | None:  # fmt: skip
        """The gradients of layer normalisation: `compound_bprop_gn` with one group."""
        at = _Groups(self, "compound_bprop_ln", x, gamma, 1, delta_in=delta_in, delta_out=delta_out)
        return at.bprop(grad_gamma, grad_beta, mean, var, gamma, eps, repeat)
