"""Rules of convolutions and resampling, and of operations that move, generate or requantise elements."""

from __future__ import annotations

from fractions import Fraction
from math import prod
from typing import Any

from ..checks import as_choice, as_int, expect_dtype, expect_rank, expect_shape, some_axes
from ..conv import conv_geometry, conv_output_shape
from ..layers import pool_geometry, pool_output_shape
from ..specs import Shape, TensorSpec, check_shape
from .problem import Result, Specs

POOLING = ("avgpool", "avgpool_exclude_padding", "maxpool")


def _conv_forward(specs: Specs, attributes: dict[str, Any]) -> dict[str, Result]:
    x, w = specs["x"], specs["w"]
    return {"y": Result(_convolved(x.shape, w.shape, attributes), like=x)}


def _conv_backward_data(specs: Specs, attributes: dict[str, Any]) -> dict[str, Result]:
    dy, w = specs["dy"], specs["w"]
    shape = check_shape(attributes.pop("x_shape"), "x_shape")
    expect_shape(dy, "dy", _convolved(shape, w.shape, attributes))
    return {"dx": Result(shape, like=dy)}


def _conv_backward_filter(specs: Specs, attributes: dict[str, Any]) -> dict[str, Result]:
    dy, x = specs["dy"], specs["x"]
    shape = check_shape(attributes.pop("w_shape"), "w_shape")
    expect_shape(dy, "dy", _convolved(x.shape, shape, attributes))
    return {"dw": Result(shape, like=x)}


def _convolved(x: Shape, w: Shape, attributes: dict[str, Any]) -> Shape:
    """Check a convolution, replace its parameters by cuDNN's attributes, and return the shape of y."""
    for name, shape in (("x", x), ("w", w)):
        if not 3 <= len(shape) <= 5:
            raise ValueError(f"{name} has the wrong rank: got shape {shape}, expected 3 to 5 axes")
    if len(w) != len(x):
        raise ValueError(f"w has the wrong rank: got shape {w}, expected {len(x)} axes as in x {x}")
    if w[1] == 0 or x[1] % w[1]:
        raise ValueError(f"channels differ: got x {x} with {x[1]} and w {w}, expected a multiple of {w[1]}")
    padding, stride, dilation = (attributes.pop(name) for name in ("padding", "stride", "dilation"))
    groups, axes = x[1] // w[1], len(x) - 2
    y = conv_output_shape(x, w, padding=padding, stride=stride, dilation=dilation, groups=groups)
    pairs, strides, dilations = conv_geometry(w[2:], padding, stride, dilation)
    attributes.update(
        conv_mode=as_choice(attributes.get("conv_mode"), ("cross_correlation", "convolution"), "mode"),
        spatial_dims=axes,
        pre_paddings=tuple(before for before, _ in pairs),
        post_paddings=tuple(after for _, after in pairs),
        filter_strides=strides,
        dilations=dilations,
    )
    return y


def _resample_forward(specs: Specs, attributes: dict[str, Any]) -> dict[str, Result]:
    x = specs["x"]
    mode = as_choice(attributes["mode"], (*POOLING, "bilinear"), "mode")
    if mode == "bilinear":
        return {"y": Result(_doubled(x, attributes), like=x)}
    y = _pooled(x, attributes)
    indices = {"indices": Result(y, "int8", x, "int8")} if attributes["mode"] == "maxpool" else {}
    return {"y": Result(y, like=x), **indices}


def _resample_backward(specs: Specs, attributes: dict[str, Any]) -> dict[str, Result]:
    dy = specs["dy"]
    shape = check_shape(attributes.pop("x_shape"), "x_shape")
    x = TensorSpec.packed(shape, dy.dtype)
    expect_shape(dy, "dy", _pooled(x, attributes))
    if "indices" in specs:
        expect_shape(specs["indices"], "indices", dy.shape)
    elif attributes["mode"] == "maxpool" and not {"x", "y"} <= set(specs):
        raise ValueError("indices are missing: the gradient of maxpool needs indices, or x and y")
    return {"dx": Result(shape, like=dy)}


def _doubled(x: TensorSpec, attributes: dict[str, Any]) -> Shape:
    """Set the only attributes with which cuDNN has engines for bilinear interpolation."""
    # They have engines for three spatial axes, too, which write wrong results.
    expect_rank(x, "x", 4)
    given = {name: attributes.pop(name, None) for name in ("window", "stride", "padding")}
    for name, value in given.items():
        if value not in (None, 0):
            raise ValueError(f"{name} is not for mode='bilinear', which doubles both axes: got {value}")
    half = (Fraction(1, 2),) * 2
    attributes.update(
        mode="bilinear",
        spatial_dims=2,
        window_dims=(2, 2),
        strides=half,
        pre_paddings=half,
        post_paddings=(1, 1),
        padding_mode="edge_val_pad",
        nan_propagation="propagate_nan",
    )
    return (*x.shape[:2], 2 * x.shape[2], 2 * x.shape[3])


def _pooled(x: TensorSpec, attributes: dict[str, Any]) -> Shape:
    expect_rank(x, "x", 4, 5)
    window, stride, padding = (attributes.pop(name) for name in ("window", "stride", "padding"))
    mode = as_choice(attributes["mode"], POOLING, "mode")
    y = pool_output_shape(x.shape, window=window, stride=stride, padding=padding)
    geometry = pool_geometry(x.shape, window, stride, padding)
    attributes.update(
        mode=mode,
        spatial_dims=len(geometry.window),
        window_dims=geometry.window,
        strides=geometry.stride,
        pre_paddings=tuple(before for before, _ in geometry.padding),
        post_paddings=tuple(after for _, after in geometry.padding),
        padding_mode="neg_inf_pad" if mode == "maxpool" else "zero_pad",
        nan_propagation="propagate_nan",
    )
    return y


