# SPDX-License-Identifier: Apache-2.0
"""Gradients against differences: `check_backward` and `check_double_backward` for any function of variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorbackend import dtypes
from tensorbackend.errors import DTypeError, complain
from tensorbackend.function import arrays
from tensorbackend.function.backprop import backward, grad
from tensorbackend.function.config import using_config
from tensorbackend.function.variable import Variable, as_variable
from tensorbackend.functions.arguments import Variables, explained
from tensorbackend.graph import ranges

__all__ = ["NondifferentiableError", "check_backward", "check_double_backward", "numerical_grad"]


class NondifferentiableError(AssertionError):
    """A function that is not differentiable where its gradient was to be checked."""


@explained
def numerical_grad(
    f: Callable[[], Sequence[Any]],
    inputs: Sequence[Any],
    grad_outputs: Sequence[Any],
    eps: float = 1e-3,
    detect_nondifferentiable: bool = False,
    diff_atol: float = 0,
    diff_rtol: float = 1e-2,
    center_outputs: Sequence[Any] | None = None,
) -> tuple[Any, ...]:
    """Gradients of sum(g y) by central differences: an array like each input.

    `f()` gives a tuple of arrays computed from what `inputs` hold; each element of those is moved by `eps` and put
    back. A None in `grad_outputs` leaves that output out. With detection five points are used, and
    `NondifferentiableError` is raised where a parabola through them is off by more than `diff_atol + diff_rtol (max -
    min)`, or where some are finite and others not; `center_outputs` are the outputs at the inputs as they are. Raises
    `TypeError` for `inputs` and `grad_outputs` that are not all of one kind, `DTypeError` for inputs that are no
    floats, `ValueError` for `grad_outputs` that are not one for each output, of its shape or a number, and an `eps`
    that is not above 0.
    """
    ranges.check("numerical_grad", "above 0, and finite", eps=eps)
    places = [arrays.target(x, "numerical_grad: an input") for x in inputs]
    for x in places:
        if not dtypes.is_float(x.dtype.newbyteorder("=")):
            raise DTypeError(complain("numerical_grad: an input", f"array of {x.dtype}", "floats, which can be moved"))
    starts = [g._data if isinstance(g, Variable) else g for g in grad_outputs]
    given = [arrays.plain(g, "numerical_grad: a gradient") for g in starts if arrays.is_array(g)]
    if places:
        arrays.only_family("numerical_grad", places + given)
    weights = [None if g is None else np.asarray(_host(g), np.float64) for g in grad_outputs]
    found = []
    for x in places:
        values = np.array(_host(x))  # x itself is moved
        result = np.zeros(values.shape, np.float64)
        for index in np.ndindex(values.shape):
            moved = _Moved(f, x, values, index, weights)
            if detect_nondifferentiable:
                result[index] = _by_five(moved, weights, eps, diff_atol, diff_rtol, center_outputs)
            else:
                high, low = moved(eps), moved(-eps)
                result[index] = sum(_weighted(g, a - b) for g, a, b in zip(weights, high, low)) / (2 * eps)
        found.append(_like(result, x))
    return tuple(found)


class _Moved:
    """The outputs with one element of an input moved; the element is put back."""

    def __init__(self, f: Callable[[], Sequence[Any]], x: Any, values: np.ndarray, index: tuple[int, ...],
                 weights: list) -> None:  # fmt: skip
        self._f, self._x, self._values, self._index, self._weights = f, x, values, index, weights

    def __call__(self, distance: float) -> list[np.ndarray]:
        before = self._values[self._index]
        moved = self._values.copy()
        moved[self._index] = before + distance
        try:
            arrays.copy_into(self._x, moved)
            found = _outputs(self._f())
        finally:
            arrays.copy_into(self._x, self._values)
        _expect_one_each(self._weights, found)
        return found


def _expect_one_each(weights: list, outputs: list) -> None:
    """Raise `ValueError` unless there is a weight for each output, of its shape or a number, or None."""
    if len(weights) != len(outputs):
        given = f"{len(weights)} for {len(outputs)} outputs"
        raise ValueError(complain("numerical_grad: grad_outputs", given, "one an output; None leaves it out"))
    for i, (g, y) in enumerate(zip(weights, outputs)):
        if g is not None and (y is None or (g.size != 1 and g.shape != y.shape)):
            given = f"shape {g.shape} for output {i}, {'None' if y is None else f'of shape {y.shape}'}"
            raise ValueError(complain("numerical_grad: grad_outputs", given, "the output's shape, a number or None"))


def _outputs(found: Any) -> list[np.ndarray]:
    every = found if isinstance(found, (tuple, list)) else (found,)
    return [None if y is None else np.array(_host(y), np.float64) for y in every]


def _weighted(g: Any, difference: Any) -> float:
    return 0.0 if g is None else float(np.sum(g * difference))


def _by_five(
    moved: Callable[[float], list], weights: list, eps: float, atol: float, rtol: float, center: Any
) -> float:
    steps = (-1.0, -0.5, 0.0, 0.5, 1.0)
    points = [_outputs(center) if s == 0 and center is not None else moved(s * eps) for s in steps]
    for number, g in enumerate(weights):
        if g is not None:
            _refuse_kinks(number, np.stack([p[number].reshape(-1) for p in points]), steps, atol, rtol)
    lowest, low, _, high, highest = points
    parts = zip(weights, lowest, low, high, highest)
    return sum(_weighted(g, a - 8 * b + 8 * c - d) for g, a, b, c, d in parts) / (6 * eps)


def _refuse_kinks(number: int, values: np.ndarray, steps: tuple, atol: float, rtol: float) -> None:
    """Raise `NondifferentiableError` unless each column of `values`, taken at `steps`, is nearly a parabola."""
    finite = np.isfinite(values)
    if (finite.any(0) != finite.all(0)).any():
        raise NondifferentiableError(complain(f"output {number}: finite at some points and not at others"))
    values = values[:, finite.all(0)]
    base = np.vander(np.asarray(steps), 3)
    away = values - values[len(steps) // 2]  # exactly 0 where nothing changes: no rounding is taken for a kink
    fitted = base @ np.linalg.lstsq(base, away, rcond=None)[0]
    allowed = atol + rtol * (values.max(0) - values.min(0)) if values.size else 0
    off = np.abs(away - fitted).max(0) if values.size else np.zeros(0)
    if (off > allowed).any():
        worst = int(np.argmax(off - allowed))
        given = f"values {values[:, worst]} are off a parabola by {off[worst]:.3g}"
        raise NondifferentiableError(complain(f"output {number}: not differentiable", given))


@explained
def check_backward(
    func: Callable[..., Any],
    x_data: Any,
    y_grad: Any,
    params: Variables = (),
    eps: float = 1e-3,
    atol: float = 1e-5,
    rtol: float = 1e-4,
    no_grads: Sequence[bool] | None = None,
    dtype: Any = None,
    detect_nondifferentiable: bool = False,
) -> None:
    """Compare the gradient of `func`, along one random direction of all inputs and parameters, with differences.

    `func` maps variables to a variable or a tuple; `x_data` are arrays, `y_grad` those of the outputs (None: for one
    output of one element), `params` variables that `func` uses. `no_grads[i]` leaves input i out, which must get no
    gradient (None: integer inputs). A None in `y_grad` leaves that output out. `dtype` is what inputs and parameters
    are cast to for the differences. Raises `AssertionError` with directions, values and tolerances, and `ValueError`
    for lists of another length than inputs or outputs, and an `eps` that is not above 0.
    """
    ranges.check("check_backward", "above 0, and finite", eps=eps)
    inputs = [arrays.plain(x, "check_backward: x_data") for x in _listed(x_data)]
    params = _listed(params)
    left_out = _left_out(inputs, no_grads)
    variables = [Variable(x, requires_grad=dtypes.is_float(x.dtype)) for x in inputs]
    for p in params:
        p.cleargrad()
    outputs = _listed(func(*variables))
    grads = _start_gradients(outputs, y_grad)
    chosen = [(y, as_variable(g)) for y, g in zip(outputs, grads) if g is not None]
    backward([y for y, _ in chosen], [g for _, g in chosen])
    for i, (v, none) in enumerate(zip(variables, left_out)):
        if none and v._grad is not None:
            raise AssertionError(complain(f"check_backward: input {i} has a gradient", "", "None, as no_grads says"))
    places = [v for v, none in zip(variables, left_out) if not none] + params
    if not places:
        return
    directions = _directions([v.shape for v in places])
    analytic = sum(float(np.sum(_gradient(v) * d)) for v, d in zip(places, directions))
    line = _Line(func, inputs, params, left_out, directions, dtype)
    numeric = _slope(line, grads, eps, detect_nondifferentiable)
    _compare("check_backward", analytic, numeric, atol, rtol, directions, grads)


def _left_out(inputs: Sequence[Any], no_grads: Sequence[bool] | None) -> list[bool]:
    """Which inputs get no gradient: those that `no_grads` says, else integers."""
    if no_grads is None:
        return [not dtypes.is_float(x.dtype) for x in inputs]
    if len(no_grads) != len(inputs):
        raise ValueError(complain("no_grads", f"{len(no_grads)} for {len(inputs)} inputs", "one an input"))
    return list(no_grads)


def _gradient(v: Variable) -> np.ndarray:
    return np.zeros(v.shape) if v._grad is None else _host(v._grad).astype(np.float64)


def _directions(shapes: list[tuple[int, ...]]) -> list[np.ndarray]:
    """A random unit direction, none of whose components is negligible."""
    size = sum(int(np.prod(s, dtype=np.int64)) for s in shapes)
    flat = np.random.normal(size=size)
    flat /= max(np.sqrt(np.sum(flat * flat)), 1e-30)
    least = 0.1 / np.sqrt(max(size, 1))
    flat = np.where(flat < 0, -1.0, 1.0) * np.maximum(np.abs(flat), least)
    parts = np.split(flat, np.cumsum([int(np.prod(s, dtype=np.int64)) for s in shapes])[:-1])
    return [p.reshape(s) for p, s in zip(parts, shapes)]


class _Line:
    """The function's outputs along a direction from its inputs and parameters."""

    def __init__(self, func: Any, inputs: list, params: list, left_out: list, directions: list, dtype: Any) -> None:
        self._func, self._params, self._left_out = func, params, left_out
        self._inputs = [_cast(x, None if none else dtype) for x, none in zip(inputs, left_out)]
        self._kept = [p._data for p in params]
        self._wide = [_cast(x, dtype) for x in self._kept]
        self._directions = directions

    def __call__(self, distance: float) -> list[np.ndarray]:
        rest = iter(self._directions)
        moved = [x if none else _shifted(x, next(rest), distance) for x, none in zip(self._inputs, self._left_out)]
        try:
            for p, x in zip(self._params, self._wide):
                p.array = _shifted(x, next(rest), distance)
            with using_config("debug", False):
                return _outputs([y.array for y in _listed(self._func(*map(Variable, moved)))])
        finally:
            for p, x in zip(self._params, self._kept):
                p.array = x


