# SPDX-License-Identifier: Apache-2.0
"""User kernels on whichever backend their arguments belong to, and results remembered by arguments.

`tb.elementwise` and `tb.reduction` take the texts of the backend's methods of the same names. A call runs on the
backend of its tensors; NumPy arrays go to the global backend if that computes on the host, else to one kept here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from operator import methodcaller
from typing import TYPE_CHECKING, Any, TypeVar

from tensorbackend import settings
from tensorbackend.backends import registry
from tensorbackend.backends.base import Backend
from tensorbackend.backends.locks import Lock
from tensorbackend.backends.random_numbers import when_seeded
from tensorbackend.errors import BackendError, complain
from tensorbackend.graph.keys import exact
from tensorbackend.graph.tensor import Tensor

if TYPE_CHECKING:
    from tensorbackend.user_kernels import Elementwise, Reduction

__all__ = [
    "AnywhereKernel", "TextKernel", "clear_memo", "elementwise", "host_backend", "memoize", "reduction",
]  # fmt: skip

_F = TypeVar("_F", bound=Callable[..., Any])
_memos: list[dict] = []
_lock = Lock()
_host: Backend | None = None


class TextKernel:
    """A kernel made from texts, which `spec` holds."""

    spec: Elementwise | Reduction

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.spec.name

    @property
    def nargs(self) -> int:
        """The number of parameters, outputs included."""
        return len(self.spec.parameters)

    def __copy__(self) -> TextKernel:
        return self

    def __deepcopy__(self, memo: dict) -> TextKernel:
        return self  # so that copies of layers that hold it share it


class AnywhereKernel(TextKernel):
    """A user kernel of all backends; make it with `tensorbackend.elementwise` or `reduction`. Called as a backend's."""

    def __init__(self, spec: Elementwise | Reduction, make: Callable[[Backend], Any]) -> None:
        self.spec = spec
        self._make = make

    @property
    def source(self) -> str:
        """The generated texts of the forms that were called so far on the global backend, or on the host."""
        return self.on(_default()).source

    def explain(self) -> str:
        """What the kernel of the global backend, or of the host, says of itself."""
        return self.on(_default()).explain()

    def on(self, backend: Backend) -> Any:
        """The kernel of one backend."""
        return self._make(backend)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self.on(_backend_of((*arguments, keywords.get("out"))))(*arguments, **keywords)

    def __repr__(self) -> str:
        return f"<kernel {self.name}>"


def elementwise(*texts: str, preamble: str = "", options: Sequence[str] = ()) -> AnywhereKernel:
    """A kernel over elements for all backends: as `Backend.elementwise`; the backend is that of a call's arguments."""
    from tensorbackend import user_kernels  # few programs need it

    spec = user_kernels.elementwise(texts, preamble, options)
    return AnywhereKernel(spec, methodcaller("elementwise", *texts, preamble=preamble, options=options))


def reduction(in_params: str, out_params: str, map_expr: str, reduce_expr: str, post_map_expr: str, identity: Any,
              name: str, preamble: str = "", options: Sequence[str] = ()) -> AnywhereKernel:  # fmt: skip
    """A reduction for all backends: as `Backend.reduction`; the backend is that of a call's arguments."""
    from tensorbackend import user_kernels

    first = user_kernels.number_text(identity)
    texts = (in_params, out_params, map_expr, reduce_expr, post_map_expr, first, name, preamble)
    return AnywhereKernel(user_kernels.reduction(*texts, options), methodcaller("reduction", *texts, options))


def _backend_of(arguments: tuple) -> Backend:
    """The backend of the first tensor among arguments; a device's for arrays of a device; else the host's."""
    for x in arguments:
        if isinstance(x, Tensor):
            return x.backend
    on_device = any(hasattr(x, "__cuda_array_interface__") for x in arguments)
    if not on_device:
        return _default()
    found = registry.current_backend()
    if found.device_type != 1:
        given = f"{found!r}, and arrays of a CUDA device"
        raise BackendError(complain("no backend for the arguments", given, "", "gen_backend('gpu')"))
    return found


def _default() -> Backend:
    """The global backend if it computes on the host and compiles, else one made for arrays of the host."""
    if registry.has_backend():
        found = registry.current_backend()
        if found.device_type == 0 and getattr(found, "jit", False):
            return found
    return host_backend()


def host_backend() -> Backend:
    """The backend that computes on NumPy arrays: never closed, never the global one.

    Its random numbers follow from the seed of the global backend, if there is one that has a seed.
    """
    global _host
    if _host is None:
        with _lock.now:
            if _host is None:
                made = registry.current_backend() if registry.has_backend() else None
                seed = settings.config.seed if made is None else made.rng_seed
                threads = getattr(made, "threads", None) or None  # those of the process stay as they are
                _host = Backend.allocate_backend("cpu", rng_seed=_own_seed(seed), min_dims=0, threads=threads)
    return _host


def _own_seed(seed: int | None) -> int | None:
    """A seed that follows from a global backend's, for other numbers than that draws."""
    return None if seed is None else (seed + 0x9E3779B9) % 2**32


def _seed_host(seeded: Backend) -> None:
    if _host is None or seeded.rng_seed is None:
        return
    if registry.has_backend() and registry.current_backend() is seeded:
        _host.gen_rng(_own_seed(seeded.rng_seed))


registry.when_made(_seed_host)
when_seeded(_seed_host)


def memoize(for_each_device: bool = False) -> Callable[[_F], _F]:
    """A decorator that remembers a function's results by its arguments, which must be hashable.

    With `for_each_device`, results also belong to the global backend of the call: another has its own. Raises
    `TypeError` where the parentheses are forgotten.
    """
    if callable(for_each_device):
        raise TypeError(complain("memoize", "a function", "for_each_device, True or False", "@tb.memoize()"))

    def decorate(function: _F) -> _F:
        results: dict[tuple, Any] = {}
        _memos.append(results)

        @functools.wraps(function)
        def remembered(*arguments: Any, **keywords: Any) -> Any:
            device = registry.current_backend() if for_each_device and registry.has_backend() else None
            named = tuple([(name, exact(x)) for name, x in sorted(keywords.items(), key=lambda item: item[0])])
            key = (id(device), exact(arguments), named)
            try:
                hash(key)
            except TypeError as error:
                hint = "tuples in place of lists"
                raise TypeError(complain("memoize: arguments", str(error), "values with a hash", hint)) from None
            with _lock.now:
                if key not in results:
                    results[key] = (function(*arguments, **keywords), device)
                return results[key][0]

        return remembered  # type: ignore[return-value]

    return decorate


def clear_memo() -> None:
    """Forget the results of all functions that `memoize` decorates."""
    with _lock.now:
        for results in _memos:
            results.clear()
