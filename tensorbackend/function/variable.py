# SPDX-License-Identifier: Apache-2.0
"""Variables: arrays that remember which function made them, and hold a gradient.

A `Variable` is what users have. Its `VariableNode` is its place in the graph: it refers to the function that made the
array, and keeps the array only if a function retained it. Functions refer to the nodes of their inputs, and weakly to
those of their outputs, so that a graph is freed with the last variable on top of it.

Operators and methods that compute are installed by `tensorbackend.functions`.
"""

from __future__ import annotations

import copy
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorbackend.errors import DTypeError, ShapeError, complain
from tensorbackend.function import arrays

__all__ = ["Variable", "VariableNode", "as_array", "as_variable"]

_new = object.__new__
_ref = weakref.ref
_backward: Callable[..., None] | None = None
"""That of `backprop.py`, which needs this module."""


class VariableNode:
    """The place of a variable in the graph.

    `creator_node` is the function node that made it (None: a leaf), `rank` its depth, `data` the array if a function
    retained it, `variable` a weak reference to the variable.
    """

    __slots__ = ("__weakref__", "creator_node", "data", "dtype", "name", "rank", "requires_grad", "shape", "variable")

    def __init__(self, variable: Variable, creator_node: Any = None, rank: int = 0) -> None:
        self.creator_node = creator_node
        self.rank = rank
        self.data: Any = None
        data = variable._data
        self.shape, self.dtype = (None, None) if data is None else (data.shape, data.dtype)
        self.requires_grad = variable._requires_grad
        self.name = variable._name
        self.variable = _ref(variable)

    def get_variable(self) -> Variable | None:
        """The variable, if it still is as functions saw it; else one on the retained array; None without either."""
        found = self.variable()
        if self.data is None or (found is not None and found._data is self.data):
            return found
        made = _new(Variable)
        made._data, made._node, made._grad = self.data, self, None
        made._requires_grad, made._name = self.requires_grad, self.name
        if found is None:
            self.variable = _ref(made)
        return made

    @property
    def creator(self) -> Any:
        """As `Variable.creator`."""
        return getattr(self.creator_node, "function", self.creator_node)

    @property
    def label(self) -> str:
        """Shape and type in short."""
        return f"{self.shape}, {self.dtype}" if self.name is None else f"{self.name}: {self.shape}, {self.dtype}"

    def __repr__(self) -> str:
        return f"<node of a variable {self.label}>"


