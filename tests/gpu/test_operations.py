"""All operations of the table on a GPU, against the reference and against differences."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import cudnn_ct as ct
from tests.layers import LayerCase, Tensor, check_layer
from tests.norm_cases import norm_cases
from tests.op_cases import CASES, OpCase, check_gradient

from .conftest import place

EXAMPLES = max(400, settings.default.max_examples)


@pytest.fixture(autouse=True)
def _leave_memory_to_others() -> Iterator[None]:
    yield
    gc.collect()
    ct.empty_cache()


@pytest.mark.parametrize("row", CASES[1:], ids=lambda row: row.operations[0])
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_operation_equals_reference(row: OpCase, data: st.DataObject) -> None:
    """Not all algorithms of convolutions compute sums exactly: tests/oracle and test_algorithms have them."""
    check_layer(data.draw(row.calls), place)


# The persistent modes are fast for half precision, channels last and a multiple of 4 channels.
FUSED = LayerCase(
    "batch_norm_training",
    (
        Tensor((2, 8, 5, 5), "float16", "floats", "nhwc"),
        Tensor((8,), "float32", "floats"),
        Tensor((8,), "float32", "floats", seed=1),
    ),
    {"activation": "relu"},
    {"z": Tensor((2, 8, 5, 5), "float16", "integers", "nhwc", seed=2)},
)


@settings(max_examples=EXAMPLES)
@given(case=norm_cases(dtypes=("float16", "bfloat16"), channels=(4, 8, 16), batches=(2, 8, 33)))
@example(FUSED)
def test_batch_norm_equals_reference_when_channels_have_fused_kernels(case: LayerCase) -> None:
    check_layer(case, place)


@pytest.mark.parametrize(
    ("row", "call"), [(row, call) for row in CASES for call in row.differences], ids=lambda one: str(one)[:0]
)
def test_gradient_equals_differences(row: OpCase, call: LayerCase) -> None:
    check_gradient(row, call)
