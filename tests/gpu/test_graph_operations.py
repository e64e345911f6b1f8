"""Products of matrices and normalisations of rows on a GPU, against PyTorch in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import cudnn_ct as ct
from cudnn_ct.errors import NotSupportedError
from tests.layers import LayerCase
from tests.matmul_cases import matmul_cases
from tests.row_norm_cases import row_norm_cases
from tests.tensor_cases import REDUCTIONS

from .conftest import check_drawn, examples

torch = pytest.importorskip("torch")
functional = torch.nn.functional

# One rounding of the result, and a few of the sums, relative to the largest element.
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float32: 2e-5}
HALF = (torch.float16, torch.bfloat16)
DTYPES = (*HALF, torch.float32)

# PyTorch's threads for gradients may be the first to use cuBLAS.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS:UserWarning"),
    pytest.mark.skipif(not ct.config.replay, reason="first calls run without replays here, too"),
]

EXAMPLES = examples(30)  # most of them compile a kernel, which takes a second


@settings(max_examples=EXAMPLES)
@given(case=matmul_cases())
def test_matmul_equals_reference(case: LayerCase) -> None:
    check_drawn(case)


@settings(max_examples=EXAMPLES)
@given(case=row_norm_cases())
def test_normalisation_of_rows_equals_reference(case: LayerCase) -> None:
    check_drawn(case)


def randn(*shape: int, dtype: Any = torch.float32, seed: int = 0) -> Any:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cuda").to(dtype)


def near(got: Any, wanted: Any, dtype: Any, factor: float = 1.0, name: str = "") -> None:
    """Compare a result with float64 within the tolerance of its dtype."""
    values = torch.from_dlpack(got) if isinstance(got, ct.DeviceArray) else got
    values = values.double()
    assert values.shape == wanted.shape, name
    size = float(wanted.abs().max().clamp(min=1e-3)) if wanted.numel() else 1.0
    error = float((values - wanted).abs().max()) if wanted.numel() else 0.0
    assert error <= factor * TOLERANCE[dtype] * size, f"{name}: error {error:.3g} of {size:.3g}"


# --- normalisations ----------------------------------------------------------------------------------------

VIEWS: dict[str, Callable[[Any], Any]] = {
    "packed": lambda x: x,
    "slice of rows": lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]],
    "every other row": lambda x: torch.stack([x, x], -2).flatten(-3, -2)[..., ::2, :],
    "transposed": lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2),
    "misaligned": lambda x: torch.cat([x.flatten()[:1], x.flatten()])[1:].view(x.shape),
    "large": lambda x: 300 * x + 100,
}
MATRICES = ((4, 33, 768), (2, 7, 5), (3, 2, 1), (1, 1, 1024), (2, 3, 65536), (5, 64, 4096), (0, 3, 64))


def norm_in_torch(mode: str, x: Any, scale: Any, bias: Any) -> Any:
    """Return the normalisation in float64, with the gradients that autograd needs."""
    if mode == "rms_norm":
        return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * scale + bias
    y = functional.layer_norm(x, x.shape[-1:], eps=1e-5)
    if mode == "ada_layer_norm":
        scale, bias = scale[:, None], bias[:, None]
    return y * scale + bias


@pytest.mark.parametrize("mode", ["layer_norm", "rms_norm", "ada_layer_norm"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", MATRICES, ids=str)
def test_norm_and_gradients_equal_pytorch(mode: str, dtype: Any, shape: tuple[int, ...]) -> None:
    if mode == "ada_layer_norm" and shape[1] == 1:
        pytest.skip("cuDNN has no engine for samples of one row")
    check_norm(mode, dtype, dtype, shape, "packed")


@pytest.mark.parametrize("mode", ["layer_norm", "rms_norm", "ada_layer_norm"])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("wide", [False, True])
def test_norm_of_a_view_equals_pytorch(mode: str, view: str, wide: bool) -> None:
    parameters = torch.float32 if wide else torch.bfloat16
    check_norm(mode, torch.bfloat16, parameters, (4, 16, 256), view)


def check_norm(mode: str, dtype: Any, wide: Any, shape: tuple[int, ...], view: str) -> None:
    columns = shape[-1]
    parameter = (shape[0], columns) if mode == "ada_layer_norm" else (columns,)
    x, dy = VIEWS[view](randn(*shape, dtype=dtype)), randn(*shape, dtype=dtype, seed=1)
    scale, bias = (randn(*parameter, dtype=wide, seed=seed) for seed in (2, 3))
    leaves = [one.double().requires_grad_() for one in (x, scale, bias)]
    wanted = norm_in_torch(mode, *leaves)
    gradients = torch.autograd.grad(wanted, leaves, dy.double())
    step = getattr(ct, mode)(x, scale, bias)
    near(step.y, wanted.detach(), dtype, 4, "y")
    more = {"bias_gradient": True} if mode == "rms_norm" else {}
    found = getattr(ct, f"{mode}_backward")(dy, x, scale, *step[1:], **more)
    # Rows of one element have an inverse deviation of 300, and gradients that are differences.
    factor = 40.0 if columns < 8 or view == "large" else 8.0
    for name, got, want, kind in zip(found._fields, found, gradients, (dtype, wide, wide), strict=True):
        if name == "dx" and columns == 1:
            continue  # about 0, computed as a difference of large terms
        near(got, want, kind if kind in HALF else dtype, factor, name)
    alone = getattr(ct, mode)(x, scale, bias, training=False)
    near(alone.y, wanted.detach(), dtype, 4, "y without statistics")


@pytest.mark.parametrize("mode", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("shape", [*MATRICES, (3, 5, 64), (1, 3, 640)], ids=str)
def test_norm_with_float32_parameters_equals_pytorch(mode: str, dtype: Any, shape: tuple[int, ...]) -> None:
    check_norm(mode, dtype, torch.float32, shape, "packed")


@pytest.mark.parametrize("mode", ["layer_norm", "rms_norm"])
def test_norm_of_rows_with_nan_leaves_other_rows_as_they_are(mode: str) -> None:
    x, scale = randn(8, 512, dtype=torch.bfloat16), randn(512, dtype=torch.bfloat16, seed=1)
    expected = torch.from_dlpack(getattr(ct, mode)(x, scale).y).clone()
    x[3, 5], x[5, 7] = float("nan"), float("inf")
    got = torch.from_dlpack(getattr(ct, mode)(x, scale).y)
    kept = [row for row in range(8) if row not in (3, 5)]
    assert torch.equal(got[kept], expected[kept])
    assert got[3].isnan().all()


@pytest.mark.nightly  # compiles for minutes
@pytest.mark.parametrize("mode", ["layer_norm", "rms_norm"])
def test_every_engine_of_a_norm_equals_pytorch(mode: str) -> None:
    from cudnn_ct import context
    from cudnn_ct.ops.norm.row_norm import source_of

    x, scale = randn(512, 2048, dtype=torch.bfloat16), randn(2048, dtype=torch.bfloat16, seed=1)
    dy = randn(512, 2048, dtype=torch.bfloat16, seed=2)
    zero = torch.zeros_like(scale)
    leaves = [one.double().requires_grad_() for one in (x, scale)]
    wanted = norm_in_torch(mode, *leaves, zero.double())
    gradients = torch.autograd.grad(wanted, leaves, dy.double())
    step = getattr(ct, mode)(x, scale)
    calls = {
        "forward": (lambda algo: getattr(ct, mode)(x, scale, algo=algo)[:1], [wanted.detach()]),
        "backward": (
            lambda algo: getattr(ct, f"{mode}_backward")(dy, x, scale, *step[1:], algo=algo)[:2],
            gradients,
        ),
    }
    for name, (call, results) in calls.items():
        call("heuristic")
        problem = ct.last_plan().candidate.problem
        source, ctx = source_of(problem), context.of_device(0)
        rows = [row for find in source.heuristics(problem) for row in find(ctx) if not row.rejected]
        names = dict.fromkeys([row.algorithm for row in rows] + list(source.also(problem)))
        for algo in names:
            try:
                plan = source.by_name(problem, algo)[0][0](ctx)[0]
            except ct.CudnnError:
                continue
            if plan.rejected:
                continue
            for got, want in zip(call(algo), results, strict=True):
                near(got, want, torch.bfloat16, 8, f"{mode} {name} {algo}")


# --- products ----------------------------------------------------------------------------------------------

ACTIVATIONS: dict[str | None, Callable[[Any], Any]] = {
    None: lambda y: y,
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda y: functional.gelu(y, approximate="tanh"),
    "silu": functional.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}
SHAPES = {
    "aligned": ((64, 256), (256, 128)),
    "odd": ((7, 13), (13, 5)),
    "one row": ((1, 512), (512, 256)),
    "one column": ((64, 512), (512, 1)),
    "one term": ((33, 1), (1, 70)),
    "batch": ((6, 64, 32), (6, 32, 48)),
    "shared b": ((4, 9, 64), (64, 24)),
    "shared a": ((64, 32), (5, 32, 16)),
    "crossed": ((3, 1, 16, 24), (4, 24, 32)),
    "vectors": ((64,), (64,)),
    "long": ((16, 20000), (20000, 16)),
    "empty": ((0, 64), (64, 8)),
}


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64], ids=str)
def test_matmul_and_gradients_equal_pytorch(shapes: str, dtype: Any) -> None:
    first, second = SHAPES[shapes]
    a, b = randn(*first, dtype=dtype), randn(*second, dtype=dtype, seed=1)
    wide = [one.double().clone().requires_grad_() for one in (a, b)]
    wanted = wide[0] @ wide[1]
    dy = randn(*wanted.shape, dtype=dtype, seed=2)
    gradients = torch.autograd.grad(wanted, wide, dy.double())
    tolerated, factor = (torch.float32, 1e-6) if dtype == torch.float64 else (dtype, 1.0)
    # TF32 products have 10 bits.
    factor = 100.0 if dtype == torch.float32 else factor
    near(ct.matmul(a, b), wanted.detach(), tolerated, factor, "y")
    for name, got, want in zip(("da", "db"), ct.matmul_backward(dy, a, b), gradients, strict=False):
        near(got, want, tolerated, factor, name)


@pytest.mark.parametrize("shapes", ["aligned", "odd", "batch", "shared b", "long"])
def test_matmul_in_strict_float32_equals_pytorch(shapes: str) -> None:
    first, second = SHAPES[shapes]
    a, b = randn(*first), randn(*second, seed=1)
    near(ct.matmul(a, b, precision="float32"), a.double() @ b.double(), torch.float32, 1, "y")


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shapes", ["aligned", "odd", "shared b"])
def test_matmul_with_epilogue_equals_pytorch(activation: Any, dtype: Any, shapes: str) -> None:
    first, second = SHAPES[shapes]
    a, b = randn(*first, dtype=dtype), randn(*second, dtype=dtype, seed=1)
    product = 0.1 * (a.double() @ b.double())
    bias, residual = randn(second[-1], dtype=dtype, seed=2), randn(*product.shape, dtype=dtype, seed=3)
    wanted = ACTIVATIONS[activation](product + bias.double() + residual.double())
    got = ct.matmul(a, b, bias=bias, residual=residual, activation=activation, alpha=0.1)
    near(got, wanted, dtype, 150 if dtype == torch.float32 else 1, str(activation))


MATRIX_VIEWS: dict[str, Callable[[Any], Any]] = {
    **VIEWS,
    "every other column": lambda x: torch.stack([x, x], -1).flatten(-2)[..., ::2],
    "columns of a wide matrix": lambda x: torch.cat([x, x, x], -1)[..., x.shape[-1] : 2 * x.shape[-1]],
}


@pytest.mark.parametrize("first", MATRIX_VIEWS)
@pytest.mark.parametrize("second", MATRIX_VIEWS)
def test_matmul_of_views_equals_pytorch(first: str, second: str) -> None:
    a = MATRIX_VIEWS[first](randn(3, 24, 40, dtype=torch.bfloat16))
    b = MATRIX_VIEWS[second](randn(3, 40, 56, dtype=torch.bfloat16, seed=1))
    near(ct.matmul(a, b), a.double() @ b.double(), torch.bfloat16, 1, f"{first} {second}")


@pytest.mark.parametrize("view", ["slice of rows", "transposed", "every other row", "misaligned"])
@pytest.mark.parametrize("with_residual", [False, True])
def test_matmul_writes_to_a_view_and_nothing_else(view: str, with_residual: bool) -> None:
    a, b = randn(3, 24, 40, dtype=torch.float16), randn(40, 56, dtype=torch.float16, seed=1)
    memory = torch.full((3, 2, 48, 112), float("nan"), device="cuda", dtype=torch.float16)
    out = {
        "slice of rows": lambda: memory[:, 0, :24, :56],
        "transposed": lambda: memory[:, 0].flatten(1)[:, : 24 * 56].view(3, 56, 24).transpose(1, 2),
        "every other row": lambda: memory[:, 0, ::2, :56],
        "misaligned": lambda: memory[:, 0, :24, 1:57],
    }[view]()
    residual = randn(3, 24, 56, dtype=torch.float16, seed=2) if with_residual else None
    wanted = a.double() @ b.double() + (residual.double() if with_residual else 0)
    ct.matmul(a, b, residual=residual, out=out)
    near(out, wanted, torch.float16, 1, view)
    written = int((~memory.isnan()).sum())
    assert written == out.numel()


def test_matmul_of_int8_is_exact() -> None:
    for m, n, k in ((64, 128, 256), (7, 5, 13), (16, 16, 512)):
        a, b = (
            torch.randint(-128, 128, shape, device="cuda", dtype=torch.int8) for shape in ((m, k), (k, n))
        )
        got = torch.from_dlpack(ct.matmul(a, b))
        assert torch.equal(got.cpu(), a.cpu().int() @ b.cpu().int())


@pytest.mark.parametrize("shape", [(1, 8, 64), (4, 1, 64), (2, 8, 64), (1, 8, 9, 7), (4, 1, 9, 7)])
def test_instance_norms_of_graphs(shape: tuple[int, ...]) -> None:
    """One sample or one channel: axes that look as if they could be merged."""
    channels, ones = (1, shape[1], *(1,) * (len(shape) - 2)), (1,) * (len(shape) - 2)
    x, scale, bias = randn(*shape), randn(*channels, seed=1), randn(*channels, seed=2)
    dy, wide = randn(*shape, seed=3), x.double().requires_grad_()
    weights = [one.double().flatten().requires_grad_() for one in (scale, bias)]
    wanted = functional.instance_norm(wide, weight=weights[0], bias=weights[1])
    wanted.backward(dy.double())
    g = ct.Graph()
    made = g.norm(g.input(shape), g.input(channels), g.input(channels), mode="instance_norm")
    with g.build(*made[:3]) as built:
        y, mean, inverse = map(torch.from_dlpack, built(x, scale, bias))
    assert mean.shape == inverse.shape == (*shape[:2], *ones)
    near(y, wanted.detach(), torch.float32)
    g = ct.Graph()
    stats = g.input(mean.shape), g.input(inverse.shape)
    gradients = g.norm_backward(
        g.input(shape), g.input(shape), g.input(channels), *stats, mode="instance_norm"
    )
    with g.build(*gradients) as built:
        dx, *sums = map(torch.from_dlpack, built(mean, inverse, dy, x, scale))
    near(dx, wide.grad, torch.float32, 10)
    for got, one in zip(sums, weights, strict=True):
        near(got.flatten(), one.grad, torch.float32, 10)


def test_products_of_float32_in_graphs_keep_the_precision_of_the_settings() -> None:
    a, b = randn(64, 128), randn(128, 256, seed=1)
    g = ct.Graph()
    y = g.relu(g.input((64, 128)) @ g.input((128, 256)))
    wanted = (a.double() @ b.double()).relu()
    with g.build(y) as built:
        near(torch.from_dlpack(built(a, b)), wanted, torch.float32, 100)
    allowed = ct.config.allow_tf32
    ct.config.allow_tf32 = False
    try:
        with pytest.raises(NotSupportedError, match=r"coarser than float32|in TF32"):
            g.build(y)
    finally:
        ct.config.allow_tf32 = allowed


# --- graphs whose direct form cuDNN 9.19 computes wrong ----------------------------------------------------

Build = Callable[..., Any]


def check_graph(
    build: Build, wanted: Callable[..., Any], *arrays: np.ndarray, rtol: float = 0.0, **options: Any
) -> None:
    """Compare the output of a built graph with float64 NumPy; ``rtol`` is relative to the largest element."""
    g = ct.Graph()
    inputs = [g.input(array.shape, array.dtype.name) for array in arrays]
    given = [ct.asarray(array) for array in arrays]
    expected = wanted(*(array.astype(np.float64) for array in arrays))
    limit = rtol * max(float(np.abs(expected).max()), 1.0)
    with g.build(build(g, *inputs), **options) as f:
        for _ in range(4):  # later calls are replayed
            got = f(*given).numpy().astype(np.float64)
            assert got.shape == expected.shape
            assert float(np.abs(got - expected).max()) <= limit, f.describe()


def draw(*shape: int, dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    """Return half of the numbers of a normal distribution, rounded to 8 bits: products in TF32 are exact."""
    numbers = np.random.default_rng(seed).standard_normal(shape) / 2
    return (np.round(numbers * 64) / 64).astype(dtype)


PRODUCTS_OF_ONE_INPUT: dict[str, tuple[Build, Build]] = {
    "both operands": (lambda g, x: x @ x, lambda x: x @ x),
    "first operand and epilogue": (lambda g, x: (x @ g.tanh(x)) * x, lambda x: (x @ np.tanh(x)) * x),
    "both operands and epilogue": (lambda g, x: (x @ x) * x + 1.0, lambda x: (x @ x) * x + 1),
    "prologue of a": (lambda g, x: g.ceil(x) @ x, lambda x: np.ceil(x) @ x),
    "prologue of b": (lambda g, x: x @ g.exp(x), lambda x: x @ np.exp(x)),
    "both prologues": (lambda g, x: g.exp(x) @ g.floor(x), lambda x: np.exp(x) @ np.floor(x)),
    "one computed operand": (
        lambda g, x: (lambda h: h @ h + h)(g.tanh(x)),
        lambda x: np.tanh(x) @ np.tanh(x) + np.tanh(x),
    ),
    "epilogue": (lambda g, x: (x @ x) / (g.abs(x) + 1.0), lambda x: (x @ x) / (np.abs(x) + 1)),
}


@pytest.mark.parametrize("shape", [(64, 64), (33, 33), (2, 3, 7, 7), (1, 264, 264)], ids=str)
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("name", PRODUCTS_OF_ONE_INPUT)
def test_products_of_one_input_equal_numpy(name: str, dtype: Any, shape: tuple[int, ...]) -> None:
    build, wanted = PRODUCTS_OF_ONE_INPUT[name]
    try:
        check_graph(build, wanted, draw(*shape, dtype=dtype), rtol=4e-3)
    except NotSupportedError:
        if "computed" not in name and "both prologues" not in name:  # two computed operands
            raise
        pytest.skip("cuDNN has no engine for this graph")


def test_product_of_one_input_is_autotuned() -> None:
    check_graph(lambda g, x: x @ x + x, lambda x: x @ x + x, draw(64, 64), rtol=4e-3, algo="autotune")


@pytest.mark.parametrize("slope", [-0.5, 0.5, 1.0])
@pytest.mark.parametrize("lower", [0.0, 0.5, -1.0])
def test_relu_with_slopes_equals_numpy(lower: float, slope: float) -> None:
    def relu(x: Any) -> Any:
        return np.where(x > lower, x, lower + slope * (x - lower))

    for shape in ((5,), (64, 96)):
        x = draw(*shape)
        check_graph(lambda g, x: g.relu(x, lower=lower, slope=slope), relu, x, rtol=1e-6)
    check_graph(lambda g, x: g.minimum(x, x * 2.0), lambda x: np.where(x > 0, x, 2 * x), draw(64, 96))


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("slope", [0.0, 0.1, -0.5])
@pytest.mark.parametrize(("lower", "upper"), [(0.5, None), (0.0, 1.0), (0.5, 6.0), (-1.0, 1.5)])
def test_clipped_relu_of_a_product_equals_numpy(
    lower: float, upper: float | None, slope: float, dtype: Any
) -> None:
    def relu(y: Any) -> Any:
        found = np.where(y > lower, y, lower + slope * (y - lower))
        return found if upper is None else np.minimum(found, upper)

    clips: dict[str, Any] = {"lower": lower, "upper": upper, "slope": slope}
    for shapes in (((3, 2, 100), (3, 100, 7)), ((264, 65), (65, 65))):
        a, b = (draw(*shape, dtype=dtype, seed=seed) for seed, shape in enumerate(shapes))
        check_graph(lambda g, a, b: g.relu(a @ b, **clips), lambda a, b: relu(a @ b), a, b, rtol=4e-3)
    a, b = draw(64, 64, dtype=dtype), draw(64, 96, dtype=dtype, seed=1)
    check_graph(lambda g, a, b: g.relu(a, **clips) @ b, lambda a, b: relu(a) @ b, a, b, rtol=4e-3)


@pytest.mark.parametrize(
    "shape", [(33,), (33, 7), (5, 2, 100), (33, 16, 2), (2, 1, 17), (3, 64, 1), (1, 4, 5)]
)
def test_index_along_each_axis_equals_numpy(shape: tuple[int, ...]) -> None:
    x = draw(*shape)
    for axis in range(len(shape)):
        index = np.indices(shape)[axis]

        def masked(g: ct.Graph, x: Any, axis: int = axis) -> Any:
            return g.select(g.gen_index(x, axis) < 2.0, x, 100.0)

        def plain(g: ct.Graph, x: Any, axis: int = axis) -> Any:
            return g.gen_index(x, axis)

        def add(g: ct.Graph, x: Any, axis: int = axis) -> Any:
            return x + g.gen_index(x, axis)

        check_graph(plain, lambda _, index=index: index.astype(np.float64), x)
        check_graph(add, lambda x, index=index: x + index, x, rtol=1e-6)
        check_graph(masked, lambda x, index=index: np.where(index < 2, x, 100), x)


@pytest.mark.parametrize("op", REDUCTIONS)
def test_reduction_of_axes_of_length_1_of_a_product_equals_numpy(op: Any) -> None:
    def reduced(y: Any) -> Any:
        if op in ("amax", "norm1", "norm2"):
            return np.abs(y)
        return np.where(y == 0, 1, y) if op == "mul_no_zeros" else y

    a, b = draw(100, 3), draw(5, 3, 1, seed=1)
    check_graph(lambda g, a, b: g.reduce(a @ b, op, -1), lambda a, b: reduced(a @ b), a, b, rtol=4e-3)
    a, b = draw(4, 65, 264, dtype=np.float16), draw(1, 4, 264, 8, dtype=np.float16, seed=1)
    check_graph(lambda g, a, b: g.reduce(g.abs(a @ b), op, 0).output(dtype="float32"),
                lambda a, b: reduced(np.abs(a @ b)), a, b, rtol=4e-3)  # fmt: skip
    check_graph(lambda g, a: g.reduce(g.floor(a), op, 1), lambda a: reduced(np.floor(a)), draw(100, 1))


@pytest.mark.parametrize("slope", [0.0, 0.25, 2.0])
def test_gradient_of_relu_at_its_clips_equals_numpy(slope: float) -> None:
    def gradient(dy: Any, x: Any) -> Any:
        return dy * np.where(x <= -1, slope, np.where(x >= 1.5, 0, 1))

    for dtype in (np.float16, np.float32):
        dy, x = np.full((64, 96), 3, dtype), np.round(2 * draw(64, 96, dtype=dtype, seed=1)) / 2
        assert (x == -1).any()
        assert (x == 1.5).any()
        check_graph(
            lambda g, dy, x: g.relu_backward(dy, x, lower=-1.0, upper=1.5, slope=slope), gradient, dy, x
        )


def test_floor_mod_is_computed_or_not_supported() -> None:
    x, b = draw(64, 96), np.full((64, 96), 0.75, np.float32)
    try:
        check_graph(lambda g, x, b: g.floor_mod(x, b), np.mod, x, b, rtol=1e-5)
    except NotSupportedError as error:
        assert "no usable GPU" not in str(error)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_convolutions_of_one_input_equal_the_reference(dtype: str) -> None:
    x = np.random.default_rng(0).standard_normal((16, 16, 3, 3)).astype(dtype) / 4
    cases: list[Build] = [
        lambda g, x: g.conv(x, x, padding=1),
        lambda g, x: g.relu(g.conv(x, x, padding=1) + x),
        lambda g, x: g.conv_backward_filter(x, x, (16, 16, 3, 3), padding=1),
    ]
    for build in cases:
        g = ct.Graph()
        y = build(g, g.input(x.shape, dtype, layout="nhwc")).output(layout="nhwc")
        with g.build(y) as f:
            got = f(ct.asarray(x, layout="nhwc")).numpy().astype(np.float64)
            expected = np.asarray(ct.reference.graph(f, x), np.float64)
        assert np.abs(got - expected).max() <= 4e-3 * max(np.abs(expected).max(), 1)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])  # the kernels of int64 do not compile in 9.19
def test_graphs_of_integers_have_results_in_float32(dtype: str) -> None:
    x, y = (
        torch.randint(1, 128, (64, 128), device="cuda", dtype=getattr(torch, dtype), generator=seeded)
        for seeded in (torch.Generator("cuda").manual_seed(seed) for seed in (0, 1))
    )
    for name, exact in (("add", True), ("mul", True), ("div", False), ("maximum", True), ("less", True)):
        g = ct.Graph()
        with g.build(getattr(g, name)(g.input((64, 128), dtype), g.input((64, 128), dtype))) as built:
            got = torch.from_dlpack(built(x, y))
        assert got.dtype == torch.float32
        wanted = getattr(torch, {"less": "lt"}.get(name, name))(x.double(), y.double()).double()
        assert (got - wanted).abs().max() <= (0 if exact else 1e-4)


def test_convolution_of_int8_in_a_graph_is_exact_or_rejected() -> None:
    """cuDNN 9.19 offers an engine whose kernel does not compile."""
    g = ct.Graph()
    x, w = (g.input(shape, "int8", layout="nhwc") for shape in ((2, 16, 14, 14), (32, 16, 3, 3)))
    arrays = [
        torch.randint(-128, 128, one.shape, dtype=torch.int8, device="cuda").to(
            memory_format=torch.channels_last
        )
        for one in (x, w)
    ]
    try:
        with g.build(g.relu(g.conv(x, w, padding=1))) as built:
            got = torch.from_dlpack(built(*arrays))
    except NotSupportedError:
        return
    wanted = functional.conv2d(*(one.cpu().double() for one in arrays), padding=1).relu()
    assert torch.equal(got.cpu().double(), wanted)


@pytest.mark.parametrize("terms", [256, 66, 33])
@pytest.mark.parametrize("columns", [24, 65, 1])
@pytest.mark.parametrize("layout", ["by rows", "by columns", "with gaps", "misaligned"])
def test_matmul_dequantises_int8_weights(columns: int, terms: int, layout: str) -> None:
    a = randn(48, terms, dtype=torch.bfloat16)
    drawn = torch.randint(-128, 128, (max(columns, terms) + 3,) * 2, device="cuda", dtype=torch.int8)
    b = {
        "by rows": drawn[:terms, :columns].contiguous(),
        "by columns": drawn[:columns, :terms].contiguous().T,
        "with gaps": drawn[:terms, :columns],
        "misaligned": drawn.flatten()[1 : 1 + terms * columns].view(terms, columns),
    }[layout]
    scale = randn(columns).abs()
    bias = randn(columns, dtype=torch.bfloat16, seed=1)
    wanted = functional.gelu((a.double() @ b.double()) * scale.double() + bias.double())
    near(ct.matmul(a, b, b_scale=scale, bias=bias, activation="gelu"), wanted, torch.bfloat16)


@pytest.mark.parametrize("kinds", [("e4m3", "e4m3"), ("e5m2", "e4m3")])
@pytest.mark.parametrize("shape", [(64, 128, 256), (48, 16, 32), (16, 16, 16)], ids=str)
def test_scaled_matmul_equals_pytorch(kinds: tuple[str, str], shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    drawn = randn(m, k).cpu().numpy(), randn(k, n, seed=1).cpu().numpy()
    dtypes = (ct.empty((), f"float8_{kind}").dtype for kind in kinds)
    a, b = (ct.asarray(one.astype(dtype)) for one, dtype in zip(drawn, dtypes, strict=True))
    wide = [torch.from_numpy(one.numpy().astype("float64")).cuda() for one in (a, b)]
    half, three = torch.tensor([0.5], device="cuda"), torch.tensor([3.0], device="cuda")
    wanted = functional.relu(0.5 * 3.0 * (wide[0] @ wide[1]))
    found = ct.scaled_matmul(
        a, b, descale_a=half, descale_b=three, scale=half, activation="relu", amax=True, out_dtype="float32"
    )
    near(found.y, 0.5 * wanted, torch.float32, 30, "y")
    near(found.amax, wanted.max().reshape(1), torch.float32, 30, "amax")


def test_every_engine_of_a_product_equals_pytorch() -> None:
    from cudnn_ct import context
    from cudnn_ct.ops.matmul.source import TENSOR_CORES

    a, b = randn(192, 320, dtype=torch.bfloat16), randn(256, 320, dtype=torch.bfloat16, seed=1).T
    bias = randn(256, dtype=torch.bfloat16, seed=2)
    wanted = functional.gelu(a.double() @ b.double() + bias.double())
    ct.matmul(a, b, bias=bias, activation="gelu")
    problem = ct.last_plan().candidate.problem
    ctx = context.of_device(0)
    rows = [row for find in TENSOR_CORES.heuristics(problem) for row in find(ctx)]
    names = dict.fromkeys(row.algorithm for row in rows if not row.rejected)
    assert len(names) > 3
    for algo in names:
        near(ct.matmul(a, b, bias=bias, activation="gelu", algo=algo), wanted, torch.bfloat16, 1, algo)


def test_matmul_is_tuned_once_and_replayed() -> None:
    a, b = randn(256, 512, dtype=torch.bfloat16), randn(512, 256, dtype=torch.bfloat16, seed=1)
    out = torch.empty(256, 256, device="cuda", dtype=torch.bfloat16)
    for _ in range(12):
        ct.matmul(a, b, algo="autotune", out=out)
    near(out, a.double() @ b.double(), torch.bfloat16)
