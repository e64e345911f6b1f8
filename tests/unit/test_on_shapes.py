"""Programs on shapes, on a machine without a GPU, and the commands that run them."""

from __future__ import annotations

import json
import pkgutil
import sys
from collections.abc import Callable
from importlib import import_module
from inspect import isclass, isfunction, signature
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import _lib, shapes
from cudnn_ct.array_shapes import only_shapes
from cudnn_ct.cli import compile_child
from cudnn_ct.cli.output import words_of
from cudnn_ct.cuda import stream as streams
from cudnn_ct.cuda.driver import driver
from cudnn_ct.errors import LibraryNotFoundError, NotInitializedError, VersionMismatchError
from cudnn_ct.graph.recording import _ARGUMENTS, RecordedPlans, into, unplanned
from cudnn_ct.shapes.layers import pool_problem
from cudnn_ct.shapes.specs import TensorSpec


def test_programs_on_shapes_are_available_and_need_not_wait() -> None:
    with only_shapes():
        assert ct.available()
        with ct.use(device=0) as stream:
            ct.synchronize(stream)
        ct.empty_cache()
        assert ct.last_plan() is None


def test_results_on_shapes_are_arrays_of_the_package() -> None:
    x, w, out = (np.zeros(shape, np.float16) for shape in [(1, 8, 5, 5), (8, 8, 1, 1), (1, 8, 5, 5)])
    with ct.record_plans(shapes_only=True):
        assert ct.conv(x, w, out=out).layout == "nchw"
        assert ct.conv(x, w, out=(given := ct.asarray(out))) is given
        with pytest.raises(TypeError, match=r"^out is not an array: got list; ct\.asarray\(out\) makes one$"):
            ct.conv(x, w, out=[1])  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"^x: .*complex64"):
            ct.conv(x.astype(np.complex64), w)
        with pytest.raises(TypeError, match="value must be"):
            ct.zeros((2,)).fill("a")  # type: ignore[arg-type]


def test_errors_of_arrays_on_shapes_name_the_public_type() -> None:
    with only_shapes():
        x: Any = ct.zeros((4, 4))
        with pytest.raises(TypeError, match=r"a DeviceArray does not .* ct.transform\(y, out=x\[:1\]\)"):
            x[:1] = x
        with pytest.raises(TypeError, match="index is not supported: got DeviceArray"):
            x[x]
        with pytest.raises(TypeError, match="not 'DeviceArray'"):
            float(x)


class DynamicLibNotFoundError(Exception):
    """The error of CUDA's path finder for a missing driver."""


@pytest.fixture
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise DynamicLibNotFoundError("libcuda.so.1")

    bindings = ModuleType("cuda.bindings")
    monkeypatch.setattr(bindings, "__getattr__", missing, raising=False)
    monkeypatch.setitem(sys.modules, bindings.__name__, bindings)
    driver.cache_clear()
    streams.device_count.cache_clear()
    streams.default_stream.cache_clear()


def double(x: Any) -> Any:
    return ct.add(x, x)


def train(x: Any) -> Any:
    network = ct.RNN("lstm", 8, 4)
    return network.forward(x[0], ct.zeros((network.weight_size,)), training=True)


# Calls that cannot run on shapes, their names in messages, and the advice.
ONLY_ON_A_GPU: dict[str, tuple[Callable[[Any, Any], object], str]] = {
    "conv_plan": (ct.conv_plan, "call conv instead"),
    "conv_bias_activation_plan": (
        lambda x, w: ct.conv_bias_activation_plan(x, w, w[0, :, 0, 0]),
        "call conv_bias_activation instead",
    ),
    "conv_algorithms": (ct.conv_algorithms, "leave it out"),
    "a function of ct.capture": (lambda x, _: ct.capture(double)(x), "call the function itself"),
    "DropoutState": (lambda *_: ct.DropoutState(0.5), "leave it out"),
    "ctc_loss": (lambda x, _: ct.ctc_loss(x[0], [1] * 8, [1] * 8, [4] * 8), "leave it out"),
    "RNN.forward": (lambda x, _: train(x), "pass training=False"),
    "DeviceArray.pointer": (lambda x, _: x.pointer, "leave it out"),
    "DeviceArray.__dlpack__": (lambda x, _: x.__dlpack__(), "leave it out"),
}


