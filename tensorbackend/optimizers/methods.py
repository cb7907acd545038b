# SPDX-License-Identifier: Apache-2.0
"""The methods: rules of one fused kernel a parameter."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np

from tensorbackend import dtypes
from tensorbackend.errors import complain
from tensorbackend.function import arrays
from tensorbackend.graph import composite as o
from tensorbackend.graph.symbol import is_symbol
from tensorbackend.optimizers.optimizer import GradientMethod, UpdateRule

__all__ = ["SGD", "AdaDelta", "AdaGrad", "Adam", "AdamW", "MomentumSGD", "NesterovAG", "RMSprop"]


_SCALE, _SHARE = "0 or more, and finite", "0 to 1"


class SGDRule(UpdateRule):
    """p -= lr g."""

    def step(self, p: Any, g: Any) -> None:
        """One statement."""
        p[:] = p - self.hyperparam.lr * g


class SGD(GradientMethod):
    """Gradient descent: p -= lr g."""

    rule = SGDRule
    ranges: ClassVar[dict[str, str]] = {"lr": _SCALE}

    def __init__(self, lr: float = 0.01) -> None:
        super().__init__(lr=lr)


class MomentumSGDRule(UpdateRule):
    """v = momentum v - lr g; p += v."""

    states = ("v",)

    def step(self, p: Any, g: Any) -> None:
        """Two statements."""
        h = self.hyperparam.snapshot()
        (v,) = self.tensors()
        with p.backend.fuse():
            v[:] = h.momentum * v - h.lr * g
            p[:] = p + self.change(v, g, h)

    def change(self, v: Any, g: Any, h: Any) -> Any:
        """What p changes by, once v is that of this step; `h` are the numbers that hold."""
        return v


class MomentumSGD(GradientMethod):
    """Gradient descent with momentum: v = momentum v - lr g; p += v."""

    rule = MomentumSGDRule
    ranges: ClassVar[dict[str, str]] = {"lr": _SCALE, "momentum": _SHARE}

    def __init__(self, lr: float = 0.01, momentum: float = 0.9) -> None:
        super().__init__(lr=lr, momentum=momentum)


class NesterovAGRule(MomentumSGDRule):
    """v = momentum v - lr g; p += momentum v - lr g."""

    def change(self, v: Any, g: Any, h: Any) -> Any:
        """One more step of v."""
        return h.momentum * v - h.lr * g


class NesterovAG(MomentumSGD):
    """Nesterov's accelerated gradient: v = momentum v - lr g; p += momentum v - lr g."""

    rule = NesterovAGRule


class AdaGradRule(UpdateRule):
    """h += g²; p -= lr g / (√h + eps)."""

    states = ("h",)

    def step(self, p: Any, g: Any) -> None:
        """Two statements."""
        numbers = self.hyperparam.snapshot()
        (h,) = self.tensors()
        with p.backend.fuse():
            h[:] = h + g * g
            p[:] = p - numbers.lr * g / (o.sqrt(h) + numbers.eps)


class AdaGrad(GradientMethod):
    """AdaGrad (Duchi et al. 2011): h += g²; p -= lr g / (√h + eps)."""

    rule = AdaGradRule
    ranges: ClassVar[dict[str, str]] = {"lr": _SCALE, "eps": _SCALE}

    def __init__(self, lr: float = 0.001, eps: float = 1e-8) -> None:
        super().__init__(lr=lr, eps=eps)


class RMSpropRule(UpdateRule):
    """ms = alpha ms + (1 - alpha) g²; p -= lr g / (√ms + eps)."""

    states = ("ms",)

    def step(self, p: Any, g: Any) -> None:
        """Two statements."""
        h = self.hyperparam.snapshot()
        (ms,) = self.tensors()
        with p.backend.fuse():
            ms[:] = h.alpha * ms + (1.0 - h.alpha) * (g * g)
            p[:] = p - h.lr * g / (o.sqrt(ms) + h.eps)


class RMSprop(GradientMethod):
    """RMSprop (Tieleman and Hinton 2012): ms = alpha ms + (1 - alpha) g²; p -= lr g / (√ms + eps)."""

    rule = RMSpropRule
    ranges: ClassVar[dict[str, str]] = {"lr": _SCALE, "alpha": _SHARE, "eps": _SCALE}

    def __init__(self, lr: float = 0.01, alpha: float = 0.99, eps: float = 1e-8) -> None:
        super().__init__(lr=lr, alpha=alpha, eps=eps)


