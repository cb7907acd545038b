# SPDX-License-Identifier: Apache-2.0
"""CUDA C made readable for a C++ compiler, for the emulator: what macros alone cannot do.

A `__shared__` array becomes a reference to guarded memory, which needs its type and name apart; and a kernel's name is
announced, so that the emulator finds its entry point.
"""

from __future__ import annotations

import os
import re

from tensorbackend.errors import CompileError, complain
from tensorbackend.kernel_files import kernel_dir

__all__ = ["kernels_of", "translate"]

_COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/|("(?:\\.|[^"\\\n])*")', re.DOTALL)
_BOUNDS = r"(?:__launch_bounds__\s*(\((?:[^()]|\([^()]*\))*\))\s*)?"
_KERNEL = re.compile(r'extern\s+"C"\s+__global__\s+(?:void\s+)?' + _BOUNDS + r"(?:void\s+)?(\w+)\s*\(")
_INCLUDE = re.compile(
    r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"[^\n]*|^[ \t]*#[ \t]*include[ \t]*<cuda[^\n]*', re.MULTILINE
)
_ALIGN = r"((?:(?:__align__|alignas)\s*\([^()]*\)\s*)?)"
_DYNAMIC = re.compile(r"extern\s+__shared__\s+" + _ALIGN + r"([\w:<>\s]+?)\s+(\w+)\s*\[\s*\]\s*;")
_STATIC = re.compile(r"(?:static\s+)?__shared__\s+" + _ALIGN + r"([^;=]+);")
_DECLARATOR = re.compile(r"(?:(.+?)\s+)?(\w+)\s*((?:\[[^\]]*\]\s*)*)", re.DOTALL)


def _without_comments(source: str) -> str:
    """`source` with comments blanked, its lines where they were."""
    return _COMMENT.sub(lambda found: found[1] or re.sub(r"[^\n]", " ", found[0]), source)


def kernels_of(source: str) -> list[tuple[str, str]]:
    """Launch bounds (in parentheses, or "") and name of each kernel that `source` declares, each once."""
    return list({name: (bounds, name) for bounds, name in _KERNEL.findall(_without_comments(source))}.values())


def translate(source: str, name: str) -> str:
    """The C++ text of CUDA `source`, line by line the same: shared memory by the emulator's macros, kernels announced.

    Headers of `kernels/cuda` are written out, since they may declare shared memory. Raises `CompileError` for a
    declaration of shared memory that is not understood.
    """
    text = _write_out(_without_comments(source), name, set())
    announced = "".join(f"EMULATOR_KERNEL({kernel}, {bounds or '()'})\n" for bounds, kernel in kernels_of(source))
    return f'#include "../cuda/emulator.h"\n#line 1 {_quoted(name)}\n{text}\n{announced}'


def _write_out(text: str, name: str, seen: set[str]) -> str:
    """`text` of the file `name` with its own headers in it, each once, and its shared memory rewritten."""

    def include(found: re.Match[str]) -> str:
        header = found[1]
        path = kernel_dir() / "cuda" / (header or "")
        if header and not path.is_file():
            return found[0]
        if not header or header in seen:
            return ""
        seen.add(header)
        inner = _write_out(_without_comments(path.read_text(encoding="utf-8")), os.fspath(path), seen)
        line = text.count("\n", 0, found.start()) + 2
        return f"#line 1 {_quoted(os.fspath(path))}\n{inner}\n#line {line} {_quoted(name)}"

    return _INCLUDE.sub(include, _rewrite_shared(text, name))


def _quoted(name: str) -> str:
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _rewrite_shared(text: str, name: str) -> str:
    text = _DYNAMIC.sub(lambda m: _keep_lines(m[0], f"EMULATOR_DYNAMIC_SHARED({m[2]}, {m[3]});"), text)
    text = _STATIC.sub(lambda m: _keep_lines(m[0], _declare(m[1], m[2])), text)
    left = text.find("__shared__")
    if left >= 0:
        line = text.count("\n", 0, left) + 1
        expected = "__shared__ TYPE NAME[N]...; or extern __shared__ TYPE NAME[];"
        given = text[left:].partition("\n")[0]
        raise CompileError(complain(f"{name}:{line}: shared memory the emulator cannot read", given, expected))
    return text


def _keep_lines(before: str, after: str) -> str:
    return after.replace("\n", " ") + "\n" * before.count("\n")


def _declare(attributes: str, declarators: str) -> str:
    """The macros of one declaration of static shared memory, of one name or several."""
    macros, kind = [], ""
    for declarator in re.split(r",(?![^<\[(]*[>\])])", declarators):
        found = _DECLARATOR.fullmatch(declarator.strip())
        if found is None or not (found[1] or kind) or "{" in declarator:  # of a type that is defined here, a part
            return f"__shared__ {declarators};"
        kind = found[1] or kind
        macros.append(f"EMULATOR_SHARED({attributes.strip()}, EMULATOR_TYPE({kind}), {found[2]}, {found[3]});")
    return " ".join(macros)
