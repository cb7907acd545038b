# SPDX-License-Identifier: Apache-2.0
"""Gradients averaged, batches shared, checkpoints whole: what data-parallel training is made of, and a training."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tensorbackend.links as L
from tensorbackend import BackendError, DTypeError, ShapeError, distributed, optimizers, testing
from tests.distributed.conftest import ROOT, command, environment

SCRIPT = str(ROOT / "examples" / "parallel_digits.py")


@pytest.fixture
def alone() -> distributed.Communicator:
    return distributed.init(testing.make_backend("jit", rng_seed=0))


@pytest.mark.parametrize("compress", [None, "float16", "bfloat16"])
def test_buckets_average_gradients(check: Callable[..., None], compress: str | None) -> None:
    bound = {None: 1e-6, "float16": 2**-9, "bfloat16": 2**-6}[compress]
    check(
        2,
        f"""
shapes = [(30, 7), (1, 7), (11, 1), (64, 64), (1, 1)]
values = [[np.random.default_rng([k, r]).standard_normal(s) for k, s in enumerate(shapes)] for r in range(2)]
gradients = [be.array(v) for v in values[comm.rank]]
buckets = distributed.GradientBuckets(comm, gradients, nbytes=64, compress={compress!r})
assert len(buckets.buckets) == 3, len(buckets.buckets)
for step in range(2):
    for g, v in zip(gradients, values[comm.rank]):
        g[:] = v
    for k in reversed(range(5)):
        buckets.ready(k)
    buckets.wait()
    for k, g in enumerate(gradients):
        np.testing.assert_allclose(g.get(), (values[0][k] + values[1][k]) / 2, rtol=0, atol={bound} * 4)
print(buckets.buckets[0].flat.dtype)
""",
    )


def test_links_learn_together(check: Callable[..., None]) -> None:
    check(
        2,
        """
import tensorbackend as tb, tensorbackend.functions as F, tensorbackend.links as L
from tensorbackend import optimizers

def trained(comm, xs, ts):
    comm.backend.rng_reset()
    net = tb.Sequential(L.Linear(3, 5), F.tanh, L.Linear(5, 2))
    net.to_device(be)
    for k, (_, p) in enumerate(sorted(net.namedparams())):
        p.array[...] = be.array(np.random.default_rng(k).standard_normal(p.shape), min_dims=0)
    opt = distributed.distributed_optimizer(optimizers.MomentumSGD(0.1).setup(net), comm)
    for x, t in zip(xs, ts):
        opt.update(lambda: F.mean_squared_error(net(be.array(x, min_dims=0)), be.array(t, min_dims=0)))
    return [p.array.get() for _, p in sorted(net.namedparams())]

random = np.random.default_rng(0)
xs, ts = random.standard_normal((4, 8, 3)), random.standard_normal((4, 8, 2))
mine = slice(4 * comm.rank, 4 * comm.rank + 4)
together = trained(comm, xs[:, mine], ts[:, mine])
alone = trained(distributed.Alone(be), xs, ts)
for a, b in zip(together, alone):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
""",
    )


def test_parameters_must_be_on_the_communicators_backend(alone: distributed.Communicator) -> None:
    optimizer = optimizers.SGD().setup(L.Linear(3, 2))
    with pytest.raises(BackendError, match="to_device"):
        distributed.distributed_optimizer(optimizer, alone)
    with pytest.raises(BackendError, match="no shape yet"):
        distributed.distributed_optimizer(optimizers.SGD().setup(L.Linear(2)), alone)


def test_a_step_must_be_whole(alone: distributed.Communicator) -> None:
    be = alone.backend
    buckets = distributed.GradientBuckets(alone, [be.ones((2, 2)), be.ones((3, 1))])
    buckets.ready(1)
    with pytest.raises(BackendError, match=r"gradient 1 twice"):
        buckets.ready(1)
    with pytest.raises(BackendError, match=r"no gradients \[0\]"):
        buckets.wait()
    buckets.ready(0)
    buckets.wait()
    buckets.reduce()
    with pytest.raises(DTypeError, match="compress='float32'"):
        distributed.GradientBuckets(alone, [be.ones((2, 2))], compress="float32")
    with pytest.raises(DTypeError, match="int32"):
        distributed.GradientBuckets(alone, [be.ones((2, 2), dtype="int32")])


class Rank(distributed.Alone):
    """One of several processes, as far as a sampler asks."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(testing.make_backend("jit", rng_seed=0))
        self.rank, self.size = rank, size