class AdaDeltaRule(UpdateRule):
    """msg = rho msg + (1 - rho) g²; dx = √((msdx + eps) / (msg + eps)) g; msdx = rho msdx + (1 - rho) dx²; p -= dx."""

    states = ("msg", "msdx")

    def step(self, p: Any, g: Any) -> None:
        """Three statements."""
        h = self.hyperparam.snapshot()
        msg, msdx = self.tensors()
        mean = h.rho * msg + (1.0 - h.rho) * (g * g)
        dx = o.sqrt((msdx + h.eps) / (mean + h.eps)) * g
        with p.backend.fuse():  # dx reads msg and msdx as they were: p first
            p[:] = p - dx
            msdx_next = h.rho * msdx + (1.0 - h.rho) * (dx * dx)
            msdx[:] = msdx_next
            msg[:] = mean


class AdaDelta(GradientMethod):
    """AdaDelta (Zeiler 2012)."""

    rule = AdaDeltaRule
    ranges: ClassVar[dict[str, str]] = {"rho": _SHARE, "eps": _SCALE}

    def __init__(self, rho: float = 0.95, eps: float = 1e-6) -> None:
        super().__init__(rho=rho, eps=eps)


class AdamRule(UpdateRule):
    """m += (1 - β1)(g - m); v += (1 - β2)(g² - v); p -= eta (rate m / (√v + eps) + decay p).

    `clock` gives the rate, alpha √(1 - β2^t) / (1 - β1^t), as a tensor on a backend.
    """

    states = ("m", "v")

    def __init__(self, hyperparam: Any, amsgrad: bool = False) -> None:
        super().__init__(hyperparam)
        if amsgrad:
            self.states = ("m", "v", "vhat")

    def step(self, p: Any, g: Any) -> None:
        """Three statements, or four."""
        h = self.hyperparam.snapshot()
        m, v, *vhat = self.tensors()
        rate = self.clock.rate(p, h)
        decay = h.eta * h.weight_decay_rate
        with p.backend.fuse():
            m[:] = m + (1.0 - h.beta1) * (g - m)
            v[:] = v + (1.0 - h.beta2) * (g * g - v)
            if vhat:
                vhat[0][:] = o.maximum(vhat[0], v)
            change = h.eta * (rate * m / (o.sqrt(vhat[0] if vhat else v) + h.eps))
            p[:] = p - (change + decay * p if is_symbol(decay) or decay else change)


