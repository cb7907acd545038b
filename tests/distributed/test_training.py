# SPDX-License-Identifier: Apache-2.0
"""Gradients averaged, batches shared, checkpoints whole: what data-parallel training is made of, and a training."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tensorbackend.links as L
from tensorbackend import BackendError, Chain, DTypeError, ShapeError, distributed, optimizers, testing
from tests.distributed.conftest import ROOT, command, environment

pytestmark = pytest.mark.slow

SCRIPT = str(ROOT / "examples" / "parallel_digits.py")


@pytest.fixture
def alone() -> distributed.Communicator:
    return distributed.init(testing.make_backend("jit", rng_seed=0))


@pytest.mark.parametrize("compress", [None, *(pytest.param(t, marks=pytest.mark.ci) for t in ("float16", "bfloat16"))])
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


def test_gradients_in_the_buckets_memory_are_averaged(check: Callable[..., None]) -> None:
    check(
        2,
        """
shapes = [(3, 7), (1, 7), (11, 1)]
values = [[np.random.default_rng([k, r]).standard_normal(s) for k, s in enumerate(shapes)] for r in range(2)]
for dtype, compress, bound in (("float32", None, 1e-6), ("float16", None, 2**-9), ("float32", "float16", 2**-9)):
    given = [be.array(v, dtype=dtype) for v in values[comm.rank]]
    buckets = distributed.GradientBuckets(comm, given, nbytes=32, compress=compress)
    gradients = buckets.in_place()
    assert len(buckets.buckets) == 2 and [g is h for g, h in zip(given, gradients)] == [compress is not None] * 3
    for step in range(2):
        if step:
            for g, v in zip(gradients, values[comm.rank]):
                g[:] = v
        if step and compress is None:
            buckets.gradients[1] = be.array(values[comm.rank][1], dtype=dtype)  # one elsewhere, for once
        buckets.reduce()
        for k, g in enumerate(buckets.gradients):
            np.testing.assert_allclose(g.get().astype(float), (values[0][k] + values[1][k]) / 2, rtol=0, atol=bound * 4)
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


OVERLAP = """
import tensorbackend as tb, tensorbackend.function_hooks, tensorbackend.functions as F, tensorbackend.links as L
from tensorbackend import optimizers

class Net(tb.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.a, self.b, self.z = L.Linear(3, 3), L.Linear(3, 3), L.Linear(3, 3)

    def forward(self, x, twice=False, skip=False):
        h = F.tanh(self.z(x))                      # the first by its name is the last in the graph
        h = h if skip else F.tanh(self.b(h))
        return F.sum(self.a(self.a(h) if twice else h) ** 2)

def data(rank, step):
    return be.array(np.random.default_rng([rank, step]).standard_normal((4, 3)), min_dims=0)

def gradients(net):
    return {path: p.grad.get() for path, p in net.namedparams() if p.grad is not None}

def expected(*passes):
    plain.cleargrads()
    for (step, how) in passes:
        for rank in range(comm.size):
            (plain(data(rank, step), **how) / comm.size).backward()
    return gradients(plain)

def same(found, wanted):
    assert set(found) == set(wanted), (set(found), set(wanted))
    for path, g in wanted.items():
        np.testing.assert_allclose(found[path], g, rtol=1e-5, atol=1e-6, err_msg=path)

comm.seed(0, apart=False)
net, plain = Net().to_device(be), Net().to_device(be)
opt = distributed.distributed_optimizer(optimizers.SGD(0.0).setup(net), comm, nbytes=1)
hook = opt._pre["AverageGradients"]
plain.copyparams(net)
"""


def test_gradients_are_exchanged_while_the_pass_goes_on(check: Callable[..., None]) -> None:
    """Each begins its way when the functions that use it are done, and not before: a is used twice."""
    check(
        2,
        OVERLAP
        + """
from tensorbackend.distributed import buckets
events = []
class Told(tb.function_hooks.FunctionHook):
    name = "told"
    def backward_postprocess(self, function, in_data, out_grad):
        events.append(function.label.partition("(")[0])
start = buckets._Bucket.start
def noted(self, comm, gradients, beside):
    events.append(len(self.parts))
    start(self, comm, gradients, beside)
buckets._Bucket.start = noted
with Told():
    net(data(comm.rank, 0), twice=True).backward()
sent = [k for k, event in enumerate(events) if isinstance(event, int)]
functions = [k for k, event in enumerate(events) if not isinstance(event, int)]
assert len(sent) == 6 and all(events[k] == 1 for k in sent), events
assert sent[0] < functions[-1] and sent[-1] > functions[-1], events
products = [k for k in functions if "inear" in events[k]]
assert len(products) == 4, events
assert products[1] < sent[0] < products[2] < sent[2] < products[3], events
same(gradients(net), expected((0, dict(twice=True))))
""",
    )


