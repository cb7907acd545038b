# SPDX-License-Identifier: Apache-2.0
"""Links: functions with parameters, and chains of them."""

from __future__ import annotations

import contextlib
import copy
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

import numpy as np

from tensorbackend.errors import DTypeError, KeyRefused, ShapeError, complain, is_complaint, nearest, ours
from tensorbackend.function import arrays, hooks
from tensorbackend.function.variable import UNCHAINED
from tensorbackend.functions.arguments import look_through
from tensorbackend.graph import ranges
from tensorbackend.links.parameter import Parameter

__all__ = ["Chain", "ChainList", "Link", "Sequential"]


class Link:
    """A function with parameters: `forward(self, *args)` runs when the link is called.

    Parameters are attributes set inside `with self.init_scope():`; what is set outside is plain, but for a parameter
    that takes the place of one. Constructor arguments `name=shape` make parameters of these shapes.
    """

    def __init__(self, **params: Any) -> None:
        self.__dict__.update(name=None, _params={}, _persistent={}, _within=False, _device=None, _hooks={})
        for name, value in params.items():
            self.add_param(name, value)

    def _ready(self) -> dict[str, Any]:
        """The parameters. Raises `RuntimeError` when the constructor of the base class did not run."""
        try:
            return self.__dict__["_params"]
        except KeyError:
            name = type(self).__name__
            raise RuntimeError(complain(f"{name}: not set up", "", "", f"call super().__init__() in {name}.__init__")) \
                from None  # fmt: skip

    # Registration

    @contextlib.contextmanager
    def init_scope(self) -> Iterator[None]:
        """A block in which parameters (and, in a `Chain`, links) that are set as attributes are registered; a list of
        links is no link: set a `ChainList`. Links that are set where they are not registered raise `TypeError`."""
        self._ready()
        before, self.__dict__["_within"] = self._within, True
        try:
            yield
        finally:
            self.__dict__["_within"] = before

    @property
    def within_init_scope(self) -> bool:
        """Whether an `init_scope` block is open."""
        return self.__dict__.get("_within", False)

    def __setattr__(self, name: str, value: Any) -> None:
        params = self.__dict__.get("_params", {})
        if isinstance(value, Link) and self.within_init_scope and not isinstance(self, Chain):
            head = f"{type(self).__name__}: a link as the attribute {name!r} in init_scope would not be registered"
            hint = "derive from tb.Chain" + (", or append(link)" if isinstance(self, ChainList) else "")
            raise TypeError(complain(head, type(value).__name__, "parameters", hint))
        if isinstance(value, Parameter) and (self.within_init_scope or name in params):
            value.name = name
            params[name] = value
            self._persistent.pop(name, None)
        else:
            params.pop(name, None)
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        self._params.pop(name, None)
        self._persistent.pop(name, None)
        object.__delattr__(self, name)

    def add_param(self, name: str, shape: Any = None, dtype: Any = None, initializer: Any = None) -> None:
        """Register a parameter. Raises `AttributeError` for a name that is taken."""
        self._refuse_taken(name)
        with self.init_scope():
            setattr(self, name, Parameter(initializer, shape, dtype=dtype))

    def add_persistent(self, name: str, value: Any) -> None:
        """Register a value that is saved with the parameters: an array, a number, a list of numbers."""
        self._refuse_taken(name)
        setattr(self, name, value)
        self.register_persistent(name)

    def register_persistent(self, name: str) -> None:
        """Have an attribute saved with the parameters. Raises `AttributeError` when there is none."""
        self._expect_name(name)
        if name not in self.__dict__:
            raise AttributeError(complain(f"{type(self).__name__}: no such attribute", repr(name), "set it first"))
        self._persistent[name] = True

    def _expect_name(self, name: Any) -> None:
        if not isinstance(name, str):
            raise TypeError(complain(f"{type(self).__name__}: a name", repr(name)[:200], "a str"))

    def _refuse_taken(self, name: str) -> None:
        self._ready()
        self._expect_name(name)
        if name in self.__dict__:
            raise AttributeError(complain(f"{type(self).__name__}: the name is taken", repr(name), "another name"))

    # Going through

    def params(self, include_uninit: bool = True) -> Iterator[Parameter]:
        """The parameters, sorted by name; those of links inside behind. One that is at several places comes once."""
        yield from {id(p): p for _, p in self.namedparams(include_uninit)}.values()

    def namedparams(self, include_uninit: bool = True) -> Iterator[tuple[str, Parameter]]:
        """The parameters with their paths, as '/l1/W'."""
        for path, link in self.namedlinks():
            prefix = "" if path == "/" else path
            for name, p in sorted(link._ready().items()):
                if include_uninit or p.is_initialized:
                    yield f"{prefix}/{name}", p

    def links(self, skipself: bool = False) -> Iterator[Link]:
        """The link and all links inside."""
        for _, link in self.namedlinks(skipself):
            yield link

    def namedlinks(self, skipself: bool = False) -> Iterator[tuple[str, Link]]:
        """The link ('/') and all links inside, with their paths."""
        if not skipself:
            yield "/", self
        for name, child in self._named_children():
            for path, link in child.namedlinks():
                yield (f"/{name}" if path == "/" else f"/{name}{path}"), link

    def _named_children(self) -> Iterable[tuple[str, Link]]:
        return ()

    def children(self) -> Iterator[Link]:
        """The links directly inside."""
        return (child for _, child in self._named_children())

    def count_params(self) -> int:
        """The number of elements of all parameters. Raises `RuntimeError` when one is not initialised."""
        return sum(p.size for p in self.params())

    # Running

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        hooks = self.__dict__.get("_hooks")
        if hooks:
            for hook in tuple(hooks.values()):
                hook.forward_preprocess(self, arguments, keywords)
        try:
            found = self.forward(*arguments, **keywords)
        except Exception as error:
            if not is_complaint(error) and ours(error):
                look_through(type(self).__name__, inspect.signature(self.forward), arguments, keywords)
            raise
        if hooks:
            for hook in tuple(hooks.values()):
                hook.forward_postprocess(self, arguments, keywords, found)
        return found

    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        """What a call does."""
        raise NotImplementedError(complain(f"{type(self).__name__}: no forward", "", "forward(self, ...)"))

    def add_hook(self, hook: Any, name: str | None = None) -> Link:
        """Call a hook's `forward_preprocess` and `forward_postprocess` around each call. Returns the link.

        Raises `KeyError` for a name that another hook has, `TypeError` for what is no hook.
        """
        key = name or hooks.name_of(hook)
        if key in self._hooks:
            raise KeyRefused(complain("link: a hook of this name", repr(key), "another name"))
        self._hooks[key] = hook
        return self

    def delete_hook(self, name: str) -> None:
        """Take a hook away. Raises `KeyError` for an unknown name."""
        if name not in self._hooks:
            raise KeyRefused(complain("link: no such hook", repr(name), nearest(name, self._hooks)))
        del self._hooks[name]

    # All parameters at once

    def cleargrads(self) -> None:
        """Forget all gradients."""
        for p in self.params():
            p._grad = None

    def zerograds(self) -> None:
        """Set all gradients to zeros. Kept for old code."""
        for p in self.params():
            p.zerograd()

    def addgrads(self, link: Link) -> None:
        """Add another link's gradients, parameter by parameter; of two that are at several places of both, once. Raises
        `KeyError` for a link that lacks one of the parameters, `ShapeError` for another shape, `DTypeError` for another
        type, before anything is changed."""
        pairs = self._beside("addgrads", link)
        for p, other in pairs:
            if p.is_initialized and other.is_initialized and p.dtype != other.dtype:
                raise DTypeError(complain(f"addgrads: {p.name}", str(other.dtype), str(p.dtype)))
        for p, other in {(id(p), id(other)): (p, other) for p, other in pairs}.values():
            p.addgrad(other)

    def copyparams(self, link: Link, copy_persistent: bool = True) -> None:
        """Take the numbers of another link's parameters and persistent values. Raises `KeyError` for a link that lacks
        one of them, `ShapeError` for another shape, before anything is changed."""
        pairs = self._beside("copyparams", link)
        kept = self._persistent_beside(link) if copy_persistent else []
        for p, other in pairs:
            p.copydata(other)
        for mine, name, value in kept:
            _set_persistent(mine, name, _own_value(mine, name, value))

    def _beside(self, what: str, link: Link) -> list[tuple[Any, Any]]:
        """The parameters, each with the other link's of the same path."""
        if not isinstance(link, Link):
            raise TypeError(complain(f"{what}: link", type(link).__name__, "a Link"))
        others = dict(link.namedparams())
        pairs = list(self.namedparams())
        for path, p in pairs:
            if path not in others:
                raise KeyRefused(complain(f"{what}: a parameter that the other link lacks", ", ".join(others), path))
            other = others[path]
            if p.is_initialized and other.is_initialized and p.shape != other.shape:
                raise ShapeError(complain(f"{what}: another shape", f"{path} {other.shape}", str(p.shape)))
        return [(p, others[path]) for path, p in pairs]

    def _persistent_beside(self, link: Link) -> list[tuple[Link, str, Any]]:
        """The links inside with the names of their persistent values, each with the other link's value."""
        theirs = dict(link.namedlinks())
        found = []
        for path, mine in self.namedlinks():
            for name in mine._persistent:
                place, held = f"{path.rstrip('/')}/{name}", getattr(mine, name)
                if path not in theirs or not hasattr(theirs[path], name):
                    raise KeyRefused(complain("copyparams: a value that the other link lacks", "", place))
                value = getattr(theirs[path], name)
                if arrays.is_array(held) and not (arrays.is_array(value) and value.shape == held.shape):
                    given = f"{place} {getattr(value, 'shape', type(value).__name__)}"
                    raise ShapeError(complain("copyparams: another shape", given, str(held.shape)))
                found.append((mine, name, value))
        return found

    def enable_update(self) -> None:
        """Let optimizers change the parameters."""
        self._set_enabled(True)

    def disable_update(self) -> None:
        """Keep the optimizer that has the parameters from changing them. Raises `RuntimeError` where none has them yet:
        `setup` gives parameters new rules, which are enabled."""
        params = list(self.params())
        if params and all(p.update_rule is None for p in params):
            hint = "optimizer.setup(link) first"
            raise RuntimeError(complain("disable_update: no optimizer has these parameters", "", "an optimizer", hint))
        self._set_enabled(False)

    def _set_enabled(self, wanted: bool) -> None:
        for p in self.params():
            if p.update_rule is not None:
                p.update_rule.enabled = wanted

    @property
    def update_enabled(self) -> bool:
        """Whether an optimizer changes any of the parameters."""
        return any(p.update_rule is not None and p.update_rule.enabled for p in self.params())

    # Devices and copies

    @property
    def device(self) -> Any:
        """Where the link is: a backend, None for NumPy."""
        return self._device

    @property
    def xp(self) -> Any:
        """The array module of the device."""
        return np if self._device is None else self._device.xp

    def to_device(self, device: Any) -> Link:
        """Move parameters and persistent arrays to a backend (None: to NumPy). Returns the link. Raises `TypeError` for
        another device."""
        arrays.check_device(device)
        for link in self.links():
            link._move(device)
        return self

    def _move(self, device: Any) -> None:
        """Move what the link itself holds."""
        self.__dict__["_device"] = device
        for p in self._params.values():
            p.to_device(device)
        for name in self._persistent:
            value = getattr(self, name)
            if arrays.is_array(value):
                object.__setattr__(self, name, arrays.presented(arrays.moved(arrays.plain(value), device)))

    def to_cpu(self) -> Link:
        """Move to NumPy. Returns the link."""
        return self.to_device(None)

    def to_gpu(self, device: Any = None) -> Link:
        """Move to a CUDA backend (None: the global one). Returns the link."""
        return self.to_device(arrays.device_backend() if device is None else device)

    def copy(self, mode: str = "share") -> Link:
        """A link of the same kind: with the same arrays ('share'), copies of them ('copy'), or new parameters beside
        copies of persistent values ('init'). Links and parameters that are at several places have one copy.

        Other attributes are shared by 'share', else copied as by `copy.deepcopy`; variables among them without the
        graph that they belong to. Raises `ValueError` for another mode, `TypeError` for an attribute that cannot be
        copied.
        """
        if mode not in ("share", "copy", "init"):
            raise ValueError(complain("copy: mode", repr(mode), "'share', 'copy' or 'init'"))
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        made.__dict__.update(_params={}, _persistent=dict(self._persistent), _hooks=dict(self._hooks))
        with _copying(mode) as copies:
            memo = copies.memo
            memo[id(self)] = made
            for name, p in self._params.items():
                if id(p) not in memo:
                    memo[id(p)] = _copied(p, mode)
                made._params[name] = made.__dict__[name] = memo[id(p)]
            copies.waiting.append((self, self.__dict__, made.__dict__))
            made.name = None
        return made

    def __copy__(self) -> Link:
        return self.copy()

    def __deepcopy__(self, memo: dict) -> Link:
        with _copying("copy", memo):
            return self.copy("copy")

    def __reduce_ex__(self, protocol: Any) -> Any:
        given, hint = f"<{type(self).__name__}>", "serializers.save_npz(file, link); copy.deepcopy(link) copies"
        raise TypeError(complain("pickle: a link's parameters belong to graphs and backends", given, "", hint))

    def repeat(self, n_repeat: int, mode: str = "init") -> Sequential:
        """A `Sequential` of so many copies of the link."""
        ranges.check("repeat", "an int of 0 or more", n_repeat=n_repeat)
        return Sequential(*(self.copy(mode) for _ in range(n_repeat)))

    def serialize(self, serializer: Any) -> None:
        """Save or load parameters and persistent values."""
        for name, p in sorted(self._ready().items()):
            _serialize_parameter(serializer, name, p)
        for name in sorted(self._persistent):
            _set_persistent(self, name, serializer(name, getattr(self, name)))

    def __repr__(self) -> str:
        shown = [p.label if p.name == name else f"{name}: {p.label}" for name, p in sorted(self._ready().items())]
        head = f"<{type(self).__name__} {', '.join(shown)}".rstrip()
        lines = [f"{name}: {inside}".replace("\n", "\n  ") for name, inside in self._shown_inside()]
        return "\n  ".join([head, *lines]) + ">"

    def _shown_inside(self) -> Iterable[tuple[str, str]]:
        return ((name, repr(child)) for name, child in self._named_children())