@pytest.mark.usefixtures("no_driver")
@pytest.mark.parametrize("name", ONLY_ON_A_GPU)
def test_calls_that_need_a_gpu_say_so_on_shapes(name: str) -> None:
    call, advice = ONLY_ON_A_GPU[name]
    words = rf"^{name} needs a GPU and cannot run on shapes(: .*)?; in .*\(shapes_only=True\), {advice}$"
    with ct.record_plans(shapes_only=True):
        x, w = ct.zeros((4, 8, 8, 8)), ct.zeros((4, 8, 3, 3))
        with pytest.raises(NotInitializedError, match=words):
            call(x, w)
    with pytest.raises(NotInitializedError, match=words), ct.record_plans():
        call(x, w)


def test_other_errors_within_a_block_on_shapes_stay_as_they_are() -> None:
    with pytest.raises(VersionMismatchError, match=r"^too old$"), ct.record_plans(shapes_only=True):
        raise VersionMismatchError("too old")


@pytest.mark.usefixtures("no_driver")
@pytest.mark.parametrize(
    "call",
    [
        lambda: ct.zeros((2,)),
        lambda: ct.asarray([1, 2]),
        lambda: ct.DropoutState(0.5),
        lambda: ct.capture(lambda: ct.zeros(2))(),
        ct.synchronize,
    ],
)
def test_calls_without_a_driver_name_what_works_without_a_gpu(call: Callable[[], object]) -> None:
    words = r"^no CUDA driver: .*\n.* `with ct\.record_plans\(shapes_only=True\):`"
    with pytest.raises(NotInitializedError, match=words):
        call()
    assert "\n" not in ct.available().reason


def test_training_pass_of_a_network_cannot_run_on_shapes() -> None:
    network = ct.RNN("lstm", 3, 4)
    with only_shapes():
        x, w = ct.zeros((5, 2, 3)), ct.zeros((network.weight_size,))
        assert network.forward(x, w).y.shape == (5, 2, 4)
        with pytest.raises(NotInitializedError, match="the reserve of a training pass is memory of a GPU"):
            network.forward(x, w, training=True)


def test_built_graph_rejects_missing_inputs_on_shapes() -> None:
    with ct.record_plans(shapes_only=True):
        g = ct.Graph()
        a, b = g.input((4, 4)), g.input((4, 4))
        built = g.build(g.relu(a + b))
        assert built(ct.zeros((4, 4)), ct.zeros((4, 4))).shape == (4, 4)
        with pytest.raises(TypeError, match="input_1 is not an array: got NoneType"):
            built(ct.zeros((4, 4)), None)


def test_export_plans_rejects_a_recording_on_shapes(tmp_path: Path) -> None:
    with ct.record_plans(shapes_only=True) as recorded:
        ct.matmul(ct.zeros((64, 64), "float16"), ct.zeros((64, 64), "float16"))
    with pytest.raises(ValueError, match="plans has no compiled plans, because its calls ran on shapes"):
        ct.export_plans(tmp_path / "plans.file", recorded)
    assert not (tmp_path / "plans.file").exists()


def test_arrays_are_no_operands_of_a_graph_and_scalars_are() -> None:
    g = ct.Graph()
    a = g.input((4, 4))
    with pytest.raises(TypeError, match="got ndarray, expected a GraphTensor or a number"):
        np.ones((4, 4), np.float32) + a  # type: ignore[operator]
    with pytest.raises(TypeError, match="unsupported operand"):
        np.ones((4, 4), np.float32) @ a
    for made in (np.float32(2) * a, a * np.float32(2), a + np.int64(3), 1 - a):
        assert made.shape == (4, 4)
    with pytest.raises(TypeError, match=r"got bool_?, expected a GraphTensor or a number"):
        a + np.True_


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"devic": "h200"}, "unexpected argument for a graph: got devic=, expected device="),
        ({"device": 3}, "device is not a name, a path or a description: got 3"),
    ],
)
def test_explain_rejects_wrong_arguments(arguments: dict[str, Any], words: str) -> None:
    g = ct.Graph()
    with pytest.raises(TypeError, match=words):
        ct.explain(g, g.relu(g.input((4, 4))), **arguments)