def test_gradients_of_any_passes_are_means(check: Callable[..., None]) -> None:
    check(
        2,
        OVERLAP
        + """
for step, how in enumerate([{}, {}, dict(twice=True), dict(skip=True), {}, dict(skip=True)]):
    net.cleargrads()
    net(data(comm.rank, step), **how).backward()
    same(gradients(net), expected((step, how)))
    opt.update()
    same(gradients(net), expected((step, how)))

net.cleargrads()                                   # two passes before a step
net(data(comm.rank, 7)).backward()
net(data(comm.rank, 8), skip=True).backward()
same(gradients(net), expected((7, {}), (8, dict(skip=True))))

net.cleargrads()                                   # gradients that are set, not passed back
for path, p in net.namedparams():
    p.grad = be.array(np.full(p.shape, comm.rank + 1.0), min_dims=0)
opt.update()
assert all((g == 1.5).all() for g in gradients(net).values())

net.cleargrads()                                   # replaced between the pass and the step
net(data(comm.rank, 9)).backward()
net.b.W.grad = be.array(np.full((3, 3), comm.rank + 1.0), min_dims=0)
opt.update()
wanted = expected((9, {}))
wanted["/b/W"] = np.full((3, 3), 1.5)
same(gradients(net), wanted)
""",
    )


def test_means_go_to_memory_of_their_own(check: Callable[..., None]) -> None:
    """What a pass gives a parameter may be another variable's gradient as well, the caller's array, or one number for
    all elements; one with a history keeps it."""
    check(
        2,
        """
import tensorbackend as tb, tensorbackend.functions as F
from tensorbackend import optimizers
numbers = lambda g: set(np.asarray(g.get()).ravel().tolist())
for overlap in (True, False):
    link = tb.Link()
    with link.init_scope():
        link.p, link.q = (tb.Parameter(np.ones((2, 3), np.float32)) for _ in range(2))
    opt = optimizers.SGD(0.0).setup(link.to_device(be))
    distributed.distributed_optimizer(opt, comm, nbytes=1, overlap=overlap)
    x, given = (tb.Variable(be.array(np.full((2, 3), 10.0 * (comm.rank + 1)), min_dims=0)) for _ in range(2))
    y = x + link.p + link.q
    y.grad = given.array
    y.backward()
    opt.update()
    assert numbers(link.p.grad) == numbers(link.q.grad) == {15.0}
    assert numbers(x.grad) == numbers(given.array) == {10.0 * (comm.rank + 1)}

    link.cleargrads()
    (F.sum(link.p) * (comm.rank + 1.0)).backward()
    opt.update()
    assert numbers(link.p.grad) == {1.5}

    link.cleargrads()
    F.sum(link.p * link.p * link.p).backward(enable_double_backprop=True)
    opt.update()
    g = link.p.grad_var
    link.cleargrads()
    F.sum(g).backward()
    opt.update()
    assert numbers(link.p.grad) == {6.0}
""",
    )


def test_gradients_of_scaled_losses_travel_once(check: Callable[..., None]) -> None:
    """Gradients that are set by hand are no means yet, and the hook averages them."""
    check(
        2,
        OVERLAP
        + """
from tensorbackend.distributed import buckets
exchanges = []
pack = buckets._Bucket._pack
buckets._Bucket._pack = lambda *arguments: exchanges.append(arguments) or pack(*arguments)
opt.loss_scaling(scale=1024.0)
for step in range(2):
    opt.update(lambda: net(data(comm.rank, step)))
    same(gradients(net), expected((step, {})))
    assert len(exchanges) == 6 * (step + 1), exchanges

for path, p in net.namedparams():
    p.grad = be.array(np.full(p.shape, 1024 * (comm.rank + 1.0)), min_dims=0)
opt.update()
assert all((g == 1.5).all() for g in gradients(net).values())
assert len(exchanges) == 18, exchanges
""",
    )


