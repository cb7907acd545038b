# SPDX-License-Identifier: Apache-2.0
"""Momentum, RMSProp and Adam steps over one large and over fifty small parameters; `reductions.py` runs them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import libraries
import numpy as np

from tensorbackend import bench

ONE = [(1 << 24,)]
FIFTY = [(64, 64), (64, 1)] * 25


@dataclass(frozen=True)
class Rule:
    """An optimizer: its state besides the parameter `p` and gradient `g`, and the updates as (target, expression).

    `numpy` is the same with `out=` and the scratch `t`, `u`; `torch` names the class and its arguments, and `states`
    what torch calls the state. Before a step `scalars(step)` gives the numbers that change.
    """

    name: str
    state: str
    updates: tuple[tuple[str, str], ...]
    numpy: str
    torch: str
    states: tuple[str, ...]
    adaptive: bool = False

    def scalars(self, step: int) -> tuple[float, float]:
        """The step length and the epsilon of step 1, 2, …: Adam folds its bias corrections into both."""
        if not self.adaptive:
            return 1e-3, 1e-8
        root = math.sqrt(1 - 0.999**step)
        return 1e-3 * root / (1 - 0.9**step), 1e-8 * root


RULES = [
    Rule(
        "momentum", "m", (("m", "0.9*m + g"), ("p", "p - lr*m")),
        "multiply(m, 0.9, out=m); add(m, g, out=m); multiply(m, lr, out=t); subtract(p, t, out=p)",
        "SGD(p, lr=1e-3, momentum=0.9, fused=True)", ("momentum_buffer",),
    ),
    Rule(
        "rmsprop", "v", (("v", "0.99*v + 0.01*g*g"), ("p", "p - lr*g/(sqrt(v) + eps)")),
        "multiply(g, g, out=t); multiply(t, 0.01, out=t); multiply(v, 0.99, out=v); add(v, t, out=v); sqrt(v, out=t);"
        "add(t, eps, out=t); divide(g, t, out=t); multiply(t, lr, out=t); subtract(p, t, out=p)",
        "RMSprop(p, lr=1e-3, alpha=0.99, eps=1e-8, foreach=True)", ("square_avg",),
    ),
    Rule(
        "adam", "mv",
        (("m", "0.9*m + 0.1*g"), ("v", "0.999*v + 0.001*g*g"), ("p", "p - lr*m/(sqrt(v) + eps)")),
        "multiply(g, 0.1, out=t); multiply(m, 0.9, out=m); add(m, t, out=m); multiply(g, g, out=t);"
        "multiply(t, 0.001, out=t); multiply(v, 0.999, out=v); add(v, t, out=v); sqrt(v, out=t); add(t, eps, out=t);"
        "divide(m, t, out=t); multiply(t, lr, out=t); subtract(p, t, out=p)",
        "Adam(p, lr=1e-3, fused=True)", ("exp_avg", "exp_avg_sq"), True,
    ),
]  # fmt: skip


class Problem:
    """The parameters and gradients of one case, and the contenders that step them."""

    def __init__(self, rule: Rule, shapes: list[tuple[int, ...]], dtype: str) -> None:
        rng = np.random.default_rng(0)
        self.rule, self.dtype = rule, dtype
        self.start = [rng.standard_normal(s, dtype=np.float32).astype(dtype) for s in shapes]
        self.gradients = [rng.standard_normal(s, dtype=np.float32).astype(dtype) for s in shapes]
        self.names = ("p", "g", *rule.state)

    def fresh(self) -> list[tuple[np.ndarray, ...]]:
        """Own (p, g, state…) of each parameter, with zero state."""
        return [
            (p.copy(), g.copy(), *(np.zeros_like(p) for _ in self.rule.state))
            for p, g in zip(self.start, self.gradients)
        ]

    def body(self, assign: str) -> str:
        """The updates of one parameter as statements; `assign` says how a target is written."""
        return "; ".join(assign.format(target=t, value=v) for t, v in self.rule.updates)

    def stepping(self, body: str, names: dict[str, Any], params: list[Any]) -> Any:
        """A call that makes one step over `params`: `body` for each of them, after counting the step."""
        text = f"step[0] += 1; lr, eps = scalars(step[0])\n{body}"
        return libraries.function(text, names | {"params": params, "step": [0], "scalars": self.rule.scalars})

    def loop(self, inner: str) -> str:
        """A loop over the parameters around `inner`."""
        return f"for {', '.join(self.names)} in params:\n    {inner}"

    def flat(self, params: list[Any], get: Any = np.asarray) -> np.ndarray:
        """Parameters and states in one row, gradients left out."""
        return np.concatenate([get(a).ravel() for row in params for k, a in enumerate(row) if k != 1])

    def truth(self) -> np.ndarray:
        params = [tuple(a.astype(np.float64) for a in row) for row in self.fresh()]
        self.stepping(self.loop(self.body("{target}[...] = {value}")), {"sqrt": np.sqrt}, params)()
        return self.flat(params)

    def numpy(self) -> bench.Contender:
        params = self.fresh()
        inner = "t = scratch[p.shape]; " + self.rule.numpy
        names = libraries.NumPy().functions | {"scratch": {p.shape: np.empty_like(p) for p in self.start}}
        return bench.Contender("numpy", self.stepping(self.loop(inner), names, params), lambda: self.flat(params))

    def numexpr(self) -> bench.Contender:
        evaluate, params = libraries.NumExpr().numexpr.evaluate, self.fresh()
        constants: dict[str, Any] = {}
        inner = []
        for k, (target, value) in enumerate(self.rule.updates):
            text, found = libraries.with_named_numbers(value, np.dtype(self.dtype))
            text = text.replace("k", f"c{k}_")
            constants |= {key.replace("k", f"c{k}_"): number for key, number in found.items()}
            inner.append(f"evaluate({text!r}, names, out={target})")
        own = ", ".join(f"{n}={n}" for n in self.names)
        lines = f"names = dict(constants, {own}, lr=one(lr), eps=one(eps)); " + "; ".join(inner)
        names = {"evaluate": evaluate, "constants": constants, "one": np.dtype(self.dtype).type}
        return bench.Contender("numexpr", self.stepping(self.loop(lines), names, params), lambda: self.flat(params))

    def numba(self) -> bench.Contender:
        numba, params = libraries.library("numba"), self.fresh()
        one = np.dtype(self.dtype).type
        text, scope = libraries.with_named_numbers(self.body("{target}[i] = {value}"), np.dtype(self.dtype))
        for name in self.names:
            text = libraries.re.sub(rf"\b{name}\b(?!\[)", f"{name}[i]", text)
        scope |= {"sqrt": math.sqrt, "prange": numba.prange}
        exec(f"def kernel({', '.join(self.names)}, lr, eps):\n    for i in prange(p.size):\n        {text}", scope)
        kernel = numba.njit(parallel=True)(scope["kernel"])
        flat = [tuple(a.reshape(-1) for a in row) for row in params]
        inner = f"kernel({', '.join(self.names)}, one(lr), one(eps))"
        call = self.stepping(self.loop(inner), {"kernel": kernel, "one": one}, flat)
        return bench.Contender("numba", call, lambda: self.flat(params))

    def torch(self) -> bench.Contender:
        library = libraries.Torch()
        parameters = [library.array(p.copy()) for p in self.start]
        for parameter, gradient in zip(parameters, self.gradients):
            parameter.grad = library.array(gradient)
        scope = vars(library.torch.optim) | {"p": parameters}
        optimizer = eval(self.rule.torch, scope)

        def result() -> np.ndarray:
            rows = [(p, p, *(optimizer.state[p][s] for s in self.rule.states)) for p in parameters]
            return self.flat(rows, library.numpy)

        return bench.Contender("torch", optimizer.step, result)

    def jax(self) -> bench.Contender:
        library = libraries.Jax()
        jax, state = library.jax, ("p", *self.rule.state)
        scope = {"sqrt": jax.numpy.sqrt}
        exec(
            f"def one({', '.join(self.names)}, lr, eps):\n    {self.body('{target} = {value}')}\n"
            f"    return {', '.join(state)}",
            scope,
        )

        def every(params: list[Any], gradients: list[Any], lr: float, eps: float) -> list[Any]:
            return [scope["one"](row[0], g, *row[1:], lr, eps) for row, g in zip(params, gradients)]

        jitted = jax.jit(every, donate_argnums=0)
        params = [tuple(library.array(a) for k, a in enumerate(row) if k != 1) for row in self.fresh()]
        gradients = [library.array(g) for g in self.gradients]
        step = [0]

        def into(old: Any) -> Any:
            step[0] += 1
            return jitted(old, gradients, *self.rule.scalars(step[0]))

        return library.donating(into, None, params, [])

    def ours(self, engine: libraries.Engine) -> bench.Contender:
        params = [tuple(engine.array(a) for a in row) for row in self.fresh()]
        lines = self.loop(self.body("{target}[:] = {value}")).replace("\n", "\n    ")
        known = engine.known("fuse()\n" + self.body("{target} = {value}"))
        call = self.stepping(f"with fuse():\n    {lines}", known, params)
        result = partial(self.flat, params, lambda tensor: tensor.get())
        return bench.Contender(engine.name, call, result, kind="ours")


def cases(options, session: bench.Session) -> Iterator[bench.Case]:
    """Every rule over one parameter of 2^24 elements (2^20 with `--quick`) and over fifty small ones."""
    for rule in RULES:
        for name, shapes in (("one", ONE if not options.quick else [(1 << 20,)]), ("fifty", FIFTY)):
            size = sum(math.prod(s) for s in shapes)
            title = f"{rule.name}, {name} parameter{'s' * (name != 'one')}"
            if session.wants(title, (size,), "float32"):
                yield case(rule, title, shapes, size, options)


def case(rule: Rule, title: str, shapes: list[tuple[int, ...]], size: int, options) -> bench.Case:
    """The case of one rule: it reads p, g and the state, and writes p and the state."""

    @cache
    def problem() -> Problem:
        return Problem(rule, shapes, "float32")

    makers = {
        "tensorbackend": lambda: problem().ours(libraries.engine(options, True)),
        "interpreter": lambda: problem().ours(libraries.engine(options, False)),
        **{n: (lambda n=n: getattr(problem(), n)()) for n in ("numpy", "numexpr", "numba", "torch", "jax")},
    }
    moved = size * 4 * (3 + 2 * len(rule.state))
    return bench.Case(title, (size,), "float32", lambda: problem().truth(), makers, moved, 0, 1e-5)
