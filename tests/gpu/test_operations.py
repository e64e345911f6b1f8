"""All operations of the table on a GPU, against the reference."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.causal_cases import NEWER
from tests.layers import LayerCase
from tests.norm_cases import norm_cases
from tests.op_cases import CASES, OpCase

from .conftest import check_drawn, examples

pytestmark = pytest.mark.usefixtures("leave_memory_to_others")
EXAMPLES = examples(400)


# Most calls of these compile a kernel: test_graph_operations and test_conv_fusions have fewer of them.
COMPILED = ("layer_norm", "matmul", "conv_scale_bias_activation", "scaled_conv")
ELSEWHERE = ("conv_batch_norm_statistics", *NEWER)  # test_training_fusions, test_causal_conv1d and others
ROWS = [row for row in CASES[1:] if row.operations[0] not in (*COMPILED, *ELSEWHERE)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.operations[0])
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_operation_equals_reference(row: OpCase, data: st.DataObject) -> None:
    """Not all algorithms of convolutions compute sums exactly: tests/oracle and test_algorithms have them."""
    check_drawn(data.draw(row.calls))


@settings(max_examples=EXAMPLES)
@given(case=norm_cases(dtypes=("float16", "bfloat16"), channels=(4, 8, 16), batches=(2, 8, 33)))
def test_batch_norm_equals_reference_when_channels_have_fused_kernels(case: LayerCase) -> None:
    """Half precision, channels last, a multiple of 4 channels."""
    check_drawn(case)
