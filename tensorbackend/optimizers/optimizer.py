# SPDX-License-Identifier: Apache-2.0
"""What optimizers share: the target, the count of steps, hyperparameters, hooks, rules, loss scaling."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

from tensorbackend import dtypes
from tensorbackend.errors import KeyRefused, complain
from tensorbackend.function import arrays
from tensorbackend.function.backprop import backward
from tensorbackend.function.ready import listeners
from tensorbackend.function.variable import Variable
from tensorbackend.graph import composite as o
from tensorbackend.graph import ranges

__all__ = ["GradientMethod", "Hyperparameter", "Optimizer", "UpdateRule"]

FIRST_SCALE = 2.0**14
"""Where a loss scale begins that adapts itself."""

MOST_SCALE = 2.0**15
"""The largest that it becomes: the next power of two is infinite in float16."""


class Hyperparameter:
    """Numbers of a method, as attributes; what is not set is the `parent`'s. Those that the `ranges` of the `method`
    (None: the parent's) name are refused outside of these, by `ValueError` or `TypeError`."""

    def __init__(self, parent: Hyperparameter | None = None, method: type | None = None, /, **values: Any) -> None:
        self.__dict__["_parent"] = parent
        self.__dict__["_method"] = method or (None if parent is None else parent.__dict__["_method"])
        for name, value in values.items():
            setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if self.__dict__["_method"] is not None:
            ranges.check_named(self.__dict__["_method"], name, value)
        self.__dict__[name] = value

    def __getattr__(self, name: str) -> Any:
        parent = self.__dict__.get("_parent")
        if parent is None or name.startswith("_"):
            raise AttributeError(f"no hyperparameter {name!r}")
        return getattr(parent, name)

    def get_dict(self) -> dict[str, Any]:
        """The numbers that hold, by name."""
        found = {} if self._parent is None else self._parent.get_dict()
        found.update(self.__dict__)
        del found["_parent"], found["_method"]
        return found

    def snapshot(self) -> SimpleNamespace:
        """The numbers that hold now, as attributes: one look-up for all of them."""
        return SimpleNamespace(**self.get_dict())

    def __repr__(self) -> str:
        return f"Hyperparameter({', '.join(f'{k}={v!r}' for k, v in self.get_dict().items())})"


class UpdateRule:
    """How one parameter is changed. Subclasses say which `states` there are, and define `step(p, g)` on tensors.

    `hyperparam` holds the method's numbers, which may be set for this parameter alone; a rule that is not `enabled`
    leaves the parameter as it is. `state` are the arrays, made at the first step, for halves of float32.
    """

    states: tuple[str, ...] = ()

    def __init__(self, hyperparam: Hyperparameter, **values: Any) -> None:
        self.hyperparam = Hyperparameter(hyperparam, **values)
        self.enabled = True
        self.state: dict[str, Any] = {}
        self.clock: Any = None
        self.fp32 = False

    def __copy__(self) -> UpdateRule:
        """A rule with the same state and numbers, whose numbers can be set by themselves."""
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__, hyperparam=copy.copy(self.hyperparam))
        return made

    def update(self, p: Any) -> None:
        """Change the parameter by its gradient, if it has one."""
        if not self.enabled or p._data is None or p._grad is None:
            return
        data = arrays.tensor_of(p._data)
        if type(p._data) is np.ndarray:
            p._data = data._array  # a copy, where no tensor can lie in the memory given
        grad = arrays.tensor_of(p.grad_var._data)
        self._prepare(p)
        if "master" in self.state:
            master = arrays.tensor_of(self.state["master"])
            if not data.rounding:
                _follow(master, data)
            self.step(master, grad)
            data[:] = master
        else:
            self.step(data, grad)

    def step(self, p: Any, g: Any) -> None:
        """Change the tensor `p` and the state by the gradient `g`."""
        raise NotImplementedError(complain(f"{type(self).__name__}: no step", "", "step(self, p, g)"))

    def tensors(self) -> list[Any]:
        """The state as tensors, in the order of `states`."""
        return [arrays.tensor_of(self.state[name]) for name in self.states]

    def _prepare(self, p: Any) -> None:
        """Have the state beside the parameter."""
        device = arrays.backend_of(p._data)
        for name, x in self.state.items():
            if arrays.backend_of(x) is not device:
                self.state[name] = arrays.moved(x, device)
        if not self.fp32:
            self.state.pop("master", None)
        elif dtypes.is_half(p._data.dtype) and "master" not in self.state:
            wide = arrays.zeros(device, p._data.shape, np.dtype(np.float32))
            arrays.copy_into(wide, p._data)
            self.state["master"] = wide
        for name in self.states:
            if name not in self.state:
                self.state[name] = arrays.zeros(device, p._data.shape, _state_type(p))

    def serialize(self, serializer: Any, p: Any) -> None:
        """Save or load the state. Raises `ValueError` for a state of another shape than the parameter."""
        for name in (*self.states, *(("master",) if self.fp32 else ())):
            if name not in self.state and p._data is not None and hasattr(serializer, "expect"):
                serializer.expect(name, p.shape, p.dtype)
            found = serializer(name, arrays.presented(self.state.get(name)))
            if found is None:  # there was none when it was saved
                self.state.pop(name, None)
            elif name not in self.state:
                made = arrays.zeros(p.device, found.shape, _state_type(p))
                arrays.copy_into(made, arrays.plain(found))
                self.state[name] = made


