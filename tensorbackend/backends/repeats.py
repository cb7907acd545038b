# SPDX-License-Identifier: Apache-2.0
"""Repeated statements without the native types: a Python function for each form of statement, written out for it.

A statement whose structures are known has operands in known places. So the walk along its tree, the look at which
memory overlaps, and the packing of arguments become straight lines, without a loop or a look-up.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tensorbackend import dtypes
from tensorbackend.backends import jit
from tensorbackend.backends.plans import word
from tensorbackend.graph.optree import Operators, OpTreeNode
from tensorbackend.graph.tensor import Tensor

if TYPE_CHECKING:
    from tensorbackend.backends.plans import CompiledPlan

__all__ = ["repeater"]

MOST_OPERANDS = 24
"""Operands of a statement beyond which its form is not written out."""


def repeater(planned: CompiledPlan, target: Tensor, value: Any, leaves: list[Any]) -> Callable[..., bool] | None:
    """The function that repeats `target[:] = value`, whose leaves are `leaves`, as `planned` ran it.

    It takes a target and a value of the same structures, and returns False where it does not fit: operands that are
    the same objects in other places, other overlaps of memory, numbers that are refused. None for statements that need
    more than launches on operands: temporaries, random draws, primitives.
    """
    if planned.total or planned.draws or not all(isinstance(p, jit.Prepared) for p, _, _, _ in planned.steps):
        return None
    writer = _Writer()
    if not writer.tree(value) or not writer.overlaps(target, leaves):
        return None
    for prepared, places, _, step in planned.steps:
        buffers = ["target", *(writer.leaves[n] for n in planned.plan.tensors)]
        writer.launch(prepared, [(buffers[b], offset) for b, offset in places], step.scalars)
    return writer.function()


class _Writer:
    """The text of a repeater, and what it refers to. `leaves` are the names of the leaves, in the order of `walk`."""

    def __init__(self) -> None:
        self.leaves: list[str] = []
        self._names: dict[int, str] = {}
        self._operands = 0
        self._lines: list[str] = []
        self._tests: list[str] = []
        self._packs: list[str] = []
        self._runs: list[str] = []
        self._known: dict[str, Any] = {"word": word}

    def tree(self, root: Any) -> bool:
        """Write how operands are found, and which of them are the same. False where a part has none."""
        alike: dict[Any, list[str]] = {}
        self._names[id(root)] = "root"
        stack = [root]
        while stack:
            node = stack.pop()
            if not node.inputs:
                return False
            found = [self._operand(x, alike, stack) for x in node.inputs]
            self._lines.append(f"{', '.join(found)}, = {self._names[id(node)]}.inputs")
        for names in alike.values():
            self._tests += [f"{x} is {y}" for x, y in itertools.combinations(names, 2)]
        return self._operands <= MOST_OPERANDS

    def _operand(self, x: Any, alike: dict[Any, list[str]], stack: list[Any]) -> str:
        """The name of an operand. Only operands of one structure (`alike`) can be one object."""
        name = f"v{self._operands}"
        self._operands += 1
        if not isinstance(x, Operators):
            self.leaves.append(name)
            return name
        first = self._names.setdefault(id(x), name)
        if first != name:
            self._tests.append(f"{name} is not {first}")
            return name
        alike.setdefault(x.structure, []).append(name)
        (self.leaves if isinstance(x, Tensor) else stack).append(name if isinstance(x, Tensor) else x)
        return name

    def overlaps(self, target: Tensor, leaves: list[Any]) -> bool:
        """Write what the target is apart from, and what it is the very same view as. False for other overlaps."""
        self._lines.append("address, start, stop = target.address, target.start, target.stop")
        for name, x in zip(self.leaves, leaves):
            if not isinstance(x, Tensor):
                continue
            if x.start >= target.stop or target.start >= x.stop:
                self._tests.append(f"{name}.start < stop and start < {name}.stop")
            elif x.address == target.address and x.structure is target.structure:
                self._tests.append(f"{name}.address != address")
            else:
                return False
        return True

    def launch(self, prepared: jit.Prepared, places: list[tuple[str, int]], scalars: list[tuple[int, Any]]) -> None:
        """Write the launches of a kernel whose operands lie at `places`: names and offsets in bytes."""
        addresses = [f"{name}.address" + (f" + {offset}" if offset else "") for name, offset in places]
        operands = [*addresses, *(self._number(n, dtype) for n, dtype in scalars)]
        if prepared.launches:
            words = f"words{len(self._packs)}"
            self._packs.append(f"{words} = {self._name(prepared.pack)}({', '.join(operands)})")
            self._runs += [f"{self._name(launch.run_on)}({words})" for launch in prepared.launches]

    def _number(self, leaf: int, dtype: Any) -> str:
        name = self.leaves[leaf]
        return f"float({name})" if dtypes.is_float(dtype) else f"word({name}, {self._name(dtype)})"

    def _name(self, thing: Any) -> str:
        name = f"k{len(self._known)}"
        self._known[name] = thing
        return name

    def function(self) -> Callable[[Tensor, OpTreeNode], bool]:
        """The function that has been written."""
        tests = [f"if {' or '.join(self._tests)}:", "    return False"] if self._tests else []
        packs = ["try:", *("    " + line for line in self._packs), "except OverflowError:", "    return False"]
        packs = packs if self._packs else []  # nothing to run, of nothing
        body = [*self._lines, *tests, *packs, *self._runs, "return True"]
        text = "\n    ".join(["def repeat(target, root):", *body])
        exec(text, self._known)  # noqa: S102  the text is made here, of names alone
        return self._known["repeat"]