def _slope(line: Callable[[float], list], grads: list, eps: float, detect: bool) -> float:
    weights = [None if g is None else _host(g).astype(np.float64) for g in grads]
    if detect:
        return _by_five(line, weights, eps, 0, 1e-2, None)
    return sum(_weighted(g, a - b) for g, a, b in zip(weights, line(eps), line(-eps))) / (2 * eps)


def _compare(
    name: str, analytic: float, numeric: float, atol: float, rtol: float, directions: list, grads: Any
) -> None:
    if np.isfinite(numeric) and abs(analytic - numeric) <= atol + rtol * abs(numeric):
        return
    raise AssertionError(
        "\n".join(
            [
                f"{name}: the gradient disagrees with differences",
                f"  by backward  {analytic!r}",
                f"  numerically  {numeric!r}",
                f"  off by {abs(analytic - numeric):.3g}, allowed {atol} + {rtol} * {abs(numeric):.3g}",
                *(f"  direction {i}: {np.array2string(d, threshold=20)}" for i, d in enumerate(directions)),
                *(f"  y_grad {i}: {g if g is None else np.array2string(_host(g), threshold=20)}"
                  for i, g in enumerate(grads)),
            ]
        )
    )  # fmt: skip


@explained
def check_double_backward(
    func: Callable[..., Any],
    x_data: Any,
    y_grad: Any,
    x_grad_grad: Any,
    params: Variables = (),
    params_grad_grad: Any = (),
    eps: float = 1e-3,
    atol: float = 1e-4,
    rtol: float = 1e-3,
    no_grads: Sequence[bool] | None = None,
    dtype: Any = None,
    detect_nondifferentiable: bool = False,
) -> None:
    """`check_backward` of the map from inputs and output gradients to the inputs' gradients, along `x_grad_grad`.

    `params_grad_grad` are those of the parameters. The rest is as in `check_backward`. Raises `ValueError` for lists of
    another length than the inputs' or parameters'.
    """
    inputs, params = _listed(x_data), _listed(params)
    count = len(inputs)
    left_out = _left_out(inputs, no_grads)
    given = [] if y_grad is None else _listed(y_grad)
    starts = [g for g in given if g is not None]

    def first_order(*every: Variable) -> tuple[Variable, ...]:
        xs = every[:count]
        outputs = _listed(func(*xs))
        rest = iter(every[count:])
        weights = None if y_grad is None else [g if g is None else next(rest) for g in given]
        pairs = zip(outputs, _start_gradients(outputs, weights))
        chosen = [(y, as_variable(g)) for y, g in pairs if g is not None]
        places = [*(x for x, none in zip(xs, left_out) if not none), *params]
        found = grad([y for y, _ in chosen], places, [g for _, g in chosen], enable_double_backprop=True)
        return tuple(_zeros(p) if g is None else g for p, g in zip(places, found))

    along = _listed(x_grad_grad)
    if len(along) != count:
        raise ValueError(complain("x_grad_grad", f"{len(along)} for {count} inputs", "one an input"))
    along_params = _listed(params_grad_grad)
    if len(along_params) != len(params):
        given = f"{len(along_params)} for {len(params)} parameters"
        raise ValueError(complain("params_grad_grad", given, "one a parameter"))
    second = [g for g, none in zip(along, left_out) if not none] + along_params
    check_backward(first_order, (*inputs, *starts), second, params, eps, atol, rtol, left_out + [False] * len(starts),
                   dtype, detect_nondifferentiable)  # fmt: skip