def test_explain_rejects_calls_on_shapes_where_nothing_is_planned() -> None:
    words = r"nothing is planned on shapes.* device=.* cudnn-ct supports FILE --gpu"
    with pytest.raises(NotInitializedError, match=words), ct.record_plans(shapes_only=True):
        ct.explain(ct.conv, ct.zeros((1, 4, 8, 8)), ct.zeros((4, 4, 3, 3)))


# --- calls without a graph ---------------------------------------------------------------------------------

IMAGE, FILTER, ROW = (2, 4, 8, 8), (4, 4, 3, 3), (4,)
# Operations without a graph, and the end of the text of such a call, in the names of its arguments.
IN_PUBLIC_NAMES: dict[str, tuple[Callable[[], object], str]] = {
    "pool": (
        lambda: ct.pool(ct.zeros(IMAGE), window=2),
        "window (2, 2), padding ((0, 0), (0, 0)), stride (2, 2), mode max, propagate_nan True",
    ),
    "lrn": (lambda: ct.lrn(ct.zeros(IMAGE)), "n 5, lrn_alpha 0.0001, lrn_beta 0.75, k 2.0"),
    "softmax": (lambda: ct.softmax(ct.zeros(IMAGE), axis=(2, 3)), "axis (2, 3), algo accurate"),
    "activation": (
        lambda: ct.activation(ct.zeros(IMAGE), mode="relu"),
        "mode relu, coefficient 0.0, propagate_nan True",
    ),
    "reduce": (
        lambda: ct.reduce(ct.zeros(IMAGE), op="mul", axis=1),
        "axis (1,), op mul, propagate_nan True, deterministic False",
    ),
    "batch_norm_training": (
        lambda: ct.batch_norm_training(ct.zeros(IMAGE), ct.zeros(ROW), ct.zeros(ROW)),
        "mode spatial, epsilon 1e-05, momentum 0.1",
    ),
}


@pytest.mark.parametrize("name", IN_PUBLIC_NAMES)
def test_calls_without_a_graph_are_described_by_their_arguments(name: str) -> None:
    call, words = IN_PUBLIC_NAMES[name]
    with ct.record_plans(shapes_only=True) as recorded:
        call()
    (text,) = recorded.skipped
    assert text.startswith(f"{name} at test_on_shapes.py:")
    assert text.endswith(f" nchw, {words}")


def test_reasons_of_rejected_calls_are_described_by_their_arguments() -> None:
    problem = pool_problem({"x": TensorSpec.packed(IMAGE, "float32")}, (None,), 2, None, 0, "max", True)
    recorded = RecordedPlans()
    with into(recorded):
        unplanned(problem, f"NotSupportedError: cuDNN does not support this {problem}")
    ((call, reason),) = recorded.skipped.items()
    assert "Params(" not in call + reason
    assert reason.endswith(
        "window (2, 2), padding ((0, 0), (0, 0)), stride (2, 2), mode max, propagate_nan True"
    )


def test_fields_of_problems_are_described_by_public_names() -> None:
    """A field that no function takes or returns by this name needs a row in `recording._ARGUMENTS`."""
    functions = [getattr(ct, name) for name in ct.__all__]
    public = {one for each in functions if isfunction(each) for one in signature(each).parameters}
    public |= {one for each in functions if isclass(each) for one in getattr(each, "_fields", ())}
    parts = {"name", "params", "parameters", "band", "conv", "ctc", "repairs", "states", "descriptor"}
    for module in pkgutil.iter_modules(shapes.__path__, "cudnn_ct.shapes."):
        for problem in vars(import_module(module.name)).values():
            made_here = getattr(problem, "__module__", "") == module.name and problem.__name__ != "RNNStep"
            if not (made_here and hasattr(problem, "_fields") and hasattr(problem, "results")):
                continue
            names = [_ARGUMENTS.get(field, field) for field in problem._fields if field not in parts]
            unknown = [name for name in names if name and not public & set(name.split())]
            assert not unknown, (problem, unknown)


# --- the commands ------------------------------------------------------------------------------------------