class _Copies:
    """What a copy makes: `memo` has the copies by the ids of what they are of, as that of `copy.deepcopy`; `waiting`
    are links, each with a dict or list of its and the copy of this, in which attributes are still the original's."""

    def __init__(self, deep: bool, memo: dict) -> None:
        self.deep = deep
        self.memo = memo
        self.waiting: list[tuple[Link, Any, Any]] = []

    def finish(self) -> None:
        """Copy what is left, now that links and parameters have copies, in whose place these are found."""
        while self.waiting:
            link, held, made = self.waiting.pop()
            shared = [k for k in held if k in made] if isinstance(held, dict) else range(min(len(held), len(made)))
            for key in shared:
                if made[key] is held[key]:
                    made[key] = _copied_value(link, key, held[key], self.memo)


class _Here(threading.local):
    """The copies that a thread's outermost `copy` makes."""

    copies: _Copies | None = None


_here = _Here()


@contextlib.contextmanager
def _copying(mode: str, memo: dict | None = None) -> Iterator[_Copies]:
    """A block in which links are copied: part of one around it, if that has the same `memo` (None: any)."""
    before, deep = _here.copies, mode != "share"
    if before is not None and before.deep == deep and (memo is None or memo is before.memo):
        yield before
        return
    copies = _here.copies = _Copies(deep, {} if memo is None else memo)
    unchained = copies.memo.setdefault(UNCHAINED, copies)
    try:
        yield copies
        if deep:
            copies.finish()
    finally:
        _here.copies = before
        if unchained is copies:
            del copies.memo[UNCHAINED]


