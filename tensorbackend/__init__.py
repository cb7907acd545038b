# SPDX-License-Identifier: Apache-2.0
"""tensorbackend: layers written once against `be`, run on any backend.

    from tensorbackend import gen_backend
    be = gen_backend("cpu")
    x, w = be.array([[1.0, 2.0]]), be.array([[3.0], [4.0]])
    y = be.empty((1, 1))
    y[:] = be.tanh(be.dot(x, w) * 0.1)
"""

from tensorbackend.backends.anywhere import clear_memo, elementwise, memoize, reduction
from tensorbackend.backends.base import Backend, Block
from tensorbackend.backends.devices import ensure_gpu_capability, get_compute_capability, get_device_count
from tensorbackend.backends.registry import (
    add_backend_arguments,
    backend_from_arguments,
    cleanup_backend,
    current_backend,
    gen_backend,
)
from tensorbackend.errors import BackendError, CaptureError, CompileError, DTypeError, ShapeError
from tensorbackend.graph.autodiff import Autodiff
from tensorbackend.graph.optree import OpTreeNode
from tensorbackend.graph.tensor import Tensor
from tensorbackend.settings import config, using

__version__ = "0.1.0"

__all__ = [
    "Autodiff", "Backend", "BackendError", "Block", "CaptureError", "CompileError", "DTypeError", "OpTreeNode",
    "ShapeError", "Tensor", "add_backend_arguments", "backend_from_arguments", "cleanup_backend", "clear_memo",
    "config", "current_backend", "elementwise", "ensure_gpu_capability", "gen_backend", "get_compute_capability",
    "get_device_count", "memoize", "reduction", "using",
]  # fmt: skip
