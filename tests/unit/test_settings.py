# SPDX-License-Identifier: Apache-2.0
"""Settings: their defaults, the environment, assignment, and blocks that hold for one thread."""

from __future__ import annotations

import copy
import os
import pickle
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import tensorbackend
from tensorbackend import settings, using
from tensorbackend.settings import config

ROOT = Path(__file__).resolve().parents[2]
# variable, text, attribute, value
READ = [
    ("TB_BACKEND", "null", "backend", "null"),
    ("TB_JIT", "0", "jit", False),
    ("TB_JIT", "off", "jit", False),
    ("TB_JIT", "Yes", "jit", True),
    ("TB_NATIVE", "false", "native", False),
    ("TB_SEED", "17", "seed", 17),
    ("TB_DTYPE", "float64", "dtype", "float64"),
    ("TB_DEBUG", "3", "debug", 3),
    ("TB_THREADS", "2", "threads", 2),
    ("TB_CC", "/opt/cc", "cc", "/opt/cc"),
    ("TB_COMPILE_TIMEOUT", "1.5", "compile_timeout", 1.5),
    ("TB_SEED", "", "seed", None),
]
UNREADABLE = [
    ("TB_JIT", "perhaps"),
    *(("TB_SEED", text) for text in ("seven", "-1", "4294967296")),
    ("TB_DEBUG", "1.5"),
    *(("TB_THREADS", text) for text in ("0", "-1", "two")),
    *(("TB_COMPILE_TIMEOUT", text) for text in ("soon", "0", "-1", "nan", "inf", "1e7")),
    ("TB_DISTRIBUTED_TIMEOUT", "-1"),
    *(("TB_DTYPE", text) for text in ("int32", "bool", "float23")),
]


def in_process(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process with these environment variables alone of ours."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("TB_")}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={**inherited, **variables}, capture_output=True, text=True
    )


@pytest.fixture
def unchanged() -> object:
    """Puts every setting back afterwards."""
    before = dict(config._values)
    yield config
    config._values.update(before)
    settings._tell()  # else those who heard of a test's setting would keep to it


# The environment


def test_defaults_without_environment() -> None:
    done = in_process("from tensorbackend.settings import config\nprint(config)")
    assert done.returncode == 0, done.stderr
    shown = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert shown == {name: repr(s.default) for name, s in settings.SETTINGS.items()}


@pytest.mark.parametrize(("variable", "text", "name", "value"), READ)
def test_environment_is_read(variable, text, name, value, monkeypatch) -> None:
    monkeypatch.setenv(variable, text)
    assert getattr(settings.Config(), name) == value


@pytest.mark.parametrize(("variable", "text"), UNREADABLE)
def test_unreadable_environment_names_variable_and_text(variable, text, monkeypatch) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(ValueError) as caught:
        settings.Config()
    assert variable in str(caught.value)
    assert repr(text) in str(caught.value)
    kinds = "1 or 0|an int(, 1 or more| from 0 to .*)?|a number of seconds, more than 0 .*|one of float16.*float64"
    assert re.search(f"expected  ({kinds})$", str(caught.value), re.MULTILINE)


def test_import_reports_an_unreadable_environment() -> None:
    done = in_process("import tensorbackend", TB_SEED="seven")
    assert done.returncode != 0
    assert "TB_SEED" in done.stderr


@pytest.mark.slow
def test_blocks_of_threads_that_make_backends_leave_nothing_behind() -> None:
    """Where threads take turns as often as they can: what one began another lost, or kept for ever."""
    code = """
import sys, threading, time
import tensorbackend
from tensorbackend import settings, using
from tensorbackend.backends import watch
end, failed = time.monotonic() + 4, []
def repeat(work):
    try:
        while time.monotonic() < end:
            work()
    except Exception as error:
        failed.append(repr(error))
def blocks():
    with using(debug=0), using(debug=0), using(seed=3):
        pass
def look():
    with using(check=True):
        pass
def make():
    return [tensorbackend.Backend.allocate_backend("cpu", jit=False) for _ in range(30)]
sys.setswitchinterval(1e-6)
threads = [threading.Thread(target=repeat, args=(work,)) for work in (blocks, blocks, look, make, make)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(failed, len(settings._overrides), watch.watching)
"""
    done = in_process(code)
    assert done.stdout == "[] 0 False\n", done.stdout + done.stderr


