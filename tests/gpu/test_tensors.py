"""Operations on whole tensors and reductions on a GPU against the reference."""

from __future__ import annotations

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct.errors import NotSupportedError
from tests.both.tensors import check_indices, integers
from tests.layers import Tensor, compare

from .conftest import place

pytestmark = pytest.mark.usefixtures("leave_memory_to_others")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_reduce_sums_half_precision_in_float32(dtype: str) -> None:
    ones = ct.full((8, 4096), 1.0, dtype)
    compare(ct.reduce(ones, axis=1), np.full(8, 4096, ones.dtype), exact=True)
    large = ct.full((4, 256), 2.0**8, dtype)  # whose squares float16 does not hold
    compare(ct.reduce(large, op="norm2", axis=1), np.full(4, 4096, large.dtype), exact=True)


@pytest.mark.parametrize("shape", [(65536, 3), (65537, 40), (3, 65537), (70000, 2, 70), (1, 300_000)])
@pytest.mark.parametrize("axes", [0, 1, None])
def test_reduce_equals_reference_with_many_rows(shape: tuple[int, ...], axes: int | None) -> None:
    x = integers(shape, largest=1)
    for op in ("add", "max", "norm1"):
        compare(ct.reduce(place(x), op=op, axis=axes), ct.reference.reduce(x, op=op, axis=axes), exact=True)
    b = integers((1, *shape[1:]))
    compare(ct.add(place(x), place(b)), x + b, exact=True)
    column = integers((shape[0], *(1 for _ in shape[1:])))
    compare(ct.op_tensor(place(x), place(column), op="mul"), x * column, exact=True)


@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("shape", [(65537, 3), (2, 100_000)])
def test_reduce_with_indices_equals_reference_on_long_axes(op: str, shape: tuple[int, ...]) -> None:
    for axes in (0, 1):
        check_indices(Tensor(shape, "float32", "distinct"), op, axes, place)


@pytest.mark.parametrize("target", ["float16", "bfloat16", "float32"])
def test_transform_converts_float64_or_rejects_it(target: str) -> None:
    x = integers((3, 5), "float64")
    try:
        y = ct.transform(place(x), dtype=target)
    except NotSupportedError as error:
        assert f"cudnnOpTensor cannot convert float64 to {target}" in str(error)
    else:
        compare(y, ct.reference.transform(x, dtype=target), exact=True)
