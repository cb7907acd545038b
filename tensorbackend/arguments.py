# SPDX-License-Identifier: Apache-2.0
"""What reads command-line arguments: types for `argparse`, which names the argument in the error."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

__all__ = ["image_file", "output_file", "whole"]

IMAGES = ("eps", "jpeg", "jpg", "pdf", "png", "ps", "svg", "tif", "tiff", "webp")
"""How names of files end that Matplotlib writes images to."""


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """What reads a whole number of `least` or more, and of `most` at most; for others it raises `ArgumentTypeError`."""
    expected = f"expected {least} or more" if most is None else f"expected {least} to {most}"

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} given, {expected}") from None
        if number < least or (most is not None and number > most):
            raise argparse.ArgumentTypeError(f"{number} given, {expected}")
        return number

    return read


def output_file(text: str) -> Path:
    """A file that is written at the end: that none can be there is said before anything is computed, by an
    `ArgumentTypeError`."""
    path = Path(text)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"no folder {path.parent}")
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a folder")
    written = path if path.exists() else path.parent
    if not os.access(written, os.W_OK):
        raise argparse.ArgumentTypeError(f"{written} may not be written")
    return path


def image_file(text: str) -> Path:
    """A file that an image is drawn into: an ending that says no kind of image is refused by an `ArgumentTypeError`."""
    path = Path(text)
    if path.suffix[1:].lower() not in IMAGES:
        raise argparse.ArgumentTypeError(f"{text} given, expected a name that ends in .{', .'.join(IMAGES)}")
    return path
