# SPDX-License-Identifier: Apache-2.0
"""tensorbackend: layers written once against `be`, run on any backend.

    from tensorbackend import gen_backend
    be = gen_backend("cpu")
    x, w = be.array([[1.0, 2.0]]), be.array([[3.0], [4.0]])
    y = be.empty((1, 1))
    y[:] = be.tanh(be.dot(x, w) * 0.1)
"""

import importlib
from typing import TYPE_CHECKING, Any

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
from tensorbackend.function.config import (
    config,
    force_backprop_mode,
    global_config,
    no_backprop_mode,
    using_config,
)
from tensorbackend.graph.autodiff import Autodiff
from tensorbackend.graph.optree import OpCollection, OpTreeNode
from tensorbackend.graph.tensor import Tensor
from tensorbackend.settings import using

if TYPE_CHECKING:
    from tensorbackend import (
        distributed,
        function_hooks,
        functions,
        gradient_check,
        initializers,
        iterators,
        links,
        optimizers,
        serializers,
        utils,
    )
    from tensorbackend.function import type_check
    from tensorbackend.function.arrays import get_array_module, to_cpu, to_device, to_gpu
    from tensorbackend.function.backprop import backward, grad
    from tensorbackend.function.fused import fused
    from tensorbackend.function.node import FunctionNode
    from tensorbackend.function.old_style import Function
    from tensorbackend.function.variable import Variable, as_array, as_variable
    from tensorbackend.links import Chain, ChainList, Link, Sequential
    from tensorbackend.links.parameter import Parameter

__version__ = "0.1.0"

__all__ = [
    "Autodiff", "Backend", "BackendError", "Block", "CaptureError", "Chain", "ChainList", "CompileError",
    "DTypeError", "Function", "FunctionNode", "Link", "OpCollection", "OpTreeNode", "Parameter", "Sequential",
    "ShapeError", "Tensor", "Variable", "add_backend_arguments", "as_array", "as_variable", "backend_from_arguments",
    "backward", "cleanup_backend", "clear_memo", "config", "current_backend", "distributed", "elementwise",
    "ensure_gpu_capability", "force_backprop_mode", "function_hooks", "functions", "fused", "gen_backend",
    "get_array_module", "get_compute_capability", "get_device_count", "global_config", "grad", "gradient_check",
    "initializers", "iterators", "links", "memoize", "no_backprop_mode", "optimizers", "reduction", "serializers",
    "to_cpu", "to_device", "to_gpu", "type_check", "using", "using_config", "utils",
]  # fmt: skip

_LAZY = {
    "Chain": "links",
    "ChainList": "links",
    "Link": "links",
    "Parameter": "links.parameter",
    "Sequential": "links",
    "to_cpu": "function.arrays",
    "to_device": "function.arrays",
    "to_gpu": "function.arrays",
    "Function": "function.old_style",
    "FunctionNode": "function.node",
    "Variable": "function.variable",
    "as_array": "function.variable",
    "as_variable": "function.variable",
    "backward": "function.backprop",
    "fused": "function.fused",
    "get_array_module": "function.arrays",
    "grad": "function.backprop",
    "type_check": "function",
    **dict.fromkeys(
        ("distributed", "function_hooks", "functions", "gradient_check", "initializers", "iterators", "links",
         "optimizers", "serializers", "utils"), ""),
}  # fmt: skip
"""Names of the function layer and where they are ("": a module): who uses none does not wait for their import."""


def __getattr__(name: str) -> Any:
    place = _LAZY.get(name)
    if place is None:
        raise AttributeError(f"module 'tensorbackend' has no attribute {name!r}")
    importlib.import_module("tensorbackend.functions")  # gives variables their operators
    module = importlib.import_module(f"tensorbackend.{place or name}")
    found = getattr(module, name) if place else module
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