def _copied_link(link: Link, mode: str, copies: _Copies) -> Link:
    if id(link) not in copies.memo:
        copies.memo[id(link)] = link.copy(mode)
    return copies.memo[id(link)]


def _copied_value(link: Link, name: Any, value: Any, memo: dict) -> Any:
    if isinstance(value, ModuleType):
        return value
    try:
        return copy.deepcopy(value, memo)
    except TypeError as error:
        if is_complaint(error):
            raise
        head = f"copy: {type(link).__name__} holds what cannot be copied"
        hint = "link.copy('share'), or a __deepcopy__ of its own"
        raise TypeError(complain(head, f"{name}, a {type(value).__name__}: {error}", "", hint)) from error


def _copied(p: Parameter, mode: str) -> Parameter:
    made = p.shared()
    if mode == "share" or p._data is None:
        return made
    if made.update_rule is not None:
        kept = made.update_rule.state if mode == "copy" else {}
        made.update_rule.state = {name: arrays.copied(x) for name, x in kept.items()}
    if mode == "init" and hasattr(p, "_initializer"):
        made.initialize(p.shape)
    else:
        made._data = arrays.copied(p._data)
    return made


def _serialize_parameter(serializer: Any, name: str, p: Parameter) -> None:
    if p._data is None and hasattr(serializer, "expect"):
        serializer.expect(name, None, p.dtype)
    found = serializer(name, None if p._data is None else p.array)
    if p._data is None and found is not None:
        p._allocate(found.shape)
        arrays.copy_into(p._data, arrays.plain(found))


