"""Products of matrices and normalisations of rows, planned by the real cuDNN for a described GPU."""

from __future__ import annotations

from typing import Any

import pytest

from cudnn_ct.errors import CudnnError
from cudnn_ct.graph.offline import Planner
from cudnn_ct.ops.matmul.source import TENSOR_CORES
from cudnn_ct.ops.matmul.views import packed_operands, slices_of
from cudnn_ct.ops.norm.row_norm import SHIFTED, source_of
from cudnn_ct.shapes.layer_norm import LayerNormMode, row_norm, row_norm_gradient
from cudnn_ct.shapes.matmul import matmul_problem, scaled_matmul_problem
from cudnn_ct.shapes.specs import TensorSpec
from tests.nightly import share

from .test_graph import DEVICE, in_child, parameter

pytestmark = pytest.mark.usefixtures("can_plan")

HALF = ("float16", "bfloat16")
Specs = dict[str, TensorSpec]


def spec(shape: tuple[int, ...], dtype: str = "bfloat16") -> TensorSpec:
    return TensorSpec.packed(shape, dtype)


def transposed(shape: tuple[int, ...], dtype: str = "bfloat16") -> TensorSpec:
    """Return a matrix whose first axis is contiguous."""
    rows, _ = shape
    return TensorSpec(shape, (1, rows), dtype)


def engines_missing(source: Any, problem: Any, planner: Planner) -> str:
    """Return why the heuristics have no engine; compiling a plan of each would take minutes."""
    rows = [row for find in source.heuristics(problem) for row in find(planner)]
    usable = [row for row in rows if not row.rejected]
    return "" if usable else "; ".join(row.rejected for row in rows)


def why_not_planned(source: Any, problem: Any, planner: Planner) -> str:
    """Build a plan of the first candidate that becomes one; return why there is none."""
    reasons = []
    for find in source.heuristics(problem):
        for row in find(planner):
            if row.rejected:
                reasons.append(row.rejected)
                continue
            try:
                source.plan(problem, row, planner)
                return ""
            except CudnnError as error:
                reasons.append(f"{row}: {error}")
    return "; ".join(reasons) or "no candidates"


# --- normalisations ----------------------------------------------------------------------------------------

ROWS = {"many": (512, 1024), "one row": (1, 768), "one column": (64, 1), "odd": (7, 5), "wide": (4, 65536)}


def norms(sizes: dict[str, tuple[int, int]]) -> dict[str, Any]:
    modes: tuple[LayerNormMode, ...] = ("layer_norm", "rms_norm", "ada_layer_norm")
    found: dict[str, Any] = {}
    for mode in modes:
        for name, (rows, columns) in sizes.items():
            for dtype, wide in (("bfloat16", "bfloat16"), ("float16", "float32"), ("float32", "float32")):
                if mode == "ada_layer_norm" and rows == 1:  # without engines
                    continue
                x = spec((2, rows, columns), dtype)
                scale = spec((2, columns) if mode == "ada_layer_norm" else (columns,), wide)
                moments = {"mean": spec((2, rows, 1), "float32"), "invstd": spec((2, rows, 1), "float32")}
                if mode == "rms_norm":
                    moments = {"invrms": moments["invstd"]}
                key = f"{mode} {name} {dtype} {wide}"
                operands = {"x": x, "scale": scale, "bias": scale}
                written = (None,) * (1 + len(moments))
                found[key] = row_norm(mode, operands, written, 1e-5)
                found[f"{key} inference"] = row_norm(mode, operands, (None,), 1e-5)
                found[f"{key} without bias"] = row_norm(mode, {"x": x, "scale": scale}, written, 1e-5)
                given = {"dy": x, "x": x, "scale": scale, **moments}
                found[f"{key} gradient"] = row_norm_gradient(mode, given, (None, None, None))
                if mode == "rms_norm":
                    found[f"{key} gradient without bias"] = row_norm_gradient(mode, given, (None, None))
    return found


@pytest.mark.nightly
@in_child
def test_normalisations_of_rows_have_engines() -> None:
    planner = Planner(DEVICE)
    missing = {
        name: engines_missing(source_of(problem), problem, planner)
        for name, problem in share(norms(ROWS).items(), 2)
    }
    assert {name: reason for name, reason in missing.items() if reason} == {}


@pytest.mark.nightly
@in_child
def test_normalisations_of_rows_become_plans() -> None:
    # Kernels of few columns compile in a tenth of the time. For a scale of half precision, eleven engines of
    # the adaptive norm fail without a driver, after their compilation.
    planner, problems = Planner(DEVICE), norms({"few columns": (64, 64)})
    names = [
        f"{mode} few columns float16 float32{step}"
        for mode in ("layer_norm", "rms_norm", "ada_layer_norm")
        for step in ("", " gradient")
    ]
    missing = {name: why_not_planned(source_of(problems[name]), problems[name], planner) for name in names}
    assert {name: reason for name, reason in missing.items() if reason} == {}


@pytest.mark.nightly
@in_child
def test_norm_multiplies_with_float32_parameters_behind_the_normalisation() -> None:
    planner, problems = Planner(DEVICE), norms({"rows": (64, 64)})
    # From 9.27 on, layer norms subtract the mean first, and have other engines.
    for mode in ("layer_norm", "rms_norm") if planner.library.version < 92700 else ("rms_norm",):
        for step in ("", " inference", " without bias"):
            problem = problems[f"{mode} rows float16 float32{step}"]
            source = source_of(problem)
            rows = [row for find in source.heuristics(problem) for row in find(planner) if not row.rejected]
            names = list(dict.fromkeys(row.algorithm for row in rows))
            assert names == [f"engine {4 if problem.invstd else 5}", "engine 1"]
            # Plans of the other engine need a driver.
            assert source.plan(problem, rows[-1], planner).candidate.algorithm == "engine 1"


