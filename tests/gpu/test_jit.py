"""Elementwise operations of a JIT wheel on a GPU, which are graphs there, against the reference.

They need a cuDNN without libcudnn_ops, named by CUDNN_CT_LIBRARY; with any other they are skipped. Each
kernel is compiled, in a fraction of a second.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import _lib
from cudnn_ct.dtypes import as_dtype
from tests.layers import TOLERANCE
from tests.strategies import lay_out, shifted

from .conftest import place

MODES = ("relu", "sigmoid", "tanh", "elu", "swish", "clipped_relu", "identity")
CALLS: dict[str, Any] = {
    **{mode: lambda ops, x, mode=mode: ops.activation(x, mode=mode, coefficient=1) for mode in MODES},
    **{
        f"{mode} gradient": lambda ops, x, mode=mode: ops.activation_backward(
            x, x, ops.activation(x, mode=mode, coefficient=1), mode=mode, coefficient=1
        )
        for mode in MODES
        if mode != "clipped_relu"
    },
    **{op: lambda ops, x, op=op: ops.op_tensor(x, x, op=op) for op in ("add", "mul", "min", "max")},
    "square root": lambda ops, x: ops.op_tensor(ops.op_tensor(x, x, op="mul"), op="sqrt"),
    "copy": lambda ops, x: ops.transform(x),
    "to float32": lambda ops, x: ops.transform(x, dtype="float32"),
    "to float16": lambda ops, x: ops.transform(x, dtype="float16"),
    "to bfloat16": lambda ops, x: ops.transform(x, dtype="bfloat16"),
}


@pytest.fixture(autouse=True)
def _legacy_calls_do_not_exist() -> None:
    library = _lib.load()
    if library.kind != "jit":
        pytest.skip(f"cuDNN {library.version_text} is not a JIT wheel")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("name", CALLS)
def test_elementwise_operation_equals_reference(name: str, dtype: str) -> None:
    """In both layouts, at any address, of fewer elements than a pixel of the graph and of more."""
    wrong = []
    for shape in ((2, 1), (3, 5, 7), (2, 3, 4, 5), (2, 33, 17, 1)):
        for layout, offset in (("nchw", 0), ("nhwc", 0), ("nchw", 1)):
            if layout == "nhwc" and len(shape) < 3:
                continue
            values = np.random.default_rng(0).standard_normal(shape).astype(as_dtype(dtype).numpy)
            x = lay_out(values, layout, "packed")
            want = np.asarray(CALLS[name](ct.reference, x))
            try:
                got = CALLS[name](ct, place(shifted(x, offset))).numpy()
            except ct.CudnnError as error:
                wrong.append(f"{shape} {layout} offset {offset}: {str(error)[:700]}")
                continue
            error = np.abs(got.astype(np.float64) - want.astype(np.float64)).max()
            # tanh and sigmoid have 17 bits; gradients in half precision begin with a rounded y.
            limit = max(4 * TOLERANCE[as_dtype(want.dtype).name], 4 * TOLERANCE[dtype], 3e-5)
            if got.dtype != want.dtype or not error <= limit * max(1, np.abs(want.astype(np.float64)).max()):
                wrong.append(f"{shape} {layout} offset {offset}: error {error:.3g}, limit {limit:.3g}")
    assert not wrong, f"{_lib.load().version_text}: " + "; ".join(wrong)


def test_fill_is_exact_for_each_dtype() -> None:
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        x = ct.zeros((3, 5, 7), dtype)
        for value in (3.0, -0.1):
            found = ct.fill(x, value).numpy()
            assert (found == np.asarray(value).astype(as_dtype(dtype).numpy)).all(), (
                dtype,
                value,
                found.ravel()[:4],
            )
