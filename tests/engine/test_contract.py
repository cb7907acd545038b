# SPDX-License-Identifier: Apache-2.0
"""The contract beside values: signatures, buffers, output sizes, hints, histograms, marks, use by several threads."""

from __future__ import annotations

import inspect
import math
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorbackend
from tensorbackend import Autodiff, Backend, Block, OpTreeNode, Tensor, testing
from tensorbackend.backends import base

# Names, order and defaults of arguments; what follows them is ours.
SIGNATURES = """
absolute(a, out=None)
add(a, b, out=None)
add_fc_bias(inputs, bias)
argmax(a, axis=1, out=None, keepdims=True)
argmin(a, axis=1, out=None, keepdims=True)
array(ary, dtype=None, name=None, persist_values=True, parallel=False, distributed=False)
batched_dot(A, B, C, alpha=1.0, beta=0.0, relu=False, repeat=1, size=None)
begin(block, identifier)
binarize(ary, out, stochastic=True)
check_caffe_compat()
cleanup_backend()
clip(a, a_min, a_max, out=None)
compensated_sum(sum_tensor, cmp_tensor, add_tensor, cmp_scale=1.0, add_scale=1.0)
compound_dot(A, B, C, alpha=1.0, beta=0.0, relu=False, bsum=None, repeat=1, size=None)
copy_transpose(a, out, axes=None, repeat=1)
cublas_dot(A, B, C, alpha=1.0, beta=0.0)
divide(a, b, out=None)
dot(a, b, out=None)
dropout(keep=0.5, out=None)
dump_hist_data()
empty(shape, dtype=None, name=None, persist_values=True, parallel=False, distributed=False)
empty_like(other_ary, name=None)
end(block, identifier)
equal(a, b, out=None)
execute(optree)
exp(a, out=None)
exp2(a, out=None)
fabs(a, out=None)
fill_normal(ary, mean=0, stdv=1)
finite(a, out=None)
fprop_softmax(x, axis)
gen_rng(seed=None)
get_events()
get_time(start, end)
greater(a, b, out=None)
greater_equal(a, b, out=None)
init_mark()
iobuf(dim0, x=None, dtype=None, name=None, persist_values=True, shared=None, parallelism=None)
less(a, b, out=None)
less_equal(a, b, out=None)
log(a, out=None)
log2(a, out=None)
make_binary_mask(out, keepthresh=0.5)
max(a, axis=None, out=None, keepdims=True)
maximum(a, b, out=None)
mean(a, axis=None, partial=None, out=None, keepdims=True)
min(a, axis=None, out=None, keepdims=True)
minimum(a, b, out=None)
multiply(a, b, out=None)
negative(a, out=None)
not_equal(a, b, out=None)
onehot(indices, axis, out=None)
ones(shape, dtype=None, name=None, persist_values=True, parallel=False, distributed=False)
output_dim(X, S, padding, strides, pooling=False, dilation=1)
power(a, b, out=None)
rand(out=None)
reciprocal(a, out=None)
record_mark(marker)
rint(a, out=None)
rng_get_state()
rng_reset()
rng_set_state(rng_states)
safelog(a, out=None)
set_caffe_compat()
set_hist_buffers(hist_bins, hist_offset)
sgn(a, out=None)
shared_iobuf_size(shape, parallelism)
shift(ary, shift_ary, value=True, out=None)
sig(a, out=None)
sig2(a, out=None)
sqrt(a, out=None)
square(a, out=None)
std(a, axis=None, partial=None, out=None, keepdims=True)
subtract(a, b, out=None)
sum(a, axis=None, out=None, keepdims=True)
synchronize_mark(marker)
take(a, indices, axis, out=None)
tanh(a, out=None)
tanh2(a, out=None)
true_divide(a, b, out=None)
update_fc_bias(err, out)
var(a, axis=None, partial=None, out=None, keepdims=True, binary=False)
xnor_compound_dot(A, B, C, beta=0.0, bsum=None)
zeros(shape, dtype=None, name=None, persist_values=True, parallel=False, distributed=False)
zeros_like(other_ary, name=None)
"""
SIGNATURES_BY_NAME = {line.partition("(")[0]: line for line in SIGNATURES.strip().splitlines()}
TENSOR_MEMBERS = """
T __abs__ __add__ __eq__ __ge__ __getitem__ __gt__ __hash__ __int__ __le__ __len__ __lt__ __mul__ __ne__ __neg__ __pow__
__radd__ __repr__ __rmul__ __rpow__ __rsub__ __rtruediv__ __setitem__ __str__ __sub__ __truediv__ _assign _original_base
asbuffer asnumpyarray backend base copy copy_from dimension_reorder dtype fill get gpudata hist is_contiguous is_trans
name nbytes persist_values ptr raw reshape rounding set shape share size strides take transpose _min_dims
""".split()
NODE_MEMBERS = """
T __abs__ __add__ __eq__ __ge__ __gt__ __le__ __lt__ __mul__ __ne__ __neg__ __pow__ __radd__ __repr__ __rmul__ __rpow__
__rsub__ __rtruediv__ __str__ __sub__ __truediv__ asnumpyarray astensor build execute intrinsic_key_maps key
list_to_optree optree_to_list pp shape transpose traverse
""".split()
GRADIENT_MEMBERS = ["back_prop_grad", "cleanup", "get_grad_asnumpyarray", "get_grad_op_tree", "get_grad_tensor"]
ATTRIBUTES = """
backend_name backends bench bsz compat_mode default_dtype deterministic device_id device_type hist_bins hist_offset
init_rng_state num_devices rng rng_seed round_mode tensor_cls use_pinned_mem _min_dims
""".split()


