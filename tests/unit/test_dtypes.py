# SPDX-License-Identifier: Apache-2.0
"""Element types: spelling, promotion against NumPy's, compute types, and casts at the edges."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorbackend import DTypeError, dtypes

FLOAT32 = np.dtype(np.float32)
PAIRS = list(itertools.product(dtypes.DTYPES, repeat=2))


# Spelling


@pytest.mark.parametrize("dtype", dtypes.DTYPES, ids=str)
def test_types_are_known_by_every_spelling(dtype) -> None:
    for spelling in (dtype, dtype.type, dtype.name, np.zeros(1, dtype).dtype):
        assert dtypes.as_dtype(spelling) == dtype


@pytest.mark.parametrize(
    ("spelling", "name"),
    [("half", "float16"), ("float", "float32"), ("int", "int64"), ("bool", "bool"), ("f4", "float32"), ("<i2", "int16"),
     (">f4", "float32"), (">i8", "int64"),
     (float, "float64"), (int, "int64"), (bool, "bool"), (ml_dtypes.bfloat16, "bfloat16")],
)  # fmt: skip
def test_other_spellings(spelling, name) -> None:
    assert dtypes.as_dtype(spelling).name == name and dtypes.as_dtype(spelling).isnative


@pytest.mark.parametrize(
    "spelling",
    ["complex64", "float128", "S3", "U4", "O", "M8[s]", "f4,i4", "nonsense", 3, [1], object(), ("f4", (2,))],
    ids=lambda s: str(s) if isinstance(s, str) else type(s).__name__,
)
def test_other_types_are_refused_with_the_choices(spelling) -> None:
    with pytest.raises(DTypeError, match="bfloat16|dtype"):
        dtypes.as_dtype(spelling)


def test_tags_are_distinct() -> None:
    assert len({dtypes.tag(d) for d in dtypes.DTYPES}) == len(dtypes.DTYPES) == 13
    assert [dtypes.tag(dtypes.as_dtype(n)) for n in ("bfloat16", "float64", "int8", "uint32", "bool")] == [
        "bf16", "f64", "i8", "u32", "b8",
    ]  # fmt: skip


def test_kinds() -> None:
    assert [d.name for d in dtypes.DTYPES if dtypes.is_float(d)] == ["float16", "bfloat16", "float32", "float64"]
    assert [d.name for d in dtypes.DTYPES if dtypes.is_half(d)] == ["float16", "bfloat16"]
    assert [d for d in dtypes.DTYPES if dtypes.is_integer(d)] == list(dtypes.INTEGERS)
    assert [dtypes.compute(d) for d in dtypes.DTYPES] == [FLOAT32 if dtypes.is_half(d) else d for d in dtypes.DTYPES]


# Promotion


@pytest.mark.parametrize(("a", "b"), PAIRS, ids=lambda d: d.name)
def test_promotion_of_two_types(a, b) -> None:
    found = dtypes.promote([a, b], [], FLOAT32)
    assert found == dtypes.promote([b, a], [], FLOAT32)
    floats = [d for d in (a, b) if dtypes.is_float(d)]
    if len(floats) == 1:
        assert found == floats[0]
    elif a != b and dtypes.is_half(a) and dtypes.is_half(b):
        assert found == FLOAT32
    elif dtypes.BFLOAT16 in (a, b):
        assert found == (b if a == dtypes.BFLOAT16 else a)
    else:
        assert found == np.promote_types(a, b)


@pytest.mark.parametrize("dtype", dtypes.DTYPES, ids=str)
@pytest.mark.parametrize("default", [FLOAT32, np.dtype(np.float64)], ids=str)
def test_python_numbers_are_weak(dtype, default) -> None:
    with_float = dtype if dtypes.is_float(dtype) else default
    assert dtypes.promote([dtype], [float], default) == with_float
    assert dtypes.promote([dtype], [int, float], default) == with_float
    assert dtypes.promote([dtype], [int], default) == (np.int64 if dtype == dtypes.BOOL else dtype)
    assert dtypes.promote([dtype], [bool], default) == dtype


def test_numbers_alone() -> None:
    assert dtypes.promote([], [float, int], FLOAT32) == np.float32
    assert dtypes.promote([], [int, bool], FLOAT32) == np.int64
    assert dtypes.promote([], [bool], FLOAT32) == np.bool_


def test_signed_integers_beside_uint64_become_doubles_as_in_numpy() -> None:
    for signed in ("int8", "int64"):
        assert dtypes.promote([np.dtype(signed), np.dtype(np.uint64)], [], FLOAT32) == np.float64


@given(st.permutations([d for d in dtypes.DTYPES if d != np.uint64]).map(lambda p: p[:4]))
def test_promotion_holds_every_operand_s_kind(chosen) -> None:
    found = dtypes.promote(list(chosen), [], FLOAT32)
    assert dtypes.is_float(found) == any(dtypes.is_float(d) for d in chosen)
    floats = [d.itemsize for d in chosen if dtypes.is_float(d)]
    assert found.itemsize >= max(floats or [d.itemsize for d in chosen])


# Casts


def whole(value: float, dtype: np.dtype) -> int:
    """The integer of a type that a float becomes."""
    info = np.iinfo(dtype)
    if math.isnan(value):
        return 0
    if math.isinf(value):
        return info.max if value > 0 else info.min
    return max(info.min, min(info.max, math.trunc(Fraction(value))))


@pytest.mark.parametrize("source", dtypes.FLOATS, ids=str)
@pytest.mark.parametrize("dtype", dtypes.INTEGERS, ids=str)
def test_floats_saturate_at_the_ends_of_integer_types(source, dtype) -> None:
    info = np.iinfo(dtype)
    ends = [float(info.max), float(info.min), float(info.max) + 1, float(info.min) - 1, float(info.max) / 2]
    with np.errstate(all="ignore"):
        near = np.array([*ends, 0.99, -0.99, -1.0, np.inf, -np.inf, np.nan], np.float64).astype(source)
        around = np.concatenate([near, np.nextafter(near.astype(np.float32), 0).astype(source)])
        found = dtypes.cast(around, dtype)
    assert found.dtype == dtype
    assert found.tolist() == [whole(float(v), dtype) for v in around]


@given(value=st.floats(), dtype=st.sampled_from(dtypes.INTEGERS))
def test_any_double_becomes_an_integer(value, dtype) -> None:
    assert dtypes.cast(np.float64(value)[None], dtype).item() == whole(value, dtype)


@given(value=st.integers(-(2**63), 2**64 - 1), dtype=st.sampled_from(dtypes.INTEGERS))
def test_any_integer_wraps(value, dtype) -> None:
    source = np.array([value], np.uint64 if value >= 2**63 else np.int64)
    bits = 8 * dtype.itemsize
    wrapped = value % 2**bits
    assert dtypes.cast(source, dtype).item() == wrapped - (2**bits if wrapped > np.iinfo(dtype).max else 0)


@pytest.mark.parametrize("source", dtypes.DTYPES, ids=str)
def test_anything_but_zero_is_true(source) -> None:
    values = np.array([0, 1, 2], source)
    assert dtypes.cast(values, dtypes.BOOL).tolist() == [bool(v) for v in values]
    if dtypes.is_float(source):
        edges = np.array([-0.0, np.nan, 0.5, np.inf]).astype(source)
        assert dtypes.cast(edges, dtypes.BOOL).tolist() == [False, True, True, True]


@pytest.mark.parametrize("dtype", dtypes.DTYPES, ids=str)
def test_truth_values_become_one_and_zero(dtype) -> None:
    assert dtypes.cast(np.array([True, False]), dtype).astype(int).tolist() == [1, 0]


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_doubles_reach_a_half_through_float32(half) -> None:
    half = dtypes.as_dtype(half)
    values = np.random.default_rng(0).standard_normal(1000) * 100
    expected = values.astype(np.float32).astype(half)
    np.testing.assert_array_equal(dtypes.cast(values, half), expected)


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=lambda d: d.name)
def test_cast_into_an_array_of_any_layout(source, target) -> None:
    values = np.arange(12).reshape(3, 4).astype(source)
    out = np.zeros((4, 6), target).T[::2]
    assert dtypes.cast(values, target, out) is out
    np.testing.assert_array_equal(out, dtypes.cast(values, target))
    assert values.tolist() == np.arange(12).reshape(3, 4).astype(source).tolist()
