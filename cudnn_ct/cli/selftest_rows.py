"""Rows of the selftest: how inputs are drawn, how far a result may differ, and the cases of products."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from inspect import Parameter, signature
from typing import Any, NamedTuple

import numpy as np

import cudnn_ct as ct

from .. import reference
from ..dtypes import as_dtype
from ..shapes.checks import FLOATS
from ..shapes.specs import LAYOUTS
from ..typing import Layout

# The largest error, divided by the largest element or 1: for a result that is rounded once; for sums of
# products, with factors of 11 bits in TF32; for the same without TF32; and for sums over a batch.
ROUNDED = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 1e-5, "float64": 1e-12}
PRODUCTS = {"float16": 2e-2, "bfloat16": 2e-2, "float32": 2e-3, "float64": 1e-12}
STRICT = {"float32": 2e-4}
EXACT = {"int8": 0.0}
SUMS = {"float16": 4e-3, "bfloat16": 3.2e-2, "float32": 1e-4, "float64": 1e-10}


class Inputs(NamedTuple):
    """The arguments of one call: for operation and reference, and for the operation only."""

    operands: tuple[Any, ...]
    keywords: dict[str, Any]
    device_keywords: dict[str, Any] = {}  # noqa: RUF012 - never modified


class Case(NamedTuple):
    """One call to test; ``make`` draws its inputs, ``tolerance`` is relative to the largest element."""

    operation: str
    variant: str
    dtype: str
    layout: Layout
    tolerance: float
    make: Callable[[Draw], Inputs]

    @property
    def name(self) -> str:
        """Its name in a report."""
        return f"{self.operation}{f' ({self.variant})' if self.variant else ''}"

    def inputs(self) -> Inputs:
        """Draw the inputs, which are the same each time."""
        return self.make(Draw(self.dtype))


class Draw:
    """Draw arrays of one dtype."""

    def __init__(self, dtype: str) -> None:
        self.rng = np.random.default_rng(0)
        self.dtype = as_dtype(dtype).numpy
        # The parameters of a normalisation in half precision are float32.
        self.wide = np.dtype(np.float64 if dtype == "float64" else np.float32)

    def floats(self, *shape: int) -> np.ndarray[Any, Any]:
        """Draw normal numbers; for integers, any."""
        if self.dtype.kind == "i":
            return self.rng.integers(-128, 128, shape).astype(self.dtype)
        return self.rng.standard_normal(shape).astype(self.dtype)

    def nonzero(self, *shape: int) -> np.ndarray[Any, Any]:
        """Draw small integers that are not 0."""
        return self.rng.choice((-3, -2, -1, 1, 2, 3), shape).astype(self.dtype)

    def distinct(self, *shape: int) -> np.ndarray[Any, Any]:
        """Return numbers that differ within a small window, so that its maximum is one element."""
        return (np.arange(np.prod(shape)).reshape(shape) * 37 % 101 - 50).astype(self.dtype)

    def parameter(self, *shape: int) -> np.ndarray[Any, Any]:
        """Draw positive numbers for scales and variances."""
        return self.rng.uniform(0.5, 2, shape).astype(self.wide)


def of_shapes(
    keywords: dict[str, Any], operands: dict[str, Any], device: dict[str, Any] | None = None, **optional: Any
) -> Callable[[Draw], Inputs]:
    """Return a function that draws arrays of these shapes: operands in their order, others as keywords."""

    def one(draw: Draw, name: str, shape: Any) -> Any:
        if name.endswith("_shape"):  # an argument that is a shape
            return shape
        return draw.parameter(*shape) if name == "scale" else draw.floats(*shape)

    def make(draw: Draw) -> Inputs:
        given = tuple(one(draw, name, shape) for name, shape in operands.items())
        arrays = {name: one(draw, name, shape) for name, shape in optional.items()}
        return Inputs(given, keywords | arrays, device or {})

    return make


@cache
def required(operation: str) -> tuple[str, ...]:
    """Return the names of the parameters of an operation that have no default."""
    parameters = signature(getattr(ct, operation)).parameters.values()
    return tuple(row.name for row in parameters if row.default is Parameter.empty)


def each_layout(
    operation: str,
    variant: str,
    make: Callable[..., Inputs],
    tolerance: dict[str, float],
    dtypes: tuple[str, ...] = FLOATS,
    layouts: tuple[Layout, ...] = LAYOUTS,
) -> Iterator[Case]:
    """Yield a row for each dtype and layout."""
    required(operation)  # before a test replaces the operation
    for dtype in dtypes:
        for layout in layouts:
            yield Case(operation, variant, dtype, layout, tolerance[dtype], make)


# --- products ----------------------------------------------------------------------------------------------


X, W = (2, 8, 9, 10), (8, 8, 3, 3)  # the shapes of convolutions
Y = (X[0], W[0], *X[2:])
PLAIN: dict[str, Any] = {"padding": 1}
NCHW, NHWC = LAYOUTS[:1], LAYOUTS[1:]
HALF, EIGHT = (np.full(1, number, np.float32) for number in (0.5, 8))  # scales
FLOAT8 = {"float8_e4m3": 2e-2, "float8_e5m2": 2e-2}  # the result is bfloat16

# --- fused and causal convolutions -------------------------------------------------------------------------

TRAINING_FUSIONS = (
    "conv_batch_norm_statistics",
    "batch_norm_finalize",
    "conv_backward_data_relu_batch_norm",
    "conv_backward_filter_scale_bias_relu",
)
TRAINING = {"float16": 4e-3}  # the sums have the elements of y before or after they are rounded


def fusion_cases() -> Iterator[Case]:
    """Yield convolutions with scale and bias, of float8, and the fusions of training."""
    scaled = of_shapes(PLAIN, {"x": X, "w": W, "scale": W[:1], "bias": W[:1]}, residual=Y)
    yield from each_layout("conv_scale_bias_activation", "residual, relu", scaled, PRODUCTS, FLOATS[:-1])
    yield from each_layout("scaled_conv", "bias, relu", _float8, FLOAT8, tuple(FLOAT8))
    for operation in TRAINING_FUSIONS:
        make = partial(_of_training, operation)
        yield from each_layout(operation, "", make, TRAINING, FLOATS[:1])


def causal_cases() -> Iterator[Case]:
    """Yield few causal convolutions: cuDNN compiles a kernel for each, in about five seconds."""
    for step, dtype, layout in (
        ("", "bfloat16", NCHW),
        ("", "float32", NHWC),
        ("_backward", "float32", NCHW),
    ):
        dy = {"dy": (2, 8, 40)} if step else {}
        make = of_shapes({"activation": "silu"}, {**dy, "x": (2, 8, 40), "w": (8, 4), "bias": (8,)})
        yield from each_layout(f"causal_conv1d{step}", "silu", make, SUMS, (dtype,), layout)
    for length, width, step in ((512, 128, ""), (512, 128, "_backward"), (2**15, 2**15, "_backward")):
        x = (2, 3, length)
        make = of_shapes({}, {**({"dy": x} if step else {}), "x": x, "w": (3, width)})
        yield from each_layout(f"fft_causal_conv1d{step}", f"width {width}", make, SUMS, ("float32",), NCHW)
    operands = {"x": (2, 8, 3, 40), "w_proj": (8, 3, 4), "w_mixer": (8, 7), "skip_bias": (8,)}
    gradient = {"dy": (2, 8, 40), **operands, "mixed": (2, 8, 40)}
    for step, shapes in (("", operands), ("_backward", gradient)):
        make = of_shapes({}, shapes)
        yield from each_layout(f"b2b_causal_conv1d{step}", "", make, SUMS, ("float32",), NCHW)


def _of_training(operation: str, draw: Draw) -> Inputs:
    """Draw operands of convolutions between batch normalisations; no value is 0 before a relu."""
    x, w, dy = draw.floats(*X), draw.floats(*W), draw.floats(*Y)
    scale, bias = (draw.parameter(X[1]) for _ in range(2))
    if operation == "batch_norm_finalize":
        mean, elements = draw.rng.standard_normal(X[1]).astype(np.float32), 100
        sums = (mean * elements, (scale + mean * mean) * elements)
        return Inputs((*sums, scale, bias, mean, scale, elements), {})
    if operation == "conv_batch_norm_statistics":
        return Inputs((x, w), PLAIN | {"scale": scale.astype(x.dtype), "bias": bias.astype(x.dtype)})
    if operation == "conv_backward_filter_scale_bias_relu":
        return Inputs((dy, x, scale.astype(x.dtype), bias.astype(x.dtype), W), PLAIN)
    whole = draw.rng.integers(-4, 5, X).astype(x.dtype)
    mean, one, zero = (np.full(X[1], number, np.float32) for number in (0.25, 1, 0))
    return Inputs((dy, w, whole, mean, one, scale, zero), PLAIN)


def _float8(draw: Draw) -> Inputs:
    """Draw images and filters of float8 with 16 channels, and some of the scales."""
    x, w = draw.floats(2, 16, 9, 10), draw.floats(32, 16, 3, 3)
    bias = draw.floats(32).astype(np.float32)
    return Inputs((x, w), PLAIN | {"descale_x": HALF, "bias": bias, "activation": "relu", "amax": True})


# --- products of matrices and normalisations of rows -------------------------------------------------------

ROW_NORMS = ("layer_norm", "rms_norm", "ada_layer_norm")  # whose parameters are not those of channels
LARGE_MEAN = 1000  # deviations, which leaves the difference from it three digits of float32
LARGE = {"float32": 2e-3}


def matrix_cases() -> Iterator[Case]:
    """Yield products of matrices and their gradients, and normalisations of rows and theirs."""
    ab = {"a": (3, 16, 32), "b": (32, 24)}  # a batch of matrices, and one that all of them are multiplied by
    product, gradient = of_shapes({}, ab), of_shapes({"bias_gradient": True}, {"dy": (3, 16, 24), **ab})
    yield from each_layout("matmul", "", product, PRODUCTS, layouts=NCHW)
    yield from each_layout("matmul_backward", "", gradient, PRODUCTS, layouts=NCHW)
    strict = of_shapes({}, ab, {"precision": "float32"})
    yield from each_layout("matmul", "IEEE float32", strict, STRICT, ("float32",), NCHW)
    activated = of_shapes({"activation": "silu"}, ab, bias=(24,))
    yield from each_layout("matmul", "bias, silu", activated, PRODUCTS, layouts=NCHW)
    yield from each_layout("matmul", "", product, EXACT, ("int8",), NCHW)
    scaled = of_shapes({"descale_a": HALF}, {"a": (16, 32), "b": (32, 48)})
    yield from each_layout("scaled_matmul", "", scaled, FLOAT8, ("float8_e4m3",), NCHW)
    for operation in ROW_NORMS:
        yield from _rows_of(operation)
    for operation in ("batch_norm_training", "instance_norm"):
        yield from each_layout(operation, "large mean", _large_images, LARGE, tuple(LARGE))


def _rows_of(operation: str) -> Iterator[Case]:
    """Yield a normalisation of rows and its gradient; cuDNN has none of float64."""
    dtypes, layouts = FLOATS[:-1], NCHW
    for name in (operation, f"{operation}_backward"):
        yield from each_layout(name, "", partial(_row_norm, name), SUMS, dtypes, layouts)
        large = partial(_row_norm, name, mean=LARGE_MEAN)
        yield from each_layout(name, "large mean", large, LARGE, tuple(LARGE), layouts)
        if name == operation:
            make = partial(_row_norm, name, training=False)
            yield from each_layout(name, "without statistics", make, SUMS, dtypes, layouts)


def _row_norm(operation: str, draw: Draw, mean: float = 0, **keywords: Any) -> Inputs:
    """Draw rows of 64 elements, the shortest for which cuDNN has all engines."""
    x, samples = draw.floats(4, 6, 64) + draw.dtype.type(mean), (4,) * operation.startswith("ada")
    scale = draw.rng.uniform(0.5, 2, (*samples, 64)).astype(draw.dtype)
    if not operation.endswith("_backward"):
        return Inputs((x, scale, scale[::-1].copy()), keywords)
    forward = getattr(reference, operation.removesuffix("_backward"))
    return Inputs((draw.floats(4, 6, 64), x, scale, *forward(x, scale)[1:]), keywords)


def _large_images(draw: Draw) -> Inputs:
    """Draw images whose mean is large next to their deviation."""
    x = draw.floats(4, 8, 5, 6) + draw.dtype.type(LARGE_MEAN)
    return Inputs((x, draw.parameter(8), draw.parameter(8)), {})


# --- attention ---------------------------------------------------------------------------------------------

HEADS, KV_HEADS = (2, 4, 40, 16), (2, 2, 40, 16)
FLOAT8_RESULT = {"float8_e4m3": 0.2, "float8_e5m2": 0.4}  # weights are rounded to float8, too
ATTENTION: dict[str, dict[str, Any]] = {
    "": {},
    "causal": {"causal": True},
    "bottom right": {"causal": "bottom_right"},
    "window": {"window": (9, 3)},
    "lengths": {"lengths_q": [40, 17], "lengths_kv": [30, 40]},
}


def attention_cases() -> Iterator[Case]:
    """Yield attention and its gradient, zeros behind the lengths, and attention of float8."""
    for variant, keywords in ATTENTION.items():
        for gradient in (False, True):
            make = partial(_of_attention, keywords, gradient)
            name = "attention_backward" if gradient else "attention"
            yield from each_layout(name, variant, make, PRODUCTS, ("float16", "bfloat16"))
    padded = of_shapes({"lengths": [40, 17]}, {"x": HEADS})
    yield from each_layout("clear_padding", "", padded, PRODUCTS, FLOATS[:-1])
    scales = {"descale_q": HALF, "scale_o": EIGHT, "return_stats": True, "amax": True}
    for variant, keywords in (("", {}), ("causal", {"causal": True})):
        scaled = of_shapes(keywords | scales, {"q": HEADS, "k": KV_HEADS, "v": KV_HEADS})
        yield from each_layout("scaled_attention", variant, scaled, FLOAT8_RESULT, tuple(FLOAT8_RESULT), NCHW)


def _of_attention(keywords: dict[str, Any], gradient: bool, draw: Draw) -> Inputs:
    """Draw grouped heads of 40 queries and keys."""
    q, k, v = (draw.floats(*shape) for shape in (HEADS, KV_HEADS, KV_HEADS))
    if not gradient:
        return Inputs((q, k, v), keywords)
    y, stats = reference.attention(q, k, v, return_stats=True, **keywords)
    return Inputs((draw.floats(*y.shape), q, k, v, y, stats), keywords)
