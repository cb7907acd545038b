# SPDX-License-Identifier: Apache-2.0
"""`explain`: what the statements of a script become, or one expression of a file."""

from __future__ import annotations

import argparse
import builtins
import inspect
import logging
import re
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType
from typing import Any

from tensorbackend.arguments import output_file, whole
from tensorbackend.backends import registry, watch
from tensorbackend.backends.program import Program
from tensorbackend.commands import Failure
from tensorbackend.explain import Explanation
from tensorbackend.graph.optree import Operators, OpTreeNode

__all__ = ["add", "run"]

_log = logging.getLogger("tensorbackend")


def add(commands: argparse._SubParsersAction) -> None:
    """Describe the command."""
    text = (
        "Run a script and show the kernels that its statements became, with their times and shares of what "
        "this machine can do; or, with FILE:EXPRESSION, run the file as a module and explain one expression of its "
        "names: an op-tree, a function without arguments, or a call such as 'step(x)'. A script's own arguments "
        "follow a '--'. Ctrl-C ends a script, and what ran until then is shown."
    )
    parser = commands.add_parser("explain", help="the kernels that statements become, and why", description=text)
    parser.add_argument("what", metavar="FILE[:EXPRESSION]", help="a script, or an expression of a file's names")
    parser.add_argument("-n", type=whole(0), default=20, metavar="COUNT",
                        help="statements to show (default %(default)s)")  # fmt: skip
    parser.add_argument("--source", action="store_true", help="show the generated sources too")
    parser.add_argument("--html", type=output_file, metavar="PAGE", help="write a page to this file as well")
    parser.set_defaults(rest=[])


def run(options: argparse.Namespace) -> Iterator[str]:
    """Explain. Raises `Failure` when there is no such file, or nothing ran."""
    found = _explained(*_parts(options.what), options.rest)
    if not found.statements:
        raise Failure(f"{options.what}: no statement ran")
    shown = found.longest(options.n)
    yield shown.text(sources=options.source)
    if len(found.statements) > len(shown.statements):
        left = len(found.statements) - len(shown.statements)
        yield f"\n{left} more statement{'s' * (left > 1)} took less time (-n shows more)"
    if options.html:
        try:
            yield f"\n{shown.save(options.html)}"
        except OSError as error:
            raise Failure(f"{options.html}: {error.strerror}") from error


def _parts(what: str) -> tuple[Path, str]:
    """The file and the expression, "" for the whole script."""
    name, colon, expression = what.partition(".py:")
    path = Path(f"{name}.py" if colon else what)
    if not path.is_file():
        raise Failure(f"{path}: no such file; give FILE or FILE:EXPRESSION")
    if colon and not expression.strip():
        raise Failure(f"{what}: no expression after the colon; give FILE or FILE:EXPRESSION")
    return path, expression


def _explained(path: Path, expression: str, arguments: list[str]) -> Explanation:
    sys.path.insert(0, str(path.resolve().parent))
    sys.argv = [str(path), *arguments]
    if expression:
        return _value(expression, runpy.run_path(str(path), run_name="explained"))
    with watch.recording() as found:
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit as ended:
            if ended.code:
                raise
        except KeyboardInterrupt:
            _log.warning("%s: interrupted; what ran until then:", path)
    return watch.explained(found, str(path))


def _value(expression: str, names: dict[str, Any]) -> Explanation:
    """An expression of a file's names explained: what its evaluation runs, or else what its value becomes."""
    code = _compiled(expression, names)
    with watch.recording() as found:
        value = eval(code, names)
    if isinstance(value, OpTreeNode):
        return value.backend.explain(value)
    if isinstance(value, Program):
        raise Failure(f"{expression} is a captured program; give a call of it, such as '{expression}(x)'")
    if callable(value):
        if _wants_arguments(value):
            raise Failure(f"{expression} takes arguments; give a call of it, such as '{expression}(x)'")
        return registry.current_backend().explain(value)
    if found:
        return watch.explained(found, expression)
    raise Failure(f"{expression} is {type(value).__name__}; expected an op-tree, a function or a call of one")


def _wants_arguments(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind()
    except ValueError:  # of a builtin, which does not say what it takes
        return False
    except TypeError:
        return True
    return False


def _compiled(expression: str, names: dict[str, Any]) -> CodeType:
    """The expression, ready to evaluate. Raises `Failure` for one that is none, or has a name that the file lacks."""
    try:
        code = compile(expression, "the command line", "eval")
    except SyntaxError as error:
        raise Failure(f"{expression}: {error.msg}") from error
    missing = [x for x in re.findall(r"(?<![.\w])[A-Za-z_]\w*", expression) if x in code.co_names]
    missing = [x for x in missing if x not in names and not hasattr(builtins, x)]
    if missing:
        raise Failure(f"{expression}: no name {missing[0]!r}; the file has {', '.join(_public(names)) or 'none'}")
    return code


def _public(names: dict[str, Any]) -> list[str]:
    """The names in a file that may be meant."""
    return [name for name, x in names.items() if not name.startswith("_") and (callable(x) or isinstance(x, Operators))]
