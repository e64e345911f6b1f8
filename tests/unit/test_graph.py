"""Graphs as values, names of engines, and the tables of the graph layer: no library needed."""

from __future__ import annotations

import ctypes
from contextlib import nullcontext
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudnn_ct._bindings.enums import BackendAttributeName, BackendDescriptorType, DataType, PointwiseMode
from cudnn_ct.context import Context
from cudnn_ct.dtypes import DTYPES, GRAPH_DTYPES
from cudnn_ct.errors import (
    AllocationError,
    CudnnError,
    ExecutionFailedError,
    InternalError,
    NotInitializedError,
    NotSupportedError,
    error_from_status,
)
from cudnn_ct.graph import engines, pixels
from cudnn_ct.graph.attributes import AsDouble, AsInt32, kind
from cudnn_ct.graph.engines import Engine
from cudnn_ct.graph.native import _topology
from cudnn_ct.graph.operations import OPERATIONS, Graph, Node, Tensor, node, tensors_of_graph
from cudnn_ct.graph.plan import BackendDescriptor, host_value
from cudnn_ct.ops.conv.graph import MODES, graph_of
from cudnn_ct.plans.base import Plan
from cudnn_ct.shapes.conv import ConvProblem, conv_problem
from cudnn_ct.shapes.fused import FusedConv
from cudnn_ct.shapes.specs import TensorSpec
from tests.conv_cases import packed_problem
from tests.facts.native import check_layouts

numbers = st.integers(0, 2**31 - 1)


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (NotSupportedError, False),
        (InternalError, False),
        (AllocationError, True),
        (ExecutionFailedError, True),
    ],
)
def test_offer_of_raises_transient_failures(
    monkeypatch: pytest.MonkeyPatch, error: type[CudnnError], passes: bool
) -> None:
    def fails(*_: Any) -> Any:
        raise error("trouble")

    monkeypatch.setattr(engines, "engine_descriptor", fails)
    with pytest.raises(error) if passes else nullcontext():
        assert engines.offer_of(object(), Engine(1), object()) is None  # type: ignore[arg-type]


# --- names of engines --------------------------------------------------------------------------------------


@given(engine=st.builds(Engine, numbers, st.lists(st.tuples(numbers, numbers), max_size=9).map(tuple)))
def test_engine_is_read_back_from_its_name(engine: Engine) -> None:
    assert Engine.parse(str(engine)) == engine
    assert Engine.parse("engine 38 knobs 2=0,5=-1") == Engine(38, ((2, 0), (5, -1)))  # in cache files


@pytest.mark.parametrize(
    "text",
    ["", "engine", "engine x", "Engine 3", "engine 3 knobs", "engine 3 knobs ", "engine 3 knobs 1", "fft",
     "engine 3 knobs 1=2,", "engine 3 knobs 1=2=3", "engine 3 4", "engine 03", f"engine {2**63}",
     f"engine 3 knobs {2**31}=1"],
)  # fmt: skip
def test_engine_parse_rejects_other_text(text: str) -> None:
    with pytest.raises(ValueError, match=r"invalid engine: got .* expected one like 'engine 38'"):
        Engine.parse(text)


# --- attributes --------------------------------------------------------------------------------------------

KINDS = [member.name.removesuffix("_DESCRIPTOR").lower() for member in BackendDescriptorType]


def test_each_attribute_belongs_to_one_kind() -> None:
    assert all(kind(name).attributes for name in KINDS)
    codes = [attribute.code for name in KINDS for attribute in kind(name).attributes.values()]
    assert sorted(codes) == sorted(map(int, BackendAttributeName))


@pytest.mark.parametrize(
    ("of", "name", "ctype", "code"),
    [
        ("tensor", "dimensions", ctypes.c_int64, 3),
        ("tensor", "is_virtual", ctypes.c_bool, 2),
        ("pointwise", "elu_alpha", ctypes.c_double, 5),
        ("operation_convolution_forward", "alpha", ctypes.c_float, 4),
        ("operation_convolution_backward_data", "dx", None, 15),
        ("operation_convolution_backward_filter", "conv_desc", None, 15),
        ("engine", "numerical_note", ctypes.c_int, 11),
        ("engineheur", "results", None, 15),
        ("engineheur", "sm_count_target", ctypes.c_int32, 23),
        ("execution_plan", "json_representation", ctypes.c_char, 24),
        ("operation_moe_grouped_matmul_bwd", "math_prec", ctypes.c_int, 1),
        ("operation_contract_band_matrix", "max_token_value", ctypes.c_int64, 3),
    ],
)
def test_attribute_has_the_code_and_type_of_its_name(of: str, name: str, ctype: object, code: int) -> None:
    attribute = kind(of).attribute(name)
    assert attribute.type.code == code
    if ctype:
        assert attribute.type.ctype is ctype


