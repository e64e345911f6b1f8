"""The graph layer with the real cuDNN and no GPU: it plans for a device that is only described.

cuDNN's run-time engines want ``libcuda.so.1``. Where there is no driver a stand-in serves, which must never
stay in a process that may touch a GPU: all that plans runs in child processes, as functions of this module
whose names begin with ``child_``.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from cudnn_ct._bindings.enums import BackendDescriptorType, BackendKnobType
from cudnn_ct._find import find_cudnn
from cudnn_ct._lib import load
from cudnn_ct.doctor import libraryset, stub_libcuda
from cudnn_ct.errors import BadParamError, CudnnError, NotInitializedError, NotSupportedError
from cudnn_ct.graph.attributes import kind
from cudnn_ct.graph.backend import BackendDescriptor
from cudnn_ct.graph.engines import Engine, heuristic_configs, plan_to_json
from cudnn_ct.graph.offline import Planner
from cudnn_ct.graph.operations import operation_graph
from cudnn_ct.ops.activation import activation_graph
from cudnn_ct.ops.conv.engine_order import preference
from cudnn_ct.ops.conv.graph import by_name, candidates, graph_of, plan, preferred
from cudnn_ct.ops.reduce.graph import FORMS, MatrixView, reduction_graph
from cudnn_ct.ops.tensor import identity_graph
from cudnn_ct.plans.base import Candidate
from cudnn_ct.shapes.conv import ConvProblem, conv_problem
from cudnn_ct.shapes.fused import FusedConv
from cudnn_ct.shapes.specs import ActivationSpec, TensorSpec

ROOT = Path(__file__).parents[2]
DEVICE = ROOT / "tests" / "devices" / "h200-cudnn-9.19.json"
DIRECTIONS = ("forward", "backward_data", "backward_filter")
COARSE = {"tensor_core", "down_convert_inputs"}


@pytest.fixture(autouse=True)
def _can_plan(cudnn: int) -> None:
    if cudnn < 90800:
        pytest.skip("cuDNN plans for a described device from 9.8 on")


# --- the grid ----------------------------------------------------------------------------------------------


def problem(
    x: tuple[int, ...],
    w: tuple[int, ...],
    dtype: str = "float16",
    layout: str = "nhwc",
    *,
    w_layout: str | None = None,
    direction: str = "forward",
    **arguments: Any,
) -> ConvProblem:
    specs = TensorSpec.packed(x, dtype, layout), TensorSpec.packed(w, dtype, w_layout or layout)
    return conv_problem("forward", *specs, **arguments)._replace(direction=direction)


IMAGES = {"x": (8, 64, 28, 28), "w": (64, 64, 3, 3), "padding": 1}
STRICT = {"dtype": "float32", "precision": "float32"}
GRID: dict[str, dict[str, Any]] = {
    "float16": IMAGES,
    "bfloat16": IMAGES | {"dtype": "bfloat16"},
    "float16 in NCHW": IMAGES | {"layout": "nchw"},
    "float16, w in NCHW": IMAGES | {"w_layout": "nchw"},
    "float16 computed in float16": IMAGES | {"precision": "float16"},
    "float16 strict": IMAGES | {"precision": "float32"},
    "TF32": IMAGES | {"dtype": "float32"},
    "TF32 in NCHW": IMAGES | {"dtype": "float32", "layout": "nchw"},
    "float32 strict": IMAGES | STRICT | {"layout": "nchw"},
    "float32 strict in NHWC": IMAGES | STRICT,
    "float64": IMAGES | {"dtype": "float64", "layout": "nchw"},
    "stride": {"x": (8, 3, 56, 56), "w": (64, 3, 7, 7), "padding": 3, "stride": 2},
    "one axis": {"x": (8, 64, 100), "w": (64, 64, 3), "padding": 1, "stride": 2},
    "one axis strict": {"x": (8, 64, 100), "w": (64, 64, 3), "layout": "nchw"} | STRICT,
    "three axes": {"x": (4, 32, 8, 14, 14), "w": (32, 32, 3, 3, 3), "padding": 1},
    "three axes strict": {"x": (4, 32, 8, 14, 14), "w": (32, 32, 3, 3, 3), "layout": "nchw"} | STRICT,
    "groups": {"x": (8, 64, 28, 28), "w": (64, 16, 3, 3), "padding": 1, "groups": 4},
    "depthwise": {"x": (8, 64, 28, 28), "w": (64, 1, 3, 3), "padding": 1, "groups": 64},
    "dilation": IMAGES | {"padding": 2, "dilation": 2},
    "asymmetric": IMAGES | {"padding": ((0, 1), (2, 1))},
    "asymmetric strict": IMAGES | STRICT | {"padding": ((0, 1), (2, 1)), "layout": "nchw"},
    "flipped": IMAGES | {"mode": "convolution"},
    "odd channels": {"x": (2, 3, 9, 9), "w": (5, 3, 3, 3)},
    "one pixel": {"x": (2, 64, 1, 1), "w": (32, 64, 1, 1)},
}
CASES = [(name, direction) for name in GRID for direction in DIRECTIONS]


def child_grid() -> list[dict[str, Any]]:
    planner = Planner(DEVICE)
    return [plans_of(problem(**GRID[name], direction=direction), planner) for name, direction in CASES]


def plans_of(wanted: Any, planner: Planner) -> dict[str, Any]:
    """What there is for a problem: all candidates, and the plans of the first, the last and one between."""
    rows = candidates(wanted, planner)
    usable = [row for row in rows if not row.rejected]
    native = operation_graph(graph_of(wanted), planner)
    notes = {str(offer.engine): offer.notes for offer in heuristic_configs(native, planner)}
    plans = []
    for row in dict.fromkeys([usable[0], usable[len(usable) // 2], usable[-1]] if usable else []):
        made = plan(wanted, row, planner)
        text = plan_to_json(made.native)
        plans.append(
            {
                "algorithm": row.algorithm,
                "announced": row.workspace,
                "workspace": made.workspace,
                "describe": made.describe(),
                "json": text,
            }
        )
    return {
        "problem": str(wanted),
        "rows": [row._asdict() | {"offered": notes.get(row.algorithm)} for row in rows],
        "plans": plans,
    }


@cache
def grid() -> dict[tuple[str, str], Any]:
    return dict(zip(CASES, run("child_grid"), strict=True))


each_case = pytest.mark.parametrize(("name", "direction"), CASES)


@each_case
def test_engines_are_offered_and_become_plans(name: str, direction: str) -> None:
    found = grid()[name, direction]
    usable = [row for row in found["rows"] if not row["rejected"]]
    assert usable, found
    algorithms = [row["algorithm"] for row in found["rows"]]
    assert len(set(algorithms)) == len(algorithms)
    assert all(row["backend"] == "graph" and row["workspace"] >= 0 for row in usable)
    assert all(row["deterministic"] == ("nondeterministic" not in (row["offered"] or ())) for row in usable)
    for made in found["plans"]:
        assert made["workspace"] == made["announced"]
        assert made["algorithm"] in made["describe"]


@each_case
def test_a_plan_is_of_the_problem_and_of_the_engine_that_were_asked_for(name: str, direction: str) -> None:
    arguments = GRID[name]
    wanted = problem(**arguments, direction=direction)
    for made in grid()[name, direction]["plans"]:
        written = json.loads(made["json"])
        engine, chosen = written["engine"], Engine.parse(made["algorithm"])
        assert engine["engineId"] == chosen.number
        for knob, choice in chosen.knobs:
            assert engine["knobChoices"][f"CUDNN_KNOB_TYPE_{BackendKnobType(knob).name}"] == choice
        (node,) = written["operationGraph"]["nodes"]
        assert node["operation"] == OPERATIONS[direction]
        tensors = {tensor["name"]: tensor for tensor in written["operationGraph"]["tensors"]}
        for uid, spec in enumerate((wanted.x, wanted.w, wanted.y), 1):
            dims, strides = tensors[str(uid)]["dim"], tensors[str(uid)]["stride"]
            steps = Counter((n, s) for n, s in zip(dims, strides, strict=True) if n > 1)
            assert steps == Counter((n, s) for n, s in zip(spec.shape, spec.strides, strict=True) if n > 1)
        assert node["dilation"][-len(wanted.dilation) :] == list(wanted.dilation)
        assert node["stride"][-len(wanted.stride) :] == list(wanted.stride)
        assert ("CROSS" in node["mode"]) == (wanted.mode == "cross_correlation")


OPERATIONS = {
    "forward": "CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR",
    "backward_data": "CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR",
    "backward_filter": "CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR",
}


@pytest.mark.parametrize(("name", "direction"), [case for case in CASES if "strict" in case[0]])
def test_strict_problems_have_only_engines_as_precise_as_asked(name: str, direction: str) -> None:
    rows = grid()[name, direction]["rows"]
    for row in rows:
        if row["offered"] is None:  # not of the heuristics
            assert row["algorithm"].split()[0] == "engine"
        else:
            assert bool(COARSE & set(row["offered"])) == ("coarser than" in row["rejected"]), row
    statuses = [bool(row["rejected"]) for row in rows]
    assert statuses == sorted(statuses)
    assert all(row["math"] == "fma" for row in rows if not row["rejected"])


def test_a_float32_forward_convolution_has_the_engines_that_the_heuristics_leave_out() -> None:
    rows = grid()["float32 strict", "forward"]["rows"]
    assert len([row for row in rows if not row["rejected"]]) >= 4


# One problem for each engine that comes before cuDNN's own order.
F32, F64 = STRICT | {"layout": "nchw"}, {"dtype": "float64", "layout": "nchw"}
ROWS3 = {"x": (64, 128, 28, 28), "w": (128, 128, 3, 3), "padding": 1}
CUBES = {"x": (8, 64, 16, 56, 56), "w": (64, 64, 3, 3, 3), "padding": 1}
GROUPS = {"x": (64, 512, 14, 14), "w": (512, 16, 3, 3), "padding": 1, "groups": 32}
POINTS = {"x": (64, 256, 56, 56), "w": (512, 256, 1, 1)}
PREFERRED: list[tuple[str, dict[str, Any], str]] = [
    ("forward", F32 | ROWS3, "engine 6"),
    ("forward", F32 | POINTS, "engine 70 knobs 2=4,18=0"),
    ("backward_data", F32 | ROWS3, "engine 7"),
    ("backward_data", F32 | GROUPS, "engine 1"),
    ("backward_filter", F32 | GROUPS, "engine 20 knobs 2=6,3=0"),
    ("backward_filter", F32 | CUBES, "engine 1"),
    ("backward_filter", F32 | POINTS, "engine 20"),
    ("forward", F64 | POINTS | {"stride": 2}, "engine 1"),
    ("forward", F64 | CUBES, "engine 4"),
    ("forward", F64 | ROWS3 | {"x": (1, 128, 28, 28)}, "engine 28"),
    ("backward_data", F64 | ROWS3, "engine 1"),
    ("backward_data", F64 | ROWS3 | {"stride": 2}, "engine 2 knobs 2=2,3=0"),
    ("backward_data", F64 | CUBES, "engine 5"),
    ("backward_filter", F64 | GROUPS | {"w": (512, 32, 3, 3), "groups": 16}, "engine 1 knobs 2=6,3=0"),
    ("backward_filter", F64 | CUBES, "engine 20 knobs 2=6,3=0"),
    ("backward_filter", F64 | ROWS3 | {"x": (1, 128, 28, 28)}, "engine 1 knobs 2=6,3=0"),
    ("backward_filter", F64 | ROWS3, "engine 20"),
    ("forward", F64 | ROWS3, ""),
    ("forward", IMAGES, ""),
    ("forward", IMAGES | {"dtype": "float32", "layout": "nchw"}, ""),
    ("forward", IMAGES | STRICT, ""),
]


# Those of Winograd and FFT need the GPU itself.
TRANSFORMS = ("engine 4", "engine 5", "engine 6", "engine 7")


def child_preferred() -> list[list[list[list[str]]]]:
    """The preferred engines on the described device, on an older one, and on one of unknown architecture."""
    planners = [Planner(DEVICE), Planner(Planner(DEVICE).description | {"deviceVer": 800}), Planner(DEVICE)]
    del planners[2].description["deviceVer"]
    wanted = [problem(**arguments, direction=direction) for direction, arguments, _ in PREFERRED]
    return [
        [[[row.algorithm, row.rejected] for row in preferred(one, planner)] for one in wanted]
        for planner in planners
    ]


def test_engines_that_measurements_prefer() -> None:
    for direction, arguments, engine in PREFERRED:
        assert preference(problem(**arguments, direction=direction)) == engine, (direction, arguments)


def test_engines_that_measurements_prefer_are_offered_where_they_were_measured() -> None:
    here, *elsewhere = run("child_preferred")
    for (_, _, engine), rows in zip(PREFERRED, here, strict=True):
        assert rows == ([[engine, ""]] if engine and engine not in TRANSFORMS else [])
    assert not any(rows for found in elsewhere for rows in found)


def child_by_name() -> list[list[Any]]:
    planner, found = Planner(DEVICE), []
    for name, direction in CASES[:6]:
        wanted = problem(**GRID[name], direction=direction)
        rows = [row for row in candidates(wanted, planner) if not row.rejected]
        found += [[row, by_name(wanted, row.algorithm, planner)] for row in rows[:3]]
        found.append([False, by_name(wanted, "engine 999", planner).rejected])
    return found


def test_by_name_returns_the_engine_that_the_heuristics_offer() -> None:
    for row, named in run("child_by_name"):
        if row:
            assert row == named
        else:
            assert named == "cuDNN does not support this engine for the problem"


def child_fused() -> list[dict[str, Any]]:
    planner = Planner(DEVICE)
    return [plans_of(fused, planner) for fused in FUSED]


def fused(activation: str, *, residual: bool, **arguments: Any) -> FusedConv:
    conv = problem(**(IMAGES | arguments))
    bias = TensorSpec.packed((1, 64, 1, 1), conv.y.dtype, arguments.get("layout", "nhwc"))
    factors = {"z": conv.y, "alpha1": 2.0, "alpha2": 0.5} if residual else {}
    return FusedConv(conv, bias, activation=activation, **factors)


FUSED = [
    fused(activation, residual=residual, **arguments)
    for activation in ("relu", "identity")
    for residual in (False, True)
    for arguments in ({}, {"dtype": "bfloat16"}, {"dtype": "float32"}, STRICT | {"layout": "nchw"})
]


def test_a_convolution_with_bias_residual_and_relu_is_one_plan() -> None:
    for wanted, found in zip(FUSED, run("child_fused"), strict=True):
        assert found["plans"], found
        for made in found["plans"]:
            nodes = json.loads(made["json"])["operationGraph"]["nodes"]
            assert len(nodes) == 2 + bool(wanted.z) + (wanted.activation != "identity")


def child_identities() -> list[int]:
    planner = Planner(DEVICE)
    counts = []
    for x, y in (("float32", "float16"), ("bfloat16", "float32"), ("float64", "float32")):
        value = identity_graph(*(TensorSpec.packed((3, 5), dtype) for dtype in (x, y)))
        native = operation_graph(value, planner)
        counts.append(native.one("engine_global_count"))
    return counts


def test_a_conversion_is_a_graph_that_cudnn_knows() -> None:
    """Its engines compile at run time, so that only a machine with a driver can tell which there are."""
    assert min(run("child_identities")) > 0


def child_large() -> list[int]:
    planner = Planner(DEVICE)
    shape = (2048, 1024, 1, 1)
    values = [
        reduction_graph(FORMS[op], dtype, MatrixView(2048, 1024, kept))
        for op in ("add", "norm2", "amax")
        for dtype in ("float16", "float32")
        for kept in ("rows", "columns", "")
    ]
    for mode, operands in (("relu", 2), ("swish", 2), ("relu", 3), ("sigmoid", 3), ("tanh", 3)):
        spec = TensorSpec.packed(shape, "float16", "nhwc")
        values.append(activation_graph(ActivationSpec(mode, 1.0), *[spec] * operands))
    return [operation_graph(value, planner).one("engine_global_count") for value in values]


def test_reductions_and_activations_are_graphs_that_cudnn_knows() -> None:
    assert min(run("child_large")) > 0


BYTES = {"x": (8, 64, 28, 28), "w": (64, 64, 3, 3), "padding": 1, "dtype": "int8"}
OF_BYTES: dict[str, dict[str, Any]] = {
    "NHWC": BYTES,
    "NCHW": BYTES | {"layout": "nchw"},
    "w in NCHW": BYTES | {"w_layout": "nchw"},
    "stride": BYTES | {"stride": 2},
    "dilation": BYTES | {"dilation": 2},
    "groups": BYTES | {"w": (64, 16, 3, 3), "groups": 4},
    "uneven padding": BYTES | {"padding": ((0, 1), (2, 1))},
    "flipped": BYTES | {"mode": "convolution"},
    "odd channels": {"x": (2, 5, 9, 9), "w": (7, 5, 3, 3), "dtype": "int8"},
    "one axis": {"x": (8, 64, 100), "w": (64, 64, 3), "dtype": "int8"},
    "three axes": {"x": (2, 8, 5, 6, 7), "w": (4, 8, 3, 3, 3), "dtype": "int8"},
}
SUMS = ("int32", "float32")


def sums_of_bytes(name: str, result: str) -> ConvProblem:
    wanted = problem(**OF_BYTES[name])
    return wanted._replace(y=wanted.y._replace(dtype=result))


def child_bytes() -> list[dict[str, Any]]:
    planner = Planner(DEVICE)
    return [plans_of(sums_of_bytes(name, result), planner) for name in OF_BYTES for result in SUMS]


def test_sums_of_bytes_have_engines() -> None:
    """An engine that writes int32 reads an integer where alpha is: a float's 1 would be 1,065,353,216."""
    cases = [(name, result) for name in OF_BYTES for result in SUMS]
    for (name, result), found in zip(cases, run("child_bytes"), strict=True):
        assert found["plans"], found
        for made in found["plans"]:
            (node,) = json.loads(made["json"])["operationGraph"]["nodes"]
            assert node["alpha"] == (2.0**-149 if result == "int32" else 1), (name, result)
            assert node["beta"] == 0


