# SPDX-License-Identifier: Apache-2.0
"""Maps over short rows, which go over all rows as over one long row where the results lie side by side."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensorbackend import Backend
from tensorbackend.backends import caches
from tensorbackend.codegen.joined import WIDEST, join_rows
from tensorbackend.codegen.nest import nest
from tensorbackend.graph import fuse
from tests.engine.test_reduction_loops import kernels_of

pytestmark = pytest.mark.rehearsed

WIDTHS = [2, 3, 4, 5, 8, 9, 15, 16, 17, 31, 33, 65, 100, WIDEST - 1]
TYPES = ["float32", "float64", "float16", "bfloat16", "int8", "uint16", "int64"]


OPERANDS = {
    "whole": (lambda shape: shape, lambda x: x),
    "alike rows": (lambda shape: (*shape[:-2], 1, shape[-1]), lambda x: x),
    "one row": (lambda shape: (1,) * (len(shape) - 1) + shape[-1:], lambda x: x),
    "a number a row": (lambda shape: (*shape[:-1], 1), lambda x: x),
    "a number": (lambda shape: (1,) * len(shape), lambda x: x),
    "part of wider rows": (lambda shape: (*shape[:-1], shape[-1] + 3), lambda x: x[..., 2:-1]),
    "part of one wider row": (lambda shape: (1,) * (len(shape) - 1) + (shape[-1] + 3,), lambda x: x[..., 2:-1]),
    "every second column": (lambda shape: (*shape[:-1], 2 * shape[-1]), lambda x: x[..., ::2]),
    "rows backwards": (lambda shape: shape, lambda x: x[..., ::-1, :]),
    "columns backwards": (lambda shape: shape, lambda x: x[..., ::-1]),
}
"""What is read: the shape of memory for a result's shape, and the part of it."""


