"""Convolutions with scale and bias on a GPU, against PyTorch in float64."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

import cudnn_ct as ct
from tests.layers import LayerCase, scaled_conv_cases

from .conftest import check_drawn

torch = pytest.importorskip("torch")
# These need torch.
from .test_graph_operations import EXAMPLES, near, randn  # noqa: E402

functional = torch.nn.functional

CONVOLUTIONS = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
pytestmark = pytest.mark.skipif(not ct.config.replay, reason="first calls run without replays here, too")

ACTIVATED = {
    "identity": lambda y: y,
    "relu": functional.relu,
    "clipped_relu": lambda y: y.clamp(0, 1.5),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "elu": lambda y: functional.elu(y, alpha=1.5),
    "gelu": functional.gelu,
    "swish": lambda y: y * torch.sigmoid(1.5 * y),
}
LAST = {3: torch.contiguous_format, 4: torch.channels_last, 5: torch.channels_last_3d}


@settings(max_examples=EXAMPLES)
@given(case=scaled_conv_cases())
def test_conv_scale_bias_activation_equals_reference(case: LayerCase) -> None:
    exact = case.keywords["activation"] in ("identity", "relu", "clipped_relu")
    check_drawn(case, None if exact else 2e-5)  # engines that are compiled approximate the others


def last(tensor: Any) -> Any:
    return tensor.to(memory_format=LAST[tensor.ndim])


def channels(count: int, dtype: Any, seed: int) -> Any:
    """Return positive and negative numbers, none of them small."""
    drawn = randn(count, seed=seed)
    return (drawn + drawn.sign() * 0.5).to(dtype)


def convolved(x: Any, w: Any, **geometry: Any) -> Any:
    """Return a convolution in float64."""
    return CONVOLUTIONS[x.ndim - 2](x.double(), w.double(), **geometry)


def per_channel(vector: Any, images: Any) -> Any:
    return vector.double().reshape(1, -1, *[1] * (images.ndim - 2))


SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "square": ((4, 64, 28, 28), (64, 64, 3, 3), {"padding": 1}),
    "point, strided": ((4, 64, 28, 28), (256, 64, 1, 1), {"stride": 2}),
    "stem": ((2, 3, 64, 64), (64, 3, 7, 7), {"padding": 3, "stride": 2}),
    "odd channels": ((2, 7, 11, 11), (9, 7, 3, 3), {"dilation": 2}),
    "groups": ((2, 32, 14, 14), (64, 8, 3, 3), {"padding": 1, "groups": 4}),
    "one axis": ((3, 16, 50), (24, 16, 5), {"padding": 2}),
    "three axes": ((2, 16, 8, 9, 10), (24, 16, 3, 3, 3), {"padding": 1}),
    "pixel": ((5, 64, 1, 1), (32, 64, 1, 1), {}),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("channels_last", [True, False])
def test_conv_scale_bias_activation_equals_pytorch(shape: str, dtype: Any, channels_last: bool) -> None:
    x_shape, w_shape, geometry = SHAPES[shape]
    x, w = randn(*x_shape, dtype=dtype), randn(*w_shape, dtype=dtype, seed=1)
    x, w = (last(x), last(w)) if channels_last else (x, w)
    sums = convolved(x, w, **geometry)
    strict = None if dtype is torch.bfloat16 or x.ndim == 5 else "float32"  # others need tensor cores
    kinds: Any = [(dtype, None), (torch.float32, strict)]
    for number, (wide, precision) in enumerate(kinds):
        scale, bias = channels(w_shape[0], wide, 2), 10 * channels(w_shape[0], wide, 3)
        z = 10 * randn(*sums.shape, dtype=dtype, seed=4) if number else None
        wanted = sums * per_channel(scale, sums) + per_channel(bias, sums)
        wanted = functional.relu(wanted if z is None else wanted + z.double())
        tolerance = 60.0 if dtype is torch.float32 and precision is None else 1.0  # products of TF32
        got = ct.conv_scale_bias_activation(x, w, scale, bias, residual=z, precision=precision, **geometry)
        near(got, wanted, dtype, tolerance, f"precision {precision}")


@pytest.mark.parametrize("activation", ACTIVATED)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_conv_scale_bias_activation_activates(activation: Any, dtype: Any) -> None:
    x, w = last(randn(2, 32, 15, 17, dtype=dtype)), last(randn(40, 32, 3, 3, dtype=dtype, seed=1) / 16)
    scale, bias = channels(40, torch.float32, 2), channels(40, torch.float32, 3)
    sums = convolved(x, w, padding=1)
    wanted = ACTIVATED[activation](sums * per_channel(scale, sums) + per_channel(bias, sums))
    got = ct.conv_scale_bias_activation(
        x,
        w,
        scale,
        bias,
        activation=activation,
        coefficient=1.5,
        padding=1,
    )
    near(got, wanted, dtype, 1, activation)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_every_engine_of_a_convolution_with_scale_and_bias_equals_pytorch(dtype: Any) -> None:
    from cudnn_ct import context
    from cudnn_ct.ops.conv import scaled

    for padding in (1, ((1, 0), (0, 2))):
        x, w = last(randn(2, 32, 15, 17, dtype=dtype)), last(randn(40, 32, 3, 3, dtype=dtype, seed=1))
        scale, bias = channels(40, torch.float32, 2), channels(40, torch.float32, 3)
        sides = (1, 1, 1, 1) if padding == 1 else (0, 2, 1, 0)  # of the last axis first
        sums = convolved(functional.pad(x, sides), w)
        z = last(randn(*sums.shape, dtype=dtype, seed=4))
        wanted = functional.relu(sums * per_channel(scale, sums) + per_channel(bias, sums) + z.double())
        call = {"residual": z, "padding": padding}
        ct.conv_scale_bias_activation(x, w, scale, bias, **call)
        description = ct.last_plan()
        assert description is not None
        assert description.candidate is not None
        problem = description.candidate.problem
        ctx = context.of_device(0)
        rows = [row for find in scaled.SOURCE.heuristics(problem) for row in find(ctx)]
        names = dict.fromkeys(row.algorithm for row in rows if not row.rejected)
        assert names
        for algo in names:
            got = ct.conv_scale_bias_activation(x, w, scale, bias, algo=algo, **call)
            near(got, wanted, dtype, 1, f"{algo}, padding {padding}")


def test_conv_scale_bias_activation_is_tuned_once_and_replayed() -> None:
    x, w = (
        last(randn(4, 64, 28, 28, dtype=torch.float16)),
        last(randn(64, 64, 3, 3, dtype=torch.float16, seed=1)),
    )
    scale, bias = channels(64, torch.float32, 2), channels(64, torch.float32, 3)
    sums = convolved(x, w)
    out = last(torch.empty(sums.shape, device="cuda", dtype=torch.float16))
    for _ in range(12):
        ct.conv_scale_bias_activation(x, w, scale, bias, algo="autotune", out=out)
    near(out, functional.relu(sums * per_channel(scale, sums) + per_channel(bias, sums)), torch.float16)
