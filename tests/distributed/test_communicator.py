# SPDX-License-Identifier: Apache-2.0
"""What the exchanges give, in one process and in several, against NumPy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tensorbackend import BackendError, CaptureError, DTypeError, ShapeError, distributed, testing

pytestmark = pytest.mark.slow

DATA = """
def mine(rank, dtype, shape=(5, 3)):
    values = np.random.default_rng(rank).integers(-8, 9, shape)
    return values.astype(np.float64) if dtype != 'uint8' else abs(values)

def tensor(dtype, shape=(5, 3)):
    return be.array(mine(comm.rank, dtype, shape), dtype=dtype)

def everyone(dtype, shape=(5, 3)):
    return np.stack([mine(rank, dtype, shape) for rank in range(comm.size)])

def same(found, expected):
    np.testing.assert_array_equal(found.get().astype(np.float64), expected)
"""

EXCHANGES = (
    DATA
    + """
for dtype in ('float32', 'float64', 'float16', 'bfloat16', 'int8', 'int32', 'int64', 'uint8'):
    same(comm.allreduce(tensor(dtype)), everyone(dtype).sum(0))
    same(comm.allreduce(tensor(dtype), 'max'), everyone(dtype).max(0))
    same(comm.broadcast(tensor(dtype), comm.size - 1), mine(comm.size - 1, dtype))
    same(comm.allgather(tensor(dtype)), everyone(dtype).reshape(-1, 3))
    shape = (2 * comm.size, 3)
    part = slice(2 * comm.rank, 2 * comm.rank + 2)
    same(comm.reduce_scatter(tensor(dtype, shape)), everyone(dtype, shape).sum(0)[part])
    same(comm.reduce_scatter(tensor(dtype, shape), 'max'), everyone(dtype, shape).max(0)[part])
for dtype in ('float32', 'float64', 'float16', 'bfloat16'):
    mean = (everyone(dtype).sum(0) / comm.size).astype(np.float32 if dtype != 'float64' else dtype)
    expected = be.array(mean, dtype=dtype).get().astype(np.float64)
    np.testing.assert_allclose(comm.allreduce(tensor(dtype), 'mean').get().astype(np.float64), expected, rtol=1e-6)
flags = be.array([[comm.rank == 0, True, False]], dtype=bool)
np.testing.assert_array_equal(comm.allreduce(flags, 'max').get(), [[True, True, False]])
comm.barrier()
"""
)


@pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.ci), 2, pytest.param(3, marks=pytest.mark.ci)])
def test_every_exchange_in_every_type(check: Callable[..., None], n: int) -> None:
    check(n, EXCHANGES)


@pytest.mark.ci
def test_tensors_of_the_emulated_gpu(check: Callable[..., None]) -> None:
    check(2, EXCHANGES, backend="gpu:emulator")


@pytest.mark.ci
def test_processes_are_checked_against_each_other(check: Callable[..., None]) -> None:
    check(2, EXCHANGES, TB_CHECK="1")


def test_strided_empty_and_one_element(check: Callable[..., None]) -> None:
    check(
        2,
        DATA
        + """
whole = be.array(np.arange(24.0).reshape(4, 6) + comm.rank)
expected = whole.get().copy()
expected[1:3, ::2] = 2 * np.arange(24.0).reshape(4, 6)[1:3, ::2] + 1
assert comm.allreduce(whole[1:3, ::2]).shape == (2, 3)
same(whole, expected)
transposed = be.array(np.arange(6.0).reshape(2, 3) * (comm.rank + 1)).T
same(comm.allreduce(transposed), 3 * np.arange(6.0).reshape(2, 3).T)
same(comm.allgather(transposed), np.tile(3 * np.arange(6.0).reshape(2, 3).T, (2, 1)))
same(comm.broadcast(be.array([[comm.rank + 5.0]]), 1), [[6.0]])
empty = be.empty((0, 3))
assert comm.allreduce(empty).shape == (0, 3) and comm.allgather(empty).shape == (0, 3)
assert comm.reduce_scatter(empty).shape == (0, 3)
""",
    )


def test_layers_get_their_columns(check: Callable[..., None]) -> None:
    check(
        2,
        """