def child_other_bytes() -> list[str]:
    planner = Planner(DEVICE)
    wanted = sums_of_bytes("NHWC", "int32")
    strange = {"uint8": {"x": "uint8", "w": "uint8"}, "to float16": {"y": "float16"}}
    rows = []
    for dtypes in strange.values():
        specs = {role: getattr(wanted, role)._replace(dtype=dtype) for role, dtype in dtypes.items()}
        rows += candidates(wanted._replace(**specs), planner)
    return [row.rejected for row in rows]


def test_other_bytes_have_no_engine() -> None:
    assert all("no engine" in status for status in run("child_other_bytes"))


# --- refusals ----------------------------------------------------------------------------------------------


def child_refusals() -> list[list[str]]:
    planner = Planner(DEVICE)
    wanted = problem(**IMAGES)
    mixed = wanted._replace(w=wanted.w._replace(dtype="int32"))
    (row,) = candidates(mixed, planner)
    loose, strict = (problem(**IMAGES, dtype="float32", precision=one) for one in (None, "float32"))
    coarse = next(one for one in candidates(loose, planner) if "tensor_core" in one.notes)
    calls = [
        lambda: plan(strict, coarse, planner),
        lambda: plan(mixed, row, planner),
        lambda: plan(mixed, row._replace(algorithm="engine 1", rejected=""), planner),
        lambda: plan(wanted, Candidate("graph", "engine 9999", "fma", 0, True), planner),
        lambda: plan(wanted, Candidate("graph", "engine 62 knobs 2=999", "fma", 0, True), planner),
        lambda: plan(wanted, Candidate("graph", "implicit_gemm", "fma", 0, True), planner),
        lambda: planner.handle,
        lambda: BackendDescriptor(planner.library, "tensor", uid=1),
        lambda: BackendDescriptor(planner.library, "tensors"),
        lambda: BackendDescriptor(planner.library, "convolution", conv_mode="sideways"),
        lambda: BackendDescriptor(planner.library, "tensor", unique_id=1),
        lambda: Planner({"deviceName": "nothing"}),
    ]
    said = []
    for call in calls:
        try:
            call()
        except Exception as error:
            said.append([type(error).__name__, "\n".join([str(error), *getattr(error, "__notes__", [])])])
        else:
            said.append(["nothing", ""])
    return [["row", row.rejected], *said]


