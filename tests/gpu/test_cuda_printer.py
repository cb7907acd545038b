# SPDX-License-Identifier: Apache-2.0
"""What the CUDA dialect prints and how it is launched, without running it; and that NVRTC compiles all of it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tensorbackend.backends import gpu
from tensorbackend.backends.cuda_primitives import MACROS
from tensorbackend.backends.gpu import INCLUDE, GpuBackend
from tensorbackend.backends.null import NullDriver
from tensorbackend.codegen import cuda, geometry
from tensorbackend.kernel_files import kernel_path
from tensorbackend.testing.trees import Choices, Forest
from tests.gpu import resources
from tests.gpu.nvrtc import ARCHITECTURES, compile_cubin, library

TREES = 120


@pytest.fixture
def be() -> Iterator[GpuBackend]:
    """A backend whose launches are checked and recorded, not run."""
    made = GpuBackend(driver=NullDriver(), rng_seed=0)
    yield made
    made.cleanup_backend()


def launched(be: GpuBackend, target: tuple, tree: Callable, *shapes: tuple, dtype: str = "float32") -> tuple[str, list]:
    """The source and the launches of a statement on tensors of these shapes."""
    operands = [be.empty(shape, dtype) for shape in shapes]
    out = be.empty(target, dtype)
    be.driver.launches.clear()
    out[:] = tree(*operands)
    return be.driver.sources[-1], be.driver.launches


def test_the_dialect_is_short() -> None:
    lines = Path(cuda.__file__).read_text().splitlines()
    assert sum(bool(line.strip()) for line in lines) <= 200


def test_contiguous_maps_go_by_packs_of_16_bytes(be: GpuBackend) -> None:
    source, (launch,) = launched(be, (64, 1000), lambda x: be.exp(x), (64, 1000))
    assert "tb_pack<float, 4>" in source
    assert launch.block == (256, 1, 1)
    assert launch.grid[0] == -(-64000 // 4 // 256)
    half, _ = launched(be, (64, 1000), lambda x: be.exp(x), (64, 1000), dtype="float16")
    assert "tb_pack<tb_u16, 8>" in half


@pytest.mark.parametrize("start, whole", [(0, 1), (1, 0), (4, 1)])
def test_packs_are_whole_only_at_aligned_addresses(be: GpuBackend, start: int, whole: int) -> None:
    x, y = be.empty((1, 1000)), be.empty((1, 500))
    y[:] = be.exp(x[:, start : start + 500])
    (launch,) = be.driver.launches
    pointers, rank = 2, 1
    assert struct.unpack_from("q", launch.arguments, 8 * (pointers + rank)) == (whole,)


def test_whole_packs_at_odd_addresses_are_refused(be: GpuBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = be.empty((1, 1000)), be.empty((1, 500))
    monkeypatch.setattr(gpu, "_grains", lambda printed: [1, 1])
    y[:] = be.exp(x[:, 4:504])
    with pytest.raises(AssertionError, match="is no multiple of 16"):
        y[:] = be.exp(x[:, 1:501]) + 1


def test_rows_that_are_not_multiples_of_a_pack_are_read_singly(be: GpuBackend) -> None:
    x, y = be.empty((6, 1001)), be.empty((6, 1001))
    y[:] = be.exp(x) + be.empty((6, 1))
    (launch,) = be.driver.launches
    assert struct.unpack_from("q", launch.arguments, 8 * (3 + 2)) == (0,)


def test_short_rows_share_a_block(be: GpuBackend) -> None:
    _, (launch,) = launched(be, (1000, 1), lambda x: be.sum(x, axis=1), (1000, 32))
    assert launch.block == (8, 32, 1)
    assert launch.grid == (-(-1000 // 32), 1, 1)


def test_columns_share_the_reduced_axis(be: GpuBackend) -> None:
    source, (launch,) = launched(be, (1, 4096), lambda x: be.sum(x, axis=0), (200, 4096))
    assert "tb_join_column" in source
    assert launch.block == (32, 8, 1)


def test_a_long_sum_is_split_and_joined(be: GpuBackend) -> None:
    _, launches = launched(be, (1, 1), lambda x: be.sum(x), (12000, 1000))
    assert [launch.name.endswith("_join") for launch in launches] == [False, True]
    assert geometry.SPLIT_BLOCKS * 0.9 < launches[0].grid[1] <= geometry.SPLIT_BLOCKS


def test_a_softmax_is_one_launch(be: GpuBackend) -> None:
    source, launches = launched(be, (64, 1000), lambda x: be.softmax(x, axis=1), (64, 1000))
    assert len(launches) == 1
    assert source.count("tb_join_row(") == 2


@pytest.mark.parametrize("shape", [(1,), (1 << 20, 3), (3, 1 << 20), (1 << 16, 1 << 6), (2, 3, 5, 7)])
def test_launches_stay_within_limits(be: GpuBackend, shape: tuple) -> None:
    x = be.empty(shape, min_dims=0)
    for axis in (None, *range(len(shape))):
        be.evaluate(be.sum(x, axis=axis))
        be.evaluate(be.argmax(x, axis=axis))
    be.evaluate(be.transpose(x) + 1)
    assert be.driver.launches  # the driver has checked each


# Compiled without a device


@pytest.fixture
def nvrtc(absent: Callable[[str, str], None]) -> None:
    """NVRTC, where it is installed."""
    if library() is None:
        absent("nvrtc", "NVRTC is not installed (pip install tensorbackend[cuda-check])")


@pytest.mark.ci
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_kernels_of_random_trees_compile(be: GpuBackend, nvrtc: None, architecture: str) -> None:
    rng = np.random.default_rng(5)
    for _ in range(TREES):
        be.evaluate(Forest(be, Choices(rng.bytes(160))).grow(12))
    for source, kernels in resources.groups(s for s in be.driver.sources if s.startswith(INCLUDE)):
        assert len(compile_cubin(source, architecture)) == kernels


@pytest.mark.ci
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_common_kernels_spill_nothing(nvrtc: None, architecture: str) -> None:
    table = resources.printed_table([architecture])
    assert len(table) > 30
    assert resources.spilling(table) == []


BY_TURNS = [pytest.param(file, architecture, marks=pytest.mark.long if (n + k) % len(ARCHITECTURES) else pytest.mark.ci)
            for n, file in enumerate(resources.TYPES) for k, architecture in enumerate(ARCHITECTURES)]  # fmt: skip


@pytest.mark.parametrize(("file", "architecture"), BY_TURNS)
def test_written_kernels_spill_nothing(nvrtc: None, file: str, architecture: str) -> None:
    table = resources.written_table(file, [architecture])
    assert table
    assert resources.spilling(table) == []


@pytest.mark.ci
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_kernels_of_the_emulators_tests_compile(nvrtc: None, architecture: str) -> None:
    uses = compile_cubin((Path(__file__).parent / "kernels.cu").read_text(), architecture)
    assert {"gemm", "mma_bf16", "halves", "off_by_one"} <= set(uses)


def test_all_written_kernels_are_listed() -> None:
    assert {path.stem for path in kernel_path("cuda/kernel.cuh").parent.glob("*.cu")} == set(resources.TYPES)
    assert set(resources.TYPES) == set(MACROS)
    for file, kinds in resources.TYPES.items():
        assert {len(types) for types in kinds} == {len(MACROS[file])}


def test_the_page_of_resources_has_every_kernel_and_no_spill() -> None:
    page = (Path(__file__).parents[2] / "docs" / "cuda-kernels.md").read_text()
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| ")][1:]
    labels = {row[0].removeprefix("| ") for row in rows}
    assert set(resources.printed()) - {""} <= labels
    assert {row[4] for row in rows} == {"0"}
