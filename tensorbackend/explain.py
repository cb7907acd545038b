# SPDX-License-Identifier: Apache-2.0
"""What statements become: kernels, why they were cut there, their work, their time against the machine's limits.

An `Explanation` is made by `be.explain`; `str()` of it fits a bug report, and `html()` is a page that needs
nothing else. The counts here are of the least work: each operand is moved once, and an op takes the operations that
the op table says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tensorbackend import dtypes
from tensorbackend.codegen.nest import nest
from tensorbackend.graph.loops import in_memory_order
from tensorbackend.graph.optree import OpTreeNode
from tensorbackend.graph.plan import Kernel, Primitive, Ref

__all__ = ["Explanation", "Roof", "Statement", "Step", "describe", "tree_lines", "work"]

MOST_LINES = 200
"""Lines of a tree that are shown."""


@dataclass(frozen=True)
class Roof:
    """What the machine reached beside a kernel: `bandwidth` in bytes/s, `compute` in float32 operations/s."""

    bandwidth: float
    compute: float

    def seconds(self, nbytes: float, flops: float) -> float:
        """The least time for so much work."""
        return max(nbytes / self.bandwidth, flops / self.compute)


@dataclass
class Step:
    """One kernel or primitive call: what it is, the least `nbytes` and `flops` it takes, and the `times` of its runs in
    seconds. `loops` are the lines of its loop nest, `source` its generated text ("" where there is none)."""

    name: str
    reason: str
    form: str
    space: tuple[int, ...]
    axes: tuple[int, ...]
    reads: list[str]
    writes: list[str]
    nbytes: int
    flops: int
    loops: list[str] = field(default_factory=list)
    source: str = ""
    times: list[float] = field(default_factory=list)
    roof: Roof | None = None

    @property
    def seconds(self) -> float | None:
        """The median time of a run; None when it has not run."""
        return sorted(self.times)[len(self.times) // 2] if self.times else None

    @property
    def share(self) -> float | None:
        """The least time at the machine's limits over the median time; None without a time or limits."""
        if not self.seconds or self.roof is None:
            return None
        return self.roof.seconds(self.nbytes, self.flops) / self.seconds

    def microseconds(self) -> str:
        """The median time in microseconds as text; empty when it has not run."""
        if not self.seconds:
            return ""
        time = self.seconds * 1e6
        return f"{time:,.0f}" if time >= 1000 else f"{time:.4g}"

    def measured(self) -> str:
        """Time, GB/s, GFLOP/s and share of the roof as text; empty when it has not run."""
        seconds = self.seconds
        if not seconds:
            return ""
        rates = [f"{self.nbytes / seconds / 1e9:.3g} GB/s"]
        rates += [f"{self.flops / seconds / 1e9:.3g} GFLOP/s"] * bool(self.flops)
        rates += [] if self.share is None else [f"{self.share:.0%} of the roof"]
        return "  ".join([f"{self.microseconds()} us", *rates])

    def least(self) -> str:
        """The least work as text; a user kernel's operations are not counted."""
        return f"{self.nbytes:,} bytes" + (f", {self.flops:,} operations" if self.flops else "")

    def line(self) -> str:
        """The step in one line, as TB_DEBUG=2 shows it."""
        shape = "x".join(map(str, self.space)) or "scalar"
        return f"{self.name}  {shape}  {self.form}  {self.measured()}".rstrip()


@dataclass
class Statement:
    """Statements that ran as one: their `texts`, the lines of their `trees`, the `steps` they became. `has_roof`: the
    host's limits are those of the machine they ran on."""

    texts: list[str]
    trees: list[list[str]]
    steps: list[Step]
    runs: int = 1
    has_roof: bool = True

    @property
    def seconds(self) -> float:
        """The time of all kernels in all runs."""
        return sum(sum(step.times) for step in self.steps)


@dataclass
class Explanation:
    """What `be.explain` gives: `statements` in the order they ran, `machine`, a line on where, and of a captured
    program `about`, a line on its memory."""

    statements: list[Statement]
    machine: str
    about: str = ""

    @property
    def steps(self) -> list[Step]:
        """All kernels and primitive calls, in order."""
        return [step for statement in self.statements for step in statement.steps]

    def __str__(self) -> str:
        return self.text()

    def text(self, sources: bool = True) -> str:
        """All of it as text; the kernels' sources on request."""
        lines = [self.machine, *([self.about] if self.about else [])]
        for statement in self.statements:
            lines += ["", *_statement_lines(statement, sources)]
        return "\n".join(lines)

    def longest(self, count: int) -> Explanation:
        """The `count` statements that took most time in all their runs, the longest first."""
        ordered = sorted(self.statements, key=lambda s: s.seconds, reverse=True)
        return Explanation(ordered[:count], self.machine, self.about)

    def html(self) -> str:
        """One self-contained HTML page: trees, loop nests, sources, and the roofline as a drawing."""
        from tensorbackend.explain_page import page  # html pages are rare

        return page(self)

    def save(self, path: str | Path) -> Path:
        """Write the page to a file; returns its path."""
        path = Path(path)
        path.write_text(self.html(), encoding="utf-8")
        return path

    def _repr_html_(self) -> str:
        return self.html()


def _statement_lines(statement: Statement, sources: bool) -> list[str]:
    again = f"   ({statement.runs} runs)" if statement.runs > 1 else ""
    lines = [f"{text}{again}" for text in statement.texts] or ["a group of statements"]
    count = len(statement.steps)
    lines.append(f"  {count} step{'s' if count != 1 else ''}")
    for number, step in enumerate(statement.steps, start=1):
        lines += _step_lines(number, step, sources)
    return lines


