"""`cudnn_ct.jax` on a GPU: values and gradients inside jit, half precision, command buffers, threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from tests.jax_cases import CASES, SHARDED, Case, differentiable, function_of, operands_of

from .conftest import library

TOLERANCE = {"float64": 1e-6, "float32": 2e-3, "float16": 0.03}


@pytest.fixture
def door() -> Iterator[Any]:
    """JAX with a GPU, float64, and strict float32 on this package's side."""
    jax = library("jax")
    if jax.default_backend() != "gpu":
        pytest.skip(f"jax {jax.__version__} computes on {jax.default_backend()} here")
    from cudnn_ct import jax as ctj
    from cudnn_ct.jax import kernels

    before, tf32 = jax.config.read("jax_enable_x64"), ct.config.allow_tf32
    jax.config.update("jax_enable_x64", True)
    ct.config.allow_tf32 = False
    yield SimpleNamespace(jax=jax, ops=ctj, kernels=kernels, cpu=jax.devices("cpu")[0])
    ct.config.allow_tf32 = tf32
    jax.config.update("jax_enable_x64", before)


def far(found: Any, expected: Any) -> float:
    """Return the largest difference, relative to the largest element."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    assert found.shape == expected.shape
    assert np.isfinite(found).all(), f"not finite at {np.argwhere(~np.isfinite(found))[:5].tolist()}"
    return float(np.abs(found - expected).max() / max(np.abs(expected).max(), 1e-30))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_value_and_gradients_inside_jit_equal_the_cpu(case: Case, door: Any) -> None:
    """The same functions on the CPU are the reference, whose gradients are compared with differences."""
    jax = door.jax
    function, operands = function_of(case, operands_of(case))
    weights = np.random.default_rng(1).uniform(
        0.5, 1.5, case.reference(*operands_of(case), **case.keywords).shape
    )

    def loss(*arrays: Any) -> Any:
        y = function(*arrays)
        return (y * weights.astype(y.dtype)).astype(
            "float32" if case.dtype == "float16" else y.dtype
        ).sum(), y

    given = [place for place, shape in enumerate(case.shapes) if shape is not None]
    places = tuple(given.index(place) for place in differentiable(case))
    both = jax.jit(jax.grad(loss, places, has_aux=True))
    found = both(*[jax.device_put(one) for one in operands])
    expected = both(*[jax.device_put(one, door.cpu) for one in operands])
    assert far(found[1], expected[1]) < TOLERANCE[case.dtype], "y"
    for place, one, other in zip(places, found[0], expected[0], strict=True):
        assert one.dtype == other.dtype
        assert far(one, other) < TOLERANCE[case.dtype], f"gradient of operand {place}"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_twelve_convolutions_in_half_precision_are_near_float64(dtype: str, door: Any) -> None:
    jax, jnp = door.jax, door.jax.numpy
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((4, 32, 28, 28)), rng.standard_normal((32, 32, 3, 3)) / (32 * 9 / 2) ** 0.5

    def network(x: Any, w: Any) -> Any:
        for _ in range(12):
            x = jnp.maximum(door.ops.conv(x, w, padding="half"), 0)
        return x

    found = jax.jit(network)(jnp.asarray(x, dtype), jnp.asarray(w, dtype))
    expected = x
    for _ in range(12):
        expected = np.asarray(
            jax.lax.conv_general_dilated(jnp.asarray(expected), jnp.asarray(w), (1, 1), ((1, 1), (1, 1)))
        ).clip(0)
    assert found.dtype == dtype
    assert far(found, expected) < (0.01 if dtype == "float16" else 0.06)

    def loss(w: Any) -> Any:
        return (network(jnp.asarray(x, w.dtype), w).astype("float32") ** 2).mean()

    gradient = jax.jit(jax.grad(loss))(jnp.asarray(w, dtype))
    wide = jax.jit(jax.grad(loss))(jnp.asarray(w))  # float64, through the same formulas
    assert far(gradient, wide) < (0.05 if dtype == "float16" else 0.3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("causal", [None, "top_left"])
def test_attention_and_its_gradients_are_near_those_of_jax(dtype: str, causal: str | None, door: Any) -> None:
    jax, jnp = door.jax, door.jax.numpy
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, 4, 128, 64)) for _ in range(3))

    def plain(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("bhsd,bhtd->bhst", q, k) / 8
        if causal:
            scores = jnp.where(jnp.triu(jnp.ones((128, 128), bool), 1), -jnp.inf, scores)
        return jnp.einsum("bhst,bhtd->bhsd", jax.nn.softmax(scores), v)

    def loss(function: Any) -> Any:
        return lambda *operands: (function(*operands).astype("float32") ** 2).sum()

    half = [jnp.asarray(one, dtype) for one in (q, k, v)]
    wide = [one.astype("float64") for one in half]

    def ours(*operands: Any) -> Any:
        return door.ops.attention(*operands, causal=causal)

    limit = 0.01 if dtype == "float16" else 0.05
    assert far(jax.jit(ours)(*half), plain(*wide)) < limit
    found = jax.jit(jax.grad(loss(ours), (0, 1, 2)))(*half)
    expected = jax.grad(loss(plain), (0, 1, 2))(*wide)
    for name, one, other in zip("qkv", found, expected, strict=True):
        assert far(one, other) < 2 * limit, name


def test_ctc_loss_and_its_gradient_equal_the_reference(door: Any) -> None:
    jax = door.jax
    logits = np.random.default_rng(0).standard_normal((12, 3, 7)).astype(np.float32)
    integers = [
        np.array(one, np.int32) for one in ([[1, 2, 3], [3, 3, 0], [4, 0, 0]], [3, 2, 1], [12, 11, 9])
    ]
    expected = ct.reference.ctc_loss(logits, *integers)
    assert far(jax.jit(door.ops.ctc_loss)(logits, *integers), expected.loss) < 1e-4
    gradient = jax.jit(jax.grad(lambda logits: door.ops.ctc_loss(logits, *integers).sum()))(logits)
    assert far(gradient, expected.gradient) < 1e-3


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    "network",
    [
        {"mode": "lstm", "hidden_size": 32, "num_layers": 2},
        {"mode": "gru", "hidden_size": 16, "direction": "bidirectional"},
    ],
    ids=lambda network: network["mode"],
)
def test_network_and_its_gradients_equal_the_cpu(network: dict[str, Any], dtype: str, door: Any) -> None:
    jax = door.jax
    rng = np.random.default_rng(0)
    sizes = {key: value for key, value in network.items() if key not in ("mode", "hidden_size")}
    size = door.ops.rnn_weight_size(network["mode"], 16, network["hidden_size"], **sizes)
    x, w = rng.standard_normal((10, 3, 16)).astype(dtype), (rng.standard_normal(size) / 4).astype(dtype)

    def loss(x: Any, w: Any) -> Any:
        found = [one for one in door.ops.rnn(x, w, **network) if one is not None]
        return sum((one.astype("float32") ** 2).sum() for one in found), found

    both = jax.jit(jax.grad(loss, (0, 1), has_aux=True))
    gradients, results = both(*(jax.device_put(one) for one in (x, w)))
    expected, values = both(*(jax.device_put(one, door.cpu) for one in (x, w)))
    limit = 1e-3 if dtype == "float32" else 0.02
    for name, one, other in zip(("y", "hy", "cy"), results, values, strict=False):
        assert far(one, other) < limit, name
    for name, one, other in zip("xw", gradients, expected, strict=True):
        assert far(one, other) < 3 * limit, name


def test_vmap_of_a_convolution_equals_a_loop(door: Any) -> None:
    jax = door.jax
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((3, 2, 4, 8, 8), (6, 4, 3, 3)))
    found = jax.jit(jax.vmap(door.ops.conv, in_axes=(0, None)))(x, w)
    assert far(found, np.stack([ct.reference.conv(one, w) for one in x])) < 1e-6


@pytest.mark.parametrize("batch", [1, 2])
def test_vmap_of_attention_with_a_bias_equals_a_loop(batch: int, door: Any) -> None:
    jax, jnp = door.jax, door.jax.numpy
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.standard_normal((3, 2, 4, 64, 64)), "float16")
    bias = jnp.asarray(rng.standard_normal((batch, 1, 64, 64)), "float16")

    def attention(x: Any) -> Any:
        return door.ops.attention(x, x, x, bias)

    assert far(jax.jit(jax.vmap(attention))(x), np.stack([attention(one) for one in x])) < 0.01

    def loss(x: Any) -> Any:
        return (attention(x).astype("float32") ** 2).sum()

    found = jax.jit(jax.vmap(jax.grad(loss)))(x)
    assert far(found, np.stack([jax.grad(loss)(one) for one in x])) < 0.02


def test_names_in_upper_case_have_the_same_gradients(door: Any) -> None:
    """The gradient of a maximum reads the result, which its formula takes for a maximum only."""
    jax = door.jax
    x = np.random.default_rng(0).standard_normal((2, 4, 6, 6)).astype(np.float32)

    def gradient(mode: str) -> Any:
        return jax.jit(jax.grad(lambda x: (door.ops.pool(x, 2, mode=mode) ** 2).sum()))(x)

    np.testing.assert_array_equal(gradient("MAX"), gradient("max"))


def test_vmap_of_activations_without_axes_is_one_value_each(door: Any) -> None:
    x = np.linspace(-2, 2, 5, dtype=np.float32)
    found = door.jax.jit(door.jax.vmap(lambda x: door.ops.activation(x, "tanh")))(x)
    assert far(found, np.tanh(x)) < 1e-3


def test_labels_of_any_integers_are_learned(door: Any) -> None:
    jax = door.jax
    logits = np.random.default_rng(0).standard_normal((6, 2, 4)).astype(np.float32)
    integers = [np.array(one, np.int64) for one in ([[1, 2], [3, 3]], [2, 2], [6, 5])]
    expected = ct.reference.ctc_loss(logits, *integers)
    assert far(jax.jit(door.ops.ctc_loss)(logits, *integers), expected.loss) < 1e-4


def test_error_of_a_call_is_an_error_of_jax_with_its_text(door: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = door.jax.numpy.ones((2, 5, 7), "float32")
    compiled = door.jax.jit(door.ops.softmax)
    compiled(x).block_until_ready()

    def fails(*_: Any) -> None:
        raise ValueError("the text of the error")

    monkeypatch.setattr(door.kernels, "_prepared", fails)
    with pytest.raises(Exception, match="the text of the error"):
        door.jax.jit(lambda x: door.ops.softmax(x) * 1)(x).block_until_ready()


def test_calls_that_are_learned_are_captured(door: Any) -> None:
    """Convolutions, products, norms and attention allocate nothing in their calls.

    The gradient of attention is not among them: its call was rejected in a test capture on an H200.
    """
    from cudnn_ct.gradients.table import OPERATIONS
    from cudnn_ct.jax.calls import call_of

    rows = {
        "conv": {"x": (2, 16, 16, 16), "w": (16, 16, 3, 3)},
        "conv_backward_data": {"dy": (2, 16, 14, 14), "w": (16, 16, 3, 3)},
        "conv_backward_filter": {"dy": (2, 16, 14, 14), "x": (2, 16, 16, 16)},
        "pool": {"x": (2, 16, 16, 16)},
        "softmax": {"x": (64, 64)},
        "matmul": {"a": (64, 64), "b": (64, 64)},
        "layer_norm": {"x": (64, 64), "scale": (64,)},
        "attention": dict.fromkeys("qkv", (2, 4, 64, 64)),
    }  # fmt: skip
    shapes = {"x_shape": (2, 16, 16, 16), "w_shape": (16, 16, 3, 3)}
    found = {}
    for name, operands in rows.items():
        params = {one: shapes.get(one, param.default) for one, param in OPERATIONS[name].params.items()}
        arrays = tuple(
            (one, shape, "float32" if one == "scale" else "float16") for one, shape in operands.items()
        )
        found[name] = door.kernels.learned(call_of(name, tuple(params.items()), arrays).text())
    print(found)
    assert [name for name, needs in found.items() if not needs.capturable] == []


CHILD = """
import json, sys, numpy as np, jax, jax.numpy as jnp
from cudnn_ct import jax as ctj
from cudnn_ct.jax import kernels
rng = np.random.default_rng(0)
x = jnp.asarray(rng.standard_normal((4, 32, 28, 28)), "float16")
w = jnp.asarray(rng.standard_normal((32, 32, 3, 3)) / 12, "float16")
def network(conv):
    def run(x, w):
        for _ in range(12):
            x = jnp.maximum(conv(x, w), 0)
        return x
    return jax.jit(run)
