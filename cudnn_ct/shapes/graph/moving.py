"""Rules of operations that move, generate or requantise elements."""

from __future__ import annotations

from math import prod
from typing import Any

from ..checks import expect_dtype, expect_rank, expect_shape, some_axes
from ..parse import as_choice, as_int
from ..specs import TensorSpec, check_shape
from .rules import Kind, Result, Specs, described


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


def _quantize(specs: Specs, attributes: dict[str, Any]) -> dict[str, Result]:
    x, size = specs["x"], as_int(attributes["block_size"], "block_size")
    dtype, scale = attributes.pop("dtype"), attributes.pop("scale_dtype")
    blocks = _blocks(x, size)
    return {"y": Result(x.shape, dtype, x, dtype), "scale": Result(blocks, scale, x, scale)}


def _dequantize(specs: Specs, attributes: dict[str, Any]) -> dict[str, Result]:
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


MOVING = {
    "reshape": Kind("reshape", {"x": "xdesc"}, {"y": "ydesc"}, _reshape),
    "transpose": Kind("transpose", {"x": "xdesc"}, {"y": "ydesc"}, _transpose, since="9.22"),
    "slice": Kind("slice", {"x": "xdesc"}, {"y": "ydesc"}, _slice, since="9.22"),
    "concat": Kind("concat", {"*": "input_descs"}, {"y": "output_desc"}, _concat),
    "rng": Kind("rng", {"seed": "seed", "offset": "offset_desc"}, {"y": "ydesc"}, _rng),
    "paged_cache_load": Kind(
        "paged_cache_load",
        described("container page_table sequence"),
        {"y": "ydesc"},
        _paged_cache_load,
        since="9.4",
    ),
    "block_scale_quantize": Kind(
        "block_scale_quantize",
        {"x": "xdesc"},
        {"y": "ydesc", "scale": "scale_desc"},
        _quantize,
        "math_prec",
        "9.7",
    ),
    "block_scale_dequantize": Kind(
        "block_scale_dequantize",
        {"x": "xdesc", "scale": "scale_desc"},
        {"y": "ydesc"},
        _dequantize,
        "math_prec",
        "9.7",
    ),
}
