"""Convolutions fused with the parts of a batch normalisation on a GPU, against PyTorch in float64."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

import cudnn_ct as ct
from cudnn_ct import _lib
from cudnn_ct.errors import NotSupportedError
from tests.fusion_cases import training_fusion_cases
from tests.layers import LayerCase

from .conftest import check_drawn, examples

torch = pytest.importorskip("torch")
# These need torch.
from .test_conv_fusions import channels, convolved, last, per_channel  # noqa: E402
from .test_graph_operations import near, randn  # noqa: E402

functional = torch.nn.functional

pytestmark = pytest.mark.skipif(not ct.config.replay, reason="first calls run without replays here, too")


@settings(max_examples=examples(200))
@given(case=training_fusion_cases())
def test_fusion_of_training_equals_reference(case: LayerCase) -> None:
    check_drawn(case)


TRAINED: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "square": ((8, 64, 28, 28), (64, 64, 3, 3), {"padding": 1}),
    "point": ((8, 256, 14, 14), (64, 256, 1, 1), {}),
    "strided": ((4, 64, 28, 28), (128, 64, 3, 3), {"padding": 1, "stride": 2}),
    "point, strided": ((4, 64, 28, 28), (128, 64, 1, 1), {"stride": 2}),
    "dilated": ((2, 32, 20, 17), (24, 32, 3, 3), {"padding": 2, "dilation": 2}),
    "eight channels": ((3, 8, 9, 11), (40, 8, 5, 5), {}),
    "many channels": ((2, 512, 7, 7), (512, 512, 3, 3), {"padding": 1}),
    "one axis": ((3, 16, 50), (24, 16, 5), {"padding": 2}),
    "one image": ((1, 16, 8, 8), (16, 16, 3, 3), {"padding": 1}),
}
HALF = torch.float16
AXES = {3: (0, 2), 4: (0, 2, 3), 5: (0, 2, 3, 4)}

shapes = pytest.mark.parametrize("shape", TRAINED)
layouts = pytest.mark.parametrize("channels_last", [True, False])


def drawn(shape: str, channels_last: bool = True) -> tuple[Any, Any, Any, dict[str, Any]]:
    """Return x, w and dy of a convolution whose results are about 1, and its geometry."""
    x_shape, w_shape, geometry = TRAINED[shape]
    x, w = randn(*x_shape, dtype=HALF), randn(*w_shape, seed=1)
    w = (w / float(w[0].numel()) ** 0.5).to(HALF)
    dy = randn(*convolved(x, w, **geometry).shape, dtype=HALF, seed=2)
    arranged = [last(one) if channels_last else one.contiguous() for one in (x, w, dy)]
    return (*arranged, geometry)


def sums_near(got: Any, y: Any, square: bool, name: str) -> None:
    """Compare sums of elements that may have been rounded before they were added."""
    values = y * y if square else y
    wanted, sizes = values.sum(AXES[y.ndim]), values.abs().sum(AXES[y.ndim])
    error = (torch.from_dlpack(got).double() - wanted).abs()
    assert got.shape == wanted.shape
    assert bool((error <= 1e-3 * sizes + 1e-3).all()), f"{name}: {float((error / sizes).max()):.3g}"


@shapes
@layouts
@pytest.mark.parametrize("prologue", [False, True])
def test_conv_batch_norm_statistics_equals_pytorch(shape: str, channels_last: bool, prologue: bool) -> None:
    x, w, _, geometry = drawn(shape, channels_last)
    count, given, data = x.shape[1], {}, x.double()
    if prologue:
        given = {"scale": channels(count, HALF, 3), "bias": channels(count, HALF, 4)}
        scaled = data * per_channel(given["scale"], x) + per_channel(given["bias"], x)
        data = functional.relu(scaled).to(HALF).double()
    wanted = convolved(data, w, **geometry)
    got = ct.conv_batch_norm_statistics(x, w, **given, **geometry)
    near(got.y, wanted, HALF, 2, "y")
    sums_near(got.sums, wanted, False, "sums")
    sums_near(got.square_sums, wanted, True, "square_sums")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("prologue", [False, True])
def test_conv_batch_norm_statistics_takes_other_dtypes(dtype: Any, prologue: bool) -> None:
    x, w = last(randn(4, 64, 15, 17, dtype=dtype)), last((randn(32, 64, 3, 3, seed=1) / 24).to(dtype))
    given, data = {}, x.double()
    if prologue:
        given = {"scale": channels(64, dtype, 3), "bias": channels(64, dtype, 4)}
        data = functional.relu(data * per_channel(given["scale"], x) + per_channel(given["bias"], x))
        data = data.to(dtype).double()
    wanted = convolved(data, w, padding=1)
    got = ct.conv_batch_norm_statistics(x, w, **given, padding=1)
    near(got.y, wanted, dtype, 60 if dtype is torch.float32 else 2, "y")  # products of TF32
    for name, square in (("sums", False), ("square_sums", True)):
        values = wanted * wanted if square else wanted
        sizes, found = values.abs().sum((0, 2, 3)), torch.from_dlpack(getattr(got, name)).double()
        assert float(((found - values.sum((0, 2, 3))).abs() / sizes).max()) < 8e-3, name


@pytest.mark.parametrize("eq_dtype", ["float16", "float32"])
@pytest.mark.parametrize("count", [1, 8, 24, 1000])
def test_batch_norm_finalize_equals_pytorch(count: int, eq_dtype: str) -> None:
    y = randn(16, count, 9, 7).double() * 2 + randn(count, seed=1).double().reshape(1, -1, 1, 1)
    elements, epsilon, momentum = y.numel() // count, 1e-3, 0.3
    scale, bias = (channels(count, torch.float32, seed) for seed in (2, 3))
    norm = torch.nn.BatchNorm2d(count, epsilon, momentum).cuda().double()
    running_mean, running_var = randn(count, seed=4), randn(count, seed=5).abs() + 0.5
    with torch.no_grad():
        norm.running_mean.copy_(running_mean)
        norm.running_var.copy_(running_var)
        norm.weight.copy_(scale)
        norm.bias.copy_(bias)
        normed = norm(y)
    kept = [running_mean.clone(), running_var.clone()]
    sums, squares = y.sum((0, 2, 3)).float(), (y * y).sum((0, 2, 3)).float()
    got = ct.batch_norm_finalize(
        sums, squares, scale, bias, running_mean, running_var, elements,
        epsilon=epsilon, momentum=momentum, eq_dtype=eq_dtype,
    )  # fmt: skip
    assert torch.equal(kept[0], running_mean)
    assert torch.equal(kept[1], running_var)
    var = y.var((0, 2, 3), unbiased=False)
    near(got.mean, y.mean((0, 2, 3)), torch.float32, 1, "mean")
    near(got.invstd, 1 / (var + epsilon).sqrt(), torch.float32, 5, "invstd")
    near(got.running_mean, norm.running_mean, torch.float32, 1, "running_mean")
    near(got.running_var, norm.running_var, torch.float32, 5, "running_var")
    eq_scale, eq_bias = (torch.from_dlpack(one).double() for one in (got.eq_scale, got.eq_bias))
    found = y * per_channel(eq_scale, y) + per_channel(eq_bias, y)
    near(found, normed.detach(), HALF if eq_dtype == "float16" else torch.float32, 3, "normalised")


@shapes
@layouts
def test_conv_backward_data_relu_batch_norm_equals_pytorch(shape: str, channels_last: bool) -> None:
    """The gradient of the whole block by autograd, from the factors of dz and x."""
    x, w, dy, geometry = drawn(shape, channels_last)
    scale, bias = (channels(x.shape[1], torch.float32, seed) for seed in (3, 4))
    wide, axes = x.double().requires_grad_(), AXES[x.ndim]
    parameters = [one.double().requires_grad_() for one in (scale, bias)]
    with torch.no_grad():
        mean = x.double().mean(axes)
        invstd = 1 / (x.double().var(axes, unbiased=False) + 1e-5).sqrt()
    normed = functional.batch_norm(wide, None, None, *parameters, training=True, eps=1e-5)
    normed.retain_grad()
    convolved(functional.relu(normed), w, **geometry).backward(dy.double())
    got = ct.conv_backward_data_relu_batch_norm(
        dy, w, x, mean.float(), invstd.float(), scale, bias, **geometry
    )
    decided = normed.detach().abs() > 1e-4  # elsewhere rounding decides on the side of the relu
    assert float(decided.double().mean()) > 0.99
    dz = torch.from_dlpack(got.dz).double()
    assert got.dz.shape == tuple(x.shape)
    near(dz * decided, normed.grad * decided, HALF, 2, "dz")
    elements = x.numel() / x.shape[1]
    size = float(normed.grad.abs().max()) * elements**0.5
    for name, wanted in zip(("dbias", "dscale"), (parameters[1].grad, parameters[0].grad), strict=True):
        error = float((torch.from_dlpack(getattr(got, name)).double() - wanted).abs().max())
        assert error <= 5e-3 * size, f"{name}: error {error:.3g} of {size:.3g}"
    factors = [
        per_channel(torch.from_dlpack(one), x) for one in (got.eq_dz_scale, got.eq_x_scale, got.eq_bias)
    ]
    dx = dz * factors[0] + x.double() * factors[1] + factors[2]
    near(dx * decided, wide.grad * decided, HALF, 5, "dx")


@shapes
@layouts
def test_conv_backward_filter_scale_bias_relu_equals_pytorch(shape: str, channels_last: bool) -> None:
    x, w, dy, geometry = drawn(shape, channels_last)
    scale, bias = (channels(x.shape[1], HALF, seed) for seed in (3, 4))
    data = functional.relu(x.double() * per_channel(scale, x) + per_channel(bias, x)).to(HALF).double()
    filters = w.double().requires_grad_()
    convolved(data, filters, **geometry).backward(dy.double())
    got = ct.conv_backward_filter_scale_bias_relu(dy, x, scale, bias, tuple(w.shape), **geometry)
    near(got, filters.grad, HALF, 2)


@pytest.mark.parametrize("filters", [4, 5, 12, 20])
def test_fusions_take_other_numbers_of_filters_where_engines_are_compiled(filters: int) -> None:
    x, w = last(randn(2, 16, 13, 15, dtype=HALF)), last((randn(filters, 16, 3, 3, seed=1) / 12).to(HALF))
    scale, bias = (channels(16, HALF, seed) for seed in (3, 4))
    data = functional.relu(x.double() * per_channel(scale, x) + per_channel(bias, x)).to(HALF).double()
    weights = w.double().requires_grad_()
    wanted = functional.conv2d(data, weights, padding=1)
    got = ct.conv_batch_norm_statistics(x, w, scale=scale, bias=bias, padding=1)
    near(got.y, wanted.detach(), HALF, 2, "y")
    sums_near(got.sums, wanted.detach(), False, "sums")
    sums_near(got.square_sums, wanted.detach(), True, "square_sums")
    dy = last(randn(*wanted.shape, dtype=HALF, seed=2))
    wanted.backward(dy.double())
    try:
        dw = ct.conv_backward_filter_scale_bias_relu(dy, x, scale, bias, tuple(w.shape), padding=1)
    except NotSupportedError:
        pytest.skip("this cuDNN has no engine for the gradient")
    near(dw, weights.grad, HALF, 2, "dw")


@pytest.mark.parametrize("fusion", ["statistics", "prologue", "data", "filter"])
@pytest.mark.parametrize("shape", ["square", "strided", "dilated"])
def test_every_engine_of_a_fusion_of_training_equals_the_reference(fusion: str, shape: str) -> None:
    from cudnn_ct import context
    from cudnn_ct.ops.conv import training_graphs

    x, w, dy, geometry = drawn(shape)
    narrow: Any = [channels(x.shape[1], HALF, seed) for seed in (3, 4)]
    mean, invstd = (torch.full((x.shape[1],), number, device="cuda") for number in (0.1, 0.7))
    call: Any = {
        "statistics": lambda **how: ct.conv_batch_norm_statistics(x, w, **geometry, **how),
        "prologue": lambda **how: ct.conv_batch_norm_statistics(
            x, w, scale=narrow[0], bias=narrow[1], **geometry, **how
        ),
        "data": lambda **how: ct.conv_backward_data_relu_batch_norm(
            dy, w, x, mean, invstd, *(one.float() for one in narrow), **geometry, **how
        ),
        "filter": lambda **how: (
            ct.conv_backward_filter_scale_bias_relu(dy, x, *narrow, tuple(w.shape), **geometry, **how),
        ),
    }[fusion]
    sources: Any = {
        "statistics": training_graphs.STATISTICS_SOURCE,
        "prologue": training_graphs.STATISTICS_SOURCE,
        "data": training_graphs.DATA_SOURCE,
        "filter": training_graphs.FILTER_SOURCE,
    }
    first = [torch.from_dlpack(one).double() for one in call()]
    description = ct.last_plan()
    assert description is not None
    if description.candidate is None and _lib.load().kind != "full":
        pytest.skip("this set of libraries computes it by graphs of its parts")
    assert description.candidate is not None
    ctx, problem = context.of_device(0), description.candidate.problem
    rows = [row for find in sources[fusion].heuristics(problem) for row in find(ctx)]
    names = dict.fromkeys(row.algorithm for row in rows if not row.rejected)
    assert names
    wrong = []
    for algo in list(names)[:12]:
        for number, (one, wanted) in enumerate(zip(call(algo=algo), first, strict=True)):
            error = float((torch.from_dlpack(one).double() - wanted).abs().max())
            if not error <= 6e-3 * float(wanted.abs().max().clamp(min=1e-3)):
                wrong.append(f"{algo}, result {number}: {error:.3g} of {float(wanted.abs().max()):.3g}")
    assert not wrong


def test_a_block_is_trained_as_by_pytorch() -> None:
    """Two convolutions with a batch normalisation and a relu between them, by fusions in both directions."""
    x = last(randn(8, 64, 14, 14, dtype=HALF))
    w = [last((randn(64, 64, 3, 3, seed=seed) / 24).to(HALF)) for seed in (1, 2)]
    scale, bias = (channels(64, torch.float32, seed) for seed in (3, 4))
    zero, one = torch.zeros(64, device="cuda"), torch.ones(64, device="cuda")
    y, sums, squares = ct.conv_batch_norm_statistics(x, w[0], padding=1)
    done = ct.batch_norm_finalize(sums, squares, scale, bias, zero, one, 8 * 14 * 14)
    second = ct.conv_batch_norm_statistics(y, w[1], scale=done.eq_scale, bias=done.eq_bias, padding=1)
    dy = last(randn(8, 64, 14, 14, dtype=HALF, seed=5))
    prologue = done.eq_scale, done.eq_bias
    dw = ct.conv_backward_filter_scale_bias_relu(dy, y, *prologue, (64, 64, 3, 3), padding=1)
    back = ct.conv_backward_data_relu_batch_norm(dy, w[1], y, done.mean, done.invstd, scale, bias, padding=1)
    filters = [one.double().requires_grad_() for one in w]
    between = functional.conv2d(x.double(), filters[0], padding=1)
    between.retain_grad()
    parameters = [one.double().requires_grad_() for one in (scale, bias)]
    normed = functional.batch_norm(between, None, None, *parameters, training=True)
    wanted = functional.conv2d(functional.relu(normed), filters[1], padding=1)
    wanted.backward(dy.double())
    near(second.y, wanted.detach(), HALF, 5, "y")
    near(dw, filters[1].grad, HALF, 10, "dw")
    kept, z = torch.from_dlpack(y).double(), torch.from_dlpack(back.dz).double()
    vectors = map(torch.from_dlpack, (back.eq_dz_scale, back.eq_x_scale, back.eq_bias))
    factors = [per_channel(vector, kept) for vector in vectors]
    dx = z * factors[0] + kept * factors[1] + factors[2]
    off = (dx - between.grad).abs() > 2e-2 * float(between.grad.abs().max())  # at the edge of the relu
    assert float(off.double().mean()) < 2e-3