@pytest.mark.parametrize("size", [1, 2, 4])
def test_processes_share_the_batches_of_one(size: int) -> None:
    one = list(distributed.ShardedBatches(Rank(0, 1), 50, 8, seed=3))
    assert len(one) == 6 and np.unique(np.concatenate(one)).size == 48
    parts = [list(distributed.ShardedBatches(Rank(rank, size), 50, 8, seed=3)) for rank in range(size)]
    for step, batch in enumerate(one):
        np.testing.assert_array_equal(np.concatenate([part[step] for part in parts]), batch)


def test_batches_go_on_where_they_stopped() -> None:
    batches = distributed.ShardedBatches(Rank(0, 1), 50, 8)
    first = list(batches)
    second = list(batches)
    assert batches.epoch == 2 and not np.array_equal(first, second)
    later = distributed.ShardedBatches(Rank(0, 1), 50, 8)
    later.epoch, later.position = 1, 2
    np.testing.assert_array_equal(list(later), second[2:])


@pytest.mark.parametrize(("batch", "size"), [(7, 2), (0, 1), (51, 1)])
def test_batches_that_cannot_be_shared_are_refused(batch: int, size: int) -> None:
    with pytest.raises(ShapeError, match=f"{batch} of 50 samples, for {size}"):
        distributed.ShardedBatches(Rank(0, size), 50, batch)


def test_checkpoints_keep_every_number(alone: distributed.Communicator, tmp_path: Path) -> None:
    be = alone.backend
    values = {"a": be.array([[1.5, -2.0]]), "b": be.array([[1.0, 3.0]], dtype="bfloat16"), "steps": 7}
    distributed.save_checkpoint(alone, tmp_path / "state.npz", values)
    found = distributed.load_checkpoint(tmp_path / "state.npz")
    np.testing.assert_array_equal(found["a"], [[1.5, -2.0]])
    np.testing.assert_array_equal(found["b"], [[1.0, 3.0]])
    assert int(found["steps"]) == 7
    before = (tmp_path / "state.npz").read_bytes()
    with pytest.raises(DTypeError, match="name"):
        distributed.save_checkpoint(alone, tmp_path / "state.npz", {"name": "digits"})
    assert (tmp_path / "state.npz").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["state.npz"]


def test_a_damaged_checkpoint_is_refused(tmp_path: Path, alone: distributed.Communicator) -> None:
    path = tmp_path / "state.npz"
    distributed.save_checkpoint(alone, path, {"a": np.arange(100.0)})
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ValueError, match="not a whole checkpoint"):
        distributed.load_checkpoint(path)


@pytest.fixture
def train(mpi: None, tmp_path: Path) -> Callable[..., list[float]]:
    """The costs of the epochs of the example, in n processes."""
    pytest.importorskip("sklearn")

    def run(n: int, *options: str) -> list[float]:
        curve = tmp_path / "curve.json"
        line = command(n, SCRIPT, "--maps", "4", "--curve", str(curve), *options)
        done = subprocess.run(line, env=environment(), cwd=tmp_path, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        return json.loads(curve.read_text())["costs"]

    return run


@pytest.mark.ci
def test_one_two_and_four_processes_follow_one_curve(train: Callable[..., list[float]]) -> None:
    one = train(1, "--dtype", "float64", "--epochs", "3")
    assert one[2] < 0.9 * one[0]
    for n in (2, 4):
        np.testing.assert_allclose(train(n, "--dtype", "float64", "--epochs", "3"), one, rtol=1e-9)


@pytest.mark.ci
def test_a_run_repeats_to_the_last_bit(train: Callable[..., list[float]]) -> None:
    assert train(2, "--epochs", "2") == train(2, "--epochs", "2")


@pytest.mark.ci
@pytest.mark.parametrize("later", [1, 2])
def test_training_goes_on_from_a_checkpoint(train: Callable[..., list[float]], tmp_path: Path, later: int) -> None:
    double = ("--dtype", "float64")
    whole = train(2, "--epochs", "3", *double)
    kept = ("--checkpoint", str(tmp_path / "state.npz"))
    first = train(2, "--epochs", "2", *double, *kept)
    rest = train(later, "--epochs", "3", *double, *kept)
    np.testing.assert_allclose(first + rest, whole, rtol=1e-9)


@pytest.mark.ci
def test_the_convnet_learns_with_compressed_gradients(train: Callable[..., list[float]]) -> None:
    plain, small = train(2, "--epochs", "2"), train(2, "--epochs", "2", "--compress", "bfloat16")
    assert small != plain
    np.testing.assert_allclose(small, plain, rtol=0.05)


def test_the_example_says_how_it_is_called() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--help"], env=environment(), capture_output=True, text=True)
    assert done.returncode == 0 and "--checkpoint" in done.stdout
