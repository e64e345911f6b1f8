"""Convolution with bias, residual and activation on a GPU against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct.errors import NotSupportedError
from tests.properties import TOLERANCE

ACTIVATIONS = ("relu", "identity", "clipped_relu", "sigmoid", "tanh", "elu", "gelu", "swish")


def check(
    dtype: str, layout: str, activation: str, *, residual: bool, bias: bool = True, **keywords: Any
) -> ct.ConvPlan:
    rng = np.random.default_rng(0)
    x, w = rng.integers(-2, 3, (2, 16, 9, 9)) / 4, rng.integers(-1, 2, (8, 16, 3, 3)) / 4
    b = rng.integers(-4, 5, 8) / 2
    geometry = {"padding": 1, "stride": 2}
    z = rng.integers(-8, 9, ct.conv_output_shape(x.shape, w.shape, **geometry)) / 4
    extra = {"alpha1": 2.0, "alpha2": 0.5} if residual else {}
    given = [x, w, *([z] if residual else []), *([b] if bias else [])]
    placed = [ct.asarray(a, dtype, layout=layout if a.ndim > 1 else None) for a in given]
    arrays = dict(zip([*"xw", *("z" * residual), *("b" * bias)], placed, strict=True))
    options = {"activation": activation, "coefficient": 1.5, **geometry, **extra}
    wanted = ct.reference.conv_bias_activation(
        x, w, b if bias else None, z=z if residual else None, **options
    )
    out = ct.full(wanted.shape, np.nan, dtype, layout=layout)
    operation = (arrays["x"], arrays["w"], arrays.get("b"))
    z_array = arrays.get("z")
    got = ct.conv_bias_activation(*operation, z=z_array, **options, **keywords, out=out)
    assert got is out
    plan = ct.conv_bias_activation_plan(*operation, z=z_array, **options, **keywords)
    for result in (got, plan(*placed)):
        scale = max(np.abs(wanted).max(), 1)
        np.testing.assert_allclose(
            result.numpy().astype(float),
            wanted,
            rtol=0,
            atol=TOLERANCE[dtype] * scale,
            err_msg=plan.describe(),
        )
    return plan


@pytest.mark.parametrize("residual", [False, True], ids=["", "residual"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(
    ("dtype", "layout"),
    [
        ("float16", "nhwc"),
        ("float16", "nchw"),
        ("bfloat16", "nhwc"),
        ("float32", "nhwc"),
        ("float32", "nchw"),
        ("float64", "nchw"),
    ],
)
def test_fused(dtype: str, layout: str, activation: str, residual: bool) -> None:
    try:
        plan = check(dtype, layout, activation, residual=residual)
    except NotSupportedError as error:
        assert activation == "gelu"
        pytest.skip(str(error).splitlines()[0])
    print(plan.candidate)


# The layouts of x, z and w, or "gaps" for a view of an array with twice as many channels.
LAYOUTS = [
    *(("nhwc", "nchw", "nhwc"), ("nchw", "nhwc", "nchw"), ("nhwc", "gaps", "nhwc"), ("nchw", "gaps", "nchw")),
    *(("nhwc", "nhwc", "gaps"), ("nchw", "nchw", "gaps")),
]


@pytest.mark.parametrize("layouts", LAYOUTS, ids="-".join)
@pytest.mark.parametrize("activation", ["relu", "sigmoid", "tanh", "elu", "identity"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("algo", ["heuristic", "autotune"])
def test_conv_bias_activation_equals_reference_when_operands_differ_in_layout(
    layouts: tuple[str, ...], activation: str, dtype: str, algo: str
) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.integers(-2, 3, (2, 16, 9, 9)) / 4, rng.integers(-1, 2, (8, 16, 3, 3)) / 4
    b, z = rng.integers(-4, 5, 8) / 2, rng.integers(-8, 9, (2, 8, 7, 7)) / 4
    options = {"activation": activation, "coefficient": 1.5}
    wanted = ct.reference.conv_bias_activation(x, w, b, z=z, **options)
    placed = [
        _every_second_channel(values, dtype) if layout == "gaps" else ct.asarray(values, dtype, layout=layout)
        for values, layout in zip((x, z, w), layouts, strict=True)
    ]
    images, residual, filters = placed
    got = ct.conv_bias_activation(images, filters, ct.asarray(b, dtype), z=residual, **options, algo=algo)
    assert got.layout == layouts[0]
    atol = TOLERANCE[dtype] * max(np.abs(wanted).max(), 1)
    np.testing.assert_allclose(got.numpy().astype(float), wanted, rtol=0, atol=atol)


def _every_second_channel(values: np.ndarray, dtype: str) -> ct.DeviceArray:
    """The values as a view of an array with twice as many channels, which are NaN."""
    wide = np.full((values.shape[0], 2 * values.shape[1], *values.shape[2:]), np.nan)
    wide[:, ::2] = values
    whole = ct.asarray(wide, dtype)
    n, c, *steps = whole.spec.strides
    return whole.view_as(ct.TensorSpec(values.shape, (n, 2 * c, *steps), dtype))


@pytest.mark.parametrize("activation", ["relu", "identity", "tanh"])
def test_fused_strict_and_timed_and_without_bias(activation: str) -> None:
    check("float32", "nchw", activation, residual=True, precision="float32")
    check("float16", "nhwc", activation, residual=True, algo="autotune")
    check("float16", "nhwc", activation, residual=False, bias=False)
    check("float32", "nchw", activation, residual=False, algo="time_once", deterministic=True)
