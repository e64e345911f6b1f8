"""Built graphs on a GPU: snippets of the guide, random graphs, PyTorch in float64, replays, threads."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import context as contexts
from cudnn_ct.cuda import stream as streams
from cudnn_ct.errors import NotSupportedError
from cudnn_ct.ops.graph.built import source_of
from tests.attention_cases import CASES, case
from tests.built_attention import BUILT, BUILT_GRADIENTS, check_built, check_built_backward
from tests.mixed import in_threads

ROOT = Path(__file__).resolve().parents[2]

Build = Callable[[ct.Graph, str], Any]

pytestmark = pytest.mark.skipif(not ct.config.replay, reason="first calls run without replays here, too")


def bert_layer(g: ct.Graph, dtype: str) -> ct.GraphTensor:
    return g.gelu(g.input((4, 64, 128), dtype) @ g.input((128, 256), dtype) + g.input((256,), dtype))


def residual_block(g: ct.Graph, dtype: str) -> ct.GraphTensor:
    x, w = g.input((4, 32, 14, 14), dtype, layout="nhwc"), g.input((64, 32, 3, 3), dtype, layout="nhwc")
    z = g.input((4, 64, 14, 14), dtype, layout="nhwc")
    return g.relu(g.conv(x, w, padding=1) * g.input((1, 64, 1, 1), dtype) + z)


GRAPHS: dict[str, Build] = {
    "bert layer": bert_layer,
    "residual block": residual_block,
    "sum of squares": lambda g, dtype: (lambda x: g.reduce(x * x, "add", -1))(g.input((8, 64, 128), dtype)),
    "layer norm": lambda g, dtype: g.layer_norm(g.input((64, 128), dtype), g.input((128,)), g.input((128,))),
    "select": lambda g, dtype: (lambda x, y: g.select(x > y, x, y * 0.5))(
        g.input((64, 128), dtype), g.input((64, 128), dtype)
    ),
    "pooling": lambda g, dtype: g.resample(
        g.input((4, 32, 16, 16), dtype, layout="nhwc"), "maxpool", 3, stride=2, padding=1
    ),
}
TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 4e-3}  # products of float32 in TF32


def operands(problem: Any) -> tuple[list[np.ndarray], list[ct.DeviceArray]]:
    random = np.random.default_rng(0)
    arrays, made = [], []
    for place in problem.inputs:
        spec = problem.values[place].spec
        array = ct.asarray(random.standard_normal(spec.shape) / 4, spec.dtype)
        array = array.packed("nhwc") if spec.layout == "nhwc" else array
        made.append(array)
        arrays.append(array.numpy())
    return arrays, made


@pytest.mark.filterwarnings("ignore:.*has a known defect")
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", GRAPHS)
def test_built_graph_equals_the_reference(name: str, dtype: str) -> None:
    g = ct.Graph()
    y = GRAPHS[name](g, dtype)
    f = g.build(y)
    arrays, given = operands(f.problem)
    expected = ct.reference.graph(f, *arrays).astype(np.float64)
    out = ct.empty(f.outputs[y.name].shape, f.outputs[y.name].dtype)
    if f.outputs[y.name].layout == "nhwc":
        out = out.packed("nhwc")
    for _ in range(4):  # the second call is replayed
        f(*given, out=out)
        error = np.abs(out.numpy().astype(np.float64) - expected).max()
        assert error <= TOLERANCE[dtype] * max(np.abs(expected).max(), 1), f.describe()


def test_built_graph_equals_pytorch_in_float64() -> None:
    torch: Any = pytest.importorskip("torch")
    g = ct.Graph()
    f = g.build(bert_layer(g, "bfloat16"), algo="autotune")
    tensors = [torch.randn(spec.shape, device="cuda", dtype=torch.bfloat16) / 8 for spec in f.inputs.values()]
    x, w, b = (tensor.double() for tensor in tensors)
    expected = torch.nn.functional.gelu(x @ w + b)
    got = torch.from_dlpack(f(*tensors)).double()
    assert float((got - expected).abs().max()) <= 2**-8 * max(float(expected.abs().max()), 1)
    assert f.candidate is not None


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(2, 16, 7, 9), (1, 3, 1, 5), (3, 5, 33, 1), (1, 64, 64, 64)])
def test_each_engine_of_bilinear_resampling_equals_the_reference(shape: tuple[int, ...], dtype: str) -> None:
    """Half precision is supported as the result of an operation that follows."""
    g = ct.Graph()
    y = g.resample(g.input(shape, layout="nhwc", name="x"), "bilinear")
    y = y if dtype == "float32" else g.abs(y).output(dtype=dtype)
    stages = source_of(g.define(y)).heuristics(g.define(y))
    context = contexts.current(streams.resolve_stream(None))
    rows = [row for stage in stages for row in stage(context) if not row.rejected]
    x = np.random.default_rng(0).standard_normal(shape).astype("f")
    for name in dict.fromkeys(row.algorithm for row in rows):
        f = g.build(y, algo=name, strict=True)
        (spec,) = f.outputs.values()
        out = ct.full(spec.shape, np.nan, dtype, layout="nhwc")
        f(ct.asarray(x, layout="nhwc"), out=out)
        expected = np.asarray(ct.reference.graph(f, x), np.float64)
        error = np.abs(out.numpy().astype(np.float64) - expected).max()
        assert error <= {"float32": 1e-6}.get(dtype, TOLERANCE[dtype]) * np.abs(expected).max(), name
    assert rows


@pytest.mark.parametrize("name", BUILT)
def test_built_graph_of_attention_equals_the_reference(name: str) -> None:
    check_built(CASES[name])


@pytest.mark.parametrize("name", BUILT_GRADIENTS)
def test_built_graph_of_gradients_equals_the_reference(name: str) -> None:
    check_built_backward(CASES[name])
    check_built_backward(CASES[name], deterministic=True)


def test_built_graph_of_attention_takes_a_page_table_for_each_of_k_and_v() -> None:
    check_built(CASES["paged"], two_tables=True)
    check_built(CASES["causal"], algo="autotune")


def test_built_graph_of_attention_rejects_known_wrong_results() -> None:
    with pytest.raises(NotSupportedError, match="NaN of masked scores if scale is not positive"):
        check_built(case(scale=-1.0))
    with pytest.raises(NotSupportedError, match="not supported for one key"):
        check_built_backward(case(keys=1))


def test_built_graph_runs_in_threads_and_on_misaligned_arrays() -> None:
    g = ct.Graph()
    f = g.build(g.exp(g.input((4095,)) * 0.5))
    whole = ct.asarray(np.linspace(-1, 1, 4100, dtype="f"))

    def work(number: int) -> None:
        x = whole[number : number + 4095]
        for _ in range(3):
            np.testing.assert_allclose(f(x).numpy(), np.exp(x.numpy() / 2), rtol=1e-5)

    in_threads(4, work)


def test_random_graphs_are_right() -> None:
    command = [sys.executable, "-m", "tests.oracle.random_graphs", "--graphs", "16", "--seed", "11"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=560, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