def arguments(function: Any) -> list[str]:
    """The arguments of a method as `name` or `name=default`."""
    parameters = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
    return [p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in parameters]


@pytest.mark.parametrize("name", SIGNATURES_BY_NAME)
def test_methods_have_the_contract_s_arguments(backend, name) -> None:
    asked = SIGNATURES_BY_NAME[name].partition("(")[2][:-1]
    wanted = asked.split(", ") if asked else []
    found = arguments(getattr(type(backend), name))
    assert found[: len(wanted)] == wanted
    assert all("=" in extra for extra in found[len(wanted) :])


@pytest.mark.parametrize("name", sorted({n for n in dir(Backend) if not n.startswith("_")}))
def test_public_names_are_documented(name) -> None:
    member = inspect.getattr_static(Backend, name)
    if callable(member) or isinstance(member, (property, staticmethod)):
        assert getattr(Backend, name).__doc__


def test_backends_add_no_public_method_but_views_of_host_memory(backend) -> None:
    own = {n for n in set(dir(type(backend))) - set(dir(Backend)) if not n.startswith("_")}
    assert {n for n in own if callable(getattr(type(backend), n))} <= {"view", "from_dlpack", "explain"}


def test_members_of_the_contract_exist(backend) -> None:
    t = backend.zeros((2, 2))
    assert [n for n in TENSOR_MEMBERS if not hasattr(t, n)] == []
    assert [n for n in NODE_MEMBERS if not hasattr(t + 1, n)] == []
    assert [n for n in GRADIENT_MEMBERS if not hasattr(Autodiff, n)] == []
    assert [n for n in ATTRIBUTES if not hasattr(backend, n)] == []
    assert isinstance(t, Tensor)
    assert isinstance(t, backend.tensor_cls)
    assert isinstance(t + 1, OpTreeNode)


# Buffers


@pytest.fixture
def sized(backend: Backend) -> Any:
    """`backend` with a batch size of 8."""
    backend.bsz = 8
    yield backend
    backend.bsz = None


BUFFERS = [(5, (5, 8)), ((3, 4), (3, 32)), ([3, 4], (3, 32)), ((2, 3, 4), (24, 8)), ((6,), (6, 8))]


@pytest.mark.parametrize(("dim0", "shape"), BUFFERS)
def test_iobuf_shapes(sized, dim0, shape) -> None:
    t = sized.iobuf(dim0, dtype=np.float16, name="deltas", persist_values=False, parallelism="Data")
    assert (t.shape, t.dtype, t.name, t.persist_values) == (shape, np.float16, "deltas", False)
    assert not t.get().any()


def test_iobuf_returns_what_it_is_given(sized) -> None:
    x = sized.ones((2, 2))
    assert sized.iobuf(5, x=x) is x
    assert x.get().all()


