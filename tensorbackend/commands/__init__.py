# SPDX-License-Identifier: Apache-2.0
"""The subcommands of `python -m tensorbackend`, a module each: `add` describes it to the parser, `run` does it.

`run(options)` gives the lines to print, as they become known, and raises `Failure` when the exit status is not 0.
"""

__all__ = ["Failure"]


class Failure(Exception):
    """What ends a command with exit status 1; its text is printed, if there is any."""