def test_unknown_names_are_rejected_with_the_known_ones() -> None:
    with pytest.raises(
        AttributeError, match="kind 'knob_choice' has no attribute 'value'; it has knob_type, knob_v"
    ):
        kind("knob_choice").attribute("value")
    with pytest.raises(
        ValueError, match="unknown backend descriptor: got 'Tensor', expected one of pointwise, convolution"
    ):
        kind("Tensor")
    with pytest.raises(ValueError, match="unknown PointwiseMode: got 'relu', expected one of add, "):
        kind("pointwise").attribute("mode").type.encode("relu")


def test_enum_values_are_read_back_and_unknown_ones_stay_numbers() -> None:
    dtype = kind("tensor").attribute("data_type").type
    assert dtype.decode(dtype.encode("bfloat16")) == "bfloat16"
    assert dtype.decode(dtype.encode(31)) == 31
    note = kind("engine").attribute("numerical_note").type
    assert note.decode(note.encode("tensor_core")) == "tensor_core"
    assert note.decode(77) == "77"


# --- graphs as values --------------------------------------------------------------------------------------


def problem(
    x: tuple[int, ...] = (2, 4, 8, 8), w: tuple[int, ...] = (4, 4, 3, 3), layout: str = "nhwc", **k: object
) -> ConvProblem:
    return packed_problem(x, w, "float16", layout, **{"padding": 1, **k})


@pytest.mark.parametrize("row", OPERATIONS.values(), ids=OPERATIONS)
def test_rows_of_operations_name_existing_descriptors(row: object) -> None:
    operation, holder, parameters = row
    assert kind(operation)
    if parameters:
        assert kind(operation).attribute(holder).type.code == 15
        assert not {*kind(parameters).attributes} & {*kind(operation).attributes}


@pytest.mark.parametrize(("layout", "strides"), [("nchw", (40, 10, 10, 1)), ("nhwc", (40, 1, 40, 4))])
def test_conv_graph_describes_one_spatial_axis_as_two(layout: str, strides: tuple[int, ...]) -> None:
    made = graph_of(problem((2, 4, 10), (4, 4, 3), layout, padding=((1, 2),), stride=2, dilation=3))
    assert made.operands[0].spec == TensorSpec((2, 4, 1, 10), strides, "float16")
    attributes = made.nodes[0].attributes
    assert attributes["spatial_dims"] == 2
    assert (attributes["pre_paddings"], attributes["post_paddings"]) == ([0, 1], [0, 2])
    assert (attributes["filter_strides"], attributes["dilations"]) == ((1, 2), (1, 3))


def test_conv_graph_reads_a_tensor_of_both_layouts_in_that_of_the_others() -> None:
    for layout, strides in (("nchw", (64, 64, 8, 1)), ("nhwc", (64, 1, 8, 1))):
        x = TensorSpec.packed((2, 1, 8, 8), "float16", "nchw")
        w = TensorSpec.packed((4, 1, 3, 3), "float16", layout)
        y = TensorSpec.packed((2, 4, 8, 8), "float16", layout)
        assert graph_of(conv_problem("forward", x, w, padding=1, out=y)).operands[0].spec.strides == strides


@pytest.mark.parametrize(
    ("dtype", "result", "number"),
    [
        ("float16", None, float),
        ("float64", None, AsDouble),
        ("int8", "int32", AsInt32),
        ("int8", "float32", float),
    ],
)
def test_conv_graph_has_factors_of_the_type_that_engines_read(
    dtype: str, result: str | None, number: type[Any]
) -> None:
    x, w = TensorSpec.packed((2, 4, 8, 8), dtype), TensorSpec.packed((4, 4, 3, 3), dtype)
    out = result and TensorSpec.packed((2, 4, 6, 6), result)
    (made,) = graph_of(conv_problem("forward", x, w, out=out or None)).nodes
    for name, value in (("alpha", 1), ("beta", 0)):
        assert type(made.attributes[name]) is number
        assert made.attributes[name] == value


