"""A cuDNN without legacy calls on the fakes: graphs compute, and all other calls name what they need."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import _lib
from cudnn_ct.autotune.store import store
from cudnn_ct.cli.selftest import SKIPPED, attempt, checks
from cudnn_ct.cli.selftest_cases import cases
from cudnn_ct.context import current
from cudnn_ct.cuda import stream as streams
from cudnn_ct.errors import NotSupportedError
from cudnn_ct.graph.stored import choice_key
from cudnn_ct.legal import rules
from cudnn_ct.ops import activation, pooling
from cudnn_ct.ops.conv import training
from cudnn_ct.ops.reduce import plans
from cudnn_doctor.read.libraries import SUBLIBRARIES, part_of_header
from tests.jit_cases import BY_GRAPHS, OTHERS, failures
from tests.strategies import lay_out, own, shifted

from .cudnn import FakeCudnn
from .test_algorithms import TIME


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


def conv_operands() -> tuple[np.ndarray, np.ndarray]:
    return random(2, 3, 8, 8), random(4, 3, 3, 3, seed=1)


def test_selftest_without_a_gpu_skips_the_descriptors(jit: FakeCudnn) -> None:
    row = dict(checks())["descriptors"]()
    assert row.verdict == SKIPPED
    assert row.detail == "cudnnCreateTensorDescriptor needs libcudnn_ops, which the JIT wheel lacks (3009)"


def test_every_function_belongs_to_a_library() -> None:
    parts = {name: part_of_header(one.header) for name, one in _lib.prototypes().items()}
    assert set(parts.values()) <= set(SUBLIBRARIES)
    assert (parts["cudnnCreate"], parts["cudnnBackendExecute"]) == ("graph", "graph")


@pytest.mark.parametrize("kind", ["float64", "affine grid", "descriptor", "raw"])
def test_legacy_call_names_the_library_that_it_needs(jit: FakeCudnn, kind: str) -> None:
    calls: dict[str, Any] = {
        "float64": lambda: ct.softmax(ct.zeros((2, 3), "float64")),
        "affine grid": lambda: ct.affine_grid(ct.asarray(random(2, 2, 3)), (2, 3, 4, 4)),
        "descriptor": lambda: ct.TensorDescriptor(ct.TensorSpec.packed((1, 2, 3, 4), "float32")),
        "raw": lambda: ct.raw.cudnnCreateTensorDescriptor(None),
    }
    with pytest.raises(NotSupportedError, match=r"needs libcudnn_ops, which the JIT wheel lacks \(3009\)"):
        calls[kind]()
    assert not [name for name in jit.names() if "TensorDescriptor" in name]  # C prints a line


def test_conv_runs_an_engine_and_rejects_legacy_calls(jit: FakeCudnn) -> None:
    x, w = conv_operands()
    given = ct.asarray(x), ct.asarray(w)
    assert np.array_equal(ct.conv(*given, padding=1).numpy(), ct.reference.conv(x, w, padding=1))
    table = ct.conv_algorithms(*given, padding=1, measure=False)
    (legacy,) = [row for row in table if row.backend == "legacy"]
    assert legacy.rejected.endswith("needs libcudnn_cnn, which the JIT wheel lacks (3009)")
    copied = [row.relayout for row in table if row.backend == "graph" and not row.rejected]
    assert copied == [(), (("x", "nhwc"), ("w", "nhwc"), ("y", "nhwc"))]
    with pytest.raises(NotSupportedError, match=r"legacy call needs libcudnn_cnn.*\(3009\)"):
        ct.conv(*given, padding=1, algo="gemm", strict=True)
    with pytest.warns(ct.CudnnWarning, match=r"fell back to graph engine 0 .*libcudnn_cnn"):
        ct.conv(*given, padding=1, algo="gemm")


def test_autotune_stores_its_choice_under_a_key_of_the_set(jit: FakeCudnn, on_disk: Path) -> None:
    x, w = map(ct.asarray, conv_operands())
    jit.second_engine = 3
    ct.conv(x, w, algo=TIME)
    b = ct.asarray(random(4, seed=2))
    ct.conv_bias_activation(x, w, b, algo=TIME)  # separate calls are not among its candidates
    keys = list(store().export())
    assert len(keys) == 2
    assert all(str(key).startswith("cuDNN 91900 jit facts ") for key in keys)


@pytest.mark.parametrize(("kind", "text"), [("full", "9.19.0"), ("jit", "9.19.0 jit")])
def test_key_of_a_choice_has_the_set_of_libraries(
    fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch, kind: str, text: str
) -> None:
    monkeypatch.setattr(_lib.load(), "kind", kind)
    vars(_lib.load()).pop("build", None)
    here = current(streams.current_stream())
    assert f" | cuDNN {text} for CUDA 13 | " in choice_key(here, "problem", {})


@pytest.mark.parametrize("offset", [0, 1])
def test_graph_operations_work_on_dense_operands_of_any_address(jit: FakeCudnn, offset: int) -> None:
    def given(array: np.ndarray) -> Any:
        return own(shifted(array, offset))

    x, w = conv_operands()
    y = ct.conv(given(x), given(w), padding=1)
    assert np.array_equal(y.numpy(), ct.reference.conv(x, w, padding=1))
    a, b = random(6, 8), random(8, 4, seed=1)
    assert np.array_equal(ct.matmul(given(a), given(b)).numpy(), a @ b)
    scale, bias = np.ones(8, np.float32), np.zeros(8, np.float32)
    got = ct.layer_norm(given(a), given(scale), given(bias)).y.numpy()
    assert np.allclose(got, ct.reference.layer_norm(a, scale, bias).y, atol=1e-5)


def test_attention_fills_the_results_of_queries_without_keys(jit: FakeCudnn) -> None:
    q = random(2, 2, 8, 16).astype(np.float16)
    lengths = np.array([3, 0], np.int32)
    got = ct.attention(*[ct.asarray(q)] * 3, lengths_q=lengths, lengths_kv=lengths).y.numpy()
    want = ct.reference.attention(q, q, q, lengths_q=lengths, lengths_kv=lengths).y
    assert np.allclose(got.astype(np.float32), want.astype(np.float32), atol=1e-2)


ONE_STEP: dict[str, Any] = {
    **{
        f"activation {mode}": lambda ops, x, mode=mode: ops.activation(x, mode=mode)
        for mode in ("relu", "sigmoid", "tanh", "elu", "swish", "clipped_relu", "identity")
    },
    "activation_backward": lambda ops, x: ops.activation_backward(x, x, x, mode="swish"),
    **{f"op_tensor {op}": lambda ops, x, op=op: ops.op_tensor(x, x, op=op) for op in ("mul", "min", "max")},
    "op_tensor sqrt": lambda ops, x: ops.op_tensor(x, op="sqrt"),
    "add": lambda ops, x: ops.add(x, x),
    "transform": lambda ops, x: ops.transform(x),
    "transform to half precision": lambda ops, x: ops.transform(x, dtype="float16"),
}


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("name", ONE_STEP)
def test_elementwise_operation_is_a_graph(jit: FakeCudnn, name: str, offset: int, layout: str) -> None:
    x = lay_out(np.abs(random(2, 3, 4, 5)), layout, "packed")
    given = own(shifted(x, offset))
    with np.errstate(invalid="ignore"):
        want = ONE_STEP[name](ct.reference, x)
    got = ONE_STEP[name](ct, given).numpy()
    np.testing.assert_allclose(got.astype(np.float32), want.astype(np.float32), rtol=1e-3)
    assert not [one for one in jit.names() if "Tensor" in one or "Activation" in one]


def test_fill_and_copies_are_calls_of_the_driver(jit: FakeCudnn) -> None:
    x = ct.asarray(random(4, 6, 8))
    for value in (3.0, -1.5):
        assert (ct.fill(x, value).numpy() == value).all()
    y = random(4, 40)
    assert np.array_equal(ct.transform(ct.asarray(y)[:, 8:]).numpy(), y[:, 8:])
    assert not [one for one in jit.names() if "Tensor" in one]


@pytest.mark.parametrize(
    "call",
    [
        lambda x: ct.activation(x, alpha=2),
        lambda x: ct.op_tensor(x, op="not"),
        lambda x: ct.softmax(x, alpha=2),
        lambda x: ct.reduce(x, op="mul"),
        lambda x: ct.reduce(x, op="max", propagate_nan=False),
        lambda x: ct.pool_backward(x, x, x, window=1, alpha=2),
    ],
)
def test_elementwise_operation_without_a_graph_names_the_library(jit: FakeCudnn, call: Any) -> None:
    x = ct.asarray(random(4, 6, 8))
    with pytest.raises(NotSupportedError, match=r"needs libcudnn_ops, which the JIT wheel lacks \(3009\)"):
        call(x)


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda x: ct.op_tensor(x, x, alpha1=2), "alpha1 or alpha2 is not 1, which only legacy functions"),
        (lambda x: ct.op_tensor(x, x, beta=2, out=ct.zeros((4, 6))), "beta is not 0, which only legacy func"),
        (lambda x: ct.softmax(x, alpha=2), "alpha is not 1, which only legacy functions support"),
        (lambda x: ct.op_tensor(x, x, op="max", propagate_nan=False), "propagate_nan is False, which only"),
        (lambda x: ct.op_tensor(x, op="not"), "op is 'not', which only legacy functions support"),
        (lambda x: ct.activation(x, propagate_nan=False), "propagate_nan is False, which only legacy func"),
        (lambda x: ct.reduce(x, op="max", propagate_nan=False), "propagate_nan is False, which only legacy"),
        (lambda _: ct.softmax(ct.zeros((2, 3), "float64")), "no engine computes float64"),
        (lambda _: ct.reduce(ct.zeros((524_281,))), "rows of 524,281 elements: graphs take at most 524,280"),
    ],
)
def test_error_names_the_argument_before_the_library(jit: FakeCudnn, call: Any, argument: str) -> None:
    with pytest.raises(NotSupportedError) as caught:
        call(ct.asarray(random(4, 6)))
    reasons = [line.partition("rejected: ")[2] for line in str(caught.value).splitlines()[1:]]
    assert reasons[0].startswith(argument)
    assert reasons[-1].endswith("needs libcudnn_ops, which the JIT wheel lacks (3009)")


def test_error_of_an_empty_convolution_names_its_operands(jit: FakeCudnn) -> None:
    x, w, bias = (ct.zeros(shape) for shape in ((2, 0, 8, 8), (4, 0, 3, 3), (4,)))
    with pytest.raises(NotSupportedError, match=r"^x .* and w .* give no terms to sum: the epilogue needs"):
        ct.conv_bias_activation(x, w, bias)


def test_error_names_the_libraries_of_the_full_wheel_once(jit: FakeCudnn) -> None:
    with pytest.raises(NotSupportedError) as caught:
        ct.reduce(ct.asarray(random(4, 6)), op="mul", axis=1)
    lines = str(caught.value).splitlines()
    assert len(lines) == len(set(lines))
    assert lines[-1].endswith("needs libcudnn_ops, which the JIT wheel lacks (3009)")
    assert "libcudnn_engines_precompiled" not in str(caught.value)


FUSIONS = {
    "batch_norm_finalize": (training, "FINALIZE"),
    "conv_backward_data_relu_batch_norm": (training, "DATA"),
    "conv_backward_filter_scale_bias_relu": (training, "FILTER"),
}


def gradients_of_one_image(**keywords: Any) -> list[np.ndarray]:
    """The gradients for an image whose strides differ from those of a batch, and the expected ones."""
    dy, w, x = (random(*shape, seed=seed) for seed, shape in enumerate(((1, 8, 6), (8, 16, 3), (1, 16, 6))))
    factors = [np.abs(random(16, seed=seed)) + 0.5 for seed in (3, 4, 5, 6)]
    memory = ct.asarray(np.ascontiguousarray(x.transpose(2, 0, 1)), "float16")
    image = memory.transpose((1, 2, 0))
    assert image.spec.strides == (16, 1, 16)
    halves = [ct.asarray(one, "float16") for one in (dy, w)]
    found = ct.conv_backward_data_relu_batch_norm(
        *halves, image, *(ct.asarray(one) for one in factors), padding="half", **keywords
    )
    wanted = ct.reference.conv_backward_data_relu_batch_norm(
        *(one.numpy() for one in (*halves, image)), *factors, padding="half"
    )
    return [
        (a.numpy().astype(np.float64) - np.asarray(b)) / np.abs(b).max()
        for a, b in zip(found, wanted, strict=True)
    ]


@pytest.mark.parametrize("algo", ["heuristic", "autotune"])
def test_fusion_without_an_engine_takes_any_strides_and_policy(
    jit: FakeCudnn, monkeypatch: pytest.MonkeyPatch, algo: str
) -> None:
    monkeypatch.setattr(training.graphs.DATA_SOURCE, "heuristics", lambda _: [])
    monkeypatch.setattr(training.graphs.DATA_SOURCE, "autotune_candidates", lambda *_: [])
    for difference in gradients_of_one_image(algo=algo):
        assert np.abs(difference).max() < 0.01


@pytest.mark.parametrize("operation", BY_GRAPHS)
def test_operation_of_legacy_calls_equals_reference_by_graphs(jit: FakeCudnn, operation: str) -> None:
    assert not failures(operation)


@pytest.mark.parametrize("operation", FUSIONS)
def test_fusion_without_an_engine_equals_reference_by_graphs(
    jit: FakeCudnn, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    def no_engine(*_: Any) -> Any:
        def select(_: Any) -> Any:
            raise NotSupportedError("no engine")

        return select

    module, name = FUSIONS[operation]
    monkeypatch.setattr(module, name, getattr(module, name)._replace(select=no_engine))
    assert not failures(operation)
    monkeypatch.setattr(_lib.load(), "kind", "full")
    assert all(line.endswith("no engine") for line in failures(operation))


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("name", OTHERS)
def test_graphs_equal_reference_on_other_shapes(jit: FakeCudnn, name: str, offset: int) -> None:
    with np.errstate(all="ignore"):
        want = OTHERS[name](ct.reference, lambda array: array)
        got = OTHERS[name](ct, lambda array: own(shifted(array, offset)))
    for one, other in zip(*((x if isinstance(x, tuple) else (x,)) for x in (got, want)), strict=True):
        if other is not None:
            np.testing.assert_allclose(one.numpy(), other, rtol=1e-3, atol=1e-5)


def test_scale_takes_another_factor_without_another_plan(jit: FakeCudnn) -> None:
    x = ct.asarray(random(3, 5))
    for factor in (0.5, -3.0):
        want = x.numpy() * np.float32(factor)
        before = jit.compilations
        ct.scale(x, alpha=factor)
        np.testing.assert_array_equal(x.numpy(), want)
    assert jit.compilations == before


def test_pooling_gradient_of_a_large_window_is_rejected(jit: FakeCudnn) -> None:
    x = ct.asarray(random(1, 2, 12, 12))
    y = ct.pool(x, window=12)
    with pytest.raises(NotSupportedError, match=r"window has 144 elements(.|\n)*needs libcudnn_ops"):
        ct.pool_backward(y, x, y, window=12)


@pytest.mark.parametrize("version", [91900, 92700])
def test_products_of_one_column_share_a_bias_one_at_a_time(
    jit: FakeCudnn, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """Engines of 9.27 read behind a bias of one element; those of older versions were not run."""
    rules.forget()
    monkeypatch.setattr(_lib.load(), "version", version)
    a, b, bias = np.ones((2, 8, 4), np.float32), np.ones((2, 4, 1), np.float32), np.ones(1, np.float32)
    y = ct.matmul(*map(ct.asarray, (a, b)), bias=ct.asarray(bias))
    np.testing.assert_array_equal(y.numpy(), a @ b + bias)
    assert jit.names().count("cudnnBackendExecute") == 2


def test_scale_reads_misaligned_operands_and_views(jit: FakeCudnn) -> None:
    x = np.arange(48, dtype=np.float32).reshape(6, 8)
    for part in (np.s_[1:, :], np.s_[:, 1:], np.s_[::2, ::3]):
        whole = ct.asarray(x.copy())
        ct.scale(whole[part], alpha=2)
        want = x.copy()
        want[part] *= 2
        np.testing.assert_array_equal(whole.numpy(), want)


@pytest.mark.parametrize("step", [0, -8])
def test_transform_converts_a_misaligned_operand_that_no_descriptor_holds(jit: FakeCudnn, step: int) -> None:
    x = random(49)
    whole = ct.asarray(x)
    start = 41 if step else 1
    rows = ct.DeviceArray.over(
        ct.TensorSpec((6, 8), (step, 1), "float32"),
        whole.pointer + 4 * start,
        whole,
        whole.writer,
        whole.home,
    )
    y = ct.transform(rows, dtype="float16")
    np.testing.assert_array_equal(y.numpy(), [x[start + step * row :][:8] for row in range(6)])


def test_driver_copies_rows_along_the_longest_axis(jit: FakeCudnn) -> None:
    """It would take 8,192 calls along the innermost one, which are too many."""
    x = random(2, 4, 16, 128)
    out = ct.empty((128, 16, 4, 2)).transpose(3, 2, 1, 0)
    ct.transform(ct.asarray(x), out=out)
    np.testing.assert_array_equal(out.numpy(), x)


def test_driver_fills_views(jit: FakeCudnn) -> None:
    whole = ct.zeros((6, 8))
    ct.fill(whole[::2, 1::3], 3)
    want = np.zeros((6, 8))
    want[::2, 1::3] = 3
    np.testing.assert_array_equal(whole.numpy(), want)


def test_selftest_skips_what_needs_another_library(jit: FakeCudnn) -> None:
    rows = [attempt(case) for case in cases() if case.operation in ("softmax", "dropout", "affine_grid")]
    assert {row.verdict for row in rows} == {"ok", "skipped"}
    needs = "which the JIT wheel lacks (3009)"
    assert not [row for row in rows if row.verdict == "skipped" and needs not in row.detail]


def test_sums_without_terms_are_zeros(jit: FakeCudnn) -> None:
    """A plan for factors, which are C calls, is made for calls with factors alone."""
    x, dy = ct.zeros((0, 3, 6, 6)), ct.zeros((0, 4, 4, 4))
    dw = ct.full((4, 3, 3, 3), np.nan)
    ct.conv_backward_filter(dy, x, w_shape=(4, 3, 3, 3), out=dw)
    assert not dw.numpy().any()
    assert not ct.reduce(x, axis=0).numpy().any()
    with pytest.raises(NotSupportedError, match="the JIT wheel lacks"):
        ct.conv_backward_filter(dy, x, w_shape=(4, 3, 3, 3), beta=2, out=dw)


ALONE: dict[str, Callable[[Any, Any, Any], Any]] = {
    "relu": lambda lib, x, _: lib.activation(x),
    "gradient of tanh": lambda lib, x, y: lib.activation_backward(
        y, x, lib.activation(x, mode="tanh"), mode="tanh"
    ),
    "sum": lambda lib, x, y: lib.add(x, y),
    "product": lambda lib, x, y: lib.op_tensor(x, y, op="mul"),
    "maximum": lambda lib, x, y: lib.op_tensor(x, y, op="max"),
    "float16": lambda lib, x, _: lib.transform(x, dtype="float16"),
    "softmax": lambda lib, x, _: lib.softmax(x),
    "gradient of softmax": lambda lib, x, y: lib.softmax_backward(y, lib.softmax(x)),
    "norm": lambda lib, x, _: lib.reduce(x, op="norm2"),
    "instance norm": lambda lib, x, y: lib.instance_norm(x, *[vector(lib, y)] * 2).y,
    "maximum of a window": lambda lib, x, _: lib.pool(x, window=1),
}


def vector(lib: Any, x: Any) -> Any:
    return lib.transform(x.reshape((1,)), dtype="float32")


@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_operation_of_a_single_element_equals_reference(jit: FakeCudnn, name: str, dtype: str) -> None:
    """No engine computes a single element: two are computed."""
    x, y = (np.full((1, 1, 1, 1), value, dtype) for value in (0.5, -2))
    found = ALONE[name](ct, ct.asarray(x), ct.asarray(y))
    wanted = ALONE[name](ct.reference, x, y)
    np.testing.assert_allclose(found.numpy().astype("f"), wanted.astype("f"), rtol=1e-3)


def test_each_compiled_plan_runs(jit: FakeCudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    """An implementation that needs C calls after its graph is given up before it compiles."""
    for module in (activation, plans):
        monkeypatch.setattr(module, "MIN_ELEMENTS", 2)
    x = ct.asarray(random(64, 64), "float16")
    for call in (
        lambda: ct.activation(x, mode="swish", coefficient=1),
        lambda: ct.reduce(x, op="norm2", axis=1),
        lambda: ct.reduce(x, op="norm1", axis=0),
        lambda: ct.reduce(x, op="average"),
    ):
        compiled, ran = jit.compilations, len(jit.executed)
        call()
        assert jit.compilations - compiled == len(jit.executed) - ran > 0


@pytest.mark.parametrize(
    ("shape", "window"),
    [((2, 1, 5, 5), 2), ((1, 1, 2, 2), 2), ((1, 1, 4), 4), ((1, 1, 1, 1), 1), ((1, 1, 1, 2, 9), (1, 1, 3))],
)
def test_maxima_of_one_channel_propagate_nan(
    jit: FakeCudnn, shape: tuple[int, ...], window: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No engine computes elementwise graphs of images with one channel, or of a single element."""
    monkeypatch.setattr(pooling, "_skips_nan", lambda *_: True)
    for place in range(prod(shape)):
        x = random(*shape).astype("float32")
        x.flat[place] = np.nan
        y = ct.pool(ct.asarray(x, layout="nhwc"), window=window)
        np.testing.assert_array_equal(y.numpy(), ct.reference.pool(x, window=window))


@pytest.mark.parametrize("propagate", [True, False])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_maxima_of_windows_propagate_nan(
    jit: FakeCudnn, dtype: str, propagate: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pooling, "_skips_nan", lambda *_: True)  # as in 9.27, newer than the fake
    x = random(2, 8, 6, 6).astype(dtype)
    x[0, 1, 2, 3], x[1, 2, 0, 0], x[1, 3, 5, 5], x[1, 4] = np.nan, np.inf, -np.inf, -np.inf
    x[1, 5, 1, 1], x[1, 5, 1, 2] = np.inf, -np.inf
    y = ct.pool(ct.asarray(x, layout="nhwc"), window=3, stride=2, padding=1, propagate_nan=propagate)
    wanted = ct.reference.pool(x, window=3, stride=2, padding=1, propagate_nan=propagate)
    np.testing.assert_array_equal(y.numpy(), wanted)
    assert ("then NaN" in ct.last_plan().describe()) == propagate