def test_a_step_that_overflowed_in_one_process_is_left_out_in_all(check: Callable[..., None]) -> None:
    check(
        2,
        """
from tensorbackend import links, optimizers
for overlap in (False, True):
    net = links.Linear(3, 2, initialW=0).to_device(be)
    opt = distributed.distributed_optimizer(optimizers.SGD(1.0).setup(net), comm, overlap=overlap).loss_scaling()
    for value, t in ((np.inf, 0), (2.0, 1)):
        for p in net.params():
            p.grad = be.array(np.full(p.shape, 2.0**14 * (value if comm.rank == 1 else 1.0)), min_dims=0)
        opt.update()
        assert opt.t == t and opt.loss_scale == 2.0**13, (opt.t, opt.loss_scale)
        for p in net.params():
            assert (p.array.get() == -3.0 * t).all(), p.array
""",
    )


def test_small_gradients_of_halves_travel_as_the_step_takes_them(check: Callable[..., None]) -> None:
    """Exchanged in the step, gradients of scaled losses are divided already: halves would round them to zero."""
    check(
        2,
        """
from tensorbackend import links, optimizers
net = links.Linear(3, 2, initialW=0)
net.W.array = net.W.array.astype(np.float16)
net.b.array = net.b.array.astype(np.float16)
net.to_device(be)
opt = distributed.distributed_optimizer(optimizers.SGD(1.0).setup(net), comm, overlap=False)
opt.use_fp32_update()
opt.loss_scaling(scale=2.0**14)
for step in range(2):
    for p in net.params():
        p.grad = be.array(np.full(p.shape, 2.0**14 * 1e-8 * (comm.rank + 1)), dtype=np.float16, min_dims=0)
    opt.update()
    for p in net.params():
        np.testing.assert_allclose(p.update_rule.state["master"].get(), -1.5e-8 * (step + 1), rtol=1e-3)
        assert p.grad.dtype == np.float16
""",
    )


@pytest.mark.ci
def test_noise_of_gradients_is_the_same_in_all_processes(check: Callable[..., None]) -> None:
    check(
        2,
        """
from tensorbackend import functions as F, links, optimizers
comm.seed(5)
net = links.Linear(3, 2).to_device(be)
opt = distributed.distributed_optimizer(optimizers.SGD(0.1).setup(net), comm)
opt.add_hook(optimizers.GradientNoise(0.1))
F.sum(net(be.xp.ones((4, 3), dtype=np.float32))).backward()
opt.update()
ours = net.W.array.get()
comm.broadcast(net.W.array)
assert (net.W.array.get() == ours).all()
""",
    )


def test_gradients_that_are_in_one_process_alone_are_refused_in_all(check: Callable[..., None]) -> None:
    """Process 1 was refused by a KeyError, or did not exchange what process 0 has not, and learnt something else."""
    check(
        2,
        """
import tensorbackend as tb
import tensorbackend.functions as F, tensorbackend.links as L
from tensorbackend import optimizers
for overlap in (True, False):
    for owner in (0, 1):
        net = L.Linear(3, 2)
        net.to_device(be)
        optimizer = distributed.distributed_optimizer(optimizers.SGD(0.1).setup(net), comm, overlap=overlap)
        net.cleargrads()
        x = tb.as_variable(be.ones((4, 3)))
        try:
            F.sum(net(x) if comm.rank == owner else F.matmul(x, net.W, transb=True)).backward()
            optimizer.update()
        except tb.BackendError as error:
            assert f'/b (2,) float32 in process {owner}, not in process {1 - owner}' in str(error), error
        else:
            raise AssertionError('learnt')
        assert comm.agreed(comm.rank) == 0
        del optimizer
""",
    )