@pytest.fixture
def no_planner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_child, "Planner", lambda description: description)


@pytest.mark.usefixtures("no_planner")
def test_words_name_the_line_of_a_program(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("def layer():\n    raise ValueError('wrong\\nmore')\n\nlayer()\n")
    asserting = tmp_path / "asserting.py"
    asserting.write_text("assert 1 == 2\n")
    request = {"settings": {}, "device": {}, "terminal": None}
    for file, words in (
        (program, "line 2 in layer: ValueError: wrong"),
        (asserting, "line 1: AssertionError (assert 1 == 2)"),
    ):
        found = compile_child._compiled({**request, "file": str(file)})
        assert found == {"wrong_file": words, "is_program": True}
    assert words_of(KeyError("x"), "") == "KeyError: 'x'"


@pytest.mark.usefixtures("no_planner")
@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"call": []}, 'expected a JSON object with "calls", or the "graphs" that a recording saved'),
        ({"calls": [{"function": "activatoin"}]}, "got 'activatoin'; did you mean 'activation'?"),
    ],
)
def test_compile_names_the_error_of_a_json_file(tmp_path: Path, content: Any, words: str) -> None:
    file = tmp_path / "calls.json"
    file.write_text(json.dumps(content))
    found = compile_child._compiled({"settings": {}, "device": {}, "terminal": None, "file": str(file)})
    assert words in found["wrong_file"]
    assert not found["is_program"]


def test_calls_on_shapes_need_no_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise LibraryNotFoundError("libcudnn was not found")

    monkeypatch.setattr(_lib, "load", missing)
    with ct.record_plans(shapes_only=True):
        for dtype in ("float16", "float32", "float64"):
            x, w = ct.zeros((2, 4, 9, 9), dtype), ct.zeros((8, 4, 3, 3), dtype)
            assert ct.conv(x, w, padding=1).shape == (2, 8, 9, 9)
        q = ct.zeros((2, 4, 16, 64), "float16")
        assert ct.attention(q, q, q).y.shape == q.shape
        a, b = ct.zeros((4, 8)), ct.zeros((8, 4))
        assert ct.matmul(a, b).shape == (4, 4)
        g = ct.Graph()
        f = g.build(g.relu(g.input((4, 8)) @ g.input((8, 4))))
        assert f(a, b).shape == (4, 4)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: ct.scale(None, alpha=1),  # type: ignore[arg-type]
        lambda x: ct.fill(None, 1),  # type: ignore[arg-type]
        lambda x: ct.scaled_attention(None, x, x),  # type: ignore[arg-type]
    ],
)
def test_operand_that_is_none_is_a_type_error(call: Any) -> None:
    with (
        ct.record_plans(shapes_only=True),
        pytest.raises(TypeError, match=r"^[xq] is not an array: got NoneType"),
    ):
        call(ct.zeros((1, 1, 16, 16), "float8_e4m3"))


@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool", "float8_e4m3"])
def test_batch_norm_inference_rejects_other_dtypes(dtype: str) -> None:
    with ct.record_plans(shapes_only=True):
        x, parameter = ct.zeros((2, 3, 4, 4), dtype), ct.zeros((3,), dtype)
        with pytest.raises(TypeError, match=f"^batch normalisation takes float16, .*, not {dtype}$"):
            ct.batch_norm_inference(x, *[parameter] * 4)


@pytest.mark.parametrize("ops", [ct, ct.reference], ids=["ct", "reference"])
def test_empty_operands_are_checked_as_others_are(ops: Any) -> None:
    few, many, rows = (np.zeros(shape, np.float32) for shape in [(1, 5, 1, 0), (2, 5, 1, 0), (0, 1, 4, 8)])
    with ct.record_plans(shapes_only=True):
        assert ops.add(many, few).shape == (2, 5, 1, 0)
        with pytest.raises(ValueError, match=r"^b has shape \(2, 5, 1, 0\); a of shape \(1, 5, 1, 0\) needs"):
            ops.add(few, many)
        assert ops.clear_padding(rows, []).shape == rows.shape
        q = rows.astype(np.float16)
        assert ops.attention(q, q, q, lengths_q=[], lengths_kv=()).y.shape == q.shape
