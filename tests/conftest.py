# SPDX-License-Identifier: Apache-2.0
"""What tests share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tensorbackend import Backend, testing
from tensorbackend.conformance.plugin import session_backend


@pytest.fixture
def jit(absent: Callable[[str, str], None]) -> Backend:
    """The CPU backend that compiles, for tests of what compiled C alone does: tails, blocks, ways that sizes decide."""
    made = session_backend("jit")
    if not testing.compiles(made):
        absent("cpu", "no C compiler works here")
    return made