def test_refusals_name_the_problem_and_what_there_is() -> None:
    said = run("child_refusals")
    expected = [
        ("row", "cuDNN's heuristics have no engine for this graph"),
        (NotSupportedError, "is excluded by its notes: tensor_core"),
        (NotSupportedError, "forward convolution: x float16[8, 64, 28, 28] nhwc, w int32"),
        (NotSupportedError, "engine 1 cannot compute this forward convolution: x float16"),
        (NotSupportedError, "engine 9999 cannot compute this forward convolution"),
        (NotSupportedError, "engine 62 knobs 2=999 cannot compute this forward convolution"),
        (NotSupportedError, "invalid engine: got 'implicit_gemm'"),
        (NotInitializedError, "<Planner for NVIDIA H200> cannot run plans"),
        (AttributeError, "it has byte_alignment, constant_value, data_type, dimensions"),
        (ValueError, "unknown backend descriptor: got 'tensors', expected one of pointwise, "),
        (
            ValueError,
            "unknown ConvolutionMode: got 'sideways', expected one of convolution, cross_correlation",
        ),
        (BadParamError, "cudnnBackendFinalize"),
        (CudnnError, ""),
    ]
    for (name, text), (kind_of_error, part) in zip(said, expected, strict=True):
        assert part in text
        if kind_of_error is not CudnnError:
            assert name == (kind_of_error if isinstance(kind_of_error, str) else kind_of_error.__name__), text
        else:
            assert name.endswith("Error"), text