def test_iobuf_in_shared_memory_is_zeroed(sized) -> None:
    shared = sized.ones((10, 8))
    same = sized.iobuf(10, shared=shared)
    assert same is shared
    assert not shared.get().any()
    shared.fill(1)
    part = sized.iobuf((2, 3), shared=shared, name="part")
    assert (part.shape, part.ptr, part.name) == ((2, 24), shared.ptr, "part")
    assert shared.get().sum() == 80 - 48
    with pytest.raises(ValueError, match=r"\(11, 8\)"):
        sized.iobuf(11, shared=shared)


def test_iobuf_in_shared_memory_of_another_type(sized) -> None:
    shared = sized.ones((4, 8))
    t = sized.iobuf(4, dtype=np.float16, shared=shared)
    assert (t.shape, t.dtype, t.ptr) == ((4, 8), np.float16, shared.ptr)
    assert np.count_nonzero(shared.get()) == 16


@pytest.mark.parametrize("parallelism", ["Data", "Model", "Disabled", None])
def test_shared_iobuf_size_on_one_device(backend, parallelism) -> None:
    assert backend.shared_iobuf_size((3, 4, 5), parallelism) == 60
    assert backend.shared_iobuf_size(7, parallelism) == 7
    assert Backend.allocate_backend("cpu", jit=False, num_devices=4).shared_iobuf_size(7, parallelism) == 7


# Output sizes


def windows(x: int, s: int, padding: int, strides: int, dilation: int) -> int:
    """How many windows fit, by trying their places."""
    span = dilation * (s - 1) + 1
    return len([p for p in range(-padding, x + padding) if (p + padding) % strides == 0 and p + span <= x + padding])


def caffe_windows(x: int, s: int, padding: int, strides: int) -> int:
    """As Caffe counts: one more window for a remainder, unless it would start in the padding behind the image."""
    count = math.ceil((x - s + 2 * padding) / strides) + 1
    return count - 1 if padding and (count - 1) * strides >= x + padding else count


@pytest.mark.parametrize("pooling", [False, True])
def test_output_dim_counts_windows(backend, pooling) -> None:
    for x in range(3, 12):
        for s, padding, strides, dilation in np.ndindex(3, 3, 3, 2):
            s, strides, dilation = s + 1, strides + 1, dilation + 1
            span = dilation * (s - 1) + 1
            if span > x + 2 * padding or (pooling and padding >= span):
                continue
            found = backend.output_dim(x, s, padding, strides, pooling=pooling, dilation=dilation)
            assert found == windows(x, s, padding, strides, dilation), (x, s, padding, strides, dilation)


def test_output_dim_in_caffe_s_mode() -> None:
    be = Backend.allocate_backend("cpu", jit=False, compat_mode="caffe")
    assert be.check_caffe_compat()
    for x in range(3, 12):
        for s, padding, strides in ((2, 0, 2), (3, 1, 2), (3, 0, 2), (2, 1, 2), (3, 2, 3), (1, 0, 3)):
            assert be.output_dim(x, s, padding, strides, pooling=True) == caffe_windows(x, s, padding, strides)
            assert be.output_dim(x, s, padding, strides) == windows(x, s, padding, strides, 1)
    be.cleanup_backend()


def test_caffe_s_mode_can_be_set() -> None:
    be = Backend.allocate_backend("cpu", jit=False)
    assert not be.check_caffe_compat()
    assert be.output_dim(4, 3, 0, 2, pooling=True) == 1
    be.set_caffe_compat()
    assert be.check_caffe_compat()
    assert be.output_dim(4, 3, 0, 2, pooling=True) == 2
    be.cleanup_backend()


@pytest.mark.parametrize(("window", "padding", "dilation"), [(2, 2, 1), (1, 1, 1), (2, 3, 2)])
def test_output_dim_refuses_windows_within_the_padding(backend, window, padding, dilation) -> None:
    with pytest.raises(ValueError, match=str(padding)):
        backend.output_dim(9, window, padding, 1, pooling=True, dilation=dilation)


# Hints


def test_blocks_are_hints() -> None:
    assert [Block.epoch, Block.minibatch, Block.fprop, Block.bprop, Block.update] == [0, 1, 2, 3, 4]


def test_begin_and_end_change_no_value(backend) -> None:
    t = backend.ones((2, 2), persist_values=False)
    backend.begin(Block.epoch, 0)
    backend.begin(Block.fprop, 7)
    t[:] = t + 1
    backend.end(Block.fprop, 7)
    backend.end(Block.epoch, 0)
    assert t.tolist() == [[2.0, 2.0]] * 2


