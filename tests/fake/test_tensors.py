"""Operations on whole tensors and reductions on the fakes: as on a GPU, and what only a fake shows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import context
from cudnn_ct.certify import certificates
from cudnn_ct.cuda.stream import default_stream
from cudnn_ct.errors import ExecutionFailedError, NotSupportedError
from cudnn_ct.ops import activation
from cudnn_ct.ops.reduce import plans, reduce
from cudnn_ct.plans import axes as merged_axes
from cudnn_ct.plans.elementwise import op_tensor, scale_plan
from cudnn_ct.plans.program import scalar_type
from cudnn_ct.plans.wrappers import zero_results
from cudnn_ct.shapes.specs import TensorSpec
from cudnn_ct.shapes.tensor import OpTensorProblem, ReduceProblem
from cudnn_ct.typing import ReduceOp
from tests.both.tensors import integers
from tests.layers import Tensor, compare

from .cudnn import FakeCudnn
from .host import Host, view
from .test_conv import images

INF, NAN = math.inf, math.nan


# --- axes and strides --------------------------------------------------------------------------------------


def made(fake: FakeCudnn, name: str) -> int:
    """Return the number of calls of a C function."""
    return fake.names().count(name)


def test_adjacent_axes_are_joined(fake: FakeCudnn) -> None:
    x = ct.asarray(integers((2, 3) * 3))
    np.testing.assert_array_equal(ct.add(x, x).numpy(), 2 * x.numpy())
    assert made(fake, "cudnnOpTensor") == 1
    many = ct.asarray(integers((1, 2) * 6))  # twelve axes, more than a descriptor holds
    assert ct.op_tensor(many, op="not", out=many) is many
    np.testing.assert_array_equal(ct.transform(many).numpy(), 1 - integers((1, 2) * 6))


def test_reduce_of_an_extreme_with_alpha_0_is_0(fake: FakeCudnn) -> None:
    """Its guard, a sum that float16 does not hold, is infinite."""
    x, out = ct.full((2, 70), 3000, "float16"), ct.full((2,), 5, "float16")
    for op in ("max", "min", "amax"):
        assert ct.reduce(x, op=op, axis=1, alpha=0, beta=1, out=out).numpy().tolist() == [5, 5]
        assert ct.reduce(x, op=op, axis=1).numpy().tolist() == [3000, 3000]


def test_op_tensor_prepares_no_call_when_only_factors_change(fake: FakeCudnn) -> None:
    """A rate that falls from step to step prepares nothing again, and evicts no other call."""
    a, b = images(2, 3), images(2, 3)
    ct.op_tensor(a, b, alpha2=-0.5)
    calls = context.current(default_stream(0)).calls
    prepared = len(calls)
    for rate in (0.25, 2.0, -3):
        got = ct.op_tensor(a, b, alpha1=1, alpha2=rate)
        np.testing.assert_allclose(got.numpy(), a.numpy() + rate * b.numpy(), rtol=1e-6)
    assert len(calls) == prepared


def test_arrays_too_large_for_a_descriptor_are_sliced_or_rejected(fake: FakeCudnn) -> None:
    half = TensorSpec.packed((3, 2**30), "float16")
    problem = OpTensorProblem(half, None, half, "not", True)
    assert "3 calls, one for each slice" in op_tensor(problem).describe()
    many = TensorSpec((2,) * 18, tuple(3**i for i in range(18)), "float16")
    overlapping = TensorSpec((2**16, 2**16), (1, 1), "float32")
    with pytest.raises(NotSupportedError, match="would take more than 4,096 calls"):
        scale_plan(many)
    for spec in (TensorSpec.packed((65537, 65536), "float16"), overlapping):
        assert "3 calls, one for each slice" in scale_plan(spec).describe()
    here = context.current(default_stream(0))
    for large in (half, TensorSpec((2, 8), (2**31, 1), "float32"), overlapping):
        row = ReduceProblem(large, TensorSpec.packed((1,), large.dtype), None, (0, 1), "add", True)
        with pytest.raises(NotSupportedError, match="cuDNN reduces at most 2,147,483,647 elements"):
            plans.legacy_reduction(row, here)


@pytest.mark.parametrize("shape", [(64, 32), (3, 5, 7, 11), (2, 3, 2, 3, 2, 3, 5)])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_elementwise_operations_equal_numpy_when_they_are_sliced(
    fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], layout: str
) -> None:
    """A small INT_MAX slices the arrays; each element is computed once."""
    monkeypatch.setattr(merged_axes, "INT_MAX", 100)
    values = integers(shape)
    x = ct.asarray(values, layout=layout if len(shape) == 4 else None)
    bias = ct.asarray(integers((1, shape[1], *[1] * (len(shape) - 2))))
    np.testing.assert_array_equal(ct.add(x, bias).numpy(), values + bias.numpy())
    np.testing.assert_array_equal(ct.activation(x).numpy(), np.maximum(values, 0))
    np.testing.assert_array_equal(ct.transform(x, dtype="float16").numpy(), values)
    np.testing.assert_array_equal(ct.scale(x, alpha=3).numpy(), 3 * values)
    np.testing.assert_array_equal(ct.fill(x, 5).numpy(), np.full(shape, 5))


def test_gradient_of_a_strided_grid_is_contiguous(fake: FakeCudnn) -> None:
    grid = ct.zeros((1, 2, 4, 2))[:, :, ::2]
    gradients = ct.grid_sample_backward(images(1, 1, 2, 2), images(1, 1, 3, 3), grid)
    assert gradients.dgrid.layout == "nchw"


def test_scale_tries_no_fallback_when_a_later_slice_fails(fake: FakeCudnn) -> None:
    x = ct.asarray(integers((3,) * 6))
    view = ct.DeviceArray.over(x.spec._replace(shape=(2,) * 6), x.pointer, x, x.writer)
    before = view.numpy()
    np.testing.assert_array_equal(ct.scale(view, alpha=2).numpy(), 2 * before)
    assert made(fake, "cudnnScaleTensor") == 2
    fake.fail_at = {len(fake.calls) + 2: 3000}
    with pytest.raises(ExecutionFailedError, match="earlier calls of the same operation"):
        ct.scale(view, alpha=2)


# --- what is computed --------------------------------------------------------------------------------------


def every_tenth(rows: int, columns: int) -> ct.DeviceArray:
    """A view whose copy is much smaller than the memory that it spans."""
    whole = ct.asarray(integers((rows, 10 * columns)))
    return ct.DeviceArray.over(
        TensorSpec((rows, columns), (10 * columns, 10), "float32"), whole.pointer, whole, whole.writer
    )


def test_reduce_over_empty_axes(fake: FakeCudnn) -> None:
    x = ct.empty((20, 0, 30))
    for op, value in (("add", 0), ("mul", 1), ("norm1", 0), ("norm2", 0), ("mul_no_zeros", 1)):
        y = every_tenth(20, 30)
        expected = 3 * value + 2 * y.numpy()
        np.testing.assert_array_equal(ct.reduce(x, op=op, axis=1, alpha=3, beta=2, out=y).numpy(), expected)
        np.testing.assert_array_equal(ct.reduce(x, op=op).numpy(), np.float32(value))
    for op in ("min", "max", "amax", "average"):
        with pytest.raises(ValueError, match=r"over axes \(1,\): x of shape \(20, 0, 30\) has no elements"):
            ct.reduce(x, op=op, axis=1)
        assert ct.reduce(x, op=op, axis=0).shape == (0, 30)


def test_reduce_of_single_elements_reads_a_view(fake: FakeCudnn) -> None:
    x = every_tenth(20, 30)
    y = ct.reduce(x, op="mul_no_zeros", axis=())
    np.testing.assert_array_equal(y.numpy(), np.where(x.numpy() == 0, 1, x.numpy()))


@pytest.mark.parametrize(
    "dtypes", [("float16",) * 2, ("float16", "float32"), ("bfloat16", "float16")], ids=str
)
def test_transform_by_0_keeps_nan_and_the_result_of_beta(fake: FakeCudnn, dtypes: tuple[str, str]) -> None:
    x = ct.asarray([[1, np.inf, -2], [np.nan, 3, 0]], dtypes[0])
    out = ct.full((2, 3), 1.5, dtypes[1])
    expected = [[3, np.nan, 3], [np.nan, 3, 3]]
    y = ct.transform(x, dtype=dtypes[1], alpha=0, beta=2, out=out)
    np.testing.assert_array_equal(y.numpy().astype(np.float32), np.float32(expected))
    still = ct.asarray(x.numpy(), dtypes[0])[:, :1]
    assert ct.transform(still, alpha=0).numpy().astype(np.float32).tolist()[0] == [0]


def test_activation_by_0_leaves_beta_times_the_result(fake: FakeCudnn) -> None:
    x, out = ct.asarray([[1e4, np.nan, -3]], "float32"), ct.full((1, 3), 1e-6)
    expected = [[-2e-6, np.nan, -2e-6]]
    y = ct.activation(x, mode="identity", alpha=0, beta=-2, out=out)
    np.testing.assert_array_equal(y.numpy(), np.float32(expected))


def test_product_without_zeros_that_underflows_is_zero(fake: FakeCudnn) -> None:
    x = ct.asarray([[0.5] * 400, [0.0] * 399 + [2]], "float32")
    assert ct.reduce(x, op="mul_no_zeros", axis=1).numpy().tolist() == [0, 2]
    assert ct.reduce(x.T, op="mul_no_zeros", axis=0, keepdims=True).numpy().tolist() == [[0, 2]]


@pytest.fixture
def graph_runs(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[int]]:
    """The pointers of each run of a graph, which computes nothing."""
    runs: list[Sequence[int]] = []
    plan = SimpleNamespace(
        workspace=0, describe=lambda: "a graph", run=lambda _, pointers, *factors: runs.append(pointers)
    )
    monkeypatch.setattr(plans, "first_plan", lambda *_: plan)
    return runs


@pytest.mark.parametrize(("offset", "graphs"), [(0, 1), (1, 0)])
def test_reduce_gives_only_aligned_memory_to_kernels_that_need_it(
    fake: FakeCudnn,
    monkeypatch: pytest.MonkeyPatch,
    graph_runs: list[Sequence[int]],
    offset: int,
    graphs: int,
) -> None:
    """The fake rejects misaligned memory where a GPU would end the context."""
    monkeypatch.setattr(plans, "MIN_ELEMENTS", 1)
    whole = ct.asarray(integers((421,)))
    x = ct.DeviceArray.over(
        TensorSpec.packed((6, 70)), whole.pointer + 4 * offset, whole, whole.writer, whole.home
    )
    for axes in (1, None):
        compare(ct.reduce(x, axis=axes), ct.reference.reduce(x.numpy(), axis=axes), exact=True)
    ct.reduce(x, op="norm1", axis=0)
    assert len(graph_runs) == graphs


@pytest.mark.parametrize(
    ("shape", "axis", "op", "graph"),
    [
        ((2**15, 3), 0, "add", False),
        ((2**15 + 2, 3), 0, "add", True),
        ((2**15 + 2, 1), 0, "add", False),
        ((2**13, 3), 0, "norm1", False),
        ((2**13 + 2, 3), 0, "norm1", True),
        ((2**14,), 0, "norm1", False),
        ((2, 2**17), 1, "add", True),
    ],
)
def test_reductions_of_many_terms_to_few_results_are_graphs(
    fake: FakeCudnn, shape: tuple[int, ...], axis: int, op: ReduceOp, graph: bool
) -> None:
    """Calls add the terms of a result one after another; the smaller the result, the slower they are."""
    fake.engines, x = True, integers(shape)
    compare(ct.reduce(ct.asarray(x), op=op, axis=axis), ct.reference.reduce(x, op=op, axis=axis), exact=True)
    assert bool(fake.executed) == graph


@pytest.mark.parametrize(
    ("length", "strides", "expected"),
    [
        (1024, (32, 1), ["a graph"]),
        (1024, (1, 32), ["a graph", "cudnnOpTensor"]),
        (1023, (32, 1), []),
        (2**22, (32, 1), []),  # 2**32 elements
    ],
)
def test_graph_of_a_large_sum_writes_the_result_itself_when_strides_agree(
    fake: FakeCudnn, graph_runs: Any, length: int, strides: tuple[int, int], expected: list[str]
) -> None:
    x = TensorSpec.packed((length, 32, 32), "float32")
    y = TensorSpec((1, 32, 32), (1024, *strides), "float32")
    plan = plans.graph_reduction(ReduceProblem(x, y, None, (0,), "add", True), None)
    described = plan.describe() if plan else ""
    assert [name for name in ("a graph", "cudnnOpTensor") if name in described] == expected


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, 1),
        ({"mode": "tanh", "dtype": "float16"}, 1),
        ({"mode": "tanh"}, 0),
        ({"order": (0, 2, 1)}, 0),
        ({"offset": 1}, 0),
        ({"length": 4}, 0),
    ],
)
def test_activation_is_a_graph_for_large_aligned_operands_in_one_order(
    fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], expected: int
) -> None:
    monkeypatch.setattr(activation, "MIN_ELEMENTS", 100)
    runs: list[Any] = []
    plan = SimpleNamespace(workspace=0, describe=str, run=lambda *arguments: runs.append(arguments))
    monkeypatch.setattr(activation, "first_plan", lambda *_: plan)
    plain = {"dtype": "float32", "order": (0, 1, 2), "offset": 0, "length": 20}
    dtype, order, offset, length = (change.get(name, value) for name, value in plain.items())
    whole = ct.zeros((500,), dtype)[offset : offset + 6 * length]
    x = whole.reshape(2, 3, length).transpose(order)
    options = {name: value for name, value in change.items() if name not in plain}
    ct.activation(x, out=ct.empty(x.shape, dtype), **options)
    assert len(runs) == expected


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_graph_of_a_large_mean_divides_the_sum(
    fake: FakeCudnn, host: Host, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    """The graph only adds, into float32: 256 ones for each column."""

    def run(_: Any, pointers: Sequence[int], *factors: float) -> None:
        view(host, pointers[1], (300,), (1,), np.dtype(np.float32))[:] = 256

    plan = SimpleNamespace(workspace=0, describe=lambda: "a graph", run=run)
    monkeypatch.setattr(plans, "MIN_ELEMENTS", 1)
    monkeypatch.setattr(plans, "first_plan", lambda *_: plan)
    mean = ct.reduce(ct.full((256, 300), 1, dtype), op="average", axis=0)
    np.testing.assert_array_equal(mean.numpy(), np.ones(300, dtype))


def test_bits_are_measured_before_a_root_and_further_sums_hide_them(
    fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums of 256 squares have other bits long before norms of 2**16 elements do."""
    measured = []

    def why_varying(problem: ReduceProblem, _: str, plan: Any, context: Any) -> str:
        measured.append(problem.y)
        return certificates.why_varying(problem, "a graph", plan, context)

    monkeypatch.setattr(plans, "MIN_ELEMENTS", 1)
    monkeypatch.setattr(plans, "why_varying", why_varying)
    fake.engines = fake.varying = True
    x = ct.full((4, 2**16), 1, "float16")
    assert ct.reduce(x, op="norm2", axis=1, deterministic=True).numpy().tolist() == [256] * 4
    assert [(spec.size, spec.dtype) for spec in measured] == [(1024, "float32")]
    assert "cudnnReduceTensor" in [name for name, _ in fake.calls]
    fake.varying, fake.executed = False, []
    assert ct.reduce(x, op="norm2", axis=1).numpy().tolist() == [256] * 4
    assert fake.executed


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("op", ["max", "min", "amax"])
def test_extremes_that_pass_over_nan_are_graphs_of_rows(
    fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch, op: str, dtype: str
) -> None:
    """Two searches tell rows of NaN alone; the legacy call took up to 95 times as long on an H200."""
    monkeypatch.setattr(plans, "MIN_ELEMENTS", 1)
    fake.engines = True
    values = integers((130, 300)).astype(dtype)
    values[3], values[5, 1:], values[7, ::2], values[9, 0] = np.nan, np.nan, np.nan, -np.inf
    for alpha, beta in ((1, 0), (-2, 3)):
        out = np.full(130, 2, dtype)
        given = {"op": op, "axis": 1, "propagate_nan": False, "alpha": alpha, "beta": beta}
        fake.executed = []
        got = ct.reduce(ct.asarray(values), **given, out=ct.asarray(out))
        assert len(fake.executed) == 2
        compare(got, ct.reference.reduce(values, **given, out=out), exact=True)