@in_child
def test_layer_norm_that_subtracts_the_mean_has_engines_for_multiples_of_64() -> None:
    planner = Planner(DEVICE)
    for columns, fused in ((768, True), (60, False)):
        x, scale = spec((64, columns), "float32"), spec((columns,), "float32")
        problem = row_norm("layer_norm", {"x": x, "scale": scale, "bias": scale}, (None, None, None), 1e-5)
        assert (engines_missing(SHIFTED.before, problem, planner) == "") == fused, columns
        assert engines_missing(SHIFTED, problem, planner) == "", columns


# --- products ----------------------------------------------------------------------------------------------


def product(a: TensorSpec, b: TensorSpec, *, epilogue: Specs | None = None, **arguments: Any) -> Any:
    given = {"activation": None, "alpha": 1, "precision": None, "out_dtype": None, "out": None} | arguments
    out = given.pop("out")
    return matmul_problem({"a": a, "b": b, **(epilogue or {})}, (out,), *given.values())


def products() -> dict[str, Any]:
    a, b, bias, residual = spec((64, 256)), spec((256, 128)), spec((128,)), spec((64, 128))
    both = {"bias": bias, "residual": residual}
    found = {
        "plain": product(a, b),
        "transposed a": product(transposed((64, 256)), b),
        "transposed b": product(a, transposed((256, 128))),
        "transposed both": product(transposed((64, 256)), transposed((256, 128))),
        "float16": product(spec((64, 256), "float16"), spec((256, 128), "float16")),
        "TF32": product(spec((64, 256), "float32"), spec((256, 128), "float32")),
        "to float32": product(a, b, out_dtype="float32"),
        "float32 bias": product(a, b, epilogue={"bias": spec((128,), "float32")}),
        "batch": product(spec((8, 64, 256)), spec((8, 256, 128))),
        "shared a": product(a, spec((8, 256, 128))),
        "shared b": product(spec((8, 64, 256)), b),
        "two batch axes": product(spec((2, 4, 64, 256)), spec((2, 4, 256, 128))),
        "crossed batch axes": product(spec((2, 1, 64, 256)), spec((4, 256, 128))),
        "vectors": product(spec((256,)), spec((256,))),
        "vector a": product(spec((256,)), b),
        "vector b": product(a, spec((256,))),
        "odd": product(spec((7, 13)), spec((13, 5)), epilogue={"bias": spec((5,))}, activation="gelu"),
        "one term": product(spec((64, 1)), spec((1, 128))),
        "padded rows": product(TensorSpec((64, 256), (260, 1), "bfloat16"), b),
        "out with padded rows": product(a, b, out=TensorSpec((64, 128), (144, 1), "bfloat16")),
        "strides": product(TensorSpec((64, 256), (1024, 2), "bfloat16"), b),
        "int8": product(spec((64, 256), "int8"), spec((256, 128), "int8")),
        "int8, transposed b": product(spec((64, 256), "int8"), transposed((256, 128), "int8")),
        "int8 weights": product(
            a, spec((256, 128), "int8"), epilogue={"b_scale": spec((128,), "float32"), **both}
        ),
        "int8 weights, one scale": product(
            a, transposed((256, 128), "int8"), epilogue={"b_scale": spec((1,), "float32")}
        ),
    }
    for name in ("relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh"):
        found[name] = product(a, b, epilogue=both, activation=name, alpha=0.5)
    for one, two in (("float8_e4m3", "float8_e4m3"), ("float8_e5m2", "float8_e4m3")):
        specs = {"a": spec((64, 256), one), "b": transposed((256, 128), two)}
        specs |= {name: spec((1,), "float32") for name in ("descale_a", "descale_b", "scale")}
        found[f"{one} to bfloat16"] = scaled_matmul_problem(specs, (None,), None, None)
        found[f"{one} with amax"] = scaled_matmul_problem(specs, (None, None), None, "float8_e4m3")
        specs["bias"] = spec((128,), "float32")
        found[f"{one} with bias"] = scaled_matmul_problem(specs, (None, None), "gelu", "float8_e4m3")
    return found


# Products whose graphs have different nodes.
PLANNED = ("plain", "crossed batch axes", "odd", "int8", "int8 weights", "gelu", "float8_e4m3 with bias")
# Products that older versions have no engines with tensor cores for.
WITHOUT_ENGINES = {91002: {"vectors", "vector b", "odd", "one term"}, 91900: {"TF32"}}


@parameter("every", 4, 1)
@in_child
def test_products_have_engines(every: int) -> None:
    """All that are examined at night become plans."""
    planner = Planner(DEVICE)
    missing = {
        name: (why_not_planned if every == 1 or name in PLANNED else engines_missing)(
            TENSOR_CORES, one, planner
        )
        for name, one in share(products().items(), every)
    }
    without = {name for name, reason in missing.items() if reason}
    assert without <= WITHOUT_ENGINES.get(planner.library.version, set()), missing


@pytest.mark.parametrize("name", products())
def test_views_of_a_product_have_the_elements_of_its_operands(name: str) -> None:
    problem = packed_operands(products()[name])
    core, offsets = slices_of(problem)
    for tensor in ("a", "b", "y"):
        whole, part = getattr(problem, tensor), getattr(core, tensor)
        assert part.size * (1 if tensor != "y" else len(offsets)) <= max(whole.size, 1)
        assert len(part.shape) == 3
    assert core.y.size * len(offsets) == problem.y.size
