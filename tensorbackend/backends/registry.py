# SPDX-License-Identifier: Apache-2.0
"""The global backend, and how scripts choose one.

Layer code asks `current_backend()`; a script makes it once with `gen_backend(...)`. Other packages add backends by
defining a `Backend` subclass in a module that they name as an entry point of the group `tensorbackend.backends`.
"""

from __future__ import annotations

import argparse
import atexit
import logging
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorbackend import dtypes, settings
from tensorbackend.arguments import whole
from tensorbackend.backends.allocation import check_batch_size
from tensorbackend.backends.base import OUR_BACKENDS, Backend
from tensorbackend.errors import BackendError, DTypeError, complain, nearest

__all__ = [
    "add_backend_arguments", "allocate", "backend_from_arguments", "backend_name", "choices", "cleanup_backend",
    "current_backend", "gen_backend", "has_backend", "present_backend", "when_made",
]  # fmt: skip

GROUP = "tensorbackend.backends"

_log = logging.getLogger("tensorbackend")
_global: Backend | None = None
_exit_registered = False
_loaded = False
_warned: set[str] = set()
_listeners: list[Callable[[Backend], None]] = []


def _load_entry_points() -> None:
    """Import the modules of other packages' backends, once; a broken one is named and left out."""
    global _loaded
    if _loaded:
        return
    _loaded = True
    from importlib import metadata  # 20 ms

    for point in metadata.entry_points(group=GROUP):
        try:
            point.load()
        except Exception as error:  # noqa: BLE001  whatever another package raises, the others are to be found
            _log.warning("backend %r of entry point %s cannot be imported: %s", point.name, point.value, error)


def choices() -> list[str]:
    """The names of all backends, sorted; those of other packages that are installed are among them."""
    _load_entry_points()
    return Backend.backend_choices()


def _deprecated(name: str, value: Any) -> None:
    if value is not None and name not in _warned:
        _warned.add(name)
        warnings.warn(f"{name} is deprecated: give rng_seed for reproducible results", DeprecationWarning, stacklevel=3)


def gen_backend(
    backend: str | None = None,
    rng_seed: int | None = None,
    datatype: Any = None,
    batch_size: int = 0,
    stochastic_round: bool | int = False,
    device_id: int = 0,
    max_devices: int | None = None,
    compat_mode: str | None = None,
    deterministic_update: bool | None = None,
    deterministic: bool | None = None,
    **options: Any,
) -> Backend:
    """Make a backend and make it the global one; the former global one is cleaned up.

    `backend` is a registered name, with a driver after a colon where there are several (None: `TB_BACKEND`, else
    'cpu'). `rng_seed` makes results reproducible (None: `TB_SEED`, else different each run). `datatype` is the
    default element type (None: `TB_DTYPE`, else float32), `batch_size` becomes `be.bsz`, `compat_mode` None or
    'caffe'. `deterministic` and `deterministic_update` only warn. `options` go to the constructor (`jit`, `threads`,
    `min_dims`, `bench` …). Raises `ValueError` for an unknown name, with the choices, or a batch size that is none,
    `TypeError` for an unknown option.
    """
    global _global, _exit_registered
    for name, here in {"default_dtype": "datatype", "num_devices": "max_devices"}.items():
        if name in options:
            raise TypeError(complain("gen_backend", f"{name}={options[name]!r}", f"{here}={options[name]!r}"))
    check_batch_size("batch_size", batch_size)
    _deprecated("deterministic", deterministic)
    _deprecated("deterministic_update", deterministic_update)
    made = allocate(
        settings.config.backend if backend is None else backend,
        rng_seed=settings.config.seed if rng_seed is None else rng_seed,
        default_dtype=settings.config.dtype if datatype is None else datatype,
        stochastic_round=stochastic_round,
        device_id=device_id,
        num_devices=max_devices,
        compat_mode=compat_mode,
        **options,
    )
    made.bsz = batch_size
    cleanup_backend()
    _global = made
    for listener in _listeners:
        listener(made)
    if not _exit_registered:
        atexit.register(cleanup_backend)
        _exit_registered = True
    return made


def allocate(backend: str, **options: Any) -> Backend:
    """A backend by its name, with a driver after a colon where there are several, and options of its constructor.

    The global backend stays. Raises `ValueError` for an unknown name, with the choices.
    """
    if not isinstance(backend, str) or backend.partition(":")[0] not in OUR_BACKENDS:
        _load_entry_points()
    return Backend.allocate_backend(backend, **options)


def when_made(listener: Callable[[Backend], None]) -> None:
    """Call `listener` with each global backend that is made."""
    _listeners.append(listener)


def current_backend() -> Backend:
    """The global backend. Raises `BackendError` when none was made."""
    if _global is None:
        raise BackendError(complain("no backend yet", "", "", "be = tensorbackend.gen_backend('cpu')"))
    return _global


def has_backend() -> bool:
    """Whether there is a global backend."""
    return _global is not None


def cleanup_backend() -> None:
    """Clean up the global backend, if there is one."""
    global _global
    if _global is not None:
        _global.cleanup_backend()
        _global = None


def add_backend_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Give a script's parser `--backend`, `--seed`, `--dtype`, `--batch-size`, `--threads`; returns the parser."""
    group = parser.add_argument_group("backend")
    known = ", ".join([*choices(), "or one with a driver, as gpu:emulator"])
    help_ = f"{known} (default: TB_BACKEND, else cpu)"
    group.add_argument("-b", "--backend", type=backend_name, default=None, help=help_)
    group.add_argument("--seed", type=whole(0, 2**32 - 1), default=None, help="random seed, for reproducible results")
    types = "default element type (float32, float64, float16, bfloat16)"
    group.add_argument("--dtype", type=_dtype, default=None, help=types)
    group.add_argument("--batch-size", type=whole(1), default=128, help="samples a step (default: %(default)s)")
    group.add_argument("--threads", type=whole(1), default=None, help="CPU threads (default: the cores allowed)")
    return parser


def backend_name(text: str) -> str:
    """The name of a backend, perhaps with a driver's, for `argparse`. Raises `ArgumentTypeError` for another."""
    if text.partition(":")[0] not in choices():
        raise argparse.ArgumentTypeError(f"{text!r} given, expected {nearest(text, choices())}")
    return text


def present_backend(text: str) -> str:
    """As `backend_name`, of a backend that can be made here: one is. Raises `ArgumentTypeError` for others, as those of
    devices that are missing."""
    name = backend_name(text)
    try:
        allocate(name).cleanup_backend()
    except (BackendError, ValueError) as error:
        raise argparse.ArgumentTypeError(" ".join(str(error).split())) from None
    return name


def _dtype(text: str) -> np.dtype:
    try:
        return dtypes.as_float(text)
    except DTypeError:
        raise argparse.ArgumentTypeError(f"{text!r} given, expected the name of a float type as float32") from None


def backend_from_arguments(arguments: argparse.Namespace, **options: Any) -> Backend:
    """The global backend that parsed arguments of `add_backend_arguments` ask for; `options` as in `gen_backend`. Ends
    the script as a parser does, with what is missing and exit status 2, where there is no such device or driver."""
    if arguments.threads is not None:
        options.setdefault("threads", arguments.threads)
    try:
        return gen_backend(
            arguments.backend,
            rng_seed=arguments.seed,
            datatype=arguments.dtype,
            batch_size=arguments.batch_size,
            **options,
        )
    except (BackendError, ValueError) as error:
        argparse.ArgumentParser(usage=argparse.SUPPRESS).error(f"--backend: {error}")
