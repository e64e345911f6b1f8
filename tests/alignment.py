"""Operands that start any number of elements behind a 16-byte boundary."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import cycle
from typing import Any

import numpy as np

import cudnn_ct as ct
from cudnn_ct.dtypes import as_dtype
from tests.layers import LayerCase, Place, Tensor, compare, several
from tests.strategies import poison


def shifted(array: np.ndarray, offset: int) -> np.ndarray:
    """Copy an array to host memory in which it starts ``offset`` elements later, with the same strides.

    The memory around the elements is :func:`poison`; it is the ``.base`` of the copy.
    """
    base = array if array.base is None else array.base
    room = np.full(offset, poison(array.dtype)).astype(array.dtype)
    memory = np.concatenate([room, base.ravel(order="K")])
    start = offset * array.itemsize + array.ctypes.data - base.ctypes.data
    return np.ndarray(array.shape, array.dtype, memory, start, array.strides)


def own(array: np.ndarray) -> ct.DeviceArray:
    """Copy a NumPy array with the memory around it to the device: a DeviceArray with the same strides."""
    memory = array if array.base is None else array.base
    flat = ct.asarray(memory.ravel(order="K"))
    strides = tuple(s // array.itemsize for s in array.strides)
    spec = ct.TensorSpec(array.shape, strides, as_dtype(array.dtype).name)
    offset = array.ctypes.data - memory.ctypes.data
    return ct.DeviceArray(spec, flat.pointer + offset, flat, flat.writer, flat.home)


def placing(place: Place, *offsets: int) -> Place:
    """Return a function that places arrays with these offsets, one after another, and begins again."""
    turn = cycle(offsets)
    return lambda array: place(shifted(array, next(turn)))


def each_in_turn(count: int, offsets: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield the offsets of all operands, of which one is misaligned; then offsets that all differ."""
    for offset in offsets:
        for place in range(count):
            yield tuple(offset if i == place else 0 for i in range(count))
    yield tuple(1 + i % 7 for i in range(count))


# --- calls -------------------------------------------------------------------------------------------------


def norm_calls(shape: tuple[int, ...], dtype: str, layout: str = "nchw") -> dict[str, LayerCase]:
    """Return calls of every batch normalisation of a shape, with each optional operand."""
    channels, wide = shape[1:2], "float64" if dtype == "float64" else "float32"
    seeds = iter(range(99))

    def data(values: Any = "floats") -> Tensor:
        return Tensor(shape, dtype, values, layout, seed=next(seeds))

    def parameter(values: str = "positive") -> Tensor:
        return Tensor(channels, wide, values, seed=next(seeds))

    x, scale, bias = data(), parameter(), parameter("floats")
    mean, var, dy, factors = parameter("floats"), parameter(), data(), {"alpha": 2, "beta": 0.5}
    y = ct.reference.batch_norm_training(x.array(), scale.array(), bias.array(), activation="relu").y
    running = {"running_mean": mean, "running_var": var}
    saved = (dy, x, scale, mean, var)
    cases = {
        "training": LayerCase("batch_norm_training", (x, scale, bias)),
        "training, all operands": LayerCase(
            "batch_norm_training",
            (x, scale, bias),
            {"activation": "relu", **factors},
            {"z": data(), **running, "out": data("integers")},
        ),
        "training, relu": LayerCase("batch_norm_training", (x, scale, bias), {"activation": "relu"}, running),
        "inference": LayerCase("batch_norm_inference", (x, scale, bias, mean, var)),
        "inference, beta": LayerCase(
            "batch_norm_inference", (x, scale, bias, mean, var), factors, {"out": data("integers")}
        ),
        "backward": LayerCase("batch_norm_backward", saved),
        "backward, own statistics": LayerCase("batch_norm_backward", (dy, x, scale)),
        "backward, all operands": LayerCase(
            "batch_norm_backward",
            saved,
            {"activation": "relu", **factors},
            {"y": data(y), "out": data("integers")},
        ),
        "inference_backward": LayerCase("batch_norm_inference_backward", saved, factors, {"out": data()}),
    }
    return {name: replace(case, terms={"dx": 10.0}) for name, case in cases.items()}


