# SPDX-License-Identifier: Apache-2.0
"""Small products take one BLAS thread, and the number before is restored, after errors too."""

from __future__ import annotations

import numpy as np
import pytest

from tensorbackend.backends import blas


@pytest.fixture
def get_threads() -> object:
    np.ones((2, 2)) @ np.ones((2, 2))
    found = blas.library()
    if found is None:
        pytest.skip("NumPy uses no OpenBLAS here")
    before = found.get_threads()
    found.set_threads(2)
    yield found.get_threads
    found.set_threads(before)


def test_a_small_product_takes_one_thread(get_threads: object) -> None:
    with blas.threads_for(1000):
        assert get_threads() == 1
    assert get_threads() == 2


def test_a_large_product_takes_them_all(get_threads: object) -> None:
    with blas.threads_for(blas.SHARED_FROM):
        assert get_threads() == 2


def test_the_number_is_restored_after_an_error(get_threads: object) -> None:
    with pytest.raises(KeyError), blas.threads_for(1000):
        raise KeyError
    assert get_threads() == 2