class Variable:
    """An array with its gradient and its history.

    `data` is a NumPy array or a tensor (None: not yet known). With `requires_grad` False no gradient is computed for
    it. Raises `TypeError` for other data; `grad` as on assignment.
    """

    __slots__ = ("__weakref__", "_data", "_grad", "_name", "_node", "_requires_grad")
    __array_priority__ = 200
    __array_ufunc__ = None

    if TYPE_CHECKING:  # what `functions.operators` gives the class

        def __add__(self, other: Any) -> Variable: ...
        def __radd__(self, other: Any) -> Variable: ...
        def __sub__(self, other: Any) -> Variable: ...
        def __rsub__(self, other: Any) -> Variable: ...
        def __mul__(self, other: Any) -> Variable: ...
        def __rmul__(self, other: Any) -> Variable: ...
        def __truediv__(self, other: Any) -> Variable: ...
        def __rtruediv__(self, other: Any) -> Variable: ...
        def __floordiv__(self, other: Any) -> Variable: ...
        def __rfloordiv__(self, other: Any) -> Variable: ...
        def __pow__(self, other: Any) -> Variable: ...
        def __rpow__(self, other: Any) -> Variable: ...
        def __matmul__(self, other: Any) -> Variable: ...
        def __rmatmul__(self, other: Any) -> Variable: ...
        def __neg__(self) -> Variable: ...
        def __abs__(self) -> Variable: ...
        def __pos__(self) -> Variable: ...
        def __getitem__(self, key: Any) -> Variable: ...

        reshape: Callable[..., Variable]
        transpose: Callable[..., Variable]
        flatten: Callable[..., Variable]
        sum: Callable[..., Variable]
        mean: Callable[..., Variable]
        item: Callable[..., Any]
        T: Variable

    def __init__(
        self, data: Any = None, *, name: str | None = None, grad: Any = None, requires_grad: bool = True
    ) -> None:
        self._data = None if data is None else arrays.plain(data, "Variable")
        self._node: VariableNode | None = None
        self._grad: Any = None
        self._requires_grad = bool(requires_grad)
        self._name = name
        if grad is not None:
            self.grad = grad

    # The array

    @property
    def array(self) -> Any:
        """The array. Graphs keep the one that they saw: after another is assigned, `backward` of an earlier graph still
        fills `grad`, but `tb.grad` is of what is made from then on."""
        return arrays.presented(self._data)

    @array.setter
    def array(self, value: Any) -> None:
        before, self._data = self._data, None if value is None else arrays.plain(value, "Variable.array")
        node = self._node
        if node is None or self._data is None or node.creator_node is not None:
            return
        if node.shape is None:
            node.shape, node.dtype = self._data.shape, self._data.dtype
        elif self._data is not before:  # graphs keep the array that they saw, be it by its shape and type alone
            self._node = None

    data = array

    def _known(self) -> Any:
        """The array. Raises `RuntimeError` when there is none yet."""
        if self._data is None:
            name = f" {self._name!r}" if self._name else ""
            head = f"{type(self).__name__}{name}: not initialised"
            raise RuntimeError(complain(head, "no array", "", "initialize(shape)"))
        return self._data

    @property
    def shape(self) -> tuple[int, ...]:
        """The array's shape."""
        return self._known().shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self._known().shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return self._known().size

    @property
    def dtype(self) -> np.dtype:
        """The element type."""
        return self._known().dtype

    @property
    def xp(self) -> Any:
        """The array module: NumPy, or that of the array's backend."""
        return np if self._data is None else arrays.module_of(self._data)

    @property
    def device(self) -> Any:
        """Where the array is: its backend, None for a NumPy array."""
        return None if self._data is None else arrays.backend_of(self._data)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a variable without axes")
        return self.shape[0]

    def __iter__(self) -> Iterator[Variable]:
        return (self[i] for i in range(len(self)))

    def retain_data(self) -> None:
        """Keep the array alive with the graph, whatever becomes of this variable."""
        self.node.data = self._data

    def copydata(self, source: Any) -> None:
        """Take the numbers of another variable, into this one's array; they may be on another device.

        Raises `ShapeError` for another shape, `TypeError` for what is no variable.
        """
        _expect_variable("copydata", source)
        if source._data is None:
            return
        if self._data is None:
            self._allocate(source.shape)
        if source.shape != self.shape:
            raise ShapeError(complain("copydata: another shape", str(source.shape), str(self.shape)))
        arrays.copy_into(self._data, source._data)

    # The graph

    @property
    def node(self) -> VariableNode:
        """The variable's place in the graph."""
        if self._node is None:
            self._node = VariableNode(self)
        return self._node

    @property
    def name(self) -> str | None:
        """What the variable is called."""
        return self._name

    @name.setter
    def name(self, value: str | None) -> None:
        self._name = value
        if self._node is not None:
            self._node.name = value

    @property
    def requires_grad(self) -> bool:
        """Whether gradients are computed for it."""
        return self._requires_grad

    @property
    def rank(self) -> int:
        """The depth in the graph; 0 for a leaf."""
        return 0 if self._node is None else self._node.rank

    @property
    def creator_node(self) -> Any:
        """The node of the function that made it; None for a leaf."""
        return None if self._node is None else self._node.creator_node

    @property
    def creator(self) -> Any:
        """The function that made it (of an old-style function the function object itself); None for a leaf."""
        return None if self._node is None else self._node.creator

    @property
    def label(self) -> str:
        """Shape and type in short, after the name if there is one."""
        kind = "uninitialized" if self._data is None else f"{self.shape}, {self.dtype}"
        return kind if self._name is None else f"{self._name}: {kind}"

    def unchain(self) -> None:
        """Forget which function made this variable."""
        if self._node is not None:
            self._node.creator_node = None
            self._node.rank = 0

    def unchain_backward(self) -> None:
        """Forget which functions made this variable and all those it was made from."""
        waiting = [self._node] if self._node is not None else []
        while waiting:
            node = waiting.pop()
            function, node.creator_node, node.rank = node.creator_node, None, 0
            if function is not None:
                waiting += [x for x in function.inputs or () if x.creator_node is not None]
                function.unchain()

    # The gradient

    @property
    def grad(self) -> Any:
        """The gradient's array, or None."""
        found = self._grad
        return arrays.presented(found._data if isinstance(found, Variable) else found)

    @grad.setter
    def grad(self, value: Any) -> None:
        self._grad = None if value is None else self._fitting(arrays.plain(value, "Variable.grad"))

    @property
    def grad_var(self) -> Variable | None:
        """The gradient as a variable, or None."""
        found = self._grad
        if found is not None and not isinstance(found, Variable):
            found = self._grad = Variable(found)
        return found

    @grad_var.setter
    def grad_var(self, value: Variable | None) -> None:
        if value is not None:
            if not isinstance(value, Variable):
                raise TypeError(complain("grad_var", type(value).__name__, "a Variable", "v.grad = array"))
            self._fitting(value._known())
        self._grad = value

    def _fitting(self, grad: Any) -> Any:
        """A gradient's array, which must be as the variable's own."""
        data = self._data
        if data is None:
            return grad
        mine, other = arrays.backend_of(data), arrays.backend_of(grad)
        if mine is not other:
            given = f"{arrays.described(grad)} for {arrays.described(data)}"
            raise TypeError(complain("grad: another kind of array", given, "the same kind"))
        if grad.dtype != data.dtype and not self._is_wide(grad.dtype):
            raise DTypeError(complain("grad: another dtype", str(grad.dtype), str(data.dtype)))
        if grad.shape != data.shape:
            raise ShapeError(complain("grad: another shape", str(grad.shape), str(data.shape)))
        return grad

    def _is_wide(self, dtype: Any) -> bool:
        """Whether the gradient is of that type: it may be wider than the data during a step of an optimizer."""
        return self._grad is not None and self.grad_var._data.dtype == dtype

    def cleargrad(self) -> None:
        """Forget the gradient."""
        self._grad = None

    def zerograd(self) -> None:
        """Set the gradient to zeros. Kept for old code: `cleargrad` is cheaper and enough."""
        warnings.warn("zerograd is deprecated: use cleargrad", DeprecationWarning, stacklevel=2)
        self._grad = None if self._data is None else arrays.filled_like(self._data, 0)

    def addgrad(self, variable: Variable) -> None:
        """Add another variable's gradient to this one's, from any device. Raises as assignment to `grad`,
        and `TypeError` for what is no variable."""
        _expect_variable("addgrad", variable)
        other = variable.grad_var
        if other is None:
            return
        if self._data is None:
            self.initialize(variable.shape)
        moved = self._fitting(arrays.moved(other._known(), arrays.backend_of(self._data)))
        present = self._grad
        raw = present._data if isinstance(present, Variable) else present
        self._grad = arrays.copied(moved) if raw is None else arrays.added(raw, moved)

    def initialize(self, shape: tuple[int, ...]) -> None:
        """Make the array of a shape, where a subclass knows how; here `RuntimeError`."""
        raise RuntimeError(complain(f"{type(self).__name__}: no array", f"shape {shape}", "Variable(array)"))

    def _allocate(self, shape: tuple[int, ...]) -> None:
        """As `initialize`, for numbers that come from elsewhere."""
        self.initialize(shape)

    def backward(
        self, retain_grad: bool = False, enable_double_backprop: bool = False, loss_scale: float | None = None
    ) -> None:
        """Run back through the graph, and add to the gradient of each leaf.

        A variable of one element starts from 1 (times `loss_scale`), others from the `grad` that was set; raises
        `RuntimeError` when none was. `retain_grad` keeps the gradients of variables on the way. With
        `enable_double_backprop` the gradients are variables with a history, which can be differentiated again.
        """
        global _backward
        if _backward is None:
            from tensorbackend.function.backprop import backward as _backward

        _backward([self], None, retain_grad, enable_double_backprop, loss_scale)

    # Moving

    def to_device(self, device: Any) -> Variable:
        """Move array and gradient to a backend (None: to NumPy). Returns the variable. Raises `TypeError` for another
        device."""
        arrays.check_device(device)
        if self._data is not None:
            self._data = arrays.moved(self._data, device)
        if self._grad is not None:
            grad = self._grad
            self._grad = arrays.moved(grad._data if isinstance(grad, Variable) else grad, device)
        self._node = None if self._node is None or self._node.creator_node is None else self._node
        return self

    def to_cpu(self) -> Variable:
        """Move array and gradient to NumPy. Returns the variable."""
        return self.to_device(None)

    def to_gpu(self, device: Any = None) -> Variable:
        """Move array and gradient to a CUDA backend (None: the global one). Returns the variable."""
        return self.to_device(arrays.device_backend() if device is None else device)

    # Descriptions

    def __hash__(self) -> int:
        return id(self) >> 4

    def __bool__(self) -> bool:
        raise TypeError(complain("truth value of a variable", "", "a comparison of arrays", "use v.array"))

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        given = f"{type(self).__name__} {self.label}"
        raise TypeError(complain("a NumPy array of a variable", given, "an array", "v.array, or tb.to_cpu(v.array)"))

    def __array_function__(self, function: Any, types: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """NumPy's functions that a variable's own methods answer, as np.transpose. Raises `TypeError` for others."""
        try:
            return function._implementation(*args, **kwargs)
        except TypeError as error:
            name = function.__name__
            hint = f"F.{name}(v) where F has it, or np.{name}(v.array)"
            raise TypeError(complain(f"np.{name} of a variable", self.label, "arrays", hint)) from error

    def _uncompared(self, other: Any) -> Any:
        raise NotImplementedError(complain("variables do not compare", "", "arrays", "compare v.array"))

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _uncompared

    def summary(self) -> str:
        """One line: name, shape, type and place."""
        place = "uninitialized" if self._data is None else arrays.described(self._data)
        return f"<variable {self.label} ({place})>"

    def debug_print(self) -> str:
        """Several lines: what `summary` says, statistics of array and gradient, and the function that made it."""
        lines = [self.summary()]
        for name, raw in (("array", self._data), ("grad", self.grad)):
            values = None if raw is None else np.asarray(as_array(raw), dtype=np.float64)
            if values is None or not values.size:
                lines.append(f"  {name}: {'none' if values is None else 'empty'}")
                continue
            with np.errstate(all="ignore"):
                lines.append(f"  {name}: mean {values.mean():.6g}, std {values.std():.6g}, "
                             f"min {values.min():.6g}, max {values.max():.6g}")  # fmt: skip
        made_by = self.creator_node
        lines.append(f"  made by: {made_by.label if made_by is not None else 'nothing, a leaf'}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        if self._data is None:
            return f"variable({self.label})"
        return f"variable({self._data!r})" if self._name is None else f"variable {self._name}({self._data!r})"

    __str__ = __repr__

    # Copies

    def __copy__(self) -> Variable:
        self._expect_leaf()
        return self._with(lambda name, value: copy.copy(value) if name == "update_rule" else value)

    def __deepcopy__(self, memo: dict) -> Variable:
        if UNCHAINED not in memo:
            self._expect_leaf()
        made = memo[id(self)] = self._with(lambda name, value: _deep_slot(name, value, memo))
        if hasattr(self, "__dict__"):
            made.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return made

    def _expect_leaf(self) -> None:
        if self.creator_node is not None:
            self.__reduce__()

    def _expect_graph(self) -> None:
        """Raise where no pass can go back from here: inside a fused function."""

    def _with(self, of: Callable[[str, Any], Any]) -> Any:
        """A leaf of the same class with what `of` gives for the name and value of each slot."""
        made = _new(type(self))
        for base in type(self).__mro__:
            for name in base.__dict__.get("__slots__", ()):
                if name not in ("__weakref__", "_node") and hasattr(self, name):
                    setattr(made, name, of(name, getattr(self, name)))
        made._node = None
        if hasattr(self, "__dict__"):
            made.__dict__.update(self.__dict__)
        return made

    def __reduce__(self) -> Any:
        raise TypeError(complain("copy, pickle: a variable belongs to a graph", "", "", "copy, pickle its array"))


UNCHAINED = "variables without their graph"
"""A key of the `memo` of `copy.deepcopy`: while it is there, a variable that a function made is copied as a leaf."""


def _deep_slot(name: str, value: Any, memo: dict) -> Any:
    """What the slot of a copied variable holds."""
    if name in ("_data", "_grad"):
        return _deep_array(value._data if isinstance(value, Variable) else value, memo)
    if name == "update_rule" and value is not None:  # an optimizer's, whose numbers it goes on following
        made = copy.copy(value)
        made.state = {key: _deep_array(x, memo) for key, x in value.state.items()}
        return made
    return copy.deepcopy(value, memo)


def _deep_array(raw: Any, memo: dict) -> Any:
    """A plain array in new memory, one for all that have it."""
    if raw is None or id(raw) in memo:
        return raw if raw is None else memo[id(raw)]
    made = memo[id(raw)] = arrays.copied(raw)
    return made


def _expect_variable(name: str, x: Any) -> None:
    if not isinstance(x, Variable):
        raise TypeError(complain(name, type(x).__name__, "a Variable"))


def as_variable(x: Any) -> Variable:
    """`x` if it is a variable, else a variable without gradient on the array. Raises `TypeError` for what is none."""
    if x is None:
        raise TypeError(complain("Variable: not an array", "None", "a NumPy array or a tensor"))
    return x if isinstance(x, Variable) else Variable(x, requires_grad=False)


def as_array(x: Any) -> Any:
    """The array of a variable; an array as it is."""
    return x.array if isinstance(x, Variable) else x
