"""The weights of a recurrent network in one piece of device memory: put in, taken out, seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from ...array import DeviceArray
from ...array_creation import NO_NUMBERS, as_operand
from ...cuda.stream import Stream
from ...dtypes import DTYPES
from ...shapes.parse import as_int
from ...shapes.rnn import RNNSpec
from ...shapes.rnn_params import rnn_offsets, rnn_parameters, rnn_weight_size
from ...shapes.rnn_weights import arrange_weights
from ...shapes.specs import TensorSpec
from ..tensor import transform
from .call import check_weights

__all__ = ["as_index", "host_parts", "pack", "split", "to_host"]


def pack(spec: RNNSpec, weights: Mapping[str, Any] | Sequence[Any], stream: Stream) -> DeviceArray:
    """Copy parameters into one new array; those on the host are cast to the dtype of the network."""
    import numpy as np

    dtype = DTYPES[spec.dtype]
    parts = arrange_weights(spec, weights)
    flat, later = np.zeros(rnn_weight_size(spec), dtype.numpy), []
    for row, start, part in zip(rnn_parameters(spec), rnn_offsets(spec), parts, strict=True):
        if isinstance(part, np.ndarray):
            flat[start : start + row.size] = _real(part, row.name).astype(dtype.numpy).reshape(-1)
            continue
        array = as_operand(part, row.name, stream)
        if array.spec.dtype != spec.dtype:
            raise TypeError(f"{row.name} is {array.spec.dtype}; the network is {spec.dtype}")
        later.append((array, start, row.shape))
    w = DeviceArray.from_host(flat, dtype, "nchw", stream)
    for array, start, shape in later:
        transform(array, out=_view(w, start, shape), stream=stream)
    return w


def split(spec: RNNSpec, w: DeviceArray, layer: int, direction: int) -> dict[str, DeviceArray]:
    """Views of the parameters of a layer in one direction, by name, in the order of cuDNN's linLayerIDs."""
    check_weights(spec, w.spec)
    if "nchw" not in w.spec.layouts:
        raise ValueError(f"w has stride {w.spec.strides}; parts are seen only of weights without gaps")
    wanted = as_index(spec.num_layers, layer, "layer") * spec.directions
    wanted += as_index(spec.directions, direction, "direction")
    rows = zip(rnn_parameters(spec), rnn_offsets(spec), strict=True)
    return {row.name: _view(w, start, row.shape) for row, start in rows if row.pseudo_layer == wanted}


def to_host(spec: RNNSpec, w: DeviceArray) -> dict[str, Any]:
    """All parameters by name, as NumPy arrays that torch takes: it has no bfloat16 of NumPy's."""
    check_weights(spec, w.spec)
    flat = w.numpy()
    if spec.dtype == "bfloat16":
        flat = flat.astype("float32")
    rows = zip(rnn_parameters(spec), rnn_offsets(spec), strict=True)
    return {row.name: flat[start : start + row.size].reshape(row.shape) for row, start in rows}


def host_parts(state: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors of a state as NumPy arrays, whatever library they are of."""
    return {name: _real(_on_host(value), name) for name, value in state.items()}


def _on_host(value: Any) -> Any:
    import numpy as np

    if isinstance(value, np.ndarray):
        return value
    for step in ("detach", "cpu"):
        value = getattr(value, step, lambda value=value: value)()
    if not hasattr(value, "numpy"):
        return np.from_dlpack(value) if hasattr(value, "__dlpack__") else np.asarray(value)
    try:
        return value.numpy()
    except TypeError:  # a dtype that NumPy has not, such as bfloat16
        return value.float().numpy()


def _real(array: Any, name: str) -> Any:
    """The array itself; raise for one that has no real numbers, which a cast would make of it."""
    if array.dtype.kind in NO_NUMBERS:
        raise TypeError(f"{name} is {array.dtype}; weights are real numbers")
    return array


def as_index(most: int, value: Any, name: str) -> int:
    """An int that counts one of ``most`` things from 0."""
    n = as_int(value, name)
    if not 0 <= n < most:
        raise ValueError(f"{name} must be from 0 to {most - 1}, got {n}")
    return n


def _view(w: DeviceArray, start: int, shape: tuple[int, ...]) -> DeviceArray:
    assert start + prod(shape) <= w.size
    view = w.view_as(TensorSpec.packed(shape, w.spec.dtype))
    view.pointer += start * w.itemsize
    return view
