# SPDX-License-Identifier: Apache-2.0
"""What is written from tables rather than by hand: docs/ops.md, docs/settings.md, docs/primitives.md,
docs/api.md, type stubs.

`python -m tensorbackend.docgen` (or `./dev docs`) writes them anew in a checkout; a test says when they are stale.
Gradients are shown as the op-trees that autodiff builds: the rules run on small tensors named x, y, z and g.
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Iterable
from pathlib import Path

from tensorbackend import api_page, contract_page, ops, stubgen
from tensorbackend.backends.cpu import CPUBackend
from tensorbackend.graph import composite
from tensorbackend.graph.optree import OpTreeNode
from tensorbackend.graph.tensor import Tensor
from tensorbackend.ops import Op
from tensorbackend.settings import SETTINGS

__all__ = ["generated", "ops_page", "settings_page", "write"]

ROOT = Path(__file__).resolve().parents[1]

TYPE_RULES = {
    "arith": "the operands' common type; bool counts as int64",
    "same": "the operands' common type",
    "whole": "the operand's type; of integers the op is the identity",
    "float": "the operands' common type if it is a float, else the backend's default type",
    "truth": "bool",
    "bits": "the common type of integers or bools; floats raise `DTypeError`",
    "integer": "the common type of integers, bool counting as int64; floats raise `DTypeError`",
    "choice": "the common type of the two choices",
    "sum": "a float's own type; int64 or uint64 of integers",
    "product": "a float's common type; int64 or uint64 of integers",
    "index": "int64",
    "int64": "int64",
    "int32": "int32",
    "uint32": "uint32",
    "first": "the first operand's type",
    "default": "the backend's default type",
    "sround": "float32, float64",
}
"""What the names in the table's `dtype` column mean."""
EXACT = ("truth", "bits", "integer", "choice", "whole", "same")
"""Rules of ops that only choose, compare or round to integers: their values have no error."""

OPS_HEAD = """# Ops

<!-- Written by `./dev docs` from the op table, tensorbackend/ops.py: edit that. -->

Every op is one entry of the table in `tensorbackend/ops.py`; [adding-an-op.md](adding-an-op.md) adds one. `x`, `y` and
`z` are the operands, which broadcast as in NumPy. In a gradient `g` is the gradient with respect to the op's value, and
`value` is that value; the gradient of an operand that was broadcast is summed over the axes along which it was. 0 means
that an operand gets no gradient. *Error* is the bound in units in the last place of float32 in compiled kernels.

Each method takes `out=`, a tensor to write to, and returns it; without `out` it returns an op-tree. Halves are computed
in float32 and rounded when they are stored.
"""
REDUCTIONS = """## Reductions

Over `axis` (an int, several, or None for all; argmax and argmin: 1 by default). The axes stay with length 1 unless
`keepdims=False`."""
SOURCES = """## Sources

Numbers that depend on the place in the array alone. `be.rand`, `be.randn` and `be.onehot` build on them."""
OTHERS = """## Movements and primitives

Movements are other views of the same numbers; a primitive is one call on operands in memory. Trees may hold both."""
COMPOSITES = """## Expressions of ops

Written once in `tensorbackend/graph/composite.py`; they fuse and differentiate like any tree."""

SETTINGS_HEAD = """# Settings

<!-- Written by `./dev docs` from tensorbackend/settings.py: edit that. -->

A setting is read from the environment when the package is imported. `tensorbackend.settings.config.NAME = value`
changes it for all threads, and `with tensorbackend.using(NAME=value):` for the calling thread inside the block.

`tensorbackend.config` reaches the settings too, but for `debug` and `dtype`: there these are entries of the function
layer, which hold for one thread. `config.debug` looks for NaN (`TB_NAN_CHECK=1` turns it on), `config.dtype` is the
type of new parameters; `config.type_check` checks what functions are given (`TB_TYPE_CHECK=0` turns it off).
"""


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _table(heads: tuple[str, ...], rows: Iterable[Iterable[str]]) -> str:
    return "\n".join([_row(heads), _row(["---"] * len(heads)), *map(_row, rows)]) + "\n"


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _methods(op: Op) -> str:
    return " ".join(_code(name) for name in op.methods) or _code(op.name)


