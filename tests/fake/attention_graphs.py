"""Graphs with two products, which are attention, on the fake cuDNN: node by node, in float64."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from cudnn_ct._bindings.enums import PointwiseMode, ReduceTensorOp

from .host import BY_CODE, view

_POINTWISE: dict[str, Any] = {
    "MUL": lambda x, b: x * b,
    "ADD": lambda x, b: x + b,
    "SUB": lambda x, b: np.where(np.isneginf(x) & np.isneginf(b), -np.inf, x - b),
    "DIV": lambda x, b: np.where(b == 0, 0, x / b),
    "EXP": lambda x: np.exp(x),
    "LOG": lambda x: np.log(x),
    "IDENTITY": lambda x: x,
    "CMP_LT": lambda x, b: x < b,
    "CMP_GE": lambda x, b: x >= b,
    "CMP_GT": lambda x, b: x > b,
    "LOGICAL_AND": lambda x, b: np.logical_and(x, b),
}


def is_attention(operations: list[dict[str, list[Any]]]) -> bool:
    """Return whether a graph has two products."""
    return sum("OPERATION_MATMUL_DESC" in attributes for attributes in operations) > 1


def kept_weights(shape: tuple[int, ...], seed: int, offset: int, chance: float) -> np.ndarray:
    """Return the mask of dropout of the fake, which is another one than cuDNN's."""
    return (np.random.default_rng([seed, offset]).random(shape) < chance).astype(np.float64)


