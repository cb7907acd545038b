# SPDX-License-Identifier: Apache-2.0
"""The checklist of the contract: every method with its arguments, members of tensors and nodes, functions."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

import tensorbackend
from tensorbackend import Autodiff, Backend, OpTreeNode, Tensor

# Names, order and defaults of arguments; what follows them is ours.
SIGNATURES = """
Relu(ary, out=None)
absolute(a, out=None)
add(a, b, out=None)
add_fc_bias(inputs, bias)
allocate_backend(name, **kargs)
allocate_new_deltas(delta, in_shape, parallelism)
allocate_new_outputs(layer, share_output)
argmax(a, axis=1, out=None, keepdims=True)
argmin(a, axis=1, out=None, keepdims=True)
array(ary, dtype=None, name=None, persist_values=True, parallel=False, distributed=False)
backend_choices()
batched_dot(A, B, C, alpha=1.0, beta=0.0, relu=False, repeat=1, size=None)
batchnorm_layer(in_shape)
begin(block, identifier)
bibnrnn_layer(h_buffer_all, h_ff_buffer, W_recur_f, W_recur_b, nsteps, nout)
binarize(ary, out, stochastic=True)
bprop_conv(layer, F, E, grad_I, X=None, bias=None, bsum=None, alpha=1.0, beta=0.0, relu=False, brelu=False,
    slope=0.0, repeat=1, layer_op=None)
bprop_lrn(layer, I, O, E, delta, denom, alpha=1.0, beta=0.0, ascale=1.0, bpower=1.0, repeat=1)
bprop_mergebroadcast(ngLayer, layers, error_views, error, delta, out_shape, alpha, beta, alphas, betas)
bprop_mergesum(ngLayer, alpha, beta, layers, error, deltas)
bprop_pool(layer, I, O, argmax=None, alpha=1.0, beta=0.0, repeat=1)
bprop_relu(layer, x, error, deltas, slope)
bprop_skipnode(error, deltas, alpha, beta)
bprop_transform(ngLayer, transform, outputs, error, deltas, relu)
check_caffe_compat()
clean_data(tensor, layer_mkl)
cleanup_backend()
clip(a, a_min, a_max, out=None)
compensated_sum(sum_tensor, cmp_tensor, add_tensor, cmp_scale=1.0, add_scale=1.0)
compound_bprop_bn(delta_out, grad_gamma, grad_beta, delta_in, x, xsum, xvar, gamma, eps, threads=None, repeat=1,
    binary=False, layer=None)
compound_bprop_lut(nin, inputs, error, error_t, dW, pad_idx, alpha=1.0, beta=0)
compound_dot(A, B, C, alpha=1.0, beta=0.0, relu=False, bsum=None, repeat=1, size=None)
compound_fprop_bn(x, xsum, xvar, gmean, gvar, gamma, beta, y, eps, rho, compute_batch_sum, accumbeta=0.0, relu=False,
    threads=None, repeat=1, binary=False, inference=False, outputs=None, layer=None)
compound_rnn_unroll_bprop(W_recur, delta_prev_s, delta_s, h_s, nout, num_steps, num_used_steps, activation,
    reverse=True)
compound_rnn_unroll_bprop_bibnrnn(ngLayer, error, in_deltas_f, prev_in_deltas, in_deltas_b, next_in_deltas,
    W_recur_f, W_recur_b, h_f, h_b, nout, nsteps, used_nsteps, activation, h_buffer_all)
compound_rnn_unroll_fprop(W_recur, h_prev_s, h_ff_s, h_s, bias, nout, num_steps, num_used_steps, activation,
    reverse=False)
compound_rnn_unroll_fprop_bibnrnn(ngLayer, h_buffer_all, h_ff_buffer, W_recur_f, h_prev, h_ff_f, h_f, b_f, W_recur_b,
    h_next, h_ff_b, h_b, b_b, nout, nsteps, used_nsteps, activation)
consume(buf_index, hostlist, devlist)
conv_layer(dtype, N, C, K, D=1, H=1, W=1, T=1, R=1, S=1, pad_d=0, pad_h=0, pad_w=0, str_d=1, str_h=1, str_w=1,
    dil_d=1, dil_h=1, dil_w=1)
convert_data(tensor, layer_mkl)
copy_transpose(a, out, axes=None, repeat=1)
cublas_dot(A, B, C, alpha=1.0, beta=0.0)
deconv_layer(dtype, N, C, K, M, P, Q, T=1, R=1, S=1, pad_d=0, pad_h=0, pad_w=0, str_d=1, str_h=1, str_w=1, dil_d=1,
    dil_h=1, dil_w=1)
distribute_data(tensor, layer_parallelism)
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
fprop_conv(layer, I, F, O, X=None, bias=None, bsum=None, alpha=1.0, beta=0.0, relu=False, brelu=False, slope=0.0,
    repeat=1, layer_op=None)
