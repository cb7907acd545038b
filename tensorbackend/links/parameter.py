# SPDX-License-Identifier: Apache-2.0
"""Parameters: variables that an optimizer changes, and that may get their shape at first use."""

from __future__ import annotations

import copy
from typing import Any

from tensorbackend import dtypes
from tensorbackend.function import arrays
from tensorbackend.function.config import lookup
from tensorbackend.function.variable import Variable
from tensorbackend.graph.tensor import as_shape
from tensorbackend.initializers import as_initializer

__all__ = ["Parameter"]


class Parameter(Variable):
    """A variable with an initializer: a number, an array, a callable that fills one, or None for LeCunNormal.

    Without a `shape` (an array brings its own) it is not initialised until `initialize(shape)` is called. Its type is
    `dtype`, else that of the array, else `config.dtype`. `update_rule` is an optimizer's.
    """

    __slots__ = ("_device", "_dtype", "_initializer", "update_rule")

    def __init__(self, initializer: Any = None, shape: Any = None, name: str | None = None, dtype: Any = None) -> None:
        super().__init__(None, name=name)
        self._device: Any = None
        self.update_rule: Any = None
        self._dtype = None if dtype is None else dtypes.as_dtype(dtype)
        if arrays.is_array(initializer) and shape is None:
            data = arrays.plain(initializer)
            self._device = arrays.backend_of(data)
            self._data = data if self._dtype is None or self._dtype == data.dtype else arrays.as_type(data, self._dtype)
            return
        self._initializer = as_initializer(initializer)
        if shape is not None:
            self.initialize(shape)

    @property
    def is_initialized(self) -> bool:
        """Whether there is an array."""
        return self._data is not None

    @property
    def dtype(self) -> Any:
        """The element type, also before there is an array."""
        return self._data.dtype if self._data is not None else self._dtype or lookup("dtype")

    @property
    def device(self) -> Any:
        """Where the array is or will be: a backend, None for NumPy."""
        return self._device if self._data is None else arrays.backend_of(self._data)

    @property
    def xp(self) -> Any:
        """The array module of the device."""
        return arrays.get_array_module() if self.device is None else self.device.xp

    def initialize(self, shape: Any) -> None:
        """Make the array of a shape, and fill it. Raises `TypeError` for lengths that are no integers, `ShapeError` for
        negative ones."""
        self._allocate(shape, self._initializer)

    def _allocate(self, shape: Any, initializer: Any = None) -> None:
        """Make the array, of zeros without an initializer: nothing is drawn for numbers that come from elsewhere."""
        data = arrays.zeros(self._device, as_shape(shape, 0), dtypes.as_dtype(self.dtype))
        if initializer is not None:
            initializer(arrays.presented(data))
        self._data = data
        self._grad = None
        self._node = None

    def shared(self) -> Parameter:
        """A parameter with the same array, and no gradient or history."""
        made = object.__new__(type(self))
        for name in (*Variable.__slots__[1:], *Parameter.__slots__):
            if hasattr(self, name):
                setattr(made, name, getattr(self, name))
        made._node = made._grad = None
        made.update_rule = None if self.update_rule is None else copy.copy(self.update_rule)
        return made

    def to_device(self, device: Any) -> Parameter:
        """Move array and gradient to a backend (None: to NumPy); without an array, have it made there."""
        arrays.check_device(device)
        self._device = device
        super().to_device(device)
        return self

    def update(self) -> None:
        """Let the update rule, if there is one, change the array by the gradient."""
        if self.update_rule is not None:
            self.update_rule.update(self)

    def __repr__(self) -> str:
        return f"parameter({self.label})" if self._data is None else super().__repr__().replace("variable", "parameter")