def _step_lines(number: int, step: Step, sources: bool) -> list[str]:
    rows = [
        ("why", step.reason),
        ("space", f"{step.space}" + (f", reduced over {step.axes}" if step.axes else "")),
        ("loops", step.form),
        ("reads", "; ".join(step.reads) or "nothing"),
        ("writes", "; ".join(step.writes)),
        ("work", step.least()),
        ("time", step.measured()),
    ]
    lines = [f"  {number}. {step.name}", *(f"     {label:<7} {text}" for label, text in rows if text)]
    return lines + [f"     | {line}" for line in step.source.splitlines() if sources]


# Facts of a step


def describe(step: Kernel | Primitive, names: dict[int, str], source: str = "") -> Step:
    """The facts of a plan's step; `names` are the buffers' by number (temporaries are named by themselves)."""
    nbytes, flops = work(step)
    if isinstance(step, Primitive):
        reads = [_place(ref, names) for ref in (*step.inputs, *step.beside)]
        writes, space = [_place(ref, names) for ref in step.written], step.output.shape
        form = "a call" if step.tail is None else "a call, and what follows on each part of the result"
        source = source.strip()
        return Step(step.name, step.reason, form, space, (), reads, writes, nbytes, flops, source=source)
    reads = [_place(ref, names) for ref in step.inputs]
    writes = [_place(ref, names) for ref, _ in step.outputs]
    form, loops = _loops(step)
    return Step(
        step.name, step.reason, form, step.shape, step.axes, reads, writes, nbytes, flops, loops, source.strip()
    )


def work(step: Kernel | Primitive) -> tuple[int, int]:
    """The least bytes that a step moves, and the operations that it computes."""
    nbytes = sum(map(_nbytes, step.operands))
    if isinstance(step, Kernel):
        return nbytes, _flops(step)
    return nbytes, _operations(step) + (0 if step.tail is None else _flops(step.tail))


def _flops(step: Kernel) -> int:
    flops = 0
    for i in step.body:
        if i.op is not None:
            shape = step.body[i.args[0]].shape if i.kind == "reduce" else i.shape
            flops += i.op.flops * math.prod(shape)
    return flops


def _operations(step: Primitive) -> int:
    if step.op.work is not None:
        return step.op.work(*step.params)
    inner = step.inputs[0].shape[-1] if step.op.name == "dot" and step.inputs[0].shape else 1
    return math.prod(step.output.shape) * (2 * inner if step.op.name == "dot" else step.op.flops)


def _nbytes(ref: Ref) -> int:
    return math.prod(n for n, s in zip(ref.shape, ref.strides) if s != 0) * ref.dtype.itemsize


def _place(ref: Ref, names: dict[int, str]) -> str:
    name = names.get(ref.buffer) or f"tensor {ref.buffer}" if ref.buffer >= 0 else f"temporary {-ref.buffer}"
    repeated = [a for a, (n, s) in enumerate(zip(ref.shape, ref.strides)) if s == 0 and n != 1]
    note = f" repeated over {', '.join(map(str, repeated))}" if repeated else ""
    return f"{name} {ref.shape} {dtypes.tag(ref.dtype)}{note}"


def _loops(kernel: Kernel) -> tuple[str, list[str]]:
    """The loop form in words, and the loop nest as lines."""
    found = kernel.cache["printed"].nest if "printed" in kernel.cache else nest(in_memory_order(kernel))
    shape = found.kernel.shape
    lines = [f"for x{a} in 0..{shape[a]}" for a in found.kept]
    lines += [f"for x{a} in 0..{shape[a]}   (reduced)" for a in found.reduced]
    note = "   (reduced)" if found.inner in found.kernel.axes else ""
    lines.append(f"for at in 0..{shape[found.inner]}{note}")
    body = [f"v{n} = {_instruction(i)}" for n, i in enumerate(found.kernel.body)]
    passes = f", {found.passes} reductions before the last pass" if found.passes > 1 else ""
    tiled = ", in tiles that are turned in cache" if found.tiled is not None else ""
    tiled += f", of rows of {found.width} joined" if found.width else ""
    tiled += ", of rows moved as they are" if found.copies else ""
    tiled += ", of short rows that are turned in cache" if found.short is not None else ""
    nested = ["  " * depth + line for depth, line in enumerate(lines)]
    return f"{found.form}{passes}{tiled}", nested + ["  " * len(lines) + line for line in body]


def _instruction(i: Any) -> str:
    arguments = ", ".join(f"v{a}" for a in i.args) if i.args else str(i.slot)
    return f"{i.op.name if i.op is not None else i.kind}({arguments})   {i.shape} {dtypes.tag(i.dtype)}"


def tree_lines(root: Any) -> Sequence[str]:
    """A tree as indented lines, at most `MOST_LINES` of them."""
    lines: list[str] = []
    stack: list[tuple[Any, int]] = [(root, 0)]
    while stack and len(lines) < MOST_LINES:
        x, depth = stack.pop()
        lines.append("  " * depth + _leaf(x))
        if isinstance(x, OpTreeNode):
            stack += [(y, depth + 1) for y in reversed(x.inputs)]
    return lines + ["..."] * bool(stack)


def _leaf(x: Any) -> str:
    if not hasattr(x, "structure"):
        return str(x)
    name = x.structure.op.name if isinstance(x, OpTreeNode) else x.name or "tensor"
    return f"{name}  {x.shape} {x.dtype}"