# --- what becomes of native objects ------------------------------------------------------------------------


class Counting:
    """A cuDNN that counts the descriptors it makes and destroys, and fails at one of its calls."""

    def __init__(self, library: Any, fail_at: int = -1) -> None:
        self._library = library
        self._left = fail_at
        self.alive = 0

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._library, name)
        if not name.startswith("cudnnBackend"):
            return function

        def call(*arguments: Any) -> Any:
            if name == "cudnnBackendDestroyDescriptor":
                self.alive -= 1
            else:
                self._left -= 1
                if self._left == 0:
                    raise NotSupportedError("made to fail")
            result = function(*arguments)
            self.alive += name == "cudnnBackendCreateDescriptor"
            return result

        return call


def child_failures() -> dict[str, Any]:
    planner = Planner(DEVICE)
    wanted = problem(**IMAGES)
    chosen = candidates(wanted, planner)[0]
    library, steps, left = load(), 0, []
    while True:
        steps += 1
        planner.library = counting = Counting(library, steps)  # type: ignore[assignment]
        try:
            plan(wanted, chosen, planner)
            break
        except NotSupportedError:
            pass  # only after this does the traceback let go of what it holds
        gc.collect()
        left.append(counting.alive)
    gc.collect()
    planner.library = counting = Counting(library)  # type: ignore[assignment]
    made = plan(wanted, chosen, planner)
    held = counting.alive
    del made
    return {"steps": steps, "left": left, "held": held, "at the end": counting.alive}


