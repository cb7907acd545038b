# SPDX-License-Identifier: Apache-2.0
"""The example of a third backend: it runs, is short, and passes the conformance suite as a package would run it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tensorbackend import contract_page
from tensorbackend.conformance import test_checklist

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "tiny_backend.py"
QUICK = "checklist or buffers or hooks or running or lookup or lrn"


def run(*arguments: str, folder: Path) -> str:
    """What Python prints that finds the example and this checkout, started in another folder."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(EXAMPLE.parent)])}
    done = subprocess.run([sys.executable, *arguments], cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
    return done.stdout


def conformance(folder: Path, *arguments: str) -> str:
    """What the suite prints about the example."""
    options = ("--backend", "tiny", "-p", "tiny_backend", "-p", "no:cacheprovider", "-q")
    return run("-m", "tensorbackend.conformance", *options, *arguments, folder=folder)


@pytest.mark.slow
def test_the_example_runs(tmp_path) -> None:
    assert "[[2.5, 1.5, 0.0]]" in run(str(EXAMPLE), folder=tmp_path)


def test_the_example_is_short() -> None:
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) <= 150


FUNCTIONS = """
import numpy as np, tensorbackend as tb, tensorbackend.functions as F, tiny_backend
def forward_cpu(self, inputs):
    self.retain_inputs((0,))
    (x,) = inputs
    return x * x, np.float32(len(x)), x
def backward_cpu(self, inputs, grads):
    return (2 * inputs[0] * grads[0],)
def backward(self, indexes, grads):
    return (2 * self.get_retained_inputs()[0] * grads[0],)
New = type("New", (tb.FunctionNode,), {"forward_cpu": forward_cpu, "backward": backward})
Old = type("Old", (tb.Function,), {"forward_cpu": forward_cpu, "backward_cpu": backward_cpu})
be = tb.gen_backend("tiny")
for apply in (lambda x: New().apply((x,)), lambda x: Old()(x)):
    x = tb.Variable(be.array([1, 2, 3], min_dims=0))
    y, count, same = apply(x)
    F.sum(y).backward()
    places = {v.device is be for v in (y, count, same)}
    print(y.array.tolist(), x.grad.tolist(), count.array.item(), same.array.tolist(), places)
"""


def test_functions_for_the_cpu_run_on_it(tmp_path) -> None:
    expected = "[1.0, 4.0, 9.0] [2.0, 4.0, 6.0] 3.0 [1.0, 2.0, 3.0] {True}"
    assert run("-c", FUNCTIONS, folder=tmp_path).splitlines() == [expected] * 2


USER = """
import tensorbackend as tb, tiny_backend
be = tb.gen_backend("tiny")
try:
    be.elementwise("float x", "float y", "y = x", "same")(be.ones((2,)))
except tb.BackendError as error:
    print(error)
"""


def test_user_kernels_are_refused_for_want_of_a_target(tmp_path) -> None:
    said = run("-c", USER, folder=tmp_path)
    assert "user kernels" in said and "_user_target" in said and "compiler" not in said


@pytest.mark.slow
def test_it_passes_some_families(tmp_path) -> None:
    said = conformance(tmp_path, "-k", QUICK)
    assert int(re.search(r"(\d+) passed", said)[1]) > 200
    assert "skipped" not in said and "warning" not in said


@pytest.mark.slow
def test_a_backend_that_there_is_not_is_refused_at_once(tmp_path) -> None:
    command = [sys.executable, "-m", "tensorbackend.conformance", "--backend", "tinny", "-p", "tiny_backend"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(EXAMPLE.parent)])}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert re.search(r"--backend tinny: unknown\s+expected  one of tiny", done.stderr)


@pytest.mark.ci
def test_it_passes_the_suite(tmp_path) -> None:
    said = conformance(tmp_path)
    assert int(re.search(r"(\d+) passed", said)[1]) > 3000
    assert "skipped" not in said


def test_the_page_of_methods_has_the_checklist() -> None:
    shown = {name for family in contract_page.FAMILIES for name in family.methods.split()}
    assert set(test_checklist.SIGNATURES_BY_NAME) <= shown  # and methods beyond it, of the same families