def test_a_pass_in_which_a_leaf_gets_no_gradient(check: Callable[..., None]) -> None:
    """Its bucket never gets whole, and those after it are sent when the pass is over."""
    check(
        2,
        OVERLAP
        + """
class Cut(tb.FunctionNode):
    def forward(self, inputs):
        return inputs
    def backward(self, indexes, grads):
        return (None,)

class Partly(Net):
    def forward(self, x):
        return F.sum(F.tanh(self.z(x)) + self.a(x) + Cut().apply((self.b(x),))[0])

for other in (net, plain):
    other.__class__ = Partly
for step in range(2):
    net.cleargrads()
    net(data(comm.rank, step)).backward()
    same(gradients(net), expected((step, {})))
    assert set(gradients(net)) == {"/a/W", "/a/b", "/z/W", "/z/b"}
    opt.update()

class Broken(tb.FunctionNode):
    def forward(self, inputs):
        return inputs
    def backward(self, indexes, grads):
        raise RuntimeError("broken off")

class Breaks(Net):
    def forward(self, x):
        return F.sum(self.a(Broken().apply((F.tanh(self.b(x)),))[0]))

net.__class__ = Breaks
net.cleargrads()
try:
    net(data(comm.rank, 5)).backward()
except RuntimeError as error:
    assert "broken off" in str(error)
net.__class__ = plain.__class__ = Net
net.cleargrads()
net(data(comm.rank, 6)).backward()
same(gradients(net), expected((6, {})))
""",
    )


def test_parameters_must_be_on_the_communicators_backend(alone: distributed.Communicator) -> None:
    optimizer = optimizers.SGD().setup(L.Linear(3, 2))
    with pytest.raises(BackendError, match="to_device"):
        distributed.distributed_optimizer(optimizer, alone)
    with pytest.raises(BackendError, match="no shape yet"):
        distributed.distributed_optimizer(optimizers.SGD().setup(L.Linear(2)), alone)


def test_an_optimizer_that_is_refused_is_as_it_was(alone: distributed.Communicator, monkeypatch) -> None:
    """No parameter has become that of process 0, no pass is watched, and there is no hook."""
    monkeypatch.setattr(alone, "broadcast", lambda tensor: pytest.fail("a parameter was written"))
    net = Chain(a=L.Linear(3, 2), b=L.Linear(2)).to_device(alone.backend)
    optimizer = optimizers.SGD().setup(net)
    for options, error in (({}, BackendError), ({"compress": "float32"}, DTypeError), ({"nbytes": 0}, ValueError)):
        if options:
            net.b.W.initialize((2, 3))
        with pytest.raises(error):
            distributed.distributed_optimizer(optimizer, alone, **options)
    optimizer.add_hook(lambda o: None, "AverageGradients")
    with pytest.raises(KeyError, match="AverageGradients"):
        distributed.distributed_optimizer(optimizer, alone)
    assert optimizer.comm is None
    with pytest.raises(RuntimeError, match="no target"):
        distributed.distributed_optimizer(optimizers.SGD(), alone)


def test_batches_that_are_no_numbers_are_refused(alone: distributed.Communicator) -> None:
    for samples, batch, seed in ((10, 2.0, 0), (10.5, 2, 0), (10, 2, -1)):
        with pytest.raises(ValueError, match="ShardedBatches: "):
            distributed.ShardedBatches(alone, samples, batch, seed)


@pytest.mark.parametrize("where", ["epoch", "position"])
def test_batches_begin_nowhere_before_the_first(alone: distributed.Communicator, where: str) -> None:
    """From position -2 on the first batch was one of the epoch's last, the second empty."""
    batches = distributed.ShardedBatches(alone, 10, 3)
    setattr(batches, where, -2)
    with pytest.raises(ValueError, match=f"{where}\n  given     -2\n  expected .*0 or more"):
        next(iter(batches))


def test_a_step_must_be_whole(alone: distributed.Communicator) -> None:
    be = alone.backend
    buckets = distributed.GradientBuckets(alone, [be.ones((2, 2)), be.ones((3, 1))])
    buckets.ready(1)
    with pytest.raises(BackendError, match=r"gradient 1 twice"):
        buckets.ready(1)
    for wrong in (2, -1, "weights"):
        with pytest.raises(IndexError, match=rf"no such gradient\n  given     {wrong!r}\n  expected  0 to 1"):
            buckets.ready(0, wrong)
    with pytest.raises(BackendError, match=r"gradient 0 twice"):
        buckets.ready(0, 0)
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
    with pytest.raises(TypeError, match="(?s)values.*list.*a dict by name"):
        distributed.save_checkpoint(alone, tmp_path / "state.npz", [1])
    assert (tmp_path / "state.npz").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["state.npz"]


