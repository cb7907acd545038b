# SPDX-License-Identifier: Apache-2.0
"""gcc's steps without gcc's driver: compile, assemble and link by one shell, in 6/7 of the time.

The driver is asked once what it would start (`-###`). Whoever runs the pipeline runs the driver after all when it
fails, so that messages, and compilers that do something of their own, stay as they are.
"""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import subprocess
from pathlib import Path

from tensorbackend.backends import programs

__all__ = ["pipeline"]

# A step that fails must fail the next: the assembler stops at this.
FAIL = "printf '\\n.err\\n'"


def pipeline(arguments: list[str], unit: Path, library: Path, environment: dict[str, str]) -> list[str] | None:
    """The command that makes `library` from `unit` as `arguments` (the driver's, up to the names of files) would.

    None where the driver is a script, or starts anything else than one compiler, assembler and linker that only links.
    """
    steps = _steps(tuple(arguments), environment.get("PATH", ""))
    if steps is None:
        return None
    names = {_UNIT: unit, _LIBRARY: library, _OBJECT: unit.with_suffix(".o")}
    compile_, assemble, link = (shlex.join(str(names.get(word, word)) for word in step) for step in steps)
    return ["/bin/sh", "-c", f"{{ {compile_} || {FAIL}; }} | {assemble} && exec {link}"]


_UNIT, _OBJECT, _LIBRARY = "/unit.c", "/unit.o", "/library.so"


@functools.lru_cache(maxsize=64)
def _steps(arguments: tuple[str, ...], path: str) -> tuple[list[str], list[str], list[str]] | None:
    """The words of the three steps, with stand-ins for names of files."""
    if not _is_program(arguments[0]) or any(a.startswith("-flto") for a in arguments):  # the driver's linker compiles
        return None
    command = [*arguments, "-###", "-x", "c", _UNIT, "-o", _LIBRARY]
    try:
        done = programs.ask(command, 10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = [shlex.split(line) for line in done.stderr.splitlines() if line.startswith(" ")]
    names = [os.path.basename(line[0]) for line in lines]
    if done.returncode or names != ["cc1", "as", "collect2"] or lines[0][-3:] != ["-o", "-", "|"]:
        return None
    compiler, assembler, linker = lines[0][:-1], lines[1], lines[2]
    made = assembler[assembler.index("-o") + 1]
    paths = {name: shutil.which(name, path=path) for name in ("as", "ld")}
    if None in paths.values() or made not in linker or _LIBRARY not in linker:
        return None
    assembler = [paths["as"], *assembler[1:]]
    linker = [paths["ld"], *(w for w in linker[1:] if not w.startswith("-plugin") and "liblto_plugin" not in w)]
    return compiler, [_OBJECT if w == made else w for w in assembler], [_OBJECT if w == made else w for w in linker]


def _is_program(path: str) -> bool:
    """Whether a file is a program of the machine, not a script that may do as it likes."""
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"\x7fELF"
    except OSError:
        return False