class AttentionRun:
    """One run of a graph: the memory of its tensors by uid, and the values of nodes so far."""

    def __init__(self, fake: Any, memory: dict[int, int]) -> None:
        self.fake, self.memory = fake, memory
        self.values: dict[int, tuple[np.ndarray, list[int]]] = {}  # with the strides that they have

    @np.errstate(all="ignore")
    def run(self, operations: list[dict[str, list[Any]]]) -> None:
        """Compute all nodes."""
        for node in operations:
            kind = next(name for name in _NODES if any(one.startswith(name) for one in node))
            _NODES[kind](self, {name.removeprefix(f"{kind}_"): value[0] for name, value in node.items()})

    # --- tensors ---------------------------------------------------------------------------------------

    def tensor(self, descriptor: int) -> dict[str, Any]:
        return {
            name.removeprefix("TENSOR_"): value for name, value in self.fake._attributes(descriptor).items()
        }

    def shape(self, descriptor: int) -> tuple[int, ...]:
        return tuple(self.tensor(descriptor)["DIMENSIONS"])

    def read(self, descriptor: int) -> np.ndarray:
        """Return a tensor: a value of a node, a number in host memory, or elements in device memory."""
        found = self.tensor(descriptor)
        (uid,) = found["UNIQUE_ID"]
        shape = tuple(found["DIMENSIONS"])
        if uid in self.values:
            value, strides = self.values[uid]
            return value if strides == found["STRIDES"] else value.swapaxes(2, 3)
        dtype = BY_CODE[found["DATA_TYPE"][0]].numpy
        if found.get("IS_BY_VALUE", [False])[0]:
            raw = ctypes.string_at(self.memory[uid], dtype.itemsize)
            return np.frombuffer(raw, dtype).astype(np.float64).reshape(shape)
        if "RAGGED_OFFSET_DESC" not in found:
            return self._array(found, self.memory[uid]).astype(np.float64)
        whole = np.zeros(shape)
        axis = 2 if found["STRIDES"][2] >= found["STRIDES"][3] else 3
        for place, part in self._sequences(found, self.memory[uid], axis):
            index = (place, slice(None), *[slice(None)] * (axis - 2), slice(0, part.shape[axis - 1]))
            whole[index] = part
        return whole

    def write(self, descriptor: int, result: np.ndarray) -> None:
        found = self.tensor(descriptor)
        (uid,) = found["UNIQUE_ID"]
        dtype = BY_CODE[found["DATA_TYPE"][0]].numpy
        value = result.astype(dtype).astype(np.float64) if dtype.kind in "fV" else result
        self.values[uid] = value, found["STRIDES"]
        if found.get("IS_VIRTUAL", [False])[0]:
            return
        if "RAGGED_OFFSET_DESC" not in found:
            self._array(found, self.memory[uid])[...] = result.astype(dtype)
            return
        for place, part in self._sequences(found, self.memory[uid], 2):
            part[...] = result[place, :, : part.shape[1]].astype(dtype)

    def _array(self, found: dict[str, Any], pointer: int) -> np.ndarray:
        dtype = BY_CODE[found["DATA_TYPE"][0]].numpy
        return view(self.fake.host, pointer, found["DIMENSIONS"], found["STRIDES"], dtype)

    def _sequences(self, found: dict[str, Any], pointer: int, axis: int) -> Any:
        """Yield the sequences of a ragged tensor, whose tokens lie along an axis."""
        starts = self.read(found["RAGGED_OFFSET_DESC"][0]).astype(int).ravel()
        dtype, strides = BY_CODE[found["DATA_TYPE"][0]].numpy, found["STRIDES"]
        for place in range(len(starts) - 1):
            shape = list(found["DIMENSIONS"][1:])
            rows = (starts[place + 1] - starts[place]) // strides[axis]
            shape[axis - 1] = min(rows, shape[axis - 1])  # sequences may have gaps behind them
            start = pointer + int(starts[place]) * dtype.itemsize
            if 0 not in shape:
                yield place, view(self.fake.host, start, shape, strides[1:], dtype)

    # --- nodes -----------------------------------------------------------------------------------------

    def pointwise(self, node: dict[str, Any]) -> None:
        function = self.fake._attributes(node["PW_DESCRIPTOR"])
        mode = PointwiseMode(function["POINTWISE_MODE"][0]).name
        if mode == "GEN_INDEX":
            shape, axis = self.shape(node["YDESC"]), function["POINTWISE_AXIS"][0]
            index = np.arange(shape[axis]).reshape([-1 if i == axis else 1 for i in range(4)])
            self.write(node["YDESC"], np.broadcast_to(index, shape).astype(np.float64))
            return
        x = self.read(node["XDESC"])
        if mode == "BINARY_SELECT":
            result = np.where(self.read(node["TDESC"]).astype(bool), x, self.read(node["BDESC"]))
        elif "BDESC" in node:
            result = _POINTWISE[mode](x, self.read(node["BDESC"]))
        else:
            result = _POINTWISE[mode](x)
        self.write(node["YDESC"], result)

    def matmul(self, node: dict[str, Any]) -> None:
        a, b = self.read(node["ADESC"]), self.read(node["BDESC"])
        b = np.repeat(b, a.shape[1] // b.shape[1], axis=1)
        # Only the rows and columns within the lengths are read; the others may be anything.
        for axis, (of_a, of_b) in {"M": (2, None), "N": (None, 3), "K": (3, 2)}.items():
            name = f"GEMM_{axis}_OVERRIDE_DESC"
            if name in node:
                lengths = self.read(node[name]).reshape(-1, 1)
                for array, along in ((a, of_a), (b, of_b)):
                    if along is not None:
                        outside = np.arange(array.shape[along]) >= lengths
                        np.moveaxis(array, along, 1)[outside] = 0
        self.write(node["CDESC"], a @ b)

    def reduction(self, node: dict[str, Any]) -> None:
        x, shape = self.read(node["XDESC"]), self.shape(node["YDESC"])
        operator = ReduceTensorOp(self.fake._attributes(node["DESC"])["REDUCTION_OPERATOR"][0]).name
        if operator == "AMAX":
            self._largest(node["YDESC"], np.abs(x).max(keepdims=True))
            return
        if 1 < shape[1] < x.shape[1] or (shape[1] == 1 and shape[2:] == x.shape[2:] and len(x) == shape[0]):
            grouped = x.reshape(len(x), shape[1], -1, *x.shape[2:])
            self.write(node["YDESC"], grouped.sum(2))
            return
        axes = tuple(axis for axis in range(4) if shape[axis] == 1)
        result = x.max(axes, keepdims=True) if operator == "MAX" else x.sum(axes, keepdims=True)
        self.write(node["YDESC"], result)

    def _largest(self, descriptor: int, result: np.ndarray) -> None:
        """Write the larger one of a result and the contents of its memory, as kernels with atomics do."""
        found = self.tensor(descriptor)
        memory = self._array(found, self.memory[found["UNIQUE_ID"][0]])
        self.write(descriptor, np.maximum(memory, result))

    def reshape(self, node: dict[str, Any]) -> None:
        x = self.read(node["XDESC"])
        self.write(node["YDESC"], x.swapaxes(2, 3))

    def rng(self, node: dict[str, Any]) -> None:
        chance = self.fake._attributes(node["DESC"])["RNG_BERNOULLI_DIST_PROBABILITY"][0]
        seed, offset = (int(self.read(node[name]).item()) for name in ("SEED", "OFFSET_DESC"))
        self.write(node["YDESC"], kept_weights(self.shape(node["YDESC"]), seed, offset, chance))

    def paged_cache_load(self, node: dict[str, Any]) -> None:
        table = self.read(node["PAGE_TABLE_DESC"]).astype(int)[:, 0, :, 0]
        pages = self.read(node["CONTAINER_DESC"])[table]  # (batch, pages, heads, length, D)
        loaded = np.concatenate(list(np.moveaxis(pages, 1, 0)), axis=2)
        strides = self.tensor(node["YDESC"])["STRIDES"]
        self.write(node["YDESC"], loaded.swapaxes(2, 3) if strides[2] < strides[3] else loaded)


_NODES = {
    "OPERATION_POINTWISE": AttentionRun.pointwise,
    "OPERATION_MATMUL": AttentionRun.matmul,
    "OPERATION_REDUCTION": AttentionRun.reduction,
    "OPERATION_RESHAPE": AttentionRun.reshape,
    "OPERATION_RNG": AttentionRun.rng,
    "OPERATION_PAGED_CACHE_LOAD": AttentionRun.paged_cache_load,
}
