# SPDX-License-Identifier: Apache-2.0
"""The command line: `python -m tensorbackend COMMAND`. Each command is a module of `tensorbackend/commands`."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence

import tensorbackend
from tensorbackend.commands import Failure, bench, cache, explain, info, launch

__all__ = ["main", "parser"]

COMMANDS = {"info": info, "explain": explain, "cache": cache, "bench": bench, "launch": launch}
TEXT = "Tensors, op-trees and fused kernels: look at this machine and at what the engine makes of a program."
EXAMPLES = """examples:
  python -m tensorbackend info                      what to paste into a bug report
  python -m tensorbackend explain train.py -n 5     the statements that took longest, and what they became
  python -m tensorbackend explain model.py:loss     one expression, or a function, by its name in a file
  python -m tensorbackend bench                     a first look at this machine, in a minute
  python -m tensorbackend bench elementwise --quick a family of benchmarks (in a checkout)
  python -m tensorbackend bench --report page.html  all families, and a page that compares them (in a checkout)
  python -m tensorbackend launch -n 2 train.py      a script in two processes, which train together
  python -m tensorbackend cache list -n 5           the kernels used last
"""


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    layout = argparse.RawDescriptionHelpFormatter
    made = argparse.ArgumentParser("python -m tensorbackend", description=TEXT, epilog=EXAMPLES, formatter_class=layout)
    made.add_argument("--version", action="version", version=tensorbackend.__version__)
    commands = made.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for module in COMMANDS.values():
        module.add(commands)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line (None: the process's). Returns the exit status: 0, 1 for a failure, 2 for wrong usage, 130
    after Ctrl-C, as shells have it."""
    logging.basicConfig(format="%(message)s")
    made = parser()
    options = _parse(made, list(sys.argv[1:] if arguments is None else arguments))
    if options.command is None:
        made.print_help()
        return 2
    try:
        for line in COMMANDS[options.command].run(options):
            _print(line)
    except Failure as failure:
        print(failure, file=sys.stderr, end="\n" if str(failure) else "")
        return 1
    except BrokenPipeError:  # the reader, `head` for instance, has seen enough
        _leave_output()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


def _print(line: str) -> None:
    try:
        print(line, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:  # a full disk
        _leave_output()
        raise Failure(f"standard output: {error.strerror}") from None


def _leave_output() -> None:
    """What is still to be written goes nowhere, or Python would complain at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parse(made: argparse.ArgumentParser, arguments: list[str]) -> argparse.Namespace:
    """The options; what follows the family of `bench`, or a `--`, is the script's own and is kept in `rest`."""
    if arguments[:1] == ["explain"] and "--" in arguments:
        end = arguments.index("--")
        options = made.parse_args(arguments[:end])
        options.rest = list(arguments[end + 1 :])
        return options
    if len(arguments) > 1 and arguments[0] == "bench" and not arguments[1].startswith("-"):
        options = made.parse_args(arguments[:2])
        options.rest = list(arguments[2:])
        return options
    return made.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
