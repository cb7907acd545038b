# SPDX-License-Identifier: Apache-2.0
"""Warm start: a process that finds how plans are launched makes none again; what is stale or damaged is not used."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tensorbackend import Backend, testing
from tensorbackend.backends import base, compiler, warm
from tensorbackend.graph import forms

USE = """
import numpy as np
import tensorbackend as tb
be = tb.gen_backend("cpu", rng_seed=0)
rng = np.random.default_rng(0)
x, w = be.array(rng.normal(size=(60, 50))), be.array(rng.normal(size=(1, 50)))
half = be.array(rng.normal(size=(60, 50)), dtype="float16")
long = be.array(rng.normal(size=(2, 200_000)))
y, other, nothing = be.empty((60, 50)), be.zeros((60, 50)), be.empty((0, 50))
def program():
    found = []
    def see(tensor):
        found.append(tensor.get().tobytes())
    y[:] = be.sigmoid(x * w + 2.5) * 3; see(y)
    y[:] = be.softmax(x, axis=1); see(y)
    y[:] = half + 1; see(y)
    see(be.evaluate(be.sum(long, axis=1)))
    see(be.evaluate(be.argmax(x * 2, axis=0)))
    nothing[:] = be.rand()
    y[:] = be.rand(shape=(60, 50)) + be.randn(shape=(60, 50)); see(y)
    y[:] = be.exp(y).T.reshape(60, 50) + x; see(y)
    x[:] = x * 1.5 - w; see(x)
    x[1:] = x[:-1] + 1; see(x)
    with be.fuse():
        other[:] = other * 0.9 + y
        x[:] = x - other * 0.1
    see(other), see(x)
    y[:] = 4; see(y)
    return found
"""
POISON = """
def poisoned(*arguments, **keywords):
    raise AssertionError("this was to be remembered")
from tensorbackend.backends import base, jit
from tensorbackend.graph import forms
base.schedule = forms.schedule = jit.print_kernel = jit._Work = poisoned
"""
PRINT = "import hashlib; print(hashlib.sha256(b''.join(program() + program())).hexdigest())"


@pytest.mark.slow
@pytest.mark.parametrize("native", ["0", "1"])
def test_a_second_process_neither_schedules_nor_prints(run_python, tmp_path, cc, native: str) -> None:
    folder = str(tmp_path / "cache")
    cold = run_python(USE + PRINT, TB_CACHE=folder, TB_NATIVE=native, timeout=300)
    warmed = run_python(USE + POISON + PRINT, TB_CACHE=folder, TB_NATIVE=native)
    assert warmed.stdout == cold.stdout
    assert warmed.stderr == cold.stderr == ""


@pytest.mark.slow
def test_what_was_remembered_can_be_looked_at(run_python, tmp_path, cc) -> None:
    """Explanations, captured programs and comparisons with the interpreter see the kernels of a plan made here."""
    look = """
program()
shown = be.explain(y, be.softmax(x, axis=1)), be.explain(y, be.sigmoid(x * w + 2.5) * 3)
def captured(a):
    y[:] = be.sigmoid(a * w + 2.5) * 3
    y[:] = be.softmax(y, axis=1)
again = be.capture(captured, x)
again(x)
print([[(s.name, s.reason, s.source) for s in e.steps] for e in shown], y.get().tobytes().hex()[:2000])
"""
    folder = str(tmp_path / "cache")
    cold, warmed = (run_python(USE + look, TB_CACHE=folder, timeout=300) for _ in range(2))
    assert warmed.stdout == cold.stdout
    assert "tb_" in cold.stdout
    assert run_python(USE + "program()", TB_CACHE=folder, TB_CHECK="1").stderr == ""


@pytest.mark.slow
def test_groups_with_two_tensors_on_one_view_are_rebuilt_as_they_were(run_python, tmp_path, cc) -> None:
    """A program made of a plan of another process: each view of an expression is a leaf of its own."""
    look = """
def grouped(k):
    with be.fuse():
        other[:] = x[:, 40:0:-1] + x[:, 40:0:-1] * k