whole = np.arange(24.0).reshape(3, 8)
x = be.array(whole)
mine = be.distribute_data(x, 'Data')
assert mine.shape == (3, 4) and be.distribute_data(x, 'Disabled') is None
mine[:] = mine * (comm.rank + 1)
be.revert_tensor(x)
whole[:, 4:] *= 2
np.testing.assert_array_equal(x.get(), whole)
assert be.num_devices == 2
assert be.shared_iobuf_size((3, 5), 'Disabled') == 30 and be.shared_iobuf_size((3, 5), 'Data') == 15
""",
    )


def test_columns_must_divide(launch: Callable) -> None:
    done = launch(2, "be.distribute_data(be.ones((3, 5)), 'Data')")
    assert done.returncode != 0
    assert "(3, 5)" in done.stderr and "2 processes" in done.stderr


def test_halves_are_added_in_float32(check: Callable[..., None]) -> None:
    check(
        3,
        """
x = be.array(np.full((7, 1), [2048.0, 1.0, 1.0][comm.rank]), dtype='float16')
np.testing.assert_array_equal(comm.allreduce(x).get(), np.full((7, 1), 2050.0))   # one after the other: 2048
""",
    )


def test_nan_passes_through_maxima(check: Callable[..., None]) -> None:
    """Whichever process has it: MPI's own maximum kept that of the last."""
    check(
        2,
        """
for dtype in ('float32', 'float64', 'float16', 'bfloat16'):
    values = np.array([[np.nan, 1.0, 2.0], [1.0, np.nan, 3.0]])
    found = comm.allreduce(be.array(values[comm.rank].reshape(3, 1), dtype=dtype), 'max')
    np.testing.assert_array_equal(found.get().astype(float).ravel(), [np.nan, np.nan, 3])
""",
    )


def test_exchanges_that_were_started_end_in_order(check: Callable[..., None]) -> None:
    check(
        2,
        """
tensors = [be.array(np.full((1, 100), k + comm.rank, 'f4')).reshape(100) for k in range(20)]
for x in tensors:
    comm.start_allreduce(x)
last = comm.allgather(be.array([[float(comm.rank)]]))
assert [float(x[0]) for x in tensors] == [2 * k + 1 for k in range(20)]
np.testing.assert_array_equal(last.get(), [[0], [1]])
""",
    )


def test_statements_of_a_fuse_block_come_before_an_exchange(check: Callable[..., None]) -> None:
    check(
        2,
        """
x, y = be.zeros((3, 4)), be.zeros((3, 4))
for step in range(3):
    with be.fuse():
        x[:] = comm.rank + step
        comm.allreduce(x)
        y[:] = x + comm.rank
        started = comm.start_allreduce(y)
        started.result()
    np.testing.assert_array_equal(x.get(), np.full((3, 4), 2 * step + 1))
    np.testing.assert_array_equal(y.get(), np.full((3, 4), 2 * (2 * step + 1) + 1))
""",
    )


def test_no_statement_of_an_exchange_waits_in_a_fuse_block(check: Callable[..., None]) -> None:
    """Copies of strided tensors, and the sums of halves, are statements too: transports saw memory before they ran."""
    check(
        2,
        """
for dtype in ('float32', 'float16'):
    for op, wanted in (('sum', 5), ('mean', 2.5), ('max', 3)):
        x, y = (be.zeros((3, n), dtype=dtype) for n in (5, 4))
        with be.fuse():
            x[:] = y[:] = comm.rank + 2
            comm.allreduce(x, op)
            comm.allreduce(y[:, ::2], op)
            part = comm.reduce_scatter(x.T[:4], 'sum')
            whole = comm.allgather(y[:, ::2])
            comm.broadcast(y[:, 1::2], 1)
        np.testing.assert_array_equal(x.get(), np.full((3, 5), wanted))
        np.testing.assert_array_equal(y.get(), np.tile([wanted, 3], (3, 2)))
        np.testing.assert_array_equal(part.get(), np.full((2, 3), 2 * wanted))
        np.testing.assert_array_equal(whole.get(), np.full((6, 2), wanted))
""",
    )


def test_an_exchange_is_no_part_of_a_captured_function(alone: distributed.Communicator) -> None:
    be = alone.backend
    x = be.ones((2, 2))
    with pytest.raises(CaptureError, match="a host read"):
        be.capture(lambda x: alone.allreduce(x), x)


def test_seeds_are_apart_or_alike(check: Callable[..., None]) -> None:
    check(
        2,
        """
def drawn():
    x = be.empty((4, 4))
    x[:] = be.rand()
    return comm.allgather(x.reshape(1, 16)).get()
comm.seed(7, apart=False)
both = drawn()
assert (both[0] == both[1]).all()
comm.seed(7)
first = drawn()
assert (first[0] != first[1]).all()
comm.seed(7)
np.testing.assert_array_equal(drawn(), first)
""",
    )