def test_a_checkpoint_that_cannot_be_written_fails_in_all_processes(check: Callable[..., None]) -> None:
    """One that goes on after the error must not be alone with it: the others would wait for ever."""
    check(
        2,
        """
class Odd(Exception):
    def __init__(self, one, two): pass
class Refuses:
    def __array__(self, dtype=None, copy=None): raise Odd(1, 2)
import tempfile
from tensorbackend import BackendError, DTypeError
state = os.path.join(comm.agreed(tempfile.mkdtemp()), 'state.npz')
for path, value, kind in (('/no/such/folder/state.npz', 1, OSError), (state, 'words', DTypeError),
                          (state, Refuses(), Odd if comm.rank == 0 else BackendError)):
    try:
        distributed.save_checkpoint(comm, path, {'a': value})
    except kind as error:
        print(error)
    else:
        raise AssertionError(path)
x = be.ones((2, 2))
comm.allreduce(x)
assert x.tolist() == [[2.0, 2.0]] * 2
distributed.save_checkpoint(comm, state, {'x': x})
assert distributed.load_checkpoint(state)['x'].sum() == 8
""",
    )


def test_a_damaged_checkpoint_is_refused(tmp_path: Path, alone: distributed.Communicator) -> None:
    path = tmp_path / "state.npz"
    distributed.save_checkpoint(alone, path, {"a": np.arange(100.0)})
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ValueError, match="not a whole .npz"):
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


@pytest.mark.parametrize(
    ("dtype", "bound"),
    [pytest.param("float64", 1e-9, marks=pytest.mark.ci), pytest.param("float32", 1e-5, marks=pytest.mark.long)],
)
def test_one_two_and_four_processes_follow_one_curve(
    train: Callable[..., list[float]], dtype: str, bound: float, tmp_path: Path
) -> None:
    def costs(n: int) -> list[float]:
        """Those of the epochs, and the one over the test set, which is shared out too."""
        return [*train(n, "--dtype", dtype, "--epochs", "3"), json.loads((tmp_path / "curve.json").read_text())["test"]]

    one = costs(1)
    assert one[2] < 0.95 * one[0]
    for n in (2, 4):
        np.testing.assert_allclose(costs(n), one, rtol=bound)


@pytest.mark.ci
def test_a_run_repeats_to_the_last_bit(train: Callable[..., list[float]]) -> None:
    assert train(2, "--epochs", "2") == train(2, "--epochs", "2")


@pytest.mark.parametrize(
    "later", [pytest.param(1, marks=pytest.mark.ci), pytest.param(2, marks=pytest.mark.long)]
)
def test_training_goes_on_from_a_checkpoint(train: Callable[..., list[float]], tmp_path: Path, later: int) -> None:
    """By fewer processes in ci; by as many, which what is killed in `test_faults.py` does too, with the long tests."""
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


@pytest.mark.parametrize(
    ("wrong", "setting", "message"),
    [
        ("--batch-size=4000", {}, "--batch-size: .*4000 of 1077"),
        ("--maps=1", {}, "--checkpoint other.npz: a checkpoint of another network"),
        ("--backend=cpu:x", {}, "--backend: .*has no drivers"),
        ("--maps=1", {"TB_BACKEND": "nosuch"}, "--backend: backend 'nosuch'"),
    ],
)
def test_what_the_example_cannot_do_is_told_in_a_line(
    tmp_path: Path, wrong: str, setting: dict[str, str], message: str
) -> None:
    np.savez(tmp_path / "other.npz", value0=1.0)
    line = [sys.executable, SCRIPT, wrong, "--checkpoint", "other.npz"]
    done = subprocess.run(line, env=environment(**setting), cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and re.match(f"parallel_digits.py: {message}", done.stderr, re.DOTALL), done.stderr


def test_the_example_follows_the_settings(tmp_path: Path) -> None:
    line = [sys.executable, SCRIPT, "--maps", "1", "--epochs", "1", "--curve", "curve.json"]
    tests = []
    for dtype in ("float16", "float32"):
        done = subprocess.run(line, env=environment(TB_DTYPE=dtype), cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        tests.append(json.loads((tmp_path / "curve.json").read_text())["test"])
    assert np.float16(tests[0]) == tests[0] != tests[1]