def _own_value(link: Link, name: str, value: Any) -> Any:
    """Another link's persistent value for a link: an array where there is none yet as its own, on its device."""
    if not arrays.is_array(value):
        return copy.deepcopy(value)
    if arrays.is_array(getattr(link, name)):
        return value
    there = arrays.plain(value)
    moved = arrays.moved(there, link._device)
    return arrays.presented(arrays.copied(moved) if moved is there else moved)


def _set_persistent(link: Link, name: str, value: Any) -> None:
    """Give a persistent attribute a value: arrays keep their memory."""
    mine = getattr(link, name)
    if arrays.is_array(mine):
        if value is not mine:
            arrays.copy_into(arrays.target(mine), arrays.plain(value))
    else:
        object.__setattr__(link, name, value)


class Chain(Link):
    """A link of links, which are attributes: `Chain(l1=L.Linear(2, 3))`, or set inside `init_scope`."""

    def __init__(self, **links: Link) -> None:
        super().__init__()
        self.__dict__["_children"] = {}
        for name, link in links.items():
            self.add_link(name, link)

    def __setattr__(self, name: str, value: Any) -> None:
        children = self.__dict__.get("_children", {})
        if isinstance(value, Link) and (self.within_init_scope or name in children):
            value.name = name
            children[name] = value
        else:
            children.pop(name, None)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        self._children.pop(name, None)
        super().__delattr__(name)

    def __getitem__(self, name: str) -> Link:
        """The link of a name. Raises `KeyError` for an unknown one."""
        if name not in self._children:
            raise KeyRefused(complain("Chain: no such link", repr(name), nearest(name, self._children)))
        return self._children[name]

    def add_link(self, name: str, link: Link) -> None:
        """Register a link. Raises `AttributeError` for a name that is taken, `TypeError` for what is no link."""
        if not isinstance(link, Link):
            raise TypeError(complain("add_link", type(link).__name__, "a Link"))
        self._refuse_taken(name)
        with self.init_scope():
            setattr(self, name, link)

    def _named_children(self) -> Iterable[tuple[str, Link]]:
        self._ready()
        return sorted(self.__dict__.get("_children", {}).items())

    def copy(self, mode: str = "share") -> Chain:
        """As `Link.copy`, with copies of the links inside."""
        with _copying(mode) as copies:
            made = super().copy(mode)
            made.__dict__["_children"] = {}
            for name, child in self._children.items():
                made._children[name] = made.__dict__[name] = _copied_link(child, mode, copies)
                made.__dict__[name].name = name
        return made

    def serialize(self, serializer: Any) -> None:
        """Save or load the chain and the links inside."""
        super().serialize(serializer)
        for name, child in self._named_children():
            child.serialize(serializer[name])