ours = network(lambda x, w: ctj.conv(x, w, padding="half"))
theirs = network(lambda x, w: jax.lax.conv_general_dilated(x, w, (1, 1), ((1, 1), (1, 1))))
calls, prepared = [], kernels._prepared
def counted(*arguments):
    calls.append(1)
    return prepared(*arguments)
compiled = ours.lower(x, w).compile()
kernels._prepared = counted
expected = np.asarray(theirs(x, w), np.float32)
counts, far = [], 0.0
for step in range(8):
    calls.clear()
    y = compiled(x, w).block_until_ready()
    counts.append(len(calls))
    far = max(far, float(abs(np.asarray(y, np.float32) - expected).max() / abs(expected).max()))
    del y  # the next result may have its memory: XLA captures again if an address changes
print(json.dumps({"counts": counts, "far": far}))
"""
KINDS = "FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL"
CAPTURE = f"--xla_gpu_enable_command_buffer={KINDS} --xla_gpu_graph_min_graph_size=1"


@pytest.mark.parametrize(
    "flags", ["--xla_gpu_enable_command_buffer=", CAPTURE, ""], ids=["off", "on", "default"]
)
def test_network_is_right_with_and_without_command_buffers(flags: str, door: Any) -> None:
    """With them XLA captures the calls: a step of a program whose memory is known calls no Python."""
    paths = os.pathsep.join([str(Path(ct.__file__).parents[1]), *sys.path])
    environment = {
        **os.environ, "XLA_FLAGS": flags, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "PYTHONPATH": paths,
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    found = json.loads(done.stdout.splitlines()[-1])
    print(flags or "default", found)
    assert found["far"] < 0.01, found
    if flags == CAPTURE:
        assert 0 in found["counts"][1:], found  # but for those whose memory moved
    elif flags:
        assert found["counts"][1:] == [12] * 7, found


def test_function_that_is_split_over_gpus_equals_the_whole(door: Any) -> None:
    if len(door.jax.devices()) < 2:
        pytest.skip("one GPU")
    paths = os.pathsep.join([str(Path(ct.__file__).parents[1]), *sys.path])
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "PYTHONPATH": paths}
    done = subprocess.run(
        [sys.executable, "-c", SHARDED],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert max(found["far"]) < 5e-3, found  # TF32
