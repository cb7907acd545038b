# SPDX-License-Identifier: Apache-2.0
"""Small products take one BLAS thread, and the number before is restored, after errors too."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

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


def test_it_is_found_in_a_folder_of_any_name(get_threads: object, run_python: Callable, tmp_path: Path) -> None:
    """With spaces and bytes that are no text, beside one that is no longer there."""
    folder = tmp_path / "a project, with spaces \udcff"
    folder.mkdir()
    library = shutil.copy(blas._mapped()[0], folder)
    code = f"""
import ctypes, mmap, os
from pathlib import Path
from tensorbackend.backends import blas
with open("libopenblas.so", "w+b") as file:
    file.write(b"x")
    file.flush()
    removed = mmap.mmap(file.fileno(), 1)
os.remove("libopenblas.so")
ctypes.CDLL({library!r})
here = [line for line in blas.MAPS.read_bytes().split(b"\\n") if os.getcwdb() in line]
blas.MAPS = Path("maps")
blas.MAPS.write_bytes(b"\\n".join(here))
print(len(blas._mapped()), blas.library().name)
"""
    assert run_python(code).stdout.split() == ["2", Path(library).name]