LARGE: dict[str, tuple[dict[str, Any], bool]] = {
    "add": ({}, True),
    "mul": ({"op": "mul"}, True),
    "half precision": ({"dtype": "bfloat16"}, True),
    "in place": ({"in_place": True}, True),
    "channels last": ({"layout": "nhwc"}, True),
    "max": ({"op": "max"}, False),
    "factors": ({"alpha1": 2}, False),
    "beta": ({"beta": 1}, False),
    "float64": ({"dtype": "float64"}, False),
    "repeated": ({"shape": (1, 5, 1, 1)}, False),
    "misaligned": ({"offset": 1}, False),
    "small": ({"least": 10**6}, False),
}


@pytest.mark.parametrize("case", LARGE)
def test_large_sums_and_products_are_graphs(
    fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    given, expected = LARGE[case]
    plain = {"dtype": "float32", "op": "add", "shape": (3, 5, 7, 9), "layout": "nchw", "least": 100}
    plain |= {"offset": 0}
    found = {name: given.get(name, value) for name, value in plain.items()}
    monkeypatch.setattr(import_module("cudnn_ct.ops.tensor"), "MIN_ELEMENTS", found["least"])
    fake.engines = True
    values = integers((3, 5, 7, 9)), integers(found["shape"])
    a, b = (ct.asarray(one, found["dtype"], layout=found["layout"]) for one in values)
    if found["offset"]:
        flat = ct.zeros((a.size + 1,), found["dtype"])
        a, _ = flat[1:].reshape(a.shape), ct.transform(a, out=flat[1:].reshape(a.shape))
    out = a if "in_place" in given else ct.full(a.shape, 1, found["dtype"], layout=found["layout"])
    keywords = {name: given[name] for name in ("alpha1", "beta") if name in given}
    wanted = ct.reference.op_tensor(
        *(one.numpy() for one in (a, b)), op=found["op"], **keywords, out=out.numpy().copy()
    )
    fake.executed = []
    got = ct.op_tensor(a, b, op=found["op"], **keywords, out=out)
    compare(got, wanted, exact=True)
    assert bool(fake.executed) == expected


BIAS, POOL, CONVERT = "cudnnConvolutionBackwardBias", "cudnnPoolingForward", "cudnnOpTensor"

SUMS: list[tuple[str, tuple[int, ...], Any, list[str]]] = [
    ("float32", (6, 70), 1, [BIAS]),
    ("float32", (6, 70), 0, [BIAS]),
    ("float16", (6, 70), None, [BIAS]),
    ("float64", (3, 5, 2, 7), (0, 2, 3), [BIAS]),
    ("float32", (66, 5, 7), (0, 2), [BIAS, BIAS]),
    ("float16", (66, 5, 7), (0, 2), [CONVERT, BIAS, BIAS, CONVERT]),
    ("float32", (2**15 + 1,), None, ["cudnnReduceTensor"]),
    ("bfloat16", (6, 128), 1, [POOL]),
    ("bfloat16", (6, 70), 1, [POOL]),
    ("bfloat16", (6, 70), 0, [CONVERT, BIAS, CONVERT]),
    ("float32", (2, 9, 5), 1, [POOL]),
    ("float32", (2, 300, 5), 1, [POOL, POOL]),
    ("float16", (2, 300, 5), 1, [CONVERT, POOL, POOL, CONVERT]),
    ("float32", (2, 307, 5), 1, ["cudnnReduceTensor"]),
    ("float32", (reduce.MANY + 2, 3), 1, [POOL]),
]


@pytest.mark.parametrize(("dtype", "shape", "axes", "expected"), SUMS)
def test_sums_are_computed_by_bias_gradients_and_poolings(
    fake: FakeCudnn, dtype: str, shape: tuple[int, ...], axes: Any, expected: list[str]
) -> None:
    x = Tensor(shape, dtype, integers(shape)).array()
    y = ct.reduce(ct.asarray(x), axis=axes)
    compare(y, ct.reference.reduce(x, axis=axes), exact=True)
    names = (BIAS, POOL, CONVERT, "cudnnReduceTensor")
    assert [name for name in fake.names() if name in names] == expected
    out = ct.full(y.shape, 3, dtype)
    wanted = ct.reference.reduce(x, op="average", axis=axes, alpha=-2, beta=2, out=out.numpy())
    compare(ct.reduce(ct.asarray(x), op="average", axis=axes, alpha=-2, beta=2, out=out), wanted)


def test_half_precision_is_reduced_in_float32_when_cudnn_rejects_it(fake: FakeCudnn) -> None:
    x = ct.full((4, 300), 1.0, "bfloat16")
    np.testing.assert_array_equal(ct.reduce(x, op="norm1", axis=1).numpy().astype(float), np.full(4, 300.0))
    functions = [name for name in fake.names() if name in ("cudnnOpTensor", "cudnnReduceTensor")]
    assert functions == ["cudnnReduceTensor", "cudnnOpTensor", "cudnnReduceTensor", "cudnnOpTensor"]


@pytest.mark.parametrize("compute", ["float32", "float64"])
def test_scalar_keeps_the_sign_of_zero(compute: str) -> None:
    scalar = scalar_type(compute)
    for value in (0, 0.0, -0.0, 1.0, -1.0):
        held = scalar(value)._obj.value
        assert (held, math.copysign(1, held)) == (value, math.copysign(1, value))


def test_scale_uses_op_tensor_when_scaling_is_rejected(fake: FakeCudnn) -> None:
    x, before = images(2, 3, 5), images(2, 3, 5).numpy()
    fake.fail["cudnnScaleTensor"] = 3000
    np.testing.assert_array_equal(ct.scale(x, alpha=-2).numpy(), -2 * before)
    assert made(fake, "cudnnOpTensor") == 1


def test_transform_writes_the_requested_layout_and_strides(fake: FakeCudnn) -> None:
    x = images(2, 3, 4, 5)
    y = ct.transform(x, layout="NHWC")  # type: ignore[arg-type]
    assert (y.layout, y.shape) == ("nhwc", x.shape)
    np.testing.assert_array_equal(y.numpy(), x.numpy())
    z = ct.transform(y, strides=(1, 50, 10, 2))
    assert z.spec.strides == (1, 50, 10, 2)
    np.testing.assert_array_equal(z.numpy(), x.numpy())


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("step", [1, 2])
def test_results_without_terms_are_zeros_of_any_dtype(fake: FakeCudnn, dtype: str, step: int) -> None:
    """Also in views, which `cudnnSetTensor` fills: it does not take these dtypes."""
    spec = TensorSpec((3, 2), (2 * step, step), dtype)
    memory = ct.asarray(np.full((3, 2 * step), 7), dtype)
    zero_results([spec]).run(context.current(memory.writer), [memory.pointer], 1.0, 0.0)
    assert (memory.numpy()[:, ::step] == 0).all()
    assert step == 1 or (memory.numpy()[:, 1::2] == 7).all()