def test_every_setting_has_variable_and_meaning() -> None:
    for name, setting in settings.SETTINGS.items():
        assert setting.name == name
        assert setting.variable == "TB_" + name.upper()
        assert setting.doc.endswith(".")
        assert setting.default is None or setting.parse(str(setting.default)) == setting.default
    assert tensorbackend.config.threads is settings.config.threads


# Assignment and blocks


def test_assignment_holds_for_all_threads(unchanged) -> None:
    config.debug = 2
    seen = []
    thread = threading.Thread(target=lambda: seen.append(config.debug))
    thread.start()
    thread.join()
    assert seen == [2]


def test_a_block_holds_until_its_end(unchanged) -> None:
    config.debug = 1
    with using(debug=3, native=False) as inside:
        assert inside is config
        assert (config.debug, config.native) == (3, False)
        with using(debug=4):
            assert (config.debug, config.native) == (4, False)
        assert config.debug == 3
    assert (config.debug, config.native) == (1, True)


def test_a_block_ends_with_an_error(unchanged) -> None:
    with pytest.raises(KeyError), using(debug=5):
        raise KeyError
    assert config.debug == config._values["debug"]


def test_a_block_holds_for_its_thread_alone() -> None:
    entered, left = threading.Event(), threading.Event()
    seen = []

    def other() -> None:
        entered.wait(10)
        seen.append(config.debug)
        with using(debug=7):
            seen.append(config.debug)
            left.set()

    thread = threading.Thread(target=other)
    thread.start()
    outside = config.debug
    with using(debug=9):
        entered.set()
        assert left.wait(10)
        assert config.debug == 9
    thread.join()
    assert seen == [outside, 7]


def test_an_override_of_none_is_an_override(unchanged) -> None:
    config.seed = 3
    with using(seed=None):
        assert config.seed is None
    assert config.seed == 3


@pytest.mark.parametrize(
    ("name", "value"),
    [("threads", "x"), ("threads", 0), ("cache", 5), ("seed", 1.5), ("seed", -1), ("seed", 2**32), ("jit", "perhaps"),
     ("cflags", None), ("compile_timeout", -1), ("dtype", "int32"), ("dtype", None)],
)
def test_values_that_a_setting_cannot_have_are_refused(unchanged, name, value) -> None:
    before = getattr(config, name)
    with pytest.raises(ValueError, match=f"setting {name}\n  given     {value!r}\n  expected"):
        setattr(config, name, value)
    with pytest.raises(ValueError, match=f"setting {name}"), using(**{name: value}):
        pytest.fail("entered")
    assert getattr(config, name) == before


def test_texts_and_paths_are_read_as_in_the_environment(tmp_path) -> None:
    with using(jit="no", threads="2", cache=tmp_path, dtype=np.float64):
        assert (config.jit, config.threads, config.cache, config.dtype) == (False, 2, str(tmp_path), np.float64)
    with using(cache=os.fsencode(tmp_path)):
        assert config.cache == str(tmp_path)


@pytest.mark.parametrize("name", ["debugg", "seeds", "nothing_like_it"])
def test_unknown_settings_name_the_nearest(name) -> None:
    with pytest.raises(AttributeError, match=name) as read:
        getattr(config, name)
    with pytest.raises(AttributeError, match=name) as written:
        setattr(config, name, 1)
    with pytest.raises(AttributeError, match=name) as used, using(**{name: 1}):
        pytest.fail("entered")
    for caught in (read, written, used):
        assert any(known in str(caught.value) for known in settings.SETTINGS)


def test_names_are_completed() -> None:
    assert set(settings.SETTINGS) <= set(dir(config)) and "using" not in dir(config)
    with tensorbackend.using_config("mine", 1):
        assert {"train", "enable_backprop", "jit", "mine", "show"} <= set(dir(tensorbackend.config))


def test_repr_shows_every_value() -> None:
    with using(debug=5):
        lines = dict(line.split(maxsplit=1) for line in repr(config).splitlines())
    assert set(lines) == set(settings.SETTINGS)
    assert lines["debug"] == "5"


def test_the_settings_are_one_object() -> None:
    assert copy.copy(config) is copy.deepcopy(config) is pickle.loads(pickle.dumps(config)) is config


def test_jit_of_a_backend_is_read_as_the_setting_is() -> None:
    allocate = tensorbackend.Backend.allocate_backend
    assert not allocate("cpu", jit="no").jit and not allocate("cpu", jit=0).jit
    with pytest.raises(ValueError, match=r"jit[\s\S]*'perhaps'[\s\S]*1 or 0"):
        allocate("cpu", jit="perhaps")