@pytest.mark.parametrize("activation", MODES)
def test_fused_activation_is_a_mode_of_cudnn(activation: str) -> None:
    mode, parameter = MODES[activation]
    assert mode.upper() in PointwiseMode.__members__
    assert not parameter or parameter in kind("pointwise").attributes


def test_fused_graph_is_the_convolution_without_bias_residual_and_activation() -> None:
    conv = problem()
    assert graph_of(FusedConv(conv)) == graph_of(conv)
    (_, scaled) = graph_of(FusedConv(conv, alpha1=2.0)).nodes
    assert (scaled.attributes["mode"], scaled.attributes["alpha1"]) == ("identity", 2.0)
    between = scaled.attributes["xdesc"]
    assert (between.virtual, between.spec.dtype) == (True, "float32")


def test_in_pixels_computes_the_remainder_behind_the_whole_pixels() -> None:
    seen: list[tuple[int, ...]] = []

    class Recorded:
        workspace = 0

        def run(self, context: Any, pointers: Any, alpha: float, beta: float) -> None:
            seen.append(tuple(pointers))

    def pieces(size: int, run: bool = True) -> list[TensorSpec]:
        seen.clear()
        images: list[TensorSpec] = []
        specs = [TensorSpec.packed((size,), dtype) for dtype in ("float16", "float32")]

        def make(*pair: TensorSpec) -> Plan:
            images.append(pair[0])
            return cast(Plan, Recorded())

        plan = pixels.in_pixels(make, *specs)
        if run:
            plan.run(cast(Context, None), (0x10000, 0x20000), 1, 0)
        return images

    assert [image.shape for image in pieces(3000)] == [(2, 1024, 1, 1), (1, 952, 1, 1)]
    assert seen == [(0x10000, 0x20000), (0x10000 + 2 * 2048, 0x20000 + 4 * 2048)]
    assert [image.shape for image in pieces(3 * 1024 + 1)] == [(2, 1024, 1, 1), (1, 1025, 1, 1)]
    assert [image.shape for image in pieces(1025)] == [(1, 1025, 1, 1)]
    assert [image.shape for image in pieces(1, run=False)] == [(1, 2, 1, 1)]  # computed as two


# --- values, sub-graphs and ragged tensors -----------------------------------------------------------------


def test_every_kind_of_operation_has_a_row() -> None:
    members = {member.name.removesuffix("_DESCRIPTOR").lower() for member in BackendDescriptorType}
    assert {row.operation for row in OPERATIONS.values()} == {
        name for name in members if name.startswith("operation_")
    }


def test_tensors_of_graph_includes_sub_graphs_tuples_and_ragged_offsets() -> None:
    spec = TensorSpec.packed((1, 1, 1, 1))
    offsets = Tensor(9, TensorSpec.packed((3, 1, 1, 1), "int32"))
    masked = Tensor(4, spec, virtual=True)
    inner = Graph((node("pointwise", mode="identity", xdesc=Tensor(3, spec, value=2.0), ydesc=masked),), ())
    outer = node("sdpa_forward", qdesc=Tensor(1, spec, ragged=offsets), subgraph=inner)
    parts = node("concat", axis=1, input_descs=(Tensor(5, spec), Tensor(6, spec)))
    assert set(tensors_of_graph(Graph((outer, parts), ()))) == {1, 3, 4, 5, 6, 9}


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("float32", -1e30), ("int32", -7), ("int64", 2**40), ("bfloat16", 0.5), ("float32", float("-inf"))],
)
def test_host_value_has_the_dtype_of_its_tensor(dtype: str, value: float) -> None:
    memory = host_value(Tensor(1, TensorSpec.packed((1, 1, 1, 1), dtype), value=value))
    row = DTYPES[dtype]
    assert np.frombuffer(memory, row.numpy, 1)[0] == np.asarray(value).astype(row.numpy)


def test_dtypes_of_graphs_have_the_codes_and_sizes_of_cudnn() -> None:
    names = {"float8_e8m0": "FP8_E8M0", "float4_e2m1": "FP4_E2M1", "int4": "INT4", "uint4": "UINT4"}
    names |= {"uint32": "UINT32", "byte_bool": "BYTE_BOOLEAN"}
    assert {name: row.code for name, row in GRAPH_DTYPES.items() if name not in DTYPES} == {
        name: DataType[code] for name, code in names.items()
    }
    for name, row in GRAPH_DTYPES.items():
        assert row.itemsize in (0 if "4" in name else row.numpy.itemsize, row.numpy.itemsize)
        assert kind("tensor").attribute("data_type").type.encode(name) == row.code


