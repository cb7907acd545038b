# SPDX-License-Identifier: Apache-2.0
"""The subcommands of `python -m tensorbackend`, a module each: `add` describes it to the parser, `run` does it.

`run(options)` gives the lines to print, as they become known, and raises `Failure` when the exit status is not 0.
"""

import argparse

__all__ = ["Failure", "count"]


class Failure(Exception):
    """What ends a command with exit status 1; its text is printed, if there is any."""


def count(text: str) -> int:
    """How many to show, an argument: a negative one would be taken as 'all but'."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"expected 0 or more, given {text}")
    return number