@st.composite
def maps(draw: st.DrawFn) -> tuple:
    width = draw(st.sampled_from(WIDTHS))
    rows = draw(st.one_of(st.integers(1, 40), st.integers(1, max(2, 5000 // width))))
    shape = (*draw(st.sampled_from([(), (), (3,), (2, 2)])), rows, width)
    kinds = [(draw(st.sampled_from(sorted(OPERANDS))), draw(st.sampled_from(TYPES))) for _ in range(3)]
    return shape, kinds, draw(st.sampled_from(["whole", "whole", "part of wider rows"])), draw(st.booleans())


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=maps(), seed=st.integers(0, 2**16))
def test_rows_of_all_widths_have_numpys_values(backend: Backend, case: tuple, seed: int) -> None:
    shape, kinds, into, far = case
    rng = np.random.default_rng(seed)
    tensors, arrays = [], []
    for kind, dtype in kinds:
        memory, part = OPERANDS[kind]
        x = backend.array(rng.integers(0, 4, memory(shape)), dtype=dtype, min_dims=0)
        tensors.append(part(x))
        arrays.append(part(x.get()).astype("f8"))
    memory, part = OPERANDS[into]
    target = backend.full(memory(shape), 77, dtype="float32", min_dims=0)
    expected = target.get()
    a, b, c = arrays
    part(expected)[...] = a * b + c
    with pytest.MonkeyPatch.context() as patch:
        if far:
            patch.setattr(caches, "go_past", lambda *_: True)
        part(target)[:] = tensors[0] * tensors[1] + tensors[2]
    np.testing.assert_array_equal(target.get(), expected)


def test_which_rows_are_joined(backend: Backend) -> None:
    """Those that are short or end within a vector, where results lie side by side, and few inputs do not."""

    def width(shape: tuple[int, ...], *others: tuple[int, ...], plus: object = 0) -> int:
        tree = backend.zeros(shape, min_dims=0) + plus
        for other in others:
            tree = tree * backend.ones(other, min_dims=0)
        return join_rows(nest(kernels_of(tree)[0])).width

    assert width((50, 3), (1, 3)) == width((50, 3), (50, 1)) == width((2, 50, 3), (2, 1, 3)) == 3
    assert width((50, 16), (1, 16)) == 16
    assert width((50, WIDEST - 1), (1, WIDEST - 1)) == WIDEST - 1
    assert width((50, 48), (1, 48)) == 48
    assert width((50, 64), (1, 64)) == width((50, WIDEST), (1, WIDEST)) == width((50, 3)) == width((50, 1)) == 0
    assert width((50, 3), *[(1, 3)] * 4) == 3
    assert width((50, 3), *[(1, 3)] * 5) == 0
    assert width((50, 3), (1, 3), plus=backend.rand()) == 3
    assert width((50, 3), (1, 3), plus=backend.rand(shape=(50, 1))) == 0


@pytest.mark.parametrize("kind", ["whole", "alike rows"])
def test_an_operand_may_be_overwritten(backend: Backend, kind: str) -> None:
    shape = (1000, 7)
    x = backend.array(np.arange(7000.0).reshape(shape))
    memory, _ = OPERANDS[kind]
    y = backend.array(np.arange(float(np.prod(memory(shape)))).reshape(memory(shape)), min_dims=0)
    expected = x.get() * 2 + y.get() * np.arange(1000)[:, None].astype("f")
    x[:] = x * 2 + y * backend.array(np.arange(1000.0)[:, None])
    np.testing.assert_array_equal(x.get(), expected)
    x[1:] = x[:-1] * y[:1] + 1
    np.testing.assert_array_equal(x.get()[1:], expected[:-1] * y.get()[:1] + np.float32(1))


def test_random_numbers_are_those_of_their_places(backend: Backend) -> None:
    """In C order of the space, however it is walked."""
    x, scale = backend.ones((300, 5)), backend.array(np.arange(1.0, 6)[None])
    backend.rng_reset()
    plain = backend.evaluate(backend.rand(shape=(300, 5)) * 1).get()
    backend.rng_reset()
    joined = backend.evaluate(x * scale * backend.rand(shape=(300, 5))).get()
    np.testing.assert_array_equal(joined, np.arange(1, 6, dtype="f") * plain)


@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "float64"])
@pytest.mark.parametrize("width", [2, 3, 15, 16, 17, 63, 64, 100, WIDEST - 1])
def test_short_rows_are_copied(backend: Backend, width: int, dtype: str) -> None:
    """To and from parts of wider rows, and nothing beside them."""
    numbers = np.arange(2 * 31 * width).reshape(2, 31, width) % 100
    whole = backend.array(numbers, dtype=dtype, min_dims=0)
    wider = backend.full((2, 31, width + 5), 7, dtype=dtype, min_dims=0)
    wider[..., 3:-2] = whole
    expected = np.full(wider.shape, 7)
    expected[..., 3:-2] = numbers
    np.testing.assert_array_equal(wider.get(), expected)
    whole[:] = wider[..., 5:]
    np.testing.assert_array_equal(whole.get(), expected[..., 5:])


def test_which_rows_are_copied(backend: Backend) -> None:
    """Those that lie apart and have some bytes, but not whole lines past the caches."""

    def copies(target: object, source: object, far: bool = False) -> bool:
        leaves, _ = fuse.walk(source)
        (kernel,) = fuse.schedule([fuse.Statement(target.structure, source, 0)], [leaves]).steps
        return join_rows(nest(kernel), far).copies

    wide = backend.zeros((50, 2 * WIDEST), min_dims=0)
    for width, expected in ((3, False), (4, True), (64, True), (WIDEST - 1, True), (WIDEST, False)):
        assert copies(wide[:, :width], backend.ones((50, width), min_dims=0)) == expected
        assert copies(backend.ones((50, width), min_dims=0), wide[:, :width]) == expected
    assert not copies(wide[:, :64], backend.ones((50, 64), min_dims=0), far=True)
    assert copies(wide[:, :65], backend.ones((50, 65), min_dims=0), far=True)
    assert not copies(wide[:, :8], backend.ones((50, 8), "float64", min_dims=0))
    assert not copies(backend.ones((50, 8), min_dims=0), backend.ones((50, 8), min_dims=0))
