"""The sizes of a convolution, which rows of facts may ask for."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, prod
from typing import Any

from ..shapes.conv import ConvProblem, conv_problem, written_as
from ..shapes.specs import TensorSpec
from .subjects import Convolution

# Rows of facts with sizes are fitted to timings on one GPU. One that no longer holds costs time, never a
# result.
TILE = 128  # rows and columns of the result tiles of the larger kernels
THIN = 32  # with fewer channels, transforms and wide tiles do not pay off


def sizes_of(subject: Any) -> dict[str, Any]:
    """Return the sizes that matter to the kernels of a convolution; conditions of rows name them."""
    core: ConvProblem = subject.core
    (batch, channels, *image), (filters, thick, *window) = core.x.shape, core.w.shape
    result = core.y.shape[2:]
    inputs, outputs = batch * prod(image), batch * prod(result)  # pixels
    strided, dense, thinner = max(core.stride) > 1, core.groups == 1, min(channels, filters)
    plain, point = not strided and max(core.dilation) == 1, prod(window) == 1
    return {
        "precision": "tf32" if core.tensor_cores and core.x.dtype == "float32" else core.compute,
        "tensor_cores": core.tensor_cores,
        "fused": subject.fused,
        "channels_last": bool(core.common_layouts) and written_as(core.x, core) == "nhwc",
        "axes": len(window),
        "point": point,
        "flat_point": point and len(window) == 2,
        "plain": plain,
        "strided": strided,
        "square3": window == [3, 3] and plain and dense and thinner >= THIN,  # suits Winograd
        "groups": core.groups,
        "dense": dense,
        "grouped": not dense and thick > 1,
        "depthwise": not dense and thick == 1,
        "thick": thick,  # channels per group
        "thinner": thinner,
        "products": channels * filters,
        "taps": channels * filters * prod(window),
        "multiplications": outputs * filters * thick * prod(window),
        "image": prod(image),  # pixels per image of x
        "result": prod(result),  # pixels per image of y
        "inputs": inputs,
        "outputs": outputs,
        "tiles_in": ceil(inputs / TILE) * ceil(channels / TILE),  # of a result with the size of x
        "tiles_out": ceil(outputs / TILE) * ceil(filters / TILE),
    }


def known_sizes() -> dict[str, Any]:
    """Return examples of sizes; rows ask for ``NAME``, or ``min_NAME`` or ``max_NAME`` of a number."""
    point = TensorSpec.packed((1, 1, 1, 1))
    return sizes_of(Convolution(conv_problem("forward", point, point)))


_PRECISIONS = ("float16", "bfloat16", "float32", "tf32", "float64", "int32")


def why_not_sizes(sizes: Mapping[str, Any]) -> str:
    """Return which size is none, or has a value that it never has; empty if all may hold."""
    known = known_sizes()
    for name, value in sizes.items():
        size = name[4:] if name.startswith(("min_", "max_")) else name
        fits = type(value) is type(known.get(size, ...)) and (size == name or type(value) is int)
        if not fits or (size == "precision" and value not in _PRECISIONS):
            some = f"one like those in {known} (precisions are {', '.join(_PRECISIONS)})"
            return f"sizes are wrong: got {name!r}: {value!r}, expected {some}, numbers with min_ or max_ too"
    return ""