@pytest.fixture
def alone() -> distributed.Communicator:
    return distributed.init(testing.make_backend("jit", rng_seed=0))


def test_seeds_that_are_none_are_refused_in_one_process_and_two(
    check: Callable[..., None], alone: distributed.Communicator
) -> None:
    for seed, error in ((-1, ValueError), (2**32, ValueError), (1.5, ValueError), ("1", TypeError)):
        with pytest.raises(error, match="^seed: seed\n  given "):
            alone.seed(seed)
    check(
        2,
        """
for seed in (-1, 2**32):
    try:
        comm.seed(seed)
    except ValueError as error:
        assert str(error).startswith("seed: seed"), error
    else:
        raise AssertionError(seed)
""",
    )


def test_one_process_is_a_communicator_of_size_one(alone: distributed.Communicator) -> None:
    assert (alone.rank, alone.size, alone.local_rank, distributed.processes()) == (0, 1, 0, 1)
    x = alone.backend.array([[1.0, 2.0]])
    assert alone.allreduce(x) is x and alone.broadcast(x) is x
    np.testing.assert_array_equal(alone.allgather(x).get(), [[1, 2]])
    np.testing.assert_array_equal(alone.reduce_scatter(x, "mean").get(), [[1, 2]])
    alone.start_allreduce(x).result()
    alone.barrier()
    alone.close()


def test_wrong_arguments_are_refused(alone: distributed.Communicator) -> None:
    be = alone.backend
    x = be.array([[1.0, 2.0]])
    with pytest.raises(ValueError, match="op 'median'"):
        alone.allreduce(x, "median")
    with pytest.raises(TypeError, match="ndarray"):
        alone.allreduce(np.ones(3))
    with pytest.raises(DTypeError, match="mean"):
        alone.allreduce(be.array([[1]], dtype="int32"), "mean")
    with pytest.raises(DTypeError, match="sum"):
        alone.allreduce(be.array([[True]], dtype=bool))
    with pytest.raises(ValueError, match="root 1"):
        alone.broadcast(x, 1)
    with pytest.raises(BackendError, match="a tensor of"):
        alone.allreduce(testing.make_backend("interpreter").array([[1.0]]))
    with pytest.raises(ShapeError, match="strides"):
        alone.start_allreduce(be.ones((4, 4))[:, ::2])
    with pytest.raises(ShapeError, match="without axes"):
        alone.allgather(x[0, 0].reshape(()))


def test_what_may_not_be_written_is_refused(check: Callable[..., None]) -> None:
    check(
        2,
        """
values = np.full((3, 1), float(comm.rank))
x = be.view(values)
comm.allreduce(x, "mean")
values.flags.writeable = False
read_only = be.view(values)  # at a place of which the exchange is known
for y in (read_only, be.broadcast_to(be.ones((3, 1)), (3, 2))):
    for exchange in (comm.allreduce, comm.broadcast, comm.start_allreduce):
        try:
            exchange(y)
        except ValueError as error:
            assert "assignment: " in str(error)
        else:
            raise AssertionError("written")
assert (x.get() == 0.5).all()
""",
    )


@pytest.mark.parametrize("n", [1, 2])
def test_a_backend_that_is_not_named_is_that_of_the_settings(launch: Callable, n: int) -> None:
    """As scripts pass on what `add_backend_arguments` leaves open."""
    done = launch(n, "sys.stdout.write(f'{be.driver.name} {comm.rank}\\n')", backend=None, TB_BACKEND="gpu:emulator")
    assert sorted(done.stdout.splitlines()) == [f"emulator {rank}" for rank in range(n)], done.stderr


def test_an_empty_number_of_threads_is_none(launch: Callable) -> None:
    done = launch(1, "sys.stdout.write(' '.join(map(os.environ.get, ('TB_THREADS', 'OMP_NUM_THREADS'))))",
                  TB_THREADS="", OMP_NUM_THREADS="")  # fmt: skip
    assert len(done.stdout.split()) == 2 and int(done.stdout.split()[0]) >= 1, done.stderr


def test_processes_that_disagree_are_refused(launch: Callable) -> None:
    done = launch(2, "comm.allreduce(be.ones((2 + comm.rank, 2)))", TB_CHECK="1")
    assert done.returncode != 0
    assert "processes do not agree" in done.stderr and "(3, 2)" in done.stderr


def test_parts_must_divide(launch: Callable) -> None:
    done = launch(2, "comm.reduce_scatter(be.ones((3, 2)))")
    assert done.returncode != 0
    assert "(3, 2)" in done.stderr and "2 processes" in done.stderr