def _state_type(p: Any) -> np.dtype:
    """The type of a parameter's state: that in which its step is computed. In halves the square of a small gradient
    would be 0, by which the step is divided, and a mean that moves by a thousandth would stay where it is."""
    return dtypes.compute(np.dtype(p.dtype))


def _follow(master: Any, data: Any) -> None:
    """Take over what is not the master's number rounded: it was loaded, or written by others, since the last step."""
    rounded = arrays.fresh(data.backend, data.shape, data.dtype)
    rounded[:] = master
    master[:] = o.where(rounded == data, master, data)


class Optimizer:
    """Changes the parameters of a link, `target`. `t` counts steps, `epoch` what `new_epoch` was called for; `comm` is
    the communicator of a `distributed_optimizer`, else None."""

    def __init__(self) -> None:
        self.target: Any = None
        self.comm: Any = None
        self.t = 0
        self.epoch = 0
        self._loss_scale: float | None = None
        self._interval: int | None = None  # the steps after which the loss scale doubles; None: it stays
        self._good_steps = 0
        self._overflows: dict[Any, Any] = {}  # on each backend: 1 where a gradient is not finite
        self.check_nan_in_grads = False
        self._pre: dict[str, Callable] = {}
        self._post: dict[str, Callable] = {}

    def setup(self, link: Any) -> Optimizer:
        """Take a link as target. Returns the optimizer. Raises `TypeError` for what has no parameters."""
        if not callable(getattr(link, "params", None)):
            hint = "tb.ChainList(*links) makes one of several"
            raise TypeError(complain("setup", type(link).__name__, "a link", hint))
        self.target = link
        self.t = self.epoch = 0
        return self

    def _expect_target(self, what: str) -> None:
        if self.target is None:
            raise RuntimeError(complain(f"{what}: no target", "", "a link", "optimizer.setup(link)"))

    def new_epoch(self) -> None:
        """Count an epoch."""
        self.epoch += 1

    def add_hook(self, hook: Callable, name: str | None = None, timing: str = "auto") -> None:
        """Call `hook(optimizer)` in each step, before ('pre') or after ('post') parameters change.

        'auto' is the hook's own `timing`. Raises `KeyError` for a name that is taken, `ValueError` for another timing,
        `TypeError` for what cannot be called.
        """
        if not callable(hook):
            raise TypeError(complain("add_hook", type(hook).__name__, "a function of the optimizer"))
        when = getattr(hook, "timing", "pre") if timing == "auto" else timing
        if when not in ("pre", "post"):
            raise ValueError(complain("add_hook: timing", repr(timing), "'auto', 'pre' or 'post'"))
        key = name or getattr(hook, "name", None) or getattr(hook, "__name__", type(hook).__name__)
        if key in self._pre or key in self._post:
            raise KeyRefused(complain("optimizer: a hook of this name", repr(key), "another name"))
        (self._pre if when == "pre" else self._post)[key] = hook

    def remove_hook(self, name: str) -> None:
        """Take a hook away. Raises `KeyError` for an unknown name."""
        if name not in self._pre and name not in self._post:
            raise KeyRefused(complain("optimizer: no such hook", repr(name), ", ".join((*self._pre, *self._post))))
        self._pre.pop(name, None)
        self._post.pop(name, None)

    def _call(self, hooks: dict[str, Callable]) -> None:
        for hook in tuple(hooks.values()):
            hook(self)

    @property
    def loss_scale(self) -> float | None:
        """What losses are multiplied by before backward, and gradients divided by; None: nothing. One that is set
        stays."""
        return self._loss_scale

    @loss_scale.setter
    def loss_scale(self, scale: float | None) -> None:
        if scale is not None:
            ranges.check(type(self).__name__, "above 0, and finite", loss_scale=scale)
        self._loss_scale, self._interval = scale, None

    def set_loss_scale(self, loss_scale: float) -> None:
        """Multiply losses by a number before backward, and divide gradients by it. Raises `ValueError` unless it is
        above 0 and finite."""
        self.loss_scale = loss_scale

    def loss_scaling(self, interval: int = 1000, scale: float | None = None) -> Optimizer:
        """Scale losses, for gradients of halves that would be too small. Hooks see these divided again, as float32.
        Returns the optimizer.

        A step whose gradients are not all finite is left out: parameters, states and `t` stay. Without a `scale` it
        begins at 2^14, is halved by such a step, and doubles after `interval` others in a row, between 1 and 2^15.
        Raises `ValueError` for an interval below 1, and a scale that is not above 0 and finite.
        """
        ranges.check("loss_scaling", "an int of 1 or more", interval=interval)
        self.loss_scale = FIRST_SCALE if scale is None else scale
        self._interval = int(interval) if scale is None else None
        self._good_steps = 0
        return self

    def _adapt(self, finite: bool) -> None:
        """Change a loss scale that is not fixed, after a step."""
        if self._interval is None:
            return
        self._good_steps = self._good_steps + 1 if finite else 0
        if not finite:
            self._loss_scale = max(self._loss_scale / 2, 1.0)
        elif self._good_steps >= self._interval:
            self._loss_scale, self._good_steps = min(self._loss_scale * 2, MOST_SCALE), 0

    def serialize(self, serializer: Any) -> None:
        """Save or load the counts and the state of all rules; methods of the same states go on from each other's, as
        NesterovAG from MomentumSGD's. Raises `RuntimeError` before `setup`, `ValueError` for counts below 0, a loss
        scale that is not above 0 and finite, and other states."""
        self._expect_target("serialize")
        t, epoch = int(serializer("t", self.t)), int(serializer("epoch", self.epoch))
        scale, steps = self._loss_scale, self._good_steps
        if self._interval is not None:
            scale = float(serializer("loss_scale", scale))
            steps = int(serializer("good_steps", steps))
            ranges.check(type(self).__name__, "above 0, and finite", loss_scale=scale)
        ranges.check(type(self).__name__, "an int of 0 or more", t=t, epoch=epoch, good_steps=steps)
        self.t, self.epoch, self._loss_scale, self._good_steps = t, epoch, scale, steps
        for path, p in self.target.namedparams():
            if p.update_rule is not None:
                part = serializer
                for name in path.strip("/").split("/"):
                    part = part[name]
                p.update_rule.serialize(part, p)
                if hasattr(part, "expect_no_more"):  # a wide copy is given up where none is kept
                    states = ", ".join(p.update_rule.states) or "no states"
                    part.expect_no_more(f"{states} of {type(self).__name__}", "master")


