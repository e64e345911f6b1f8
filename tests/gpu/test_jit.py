"""Operations of a JIT wheel on a GPU, which are graphs there, against the reference.

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
from tests.jit_cases import BY_GRAPHS, OTHERS, failures
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


FUSIONS = (
    *("batch_norm_finalize", "conv_backward_data_relu_batch_norm", "conv_backward_filter_scale_bias_relu"),
    *("conv_scale_bias_activation", "conv_batch_norm_statistics", "attention", "attention_backward"),
)


@pytest.mark.parametrize("operation", [*BY_GRAPHS, *FUSIONS])
def test_selftest_of_operation_passes(operation: str) -> None:
    """In both layouts: the driver copies operands of engines that need the other one."""
    assert not failures(operation)


def assert_close(got: Any, want: Any, about: str, limit: float = 1e-4) -> None:
    """Compare results, of which several may be None; NaN and infinities have to be the same."""
    pairs = zip(*(x if isinstance(x, tuple) else (x,) for x in (got, want)), strict=True)
    for number, (one, other) in enumerate(pairs):
        if other is None:
            continue
        found, wanted = one.numpy().astype(np.float64), np.asarray(other, np.float64)
        largest = np.abs(wanted[np.isfinite(wanted)]).max(initial=1)
        np.testing.assert_allclose(found, wanted, 0, limit * largest, err_msg=f"{about}, result {number}")


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("name", sorted(OTHERS.keys() - {"largest of infinities"}))  # cuDNN's is finite
def test_graphs_equal_reference_on_other_shapes(name: str, offset: int) -> None:
    with np.errstate(all="ignore"):
        want = OTHERS[name](ct.reference, lambda array: array)
    got = OTHERS[name](ct, lambda array: place(shifted(array, offset)))
    assert_close(got, want, f"{name}, offset {offset}")


SIZES = ((2, 1), (1, 2), (3, 2), (1, 100_003), (100_003, 3), (70_000, 64), (3, 2**19), (3, 2**20))
MATRICES: dict[str, Any] = {
    "softmax of rows": lambda ops, x: ops.softmax(x, axis=1),
    "softmax of columns": lambda ops, x: ops.softmax(x, axis=0),
    "sums of rows": lambda ops, x: ops.reduce(x, axis=1),
    "sums of columns": lambda ops, x: ops.reduce(x, axis=0),
    "sum": lambda ops, x: ops.reduce(x),
    "largest of rows": lambda ops, x: ops.reduce(x, op="max", axis=1),
    "least of columns": lambda ops, x: ops.reduce_with_indices(x, op="min", axis=0),
}


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name", MATRICES)
def test_graphs_of_matrices_equal_reference_for_all_sizes(name: str, dtype: str) -> None:
    for shape in SIZES:
        x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
        try:
            got = MATRICES[name](ct, place(x))
        except ct.NotSupportedError as error:
            assert shape[1] >= 2**19 or 1 in shape, error
            continue
        wanted = MATRICES[name](ct.reference, x)
        if isinstance(wanted, tuple):  # equal elements have any of their positions
            got, wanted = got.y, wanted.y
        assert_close(got, wanted, f"{name} of {shape} {dtype}", 2e-3 if dtype == "float16" else 1e-4)


def test_results_may_be_operands_and_neighbours_are_kept() -> None:
    x = np.random.default_rng(0).standard_normal((40, 24)).astype(np.float32)
    for call in (lambda ops, x, out: ops.softmax(x, out=out), lambda ops, x, out: ops.activation(x, out=out)):
        whole = ct.asarray(np.full((42, 24), 7, np.float32))
        rows = whole[1:-1]
        ct.transform(ct.asarray(x), out=rows)
        call(ct, rows, rows)
        found = whole.numpy()
        assert (found[[0, -1]] == 7).all()
        assert_close(ct.asarray(found[1:-1].copy()), call(ct.reference, x, None), "in place")


def test_scale_takes_a_new_factor_in_each_run() -> None:
    x = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    y = ct.asarray(x)
    for factor in (0.5, -3.0, 1e-3):
        ct.scale(y, alpha=factor)
        x *= np.float32(factor)
        assert_close(y, x, f"factor {factor}", 1e-6)