class ChainList(Link):
    """A list of links."""

    def __init__(self, *links: Link) -> None:
        super().__init__()
        self.__dict__["_list"] = []
        for link in links:
            self.append(link)

    def __len__(self) -> int:
        return len(self._list)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._list)

    def __getitem__(self, index: Any) -> Any:
        """The link at a place, or a list of them."""
        return self._list[index]

    def __setitem__(self, index: int, link: Any) -> None:
        self._list[index] = self._taken(link)
        self._number()

    def __delitem__(self, index: Any) -> None:
        del self._list[index]
        self._number()

    def _taken(self, link: Any) -> Any:
        if not isinstance(link, Link):
            raise TypeError(complain(f"{type(self).__name__}: an entry", type(link).__name__, "a Link"))
        return link

    def _number(self) -> None:
        for i, link in enumerate(self._list):
            if isinstance(link, Link):
                link.name = str(i)

    def append(self, link: Any) -> None:
        """Add a link at the end."""
        self._ready()
        self._list.append(self._taken(link))
        self._number()

    def add_link(self, link: Any) -> None:
        """Add a link at the end."""
        self.append(link)

    def insert(self, index: int, link: Any) -> None:
        """Add a link before a place."""
        self._list.insert(index, self._taken(link))
        self._number()

    def extend(self, links: Iterable[Any]) -> None:
        """Add links at the end."""
        for link in links:
            self.append(link)

    def _named_children(self) -> Iterable[tuple[str, Link]]:
        self._ready()
        return [(str(i), x) for i, x in enumerate(self.__dict__.get("_list", ())) if isinstance(x, Link)]

    def copy(self, mode: str = "share") -> ChainList:
        """As `Link.copy`, with copies of the links inside."""
        with _copying(mode) as copies:
            made = super().copy(mode)
            made.__dict__["_list"] = [_copied_link(x, mode, copies) if isinstance(x, Link) else x for x in self._list]
            copies.waiting.append((self, self._list, made._list))
        made._number()
        return made

    def serialize(self, serializer: Any) -> None:
        """Save or load the links inside."""
        super().serialize(serializer)
        for name, child in self._named_children():
            child.serialize(serializer[name])


