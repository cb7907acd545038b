# SPDX-License-Identifier: Apache-2.0
"""Only what a kernel uses: the headers of `kernels/c`, cut into definitions, and the closure that a text needs.

Parsing and compiling every maths function for every kernel would take far longer than the kernel itself. The
compiler's preprocessor expands the headers once a process; each kernel then gets the few definitions that it names,
each behind a guard, so that several kernels can share a translation unit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["Definitions"]

_INCLUDE = re.compile(r'^#include "kernel\.h"\n', re.MULTILINE)
_WORD = re.compile(r"\b(?:tbb?|TB)_\w+")
_SYSTEM = re.compile(r"#(?:define|undef) (?!tbb?_|TB_)")
_CALLED = re.compile(r'__asm__\("(?:_ZGV\w+?v+_)?(tb_\w+)"\)')
"""What a function is called by, for a number or (the vector function ABI) for several."""


class Definitions:
    """The definitions of preprocessed headers: what `cc -E -dD -P` prints of them."""

    def __init__(self, preprocessed: str) -> None:
        self._chunks = list(_chunks(preprocessed))
        self._names = {name: at for at, chunk in enumerate(self._chunks) for name in _defines(chunk)}
        self._variants: dict[int, list[int]] = {}
        for at, chunk in enumerate(self._chunks):
            if called := _CALLED.search(chunk.replace('" "', "")):
                self._variants.setdefault(self._names[called[1]], []).append(at)

    def expand(self, source: str) -> str:
        """`source` with its line for `kernel.h` replaced by the definitions that it needs, themselves complete."""
        body = _INCLUDE.sub("", source)
        wanted: set[int] = set()
        stack = [body]
        while stack:
            named = {self._names[word] for word in _WORD.findall(stack.pop()) if word in self._names}
            named.update(*(self._variants.get(at, ()) for at in named))
            stack += (self._chunks[at] for at in named - wanted)
            wanted |= named
        return "\n".join([*(_guarded(at, self._chunks[at]) for at in sorted(wanted)), body])


def _guarded(at: int, chunk: str) -> str:
    if chunk.startswith("#"):
        return chunk
    return f"#ifndef TB_HAS_{at}\n#define TB_HAS_{at}\n{chunk}\n#endif"


def _chunks(text: str) -> Iterator[str]:
    """Definitions at the top level: macro lines, and text up to a closing brace or semicolon outside all braces."""
    pending: list[str] = []
    depth = 0
    for line in text.splitlines():
        if line.startswith("#"):
            if not _SYSTEM.match(line):
                yield line
            continue
        for part in re.split(r"(?<=[{};])", line):
            pending.append(part)
            depth += part.count("{") - part.count("}")
            ended = part.endswith(";") or (part.endswith("}") and _is_function("".join(pending)))
            if depth == 0 and ended:
                yield "\n".join(pending).strip()
                pending = []


def _is_function(text: str) -> bool:
    return "(" in text and not text.lstrip().startswith("typedef")


def _defines(chunk: str) -> list[str]:
    """The names that a definition brings: a macro's, type's, function's or table's."""
    if chunk.startswith("#define"):
        return [re.split(r"[ (]", chunk, maxsplit=2)[1]]
    if chunk.startswith("typedef"):
        return re.findall(r"(\w+)\s*(?:__attribute__.*)?;$", chunk)
    return re.findall(r"\b(tbb?_\w+)\s*[\[(=]", chunk)[:1]
