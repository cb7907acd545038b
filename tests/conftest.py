# SPDX-License-Identifier: Apache-2.0
"""Hypothesis profiles, and what to do about a tool or device that is absent.

`TB_TEST_PROFILE` picks the profile: everyday (default), ci (the same examples every time) or long. An absence skips
with its reason, unless `TB_TEST_REQUIRE` lists it (`TB_TEST_REQUIRE=cpu,packaging`): then it fails.
`TB_TEST_SOURCES` names a folder in which the CUDA sources are left that the engine's tests compile.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

from tensorbackend import Backend, testing
from tensorbackend.backends.driver import Module

COMMON = {"deadline": None, "print_blob": True}  # the first example of a case compiles: no deadline suits it

settings.register_profile("everyday", max_examples=50, **COMMON)
settings.register_profile("ci", max_examples=200, derandomize=True, database=None, **COMMON)
settings.register_profile("long", max_examples=5000, **COMMON)
PROFILE = os.environ.get("TB_TEST_PROFILE", "everyday")
settings.load_profile(PROFILE)

EMULATED_EVERY_DAY = (
    "test_contract.py", "test_linear.py", "test_random_rounding.py", "test_tensor_assign.py",
    "test_conv.py", "test_deconv.py", "test_pool.py", "test_lrn.py", "test_user_kernel_texts.py",
)  # fmt: skip
"""Files of tests that run on the CUDA emulator every day too; in ci and long, all do but one."""
HOST_MEMORY = "test_tensor_interop.py"  # tensors on the host's arrays: device memory is tested in tests/gpu

# The whole suite without native types is a run of its own: TB_NATIVE=0.
KINDS = [kind for kind in testing.backend_kinds() if kind != "jit-python"] + ["emulator"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Every day, most files of the engine leave the emulator out: it compiles for half a second a kernel."""
    chosen = EMULATED_EVERY_DAY if PROFILE == "everyday" else {item.path.name for item in items} - {HOST_MEMORY}
    left = {item for item in items if _is_emulated(item) and item.path.name not in chosen}
    config.hook.pytest_deselected(items=list(left))
    items[:] = [item for item in items if item not in left]
    # Groups take long and stay on one worker: they start first, so that no worker is left with one at the end.
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)


def _is_emulated(item: pytest.Item) -> bool:
    callspec = getattr(item, "callspec", None)
    return callspec is not None and "emulator" in (callspec.params.get("backend"), callspec.params.get("be"))


@pytest.fixture(scope="session")
def absent() -> Callable[[str, str], None]:
    """`absent(what, reason)` ends the test: skipped with the reason, or failed if `TB_TEST_REQUIRE` lists `what`."""
    required = os.environ.get("TB_TEST_REQUIRE", "").replace(",", " ").split()

    def report(what: str, reason: str) -> None:
        if what in required:
            pytest.fail(f"TB_TEST_REQUIRE lists {what!r}, but {reason}", pytrace=False)
        pytest.skip(reason)

    return report


@cache
def session_backend(kind: str) -> Backend:
    """The one backend of a kind that all tests of a session share: making one costs start-up, and caches stay warm."""
    made = testing.make_backend(kind, rng_seed=0)
    if kind == "emulator" and "TB_TEST_SOURCES" in os.environ:
        keep_sources(made, Path(os.environ["TB_TEST_SOURCES"]))
    return made


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


@pytest.fixture(params=KINDS)
def backend(request: pytest.FixtureRequest, absent: Callable[[str, str], None]) -> Iterator[Backend]:
    """Each kind of backend in turn, its random numbers as after seeding with 0. Leave it open."""
    made = session_backend(request.param)
    if request.param != "interpreter" and not testing.compiles(made):
        absent("cpu", "no C compiler works here")
    made.rng_reset()
    yield made
