# SPDX-License-Identifier: Apache-2.0
"""What tests of ops and trees share: backends by kind, inputs of an op, tolerances, and an oracle for any tree.

`reference(tree)` evaluates a tree on whole arrays in extended precision, with the type rules and the awkward functions
written anew here, and says of every element how far a correct evaluation may be from it. It knows nothing of
kernels, blocks or schedules. `assert_allclose` compares arrays and variables of any backends, `assert_close` and
`assert_bounded` what trees give. `compile_together` and `rehearsal` save the compiler's time.
"""

from tensorbackend.testing.arrays import assert_allclose
from tensorbackend.testing.batches import compile_together
from tensorbackend.testing.bounds import Bounded, assert_bounded, assert_close
from tensorbackend.testing.inputs import (
    BROADCASTS,
    backend_kinds,
    compiles,
    make_backend,
    sample,
    some,
    tolerance,
    ulps,
)
from tensorbackend.testing.oracle import philox, reference, result_type

__all__ = [
    "BROADCASTS", "Bounded", "assert_allclose", "assert_bounded", "assert_close", "backend_kinds", "compile_together",
    "compiles", "make_backend", "philox", "reference", "result_type", "sample", "some", "tolerance", "ulps",
]  # fmt: skip