def operands_of(case: LayerCase) -> int:
    """The number of arrays that a call is given."""
    return len(case.outs) + sum(operand is not None for operand in case.operands)


Check = Callable[[LayerCase, Place], None]


def sweep(case: LayerCase, place: Place, check: Check, offsets: Sequence[int] = range(1, 8)) -> None:
    """Make a call with each operand in turn at each of the offsets."""
    for starts in each_in_turn(operands_of(case), offsets):
        print(case.operation, case.keywords, starts, flush=True)
        check(case, placing(place, *starts))


# For results of a few hundred terms, over the largest of them.
ROUGHLY = {"float16": 1e-2, "bfloat16": 5e-2, "float32": 2e-3, "float64": 1e-10}


def check_roughly(case: LayerCase) -> Check:
    """Return a check of a call against its reference, which is computed once; long sums are tolerated."""
    inputs = [one and one.array() for one in case.operands]
    written = {name: one.array() for name, one in case.outs.items()}
    expected = several(getattr(ct.reference, case.operation)(*inputs, **case.keywords, **written))

    def check(case: LayerCase, place: Place) -> None:
        outs = {name: place(one.array()) for name, one in case.outs.items()}
        devices = [one and place(one.array()) for one in case.operands]
        got = several(getattr(ct, case.operation)(*devices, **case.keywords, **outs))
        pairs = [*zip(got, expected, strict=True), *((outs[name], written[name]) for name in outs)]
        for array, wanted in pairs:
            tolerance = None if wanted is None else ROUGHLY[as_dtype(case.operands[0].dtype).name]
            compare(array, wanted, tolerance=tolerance)

    return check


# --- convolutions ------------------------------------------------------------------------------------------

EVEN, UNEVEN = 1, ((0, 1), (2, 1))


def conv_calls(
    dtype: str,
    layout: str,
    padding: Any,
    x: tuple[int, ...] = (2, 4, 5, 4),
    w: tuple[int, ...] = (6, 2, 3, 2),
) -> dict[str, LayerCase]:
    """Return calls of convolutions in each direction and with epilogues, with each optional operand."""
    geometry = {"padding": padding, "stride": (2, 1), "groups": x[1] // w[1]}
    y = ct.conv_output_shape(x, w, **geometry)

    def data(shape: tuple[int, ...], seed: int) -> Tensor:
        return Tensor(shape, dtype, "integers", layout, seed=seed)

    def case(
        operation: str, first: tuple[int, ...], second: tuple[int, ...], result: tuple[int, ...]
    ) -> LayerCase:
        shape = {} if operation == "conv" else {f"{'x' if operation.endswith('data') else 'w'}_shape": result}
        alpha = 1 if dtype == "float16" else 2  # engines do not scale sums of float16
        keywords = {**geometry, **shape, "alpha": alpha, "beta": 0.5}
        return LayerCase(operation, (data(first, 0), data(second, 1)), keywords, {"out": data(result, 2)})

    bias = Tensor(w[:1], dtype, "integers", seed=3)
    fused = LayerCase("conv_bias_activation", (data(x, 0), data(w, 1), bias), geometry)
    more = {"z": data(y, 4), "out": data(y, 5)}
    calls = {
        "conv": case("conv", x, w, y),
        "backward_data": case("conv_backward_data", y, w, x),
        "backward_filter": case("conv_backward_filter", y, x, w),
        "fused": fused,
        "fused, all operands": replace(fused, keywords={**geometry, "alpha1": 2, "alpha2": 0.5}, outs=more),
        "fused, clipped": replace(
            fused, keywords={**geometry, "activation": "clipped_relu", "coefficient": 3}, outs=more
        ),
    }
    plain = {"alpha": 1, "beta": 0}
    calls |= {
        f"{name}, no factors": replace(calls[name], keywords={**calls[name].keywords, **plain}, outs={})
        for name in ("conv", "backward_data", "backward_filter")
    }
    return calls