def _operator(op: Op) -> str:
    if op.symbol is None or (op.dunder is None and op.symbol != "@"):
        return ""
    return _code(f"x {op.symbol} y" if op.arity == 2 else f"{op.symbol}x")


class _Gradients:
    """The derivative rules as text: what they build on tensors that are named like the operands."""

    def __init__(self) -> None:
        self.be = CPUBackend(min_dims=0, jit=False)

    def _tensor(self, name: str) -> Tensor:
        return self.be.empty((2, 2), name=name)

    def of(self, op: Op) -> str:
        """One gradient an operand, 0 where there is none."""
        if op.vjp is None:
            return "none: the op raises `ValueError`" if op.arity else ""
        operands = [self._tensor(name) for name in "xyz"[: op.arity]]
        found = op.vjp(composite, self._tensor("g"), self._tensor("value"), *operands)
        return ", ".join("0" if gradient is None else _code(_expression(gradient)) for gradient in found)


def _expression(gradient: Tensor | OpTreeNode) -> str:
    return gradient.name if isinstance(gradient, Tensor) else str(gradient)


def _elementwise_rows(gradients: _Gradients) -> Iterable[tuple[str, ...]]:
    for op in ops.elementwise():
        error = "exact" if op.dtype in EXACT else f"{op.ulps:g}"
        yield _methods(op), _operator(op), op.said, gradients.of(op), op.dtype, error


def _composite_rows() -> Iterable[tuple[str, ...]]:
    for name, function in composite.COMPOSITES.items():
        parameters = [str(p.replace(annotation=p.empty)) for p in inspect.signature(function).parameters.values()]
        yield _code(f"{name}({', '.join(parameters)})"), inspect.getdoc(function) or ""


def _sections() -> Iterable[tuple[str, str]]:
    """The introduction and the table of each section of docs/ops.md."""
    gradients = _Gradients()
    heads = ("Method", "Operator", "Value", "Gradient", "Type", "Error")
    yield "## Elementwise", _table(heads, _elementwise_rows(gradients))
    rows = [(_methods(op), op.said, gradients.of(op), op.dtype) for op in ops.reductions()]
    yield REDUCTIONS, _table(("Method", "Value", "Gradient", "Type"), rows)
    rows = [(_methods(op), op.said, op.dtype) for op in ops.sources()]
    yield SOURCES, _table(("Name", "Value", "Type"), rows)
    others = [op for op in ops.OPS.values() if op.kind in (ops.MOVEMENT, ops.PRIMITIVE)]
    rows = [(_methods(op), _operator(op), op.said, op.dtype) for op in others]
    yield OTHERS, _table(("Name", "Operator", "Value", "Type"), rows)
    yield COMPOSITES, _table(("Method", "Value"), _composite_rows())


def ops_page() -> str:
    """The text of docs/ops.md."""
    used = dict.fromkeys(op.dtype for op in ops.OPS.values())
    rules = _table(("Type", "The result's"), ((name, TYPE_RULES[name]) for name in used))
    return "\n".join([OPS_HEAD, rules, *(f"{intro}\n\n{table}" for intro, table in _sections())])


def settings_page() -> str:
    """The text of docs/settings.md."""
    rows = []
    for s in SETTINGS.values():
        kind = s.parse.__name__.strip("_").replace("flag", "1 or 0")
        default = "" if s.default is None else str(int(s.default) if isinstance(s.default, bool) else s.default)
        rows.append((_code(s.variable), _code(s.name), kind, _code(default), s.doc))
    return SETTINGS_HEAD + "\n" + _table(("Variable", "Name", "Type", "Default", "Meaning"), rows)


def generated() -> dict[Path, str]:
    """Every generated file of a checkout, and its text."""
    return {
        ROOT / "docs" / "ops.md": ops_page(),
        ROOT / "docs" / "settings.md": settings_page(),
        ROOT / "docs" / "api.md": api_page.api_page(),
        ROOT / "docs" / "primitives.md": contract_page.primitives_page(),
        **stubgen.stubs(),
    }


def write() -> None:
    """Write the generated files. Raises `FileNotFoundError` outside of a checkout."""
    for path, text in generated().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    write()
