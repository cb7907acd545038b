# SPDX-License-Identifier: Apache-2.0
"""The exceptions of the project and the one form their messages take.

A message says what was given, what was expected and what to do. Nothing has been written when one is raised.
"""

from __future__ import annotations

import contextlib
import difflib
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy

__all__ = [
    "BackendError", "CaptureError", "CompileError", "DTypeError", "KernelFault", "ShapeError", "KeyRefused", "complain",
    "is_complaint", "nearest", "ours", "user_line",
]  # fmt: skip

NOT_USERS = (str(Path(__file__).parent / "_").removesuffix("_"), contextlib.__file__)
"""How the names of files begin whose frames are not the user's: this package's, and that of `with` blocks."""

NUMPY = str(Path(numpy.__file__).parent / "_").removesuffix("_")
"""How the names of NumPy's files begin."""


class ShapeError(ValueError):
    """Shapes, axes or strides that do not fit an operation."""


class DTypeError(TypeError):
    """An element type that an operation does not take."""


class BackendError(RuntimeError):
    """A backend that is closed, missing, or not the one that owns a tensor."""


class KeyRefused(KeyError):
    """A name that there is not, or that is taken. Its message is shown as it is, where a `KeyError` shows its quoted
    form."""

    __str__ = Exception.__str__


class KernelFault(BackendError):
    """A kernel that did what no kernel may: `kernel`, `location` ("file:line"), `block` and `thread` say which, where.

    What is not known (a device says less than the emulator) is "" or None.
    """

    def __init__(
        self,
        message: str,
        *,
        kernel: str = "",
        location: str = "",
        block: tuple[int, int, int] | None = None,
        thread: tuple[int, int, int] | None = None,
    ) -> None:
        super().__init__(message)
        self.kernel = kernel
        self.location = location
        self.block = block
        self.thread = thread


class CaptureError(BackendError):
    """Something that a captured program cannot repeat, such as reading numbers to the host."""


class CompileError(RuntimeError):
    """A compiler that failed, hung or is missing."""


def complain(head: str, given: str = "", expected: str = "", hint: str = "") -> str:
    """The text of an error: a headline, then what was given, what was expected and what to try (each optional)."""
    rows = [("given", given), ("expected", expected), ("try", hint)]
    return "\n".join([head, *(f"  {label:<9} {text}" for label, text in rows if text)])


def is_complaint(error: BaseException) -> bool:
    """Whether an error's text has the form of `complain`, or is of a class that only this package raises."""
    own = isinstance(error, (ShapeError, DTypeError, BackendError, KeyRefused, CompileError))
    return own or any(f"\n  {label:<9} " in str(error) for label in ("given", "expected", "try"))


def ours(error: BaseException) -> bool:
    """Whether an error comes from this package, or from NumPy below it: not from a function that a user passed."""
    trace = error.__traceback__ and error.__traceback__.tb_next  # the first is the frame that asks
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith((*NOT_USERS, NUMPY)):
            return False
        trace = trace.tb_next
    return True


def user_line() -> str:
    """The place in the user's code that led here, as `file.py:12`: the innermost frame of neither this package nor
    a context manager."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(NOT_USERS):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint that names the known names most like `name`, or all of them when none is alike."""
    known = sorted(known)
    close = difflib.get_close_matches(str(name), known, n=3)
    return f"one of {', '.join(close or known)}" if known else "none: there are no names"
