# SPDX-License-Identifier: Apache-2.0
"""The configuration of functions: threads, blocks, the environment."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import tensorbackend as tb
import tensorbackend.functions as F
from tensorbackend import settings
from tensorbackend.errors import DTypeError

ROOT = Path(__file__).resolve().parents[2]


def test_threads_have_their_own_entries() -> None:
    seen = {}
    barrier = threading.Barrier(2)

    def work(name: str, train: bool) -> None:
        tb.config.train = train
        barrier.wait()
        seen[name] = tb.config.train, F.dropout(np.ones(1000, np.float32)).array.min()
        barrier.wait()

    threads = [threading.Thread(target=work, args=pair) for pair in [("a", True), ("b", False)]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {"a": (True, 0.0), "b": (False, 1.0)}
    assert tb.config.train is True


def test_unset_entries_are_the_global_ones() -> None:
    seen = []
    tb.global_config.keep_graph_on_report = True
    try:
        assert tb.config.keep_graph_on_report is True
        tb.config.keep_graph_on_report = False
        thread = threading.Thread(target=lambda: seen.append(tb.config.keep_graph_on_report))
        thread.start()
        thread.join()
        assert seen == [True] and tb.config.keep_graph_on_report is False
        del tb.config.keep_graph_on_report
        assert tb.config.keep_graph_on_report is True
    finally:
        tb.global_config.keep_graph_on_report = False


def test_a_configuration_that_is_pickled_or_copied_is_the_one_there_is() -> None:
    assert copy.deepcopy({"config": tb.config})["config"] is tb.config
    assert pickle.loads(pickle.dumps(tb.config)) is tb.config


def test_blocks_nest_and_restore_also_after_errors() -> None:
    with tb.using_config("train", False):
        with pytest.raises(KeyError), tb.using_config("train", True):
            assert tb.config.train is True
            raise KeyError
        assert tb.config.train is False
    assert "train" not in tb.config.__dict__ and tb.config.train is True


def test_unknown_names_are_refused_on_reading_and_free_to_set() -> None:
    with pytest.raises(AttributeError, match="trane.*train"):
        tb.config.trane  # noqa: B018
    tb.config.mine = 3
    assert tb.config.mine == 3 and "mine" in tb.config.show()
    del tb.config.mine


def test_a_configuration_is_printed_with_its_entries() -> None:
    with tb.using_config("train", False):
        assert str(tb.config) == repr(tb.config) == tb.config.show() and "train                False" in str(tb.config)
    assert "train                True" in str(tb.global_config)


def test_no_backprop_mode_records_nothing() -> None:
    x = tb.Variable(np.ones(2, np.float32))
    with tb.no_backprop_mode():
        y = F.tanh(x)
        with tb.force_backprop_mode():
            z = F.tanh(x)
    assert y.creator is None and z.creator is not None


def test_modes_decorate_functions_that_may_call_themselves() -> None:
    x = tb.Variable(np.ones(2, np.float32))

    @tb.no_backprop_mode()
    def outputs(depth: int) -> list[tb.Variable]:
        """Of each depth."""
        found = outputs(depth - 1) if depth else []
        return [*found, F.tanh(x)]

    assert outputs.__name__ == "outputs" and outputs.__doc__ == "Of each depth."
    for _ in range(2):
        assert [y.creator for y in outputs(2)] == [None] * 3
        assert F.tanh(x).creator is not None
    with pytest.raises(ZeroDivisionError), tb.no_backprop_mode():
        1 / 0  # noqa: B018
    mode = tb.no_backprop_mode()
    for _ in range(2):  # one object, time after time
        with mode:
            assert F.tanh(x).creator is None
        assert "enable_backprop" not in vars(tb.config)


@pytest.mark.parametrize("variable", ["TB_NAN_CHECK", "TB_TYPE_CHECK"])
def test_the_environment_is_read_at_import(variable) -> None:
    code = "import tensorbackend as tb; print(tb.config.debug, tb.config.type_check, tb.config.dtype)"

    def run(text: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", code], cwd=ROOT, env={**os.environ, variable: text},
                              capture_output=True, text=True)  # fmt: skip

    for yes in ("1", "yes", "True"):
        assert run(yes).stdout.split() == [str(variable == "TB_NAN_CHECK"), "True", "float32"]
    assert run("off").stdout.split() == ["False", str(variable == "TB_NAN_CHECK"), "float32"]
    failed = run("perhaps")
    assert failed.returncode != 0 and variable in failed.stderr


@pytest.mark.parametrize("name", ["float23", "int32"])
def test_a_type_of_no_floats_in_the_environment_names_the_variable(name) -> None:
    code = "import tensorbackend as tb; tb.config.train"
    failed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "TB_DTYPE": name},
                            capture_output=True, text=True)  # fmt: skip
    assert failed.returncode != 0 and "TB_DTYPE" in failed.stderr and name in failed.stderr


@pytest.mark.parametrize("name", [np.int32, "bool", "float23", None, 3])
def test_the_type_of_parameters_is_a_floating_one(name) -> None:
    """Parameters of integers had their numbers cut off, and no gradient."""
    with pytest.raises(DTypeError, match=r"config.dtype\n.*\n.*float16, bfloat16, float32, float64"):
        tb.config.dtype = name
    with pytest.raises(DTypeError, match="config.dtype"):
        tb.global_config.dtype = name
    with pytest.raises(DTypeError, match="config.dtype"), tb.using_config("dtype", name):
        pytest.fail("entered")
    assert tb.config.dtype == np.float32 and "dtype" not in tb.config.__dict__
    with tb.using_config("dtype", "float16"):
        assert tb.Parameter(1.0, (2,)).dtype == tb.Parameter(1.0).dtype == np.float16


@pytest.mark.parametrize("name", ["train", "enable_backprop", "type_check", "debug"])
def test_flags_are_true_or_false(name) -> None:
    for wrong in ("x", "False", None, 2, 0.0):
        with pytest.raises(TypeError, match=rf"config.{name}\n.*{wrong}.*\n.*True or False"):
            setattr(tb.config, name, wrong)
        with pytest.raises(TypeError, match=f"config.{name}"), tb.using_config(name, wrong):
            pytest.fail("entered")
    with tb.using_config(name, np.bool_(False)):
        assert getattr(tb.config, name) is False
    with tb.using_config(name, 1):
        assert getattr(tb.config, name) is True
    assert name not in tb.config.__dict__


def test_a_block_sets_what_the_engine_reads() -> None:
    before = settings.config.jit
    with tb.using_config("jit", not before):
        assert settings.config.jit is tb.config.jit is not before
    assert settings.config.jit is tb.config.jit is before


def test_debug_names_the_function_that_makes_nan() -> None:
    x = tb.Variable(np.array([-1.0], np.float32))
    with tb.using_config("debug", True):
        with pytest.raises(RuntimeError, match="log: NaN"):
            F.log(x)
        y = F.sqrt(tb.Variable(np.array([0.0], np.float32))) * 0
        with pytest.raises(RuntimeError, match="gradient"):
            F.sum(y).backward()