fprop_lrn(layer, I, O, denom, alpha=1.0, beta=0.0, ascale=1.0, bpower=1.0, repeat=1)
fprop_mergebroadcast(ngLayer, inputs, inference, outputs, layers, out_shape)
fprop_mergesum(ngLayer, inputs, inference, layers, outputs, out_shape)
fprop_pool(layer, I, O, argmax=None, alpha=1.0, beta=0.0, repeat=1)
fprop_relu(layer, x, slope)
fprop_skipnode(x, y, beta)
fprop_softmax(x, axis)
fprop_transform(ngLayer, transform, inputs, outputs, relu=False)
gen_rng(seed=None)
get_events()
get_time(start, end)
greater(a, b, out=None)
greater_equal(a, b, out=None)
init_mark()
iobuf(dim0, x=None, dtype=None, name=None, persist_values=True, shared=None, parallelism=None)
is_mkl()
less(a, b, out=None)
less_equal(a, b, out=None)
log(a, out=None)
log2(a, out=None)
lrn_layer(dtype, N, C, D=1, H=1, W=1, J=1)
make_binary_mask(out, keepthresh=0.5)
max(a, axis=None, out=None, keepdims=True)
maximum(a, b, out=None)
mean(a, axis=None, partial=None, out=None, keepdims=True)
mergebroadcast_layer(layer_num)
mergesum_layer(layer_num)
min(a, axis=None, out=None, keepdims=True)
minimum(a, b, out=None)
multiply(a, b, out=None)
negative(a, out=None)
nms(detections, threshold, normalized=False)
not_equal(a, b, out=None)
onehot(indices, axis, out=None)
ones(shape, dtype=None, name=None, persist_values=True, parallel=False, distributed=False)
output_dim(X, S, padding, strides, pooling=False, dilation=1)
pool_layer(dtype, op, N, C, D=1, H=1, W=1, J=1, T=1, R=1, S=1, pad_c=0, pad_d=0, pad_h=0, pad_w=0, str_c=None,
    str_d=None, str_h=None, str_w=None)
power(a, b, out=None)
rand(out=None)
reciprocal(a, out=None)
record_mark(marker)
relu_layer()
revert_tensor(tensor)
rint(a, out=None)
rng_get_state()
rng_reset()
rng_set_state(rng_states)
roipooling_bprop(I, rois, O, argmax, roi_count, fm_channel, fm_height, fm_width, pooled_height, pooled_width,
    spatial_scale)
roipooling_fprop(I, rois, O, argmax, roi_count, fm_channel, fm_height, fm_width, pooled_height, pooled_width,
    spatial_scale)
safelog(a, out=None)
scratch_buffer(size)
scratch_buffer_init()
scratch_buffer_offset(size)
scratch_buffer_reset()
set_caffe_compat()
set_hist_buffers(hist_bins, hist_offset)
set_scratch_size(*sizes)
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
update_conv(layer, I, E, grad_F, alpha=1.0, beta=0.0, repeat=1, grad_bias=None, layer_op=None)
update_fc_bias(err, out)
var(a, axis=None, partial=None, out=None, keepdims=True, binary=False)
xnor_compound_dot(A, B, C, beta=0.0, bsum=None)
zeros(shape, dtype=None, name=None, persist_values=True, parallel=False, distributed=False)
zeros_like(other_ary, name=None)
"""
SIGNATURES_BY_NAME = {line.partition("(")[0]: line for line in re.sub(r"\n    ", " ", SIGNATURES).split("\n") if line}
TENSOR_MEMBERS = """
T __abs__ __add__ __div__ __eq__ __ge__ __getitem__ __gt__ __hash__ __int__ __le__ __len__ __lt__ __mul__ __ne__ __neg__
__pow__ __radd__ __rdiv__ __repr__ __rmul__ __rpow__ __rsub__ __rtruediv__ __setitem__ __str__ __sub__ __truediv__
_assign _original_base
asbuffer asnumpyarray backend base copy copy_from dimension_reorder dtype fill get gpudata hist is_contiguous is_trans
name nbytes persist_values ptr raw reshape rounding set shape share size strides take transpose _min_dims
""".split()
NODE_MEMBERS = """
T __abs__ __add__ __div__ __eq__ __ge__ __gt__ __le__ __lt__ __mul__ __ne__ __neg__ __new__ __pow__ __radd__ __rdiv__
__repr__ __rmul__ __rpow__ __rsub__ __rtruediv__ __str__ __sub__ __truediv__ _pretty_print asnumpyarray astensor build
execute intrinsic_key_maps key
list_to_optree optree_to_list pp shape transpose traverse
""".split()
FUNCTIONS = ["cleanup_backend", "ensure_gpu_capability", "gen_backend", "get_compute_capability", "get_device_count"]
GRADIENT_MEMBERS = ["back_prop_grad", "cleanup", "get_grad_asnumpyarray", "get_grad_op_tree", "get_grad_tensor"]
ATTRIBUTES = """
backend_name backends bench bsz compat_mode default_dtype deterministic device_id device_type hist_bins hist_offset
init_rng_state num_devices rng rng_seed round_mode tensor_cls use_pinned_mem _min_dims
""".split()


def arguments(function: Any) -> list[str]:
    """The arguments of a method as `name` or `name=default`, with stars as they are written."""
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    parameters = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
    defaults = ["" if p.default is p.empty else f"={p.default!r}" for p in parameters]
    return [f"{stars.get(p.kind, '')}{p.name}{default}" for p, default in zip(parameters, defaults)]


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
    assert backend.evaluate((t + 6).__div__(2)).get().tolist() == [[3.0] * 2] * 2
    assert backend.evaluate((t + 2).__rdiv__(6)).get().tolist() == [[3.0] * 2] * 2
    assert (t + 1)._pretty_print() == str(t + 1)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_package_has_the_contract_s_functions(name) -> None:
    assert callable(getattr(tensorbackend, name))


def test_package_names_what_it_offers() -> None:
    assert [n for n in tensorbackend.__all__ if not hasattr(tensorbackend, n)] == []
