# SPDX-License-Identifier: Apache-2.0
"""What is said of a user kernel: its texts, the forms that were called, errors by the lines of the texts."""

from __future__ import annotations

import re

from tensorbackend.codegen.user import POSITION, Form
from tensorbackend.user_kernels import Elementwise, Parameter, Reduction

__all__ = ["described", "described_form", "explained"]


def described(spec: Elementwise | Reduction) -> list[str]:
    """The parameters and texts of a kernel as lines."""
    rows = [("inputs", spec.inputs), ("outputs", spec.outputs)]
    lines = [f"  {label:<10}{', '.join(f'{_type(p)} {p.name}' for p in found)}" for label, found in rows if found]
    return lines + [f"  {label:<10}{' '.join(text.split())}" for label, text in _texts(spec).items() if text]


def _texts(spec: Elementwise | Reduction) -> dict[str, str]:
    """The user's texts by their labels."""
    labels = ("map", "reduce", "post", "identity")
    texts = {"operation": spec.body} if isinstance(spec, Elementwise) else {x: getattr(spec, x) for x in labels}
    return {**texts, "preamble": spec.preamble}


def _type(p: Parameter) -> str:
    return f"{'raw ' * p.raw}{p.type}{' *' * p.pointer}"


def described_form(spec: Elementwise | Reduction, form: Form) -> list[str]:
    """A form that was called: types, and how each array is walked."""
    bound = ", ".join(f"{letter} = {dtype.name}" for letter, dtype in form.bound)
    steps = {0: "repeated", 1: "side by side", -1: "by strides"}
    ways = [f"{name} {' x '.join(steps[u] for u in units)}" for name, units in form.units if name != POSITION]
    ways += [f"{p.name} a number" for p, number in zip(spec.parameters, form.is_number) if number]
    loop = f"{form.rank} axes" if form.rank != 1 else "one axis"
    if isinstance(spec, Reduction):
        loop = f"{form.kept} kept and {form.rank - form.kept} reduced axes, " + (
            "neighbouring results together" if form.columns else "one result at a time"
        )
        loop += ", long ones in segments" * form.split
    return [f"  called with {bound or 'fixed types'}: {'; '.join(ways)}", f"  loops over {loop}"]


def explained(spec: Elementwise | Reduction, message: str) -> str:
    """A compile error with the kernel's name and the line of the user's text that the compiler names first."""
    name = re.escape(spec.name)
    pattern = rf"^.*?\b{name}(?: \((\w+)\))?(?::(\d+):(?:\d+:)? (?:fatal )?|\((\d+)\): )error:? (.*)$"
    found = re.search(pattern, message, re.MULTILINE)
    if found is not None:
        label, number = found[1] or "operation", int(found[2] or found[3])
        text = spec.body if label == "operation" else getattr(spec, label)
        return f"{spec.name}: {found[4]}\n{_line_of(text, label, number)}\n{message}"
    missing = re.search(r"undefined symbol: (\w+)", message)
    if missing is None:
        return f"{spec.name}: the kernel cannot be compiled\n{message}"
    head = f"{spec.name}: there is no function {missing[1]}"
    for label, text in _texts(spec).items():
        for number, line in enumerate(text.splitlines(), start=1):
            if re.search(rf"\b{missing[1]}\b", line):
                return f"{head}\n{_line_of(text, label, number)}\n{message}"
    return f"{head}\n{message}"


def _line_of(text: str, label: str, number: int) -> str:
    lines = text.removesuffix("\n;").splitlines() or [""]  # the end that `user_kernels` gives it is nobody's line
    number = min(number, len(lines))
    return f"  line {number} of the {label}: {lines[number - 1].strip()}"
