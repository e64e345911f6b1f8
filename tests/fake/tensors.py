"""Operations on tensors and reductions of the fake cuDNN, by the reference, within cuDNN's limits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import cudnn_ct as ct

from .host import BAD_PARAM, NOT_SUPPORTED, view
from .pointwise import descriptor, factors, write

OPS = ("add", "mul", "min", "max", "sqrt", "not")
_BEFORE_ANY = {"max": -np.inf, "min": np.inf, "amax": 0.0}  # where sums of extremes begin
REDUCE_OPS = ("add", "mul", "min", "max", "amax", "average", "norm1", "norm2", "mul_no_zeros")

# What cudnnOpTensor reads and writes, as the manual has it: dtypes of a and of c. b has that of a.
_OP_TENSOR = {
    ("float32", "float32"), ("float32", "float16"), ("float32", "bfloat16"),
    ("float16", "float32"), ("float16", "float16"),
    ("bfloat16", "float32"), ("bfloat16", "bfloat16"),
    ("float64", "float64"),
}  # fmt: skip


def _workspace_size(terms: int, results: int) -> int:
    return 16 * results if terms > 4 else 0


class Tensors:
    """A part of the fake: it reads descriptors and memory through the rest of it."""

    cudnnCreateOpTensorDescriptor, cudnnDestroyOpTensorDescriptor = descriptor("op_tensor")

    def cudnnSetOpTensorDescriptor(self: Any, operation: Any, op: int, code: int, nan: int) -> None:
        self._get(operation, "op_tensor").update(op=op, compute=code, nan=nan)

    def cudnnOpTensor(self: Any, handle: Any, operation: Any, *arguments: Any) -> int:
        self._get(handle, "handle")
        state = self._get(operation, "op_tensor")
        alpha1, a, a_pointer, alpha2, b, b_pointer, beta, c, c_pointer = arguments
        if b_pointer == c_pointer != a_pointer:  # which the manual rules out
            return NOT_SUPPORTED
        first, second, target = (
            self._memory(descriptor, "tensor", pointer)
            for descriptor, pointer in ((a, a_pointer), (b, b_pointer), (c, c_pointer))
        )
        names = tuple(self._get(one, "tensor")["dtype"].name for one in (a, b, c))
        if names[0] != names[1] or (names[0], names[2]) not in _OP_TENSOR:
            return NOT_SUPPORTED
        if state["compute"] != (1 if names[0] == "float64" else 0) or not 4 <= target.ndim <= 5:
            return NOT_SUPPORTED
        pairs = zip(second.shape, target.shape, strict=True)
        if first.shape != target.shape or any(m not in (1, n) for m, n in pairs):
            return BAD_PARAM
        a1, a2 = factors(first.dtype, alpha1, alpha2)
        if a1 == a2 == 0:  # as cuDNN 9.19, which reads neither operand
            first, second = np.zeros_like(first), np.zeros_like(second)
        op, operands = OPS[state["op"]], [first.astype(np.float64)]
        keywords = {"op": op, "alpha1": a1, "propagate_nan": bool(state["nan"])}
        if op not in ("sqrt", "not"):
            operands.append(second.astype(np.float64))
            keywords["alpha2"] = a2
        if op == "add" and names[0] != "float64":  # as cuDNN 9.19, which adds in this order
            _, b = factors(first.dtype, alpha1, beta)
            with np.errstate(all="ignore"):
                kept = b * target.astype(np.float32) if b else np.float32(0)
                partial = (a1 * operands[0] + kept).astype(np.float32)
                target[...] = (partial + a2 * operands[1]).astype(np.float32).astype(target.dtype)
            return 0
        write(target, ct.reference.op_tensor(*operands, **keywords), None, beta)
        return 0

    cudnnCreateReduceTensorDescriptor, cudnnDestroyReduceTensorDescriptor = descriptor("reduction")

    def cudnnSetReduceTensorDescriptor(
        self: Any, reduction: Any, op: int, code: int, nan: int, indices: int, width: int
    ) -> None:
        self._get(reduction, "reduction").update(op=op, compute=code, nan=nan, indices=indices, width=width)

    def cudnnGetReductionWorkspaceSize(
        self: Any, handle: Any, reduction: Any, a: Any, c: Any, size: Any
    ) -> None:
        self._get(handle, "handle")
        whole, kept = (math.prod(self._get(one, "tensor")["shape"]) for one in (a, c))
        size[0] = _workspace_size(whole // kept, kept)

    def cudnnGetReductionIndicesSize(
        self: Any, handle: Any, reduction: Any, a: Any, c: Any, size: Any
    ) -> None:
        self._get(handle, "handle")
        wanted = self._get(reduction, "reduction")["indices"]
        size[0] = 4 * math.prod(self._get(c, "tensor")["shape"]) if wanted else 0

    def cudnnReduceTensor(self: Any, handle: Any, reduction: Any, *arguments: Any) -> int:
        self._get(handle, "handle")
        state = self._get(reduction, "reduction")
        indices, indices_size, workspace, size, alpha, a, read, beta, c, written = arguments
        source, target = self._memory(a, "tensor", read), self._memory(c, "tensor", written)
        names = tuple(self._get(one, "tensor")["dtype"].name for one in (a, c))
        pairs = list(zip(target.shape, source.shape, strict=True))
        if "bfloat16" in names or not 4 <= source.ndim <= 8 or target.shape == source.shape:
            return NOT_SUPPORTED
        if names[0] != names[1] or any(m not in (1, n) for m, n in pairs):
            return BAD_PARAM
        if state["compute"] != (1 if names[0] == "float64" else 0):
            return NOT_SUPPORTED
        needed = _workspace_size(source.size // target.size, target.size)
        if size < needed:
            return BAD_PARAM
        if needed:
            self.host.check(workspace or 0, size)
            view(self.host, workspace or 0, (size,), (1,), np.dtype(np.uint8))[:] = 0xEE
        axes = tuple(axis for axis, (m, n) in enumerate(pairs) if m != n)
        keywords = {"op": REDUCE_OPS[state["op"]], "axis": axes, "propagate_nan": bool(state["nan"])}
        wide = source.astype(np.float64)
        if keywords["op"] == "mul_no_zeros" and axes:  # as cuDNN 9.19: products of parts may underflow to 0
            halves = np.array_split(wide, 2, axes[0])
            parts = [np.where(half == 0, 1, half).prod(axes, keepdims=True) for half in halves]
            smallest = np.finfo(np.float64 if source.dtype == np.float64 else np.float32).smallest_subnormal
            wide = np.concatenate([np.where(np.abs(part) < smallest, 0, part) for part in parts], axes[0])
            keywords["axis"] = axes[0]
        if state["indices"]:
            assert state["width"] == 0, "only indices of 32 bits are computed"
            if indices_size < 4 * target.size:
                return BAD_PARAM
            places = view(self.host, indices or 0, (target.size,), (1,), np.dtype(np.int32))
            places[:] = ct.reference.reduce_with_indices(wide, **keywords).indices.reshape(-1)
        values = ct.reference.reduce(wide, **keywords, keepdims=True)
        if not state["nan"] and keywords["op"] in _BEFORE_ANY:  # as cuDNN 9.19, which reads no number then
            values = np.where(np.isnan(wide).all(axes, keepdims=True), _BEFORE_ANY[keywords["op"]], values)
        write(target, values, alpha, beta)
        return 0
