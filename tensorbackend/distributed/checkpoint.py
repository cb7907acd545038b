# SPDX-License-Identifier: Apache-2.0
"""What a run needs to go on later: written once, whole or not at all, as an .npz without pickled objects."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tensorbackend import dtypes
from tensorbackend.distributed.communicator import Communicator
from tensorbackend.errors import BackendError, DTypeError, complain
from tensorbackend.graph.tensor import Tensor
from tensorbackend.serializers import read_npz, write_npz

__all__ = ["load_checkpoint", "save_checkpoint"]


def save_checkpoint(comm: Communicator, path: str | Path, values: Mapping[str, Any]) -> None:
    """Process 0 writes tensors, arrays and numbers by name; all return when the file is there.

    It is written beside `path` and then takes its place, so that at any moment, whoever is killed, the file is a whole
    checkpoint, this one or the one before. bfloat16 is stored as float32. Raises `DTypeError` for values that are not
    numbers, `TypeError` for what has no names, `OSError` where the folder cannot be written, in every process: none
    waits for one that has failed.
    """
    failed = None
    if comm.rank == 0:
        try:
            if not isinstance(values, Mapping):
                raise TypeError(complain("save_checkpoint: values", type(values).__name__, "a dict by name"))
            write_npz(path, {name: _plain(name, value) for name, value in values.items()}, compression=False)
        except Exception as error:  # noqa: BLE001 (all are to hear of it)
            failed = error
    comm.barrier()
    told = comm.agreed(_portable(failed))
    if told is not None:
        raise told if failed is None else failed


def _portable(error: Exception | None) -> Exception | None:
    """An error of process 0 as others raise it: the same, if it can be sent."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 (whatever the class does)
        return BackendError(complain("save_checkpoint", f"{type(error).__name__} in process 0: {error}", "a file"))
    return error


def load_checkpoint(path: str | Path) -> dict[str, np.ndarray]:
    """The arrays of a checkpoint by name. Raises `OSError` without one, `ValueError` for a file that is not whole."""
    return read_npz(path)


def _plain(name: str, value: Any) -> np.ndarray:
    array = value.get() if isinstance(value, Tensor) else np.asarray(value)
    if array.dtype != dtypes.BFLOAT16 and array.dtype.kind not in "biuf":
        raise DTypeError(complain("save_checkpoint", f"{name}: {array.dtype}", "numbers"))
    return array
