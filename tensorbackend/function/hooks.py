# SPDX-License-Identifier: Apache-2.0
"""Function hooks: what is called before and after the forward and backward of functions."""

from __future__ import annotations

import threading
from typing import Any

from tensorbackend.errors import KeyRefused, complain

__all__ = ["FunctionHook", "name_of", "watching"]


class _Here(threading.local):
    """The hooks of all functions in a thread, by name."""

    def __init__(self) -> None:
        self.hooks: dict[str, Any] = {}


_here = _Here()


class FunctionHook:
    """A hook: for all functions of the thread inside `with hook:`, or for one node by `node.add_hook(hook)`.

    `in_data` are the inputs' arrays, in backward None for those that are not retained; `grad_outputs` are the gradients
    of the outputs, variables where the pass is recorded. Tensors behave as NumPy's arrays do.
    """

    name = "FunctionHook"

    def __enter__(self) -> FunctionHook:
        if self.name in _here.hooks:
            raise KeyRefused(complain("function hook: a hook of this name is there", repr(self.name), "another name"))
        _here.hooks[self.name] = self
        try:
            self.added(None)
        except BaseException:  # there will be no end of the block
            del _here.hooks[self.name]
            raise
        return self

    def __exit__(self, *error: object) -> None:
        del _here.hooks[self.name]
        self.deleted(None)

    def added(self, function: Any) -> None:
        """The hook was added, to a node or (None) to the thread."""

    def deleted(self, function: Any) -> None:
        """The hook was taken away."""

    def forward_preprocess(self, function: Any, in_data: tuple[Any, ...]) -> None:
        """Before `forward`."""

    def forward_postprocess(self, function: Any, in_data: tuple[Any, ...]) -> None:
        """After `forward`."""

    def backward_preprocess(self, function: Any, in_data: tuple[Any, ...], grad_outputs: tuple[Any, ...]) -> None:
        """Before `backward`."""

    def backward_postprocess(self, function: Any, in_data: tuple[Any, ...], grad_outputs: tuple[Any, ...]) -> None:
        """After `backward`."""


def name_of(hook: Any) -> str:
    """A hook's name. Raises `TypeError` for what has none."""
    if not isinstance(getattr(hook, "name", None), str):
        raise TypeError(complain("add_hook", type(hook).__name__, "a hook with a `name`", "add_hook(hook, name)"))
    return hook.name


def watching(function: Any) -> tuple[Any, ...]:
    """The hooks of a node: the thread's, then its own."""
    own = function.local_function_hooks
    found = _here.hooks
    return (*found.values(), *own.values()) if own else tuple(found.values()) if found else ()