class Sequential(ChainList):
    """Links and callables in order: each gets what the one before gave; a tuple becomes several arguments."""

    def _taken(self, layer: Any) -> Any:
        if not callable(layer):
            raise TypeError(complain("Sequential: a layer", type(layer).__name__, "a link or a callable"))
        return layer

    def __getitem__(self, index: Any) -> Any:
        """The layer at a place, or a `Sequential` of several."""
        return Sequential(*self._list[index]) if isinstance(index, slice) else self._list[index]

    def __add__(self, other: Sequential) -> Sequential:
        if not isinstance(other, Sequential):
            return NotImplemented
        return Sequential(*self._list, *other._list)

    def forward(self, *arguments: Any) -> Any:
        """Run the layers one after the other."""
        x: Any = arguments
        for layer in self._list:
            x = layer(*x) if isinstance(x, tuple) else layer(x)
        return x[0] if isinstance(x, tuple) and len(x) == 1 and not self._list else x

    def _shown_inside(self) -> Iterable[tuple[str, str]]:
        self._ready()
        layers = enumerate(self.__dict__.get("_list", ()))
        return ((str(i), repr(x) if isinstance(x, Link) else _type_name(x)) for i, x in layers)

    def pop(self, index: int = -1) -> Any:
        """Take a layer out, and return it."""
        layer = self._list.pop(index)
        self._number()
        return layer

    def remove(self, layer: Any) -> None:
        """Take a layer out. Raises `ValueError` when it is not there."""
        self._list.remove(layer)
        self._number()

    def remove_by_layer_type(self, type_name: str) -> None:
        """Take out all layers of a type or function of this name."""
        self._list[:] = [x for x in self._list if _type_name(x) != type_name]
        self._number()

    def count_by_layer_type(self, type_name: str) -> int:
        """How many layers are of a type or function of this name."""
        return sum(_type_name(x) == type_name for x in self._list)

    def flatten(self) -> Sequential:
        """The layers, with those of a `Sequential` in place of it."""
        flat: list[Any] = []
        for x in self._list:
            flat += x.flatten()._list if isinstance(x, Sequential) else [x]
        return Sequential(*flat)

    def repeat(self, n_repeat: int, mode: str = "init") -> Sequential:
        """The layers so many times one after the other, each time as copies."""
        ranges.check("repeat", "an int of 0 or more", n_repeat=n_repeat)
        made = Sequential()
        for _ in range(n_repeat):
            made.extend(self.copy(mode)._list)
        return made


def _type_name(layer: Callable[..., Any]) -> str:
    return type(layer).__name__ if isinstance(layer, Link) else getattr(layer, "__name__", type(layer).__name__)
