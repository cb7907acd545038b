# SPDX-License-Identifier: Apache-2.0
"""The pytest plugin of the suite: `--backend`, the fixture `backend`, hypothesis profiles, what absent tools do.

`--backend NAME`, repeated for several, takes what `gen_backend` takes ('mine', 'gpu:emulator'); without it this
package's own run: the reference through NumPy, compiled C, and the CUDA emulator. `TB_TEST_PROFILE` picks the
profile: everyday (default), ci (the same examples every time) or long. A tool or device that is absent skips a test
with the reason, unless `TB_TEST_REQUIRE` lists it (`TB_TEST_REQUIRE=cpu,packaging`): then it fails.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tensorbackend import Backend, testing
from tensorbackend.backends import registry
from tensorbackend.errors import complain, nearest
from tensorbackend.settings import config

__all__ = ["OWN_KINDS", "PROFILE", "session_backend"]

pytest_plugins = ["tensorbackend.conformance.rehearsal"]

# The first example of a case compiles, and a machine may be busy: no clock decides whether a test passes.
COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow], "print_blob": True}

settings.register_profile("everyday", max_examples=12, **COMMON)
settings.register_profile("ci", max_examples=12, derandomize=True, database=None, **COMMON)
settings.register_profile("long", max_examples=5000, **COMMON)
PROFILE = os.environ.get("TB_TEST_PROFILE", "everyday")
settings.load_profile(PROFILE)

# The whole suite without native types is a run of its own: TB_NATIVE=0.
OWN_KINDS = [kind for kind in testing.backend_kinds() if kind != "jit-python"] + ["emulator"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option `--backend`."""
    text = "run on this backend, as gen_backend names it; may be repeated (default: this package's own)"
    parser.getgroup("tensorbackend").addoption("--backend", action="append", metavar="NAME", help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Refuse a backend that there is not, before a thousand tests fail for it."""
    choices = [*OWN_KINDS, *registry.choices()]
    for name in config.getoption("--backend") or ():
        if name not in choices and name.partition(":")[0] not in choices:
            hint = "-p MODULE imports a module that defines it"
            raise pytest.UsageError(complain(f"--backend {name}: unknown", "", nearest(name, choices), hint))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each test that takes `backend`, and does not say itself which, runs on each backend."""
    own = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    named = {name.strip() for names in own for name in (names.split(",") if isinstance(names, str) else names)}
    if "backend" in metafunc.fixturenames and "backend" not in named:
        metafunc.parametrize("backend", metafunc.config.getoption("--backend") or OWN_KINDS, indirect=True)


def _make(name: str, **options: Any) -> Backend:
    return testing.make_backend(name, **options) if name in OWN_KINDS else registry.allocate(name, **options)


@cache
def session_backend(name: str) -> Backend:
    """The one backend of a name that all tests of a session share: making one costs start-up, and caches stay warm."""
    return _make(name, rng_seed=0)


@pytest.fixture
def backend(request: pytest.FixtureRequest, absent: Callable[[str, str], None]) -> Iterator[Backend]:
    """Each backend in turn, its random numbers as after seeding with 0. Leave it open."""
    made = session_backend(request.param)
    if request.param in ("jit", "emulator") and not testing.compiles(made):
        absent("cpu", "no C compiler works here")
    made.rng_reset()
    yield made


@pytest.fixture
def light() -> Iterator[None]:
    """For tests of what many large kernels compute: they are compiled in a third of the time.

    The other tests of the suite run kernels as they are compiled for users; in the long profile, all do. The setting is
    assigned, not a `using` block of this thread: tests have threads of their own.
    """
    before = config.cflags
    if PROFILE != "long" and "-Og" not in before:
        config.cflags = f"{before} -Og".strip()
    yield
    config.cflags = before


@pytest.fixture(autouse=True)
def _effort(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("slow"):
        request.getfixturevalue("light")


@pytest.fixture
def make_another(request: pytest.FixtureRequest, backend: Backend) -> Callable[..., Backend]:
    """`make_another(**options)` makes one more backend like `backend`, with options of the constructor."""
    return partial(_make, request.node.callspec.params["backend"])


@pytest.fixture(scope="session")
def absent() -> Callable[[str, str], None]:
    """`absent(what, reason)` ends the test: skipped with the reason, or failed if `TB_TEST_REQUIRE` lists `what`."""
    required = os.environ.get("TB_TEST_REQUIRE", "").replace(",", " ").split()

    def report(what: str, reason: str) -> None:
        if what in required:
            pytest.fail(f"TB_TEST_REQUIRE lists {what!r}, but {reason}", pytrace=False)
        pytest.skip(reason)

    return report
