# SPDX-License-Identifier: Apache-2.0
"""The backend that tests of the engine run on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tensorbackend import Backend


@pytest.fixture(scope="module")
def backend() -> Iterator[Backend]:
    """A CPU backend with a seed."""
    be = Backend.allocate_backend("cpu", rng_seed=0)
    yield be
    be.cleanup_backend()
