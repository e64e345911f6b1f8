"""Built graphs on the fakes, compared with the reference: values, arrays, threads, closing, errors."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from tests.mixed import in_threads
from tests.tensor_cases import REDUCTIONS

from .cudnn import FakeCudnn
from .host import ForeignArray, Host

Build = Callable[[ct.Graph], Any]


@pytest.fixture
def engines(fake: FakeCudnn) -> FakeCudnn:
    fake.engines = True
    return fake


def arrays_of(problem: Any, seed: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    arrays = []
    for place in problem.inputs:
        spec = problem.values[place].spec
        array = random.integers(-8, 9, spec.shape) / 4
        if "int" in spec.dtype:
            array = random.integers(0, 3, spec.shape)
        arrays.append(array.astype(spec.dtype))
    return arrays


def on_device(arrays: list[np.ndarray], problem: Any) -> list[ct.DeviceArray]:
    made = []
    for array, place in zip(arrays, problem.inputs, strict=True):
        spec = problem.values[place].spec
        made.append(
            ct.asarray(array, layout="nhwc" if "nhwc" in spec.layouts and len(spec.shape) > 3 else None)
        )
    return made


def check(build: Build, **options: Any) -> Any:
    """Build a graph, run it, and compare its outputs with the reference."""
    g = ct.Graph()
    made = build(g)
    outputs = made if isinstance(made, tuple) else (made,)
    f = g.build(*outputs, **options)
    arrays = arrays_of(f.problem)
    got, expected = f(*on_device(arrays, f.problem)), ct.reference.graph(f, *arrays)
    pairs = [(got, expected)] if len(outputs) == 1 else list(zip(got, expected, strict=True))
    for one, want in pairs:
        assert one.dtype == want.dtype
        np.testing.assert_allclose(
            one.numpy().astype(np.float64), want.astype(np.float64), rtol=2e-3, atol=2e-3
        )
    return f


def two(g: ct.Graph, dtype: str = "float32") -> Any:
    return g.input((2, 3, 5), dtype), g.input((5,), dtype)


SLOPES = ["relu", "tanh", "sigmoid", "elu", "gelu", "softplus", "swish"]
ONE = [
    *("abs", "ceil", "cos", "erf", "exp", "floor", "identity", "logical_not", "neg", "sin", "tan"),
    *SLOPES,
]
TWO = [
    *("add", "add_square", "atan2", "logical_and", "logical_or", "maximum", "minimum", "mul", "sub"),
    *("equal", "greater", "greater_equal", "less", "less_equal", "not_equal"),
]

OF_REDUCTIONS: list[tuple[Any, Any]] = [
    ("add", 1), ("max", (0, 2)), ("min", None), ("amax", -1), ("average", 0), ("norm1", 1), ("norm2", 2)
]  # fmt: skip

GRAPHS: dict[str, Any] = {
    **{name: lambda g, name=name: getattr(g, name)(g.input((3, 4))) for name in ONE},
    **{name: lambda g, name=name: getattr(g, name)(g.abs(g.input((3, 4))) + 1.0) for name in
       ("log", "sqrt", "rsqrt", "reciprocal")},
    **{name: lambda g, name=name: getattr(g, name)(*two(g)) for name in TWO},
    **{name: lambda g, name=name: (lambda x, b: getattr(g, name)(x, g.abs(b) + 1.0))(*two(g)) for name in
       ("div", "mod", "floor_mod")},
    **{f"{name}_backward": lambda g, name=name: getattr(g, f"{name}_backward")(*[g.input((3, 4))] * 2)
       for name in SLOPES},
    "pow": lambda g: g.pow(g.abs(g.input((3, 4))), 2.0),
    "leaky relu": lambda g: g.relu(g.input((3, 4)), slope=0.1, upper=1.0),
    "approximate gelu": lambda g: g.gelu(g.input((3, 4)), approximate=True),
    "operators": lambda g: (lambda x, b: (2.0 - x) / 4.0 + -abs(b) * 3 - (1 / (b * b + 1)))(*two(g)),
    "select": lambda g: (lambda x, b: g.select(x >= b, x, b * 0.5))(*two(g)),
    "gen_index": lambda g: (lambda x: g.select(g.gen_index(x, 2) < 2, x, 0.0))(g.input((2, 3, 5))),
    "matmul": lambda g: g.gelu(g.input((4, 6)) @ g.input((6, 5)) + g.input((5,))),
    "batched matmul": lambda g: g.matmul(g.input((3, 4, 6), "float16"), g.input((6, 5), "float16")),
    "reduce": lambda g: tuple(
        g.reduce(g.input((3, 4, 6), name=f"x{i}"), op, axes)
        for i, (op, axes) in enumerate(OF_REDUCTIONS)
    ),
    "conv": lambda g: g.relu(
        g.conv(g.input((2, 4, 6, 6), layout="nhwc"), g.input((8, 4, 3, 3), layout="nhwc"), padding=1)
        + g.input((1, 8, 1, 1))
    ),
    "conv of one axis": lambda g: g.conv(g.input((2, 4, 6)), g.input((8, 2, 3)), padding=(1,), stride=2),
    "conv data": lambda g: g.conv_backward_data(
        g.input((2, 8, 6, 6)), g.input((8, 4, 3, 3)), (2, 4, 6, 6), padding=1
    ),
    "conv filter": lambda g: g.conv_backward_filter(
        g.input((2, 8, 6, 6)), g.input((2, 4, 6, 6)), (8, 4, 3, 3), padding=1
    ),
    "max pooling": lambda g: g.resample_with_indices(
        g.input((2, 3, 6, 6), layout="nhwc"), 3, stride=2, padding=1
    ),
    "upsampling": lambda g: g.relu(g.resample(g.input((2, 3, 4, 5)), "bilinear")),
    "average pooling": lambda g: g.resample(g.input((2, 3, 6, 6)), "avgpool_exclude_padding", 3, padding=1),
    "gen_stats": lambda g: g.gen_stats(g.input((2, 3, 6, 6))),
    "layer norm": lambda g: g.layer_norm(g.input((4, 6)), g.input((6,)), g.input((6,))),
    "rms norm": lambda g: g.norm(g.input((4, 6), "float16"), g.input((6,)), mode="rms_norm")[0:3:2],
    "slice": lambda g: g.slice(g.input((4, 6)), (1, 0), (4, 6), (2, 1)),
    "transpose": lambda g: g.transpose(g.input((4, 6)), (1, 0)),
    "concat": lambda g: g.concat([g.input((4, 6)), g.input((4, 2))], 1),
    "reshape": lambda g: g.reshape(g.input((4, 6)), (2, 3, 4)),
}  # fmt: skip


@pytest.mark.parametrize("name", GRAPHS)
def test_built_graph_computes_what_the_reference_defines(engines: FakeCudnn, name: str) -> None:
    check(GRAPHS[name])


def perceptron(g: ct.Graph) -> ct.GraphTensor:
    x, w, b = g.input((4, 6), name="x"), g.input((6, 5), name="w"), g.input((5,), name="b")
    return g.relu(x @ w + b, name="y")


def test_built_graph_takes_inputs_by_name_destinations_and_arrays_of_other_libraries(
    engines: FakeCudnn, host: Host
) -> None:
    g = ct.Graph()
    f = g.build(perceptron(g))
    arrays = arrays_of(f.problem)
    x, w, b = on_device(arrays, f.problem)
    expected = ct.reference.graph(f, *arrays)
    np.testing.assert_allclose(f(x, b=b, w=w).numpy(), expected, rtol=1e-6)
    out = ct.empty((4, 5))
    for given in (out, (out,), {"y": out}):
        f(x, w, b, out=given)
        np.testing.assert_allclose(out.numpy(), expected, rtol=1e-6)
    foreign = [ForeignArray(host, array) for array in arrays]
    call: Any = f
    np.testing.assert_allclose(call(*foreign).numpy(), expected, rtol=1e-6)


def test_built_graph_copies_misaligned_arrays(engines: FakeCudnn) -> None:
    g = ct.Graph()
    f = g.build(g.exp(g.input((7,))))
    whole = ct.asarray(np.arange(9, dtype="f"))
    got = f(whole[1:8])
    np.testing.assert_allclose(got.numpy(), np.exp(np.arange(1, 8)), rtol=1e-6)
    got = f(whole[:7])
    np.testing.assert_allclose(got.numpy(), np.exp(np.arange(7)), rtol=1e-6)


def test_built_graph_runs_in_threads_and_is_closed(engines: FakeCudnn) -> None:
    g = ct.Graph()
    with g.build(perceptron(g)) as f:
        arrays = arrays_of(f.problem)
        expected = ct.reference.graph(f, *arrays)

        def work(_: int) -> None:
            np.testing.assert_allclose(f(*on_device(arrays, f.problem)).numpy(), expected, rtol=1e-6)

        in_threads(3, work)
        assert "engine 0" in f.describe()
        assert f.candidate is not None
        plan = ct.last_plan()
        assert plan is None or "graph" in plan.problem
    assert f.closed
    with pytest.raises(ValueError, match="this BuiltGraph is closed"):
        f(*on_device(arrays, f.problem))
    for make in (copy.copy, pickle.dumps):
        with pytest.raises(TypeError, match="export_algo_cache"):
            make(f)
    assert pickle.loads(pickle.dumps(f.problem)) == f.problem


def test_built_graph_is_autotuned_and_takes_named_engines(engines: FakeCudnn) -> None:
    check(perceptron, algo="autotune")
    check(perceptron, algo="engine 0", deterministic=True)
    g = ct.Graph()
    y = perceptron(g)
    with pytest.raises(ValueError, match="algo is unknown: got 'gemm'"):
        g.build(y, algo="gemm")


def test_build_names_operations_that_are_newer_than_cudnn(fake: FakeCudnn) -> None:
    g = ct.Graph()
    y = g.transpose(g.input((2, 3)), (1, 0))
    with pytest.raises(ct.NotSupportedError) as caught:
        g.build(y)
    assert "transpose since cuDNN 9.22" in "".join(caught.value.__notes__)


@pytest.mark.parametrize(
    "build",
    [
        lambda g, x: x @ x,
        lambda g, x: (x @ x) * x - 1.0,
        lambda g, x: g.exp(x) @ x,
        lambda g, x: (lambda h: h @ h + h)(g.tanh(x)),
    ],
)
def test_products_of_one_input_equal_the_reference(engines: FakeCudnn, build: Any) -> None:
    check(lambda g: build(g, g.input((3, 4, 4))))


@pytest.mark.parametrize("shape", [(5,), (5, 3), (5, 3, 2), (1, 3, 2), (2, 3, 1, 2)])
def test_index_along_each_axis_equals_the_reference(engines: FakeCudnn, shape: tuple[int, ...]) -> None:
    for axis in range(len(shape)):
        check(lambda g, axis=axis: (lambda x: x + g.gen_index(x, axis))(g.input(shape)))


@pytest.mark.parametrize("op", REDUCTIONS)
def test_reduction_of_axes_of_length_1_equals_the_reference(engines: FakeCudnn, op: Any) -> None:
    check(lambda g: g.reduce(g.input((2, 3, 1)), op, -1))
    check(lambda g: g.reduce(g.floor(g.input((5, 4)) @ g.input((2, 4, 1))), op, -1))


@pytest.mark.parametrize("slope", [0.0, 0.25, -0.5])
@pytest.mark.parametrize("upper", [None, 1.5])
@pytest.mark.parametrize("lower", [0.0, 0.5, -1.0])
def test_clipped_relus_of_products_equal_the_reference(
    engines: FakeCudnn, lower: float, upper: float | None, slope: float
) -> None:
    clips: dict[str, Any] = {"lower": lower, "upper": upper, "slope": slope}
    check(lambda g: g.relu(g.input((3, 4)) @ g.relu(g.input((4, 5)), **clips), **clips) + 1.0)


@pytest.mark.parametrize(
    "build", [perceptron, lambda g: g.relu(g.input((3, 5, 8)) + g.input((1, 5, 1)))], ids=["plain", "copied"]
)
def test_built_graph_is_replayed_for_the_same_arrays(engines: FakeCudnn, build: Build) -> None:
    g = ct.Graph()
    f = g.build(build(g))
    arrays = arrays_of(f.problem)
    expected = ct.reference.graph(f, *arrays)
    given, out = on_device(arrays, f.problem), ct.empty(expected.shape)
    for _ in range(12):
        f(*given, out=out)
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-6)


# --- copied inputs ------------------------------------------------------------------------------------------


def broadcasts(*whole: int) -> list[tuple[int, ...]]:
    kept = product((False, True), repeat=len(whole))
    return [tuple(n if keep else 1 for n, keep in zip(whole, one, strict=True)) for one in kept]


def in_memory(array: np.ndarray, offset: int) -> ct.DeviceArray:
    """Return a device array that starts some elements behind the start of its memory."""
    whole = ct.asarray(np.concatenate([np.zeros(offset, array.dtype), array.ravel()]))
    return whole[offset:].reshape(array.shape)


@pytest.mark.parametrize("offset", [0, 1], ids=["aligned", "misaligned"])
@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_all_broadcasts_of_elementwise_graphs_equal_the_reference(
    engines: FakeCudnn, rank: int, offset: int
) -> None:
    whole = (2, 3, 4, 2, 5)[-rank:]
    for small in broadcasts(*whole):
        for shapes in ((whole, small), (small, whole)):
            g = ct.Graph()
            x, b = (g.input(shape) for shape in shapes)
            f = g.build(g.swish_backward(g.exp(x), b), g.relu(x - b).output())
            arrays = arrays_of(f.problem)
            found = f(*(in_memory(array, offset) for array in arrays))
            for got, want in zip(found, ct.reference.graph(f, *arrays), strict=True):
                np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-6)


def test_copied_inputs_are_described(engines: FakeCudnn) -> None:
    f = check(lambda g: g.input((3, 5, 8)) + g.input((1, 5, 1)))
    assert "1 operands repeated along axes of length 1" in f.describe()
    assert f.workspace >= 3 * 5 * 8 * 4
    f = check(lambda g: g.relu(g.input((5, 17), "float16")) @ g.input((17, 8)))
    assert "1 operands converted to float32" in f.describe()


def test_build_rejects_an_output_whose_dtype_no_array_has(engines: FakeCudnn) -> None:
    g = ct.Graph()
    y, scale = g.block_scale_quantize(g.input((2, 8, 64), "float16"), 32)
    with pytest.raises(
        ct.NotSupportedError, match=r"output 'block_scale_quantize_0\.scale' has the dtype fl.*8_e8m0"
    ):
        g.build(y, scale)
