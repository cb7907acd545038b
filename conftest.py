# SPDX-License-Identifier: Apache-2.0
"""The project's own tests use the plugin of the conformance suite (option `--backend`, fixtures `backend`, `absent`).

`TB_TEST_SOURCES` names a folder in which the CUDA sources are left that the tests compile.
"""

from __future__ import annotations

import gc
import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tensorbackend import Backend
from tensorbackend.backends import watch
from tensorbackend.backends.driver import Module

pytest_plugins = ["tensorbackend.conformance.plugin"]

EMULATED_EVERY_DAY = (
    "test_buffers.py", "test_checklist.py", "test_conv.py", "test_deconv.py", "test_hooks.py", "test_lookup.py",
    "test_lrn.py", "test_pool.py", "test_recurrent.py", "test_regions.py", "test_threads.py", "test_timing.py",
)  # fmt: skip
"""Files of tests that run on the CUDA emulator every day too; in ci and long, all do but one."""
WATCHED = watch.watching
HOST_MEMORY = "test_tensor_interop.py"  # tensors on the host's arrays: device memory is tested in tests/gpu


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Every day, most files of the engine leave the emulator out: it compiles for half a second a kernel.

    Tests marked slow are for .ci/run, and for whoever names files or tests (`-k`).
    """
    from tensorbackend.conformance.plugin import PROFILE

    everyday = PROFILE == "everyday"
    chosen = EMULATED_EVERY_DAY if everyday else {item.path.name for item in items} - {HOST_MEMORY}
    left = {item for item in items if _is_emulated(item) and item.path.name not in chosen}
    if everyday and config.args_source is pytest.Config.ArgsSource.TESTPATHS and not config.option.keyword:
        left |= {item for item in items if item.get_closest_marker("slow")}
    config.hook.pytest_deselected(items=list(left))
    items[:] = [item for item in items if item not in left]
    # Groups take long and stay on one worker: they start first, so that no worker is left with one at the end.
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand out tests some at a time."""
    if config.getoption("dist") != "loadgroup":
        return None
    from tests.dozens import Dozens

    config.option.loadscopereorder = False  # those that have a group come first as it is, however few they are
    return Dozens(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What was collected stays to the end: tests that call `gc.collect` need not walk through it each time."""
    _keep_what_is_there()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Nor through what the tests of other modules have left."""
    if item.path != item.config.stash.get(_module, None):
        item.config.stash[_module] = item.path
        _keep_what_is_there()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """A test leaves nobody looking at kernels: backends go other ways then, in later tests too."""
    yield
    assert watch.watching == WATCHED, "a setting of this test still holds, or a record goes on"


def _keep_what_is_there() -> None:
    gc.collect()
    gc.freeze()


_module = pytest.StashKey[Path]()


def _is_emulated(item: pytest.Item) -> bool:
    callspec = getattr(item, "callspec", None)
    return callspec is not None and "emulator" in (callspec.params.get("backend"), callspec.params.get("be"))


@pytest.fixture(scope="session", autouse=True)
def sources() -> None:
    """Keep what the emulator compiles, if somebody wants it."""
    if "TB_TEST_SOURCES" in os.environ:
        from tensorbackend.conformance.plugin import session_backend

        keep_sources(session_backend("emulator"), Path(os.environ["TB_TEST_SOURCES"]))


def keep_sources(backend: Backend, folder: Path) -> None:
    """Leave what a backend compiles in a folder, where `tests/gpu/resources.py --all` finds it."""
    folder.mkdir(parents=True, exist_ok=True)
    compile_source = backend.driver.compile

    def compile_and_keep(source: str, name: str = "kernels.cu", options: Sequence[str] = ()) -> Module:
        macros = "".join(f"#define {macro.removeprefix('-D').replace('=', ' ')}\n" for macro in options)
        text = macros + source
        (folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.cu").write_text(text, encoding="utf-8")
        return compile_source(source, name, options)

    backend.driver.compile = compile_and_keep