def _zeros(p: Variable) -> Variable:
    return as_variable(arrays.filled_like(p._data, 0))


def _start_gradients(outputs: list[Variable], y_grad: Any) -> list[Any]:
    if y_grad is not None:
        grads = [g if g is None or isinstance(g, Variable) else arrays.plain(g, "y_grad") for g in _listed(y_grad)]
        if len(grads) != len(outputs):
            raise ValueError(complain("y_grad", f"{len(grads)} for {len(outputs)} outputs", "one an output"))
        return grads
    if len(outputs) != 1 or outputs[0].size != 1:
        given = ", ".join(str(y.shape) for y in outputs)
        raise ValueError(complain("y_grad is needed", f"outputs {given}", "one output of one element"))
    return [arrays.filled_like(outputs[0]._data, 1)]


def _listed(x: Any) -> list[Any]:
    return list(x) if isinstance(x, (tuple, list)) else [x]


def _host(x: Any) -> np.ndarray:
    raw = x._data if isinstance(x, Variable) else x
    return np.asarray(raw) if isinstance(raw, (np.ndarray, float, int)) else arrays.moved(arrays.plain(raw), None)


def _cast(x: Any, dtype: Any) -> Any:
    """A plain array as another floating type; integers, and all with a dtype of None, as they are."""
    if dtype is None or not dtypes.is_float(x.dtype):
        return x
    return _like(_host(x).astype(np.float64), x, dtypes.as_dtype(dtype))


def _shifted(x: Any, direction: np.ndarray, distance: float) -> Any:
    return _like(_host(x).astype(np.float64) + direction * distance, x)


def _like(values: np.ndarray, x: Any, dtype: Any = None) -> Any:
    kind = dtypes.as_dtype(dtype or x.dtype)
    return arrays.moved(np.asarray(values, kind), arrays.backend_of(x))
