"""Which resampling the real cuDNN computes for described GPUs, besides poolings.

A test that fails with a newer cuDNN says that it can do more: then extend `Graph.resample` and docs/graph.md.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from typing import Any

import pytest

import cudnn_ct as ct
from cudnn_ct.errors import BadParamError, NotSupportedError
from cudnn_ct.graph.candidates import engine_candidates, engine_plan
from cudnn_ct.graph.gpus import description_of
from cudnn_ct.graph.offline import Planner
from cudnn_ct.graph.operations import Graph, Tensor, node
from cudnn_ct.graph.rules import EngineRules
from cudnn_ct.shapes.specs import TensorSpec
from cudnn_doctor.read.gpus import capabilities
from tests.nightly import share

from .test_graph import in_child
from .test_graph_builder import reason_against

pytestmark = pytest.mark.usefixtures("can_plan")

HALF, ONE, ZERO = Fraction(1, 2), Fraction(1), Fraction(0)
BUILT = (HALF, Fraction(2), HALF, ONE)  # stride, window, and paddings of both sides, as ct.Graph sets them
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
    assert plans(resampling("forward", "bilinear", "float32", "nhwc", BUILT, "edge_val_pad"), planner)


@pytest.mark.nightly
@pytest.mark.parametrize("gpu", ["h200", "t4", "a100", "b200"])
@in_child
def test_no_gpu_has_other_bilinear_engines_or_engines_of_nearest(gpu: str) -> None:
    planner = Planner(description_of(gpu))
    for described in product(
        ("forward", "backward"),
        ("nearest", "bilinear"),
        ("float32", "float16", "bfloat16"),
        ("nhwc", "nchw"),
        (BUILT, *OTHERS),
        ("zero_pad", "edge_val_pad"),
    ):
        known = described[:5] == ("forward", "bilinear", "float32", "nhwc", BUILT)
        assert plans(resampling(*described), planner) == known, (gpu, described)


@pytest.mark.nightly
@in_child
def test_average_pooling_of_bfloat16_has_another_engine_than_the_wrong_one() -> None:
    planner = Planner(description_of("h100"))
    for mode in ("avgpool", "avgpool_exclude_padding", "maxpool"):
        g = ct.Graph()
        y = g.resample(g.input((2, 16, 8, 8), "bfloat16", layout="nhwc"), mode, 3, padding=1)
        assert reason_against(g, y, planner) == "", mode