def add_node(*specs: TensorSpec) -> Node:
    """Return an elementwise node with operands and a result of these specs."""
    x, b, y = (Tensor(uid, spec) for uid, spec in enumerate(specs, 1))
    return node("pointwise", mode="add", xdesc=x, bdesc=b, ydesc=y)


def test_pointwise_nodes_reject_other_strides() -> None:
    first, last = (TensorSpec.packed((2, 3, 4, 5), "float32", layout) for layout in ("nchw", "nhwc"))
    check_layouts(Graph((add_node(first, first, first),), ()))
    check_layouts(Graph((add_node(first, last, first),), ()), "operands differ in layout")
    check_layouts(Graph((node("matmul"), add_node(first, last, first), node("matmul")), ()))


@pytest.mark.parametrize(
    ("rows", "operand", "result", "layout", "right"),
    [
        ("", (1, 1, 8), (1, 4, 8), "nchw", True),
        ("", (1, 4, 1), (1, 4, 8), "nchw", True),
        ("", (1, 1, 1), (3, 4, 8), "nchw", True),
        ("", (1, 1, 8), (3, 4, 8), "nchw", False),
        ("", (1, 4, 1), (3, 4, 8), "nchw", False),
        ("", (1, 3, 1, 1), (2, 3, 4, 5), "nhwc", False),
        ("matmul", (1, 1, 8), (3, 4, 8), "nchw", True),
        ("conv_forward", (1, 3, 1, 1), (2, 3, 4, 5), "nchw", True),
        ("conv_forward", (1, 1, 1, 5), (2, 3, 4, 5), "nhwc", False),
        ("conv_forward", (1, 1, 4, 1), (2, 3, 4, 5), "nhwc", False),
    ],
)
def test_broadcasts_that_engines_compute_wrong_are_rejected(
    rows: str, operand: tuple[int, ...], result: tuple[int, ...], layout: Any, right: bool
) -> None:
    y = TensorSpec.packed(result, "float32", layout)
    first = Tensor(9, y)
    more = [node(rows, x=first, **{"cdesc" if rows == "matmul" else "y": first})] if rows else []
    graph = Graph((*more, add_node(y, TensorSpec.packed(operand), y)), ())
    check_layouts(graph, "" if right else "is broadcast to")


def test_channel_vector_before_a_convolution_needs_channels_last() -> None:
    for layout in ("nchw", "nhwc"):
        x = TensorSpec.packed((2, 3, 4, 5), "float32", layout)  # type: ignore[arg-type]
        scaled = add_node(x, TensorSpec.packed((1, 3, 1, 1)), x)
        after = node("conv_forward", x=scaled.attributes["ydesc"], y=Tensor(8, x))
        check_layouts(Graph((scaled, after), ()), "" if layout == "nhwc" else "is broadcast to")


def test_computed_element_fits_a_result_of_one_element_and_another_rank() -> None:
    x, v = (Tensor(uid, TensorSpec.packed((1, 1, 1), "float32"), virtual=uid == 2) for uid in (1, 2))
    whole, y = (Tensor(uid, TensorSpec.packed((1, 1, 1, 1), "float32")) for uid in (3, 4))
    before = node("pointwise", mode="relu_fwd", xdesc=x, ydesc=v)
    check_layouts(Graph((before, node("pointwise", mode="add", xdesc=whole, bdesc=v, ydesc=y)), ()))


def select_node(x: Tensor, b: Tensor, condition: Tensor, y: Tensor) -> Node:
    return node("pointwise", mode="binary_select", xdesc=x, bdesc=b, tdesc=condition, ydesc=y)


def test_select_before_a_product_takes_inputs_alone() -> None:
    spec = TensorSpec.packed((1, 16, 16), "float32")
    x, b, condition, w = (Tensor(uid, spec) for uid in range(1, 5))
    half, chosen = (Tensor(uid, spec, virtual=True) for uid in (5, 6))
    product = node("matmul", adesc=chosen, bdesc=w, cdesc=Tensor(7, spec))
    check_layouts(Graph((select_node(x, b, condition, chosen), product), ()))
    scaled = node("pointwise", mode="mul", xdesc=b, bdesc=condition, ydesc=half)
    for first in ([scaled, select_node(x, half, condition, chosen)], [select_node(x, x, condition, chosen)]):
        check_layouts(Graph((*first, product), ()), "binary_select")
        check_layouts(Graph((*first,), ()))