class AdamClock:
    """The count of steps as a number on each backend that has parameters, so that a captured step counts too.

    `t` is the count as Python knows it.
    """

    def __init__(self) -> None:
        self.t = 0
        self._ticks: dict[Any, Any] = {}
        self._rates: dict[tuple, list] = {}
        self._of_calls: dict[tuple, tuple] = {}  # rates by numbers that are a program's arguments, for one step

    def advance(self, t: int) -> None:
        """Count a step, the `t`-th as Python counts; from another number on where `optimizer.t` was assigned."""
        if t != self.t + 1:
            self._begin_again(t - 1)
        self.t = t
        self._of_calls.clear()
        for tick in self._ticks.values():
            tick[:] = tick + 1.0
        self._rates = {key: entry for key, entry in self._rates.items() if entry[1]}
        for key, entry in self._rates.items():
            entry[1] = False
            self._set(entry[0], *key)

    def begin(self, t: int, backends: Iterable[Any]) -> None:
        """Go on from `t` steps. Backends of parameters are told at once: the next step may be captured."""
        self.t = t
        for backend in {*self._ticks, *backends}:
            self._tick(backend)[:] = float(t)

    def _begin_again(self, t: int) -> None:
        """Go on from `t` steps, which no program may hold: each of its calls would."""
        if any(backend._recorder is not None and backend._recorder.is_here() for backend in self._ticks):
            expected, hint = f"{self.t}, as counted", "a step before the capture, or assign t before the first one"
            raise RuntimeError(complain("Adam: t was assigned before a capture", str(t), expected, hint))
        self.begin(t, ())

    def counted(self) -> int | None:
        """The steps that a backend counted; None if none did."""
        return max((int(tick.item()) for tick in self._ticks.values()), default=None)

    def ticks(self) -> list[Any]:
        """The counts on backends."""
        return list(self._ticks.values())

    def _tick(self, backend: Any) -> Any:
        """The count on a backend."""
        if backend not in self._ticks:
            self._ticks[backend] = arrays.zeros(backend, (), np.dtype(np.float64))
            self._ticks[backend][:] = float(self.t)
        return self._ticks[backend]

    def rate(self, p: Any, h: Any) -> Any:
        """alpha √(1 - β2^t) / (1 - β1^t), a tensor of one element, in the type that computes p's step."""
        backend, kind = p.backend, dtypes.compute(p.dtype)
        numbers = (h.alpha, h.beta1, h.beta2)
        if any(map(is_symbol, numbers)):
            return self._rate_of_a_call(backend, kind, numbers)
        key = (backend, kind, *numbers)
        entry = self._rates.get(key)
        if entry is None:
            entry = self._rates[key] = [arrays.fresh(backend, (), kind), True]
            self._set(entry[0], *key)
        entry[1] = True
        return entry[0]

    def _rate_of_a_call(self, backend: Any, kind: Any, numbers: tuple) -> Any:
        """The rate where numbers change from call to call of a program: symbols, which have no hash but are the same
        objects for all parameters."""
        key = (backend, kind, *map(id, numbers))
        if key not in self._of_calls:
            value = arrays.fresh(backend, (), kind)
            self._set(value, backend, kind, *numbers)
            self._of_calls[key] = value, numbers  # which keeps the ids
        return self._of_calls[key][0]

    def _set(self, value: Any, backend: Any, kind: Any, alpha: float, beta1: float, beta2: float) -> None:
        tick = self._tick(backend)
        value[:] = alpha * o.sqrt(1.0 - beta2**tick) / (1.0 - beta1**tick)


class Adam(GradientMethod):
    """Adam (Kingma and Ba 2015), with AMSGrad (Reddi et al. 2018) and decoupled weight decay.

    m += (1 - β1)(g - m); v += (1 - β2)(g² - v); p -= eta (alpha √(1 - β2^t) / (1 - β1^t) m / (√v + eps) + decay p).
    `amsgrad` takes the largest v so far.
    """

    rule = AdamRule
    ranges: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("alpha", "eps", "eta", "weight_decay_rate"), _SCALE),
        **dict.fromkeys(("beta1", "beta2"), "0 or more, and below 1"),
    }

    def __init__(self, alpha: float = 0.001, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8,
                 eta: float = 1.0, weight_decay_rate: float = 0.0, amsgrad: bool = False) -> None:  # fmt: skip
        super().__init__(alpha=alpha, beta1=beta1, beta2=beta2, eps=eps, eta=eta,
                         weight_decay_rate=weight_decay_rate)  # fmt: skip
        self.amsgrad = amsgrad
        self._clock = AdamClock()

    def setup(self, link: Any) -> Adam:
        """Take a link as target, and count from the first step. Returns the optimizer."""
        self._clock = AdamClock()
        super().setup(link)
        return self

    def create_update_rule(self) -> AdamRule:
        """A rule for one parameter."""
        made = AdamRule(self.hyperparam, self.amsgrad)
        made.clock = self._clock
        return made

    def _counts(self) -> list[Any]:
        return self._clock.ticks()

    def _advance(self) -> None:
        self._clock.advance(self.t)

    def serialize(self, serializer: Any) -> None:
        """Save or load the counts, as captured steps have left them, and the state of all rules."""
        counted = self._clock.counted()
        self.t = self.t if counted is None else counted
        super().serialize(serializer)
        there = [arrays.tensor_of(p._data) for p in self.target.params() if p._data is not None]
        self._clock.begin(self.t, (x.backend for x in there))


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019)."""

    def __init__(self, alpha: float = 0.001, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8,
                 eta: float = 1.0, weight_decay_rate: float = 0.01, amsgrad: bool = False) -> None:  # fmt: skip
        super().__init__(alpha, beta1, beta2, eps, eta, weight_decay_rate, amsgrad)
