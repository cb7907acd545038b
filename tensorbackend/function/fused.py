# SPDX-License-Identifier: Apache-2.0
"""Several functions as one: `tb.fused(fn)` makes one node of what `fn` does with variables.

`fn` is run on variables that stand for trees; the rules that it calls build one tree, and are noted, so that the way
back is that of their gradients. Chains of elementwise functions become one kernel, forward and backward.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from tensorbackend.errors import complain
from tensorbackend.function.config import force_backprop_mode, lookup, using_config
from tensorbackend.function.trees import Rule, Traced, differentiated, noting
from tensorbackend.function.variable import Variable
from tensorbackend.graph.templates import opaque

__all__ = ["fused"]


def fused(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn` as one function node: it takes variables, arrays and numbers, and gives a variable, or a tuple of them.

    `fn` may use functions of `tensorbackend.functions` that are trees, which the operators are; keywords are fixed
    values that can be hashed, and no variables. It is run when inputs of a new layout come, not in each call. Variables
    that need gradients must be arguments (in a fused function that is defined in another, those of the other, too), and
    so must what random numbers are drawn for. Raises `TypeError` for functions that are no trees, and for what is none.
    """
    if not callable(fn):
        raise TypeError(complain("fused", f"{type(fn).__name__} {fn!r}"[:200], "a function", "@tb.fused"))
    rule = _FusedRule(fn)

    @functools.wraps(fn)
    def wrapper(*arguments: Any, **keywords: Any) -> Any:
        for name, x in keywords.items():
            for v in _variables_in(x):  # what is noted would be of the array that it has now
                given = f"{name}: {type(v).__name__} {v.label}"
                raise TypeError(complain("fused: a variable by keyword", given, "an argument by position"))
        mode = (lookup("train"), lookup("type_check"), lookup("dtype"))
        return rule(*arguments, mode=mode, keywords=tuple(sorted(keywords.items())))

    return wrapper


def _variables_in(x: Any) -> list[Variable]:
    """The variables that a keyword's value is, or holds in tuples."""
    if isinstance(x, tuple):
        return [v for part in x for v in _variables_in(part)]
    return [x] if isinstance(x, Variable) else []


class _FusedRule(Rule):
    """The rule of a function of variables."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__(f"fused {getattr(fn, '__name__', 'function')}", self._trees, self._gradients)
        self._fn = fn

    def _run(self, operands: Sequence[Any], mode: tuple, keywords: tuple) -> tuple[Any, list[tuple]]:
        """What the function gives for trees, and what it called."""
        train, checks, dtype = mode
        # What is noted does not depend on where it is called; backward may be called in another mode than forward.
        with force_backprop_mode(), using_config("train", train), using_config("type_check", checks):
            with using_config("dtype", dtype), noting() as calls:
                arguments = [Traced.of(x) if hasattr(x, "structure") else x for x in operands]
                found = self._fn(*arguments, **dict(keywords))
        made = found if isinstance(found, tuple) else (found,)
        for y in made:
            if not isinstance(y, Traced) or y._calls is not calls:
                given = f"{self.name}: {type(y).__name__}"
                raise TypeError(complain("fused: a result that does not come of the arguments", given, "variables"))
        return found, calls

    def _trees(self, *operands: Any, mode: tuple, keywords: tuple) -> Any:
        found, _ = self._run(operands, mode, keywords)
        return tuple(y._data for y in found) if isinstance(found, tuple) else found._data

    def _gradients(self, g: Any, y: Any, *operands: Any, mode: tuple, keywords: tuple) -> tuple[Any, ...]:
        nodes = [opaque(x) if hasattr(x, "structure") else x for x in operands]
        found, calls = self._run(nodes, mode, keywords)
        made = found if isinstance(found, tuple) else (found,)
        starts = g if isinstance(g, tuple) else (g,)  # one alone comes bare from a function that is fused with this
        flowing: dict[int, Any] = {}
        for y, start in zip(made, starts):
            if start is not None:
                _flow(flowing, y._data, start)
        for rule, params, taken, given, draws in reversed(calls):
            grads = [flowing.pop(id(y), None) for y in given]
            if any(g is not None for g in grads):
                for x, gx in zip(taken, differentiated(rule, params, taken, given, draws, grads)):
                    if gx is not None:
                        _flow(flowing, x, gx)
        return tuple(flowing.get(id(x)) for x in nodes)


def _flow(flowing: dict[int, Any], node: Any, g: Any) -> None:
    before = flowing.get(id(node))
    flowing[id(node)] = g if before is None else before + g