other = be.empty((60, 40))
grouped(2.0)
again = be.capture(grouped, 2.0)
again(3.0)
print(other.get().tobytes().hex())
"""
    folder = str(tmp_path / "cache")
    cold, warmed = (run_python(USE + look, TB_CACHE=folder, timeout=300) for _ in range(2))
    assert warmed.stdout == cold.stdout != ""


# In this process, as if it were several


class Ways(list):
    """What statements of the test were made by: "scheduled" or "found"."""


@pytest.fixture
def ways(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Ways:
    """How each new statement got its plan."""
    found = Ways()
    schedule, find = base.schedule, warm.find

    def scheduled(*arguments):
        found.append("scheduled")
        return schedule(*arguments)

    def looked(name: str):
        plan = find(name)
        found.extend(["found"] if plan else [])
        return plan

    monkeypatch.setattr(base, "schedule", scheduled)
    monkeypatch.setattr(warm, "find", looked)
    return found


def state(be: Backend | None = None) -> None:
    """A statement of a new backend, whose value is checked."""
    be = be or testing.make_backend("cpu")
    x, y = be.array(np.arange(6.0).reshape(2, 3)), be.empty((2, 3))
    y[:] = x * 2 + 1
    assert y.get().tolist() == [[1, 3, 5], [7, 9, 11]]


def test_plans_are_found_in_a_new_process(ways: Ways, forget: Callable) -> None:
    state()
    forget()
    state()
    assert ways == ["scheduled", "found"]


@pytest.mark.parametrize("changed", ["graph/fuse.py", "backends/jit.py", "codegen/c.py", "ops.py"])
def test_a_changed_source_invalidates(ways: Ways, forget: Callable, tmp_path, monkeypatch, changed: str) -> None:
    state()
    copy = tmp_path / "package"
    shutil.copytree(warm.PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "kernels"))
    monkeypatch.setattr(warm, "PACKAGE", copy)
    forget()
    state()  # the same sources elsewhere
    with open(copy / changed, "a") as file:
        file.write("# changed\n")
    forget()
    state()
    assert ways == ["scheduled", "found", "scheduled"]


def test_other_flags_and_headers_invalidate(ways: Ways, forget: Callable, tmp_path, monkeypatch) -> None:
    state()
    monkeypatch.setitem(warm.settings.config._values, "cflags", "-DNOTHING")
    forget()
    state()
    monkeypatch.setitem(warm.settings.config._values, "cflags", "")
    kernels = tmp_path / "kernels"
    shutil.copytree(compiler.kernel_dir() / "c", kernels / "c")
    monkeypatch.setattr(compiler, "kernel_dir", lambda: kernels)
    with open(kernels / "c" / "half.h", "a") as file:
        file.write("// changed\n")
    forget()
    state()
    assert ways == ["scheduled"] * 3


def test_the_sources_are_all_that_schedules_and_prints() -> None:
    """Whatever these modules import of the package is hashed, but for texts of errors and what runs compilers."""
    aside = {"errors.py", "settings.py", "numerics.py"}
    compiling = "ahead", "cores", "disk_cache", "locks", "pipeline", "programs", "temporary"
    aside |= {f"backends/{name}.py" for name in compiling}
    hashed = set(map(Path, warm.source_files()))
    waiting = [warm.PACKAGE / "backends/jit.py", warm.PACKAGE / "graph/tails.py", warm.PACKAGE / "graph/forms.py"]
    seen: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path not in seen:
            seen.add(path)
            waiting += imported(path)
    assert {path.relative_to(warm.PACKAGE).as_posix() for path in seen - hashed} <= aside
    assert len(seen) > 15


def imported(path: Path) -> list[Path]:
    """The modules of the package that a module imports."""
    names = []
    tree = ast.parse(path.read_text())
    tree.body = [node for node in tree.body if "TYPE_CHECKING" not in ast.dump(node)]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tensorbackend"):
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    places = [warm.PACKAGE.parent / (name.replace(".", "/") + ".py") for name in names]
    return [place for place in places if place.is_file()]


# The file


def damage_letter(content: bytes) -> bytes:
    return content.replace(b'"tb_', b'"tc_')


def damage_half(content: bytes) -> bytes:
    return content[: len(content) * 3 // 4]


def damage_numbers(content: bytes) -> bytes:
    return content.replace(b"[6,6,", b"[9,9,")


@pytest.mark.parametrize("damage", [damage_letter, damage_half, damage_numbers])
def test_a_damaged_index_is_refused_and_made_again(ways: Ways, forget: Callable, cache, caplog, damage) -> None:
    state()
    index = cache / "plans"
    good = index.read_bytes()
    index.write_bytes(damage(good))
    assert index.read_bytes() != good
    forget()
    state()
    assert "damaged" in caplog.text
    assert index.read_bytes() == good
    forget()
    state()
    assert ways == ["scheduled", "scheduled", "found"]


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\0" * 100, b"nonsense\n", b"\xff" * 50 + b"\n"], ids=range(5))
def test_nonsense_in_the_index_is_passed_over(ways: Ways, forget: Callable, cache, content: bytes) -> None:
    cache.mkdir(mode=0o700)
    (cache / "plans").write_bytes(content)
    state()
    forget()
    state()
    assert ways[-1] == ("scheduled" if content and not content.endswith(b"\n") else "found")


def test_a_plan_whose_library_is_gone_is_made_again(ways: Ways, forget: Callable, cache) -> None:
    state()
    for path in cache.glob("*.so"):
        path.unlink()
    lines = (cache / "plans").read_bytes()
    forget()
    state()
    assert ways == ["scheduled", "scheduled"]
    assert (cache / "plans").read_bytes() == lines


def test_an_index_is_bounded(ways: Ways, forget: Callable, cache, monkeypatch) -> None:
    monkeypatch.setattr(warm, "MOST_BYTES", 1)
    be = testing.make_backend("cpu")
    y = be.empty((2, 3))
    y[:] = 1
    state(be)
    assert len((cache / "plans").read_bytes().splitlines()) == 1
    forget()
    state()
    assert ways[-1] == "found"


def test_an_index_that_cannot_be_written_is_done_without(ways: Ways, cache, caplog) -> None:
    cache.mkdir(mode=0o700)
    (cache / "plans").mkdir()
    state()
    assert ways == ["scheduled"]
    assert not caplog.records


def test_clearing_the_cache_removes_the_index(cache, ways: Ways) -> None:
    state()
    warm.disk_cache.cache_for_writing().clear()
    assert not (cache / "plans").exists()


def test_plans_with_primitives_are_not_kept(cache, ways: Ways) -> None:
    be = testing.make_backend("cpu")
    x, y = be.ones((4, 4)), be.empty((4, 4))
    before = (cache / "plans").read_bytes()
    y[:] = be.dot(x, x)
    assert y.get()[0, 0] == 4
    assert (cache / "plans").read_bytes() == before


def test_what_has_no_name_is_scheduled(cache, ways: Ways, monkeypatch) -> None:
    monkeypatch.setattr(forms, "digest", lambda key: None)
    state()
    assert ways == ["scheduled"]
    assert not (cache / "plans").exists()
