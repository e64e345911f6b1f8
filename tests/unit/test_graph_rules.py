"""The builder of graphs without a device: inferred shapes, dtypes, strides, and errors with the numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import _lib
from cudnn_ct._bindings.enums import PointwiseMode
from cudnn_ct.graph.attributes import kind
from cudnn_ct.graph.engines import Engine
from cudnn_ct.graph.offline import target_of
from cudnn_ct.graph.operations import OPERATIONS, Tensor
from cudnn_ct.graph.rules import EngineRules
from cudnn_ct.legal.rules import engine_rules
from cudnn_ct.ops._graph_source import AlgoArguments
from cudnn_ct.ops.graph.built import BuiltGraph, newer_operations
from cudnn_ct.ops.graph.lower import lowered
from cudnn_ct.reference.layers import BINARY, SLOPES, UNARY
from cudnn_ct.shapes.graph.kinds import KINDS
from cudnn_ct.shapes.graph.problem import COMPARISONS, LOGICAL, ordered
from cudnn_ct.shapes.specs import TensorSpec, packed_strides
from tests.facts.native import rejection

Build = Callable[[Any], Any]


def test_table_names_attributes_that_cudnn_has() -> None:
    for row in [row for row in KINDS.values() if row.row]:
        found = OPERATIONS[row.row]
        names = set(kind(found.operation).attributes)
        names |= set(kind(found.parameters).attributes) if found.parameters else set()
        used = {*row.operands.values(), *row.results.values()} | ({row.compute} if row.compute else set())
        assert used <= names


def test_pointwise_modes_of_the_reference_are_those_of_cudnn() -> None:
    modes = {*UNARY, *BINARY, *SLOPES, "gen_index", "binary_select"}
    assert modes == {mode.name.lower() for mode in PointwiseMode}
    assert {*COMPARISONS, *LOGICAL} < modes
    assert len(modes) == 52


SHAPES: dict[str, tuple[Build, tuple[int, ...]]] = {
    "broadcast": (lambda g: g.input((8, 1, 5)) + g.input((7, 5)), (8, 7, 5)),
    "number": (lambda g: 2.0 * g.input((3, 4)), (3, 4)),
    "matmul": (lambda g: g.input((3, 4, 6)) @ g.input((6, 5)), (3, 4, 5)),
    "batches": (lambda g: g.input((2, 1, 4, 6)) @ g.input((3, 6, 5)), (2, 3, 4, 5)),
    "reduce all": (lambda g: g.reduce(g.input((3, 4))), (1, 1)),
    "reduce last": (lambda g: g.reduce(g.input((3, 4)), "max", -1), (3, 1)),
    "conv": (lambda g: g.conv(g.input((2, 8, 9, 9)), g.input((4, 2, 3, 3)), stride=2), (2, 4, 4, 4)),
    "pool": (lambda g: g.resample(g.input((2, 8, 9, 9)), "maxpool", 3, stride=2), (2, 8, 4, 4)),
    "upsampling": (lambda g: g.resample(g.input((2, 8, 5, 7)), "bilinear"), (2, 8, 10, 14)),
    "reshape": (lambda g: g.reshape(g.input((2, 6)), (3, 4)), (3, 4)),
    "transpose": (lambda g: g.transpose(g.input((2, 3, 4)), (2, 0, 1)), (4, 2, 3)),
    "slice": (lambda g: g.slice(g.input((5, 6)), (1, 0), (5, 6), (2, 4)), (2, 2)),
    "concat": (lambda g: g.concat([g.input((2, 3)), g.input((2, 4))], -1), (2, 7)),
    "sdpa": (
        lambda g: g.sdpa(
            g.input((2, 8, 5, 16), "float16"),
            g.input((2, 2, 7, 16), "float16"),
            g.input((2, 2, 7, 8), "float16"),
        ),
        (2, 8, 5, 8),
    ),
    "rope": (lambda g: g.rope(g.input((2, 4, 6, 8)), g.input((6, 1, 1, 8))), (2, 4, 6, 8)),
    "moe": (
        lambda g: g.moe_grouped_matmul(g.input((1, 9, 4)), g.input((3, 4, 5)), g.input((3, 1, 1), "int32")),
        (1, 9, 5),
    ),
    "pages": (
        lambda g: g.paged_cache_load(
            g.input((9, 2, 4, 8)), g.input((3, 1, 2, 1), "int32"), g.input((3, 1, 1, 1), "int32"), 7
        ),
        (3, 2, 7, 8),
    ),
    "dequantize": (
        lambda g: g.block_scale_dequantize(g.input((4, 64), "float8_e4m3"), g.input((4, 2)), 32),
        (4, 64),
    ),
    "rng": (
        lambda g: g.rng((2, 3, 4, 5), *(g.input((1, 1, 1, 1), "int64") for _ in range(2))),
        (2, 3, 4, 5),
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shape_is_inferred(name: str) -> None:
    build, shape = SHAPES[name]
    g = ct.Graph()
    y = build(g)
    assert y.shape == shape
    problem = g.define(y)
    graph = lowered(problem)
    assert [tensor.spec.dtype for tensor in graph.operands] == [s.dtype for s in problem.tensors.values()]
    assert len({len(tensor.spec.shape) for tensor in graph.operands}) == 1


ERRORS: dict[str, tuple[Build, str]] = {
    "broadcast": (
        lambda g: g.input((3, 4)) + g.input((5, 4)),
        r"b does not broadcast: got length 5 at axis -2, expected 1 or 3 \(x \(3, 4\), b \(5, 4\)\)",
    ),
    "matmul": (
        lambda g: g.input((3, 4)) @ g.input((5, 6)),
        r"inner dimensions of matmul differ: got a \(3, 4\) with 4 columns and b \(5, 6\) with 5 rows",
    ),
    "vector": (lambda g: g.input((3,)) @ g.input((3, 4)), r"a is not a matrix: got shape \(3,\)"),
    "channels": (lambda g: g.conv(g.input((1, 3, 4, 4)), g.input((2, 2, 3, 3))), "channels differ: got x"),
    "rank": (lambda g: g.conv(g.input((1, 3, 4, 4)), g.input((2, 3, 3))), "w has the wrong rank"),
    "gradient": (
        lambda g: g.conv_backward_data(g.input((1, 2, 4, 4)), g.input((2, 3, 3, 3)), (1, 3, 4, 4)),
        r"dy has the wrong shape: got \(1, 2, 4, 4\), expected \(1, 2, 2, 2\)",
    ),
    "axes": (lambda g: g.reduce(g.input((3, 4)), "add", 2), "axes is out of range: got 2"),
    "window of upsampling": (
        lambda g: g.resample(g.input((1, 2, 4, 4)), "bilinear", 2),
        "window is not for mode='bilinear', which doubles both axes: got 2",
    ),
    "upsampling of volumes": (
        lambda g: g.resample(g.input((1, 2, 4, 4, 4)), "bilinear"),
        "x has the wrong rank",
    ),
    "gradient of upsampling": (
        lambda g: g.resample_backward(g.input((1, 2, 8, 8)), (1, 2, 4, 4), "bilinear", 2),
        "mode must be one of avgpool",
    ),
    "nearest": (lambda g: g.resample(g.input((1, 2, 4, 4)), "nearest"), "mode must be one of avgpool"),
    "op": (lambda g: g.reduce(g.input((3, 4)), "median"), "op must be one of add"),
    "scale": (
        lambda g: g.layer_norm(g.input((3, 4)), g.input((5,)), g.input((5,))),
        r"scale does not broadcast: got \(5,\), expected 1 or lengths of \(3, 4\)",
    ),
    "reshape": (
        lambda g: g.reshape(g.input((3, 4)), (5, 2)),
        r"shape has another number of elements: got \(5, 2\) with 10, expected 12",
    ),
    "large number": (lambda g: g.constant(2**40, "int32"), "out of range"),
    "negative number": (lambda g: g.constant(-1, "uint8"), "out of range"),
    "output twice": (lambda g: g.define(y := g.relu(g.input((3, 4))), y), "passed twice"),
    "name of an argument": (lambda g: g.input((2,), name="out"), "argument of calls"),
    "bias of rows": (
        lambda g: g.rms_norm(g.input((3, 4)), g.input((1, 4)), g.input((3, 5))),
        "bias has the wrong shape",
    ),
    "axes of channels": (
        lambda g: g.norm(*(g.input((n, 4)) for n in (3, 1, 1)), mode="batch_norm", axes=(1,)),
        "axes are not those of batch_norm",
    ),
    "slice": (lambda g: g.slice(g.input((3,)), (0,), (4,)), "slice is out of range at axis 0: got 0:4:1"),
    "heads": (
        lambda g: g.sdpa(g.input((2, 8, 5, 16)), g.input((2, 3, 7, 16)), g.input((2, 3, 7, 16))),
        "k has 3 heads: expected a divisor of the 8 heads of q",
    ),
    "window": (
        lambda g: g.sdpa(*(g.input((2, 8, 5, 16)) for _ in range(3)), window=(4, -2)),
        "window must have numbers from 0 to",
    ),
    "heads of v": (
        lambda g: g.sdpa(g.input((2, 8, 5, 16)), g.input((2, 2, 7, 16)), g.input((2, 4, 7, 16))),
        r"v has the wrong shape: got \(2, 4, 7, 16\), expected \(2, 2, 7, 16\)",
    ),
    "bias": (
        lambda g: g.sdpa(*(g.input((2, 8, 5, 16)) for _ in range(3)), bias=g.input((2, 8, 5, 4))),
        r"bias has the wrong shape: got \(2, 8, 5, 4\), expected \(2, 8, 5, 5\)",
    ),
    "gradient of no bias": (
        lambda g: g.sdpa_backward(
            *(g.input((2, 8, 5, 16)) for _ in range(5)), g.input((2, 8, 5, 1)), dbias=True
        ),
        "dbias=True needs a bias",
    ),
    "lengths": (
        lambda g: g.sdpa(
            *(g.input((2, 8, 5, 16)) for _ in range(3)), seq_len_q=g.input((2, 1, 1, 1), "int32")
        ),
        "lengths are incomplete: pass seq_len_q and seq_len_kv",
    ),
    "pages": (
        lambda g: g.sdpa(
            *(g.input((2, 8, 5, 16)) for _ in range(3)), page_table_k=g.input((2, 1, 3, 1), "int32")
        ),
        "page tables are incomplete",
    ),
    "empty": (lambda g: g.input((3, 0)), r"shape is empty: got \(3, 0\)"),
    "strides": (lambda g: g.input((3, 4), strides=(1, 1)), r"strides are not supported: got \(1, 1\)"),
    "name": (lambda g: [g.input((3,), name="x") for _ in range(2)], "name is used twice: got 'x'"),
    "another graph": (
        lambda g: g.input((3,)) + ct.Graph().input((3,), name="z"),
        "b belongs to another graph: got <GraphTensor z: float32",
    ),
    "no outputs": (lambda g: g.define(), "graph has no outputs"),
    "no producer": (lambda g: g.define(g.input((3,))), "output 'input_0' has no producer: got the input"),
    "constant": (lambda g: g.define(g.constant(2)), "has no producer: got the constant"),
    "no inputs": (lambda g: g.define(g.neg(g.constant(2.0))), "graph has no inputs"),
    "unused": (
        lambda g: g.define(g.neg(g.input((3,))), *[g.input((3,), name="mask")][1:]),
        "inputs are unused: got mask, expected operands of the outputs",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_error_has_the_numbers(name: str) -> None:
    build, text = ERRORS[name]
    with pytest.raises(ValueError, match=text):
        build(ct.Graph())


def test_operands_that_are_not_tensors_are_rejected() -> None:
    g = ct.Graph()
    x = g.input((3,))
    with pytest.raises(TypeError, match="b is not a tensor of this graph: got ndarray"):
        g.add(x, np.ones(3))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="value is not a number: got True"):
        g.constant(True)
    with pytest.raises(TypeError, match="a GraphTensor has no value"):
        bool(x == x)
    for one in (g, x):
        with pytest.raises(TypeError, match="cannot be copied or pickled"):
            copy.copy(one)


MALFORMED: dict[str, tuple[Callable[[Any, Any], object], str]] = {
    "shape": (lambda g, x: g.reshape(x, ...), "shape must be a sequence of integers: got Ellipsis"),
    "axes": (lambda g, x: g.transpose(x, 1.5), "axes must be a sequence of integers: got 1.5"),
    "axes of sums": (lambda g, x: g.reduce(x, "add", 0.5), "axes must be an int or a tuple of ints: got 0.5"),
    "axis": (lambda g, x: g.concat([x, x], None), "axis must be an int: got None"),
    "tensors": (lambda g, x: g.concat(3, 0), "tensors must be a sequence of tensors: got 3"),
    "strides": (lambda g, x: g.input((3,), strides=2), "strides must be a sequence of integers: got 2"),
    "scale": (lambda g, x: g.sdpa(x, x, x, scale="1"), "scale must be a number: got '1'"),
    "number": (lambda g, x: g.sdpa(3, x, x), "q is not a GraphTensor: got int"),
    "window": (lambda g, x: g.sdpa(x, x, x, causal=True, window=len), "window must be None"),
    "no mode": (lambda g, x: g.resample(x, None, 2), "mode of resample_forward must be given: got None"),
    "no window": (
        lambda g, x: g.resample(x, "maxpool"),
        "window of resample_forward must be given: got None",
    ),
    "no operand": (lambda g, x: g.rms_norm(x, None), "scale of norm_forward must be given: got None"),
    "no gradient": (lambda g, x: g.rope_backward(None, x), "dy of rope_backward must be given: got None"),
    "no operands": (lambda g, x: g.cos(None), "x of cos must be given: got None"),
    "no second operand": (lambda g, x: g.add(x, None), "b of add must be given"),
    "flag": (lambda g, x: g.gelu(x, approximate="no"), "approximate must be True or False"),
    "clip": (lambda g, x: g.relu(x, upper="6"), "upper must be"),
    "bounds": (lambda g, x: g.rng((1,), x, x, bounds=3), "bounds must be two numbers: got 3"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_argument_is_named(name: str) -> None:
    build, text = MALFORMED[name]
    g = ct.Graph()
    with pytest.raises(TypeError, match=text):
        build(g, g.input((1, 4, 8, 8), "float16"))


def test_constant_of_integers_is_a_whole_number() -> None:
    for value in (0.5, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="value is not a whole number: got"):
            ct.Graph().constant(value, "int64")


def test_dtypes_are_those_of_the_graph_and_of_its_first_input() -> None:
    g = ct.Graph()
    x, w = g.input((4, 6), "bfloat16"), g.input((6, 5), "bfloat16")
    h = x @ w
    assert h.dtype == "float32"
    condition = h > 0.0
    assert condition.dtype == "bool"
    index = g.gen_index(h, 0)
    assert (index.dtype, (index + 1).dtype) == ("int32", "int32")
    total = g.reduce(h, "add", 1)
    wide = g.relu(h).output(dtype="float32", name="wide")
    problem = g.define(g.select(condition, h, 0.0), total, wide)
    assert list(problem.tensors)[-1] == "wide"
    assert [spec.dtype for spec in problem.results] == ["bfloat16", "float32", "float32"]
    assert {value.role for value in problem.values} == {"input", "virtual", "output", "constant"}
    half = ct.Graph(intermediate_dtype="float16", compute_dtype="float64")
    assert (half.input((3,)) * 2).dtype == "float16"


def test_results_of_integers_have_the_dtype_between_operations() -> None:
    for dtype in ("int8", "uint8", "int64"):
        g = ct.Graph()
        x, w = g.input((4,), dtype), g.input((4,), dtype)
        problem = g.define(x + w, x / w, x < w)
        assert [spec.dtype for spec in problem.results] == ["float32"] * 3
        operands = np.array([100, 7, 1, 3], dtype), np.array([100, 2, 4, 1], dtype)
        total, quotient, less = ct.reference.graph(problem, *operands)
        assert total.tolist() == [200, 9, 5, 4]
        assert quotient.tolist() == [1, 3.5, 0.25, 3]
        assert less.tolist() == [0, 0, 1, 0]
    g = ct.Graph(intermediate_dtype="float16")
    assert g.define(g.input((4,), "int8") * 2).results[0].dtype == "float16"
    g = ct.Graph()
    x, w = g.input((1, 4, 16), "float8_e4m3"), g.input((1, 16, 8), "float8_e4m3")
    assert g.define(x @ w).results[0].dtype == "float8_e4m3"
    moved = ct.Graph()
    assert moved.define(moved.reshape(moved.input((4,), "int8"), (2, 2))).results[0].dtype == "int8"


def test_strides_follow_the_operands_and_are_set_by_output() -> None:
    g = ct.Graph()
    x, w = g.input((2, 8, 6, 6), layout="nhwc"), g.input((4, 8, 3, 3), layout="nhwc")
    y = g.conv(x, w, padding=1)
    assert y.strides == packed_strides((2, 4, 6, 6), "nhwc")
    assert (y + g.input((1, 4, 1, 1))).strides == y.strides
    turned = g.relu(y).output(layout="nchw")
    other = ct.Graph()
    assert turned.strides == y.strides  # only the output has other strides
    z = other.identity(other.input((2, 4, 6, 6), layout="nhwc")).output(layout="nchw")
    assert other.define(z).result.strides == packed_strides((2, 4, 6, 6))
    assert ordered((2, 3), TensorSpec((4, 5), (1, 4), "float32")) == (1, 2)


def test_numbers_are_passed_by_value_and_ranks_are_equal() -> None:
    g = ct.Graph()
    graph = lowered(g.define(g.input((4,)) * 2.5))
    (one,) = graph.nodes
    number = one.attributes["bdesc"]
    assert isinstance(number, Tensor)
    assert (number.value, number.spec.shape) == (2.5, (1, 1, 1))
    assert [tensor.spec.shape for tensor in graph.operands] == [(1, 1, 4)] * 2
    h = ct.Graph()
    (conv,) = lowered(h.define(h.conv(h.input((2, 4, 6)), h.input((4, 4, 3)), padding=1))).nodes
    assert conv.attributes["pre_paddings"] == (0, 1)
    assert conv.attributes["x"].spec.shape == (2, 4, 1, 6)  # type: ignore[attr-defined]


def test_equal_graphs_are_equal_values() -> None:
    def problem() -> Any:
        g = ct.Graph()
        return g.define(g.relu(g.input((3, 4)) + 1.0))

    assert problem() == problem()
    assert hash(problem()) == hash(problem())
    assert "graph of add, relu_fwd: input_0 float32[3, 4]" in str(problem())


def test_operations_newer_than_cudnn_are_named() -> None:
    g = ct.Graph()
    problem = g.define(g.softmax(g.input((1, 1, 4, 4))))
    assert newer_operations(problem, 92000) == ""
    expected = "operations are newer than the loaded cuDNN 9.19.0: softmax since cuDNN 9.20"
    assert newer_operations(problem, 91900) == expected
    h = ct.Graph()
    attention = h.define(h.sdpa(*(h.input((1, 1, 8, 8), "float16") for _ in range(3))))
    assert newer_operations(attention, 91002) == ""
    assert newer_operations(attention, 91001).endswith("the loaded cuDNN 9.10.1: sdpa since cuDNN 9.10.2")


def test_reference_rejects_arrays_that_do_not_fit() -> None:
    g = ct.Graph()
    problem = g.define(g.neg(g.input((3,), name="x")))
    for arguments, error, text in (
        ((np.ones(4, "f"),), ValueError, r"x has the wrong shape: got \(4,\), expected \(3,\)"),
        ((np.ones(3),), TypeError, "x has the wrong dtype: got float64, expected float32"),
        ((), TypeError, "inputs do not match: got 0 arrays"),
    ):
        with pytest.raises(error, match=text):
            ct.reference.graph(problem, *arguments)
    with pytest.raises(TypeError, match="built is not a graph: got int"):
        ct.reference.graph(3)
    np.testing.assert_array_equal(ct.reference.graph(problem, x=np.ones(3, "f")), -np.ones(3))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
def test_reference_rounds_and_saturates_results_of_integers(dtype: str) -> None:
    g = ct.Graph()
    problem = g.define(g.identity(g.input((6,))).output(dtype=dtype))
    result = ct.reference.graph(problem, np.array([0.5, 1.5, 2.75, 3.25, -3e38, 3e38], "f"))
    limits = np.iinfo(dtype)
    assert result.tolist() == [0, 2, 3, 3, limits.min, limits.max]


# --- what engines compute wrong, and arguments that were accepted ------------------------------------------


def test_axes_of_length_1_get_the_strides_of_the_common_layout() -> None:
    g = ct.Graph()
    x, w = g.input((2, 1, 6, 6), layout="nhwc"), g.input((8, 1, 3, 3))
    y = g.relu(g.conv(x, w))
    strides = [tensor.spec.strides for tensor in lowered(g.define(y)).operands]
    assert strides == [(36, 1, 6, 1), (9, 1, 3, 1), (128, 1, 32, 8)]


def rules_of(problem: Any) -> EngineRules:
    return engine_rules(problem, target_of(None))


@pytest.mark.parametrize("engine", [78, 4])
def test_errata_of_convolutions_hold_in_graphs(engine: int) -> None:
    g = ct.Graph()
    dy, w = g.input((2, 8, 4, 4)), g.input((8, 8, 3, 3))
    problem = g.define(g.conv_backward_data(dy, w, (2, 8, 6, 6)))
    assert bool(rules_of(problem).why_wrong(Engine(engine, ()), ())) == (engine == 78)


@pytest.mark.parametrize("mode", ["maxpool", "avgpool", "avgpool_exclude_padding"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_pooling_of_bfloat16_excludes_engine_3(mode: Any, dtype: Any) -> None:
    g = ct.Graph()
    rules = rules_of(g.define(g.resample(g.input((2, 8, 6, 6), dtype, layout="nhwc"), mode, 2)))
    assert rules.why_wrong(Engine(2, ()), ()) == ""
    assert bool(rules.why_wrong(Engine(3, ()), ())) == (dtype == "bfloat16")


def test_products_of_float32_keep_the_precision_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    def excluded(dtype: str, make: Any = lambda x, w: x @ w) -> bool:
        g = ct.Graph()
        return bool(rules_of(g.define(make(g.input((64, 64), dtype), g.input((64, 64), dtype)))).excluded)

    assert not excluded("float32")
    monkeypatch.setattr(ct.config, "allow_tf32", False)
    assert excluded("float32")
    assert not excluded("bfloat16")
    assert not excluded("float32", lambda x, w: x + w)
    g = ct.Graph()
    rules = rules_of(g.define(g.input((64, 64)) @ g.input((64, 64))))
    assert "ct.matmul" in rules.why_wrong(Engine(4, ()), ())
    rules = rules_of(of_convolution(2, "float32"))
    assert "TF32" in rules.why_wrong(Engine(8, ()), ("runtime_compilation",))
    assert not rules.why_wrong(Engine(28, ()), ())


def of_convolution(axes: int, dtype: str) -> Any:
    g = ct.Graph()
    x, w = g.input((2, 8, *(6,) * axes), dtype), g.input((8, 8, *(3,) * axes), dtype)
    return g.define(g.conv(x, w))


def of_experts(dtype: str) -> Any:
    g = ct.Graph()
    token, weight = g.input((1, 256, 64), dtype), g.input((4, 64, 128), dtype)
    return g.define(g.moe_grouped_matmul(token, weight, g.input((4, 1, 1), "int32")))


@pytest.mark.parametrize(
    ("version", "problem", "excluded", "wrong"),
    [
        (91100, of_convolution(3, "float32"), True, ""),
        (91600, of_convolution(3, "float32"), False, ""),
        (91100, of_convolution(2, "float32"), False, ""),
        (92301, of_convolution(2, "float16"), False, "engine 5"),
        (92400, of_convolution(2, "float16"), False, ""),
        (91900, of_experts("float8_e4m3"), False, "first group only"),
        (91900, of_experts("bfloat16"), False, ""),
        (92100, of_experts("float8_e4m3"), False, ""),
    ],
)
def test_known_defects_of_versions_hold_in_graphs(
    version: int, problem: Any, excluded: bool, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_lib, "load", lambda: SimpleNamespace(version=version, kind="full"))
    rules = rules_of(problem)
    assert bool(rules.excluded) == excluded
    reason = rules.why_wrong(Engine(5, ()), (), (8, 6))
    assert wrong in reason if wrong else not reason


@pytest.mark.parametrize("shape", [(1, 8, 64), (4, 1, 64), (2, 8, 64)])
@pytest.mark.parametrize("backward", [False, True])
def test_instance_norms_keep_samples_and_channels(shape: tuple[int, int, int], backward: bool) -> None:
    g = ct.Graph()
    x, stats = g.input(shape), (*shape[:2], 1)
    channels = (1, shape[1], 1)
    if backward:
        made = g.norm_backward(
            g.input(shape), x, g.input(channels), g.input(stats), g.input(stats), mode="instance_norm"
        )
        outputs: tuple[ct.GraphTensor | None, ...] = tuple(made)
        kept = [shape, shape, channels, stats, stats, shape, channels, channels]
    else:
        outputs = g.norm(x, g.input(channels), g.input(channels), mode="instance_norm")[:3]
        kept = [shape, channels, channels, shape, stats, stats]
    graph = lowered(g.define(*outputs))  # type: ignore[arg-type]
    assert sorted(tensor.spec.shape for tensor in graph.operands) == sorted((*one, 1) for one in kept)


@pytest.mark.parametrize(
    ("mode", "outputs", "message"),
    [
        ("instance_norm", ("y",), "inv_variance of instance_norm must be among the outputs"),
        ("batch_norm", ("y", "inv_variance"), "mean of batch_norm"),
        ("layer_norm", ("y",), "Graph.layer_norm computes y alone"),
        ("instance_norm", ("y", "mean", "inv_variance"), ""),
        ("layer_norm", ("y", "inv_variance"), ""),
    ],
)
def test_norms_in_training_have_their_statistics(mode: Any, outputs: tuple[str, ...], message: str) -> None:
    g = ct.Graph()
    shape, channels = ((64, 32), (32,)) if mode == "layer_norm" else ((2, 32, 8, 8), (1, 32, 1, 1))
    x = g.input(shape)
    made = g.norm(x, g.input(channels), g.input(channels), mode=mode)
    with rejection(message):
        lowered(g.define(*(getattr(made, name) for name in outputs)))


def test_settings_hold_for_built_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    g = ct.Graph()
    problem = g.define(g.relu(g.input((4, 8))))
    assert not BuiltGraph(problem, AlgoArguments(None, None, None), False, None)._request.deterministic
    monkeypatch.setattr(ct.config, "deterministic", True)
    monkeypatch.setattr(ct.config, "workspace_limit", 0)
    monkeypatch.setattr(ct.config, "algo", "autotune")
    request = BuiltGraph(problem, AlgoArguments(None, None, None), False, None)._request
    assert (request.algo, request.deterministic, request.workspace_limit) == ("autotune", True, 0)
    request = BuiltGraph(problem, AlgoArguments("heuristic", False, 9), False, None)._request
    assert (request.algo, request.deterministic, request.workspace_limit) == ("heuristic", False, 9)


@pytest.mark.parametrize(
    ("shape", "axes", "op", "ordered"),
    [
        ((8192, 512), 1, "add", True),
        ((8192, 512), 0, "add", False),
        ((8192, 512), 0, "max", True),
        ((64, 64), None, "norm2", False),
        ((8, 16, 32, 32), (2, 3), "average", True),
        ((8, 16, 32, 32), (0, 2, 3), "average", False),
    ],
)
def test_sums_of_rows_only_are_deterministic(shape: Any, axes: Any, op: Any, ordered: bool) -> None:
    g = ct.Graph()
    assert rules_of(g.define(g.reduce(g.input(shape), op, axes))).unordered != ordered


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda g, x, w, m: g.conv(x, w, padding=((0, 1),)), "padding differs"),
        (lambda g, x, w, m: g.matmul(g.conv(x, w), m), "matmul cannot be in one graph"),
        (lambda g, x, w, m: g.reshape(g.conv(x, w), (2, 2, 2, 4)), "conv_forward has 3 axes"),
    ],
)
def test_graphs_that_cannot_be_lowered_are_rejected(make: Any, message: str) -> None:
    g = ct.Graph()
    x, w, m = g.input((2, 3, 5)), g.input((4, 3, 2)), g.input((1, 4, 6))
    y = make(g, x, w, m)
    problem = g.define(y, m + 1.0)
    with rejection(message):
        lowered(problem)


def test_relu_rejects_a_slope_that_exceeds_1() -> None:
    g = ct.Graph()
    x = g.input((3, 4))
    with rejection(r"slope is not supported: got 2.0, expected at most 1"):
        g.relu(x, lower=0.5, slope=2.0)
    for y in (g.relu(x, slope=1.0), g.relu(x, slope=-0.5), g.relu_backward(x, x, slope=2.0)):
        assert y.shape == (3, 4)


@pytest.mark.parametrize("slope", [0.0, 0.25, 2.0])
def test_gradient_of_relu_at_its_clips_is_that_of_cudnn(slope: float) -> None:
    g = ct.Graph()
    dy, x = g.input((5,)), g.input((5,))
    problem = g.define(g.relu_backward(dy, x, lower=-1.0, upper=1.5, slope=slope))
    given = np.array([-2.0, -1.0, 0.0, 1.5, 2.0], np.float32)
    expected = np.array([slope, slope, 1, 0, 0]) * 3
    assert np.array_equal(ct.reference.graph(problem, np.full(5, 3, np.float32), given), expected)


def test_numpy_integers_keep_whole_numbers_whole() -> None:
    g = ct.Graph()
    index = g.gen_index(g.input((4,)), 0)
    assert (index + np.int64(1)).dtype == (index + 1).dtype == "int32"
