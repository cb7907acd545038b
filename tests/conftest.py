# SPDX-License-Identifier: Apache-2.0
"""What tests share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tensorbackend import Backend, testing
from tensorbackend.conformance.plugin import PROFILE, session_backend
from tensorbackend.settings import config


@pytest.fixture
def jit(absent: Callable[[str, str], None]) -> Backend:
    """The CPU backend that compiles, for tests of what compiled C alone does: tails, blocks, ways that sizes decide."""
    made = session_backend("jit")
    if not testing.compiles(made):
        absent("cpu", "no C compiler works here")
    return made


@pytest.fixture
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what hundreds of large kernels compute: they are compiled in a third of the time.

    The conformance suite runs kernels as they are compiled for users; in the long profile, these tests do so too.
    """
    if PROFILE != "long":
        monkeypatch.setattr(config, "cflags", f"{config.cflags} -Og".strip())
