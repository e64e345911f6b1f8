"""The graph layer with the real cuDNN and no GPU: it plans for a device that is only described.

cuDNN's run-time engines need ``libcuda.so.1``. Without a driver a stub replaces it, which must never stay in
a process that may use a GPU: tests that plan run in child processes.
"""

from __future__ import annotations

import ctypes
import gc
import json
from collections import Counter
from collections.abc import Callable
from functools import partial, wraps
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from cudnn_ct._algorithm_names import is_engine
from cudnn_ct._bindings.enums import BackendDescriptorType, BackendKnobType
from cudnn_ct._dlopen import find_cudnn, open_library
from cudnn_ct._lib import load
from cudnn_ct.errors import BadParamError, CudnnError, NotSupportedError
from cudnn_ct.facts import Target
from cudnn_ct.graph import plan as graph_plans
from cudnn_ct.graph.attributes import kind
from cudnn_ct.graph.engines import Engine, heuristic_configs, plan_to_json
from cudnn_ct.graph.native import operation_graph
from cudnn_ct.graph.offline import Planner
from cudnn_ct.graph.pixels import pixels
from cudnn_ct.graph.plan import BackendDescriptor
from cudnn_ct.legal.conditions import applying
from cudnn_ct.legal.subjects import subjects_of
from cudnn_ct.ops._formulas import conversion_graph
from cudnn_ct.ops.activation import activation_graph
from cudnn_ct.ops.conv.graph import by_name, candidates, graph_of, plan, preferred
from cudnn_ct.ops.reduce.plans import FORMS, MatrixView, reduction_graph
from cudnn_ct.plans.base import Candidate
from cudnn_ct.shapes.conv import ConvProblem
from cudnn_ct.shapes.fused import FusedConv
from cudnn_ct.shapes.specs import ActivationSpec, TensorSpec
from cudnn_doctor import libraryset, sandbox
from tests.conv_cases import packed_problem
from tests.nightly import share
from tests.processes import ROOT, run_python

DEVICE = ROOT / "tests" / "devices" / "h200-cudnn-9.19.json"
DIRECTIONS = ("forward", "backward_data", "backward_filter")
COARSE = {"tensor_core", "down_convert_inputs"}
pytestmark = pytest.mark.usefixtures("can_plan")


