"""Graphs of ct.Graph, planned by the real cuDNN for a GPU that is only described."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction
from typing import Any, cast

import pytest

import cudnn_ct as ct
from cudnn_ct.cli.compile_child import compile_request
from cudnn_ct.cli.offline import read_gpu
from cudnn_ct.errors import BadParamError, CudnnError, NotSupportedError
from cudnn_ct.graph.candidates import engine_candidates, engine_plan
from cudnn_ct.graph.gpus import description_of
from cudnn_ct.graph.offline import Planner, target_of
from cudnn_ct.graph.operations import Graph, Tensor, node, tensors_of_graph
from cudnn_ct.graph.recording import PlanRequest
from cudnn_ct.graph.rules import EngineRules
from cudnn_ct.graph.stored import read_back
from cudnn_ct.ops.graph.built import newer_operations, source_of
from cudnn_ct.ops.graph.lower import lowered
from cudnn_ct.shapes.specs import TensorSpec
from cudnn_doctor.read.gpus import capabilities
from tests.attention_cases import CASES, case
from tests.built_attention import BUILT, BUILT_GRADIENTS, build, build_backward, operands_by_name
from tests.nightly import share
from tests.oracle.graph_draws import draw_graph

from .test_graph import DEVICE, in_child, parameter

pytestmark = pytest.mark.usefixtures("can_plan")

Build = Callable[[ct.Graph], Any]

H = "bfloat16"


def perceptron(a: tuple[int, ...], b: tuple[int, ...]) -> Build:
    return lambda g: g.gelu(g.input(a, H) @ g.input(b, H) + g.input(b[-1:], H))


def images(g: ct.Graph, *shape: int) -> ct.GraphTensor:
    return g.input(shape, H, layout="nhwc")


def vectors(g: ct.Graph, count: int) -> list[ct.GraphTensor]:
    return [g.input((1, 32, 1, 1)) for _ in range(count)]


def rows(g: ct.Graph, *shape: int) -> list[ct.GraphTensor]:
    return [g.input(shape, H), g.input(shape[-1:]), g.input(shape[-1:])]


def heads(g: ct.Graph, count: int) -> Any:
    return [g.input((2, 8, 256, 64), H) for _ in range(count)]


def gradients_of_attention(g: ct.Graph) -> Any:
    do, q, k, v, o = heads(g, 5)
    return g.sdpa_backward(do, q, k, v, o, g.input((2, 8, 256, 1)), causal=True)[:3]


GRAPHS: dict[str, Build] = {
    "matmul": perceptron((128, 64), (64, 256)),
    "batched matmul": perceptron((4, 128, 64), (4, 64, 256)),
    "broadcast matmul": perceptron((4, 128, 64), (64, 256)),
    "matmul of four axes": perceptron((2, 4, 128, 64), (2, 4, 64, 256)),
    "pointwise": lambda g: g.relu(g.input((64, 128), H) * 2.0 + g.input((128,), H)),
    "pointwise of images": lambda g: g.exp(images(g, 8, 64, 16, 16) - g.input((1, 64, 1, 1), "float16")),
    "select": lambda g: g.select(g.input((64, 128)) > g.input((64, 128)), g.input((64, 128)), 0.5),
    "convolution": lambda g: g.relu(g.conv(images(g, 8, 32, 28, 28), images(g, 32, 32, 3, 3), padding=1)
                                    * vectors(g, 1)[0] + vectors(g, 1)[0]),
    "convolution of one axis": lambda g: g.conv(g.input((8, 64, 28), H), g.input((64, 64, 3), H), padding=1),
    "prologue": lambda g: g.conv_backward_filter(
        g.input((8, 32, 28, 28), "float16", layout="nhwc"),
        g.relu(
            g.input((8, 32, 28, 28), "float16", layout="nhwc") * g.input((1, 32, 1, 1), "float16")
            + g.input((1, 32, 1, 1), "float16")
        ),
        (32, 32, 3, 3),
        padding=1,
    ).output(layout="nhwc"),
    "data gradient": lambda g: g.conv_backward_data(
        images(g, 8, 32, 28, 28), images(g, 32, 32, 3, 3), (8, 32, 28, 28), padding=1
    ),
    "reduction of rows": lambda g: g.reduce(g.input((64, 128), H), "add", 1),
    "reduction of axes": lambda g: g.reduce(g.input((8, 64, 128), H), "max", (0, 1)),
    "reduction of all": lambda g: g.reduce(g.abs(g.input((8, 64, 128), H))),
    "layer norm": lambda g: g.layer_norm(*rows(g, 64, 128)),
    "layer norm of three axes": lambda g: g.layer_norm(*rows(g, 8, 64, 128)),
    "layer norm in training": lambda g: g.norm(*rows(g, 64, 128), mode="layer_norm")[:3],
    "rms norm": lambda g: g.rms_norm(g.input((64, 128), H), g.input((128,))),
    "ada layer norm": lambda g: g.norm(
        g.input((8, 64, 128), H), g.input((8, 1, 128)), g.input((8, 1, 128)), mode="ada_layer_norm"
    )[:3],
    "batch norm": lambda g: g.norm(images(g, 8, 32, 16, 16), *vectors(g, 2), mode="batch_norm")[:3],
    "instance norm": lambda g: g.norm(images(g, 8, 32, 16, 16), *vectors(g, 2), mode="instance_norm")[:3],
    "bn_finalize": lambda g: tuple(g.bn_finalize(
        *vectors(g, 4), count=512, running_mean=vectors(g, 1)[0], running_var=vectors(g, 1)[0], momentum=0.1
    ).values()),
    "pooling": lambda g: g.resample_with_indices(images(g, 8, 32, 16, 16), 2),
    "pooling backward": lambda g: g.resample_backward(images(g, 8, 32, 8, 8), (8, 32, 16, 16), "avgpool", 2),
}  # fmt: skip
LATER: dict[str, tuple[int, Build]] = {
    "attention": (91002, lambda g: g.sdpa_with_stats(*heads(g, 3))),
    "padded attention": (91002, lambda g: g.sdpa(
        *heads(g, 3), seq_len_q=g.input((2, 1, 1, 1), "int32"), seq_len_kv=g.input((2, 1, 1, 1), "int32")
    )),
    "causal attention": (91002, lambda g: g.sdpa(*heads(g, 3), causal=True)),
    "window": (91002, lambda g: g.sdpa(*heads(g, 3), causal=True, window=(32, 0))),
    "attention backward": (91002, gradients_of_attention),
    "grouped matmul": (92800, lambda g: g.moe_grouped_matmul(
        g.input((1, 256, 64), H), g.input((4, 64, 128), H), g.input((4, 1, 1), "int32")
    )),
}  # fmt: skip


def reason_against(graph: ct.Graph, outputs: Any, planner: Planner, *, compiled: bool = True) -> str:
    """Plan a graph, or find an engine for it; return why there is none, or an empty text."""
    problem = graph.define(*(outputs if isinstance(outputs, tuple) else (outputs,)))
    source, context, reasons = source_of(problem), cast("Any", planner), []
    first, _, *others = source.heuristics(problem)  # the second stage starts with the row of the first
    for stage in (first, *others):
        for row in stage(context):
            if not row.rejected and not compiled:
                return ""
            try:
                source.plan(problem, row, context)
            except CudnnError as error:
                reasons.append(str(error))
            else:
                return ""
    return "; ".join([newer_operations(problem, planner.library.version), *reasons])


# Families with a lowering of their own; compiling a plan takes a third of a second.
PLANNED = (
    "broadcast matmul",
    "convolution of one axis",
    "prologue",
    "reduction of axes",
    "layer norm in training",
    "batch norm",
    "bn_finalize",
    "pooling",
    "window",
    "attention backward",
    "grouped matmul",
)


@parameter("compiled", "those with a lowering of their own", "all")
@in_child
def test_graphs_of_all_families_have_engines(compiled: str) -> None:
    planner = Planner(DEVICE)
    wanted = {**GRAPHS, **{name: build for name, (since, build) in LATER.items()
                           if since <= planner.library.version}}  # fmt: skip
    without = {}
    for name, define in wanted.items():
        g = ct.Graph()
        reason = reason_against(g, define(g), planner, compiled=compiled == "all" or name in PLANNED)
        if reason:
            without[name] = reason
    assert without == {}, without


PRODUCTS_OF_ONE_INPUT: list[Callable[[ct.Graph, Any], Any]] = [
    lambda _, x: x @ x,
    lambda g, x: (x @ g.input((64, 64), H)) * x,
    lambda g, x: g.exp(x) @ x,
    lambda g, x: (lambda h: h @ h + h)(g.exp(x)),
]


@pytest.mark.nightly
@in_child
def test_products_of_one_input_become_plans_that_can_be_stored() -> None:
    planner = Planner(read_gpu("a100"))  # kernels of products for Hopper are compiled on the GPU
    for product in PRODUCTS_OF_ONE_INPUT:
        g = ct.Graph()
        problem = g.define(product(g, g.input((64, 64), H)))
        graph = lowered(problem, target_of(planner))
        assert any(one.same_memory_as == 1 for one in tensors_of_graph(graph).values())
        plan = compile_request(PlanRequest(graph), planner)
        assert not isinstance(read_back(plan, PlanRequest(graph), planner), str)


@in_child
def test_most_random_graphs_become_plans() -> None:
    planner = Planner(DEVICE)
    drawn = [draw_graph(0, number, 0) for number in share(range(12), 3)]
    rejected = [text for (graph, outputs), text in drawn if reason_against(graph, outputs, planner)]
    assert len(rejected) <= len(drawn) // 2, rejected


MASKED = ("causal", "bottom right window", "bias of heads", "lengths, window")  # half a second to compile


@pytest.mark.nightly
@in_child
def test_attention_with_masks_becomes_plans() -> None:
    """The same nodes serve all versions: cuDNN has nodes of masks from 9.20 on only."""
    planner = Planner(DEVICE)
    if planner.library.version < 91002:
        return  # the builder says so
    found = {}
    for names, define in ((BUILT, build), (BUILT_GRADIENTS, build_backward)):
        for name in names:
            operands = operands_by_name(CASES[name], gradient=define is build_backward)
            made = define(CASES[name], operands)
            found[f"{define.__name__} {name}"] = reason_against(*made, planner, compiled=name in MASKED)
    expected = "cuDNN's causal masks for one query and grouped heads are wrong"
    found = {name: reason for name, reason in found.items() if reason and expected not in reason}
    assert found == {}, found


@in_child
def test_known_wrong_results_of_attention_are_rejected_in_graphs() -> None:
    planner = Planner(DEVICE)
    if planner.library.version < 91002:
        return
    wrong = {
        "one key": (build_backward, case(keys=1), "not supported for one key"),
        "scale": (build, case(scale=-1.0), "NaN of masked scores if scale is not positive"),
        "bottom right": (
            build,
            case(bias="hqk", queries=32, causal="bottom_right"),
            "bottom-right masks with",
        ),
        "one query": (
            build,
            case(queries=1, lengths=((1, 1), (64, 20)), kv_heads=2, causal=True),
            "for one query and grouped heads are wrong",
        ),
    }
    for name, (define, given, reason) in wrong.items():
        made = define(given, operands_by_name(given, gradient=define is build_backward))
        assert reason in reason_against(*made, planner), name


@pytest.mark.nightly
@in_child
def test_logical_operations_become_plans_with_any_dtype_of_the_result() -> None:
    planner = Planner(DEVICE)
    for dtype in ("float32", "float16", "int8", "int32"):
        for stored in (None, "int8"):
            g = ct.Graph()
            x, b = g.input((5, 64), dtype), g.input((5, 64), dtype)
            y = g.logical_and(x > b, g.logical_not(x)).output(dtype=stored)
            assert reason_against(g, y, planner) == "", (dtype, stored)


# --- resampling besides poolings ---------------------------------------------------------------------------

# If a test fails with a newer cuDNN, it can do more: extend `Graph.resample` and docs/graph.md.

HALF, ONE, ZERO = Fraction(1, 2), Fraction(1), Fraction(0)
AS_BUILT = (HALF, Fraction(2), HALF, ONE)  # stride, window, and paddings of both sides, as ct.Graph sets them
# Other ways to describe twice, three and four times the size, and smaller or equal images.
OTHERS = (
    (HALF, Fraction(2), ZERO, ONE),
    (HALF, Fraction(2), ZERO, ZERO),
    (HALF, Fraction(2), Fraction(1, 4), ONE),
    (HALF, ONE, ZERO, ZERO),
    (HALF, HALF, ZERO, ZERO),
    (Fraction(1, 3), Fraction(2), HALF, ONE),
    (Fraction(1, 4), Fraction(2), HALF, ONE),
    (Fraction(2), Fraction(2), ZERO, ZERO),
    (Fraction(2), ONE, ZERO, ZERO),
    (ONE, Fraction(2), ZERO, ONE),
)


def resampling(
    direction: str, mode: str, dtype: str, layout: Any, geometry: tuple[Fraction, ...], padding: str
) -> Graph:
    """Return a graph of one operation from 8 x 8 pixels, or of its gradient."""
    stride, window, before, after = geometry
    size = int((8 + before + after - window) / stride) + 1
    x = Tensor(1, TensorSpec.packed((2, 32, 8, 8), dtype, layout))
    y = Tensor(2, TensorSpec.packed((2, 32, size, size), dtype, layout))
    both = {"strides": stride, "window_dims": window, "pre_paddings": before, "post_paddings": after}
    parameters: dict[str, Any] = {name: (value, value) for name, value in both.items()}
    parameters |= {"mode": mode, "padding_mode": padding, "nan_propagation": "propagate_nan"}
    parameters |= {"comp_type": "float32", "spatial_dims": 2}
    if direction == "forward":
        return Graph((node("resample_forward", xdesc=x, ydesc=y, **parameters),), (x, y))
    return Graph((node("resample_backward", dydesc=y, dxdesc=x, **parameters),), (y, x))


def plans(graph: Graph, planner: Planner) -> bool:
    """Whether cuDNN has an engine for a graph, and compiles its plan."""
    for row in engine_candidates(graph, EngineRules(), planner, most=2):  # the others differ in tiles
        if row.rejected:
            continue
        try:
            engine_plan(graph, EngineRules(), row, planner, "resampling")
        except (NotSupportedError, BadParamError):
            continue
        return True
    return False


@in_child
def test_bilinear_resampling_of_graphs_becomes_plans_for_all_gpus() -> None:
    for name in share(tuple(capabilities()), 5):
        planner = Planner(description_of(name))
        for dtype in ("float32", "float16"):
            g = ct.Graph()
            y = g.resample(g.input((2, 3, 5, 7), layout="nhwc"), "bilinear")
            y = y if dtype == "float32" else g.relu(y).output(dtype=dtype)
            assert reason_against(g, y, planner) == "", (name, dtype)


@in_child
def test_poolings_have_engines_if_their_geometry_is_given_by_fractions() -> None:
    planner = Planner(description_of("h200"))
    geometry = (Fraction(2), Fraction(2), ZERO, ZERO)
    assert plans(resampling("forward", "avgpool", "float32", "nhwc", geometry, "zero_pad"), planner)
    assert plans(resampling("forward", "bilinear", "float32", "nhwc", AS_BUILT, "edge_val_pad"), planner)


@pytest.mark.nightly
@pytest.mark.parametrize("gpu", ["h200", "t4", "a100", "b200"])
@in_child
def test_no_gpu_has_other_bilinear_engines_or_engines_of_nearest(gpu: str) -> None:
    planner = Planner(description_of(gpu))
    for described in itertools.product(
        ("forward", "backward"),
        ("nearest", "bilinear"),
        ("float32", "float16", "bfloat16"),
        ("nhwc", "nchw"),
        (AS_BUILT, *OTHERS),
        ("zero_pad", "edge_val_pad"),
    ):
        known = described[:5] == ("forward", "bilinear", "float32", "nhwc", AS_BUILT)
        assert plans(resampling(*described), planner) == known, (gpu, described)


@pytest.mark.nightly
@in_child
def test_average_pooling_of_bfloat16_has_another_engine_than_the_wrong_one() -> None:
    planner = Planner(description_of("h100"))
    for mode in ("avgpool", "avgpool_exclude_padding", "maxpool"):
        g = ct.Graph()
        y = g.resample(g.input((2, 16, 8, 8), "bfloat16", layout="nhwc"), mode, 3, padding=1)
        assert reason_against(g, y, planner) == "", mode