# Histograms


def histogram(x: np.ndarray, bins: int, offset: int) -> np.ndarray:
    """Counts by the contract's formula, an element at a time."""
    counts = np.zeros((1, bins), np.int32)
    for value in x.ravel().tolist():
        size = abs(value)
        if size == 0 or math.isnan(size):
            place = 0
        else:
            place = bins if math.isinf(size) else round(math.log2(size)) - offset
        counts[0, min(max(place, 0), bins - 1)] += 1
    return counts


@pytest.fixture
def counting(backend: Backend) -> Any:
    """`backend` without histograms, with the default bins again afterwards."""
    backend.dump_hist_data()
    yield backend
    backend.set_hist_buffers(64, -48)
    backend.dump_hist_data()


@pytest.mark.parametrize(("bins", "offset"), [(64, -48), (8, -3), (1, 0)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_histogram_counts_magnitudes(counting, bins, offset, dtype) -> None:
    edges = [0, 1, -1, 2, 3, 0.3, 1e-3, -1e4, 6e4, np.inf, -np.inf, np.nan, 1.5, 0.7]
    host = np.concatenate([edges, np.random.default_rng(0).standard_normal(200) * 8]).astype(dtype)
    counting.set_hist_buffers(bins, offset)
    assert (counting.hist_bins, counting.hist_offset) == (bins, offset)
    counts = counting.array(host, dtype=dtype).hist("x")
    assert counts.dtype == np.int32
    np.testing.assert_array_equal(counts.get(), histogram(host.astype(np.float64), bins, offset))


def test_histogram_of_a_view(counting) -> None:
    host = np.random.default_rng(1).standard_normal((30, 20)).astype(np.float32)
    counts = counting.array(host)[::2].T.hist("x")
    np.testing.assert_array_equal(counts.get(), histogram(host[::2], 64, -48))


def test_dump_gives_all_histograms_and_resets(counting) -> None:
    hosts = [np.full((2, 3), v, np.float32) for v in (1, 2, 4)]
    for tag, host in zip(("a", "b", "a"), hosts):
        counting.array(host).hist(tag)
    data, tags = counting.dump_hist_data()
    assert data.dtype == np.int32
    assert tags == {"b": 1, "a": 2}
    np.testing.assert_array_equal(data.get(), np.concatenate([histogram(h, 64, -48) for h in hosts]))
    data, tags = counting.dump_hist_data()
    assert (data.shape, tags) == ((0, 64), {})


def test_new_bins_drop_what_was_counted(counting) -> None:
    counting.ones((2, 2)).hist("a")
    counting.set_hist_buffers(64, -48)
    assert counting.dump_hist_data()[1] == {"a": 0}
    counting.ones((2, 2)).hist("a")
    counting.set_hist_buffers(32, -16)
    data, tags = counting.dump_hist_data()
    assert (data.shape, tags) == ((0, 32), {})


def test_histograms_are_bounded_in_number(counting, monkeypatch) -> None:
    monkeypatch.setattr(base, "MAX_HISTOGRAMS", 3)
    t = counting.ones((2, 2))
    for number in range(3):
        t.hist(str(number))
    with pytest.raises(ValueError, match="dump_hist_data"):
        t.hist("one more")
    assert counting.dump_hist_data()[0].shape == (3, 64)
    t.hist("again")


# Marks


def test_marks_measure_milliseconds(backend) -> None:
    start, end = backend.init_mark(), backend.init_mark()
    before = time.perf_counter()
    backend.record_mark(start)
    time.sleep(0.02)
    backend.record_mark(end)
    backend.synchronize_mark(end)
    elapsed = (time.perf_counter() - before) * 1000
    assert 19 < backend.get_time(start, end) <= elapsed
    assert backend.get_time(end, start) == -backend.get_time(start, end)


def test_marks_must_be_recorded(backend) -> None:
    start, end = backend.init_mark(), backend.init_mark()
    backend.record_mark(start)
    with pytest.raises(ValueError, match="record_mark"):
        backend.get_time(start, end)


def test_events_are_a_pair_of_marks(backend) -> None:
    start, end = backend.get_events()
    assert start is not end
    assert backend.get_events()[0] is start
    for mark in (start, end):
        backend.record_mark(mark)
    assert backend.get_time(start, end) >= 0


# Running trees


def test_execute_runs_a_tree(backend) -> None:
    t = backend.ones((2, 3))
    out = backend.empty((2, 3))
    assert backend.execute(t * 2, out) is out
    assert out.tolist() == [[2.0] * 3] * 2
    assert backend.execute(t + 1).tolist() == [[2.0] * 3] * 2
    assert OpTreeNode.build("assign", out, t * 5) is out
    assert out.tolist() == [[5.0] * 3] * 2


def test_evaluate_takes_anything(backend) -> None:
    t = backend.ones((2, 3), dtype=np.float64)
    assert backend.evaluate(t + 1).dtype == np.float64
    assert backend.evaluate(t + 1, dtype=np.int8).get().dtype == np.int8
    assert backend.evaluate(5).item() == 5
    np.testing.assert_array_equal(backend.evaluate(np.eye(2)).get(), np.eye(2))
    made = backend.evaluate(t)
    assert made is not t
    assert made.ptr != t.ptr


def test_ranks_of_results_follow_the_operands(backend) -> None:
    matrix, vector = backend.ones((2, 3)), backend.ones((3,), min_dims=0)
    assert backend.evaluate(backend.sum(matrix, 0, keepdims=False)).shape == (3,)
    assert backend.evaluate(backend.sum(vector, keepdims=False)).shape == ()
    assert backend.evaluate(matrix + vector).shape == (2, 3)
    assert backend.evaluate(vector * 2)._min_dims == 0
    assert backend.evaluate(matrix * 2)._min_dims == 2


# Several threads


def in_threads(work: Callable[[int], None], count: int = 4) -> None:
    """Run `work(0)` … at once; the first error is raised here."""
    errors: list[BaseException] = []
    barrier = threading.Barrier(count)

    def run(number: int) -> None:
        barrier.wait()
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001  (handed to the test below)
            errors.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_four_threads_use_one_backend(backend) -> None:
    def work(number: int) -> None:
        host = np.random.default_rng(number).standard_normal((37, 20 + number)).astype(np.float32)
        for step in range(25):
            x = backend.array(host)
            out = backend.empty(x.shape)
            out[:] = (x * (number + 1) + step) * 0.5 - backend.max(x, axis=1)
            expected = (host * np.float32(number + 1) + np.float32(step)) * np.float32(0.5) - host.max(1, keepdims=True)
            np.testing.assert_allclose(out.get(), expected, rtol=1e-6, atol=1e-6)
            product = backend.evaluate(backend.dot(x.T, x)).get()
            np.testing.assert_allclose(product, host.T @ host, rtol=1e-4, atol=1e-4)
            np.testing.assert_array_equal(backend.evaluate(x[::2] + step).get(), host[::2] + np.float32(step))

    in_threads(work)


def test_threads_that_write_one_tensor_do_whole_statements(backend) -> None:
    t = backend.zeros((300, 300))

    def work(number: int) -> None:
        for _ in range(20):
            t[:] = t * 0 + number
            values = t.get()
            assert values.min() == values.max()

    in_threads(work)


def test_threads_draw_distinct_numbers(backend) -> None:
    found: list[bytes] = []

    def work(number: int) -> None:
        for _ in range(20):
            found.append(backend.rand(out=backend.empty((10, 10))).get().tobytes())

    in_threads(work)
    assert len(set(found)) == 80


@pytest.mark.parametrize("kind", testing.backend_kinds())
def test_threads_use_backends_of_their_own(kind) -> None:
    def work(number: int) -> None:
        be = testing.make_backend(kind, rng_seed=number)
        t = be.array(np.arange(1000.0).reshape(10, 100))
        for _ in range(20):
            t[:] = be.tanh(t * 0.5) + number
        host = np.arange(1000.0).reshape(10, 100)
        for _ in range(20):
            host = np.tanh(host * 0.5) + number
        np.testing.assert_allclose(t.get(), host, rtol=1e-4, atol=1e-5)
        be.cleanup_backend()

    in_threads(work)


def test_package_names_what_it_offers() -> None:
    assert [n for n in tensorbackend.__all__ if not hasattr(tensorbackend, n)] == []
