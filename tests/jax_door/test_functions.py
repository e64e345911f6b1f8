"""`cudnn_ct.jax` on the CPU: values, gradients and vmap inside jit, by the reference."""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
import threading
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from tests.jax_cases import CASES, SHARDED, SPLIT, Case, check_gradients, function_of, mapped, operands_of

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
from jax.test_util import check_grads  # noqa: E402

from cudnn_ct import jax as ctj  # noqa: E402
from cudnn_ct.gradients.table import OPERATIONS  # noqa: E402
from cudnn_ct.jax.calls import Call, call_of  # noqa: E402
from cudnn_ct.reference.rnn import rnn as reference_rnn  # noqa: E402
from cudnn_ct.shapes.rnn import rnn_parameters, rnn_spec  # noqa: E402

if jax.default_backend() != "cpu":
    pytest.skip("these tests are for the CPU; tests/gpu has those of a GPU", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("float64")

TOLERANCE = {"float64": 1e-10, "float32": 2e-5, "float16": 2e-3}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_value_inside_jit_equals_the_reference(case: Case) -> None:
    operands = operands_of(case)
    function, given = function_of(case, operands)
    found = jax.jit(function)(*given)
    expected = case.reference(*operands, **case.keywords)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(found, expected, rtol=TOLERANCE[case.dtype], atol=TOLERANCE[case.dtype])
    np.testing.assert_array_equal(function(*given), found)  # outside of jit


def test_every_row_with_a_gradient_has_a_case() -> None:
    assert {name for name, row in OPERATIONS.items() if row.gradient} - {case.name for case in CASES} == set()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients_equal_differences(case: Case) -> None:
    check_gradients(case)


def test_second_derivative_of_a_convolution_equals_differences() -> None:
    x, w = operands_of(CASES[0])
    check_grads(partial(ctj.conv, **CASES[0].keywords), (x, w), 2, modes=["rev"], atol=1e-4, rtol=1e-4)


def test_second_derivative_that_does_not_exist_is_an_error() -> None:
    x = operands_of(Case("softmax", ((3, 4),), {}, np.asarray))[0]
    with pytest.raises(NotImplementedError, match="the derivative of softmax_backward is not supported"):
        jax.grad(lambda x: (jax.grad(lambda x: (ctj.softmax(x) ** 2).sum())(x) ** 2).sum())(x)


MAPPED = [
    (ctj.conv, (0, None), {}),
    (ctj.conv, (1, None), {"padding": "half"}),
    (ctj.conv, (0, 0), {}),
    (ctj.conv, (None, 0), {}),
]


@pytest.mark.parametrize(("function", "axes", "keywords"), MAPPED)
def test_vmap_of_a_convolution_equals_a_loop(function: Any, axes: Any, keywords: Any) -> None:
    rng = np.random.default_rng(0)
    shapes = ((2, 4, 6, 5), (6, 4, 3, 3))
    operands = [
        rng.standard_normal(shape if axis is None else (*shape[:axis], 3, *shape[axis:]))
        for shape, axis in zip(shapes, axes, strict=True)
    ]

    def pick(array: Any, axis: int | None, place: int) -> Any:
        return array if axis is None else np.take(array, place, axis)

    call = partial(function, **keywords)
    found = jax.jit(jax.vmap(call, in_axes=axes))(*operands)
    loop = [call(*[pick(*one, place) for one in zip(operands, axes, strict=True)]) for place in range(3)]
    np.testing.assert_allclose(found, np.stack(loop), rtol=1e-12, atol=1e-12)

    def loss(*operands: Any) -> Any:
        return (jax.vmap(call, in_axes=axes)(*operands) ** 2).sum()

    check_grads(loss, operands, 1, modes=["rev"], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_vmap_over_all_operands_equals_a_loop(case: Case) -> None:
    found, expected = mapped(case)
    np.testing.assert_allclose(found, expected, rtol=TOLERANCE[case.dtype], atol=TOLERANCE[case.dtype])


@pytest.mark.parametrize("name", ["softmax", "layer_norm", "rms_norm"])
def test_vmap_of_rows_is_one_call(name: str) -> None:
    x, scale = np.random.default_rng(0).standard_normal((3, 4, 8)).astype("float32"), np.ones(8, "float32")
    operands = () if name == "softmax" else (scale,)
    mapped = jax.vmap(lambda x: getattr(ctj, name)(x, *operands))
    np.testing.assert_allclose(mapped(x), getattr(ctj, name)(x, *operands), rtol=1e-6, atol=1e-6)
    text = str(jax.make_jaxpr(mapped)(x))
    assert text.count("ffi_call[") == 1
    assert "scan" not in text


def plain_attention(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("bhsd,bhtd->bhst", q, k).astype("float32") / q.shape[-1] ** 0.5
    hidden = jnp.triu(jnp.ones(scores.shape[-2:], bool), 1)
    return jnp.einsum("bhst,bhtd->bhsd", jax.nn.softmax(jnp.where(hidden, -jnp.inf, scores)), v).astype(
        q.dtype
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_attention_and_its_gradients_equal_those_of_jax(dtype: str) -> None:
    rng = np.random.default_rng(0)
    q, k, v = (jnp.asarray(rng.standard_normal((2, 3, 8, 16)), dtype) for _ in range(3))
    tolerance = {"rtol": 0.05, "atol": 0.02 if dtype == "float16" else 0.1}

    def loss(function: Any) -> Any:
        return lambda *operands: (function(*operands).astype("float32") ** 2).sum()

    ours = jax.jit(partial(ctj.attention, causal="top_left"))
    np.testing.assert_allclose(ours(q, k, v).astype("float32"), plain_attention(q, k, v), **tolerance)
    found = jax.jit(jax.grad(loss(ours), (0, 1, 2)))(q, k, v)
    expected = jax.grad(loss(plain_attention), (0, 1, 2))(*(one.astype("float32") for one in (q, k, v)))
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == dtype
        np.testing.assert_allclose(one.astype("float32"), other, **tolerance)


def test_ctc_loss_and_its_gradient_equal_the_reference() -> None:
    logits = np.random.default_rng(0).standard_normal((6, 2, 4)).astype("float32")
    integers = [np.array(one, "int32") for one in ([[1, 2], [3, 3]], [2, 2], [6, 5])]
    expected = ct.reference.ctc_loss(logits, *integers)

    def loss(logits: Any) -> Any:
        return (ctj.ctc_loss(logits, *integers) * jnp.array([1.0, 2.0], "float32")).sum()

    np.testing.assert_allclose(jax.jit(ctj.ctc_loss)(logits, *integers), expected.loss, rtol=1e-5)
    weights = np.array([1, 2], "float32").reshape(1, 2, 1)
    np.testing.assert_allclose(
        jax.jit(jax.grad(loss))(logits), expected.gradient * weights, rtol=1e-4, atol=1e-6
    )


NETWORKS = [
    ({"mode": "lstm", "hidden_size": 4}, True),
    ({"mode": "lstm", "hidden_size": 4, "num_layers": 2, "direction": "bidirectional"}, False),
    ({"mode": "gru", "hidden_size": 3, "bias": "single_inp_bias"}, True),
    ({"mode": "rnn_tanh", "hidden_size": 3, "lengths": (5, 2)}, False),
]


@pytest.mark.parametrize(("network", "with_states"), NETWORKS, ids=str)
def test_network_and_its_gradients_equal_the_reference(network: dict[str, Any], with_states: bool) -> None:
    rng, layers = np.random.default_rng(0), network.get("num_layers", 1) * (1 + ("direction" in network))
    sizes = {key: value for key, value in network.items() if key not in ("mode", "hidden_size", "lengths")}
    size = ctj.rnn_weight_size(network["mode"], 3, network["hidden_size"], **sizes)
    x, w = rng.standard_normal((5, 2, 3)), rng.standard_normal(size)
    states = [rng.standard_normal((layers, 2, network["hidden_size"])) for _ in range(2)]
    given = states[: 2 if network["mode"] == "lstm" else 1] if with_states else []
    found = jax.jit(partial(ctj.rnn, **network))(x, w, *given)
    spec = rnn_spec(network["mode"], 3, network["hidden_size"], dtype="float64", **sizes)
    weights = [row.view(w) for row in rnn_parameters(spec)]
    first = dict(zip(("h0", "c0"), given, strict=False))
    expected = reference_rnn(x, weights, spec, **first, lengths=network.get("lengths"))
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)

    def results(*operands: Any) -> Any:
        return [one for one in ctj.rnn(*operands, **network) if one is not None]

    check_grads(jax.jit(results), (x, w, *given), 1, modes=["rev"], atol=1e-4, rtol=1e-4)


def test_network_with_wrong_weights_is_an_error() -> None:
    with pytest.raises(
        ValueError, match=r"w has the wrong shape: got \(5,\), expected \(144,\) for lstm 3 -> 4"
    ):
        ctj.rnn(np.ones((5, 2, 3)), np.ones(5), mode="lstm", hidden_size=4)


def test_batch_norm_returns_the_statistics_of_the_batch() -> None:
    x = np.random.default_rng(0).standard_normal((5, 3, 4, 4))
    ones = np.ones(3)
    _, mean, var = jax.jit(ctj.batch_norm_training)(x, ones, ones)
    np.testing.assert_allclose(mean, x.mean((0, 2, 3)), rtol=1e-9)
    np.testing.assert_allclose(var, x.var((0, 2, 3)), rtol=1e-9)


def test_half_precision_images_keep_the_channels_last() -> None:
    x, w = jnp.ones((2, 8, 8, 8), "float16"), jnp.full((8, 8, 3, 3), 2**-6, "float16")

    def stack(x: Any) -> Any:
        for _ in range(3):
            x = jnp.maximum(ctj.conv(x, w, padding="half"), 0)
        return x

    inside = jax.jit(stack)(x)[:, :, 3, 3]
    np.testing.assert_allclose(inside.astype("float32"), np.full((2, 8), (72 / 64) ** 3), rtol=1e-2)
    text = jax.jit(stack).lower(x).as_text()
    assert text.count("operand_layouts = [dense<[1, 3, 2, 0]>") == 3


def test_wrong_shapes_are_an_error_when_jax_traces() -> None:
    x, w = jnp.ones((2, 4, 6, 6)), jnp.ones((6, 3, 3, 3))
    with pytest.raises(ValueError, match="x has 4 channels; w expects 3 x groups 1"):
        jax.jit(ctj.conv)(x, w)
    with pytest.raises(ValueError, match="padding"):
        ctj.conv(x, w, padding="same")


def test_float64_that_jax_would_convert_is_named() -> None:
    jax.config.update("jax_enable_x64", False)
    with pytest.raises(
        TypeError, match=r"x is float64, which JAX converts to float32: .*x\.astype\('float32'\)"
    ):
        ctj.softmax(np.ones((2, 3)))


def test_call_is_read_back_from_its_text() -> None:
    """A stored program is run by another process, whose handler has the text alone."""
    arrays = (("x", (2, 8, 6, 5), "float16"), ("w", (4, 8, 3, 3), "float16"))
    params = tuple((one, param.default) for one, param in OPERATIONS["conv"].params.items())
    call = call_of("conv", params, arrays)
    assert Call.read(call.text().encode()) == call
    assert call.results[0].layout == "nhwc"


def test_package_does_not_import_jax() -> None:
    code = "import sys, cudnn_ct; cudnn_ct.asarray; cudnn_ct.reference.conv; print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_other_major_version_of_the_interface_is_rejected_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from cudnn_ct.jax import ffi

    ffi.check_version()
    monkeypatch.setattr(ffi, "_number", lambda part: {"MAJOR": 1, "MINOR": 2}[part])
    with pytest.raises(
        ImportError, match=rf"supports version 0\.x of XLA's .*, and jax {jax.__version__} has 1\.2"
    ):
        ffi.check_version()


def run_program(program: str, **environment: str) -> Any:
    """Run a program in a process of its own."""
    path = os.pathsep.join([str(Path(ct.__file__).parents[1]), *sys.path])
    given = {"env": {**os.environ, **environment, "PYTHONPATH": path}, "timeout": 300}
    return subprocess.run([sys.executable, "-c", program], **given, capture_output=True, text=True)


def on_devices(program: str, count: int = 2) -> Any:
    """Return what a program prints, on several devices of the CPU."""
    flags = f"--xla_force_host_platform_device_count={count}"
    done = run_program(program, XLA_FLAGS=flags, JAX_PLATFORMS="cpu")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["devices"] == count
    return found["far"]


def test_function_that_is_split_over_devices_equals_the_whole() -> None:
    far = on_devices(SHARDED)
    assert max(far) < 1e-5, far


def test_each_row_that_is_split_over_devices_equals_a_loop() -> None:
    far = on_devices(SPLIT)
    assert len(far) >= len({str(case) for case in CASES})
    assert {name: value for name, value in far.items() if value > 2e-3} == {}


@pytest.mark.parametrize("padding", [((1, 1),), ((1, 0),), (1,), 1, "half"], ids=str)
def test_padding_of_pooling_may_have_a_pair_for_each_axis(padding: Any) -> None:
    x = np.random.default_rng(0).random((2, 3, 5), np.float32)
    expected = ct.reference.pool(x, window=3, stride=1, padding=padding)
    np.testing.assert_allclose(ctj.pool(x, 3, stride=1, padding=padding), expected, rtol=1e-6)


ENDS_EARLY = """
import time
import jax, jax.numpy as jnp
from cudnn_ct import jax as ctj
from cudnn_ct.jax import kernels
x, w, a = jnp.ones((2, 4, 8, 8)), jnp.ones((4, 4, 3, 3)), jnp.ones((2500, 2500))
conv, product = jax.jit(ctj.conv), jax.jit(lambda a: (a @ a @ a)[0, 0])
conv(x, w).block_until_ready(), product(a).block_until_ready()
function = kernels.reference.conv
def slow(*operands, **keywords):
    time.sleep(1)
    return function(*operands, **keywords)
kernels.reference.conv = slow
y = conv(x + 0 * product(a), w)  # which begins later
print("the program ends")
"""


def test_process_that_does_not_wait_for_its_result_ends() -> None:
    done = run_program(ENDS_EARLY)
    assert (done.returncode, done.stdout) == (0, "the program ends\n"), done.stderr


def test_page_runs() -> None:
    page = Path(ct.__file__).parents[1] / "docs" / "jax.md"
    if not page.is_file():
        pytest.skip("docs/ is not next to the package")
    jax.config.update("jax_enable_x64", False)
    found: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(block, str(page), "exec"), found)
    assert found["gradient"].shape == (8, 3, 3, 3)
    assert (np.asarray(found["gradient"]) > 0).all()
    np.testing.assert_allclose(found["y"], np.full((4, 8), 1 / 8))


def test_call_has_the_settings_at_the_time_of_tracing(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX keeps traces of a function, which must not be used with other settings."""
    x, w = jnp.ones((1, 4, 5, 5), "float32"), jnp.ones((4, 4, 3, 3), "float32")
    found = []
    for name, value in (("algo", "heuristic"), ("algo", "autotune"), ("allow_tf32", False)):
        monkeypatch.setattr(ct.config, name, value)
        text = jax.jit(lambda x, w: ctj.conv(x, w)).lower(x, w).as_text()
        call = re.search(r'call = "((?:[^"\\]|\\.)*)"', text)
        found.append(Call.read(call[1].replace(r"\22", '"').encode()).selection())
    plain = {"deterministic": False, "algo": "heuristic"}
    tuned = plain | {"algo": "autotune"}
    assert found == [plain, tuned, tuned | {"precision": "float32"}]


def test_a_thread_of_xla_keeps_its_state_between_calls() -> None:
    """Python drops what it has for a thread that it did not start, and makes it again, in each call."""
    from cudnn_ct.jax import ffi

    def run(frame: ffi.Frame) -> None:
        local.value = Value()
        found.append((weakref.ref(local.value), frame))

    found: list[Any] = []
    local, Value = threading.local(), type("Value", (), {})
    ffi.register("cudnn_ct_test.kept", "cpu", run, lambda _: 13, 0)
    text = ctypes.create_string_buffer(b"text")
    span = ctypes.pointer(ffi.Span(ctypes.addressof(text), 4))
    frame = ffi.CallFrame(attributes=ffi.Attributes(values=ctypes.pointer(span)))
    thread, threads = ctypes.c_ulong(), ctypes.CDLL(None)  # whose start routine has the type of a handler
    threads.pthread_create(ctypes.byref(thread), None, ffi._kept[-1], ctypes.byref(frame))
    threads.pthread_join(thread, None)
    ((kept, made),) = found
    assert made.call == b"text"
    assert made.operands == made.results == ()
    assert kept() is not None
