# SPDX-License-Identifier: Apache-2.0
"""Which functions of Python a call runs through."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any


def entered(call: Callable[[], object]) -> list[str]:
    """The functions of Python that a call enters; no garbage is collected meanwhile, whose finalizers would be among
    them."""
    found: list[str] = []

    def note(frame: Any, event: str, argument: object) -> None:
        if event == "call":
            found.append(frame.f_code.co_name)

    before = sys.getprofile()
    gc.collect()
    gc.disable()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
        gc.enable()
    return found
