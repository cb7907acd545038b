# SPDX-License-Identifier: Apache-2.0
"""docs/primitives.md: every method of the contract by family, from its docstring, with a program for each family.

The programs are run by the tests, which compare what they print with the comments beside the lines.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass

from tensorbackend.backends.base import Backend

__all__ = ["FAMILIES", "Family", "primitives_page"]

HEAD = """# Methods of a backend

<!-- Written by `./dev docs` from tensorbackend/contract_page.py and the methods' docstrings: edit those. -->

Every method of the contract, with the first sentence of what `help(be.name)` says. Beyond the contract there is more:
[ops.md](ops.md) has all elementwise ops, reductions and expressions of them. The programs of this page are one program,
which prints what is beside its lines.

```python
import numpy as np
import tensorbackend as tb

be = tb.gen_backend("cpu", rng_seed=0, batch_size=2)
```
"""


@dataclass(frozen=True)
class Family:
    """Methods that belong together, and a program that uses some of them."""

    title: str
    methods: str
    example: str


FAMILIES = (
    Family(
        "Backends",
        """backend_choices allocate_backend cleanup_backend set_caffe_compat check_caffe_compat output_dim begin end
        execute""",
        """
print(tb.Backend.backend_choices(), be.output_dim(28, 5, 2, 1))       # ['cpu', 'gpu'] 28
""",
    ),
    Family(
        "Tensors and buffers",
        "empty array zeros ones empty_like zeros_like iobuf shared_iobuf_size",
        """
x = be.array([[1, -2, 3], [4, 5, -6]], name="x")
print(x.shape, x.dtype, be.iobuf(10).shape, be.iobuf((10, 3)).shape)  # (2, 3) float32 (10, 2) (10, 6)
""",
    ),
    Family(
        "Elementwise",
        """absolute fabs negative sgn sqrt square exp exp2 log log2 safelog sig sig2 tanh tanh2 finite rint reciprocal
        add subtract multiply divide true_divide power maximum minimum equal not_equal less less_equal greater
        greater_equal clip onehot take binarize shift Relu""",
        """
y = be.empty((2, 3))
y[:] = be.maximum(x, 0) * 2 + be.equal(x, 3)
print(y.tolist())                                                     # [[2.0, 0.0, 7.0], [8.0, 10.0, 0.0]]
""",
    ),
    Family(
        "Reductions",
        "sum max min argmax argmin mean var std update_fc_bias add_fc_bias",
        """
print(be.evaluate(be.sum(x, axis=1)).tolist(), be.evaluate(be.argmax(x, axis=1)).tolist())  # [[2.0], [3.0]] [[2], [1]]
""",
    ),
    Family(
        "Random numbers",
        """gen_rng rng_get_state rng_set_state rng_reset rand fill_normal make_binary_mask dropout""",
        """
mask = be.make_binary_mask(be.empty((100, 100)), keepthresh=0.25)
print(0.23 < float(be.evaluate(be.mean(mask)).item()) < 0.27)         # True
""",
    ),
    Family(
        "Linear algebra",
        "dot compound_dot batched_dot xnor_compound_dot cublas_dot copy_transpose compensated_sum",
        """
C = be.ones((2, 2))
be.compound_dot(x, x.T, C, alpha=0.5, beta=1.0)
print(C.tolist())                                                     # [[8.0, -11.0], [-11.0, 39.5]]
""",
    ),
    Family(
        "Convolution",
        "conv_layer fprop_conv bprop_conv update_conv deconv_layer",
        """
layer = be.conv_layer("float32", N=2, C=3, K=4, H=5, W=5, R=3, S=3, pad_h=1, pad_w=1)
I, F, O = be.ones(layer.dimI2), be.ones(layer.dimF2), be.empty(layer.dimO2)
be.fprop_conv(layer, I, F, O, relu=True)
print(layer.MPQ, O.shape, O.get()[:3, 0].tolist())                    # (1, 5, 5) (100, 2) [12.0, 18.0, 18.0]
""",
    ),
    Family(
        "Pooling and response normalisation",
        "pool_layer fprop_pool bprop_pool lrn_layer fprop_lrn bprop_lrn",
        """
pool = be.pool_layer("float32", "max", N=2, C=1, H=2, W=4, R=2, S=2)
I, O, argmax = be.array(np.arange(16).reshape(8, 2)), be.empty(pool.dimO2), be.empty(pool.dimO2, np.uint8)
be.fprop_pool(pool, I, O, argmax)
print(O.tolist(), argmax.tolist())                                    # [[10.0, 11.0], [14.0, 15.0]] [[3, 3], [3, 3]]
""",
    ),
    Family(
        "Batch, layer and group normalisation",
        "compound_fprop_bn compound_bprop_bn batchnorm_layer compound_fprop_ln compound_bprop_ln compound_fprop_gn "
        "compound_bprop_gn",
        """