# --- elements that are moved, generated or requantised -----------------------------------------------------


def _reshape(specs: Specs, attributes: dict[str, Any]) -> dict[str, Result]:
    x, shape = specs["x"], check_shape(attributes.pop("shape"))
    if prod(shape) != x.size:
        raise ValueError(
            f"shape has another number of elements: got {shape} with {prod(shape)}, expected {x.size} as in "
            f"{x.shape}"
        )
    return {"y": Result(shape, x.dtype)}


def _transpose(specs: Specs, attributes: dict[str, Any]) -> dict[str, Result]:
    x = specs["x"]
    axes = some_axes(attributes["permutation"], len(x.shape), "axes")
    if len(axes) != len(x.shape):
        raise ValueError(f"axes are incomplete: got {axes}, expected all {len(x.shape)} axes of {x.shape}")
    attributes["permutation"] = axes
    return {"y": Result(tuple(x.shape[axis] for axis in axes), x.dtype)}


def _slice(specs: Specs, attributes: dict[str, Any]) -> dict[str, Result]:
    x, rank = specs["x"], len(specs["x"].shape)
    start, limit = (tuple(attributes[name]) for name in ("start_indices", "limit_indices"))
    steps = tuple(attributes.get("strides") or (1,) * rank)
    for name, values in (("start", start), ("limit", limit), ("steps", steps)):
        if len(values) != rank:
            raise ValueError(
                f"{name} has {len(values)} numbers: got {values}, expected {rank} as in {x.shape}"
            )
    for axis, (low, high, step, length) in enumerate(zip(start, limit, steps, x.shape, strict=True)):
        if not (0 <= low < high <= length and step > 0):
            raise ValueError(
                f"slice is out of range at axis {axis}: got {low}:{high}:{step}, expected "
                f"0 <= start < limit <= {length} and a positive step"
            )
    attributes["strides"] = steps
    lengths = (-(-(high - low) // step) for low, high, step in zip(start, limit, steps, strict=True))
    return {"y": Result(tuple(lengths), x.dtype, x)}


def _concat(specs: Specs, attributes: dict[str, Any]) -> dict[str, Result]:
    tensors = list(specs.values())
    first = tensors[0]
    (axis,) = some_axes(attributes["axis"], len(first.shape), "axis")
    attributes["axis"] = axis
    for number, spec in enumerate(tensors[1:], 1):
        others = [
            one for place, (one, own) in enumerate(zip(spec.shape, first.shape, strict=False))
            if place != axis and one != own
        ]  # fmt: skip
        if others or len(spec.shape) != len(first.shape):
            raise ValueError(
                f"tensor {number} does not fit: got {spec.shape}, expected {first.shape} but for axis {axis}"
            )
        expect_dtype(spec, f"tensor {number}", first.dtype)
    total = sum(spec.shape[axis] for spec in tensors)
    shape = (*first.shape[:axis], total, *first.shape[axis + 1 :])
    return {"y": Result(shape, first.dtype, first)}


def _rng(specs: Specs, attributes: dict[str, Any]) -> dict[str, Result]:  # noqa: ARG001
    as_choice(attributes["distribution"], ("bernoulli", "uniform", "normal"), "distribution")
    return {"y": Result(check_shape(attributes.pop("shape")), "float32")}


def _paged_cache_load(specs: Specs, attributes: dict[str, Any]) -> dict[str, Result]:
    container, table, lengths = specs["container"], specs["page_table"], specs["sequence"]
    for name, spec in specs.items():
        expect_rank(spec, name, 4)
    expect_dtype(table, "page_table", "int32")
    expect_dtype(lengths, "sequence", "int32", "int64")
    batch, _, blocks, _ = table.shape
    expect_shape(lengths, "sequence", (batch, 1, 1, 1))
    _, heads, block, depth = container.shape
    longest = as_int(attributes.pop("max_length"), "max_length")
    if -(-longest // block) != blocks:
        raise ValueError(
            f"page_table has {blocks} blocks per sequence: expected {-(-longest // block)} for max_length "
            f"{longest} in blocks of {block}"
        )
    transposed = attributes.pop("transposed", False)
    shape = (batch, heads, depth, longest) if transposed else (batch, heads, longest, depth)
    return {"y": Result(shape, container.dtype)}


def _block_scale_quantize(specs: Specs, attributes: dict[str, Any]) -> dict[str, Result]:
    x, size = specs["x"], as_int(attributes["block_size"], "block_size")
    dtype, scale = attributes.pop("dtype"), attributes.pop("scale_dtype")
    blocks = _blocks(x, size)
    return {"y": Result(x.shape, dtype, x, dtype), "scale": Result(blocks, scale, x, scale)}


def _block_scale_dequantize(specs: Specs, attributes: dict[str, Any]) -> dict[str, Result]:
    x, size = specs["x"], as_int(attributes["block_size"], "block_size")
    expect_shape(specs["scale"], "scale", _blocks(x, size))
    return {"y": Result(x.shape, like=x)}


def _blocks(x: TensorSpec, size: int) -> tuple[int, ...]:
    """Return the shape of the scales: one for each block of elements along the contiguous axis."""
    if size < 1:
        raise ValueError(f"block_size must be positive: got {size}")
    if not x.shape:
        raise ValueError("x is a number: expected a tensor with at least one axis")
    axis = max(range(len(x.shape)), key=lambda axis: (x.strides[axis] == 1, x.shape[axis], axis))
    return tuple(-(-n // size) if place == axis else n for place, n in enumerate(x.shape))
