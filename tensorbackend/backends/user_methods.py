# SPDX-License-Identifier: Apache-2.0
"""The methods that make user kernels from C text."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorbackend.backends import watch
from tensorbackend.errors import BackendError, complain
from tensorbackend.graph.structure import StructureTable
from tensorbackend.graph.tensor import Tensor

if TYPE_CHECKING:  # imported by the methods that need it
    from tensorbackend.backends.user import ElementwiseKernel, ReductionKernel
    from tensorbackend.backends.user_launch import Target

__all__ = ["UserKernels"]


def _expect_texts(name: str, *texts: Any) -> None:
    """Raise `TypeError` for what is no text."""
    for x in texts:
        if not isinstance(x, str):
            raise TypeError(complain(f"{name}: a text", f"{type(x).__name__} {x!r}"[:200], "a str of C"))


def _listed(name: str, options: Any) -> Sequence[Any]:
    """The options. Raises `TypeError` for what is no list, a text among them, whose letters they would be."""
    if not isinstance(options, (list, tuple)):
        raise TypeError(complain(f"{name}: options", repr(options)[:200], "a list of macros", "options=['-DSIZE=3']"))
    return options


class UserKernels:
    """The makers of user kernels; `Backend` inherits them."""

    structures: StructureTable
    _user_kernels: dict[tuple, ElementwiseKernel | ReductionKernel]

    def elementwise(self, *texts: str, preamble: str = "", options: Sequence[str] = ()) -> ElementwiseKernel:
        """A kernel from C text, to be called: `be.elementwise("T x, T y", "T z", "z = x * y + 1", "muladd")`.

        Three texts of which the first holds a `*` are parameters, body and name in the pointer style. `preamble` is put
        before the kernel; `options` are macros, such as '-DSIZE=3'. The same texts give the same kernel.
        docs/user-kernels.md says what texts may hold. Raises `ValueError` for texts that are none; `CompileError` comes
        from the first call.
        """
        from tensorbackend import user_kernels
        from tensorbackend.backends.user import ElementwiseKernel

        _expect_texts("elementwise", *texts, preamble, *_listed("elementwise", options))
        spec = functools.partial(user_kernels.elementwise, texts, preamble, options)
        key = ("elementwise", texts, preamble, tuple(options))
        return self._user_kernel(key, lambda: ElementwiseKernel(self, spec()))

    def reduction(self, in_params: str, out_params: str, map_expr: str, reduce_expr: str, post_map_expr: str,
                  identity: Any, name: str, preamble: str = "",
                  options: Sequence[str] = ()) -> ReductionKernel:  # fmt: skip
        """A reduction from C text: `be.reduction("T x", "T y", "x * x", "a + b", "y = a", "0", "sqsum")`.

        Elements become `map_expr`, two of them `reduce_expr` of `a` and `b`, and the output is assigned from `a`; no
        elements give `identity`. Raises as `elementwise`.
        """
        from tensorbackend import user_kernels
        from tensorbackend.backends.user import ReductionKernel

        texts = (in_params, out_params, map_expr, reduce_expr, post_map_expr, name, preamble)
        _expect_texts("reduction", *texts, *_listed("reduction", options))
        if not isinstance(identity, (str, int, float, np.number, np.bool_)):
            raise TypeError(complain("reduction: identity", repr(identity)[:200], "a number, or its text in C"))
        first = user_kernels.number_text(identity)
        texts = (in_params, out_params, map_expr, reduce_expr, post_map_expr, first, name, preamble)
        spec = functools.partial(user_kernels.reduction, *texts, options)
        return self._user_kernel(("reduction", texts, tuple(options)), lambda: ReductionKernel(self, spec()))

    def _user_kernel(self, key: tuple, make: Callable[[], Any]) -> Any:
        self.structures.check_open()
        kernel = self._user_kernels.get(key)
        if kernel is None:
            kernel = self._user_kernels[key] = make()
        return kernel

    def _run_user(self, launch: Any, tensors: list[Tensor], numbers: list[Any]) -> None:
        """Run a user kernel's launch on tensors and numbers."""
        run = functools.partial(launch, self, [x.address for x in tensors], numbers)
        if watch.wanted(self):
            watch.run_user(self, launch, launch.call(tensors), run)
        else:
            run()

    def _user_target(self) -> Target:
        """Where user kernels are compiled and run. Raises `BackendError` when nothing compiles them here."""
        hint = "gen_backend('cpu'); a class of one's own defines _user_target"
        raise BackendError(complain(f"{self!r}: user kernels", "no target for them", "a backend that has one", hint))