class GradientMethod(Optimizer):
    """The base of methods that change each parameter by its gradient. `rule` is the class of its update rules; `ranges`
    says what its numbers have to be, in the words of `graph/ranges.py`, whenever one is set."""

    rule: type[UpdateRule] = UpdateRule
    ranges: ClassVar[dict[str, str]] = {}

    def __init__(self, **hyperparameters: Any) -> None:
        super().__init__()
        self.hyperparam = Hyperparameter(None, type(self), **hyperparameters)
        self._fp32 = False

    def __getattr__(self, name: str) -> Any:
        own = self.__dict__.get("hyperparam")
        if own is not None and name in own.__dict__ and not name.startswith("_"):
            return own.__dict__[name]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        own = self.__dict__.get("hyperparam")
        if own is not None and name in own.__dict__:
            setattr(own, name, value)
        else:
            object.__setattr__(self, name, value)

    def __deepcopy__(self, memo: dict) -> GradientMethod:
        """A copy with a copy of the target, whose rules follow the copy's numbers and count of steps."""
        made = memo[id(self)] = object.__new__(type(self))
        made.__dict__.update(copy.deepcopy(self.__dict__, memo))
        for p in made.target.params() if made.target is not None else ():
            if p.update_rule is not None and p.update_rule.hyperparam._parent is self.hyperparam:
                p.update_rule.hyperparam.__dict__["_parent"] = made.hyperparam
                p.update_rule.clock = copy.deepcopy(p.update_rule.clock, memo)
        return made

    def create_update_rule(self) -> UpdateRule:
        """A rule for one parameter."""
        return self.rule(self.hyperparam)

    def setup(self, link: Any) -> GradientMethod:
        """Take a link as target, and give its parameters rules. Returns the optimizer."""
        super().setup(link)
        for p in link.params():
            p.update_rule = self.create_update_rule()
            p.update_rule.fp32 = self._fp32
        return self

    def use_fp32_update(self, flag: bool = True) -> None:
        """Keep a copy of parameters of halves in float32, and change that; with False give it up at the next step."""
        self._fp32 = flag
        for p in self.target.params() if self.target is not None else ():
            if p.update_rule is not None:
                p.update_rule.fp32 = flag

    def update(self, lossfun: Callable[..., Any] | None = None, *arguments: Any, **keywords: Any) -> None:
        """A step: with `lossfun` its loss of the arguments is differentiated first; without, gradients are there.

        Raises `RuntimeError` before `setup`, `TypeError` for what is no function or returns no variable.
        """
        self._expect_target("update")
        if lossfun is not None:
            if not callable(lossfun):
                given, hint = type(lossfun).__name__, "loss.backward(), then update()"
                raise TypeError(complain("update: lossfun", given, "a function of the arguments", hint))
            loss = lossfun(*arguments, **keywords)
            if not isinstance(loss, Variable):
                raise TypeError(complain("update: what the loss function returned", type(loss).__name__, "a variable"))
            self.target.cleargrads()
            backward([loss], loss_scale=self.loss_scale)
            del loss
        if self.loss_scale is None:
            self._step()
            return
        halves = self._unscale()
        try:
            self._step_if_finite()
        finally:
            for p in halves:
                if p._grad is not None:
                    self._rescale(p, 1.0, p._data.dtype)

    def _step(self) -> None:
        """A step by the gradients that are there."""
        if self.check_nan_in_grads and self._has_nan():
            return
        self._call(self._pre)
        self.t += 1
        self._advance()
        for p in self.target.params():
            p.update()
        self._call(self._post)

    def _step_if_finite(self) -> None:
        """A step, unless a gradient is not finite: that of a loss which was scaled too much. A captured step, where
        nothing can be read, is undone by the program."""
        overflows = self._overflowing()
        if any(backend._recorder is not None and backend._recorder.is_here() for backend in overflows):
            params = [p for p in self.target.params() if p._data is not None]
            states = [x for p in params if p.update_rule is not None for x in p.update_rule.state.values()]
            changing = [arrays.tensor_of(x) for x in (*(p._data for p in params), *states, *self._counts())]
            before = [arrays.copied(x) for x in changing]
            self._step()
            for x, kept in zip(changing, before):
                if x.backend in overflows:
                    x[:] = o.where(o.reshape(overflows[x.backend], (1,) * len(x.shape)) > 0, kept, x)
            return
        finite = not any(x.get().any() for x in overflows.values())
        if finite:
            self._step()
        self._adapt(finite)

    def _overflowing(self) -> dict[Any, Any]:
        """On each backend a tensor of one number, which is not 0 where a gradient is not finite, in any process."""
        grads: dict[Any, list[Any]] = {} if self.comm is None else {self.comm.backend: []}
        for p in self.target.params():
            if p._grad is not None and p._data is not None and p.size:
                g = arrays.tensor_of(p.grad_var._data)
                grads.setdefault(g.backend, []).append(g)
        for backend, there in grads.items():
            worst = self._overflows.get(backend)
            if worst is None:
                worst = self._overflows[backend] = arrays.zeros(backend, (1,), np.dtype(np.float32))
            each = arrays.zeros(backend, (len(there) + 1,), np.dtype(np.float32))
            with backend.fuse():
                for i, g in enumerate(there):
                    each[i : i + 1] = 1.0 - o.reshape(o.min(o.finite(g)), (1,))
            worst[:] = o.max(each)
            if self.comm is not None and self.comm.size > 1 and backend is self.comm.backend:
                self.comm.allreduce(worst, "max")
        return {backend: self._overflows[backend] for backend in grads}

    def _counts(self) -> list[Any]:
        """The arrays that a step changes beside parameters and their states."""
        return []

    def _advance(self) -> None:
        """What a step changes beside parameters and their states."""

    def _unscale(self) -> list[Any]:
        """Divide gradients by the loss scale. Returns the parameters of halves: their gradients are float32 until the
        step is over, since halves would round to zero just what the scale has saved."""
        halves = []
        for p in self.target.params():
            if p._grad is not None and p._data is not None:
                self._rescale(p, 1.0 / self.loss_scale, dtypes.compute(p._data.dtype))
                if dtypes.is_half(p._data.dtype):
                    halves.append(p)
        return halves

    @staticmethod
    def _rescale(p: Any, factor: float, dtype: np.dtype) -> None:
        """Give a parameter a multiple of its gradient, of a type, and tell the listeners."""
        before = p.grad_var._data
        set_gradient(p, arrays.tensor_of(before) * factor, dtype)
        for listener in listeners:
            listener.scaled(p, before)

    def _has_nan(self) -> bool:
        return any(not np.isfinite(arrays.to_cpu(p.grad)).all() for p in self.target.params() if p._grad is not None)


def scale_gradient(p: Any, factor: Any) -> None:
    """Multiply a parameter's gradient by a number, in new memory."""
    set_gradient(p, arrays.tensor_of(p.grad_var._data) * factor)


def set_gradient(p: Any, tree: Any, dtype: np.dtype | None = None) -> None:
    """Give a parameter the value of a tree as gradient, in new memory, of a type (None: that of its gradient)."""
    host = arrays.backend_of(p._data) is None
    made = arrays.evaluated(tree, dtype or p.grad_var._data.dtype)
    p._grad = made._tensor if host else made