def test_identity_that_engines_leave_unwritten_is_rejected() -> None:
    wide, half = (TensorSpec.packed((1, 16, 16), dtype) for dtype in ("float32", "float16"))
    x, sums = Tensor(1, wide), Tensor(2, wide, virtual=True)
    product = node("matmul", adesc=x, bdesc=x, cdesc=sums)
    largest = node("reduction", xdesc=sums, ydesc=Tensor(3, TensorSpec.packed((1, 1, 1))))
    for spec, rejected in ((wide, "identity"), (half, "")):
        copy = node("pointwise", mode="identity", xdesc=sums, ydesc=Tensor(4, spec))
        check_layouts(Graph((product, copy), ()))
        check_layouts(Graph((product, copy, largest), ()), rejected)


def test_graphs_of_other_sizes_and_values_need_the_same_kernels() -> None:
    def product(
        rows: int, scale: float = 1.0, dtype: str = "float16", layout: str = "nchw", inner: int = 4
    ) -> Any:
        shapes = ((1, rows, 4, inner), (1, 4, inner, 4), (1, 1, 1, 1), (1, rows, 4, 4))
        specs = [TensorSpec.packed(shape, dtype, layout) for shape in shapes]  # type: ignore[arg-type]
        a, b, by, c = (
            Tensor(uid, spec, value=scale if uid == 3 else None) for uid, spec in enumerate(specs, 1)
        )
        return _topology(Graph((node("matmul", adesc=a, bdesc=b, cdesc=c), node("mul", bdesc=by)), (a, b, c)))

    assert product(8) == product(64, 2.0)
    others = [product(1), product(8, dtype="float32"), product(8, layout="nhwc"), product(8, inner=8)]
    assert product(8) not in [*others, product(2**26)]


def test_graphs_of_norms_need_the_same_kernels_if_their_columns_are_equal() -> None:
    def norm(samples: int, rows: int, columns: int) -> str:
        x, y, mean, scale = (
            Tensor(uid, TensorSpec.packed(shape, "float16"))
            for uid, shape in enumerate(
                [(samples, rows, columns)] * 2 + [(samples, rows, 1), (samples, 1, columns)], 1
            )
        )
        one = node("norm_forward", mode="layer_norm", xdesc=x, ydesc=y, mean_desc=mean, scale_desc=scale)
        return _topology(Graph((one,), (x, y, mean, scale)))

    for samples in (1, 4):
        assert norm(samples, 16, 64) == norm(samples, 512, 64)
        assert norm(samples, 16, 64) != norm(samples, 16, 128)


# --- statuses of descriptors --------------------------------------------------------------------------------


class UninitializedLibrary:
    """A cuDNN whose descriptors cannot be finalised."""

    def __init__(self, status: int) -> None:
        self.status = status

    def cudnnBackendCreateDescriptor(self, *_: object) -> None: ...

    def cudnnBackendDestroyDescriptor(self, *_: object) -> int:
        return 0

    def cudnnBackendFinalize(self, _: object) -> None:
        detail = "node_ptr->init(desc_ptr)"
        raise error_from_status(self.status, "cudnnBackendFinalize", detail, 91900)


@pytest.mark.parametrize("name", ["operationgraph", "operation_pointwise", "execution_plan"])
def test_operations_that_cudnn_cannot_initialise_are_not_supported(name: str) -> None:
    with pytest.raises(NotSupportedError, match=r"cannot initialise an operation.*node_ptr->init") as caught:
        BackendDescriptor(UninitializedLibrary(1001), name)
    assert (caught.value.status, caught.value.function) == (1001, "cudnnBackendFinalize")
    assert "GPU" not in str(caught.value)


@pytest.mark.parametrize(("name", "status"), [("tensor", 1001), ("operationgraph", 1002), ("engine", 1001)])
def test_other_statuses_of_initialisation_are_raised(name: str, status: int) -> None:
    with pytest.raises(NotInitializedError):
        BackendDescriptor(UninitializedLibrary(status), name)