def test_a_creation_that_fails_at_any_step_leaves_nothing() -> None:
    told = run("child_failures")
    assert told["steps"] > 40
    assert set(told["left"]) == {0}
    assert told["held"] > 8, "a plan holds what it was made of"
    assert told["at the end"] == 0


# --- running, as far as it goes without a GPU --------------------------------------------------------------


class FakeContext:
    """What a plan asks of a context."""

    handle = "the handle"
    address = 0x7000
    capturing = False

    def workspace(self, nbytes: int) -> int:
        return self.address if nbytes else 0


class Recording:
    """A cuDNN that remembers the first three attributes that it was given: none reads a variant pack back."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self.given: list[list[int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)

    def cudnnBackendSetAttribute(self, *arguments: Any) -> None:
        if len(self.given) < 3:
            self.given.append(list(arguments[-1]))
        self._library.cudnnBackendSetAttribute(*arguments)


def child_runs() -> dict[str, Any]:
    planner, context = Planner(DEVICE), FakeContext()
    wanted = problem(**IMAGES)
    row = next(row for row in candidates(wanted, planner) if row.workspace)
    made, executed = plan(wanted, row, planner), []
    made.native.library = library = Recording(load())
    made._execute = lambda *arguments: executed.append(arguments)
    for pointers in ((16, 32, 48), [16, 32, 48], (16, 32, 64), (16, 32, 48)):
        made.run(context, pointers, 1.0, 0.0)  # type: ignore[arg-type]
    context.address = 0x8000
    made.run(context, (16, 32, 48), 1.0, 0.0)  # type: ignore[arg-type]
    packs = [pack for _, _, pack in executed]
    errors = []
    for pointers, alpha, beta in (
        ((16, 32, 50), 1, 0),
        ((16, 32, 48), 2, 0),
        ((16, 32, 48), 1, 1),
        ((16, 32), 1, 0),
    ):
        try:
            made.run(context, pointers, alpha, beta)  # type: ignore[arg-type]
        except (CudnnError, ValueError) as error:
            errors.append(f"{type(error).__name__}: {error}")
    for i in range(1, 400):
        made.run(context, (16 * i, 16, 16), 1.0, 0.0)  # type: ignore[arg-type]
    return {
        "packs": [packs.index(pack) for pack in packs],
        "given": library.given,
        "handles": sorted({handle for handle, _, _ in executed}),
        "errors": errors,
        "kept": len(made._packs),
    }


def test_a_variant_pack_is_kept_for_each_set_of_pointers() -> None:
    told = run("child_runs")
    assert told["packs"] == [0, 0, 2, 0, 4]
    assert told["given"] == [[1, 2, 3], [16, 32, 48], [0x7000]]
    assert told["handles"] == ["the handle"]
    assert told["kept"] == 256
    misaligned, alpha, beta, few = told["errors"]
    assert misaligned.startswith("BadParamError")
    assert "float16[8, 64, 28, 28] nhwc is misaligned: got 0x32, expected a multiple of 16" in misaligned
    assert alpha.startswith("NotSupportedError")
    assert "alpha 2, beta 0" in alpha
    assert "alpha 1, beta 1" in beta
    assert few == "ValueError: number of pointers is wrong: got 2, expected 3"


# --- the table of types, held against cuDNN ----------------------------------------------------------------

POINTERS = {"HANDLE", "BACKEND_DESCRIPTOR", "VOID_PTR"}  # a wrong one would be followed


def child_types() -> dict[str, list[int]]:
    """Which types cuDNN takes for each attribute that is no pointer."""
    library, taken = load(), {}
    for member in BackendDescriptorType:
        shape = kind(member.name.removesuffix("_DESCRIPTOR").lower())
        for name, attribute in shape.attributes.items():
            if attribute.type.ctype in (ctypes.c_char, ctypes.c_void_p) or hasattr(
                attribute.type.ctype, "contents"
            ):
                continue
            taken[f"{shape.name} {name} {attribute.type.code}"] = [
                code for code in PLAIN if _accepts(library, shape.code, attribute.code, code)
            ]
    return taken


PLAIN = (*range(1, 6), *range(7, 15), *range(16, 24), 25, *range(27, 34))  # types that are no pointers


def _accepts(library: Any, descriptor: int, attribute: int, code: int) -> bool:
    blank = BackendDescriptor.__new__(BackendDescriptor)
    try:
        blank._create(library, next(m for m in BackendDescriptorType if m == descriptor).name[:-11].lower())
        value = {4: ctypes.c_float, 5: ctypes.c_double}.get(code, ctypes.c_int64)(1)
        library.cudnnBackendSetAttribute(blank, attribute, code, 1, ctypes.byref(value))
    except CudnnError:
        return False
    return True


def test_attributes_have_the_types_that_cudnn_takes() -> None:
    taken = run("child_types")
    settable = {name: codes for name, codes in taken.items() if codes}
    assert len(settable) > 90
    wrong = {name: codes for name, codes in settable.items() if int(name.split()[2]) not in codes}
    assert wrong == {}


# --- children ----------------------------------------------------------------------------------------------


def run(function: str) -> Any:
    """Run a function of this module in a child with a stand-in driver; its answer."""
    code = f"from tests.lib import test_graph as t; t.load_stand_in(); t.answer(t.{function}())"
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,  # on stderr, cuDNN names every symbol that the stand-in lacks
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-2000:]}"
    return json.loads(done.stdout.splitlines()[-1])


def answer(value: Any) -> None:
    print(json.dumps(value), flush=True)


def load_stand_in() -> None:
    """Load the doctor's stub of libcuda.so.1, whose functions only fail. Only in a child."""
    libraries = libraryset.read(str(Path(find_cudnn().path or "").resolve().parent))
    assert libraries is not None
    ctypes.CDLL(f"/proc/self/fd/{stub_libcuda.in_memory(libraries.driver_functions)}")
