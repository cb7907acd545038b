# SPDX-License-Identifier: Apache-2.0
"""What `import tensorbackend` costs beyond NumPy: little time, no other package, no process."""

from __future__ import annotations

import ast
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

import tensorbackend

ROOT = Path(__file__).resolve().parents[2]
MOST_SECONDS, MOST_OF_NUMPYS = 0.2, 2.5
"""The most that importing takes; on slow processors, where NumPy's own import says so, in proportion to that."""
RUNS = 7
OPERATORS = "tensorbackend.functions.operators"
"""The module that gives variables their operators."""

TIME_IMPORT = """
import time
start = time.process_time()
import numpy, ml_dtypes
between = time.process_time()
import tensorbackend
print(between - start, time.process_time() - between)
"""
NEW_PACKAGES = """
import sys, numpy, ml_dtypes
before = set(sys.modules)
import tensorbackend
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(new - sys.stdlib_module_names - {"numpy", "ml_dtypes", "tensorbackend"}))
"""
LAZY = """
import sys, tensorbackend
print(*sorted(n for n in sys.modules if n.startswith("tensorbackend.") and n.rpartition(".")[2] in sys.argv[1:]))
print(tensorbackend.Backend.backend_choices(), tensorbackend.Backend.backends["cpu"].__name__)
"""
NEW_PROCESSES = """
import sys, numpy, ml_dtypes
starts = ("subprocess.Popen", "os.fork", "os.posix_spawn", "os.exec", "os.system")
sys.addaudithook(lambda event, arguments: event in starts and print(event, arguments))
import tensorbackend
"""


def run(script: str, *arguments: str) -> str:
    """What a fresh interpreter prints that runs the script at the top of the checkout."""
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_import_takes_less_than_a_fifth_of_a_second_beyond_numpy() -> None:
    pairs = [tuple(map(float, run(TIME_IMPORT).split())) for _ in range(RUNS)]  # of processor time: load does not count
    numpys, ours = (statistics.median(seconds) for seconds in zip(*pairs))
    assert ours < max(MOST_SECONDS, MOST_OF_NUMPYS * numpys), f"seconds of {RUNS} runs, NumPy's and ours: {pairs}"


def test_import_loads_no_other_package() -> None:
    assert run(NEW_PACKAGES) == ""


def test_import_starts_no_process() -> None:
    assert run(NEW_PROCESSES) == ""


def test_backends_and_rare_tools_are_imported_when_asked_for() -> None:
    printed = run(LAZY, "cpu", "gpu", "compiler", "program", "user", "explain_page", "interpreter")
    assert printed == "['cpu', 'gpu'] CPUBackend"


def test_modules_of_the_function_layer_are_attributes() -> None:
    for name in (name for name, place in tensorbackend._LAZY.items() if not place):
        printed = run(f"import tensorbackend as tb; print(tb.{name}.__name__, {name!r} in dir(tb))")
        assert printed == f"tensorbackend.{name} True"
    with pytest.raises(AttributeError, match="module 'tensorbackend' has no attribute 'likns'"):
        tensorbackend.likns  # noqa: B018


def seen_by_type_checkers(body: list[ast.stmt]) -> set[str]:
    """The names that a module or class has under `TYPE_CHECKING`."""
    (block,) = [n for n in body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
    nodes = [node for statement in block.body for node in getattr(statement, "names", [statement])]
    return {node.target.id if isinstance(node, ast.AnnAssign) else node.name for node in nodes}


def test_type_checkers_see_lazy_names_and_operators_of_variables() -> None:
    package = ast.parse((ROOT / "tensorbackend/__init__.py").read_text(encoding="utf-8"))
    assert seen_by_type_checkers(package.body) == set(tensorbackend._LAZY)
    module = ast.parse((ROOT / "tensorbackend/function/variable.py").read_text(encoding="utf-8"))
    (variable,) = [n for n in module.body if isinstance(n, ast.ClassDef) and n.name == "Variable"]
    made = {n: getattr(v, "fget", v) for n, v in vars(tensorbackend.Variable).items()}
    installed = {n for n, v in made.items() if getattr(v, "__globals__", {}).get("__name__") == OPERATORS}
    assert seen_by_type_checkers(variable.body) == installed