data, result = be.array([[1, 2, 3, 6]]), be.empty((1, 4))
sums, variance, gmean, gvar, shift = (be.zeros((1, 1)) for _ in range(5))
be.compound_fprop_bn(data, sums, variance, gmean, gvar, be.ones((1, 1)), shift, result, eps=0, rho=0.9,
                     compute_batch_sum=True)
print(sums.item(), variance.item(), round(gmean.item(), 4))     # 12.0 3.5 0.3
""",
    ),
    Family(
        "Recurrent layers",
        """compound_rnn_unroll_fprop compound_rnn_unroll_bprop bibnrnn_layer compound_rnn_unroll_fprop_bibnrnn
        compound_rnn_unroll_bprop_bibnrnn compound_lstm_unroll_fprop compound_lstm_unroll_bprop
        compound_gru_unroll_fprop compound_gru_unroll_bprop""",
        """
W, b, h0 = be.full((4, 4), 0.1), be.zeros((4, 1)), be.zeros((4, 2))
ff, h = be.ones((4, 6)), be.empty((4, 6))
given, states = ([t[:, 2 * step : 2 * step + 2] for step in range(3)] for t in (ff, h))
be.compound_rnn_unroll_fprop(W, [h0, *states[:2]], given, states, b, 4, 3, None, be.tanh)
print([round(float(v), 4) for v in h.get()[0, ::2]])                  # [0.7616, 0.8629, 0.8729]
be.compound_gru_unroll_fprop(be.zeros((12, 4)), be.zeros((12, 4)), be.ones((12, 1)), None, ff, h, None, 3)
print([round(float(v), 4) for v in h.get()[0, ::2]])                  # [0.2048, 0.3546, 0.464]
""",
    ),
    Family(
        "Lookup tables and regions",
        "compound_bprop_lut roipooling_fprop roipooling_bprop nms",
        """
ids, error, dW = be.array([[2, 0, 2]], dtype=np.int32), be.array([[1, 2, 4]]), be.empty((3, 1))
be.compound_bprop_lut(3, ids, error, None, dW, None)
print(dW.tolist())                                                    # [[2.0], [0.0], [5.0]]
boxes = be.array([[0, 0, 9, 9, 0.9], [1, 0, 9, 9, 0.8], [20, 20, 30, 30, 0.7]])
print(be.nms(boxes, 0.5))                                             # [0, 2]
""",
    ),
    Family(
        "Layer hooks",
        """relu_layer fprop_relu bprop_relu fprop_softmax fprop_transform bprop_transform fprop_skipnode bprop_skipnode
        mergesum_layer fprop_mergesum bprop_mergesum mergebroadcast_layer fprop_mergebroadcast
        bprop_mergebroadcast consume""",
        """
be.fprop_skipnode(x, y, beta=1.0)
print(y.tolist())                                                     # [[3.0, -2.0, 10.0], [12.0, 15.0, -6.0]]
""",
    ),
    Family(
        "Time and histograms",
        "init_mark record_mark synchronize_mark get_time get_events set_hist_buffers dump_hist_data",
        """
be.set_hist_buffers(6, -2)
print(x.hist("x").tolist(), be.dump_hist_data()[1])                   # [[0, 0, 1, 1, 3, 1]] {'x': 0}
""",
    ),
    Family(
        "Devices, layouts, scratch memory",
        """distribute_data revert_tensor is_mkl convert_data clean_data allocate_new_deltas allocate_new_outputs
        set_scratch_size scratch_buffer_init scratch_buffer scratch_buffer_offset scratch_buffer_reset""",
        """
be.set_scratch_size(1000, 24)
first = be.scratch_buffer(1000)
print(be.scratch_buffer_offset(24) - first, be.is_mkl())              # 1024 False
""",
    ),
)


def _first_sentence(text: str) -> str:
    """What a docstring says first, as one line."""
    line = " ".join((text or "").split("\n\n")[0].split())
    return re.split(r"(?<=[.:]) (?=[A-Z`])", line)[0]


def _row(name: str) -> str:
    method = getattr(Backend, name)
    parameters = [p for p in inspect.signature(method).parameters.values() if p.name != "self"]
    shown = ", ".join(str(p.replace(annotation=p.empty)) for p in parameters)
    said = _first_sentence(inspect.getdoc(method)).replace("|", "\\|")
    return f"| `{name}({shown})` | {said} |"


def primitives_page() -> str:
    """The text of docs/primitives.md."""
    parts = [HEAD]
    for family in FAMILIES:
        rows = "\n".join(map(_row, family.methods.split()))
        parts.append(f"## {family.title}\n\n| Method | |\n| --- | --- |\n{rows}\n\n```python{family.example}```\n")
    return "\n".join(parts)
