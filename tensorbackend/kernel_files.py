# SPDX-License-Identifier: Apache-2.0
"""Where the hand-written kernel sources lie.

They live in `kernels/` at the top of the repository and are installed as `tensorbackend/kernels`.
This is the only place that knows both.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

__all__ = ["kernel_dir", "kernel_path"]


@cache
def kernel_dir() -> Path:
    """The folder of kernel sources: of the installed package, or of the checkout.

    Raises `FileNotFoundError` naming both places when neither exists (a broken installation).
    """
    package = Path(__file__).resolve().parent
    candidates = [package / "kernels", package.parent / "kernels"]
    for folder in candidates:
        if (folder / "c").is_dir():
            return folder
    places = " or ".join(map(str, candidates))
    raise FileNotFoundError(
        f"tensorbackend: no kernel sources in {places}; reinstall with: pip install --force-reinstall tensorbackend"
    )


def kernel_path(name: str) -> Path:
    """The path of one kernel source, for example `kernel_path("c/vmath.h")`.

    Raises `FileNotFoundError` that lists the files present when there is none of that name.
    """
    path = kernel_dir() / name
    if not path.is_file():
        present = sorted(p.relative_to(kernel_dir()).as_posix() for p in kernel_dir().rglob("*.*"))
        raise FileNotFoundError(f"tensorbackend: no kernel source {name!r}; there are {', '.join(present)}")
    return path