def in_child(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test, which may have parameters, in a child process that has loaded a stub of the driver."""

    @wraps(test)
    def parent(**parameters: Any) -> None:
        code = f"import {test.__module__} as t, tests.lib.test_graph as g; g.load_stub(); "
        code += f"t.{test.__name__}.__wrapped__(**{parameters!r})"
        done = run_python("-W", "error", "-W", "ignore:cuDNN ", "-c", code, timeout=200)  # known defects
        assert done.returncode == 0, f"{done.returncode}: {done.stderr[-4000:]}"
        # On stderr, cuDNN names every symbol that the stub lacks.
        assert "Could not load symbol" not in done.stderr, "the stub lacks a function"

    return parent


def parameter(name: str, first: Any, *nightly: Any) -> pytest.MarkDecorator:
    """Give a test a parameter; values behind the first take long, and are for the night."""
    rest = [pytest.param(value, marks=pytest.mark.nightly) for value in nightly]
    return pytest.mark.parametrize(name, [first, *rest], ids=lambda value: Path(str(value)).name)


# --- the grid ----------------------------------------------------------------------------------------------


problem = partial(packed_problem, dtype="float16", layout="nhwc")
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


def check_plans(wanted: Any, planner: Planner) -> list[dict[str, Any]]:
    """Check the candidates of a problem and the plans of three of them; return the plans' graphs as JSON."""
    rows = candidates(wanted, planner)
    usable = [row for row in rows if not row.rejected]
    assert usable, rows
    assert len({row.algorithm for row in rows}) == len(rows)
    assert all(row.backend == "graph" and row.workspace >= 0 for row in usable)
    graphs = []
    for row in dict.fromkeys([usable[0], usable[len(usable) // 2], usable[-1]]):
        made = plan(wanted, row, planner)
        assert made.workspace == row.workspace
        assert row.algorithm in made.describe()
        written = json.loads(plan_to_json(made.native))
        chosen = Engine.parse(row.algorithm)
        assert written["engine"]["engineId"] == chosen.number
        for knob, choice in chosen.knobs:
            name = f"CUDNN_KNOB_TYPE_{BackendKnobType(knob).name}"
            assert written["engine"]["knobChoices"][name] == choice
        graphs.append(written["operationGraph"])
    return graphs


def check_node(wanted: ConvProblem, graph: dict[str, Any]) -> None:
    """Check that the graph of a plan computes the problem."""
    (node,) = graph["nodes"]
    assert node["operation"] == f"CUDNN_BACKEND_OPERATION_CONVOLUTION_{wanted.direction.upper()}_DESCRIPTOR"
    tensors = {tensor["name"]: tensor for tensor in graph["tensors"]}
    for uid, spec in enumerate((wanted.x, wanted.w, wanted.y), 1):
        dims, strides = tensors[str(uid)]["dim"], tensors[str(uid)]["stride"]
        steps = Counter((n, s) for n, s in zip(dims, strides, strict=True) if n > 1)
        assert steps == Counter((n, s) for n, s in zip(spec.shape, spec.strides, strict=True) if n > 1)
    assert node["dilation"][-len(wanted.dilation) :] == list(wanted.dilation)
    assert node["stride"][-len(wanted.stride) :] == list(wanted.stride)
    assert ("CROSS" in node["mode"]) == (wanted.mode == "cross_correlation")


def check_precision(wanted: ConvProblem, planner: Planner) -> None:
    """Check that engines are usable exactly if they are as precise as a strict problem requires."""
    native = operation_graph(graph_of(wanted), planner)
    offered = {str(offer.engine): offer.notes for offer in heuristic_configs(native, planner)}
    rows = candidates(wanted, planner)
    for row in rows:
        assert row.deterministic == ("nondeterministic" not in row.notes)
        if row.algorithm in offered:
            assert bool(COARSE & set(offered[row.algorithm])) == ("coarser than" in row.rejected), row
        else:
            assert is_engine(row.algorithm)
    assert rows == sorted(rows, key=lambda row: bool(row.rejected))
    assert all(row.math == "fma" for row in rows if not row.rejected)


@in_child
def test_engines_become_plans_of_the_problem() -> None:
    planner = Planner(DEVICE)
    for name, direction in share(CASES, 6):
        wanted = problem(**GRID[name], direction=direction)
        for graph in check_plans(wanted, planner):
            check_node(wanted, graph)
        if "strict" in name:
            check_precision(wanted, planner)
    rows = candidates(problem(**GRID["float32 strict"]), planner)
    assert len([row for row in rows if not row.rejected]) >= 4, "with those that the heuristics omit"


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


def test_facts_name_the_engine_that_measurements_prefer() -> None:
    for direction, arguments, engine in PREFERRED:
        (subject,) = subjects_of(problem(**arguments, direction=direction))
        names = [fact.row["order"] for fact in applying("first", subject, Target(91900, "full", (9, 0)))]
        assert names[:1] == ([[engine]] if engine else []), (direction, arguments)


@in_child
def test_preferred_engines_are_offered_on_the_device_that_was_measured() -> None:
    here, older, unknown = (Planner(DEVICE) for _ in range(3))
    older.description["deviceVer"] = 800
    del unknown.description["deviceVer"]
    for direction, arguments, engine in PREFERRED:
        wanted = problem(**arguments, direction=direction)
        found = [(row.algorithm, row.rejected) for row in preferred(wanted, here)]
        assert found == ([(engine, "")] if engine and engine not in TRANSFORMS else [])
        assert not preferred(wanted, older) + preferred(wanted, unknown)


@in_child
def test_by_name_returns_the_engine_that_the_heuristics_offer() -> None:
    planner = Planner(DEVICE)
    for name, direction in CASES[:6]:
        wanted = problem(**GRID[name], direction=direction)
        for row in [row for row in candidates(wanted, planner) if not row.rejected][:3]:
            assert by_name(wanted, row.algorithm, planner) == row
        unknown = by_name(wanted, "engine 999", planner).rejected
        assert unknown == "cuDNN does not support this engine for the problem"


def fused(activation: str, *, residual: bool, **arguments: Any) -> FusedConv:
    conv = problem(**(IMAGES | arguments))
    bias = TensorSpec.packed((1, 64, 1, 1), conv.y.dtype, arguments.get("layout", "nhwc"))
    factors = {"z": conv.y, "alpha1": 2.0, "alpha2": 0.5} if residual else {}
    return FusedConv(conv, bias, activation=activation, **factors)


@in_child
def test_a_convolution_with_bias_residual_and_relu_is_one_plan() -> None:
    planner = Planner(DEVICE)
    for arguments in ({}, {"dtype": "bfloat16"}, {"dtype": "float32"}, STRICT | {"layout": "nchw"}):
        for activation in ("relu", "identity"):
            for residual in (False, True):
                wanted = fused(activation, residual=residual, **arguments)
                for graph in check_plans(wanted, planner):
                    assert len(graph["nodes"]) == 2 + residual + (activation != "identity")


@in_child
def test_conversions_reductions_and_activations_have_engines_that_compile_at_run_time() -> None:
    values = [
        reduction_graph(FORMS[op], dtype, MatrixView(2048, 1024, kept))
        for op in ("add", "norm2", "amax")
        for dtype in ("float16", "float32")
        for kept in ("rows", "columns", "")
    ]
    for mode, operands in (("relu", 2), ("swish", 2), ("relu", 3), ("sigmoid", 3), ("tanh", 3)):
        spec = TensorSpec.packed((2048, 1024, 1, 1), "float16", "nhwc")
        values.append(activation_graph(ActivationSpec(mode, 1.0), *[spec] * operands))
    for pair in (("float32", "float16"), ("bfloat16", "float32"), ("float64", "float32")):
        values.append(conversion_graph(*(pixels(1, 15, dtype) for dtype in pair)))
    planner = Planner(DEVICE)
    for value in values:
        offer = next(heuristic_configs(operation_graph(value, planner), planner))
        assert "runtime_compilation" in offer.notes, value


BYTES = {"x": (8, 64, 28, 28), "w": (64, 64, 3, 3), "padding": 1, "dtype": "int8"}
OF_BYTES: dict[str, dict[str, Any]] = {
    "NHWC": BYTES,
    "NCHW": BYTES | {"layout": "nchw"},
    "w in NCHW": BYTES | {"w_layout": "nchw"},
    "uneven padding": BYTES | {"padding": ((0, 1), (2, 1))},
    "odd channels, flipped": {"x": (2, 5, 9, 9), "w": (7, 5, 3, 3), "dtype": "int8", "mode": "convolution"},
    "one axis": {"x": (8, 64, 100), "w": (64, 64, 3), "dtype": "int8"},
    "three axes": {"x": (2, 8, 5, 6, 7), "w": (4, 8, 3, 3, 3), "dtype": "int8"},
}


@pytest.mark.nightly
@in_child
def test_sums_of_int8_have_engines() -> None:
    """An engine that writes int32 reads an integer at alpha: a float's 1 would be 1,065,353,216."""
    planner = Planner(DEVICE)
    for name, arguments in OF_BYTES.items():
        for result, alpha in (("int32", 2.0**-149), ("float32", 1)):
            wanted = problem(**arguments)
            for graph in check_plans(wanted._replace(y=wanted.y._replace(dtype=result)), planner):
                (node,) = graph["nodes"]
                assert (node["alpha"], node["beta"]) == (alpha, 0), (name, result)


# --- rejections --------------------------------------------------------------------------------------------


@in_child
def test_rejections_name_the_problem_and_the_alternatives() -> None:
    planner = Planner(DEVICE)
    wanted = problem(**IMAGES)
    mixed = wanted._replace(w=wanted.w._replace(dtype="int32"))
    (row,) = candidates(mixed, planner)
    assert "cuDNN's heuristics have no engine for this graph" in row.rejected
    loose, strict = (problem(**IMAGES, dtype="float32", precision=one) for one in (None, "float32"))
    coarse = next(one for one in candidates(loose, planner) if "tensor_core" in one.notes)

    def engine(algorithm: str) -> Candidate:
        return Candidate("graph", algorithm, "fma", 0, True)

    cannot = "cannot compute this forward convolution"
    rejected: list[tuple[ConvProblem, Candidate, str]] = [
        (strict, coarse, "is excluded by its notes: tensor_core"),
        (mixed, row, r"x float16\[8, 64, 28, 28\] nhwc, w int32"),
        (mixed, engine("engine 1"), f"engine 1 {cannot}: x float16"),
        (wanted, engine("engine 9999"), f"engine 9999 {cannot}"),
        (wanted, engine("engine 62 knobs 2=999"), f"999 {cannot}"),
        (wanted, engine("gemm"), "invalid engine: got 'gemm'"),
    ]
    for wrong, candidate, text in rejected:
        with pytest.raises(NotSupportedError, match=text):
            plan(wrong, candidate, planner)
    with pytest.raises(BadParamError, match="cudnnBackendFinalize"):
        BackendDescriptor(planner.library, "tensor", unique_id=1)
    with pytest.raises(CudnnError, match="cudnn"):
        Planner({"deviceName": "nothing"})


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


@pytest.mark.nightly
@in_child
def test_plan_leaves_no_descriptor_when_its_creation_fails_at_any_step() -> None:
    graph_plans.VariantPacks = lambda *_: None  # type: ignore[assignment, misc]  # they take addresses of functions
    planner = Planner(DEVICE)
    wanted = problem(**IMAGES)
    chosen = candidates(wanted, planner)[0]
    library = load()
    for step in count(1):
        planner.library = counting = Counting(library, step)  # type: ignore[assignment]
        try:
            made = plan(wanted, chosen, planner)
            break
        except NotSupportedError:
            pass  # the traceback holds the descriptors until here
        gc.collect()
        assert counting.alive == 0, step
    assert step > 40
    assert counting.alive > 8, "a plan holds what it was made of"
    del made
    gc.collect()
    assert counting.alive == 0


# --- running, as far as it goes without a GPU --------------------------------------------------------------


class FakeContext:
    """The parts of a context that a plan uses."""

    handle = "the handle"
    address = 0x7000
    capturing = False

    def workspace(self, nbytes: int) -> int:
        return self.address if nbytes else 0


@in_child
def test_a_variant_pack_is_kept_for_each_set_of_pointers() -> None:
    planner, context = Planner(DEVICE), FakeContext()
    wanted = problem(**IMAGES)
    row = next(row for row in candidates(wanted, planner) if row.workspace)
    made = plan(wanted, row, planner)
    executed: list[tuple[Any, ...]] = []
    made._execute = lambda *arguments: executed.append(arguments)

    def run_plan(*pointers: int, alpha: float = 1.0, beta: float = 0.0) -> None:
        made.run(context, pointers, alpha, beta)  # type: ignore[arg-type]

    for pointers in ((16, 32, 48), (16, 32, 48), (16, 32, 64), (16, 32, 48)):
        run_plan(*pointers)
    context.address = 0x8000
    run_plan(16, 32, 48)
    packs = [pack for _, _, pack in executed]
    assert [packs.index(pack) for pack in packs] == [0, 0, 2, 0, 4]
    assert {handle for handle, _, _ in executed} == {"the handle"}
    with pytest.raises(BadParamError, match=r"float16\[8, .* got 0x32, expected a multiple of 16"):
        run_plan(16, 32, 50)
    for alpha, beta in ((2, 0), (1, 1)):
        with pytest.raises(NotSupportedError, match=f"alpha {alpha}, beta {beta}"):
            run_plan(16, 32, 48, alpha=alpha, beta=beta)
    with pytest.raises(ValueError, match="number of pointers is wrong: got 2, expected 3"):
        run_plan(16, 32)
    for i in range(1, 400):
        run_plan(16 * i, 16, 16)
    assert len(made._packs) == 256


# --- the table of types, held against cuDNN ----------------------------------------------------------------

# Types that are not pointers: cuDNN would follow a wrong pointer.
PLAIN = (*range(1, 6), *range(7, 15), *range(16, 24), 25, *range(27, 34))


@in_child
def test_attributes_have_the_types_that_cudnn_takes() -> None:
    library, settable = load(), 0
    for member in BackendDescriptorType:
        shape = kind(member.name.removesuffix("_DESCRIPTOR").lower())
        for name, attribute in shape.attributes.items():
            if attribute.type.code in PLAIN:
                taken = [code for code in PLAIN if _accepts(library, shape.name, attribute.code, code)]
                settable += bool(taken)
                assert not taken or attribute.type.code in taken, (shape.name, name, taken)
    assert settable > 90


def _accepts(library: Any, descriptor: str, attribute: int, code: int) -> bool:
    parent: Any = None
    try:
        blank = BackendDescriptor(library, descriptor, parent)
        value = {4: ctypes.c_float, 5: ctypes.c_double}.get(code, ctypes.c_int64)(1)
        library.cudnnBackendSetAttribute(blank, attribute, code, 1, ctypes.byref(value))
    except CudnnError:
        return False
    return True


def load_stub() -> None:
    """Load the doctor's stub of libcuda.so.1, whose functions only fail, and NVRTC. Only in a child."""
    libraries = libraryset.read(str(Path(find_cudnn().path or "").resolve().parent))
    assert libraries is not None
    ctypes.CDLL(f"/proc/self/fd/{sandbox.in_memory(libraries.driver_functions, planning=True)}")
    compiler = load().find_nvrtc()  # cuDNN itself looks for it next to its own folder only
    if compiler:
        open_library(Path(compiler))
